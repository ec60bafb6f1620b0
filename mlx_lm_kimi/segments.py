"""Segments of a prompt -> ids: the only place where a control id enters a prompt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def encode(tokenizer: Any, segments: Iterable[tuple[str, bool]]) -> list[int]:
    """The ids of a prompt.

    Args:
        tokenizer: our tokenizer.
        segments: (text, is_control) pairs. A control token becomes its id; one that
            this vocabulary does not name (``<think>`` in K2-Instruct) is text. The text
            between two control tokens is encoded in one go, as data.
    """
    special, ids, run = tokenizer.special_ids, [], []
    for text, is_control in segments:
        if not (is_control and text in special):
            run.append(text)
            continue
        if run:
            ids += tokenizer.encode_content("".join(run))
            run = []
        ids.append(special[text])
    if run:
        ids += tokenizer.encode_content("".join(run))
    return ids
