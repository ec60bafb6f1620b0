"""A runner as exo's: its own loop of (token, text), and not a word of Kimi in it.

What it knows is what mlx-lm gives it for any model: has_tool_calling, tool_call_start,
tool_call_end and tool_parser.
"""

import functools
import importlib.util
import json

import mlx.core as mx
import pytest
from mlx_lm import load, tokenizer_utils

from tests.scripted import ScriptedModel, Scripts, make_directory

# The runner ----------------------------------------------------------------------------


def generate(model, tokenizer, prompt, limit=500):
    """(token, text) until an end token, greedily."""
    cache = model.make_cache()
    # The scripted model skips prompts; one token at a time it answers.
    model(mx.array([prompt[:-1]]), cache=cache)
    token, detokenizer = prompt[-1], tokenizer.detokenizer
    for _ in range(limit):
        logits = model(mx.array([[token]]), cache=cache)
        token = mx.argmax(logits[0, -1]).item()
        if token in tokenizer.eos_token_ids:
            break
        detokenizer.add_token(token)
        yield token, detokenizer.last_segment
    detokenizer.finalize()
    yield -1, detokenizer.last_segment


def collect(tokenizer, pairs, tools):
    """(text, calls): what lies between the markers goes to the parser."""
    text, inside, calls = "", None, []

    def parse(between):
        found = tokenizer.tool_parser(between.strip(), tools)
        calls.extend(found if isinstance(found, list) else [found])

    for _, piece in pairs:
        if inside is None:
            text += piece
            text, is_begun, rest = text.partition(tokenizer.tool_call_start)
            inside = rest if is_begun else None
        else:
            inside += piece
        if inside is not None and tokenizer.tool_call_end in inside:
            between, _, rest = inside.partition(tokenizer.tool_call_end)
            parse(between)
            text, inside = text + rest, None
    if inside:
        parse(inside)
    return text, calls


def collect_by_token(tokenizer, pairs, tools):
    """The same, as exo does it: a marker is a whole token, the parser gets text alone."""
    text, parts, calls = "", None, []
    for _, piece in pairs:
        if piece == tokenizer.tool_call_start:
            parts = []
        elif parts is not None and piece == tokenizer.tool_call_end:
            calls += tokenizer.tool_parser("".join(parts).strip())
            parts = None
        elif parts is not None:
            parts.append(piece)
        else:
            text += piece
    if parts:
        calls += tokenizer.tool_parser("".join(parts).strip())
    return text, calls


# One load for a directory: the tokenizer keeps no state between two answers.
loaded = functools.cache(load)


def run(directory, says, tools, collect=collect, content="Go."):
    """(text, calls) of a model that says this, loaded by mlx_lm.load alone."""
    _, tokenizer = loaded(str(directory))
    assert tokenizer.has_tool_calling
    scripts = Scripts()
    scripts.tokenizer = tokenizer
    # The directory's tokenizer turns spelled markers into their tokens.
    scripts.default = tokenizer.encode(says, add_special_tokens=False)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tools=tools, add_generation_prompt=True
    )
    pairs = generate(ScriptedModel(scripts), tokenizer, prompt)
    return collect(tokenizer, pairs, tools)


# What the model says -------------------------------------------------------------------

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"}},
                "required": [key],
            },
        },
    }
    for name, key in (("get_weather", "city"), ("read_file", "path"))
]
OSLO = ("get_weather", {"city": "Oslo"})
FILE = ("read_file", {"path": "a é 🙂.py"})


def call(name, arguments, index):
    text = json.dumps(arguments, ensure_ascii=False)
    return (
        f"<|tool_call_begin|>functions.{name}:{index}"
        f"<|tool_call_argument_begin|>{text}<|tool_call_end|>"
    )


ONE, TWO = call(*OSLO, 0), call(*FILE, 1)
SINGULAR_BEGIN = "<|tool_call_section_begin|>"
SINGULAR_END = "<|tool_call_section_end|>"
SAYS = {
    "one call": (BEGIN + ONE + END, "", [OSLO]),
    "two calls": (BEGIN + ONE + TWO + END, "", [OSLO, FILE]),
    "two sections": (BEGIN + ONE + END + BEGIN + TWO + END, "", [OSLO, FILE]),
    "text around": (f"Let me see.{BEGIN}{ONE}{END}Done.", "Let me see.Done.", [OSLO]),
    "singular end": (BEGIN + ONE + SINGULAR_END, "", [OSLO]),
    "singular inside": (BEGIN + SINGULAR_BEGIN + ONE + SINGULAR_END + END, "", [OSLO]),
    "no end": (BEGIN + ONE, "", [OSLO]),
    "no prefix": (BEGIN + ONE.replace("functions.", "") + END, "", [OSLO]),
    "no index": (BEGIN + ONE.replace(":0", "") + END, "", [OSLO]),
    "text only": ("Hello, 你好.", "Hello, 你好.", []),
}


@pytest.mark.parametrize("collect", [collect, collect_by_token])
@pytest.mark.parametrize("name", ["instruct", "thinking", "k25"])
@pytest.mark.parametrize("case", SAYS)
def test_calls(case, name, collect, kimi_directories):
    says, text, calls = SAYS[case]
    found_text, found = run(kimi_directories[name], says, TOOLS, collect)
    assert found_text == text
    assert [(c["name"], c["arguments"]) for c in found] == calls


@pytest.mark.parametrize("name, opened", [("thinking", "<think>"), ("k25", "")])
def test_a_call_after_thinking(name, opened, kimi_directories):
    says = f"{opened}I should look.</think>Looking.{BEGIN}{ONE}{TWO}{END}"
    text, found = run(kimi_directories[name], says, TOOLS)
    assert text == f"{opened}I should look.</think>Looking."
    assert [(c["name"], c["arguments"]) for c in found] == [OSLO, FILE]


def test_ids_are_canonical(kimi_directories):
    _, found = run(kimi_directories["instruct"], BEGIN + ONE + TWO + END, TOOLS)
    ids = [c["id"] for c in found]
    assert ids == ["functions.get_weather:0", "functions.read_file:1"]


def test_a_foreign_id_is_resolved_where_the_parser_knows_the_tools(kimi_directories):
    says = BEGIN + ONE.replace("functions.get_weather:0", "call_7f3a") + END
    _, found = run(kimi_directories["k25"], says, TOOLS)
    assert [(c["name"], c["arguments"]) for c in found] == [OSLO]


def test_a_tokenizer_loaded_as_exo_does(kimi_directories):
    tokenizer = tokenizer_utils.load(
        kimi_directories["thinking"],
        {"trust_remote_code": True},
        eos_token_ids=[163586],
    )
    assert tokenizer.has_tool_calling and 163586 in tokenizer.eos_token_ids
    (call,) = tokenizer.tool_parser(ONE)
    assert (call["name"], call["arguments"]) == OSLO


@pytest.mark.skipif(
    importlib.util.find_spec("mlx_lm.tool_parsers.kimi_k3") is None,
    reason="mlx-lm 0.31.3 has no parser for K3",
)
def test_k3(tmp_path):
    path = make_directory(tmp_path / "k3", "kimi_k3", weights=False)
    config = json.loads((path / "tokenizer_config.json").read_text())
    names = {163600: "<|open|>", 163601: "<|close|>", 163602: "<|sep|>"}
    names[163603] = "<|end_of_msg|>"
    for i, name in names.items():
        config["added_tokens_decoder"][str(i)] = {"content": name, "special": True}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = tokenizer_utils.load(path)
    assert tokenizer.has_tool_calling
    says = (
        'Looking.<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    )
    detokenizer, pairs = tokenizer.detokenizer, []
    for token in tokenizer.encode(says, add_special_tokens=False):
        detokenizer.add_token(token)
        pairs.append((token, detokenizer.last_segment))
    text, found = collect(tokenizer, pairs, TOOLS)
    assert text == "Looking."
    assert [(c["name"], c["arguments"]) for c in found] == [OSLO]


def test_the_runner_has_no_code_for_kimi():
    import inspect

    for function in (generate, collect, collect_by_token):
        source = inspect.getsource(function).lower()
        assert not any(w in source for w in ("kimi", "<|", "section", "functions."))
