"""
Tool calls of Kimi K3, as the model writes them (XTML):

    <|open|>think<|sep|>reasoning<|close|>think<|sep|>
    <|open|>response<|sep|>content<|close|>response<|sep|>
    <|open|>tools<|sep|>
      <|open|>call tool="get_weather" index="1"<|sep|>
        <|open|>argument key="city" type="string"<|sep|>Tokyo<|close|>argument<|sep|>
      <|close|>call<|sep|>
    <|close|>tools<|sep|>
    <|close|>message<|sep|><|end_of_msg|>

without the line breaks and spaces between the elements. A call may hold one raw object
in place of typed arguments:

    <|open|>json type="object"<|sep|>{"city": "Tokyo"}<|close|>json<|sep|>

ToolCallStream understands it while it is generated; parse_tool_call is a loop over it.
"""

import json
import re
from typing import Any

from .kimi_json import ObjectScanner, is_json, mend, object_or_text
from .kimi_k2 import Event
from .kimi_names import UNKNOWN, Resolved, Tools

tool_call_start = "<|open|>tools<|sep|>"
tool_call_end = "<|close|>tools<|sep|>"

_OPEN, _CLOSE, _SEP, _END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
MARKERS: frozenset[str] = frozenset((_OPEN, _CLOSE, _SEP, _END))
_ANY_MARKER = re.compile("|".join(map(re.escape, MARKERS)))
_LONGEST = max(map(len, MARKERS))
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')

# What an opened tag makes of the text that follows.
_OPENED = {
    "think": "reasoning",
    "response": "content",
    "tools": "tools",
    "message": "message",
    "call": "call",
    "argument": "argument",
    "json": "json",
}
# Within an argument these tags are text: nothing of that kind can begin or end there.
_TEXT_IN_VALUE = {
    _OPEN: frozenset(("think",)),
    _CLOSE: frozenset(("think", "response")),
}
_EMPTY = {"object": "{}", "array": "[]", "null": "null"}
_LITERALS = {"True": "true", "False": "false", "None": "null"}


def _attributes(header: str) -> dict[str, str]:
    return {
        key: value.replace("&quot;", '"').replace("&amp;", "&")
        for key, value in _ATTRIBUTE.findall(header)
    }


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class _String:
    """The text of an argument of type string, as a JSON string."""

    def __init__(self) -> None:
        self._begun = False

    def feed(self, text: str) -> str:
        begin = "" if self._begun else '"'
        self._begun = True
        return begin + _string(text)[1:-1]

    def finish(self, ended: bool) -> str:
        return self.feed("") + '"' if ended else ""


class _Typed:
    """The text of an argument of another type: JSON, or else a string of that text."""

    def __init__(self, kind: str):
        self._kind = kind
        self._text: list[str] = []
        self._plain = False  # it begins with no bracket
        self._scanner: ObjectScanner | None = None
        self._held: str | None = ""  # certain, but an opening bracket says too little

    def feed(self, text: str) -> str:
        self._text.append(text)
        if self._scanner is None:
            if self._plain or not text.strip():
                return ""
            text = "".join(self._text).lstrip()
            if text[0] not in "{[":
                self._plain = True
                return ""
            self._scanner = ObjectScanner(text[0])
        return self._release(self._scanner.feed(text))

    def _release(self, certain: str) -> str:
        if self._held is None:
            return certain
        self._held += certain
        if len(self._held.strip()) < 2:
            return ""
        certain, self._held = self._held, None
        return certain

    def finish(self, ended: bool) -> str:
        text = "".join(self._text)
        if self._scanner is not None:
            rest = self._scanner.finish(ended)
            if self._held is None:
                return rest
            whole = self._held + rest
            return whole if not ended or is_json(whole) else _string(text)
        plain = text.strip()
        if not ended:
            return plain
        if not plain:
            return _EMPTY.get(self._kind, '""')
        if self._kind in ("object", "array"):
            # It may have been encoded as a string.
            if (mended := mend(plain, _EMPTY[self._kind][0])) is not None:
                return mended
        plain = _LITERALS.get(plain, plain)
        return plain if is_json(plain) else _string(text)


class _Call:
    """A call whose opening tag is complete."""

    def __init__(self, header: str, tools: Tools):
        attributes = _attributes(header)
        self.id = attributes.get("tool", "")
        self.resolved: Resolved = tools.resolve(self.id)
        self.count = 0  # of arguments so far
        self.is_empty = True
        self.object: ObjectScanner | None = None
        self.value: _String | _Typed | None = None
        self.waiting: list[str] = []  # argument text, until the name is sure


class ToolCallStream:
    """What one sequence of a Kimi K3 model generates, as events (see kimi_k2).

    The events are the same however the text is cut into pieces, except for how many
    pieces of text they are themselves. Work is constant a character; nothing raises.

    Args:
        tools: the request's tools, in OpenAI's form.
        reasoning: the prompt has opened a think element; else it has opened a response.
        markers_in_text: there are no token ids, so that a marker is found by its
            spelling.
    """

    def __init__(
        self,
        tools: Any | None = None,
        *,
        reasoning: bool = False,
        markers_in_text: bool = False,
    ):
        self._tools = Tools(tools)
        self._markers_in_text = markers_in_text
        self._state = "reasoning" if reasoning else "content"
        self._events: list[Event] = []
        self._partial = ""  # text that may still become a marker
        self._header: tuple[str, list[str]] | None = None  # a tag not yet complete
        self._blanks: list[str] = []  # between elements: dropped unless text follows
        self._call: _Call | None = None

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._state == "reasoning" and self._header is None

    @property
    def is_between_elements(self) -> bool:
        """Whether the output could end here without cutting an argument or a tag."""
        in_element = (
            self._header or self._partial or self._state in ("argument", "json")
        )
        return not in_element

    def feed(self, text: str, marker: str | None = None) -> list[Event]:
        """The events that one more piece of the output makes certain.

        Args:
            text: ordinary text.
            marker: one of MARKERS, if that token was generated instead of text.
        """
        if marker is not None:
            self._end_text()
            self._take(marker)
        elif self._markers_in_text:
            self._read(text)
        else:
            self._add(text)
        return self._drain()

    def finish(self, cut: bool = False) -> list[Event]:
        """The last events, at the end of the output.

        Args:
            cut: the output was ended by max_tokens. A call that it ends keeps the
                argument text it has, unmended.
        """
        self._end_text()
        self._drop_header(cut)
        self._end_call(ended=not cut)
        self._state = "message"
        self._blanks.clear()
        return self._drain()

    def _drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # Text -> markers and other text

    def _read(self, text: str) -> None:
        text, self._partial = self._partial + text, ""
        pos = 0
        while found := _ANY_MARKER.search(text, pos):
            self._add(text[pos : found.start()])
            self._take(found.group())
            pos = found.end()
        begin = text.rfind("<", max(pos, len(text) - _LONGEST))
        end = len(text)
        if begin >= 0 and any(m.startswith(text[begin:]) for m in MARKERS):
            end = begin
        self._add(text[pos:end])
        self._partial = text[end:]

    def _end_text(self) -> None:
        partial, self._partial = self._partial, ""
        self._add(partial)

    # Markers -> tags

    def _take(self, marker: str) -> None:
        if self._header is not None:
            begin, pieces = self._header
            self._header = None
            if marker == _SEP:
                return self._tag(begin, "".join(pieces))
            self._unparsed(begin, "".join(pieces), "")
        if marker in (_OPEN, _CLOSE):
            self._header = (marker, [])
        elif marker == _SEP:
            self._unparsed("", "", marker)
        else:
            self._go("message")

    def _tag(self, begin: str, header: str) -> None:
        words = header.split(None, 1)
        name = words[0] if words else ""
        in_value = self._state in ("argument", "json")
        if name not in _OPENED or (in_value and name in _TEXT_IN_VALUE[begin]):
            return self._unparsed(begin, header, _SEP)
        if begin == _CLOSE:
            return self._closed(name, header)
        call = self._call
        if name == "call":
            self._go("call")
            self._begin_call(header)
        elif name not in ("argument", "json"):
            self._go(_OPENED[name])
        elif call is None or call.object or (name == "json" and call.count > 0):
            self._unparsed(begin, header, _SEP)
        elif name == "json":
            self._begin_object()
        else:
            self._begin_argument(header)

    def _closed(self, name: str, header: str) -> None:
        """Closing what is not open ends nothing, but a thought is ended by any channel."""
        state = self._state
        if name in ("argument", "json"):
            if state == name:
                self._end_value()
                self._state = "call"
            elif state in ("argument", "json"):
                self._unparsed(_CLOSE, header, _SEP)
        elif name == "call":
            if self._call is not None:
                self._go("tools")
        elif name == "message" or _OPENED[name] == state:
            self._go("message")
        elif state == "reasoning" or (name == "tools" and self._call is not None):
            self._go("message")

    def _go(self, state: str) -> None:
        self._end_call()
        self._blanks.clear()
        self._state = state

    def _unparsed(self, begin: str, text: str, end: str) -> None:
        """No tag: in an argument it can only mean its text, elsewhere markers go."""
        in_value = self._state in ("argument", "json")
        self._add(begin + text + end if in_value else text)

    def _drop_header(self, cut: bool) -> None:
        """A tag that the end of the output leaves incomplete."""
        if self._header is None:
            return
        (begin, pieces), self._header = self._header, None
        text = "".join(pieces)
        name = text.split(None, 1)[0] if text.strip() else ""
        if not (cut and any(known.startswith(name) for known in _OPENED)):
            self._unparsed(begin, text, "")

    # Text and calls -> events

    def _add(self, text: str) -> None:
        if not text:
            return
        if self._header is not None:
            self._header[1].append(text)
        elif self._state == "reasoning":
            self._events.append(Event("reasoning", text))
        elif self._state == "content":
            self._events.append(Event("content", text))
        elif self._state == "argument":
            self._add_arguments(self._call.value.feed(text))
        elif self._state == "json":
            self._add_arguments(self._call.object.feed(text))
        elif text.isspace():
            self._blanks.append(text)
        elif self._state == "call" and self._call.is_empty and text.lstrip()[0] == "{":
            self._begin_object()  # its tags are missing
            self._add(text)
        else:
            self._add_between(text)

    def _add_between(self, text: str) -> None:
        """Text that is in no element, or directly in a call."""
        if self._call is not None:
            self._call.is_empty = False
        end = len(text.rstrip())
        self._events.append(Event("content", "".join(self._blanks) + text[:end]))
        self._blanks = [text[end:]]

    def _begin_call(self, header: str) -> None:
        self._call = call = _Call(header, self._tools)
        if call.resolved.sure:
            self._events.append(Event("call", name=call.resolved.name, id=call.id))

    def _begin_object(self) -> None:
        self._blanks.clear()
        mends = self._tools.takes_object(self._call.resolved.name)
        self._call.object = ObjectScanner(mends=mends)
        self._state = "json"

    def _begin_argument(self, header: str) -> None:
        self._end_value()
        self._blanks.clear()
        self._state = "argument"
        attributes = _attributes(header)
        kind = attributes.get("type", "string")
        self._call.value = _String() if kind == "string" else _Typed(kind)
        begin = ", " if self._call.count else "{"
        self._call.count += 1
        self._call.is_empty = False
        self._add_arguments(f"{begin}{_string(attributes.get('key', ''))}: ")

    def _end_value(self, ended: bool = True) -> None:
        call = self._call
        if call.value is not None:
            self._add_arguments(call.value.finish(ended))
            call.value = None
        elif call.object is not None and self._state == "json":
            self._add_arguments(call.object.finish(ended))

    def _add_arguments(self, text: str) -> None:
        if not self._call.resolved.sure:
            self._call.waiting.append(text)
        elif text:
            self._events.append(Event("arguments", text))

    def _end_call(self, ended: bool = True) -> None:
        call = self._call
        if call is None:
            return
        self._end_value(ended)
        if call.object is None and ended:
            self._add_arguments("}" if call.count else "{}")
        if not call.resolved.sure:
            arguments = "".join(call.waiting)
            name = self._tools.choose(call.resolved, arguments)
            self._events.append(Event("call", name=name, id=call.id))
            if arguments:
                self._events.append(Event("arguments", arguments))
        self._events.append(Event("call_end"))
        self._call = None


def parse_tool_call(text: str, tools: Any | None = None) -> list[dict[str, Any]]:
    """The calls in the text of a tools element, with or without its tags.

    A call that is cut off inside an element, names no tool or holds no JSON object is
    left out, as it can't be run; ToolCallStream delivers those, too.

    Returns:
        A dict with name and arguments (a dict) for each call.

    Raises:
        ValueError: if there is no such call in the text.
    """
    stream = ToolCallStream(tools, markers_in_text=True)
    events = stream.feed(text)
    if stream.is_between_elements:
        events += stream.finish()
    calls: list[dict[str, Any]] = []
    name, pieces = "", []
    for event in events:
        if event.type == "call":
            name, pieces = event.name, []
        elif event.type == "arguments":
            pieces.append(event.text)
        elif event.type == "call_end":
            arguments = object_or_text("".join(pieces))
            if name != UNKNOWN and isinstance(arguments, dict):
                calls.append({"name": name, "arguments": arguments})
    if not calls:
        raise ValueError("No tool call found.")
    return calls
