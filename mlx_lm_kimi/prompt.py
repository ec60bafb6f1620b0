"""A conversation -> segments -> text or ids, for the tokenizer's apply_chat_template."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from transformers.utils import get_json_schema

from . import families, segments, template

Segments = list[tuple[str, bool]]


def render(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any] | Callable] | None = None,
    *,
    chat_template: str | None = None,
    **kwargs: Any,
) -> Segments:
    """The segments of one conversation: (text, whether it is a control token).

    The directory's own template (or the one given) decides; without one, the built-in
    template of the tokenizer's family does.
    """
    family = getattr(tokenizer, "kimi_family", "kimi_k2")
    tools = [
        t if isinstance(t, dict) else get_json_schema(t) for t in tools or []
    ] or None
    own = (
        tokenizer.get_chat_template(chat_template, tools)
        if (chat_template or tokenizer.chat_template)
        else None
    )
    if own is None:
        name = families.FAMILIES[family].chat_template_type
        module = importlib.import_module(f"mlx_lm.chat_templates.{name}")
        has_thinking = "<think>" in tokenizer.special_ids
        return module.render(messages, tools, has_thinking=has_thinking, **kwargs)
    messages, tools, extra = template.prepare(messages, tools, family)
    return template.render_own(
        own,
        messages,
        tools,
        control_tokens=tokenizer.special_ids,
        **{**tokenizer.special_tokens_map, **extra, **kwargs},
    )


def continue_final(rendered: Segments) -> Segments:
    """Segments without the end of the last message, for the model to go on with it."""
    rendered = list(rendered)
    while rendered and (rendered[-1][1] or not rendered[-1][0].strip()):
        rendered.pop()
    return rendered


def encode(tokenizer: Any, rendered: Segments, tokenize: bool) -> str | list[int]:
    """Ids, or the text they stand for."""
    if tokenize:
        return segments.encode(tokenizer, rendered)
    return "".join(text for text, _ in rendered)
