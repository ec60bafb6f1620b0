"""Thinking switches of a request -> inputs of the chat template.

Sources: Moonshot's API reference (``thinking``), OpenAI's (``reasoning_effort``) and
mlx_lm.server (``chat_template_kwargs``).
"""

from __future__ import annotations

from typing import Any

from .check import a_string, an_object, fault, optional_boolean, shown

# OpenAI's and Moonshot's efforts, as the three that a K3 prompt can hold.
_EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
_SWITCHES = ("thinking", "enable_thinking", "preserve_thinking")
# Arguments of apply_chat_template and of the renderers, which a request may not set.
RESERVED = frozenset(
    """self add_generation_prompt chat_template control_tokens continue_final_message
    conversation conversations documents has_thinking max_length messages padding
    response_format return_assistant_tokens_mask return_dict return_tensors template
    tokenize tokenizer tokenizer_kwargs tool_choice tools tools_ts_str
    truncation""".split()
)


def _effort(value: Any, param: str) -> str | None:
    """ "none", "low", "high" or "max"; None for null and absent."""
    if value is None or value == "none":
        return value
    if a_string(value, param) not in _EFFORTS:
        known = ", ".join(["none", *_EFFORTS])
        raise fault(param, f"{shown(value)} is unknown: use one of {known}.")
    return _EFFORTS[value]


def _thinking_field(value: Any) -> tuple[bool | None, str | None, bool]:
    """(switch, effort, keep) of Moonshot's ``thinking``."""
    if value is None:
        return None, None, False
    an_object(value, "thinking", 'an object like {"type": "enabled"}')
    kind, keep = value.get("type"), value.get("keep")
    if kind not in (None, "enabled", "disabled"):
        raise fault(
            "thinking.type", f'must be "enabled" or "disabled", not {shown(kind)}.'
        )
    if keep not in (None, "all"):
        raise fault("thinking.keep", f'must be "all" or null, not {shown(keep)}.')
    effort = _effort(value.get("effort"), "thinking.effort")
    switch = None if kind is None else kind == "enabled"
    return False if effort == "none" else switch, effort, keep == "all"


def _own(value: Any) -> dict[str, Any]:
    """chat_template_kwargs, with mlx-lm's enable_thinking under the templates' name."""
    if value is None:
        return {}
    own = dict(an_object(value, "chat_template_kwargs"))
    for key in own:
        if key in RESERVED or key.endswith(("_token", "_tokens")):
            raise fault(
                f"chat_template_kwargs.{key}", "can't be set there: leave it out."
            )
    switches = {
        k: optional_boolean(own.pop(k, None), f"chat_template_kwargs.{k}")
        for k in _SWITCHES
    }
    enabled = switches.pop("enable_thinking")
    if switches["thinking"] is None:
        switches["thinking"] = enabled
    return {**own, **{k: v for k, v in switches.items() if v is not None}}


def template_kwargs(body: dict[str, Any]) -> dict[str, Any]:
    """Inputs of the chat template; only those that the request gives.

    ``chat_template_kwargs`` wins over ``thinking``, which wins over ``reasoning_effort``.

    Returns:
        thinking and preserve_thinking (booleans), thinking_effort ("low", "high",
        "max"), and the rest of chat_template_kwargs as it is.

    Raises:
        RequestError: a wrong type, an unknown value, or a name that can't be set.
    """
    general = _effort(body.get("reasoning_effort"), "reasoning_effort")
    switch, effort, keep = _thinking_field(body.get("thinking"))
    if switch is None and effort is None and general == "none":
        switch = False
    effort = effort or general
    found: dict[str, Any] = {}
    if switch is not None:
        found["thinking"] = switch
    if keep:
        found["preserve_thinking"] = True
    own = _own(body.get("chat_template_kwargs"))
    on = own.get("thinking", found.get("thinking", True))
    if on and effort not in (None, "none"):
        found["thinking_effort"] = effort
    return {**found, **own}
