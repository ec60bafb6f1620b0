"""Segments of a prompt -> ids: the only place where a control id enters a prompt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def encode(tokenizer: Any, segments: Iterable[tuple[str, bool]]) -> list[int]:
    """The ids of a prompt.

    Args:
        tokenizer: our tokenizer.
        segments: (text, is_control) pairs. A control token becomes its id; one that
            this vocabulary does not name (``<think>`` in K2-Instruct) is text. Each text
            segment is encoded by itself, as data: templates join what belongs together.
    """
    special, ids = tokenizer.special_ids, []
    for text, is_control in segments:
        if is_control and text in special:
            ids.append(special[text])
        else:
            ids += tokenizer.encode_content(text)
    return ids
