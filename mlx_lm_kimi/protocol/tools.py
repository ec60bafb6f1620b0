"""Tool declarations, tool_choice and response_format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import regex

from .check import fault, kind, wrong_type

MAX_NAME = 256  # characters
_NAME = regex.compile(r"[\p{L}_][\p{L}\p{M}\p{N}_.\-]*")


@dataclass(frozen=True)
class ToolChoice:
    """What the request says about calling tools; name is set for "function" only."""

    mode: Literal["auto", "none", "required", "function"] = "auto"
    name: str | None = None


@dataclass(frozen=True)
class ResponseFormat:
    """The form of the content; schema is set for "json_schema" only."""

    type: Literal["json_object", "json_schema"]
    schema: Any = None
    name: str | None = None
    strict: bool = False


def _name(value: Any, param: str) -> str:
    if value is None or value == "":
        raise fault(param, "a tool needs a name.", "missing_required_parameter")
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    if len(value) > MAX_NAME:
        raise fault(param, f"must be at most {MAX_NAME} characters.")
    if not _NAME.fullmatch(value):
        raise fault(
            param,
            f"{value!r} is no tool name: start with a letter or _, and go on with "
            "letters, digits, _, - or '.'.",
        )
    return value


def _function(tool: Any, param: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise wrong_type(param, "an object", tool)
    if tool.get("type") != "function":
        raise fault(
            f"{param}.type",
            f'must be "function", not {tool.get("type")!r}: only functions are supported.',
        )
    function = tool.get("function")
    if not isinstance(function, dict):
        code = "missing_required_parameter" if function is None else "invalid_type"
        raise fault(f"{param}.function", "must be an object.", code)
    return function


def tool(value: Any, param: str) -> dict[str, Any]:
    """A checked copy of one declaration, without null members.

    Raises:
        RequestError: it is not a function with a name and, if any, a schema object.
    """
    function = _function(value, param)
    _name(function.get("name"), f"{param}.function.name")
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise wrong_type(f"{param}.function.description", "a string", description)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong_type(
            f"{param}.function.parameters", "a JSON schema object", parameters
        )
    if parameters is not None:
        _schema(parameters, f"{param}.function.parameters")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise wrong_type(f"{param}.function.strict", "true or false", strict)
    function = {k: v for k, v in function.items() if v is not None}
    return {**value, "function": function}


_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}


def _schema(schema: dict[str, Any], param: str) -> None:
    """The faults of a schema's top that make it no schema at all."""
    types = schema.get("type")
    if types is not None:
        listed = types if isinstance(types, list) else [types]
        if not all(isinstance(t, str) and t in _TYPES for t in listed):
            raise fault(f"{param}.type", f"{types!r} is not a JSON schema type.")
    for key in ("properties", "$defs", "definitions"):
        if key in schema and not isinstance(schema[key], dict):
            raise wrong_type(f"{param}.{key}", "an object", schema[key])
    required = schema.get("required")
    if required is not None and not (
        isinstance(required, list) and all(isinstance(r, str) for r in required)
    ):
        raise fault(f"{param}.required", "must be an array of strings.", "invalid_type")


def declarations(value: Any, param: str, names: set[str]) -> list[dict[str, Any]]:
    """Checked declarations; their names are added to those known so far.

    Raises:
        RequestError: not a list, a broken tool, or a name that is declared already.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong_type(param, "an array of tools", value)
    found = []
    for i, item in enumerate(value):
        checked = tool(item, f"{param}[{i}]")
        name = checked["function"]["name"]
        if name in names:
            raise fault(
                f"{param}[{i}].function.name",
                f"the tool {name!r} is declared twice: remove one.",
                "duplicate_tool",
            )
        names.add(name)
        found.append(checked)
    return found


def tool_choice(value: Any, names: set[str]) -> ToolChoice:
    """The request's tool_choice, given the names of all declared tools.

    Raises:
        RequestError: it is unknown, forced without tools, or names no declared tool.
    """
    if value is None:
        return ToolChoice()
    if isinstance(value, str):
        if value not in ("auto", "none", "required"):
            raise fault(
                "tool_choice",
                f'{value!r} is unknown: use "auto", "none", "required" or '
                '{"type": "function", "function": {"name": …}}.',
            )
        if value == "required" and not names:
            raise fault("tool_choice", '"required" needs tools: declare some in tools.')
        return ToolChoice(value)
    if not isinstance(value, dict):
        raise wrong_type("tool_choice", "a string or an object", value)
    if value.get("type") != "function":
        raise fault("tool_choice.type", f'must be "function", not {value.get("type")!r}.')
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise fault(
            "tool_choice.function.name",
            f"must be a string, not {kind(name)}.",
            "missing_required_parameter" if name is None else "invalid_type",
        )
    if name not in names:
        known = ", ".join(sorted(names)) or "none"
        raise fault(
            "tool_choice.function.name",
            f"no tool {name!r} is declared (declared: {known}).",
            "unknown_tool",
        )
    return ToolChoice("function", name)


def response_format(value: Any) -> ResponseFormat | None:
    """The request's response_format; None for text.

    Raises:
        RequestError: a wrong type, no name, no schema, or a strict that is no boolean.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong_type("response_format", "an object", value)
    format_type = value.get("type")
    if format_type == "text":
        return None
    if format_type == "json_object":
        return ResponseFormat("json_object")
    if format_type != "json_schema":
        raise fault(
            "response_format.type",
            f'must be "text", "json_object" or "json_schema", not {format_type!r}.',
        )
    return _json_schema(value.get("json_schema"))


def _json_schema(value: Any) -> ResponseFormat:
    param = "response_format.json_schema"
    if not isinstance(value, dict):
        code = "missing_required_parameter" if value is None else "invalid_type"
        raise fault(param, "must be an object with name and schema.", code)
    name = value.get("name")
    if not isinstance(name, str) or not name:
        code = "missing_required_parameter" if not name else "invalid_type"
        raise fault(f"{param}.name", "must be a string that is not empty.", code)
    if "schema" not in value or value["schema"] is None:
        raise fault(f"{param}.schema", "is missing.", "missing_required_parameter")
    if not isinstance(value["schema"], dict):
        raise wrong_type(f"{param}.schema", "a JSON schema object", value["schema"])
    _schema(value["schema"], f"{param}.schema")
    strict = value.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise wrong_type(f"{param}.strict", "true or false", strict)
    return ResponseFormat("json_schema", value["schema"], name, bool(strict))
