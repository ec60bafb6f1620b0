"""Client JSON schemas -> schemas that llguidance enforces exactly.

Every schema is written anew: local references, ``$id`` and ``$anchor`` are resolved to
``#/$defs/rN``, annotations are left out, older drafts' spellings become those of 2020-12.
What the library would enforce wrongly or not at all is a ``RequestError`` that names path
and keyword (strict), or is left unconstrained with a log line. Source of what can be
enforced: llguidance's docs/json_schema.md, and measurements (see the limits below).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from .protocol.errors import RequestError
from .references import References, Unresolved
from .schema_facts import (
    MAX_INTEGER,
    MAX_NUMBER,
    PLAIN_KEY,
    TYPES,
    are_names,
    can_divide,
    escaped,
    inner_bound,
    integers_only,
    is_exact,
    is_finite,
    is_text,
    needs_trial,
)
from .schema_limits import (
    MAX_NODES,
    MAX_PATTERN_SIZE,
    MAX_REPEATS,
    check_size,
    pattern_size,
)

logger = logging.getLogger(__name__)

_NUMBER = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_STRING = ("minLength", "maxLength", "pattern", "format")
_ARRAY = ("minItems", "maxItems", "items", "prefixItems", "additionalItems")
_ARRAY += ("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems")
_OBJECT = ("properties", "required", "additionalProperties", "patternProperties")
_OBJECT += ("minProperties", "maxProperties", "propertyNames", "dependencies")
_OBJECT += ("dependentRequired", "dependentSchemas", "unevaluatedProperties")
# The types that a keyword speaks about; it says nothing about the others.
_APPLIES = {
    **dict.fromkeys(_NUMBER, ("integer", "number")),
    **dict.fromkeys(_STRING, ("string",)),
    **dict.fromkeys(_ARRAY, ("array",)),
    **dict.fromkeys(_OBJECT, ("object",)),
}
# Values of keywords that nobody can enforce here but that demand nothing.
_DEMANDS_NOTHING: dict[str, tuple[Any, ...]] = {
    "not": (False,),
    "uniqueItems": (False,),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "propertyNames": (True, {}, {"type": "string"}),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
}
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname")
_FORMATS += ("ipv4", "ipv6", "uuid", "uri")
STYLES: dict[str, dict[str, Any]] = {
    # As Kimi writes it.
    "compact": {"whitespace_flexible": False},
    # The model's own style; the bound ends runs of whitespace.
    "free": {"whitespace_pattern": "[ \\n\\r\\t]{1,40}"},
}


class Converted:
    """One client schema, rewritten. ``text(style)`` goes behind ``%json``."""

    def __init__(self, schema: Any, *, strict: bool, param: str):
        check_size(schema, param)
        self.strict = strict
        self.param = param
        self.defs: dict[str, Any] = {}
        self.paths: dict[int, str] = {}
        self.needs_trial = False
        self.mended = False  # changed after a trial
        self.relaxed: list[tuple[str, str]] = []
        self._escapes = True
        self._nodes = 0
        self._names: dict[str, str] = {}
        self._queue: list[tuple[str, str, Any]] = []
        self._inlining: list[str] = []
        self._references = References(schema)
        root = self._node(schema, "#")
        while self._queue:
            name, path, target = self._queue.pop()
            self.defs[name] = self._node(target, path)
        self.root = self._as_arguments(root)
        self._refuse_endless()

    def text(self, style: str) -> str:
        """The schema with llguidance's options, as JSON."""
        return json.dumps(self.whole(self.root, style), ensure_ascii=True)

    def whole(self, node: Any, style: str = "compact") -> dict[str, Any]:
        """A node of this schema that stands alone, with the options of a style."""
        options = {**STYLES[style], "json_allow_general_unicode_escapes": True}
        # Without escapes a control character in a declared string could not be written.
        if not self._escapes and "\\u00" not in json.dumps([node, self.defs]):
            options["json_allowed_escapes"] = 'nrbtf\\"'
        if node is False:
            node = {"enum": []}
        out = {"x-guidance": options, **({} if node is True else node)}
        if self.defs:
            out["$defs"] = self.defs
        return out

    def cannot(self, path: str, keyword: str, why: str = "can't be enforced") -> None:
        """A part can't be enforced: a 400 if strict, else a log line."""
        if self.strict:
            raise RequestError(
                f"{self.param}: {keyword!r} at {path} {why}; leave it out, or leave out "
                "'strict'.",
                param=f"{self.param}{path[1:].replace('/', '.')}.{keyword}",
                code="unsupported_schema",
            )
        self.relaxed.append((path, keyword))
        logger.warning(
            "%s: %r at %s %s: served without it", self.param, keyword, path, why
        )

    def _as_arguments(self, root: Any) -> Any:
        # A root that names no type but describes an object is meant to be one.
        decides = ("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref")
        if isinstance(root, dict) and not any(key in root for key in decides):
            root["type"] = "object"
        return root

    def _node(self, node: Any, path: str) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise RequestError(
                f"{self.param}: the schema is too large when its references are "
                "followed.",
                param=self.param,
                code="schema_too_large",
            )
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            self.cannot(path, "schema", "is neither an object nor a boolean")
            return {}
        types = self._types(node, path)
        out: dict[str, Any] = {}
        self.paths[id(out)] = path
        for key, value in node.items():
            applies = _APPLIES.get(key)
            if applies is None or types is None or any(t in types for t in applies):
                self._keyword(out, node, key, value, f"{path}/{escaped(key)}", path)
        if types is not None:
            out["type"] = types[0] if len(types) == 1 else types
        integers_only(out)
        self._open_keys(out)
        self.needs_trial |= needs_trial(out)
        return out

    def _types(self, node: dict, path: str) -> list[str] | None:
        value = node.get("type")
        if value is None:
            return None
        if isinstance(value, str) and value in TYPES:
            return [value]
        types = value if isinstance(value, list) else [value]
        if not types or any(t not in TYPES for t in types if isinstance(t, str)):
            self.cannot(path, "type", "names no JSON type")
            return None
        if not all(isinstance(t, str) for t in types):
            self.cannot(path, "type", "names no JSON type")
            return None
        return list(dict.fromkeys(types))

    def _keyword(
        self, out: dict, node: dict, key: str, value: Any, here: str, path: str
    ) -> None:
        """Write one keyword of a node into out; unknown ones are annotations."""
        if key in ("$ref", "$dynamicRef", "$recursiveRef"):
            self._ref(out, node, key, value, path)
        elif key in ("anyOf", "oneOf", "allOf"):
            self._options(out, key, value, here, path)
        elif key in ("enum", "const"):
            self._values(out, key, value, path)
        elif key in ("properties", "patternProperties"):
            self._map(out, key, value, here, path)
        elif key == "additionalProperties":
            out[key] = self._node(value, here)
        elif key in ("items", "prefixItems", "additionalItems"):
            self._items(out, node, key, value, here, path)
        elif key == "required":
            if isinstance(value, list) and all(is_text(v) for v in value):
                out[key] = list(dict.fromkeys(value))
            else:
                self.cannot(path, key, "is not a list of names")
        elif key in MAX_REPEATS:
            self._count(out, node, key, value, path)
        elif key in ("pattern", "format"):
            self._string(out, key, value, path)
        elif key in _NUMBER:
            self._number(out, node, key, value, path)
        else:
            self._unsupported(node, key, value, path)

    def _unsupported(self, node: dict, key: str, value: Any, path: str) -> None:
        if key == "if":
            demands = "then" in node or "else" in node
        elif key == "contains":
            demands = node.get("minContains", 1) != 0 or "maxContains" in node
        else:
            demands = key in _DEMANDS_NOTHING and value not in _DEMANDS_NOTHING[key]
        if demands:
            self.cannot(path, key)

    def _ref(self, out: dict, node: dict, key: str, value: Any, path: str) -> None:
        try:
            pointer, target = self._references.resolve(value, path)
        except Unresolved as e:
            return self.cannot(path, key, str(e))
        if pointer not in self._names:
            self._names[pointer] = f"r{len(self._names)}"
            self._queue.append((self._names[pointer], pointer, target))
        out["$ref"] = f"#/$defs/{self._names[pointer]}"

    def _options(self, out: dict, key: str, value: Any, here: str, path: str) -> None:
        if not isinstance(value, list) or not value:
            return self.cannot(path, key, "is not a list of schemas")
        make = self._inlined if key == "oneOf" else self._node
        out[key] = [make(v, f"{here}/{i}") for i, v in enumerate(value)]

    def _inlined(self, node: Any, path: str) -> Any:
        # The library sees that two options of oneOf exclude each other only if both
        # stand there themselves.
        if not (isinstance(node, dict) and isinstance(node.get("$ref"), str)):
            return self._node(node, path)
        try:
            pointer, target = self._references.resolve(node["$ref"], path)
        except Unresolved:
            return self._node(node, path)
        if pointer in self._inlining or len(self._inlining) > 8:
            return self._node(node, path)
        self._inlining.append(pointer)
        inlined = self._inlined(target, pointer)
        self._inlining.pop()
        rest = {k: v for k, v in node.items() if k != "$ref"}
        others = self._node(rest, path)
        return {"allOf": [others, inlined]} if others else inlined

    def _map(self, out: dict, key: str, value: Any, here: str, path: str) -> None:
        if not isinstance(value, dict) or not all(is_text(k) for k in value):
            return self.cannot(path, key, "is not a map of names to schemas")
        out[key] = {k: self._node(v, f"{here}/{escaped(k)}") for k, v in value.items()}

    def _items(
        self, out: dict, node: dict, key: str, value: Any, here: str, path: str
    ) -> None:
        # Before 2020-12 a list in items was what prefixItems is now.
        if isinstance(value, list) and key in ("items", "prefixItems"):
            nodes = [self._node(v, f"{here}/{i}") for i, v in enumerate(value)]
            if nodes:
                out["prefixItems"] = nodes
        elif key == "items" or isinstance(node.get("items"), list):
            out["items"] = self._node(value, here)
        elif key == "prefixItems":
            self.cannot(path, key, "is not a list of schemas")

    def _values(self, out: dict, key: str, value: Any, path: str) -> None:
        values = value if key == "enum" else [value]
        if not isinstance(values, list) or not values:
            return self.cannot(path, key, "is not a list of values")
        if not all(map(is_exact, values)):
            return self.cannot(path, key, "holds a value that can't be written exactly")
        out[key] = value

    def _count(self, out: dict, node: dict, key: str, value: Any, path: str) -> None:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            return self.cannot(path, key, "is not a count")
        # No answer gets as long: then a maximum demands nothing, and a minimum as much.
        if value > MAX_REPEATS[key]:
            if key.startswith("max"):
                return
            value = MAX_REPEATS[key]
        required = node.get("required")
        given = len(set(required)) if are_names(required) else 0
        if key == "minProperties" and value > max(1, given):
            # The same undeclared key may come twice, and counts once.
            self.cannot(path, key)
        if key == "minProperties" and value <= given:
            return
        out[key] = max(value, out.get(key, 0))

    def _string(self, out: dict, key: str, value: Any, path: str) -> None:
        if not is_text(value):
            return self.cannot(path, key, "is not a string")
        if key == "format" and value not in _FORMATS:
            return self.cannot(path, key, f"({value}) is not one of the known ones")
        if key == "pattern" and pattern_size(value) > MAX_PATTERN_SIZE:
            return self.cannot(path, key, "repeats too much")
        out[key] = value
        if value == "date" and key == "format":
            # The library's own rule also takes an empty string.
            out["minLength"] = max(10, out.get("minLength", 0))

    def _number(self, out: dict, node: dict, key: str, value: Any, path: str) -> None:
        if isinstance(value, bool) and key.startswith("exclusive"):
            # Draft 4: a flag that goes with minimum or maximum.
            bound = "minimum" if key == "exclusiveMinimum" else "maximum"
            if not value or bound not in node:
                return
            value = node[bound]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return self.cannot(path, key, "is not a number")
        if key == "multipleOf":
            if not can_divide(value, bounded=any(k in node for k in _NUMBER[:4])):
                return self.cannot(path, key)
            out[key] = abs(value)
            return
        limit = MAX_INTEGER if node.get("type") in ("integer", ["integer"]) else None
        bound = inner_bound(value, limit or MAX_NUMBER, upper="ax" in key)
        if bound is None:
            return self.cannot(path, key, "is out of range")
        out[key] = bound

    def _open_keys(self, out: dict) -> None:
        """Let undeclared keys come only without escapes (they could be declared ones)."""
        rest = out.get("additionalProperties", {})
        named = out.get("properties") or out.get("required")
        if rest is False or not (named or out.get("patternProperties")):
            return
        declared = [*out.get("properties", ()), *out.get("required", ())]
        if (
            out.get("patternProperties")
            or rest not in ({}, True)  # a pattern would also bind the declared ones
            or any(not name.isprintable() for name in declared)
        ):
            self._escapes = False
        else:
            out["patternProperties"] = {PLAIN_KEY: {}}
            out["additionalProperties"] = False

    def _refuse_endless(self) -> None:
        """Definitions of which no finite value exists can't be chosen."""
        finite: set[str] = set()
        while True:
            more = {
                name
                for name, node in self.defs.items()
                if name not in finite and is_finite(node, finite)
            }
            if not more:
                break
            finite |= more
        if not is_finite(self.root, finite):
            self.cannot("#", "$ref", "leads to no finite value")
            self.root = {"type": "object"}
        for name in self.defs.keys() - finite:
            self.defs[name] = False


def settle(schemas: Iterable[Converted]) -> None:
    """Try converted schemas in the library; mend or refuse those that it refuses."""
    from .schema_trial import mend, works

    doubtful = [s for s in schemas if s.needs_trial]
    if doubtful and not works(*doubtful):
        for schema in doubtful:
            mend(schema)
    for schema in doubtful:
        schema.needs_trial = False
