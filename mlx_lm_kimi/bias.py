"""Token masks applied to logits, by mlx."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

_PATTERNS = {  # the bits of minus infinity
    mx.float32: (np.uint32, 0xFF800000),
    mx.float16: (np.uint16, 0xFC00),
    mx.bfloat16: (np.uint16, 0xFF80),
}
_tables: dict[Any, np.ndarray] = {}


def allow(mask: np.ndarray, logits: mx.array) -> mx.array:
    """Minus infinity for each token that a mask does not allow.

    Adding is 20 times faster than mx.where on a CPU, and one kernel on a GPU.

    Args:
        mask: bytes of 8 tokens, the lowest bit first; ids past its end are not allowed.
        logits: of shape (1, vocabulary).
    """
    word, minus_infinity = _PATTERNS[logits.dtype]
    table = _tables.get(logits.dtype)
    if table is None:
        bits = np.arange(256)[:, None] >> np.arange(8) & 1
        table = np.where(bits, 0, minus_infinity).astype(word)
        _tables[logits.dtype] = table
    size = logits.shape[-1]
    bias = np.take(table, mask, axis=0).reshape(-1)[:size]
    if len(bias) < size:
        rest = np.full(size - len(bias), minus_infinity, dtype=word)
        bias = np.concatenate([bias, rest])
    if logits.dtype == mx.float32:
        return logits + mx.array(bias.view(np.float32))
    return logits + mx.array(bias).view(logits.dtype)  # numpy knows no bfloat16


class Forbidden:
    """The few tokens that a mask does not allow, for a mask that stays the same.

    Writing them costs half of what an addition over the whole vocabulary does.
    """

    def __init__(self, mask: np.ndarray):
        """mask: as in ``allow``."""
        self._mask = mask
        self._size = -1
        self._ids: mx.array | None = None

    def apply(self, logits: mx.array) -> mx.array:
        """Minus infinity for them, in logits of shape (1, vocabulary)."""
        size = logits.shape[-1]
        if size != self._size:
            self._size, self._ids = size, self._indices(size)
        if self._ids is None:
            return logits
        minus_infinity = mx.array(-mx.inf, dtype=logits.dtype)
        return mx.put_along_axis(logits, self._ids, minus_infinity, axis=-1)

    def _indices(self, size: int) -> mx.array | None:
        bits = np.unpackbits(self._mask, bitorder="little")[:size]
        beyond = np.arange(len(bits), size)
        ids = np.concatenate([np.flatnonzero(bits == 0), beyond])
        return mx.array(ids.astype(np.uint32))[None] if len(ids) else None
