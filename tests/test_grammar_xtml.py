"""The grammar of K3's turns: what it takes, what it refuses, and what comes out."""

import json

import jsonschema
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.tool_parsers.kimi_k3 import MARKERS, ToolCallStream

from mlx_lm_kimi import constrain, grammar
from mlx_lm_kimi.grammar import ConstraintSpec
from mlx_lm_kimi.tokenizer import load
from tests.chat import output_ids
from tests.conftest import rows
from tests.constraint_model import VOCABULARY, candidates, tool
from tests.scripted import CLOSE, END_OF_MSG, OPEN, SEP, make_directory
from tests.test_tool_parser_kimi_k3 import (
    END,
    argument,
    call,
    closed,
    element,
    opened,
    parts,
)
from tests.test_tool_parser_kimi_k3 import tools as section

F = tool(
    "f",
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "s": {"type": "string", "minLength": 1},
            "e": {"enum": ["x y", 3, None]},
            "u": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "l": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["a"],
    },
    strict=True,
)
G = tool("g.h", {"type": "object"})
P = tool(
    "p",
    {
        "type": "object",
        "properties": {"s": {"type": "string", "pattern": "^[ab]+$"}},
        "required": ["s"],
    },
    strict=True,
)
REQUIRED = ConstraintSpec(tools=[F, G, P], choice="required")
AUTO = ConstraintSpec(tools=[F, G, P])
NONE = ConstraintSpec(tools=[F], choice="none")
ONE = ConstraintSpec(tools=[F, G], choice="required", parallel=False)
NAMED = ConstraintSpec(tools=[F, G], choice="function", name="f")
JSON = ConstraintSpec(response_format=("json_object",))
JSON_AUTO = ConstraintSpec(tools=[G], response_format=("json_object",))
THOUGHT = "hm" + closed("think")
A3 = argument("a", "3", "number")
F_CALL = call("f", A3)

# What follows an opened think element, before the end of the message.
GOOD = {
    "typed": (REQUIRED, section(F_CALL)),
    "an empty response first": (REQUIRED, element("response") + section(F_CALL)),
    "every type": (
        REQUIRED,
        section(
            call(
                "f",
                A3,
                argument("s", 'any "text"\n'),
                argument("e", "x y"),
                argument("u", "null", "null"),
                argument("l", "[1]", "array"),
            )
        ),
    ),
    "optional ones left out": (REQUIRED, section(call("f", A3, argument("u", "")))),
    "json block": (
        REQUIRED,
        section(call("f", element('json type="object"', '{"a":1}'))),
    ),
    "an enum's number": (
        REQUIRED,
        section(call("f", A3, argument("e", "3", "number"))),
    ),
    "undeclared keys": (
        REQUIRED,
        section(call("g.h", argument("z", "3"), argument("y", "true", "boolean"))),
    ),
    "two calls": (REQUIRED, section(F_CALL, call("g.h", index=2))),
    "a pattern, in the json block": (
        REQUIRED,
        section(call("p", element('json type="object"', '{"s":"ab"}'))),
    ),
    "text": (AUTO, element("response", "any text 中文")),
    "text and a call": (AUTO, element("response", "text") + section(F_CALL)),
    "a call without a response": (AUTO, section(call("g.h"))),
    "neither": (AUTO, ""),
    "none": (NONE, element("response", "text")),
    "one call": (ONE, section(call("g.h"))),
    "named": (NAMED, section(F_CALL)),
    "an object": (JSON, element("response", '{"a":[1]}')),
    "an object or a call": (JSON_AUTO, element("response", "{}")),
    "a call or an object": (JSON_AUTO, section(call("g.h"))),
}
BAD = {
    "no call": (REQUIRED, ""),
    "text, k3-tools-in-response": (
        REQUIRED,
        element("response", "I will call " + opened("tools")),
    ),
    "a required key missing": (REQUIRED, section(call("f", argument("s", "x")))),
    "a wrong type": (REQUIRED, section(call("f", argument("a", "3")))),
    "a wrong value": (REQUIRED, section(call("f", argument("a", "x", "number")))),
    "not in the enum": (REQUIRED, section(call("f", A3, argument("e", "x")))),
    "an empty string": (REQUIRED, section(call("f", A3, argument("s", "")))),
    "a pattern missed": (
        REQUIRED,
        section(call("p", element('json type="object"', '{"s":"c"}'))),
    ),
    "a pattern can't be typed": (REQUIRED, section(call("p", argument("s", "ab")))),
    "another tool": (REQUIRED, section(call("nobody"))),
    "a wrong index": (REQUIRED, section(call("f", A3, index=2))),
    "the same index twice": (REQUIRED, section(F_CALL, call("g.h"))),
    "no tools element": (REQUIRED, F_CALL),
    "none, but called": (NONE, section(F_CALL)),
    "two of one": (ONE, section(F_CALL, call("g.h", index=2))),
    "not the named": (NAMED, section(call("g.h"))),
    "text after calls": (AUTO, section(call("g.h")) + element("response", "x")),
    "no object": (JSON, element("response", "[1]")),
    "no response": (JSON, ""),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("k3") / "k3"
    loaded = load(make_directory(path, "kimi_k3", thinking=False, weights=False))
    loaded.kimi_family = "kimi_k3"
    return loaded


def accepts(tokenizer, spec, output, thinking_open=True) -> bool:
    tokens = output_ids(tokenizer, output + END + "<|end_of_msg|>")
    return takes(tokenizer, spec, tokens, thinking_open)


def takes(tokenizer, spec, tokens, thinking_open=True) -> bool:
    text = grammar.build(
        spec, family="kimi_k3", thinking_open=thinking_open, has_thinking=False
    )
    first = grammar.first_token(spec, "kimi_k3")
    matcher = constrain._compiler(tokenizer).matcher(text, first)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("name", GOOD)
def test_a_right_turn_is_taken(name, tokenizer):
    spec, output = GOOD[name]
    assert accepts(tokenizer, spec, THOUGHT + output)


@pytest.mark.parametrize(
    "spec, right", [(AUTO, True), (NONE, True), (REQUIRED, False), (JSON, False)]
)
def test_a_turn_may_end_in_its_thought(spec, right, tokenizer):
    """Where nothing is demanded; a model that is kept from its end rambles."""
    ids = output_ids(tokenizer, "hm<|end_of_msg|>")
    assert takes(tokenizer, spec, ids) is right
    answered = f"{THOUGHT}{opened('response')}hm<|end_of_msg|>"
    assert takes(tokenizer, spec, output_ids(tokenizer, answered)) is right


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_turn_is_refused(name, tokenizer):
    spec, output = BAD[name]
    assert not accepts(tokenizer, spec, THOUGHT + output)


@pytest.mark.parametrize(
    "spec, output, right",
    [
        (AUTO, "text" + closed("response"), True),
        (AUTO, closed("response") + section(F_CALL), True),
        (REQUIRED, closed("response") + section(F_CALL), True),
        (REQUIRED, "text" + closed("response") + section(F_CALL), False),
        (NONE, "text" + closed("response"), True),
        (JSON, "{}" + closed("response"), True),
        (JSON_AUTO, closed("response") + section(call("g.h")), True),
    ],
)
def test_without_thinking_the_prompt_opens_the_response(spec, output, right, tokenizer):
    assert accepts(tokenizer, spec, output, thinking_open=False) is right


@pytest.mark.parametrize("name", ['a"b', "a&b", "a<b", "城市", "a.b-c"])
def test_names_and_keys_are_data(name, tokenizer):
    """k3-attr-lt, k3-nonascii-props: escaped in attributes, in any script."""
    schema = {"properties": {name: {"type": "string"}}, "required": [name]}
    spec = ConstraintSpec(tools=[tool(name, schema)], choice="required")
    written = name.replace("&", "&amp;").replace('"', "&quot;")
    output = section(call(written, argument(written, "上海")))
    assert accepts(tokenizer, spec, THOUGHT + output)


def walk(tokenizer, spec, seed, limit=500) -> list[int]:
    """A random answer: each token is one that the processor lets through."""
    processor = constrain.logits_processor(spec, tokenizer, thinking_open=True)
    rng = np.random.default_rng(seed)
    some = np.concatenate([candidates(), [OPEN, CLOSE, SEP, END_OF_MSG] * 40])
    history, zeros = [1, 1, 1], mx.zeros((1, VOCABULARY))
    while len(history) < limit and history[-1] != END_OF_MSG:
        allowed = np.array(processor(mx.array(history), zeros))[0] == 0
        likely = some[allowed[some]]
        if not len(likely) or rng.random() < 0.02:
            likely = np.flatnonzero(allowed)
        history.append(int(rng.choice(likely)))
    return history[3:]


def calls_of(tokenizer, spec, ids) -> list[tuple[str, str]]:
    """The calls that the parser reads in an answer."""
    names = {i: name for name, i in tokenizer.special_ids.items()}
    stream = ToolCallStream(list(spec.tools), reasoning=True)
    events, run = [], []
    for token in [*ids, -1]:
        if token >= 0 and token not in names:
            run.append(tokenizer.token_bytes(token))
            continue
        events += stream.feed(b"".join(run).decode("utf-8", "replace"))
        run = []
        if names.get(token) in MARKERS:
            events += stream.feed("", names[token])
    return parts(events + stream.finish())[2]


WALLE = rows("schemas/walle.jsonl")


@pytest.mark.parametrize("row", WALLE[::3], ids=lambda r: r["id"])
def test_random_answers_fit_the_schemas_of_the_set(row, tokenizer):
    spec = ConstraintSpec(
        tools=[tool("f", row["schema"])], choice="required", parallel=False
    )
    for seed in range(3):
        ids = walk(tokenizer, spec, seed)
        if ids[-1] != END_OF_MSG:
            continue
        ((name, arguments),) = calls_of(tokenizer, spec, ids)
        assert name == "f"
        schema = {k: v for k, v in row["schema"].items() if k != "$id"}  # odd ones
        jsonschema.validate(json.loads(arguments), schema)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_random_answers_of_typed_arguments(choice, tokenizer):
    spec = ConstraintSpec(tools=[F, P], choice=choice)
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in (F, P)}
    seen = 0
    for seed in range(40):
        ids = walk(tokenizer, spec, seed)
        if ids[-1] == END_OF_MSG:
            for name, arguments in calls_of(tokenizer, spec, ids):
                jsonschema.validate(json.loads(arguments), schemas[name])
                seen += 1
    assert seen >= 5
