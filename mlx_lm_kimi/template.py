"""A directory's own chat template (Jinja) -> segments, with content kept as data.

The template decides the text. Control-token spellings inside a message, a tool or an
argument are told from the template's own by a nonce that is put inside them before
rendering and taken out of the text afterwards. So are the beginning of a spelling at a
string's end and the end of one at its start, which a template may join to other text.
What can't be told is a spelling of which the template writes both ends and an input
string the middle (``<|{{ name }}|>``): it is the template's own.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from itertools import groupby
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

Segments = list[tuple[str, bool]]
_MAX_DEPTH = 200


class _Spellings:
    """The control tokens' names, and how to break them inside of data."""

    def __init__(self, names: Collection[str]):
        names = sorted(filter(None, names), key=len, reverse=True)
        # By their first two characters, so that most "<" of code are refused at once.
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(name[:2], []).append(re.escape(name[2:]))
        found = [f"{re.escape(k)}(?:{'|'.join(v)})" for k, v in groups.items()]
        self.pattern = re.compile(f"({'|'.join(found) or '(?!)'})")
        self._heads = {name[:i] for name in names for i in range(1, len(name))}
        self._tails = {name[-i:] for name in names for i in range(1, len(name))}
        self._first = {name[0] for name in names}
        self._last = {name[-1] for name in names}
        self._longest = max(map(len, names), default=0)

    def _tail(self, text: str) -> int:
        """How long the end of a spelling is that the text starts with, or 0."""
        for last in self._last:
            length = text.find(last, 0, self._longest) + 1
            if text[:length] in self._tails:
                return length
        return 0

    def _head(self, text: str) -> int:
        """Where the beginning of a spelling starts that the text ends with, or -1."""
        for first in self._first:
            at = text.rfind(first, max(0, len(text) - self._longest))
            if at >= 0 and text[at:] in self._heads:
                return at
        return -1

    def are_in(self, text: str) -> bool:
        return bool(
            self._tail(text) or self._head(text) >= 0 or self.pattern.search(text)
        )

    def mark(self, text: str, nonce: str) -> str:
        """The text with the nonce inside of every spelling and of parts at its ends."""
        cuts = {match.start() + 1 for match in self.pattern.finditer(text)}
        if (head := self._head(text)) >= 0:
            cuts.add(head + 1)
        if tail := self._tail(text):
            cuts.add(tail - 1)
        bounds = [0, *sorted(cuts), len(text)]
        return nonce.join(text[a:b] for a, b in zip(bounds, bounds[1:], strict=False))

    def split(self, text: str) -> Segments:
        pieces = enumerate(self.pattern.split(text))
        return [(piece, bool(i % 2)) for i, piece in pieces if piece]


@lru_cache(maxsize=8)
def _spellings(names: frozenset[str]) -> _Spellings:
    return _Spellings(names)


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, dict keys too; without recursion."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            stack += value.keys()
            stack += value.values()
        elif isinstance(value, (list, tuple)):
            stack += value


def _map(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """The value with every string changed."""
    if depth > _MAX_DEPTH:
        raise ValueError("The request is nested too deep for the chat template.")
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            _map(k, change, depth + 1): _map(v, change, depth + 1)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_map(v, change, depth + 1) for v in value]
    return value


def _nonce(template: str, strings: Collection[str]) -> str:
    """A number that occurs in none of the inputs: no filter changes digits."""
    source = random.SystemRandom()
    while True:
        word = "".join(source.choices(string.digits, k=20))
        if word not in template and not any(word in s for s in strings):
            return word


def _render(template: str, messages: Any, tools: Any, **kwargs: Any) -> str:
    rendered, _ = render_jinja_template(
        [messages], tools=tools, chat_template=template, **kwargs
    )
    return rendered[0]


def _with_thinking(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Both names of the switch: the templates' and mlx-lm's; ``thinking`` wins."""
    thinking, enabled = kwargs.get("thinking"), kwargs.get("enable_thinking")
    if thinking is None and enabled is not None:
        return {**kwargs, "thinking": enabled}
    if thinking is not None and enabled is not None:
        return {**kwargs, "enable_thinking": thinking}
    return kwargs


def render_own(
    template: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    *,
    control_tokens: Collection[str],
    **kwargs: Any,
) -> Segments:
    """The segments that a directory's own template makes of a conversation.

    The joined text is what transformers renders of the same inputs, in its sandbox.

    Args:
        template: Jinja source.
        control_tokens: the names of the vocabulary's control tokens.
        kwargs: the template's other inputs (add_generation_prompt, thinking, ...). Data,
            too, but for those that name special tokens (``bos_token``).

    Raises:
        ValueError: the inputs are nested too deep.
        jinja2.TemplateError: the template refuses the conversation.
    """
    spellings = _spellings(frozenset(control_tokens))
    kwargs = _with_thinking(kwargs)
    special = {k: v for k, v in kwargs.items() if k.endswith(("_token", "_tokens"))}
    inputs = [messages, tools, {k: v for k, v in kwargs.items() if k not in special}]
    strings = set(_strings(inputs))  # each once: keys and roles are most of them
    spelled = [text for text in strings if spellings.are_in(text)]
    if not spelled:
        return spellings.split(_render(template, messages, tools, **kwargs))
    nonce = _nonce(template, strings)
    marked = {text: spellings.mark(text, nonce) for text in spelled}
    messages, tools, others = _map(inputs, lambda text: marked.get(text, text))
    text = _render(template, messages, tools, **special, **others)
    return [
        (piece if is_control else piece.replace(nonce, ""), is_control)
        for piece, is_control in spellings.split(text)
    ]


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (
        isinstance(part, dict) and part.get("type") == "text"
    )


def _text(part: Any) -> str:
    return part if isinstance(part, str) else str(part.get("text") or "")


def _content(content: Any) -> Any:
    """A string for null and for text; beside images, neighbouring texts as one part."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    parts: list[Any] = []
    for is_text, run in groupby(content, _is_text):
        if is_text:
            parts.append({"type": "text", "text": "".join(map(_text, run))})
        else:
            parts += run
    if len(parts) == 1 and _is_text(parts[0]):
        return parts[0]["text"]
    return parts or ""


def _declared(message: dict[str, Any], family: str) -> dict[str, Any]:
    """Tools that a message declares, for templates that know only a role's name."""
    from mlx_lm.chat_templates import kimi_k2, kimi_k25

    declare = kimi_k25.declare if family == "kimi_k25" else kimi_k2.declare_json
    content = declare(message["tools"])
    return {"role": "system", "name": "tool_declare", "content": content}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    message = {**message, "content": _content(message.get("content"))}
    other = message.pop("reasoning", None)
    if message.get("role") == "assistant":
        reasoning = message.get("reasoning_content")
        message["reasoning_content"] = (other if reasoning is None else reasoning) or ""
    if message.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    from mlx_lm.chat_templates import kimi_k2

    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if arguments is None or isinstance(arguments, str):
        function["arguments"] = kimi_k2.arguments_of(function)
    return {**call, "function": function}


def prepare(
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    family: str,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None, dict[str, Any]]:
    """The inputs that the checkpoints' templates expect, as Moonshot's tokenizer gives.

    Returns:
        Messages with "" for null and joined text parts, tools with sorted keys, and
        further inputs: ``tools_ts_str`` for kimi_k25. Nothing is changed in place.

    Raises:
        ValueError: tools are nested too deep.
    """
    from mlx_lm.chat_templates import kimi_k2, kimi_k25

    messages = [
        (
            _declared(m, family)
            if m.get("role") == "system" and m.get("tools")
            else _message(m)
        )
        for m in messages
    ]
    tools = kimi_k2.sorted_keys(tools) if tools else None
    extra: dict[str, Any] = {}
    if family == "kimi_k25" and tools:
        extra["tools_ts_str"] = kimi_k25.typescript(tools)
    return messages, tools, extra
