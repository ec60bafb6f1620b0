"""Ids -> text while they are generated: linear, characters never cut."""

from __future__ import annotations

import codecs
from typing import Any

from mlx_lm.tokenizer_utils import StreamingDetokenizer


class KimiStreamingDetokenizer(StreamingDetokenizer):
    """mlx-lm's interface over the bytes of each token.

    Bytes are held until a UTF-8 character is whole; bytes that can't become one are
    U+FFFD, as in the tokenizer's own decode. Constant work a token.
    """

    def __init__(self, tokenizer: Any):
        # mlx-lm gives its wrapper or the tokenizer itself; the table is shared.
        self._tokenizer = getattr(tokenizer, "_tokenizer", None)
        if not hasattr(self._tokenizer, "token_bytes"):
            self._tokenizer = tokenizer
        self._token_bytes = self._tokenizer.token_bytes
        self.reset()

    def __copy__(self) -> KimiStreamingDetokenizer:
        """A fresh one of the same tokenizer: mlx-lm resets its copies, one a request."""
        return type(self)(self._tokenizer)

    def reset(self) -> None:
        """Drop all streaming state."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []
        self._taken = 0
        self.tokens: list[int] = []
        self.offset = 0

    def add_token(self, token: int) -> None:
        """Consume one token id."""
        self.tokens.append(token)
        text = self._decoder.decode(self._token_bytes(token))
        if text:
            self._parts.append(text)

    def finalize(self) -> None:
        """Flush bytes held back; those of a cut character become U+FFFD."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        if text:
            self._parts.append(text)

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._parts)

    @property
    def last_segment(self) -> str:
        """The text since this was last read."""
        segment = "".join(self._parts[self._taken :])
        self._taken = len(self._parts)
        self.offset += len(segment)
        return segment
