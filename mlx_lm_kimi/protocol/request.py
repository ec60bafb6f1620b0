"""The body of a chat request -> a typed request.

Source of the fields: OpenAI's API reference, Moonshot's (thinking, dynamic tools), and the
further parameters of mlx_lm.server. Unknown fields are accepted, and null is absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import history, messages, tools
from .body import MAX_BODY_BYTES, MAX_DEPTH, decode_body
from .check import an_object, fault, optional_boolean, optional_string
from .sampling import sampling
from .thinking import template_kwargs

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_DEPTH",
    "ChatRequest",
    "decode_body",
    "parse_chat_request",
    "refuse_images",
]


@dataclass
class ChatRequest:
    """A valid chat request. None means: the server's default.

    Attributes:
        messages: plain messages (see messages.py), as the client ordered and named them.
        history: the same as a prompt shows them (see history.py).
        tools: the request's own tools, which stand first in the prompt.
        all_tools: those that may be called: also those of system messages; where
            tool_choice allows some tools only, those.
        template_kwargs: inputs of the chat template (thinking, preserve_thinking, …).
        stop: stop sequences, none of them empty.
        top_logprobs: how many, 0 for none.
        has_images: whether a message has parts that are not text.
        body: the request as it was sent.
    """

    messages: list[dict[str, Any]]
    history: history.CanonicalHistory
    tools: list[dict[str, Any]]
    all_tools: list[dict[str, Any]]
    tool_choice: tools.ToolChoice
    parallel_tool_calls: bool
    response_format: tools.ResponseFormat | None
    template_kwargs: dict[str, Any]
    stream: bool
    include_usage: bool
    model: str | None
    draft_model: str | None
    adapters: str | None
    role_mapping: dict[str, Any] | None
    has_images: bool
    body: dict[str, Any]
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    repetition_context_size: int | None
    presence_penalty: float | None
    presence_context_size: int | None
    frequency_penalty: float | None
    frequency_context_size: int | None
    xtc_probability: float | None
    xtc_threshold: float | None
    num_draft_tokens: int | None
    seed: int | None
    stop: list[str]
    logprobs: bool
    top_logprobs: int
    logit_bias: dict[int, float] | None


def _include_usage(value: Any) -> bool:
    if value is None:
        return False
    an_object(value, "stream_options")
    param = "stream_options.include_usage"
    return optional_boolean(value.get("include_usage"), param) or False


def _refuse_functions(body: dict[str, Any]) -> None:
    """OpenAI's fields before it had tools: without a word, the tools would be lost."""
    for key, newer in (("functions", "tools"), ("function_call", "tool_choice")):
        if body.get(key) not in (None, [], "none", "auto"):
            raise fault(key, f"is not supported: use {newer}.", "unsupported_parameter")


def _callable(
    found: list[dict[str, Any]], choice: tools.ToolChoice
) -> list[dict[str, Any]]:
    allowed = choice.allowed
    if allowed is None:
        return found
    return [tool for tool in found if tool["function"]["name"] in allowed]


def _flags(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a plain type."""
    mapping = body.get("role_mapping")
    if mapping is not None:
        an_object(mapping, "role_mapping")
    names = ("model", "draft_model", "adapters")
    parallel = optional_boolean(body.get("parallel_tool_calls"), "parallel_tool_calls")
    return {
        **{name: optional_string(body.get(name), name) for name in names},
        "role_mapping": mapping,
        "parallel_tool_calls": parallel is not False,
        "stream": optional_boolean(body.get("stream"), "stream") or False,
        "include_usage": _include_usage(body.get("stream_options")),
    }


def parse_chat_request(
    body: dict[str, Any], *, style: history.Style = "kimi_k2"
) -> ChatRequest:
    """The typed request; every fault is found before a tokenizer sees it.

    Args:
        body: see decode_body.
        style: how the model's prompts show tool calls (see history.canonical).

    Raises:
        RequestError: names the field (``param``), the reason (``code``) and the fix.
    """
    if not isinstance(body, dict):
        raise fault(None, "The body must be a JSON object.", "invalid_type")
    names: set[str] = set()
    declared = tools.declarations(body.get("tools"), "tools", names)
    plain = messages.messages(body.get("messages"), names)
    dynamic = [tool for m in plain for tool in m.get("tools", ())]
    choice = tools.tool_choice(body.get("tool_choice"), names)
    _refuse_functions(body)
    return ChatRequest(
        messages=plain,
        history=history.canonical(plain, style=style),
        tools=declared,
        all_tools=_callable(declared + dynamic, choice),
        tool_choice=choice,
        response_format=tools.response_format(body.get("response_format")),
        template_kwargs=template_kwargs(body),
        has_images=any(isinstance(m["content"], list) for m in plain),
        body=body,
        **_flags(body),
        **sampling(body),
    )


def refuse_images(request: ChatRequest) -> None:
    """Refuse what is not text, for a model without a processor for it.

    Raises:
        RequestError: names the first such part.
    """
    for i, message in enumerate(request.messages):
        if not isinstance(message["content"], list):
            continue
        for j, part in enumerate(message["content"]):
            if part["type"] != "text":
                raise fault(
                    f"messages[{i}].content[{j}]",
                    f"is of type {part['type']}, and this model reads only text: leave "
                    "the part out.",
                    "unsupported_content",
                )
