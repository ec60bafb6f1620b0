"""Tool declarations, tool_choice and response_format."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from .check import (
    a_string,
    an_object,
    fault,
    missing,
    optional_boolean,
    optional_string,
    shown,
    wrong_type,
)

MAX_NAME = 256  # characters
_ASCII_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_LISTED = 10  # names that an error lists


@dataclass(frozen=True)
class ToolChoice:
    """What the request says about calling tools.

    Attributes:
        name: the tool of "function".
        allowed: the names of OpenAI's "allowed_tools", else None.
    """

    mode: Literal["auto", "none", "required", "function"] = "auto"
    name: str | None = None
    allowed: frozenset[str] | None = None


@dataclass(frozen=True)
class ResponseFormat:
    """The form of the content; name, schema and strict are those of "json_schema"."""

    type: Literal["json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool = False


def is_tool_name(name: str) -> bool:
    """Whether a name starts with a letter or _, and holds letters, digits, _ - . only.

    Letters are those of any script, with the marks that belong to them.
    """
    if len(name) > MAX_NAME:
        return False
    if _ASCII_NAME.fullmatch(name):
        return True
    if not name or not (name[0] == "_" or name[0].isalpha()):
        return False
    return all(c in "_-." or unicodedata.category(c)[0] in "LMN" for c in name)


def _check_name(value: Any, param: str) -> None:
    if value is None:
        raise missing(param, "give the tool a name.")
    a_string(value, param)
    if not is_tool_name(value):
        raise fault(
            param,
            f"{shown(value)} is no tool name: start with a letter or _, go on with "
            f"letters, digits, _, - and ., {MAX_NAME} characters at most.",
        )


def _check_schema(value: Any, param: str) -> None:
    """The faults at a schema's top that make it no schema object."""
    an_object(value, param, "a JSON schema object")
    types = value.get("type")
    for one in types if isinstance(types, list) else [types]:
        if one is not None and not isinstance(one, str):
            raise wrong_type(f"{param}.type", "a string or an array of strings", one)
    for key in ("properties", "$defs", "definitions"):
        if value.get(key) is not None:
            an_object(value[key], f"{param}.{key}")
    required = value.get("required")
    if required is None:
        return
    if not isinstance(required, list) or not all(isinstance(r, str) for r in required):
        raise wrong_type(f"{param}.required", "an array of strings", required)


def tool(value: Any, param: str) -> dict[str, Any]:
    """A checked copy of one declaration; null members of the function are absent.

    Raises:
        RequestError: it is not a function with a name and, if any, a schema object.
    """
    an_object(value, param)
    if value.get("type") != "function":
        raise fault(
            f"{param}.type", f'must be "function", not {shown(value.get("type"))}.'
        )
    if value.get("function") is None:
        raise missing(f"{param}.function", "give an object with a name.")
    function = an_object(value["function"], f"{param}.function")
    function = {k: v for k, v in function.items() if v is not None}
    path = f"{param}.function"
    _check_name(function.get("name"), f"{path}.name")
    optional_string(function.get("description"), f"{path}.description")
    if "parameters" in function:
        _check_schema(function["parameters"], f"{path}.parameters")
    optional_boolean(function.get("strict"), f"{path}.strict")
    return {**value, "function": function}


def declarations(value: Any, param: str, names: set[str]) -> list[dict[str, Any]]:
    """Checked declarations; their names are added to those known so far.

    Raises:
        RequestError: no list, a broken tool, or a name that is declared already.
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
                f"{shown(name)} is declared twice: remove one, or rename it.",
                "duplicate_tool",
            )
        names.add(name)
        found.append(checked)
    return found


def _named(value: Any, param: str, names: Collection[str]) -> str:
    """The declared name in {"type": "function", "function": {"name": …}}."""
    an_object(value, param)
    if value.get("type") != "function":
        raise fault(
            f"{param}.type", f'must be "function", not {shown(value.get("type"))}.'
        )
    path = f"{param}.function.name"
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if name is None:
        raise missing(path, "give the tool's name.")
    if a_string(name, path) not in names:
        some = ", ".join(shown(n) for n in sorted(names)[:_LISTED])
        known = f"declared are {some}" if names else "no tools are declared"
        raise fault(path, f"names {shown(name)}, but {known}.", "unknown_tool")
    return name


def _allowed(value: Any, names: Collection[str]) -> ToolChoice:
    """OpenAI's {"mode": "auto" | "required", "tools": [{"type", "function"}, …]}."""
    param = "tool_choice.allowed_tools"
    if value is None:
        raise missing(param, 'give an object with "mode" and "tools".')
    an_object(value, param)
    mode, listed = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required"):
        raise fault(
            f"{param}.mode", f'must be "auto" or "required", not {shown(mode)}.'
        )
    if not isinstance(listed, list):
        raise wrong_type(f"{param}.tools", "an array of tools", listed)
    if not listed:
        raise fault(f"{param}.tools", "must name at least one tool.", "empty_array")
    allowed = {_named(v, f"{param}.tools[{i}]", names) for i, v in enumerate(listed)}
    return ToolChoice(mode, allowed=frozenset(allowed))


def tool_choice(value: Any, names: Collection[str]) -> ToolChoice:
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
                f'{shown(value)} is unknown: use "auto", "none", "required" or '
                '{"type": "function", "function": {"name": …}}.',
            )
        if value == "required" and not names:
            raise fault("tool_choice", '"required" needs tools: declare some in tools.')
        return ToolChoice(value)
    an_object(value, "tool_choice", "a string or an object")
    if value.get("type") == "allowed_tools":
        return _allowed(value.get("allowed_tools"), names)
    return ToolChoice("function", _named(value, "tool_choice", names))


def response_format(value: Any) -> ResponseFormat | None:
    """The request's response_format; None for text.

    Raises:
        RequestError: a wrong type, no name, no schema, or a strict that is no boolean.
    """
    if value is None:
        return None
    an_object(value, "response_format", 'an object like {"type": "json_object"}')
    kind = value.get("type")
    if kind is None:
        raise missing("response_format.type", "give the type of the format.")
    if kind == "text":
        return None
    if kind == "json_object":
        return ResponseFormat("json_object")
    if kind != "json_schema":
        raise fault(
            "response_format.type",
            f'must be "text", "json_object" or "json_schema", not {shown(kind)}.',
        )
    return _json_schema(value.get("json_schema"), "response_format.json_schema")


def _json_schema(value: Any, param: str) -> ResponseFormat:
    if value is None:
        raise missing(param, 'give an object with "name" and "schema".')
    an_object(value, param)
    for key, fix in (("name", "give the format a name."), ("schema", "give a schema.")):
        if value.get(key) is None:
            raise missing(f"{param}.{key}", fix)
    name = a_string(value["name"], f"{param}.name")
    if not name:
        raise fault(f"{param}.name", "must not be empty.")
    _check_schema(value["schema"], f"{param}.schema")
    strict = optional_boolean(value.get("strict"), f"{param}.strict")
    optional_string(value.get("description"), f"{param}.description")
    return ResponseFormat("json_schema", name, value["schema"], bool(strict))
