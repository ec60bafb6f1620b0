"""Canonical ids, results that follow their calls, everything else verbatim."""

import importlib
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_lm_kimi.protocol.errors import RequestError
from mlx_lm_kimi.protocol.history import canonical
from mlx_lm_kimi.protocol.request import parse_chat_request
from tests.conftest import rows
from tests.test_protocol_request import USER, check_fault

HISTORY_CASES = [
    row
    for row in rows("cases/reported.jsonl")
    if row["kind"] == "history-template"
    and isinstance(row["request"]["messages"], list)
]


def call(call_id, name="f", arguments="{}"):
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def calls(*ids_and_names):
    """An assistant message; each call is an id (of the tool f) or (id, name)."""
    made = [call(c) if not isinstance(c, tuple) else call(*c) for c in ids_and_names]
    return {"role": "assistant", "content": "", "tool_calls": made}


def result(call_id, content="r"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def parsed(messages, style="kimi_k2"):
    return parse_chat_request({"messages": messages}, style=style).history


def shape(messages):
    """Ids only: a list for an assistant message's calls, a string for a result."""
    return [
        [c["id"] for c in m["tool_calls"]] if "tool_calls" in m else m["tool_call_id"]
        for m in messages
        if "tool_calls" in m or m["role"] == "tool"
    ]


F0, F1, F2, F3 = (f"functions.f:{i}" for i in range(4))

# (name, messages, ids of calls and results, next_index)
K2 = [
    ("none", [USER], [], 0),
    ("foreign", [USER, calls("call_9f"), result("call_9f")], [[F0], F0], 1),
    ("canonical", [USER, calls(F0), result(F0), calls(F1), result(F1)], [[F0], F0, [F1], F1], 2),
    (
        "mixed",
        [USER, calls("toolu_1"), result("toolu_1"), calls(F1), result(F1)],
        [[F0], F0, [F1], F1],
        2,
    ),
    (
        "a canonical id holds the place of a foreign one",
        [USER, calls("a"), result("a"), calls(F0), result(F0), calls("b")],
        [[F1], F1, [F0], F0, [F2]],
        3,
    ),
    (
        "moved on, and counted on from there",
        [USER, calls(F1, "x", "y"), result("x"), result("y"), result(F1)],
        [[F1, F2, F3], F2, F3, F1],
        4,
    ),
    (
        "parallel, results in any order",
        [USER, calls(("a", "f"), ("b", "g")), result("b"), result("a")],
        [[F0, "functions.g:1"], "functions.g:1", F0],
        2,
    ),
    (
        "of another tool",
        [USER, calls(("functions.g:0", "f")), result("functions.g:0")],
        [[F0], F0],
        1,
    ),
    (
        "not well formed",
        [USER, calls("functions.f:01", "functions_f_1", "f:2", "functions.f:", "functions.f:٣")],
        [[f"functions.f:{i}" for i in range(5)]],
        5,
    ),
    (
        "an absurd index",
        [USER, calls("functions.f:" + "9" * 5000), result("functions.f:" + "9" * 5000)],
        [[F0], F0],
        1,
    ),
    ("a gap stays", [USER, calls("functions.f:7"), result("functions.f:7")],
     [["functions.f:7"], "functions.f:7"], 8),
    (
        "an index of two tools",
        [USER, calls((F0, "f"), ("functions.g:0", "g"))],
        [[F0, "functions.g:0"]],
        2,
    ),
    (
        "names with dots, dashes, digits, other scripts",
        [USER, calls(("functions.a.b-c_2:0", "a.b-c_2"), ("x", "搜索:1"), ("y", "g"))],
        [["functions.a.b-c_2:0", "functions.搜索:1:1", "functions.g:2"]],
        3,
    ),
    (
        "counted anew in each turn",
        [USER, calls(F0), result(F0), USER, calls(F0), result(F0), calls(F0), result(F0)],
        [[F0], F0, [F1], F1, [F2], F2],
        3,
    ),
    (
        "one foreign id for all",
        [USER, calls("call_1"), result("call_1"), calls("call_1"), result("call_1")],
        [[F0], F0, [F1], F1],
        2,
    ),
    (
        "one id twice in a message: in order",
        [USER, calls("c", "c"), result("c"), result("c"), result("c")],
        [[F0, F1], F0, F1, F1],
        2,
    ),
    (
        "a call without a result",
        [USER, calls("a"), USER, calls("b"), result("b")],
        [[F0], [F1], F1],
        2,
    ),
    (
        "a result for a call long gone",
        [USER, calls("a"), USER, calls("b"), result("b"), USER, {"role": "assistant"}, result("a")],
        [[F0], [F1], F1, F0],
        2,
    ),
    ("answered twice", [USER, calls("a"), result("a"), USER, result("a")], [[F0], F0, F0], 1),
    (
        "a cut history",
        [{"role": "system", "content": "s"}, result("functions.f:4"), result("functions.g:5"),
         USER, calls("x"), result("x")],
        ["functions.f:4", "functions.g:5", [F0], F0],
        6,
    ),
    (
        "a cut history, the id used again",
        [result(F0), USER, calls(F0), result(F0)],
        [F0, [F1], F1],
        2,
    ),
    ("dropped ids", [USER, calls("", ("", "g")), result(""), result("")],
     [[F0, "functions.g:1"], F0, "functions.g:1"], 2),
    ("an empty id", [USER, calls("x1"), result("")], [[F0], F0], 1),
    ("an empty id, one call left", [USER, calls("a", "b"), result("b"), result("")],
     [[F0, F1], F1, F0], 2),
    ("an empty id after an unanswered call", [USER, calls("a", "b"), USER, calls("c"), result("")],
     [[F0, F1], [F2], F2], 3),
    ("an empty id answers the nearest message", [USER, calls(""), USER, calls("a"), result("")],
     [[F0], [F1], F1], 2),
    ("an empty id answers the call that has none", [USER, calls("a", "", "b"), result("")],
     [[F0, F1, F2], F1], 3),
    ("ids dropped from the calls only", [USER, calls("", ""), result("p"), result("q")],
     [[F0, F1], F0, F1], 2),
]  # fmt: skip


@pytest.mark.parametrize(
    "messages, ids, next_index", [row[1:] for row in K2], ids=[r[0] for r in K2]
)
def test_canonical_ids(messages, ids, next_index):
    history = parsed(messages)
    assert shape(history.messages) == ids
    assert history.next_index == next_index
    assert history.used_ids == {
        i for one in ids for i in ([one] if isinstance(one, str) else one)
    }


@pytest.mark.parametrize("call_id", [None, ""])
def test_calls_may_lack_an_id(call_id):
    calling = calls("x")
    calling["tool_calls"][0]["id"] = call_id
    assert shape(parsed([USER, calling]).messages) == [[F0]]
    del calling["tool_calls"][0]["id"]
    assert shape(parsed([USER, calling]).messages) == [[F0]]


def test_functions_of_the_older_api():
    messages = [
        USER,
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "f", "arguments": "{}"},
        },
        {"role": "function", "name": "f", "content": "r"},
    ]
    history = parsed(messages)
    assert history.messages[1:] == [calls(F0), result(F0)]


@pytest.mark.parametrize(
    "messages, index",
    [
        ([USER, result("")], 1),
        ([result("")], 0),
        ([USER, calls("a", "b"), result("")], 2),
        ([USER, calls("a"), result("a"), result("")], 3),
        ([USER, calls("a"), result("b")], 2),
        ([USER, calls("", "a"), result("b")], 2),
        ([USER, calls(""), result("x"), result("y")], 3),
        ([USER, calls(""), result(""), calls("a", "b"), result("")], 4),
        ([USER, result(F0)], 1),
        ([result("call_1")], 0),
        ([{"role": "assistant", "content": "x"}, result(F0)], 1),
        ([result(F0), USER, result(F1)], 2),
    ],
)
@pytest.mark.parametrize("style", ["kimi_k2", "kimi_k3"])
def test_results_that_answer_no_call(messages, index, style):
    check_fault(
        {"messages": messages}, f"messages[{index}].tool_call_id", "unknown_tool_call"
    )
    with pytest.raises(RequestError):
        parsed(messages, style)


def test_the_ids_of_a_conversation_stay_as_it_grows():
    """What the server answered is kept, so the next prompt begins with the last one."""
    messages, shown = [USER], []
    for turn in range(5):
        history = parsed(messages)
        assert shape(history.messages)[: len(shown)] == shown
        shown = shape(history.messages)
        own = f"functions.f:{history.next_index}"
        sent = own if turn % 2 else f"call_{turn}"  # some clients rewrite what they got
        messages += [calls(sent), result(sent)]
        shown += [[own], own]
    assert shape(parsed(messages).messages) == shown


# Verbatim -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent, shown",
    [
        ('{"a":1}', '{"a":1}'),
        (' { "a" : 1.0,\n"b": "\\u00e9" } ', ' { "a" : 1.0,\n"b": "\\u00e9" } '),
        ('{"city": "Oslo", note": "x"}', '{"city": "Oslo", note": "x"}'),
        ("not json", "not json"),
        ("[1]", "[1]"),
        ('"{}"', '"{}"'),
        ("", ""),  # the goldens show nothing, too
        (" ", " "),
        ('{"a": "<|tool_call_end|>\\ud800"}', '{"a": "<|tool_call_end|>\\ud800"}'),
        ("null", "{}"),
        (" null\n", "{}"),
        (None, "{}"),
        ({}, "{}"),
        (
            {"b": 2, "a": "é\n", "c": [1.5, None, True]},
            '{"b":2,"a":"é\\n","c":[1.5,null,true]}',
        ),
    ],
)
@pytest.mark.parametrize("style", ["kimi_k2", "kimi_k3"])
def test_arguments(sent, shown, style):
    calling = {"role": "assistant", "tool_calls": [call("x", arguments=sent)]}
    (found,) = parsed([USER, calling], style).messages[1]["tool_calls"]
    assert found["function"] == {"name": "f", "arguments": shown}


def test_absent_arguments():
    calling = {
        "role": "assistant",
        "tool_calls": [{"id": "x", "function": {"name": "f"}}],
    }
    (found,) = parsed([USER, calling]).messages[1]["tool_calls"]
    assert found == call(F0)


def test_everything_else_is_verbatim():
    messages = [
        {"role": "system", "content": " <|im_end|> \n"},
        {"role": "user", "content": "", "name": "Ann"},
        {**calls("x"), "content": " a\n", "reasoning_content": " r \n", "name": "Kim"},
        {**result("x", " 12\r\n"), "name": "f"},
    ]
    found = parsed(messages).messages
    expected = json.loads(json.dumps(messages).replace('"x"', f'"{F0}"'))
    assert found == expected


GOLDENS = [
    ("kimi_k2", "kimi_k2", {"has_thinking": False}),
    ("kimi_k2_thinking", "kimi_k2", {"has_thinking": True}),
    ("kimi_k25", "kimi_k25", {}),
    ("kimi_k26", "kimi_k25", {}),
]


@pytest.mark.parametrize(
    "golden, template, extra", GOLDENS, ids=[g[0] for g in GOLDENS]
)
def test_goldens_go_through_unchanged(golden, template, extra):
    """A prompt made of the request is the one made of the golden's messages."""
    module = importlib.import_module(f"mlx_lm.chat_templates.{template}")
    for row in rows(f"goldens/render_{golden}.jsonl"):
        body = {"messages": row["messages"], "tools": row["tools"]}
        request = parse_chat_request({**body, "chat_template_kwargs": row["kwargs"]})
        segments = module.render(
            request.history.messages,
            request.tools,
            add_generation_prompt=row["add_generation_prompt"],
            **request.template_kwargs,
            **extra,
        )
        assert "".join(text for text, _ in segments) == row["rendered"], row["id"]


# K3 -----------------------------------------------------------------------------------


def k3(*messages):
    history = parsed([USER, *messages], "kimi_k3")
    found = [
        (m["tool_call_id"], m["name"]) for m in history.messages if m["role"] == "tool"
    ]
    return found, history


def test_k3_results_are_sorted_and_named():
    found, history = k3(
        calls(("x1", "a"), ("x2", "b"), ("x3", "a")),
        result("x3"),
        result("x1"),
        result("x2"),
    )
    assert found == [("x1", "a"), ("x2", "b"), ("x3", "a")]
    assert shape(history.messages)[0] == ["x1", "x2", "x3"]
    assert history.next_index == 3
    assert history.used_ids == {"x1", "x2", "x3"}


def test_k3_a_name_stays():
    messages = [USER, calls(("x1", "a")), {**result("x1"), "name": "other"}]
    assert parsed(messages, "kimi_k3").messages == messages


def test_k3_results_stay_in_their_run():
    found, history = k3(calls("p", "q"), result("q"), USER, result("p"), result("q"))
    assert found == [("q", "f"), ("p", "f"), ("q", "f")]
    assert history.messages[3] == USER


def test_k3_missing_and_repeated_ids_become_unique():
    _, history = k3(
        calls("", ("", "g")),
        result("", "A"),
        result("", "B"),
        calls("c", "c"),
        result("c"),
        result("c"),
    )
    (first, second), a, b, (third, fourth), c, d = shape(history.messages)
    assert len({first, second, third, fourth} - {""}) == 4
    assert [a, b, c, d] == [first, second, third, fourth]
    assert [m["content"] for m in history.messages[2:4]] == ["A", "B"]


def test_k3_a_cut_history():
    history = parsed([result("functions.f:4"), USER], "kimi_k3")
    assert history.messages[0] == {**result("functions.f:4"), "name": "f"}
    assert history.next_index == 5


# Reported cases -----------------------------------------------------------------------


@pytest.mark.parametrize("case", HISTORY_CASES, ids=[c["id"] for c in HISTORY_CASES])
def test_reported_histories(case):
    style = "kimi_k3" if case["model"] == "kimi_k3" else "kimi_k2"
    request = parse_chat_request(case["request"], style=style)
    expect, messages = case["expect"], request.history.messages
    if "prompt_order" in expect:
        results = [m for m in messages if m["role"] == "tool"]
        assert [m["content"] for m in results] == expect["prompt_order"]
        assert [m["name"] for m in results] == expect["tool_attr"]
    if style == "kimi_k3":
        return
    from mlx_lm.chat_templates import kimi_k25

    segments = kimi_k25.render(
        messages, request.tools, add_generation_prompt=True, **request.template_kwargs
    )
    text = "".join(text for text, _ in segments)
    wanted = expect.get("prompt_must_contain", [])
    for piece in [wanted] if isinstance(wanted, str) else wanted:
        assert piece in text
    for piece in expect.get("prompt_must_not_contain", []):
        assert piece not in text


def test_an_empty_id_that_may_mean_two_calls_names_the_message():
    """k3-tool-call-id-empty, with one call more."""
    messages = [USER, calls("x1", "x2"), result("")]
    check_fault({"messages": messages}, "messages[2].tool_call_id", "unknown_tool_call")


# Properties ---------------------------------------------------------------------------

IDS = st.sampled_from(
    [
        "",
        "a",
        "b",
        "call_1",
        F0,
        F1,
        F2,
        "functions.g:0",
        "functions.g:1",
        "functions_f_0",
    ]
)
CALLS = st.builds(
    call,
    IDS,
    st.sampled_from(["f", "g", "f:0"]),
    st.sampled_from(["{}", "x", "", '{ "a":1}']),
)
MESSAGES = st.lists(
    st.one_of(
        st.just(USER),
        st.just({"role": "system", "content": "s"}),
        st.builds(
            lambda c: {"role": "assistant", "content": "", "tool_calls": c},
            st.lists(CALLS, min_size=1, max_size=3),
        ),
        st.builds(result, IDS),
    ),
    max_size=10,
)


def flat_calls(messages):
    return [c for m in messages for c in m.get("tool_calls", ())]


@settings(max_examples=400)
@given(MESSAGES, st.sampled_from(["kimi_k2", "kimi_k3"]))
def test_properties(messages, style):
    # A result that answers nothing is left out, so that what is left is served.
    served = []
    for message in messages:
        try:
            canonical([*served, message], style=style)
        except RequestError as e:
            assert e.code == "unknown_tool_call"
            assert e.param == f"messages[{len(served)}].tool_call_id"
        else:
            served.append(message)
    history = canonical(served, style=style)
    check_ids(history, style)
    check_verbatim(served, history.messages)
    check_kept(served, history.messages, style)
    if style == "kimi_k2":
        check_links(served, history.messages)
    else:
        check_order(history.messages)
    assert canonical(history.messages, style=style) == history


def check_ids(history, style):
    ids = [c["id"] for c in flat_calls(history.messages)]
    assert len(set(ids)) == len(ids) and "" not in ids
    assert set(ids) <= history.used_ids
    assert history.next_index >= len(ids)
    for used in history.used_ids:
        if style == "kimi_k2" or used.startswith("functions."):
            prefix, _, index = used.rpartition(":")
            assert prefix.startswith("functions.") and int(index) < history.next_index
    if style == "kimi_k2":
        for c in flat_calls(history.messages):
            assert c["id"].rpartition(":")[0] == "functions." + c["function"]["name"]
    met = set()
    for m in history.messages:
        met |= {c["id"] for c in m.get("tool_calls", ())}
        if m["role"] == "tool":
            assert m["tool_call_id"] in (met or history.used_ids)


def check_verbatim(before, after):
    def rest(message):
        dropped = {
            k: v for k, v in message.items() if k not in ("tool_call_id", "name")
        }
        if "tool_calls" in message:
            dropped["tool_calls"] = [c["function"] for c in message["tool_calls"]]
        return dropped

    assert [rest(m) for m in after] == [rest(m) for m in before]


def check_order(messages):
    """Each run of results is in the order of the calls."""
    places = {c["id"]: i for i, c in enumerate(flat_calls(messages))}
    for one, two in zip(messages, messages[1:]):
        if one["role"] == two["role"] == "tool":
            first, second = (places.get(m["tool_call_id"], -1) for m in (one, two))
            assert first <= second


def check_kept(before, after, style):
    """Ids that need no change have none: of each, the call that has it first."""
    heads = set()  # results before any call or turn
    for m in before:
        if m["role"] not in ("system", "tool"):
            break
        heads.add(m.get("tool_call_id"))
    met = set(heads)
    for old, new in zip(flat_calls(before), flat_calls(after)):
        own = "functions." + old["function"]["name"]
        good = old["id"].rpartition(":")[0] == own if style == "kimi_k2" else old["id"]
        if good and old["id"] not in met:
            assert new["id"] == old["id"]
            met.add(old["id"])


def check_links(before, after):
    """A result with an id answers the nearest earlier message that has it in a call."""
    nearest, names = {}, iter(flat_calls(after))
    for old, new in zip(before, after):
        fresh = {}
        for c in old.get("tool_calls", ()):
            fresh.setdefault(c["id"], []).append(next(names)["id"])
        nearest.update(fresh)
        nearest.pop("", None)
        if old["role"] == "tool" and old["tool_call_id"] in nearest:
            assert new["tool_call_id"] in nearest[old["tool_call_id"]]


# Linear -------------------------------------------------------------------------------


def seconds(count, style, make):
    messages = [USER, *(m for i in range(count) for m in make(i))]
    start = time.perf_counter()
    history = canonical(messages, style=style)
    assert history.next_index >= count
    return time.perf_counter() - start


@pytest.mark.parametrize("style", ["kimi_k2", "kimi_k3"])
@pytest.mark.parametrize(
    "make",
    [
        lambda i: [calls(f"call_{i}"), result(f"call_{i}")],
        lambda i: [calls("same"), result("same")],
        lambda i: [calls(f"functions.f:{i + 5000}"), calls("x")],
        lambda i: [calls("", ""), result("")],
    ],
    ids=["foreign", "repeated", "shifted", "dropped"],
)
def test_ten_thousand_messages(style, make):
    assert seconds(10_000, style, make) < 1


@pytest.mark.parametrize("ids", ["", "c", None])
@pytest.mark.parametrize("style", ["kimi_k2", "kimi_k3"])
def test_a_message_with_ten_thousand_calls(style, ids):
    given = [f"c{i}" if ids is None else ids for i in range(10_000)]
    messages = [USER, calls(*given), *(result(i) for i in reversed(given))]
    start = time.perf_counter()
    history = canonical(messages, style=style)
    assert time.perf_counter() - start < 1
    assert len(history.used_ids) == 10_000
