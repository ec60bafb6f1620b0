"""Checks of a request's messages, and their plain form."""

from __future__ import annotations

import json
from typing import Any

from .check import fault, wrong_type
from .tools import declarations

# OpenAI's roles, and the role a template knows.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_TEXT_PARTS = {"text": "text", "input_text": "text", "refusal": "refusal"}
_IMAGE_PARTS = ("image", "image_url", "input_image")
_OPEN, _CLOSE = "<think>", "</think>"


def _content(value: Any, param: str) -> str | list[dict[str, Any]]:
    """Content as a string; as a list of parts only where there are images."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(param, "a string or an array of parts", value)
    parts = [_part(part, f"{param}[{i}]") for i, part in enumerate(value)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Any, param: str) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise wrong_type(param, "an object", part)
    kind = part.get("type")
    if kind in _IMAGE_PARTS:
        return part
    if kind not in _TEXT_PARTS:
        raise fault(f"{param}.type", f'{kind!r} is unknown: use "text".')
    key = _TEXT_PARTS[kind]
    if not isinstance(part.get(key), str):
        code = "missing_required_parameter" if key not in part else "invalid_type"
        raise fault(f"{param}.{key}", "must be a string.", code)
    return {"type": "text", "text": part[key]}


def _arguments(value: Any, param: str) -> str:
    """Strings verbatim, also what is no JSON; null is an empty object."""
    if isinstance(value, str):
        return "{}" if value.strip() == "null" else value
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise wrong_type(param, "a string", value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _call(call: Any, param: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise wrong_type(param, "an object", call)
    if call.get("type") not in (None, "function"):
        raise fault(f"{param}.type", 'must be "function".')
    function = call.get("function")
    if not isinstance(function, dict):
        code = "missing_required_parameter" if function is None else "invalid_type"
        raise fault(f"{param}.function", "must be an object.", code)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        code = "missing_required_parameter" if not name else "invalid_type"
        raise fault(f"{param}.function.name", "must be a string, not empty.", code)
    call_id = call.get("id")
    if call_id is not None and not isinstance(call_id, str):
        raise wrong_type(f"{param}.id", "a string", call_id)
    arguments = _arguments(function.get("arguments"), f"{param}.function.arguments")
    return {
        "id": call_id or "",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _reasoning(message: dict[str, Any], content: Any, param: str) -> tuple[str, Any]:
    """(reasoning, content); content's own think block is split off once."""
    for key in ("reasoning_content", "reasoning"):
        value = message.get(key)
        if value is not None:
            if not isinstance(value, str):
                raise wrong_type(f"{param}.{key}", "a string", value)
            return value, content
    if isinstance(content, str) and content.startswith(_OPEN):
        reasoning, end, rest = content[len(_OPEN) :].partition(_CLOSE)
        if end:
            return reasoning, rest
    return "", content


def _assistant(message: dict[str, Any], plain: dict[str, Any], param: str) -> None:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise wrong_type(f"{param}.tool_calls", "an array", calls)
    reasoning, plain["content"] = _reasoning(message, plain["content"], param)
    if reasoning:
        plain["reasoning_content"] = reasoning
    if calls:
        plain["tool_calls"] = [
            _call(call, f"{param}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]


def _result(message: dict[str, Any], plain: dict[str, Any], param: str) -> None:
    call_id = message.get("tool_call_id")
    if call_id is None:
        raise fault(
            f"{param}.tool_call_id",
            "is missing: a tool message names the call that it answers.",
            "missing_required_parameter",
        )
    if not isinstance(call_id, str):
        raise wrong_type(f"{param}.tool_call_id", "a string", call_id)
    plain["tool_call_id"] = call_id


def _check_required_content(message: dict[str, Any], role: str, param: str) -> None:
    if role == "user" and message.get("content") is None:
        raise fault(
            f"{param}.content",
            "is missing: a user message has content.",
            "missing_required_parameter",
        )


def message(value: Any, param: str, names: set[str]) -> dict[str, Any]:
    """The plain form of one message: role, content and what belongs to the role.

    Args:
        names: of the tools declared so far; a system message may add some.

    Raises:
        RequestError: names the field and the fix.
    """
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    role = value.get("role")
    if role is None:
        raise fault(f"{param}.role", "is missing.", "missing_required_parameter")
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(ROLES)
        raise fault(f"{param}.role", f"{role!r} is unknown: use one of {known}.")
    plain: dict[str, Any] = {"role": ROLES[role]}
    _check_required_content(value, role, param)
    plain["content"] = _content(value.get("content"), f"{param}.content")
    name = value.get("name")
    if name is not None:
        if not isinstance(name, str):
            raise wrong_type(f"{param}.name", "a string", name)
        if name:
            plain["name"] = name
    if role == "assistant":
        _assistant(value, plain, param)
    if role == "tool":
        _result(value, plain, param)
        plain.pop("name", None)  # the call's; it would replace the word "tool"
    if value.get("tools") is not None:
        _dynamic_tools(value, plain, param, names)
    return plain


def _dynamic_tools(
    value: dict[str, Any], plain: dict[str, Any], param: str, names: set[str]
) -> None:
    """Tools that a system message declares from there on."""
    if plain["role"] != "system":
        raise fault(
            f"{param}.tools",
            "only a system message may declare tools: put them there, or into tools.",
        )
    found = declarations(value["tools"], f"{param}.tools", names)
    if found and plain["content"]:
        raise fault(
            f"{param}.content",
            "must be empty where a message declares tools: use two system messages.",
        )
    if found:
        plain["tools"] = found


def messages(value: Any, names: set[str]) -> list[dict[str, Any]]:
    """The plain forms of a request's messages.

    Raises:
        RequestError: no list, empty, or a broken message.
    """
    if value is None:
        raise fault("messages", "is missing.", "missing_required_parameter")
    if not isinstance(value, list):
        raise wrong_type("messages", "an array", value)
    if not value:
        raise fault("messages", "must not be empty.", "empty_array")
    return [message(m, f"messages[{i}]", names) for i, m in enumerate(value)]
