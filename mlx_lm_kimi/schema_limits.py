"""How large a client's JSON schema may be: a hostile one costs a 400, not the server.

The limits come from measurements: 1,000 optional properties compile in 0.1 s, 5,000 in
1.7 s; 10,000 strings of an enum in 50 ms; 300 objects in one in 50 ms.
"""

from __future__ import annotations

import math
import re
from typing import Any

from .protocol.errors import RequestError

MAX_DEPTH = 64  # levels of JSON, two of which make one level of objects
MAX_VALUES = 20_000
MAX_CHARACTERS = 1_000_000
MAX_PROPERTIES = 1_000
MAX_ENUM_VALUES = 10_000
MAX_ENUM_OBJECTS = 500
MAX_NODES = 20_000
MAX_PATTERN = 2_000
MAX_PATTERN_SIZE = 10_000
# The sum of squares of the sizes of all property maps: what compiling them costs.
MAX_PROPERTY_COST = 2_000_000
# What no answer reaches: counts are cut to these (the library's regexes count in 32 bits).
MAX_REPEATS = {
    **dict.fromkeys(("minLength", "maxLength"), 2**32 - 1),
    **dict.fromkeys(("minItems", "maxItems"), 2**31 - 1),
    **dict.fromkeys(("minProperties", "maxProperties"), 2**31 - 1),
}


def _too_large(param: str, what: str) -> RequestError:
    return RequestError(
        f"{param}: the schema is too large: {what}.",
        param=param,
        code="schema_too_large",
    )


def check_size(schema: Any, param: str) -> None:
    """Raise a RequestError if a schema is larger than the limits. Linear, no recursion."""
    values = characters = property_cost = enum_values = enum_objects = 0
    stack: list[tuple[Any, int]] = [(schema, 0)]
    while stack:
        value, depth = stack.pop()
        values += 1
        if depth > MAX_DEPTH:
            raise _too_large(param, f"more than {MAX_DEPTH} levels deep")
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, dict):
            characters += sum(map(len, value))
            stack += [(v, depth + 1) for v in value.values()]
            properties, enum = value.get("properties"), value.get("enum")
            if isinstance(properties, dict):
                property_cost += len(properties) ** 2
                if len(properties) > MAX_PROPERTIES:
                    raise _too_large(param, f"over {MAX_PROPERTIES} properties")
            if isinstance(enum, list):
                enum_values += len(enum)
                enum_objects += sum(isinstance(v, (dict, list)) for v in enum)
            if len(_text(value.get("pattern"))) > MAX_PATTERN:
                raise _too_large(param, f"a pattern over {MAX_PATTERN} characters")
        elif isinstance(value, list):
            stack += [(v, depth + 1) for v in value]
        elif isinstance(value, int):
            if value.bit_length() > 1000:
                raise _too_large(param, "a number of more than 300 digits")
        elif isinstance(value, float) and not math.isfinite(value):
            raise _too_large(param, "an infinite number")
    for count, limit, what in (
        (values, MAX_VALUES, "values"),
        (characters, MAX_CHARACTERS, "characters"),
        (property_cost, MAX_PROPERTY_COST, "properties squared"),
        (enum_values, MAX_ENUM_VALUES, "values of enums"),
        (enum_objects, MAX_ENUM_OBJECTS, "objects in enums"),
    ):
        if count > limit:
            raise _too_large(param, f"{count} {what}, the limit is {limit}")


_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d+(?:,\d*)?\}|.", re.DOTALL)


def pattern_size(pattern: str) -> int:
    """How many characters a regex has when its counted repeats are written out.

    Nested repeats multiply, and the library fails on large ones in mid-generation.
    """
    sums, last = [0], 0
    for match in _TOKEN.finditer(pattern):
        token = match.group()
        if token == "(":
            sums.append(0)
        elif token == ")" and len(sums) > 1:
            last = max(1, sums.pop())
            sums[-1] += last
        elif token.startswith("{") and len(token) > 2:
            count = max(1, *(int(n[:9] or 0) for n in token[1:-1].split(",")))
            sums[-1] += last * (count - 1)
            last *= count
        else:
            last = 1
            sums[-1] += 1
    return sum(sums)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
