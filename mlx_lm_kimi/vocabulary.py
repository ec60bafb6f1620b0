"""A Kimi vocabulary for llguidance: the bytes of each id, built once and lazily."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from .convert import BYTE_OF


class Digits(NamedTuple):
    """The tokens of digits only, and one that a number never holds."""

    ids: frozenset[int]
    mask: np.ndarray
    letter: int


class Vocabulary:
    """What constraining needs of a Hugging Face fast tokenizer (byte-level BPE)."""

    def __init__(self, tokenizer: Any):
        backend = tokenizer.backend_tokenizer
        added = backend.get_added_tokens_decoder()
        self.special = {token.content: i for i, token in added.items()}
        self.ranks = min(self.special.values())  # ordinary tokens come first
        self.size = backend.get_vocab_size(with_added_tokens=True)
        self._backend = backend
        self._lock = threading.Lock()
        self._built: Any = None
        self._digits: Digits | None = None

    def token_bytes(self) -> list[bytes]:
        """The bytes of each id; of a control token, its name."""
        tokens = [b""] * self.size
        for text, i in self._backend.get_vocab(with_added_tokens=False).items():
            tokens[i] = bytes([BYTE_OF[c] for c in text])
        for name, i in self.special.items():
            tokens[i] = name.encode()
        return tokens

    @property
    def digits(self) -> Digits:
        self.tokenizer()
        return self._digits

    def tokenizer(self) -> Any:
        """llguidance's tokenizer. The first call takes about 0.7 s and 110 MiB."""
        with self._lock:
            if self._built is None:
                self._built = self._build()
            return self._built

    def _build(self) -> Any:
        from llguidance import LLTokenizer
        from llguidance._tokenizer import TokenizerWrapper

        tokens = self.token_bytes()
        ids = [i for i, t in enumerate(tokens[: self.ranks]) if t.isdigit()]
        mask = np.zeros(-(-self.size // 8) * 8, dtype=bool)
        mask[ids] = True
        self._digits = Digits(
            frozenset(ids), np.packbits(mask, bitorder="little"), tokens.index(b"a")
        )
        return LLTokenizer(
            TokenizerWrapper(_Ranks(self._backend, tokens, self.special))
        )


class _Ranks:
    """The interface that llguidance wants of a tokenizer.

    ``[EOS]`` is declared as the end, not ``<|im_end|>``: an end token is never forced,
    and rolling back across it leaves a wrong state.
    """

    def __init__(self, backend: Any, tokens: list[bytes], special: dict[str, int]):
        from tokenizers import Tokenizer

        self.tokens = tokens
        self.special_token_ids = sorted(special.values())
        self.eos_token_id = special["[EOS]"]
        self.bos_token_id = special.get("[BOS]")
        self._content = Tokenizer(backend.model)
        self._content.pre_tokenizer = backend.pre_tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._content.encode(text, add_special_tokens=False).ids
