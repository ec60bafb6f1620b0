"""Does llguidance take a schema? If not: which keyword is at fault, and without it?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .schema import Converted

# How many trials (about 1 ms each) one refused schema may cost.
MAX_TRIALS = 400
_KEEP = ("type", "$ref")


def works(*schemas: Converted) -> bool:
    """Whether the library takes all of these schemas. Needs no tokenizer."""
    return not _complaint([s.whole(s.root) for s in schemas])


def mend(schema: Converted) -> None:
    """Leave out what the library refuses in a schema, or say so (strict).

    Raises:
        RequestError: it refuses something, and the schema is strict.
    """
    trials = MAX_TRIALS
    while trials > 0 and (why := _complaint([schema.whole(schema.root)])):
        schema.mended = True
        fault, cost = _smallest_fault(schema, trials)
        keyword, more = _guilty_keyword(schema, fault)
        trials -= cost + more
        path = schema.paths.get(id(fault), "#")
        schema.cannot(path, keyword or "schema", f"can't be enforced ({_reason(why)})")
        if keyword == "oneOf" and "anyOf" not in fault:
            fault["anyOf"] = fault.pop("oneOf")  # what is left of it
        elif keyword:
            del fault[keyword]
        else:
            fault.clear()
    if trials <= 0:
        schema.cannot("#", "schema", "can't be enforced")
        schema.root, schema.defs = {"type": "object"}, {}


def _complaint(nodes: list[dict]) -> str:
    from llguidance import LLMatcher

    lines = [f"start: {' | '.join(f'a{i}' for i in range(len(nodes)))}"]
    lines += [f"a{i}: %json {json.dumps(node)}" for i, node in enumerate(nodes)]
    return LLMatcher.validate_grammar("\n".join(lines))


def _reason(complaint: str) -> str:
    return complaint.partition("\n")[0].rpartition("JSON schema: ")[2][:200]


def _children(node: dict, schema: Converted) -> Iterator[Any]:
    for key in ("properties", "patternProperties"):
        yield from node.get(key, {}).values()
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        yield from node.get(key, ())
    for key in ("additionalProperties", "items"):
        yield node.get(key)
    if "$ref" in node:
        yield schema.defs.get(node["$ref"].rpartition("/")[2])


def _smallest_fault(schema: Converted, budget: int) -> tuple[dict, int]:
    """The node that is refused while none of its parts is, and the trials it cost."""
    if not isinstance(schema.root, dict):
        schema.root = {"enum": []}
    node, seen, cost = schema.root, set(), 0
    while True:
        for child in _children(node, schema):
            if not isinstance(child, dict) or id(child) in seen:
                continue
            seen.add(id(child))
            cost += 1
            if cost > budget:
                return node, cost
            if _complaint([schema.whole(child)]):
                node = child
                break
        else:
            return node, cost


def _guilty_keyword(schema: Converted, node: dict) -> tuple[str | None, int]:
    """The keyword without which a refused node is taken; None if no single one is."""
    keys = [k for k in node if k not in _KEEP] + [k for k in _KEEP if k in node]
    for cost, key in enumerate(keys, 1):
        rest = {k: v for k, v in node.items() if k != key}
        if not _complaint([schema.whole(rest)]):
            return key, cost
    return None, len(keys)
