"""A directory's own chat template (Jinja) -> segments, with content kept as data.

The template decides the text. Control-token spellings inside a message, a tool or an
argument are told from the template's own by a nonce that is put inside them before
rendering and taken out of the text afterwards.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Collection, Iterator
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

Segments = list[tuple[str, bool]]
_MAX_DEPTH = 200


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


def _nonce(template: str, strings: list[str]) -> str:
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


def _split(text: str, pattern: re.Pattern) -> Segments:
    return [
        (piece, bool(i % 2)) for i, piece in enumerate(pattern.split(text)) if piece
    ]


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
        kwargs: the template's other inputs (add_generation_prompt, thinking, …).

    Raises:
        ValueError: the inputs are nested too deep.
        jinja2.TemplateError: the template refuses the conversation.
    """
    names = sorted(control_tokens, key=len, reverse=True)
    pattern = re.compile("(" + "|".join(map(re.escape, names)) + ")")
    strings = list(_strings([messages, tools, kwargs.get("tools_ts_str")]))
    if not any(pattern.search(s) for s in strings):
        return _split(_render(template, messages, tools, **kwargs), pattern)
    nonce = _nonce(template, strings)

    def mark(text: str) -> str:
        return pattern.sub(lambda m: m[0][0] + nonce + m[0][1:], text)

    if kwargs.get("tools_ts_str"):
        kwargs["tools_ts_str"] = mark(kwargs["tools_ts_str"])
    text = _render(template, _map(messages, mark), _map(tools, mark), **kwargs)
    return [
        (piece if is_control else piece.replace(nonce, ""), is_control)
        for piece, is_control in _split(text, pattern)
    ]


def _sorted(value: Any, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, dict):
        return {k: _sorted(value[k], depth + 1) for k in sorted(value)}
    if isinstance(value, list):
        return [_sorted(v, depth + 1) for v in value]
    return value


def _content(content: Any) -> Any:
    if content is None:
        return ""
    if isinstance(content, list) and all(
        isinstance(p, dict) and p.get("type") == "text" for p in content
    ):
        return "".join(str(p.get("text") or "") for p in content)
    return content


def _declared(message: dict[str, Any], family: str) -> dict[str, Any]:
    """Tools that a message declares, for templates that know only a role's name."""
    from mlx_lm.chat_templates import kimi_k2, kimi_k25

    declare = kimi_k25.declare if family == "kimi_k25" else kimi_k2.declare_json
    content = declare(message["tools"])
    return {"role": "system", "name": "tool_declare", "content": content}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    message = {**message, "content": _content(message.get("content"))}
    reasoning = message.get("reasoning_content")
    if reasoning is None:
        reasoning = message.get("reasoning")
    message.pop("reasoning", None)
    if message.get("role") == "assistant":
        message["reasoning_content"] = reasoning or ""
    if message.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if arguments is None or (
        isinstance(arguments, str) and arguments.strip() == "null"
    ):
        function["arguments"] = "{}"
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
    """
    messages = [
        (
            _declared(m, family)
            if m.get("role") == "system" and m.get("tools")
            else _message(m)
        )
        for m in messages
    ]
    tools = _sorted(tools) if tools else None
    extra: dict[str, Any] = {}
    if family == "kimi_k25" and tools:
        from mlx_lm.chat_templates import kimi_k25

        extra["tools_ts_str"] = kimi_k25.typescript(tools)
    return messages, tools, extra
