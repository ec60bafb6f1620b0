"""Grammar -> matcher -> logits processor, one a sequence.

mlx_lm calls a processor with the ids of the sequence so far and the logits of the next
token, in every path: batch generation, generate_step, speculative_generate_step (there
the history also shrinks). llguidance is imported when the first request needs it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from . import grammar
from .bias import Forbidden, allow
from .grammar import ConstraintSpec
from .protocol.errors import RequestError
from .vocabulary import Vocabulary

logger = logging.getLogger(__name__)

Processor = Callable[[mx.array, mx.array], mx.array]

# Compiled grammars kept for each tokenizer.
MAX_GRAMMARS = 32
# Python's json refuses integers of over 4,300 digits.
MAX_DIGITS = 1000
# How many of the last ids are compared with what was consumed, each call.
WINDOW = 4
LIMITS = {
    "max_items_in_row": 20_000,
    "step_max_items": 200_000,
    "max_lexer_states": 1_000_000,
    "verbose_errors": False,
}


def check(spec: ConstraintSpec, family: str = "kimi_k2") -> None:
    """Raise the RequestError of a spec that can't be enforced. Needs no tokenizer."""
    grammar.build(spec, family=family, thinking_open=False, has_thinking=False)


def logits_processor(
    spec: ConstraintSpec | None, tokenizer: Any, *, thinking_open: bool
) -> Processor | None:
    """The logits processor of one sequence, or None if nothing is constrained.

    Args:
        spec: what the request demands.
        tokenizer: our tokenizer (any Hugging Face fast one of a Kimi vocabulary).
        thinking_open: the prompt ends inside the think block.

    Raises:
        RequestError: the grammar can't be made or compiled.
    """
    if spec is None or (not spec.tools and spec.response_format is None):
        return None
    compiler = _compiler(tokenizer)
    family = getattr(tokenizer, "kimi_family", "kimi_k2")
    if spec.only_forbids and family in grammar.FAMILIES:
        return Forbid(compiler.vocabulary, grammar.CALL_MARKERS)
    # K2.5's prompt has opened the think block, or has closed it for good.
    has_thinking = family == "kimi_k2" and "<think>" in compiler.vocabulary.special
    text = grammar.build(
        spec, family=family, thinking_open=thinking_open, has_thinking=has_thinking
    )
    if text is None:
        return None
    # The grammar is written for the real vocabulary; a cut one has fewer tokens.
    text = text.replace(grammar.FREE[:-1], f"<[0-{compiler.vocabulary.ranks - 1}]>")
    return Constraint(compiler, text, grammar.first_token(spec, family))


class Compiler:
    """The compiled grammars of one tokenizer. Safe with several threads."""

    def __init__(self, tokenizer: Any):
        self.vocabulary = Vocabulary(tokenizer)
        self._lock = threading.Lock()
        self._matchers: OrderedDict[str, Any] = OrderedDict()

    def matcher(
        self, text: str, first: int | None = None, *, fresh: bool = False
    ) -> Any:
        """A matcher at the start of an answer, for one sequence.

        Args:
            first: the token before the answer's own (``grammar.first_token``).
            fresh: compile again. Copies share the states of one lexer, and one that has
                run out of states fails for all of them.

        Raises:
            RequestError: the grammar is refused, or too complex to begin with.
        """
        with self._lock:
            known = None if fresh else self._matchers.get(text)
            if known is None or not (matcher := _begin(known, first)):
                known = self._matchers[text] = self._compile(text)
                matcher = _begin(known, first)
            self._matchers.move_to_end(text)
            while len(self._matchers) > MAX_GRAMMARS:
                self._matchers.popitem(last=False)
        if matcher is None:
            raise RequestError(
                "The schemas of this request are too complex to be enforced.",
                param="tools",
                code="unsupported_schema",
            )
        return matcher

    def _compile(self, text: str) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        compiled = LLMatcher(
            self.vocabulary.tokenizer(),
            text,
            log_level=0,
            limits=LLParserLimits(**LIMITS),
        )
        if compiled.is_error():
            reason = compiled.get_error().partition("\n")[0][:300]
            raise RequestError(
                f"The schemas of this request can't be enforced: {reason}",
                param="tools",
                code="unsupported_schema",
            )
        return compiled


def _begin(compiled: Any, first: int | None) -> Any:
    """A copy at the start of the answer; None if not even its first mask can be made."""
    matcher = compiled.deep_copy()
    if first is not None:
        matcher.consume_token(first)
    probe = matcher.deep_copy()
    probe.compute_bitmask()
    return None if probe.is_error() else matcher


_compilers: weakref.WeakKeyDictionary[Any, Compiler] = weakref.WeakKeyDictionary()
_compilers_lock = threading.Lock()


def _compiler(tokenizer: Any) -> Compiler:
    with _compilers_lock:
        compiler = _compilers.get(tokenizer)
        if compiler is None:
            compiler = _compilers[tokenizer] = Compiler(tokenizer)
        return compiler


class Forbid:
    """A processor that never lets some control tokens through. Keeps no state."""

    def __init__(self, vocabulary: Vocabulary, names: tuple[str, ...]):
        ids = [vocabulary.special[n] for n in names if n in vocabulary.special]
        allowed = np.ones(vocabulary.size, dtype=bool)
        allowed[ids] = False
        self._forbidden = Forbidden(np.packbits(allowed, bitorder="little"))

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        return self._forbidden.apply(logits)


class Constraint:
    """The logits processor of one sequence: it follows a grammar.

    Free text costs no mask: while the grammar allows all ordinary tokens, its few
    forbidden control tokens are the same, and the matcher is not even asked. Nothing
    raises here: after an error the rest of the answer is not constrained.
    """

    def __init__(self, compiler: Compiler, text: str, first: int | None = None):
        self._compiler = compiler
        self._grammar = (text, first)
        self._matcher = compiler.matcher(text, first)
        self._digits = compiler.vocabulary.digits
        self._ranks = compiler.vocabulary.ranks
        self._start: int | None = None  # where the answer begins in the history
        self._ids: list[int] = []
        self._skipped: list[bool] = []  # ids that the matcher did not need to see
        self._run = 0  # digits in a row
        self._free: Forbidden | None = None  # in free text
        self._healed = False
        self._failed = False
        self.masks_computed = 0

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        if self._failed:
            return logits
        try:
            first, recent = self._recent(tokens)
            # In this order: the ids come before the logits, which the model computes
            # while the mask is made.
            mx.async_eval(recent)
            mx.async_eval(logits)
            self._follow(tokens, first, recent.tolist())
            return self._constrained(logits)
        except Exception:
            logger.exception("A constraint failed; the answer goes on without it")
            self._failed = True
            return logits

    def _constrained(self, logits: mx.array) -> mx.array:
        if self._failed or self._matcher.is_stopped():
            if not self._failed and self._matcher.is_error():
                self._fail()
            return logits
        if self._free is None:
            mask = self._mask()
            if mask is None:
                return logits
            if not self._is_free(mask):
                return allow(mask, logits)
            self._free = Forbidden(mask)
        return self._free.apply(logits)

    def _is_free(self, mask: np.ndarray) -> bool:
        # After one ordinary token, as an answer's first one may also open a thought.
        after_text = bool(self._ids) and self._ids[-1] < self._ranks
        return after_text and bool((mask[: self._ranks // 8] == 255).all())

    def _mask(self) -> np.ndarray | None:
        """The mask of the next token, bytes of 8 tokens; None after an error."""
        self.masks_computed += 1
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error() and self._heal():
            mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            self._fail()
            return None
        # The library adds a word of its own at the end.
        mask = np.frombuffer(mask, dtype=np.uint8, count=len(self._digits.mask))
        letter = self._digits.letter
        if self._run > MAX_DIGITS and not mask[letter // 8] >> letter % 8 & 1:
            fewer = mask & ~self._digits.mask
            if fewer.any():
                return fewer
        return mask

    def _recent(self, tokens: mx.array) -> tuple[int, mx.array]:
        """The answer's last ids, and how many come before them. Nothing is computed."""
        if self._start is None:
            self._start = tokens.shape[0]
        length = max(0, tokens.shape[0] - self._start)
        first = max(0, min(length, len(self._ids)) - WINDOW)
        return first, tokens[self._start + first :]

    def _follow(self, tokens: mx.array, first: int, ids: list[int]) -> None:
        """Bring the matcher to the end of a history that may also have been cut."""
        if first and ids[0] != self._ids[first]:
            first, ids = 0, tokens[self._start :].tolist()
        same = first
        while same < len(self._ids) and same - first < len(ids):
            if self._ids[same] != ids[same - first]:
                break
            same += 1
        self._rewind(same)
        for token in ids[same - first :]:
            self._consume(token)

    def _consume(self, token: int) -> None:
        skip = self._free is not None and token < self._ranks
        self._ids.append(token)
        self._skipped.append(skip)
        self._run = self._run + 1 if token in self._digits.ids else 0
        if skip or self._failed:
            return
        self._free = None
        if self._matcher.is_stopped() and not self._matcher.is_error():
            return  # one token past the end: mlx_lm computes ahead
        if not self._matcher.consume_token(token) and not self._heal():
            self._fail()

    def _rewind(self, length: int) -> None:
        if length == len(self._ids):
            return
        seen = self._skipped[length:].count(False)
        del self._ids[length:], self._skipped[length:]
        self._free = None
        self._run = 0
        if self._matcher.is_stopped() or not self._matcher.rollback(seen):
            self._replay(self._compiler.matcher(*self._grammar))

    def _replay(self, matcher: Any) -> bool:
        """Take a matcher at the start, and give it what was consumed so far."""
        self._matcher = matcher
        for token, skipped in zip(self._ids, self._skipped):
            if not skipped and not matcher.is_stopped():
                matcher.consume_token(token)
        return not matcher.is_error()

    def _heal(self) -> bool:
        """Once: begin again with a lexer of one's own, if a shared one has run out."""
        if self._healed:
            return False
        self._healed = True
        return self._replay(self._compiler.matcher(*self._grammar, fresh=True))

    def _fail(self) -> None:
        self._failed = True
        logger.warning(
            "The answer left its grammar and goes on without it: %s",
            self._matcher.get_error().partition("\n")[0][:300],
        )
