"""The grammar of K3's answers (XTML), with typed arguments or one json block.

    …<|close|>think<|sep|><|open|>response<|sep|>…<|close|>response<|sep|>
    <|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|>
      <|open|>argument key="K" type="string"<|sep|>…<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>

Typed arguments are offered where they can say all that the schema demands; one raw
object in a json block always is.
"""

from __future__ import annotations

import json
from typing import Any

from .grammar import FREE, MAX_CALLS, ConstraintSpec, Rules, callable_tools
from .schema import Converted, settle
from .schema_facts import PLAIN_KEY

# (grammar, type) of values of which only the type is given.
_PLAIN = {
    "string": (FREE, "string"),
    "boolean": ('("true" | "false")', "boolean"),
    "null": ('"null"', "null"),
}
_ANY = {
    "number": ("NUMBER", "number"),
    "object": ("any_object", "object"),
    "array": ("any_array", "array"),
}
_TYPE = {"integer": "number", "number": "number", "object": "object", "array": "array"}
_NAMES = {bool: "boolean", type(None): "null", int: "number", float: "number"}
_NAMES |= {str: "string", dict: "object", list: "array"}
MAX_DEPTH = 4  # of references and options that are followed to find a type
_ANY_KEY = '/[^"<>&\\x00-\\x1f]{1,64}/'


def _open(tag: str) -> str:
    return f"<|open|> {json.dumps(tag)} <|sep|>"


def _close(tag: str) -> str:
    return f"<|close|> {json.dumps(tag)} <|sep|>"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


_JSON = _open('json type="object"')


class XtmlRules(Rules):
    """The rules below a turn of K3."""

    @staticmethod
    def whole_turns(spec: ConstraintSpec) -> bool:
        """<|open|> also opens other elements, so no marker can just be forbidden."""
        return bool(spec.tools)

    @staticmethod
    def turn(
        body: Any, thinking_open: bool, has_thinking: bool, may_be_empty: bool
    ) -> tuple[str, str]:
        """The prompt has opened the think element, or else the response."""
        opened, otherwise = body
        tail = f"{_close('message')} <|end_of_msg|>"
        answer = f"{opened} {tail}"
        if may_be_empty:
            answer = f"({answer} | {FREE} <|end_of_msg|>)"
        if not thinking_open:
            return answer, ""
        options = [f"{_open('response')} {answer}", *(f"{o} {tail}" for o in otherwise)]
        turn = f"{_close('think')} ({' | '.join(options)})"
        if may_be_empty:
            turn = f"({turn} | <|end_of_msg|>)"
        return f"{FREE} {turn}", ""

    @staticmethod
    def start(turn: str) -> str:
        """Calls are counted from the beginning of each answer."""
        return f"start: turn::0\nturn::_: {turn}"

    def _body(self, section: str) -> tuple[str, list[str]]:
        """What follows an opened response, and what may stand in place of a response."""
        spec, end = self._spec, _close("response")
        if spec.must_call:
            return f"{end} {section}", [section]
        if spec.response_format is not None:
            content = f"{self._content()} {end}"
            if not section:
                return content, []
            return f"({content} | {end} {section})", [section]
        if not section:
            return f"{FREE} {end}", ['""']
        return f'{FREE} {end} ({section} | "")', [section, '""']

    def _section(self) -> str:
        tools = callable_tools(self._spec)
        found = [self._arguments(position, tool) for position, tool in tools]
        # Typed arguments are read off a schema, so what can't be enforced goes first.
        settle(schema for schema in found if schema is not None)
        options = []
        for (_, tool), schema in zip(tools, found):
            name = _escaped(tool["function"]["name"])
            head = json.dumps(f'call tool="{name}" index="')
            arguments = self._xtml_arguments(schema)
            options.append(f'{head} index::_ "\\"" <|sep|> {arguments}')
        call = f"<|open|> ({' | '.join(options)}) {_close('call')}"
        self._count(call, 1, MAX_CALLS)
        return self._in_section(_open("tools"), _close("tools"))

    def _xtml_arguments(self, schema: Converted | None) -> str:
        name = self._object(schema)
        rule = f"arguments_{name}"
        if not self._has_rule(rule):
            block = f"{_JSON} {name} {_close('json')}"
            typed = self._typed(schema)
            options = block if typed is None else f"{typed} | {block}"
            self._lines.append(f"{rule}: {options}")
        return rule

    def _has_rule(self, name: str) -> bool:
        return any(line.startswith(f"{name}:") for line in self._lines)

    def _typed(self, schema: Converted | None) -> str | None:
        """The arguments one by one; None if the schema demands more than that."""
        if schema is None:
            return f"{self._any_argument()}*"
        root = schema.root
        known = {"type", "properties", "required", "additionalProperties"}
        if not isinstance(root, dict) or root.get("type") != "object":
            return None
        is_open = root.get("additionalProperties", True) in (True, {})
        if root.get("patternProperties") == {PLAIN_KEY: {}}:
            known, is_open = known | {"patternProperties"}, True
        properties, required = root.get("properties", {}), root.get("required", [])
        if root.keys() - known or set(required) - properties.keys():
            return None
        if not properties:
            return f"{self._any_argument()}*" if is_open else '""'
        written = []
        for key, node in properties.items():
            values = _values(schema, node, self._style, MAX_DEPTH)
            if not values:
                return None
            argument = _argument(key, values)
            written.append(argument if key in required else f"{argument}?")
        return " ".join(written)

    def _any_argument(self) -> str:
        rule = "any_argument"
        if not self._has_rule(rule):
            self._object(None)
            values = [*_PLAIN.values(), *_ANY.values()]
            head, more = json.dumps('argument key="'), json.dumps('" type="')
            self._lines += [
                f"{rule}: <|open|> {head} ANY_KEY {more} {_by_kind(values)} {_close('argument')}",
                f"ANY_KEY: {_ANY_KEY}",
            ]
        return rule


def _argument(key: str, values: list[tuple[str, str]]) -> str:
    head = json.dumps(f'argument key="{_escaped(key)}" type="')
    return f"(<|open|> {head} {_by_kind(values)} {_close('argument')})"


def _by_kind(values: list[tuple[str, str]]) -> str:
    """The end of an argument's tag and its value, for each type."""
    kinds: dict[str, list[str]] = {}
    for value, kind in values:
        kinds.setdefault(kind, []).append(value)
    options = []
    for kind, found in kinds.items():
        end = json.dumps(f'{kind}"')
        options.append(f"{end} <|sep|> ({' | '.join(found)})")
    return f"({' | '.join(options)})"


def _values(
    schema: Converted, node: Any, style: str, depth: int
) -> list[tuple[str, str]] | None:
    """(grammar, type) of the values that a node allows; None if types don't tell."""
    if node is True or node == {}:
        some = [_typed_value(schema, {}, kind, style) for kind in _ANY]
        return [*_PLAIN.values(), *some]
    if not isinstance(node, dict) or depth < 0:
        return None
    if node.keys() == {"$ref"}:
        target = schema.defs.get(node["$ref"].rpartition("/")[2])
        return _values(schema, target, style, depth - 1)
    if node.keys() == {"anyOf"}:
        found = [_values(schema, n, style, depth - 1) for n in node["anyOf"]]
        if any(values is None for values in found):
            return None
        return [value for values in found for value in values]
    if not node.keys().isdisjoint(("enum", "const")):
        return _listed(node)
    types = node.get("type")
    if types is None or not node.keys().isdisjoint(("oneOf", "allOf", "anyOf", "$ref")):
        return None
    found = [
        _typed_value(schema, node, kind, style)
        for kind in (types if isinstance(types, list) else [types])
    ]
    return None if None in found else found


def _typed_value(
    schema: Converted, node: dict[str, Any], kind: str, style: str
) -> tuple[str, str] | None:
    if kind == "string":
        if "pattern" in node or "format" in node or "maxLength" in node:
            return None
        least = node.get("minLength", 0)
        if least > 1:
            return None
        return (FREE[:-1] + "+" if least else FREE), kind
    if kind in ("boolean", "null"):
        return _PLAIN[kind]
    one = schema.whole({**node, "type": kind}, style)
    return f"%json {json.dumps(one)}", _TYPE[kind]


def _listed(node: dict[str, Any]) -> list[tuple[str, str]] | None:
    """The values of enum or const, written as arguments of their type."""
    if (
        node.keys() - {"enum", "const", "type"}
        or len(node.keys() & {"enum", "const"}) > 1
    ):
        return None
    values = node["enum"] if "enum" in node else [node["const"]]
    types = node.get("type", [])
    types = types if isinstance(types, list) else [types]
    found = []
    for value in values:
        kind = _NAMES[type(value)]
        is_whole = isinstance(value, int) or (
            isinstance(value, float) and value.is_integer()
        )
        if types and kind not in types and not ("integer" in types and is_whole):
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        if isinstance(value, (dict, list)) or not text.isprintable():
            return None
        found.append((json.dumps(text), kind))
    return found
