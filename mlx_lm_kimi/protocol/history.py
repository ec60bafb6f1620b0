"""A conversation's tool calls and results: linked, and with the ids that a prompt shows.

With foreign ids in its history a real K2 ends most turns empty, so a K2 prompt always shows
``functions.NAME:IDX``, IDX counted over the conversation. A K3 prompt shows no ids, but the
results in the order of their calls, each with the name of its tool.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from .check import fault, shown

Style = Literal["kimi_k2", "kimi_k3"]
Message = dict[str, Any]

MAX_INDEX = 999_999  # of an id that stays as it is
_CANONICAL = re.compile(r"functions\.(.+):(0|[1-9][0-9]{0,5})", re.DOTALL)


@dataclass(frozen=True)
class CanonicalHistory:
    """The messages of a prompt, and what the ids of the answer must avoid.

    Attributes:
        messages: plain messages (see messages.py); each result names its call's id.
        next_index: the IDX of the next call, above those in use.
        used_ids: the ids of all calls.
    """

    messages: list[Message]
    next_index: int
    used_ids: frozenset[str]


def _parse_id(call_id: str) -> tuple[str, int] | None:
    """(NAME, IDX) of functions.NAME:IDX, else None."""
    match = _CANONICAL.fullmatch(call_id)
    return (match[1], int(match[2])) if match else None


class _Calls:
    """The calls met so far, by the ids the client gave them, for results to find."""

    def __init__(self) -> None:
        self._count = 0
        # Places of the calls with an id: those of the nearest message that has it.
        self._by_id: dict[str, deque[int]] = {}
        # The unanswered calls of the nearest message, without and with an id.
        self._unnamed: deque[int] = deque()
        self._named: set[int] = set()

    def add(self, ids: list[str]) -> None:
        """Take the calls of one message."""
        fresh: dict[str, deque[int]] = {}
        for place, call_id in enumerate(ids, self._count):
            fresh.setdefault(call_id, deque()).append(place)
        self._count += len(ids)
        self._unnamed = fresh.pop("", deque())
        self._named = {place for places in fresh.values() for place in places}
        self._by_id.update(fresh)

    def find(self, call_id: str) -> int | None:
        """The place of the call that a result answers, None if it can't be told."""
        if found := self._by_id.get(call_id):
            # Of several with one id the first unanswered; a further result is the last's.
            place = found.popleft() if len(found) > 1 else found[0]
            self._named.discard(place)
            return place
        if self._unnamed and not (call_id and self._named):
            return self._unnamed.popleft()
        if not call_id and len(self._named) == 1:
            return self._named.pop()
        return None


def _link(messages: list[Message]) -> dict[int, int | str]:
    """For each result (by message index): the place of its call among all calls.

    A history that was cut may begin with results whose calls are gone. If the id is
    canonical, it tells the tool, and stands here in place of the call.

    Raises:
        RequestError: a result that answers no call.
    """
    calls, links, cut = _Calls(), {}, True
    for i, message in enumerate(messages):
        if message["role"] != "tool":
            cut = cut and message["role"] == "system"
            if message.get("tool_calls"):
                calls.add([call["id"] for call in message["tool_calls"]])
            continue
        call_id = message["tool_call_id"]
        place = calls.find(call_id)
        if place is not None:
            links[i] = place
        elif cut and _parse_id(call_id):
            links[i] = call_id
        else:
            raise _no_call(call_id, f"messages[{i}].tool_call_id")
    return links


def _no_call(call_id: str, param: str) -> Exception:
    if not call_id:
        return fault(
            param,
            "is empty, and it can't be told which call is meant: give the id of the call.",
            "unknown_tool_call",
        )
    return fault(
        param,
        f"{shown(call_id)} answers no earlier call: send the assistant message with that "
        "call in tool_calls, too, or leave the result out.",
        "unknown_tool_call",
    )


def _canonical_ids(calls: list[dict[str, Any]], gone: set[str]) -> list[str]:
    """functions.NAME:IDX for each call; those that have it already, and first, keep it."""
    kept: set[str] = set()
    own: list[bool] = []
    for call in calls:
        parsed = _parse_id(call["id"])
        ok = parsed is not None and parsed[0] == call["function"]["name"]
        own.append(ok and call["id"] not in kept and call["id"] not in gone)
        if own[-1]:
            kept.add(call["id"])
    taken = {parsed[1] for i in kept | gone if (parsed := _parse_id(i))}
    ids, free = [], 0
    for place, call in enumerate(calls):
        if own[place]:
            ids.append(call["id"])
            continue
        free = max(free, place)
        while free in taken:
            free += 1
        ids.append(f"functions.{call['function']['name']}:{free}")
        free += 1
    return ids


def _kept_ids(calls: list[dict[str, Any]], gone: set[str]) -> list[str]:
    """The clients' own ids; canonical ones for calls without, or with one used before."""
    ids: list[str] = []
    used = gone | {call["id"] for call in calls}
    seen = set(gone)
    for place, call in enumerate(calls):
        call_id = call["id"]
        if not call_id or call_id in seen:
            free = place
            while (call_id := f"functions.{call['function']['name']}:{free}") in used:
                free += len(calls)
            used.add(call_id)
        seen.add(call_id)
        ids.append(call_id)
    return ids


def _sort_results(
    messages: list[Message], links: dict[int, int | str]
) -> list[Message]:
    """The messages, each run of results in the order of the calls."""
    out: list[Message] = []
    run: list[tuple[int, Message]] = []
    for i, message in enumerate(messages):
        if i in links:
            link = links[i]
            run.append((link if isinstance(link, int) else -1, message))
            continue
        out += [m for _, m in sorted(run, key=lambda pair: pair[0])]
        run = []
        out.append(message)
    return out + [m for _, m in sorted(run, key=lambda pair: pair[0])]


def canonical(messages: list[Message], *, style: Style = "kimi_k2") -> CanonicalHistory:
    """The conversation as a prompt shows it; linear, and canonical again is no change.

    Calls, results and everything else keep their bytes; a call without a result stays.

    Args:
        messages: plain messages (see messages.py); not changed.
        style: "kimi_k2": every id is ``functions.NAME:IDX`` and unique, results stay where
            they are. "kimi_k3": ids are kept (missing and repeated ones are replaced),
            results are sorted into the order of their calls and have ``name``.

    Raises:
        RequestError: a result that answers no call.
    """
    links = _link(messages)
    calls = [call for m in messages for call in m.get("tool_calls", ())]
    gone = {link for link in links.values() if isinstance(link, str)}
    make_ids = _canonical_ids if style == "kimi_k2" else _kept_ids
    ids = make_ids(calls, gone)
    given = iter(ids)
    out = []
    for i, message in enumerate(messages):
        if message.get("tool_calls"):
            renamed = [{**call, "id": next(given)} for call in message["tool_calls"]]
            message = {**message, "tool_calls": renamed}
        elif i in links:
            message = _result(message, links[i], ids, calls, style)
        out.append(message)
    if style == "kimi_k3":
        out = _sort_results(out, links)
    used = frozenset(ids) | gone
    indices = [parsed[1] for call_id in used if (parsed := _parse_id(call_id))]
    return CanonicalHistory(out, max([len(calls) - 1, *indices]) + 1, used)


def _result(
    message: Message,
    link: int | str,
    ids: list[str],
    calls: list[dict[str, Any]],
    style: Style,
) -> Message:
    """A result with the id of its call; for K3 with the tool's name, too."""
    if isinstance(link, int):
        call_id, name = ids[link], calls[link]["function"]["name"]
    else:
        call_id, name = link, (_parse_id(link) or ("", 0))[0]
    message = {**message, "tool_call_id": call_id}
    if style == "kimi_k3":
        message.setdefault("name", name)
    return message
