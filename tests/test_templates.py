"""Prompts: the built-in templates and a directory's own, against the goldens."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.chat_templates import kimi_k2, kimi_k3, kimi_k25
from mlx_lm.chat_templates.kimi_typescript import typescript
from mlx_lm.utils import load_tokenizer

from mlx_lm_kimi import segments, template
from tests.conftest import DATA, rows
from tests.scripted import make_directory

# golden file -> (module, whether the vocabulary names <think>)
FILES = {
    "kimi_k2": (kimi_k2, False),
    "kimi_k2_thinking": (kimi_k2, True),
    "kimi_k25": (kimi_k25, True),
    "kimi_k26": (kimi_k25, True),
}
GOLDENS = [
    (name, row) for name in FILES for row in rows(f"goldens/render_{name}.jsonl")
]
IDS = [row["id"] for _, row in GOLDENS]
OWN = {
    name: (DATA / "templates" / f"{name}.jinja").read_text()
    for name in ("kimi_k2", "kimi_k25")
}


@pytest.fixture(scope="module")
def wrappers(kimi_directories):
    """mlx-lm's tokenizers for each golden file, as a runner loads them."""
    found = {
        "kimi_k2": "instruct",
        "kimi_k2_thinking": "thinking",
        "kimi_k25": "k25",
        "kimi_k26": "k25",
    }
    loaded = {d: load_tokenizer(p) for d, p in kimi_directories.items()}
    return {name: loaded[directory] for name, directory in found.items()}


def check_golden(wrapper, row: dict) -> None:
    """Text and ids of a golden, as a runner asks mlx-lm's tokenizer for them."""
    arguments = {
        "tools": row["tools"],
        "add_generation_prompt": row["add_generation_prompt"],
        **row["kwargs"],
    }
    prompt = wrapper.apply_chat_template
    assert prompt(row["messages"], tokenize=False, **arguments) == row["rendered"]
    assert prompt(row["messages"], **arguments) == row["ids"]


@pytest.mark.parametrize("name, row", GOLDENS, ids=IDS)
def test_goldens_of_the_modules(name, row):
    module, has_thinking = FILES[name]
    text = module.apply_chat_template(
        row["messages"],
        row["tools"],
        row["add_generation_prompt"],
        has_thinking=has_thinking,
        **row["kwargs"],
    )
    assert text == row["rendered"]


@pytest.mark.parametrize("name, row", GOLDENS, ids=IDS)
def test_goldens_through_the_tokenizer(name, row, wrappers):
    check_golden(wrappers[name], row)


@pytest.mark.parametrize(
    "row", rows("goldens/typescript_tools.jsonl"), ids=lambda r: r["id"]
)
def test_typescript(row):
    assert typescript(row["tools"]) == row["typescript"]


@pytest.mark.parametrize(
    "schema, expected",
    [
        # Facts of Moonshot's encoder that the vectors don't show.
        (
            {"x": {"type": "boolean", "default": True}},
            "  // Default: True\n  x?: boolean",
        ),
        (
            {"x": {"type": "array", "default": ["é"]}},
            '  // Default: ["é"]\n  x?: Array<any>',
        ),
        ({"x": True}, "  x?: any"),
        ({"x": False}, "  x?: null"),
        ({"x": {}}, "  x?: any"),
        ({"x": {"enum": [True, None, 1.5]}}, "  x?: True | None | 1.5"),
        ({"x": {"type": ["string", "null"], "enum": ["a", None]}}, '  x?: "a" | None'),
        (
            {"x": {"type": "array", "items": {"type": "string", "description": "one"}}},
            "  x?: Array<\n    // one\n    string\n  >",
        ),
        (
            {"x": {"type": "string", "description": "a\n\nb"}},
            "  // a\n\n  // b\n  x?: string",
        ),
        ({"x": {"type": "integer", "enum": ["a"]}}, None),
        ({"x": {"type": ["string", "number"], "enum": ["a"]}}, None),
        ({"x": {"$ref": "#/$defs/None"}}, None),
        ({"x": {"type": ["thing"]}}, None),
    ],
)
def test_typescript_of_one_property(schema, expected):
    function = {"name": "f", "parameters": {"type": "object", "properties": schema}}
    text = typescript([{"type": "function", "function": function}])
    frame = "# Tools\n\n## functions\nnamespace functions {{\ntype f = (_: {{\n{}\n}}) => any;\n}}\n"
    assert text == (expected and frame.format(expected))


def test_schemas_nested_too_deep():
    schema = {"type": "string"}
    for _ in range(3000):
        schema = {"type": "array", "items": schema}
    parameters = {"type": "object", "properties": {"x": schema}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert typescript(tools) is None
    with pytest.raises(ValueError, match="nested too deep"):
        kimi_k25.apply_chat_template([], tools)


K3 = rows("goldens/render_kimi_k3.jsonl")


@pytest.fixture(scope="module")
def k3(tmp_path_factory):
    path = make_directory(tmp_path_factory.mktemp("k3"), "kimi_k3", weights=False)
    return load_tokenizer(path)


@pytest.mark.parametrize("row", K3, ids=lambda r: r["id"])
def test_goldens_of_k3(row, k3):
    text = kimi_k3.apply_chat_template(
        row["messages"],
        row["tools"],
        row["add_generation_prompt"],
        **row["kwargs"],
    )
    assert text == row["rendered"]
    check_golden(k3, row)


def test_k3_arguments():
    text = (
        '{ "s" : "a\\"<", "n": 2.50, "b": true, "z": null, "o": {"a" : [1]}, "l": [ ] }'
    )
    assert [(k, t) for k, _, t in kimi_k3.members(text)] == [
        ("s", '"a\\"<"'),
        ("n", "2.50"),
        ("b", "true"),
        ("z", "null"),
        ("o", '{"a" : [1]}'),
        ("l", "[ ]"),
    ]
    assert kimi_k3.members("{}") == []
    assert kimi_k3.members("[1]") is None and kimi_k3.members("{'a': 1}") is None
    call = {"id": "x", "function": {"name": 'f"&', "arguments": "not json"}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    prompt = kimi_k3.apply_chat_template(messages)
    assert '<|open|>call tool="f&quot;&amp;" index="1"<|sep|>' in prompt
    assert '<|open|>json type="object"<|sep|>not json<|close|>json<|sep|>' in prompt


# What clients send beside the goldens ------------------------------------------------


def turn(**message) -> str:
    text = kimi_k2.apply_chat_template(
        [{"role": "system", "content": ""}, message], has_thinking=False
    )
    return text.removeprefix("<|im_system|>system<|im_middle|><|im_end|>")


@pytest.mark.parametrize(
    "function, written",
    [
        ({"arguments": '{ "a" : 1 }'}, '{ "a" : 1 }'),
        ({"arguments": "not json"}, "not json"),
        ({"arguments": ""}, ""),
        ({"arguments": "null"}, "{}"),
        ({"arguments": None}, "{}"),
        ({}, "{}"),
        ({"arguments": {"a": "é"}}, '{"a":"é"}'),
    ],
)
def test_arguments(function, written):
    call = {"id": "functions.f:0", "function": {"name": "f", **function}}
    text = turn(role="assistant", content=None, tool_calls=[call])
    _, _, tail = text.partition("<|tool_call_argument_begin|>")
    assert tail == f"{written}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"


def test_dynamic_tools_stand_where_they_are():
    tool = {"type": "function", "function": {"name": "f"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "system", "content": "", "tools": [tool]},
        {"role": "user", "content": "b"},
    ]
    text = kimi_k2.apply_chat_template(messages, has_thinking=False)
    assert "a<|im_end|><|im_system|>tool_declare<|im_middle|>[{" in text
    text = kimi_k25.apply_chat_template(messages)
    assert "a<|im_end|><|im_system|>tool_declare<|im_middle|># Tools\n" in text


def test_thinking_names():
    user = [{"role": "user", "content": "a"}]

    def end(module, **kwargs):
        return module.apply_chat_template(user, None, True, **kwargs).rpartition(
            "<|im_middle|>"
        )[2]

    assert end(kimi_k25) == end(kimi_k25, enable_thinking=True) == "<think>"
    assert (
        end(kimi_k25, thinking=False)
        == end(kimi_k25, enable_thinking=False)
        == "<think></think>"
    )
    assert end(kimi_k25, thinking=True, enable_thinking=False) == "<think>"
    assert end(kimi_k2, has_thinking=True) == end(kimi_k2, enable_thinking=True) == ""
    assert end(kimi_k2, has_thinking=True, enable_thinking=False) == "<think></think>"
    assert end(kimi_k2, has_thinking=False, thinking=False) == ""


def test_images():
    content = [
        {"type": "text", "text": "see "},
        {"type": "image_url", "image_url": {"url": "x"}},
    ]
    messages = [{"role": "user", "content": content}]
    written = (
        "see <|media_start|>image<|media_content|><|media_pad|><|media_end|><|im_end|>"
    )
    assert written in kimi_k25.apply_chat_template(messages)
    with pytest.raises(ValueError):
        kimi_k2.apply_chat_template(messages)


content = st.text(max_size=20) | st.lists(
    st.sampled_from(
        ["<|im_end|>", "<think>", "</think>", "<|tool_call_begin|>", "x", " "]
    ),
    max_size=6,
).map("".join)


@settings(max_examples=100, deadline=None)
@given(content, content, content)
def test_content_is_data(user, reasoning, arguments):
    messages = [
        {"role": "user", "content": user},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": reasoning,
            "tool_calls": [
                {
                    "id": "functions.f:0",
                    "function": {"name": "f", "arguments": arguments},
                }
            ],
        },
    ]
    plain = [{**messages[0], "content": ""}, {**messages[1], "reasoning_content": ""}]
    for module in (kimi_k2, kimi_k25):
        got = module.render(messages, has_thinking=True)
        controls = [t for t, is_control in got if is_control]
        assert controls == [
            t for t, is_control in module.render(plain, has_thinking=True) if is_control
        ]
        text = "\0".join(t for t, is_control in got if not is_control)
        assert user in text and reasoning in text


# A directory's own template -----------------------------------------------------------

OWN_GOLDENS = [(n, r) for n, r in GOLDENS if n != "kimi_k2"]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Tokenizers of directories with a template of their own."""
    root = tmp_path_factory.mktemp("own")
    loaded = {
        name: load_tokenizer(
            make_directory(root / name, name, template=OWN[name], weights=False)
        )
        for name in OWN
    }
    return {
        "kimi_k2_thinking": loaded["kimi_k2"],
        "kimi_k25": loaded["kimi_k25"],
        "kimi_k26": loaded["kimi_k25"],
    }


@pytest.mark.parametrize(
    "name, row", OWN_GOLDENS, ids=[r["id"] for _, r in OWN_GOLDENS]
)
def test_goldens_through_an_own_template(name, row, own):
    check_golden(own[name], row)


@pytest.mark.parametrize("name", ["kimi_k2_thinking", "kimi_k25"])
def test_dynamic_tools_in_an_own_template(name, own, wrappers):
    function = {
        "name": "f",
        "description": "<|im_end|>",
        "parameters": {"type": "object", "properties": {}},
    }
    messages = [
        {"role": "user", "content": "a"},
        {
            "role": "system",
            "content": "",
            "tools": [{"type": "function", "function": function}],
        },
        {"role": "user", "content": "b"},
    ]
    prompts = [
        w[name].apply_chat_template(messages, add_generation_prompt=True)
        for w in (own, wrappers)
    ]
    assert prompts[0] == prompts[1]


def test_an_own_template_decides(tmp_path):
    text = "{% for m in messages %}<|im_user|>{{ m.content | upper }}!{% endfor %}"
    path = make_directory(tmp_path / "k", template=text, weights=False)
    wrapper = load_tokenizer(path)
    messages = [{"role": "user", "content": "say <|im_end|>"}]
    assert (
        wrapper.apply_chat_template(messages, tokenize=False)
        == "<|im_user|>SAY <|IM_END|>!"
    )
    given = load_tokenizer(path, {"chat_template": "{{ messages[0].content }}"})
    tokenizer = given._tokenizer
    assert given.apply_chat_template(messages) == tokenizer.encode_content(
        "say <|im_end|>"
    )


@pytest.mark.parametrize(
    "where", ["content", "name", "key", "description", "id", "result"]
)
def test_control_tokens_in_any_input_are_text(where):
    spelled = {
        w: "a<|im_end|>b" if w == where else "plain"
        for w in ("content", "name", "key", "description", "id", "result")
    }
    messages = [
        {"role": "user", "content": spelled["content"], "name": spelled["name"]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": spelled["id"], "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": spelled["id"], "content": spelled["result"]},
    ]
    function = {
        "name": "f",
        "description": spelled["description"],
        "parameters": {"properties": {spelled["key"]: {}}},
    }
    tools = [{"type": "function", "function": function}]
    prepared, sorted_tools, extra = template.prepare(messages, tools, "kimi_k2")
    got = template.render_own(
        OWN["kimi_k2"],
        prepared,
        sorted_tools,
        control_tokens={"<|im_end|>", "<|im_user|>"},
        **extra,
    )
    assert sum(is_control for text, is_control in got if text == "<|im_end|>") == 5
    assert "a<|im_end|>b" in "\0".join(t for t, is_control in got if not is_control)


def test_transformers_renders_the_same(own):
    from transformers import PreTrainedTokenizerFast

    stock = PreTrainedTokenizerFast.apply_chat_template
    tokenizer = own["kimi_k25"]._tokenizer
    messages = [
        {"role": "user", "content": " é <b>\n"},
        {"role": "assistant", "content": "ok", "reasoning_content": ""},
    ]
    expected = stock(
        tokenizer, messages, tokenize=False, add_generation_prompt=True, thinking=True
    )
    assert (
        tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, thinking=True
        )
        == expected
    )


def test_a_template_runs_in_a_sandbox(tmp_path):
    path = make_directory(
        tmp_path / "k",
        template="{{ ''.__class__.__mro__[1].__subclasses__() }}",
        weights=False,
    )
    with pytest.raises(Exception, match="unsafe"):
        load_tokenizer(path).apply_chat_template([{"role": "user", "content": "x"}])


def test_segments_of_an_unknown_control_token_are_text(wrappers):
    tokenizer = wrappers["kimi_k2"]._tokenizer
    ids = segments.encode(tokenizer, [("<think>", True), ("x", False)])
    assert ids == [*tokenizer.encode_content("<think>"), *tokenizer.encode_content("x")]


def test_continue_final_message(wrappers):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "The answer"},
    ]
    text = wrappers["kimi_k2"].apply_chat_template(
        messages, tokenize=False, continue_final_message=True
    )
    assert text.endswith("<|im_assistant|>assistant<|im_middle|>The answer")


def test_return_forms(wrappers):
    tokenizer = wrappers["kimi_k2"]._tokenizer
    messages = [{"role": "user", "content": "a"}]
    ids = tokenizer.apply_chat_template(messages, return_dict=False)
    assert tokenizer.apply_chat_template(messages)["input_ids"] == ids
    assert tokenizer.apply_chat_template([messages, messages], return_dict=False) == [
        ids,
        ids,
    ]
    assert tokenizer.apply_chat_template(messages, return_tensors="np")[
        "input_ids"
    ].shape == (1, len(ids))
    assert json.dumps(ids)
