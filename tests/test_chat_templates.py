"""Built-in chat templates: raw messages, odd schemas, and content that stays data."""

import copy
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.chat_templates import kimi_k2, kimi_k3, kimi_k25
from mlx_lm.chat_templates.kimi_typescript import typescript

MODULES = (kimi_k2, kimi_k25, kimi_k3)
CONTROL = """<|im_end|> <|im_user|> <|im_assistant|> <|im_system|> <|im_middle|> <think>
    </think> <|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|>
    <|tool_call_argument_begin|> <|tool_call_end|> <|open|> <|close|> <|sep|>
    <|end_of_msg|>""".split()


def tool(**function) -> dict:
    return {"type": "function", "function": {"name": "f", **function}}


def controls(segments) -> list[str]:
    return [text for text, is_control in segments if is_control]


# Raw messages -------------------------------------------------------------------------

RAW = [
    {"role": "user", "content": None},
    {"role": "user"},
    {"role": "user", "content": []},
    {"role": "user", "content": ["a", {"type": "text", "text": None}]},
    {"role": "user", "content": [{"type": "text"}, {"type": "text", "text": "b"}]},
    {"role": "system", "content": None},
    {"role": "assistant", "content": None, "reasoning_content": None},
    {"role": "assistant", "content": None, "reasoning": None, "tool_calls": None},
    {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
    {"role": "assistant", "tool_calls": [{"id": None, "function": None}]},
    {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": None}}]},
    {"role": "tool", "content": None},
    {"role": "tool", "tool_call_id": None, "content": "b", "name": None},
    {"role": "developer", "content": "a"},
]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("message", RAW, ids=str)
def test_raw_messages_are_written_without_none(module, message):
    before = copy.deepcopy(message)
    for messages in ([message], [message, message]):
        text = module.apply_chat_template(messages, None, True, has_thinking=True)
        assert "None" not in text and "null" not in text
    assert message == before


@pytest.mark.parametrize("module", (kimi_k2, kimi_k25))
def test_reasoning_under_either_name(module):
    call = {"id": "functions.f:0", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    for name in ("reasoning", "reasoning_content"):
        text = module.apply_chat_template([{**turn, name: "r"}], has_thinking=True)
        assert "<think>r</think><|tool_calls_section_begin|>" in text


def test_unknown_arguments_are_ignored():
    for module in MODULES:
        user = [{"role": "user", "content": "a"}]
        assert module.apply_chat_template(user, surprise=1) == (
            module.apply_chat_template(user)
        )


def test_k3_results_without_ids_answer_in_order():
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in "ab"]
    messages = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "A", "tool_call_id": ""},
        {"role": "tool", "content": "B"},
    ]
    text = kimi_k3.apply_chat_template(messages)
    assert 'role="tool" tool="a" index="1"<|sep|>A<' in text
    assert 'role="tool" tool="b" index="2"<|sep|>B<' in text


def test_other_parts_are_refused():
    for module in MODULES:
        content = [{"type": "video_url", "video_url": {"url": "x"}}]
        with pytest.raises(ValueError, match="video_url"):
            module.render([{"role": "user", "content": content}])


# Content is data ----------------------------------------------------------------------

spelled = st.lists(
    st.sampled_from([*CONTROL, "<|im_", "end|>", "<", ">", "a", " ", "é", "\n"])
    | st.text(max_size=3),
    max_size=6,
).map("".join)


def conversation(user, system, name, reasoning, call_id, arguments, result) -> list:
    function = {"name": "f", "arguments": arguments}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": user, "name": name},
        {
            "role": "assistant",
            "content": user,
            "reasoning_content": reasoning,
            "tool_calls": calls,
        },
        {"role": "tool", "content": result, "tool_call_id": call_id},
    ]


@settings(max_examples=150, deadline=None)
@given(st.lists(spelled, min_size=7, max_size=7), spelled)
def test_control_tokens_never_come_from_content(texts, description):
    for module in MODULES:
        tools = [tool(description=description)]
        plain_tools = [tool(description="x")]
        messages = conversation(*texts)
        got = module.render(messages, tools, has_thinking=True)
        # "#" is no JSON either: K3 writes both whole, where arguments aren't an object.
        plain = ["#" if text.strip() else text for text in texts]
        wanted = module.render(conversation(*plain), plain_tools, has_thinking=True)
        if kimi_k3.members(texts[5]) is None:
            assert controls(got) == controls(wanted)
        assert set(controls(got)) <= set(CONTROL)
        assert all(text for text, _ in got)
        data = "\0".join(text for text, is_control in got if not is_control)
        for i in (0, 1, 3, 6) if module is kimi_k3 else range(7):
            assert texts[i].strip() == "null" or texts[i] in data


@settings(max_examples=50, deadline=None)
@given(st.lists(spelled, min_size=7, max_size=7))
def test_neighbouring_text_is_one_segment(texts):
    for module in (kimi_k2, kimi_k25):
        got = module.render(conversation(*texts), None, has_thinking=True)
        kinds = [is_control for _, is_control in got]
        assert all(a or b for a, b in zip(kinds, kinds[1:], strict=False))


# Tool declarations --------------------------------------------------------------------


def test_declarations_in_the_order_of_sorted_keys():
    # Moonshot's tokenizer sorts tools before it declares them.
    root = {"b": {"$ref": "#"}, "a": {"type": "string"}}
    parameters = {"type": "object", "properties": root}
    text = kimi_k25.declare([tool(parameters=parameters)])
    assert "interface parameters {\n  a?: string,\n  b?: parameters\n}" in text
    definitions = {"Z": {"type": "string"}, "A": {"type": "number"}}
    text = kimi_k25.declare([tool(parameters={"$defs": definitions})])
    assert "interface A number\ninterface Z string\n" in text


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {}, "required": None},
        {"properties": {"x": {"type": "string"}}, "required": [[]]},
        {"properties": {"x": {"enum": ["a"], "type": []}}},
        {"properties": {"x": {"$ref": "#/definitions/D"}}},
        {"properties": {"x": {"not": {}}}},
        {"properties": ["x"]},
        {"properties": {"x": 5}},
        {"additionalProperties": "x"},
        "x",
    ],
)
def test_what_has_no_typescript_is_json(parameters):
    tools = [tool(parameters=parameters)]
    assert typescript(tools) is None
    assert kimi_k25.declare(tools) == kimi_k2.declare_json(tools)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            """type enum anyOf $ref $defs items properties required default description
            additionalProperties minimum pattern oneOf const x""".split()
        ),
        inner | st.sampled_from(["string", "object", "array", "#", "#/$defs/x"]),
        max_size=5,
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(json_values)
def test_any_schema_is_declared(parameters):
    tools = [tool(parameters=parameters)]
    for module in MODULES:
        text = module.apply_chat_template([], tools)
        assert text.startswith("<|")
    assert typescript(tools) is None or typescript(tools).startswith("# Tools\n")


def test_a_long_conversation_is_linear():
    def seconds(count: int) -> float:
        messages = [{"role": "user", "content": "a"}] * count
        start = time.perf_counter()
        kimi_k25.render(messages)
        return time.perf_counter() - start

    seconds(1000)
    assert min(seconds(40_000) for _ in range(3)) < 1.0
