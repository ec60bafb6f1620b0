"""Token ids of one generation -> events.

Only here a token id becomes a marker; what a marker means is the parser's business
(tool_parsers/). One object a sequence, constant work a token.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Protocol

from .detokenizer import KimiStreamingDetokenizer


class Parser(Protocol):
    """The incremental machine of a tool parser module."""

    @property
    def in_reasoning(self) -> bool: ...

    def feed(self, text: str, marker: str | None = None) -> list[Any]: ...

    def finish(self, cut: bool = False) -> list[Any]: ...


class TokenStream:
    """Feeds a parser with what the model generates, token by token.

    Args:
        tokenizer: our tokenizer; its ``special_ids`` names the control tokens.
        parser: the incremental machine of the family's tool parser.
        markers: the spellings that the parser understands as tokens.
    """

    def __init__(self, tokenizer: Any, parser: Parser, markers: Collection[str]):
        self._names = {i: name for name, i in tokenizer.special_ids.items()}
        self._markers = markers
        self._parser = parser
        self._detokenizer = KimiStreamingDetokenizer(tokenizer)

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._parser.in_reasoning

    def feed(self, token: int) -> list[Any]:
        """The events that one more token id makes certain."""
        name = self._names.get(token)
        if name is None:
            self._detokenizer.add_token(token)
            text = self._detokenizer.last_segment
            return self._parser.feed(text) if text else []
        events = self._flush()
        if name in self._markers:
            return events + self._parser.feed("", name)
        # No meaning inside an answer, and its spelling is nothing a user should see.
        logging.warning("The model generated a control token of no meaning: %s", name)
        return events

    def finish(self, cut: bool = False) -> list[Any]:
        """The events at the end of the output; cut: it was ended by max_tokens."""
        return self._flush() + self._parser.finish(cut)

    def _flush(self) -> list[Any]:
        self._detokenizer.finalize()
        text = self._detokenizer.last_segment
        return self._parser.feed(text) if text else []
