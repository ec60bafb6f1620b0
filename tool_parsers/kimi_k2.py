"""
Tool calls of the Kimi K2 family (K2, K2-Thinking, K2.5 and later), as the model writes them:

    <think>reasoning</think>content
    <|tool_calls_section_begin|>
      <|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|>
      <|tool_call_begin|>functions.get_weather:1<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|>
    <|tool_calls_section_end|>

without the line breaks between markers. ToolCallStream understands it while it is
generated, and what models make of it; parse_tool_call is a loop over it.
"""

import re
from typing import Any, Literal, NamedTuple

from .kimi_json import ObjectScanner, object_or_text
from .kimi_names import Resolved, Tools

tool_call_start = "<|tool_calls_section_begin|>"
tool_call_end = "<|tool_calls_section_end|>"

_CALL_BEGIN = "<|tool_call_begin|>"
_ARGUMENT_BEGIN = "<|tool_call_argument_begin|>"
_CALL_END = "<|tool_call_end|>"
_THINK, _THINK_END = "<think>", "</think>"

MARKERS: frozenset[str] = frozenset(
    (
        tool_call_start,
        tool_call_end,
        _CALL_BEGIN,
        _ARGUMENT_BEGIN,
        _CALL_END,
        _THINK,
        _THINK_END,
    )
)
# No tokens, but models write them in place of the section markers.
_SINGULAR = {
    "<|tool_call_section_begin|>": tool_call_start,
    "<|tool_call_section_end|>": tool_call_end,
}
_SINGULAR_BEGIN = "<|tool_call_section_begin|>"
_SPELLED = tuple(MARKERS) + tuple(_SINGULAR)
_ANY_MARKER = re.compile("|".join(map(re.escape, _SPELLED)))
_ANY_SINGULAR = re.compile("|".join(map(re.escape, _SINGULAR)))
_LONGEST = max(map(len, _SPELLED))
_NOT_BLANK = re.compile(r"\S")
_MAX_BLANKS = 4  # between a section begin spelled in reasoning and its first call

# State -> marker -> next state; a state stays where none is given. Leaving "id" or
# "arguments", except from the one to the other, ends the call.
_BEGINS = {tool_call_start: "section", _CALL_BEGIN: "id"}
_IN_CALL = _BEGINS | {_CALL_END: "section", tool_call_end: "content"}
_NEXT: dict[str, dict[str, str]] = {
    "content": _BEGINS | {_THINK: "reasoning"},
    "reasoning": _BEGINS | {_THINK_END: "content"},
    "section": _BEGINS | {_THINK: "reasoning", tool_call_end: "content"},
    "id": _IN_CALL | {_ARGUMENT_BEGIN: "arguments"},
    "arguments": _IN_CALL,
}


class Event(NamedTuple):
    """One thing that became certain.

    Attributes:
        type: "reasoning", "content" or "arguments" text, or the begin or end of a call.
        text: the text, byte for byte as generated; the texts of a call's "arguments"
            add up to its argument string.
        name: of a "call": the tool's whole name.
        id: of a "call": the id as the model wrote it.
        index: of a "call": IDX, if the id is functions.NAME:IDX or the same with
            underscores, as clients rewrite it.
    """

    type: Literal["reasoning", "content", "call", "arguments", "call_end"]
    text: str = ""
    name: str = ""
    id: str = ""
    index: int | None = None


class _Call:
    """A call whose id is known."""

    def __init__(self, written: str, tools: Tools):
        self.id = written.strip()
        self.resolved: Resolved = tools.resolve(written)
        mends = tools.takes_object(self.resolved.name)
        self.arguments = ObjectScanner(mends=mends)
        self.waiting: list[str] = []  # argument text, until the name is sure

    def begin(self, name: str) -> Event:
        return Event("call", name=name, id=self.id, index=self.resolved.index)


class _Doubt:
    """A marker spelled within a string of arguments, while markers are found in text.

    It is part of the string if that is closed and goes on as JSON does; otherwise it was
    meant as a marker, and the string was never closed.

    Attributes:
        end: how many characters from the marker on are settled by the answer.
    """

    def __init__(self, quote: str):
        self.pieces: list[str] = []
        self.end = 0
        self._stops = re.compile(rf"[{quote}\\]")
        self._closed = self._escaped = False

    def scan(self, text: str, pos: int, last: bool) -> bool | None:
        """Whether it is part of the string; None if text[pos:] does not tell.

        Args:
            last: no more text follows.
        """
        begin = pos
        while pos < len(text) and not self._closed:
            if self._escaped:
                self._escaped, pos = False, pos + 1
                continue
            found = self._stops.search(text, pos)
            pos = found.end() if found else len(text)
            self._escaped = found is not None and found.group() == "\\"
            self._closed = found is not None and not self._escaped
        self.end += pos - begin
        following = _NOT_BLANK.search(text, pos) if self._closed else None
        if following:
            return following.group() in ",:}]<"
        return self._closed if last else None


class ToolCallStream:
    """What one sequence of a Kimi K2 model generates, as events.

    The events are the same however the text is cut into pieces, except for how many
    pieces of text they are themselves. Work is constant a character; nothing raises.

    Args:
        tools: the request's tools, in OpenAI's form.
        reasoning: the prompt has opened a think block.
        markers_in_text: there are no token ids, so that a marker is found by its
            spelling, unless that is in a JSON string of a call's arguments.
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
        self._doubt: _Doubt | None = None
        self._blanks: list[str] = []  # between calls: dropped unless text follows
        self._id: list[str] = []
        self._call: _Call | None = None
        self._decoded: list[dict[str, Any] | None] | None = None

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._state == "reasoning"

    def feed(self, text: str, marker: str | None = None) -> list[Event]:
        """The events that one more piece of the output makes certain.

        Args:
            text: ordinary text.
            marker: one of MARKERS, if that token was generated instead of text.
        """
        if marker is None:
            self._read(text)
        else:
            self._end_text(marker)
            self._take(marker)
        return self._drain()

    def finish(self, cut: bool = False) -> list[Event]:
        """The last events, at the end of the output.

        Args:
            cut: the output was ended by max_tokens. A call that it ends keeps the
                argument text it has, unmended.
        """
        self._end_text()
        if self._state in ("id", "arguments"):
            self._end_call(ended=not cut)
        self._state = "content"
        self._blanks.clear()
        return self._drain()

    def _drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # Text -> markers and other text

    def _read(self, text: str, last: bool = False) -> None:
        """Take text in which markers may be spelled."""
        pos = certain = 0
        if (doubt := self._doubt) is not None:
            doubt.pieces.append(text)
            if (in_string := doubt.scan(text, 0, last)) is None:
                return
            text = "".join(doubt.pieces)
            pos, certain = self._settle(doubt, in_string, text, 0)
        text, self._partial = self._partial + text, ""
        while found := self._find(text, pos):
            begin, marker = found.start(), found.group()
            self._add(text[pos:begin])
            quote = self._quote
            if quote and begin >= certain and _SINGULAR.get(marker, marker) in _IN_CALL:
                doubt = _Doubt(quote)
                if (in_string := doubt.scan(text, begin, last)) is None:
                    doubt.pieces.append(text[begin:])
                    self._doubt = doubt
                    return
                pos, certain = self._settle(doubt, in_string, text, begin)
                continue
            self._take(_SINGULAR.get(marker, marker))
            pos = found.end()
        end = len(text) - self._held_length(text, pos)
        self._add(text[pos:end])
        self._partial = text[end:]

    def _settle(
        self, doubt: _Doubt, in_string: bool, text: str, begin: int
    ) -> tuple[int, int]:
        """Where to read on, and up to where a marker is certain to be one."""
        self._doubt = None
        end = begin + doubt.end
        if not in_string:
            return begin, end
        self._add(text[begin:end])
        return end, 0

    def _find(self, text: str, pos: int) -> re.Match | None:
        if self._markers_in_text:
            return _ANY_MARKER.search(text, pos)
        if self._state in ("content", "section"):
            return _ANY_SINGULAR.search(text, pos)
        return None

    def _held_length(self, text: str, pos: int) -> int:
        """How many characters at the end of text may still become a marker."""
        begin = text.rfind("<", max(pos, len(text) - _LONGEST - _MAX_BLANKS))
        if begin < 0:
            return 0
        tail = text[begin:]
        spelled: tuple[str, ...] = _SPELLED
        if not self._markers_in_text:
            if self._state in ("id", "arguments"):
                return 0
            spelled = tuple(_SINGULAR)
            if self._state == "reasoning":
                # Reasoning may mention it, so it is one only directly before a call.
                spelled = (_SINGULAR_BEGIN,)
                tail = tail.rstrip() if tail.startswith(_SINGULAR_BEGIN) else tail
        may_become = any(s.startswith(tail) for s in spelled)
        return len(text) - begin if may_become else 0

    def _end_text(self, marker: str | None = None) -> None:
        """No more text comes before a marker token, or at all."""
        self._read("", last=True)
        partial, self._partial = self._partial, ""
        if marker != _CALL_BEGIN or partial.rstrip() != _SINGULAR_BEGIN:
            self._add(partial)

    # Markers and other text -> events

    @property
    def _quote(self) -> str:
        return self._call.arguments.quote if self._call else ""

    def _take(self, marker: str) -> None:
        state = _NEXT[self._state].get(marker)
        if state is None:
            # Stray, and nothing to show; but in a string it can only mean its text.
            if self._quote and marker in MARKERS:
                self._add(marker)
            return
        if state == "arguments":
            self._begin_call("".join(self._id))
        elif self._state in ("id", "arguments"):
            self._end_call()
        self._blanks.clear()
        self._state = state

    def _add(self, text: str) -> None:
        if not text:
            return
        if self._state == "arguments":
            self._add_arguments(text)
        elif self._state == "id":
            self._add_id(text)
        elif self._state == "reasoning":
            self._events.append(Event("reasoning", text))
        elif self._state == "section" and text.isspace():
            self._blanks.append(text)
        else:
            # Text in a section ends it: the next call begins another.
            self._events.append(Event("content", "".join(self._blanks) + text))
            self._blanks.clear()
            self._state = "content"

    def _add_id(self, text: str) -> None:
        begin = text.find("{")
        if begin < 0:
            self._id.append(text)
            return
        self._id.append(text[:begin])
        self._begin_unmarked_arguments(text[begin:])

    def _begin_unmarked_arguments(self, text: str = "") -> None:
        """The argument marker is missing."""
        written, rest = self._tools.split("".join(self._id))
        self._begin_call(written)
        self._state = "arguments"
        self._add_arguments(rest + text)

    def _begin_call(self, written: str) -> None:
        self._id = []
        self._call = _Call(written, self._tools)
        if self._call.resolved.sure:
            self._events.append(self._call.begin(self._call.resolved.name))

    def _add_arguments(self, text: str) -> None:
        certain = self._call.arguments.feed(text)
        if not self._call.resolved.sure:
            self._call.waiting.append(certain)
        elif certain:
            self._events.append(Event("arguments", certain))

    def _end_call(self, ended: bool = True) -> None:
        if self._call is None:
            self._begin_unmarked_arguments()
        call, self._call = self._call, None
        rest = call.arguments.finish(ended)
        if not call.resolved.sure:
            rest = "".join(call.waiting) + rest
            name = self._tools.choose(call.resolved, rest)
            self._events.append(call.begin(name))
        if rest:
            self._events.append(Event("arguments", rest))
        self._events.append(Event("call_end"))
        if self._decoded is not None:
            self._decoded.append(call.arguments.value)


def parse_tool_call(text: str, tools: Any | None = None) -> list[dict[str, Any]]:
    """The calls in the text of a section, or of a single call, with or without its markers.

    Returns:
        A dict with id, name and arguments for each call. The id is functions.NAME:IDX,
        or as the model wrote it. The arguments are a dict, or the raw text if they are no
        JSON object.

    Raises:
        ValueError: if there is no call in the text.
    """
    stream = ToolCallStream(tools, markers_in_text=True)
    stream._decoded = []  # json has decoded most arguments on the way
    calls: list[dict[str, Any]] = []
    pieces: list[str] = []
    for event in stream.feed(_with_call_begin(text, tools)) + stream.finish():
        if event.type == "call":
            own = event.index is not None
            written = f"functions.{event.name}:{event.index}" if own else event.id
            calls.append({"id": written, "name": event.name})
        elif event.type == "arguments":
            pieces.append(event.text)
        elif event.type == "call_end":
            value = stream._decoded[len(calls) - 1]
            calls[-1]["arguments"] = (
                object_or_text("".join(pieces)) if value is None else value
            )
            pieces.clear()
    if not calls:
        raise ValueError("No tool call found.")
    return calls


def _with_call_begin(text: str, tools: Any) -> str:
    """The text, with a call begin added if it is the inside of a single call."""
    begins = (text.find(_ARGUMENT_BEGIN), text.find("{"))
    end = min((i for i in begins if i >= 0), default=len(text))
    if _CALL_BEGIN in text[:end]:
        return text
    begin = max((m.end() for m in _ANY_MARKER.finditer(text, 0, end)), default=0)
    marked = text.startswith(_ARGUMENT_BEGIN, end)
    if marked or Tools(tools).is_id(text[begin:end]):
        return text[:begin] + _CALL_BEGIN + text[begin:]
    return text
