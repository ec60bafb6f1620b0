"""A conversation's tool calls with canonical ids, everything else verbatim.

With foreign ids in its history a real K2 ends most turns empty, so the K2 family's prompt
always shows ``functions.NAME:IDX``, IDX counted over the conversation.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Any

from .check import fault

_CANONICAL = re.compile(r"functions\.(.+):(0|[1-9]\d{0,5})", re.DOTALL)


@dataclass(frozen=True)
class History:
    """The messages of a prompt, and what the ids of the answer must avoid.

    Attributes:
        messages: plain messages; calls and results have canonical ids.
        next_index: the IDX of the next call.
        used_ids: every id in the conversation.
    """

    messages: list[dict[str, Any]]
    next_index: int
    used_ids: frozenset[str]


def _own_index(call: dict[str, Any]) -> int | None:
    """IDX of an id that is canonical for its own tool, else None."""
    match = _CANONICAL.fullmatch(call["id"])
    if match is None or match[1] != call["function"]["name"]:
        return None
    return int(match[2])


def _assign(calls: list[dict[str, Any]]) -> tuple[list[str], int]:
    """(canonical id of each call, the next free index); linear."""
    kept: dict[str, int] = {}
    indices = []
    for call in calls:
        index = _own_index(call)
        if index is not None and call["id"] in kept:
            index = None  # a client began to count anew
        if index is not None:
            kept[call["id"]] = index
        indices.append(index)
    taken = set(kept.values())
    spare = max([len(calls) - 1, *taken]) + 1
    ids = []
    for position, (call, index) in enumerate(zip(calls, indices)):
        if index is None:
            index = position
            if index in taken:
                index, spare = spare, spare + 1
            taken.add(index)
        ids.append(f"functions.{call['function']['name']}:{index}")
    return ids, max([len(calls) - 1, *taken]) + 1


class _Open:
    """The calls met so far, for the results that answer them."""

    def __init__(self) -> None:
        self._by_id: dict[str, deque[str]] = {}
        self._waiting: dict[str, str] = {}  # canonical -> original, unanswered

    def add(self, originals: list[str], canonical: list[str]) -> None:
        fresh: dict[str, deque[str]] = {}
        for original, own in zip(originals, canonical):
            fresh.setdefault(original, deque()).append(own)
            self._waiting[own] = original
        # A later call with the same id is the one that later results mean.
        self._by_id.update(fresh)

    def answer(self, original: str, param: str) -> str:
        """The canonical id of the call that a result answers."""
        found = self._by_id.get(original)
        if original == "":
            own = self._next_unnamed(param)
        elif found is None:
            raise fault(
                param,
                f"no earlier call has the id {original!r}: send the assistant message "
                "with its tool_calls, too.",
                "unknown_tool_call_id",
            )
        else:
            # The same id twice in one message: in the order of the calls.
            own = found.popleft() if len(found) > 1 else found[0]
        self._waiting.pop(own, None)
        return own

    def _next_unnamed(self, param: str) -> str:
        """The call that a result without an id answers, if only one can be meant."""
        unnamed = [own for own, original in self._waiting.items() if not original]
        waiting = unnamed if len(unnamed) == len(self._waiting) else []
        if len(self._waiting) == 1 or waiting:
            return next(iter(self._waiting))
        raise fault(
            param,
            "is empty, and more than one call (or none) waits for a result: "
            "name the call.",
        )


def canonical(messages: list[dict[str, Any]]) -> History:
    """The conversation with canonical ids; linear, and itself if all are so already.

    Ids that are canonical stay; results keep their order and follow their call.

    Args:
        messages: plain messages (see messages.py).

    Raises:
        RequestError: a result that answers no call.
    """
    calls = [call for m in messages for call in m.get("tool_calls", ())]
    ids, next_index = _assign(calls)
    given = iter(ids)
    open_calls, out = _Open(), []
    for i, message in enumerate(messages):
        if message.get("tool_calls"):
            originals = [call["id"] for call in message["tool_calls"]]
            own = [next(given) for _ in originals]
            open_calls.add(originals, own)
            renamed = [
                {**call, "id": new} for call, new in zip(message["tool_calls"], own)
            ]
            message = {**message, "tool_calls": renamed}
        elif message["role"] == "tool":
            param = f"messages[{i}].tool_call_id"
            answered = open_calls.answer(message["tool_call_id"], param)
            message = {**message, "tool_call_id": answered}
        out.append(message)
    return History(out, next_index, frozenset(ids))
