"""Facts about parts of a JSON schema, and about what llguidance makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
# Any key, but of its escapes only those of control characters: an undeclared key can't be
# another spelling of a declared one.
PLAIN_KEY = "^"
# llguidance computes bounds in 64 bits; the greatest float below 2**63, and 2**53.
MAX_INTEGER = 9223372036854774784
MAX_NUMBER = 2**53
# Keywords whose use can make llguidance refuse a schema: those are tried beforehand.
_NEED_TRIAL = frozenset(
    ("pattern", "format", "oneOf", "allOf", "patternProperties", "minProperties")
    + ("maxProperties", "const", "multipleOf", "exclusiveMinimum", "exclusiveMaximum")
)
_PAIRS = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))


def needs_trial(node: dict) -> bool:
    doubtful = _NEED_TRIAL.intersection(node)
    if node.get("patternProperties") == {PLAIN_KEY: {}}:
        doubtful -= {"patternProperties"}
    if doubtful or ("$ref" in node and len(node) > 1):
        return True
    if "enum" in node or "anyOf" in node:
        plain = node.get("type") == "string" and len(node) == 2 and "enum" in node
        return not (plain and all(isinstance(v, str) for v in node["enum"]))
    return any(low in node and high in node for low, high in _PAIRS)


def is_finite(node: Any, finite: set[str]) -> bool:
    """Whether some value of a node is complete, if those of the names in finite are."""
    if not isinstance(node, dict):
        return node is not False
    if "$ref" in node and node["$ref"].rpartition("/")[2] not in finite:
        return False
    for key in ("anyOf", "oneOf"):
        if key in node and not any(is_finite(n, finite) for n in node[key]):
            return False
    if not all(is_finite(n, finite) for n in node.get("allOf", ())):
        return False
    types = node.get("type", list(TYPES))
    types = types if isinstance(types, list) else [types]
    if "enum" in node or "const" in node or set(types) - {"array", "object"}:
        return True
    if "array" in types and all(
        is_finite(n, finite) for n in _needed_items(node.get("minItems", 0), node)
    ):
        return True
    needed = [node.get("properties", {}).get(n) for n in node.get("required", ())]
    return "object" in types and all(n is None or is_finite(n, finite) for n in needed)


def _needed_items(count: int, node: dict) -> Iterator[Any]:
    prefix = node.get("prefixItems", [])
    yield from prefix[:count]
    if count > len(prefix):
        yield node.get("items", {})


def escaped(key: str) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def is_text(value: Any) -> bool:
    """A string that can be written: one with a lone surrogate can't."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def is_exact(value: Any) -> bool:
    """Whether the library, which reads numbers as floats, keeps a JSON value."""
    if isinstance(value, dict):
        return all(is_text(k) and is_exact(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(is_exact, value))
    if isinstance(value, str):
        return is_text(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return abs(value) <= MAX_NUMBER and (value == 0 or abs(value) > 1e-15)
    return True


def can_divide(value: float, *, bounded: bool) -> bool:
    """Whether multipleOf is cheap enough: its size in digits makes the automaton.

    1000003 takes 5 s and 354 MiB; 997 with bounds is more than the library can do.
    """
    if not 0 < abs(value) <= 10**6:
        return False
    text = format(abs(value), ".12g")
    if "e" in text:
        return False
    whole = int(text.replace(".", ""))
    while whole % 10 == 0 and "." not in text:
        whole //= 10
    return whole <= (500 if bounded else 2000)


def inner_bound(value: float, limit: int, *, upper: bool) -> float | int | None:
    """A bound that the library reads exactly, moved inwards; None: nothing is left."""
    value = value if upper else -value
    if value < -limit:
        return None
    if value > limit:
        value = limit
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        near = float(value)
        value = int(near if near <= value else math.nextafter(near, -math.inf))
    return value if upper else -value


def integers_only(out: dict) -> None:
    """Multiples of a whole number are whole (as numbers with bounds they panic)."""
    multiple = out.get("multipleOf")
    if multiple is not None and float(multiple).is_integer():
        types = out.get("type", list(TYPES))
        types = types if isinstance(types, list) else [types]
        whole = ["integer" if t == "number" else t for t in types]
        whole = list(dict.fromkeys(whole))
        out["multipleOf"] = int(multiple)
        out["type"] = whole[0] if len(whole) == 1 else whole
