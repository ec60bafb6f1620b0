"""Small checks of JSON values; each error names the field, the reason and the fix."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Any

from .errors import RequestError

_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}
_SHOWN = 60  # characters of a value that an error repeats


def kind(value: Any) -> str:
    """The JSON type of a value, for messages."""
    return _KINDS.get(type(value), type(value).__name__)


def shown(value: Any) -> str:
    """A value for messages: a short string as it is, of others the type."""
    if isinstance(value, str):
        cut = value if len(value) <= _SHOWN else value[:_SHOWN] + "…"
        return json.dumps(cut, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return kind(value)


def fault(param: str | None, message: str, code: str = "invalid_value") -> RequestError:
    """The error of one field; the message goes on after the field's name."""
    text = f"{param} {message}" if param else message
    return RequestError(text, param=param, code=code)


def missing(param: str, fix: str) -> RequestError:
    """The error of a field that is not there."""
    return fault(param, f"is missing: {fix}", "missing_required_parameter")


def wrong_type(param: str, wanted: str, value: Any) -> RequestError:
    """The error of a field of the wrong type."""
    return fault(param, f"must be {wanted}, not {kind(value)}.", "invalid_type")


def an_object(value: Any, param: str, wanted: str = "an object") -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise wrong_type(param, wanted, value)
    return value


def a_string(value: Any, param: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    return value


def optional_string(value: Any, param: str) -> str | None:
    """A string, or None for null and absent."""
    return None if value is None else a_string(value, param)


def optional_boolean(value: Any, param: str) -> bool | None:
    """A boolean, or None for null and absent."""
    if value is not None and not isinstance(value, bool):
        raise wrong_type(param, "true or false", value)
    return value


def integer(
    value: Any,
    param: str,
    low: int | None = None,
    high: int | None = None,
    also: Collection[int] = (),
) -> int | None:
    """A whole number in a range, or None for null and absent."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(param, "a whole number", value)
    if value not in also:
        _check_range(value, param, low, high)
    return value


def number(
    value: Any, param: str, low: float | None = None, high: float | None = None
) -> float | None:
    """A finite number in a range, or None for null and absent."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(param, "a number", value)
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise fault(param, "must be a finite number.")
    _check_range(value, param, low, high)
    return value


def _check_range(value: Any, param: str, low: Any, high: Any) -> None:
    if low is not None and value < low:
        raise fault(param, f"must be at least {low}.")
    if high is not None and value > high:
        raise fault(param, f"must be at most {high}.")
