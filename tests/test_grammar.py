"""Grammars of whole turns, as token lists and where they must fail."""

import pickle

import pytest

from mlx_lm_kimi import constrain, grammar
from mlx_lm_kimi.grammar import ConstraintSpec
from mlx_lm_kimi.protocol.errors import RequestError
from tests.constraint_model import accepts, ids, spec, text, tokenizer, tool

BEGIN, END = grammar.SECTION_BEGIN, grammar.SECTION_END
F = tool("f", {"type": "object", "properties": {"a": {"type": "integer"}}}, strict=True)
G = tool("g.h-i", {"type": "object"})


def call(name: str, index: int, arguments: str = "{}") -> str:
    return (
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>"
        f"{arguments}<|tool_call_end|>"
    )


def section(*calls: str) -> str:
    return BEGIN + "".join(calls) + END


REQUIRED = spec(F, G)
AUTO = spec(F, G, choice="auto")
ONE = spec(F, G, parallel=False)
NAMED = spec(F, G, choice="function", name="f")
LATER = spec(F, G, next_index=130)
JSON = ConstraintSpec(response_format=("json_object",))
JSON_AUTO = spec(F, choice="auto", response_format=("json_object",))
JSON_NONE = spec(F, choice="none", response_format=("json_object",))
OPEN = {"thinking_open": True}
THINKS = {"has_thinking": True}

GOOD = [
    (REQUIRED, {}, section(call("f", 0), call("g.h-i", 1, '{"x":[]}'))),
    (REQUIRED, OPEN, "hm" + "</think>" + section(call("f", 0))),
    (REQUIRED, THINKS, "<think>hm</think>" + section(call("f", 0))),
    (REQUIRED, THINKS, section(call("f", 0))),
    (AUTO, {}, "only text\n\n{} 中文"),
    (AUTO, {}, ""),
    (AUTO, {}, "text" + section(call("f", 0, '{"a":1}'))),
    (AUTO, THINKS, "<think></think>text"),
    (AUTO, OPEN, "hm</think>text" + section(call("f", 0))),
    (AUTO, OPEN, "hm"),
    (AUTO, THINKS, "<think>hm"),
    (ONE, {}, section(call("g.h-i", 0))),
    (NAMED, {}, section(call("f", 0))),
    (LATER, {}, section(call("f", 130), call("f", 131))),
    (REQUIRED, {}, section(*[call("f", i) for i in range(grammar.MAX_CALLS)])),
    (JSON, {}, '{"a":[1,null]}'),
    (JSON_AUTO, {}, '{"a":1}'),
    (JSON_AUTO, OPEN, "hm</think>" + section(call("f", 0))),
    (JSON_NONE, {}, "{}"),
]
BAD = [
    (REQUIRED, {}, "text" + section(call("f", 0))),
    (REQUIRED, {}, ""),
    (REQUIRED, {}, section()),
    (REQUIRED, {}, call("f", 0)),
    (REQUIRED, {}, section(call("f", 1))),
    (REQUIRED, {}, section(call("f", 0), call("f", 0))),
    (REQUIRED, {}, section(call("nobody", 0))),
    (REQUIRED, {}, section(call("f", 0, '{"a":"x"}'))),
    (REQUIRED, {}, section(call("f", 0, "[]"))),
    (REQUIRED, {}, section(call("f", 0)) + section(call("f", 1))),
    (REQUIRED, {}, "<think>hm</think>" + section(call("f", 0))),
    (REQUIRED, OPEN, section(call("f", 0))),
    (AUTO, {}, call("f", 0)),
    (AUTO, {}, section(call("f", 0)) + "text"),
    (AUTO, {}, section(call("f", 0, '{"a":"x"}'))),
    (AUTO, {}, section(call("g.h-i", 0, "[1]"))),
    (AUTO, OPEN, "hm" + section(call("f", 0)) + "</think>"),
    (REQUIRED, OPEN, "hm"),
    (JSON_AUTO, OPEN, "hm"),
    (AUTO, {}, "a<think>b</think>c"),
    (ONE, {}, section(call("f", 0), call("f", 1))),
    (NAMED, {}, section(call("g.h-i", 0))),
    (NAMED, {}, section(call("f", 0), call("f", 1))),
    (LATER, {}, section(call("f", 0))),
    (JSON, {}, "[1]"),
    (JSON, {}, "text"),
    (JSON_NONE, {}, section(call("f", 0))),
]


@pytest.mark.parametrize("one, thinking, output", GOOD)
def test_a_right_turn_is_taken(one, thinking, output):
    assert accepts(one, output + "<|im_end|>", **thinking)


@pytest.mark.parametrize("one, thinking, output", BAD)
def test_a_wrong_turn_is_refused(one, thinking, output):
    assert not accepts(one, output + "<|im_end|>", **thinking)


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a<b", "城市", "a\nb", "😀", "x" * 300, "a:1"]
)
def test_a_name_is_data(name):
    one = spec(tool(name, {"type": "object"}))
    head = f"{BEGIN}<|tool_call_begin|>"
    text = grammar.build(one, family="kimi_k2", thinking_open=False, has_thinking=False)
    matcher = constrain._compiler(tokenizer()).matcher(text, grammar.first_token(one))
    plain = tokenizer().encode_content(f"functions.{name}:0")
    rest = "<|tool_call_argument_begin|>{}<|tool_call_end|>" + END + "<|im_end|>"
    tokens = ids(head) + plain + ids(rest)
    assert matcher.try_consume_tokens(tokens) == len(tokens)


def test_the_wire_text_is_forced_where_nothing_else_is_possible():
    one = spec(F, choice="function", name="f")
    matcher_text = grammar.build(
        one, family="kimi_k2", thinking_open=False, has_thinking=False
    )
    matcher = constrain._compiler(tokenizer()).matcher(
        matcher_text, grammar.first_token(one)
    )
    forced = matcher.compute_ff_tokens()
    assert text(forced).startswith(f"{BEGIN}<|tool_call_begin|>functions.f:0")


def test_nothing_to_constrain():
    flags = {"thinking_open": False, "has_thinking": False}
    assert grammar.build(ConstraintSpec(), family="kimi_k2", **flags) is None
    assert grammar.build(spec(F, choice="none"), family="kimi_k2", **flags) is None
    assert grammar.build(REQUIRED, family="unknown", **flags) is None
    assert grammar.build(REQUIRED, family="kimi_k25", **flags) is not None


def test_a_spec_travels_and_gives_the_same_grammar_everywhere():
    flags = {"family": "kimi_k2", "thinking_open": True, "has_thinking": False}
    there = pickle.loads(pickle.dumps(LATER))
    assert there == LATER
    grammar._built.clear()
    first = grammar.build(LATER, **flags)
    grammar._built.clear()
    assert grammar.build(there, **flags) == first


@pytest.mark.parametrize(
    "one, param",
    [
        (spec(F, choice="function", name="nobody"), "tool_choice"),
        (spec({"type": "function"}), "tools[0].function.name"),
        (spec(F, tool("\ud800", {})), "tools[1].function.name"),
        (
            spec(F, tool("x", {"not": {}}, strict=True)),
            "tools[1].function.parameters.not",
        ),
        (
            ConstraintSpec(response_format=("json_schema", {"not": {}}, True, "x")),
            "response_format.json_schema.schema.not",
        ),
    ],
)
def test_each_fault_is_found_before_generation(one, param):
    with pytest.raises(RequestError) as fault:
        constrain.check(one)
    assert fault.value.param == param
