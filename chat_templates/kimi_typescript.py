# Copyright © 2026 Apple Inc.

"""Tool declarations in TypeScript, as Kimi K2.5 and later read them.

    # Tools

    ## functions
    namespace functions {
    // Get the weather
    type get_weather = (_: {
      // City name
      city: string,
      // minimum: 1
      // Default: 1
      days?: number
    }) => any;
    }

The mapping, from the declarations that Moonshot's encoder makes:

- A function is ``type NAME = (_: PARAMETERS) => any;``, its description a comment above.
  Tools of another type than function are left out; without any left the text is empty.
- PARAMETERS is always written as an object, whatever type the schema names; ``{}`` if it
  declares nothing.
- An object lists its required properties by name, then the optional ones (``?``) by name,
  and last ``[k: string]: TYPE`` for additionalProperties: ``any`` for true, ``never`` for
  false, else its type. Names are written as they are.
- ``integer`` is ``number``; other scalar types keep their name. ``true`` and ``{}`` are
  ``any``, ``false`` is ``null``. Arrays are ``Array<TYPE>``, without items ``Array<any>``.
- ``enum`` is ``"a" | "b"``, strings unescaped, numbers, booleans and null in Python's
  spelling (``True``, ``None``). anyOf and lists of types are unions, without comments and
  constraints of their members; in a list of types objects are ``{}``.
- Of several keywords $ref wins, then anyOf, enum, type.
- ``$ref`` to ``#/$defs/NAME`` is ``NAME``; every definition, also of an inner object, is an
  ``interface NAME TYPE`` before the function, its description above. It must come before
  its use. ``$ref`` to ``#`` is ``parameters``, an interface of the function's properties in
  the order of the schema, without additionalProperties.
- The comments of a property are its description (each line after ``// ``, empty lines
  empty), a line of its type's constraints in the order of their names (maxLength,
  minLength, pattern; maximum, minimum; maxItems, minItems) and ``Default: VALUE``, numbers
  and booleans in Python's spelling, others as JSON, null left out. Other keywords (title,
  format, examples, ...) are left out. Items with comments stand on lines of their own.
- What it can't express has no TypeScript form (None here, JSON in the prompt): a schema
  without type, anyOf, enum or $ref (oneOf, const, only a description), other references,
  an enum whose values (null aside) don't have its type, or that names several types
  beside null.
"""

import json
from typing import Any, Callable, Dict, List, Optional, Tuple

# Comment lines without indent, and a function from indent to text.
_Type = Tuple[List[str], Callable[[str], str]]

_STEP = "  "
_STRING = ("maxLength", "minLength", "pattern")
_NUMBER = ("maximum", "minimum")
_ARRAY = ("maxItems", "minItems")
_CONSTRAINTS = {"string": _STRING, "number": _NUMBER, "integer": _NUMBER}
_IN_UNION = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}
_PYTHON_TYPES = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
}


class _Scope:
    """The definitions met so far, and whether something refers to the root."""

    def __init__(self):
        self.definitions: Dict[str, Any] = {}
        self.refers_to_root = False

    def name(self, ref: str) -> str:
        if ref == "#":
            self.refers_to_root = True
            return "parameters"
        name = ref.split("/")[-1]
        if not ref.startswith("#/$defs/") or name not in self.definitions:
            raise ValueError(f"no TypeScript for the reference {ref}")
        return name


def _described(schema: Dict[str, Any], constraints: Tuple[str, ...] = ()) -> List[str]:
    lines = []
    if description := schema.get("description"):
        lines = [f"// {line}" if line else "" for line in description.split("\n")]
    if found := [f"{k}: {schema[k]}" for k in sorted(constraints) if k in schema]:
        lines.append("// " + ", ".join(found))
    return lines


def _indented(lines: List[str], indent: str) -> str:
    return "".join(f"{indent}{line}\n" if line else "\n" for line in lines)


def _constant(text: str) -> Callable[[str], str]:
    return lambda indent: text


def _type(schema: Any, scope: _Scope) -> _Type:
    """The type of a schema; raises ValueError where there is no TypeScript for it."""
    if isinstance(schema, bool):
        return [], _constant("any" if schema else "null")
    if "$ref" in schema:
        return _described(schema), _constant(scope.name(schema["$ref"]))
    if "anyOf" in schema:
        types = [_type(option, scope) for option in schema["anyOf"]]
        return _described(schema), lambda indent: " | ".join(
            write(indent) for _, write in types
        )
    if "enum" in schema:
        return _described(schema), _constant(_enum(schema))
    if "type" in schema:
        return _named_type(schema, scope)
    if schema == {}:
        return [], _constant("any")
    raise ValueError(f"no TypeScript for {schema}")


def _named_type(schema: Dict[str, Any], scope: _Scope) -> _Type:
    kind = schema["type"]
    if isinstance(kind, list):
        union = " | ".join(_IN_UNION[one] for one in kind)
        return _described(schema), _constant(union)
    if kind == "object":
        return _object(schema, scope)
    if kind == "array":
        return _array(schema, scope)
    comments = _described(schema, _CONSTRAINTS.get(kind, ()))
    return comments, _constant("number" if kind == "integer" else kind)


def _enum(schema: Dict[str, Any]) -> str:
    values, kind = schema["enum"], schema.get("type")
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        if not kind or len(kind) > 2 or (len(kind) == 2 and "null" not in kind):
            raise ValueError(f"no TypeScript for an enum of {kind}")
        kind = others[0] if others else "null"
    wanted = _PYTHON_TYPES.get(kind)
    if wanted and not all(v is None or isinstance(v, wanted) for v in values):
        raise ValueError(f"the enum {values} is not of type {kind}")
    return " | ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in values)


def _array(schema: Dict[str, Any], scope: _Scope) -> _Type:
    item = ([], _constant("any"))
    if schema.get("items"):
        item = _type(schema["items"], scope)
    comments, write_item = item

    def write(indent: str) -> str:
        if not comments:
            return f"Array<{write_item(indent)}>"
        inner = indent + _STEP
        item_text = f"{inner}{write_item(inner)}\n"
        return f"Array<\n{_indented(comments, inner)}{item_text}{indent}>"

    return _described(schema, _ARRAY), write


def _property(name: str, schema: Any, optional: bool, scope: _Scope):
    """(name, whether it is optional, a function from indent to text)."""
    comments, write_type = _type(schema, scope)
    default = schema.get("default") if isinstance(schema, dict) else None
    if default is not None:
        is_number = isinstance(default, (int, float))
        shown = repr(default) if is_number else json.dumps(default, ensure_ascii=False)
        comments = [*comments, f"// Default: {shown}"]
    mark = "?" if optional else ""

    def write(indent: str) -> str:
        head = _indented(comments, indent)
        return f"{head}{indent}{name}{mark}: {write_type(indent)}"

    return name, optional, write


def _properties(schema: Dict[str, Any], scope: _Scope) -> list:
    if "properties" not in schema:
        return []
    required = set(schema.get("required", []))
    return [
        _property(name, value, name not in required, scope)
        for name, value in schema["properties"].items()
    ]


def _object(schema: Dict[str, Any], scope: _Scope) -> _Type:
    scope.definitions.update(schema.get("$defs") or {})
    others = schema.get("additionalProperties")
    write_others = None
    if others is not None:
        write_others = _constant("any" if others else "never")
        if not isinstance(others, bool):
            write_others = _type(others, scope)[1]
    properties = _properties(schema, scope)
    properties.sort(key=lambda p: (p[1], p[0]))

    def write(indent: str) -> str:
        inner = indent + _STEP
        fields = [write_property(inner) for _, _, write_property in properties]
        if write_others is not None:
            fields.append(f"{inner}[k: string]: {write_others(inner)}")
        if not fields:
            return "{}"
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}"

    return _described(schema), write


def _function(function: Dict[str, Any]) -> str:
    scope = _Scope()
    schema = function.get("parameters") or {}
    _, write = _object(schema, scope)
    out, parameters = [], write
    if scope.refers_to_root:
        fields = ",\n".join(w(_STEP) for _, _, w in _properties(schema, scope))
        out.append("interface parameters {" + (f"\n{fields}\n" if fields else "") + "}")
        parameters = _constant("parameters")
    for name, definition in list(scope.definitions.items()):
        _, write_definition = _type(definition, scope)
        lines = _described({"description": definition.get("description")})
        out.append(f"{_indented(lines, '')}interface {name} {write_definition('')}")
    out += _described({"description": function.get("description")})
    name = function.get("name", "function")
    out.append(f"type {name} = (_: {parameters('')}) => any;")
    return "\n".join(out)


def typescript(tools: List[Dict[str, Any]]) -> Optional[str]:
    """The declaration of OpenAI tools, or None where TypeScript can't express them."""
    try:
        functions = [
            _function(tool["function"])
            for tool in tools
            if tool.get("type") == "function" and tool.get("function")
        ]
    except (ArithmeticError, AttributeError, LookupError, RecursionError):
        return None
    except (TypeError, ValueError):
        return None
    if not functions:
        return ""
    body = "\n".join(functions)
    return f"# Tools\n\n## functions\nnamespace functions {{\n{body}\n}}\n"
