"""The body of a chat request: what is refused, with which field and reason; what is not."""

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_lm_kimi.protocol.body import MAX_BODY_BYTES, decode_body
from mlx_lm_kimi.protocol.errors import RequestError
from mlx_lm_kimi.protocol.request import (
    ChatRequest,
    parse_chat_request,
    refuse_images,
)

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "12"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def call(**changes):
    """A conversation in which the call has other fields (None: the field is missing)."""
    changed = {k: v for k, v in {**CALL, **changes}.items() if v is not None}
    return [USER, {"role": "assistant", "tool_calls": [changed]}]


def error(body) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_chat_request(body)
    return caught.value


def check_error(found: RequestError, param, code):
    assert (found.status, found.param, found.code) == (400, param, code)
    assert found.body() == {
        "error": {
            "message": found.message,
            "type": "invalid_request_error",
            "param": param,
            "code": code,
        }
    }
    assert not param or param in found.message
    assert len(found.message) < 400


def check_fault(body, param, code):
    check_error(error(body), param, code)


# Messages -----------------------------------------------------------------------------

MISSING, TYPE, VALUE = "missing_required_parameter", "invalid_type", "invalid_value"

MESSAGES = [
    (None, "messages", MISSING),
    ("hi", "messages", TYPE),
    ({"role": "user"}, "messages", TYPE),
    ([], "messages", "empty_array"),
    (["hi"], "messages[0]", TYPE),
    ([USER, None], "messages[1]", TYPE),
    ([{"content": "hi"}], "messages[0].role", MISSING),
    ([{"role": None, "content": "hi"}], "messages[0].role", MISSING),
    ([USER, {"role": "narrator", "content": "hi"}], "messages[1].role", VALUE),
    ([{"role": "User", "content": "hi"}], "messages[0].role", VALUE),
    ([{"role": "x" * 100_000, "content": "hi"}], "messages[0].role", VALUE),
    ([{"role": 1, "content": "hi"}], "messages[0].role", TYPE),
    ([{"role": ["user"], "content": "hi"}], "messages[0].role", TYPE),
    ([{"role": "user"}], "messages[0].content", MISSING),
    ([{"role": "user", "content": None}], "messages[0].content", MISSING),
    ([{"role": "system"}, USER], "messages[0].content", MISSING),
    ([{"role": "user", "content": 5}], "messages[0].content", TYPE),
    ([{"role": "user", "content": True}], "messages[0].content", TYPE),
    ([{"role": "user", "content": {"type": "text"}}], "messages[0].content", TYPE),
    ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]", TYPE),
    (
        [{"role": "user", "content": [{"text": "a"}]}],
        "messages[0].content[0].type",
        MISSING,
    ),
    (
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "audio"}],
            }
        ],
        "messages[0].content[1].type",
        VALUE,
    ),
    (
        [{"role": "user", "content": [{"type": ["text"]}]}],
        "messages[0].content[0].type",
        VALUE,
    ),
    (
        [{"role": "user", "content": [{"type": "text"}]}],
        "messages[0].content[0].text",
        MISSING,
    ),
    (
        [{"role": "user", "content": [{"type": "text", "text": 1}]}],
        "messages[0].content[0].text",
        TYPE,
    ),
    (
        [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}],
        "messages[0].content[0].type",
        VALUE,
    ),
    ([{**USER, "name": 5}], "messages[0].name", TYPE),
    ([{"role": "assistant", "content": 1}], "messages[0].content", TYPE),
    ([{"role": "assistant", "refusal": 1}], "messages[0].refusal", TYPE),
    (
        [{"role": "assistant", "reasoning_content": 1}],
        "messages[0].reasoning_content",
        TYPE,
    ),
    ([{"role": "assistant", "reasoning": ["a"]}], "messages[0].reasoning", TYPE),
    (
        [{"role": "assistant", "tool_calls": {"id": "a"}}],
        "messages[0].tool_calls",
        TYPE,
    ),
    ([{"role": "assistant", "tool_calls": ["f"]}], "messages[0].tool_calls[0]", TYPE),
    (call(id=5), "messages[1].tool_calls[0].id", TYPE),
    (call(type="custom"), "messages[1].tool_calls[0].type", VALUE),
    (call(function=None), "messages[1].tool_calls[0].function", MISSING),
    (call(function="f"), "messages[1].tool_calls[0].function", TYPE),
    (call(function={}), "messages[1].tool_calls[0].function.name", MISSING),
    (call(function={"name": ""}), "messages[1].tool_calls[0].function.name", VALUE),
    (call(function={"name": 1}), "messages[1].tool_calls[0].function.name", TYPE),
    (
        call(function={"name": "f", "arguments": [1]}),
        "messages[1].tool_calls[0].function.arguments",
        TYPE,
    ),
    (
        call(function={"name": "f", "arguments": 1}),
        "messages[1].tool_calls[0].function.arguments",
        TYPE,
    ),
    ([USER, {"role": "tool", "content": "12"}], "messages[1].tool_call_id", MISSING),
    ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id", MISSING),
    (
        [USER, CALLING, {**RESULT, "tool_call_id": None}],
        "messages[2].tool_call_id",
        MISSING,
    ),
    ([USER, CALLING, {**RESULT, "tool_call_id": 1}], "messages[2].tool_call_id", TYPE),
    ([USER, RESULT], "messages[1].tool_call_id", "unknown_tool_call"),
    ([RESULT], "messages[0].tool_call_id", "unknown_tool_call"),
    ([USER, RESULT, CALLING], "messages[1].tool_call_id", "unknown_tool_call"),
    (
        [USER, CALLING, {**RESULT, "tool_call_id": "c2"}],
        "messages[2].tool_call_id",
        "unknown_tool_call",
    ),
    (
        [USER, CALLING, {**RESULT, "tool_call_id": "functions.f:7"}],
        "messages[2].tool_call_id",
        "unknown_tool_call",
    ),
    ([USER, CALLING, {**RESULT, "content": {"a": 1}}], "messages[2].content", TYPE),
    ([USER, CALLING, {**RESULT, "content": 12}], "messages[2].content", TYPE),
    ([USER, {"role": "function", "content": "x"}], "messages[1].name", MISSING),
]


@pytest.mark.parametrize("messages, param, code", MESSAGES)
def test_messages_refused(messages, param, code):
    check_fault({"messages": messages}, param, code)


def test_missing_messages():
    check_fault({}, "messages", MISSING)
    check_fault({"prompt": "hi"}, "messages", MISSING)


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b\n"}]

# (messages, the plain form of the last one)
ACCEPTED = [
    ([USER], USER),
    ([{"role": "developer", "content": "x"}], {"role": "system", "content": "x"}),
    ([{"role": "user", "content": PARTS}], {"role": "user", "content": "ab\n"}),
    ([{"role": "user", "content": []}], {"role": "user", "content": ""}),
    ([{**USER, "name": "Ann"}], {**USER, "name": "Ann"}),
    ([{**USER, "name": None, "tools": None, "x": [1], "cache_control": {}}], USER),
    ([{"role": "assistant", "content": None}], {"role": "assistant", "content": ""}),
    ([{"role": "assistant"}], {"role": "assistant", "content": ""}),
    ([{"role": "assistant", "content": "a", "refusal": None, "audio": None}], {"role": "assistant", "content": "a"}),
    ([{"role": "assistant", "content": None, "refusal": "no"}], {"role": "assistant", "content": "no"}),
    ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}], {"role": "assistant", "content": "no"}),
    ([{"role": "assistant", "content": "a", "tool_calls": []}], {"role": "assistant", "content": "a"}),
    ([{"role": "assistant", "content": "a", "tool_calls": None, "function_call": None}], {"role": "assistant", "content": "a"}),
    ([USER, CALLING], {"role": "assistant", "content": "", "tool_calls": [CALL]}),
    (call(type=None), {"role": "assistant", "content": "", "tool_calls": [CALL]}),
    ([USER, CALLING, RESULT], RESULT),
    ([USER, CALLING, {**RESULT, "content": PARTS}], {**RESULT, "content": "ab\n"}),
    ([USER, CALLING, {**RESULT, "content": ""}], {**RESULT, "content": ""}),
    ([USER, CALLING, {**RESULT, "content": []}], {**RESULT, "content": ""}),
    ([USER, CALLING, {**RESULT, "content": None}], {**RESULT, "content": ""}),
    ([USER, CALLING, {"role": "tool", "tool_call_id": "c1"}], {**RESULT, "content": ""}),
    ([USER, CALLING, {**RESULT, "name": "f"}], {**RESULT, "name": "f"}),
    ([{"role": "system", "tools": [], "content": "x"}], {"role": "system", "content": "x"}),
]  # fmt: skip


@pytest.mark.parametrize("messages, plain", ACCEPTED)
def test_messages_accepted(messages, plain):
    sent = json.dumps(messages)
    assert parse_chat_request({"messages": messages}).messages[-1] == plain
    assert json.dumps(messages) == sent, "the request is not changed"


@pytest.mark.parametrize(
    "message, reasoning, content",
    [
        ({"content": "a", "reasoning_content": "r"}, "r", "a"),
        ({"content": "a", "reasoning": "r"}, "r", "a"),
        ({"content": "a", "reasoning_content": "r", "reasoning": "s"}, "r", "a"),
        ({"content": "a", "reasoning_content": None, "reasoning": "s"}, "s", "a"),
        ({"content": "a", "reasoning_content": None, "reasoning": None}, None, "a"),
        ({"content": "a", "reasoning_content": ""}, None, "a"),
        ({"content": "<think>r</think>a"}, "r", "a"),
        ({"content": "<think> r\n</think>\n a "}, " r\n", "\n a "),
        ({"content": "<think></think>a"}, None, "a"),
        ({"content": "<think>r</think>a</think>b<think>c"}, "r", "a</think>b<think>c"),
        ({"content": "<think>r</think><think>s</think>"}, "r", "<think>s</think>"),
        ({"content": "<think>r"}, None, "<think>r"),
        ({"content": "a<think>r</think>"}, None, "a<think>r</think>"),
        ({"content": " <think>r</think>"}, None, " <think>r</think>"),
        ({"content": "<think>x</think>a", "reasoning": "r"}, "r", "<think>x</think>a"),
        ({"content": "<think>x</think>a", "reasoning": None}, "x", "a"),
        ({"content": [{"type": "text", "text": "<think>r</think>a"}]}, "r", "a"),
    ],
)
def test_reasoning(message, reasoning, content):
    messages = [USER, {"role": "assistant", **message}, USER]
    found = parse_chat_request({"messages": messages}).messages[1]
    assert found.get("reasoning_content") == reasoning
    assert found["content"] == content
    assert "reasoning" not in found


def test_a_think_block_of_a_user_is_content():
    user = {"role": "user", "content": "<think>r</think>a"}
    assert parse_chat_request({"messages": [user]}).messages == [user]


@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_images_are_flagged_and_refused_on_demand(role):
    parts = {"content": [{"type": "text", "text": "a"}, IMAGE]}
    message = {"role": role, **parts}
    if role == "tool":
        message["tool_call_id"] = "c1"
    request = parse_chat_request({"messages": [USER, CALLING, message]})
    assert request.has_images
    assert request.messages[2]["content"] == parts["content"]
    with pytest.raises(RequestError) as caught:
        refuse_images(request)
    assert caught.value.param == "messages[2].content[1]"
    assert caught.value.code == "unsupported_content"


def test_text_is_no_image():
    request = parse_chat_request({"messages": [{"role": "user", "content": PARTS}]})
    assert not request.has_images
    refuse_images(request)


# Parameters ---------------------------------------------------------------------------

NUMBERS = """temperature top_p min_p repetition_penalty presence_penalty frequency_penalty
xtc_probability xtc_threshold""".split()
INTEGERS = """top_k repetition_context_size presence_context_size frequency_context_size
num_draft_tokens seed max_tokens max_completion_tokens top_logprobs n""".split()

PARAMETERS = [
    *[(key, bad, key, TYPE) for key in NUMBERS for bad in ("1", True, [1], {})],
    *[(key, bad, key, VALUE) for key in NUMBERS for bad in (math.nan, math.inf, 10**400)],
    *[(key, bad, key, TYPE) for key in INTEGERS for bad in ("1", True, 1.0, [1])],
    ("temperature", -0.1, "temperature", VALUE),
    ("top_p", 1.5, "top_p", VALUE),
    ("top_p", -1, "top_p", VALUE),
    ("min_p", 2, "min_p", VALUE),
    ("repetition_penalty", -1, "repetition_penalty", VALUE),
    ("xtc_probability", 1.1, "xtc_probability", VALUE),
    ("xtc_threshold", -0.1, "xtc_threshold", VALUE),
    ("top_k", -1, "top_k", VALUE),
    ("repetition_context_size", -1, "repetition_context_size", VALUE),
    ("num_draft_tokens", -1, "num_draft_tokens", VALUE),
    ("max_tokens", 0, "max_tokens", VALUE),
    ("max_completion_tokens", -5, "max_completion_tokens", VALUE),
    ("top_logprobs", 21, "top_logprobs", VALUE),
    ("top_logprobs", -2, "top_logprobs", VALUE),
    ("n", 2, "n", VALUE),
    ("n", 0, "n", VALUE),
    ("logprobs", 1, "logprobs", TYPE),
    ("logprobs", "true", "logprobs", TYPE),
    ("stream", "true", "stream", TYPE),
    ("stream", 1, "stream", TYPE),
    ("stream_options", True, "stream_options", TYPE),
    ("stream_options", {"include_usage": 1}, "stream_options.include_usage", TYPE),
    ("parallel_tool_calls", 1, "parallel_tool_calls", TYPE),
    ("model", 5, "model", TYPE),
    ("adapters", {}, "adapters", TYPE),
    ("draft_model", [], "draft_model", TYPE),
    ("role_mapping", "x", "role_mapping", TYPE),
    ("stop", 5, "stop", TYPE),
    ("stop", {"a": 1}, "stop", TYPE),
    ("stop", ["a", 1], "stop[1]", TYPE),
    ("logit_bias", [1], "logit_bias", TYPE),
    ("logit_bias", {"a": 1}, "logit_bias.a", VALUE),
    ("logit_bias", {"-1": 1}, "logit_bias.-1", VALUE),
    ("logit_bias", {"9" * 5000: 1}, "logit_bias.99999999999999999999", VALUE),
    ("logit_bias", {"1": "x"}, "logit_bias.1", TYPE),
    ("logit_bias", {"1": None}, "logit_bias.1", TYPE),
    ("logit_bias", {"1": math.inf}, "logit_bias.1", VALUE),
    ("functions", [{"name": "f"}], "functions", "unsupported_parameter"),
    ("function_call", {"name": "f"}, "function_call", "unsupported_parameter"),
    ("reasoning_effort", "huge", "reasoning_effort", VALUE),
    ("reasoning_effort", 3, "reasoning_effort", TYPE),
    ("thinking", "enabled", "thinking", TYPE),
    ("thinking", True, "thinking", TYPE),
    ("thinking", {"type": "on"}, "thinking.type", VALUE),
    ("thinking", {"type": True}, "thinking.type", VALUE),
    ("thinking", {"type": "enabled", "keep": "some"}, "thinking.keep", VALUE),
    ("thinking", {"type": "enabled", "keep": True}, "thinking.keep", VALUE),
    ("thinking", {"effort": "huge"}, "thinking.effort", VALUE),
    ("thinking", {"effort": 1}, "thinking.effort", TYPE),
    ("chat_template_kwargs", "x", "chat_template_kwargs", TYPE),
    *[
        ("chat_template_kwargs", {key: "no"}, f"chat_template_kwargs.{key}", TYPE)
        for key in ("thinking", "enable_thinking", "preserve_thinking")
    ],
    *[
        ("chat_template_kwargs", {key: False}, f"chat_template_kwargs.{key}", VALUE)
        for key in """messages tools add_generation_prompt tokenize conversation return_dict
        chat_template tools_ts_str has_thinking control_tokens tool_choice""".split()
    ],
]  # fmt: skip


@pytest.mark.parametrize("key, value, param, code", PARAMETERS)
def test_parameters_refused(key, value, param, code):
    check_fault({"messages": [USER], key: value}, param, code)


@pytest.mark.parametrize(
    "given, found",
    [
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 7}, {"max_tokens": 7}),
        ({"max_tokens": 5, "max_completion_tokens": None}, {"max_tokens": 5}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 3.5}, {"temperature": 3.5}),
        ({"top_p": 1, "min_p": 0.5, "top_k": 40}, {"top_p": 1.0, "min_p": 0.5, "top_k": 40}),
        ({"presence_penalty": -2, "frequency_penalty": 2}, {"presence_penalty": -2.0}),
        ({"xtc_probability": 1}, {"xtc_probability": 1.0}),
        ({"n": 1, "seed": -5}, {"seed": -5}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 20}),
        ({"top_logprobs": -1}, {"top_logprobs": 0}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"stop": ["a", "", "b", "c", "d", "e"]}, {"stop": ["a", "b", "c", "d", "e"]}),
        ({"stop": ""}, {"stop": []}),
        ({"logit_bias": {"5": -100, "7": 0.5}}, {"logit_bias": {5: -100.0, 7: 0.5}}),
        ({"stream": True, "stream_options": {}}, {"stream": True, "include_usage": False}),
        ({"stream_options": {"include_usage": None}}, {"include_usage": False}),
        ({"stream_options": {"include_usage": True}}, {"include_usage": True}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"parallel_tool_calls": True}, {"parallel_tool_calls": True}),
        ({"model": "m", "adapters": "a", "draft_model": "d", "num_draft_tokens": 3},
         {"model": "m", "adapters": "a", "draft_model": "d", "num_draft_tokens": 3}),
        ({"role_mapping": {"user": "U: "}}, {"role_mapping": {"user": "U: "}}),
        ({"metadata": {"a": "b"}, "store": True, "user": "u", "service_tier": "auto"}, {}),
        ({"functions": [], "function_call": "none", "anything": {"else": [1]}}, {}),
    ],
)  # fmt: skip
def test_parameters_accepted(given, found):
    request = parse_chat_request({"messages": [USER], **given})
    assert {k: getattr(request, k) for k in found} == found


def test_null_is_absent():
    keys = {key for key, *_ in PARAMETERS} | {"tools", "tool_choice", "response_format"}
    absent = parse_chat_request({"messages": [USER]})
    null = parse_chat_request({"messages": [USER], **dict.fromkeys(keys)})
    absent.body = null.body = {}
    assert absent == null
    assert absent.temperature is absent.max_tokens is absent.seed is None
    assert absent.parallel_tool_calls and not absent.stream and not absent.logprobs


@pytest.mark.parametrize(
    "given, found",
    [
        ({}, {}),
        ({"thinking": {"type": "enabled"}}, {"thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"thinking": False}),
        ({"thinking": {"type": "enabled", "keep": "all"}},
         {"thinking": True, "preserve_thinking": True}),
        ({"thinking": {"type": "enabled", "keep": None}}, {"thinking": True}),
        ({"thinking": {}}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, {"thinking": True}),
        ({"reasoning_effort": "none"}, {"thinking": False}),
        *[({"reasoning_effort": given}, {"thinking_effort": found}) for given, found in [
            ("minimal", "low"), ("low", "low"), ("medium", "high"), ("high", "high"),
            ("xhigh", "max"), ("max", "max")]],
        ({"thinking": {"effort": "low"}, "reasoning_effort": "max"}, {"thinking_effort": "low"}),
        ({"thinking": {"effort": None}, "reasoning_effort": "max"}, {"thinking_effort": "max"}),
        ({"thinking": {"effort": "low"}, "reasoning_effort": "none"}, {"thinking_effort": "low"}),
        ({"thinking": {"effort": "none"}, "reasoning_effort": "max"}, {"thinking": False}),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "none"}, {"thinking": True}),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "max"}, {"thinking": False}),
        ({"chat_template_kwargs": {}}, {}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"thinking": False}),
        ({"chat_template_kwargs": {"thinking": False}}, {"thinking": False}),
        ({"chat_template_kwargs": {"thinking": True, "enable_thinking": False}},
         {"thinking": True}),
        ({"chat_template_kwargs": {"thinking": None, "enable_thinking": False}},
         {"thinking": False}),
        ({"chat_template_kwargs": {"thinking": None}, "thinking": {"type": "disabled"}},
         {"thinking": False}),
        ({"chat_template_kwargs": {"enable_thinking": True}, "thinking": {"type": "disabled"}},
         {"thinking": True}),
        ({"chat_template_kwargs": {"preserve_thinking": False},
          "thinking": {"type": "enabled", "keep": "all"}},
         {"thinking": True, "preserve_thinking": False}),
        ({"chat_template_kwargs": {"thinking_effort": "max"}, "reasoning_effort": "low"},
         {"thinking_effort": "max"}),
        ({"chat_template_kwargs": {"thinking": False}, "reasoning_effort": "low"},
         {"thinking": False}),
        ({"chat_template_kwargs": {"mine": {"a": [1, None]}, "x": None}},
         {"mine": {"a": [1, None]}, "x": None}),
    ],
)  # fmt: skip
def test_template_kwargs(given, found):
    request = parse_chat_request({"messages": [USER], **given})
    assert request.template_kwargs == found


# Bytes --------------------------------------------------------------------------------


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return b'{"a":' + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}"


@pytest.mark.parametrize(
    "raw, code",
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"a": 1,}', "invalid_json"),
        (b"{'a': 1}", "invalid_json"),
        (b'{"a": "\n"}', "invalid_json"),
        (b'{"a": NaN}', "invalid_json"),
        (b'{"a": Infinity}', "invalid_json"),
        (b'{"a": -Infinity}', "invalid_json"),
        (b'{"a": 1e999}', "invalid_json"),
        (b'{"a": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b'{"a": "\xff"}', "invalid_utf8"),
        (b'{"a": "\xed\xa0\x80"}', "invalid_utf8"),
        (b"\xff\xfe{\x00}\x00", "invalid_utf8"),
        (b"[1]", "invalid_type"),
        (b'"a"', "invalid_type"),
        (b"null", "invalid_type"),
        (b"5", "invalid_type"),
        (nested(201), "nested_too_deep"),
        (nested(3000), "nested_too_deep"),
        (nested(3000, b'{"a":', b"}"), "nested_too_deep"),
        (b'{"a": ["\\\\", ' + b"[" * 200 + b"]" * 200 + b"]}", "nested_too_deep"),
        (b'{"a": ["\\"", ' + b"[" * 200 + b"]" * 200 + b"]}", "nested_too_deep"),
        (b"[" * 1_000_000, "nested_too_deep"),
        (b'{"a":' * 1_000_000, "nested_too_deep"),
        (b'{"a": "' + b"\\" * 1_000_001, "invalid_json"),
        (b'"' * 1_000_001, "invalid_json"),
    ],
)
def test_bodies_refused(raw, code):
    start = time.perf_counter()
    with pytest.raises(RequestError) as caught:
        decode_body(raw)
    check_error(caught.value, None, code)
    assert time.perf_counter() - start < 2


def test_a_body_over_the_limit():
    with pytest.raises(RequestError) as caught:
        decode_body(b" " * (MAX_BODY_BYTES + 1))
    check_error(caught.value, None, "body_too_large")
    assert str(MAX_BODY_BYTES) in caught.value.message


def test_limits_of_a_body_are_arguments():
    decode_body(b'{"a": [1]}', max_bytes=10, max_depth=2)
    for limit in ({"max_bytes": 9}, {"max_depth": 1}):
        with pytest.raises(RequestError):
            decode_body(b'{"a": [1]}', **limit)


@pytest.mark.parametrize(
    "raw",
    [
        nested(200),
        nested(200, b'{"a":', b"}"),
        json.dumps({"a": "[" * 5000 + '"\\' + "{" * 5000}).encode(),
        json.dumps({"[{" * 300: ["\\", '"', '\\"[[', "]" * 500, []]}).encode(),
        json.dumps({"a": [[]] * 5000}).encode(),
        json.dumps({"a": ["[", "x", "", "]"] * 500, "b": ["", ["[" * 300]]}).encode(),
        '{"a": "é \\u00e9 \\ud83d\\ude00 😀"}'.encode(),
        b'{"a": 1e10, "b": -0.5, "c": 123456789012345678901234567890, "a": 2}',
    ],
)
def test_bodies_accepted(raw):
    assert decode_body(raw) == json.loads(raw)


def test_lone_surrogates_can_be_encoded():
    body = decode_body(
        b'{"a\\udc00": ["\\ud800", "x\\uDFFFy\\ud83d\\ude00", {"b": "\\\\ud800"}]}'
    )
    assert body == {"a\ufffd": ["\ufffd", "x\ufffdy😀", {"b": "\\ud800"}]}


# Any value ----------------------------------------------------------------------------

WORDS = st.sampled_from(
    """messages role content tools tool_calls tool_call_id function name arguments type id
    parameters tool_choice response_format json_schema schema strict text system user
    assistant tool auto required none f functions.f:0 thinking stop n""".split()
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | WORDS
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=5),
    max_leaves=20,
)
FIELDS = sorted(
    {key for key, *_ in PARAMETERS} | {"tools", "tool_choice", "response_format"}
)


def only_request_errors(function, *args):
    try:
        return function(*args)
    except RequestError as e:
        assert e.status == 400 and e.message and e.code
        json.dumps(e.body()).encode()
        return None


@given(VALUES)
def test_any_value_is_a_request_or_an_error(value):
    body = only_request_errors(decode_body, json.dumps(value).encode())
    if body is not None:
        found = only_request_errors(parse_chat_request, body)
        assert found is None or isinstance(found, ChatRequest)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3), VALUES)
def test_any_field_is_read_or_refused(fields, message):
    messages = [USER, message] if isinstance(message, dict) else [USER]
    found = only_request_errors(parse_chat_request, {"messages": messages, **fields})
    assert found is None or isinstance(found, ChatRequest)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(
                    ["system", "user", "assistant", "tool", "function"]
                )
            },
            optional={
                "content": VALUES,
                "name": VALUES,
                "tool_calls": VALUES,
                "tool_call_id": VALUES,
                "reasoning": VALUES,
                "function_call": VALUES,
                "tools": VALUES,
            },
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_message_is_read_or_refused(messages):
    found = only_request_errors(parse_chat_request, {"messages": messages})
    assert found is None or isinstance(found, ChatRequest)


@given(st.binary(max_size=40) | st.text('[]{}":,\\1a ', max_size=40).map(str.encode))
@settings(max_examples=300)
def test_any_bytes_are_an_object_or_an_error(raw):
    found = only_request_errors(decode_body, raw)
    assert found is None or isinstance(found, dict)


@given(VALUES)
def test_depth_is_counted_as_json_has_it(value):
    def depth(v):
        inner = v.values() if isinstance(v, dict) else v
        nested = isinstance(v, (dict, list))
        return 1 + max(map(depth, inner), default=0) if nested else 0

    value = {"a": json.loads(json.dumps(value), parse_constant=str)}
    raw = json.dumps(value).encode()
    decode_body(raw, max_depth=depth(value))
    with pytest.raises(RequestError) as caught:
        decode_body(raw, max_depth=depth(value) - 1)
    assert caught.value.code == "nested_too_deep"
