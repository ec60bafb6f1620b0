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
from typing import Any

_OPENER = {"}": "{", "]": "["}
_CLOSER = {"{": "}", "[": "]"}
_DIGIT, _NONZERO, _HEX = "0123456789", "123456789", "0123456789abcdefABCDEF"
_WORDS = ("true", "false", "null")

# The grammar: state -> character -> step. A step is the next state, or one of those that
# ObjectScanner._take() knows. Runs of characters that change nothing are in _RUNS.
_VALUE = {
    '"': "open value string",
    "{": "open",
    "[": "open",
    "-": "minus",
    "0": "zero",
    **dict.fromkeys(_NONZERO, "integer"),
    **{word[0]: word[0] for word in _WORDS},
}
_TABLE: dict[str, dict[str, str]] = {
    "start {": {"{": "open"},
    "start [": {"[": "open"},
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
_ESCAPES = frozenset(("escape", "hex 1", "hex 2", "hex 3", "hex 4"))
_IN_STRING = _ESCAPES | {"string"}
_QUOTE = re.compile("[\"']")
_QUOTE_END = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject)


class ObjectScanner:
    """Reads the argument text of one call, in pieces, as a JSON object.

    The pieces that feed() and finish() return add up to the argument string, whatever
    the pieces of text were. Work is constant a character.

    Args:
        opener: "{", or "[" to read an array instead.
        mends: whether faulty text is mended at the end; not if no object is wanted.

    Attributes:
        value: the argument string decoded, if a piece held all of it; else None.
    """

    def __init__(self, opener: str = "{", mends: bool = True) -> None:
        self.value: Any = None
        self._opener = opener
        self._mends = mends
        self._start = self._state = f"start {opener}"
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
        if self._state == self._start:
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
        if not self._mends and text:
            return text[len(sent) :]
        if text == "null" or (ended and text in ("", "None")):
            final = self._opener + _CLOSER[self._opener]
        elif ended:
            mended = mend(text, self._opener)
            # Never false, as mending keeps what is well formed: for safety only.
            if mended is not None and mended.startswith(sent):
                final = mended
        return final[len(sent) :]

    def _decode(self, text: str) -> int:
        """The length of a whole object at the start of text, found by json in C."""
        if text[0] != self._opener:
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
            before, state = state, self._take(step, text[pos])
            if state == "fault":
                self._quote = '"' if before in _IN_STRING else ""
                self.value = None
                break
            pos += 1
            # A comma may turn out to be a trailing one, an escape to be none.
            if step != "comma" and state not in _ESCAPES:
                certain = pos
        if state == "fault":
            self._track_quotes(text, pos)
        self._state = state
        return certain

    def _take(self, step: str | None, char: str) -> str:
        """The state after a step of _TABLE."""
        if step == "open":
            self._open.append(char)
            return "first key" if char == "{" else "first item"
        if step == "close":
            if self._open.pop() != _OPENER[char]:
                return "fault"
            return "after value" if self._open else "end"
        if step == "comma":
            return "key" if self._open[-1] == "{" else "value"
        if step in ("open key string", "open value string"):
            self._after_string = "colon" if "key" in step else "after value"
            return "string"
        if step == "close string":
            return self._after_string
        return step or "fault"

    def _track_quotes(self, text: str, pos: int) -> None:
        """Keep _quote right over text[pos:], which comes after a fault."""
        while pos < len(text):
            if self._escaped:
                self._escaped = False
                pos += 1
                continue
            ends = _QUOTE_END[self._quote] if self._quote else _QUOTE
            if (found := ends.search(text, pos)) is None:
                return
            pos = found.end()
            if self._quote and found.group() == "\\":
                self._escaped = True
            else:
                self._quote = "" if self._quote else found.group()


def is_object(text: str, opener: str = "{") -> bool:
    """Whether text is one valid JSON object (or array), with nothing around it."""
    scanner = ObjectScanner(opener)
    return scanner.feed(text) == text and scanner.complete


def is_json(text: str) -> bool:
    """Whether text is a JSON value of any type."""
    try:
        json.loads(text, parse_constant=_reject)
    except (ValueError, RecursionError):
        return False
    return True


def object_or_text(arguments: str) -> Any:
    """The dict that an argument string holds, or the string if it holds none."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


_MAX_WRAPPINGS = 4
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<comment>//[^\n]*|/\*.*?\*/|\#[^\n]*)
    |(?P<string>"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*')
    |(?P<mark>[][{}:,])
    |(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.+-]))
    |(?P<word>(?:[^\W\d]|\$)[\w$-]*)""",
    re.VERBOSE | re.DOTALL,
)
_LITERALS = {"True": "true", "False": "false", "None": "null"} | {w: w for w in _WORDS}
_STRING_PARTS = re.compile(
    r"""\\u[0-9a-fA-F]{4}|\\["\\/bfnrt]|\\'|["\\\x00-\x1f]""", re.DOTALL
)


def mend(text: str, opener: str = "{") -> str | None:
    """The JSON object that text was meant to be, if there is one sane reading.

    With opener "[" an array instead.

    Mends Python's literals and quotes, trailing commas, control characters and stray
    backslashes in strings, comments, unquoted keys, brackets that are missing or too
    many, an object encoded as a string, and a code fence. Whatever is well formed keeps
    its bytes.
    """
    for _ in range(_MAX_WRAPPINGS):
        if text.startswith(opener):
            mended = text if is_object(text, opener) else _Mender().mend(text)
            return mended if mended is not None and is_object(mended, opener) else None
        inner = _unfenced(text) if text.startswith("```") else _unquoted(text)
        if inner is None:
            return None
        text = inner.strip()
    return None


def _unfenced(text: str) -> str:
    return re.sub(r"^```\w*", "", text).removesuffix("```")


def _unquoted(text: str) -> str | None:
    token = _TOKEN.fullmatch(text)
    if token is None or token.lastgroup != "string":
        return None
    return json.loads(_mend_string(text))


def _mend_string(token: str) -> str:
    """A string in either kind of quotes as JSON."""
    return '"' + _STRING_PARTS.sub(_mend_string_part, token[1:-1]) + '"'


def _mend_string_part(found: re.Match) -> str:
    part = found.group()
    if part == "\\'":
        return "'"
    if len(part) > 1:
        return part
    if part in '"\\':
        return "\\" + part
    return json.dumps(part)[1:-1]


class _Mender:
    """One pass over the tokens of an object that has faults."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._open: list[str] = []
        self._count = {"{": 0, "[": 0}
        self._expect = "value"
        self._comma = 0  # where the last comma is in _out

    def mend(self, text: str) -> str | None:
        """The mended text; None if there is no sane reading."""
        pos = 0
        while pos < len(text):
            token = _TOKEN.match(text, pos)
            if token is None or not self._take(token.lastgroup, token.group()):
                return None
            pos = token.end()
        while self._open:
            if not self._close():
                return None
        return "".join(self._out).rstrip()

    def _take(self, kind: str | None, token: str) -> bool:
        """Whether a token has a place here; if so it is in _out afterwards."""
        if kind == "comment":
            return True
        if kind == "space":
            self._out.append(" " if token.strip(" \t\n\r") else token)
            return True
        if kind == "mark":
            return self._take_mark(token)
        if kind == "string":
            token = _mend_string(token)
        if self._expect in ("value", "item", "first item"):
            token = _LITERALS.get(token, "") if kind == "word" else token
            return bool(token) and self._put(token, "after")
        if self._expect in ("key", "first key") and kind != "number":
            if kind == "word":
                token = "" if token in _LITERALS else f'"{token}"'
            return bool(token) and self._put(token, "colon")
        return False

    def _take_mark(self, mark: str) -> bool:
        if mark in _OPENER:
            return self._close_to(_OPENER[mark])
        if mark in _CLOSER:
            if self._expect not in ("value", "item", "first item"):
                return False
            self._open.append(mark)
            self._count[mark] += 1
            return self._put(mark, "first key" if mark == "{" else "first item")
        if mark == ":":
            return self._expect == "colon" and self._put(mark, "value")
        if self._expect != "after":
            return False
        self._comma = len(self._out)
        return self._put(mark, "key" if self._open[-1] == "{" else "item")

    def _close_to(self, opener: str) -> bool:
        """Close the innermost bracket of this kind, and those left open within it."""
        if not self._count[opener]:  # one too many: left out
            return self._expect in ("after", "end")
        while True:
            innermost = self._open[-1]
            if not self._close():
                return False
            if innermost == opener:
                return True

    def _close(self) -> bool:
        if self._expect in ("key", "item"):
            self._out[self._comma] = ""
        elif self._expect not in ("after", "first key", "first item"):
            return False
        opener = self._open.pop()
        self._count[opener] -= 1
        return self._put(_CLOSER[opener], "after" if self._open else "end")

    def _put(self, token: str, expect: str) -> bool:
        self._out.append(token)
        self._expect = expect
        return True
