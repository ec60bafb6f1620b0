# Copyright © 2026 Apple Inc.

"""Chat template of Kimi K2.5, K2.6 and K2.7 Code.

As Kimi K2's, but tools are declared in TypeScript, there is no default system message,
and the generation prompt opens the reasoning:

    <|im_assistant|>assistant<|im_middle|><think>
"""

from typing import Any, Dict, List, Optional

from .kimi_k2 import (
    Segment,
    Writer,
    declare_json,
    is_thinking,
    sorted_keys,
    write_messages,
    write_tools,
)
from .kimi_typescript import typescript

_IMAGE = (
    "<|media_start|>",
    "image",
    "<|media_content|>",
    "<|media_pad|>",
    "<|media_end|>",
)


def declare(tools: List[Dict[str, Any]]) -> str:
    """The tools in TypeScript, or as JSON where that can't express them.

    Moonshot's tokenizer sorts the keys first; the order of definitions depends on it.
    """
    text = typescript(sorted_keys(tools))
    return declare_json(tools) if text is None else text


def _write_image(part: Any, write: Writer) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("image", "image_url"):
        return False
    for piece in _IMAGE:
        write.text(piece) if piece == "image" else write.control(piece)
    return True


def render(
    messages: List[Dict[str, Any]],
    tools: Optional[List[Dict[str, Any]]] = None,
    *,
    add_generation_prompt: bool = False,
    thinking: Optional[bool] = None,
    enable_thinking: Optional[bool] = None,
    preserve_thinking: bool = False,
    **kwargs,
) -> List[Segment]:
    """The prompt as segments: text, or one control token each.

    Args:
        messages: OpenAI messages; argument strings are written verbatim.
        tools: OpenAI tools; a system message's ``tools`` are declared where it stands.
        thinking: False leaves every think block empty, and closes that of the answer.
            Wins over ``enable_thinking``, mlx-lm's name.
        preserve_thinking: keep the reasoning up to the first answer, too (from K2.6 on).

    Raises:
        ValueError: a content part is neither text nor an image.
    """
    thinking = is_thinking(thinking, enable_thinking)
    write = Writer()
    write_tools(tools, write, declare)
    write_messages(
        messages,
        write,
        has_thinking=True,
        thinking=thinking,
        preserve=preserve_thinking,
        declare=declare,
        part=_write_image,
    )
    if add_generation_prompt:
        write.control("<|im_assistant|>")
        write.text("assistant")
        write.control("<|im_middle|>", "<think>")
        if not thinking:
            write.control("</think>")
    return write.finish()


def apply_chat_template(messages, tools=None, add_generation_prompt=False, **kwargs):
    segments = render(
        messages, tools, add_generation_prompt=add_generation_prompt, **kwargs
    )
    return "".join(text for text, _ in segments)
