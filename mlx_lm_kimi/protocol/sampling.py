"""The sampling parameters of a request: OpenAI's and mlx_lm.server's."""

from __future__ import annotations

import re
from typing import Any

from .check import (
    a_string,
    an_object,
    fault,
    integer,
    number,
    optional_boolean,
    wrong_type,
)

_TOKEN_ID = re.compile(r"[0-9]{1,18}")
# (lowest, highest); ranges are mlx_lm.server's.
_NUMBERS: dict[str, tuple[float | None, float | None]] = {
    "temperature": (0, None),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0, None),
    "presence_penalty": (None, None),
    "frequency_penalty": (None, None),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 0.5),
}
_INTEGERS: dict[str, int | None] = {
    "top_k": 0,
    "repetition_context_size": 0,
    "presence_context_size": 0,
    "frequency_context_size": 0,
    "num_draft_tokens": 0,
    "seed": None,
}
MAX_TOP_LOGPROBS = 20  # OpenAI's limit


def _max_tokens(body: dict[str, Any]) -> int | None:
    """max_completion_tokens, or its older name."""
    older = integer(body.get("max_tokens"), "max_tokens", 1)
    newer = integer(body.get("max_completion_tokens"), "max_completion_tokens", 1)
    return older if newer is None else newer


def _stop(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise wrong_type("stop", "a string or an array of strings", value)
    return [s for i, one in enumerate(value) if (s := a_string(one, f"stop[{i}]"))]


def _logit_bias(value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    found = {}
    for key, bias in an_object(value, "logit_bias").items():
        param = f"logit_bias.{key[:20]}"
        if not _TOKEN_ID.fullmatch(key):
            raise fault(param, "is no token id: use a whole number.")
        amount = number(bias, param)
        if amount is None:
            raise wrong_type(param, "a number", bias)
        found[int(key)] = amount
    return found


def _top_logprobs(value: Any) -> int:
    # mlx_lm.server's -1 means none.
    top = integer(value, "top_logprobs", 0, MAX_TOP_LOGPROBS, also=(-1,))
    return max(0, top or 0)


def sampling(body: dict[str, Any]) -> dict[str, Any]:
    """The checked sampling fields of ChatRequest; None is the server's default.

    Raises:
        RequestError: a wrong type, a number that is not finite or out of range, n over 1.
    """
    if integer(body.get("n"), "n", 1) not in (None, 1):
        raise fault("n", "must be 1: send one request for each choice.")
    return {
        **{k: number(body.get(k), k, *limits) for k, limits in _NUMBERS.items()},
        **{k: integer(body.get(k), k, low) for k, low in _INTEGERS.items()},
        "max_tokens": _max_tokens(body),
        "stop": _stop(body.get("stop")),
        "logprobs": optional_boolean(body.get("logprobs"), "logprobs") or False,
        "top_logprobs": _top_logprobs(body.get("top_logprobs")),
        "logit_bias": _logit_bias(body.get("logit_bias")),
    }
