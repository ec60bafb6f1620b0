"""Events -> one OpenAI message, or the deltas of a stream.

Ids and finish_reason are decided here and nowhere else, so a streamed and a whole answer
can't differ: the whole one is the sum of the deltas.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .protocol.history import MAX_INDEX


class StopSequences:
    """Ends visible text at the first of the request's stop sequences.

    Text that may still become a stop sequence is held back. Constant work a character.
    """

    def __init__(self, stops: Iterable[str]):
        self._stops = [s for s in stops if s]
        self._keep = max((len(s) for s in self._stops), default=1) - 1
        self._held = ""
        self.hit = False

    def feed(self, text: str) -> str:
        """The text that is certain to be before any stop sequence."""
        if not self._stops or self.hit:
            return "" if self.hit else text
        text = self._held + text
        found = [i for s in self._stops if (i := text.find(s)) >= 0]
        if found:
            self.hit, self._held = True, ""
            return text[: min(found)]
        keep = self._held_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _held_length(self, text: str) -> int:
        for n in range(min(self._keep, len(text)), 0, -1):
            tail = text[-n:]
            if any(s.startswith(tail) for s in self._stops):
                return n
        return 0

    def finish(self) -> str:
        """What was held back and is no stop sequence after all."""
        held, self._held = self._held, ""
        return held


@dataclass
class CallIds:
    """Canonical ids ``functions.NAME:IDX``, unique in a conversation.

    Attributes:
        used: the ids in the conversation.
        next_index: the next free IDX of the conversation.
    """

    used: set[str] = field(default_factory=set)
    next_index: int = 0

    def assign(self, name: str, index: int | None) -> str:
        """The model's own id if it is well formed and unused, else the next free one."""
        own = f"functions.{name}:{index}"
        if index is None or index > MAX_INDEX or own in self.used:
            index = self.next_index
            while (own := f"functions.{name}:{index}") in self.used:
                index += 1
        self.used.add(own)
        self.next_index = max(self.next_index, index + 1)
        return own


class Response:
    """Collects the events of one answer and says what each adds to it.

    Args:
        ids: the ids of the conversation.
        calls_allowed: False for ``tool_choice: "none"`` or without tools; calls are then
            dropped with a warning in the log.
        stops: the request's stop sequences; they apply to the content.
    """

    def __init__(
        self, ids: CallIds, *, calls_allowed: bool = True, stops: Iterable[str] = ()
    ):
        self._ids = ids
        self._calls_allowed = calls_allowed
        self._stop = StopSequences(stops)
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[list[str]] = []
        self._dropped: list[str] = []

    @property
    def stopped(self) -> bool:
        """A stop sequence was met: nothing that follows belongs to the answer."""
        return self._stop.hit

    def add(self, events: Iterable[Any]) -> list[dict[str, Any]]:
        """The deltas that these events add, each for one chunk of a stream."""
        deltas: list[dict[str, Any]] = []
        for event in events:
            if self.stopped:
                break
            if event.type in ("call", "reasoning"):
                # A stop sequence is no longer possible: its parts would not be adjacent.
                _merge(deltas, self._held())
            _merge(deltas, self._delta(event))
        return deltas

    def finish(self) -> list[dict[str, Any]]:
        """The last deltas, after the last event."""
        if self._dropped:
            logging.warning(
                "The model tried to call a tool, which the request does not allow; dropped: %s",
                "".join(self._dropped)[:2000],
            )
        held = self._held()
        return [held] if held else []

    def _held(self) -> dict[str, Any] | None:
        """What was held back for a stop sequence, as content."""
        text = self._stop.finish()
        return self._text(text) if text else None

    def _delta(self, event: Any) -> dict[str, Any] | None:
        if event.type == "content":
            text = self._stop.feed(event.text)
            return self._text(text) if text else None
        if event.type == "reasoning":
            self._reasoning.append(event.text)
            return {"reasoning_content": event.text, "reasoning": event.text}
        if not self._calls_allowed:
            self._dropped.append(event.id if event.type == "call" else event.text)
            return None
        if event.type == "call":
            return self._open(event)
        if event.type == "arguments" and event.text:
            self._arguments[-1].append(event.text)
            index = len(self._calls) - 1
            function = {"arguments": event.text}
            return {"tool_calls": [{"index": index, "function": function}]}
        return None

    def _text(self, text: str) -> dict[str, Any]:
        self._content.append(text)
        return {"content": text}

    def _open(self, event: Any) -> dict[str, Any]:
        call = {
            "id": self._ids.assign(event.name, event.index),
            "type": "function",
            "function": {"name": event.name, "arguments": ""},
        }
        self._calls.append(call)
        self._arguments.append([])
        return {"tool_calls": [{"index": len(self._calls) - 1, **call}]}

    def finish_reason(self, generated: str | None) -> str:
        """OpenAI's finish_reason; ``generated`` is mlx-lm's ("stop" or "length")."""
        if generated == "length" and not self.stopped:
            return "length"
        return "tool_calls" if self._calls else "stop"

    def message(self) -> dict[str, Any]:
        """The whole answer as OpenAI's message object."""
        content = "".join(self._content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not self._calls else None,
        }
        if self._reasoning:
            reasoning = "".join(self._reasoning)
            message |= {"reasoning_content": reasoning, "reasoning": reasoning}
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": "".join(parts)}}
                for call, parts in zip(self._calls, self._arguments)
            ]
        return message


def _merge(deltas: list[dict[str, Any]], delta: dict[str, Any] | None) -> None:
    """Append a delta, joined to the last one if that is more text of the same kind."""
    if delta is None:
        return
    last = deltas[-1] if deltas else None
    if last is None or last.keys() != delta.keys():
        deltas.append(delta)
    elif "tool_calls" not in delta:
        for key in delta:
            last[key] += delta[key]
    elif _is_continued(last["tool_calls"][0], delta["tool_calls"][0]):
        last["tool_calls"][0]["function"]["arguments"] += delta["tool_calls"][0][
            "function"
        ]["arguments"]
    else:
        deltas.append(delta)


def _is_continued(last: dict[str, Any], call: dict[str, Any]) -> bool:
    # An opening delta stays alone: clients read id and name from it, with no arguments.
    return "id" not in last and "id" not in call and last["index"] == call["index"]
