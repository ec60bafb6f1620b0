"""Canonical ids: what clients make of them, and what the prompt shows."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_lm_kimi.protocol.errors import RequestError
from mlx_lm_kimi.protocol.history import canonical
from mlx_lm_kimi.protocol.request import parse_chat_request
from tests.conftest import rows

USER = {"role": "user", "content": "go"}


def call(name: str, call_id: str, arguments: str = "{}") -> dict:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def assistant(*calls) -> dict:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def result(call_id: str, content: str = "r") -> dict:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def ids(history) -> list[str]:
    """The ids of calls and results, in the order of the prompt."""
    found = []
    for message in history.messages:
        found += [c["id"] for c in message.get("tool_calls", ())]
        if message["role"] == "tool":
            found.append("->" + message["tool_call_id"])
    return found


CASES = {
    "canonical ids stay": (
        [assistant(call("f", "functions.f:0"), call("g", "functions.g:1")), result("functions.g:1"), result("functions.f:0")],
        ["functions.f:0", "functions.g:1", "->functions.g:1", "->functions.f:0"],
        2,
    ),
    "canonical ids stay where they jump": (
        [assistant(call("f", "functions.f:7")), result("functions.f:7")],
        ["functions.f:7", "->functions.f:7"],
        8,
    ),
    "openai ids": (
        [assistant(call("f", "call_1"), call("g", "call_2")), result("call_1"), result("call_2")],
        ["functions.f:0", "functions.g:1", "->functions.f:0", "->functions.g:1"],
        2,
    ),
    "sanitised ids": (
        [assistant(call("get_weather", "functions_get_weather_0")), result("functions_get_weather_0")],
        ["functions.get_weather:0", "->functions.get_weather:0"],
        1,
    ),
    "the id of another tool": (
        [assistant(call("f", "functions.g:0")), result("functions.g:0")],
        ["functions.f:0", "->functions.f:0"],
        1,
    ),
    "counted over the conversation": (
        [assistant(call("f", "a")), result("a"), USER, assistant(call("f", "b")), result("b")],
        ["functions.f:0", "->functions.f:0", "functions.f:1", "->functions.f:1"],
        2,
    ),
    "a client that counts anew": (
        [assistant(call("f", "functions.f:0")), result("functions.f:0"), USER, assistant(call("f", "functions.f:0")), result("functions.f:0")],
        ["functions.f:0", "->functions.f:0", "functions.f:1", "->functions.f:1"],
        2,
    ),
    "mixed conversations": (
        [assistant(call("f", "functions.f:1")), result("functions.f:1"), assistant(call("f", "toolu_x")), result("toolu_x")],
        ["functions.f:1", "->functions.f:1", "functions.f:2", "->functions.f:2"],
        3,
    ),
    "the same id twice in one message": (
        [assistant(call("f", "x"), call("g", "x")), result("x"), result("x")],
        ["functions.f:0", "functions.g:1", "->functions.f:0", "->functions.g:1"],
        2,
    ),
    "no ids at all": (
        [assistant(call("f", ""), call("g", "")), result(""), result("")],
        ["functions.f:0", "functions.g:1", "->functions.f:0", "->functions.g:1"],
        2,
    ),
    "one call waits for a result without id": (
        [assistant(call("f", "x")), result("")],
        ["functions.f:0", "->functions.f:0"],
        1,
    ),
    "a call without a result": ([assistant(call("f", "x")), USER], ["functions.f:0"], 1),
    "a result of a call long gone": (
        [assistant(call("f", "x")), USER, {"role": "assistant", "content": "ok"}, USER, result("x")],
        ["functions.f:0", "->functions.f:0"],
        1,
    ),
    "leading zeros are not canonical": ([assistant(call("f", "functions.f:01"))], ["functions.f:0"], 1),
    "names with dots and digits": (
        [assistant(call("a.b:1x", "q"), call("step2", "functions.step2:1"))],
        ["functions.a.b:1x:0", "functions.step2:1"],
        2,
    ),
    "no calls": ([USER], [], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_ids(name):
    messages, expected, next_index = CASES[name]
    history = canonical([USER, *messages])
    assert ids(history) == expected
    assert history.next_index == next_index
    assert history.used_ids == {i for i in expected if not i.startswith("->")}
    again = canonical(history.messages)
    assert again == history, "canonical already: nothing changes"


@pytest.mark.parametrize(
    "messages",
    [
        [result("x")],
        [assistant(call("f", "x")), result("y")],
        [result("x"), assistant(call("f", "x"))],
        [assistant(call("f", "x"), call("g", "y")), result("")],
    ],
)
def test_a_result_that_answers_no_call(messages):
    with pytest.raises(RequestError) as raised:
        canonical([USER, *messages])
    index = next(i for i, m in enumerate(messages, 1) if m["role"] == "tool")
    assert raised.value.param == f"messages[{index}].tool_call_id"


def test_everything_else_is_verbatim():
    odd = '{ "a" : [1,\n2 ] , bad'
    messages = [USER, assistant(call("f", "x", odd)), result("x", " raw\n")]
    history = canonical(messages)
    assert history.messages[1]["tool_calls"][0]["function"]["arguments"] == odd
    assert history.messages[2]["content"] == " raw\n"
    assert messages[1]["tool_calls"][0]["id"] == "x", "nothing is changed in place"


HISTORY = [
    row
    for row in rows("cases/reported.jsonl")
    if row["kind"] == "history-template"
    and row["model"] == "kimi_k2"
    and isinstance(row["request"].get("messages"), list)
]


@pytest.mark.parametrize("row", HISTORY, ids=[r["id"] for r in HISTORY])
def test_reported(row):
    from mlx_lm.chat_templates import kimi_k2

    request = parse_chat_request(json.loads(json.dumps(row["request"])))
    prompt = kimi_k2.apply_chat_template(
        request.history.messages,
        request.tools,
        add_generation_prompt=True,
        has_thinking=True,
        **request.template_kwargs,
    )
    expect = row["expect"]
    wanted = expect.get("prompt_must_contain", [])
    for text in [wanted] if isinstance(wanted, str) else wanted:
        if row["id"] != "k2-hist-keep-all" or text:
            assert text in prompt
    for text in expect.get("prompt_must_not_contain", []):
        assert text not in prompt
    if "prompt_ends_with_any" in expect:
        assert prompt.endswith(tuple(expect["prompt_ends_with_any"]))


names = st.sampled_from(["f", "g", "a.b", "step2"])
given_ids = st.sampled_from(
    ["functions.f:0", "functions.g:0", "functions.f:1", "x", "y", "functions.step2:5"]
)
turns = st.lists(st.lists(st.tuples(names, given_ids), min_size=1, max_size=3), max_size=6)


@settings(max_examples=200, deadline=None)
@given(turns)
def test_ids_are_unique_and_results_follow(conversation):
    messages = []
    for turn in conversation:
        messages.append(assistant(*(call(n, i) for n, i in turn)))
        messages += [result(i, f"{n}") for n, i in turn]
    history = canonical(messages)
    calls = {c["id"]: c["function"]["name"] for m in history.messages for c in m.get("tool_calls", ())}
    assert len(calls) == sum(map(len, conversation)), "no id twice"
    for message in history.messages:
        if message["role"] == "tool":
            # The result's text is the name of the tool that it answers.
            assert calls[message["tool_call_id"]] == message["content"]
    assert canonical(history.messages) == history
    assert all(f"functions.f:{history.next_index}" not in calls for _ in [0])


def test_linear_in_the_conversation():
    messages = []
    for i in range(5000):
        messages += [assistant(call("f", f"call_{i}")), result(f"call_{i}")]
    history = canonical(messages)
    assert ids(history)[-1] == "->functions.f:4999"
