"""Constrained decoding: what the processors let through, in every generation path."""

import json
import threading

import jsonschema
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_lm_kimi import constrain, grammar
from mlx_lm_kimi.grammar import ConstraintSpec
from tests.conftest import rows
from tests.constraint_model import (
    IM_END,
    THINK,
    THINK_END,
    VOCABULARY,
    NoiseModel,
    accepts,
    answer,
    calls,
    ids,
    spec,
    text,
    tokenizer,
    tool,
    walk,
)

WEATHER = tool(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)
COUNT = tool(
    "count",
    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    strict=True,
)
WALLE = rows("schemas/walle.jsonl")
# No finite answer fits it: it is served, and max_tokens ends it.
ENDLESS = {"TestRangeConstraints:3"}


def processor(one, thinking_open=False):
    return constrain.logits_processor(one, tokenizer(), thinking_open=thinking_open)


def validate(value, schema):
    plain = {k: v for k, v in schema.items() if k != "$id"}
    jsonschema.Draft202012Validator(plain).validate(value)


# Every schema of the set --------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True], ids=["plain", "strict"])
@pytest.mark.parametrize("row", WALLE, ids=lambda row: row["id"])
def test_every_schema_of_the_set_is_served(row, strict):
    one = spec(tool("f", row["schema"], strict=strict), parallel=False)
    constrain.check(one)
    for seed in range(8):
        output = answer(one, seed, limit=150)
        if not output.endswith("<|im_end|>"):
            continue
        [(name, arguments)] = calls(output)
        assert name == "functions.f:0"
        value = json.loads(arguments)
        validate(value, row["schema"])
        compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert isinstance(value, (int, float)) or len(compact) <= len(arguments)
        return
    assert row["id"] in ENDLESS


# Schemas nobody wrote -----------------------------------------------------------------

names = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=6)
numbers = st.integers(-1000, 1000) | st.floats(-1000, 1000, width=16)
leaves = st.one_of(
    st.just({}),
    st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(
        lambda t: {"type": t}
    ),
    st.lists(names | numbers | st.booleans() | st.none(), min_size=1, max_size=4).map(
        lambda v: {"enum": v}
    ),
    st.tuples(st.integers(0, 3), st.integers(3, 6)).map(
        lambda n: {"type": "string", "minLength": n[0], "maxLength": n[1]}
    ),
    st.tuples(st.sampled_from(["integer", "number"]), numbers, numbers).map(
        lambda n: {"type": n[0], "minimum": min(n[1:]), "maximum": max(n[1:]) + 1}
    ),
    st.integers(1, 60).map(lambda n: {"type": "number", "multipleOf": n, "minimum": 0}),
)


def nested(inner):
    objects = st.tuples(
        st.dictionaries(names, inner, max_size=4), st.randoms(), st.booleans() | inner
    ).map(
        lambda t: {
            "type": "object",
            "properties": t[0],
            "required": sorted(k for k in t[0] if t[1].random() < 0.5),
            "additionalProperties": t[2],
        }
    )
    arrays = st.tuples(inner, st.integers(0, 2)).map(
        lambda t: {"type": "array", "items": t[0], "minItems": t[1], "maxItems": 3}
    )
    return (
        objects
        | arrays
        | st.lists(inner, min_size=1, max_size=3).map(lambda v: {"anyOf": v})
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.recursive(leaves, nested, max_leaves=6), st.integers(0, 1000))
def test_answers_are_valid_against_any_schema(schema, seed):
    try:
        output = answer(spec(tool("f", schema, strict=True)), seed, limit=150)
    except constrain.RequestError:
        return  # such as bounds between which there is no number
    for _, arguments in calls(output):
        if "<|im_end|>" in output:
            validate(json.loads(arguments), schema)


# What is promised ---------------------------------------------------------------------


def test_required_picks_either_tool_and_counts_on():
    found = set()
    for seed in range(30):
        output = answer(spec(WEATHER, COUNT, next_index=70), seed)
        assert output.startswith("<|tool_calls_section_begin|><|tool_call_begin|>")
        if not output.endswith("<|im_end|>"):
            continue
        for position, (name, arguments) in enumerate(calls(output)):
            called = name.removeprefix("functions.").rpartition(":")
            assert called[2] == str(70 + position)
            found.add(called[0])
            schema = (WEATHER if called[0] == "get_weather" else COUNT)["function"]
            validate(json.loads(arguments), schema["parameters"])
    assert found == {"get_weather", "count"}


def test_named_choice_is_exactly_that_call():
    for seed in range(10):
        one = spec(WEATHER, COUNT, choice="function", name="count")
        output = answer(one, seed)
        assert [name for name, _ in calls(output)] == ["functions.count:0"]


def test_one_call_without_parallel_calls():
    outputs = [answer(spec(WEATHER, parallel=False), seed) for seed in range(20)]
    assert {len(calls(o)) for o in outputs} == {1}


def test_none_lets_no_call_marker_through():
    one = spec(WEATHER, choice="none")
    logits = mx.zeros((1, VOCABULARY))
    out = np.array(processor(one)(mx.array([1, 2]), logits))[0]
    markers = {tokenizer().special_ids[n] for n in grammar.CALL_MARKERS}
    assert set(np.flatnonzero(out == -np.inf)) == markers
    assert (out[out != -np.inf] == 0).all()


def test_nothing_to_constrain_is_no_processor():
    assert processor(ConstraintSpec()) is None
    assert processor(None) is None


def test_thoughts_are_free_and_the_constraint_comes_after():
    run = processor(spec(WEATHER), thinking_open=True)
    output = walk(run, 3)
    _, _, rest = text(output).partition("</think>")
    assert rest.startswith("<|tool_calls_section_begin|>")
    # In a thought every ordinary token is possible, and of the markers only its end.
    run, zeros = processor(spec(WEATHER), thinking_open=True), mx.zeros((1, VOCABULARY))
    for history in ([9, 9], [9, 9, 500], [9, 9, 500, 700]):
        allowed = np.flatnonzero(np.array(run(mx.array(history), zeros))[0] == 0)
        assert (allowed[:-1] == np.arange(163584)).all() and allowed[-1] == THINK_END


def test_a_thought_can_only_come_first():
    run, zeros = processor(spec(WEATHER, choice="auto")), mx.zeros((1, VOCABULARY))
    may_think = [
        np.array(run(mx.array(history), zeros))[0][THINK] == 0
        for history in ([1], [1, 500], [1, 500, 600], [1, 500, 600, 700])
    ]
    assert may_think == [True, False, False, False]


def test_free_text_computes_no_masks():
    run = processor(spec(WEATHER, choice="auto"))
    history, zeros = [1, 2, 3], mx.zeros((1, VOCABULARY))
    for token in [500, 600, 700] * 300:
        history.append(token)
        mx.eval(run(mx.array(history), zeros))
    assert run.masks_computed <= 2


@pytest.mark.parametrize("thinking", [False, True])
def test_response_format_shapes_the_content(thinking):
    schema = {"type": "object", "properties": {"城市": {"type": "string"}}}
    schema |= {"required": ["城市"], "additionalProperties": False}
    one = ConstraintSpec(response_format=("json_schema", schema, True, "x"))
    output = answer(one, 5, thinking=thinking)
    content = output.rpartition("</think>")[2].removesuffix("<|im_end|>")
    assert content.startswith('{"城市":"')
    validate(json.loads(content), schema)


def test_required_wins_over_response_format():
    one = spec(COUNT, response_format=("json_object",))
    assert calls(answer(one, 1))[0][0] == "functions.count:0"


def test_auto_with_a_script_that_tries_to_leave_the_schema():
    from mlx_lm.generate import generate_step

    script = ids(
        "Let me see. <|tool_calls_section_begin|><|tool_call_begin|>functions.cuont:9"
        '<|tool_call_argument_begin|>{"m":"x"}<|tool_call_end|>'
        "<|tool_calls_section_end|><|im_end|>"
    )
    run = processor(spec(COUNT, choice="auto"))
    output = []
    steps = generate_step(
        mx.array([1, 2, 3]),
        NoiseModel(script=script),
        max_tokens=60,
        logits_processors=[run],
    )
    for token, _ in steps:
        output.append(token)
        if token == IM_END:
            break
    begin = (
        "Let me see. <|tool_calls_section_begin|><|tool_call_begin|>functions.count:0"
    )
    assert text(output).startswith(begin + '<|tool_call_argument_begin|>{"n":')


def test_reported_cases():
    cases = {row["id"]: row for row in rows("cases/reported.jsonl")}
    row = cases["k2-choice-required-unwrapped"]
    one = spec(*row["request"]["tools"], choice="auto")
    end = "<|im_end|>"
    assert not accepts(one, row["raw_output"] + end)
    assert accepts(one, row["expect"]["grammar_accepts"] + end)
    assert not accepts(one, "<think>" + row["expect"]["grammar_accepts"] + end)
    row = cases["k2-choice-required"]
    output = answer(spec(*row["request"]["tools"]), 2)
    assert output.endswith(end) and json.loads(calls(output)[0][1])["city"] is not None
    defs = cases["k3-defs-in-arg-grammar"]["request"]["tools"]
    call = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.t:0"
        "<|tool_call_argument_begin|>%s<|tool_call_end|><|tool_calls_section_end|>"
        + end
    )
    assert accepts(spec(*defs), call % '{"root":{"v":1}}')
    assert not accepts(spec(*defs), call % '{"root":{"v":"1"}}')


# mlx_lm's generation paths ------------------------------------------------------------


def checked(output, schema):
    assert output[-1] == IM_END
    for _, arguments in calls(text(output)):
        validate(json.loads(arguments), schema)


def test_eight_sequences_of_a_batch_with_schemas_of_their_own():
    from mlx_lm.generate import BatchGenerator
    from mlx_lm.sample_utils import make_sampler

    schemas = [
        {"type": "object", "properties": {f"k{i}": {"enum": [i, -i]}}}
        | {"required": [f"k{i}"], "additionalProperties": False}
        for i in range(8)
    ]
    mx.random.seed(1)
    generator = BatchGenerator(
        NoiseModel(), stop_tokens=[[IM_END]], sampler=make_sampler(1.0)
    )
    uids = generator.insert(
        [[1, 2, 3 + i] for i in range(8)],
        max_tokens=[80] * 8,
        logits_processors=[
            [processor(spec(tool("f", s), parallel=False))] for s in schemas
        ],
    )
    outputs = {uid: [] for uid in uids}
    for _ in range(100):
        result = generator.next()
        responses = result[1] if isinstance(result, tuple) else result
        for response in responses:
            outputs[response.uid].append(response.token)
        if all(o and o[-1] == IM_END for o in outputs.values()):
            break
    for uid, schema in zip(uids, schemas):
        checked(outputs[uid], schema)


@pytest.mark.parametrize("seed", range(4))
def test_speculative_decoding(seed):
    from mlx_lm.generate import speculative_generate_step
    from mlx_lm.sample_utils import make_sampler

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    schema |= {"required": ["n"], "additionalProperties": False}
    mx.random.seed(seed)
    output = []
    steps = speculative_generate_step(
        mx.array([1, 2, 3]),
        NoiseModel(),
        NoiseModel(seed=seed % 2),
        num_draft_tokens=3,
        max_tokens=120,
        sampler=make_sampler(1.0),
        logits_processors=[processor(spec(tool("f", schema)), thinking_open=True)],
    )
    for token, *_ in steps:
        output.append(int(token))
        if token == IM_END:
            break
    checked(output, schema)


# States -------------------------------------------------------------------------------


def test_a_history_that_was_cut_and_rewritten():
    run, zeros = processor(spec(COUNT, parallel=False)), mx.zeros((1, VOCABULARY))
    good = ids(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.count:0"
        '<|tool_call_argument_begin|>{"n":12}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
    )

    def allowed(history):
        return set(
            np.flatnonzero(np.array(run(mx.array([1] + history), zeros))[0] == 0)
        )

    fresh = []
    for cut in range(len(good) + 1):
        fresh.append(allowed(good[:cut]))
        assert cut == len(good) or good[cut] in fresh[cut]
    # Backwards over the end, far back, and forwards in leaps.
    for cut in [len(good) - 1, len(good), 4, 0, len(good) - 2, 7, 8, 3, len(good) - 1]:
        assert allowed(good[:cut]) == fresh[cut], cut
    number = good.index(ids("12")[0])
    assert allowed(good[:number] + ids("345")) == fresh[number + 1]


def test_a_token_past_the_end_is_no_error():
    run, zeros = processor(spec(COUNT, parallel=False)), mx.zeros((1, VOCABULARY))
    output = walk(run, 1)
    for extra in ([163585], [163585, 5], [5]):
        out = run(mx.array([1] * 3 + output + extra), zeros)
        assert out.shape == (1, VOCABULARY)
    assert not run._failed


def test_a_forced_foreign_token_ends_the_constraint_and_nothing_else():
    run, zeros = processor(spec(COUNT)), mx.zeros((1, VOCABULARY))
    run(mx.array([1]), zeros)
    assert (np.array(run(mx.array([1, 500]), zeros)) == 0).all()
    assert (np.array(run(mx.array([1, 500, 163595]), zeros)) == 0).all()
    other = processor(spec(COUNT))
    assert calls(text(walk(other, 1)))


def test_a_grammar_whose_lexer_ran_out_serves_the_next_request(monkeypatch):
    monkeypatch.setitem(constrain.LIMITS, "max_lexer_states", 3000)
    compiler = constrain.Compiler(tokenizer())
    compiler.vocabulary = constrain._compiler(tokenizer()).vocabulary
    one = ConstraintSpec(
        response_format=(
            "json_schema",
            {"type": "string", "maxLength": 10**6},
            True,
            "x",
        )
    )
    grammar_text = grammar.build(
        one, family="kimi_k2", thinking_open=False, has_thinking=False
    )
    exhausted = constrain.Constraint(compiler, grammar_text)
    zeros, history = mx.zeros((1, VOCABULARY)), [1] + ids('"')
    exhausted(mx.array([1]), zeros)
    for _ in range(2000):
        history.append(5000)
        exhausted(mx.array(history), zeros)
        if exhausted._failed:
            break
    assert exhausted._failed
    following = constrain.Constraint(compiler, grammar_text)
    out = np.array(following(mx.array([1]), zeros))
    assert 0 < (out == 0).sum() < VOCABULARY


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("size", [VOCABULARY, VOCABULARY + 64, VOCABULARY - 10])
def test_logits_of_every_type_and_of_a_padded_vocabulary(dtype, size):
    run = processor(spec(COUNT))
    out = run(mx.array([1]), mx.ones((1, size), dtype=dtype))
    assert out.dtype == dtype and out.shape == (1, size)
    allowed = np.flatnonzero(np.array(out.astype(mx.float32))[0] == 1)
    assert allowed.tolist() == [163595, 163606]  # a section, or a thought


def test_numbers_end_before_python_refuses_to_read_them():
    one = ConstraintSpec(
        response_format=("json_schema", {"type": "integer"}, True, "x")
    )
    run, zeros = processor(one), mx.zeros((1, VOCABULARY))
    history, digits = [1], ids("123")[0]
    run(mx.array(history), zeros)
    while len(history) < 1500:
        history.append(digits)
        out = np.array(run(mx.array(history), zeros))[0]
        if out[digits] != 0:
            break
    assert 3 * len(history) < 4300
    assert out[IM_END] == 0


def test_long_digits_in_a_string_are_free():
    one = ConstraintSpec(response_format=("json_schema", {"type": "string"}, True, "x"))
    run, zeros = processor(one), mx.zeros((1, VOCABULARY))
    run(mx.array([1]), zeros)
    history = [1] + ids('"') + ids("123") * 1100
    assert np.array(run(mx.array(history), zeros))[0][ids("123")[0]] == 0


def test_threads_share_compiled_grammars_but_no_matcher():
    outputs, errors = {}, []

    def work(seed):
        try:
            outputs[seed] = answer(spec(WEATHER, COUNT), seed % 4)
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(outputs[i] == outputs[i + 4] for i in range(4))


def test_one_compiled_grammar_serves_the_turns_of_a_conversation(monkeypatch):
    compiler = constrain._compiler(tokenizer())
    compiled = []
    real = compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda t: compiled.append(t) or real(t))
    one_more = tool("turns", {"type": "object", "properties": {"t": {"type": "null"}}})
    for turn in (0, 5, 31):
        output = answer(spec(one_more, next_index=turn), 1)
        assert calls(output)[0][0] == f"functions.turns:{turn}"
    assert len(compiled) == 1


# The nine traps of shared/CONSTRAINT.md that are not tested above ----------------------


def content(schema, output: str) -> bool:
    one = ConstraintSpec(response_format=("json_schema", schema, False, "x"))
    return accepts(one, output + "<|im_end|>")


def test_trap_1_the_end_token_is_forced_and_undone():
    one = ConstraintSpec(response_format=("json_schema", {"const": 1}, True, "x"))
    run, zeros = processor(one), mx.zeros((1, VOCABULARY))
    run(mx.array([1]), zeros)
    out = np.array(run(mx.array([1, *ids("1")]), zeros))[0]
    assert np.flatnonzero(out == 0).tolist() == [IM_END]


def test_trap_2_escapes_of_printable_characters_stay_what_they_are():
    assert content({"type": "string"}, '"\\u4e2d"')
    assert content({"type": "string"}, '"中"')
    assert content({"type": "object"}, '{"\\u4e2d":"\\ud83d\\ude00"}')


def test_trap_2_an_escaped_key_is_no_way_round_a_declared_one():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert content(schema, '{"a":1}') and content(schema, '{"b":"x"}')
    assert not content(schema, '{"\\u0061":"x"}')
    odd = {"type": "object", "properties": {"a\n": {"type": "integer"}}}
    assert content(odd, '{"a\\n":1}') and not content(odd, '{"a\\u000a":"x"}')
    for rest in (
        {"additionalProperties": {"type": "string"}},
        {"patternProperties": {"^x": {"type": "null"}}},
    ):
        assert not content(schema | rest, '{"\\u0061":"x"}')
        assert (
            not content(schema | rest, '{"\\u0078":"y"}')
            or "patternProperties" not in rest
        )


def test_trap_3_options_of_the_library_are_not_the_clients():
    hostile = {"type": "object", "x-guidance": {"whitespace_flexible": True}}
    assert not content(hostile, '{ "a" : 1 }')
    assert content({"$id": "https://x/y#/$defs/z", "type": "object"}, "{}")


def test_trap_5_two_matchers_of_one_grammar_do_not_meet():
    first, second = processor(spec(COUNT)), processor(spec(COUNT))
    zeros = mx.zeros((1, VOCABULARY))
    first(mx.array([1]), zeros)
    second(mx.array([1]), zeros)
    first(mx.array([1, 163595]), zeros)
    out = np.array(second(mx.array([1]), zeros))[0]
    assert np.flatnonzero(out == 0).tolist() == [163595, 163606]


@pytest.mark.parametrize(
    "arguments",
    ['{"a":1,"b":[2]}', '{"a": 1, "b": [2]}', '{\n  "a": 1,\n  "b": [\n    2\n  ]\n}'],
)
def test_trap_6_under_auto_the_models_own_whitespace_stays(arguments):
    output = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        "<|tool_calls_section_end|><|im_end|>"
    )
    assert accepts(spec(WEATHER, choice="auto"), output)
    endless = output.replace("{", "{" + " " * 50, 1)
    assert not accepts(spec(WEATHER, choice="auto"), endless)


def test_trap_6_keys_come_in_the_schemas_order_undeclared_ones_last():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert content(schema, '{"b":1,"a":2,"c":3}')
    assert not content(schema, '{"a":2,"b":1}')
    assert not content(schema, '{"c":3,"b":1}')
