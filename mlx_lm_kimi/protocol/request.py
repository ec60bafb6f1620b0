"""The body of a chat request -> a typed request.

Source of the fields: OpenAI's API reference, Moonshot's (thinking), and the further
parameters of mlx_lm.server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from . import check, history, messages, tools
from .check import fault, wrong_type

MAX_BODY_BYTES = 64 << 20
MAX_DEPTH = 200
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# What apply_chat_template takes and a request may not set.
_RESERVED = frozenset(
    """add_generation_prompt chat_template continue_final_message conversation documents
    max_length messages padding return_assistant_tokens_mask return_dict return_tensors
    tokenize tokenizer_kwargs tools truncation""".split()
)


@dataclass
class ChatRequest:
    """A valid chat request. None means: the server's default.

    Attributes:
        history: the messages, canonical.
        tools: the request's own tools; all_tools has those of system messages, too.
        template_kwargs: inputs of the chat template (thinking, preserve_thinking, …).
        stop: stop sequences, none of them empty.
        top_logprobs: how many, 0 for none.
    """

    history: history.History
    tools: list[dict[str, Any]]
    all_tools: list[dict[str, Any]]
    tool_choice: tools.ToolChoice
    parallel_tool_calls: bool
    response_format: tools.ResponseFormat | None
    template_kwargs: dict[str, Any]
    stream: bool
    include_usage: bool
    model: str | None
    stop: list[str]
    logprobs: bool
    top_logprobs: int
    logit_bias: dict[int, float] | None
    seed: int | None
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
    draft_model: str | None
    num_draft_tokens: int | None
    adapters: str | None
    role_mapping: dict[str, Any] | None = field(default=None)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def decode_body(
    raw: bytes, *, max_bytes: int = MAX_BODY_BYTES, max_depth: int = MAX_DEPTH
) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        RequestError: over the limit, not UTF-8, not JSON, no object, nested too deep.
    """
    if len(raw) > max_bytes:
        raise fault(None, f"The body is over {max_bytes} bytes: send less.", "too_large")
    too_deep = fault(None, f"The body is nested more than {max_depth} deep.", "too_deep")
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as e:
        raise fault(None, f"The body is not UTF-8: {e}.", "invalid_utf8") from e
    except RecursionError:
        raise too_deep from None
    except ValueError as e:
        raise fault(None, f"The body is not JSON: {e}.", "invalid_json") from e
    if not isinstance(body, dict):
        raise fault(None, f"The body must be a JSON object, not {check.kind(body)}.")
    if _is_deeper(body, max_depth):
        raise too_deep
    return body


def _is_deeper(value: Any, limit: int) -> bool:
    """Whether containers are nested deeper than this; without recursion."""
    level = [value]
    for _ in range(limit + 1):
        inner: list[Any] = []
        for one in level:
            children = one.values() if isinstance(one, dict) else one
            inner += [c for c in children if isinstance(c, (dict, list))]
        if not inner:
            return False
        level = inner
    return True


def _stop(value: Any) -> list[str]:
    if value is None:
        return []
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list):
        raise wrong_type("stop", "a string or an array of strings", value)
    for i, one in enumerate(found):
        if not isinstance(one, str):
            raise wrong_type(f"stop[{i}]", "a string", one)
    return [one for one in found if one]


def _logit_bias(value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong_type("logit_bias", "an object of token id to number", value)
    found = {}
    for key, bias in value.items():
        param = f"logit_bias.{key}"
        try:
            token = int(key)
        except ValueError:
            raise fault(param, "the name must be a token id.") from None
        number = check.number({param: bias}, param)
        if number is None:
            raise wrong_type(param, "a number", bias)
        found[token] = number
    return found


def _include_usage(value: Any) -> bool:
    if value is None:
        return False
    if not isinstance(value, dict):
        raise wrong_type("stream_options", "an object", value)
    usage = value.get("include_usage")
    if usage is not None and not isinstance(usage, bool):
        raise wrong_type("stream_options.include_usage", "true or false", usage)
    return bool(usage)


def _effort(value: Any, param: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    if value not in _EFFORTS:
        raise fault(param, f"{value!r} is unknown: use one of {', '.join(_EFFORTS)}.")
    return value


def _set_effort(kwargs: dict[str, Any], effort: str | None) -> None:
    if effort == "none":
        kwargs["thinking"] = False
    elif effort is not None:
        kwargs["thinking_effort"] = effort


def _thinking(value: Any, kwargs: dict[str, Any]) -> None:
    """Moonshot's `thinking` field: {"type", "keep", "effort"}."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise wrong_type("thinking", 'an object like {"type": "enabled"}', value)
    kind, keep = value.get("type"), value.get("keep")
    if kind not in (None, "enabled", "disabled"):
        raise fault("thinking.type", f'must be "enabled" or "disabled", not {kind!r}.')
    if keep not in (None, "all"):
        raise fault("thinking.keep", f'must be "all" or null, not {keep!r}.')
    _set_effort(kwargs, _effort(value.get("effort"), "thinking.effort"))
    if kind is not None:
        kwargs["thinking"] = kind == "enabled"
    if keep == "all":
        kwargs["preserve_thinking"] = True


def template_kwargs(body: dict[str, Any]) -> dict[str, Any]:
    """Inputs of the chat template; chat_template_kwargs > thinking > reasoning_effort.

    Raises:
        RequestError: a wrong type, an unknown value, or a name that is not to be set.
    """
    kwargs: dict[str, Any] = {}
    _set_effort(kwargs, _effort(body.get("reasoning_effort"), "reasoning_effort"))
    _thinking(body.get("thinking"), kwargs)
    own = body.get("chat_template_kwargs")
    if own is None:
        return kwargs
    if not isinstance(own, dict):
        raise wrong_type("chat_template_kwargs", "an object", own)
    for key, value in own.items():
        param = f"chat_template_kwargs.{key}"
        if key in _RESERVED:
            raise fault(param, "can't be set by a request.")
        switches = ("thinking", "enable_thinking", "preserve_thinking")
        if key in switches and value is not None and not isinstance(value, bool):
            raise wrong_type(param, "true or false", value)
    own = {k: v for k, v in own.items() if v is not None}
    enabled = own.pop("enable_thinking", None)
    if enabled is not None:
        own.setdefault("thinking", enabled)
    return {**kwargs, **own}


def _max_tokens(body: dict[str, Any]) -> int | None:
    limit = check.integer(body, "max_completion_tokens", low=1)
    older = check.integer(body, "max_tokens", low=1)
    return older if limit is None else limit


def _sampling(body: dict[str, Any]) -> dict[str, Any]:
    check.integer(body, "n", low=1, high=1)
    sizes = ("repetition", "presence", "frequency")
    return {
        "max_tokens": _max_tokens(body),
        "temperature": check.number(body, "temperature", 0),
        "top_p": check.number(body, "top_p", 0, 1),
        "top_k": check.integer(body, "top_k", 0),
        "min_p": check.number(body, "min_p", 0, 1),
        "repetition_penalty": check.number(body, "repetition_penalty", 0),
        "presence_penalty": check.number(body, "presence_penalty"),
        "frequency_penalty": check.number(body, "frequency_penalty"),
        **{
            f"{name}_context_size": check.integer(body, f"{name}_context_size", 0)
            for name in sizes
        },
        "xtc_probability": check.number(body, "xtc_probability", 0, 1),
        "xtc_threshold": check.number(body, "xtc_threshold", 0, 1),
        "num_draft_tokens": check.integer(body, "num_draft_tokens", 0),
        "seed": check.integer(body, "seed"),
        "logit_bias": _logit_bias(body.get("logit_bias")),
        "stop": _stop(body.get("stop")),
        "logprobs": check.boolean(body, "logprobs", False),
        "top_logprobs": max(
            0, check.integer(body, "top_logprobs", 0, 20, also=(-1,)) or 0
        ),
    }


def parse_chat_request(body: dict[str, Any]) -> ChatRequest:
    """The typed request; every fault is found before a tokenizer sees it.

    Raises:
        RequestError: names the field (``param``), the reason (``code``) and the fix.
    """
    names: set[str] = set()
    declared = tools.declarations(body.get("tools"), "tools", names)
    plain = messages.messages(body.get("messages"), names)
    dynamic = [tool for m in plain for tool in m.get("tools", ())]
    mapping = body.get("role_mapping")
    if mapping is not None and not isinstance(mapping, dict):
        raise wrong_type("role_mapping", "an object", mapping)
    return ChatRequest(
        history=history.canonical(plain),
        tools=declared,
        all_tools=declared + dynamic,
        tool_choice=tools.tool_choice(body.get("tool_choice"), names),
        parallel_tool_calls=check.boolean(body, "parallel_tool_calls", True),
        response_format=tools.response_format(body.get("response_format")),
        template_kwargs=template_kwargs(body),
        stream=check.boolean(body, "stream", False),
        include_usage=_include_usage(body.get("stream_options")),
        model=check.optional_string(body, "model"),
        draft_model=check.optional_string(body, "draft_model"),
        adapters=check.optional_string(body, "adapters"),
        role_mapping=mapping,
        **_sampling(body),
    )


def refuse_images(request: ChatRequest) -> None:
    """Refuse image parts, for a model without an image processor.

    Raises:
        RequestError: names the first image.
    """
    for i, message in enumerate(request.history.messages):
        if not isinstance(message["content"], list):
            continue
        for j, part in enumerate(message["content"]):
            if part["type"] != "text":
                raise fault(
                    f"messages[{i}].content[{j}]",
                    "this model is served without images: send text only.",
                    "unsupported_content",
                )
