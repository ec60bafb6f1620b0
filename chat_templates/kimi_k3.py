# Copyright © 2026 Apple Inc.

"""Chat template of Kimi K3 (XTML).

    <|open|>message role="system" type="tool-declare"<|sep|># Tools …<|close|>message<|sep|><|end_of_msg|>
    <|open|>message role="user"<|sep|>Weather in Oslo?<|close|>message<|sep|><|end_of_msg|>
    <|open|>message role="assistant"<|sep|>
      <|open|>think<|sep|>reasoning<|close|>think<|sep|>
      <|open|>response<|sep|>content<|close|>response<|sep|>
      <|open|>tools<|sep|>
        <|open|>call tool="get_weather" index="1"<|sep|>
          <|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|>
        <|close|>call<|sep|>
      <|close|>tools<|sep|>
    <|close|>message<|sep|><|end_of_msg|>
    <|open|>message role="tool" tool="get_weather" index="1"<|sep|>12 C<|close|>message<|sep|><|end_of_msg|>
    <|open|>message role="assistant"<|sep|><|open|>think<|sep|>

without the line breaks and spaces between the elements. Only attribute values are escaped.
"""

import json
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .kimi_k2 import (
    Segment,
    Writer,
    arguments_of,
    declare_json,
    dump,
    is_thinking,
    reasoning_of,
    text_of,
)

_TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n"
_NEW_TOOLS = (
    "## New Tools Available\n"
    "The system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n"
)
_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not "
    "including the response channel), supported values include `low`, `medium`, `high`, "
    "and `max`.\nNow the system is invoked with `thinking_effort={}`."
)
_REQUIRED = (
    "The system is invoked with `tool_choice=required`.\n"
    "You MUST call tools in the next message."
)
_FORMAT = (
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any "
    "additional formatting."
)
_SCHEMA = "\nThe JSON data must match the following schema:\n"
_TYPES = {str: "string", bool: "boolean", type(None): "null", dict: "object"}
_TYPES.update({list: "array", int: "number", float: "number"})
_SPACE = " \t\r\n"


def _open(write: Writer, tag: str, **attributes: Any):
    write.control("<|open|>")
    write.text(tag)
    for key, value in attributes.items():
        escaped = str(value).replace("&", "&amp;").replace('"', "&quot;")
        write.text(f' {key}="{escaped}"')
    write.control("<|sep|>")


def _close(write: Writer, tag: str):
    write.control("<|close|>")
    write.text(tag)
    write.control("<|sep|>")


def _end(write: Writer):
    _close(write, "message")
    write.control("<|end_of_msg|>")


def _system(write: Writer, kind: str, text: str):
    _open(write, "message", role="system", type=kind)
    write.text(text)
    _end(write)


def _fenced(text: str) -> str:
    return f"```json\n{text}\n```"


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def members(text: str) -> Optional[List[Tuple[str, Any, str]]]:
    """(key, value, the value's own text) of a JSON object, or None if it is none."""
    decode = json.JSONDecoder().raw_decode
    found = []
    try:
        if not isinstance(json.loads(text), dict):
            return None
        at = _skip_space(text, _skip_space(text, 0) + 1)
        while text[at] != "}":
            key, at = decode(text, at)
            at = _skip_space(text, _skip_space(text, at) + 1)
            value, end = decode(text, at)
            found.append((key, value, text[at:end]))
            at = _skip_space(text, end)
            if text[at] == ",":
                at = _skip_space(text, at + 1)
    except (ValueError, RecursionError):
        return None
    return found


def _write_arguments(write: Writer, arguments: str):
    if not arguments.strip():
        return
    found = members(arguments)
    if found is None:
        _open(write, "json", type="object")
        write.text(arguments)
        _close(write, "json")
        return
    for key, value, text in found:
        _open(write, "argument", key=key, type=_TYPES[type(value)])
        write.text(value if isinstance(value, str) else text)
        _close(write, "argument")


def _content(message: Dict[str, Any], write: Writer):
    """Content; each part of a list is encoded apart, as Moonshot's encoder does."""
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        text_of([part] if isinstance(content, list) else part, write)
        write.cut()


def _write_assistant(message: Dict[str, Any], write: Writer, thinking: bool):
    _open(write, "message", role="assistant", **_named(message))
    if thinking:
        _open(write, "think")
        write.text(reasoning_of(message))
        _close(write, "think")
    _open(write, "response")
    _content(message, write)
    _close(write, "response")
    calls = message.get("tool_calls") or []
    if calls:
        _open(write, "tools")
        for index, call in enumerate(calls, 1):
            function = call.get("function") or {}
            _open(write, "call", tool=function.get("name") or "", index=index)
            _write_arguments(write, arguments_of(function))
            _close(write, "call")
        _close(write, "tools")
    _end(write)


def _named(message: Dict[str, Any]) -> Dict[str, str]:
    return {"name": message["name"]} if message.get("name") else {}


def _in_call_order(messages) -> Iterator[Tuple[Dict[str, Any], Tuple[str, int]]]:
    """Messages with, for a result, (tool, index); results in the order of their calls."""
    calls: Dict[str, Tuple[str, int]] = {}
    unnamed: List[Tuple[str, int]] = []  # the last message's calls, by position
    run: List[Tuple[int, Dict[str, Any], Tuple[str, int]]] = []
    for message in messages:
        if message.get("role") == "tool":
            at = len(run)
            default = (message.get("name") or "", at + 1)
            default = unnamed[at] if at < len(unnamed) else default
            answered = calls.get(message.get("tool_call_id") or "", default)
            run.append((answered[1], message, answered))
            continue
        for _, result, answered in sorted(run, key=lambda item: item[0]):
            yield result, answered
        run, unnamed = [], []
        for index, call in enumerate(message.get("tool_calls") or [], 1):
            name = (call.get("function") or {}).get("name") or ""
            unnamed.append((name, index))
            if call.get("id"):
                calls[call["id"]] = (name, index)
        yield message, ("", 0)
    for _, result, answered in sorted(run, key=lambda item: item[0]):
        yield result, answered


def _write_message(message, answered, write: Writer, thinking: bool):
    role = message.get("role")
    if role == "assistant":
        return _write_assistant(message, write, thinking)
    if role == "system" and message.get("tools"):
        text = f"{_NEW_TOOLS}\n{_fenced(declare_json(message['tools']))}"
        return _system(write, "tool-declare", text)
    if role == "tool":
        _open(write, "message", role="tool", tool=answered[0], index=answered[1])
    else:
        _open(write, "message", role=role, **_named(message))
    _content(message, write)
    _end(write)


def _write_format(write: Writer, response_format: Any):
    kind = (response_format or {}).get("type")
    if kind not in ("json_object", "json_schema"):
        return
    text = _FORMAT.format(kind)
    if kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
        text += _SCHEMA + _fenced(dump(schema, sort_keys=True))
    _system(write, "response-format", text)


def render(
    messages: List[Dict[str, Any]],
    tools: Optional[List[Dict[str, Any]]] = None,
    *,
    add_generation_prompt: bool = False,
    thinking: Optional[bool] = None,
    enable_thinking: Optional[bool] = None,
    thinking_effort: Optional[str] = None,
    tool_choice: Any = None,
    response_format: Optional[Dict[str, Any]] = None,
    **kwargs,
) -> List[Segment]:
    """The prompt as segments: text, or one control token each.

    Args:
        messages: OpenAI messages; results are written in the order of their calls.
        tools: OpenAI tools; a system message's ``tools`` are declared where it stands.
        thinking: False leaves the reasoning out. Wins over ``enable_thinking``.
        thinking_effort: what the system says of it: low, medium, high or max.
        tool_choice, response_format: as in a request; said in a message of their own.

    Raises:
        ValueError: a content part is not text.
    """
    thinking = is_thinking(thinking, enable_thinking)
    write = Writer()
    if tools:
        _system(write, "tool-declare", f"{_TOOLS}\n{_fenced(declare_json(tools))}")
    if thinking and thinking_effort:
        _system(write, "thinking-effort", _EFFORT.format(thinking_effort))
    for message, answered in _in_call_order(messages):
        _write_message(message, answered, write, thinking)
    if tool_choice == "required":
        _system(write, "tool-choice", _REQUIRED)
    _write_format(write, response_format)
    if add_generation_prompt:
        _open(write, "message", role="assistant")
        _open(write, "think" if thinking else "response")
    return write.finish()


def apply_chat_template(messages, tools=None, add_generation_prompt=False, **kwargs):
    segments = render(
        messages, tools, add_generation_prompt=add_generation_prompt, **kwargs
    )
    return "".join(text for text, _ in segments)
