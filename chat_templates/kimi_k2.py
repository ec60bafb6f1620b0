# Copyright © 2026 Apple Inc.

"""Chat template of Kimi K2 Instruct and Thinking.

    <|im_system|>tool_declare<|im_middle|>[{"function":{…},"type":"function"}]<|im_end|>
    <|im_system|>system<|im_middle|>You are Kimi, …<|im_end|>
    <|im_user|>user<|im_middle|>What is the weather in Oslo?<|im_end|>
    <|im_assistant|>assistant<|im_middle|><think>reasoning</think>content
      <|tool_calls_section_begin|>
        <|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city":"Oslo"}<|tool_call_end|>
      <|tool_calls_section_end|><|im_end|>
    <|im_system|>tool<|im_middle|>## Return of functions.get_weather:0\n12 C<|im_end|>
    <|im_assistant|>assistant<|im_middle|>

without the spaces and newlines between the tokens. K2 Instruct has no think block.
"""

import json
from typing import Any, Dict, List, Optional, Tuple

Segment = Tuple[str, bool]  # text, whether it is a control token

DEFAULT_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."
_ROLE_TOKENS = {"user": "<|im_user|>", "assistant": "<|im_assistant|>"}


class Writer:
    """Collects the segments of a prompt; text is never read as a control token."""

    def __init__(self):
        self.segments: List[Segment] = []
        self._run: List[str] = []

    def text(self, text: str):
        if text:
            self._run.append(text)

    def control(self, *tokens: str):
        self._flush()
        self.segments.extend((token, True) for token in tokens)

    def cut(self):
        """End a text segment: what follows is encoded apart."""
        self._flush()

    def _flush(self):
        if self._run:
            self.segments.append(("".join(self._run), False))
            self._run = []

    def finish(self) -> List[Segment]:
        self._flush()
        return self.segments


def dump(value: Any, **kwargs) -> str:
    """Compact JSON, non-ASCII text as it is; raises ValueError if nested too deep."""
    kwargs = {"ensure_ascii": False, "separators": (",", ":"), **kwargs}
    try:
        return json.dumps(value, default=str, **kwargs)
    except RecursionError:
        raise ValueError("A tool or message is nested too deep.") from None


def sorted_keys(value: Any) -> Any:
    """The value with sorted keys at every level; raises ValueError if nested too deep."""
    try:
        if isinstance(value, dict):
            return {k: sorted_keys(value[k]) for k in sorted(value)}
        if isinstance(value, list):
            return [sorted_keys(item) for item in value]
        return value
    except RecursionError:
        raise ValueError("A tool or message is nested too deep.") from None


def text_of(content: Any, write: Writer, part=None):
    """Write content: a string, null, or a list of text parts."""
    if isinstance(content, str):
        write.text(content)
    elif isinstance(content, list):
        for item in content:
            if isinstance(item, str):
                write.text(item)
            elif isinstance(item, dict) and isinstance(item.get("text"), str):
                write.text(item["text"])
            elif isinstance(item, dict) and item.get("type") == "text":
                text_of(item.get("text"), write)
            elif part is None or not part(item, write):
                kind = item.get("type") if isinstance(item, dict) else type(item)
                raise ValueError(f"This model reads only text, not {kind}.")
    elif content is not None:
        write.text(dump(content))


def reasoning_of(message: Dict[str, Any]) -> str:
    for key in ("reasoning_content", "reasoning"):
        if isinstance(message.get(key), str):
            return message[key]
    return ""


def arguments_of(function: Dict[str, Any]) -> str:
    """Argument strings verbatim, also those that are no JSON; an object as JSON."""
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        return "{}" if arguments.strip() == "null" else arguments
    return dump({} if arguments is None else arguments)


def write_calls(message: Dict[str, Any], write: Writer):
    calls = message.get("tool_calls") or []
    if not calls:
        return
    write.control("<|tool_calls_section_begin|>")
    for call in calls:
        function = call.get("function") or {}
        write.control("<|tool_call_begin|>")
        write.text(str(call.get("id") or function.get("name") or ""))
        write.control("<|tool_call_argument_begin|>")
        write.text(arguments_of(function))
        write.control("<|tool_call_end|>")
    write.control("<|tool_calls_section_end|>")


def is_thinking(thinking: Optional[bool], enable_thinking: Optional[bool]) -> bool:
    """Whether the model may think: by either name, ``thinking`` wins, else yes."""
    if thinking is None:
        thinking = enable_thinking
    return thinking is None or bool(thinking)


def first_answer(messages: List[Dict[str, Any]]) -> int:
    """The index of the first assistant message without tool calls, or -1.

    The published templates look for the last one, but their loop finds the first.
    """
    for i, message in enumerate(messages):
        if message.get("role") == "assistant" and not message.get("tool_calls"):
            return i
    return -1


def write_message(
    message: Dict[str, Any],
    write: Writer,
    *,
    reasoning: Optional[str],
    declare,
    part=None,
):
    """Write one message; reasoning is None where the model has no think block."""
    role = message.get("role")
    if role == "system" and message.get("tools"):
        return write_tools(message["tools"], write, declare)
    write.control(_ROLE_TOKENS.get(role, "<|im_system|>"))
    write.text(str(message.get("name") or role or ""))
    write.control("<|im_middle|>")
    if role == "tool":
        write.text(f"## Return of {message.get('tool_call_id') or ''}\n")
    if role == "assistant" and reasoning is not None:
        write.control("<think>")
        write.text(reasoning)
        write.control("</think>")
    text_of(message.get("content"), write, part)
    if role == "assistant":
        write_calls(message, write)
    write.control("<|im_end|>")


def write_messages(
    messages, write: Writer, *, has_thinking, thinking, preserve, declare, part=None
):
    """Write all; of the reasoning what follows the first answer, or all of it."""
    after = -1 if preserve else first_answer(messages)
    for i, message in enumerate(messages):
        reasoning = None
        if has_thinking:
            shown = thinking and i > after
            reasoning = reasoning_of(message) if shown else ""
        write_message(message, write, reasoning=reasoning, declare=declare, part=part)


def declare_json(tools: List[Dict[str, Any]]) -> str:
    """The tools as compact JSON with keys sorted at every level."""
    return dump(tools, sort_keys=True)


def write_system(word: str, text: str, write: Writer):
    """Write a message of the system's side; word stands in the place of the role."""
    write.control("<|im_system|>")
    write.text(word)
    write.control("<|im_middle|>")
    write.text(text)
    write.control("<|im_end|>")


def write_tools(tools, write: Writer, declare):
    if tools:
        write_system("tool_declare", declare(tools), write)


def render(
    messages: List[Dict[str, Any]],
    tools: Optional[List[Dict[str, Any]]] = None,
    *,
    add_generation_prompt: bool = False,
    thinking: Optional[bool] = None,
    enable_thinking: Optional[bool] = None,
    has_thinking: Optional[bool] = None,
    preserve_thinking: bool = False,
    **kwargs,
) -> List[Segment]:
    """The prompt as segments: text, or one control token each.

    Args:
        messages: OpenAI messages; argument strings are written verbatim.
        tools: OpenAI tools; a system message's ``tools`` are declared where it stands.
        thinking: False leaves every think block empty, and closes that of the answer.
            Wins over ``enable_thinking``, mlx-lm's name.
        has_thinking: whether the vocabulary names ``<think>`` (K2 Thinking); by default
            what ``enable_thinking`` says, which mlx-lm sets so.
        preserve_thinking: keep also the reasoning up to the first answer.

    Raises:
        ValueError: a content part is not text.
    """
    if has_thinking is None:
        has_thinking = bool(enable_thinking)
    thinking = is_thinking(thinking, enable_thinking)
    write = Writer()
    write_tools(tools, write, declare_json)
    if not messages or messages[0].get("role") != "system":
        write_system("system", DEFAULT_SYSTEM, write)
    write_messages(
        messages,
        write,
        has_thinking=has_thinking,
        thinking=thinking,
        preserve=preserve_thinking,
        declare=declare_json,
    )
    if add_generation_prompt:
        write.control("<|im_assistant|>")
        write.text("assistant")
        write.control("<|im_middle|>")
        if has_thinking and not thinking:
            write.control("<think>", "</think>")
    return write.finish()


def apply_chat_template(messages, tools=None, add_generation_prompt=False, **kwargs):
    segments = render(
        messages, tools, add_generation_prompt=add_generation_prompt, **kwargs
    )
    return "".join(text for text, _ in segments)
