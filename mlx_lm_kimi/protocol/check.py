"""Small checks of JSON values; each names the field and the fix."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from .errors import RequestError


def fault(param: str | None, message: str, code: str = "invalid_value") -> RequestError:
    """The error of one field."""
    return RequestError(
        f"{param}: {message}" if param else message, param=param, code=code
    )


def kind(value: Any) -> str:
    """The JSON type of a value, for messages."""
    names = {
        type(None): "null",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)


def wrong_type(param: str, wanted: str, value: Any) -> RequestError:
    """The error of a field of the wrong type."""
    return fault(param, f"must be {wanted}, not {kind(value)}.", "invalid_type")


def string(value: Any, param: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    return value


def optional_string(body: dict[str, Any], key: str) -> str | None:
    """A string, or None for null and absent."""
    value = body.get(key)
    return None if value is None else string(value, key)


def boolean(body: dict[str, Any], key: str, default: bool) -> bool:
    """A boolean; null and absent are the default."""
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong_type(key, "true or false", value)
    return value


def integer(
    body: dict[str, Any],
    key: str,
    low: int | None = None,
    high: int | None = None,
    also: Collection[int] = (),
) -> int | None:
    """A whole number in a range, or None for null and absent."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(key, "a whole number", value)
    return _in_range(value, key, low, high, also)


def number(
    body: dict[str, Any],
    key: str,
    low: float | None = None,
    high: float | None = None,
) -> float | None:
    """A finite number in a range, or None for null and absent."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(key, "a number", value)
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise fault(key, "must be a finite number.")
    return _in_range(value, key, low, high)


def _in_range(
    value: Any, key: str, low: Any, high: Any, also: Collection[Any] = ()
) -> Any:
    if value in also:
        return value
    if low is not None and value < low:
        raise fault(key, f"must be at least {low}.")
    if high is not None and value > high:
        raise fault(key, f"must be at most {high}.")
    return value
