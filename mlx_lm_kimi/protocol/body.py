"""The bytes of a body -> one JSON object; depth and size are bounded before parsing."""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate
from typing import Any

from .check import fault, kind

MAX_BODY_BYTES = 64 << 20
MAX_DEPTH = 200
_MAX_DIGITS = 4300  # of one integer: Python's own limit where it has one
_STRING = re.compile(rb'"[^"]*"?')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Opening brackets as the signed byte 1, closing ones as -1; everything else goes.
_SIGNS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_OTHERS = bytes(set(range(256)) - set(b'[{]}"'))


def _depth(raw: bytes) -> int:
    """How deep the brackets outside of strings nest, up to the first fault; linear."""
    raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    # Two quotes side by side change nothing for what follows them; few matches are left.
    signs = _STRING.sub(b"", raw.replace(b'""', b"")).translate(_SIGNS)
    return max(accumulate(memoryview(signs).cast("b"), initial=0))


def _is_deeper(raw: bytes, limit: int) -> bool:
    return raw.count(b"[") + raw.count(b"{") > limit and _depth(raw) > limit


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number has over {_MAX_DIGITS} digits")
    return int(text)


def _encodable(value: Any) -> Any:
    """The value with U+FFFD for lone surrogates, which UTF-8 can't hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_encodable(v) for v in value]
    if isinstance(value, dict):
        return {_encodable(k): _encodable(v) for k, v in value.items()}
    return value


def decode_body(
    raw: bytes, *, max_bytes: int = MAX_BODY_BYTES, max_depth: int = MAX_DEPTH
) -> dict[str, Any]:
    """The JSON object in a body, in linear time.

    Escapes of lone surrogates become U+FFFD, so every string can be encoded.

    Raises:
        RequestError: over the limit, not UTF-8, not JSON, no object, nested too deep.
    """
    if len(raw) > max_bytes:
        text = f"The body has {len(raw)} bytes; send at most {max_bytes}."
        raise fault(None, text, "body_too_large")
    if _is_deeper(raw, max_depth):
        text = f"The body is nested more than {max_depth} deep: send a flatter one."
        raise fault(None, text, "nested_too_deep")
    try:
        body = json.loads(
            raw.decode("utf-8"),
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_integer,
        )
    except UnicodeDecodeError as e:
        text = f"The body is not UTF-8: {e.reason} at byte {e.start}."
        raise fault(None, text, "invalid_utf8") from e
    except (ValueError, RecursionError) as e:
        raise fault(None, f"The body is not valid JSON: {e}.", "invalid_json") from e
    if not isinstance(body, dict):
        text = f"The body must be a JSON object, not {kind(body)}."
        raise fault(None, text, "invalid_type")
    return _encodable(body) if _SURROGATE.search(raw) else body
