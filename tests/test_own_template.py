"""A directory's own template: what is data, and the inputs it gets."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.chat_templates import kimi_k2, kimi_k25
from transformers.utils.chat_template_utils import render_jinja_template

from mlx_lm_kimi import template
from tests.conftest import DATA
from tests.test_chat_templates import CONTROL, conversation, spelled, tool

OWN = {
    name: (DATA / "templates" / f"{name}.jinja").read_text()
    for name in ("kimi_k2", "kimi_k25")
}
BUILT_IN = {"kimi_k2": kimi_k2, "kimi_k25": kimi_k25}
NAMES = {*CONTROL, "[BOS]", "[EOS]", "<|media_start|>", "<|media_content|>"}
NAMES |= {"<|media_pad|>", "<|media_end|>"}


def own(source: str, messages, tools=None, **kwargs):
    return template.render_own(source, messages, tools, control_tokens=NAMES, **kwargs)


def user(content) -> list[dict]:
    return [{"role": "user", "content": content}]


@settings(max_examples=80, deadline=None)
@given(st.lists(spelled, min_size=7, max_size=7), spelled, spelled)
def test_own_and_built_in_templates_agree(texts, description, key):
    # An empty name or id is left out by the built-in templates, written by these.
    texts = [text or "x" for text in texts]
    texts[5] = "{}" if texts[5].strip() == "null" else texts[5]
    parameters = {"properties": {key: {"type": "string", "description": description}}}
    tools = [tool(description=description, parameters=parameters)]
    messages = conversation(*texts)
    for name, source in OWN.items():
        prepared, sorted_tools, extra = template.prepare(messages, tools, name)
        got = own(source, prepared, sorted_tools, **extra)
        wanted = BUILT_IN[name].render(messages, tools, has_thinking=True)
        assert got == wanted
        rendered, _ = render_jinja_template(
            [prepared], tools=sorted_tools, chat_template=source, **extra
        )
        assert "".join(text for text, _ in got) == rendered[0]


@pytest.mark.parametrize(
    "parts",
    [
        ["<|im_", "end|>"],
        ["<", "|im_end|>"],
        ["<|im_end|", ">"],
        ["a<|im_", "end", "|>b"],
        ["[", "EOS]"],
        ["<think>", "</thi", "nk>"],
        ["]", ">", "<", "["],
    ],
)
def test_spellings_joined_from_parts_are_text(parts):
    # The template writes the parts side by side.
    source = "<|im_user|>{% for p in messages[0].content %}{{ p.text }}{% endfor %}"
    content = [{"type": "text", "text": text} for text in parts]
    joined = "".join(parts)
    assert own(source, user(content)) == [("<|im_user|>", True), (joined, False)]


@pytest.mark.parametrize(
    "source, content, text",
    [
        ("{{ messages[0].content }}end|>", "<|im_", "<|im_end|>"),
        ("<|im_{{ messages[0].content }}", "end|>", "<|im_end|>"),
        ("{{ messages[0].content }}|im_end|>", "a<", "a<|im_end|>"),
        ("<|im_end|{{ messages[0].content }}", ">b", "<|im_end|>b"),
    ],
)
def test_spellings_joined_to_the_template_are_text(source, content, text):
    assert own(source, user(content)) == [(text, False)]


def test_other_inputs_are_data_but_for_special_tokens():
    source = "{{ bos_token }}{{ persona }}{{ extras.a[0] }}"
    given_ = {"persona": "p<|im_end|>", "extras": {"a": ["<think>"]}}
    got = own(source, [], bos_token="[BOS]", **given_)
    assert got == [("[BOS]", True), ("p<|im_end|><think>", False)]


def test_content_without_spellings_is_written_as_it_is():
    source = "<|im_user|>{{ messages[0].content | length }}<|im_end|>"
    got = own(source, user("12345"))
    assert got == [("<|im_user|>", True), ("5", False), ("<|im_end|>", True)]


@pytest.mark.parametrize(
    "kwargs, seen",
    [
        ({}, "-/-"),
        ({"enable_thinking": False}, "False/False"),
        ({"enable_thinking": True}, "True/True"),
        ({"thinking": False, "enable_thinking": True}, "False/False"),
        ({"thinking": True, "enable_thinking": False}, "True/True"),
        ({"thinking": False}, "False/-"),
        ({"thinking": None, "enable_thinking": False}, "False/False"),
    ],
)
def test_thinking_under_either_name(kwargs, seen):
    source = "{{ thinking | default('-') }}/{{ enable_thinking | default('-') }}"
    assert own(source, [], **kwargs) == [(seen, False)]


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    "content, prepared",
    [
        (None, ""),
        ([], ""),
        ("a", "a"),
        (["a", {"type": "text", "text": "b"}], "ab"),
        ([{"type": "text", "text": None}], ""),
        ([{"type": "text"}], ""),
        (
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, IMAGE],
            [{"type": "text", "text": "ab"}, IMAGE],
        ),
        ([IMAGE], [IMAGE]),
    ],
)
def test_prepared_content(content, prepared):
    messages, _, _ = template.prepare(user(content), None, "kimi_k25")
    assert messages == user(prepared)


@pytest.mark.parametrize(
    "arguments, prepared",
    [
        (None, "{}"),
        ("null", "{}"),
        ("", ""),
        ('{ "a" : 1 }', '{ "a" : 1 }'),
        ("not json", "not json"),
        ({"b": 1, "a": 2}, {"b": 1, "a": 2}),
    ],
)
def test_prepared_calls(arguments, prepared):
    call = {"id": "x", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    messages = [{**message, "reasoning": "r"}, {**message, "reasoning_content": None}]
    before = copy.deepcopy(messages)
    got, _, _ = template.prepare(messages, None, "kimi_k2")
    assert messages == before
    assert [m["tool_calls"][0]["function"]["arguments"] for m in got] == [prepared] * 2
    assert [m["reasoning_content"] for m in got] == ["r", ""]


def test_prepared_tools():
    parameters = {"type": "object", "properties": {"b": {"$ref": "#"}, "a": True}}
    tools = [tool(parameters=parameters)]
    _, got, extra = template.prepare([], tools, "kimi_k25")
    assert got == tools and list(got[0]["function"]) == ["name", "parameters"]
    assert list(got[0]["function"]["parameters"]["properties"]) == ["a", "b"]
    assert extra == {"tools_ts_str": kimi_k25.declare(tools)}
    assert list(parameters["properties"]) == ["b", "a"]
    _, _, extra = template.prepare([], [tool(parameters={"properties": 5})], "kimi_k25")
    assert extra == {"tools_ts_str": None}
    assert template.prepare([], tools, "kimi_k2")[2] == {}
    assert template.prepare([], [], "kimi_k25")[1:] == (None, {})


def test_images_in_an_own_template():
    content = [{"type": "text", "text": "<|media_"}, IMAGE]
    content += [{"type": "text", "text": "pad|>"}]
    messages, _, _ = template.prepare(user(content), None, "kimi_k25")
    got = own(OWN["kimi_k25"], messages)
    assert got == kimi_k25.render(user(content))
    assert [t for t, is_control in got if is_control].count("<|media_pad|>") == 1


def test_inputs_nested_too_deep():
    deep: list = []
    for _ in range(300):
        deep = [deep, "<|im_end|>"]
    with pytest.raises(ValueError, match="nested too deep"):
        own("{{ deep }}", [], deep=deep)
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deep"):
        template.prepare([], [tool(parameters=deep)], "kimi_k2")
