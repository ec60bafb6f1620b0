r"""
JSON of tool arguments while a model writes it, for the Kimi parsers.

What is certain is passed on byte for byte as it comes. The rest waits for the end of the
call, and is mended if it has one sane reading:

    {"city": "Oslo", "days": 3}   passed on, never changed
    {"a": 1, 'b': True,}          {"a": 1 is passed on, then , "b": true}
    "{\"a\": 1}"                  waits, then {"a": 1}
    {1, 2}                        no sane reading: passed on as it is at the end

JSON is RFC 8259's, so NaN and Infinity are faults. Nothing here recurses over the text,
and nothing raises.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

_OPENER = {"}": "{", "]": "["}
_CLOSER = {"{": "}", "[": "]"}
_DIGIT, _NONZERO, _HEX = "0123456789", "123456789", "0123456789abcdefABCDEF"
_WORDS = ("true", "false", "null")

# The grammar: state -> character -> step. A step is the next state, or one of those that
# ObjectScanner._take() knows. Runs of characters that change nothing are in _RUNS.
_VALUE = {
    **{'"': "open value string", "{": "open", "[": "open", "-": "minus", "0": "zero"},
    **dict.fromkeys(_NONZERO, "integer"),
    **{word[0]: word[0] for word in _WORDS},
}
_TABLE: dict[str, dict[str, str]] = {
    "start": {"{": "open"},
    "first key": {'"': "open key string", "}": "close"},
    "key": {'"': "open key string"},
    "colon": {":": "value"},
    "first item": _VALUE | {"]": "close"},
    "value": _VALUE,
    "after value": {",": "comma", "}": "close", "]": "close"},
    "end": {},
    "string": {'"': "close string", "\\": "escape"},
    "escape": dict.fromkeys('"\\/bfnrt', "string") | {"u": "hex 1"},
    "hex 1": dict.fromkeys(_HEX, "hex 2"),
    "hex 2": dict.fromkeys(_HEX, "hex 3"),
    "hex 3": dict.fromkeys(_HEX, "hex 4"),
    "hex 4": dict.fromkeys(_HEX, "string"),
    "minus": {"0": "zero"} | dict.fromkeys(_NONZERO, "integer"),
    "zero": {".": "point", "e": "exponent", "E": "exponent"},
    "integer": {".": "point", "e": "exponent", "E": "exponent"},
    "point": dict.fromkeys(_DIGIT, "fraction"),
    "fraction": {"e": "exponent", "E": "exponent"},
    "exponent": {"+": "sign", "-": "sign"} | dict.fromkeys(_DIGIT, "exponent digits"),
    "sign": dict.fromkeys(_DIGIT, "exponent digits"),
    "exponent digits": {},
    # The states inside a word are its beginnings: t, tr, tru.
    **{w[:i]: {w[i]: w[: i + 1]} for w in _WORDS for i in range(1, len(w) - 1)},
    **{w[:-1]: {w[-1]: "after value"} for w in _WORDS},
    "fault": {},
}
_SPACE = ("first key", "key", "colon", "first item", "value", "after value", "end")
_NUMBER_ENDS = ("zero", "integer", "fraction", "exponent digits")
_RUNS = {
    "string": re.compile(r'[^"\\\x00-\x1f]*'),
    **dict.fromkeys(_SPACE, re.compile(r"[ \t\n\r]*")),
    **dict.fromkeys(_NUMBER_ENDS[1:], re.compile(r"[0-9]*")),
}
# Held until the next token begins: after a comma, and inside an escape.
_UNCERTAIN = frozenset(("key", "escape", "hex 1", "hex 2", "hex 3", "hex 4"))
_IN_STRING = _UNCERTAIN - {"key"} | {"string"}
_QUOTE = re.compile("[\"']")
_QUOTE_END = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject)


class ObjectScanner:
    """Reads the argument text of one call, in pieces, as a JSON object.

    The pieces that feed() and finish() return add up to the argument string, whatever
    the pieces of text were. Work is constant a character.

    Attributes:
        value: the decoded object if one piece held it whole, for whoever needs it.
    """

    def __init__(self) -> None:
        self.value: dict[str, Any] | None = None
        self._state = "start"
        self._open: list[str] = []
        self._after_string = ""
        self._sent: list[str] = []
        self._held: list[str] = []
        # Of the text after a fault, which may hold strings all the same.
        self._quote = ""
        self._escaped = False

    @property
    def quote(self) -> str:
        """The quote that opened the string in which the text so far ends, or ""."""
        return '"' if self._state in _IN_STRING else self._quote

    @property
    def complete(self) -> bool:
        """Whether the text so far is a valid object, with nothing after it."""
        return self._state == "end"

    def feed(self, text: str) -> str:
        """The argument text that this piece makes certain."""
        start = 0
        if self._state == "start":
            text = text.lstrip()
            if not text:
                return ""
            start = self._decode(text)
        end = self._scan(text, start)
        if not end:
            self._held.append(text)
            return ""
        certain = "".join(self._held) + text[:end]
        self._held = [text[end:]]
        self._sent.append(certain)
        return certain

    def finish(self, ended: bool = True) -> str:
        """The rest of the argument string.

        Args:
            ended: whether the call was properly ended. If it was cut off, it keeps what
                it has, unmended.
        """
        if self._state == "end":
            return ""
        sent = "".join(self._sent)
        text = sent + "".join(self._held).rstrip()
        final = text
        if text == "null" or (ended and text in ("", "None")):
            final = "{}"
        elif ended:
            mended = mend(text)
            # Never false, as mending keeps what is well formed: for safety only.
            if mended is not None and mended.startswith(sent):
                final = mended
        return final[len(sent) :]

    def _decode(self, text: str) -> int:
        """The length of a whole object at the start of text, found by json in C."""
        if text[0] != "{":
            return 0
        try:
            self.value, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):  # not whole, not JSON, or beyond json
            return 0
        self._state = "end"
        return end

    def _scan(self, text: str, start: int) -> int:
        """Advance over text[start:]; returns where the part that is certain ends."""
        pos = certain = start
        state = self._state
        while pos < len(text) and state != "fault":
            if run := _RUNS.get(state):
                begin, pos = pos, run.match(text, pos).end()
                if pos > begin:
                    certain = certain if state in _SPACE else pos
                    continue
            step = _TABLE[state].get(text[pos])
            if step is None and state in _NUMBER_ENDS:
                state = "after value"
                continue
            comma = step == "comma"
            state = self._take(step, text[pos])
            if state == "fault":
                break
            pos += 1
            if not comma and state not in _UNCERTAIN:
                certain = pos
        if state == "fault":
            if self._state != "fault":
                self._quote = self._quote_at_fault
            self._track_quotes(text[pos:])
        self._state = state
        return certain
