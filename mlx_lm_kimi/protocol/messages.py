"""A request's messages, checked and in a plain form.

A plain message has ``role`` (system, user, assistant, tool), ``content`` (a string; a list
of parts only where there are images), and where given ``name``, ``reasoning_content``,
``tool_calls`` (argument strings verbatim), ``tool_call_id`` and ``tools``.
"""

from __future__ import annotations

import json
from typing import Any

from .check import (
    a_string,
    an_object,
    fault,
    missing,
    optional_string,
    shown,
    wrong_type,
)
from .tools import declarations

# OpenAI's roles, and those a template knows.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
MEDIA = ("image_url", "image", "input_image", "video_url", "video", "input_video")
_OPEN, _CLOSE = "<think>", "</think>"

Message = dict[str, Any]


def _content(value: Any, role: str, param: str) -> str | list[dict[str, Any]]:
    """Content as a string; as a list of parts only where there are images."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(param, "a string or an array of parts", value)
    parts = [_part(part, role, f"{param}[{i}]") for i, part in enumerate(value)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Any, role: str, param: str) -> dict[str, Any]:
    an_object(part, param)
    kind = part.get("type")
    if kind is None:
        raise missing(f"{param}.type", 'give the part\'s type, like "text".')
    if kind in MEDIA:
        return part
    if kind != "text" and not (kind == "refusal" and role == "assistant"):
        raise fault(f"{param}.type", f'{shown(kind)} is not supported: use "text".')
    if part.get(kind) is None:
        raise missing(f"{param}.{kind}", "give the part's text.")
    return {"type": "text", "text": a_string(part[kind], f"{param}.{kind}")}


def _arguments(value: Any, param: str) -> str:
    """A string as it is, also one that is no JSON; null is an empty object."""
    if value is None:
        return "{}"
    if isinstance(value, str):
        return "{}" if value.strip() == "null" else value
    an_object(value, param, "a string of JSON")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _function(value: Any, param: str) -> dict[str, str]:
    """The name and the arguments of a call."""
    if value is None:
        raise missing(param, "give an object with name and arguments.")
    an_object(value, param)
    if value.get("name") is None:
        raise missing(f"{param}.name", "give the name of the called tool.")
    name = a_string(value["name"], f"{param}.name")
    if not name:
        raise fault(f"{param}.name", "must not be empty.")
    return {
        "name": name,
        "arguments": _arguments(value.get("arguments"), f"{param}.arguments"),
    }


def _call(call: Any, param: str) -> dict[str, Any]:
    an_object(call, param)
    if call.get("type") not in (None, "function"):
        raise fault(f"{param}.type", f'must be "function", not {shown(call["type"])}.')
    call_id = optional_string(call.get("id"), f"{param}.id")
    function = _function(call.get("function"), f"{param}.function")
    return {"id": call_id or "", "type": "function", "function": function}


def _reasoning(value: Message, content: Any, param: str) -> tuple[str, Any]:
    """(reasoning, content); without a field for it, content's own think block is split."""
    given = [
        optional_string(value.get(key), f"{param}.{key}")
        for key in ("reasoning_content", "reasoning")
    ]
    for reasoning in given:
        if reasoning is not None:
            return reasoning, content
    if isinstance(content, str) and content.startswith(_OPEN):
        reasoning, end, rest = content[len(_OPEN) :].partition(_CLOSE)
        if end:
            return reasoning, rest
    return "", content


def _add_assistant(value: Message, plain: Message, param: str) -> None:
    refusal = optional_string(value.get("refusal"), f"{param}.refusal")
    if value.get("content") is None and refusal:
        plain["content"] = refusal
    reasoning, plain["content"] = _reasoning(value, plain["content"], param)
    if reasoning:
        plain["reasoning_content"] = reasoning
    calls = value.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise wrong_type(f"{param}.tool_calls", "an array", calls)
    if calls:
        plain["tool_calls"] = [
            _call(call, f"{param}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    elif value.get("function_call") is not None:  # before OpenAI had tools
        function = _function(value["function_call"], f"{param}.function_call")
        plain["tool_calls"] = [{"id": "", "type": "function", "function": function}]


def _add_result(value: Message, plain: Message, param: str) -> None:
    if value["role"] == "function":  # OpenAI's older form: a name, and no id
        if plain.pop("name", None) is None:
            raise missing(f"{param}.name", "name the function that this answers.")
        plain["tool_call_id"] = ""
        return
    if value.get("tool_call_id") is None:
        raise missing(
            f"{param}.tool_call_id", "give the id of the call that this answers."
        )
    plain["tool_call_id"] = a_string(value["tool_call_id"], f"{param}.tool_call_id")


def _add_tools(value: Message, plain: Message, param: str, names: set[str]) -> None:
    """The tools that a system message declares from there on."""
    if plain["role"] != "system":
        raise fault(
            f"{param}.tools",
            "may stand in a system message only: put them there or into the request's tools.",
        )
    found = declarations(value["tools"], f"{param}.tools", names)
    if found and plain["content"]:
        raise fault(
            f"{param}.content",
            "must be empty in a message that declares tools: send two system messages.",
        )
    if found:
        plain["tools"] = found


def _role(value: Message, param: str) -> str:
    role = value.get("role")
    if role is None:
        raise missing(f"{param}.role", "give the message's role.")
    if a_string(role, f"{param}.role") not in ROLES:
        known = ", ".join(r for r in ROLES if r != "function")
        raise fault(f"{param}.role", f"{shown(role)} is unknown: use one of {known}.")
    return role


def message(value: Any, param: str, names: set[str]) -> Message:
    """The plain form of one message.

    Args:
        param: its path, for errors.
        names: of the tools declared so far; a system message may add some.

    Raises:
        RequestError: names the field and the fix.
    """
    an_object(value, param)
    role = _role(value, param)
    tools = value.get("tools")
    if value.get("content") is None and (
        role == "user" or (ROLES[role] == "system" and tools is None)
    ):
        raise missing(f"{param}.content", f"a {role} message has content.")
    plain: Message = {
        "role": ROLES[role],
        "content": _content(value.get("content"), role, f"{param}.content"),
    }
    if name := optional_string(value.get("name"), f"{param}.name"):
        plain["name"] = name
    if role == "assistant":
        _add_assistant(value, plain, param)
    elif plain["role"] == "tool":
        _add_result(value, plain, param)
    if tools is not None:
        _add_tools(value, plain, param, names)
    return plain


def messages(value: Any, names: set[str]) -> list[Message]:
    """The plain forms of a request's messages.

    Raises:
        RequestError: no list, empty, or a broken message.
    """
    if value is None:
        raise missing("messages", "give an array of messages.")
    if not isinstance(value, list):
        raise wrong_type("messages", "an array", value)
    if not value:
        raise fault("messages", "must hold at least one message.", "empty_array")
    return [message(m, f"messages[{i}]", names) for i, m in enumerate(value)]
