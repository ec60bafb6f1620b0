"""Token masks as arrays to add to logits."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np


class Bias:
    """Masks as arrays to add to logits: 0 where allowed, else minus infinity.

    Adding is 20 times faster than mx.where on a CPU, and one kernel on a GPU.
    """

    _PATTERNS = {  # the bits of minus infinity
        mx.float32: (np.uint32, 0xFF800000),
        mx.float16: (np.uint16, 0xFC00),
        mx.bfloat16: (np.uint16, 0xFF80),
    }
    _tables: dict[Any, np.ndarray] = {}

    def __init__(self) -> None:
        self._kept: tuple[Any, mx.array] | None = None

    def make(self, mask: np.ndarray, logits: mx.array) -> mx.array:
        """The bias of a mask (bytes of 8 tokens); ids past its end are not allowed."""
        word, minus_infinity = self._PATTERNS[logits.dtype]
        table = self._tables.get(logits.dtype)
        if table is None:
            bits = np.arange(256)[:, None] >> np.arange(8) & 1
            table = np.where(bits, 0, minus_infinity).astype(word)
            self._tables[logits.dtype] = table
        size = logits.shape[-1]
        bias = np.take(table, mask, axis=0).reshape(-1)[:size]
        if len(bias) < size:
            rest = np.full(size - len(bias), minus_infinity, dtype=word)
            bias = np.concatenate([bias, rest])
        if logits.dtype == mx.float32:
            return mx.array(bias.view(np.float32))
        return mx.array(bias).view(logits.dtype)  # numpy knows no bfloat16

    def kept(self, mask: np.ndarray, logits: mx.array) -> mx.array:
        """As make, for a mask that stays the same until forget is called."""
        key = (logits.dtype, logits.shape[-1])
        if self._kept is None or self._kept[0] != key:
            self._kept = (key, self.make(mask, logits))
        return self._kept[1]

    def forget(self) -> None:
        self._kept = None
