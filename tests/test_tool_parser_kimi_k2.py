"""tool_parsers/kimi_k2.py: forms of tool calls, in every cut, as text and as tokens."""

import json
import re
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tool_parsers import kimi_k2
from mlx_lm.tool_parsers.kimi_k2 import MARKERS, Event, ToolCallStream, parse_tool_call

from tests.conftest import rows

BEGIN, END = kimi_k2.tool_call_start, kimi_k2.tool_call_end
CALL, ARGS, STOP = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
SINGULAR, SINGULAR_END = "<|tool_call_section_begin|>", "<|tool_call_section_end|>"
SPLIT = re.compile("(" + "|".join(map(re.escape, MARKERS)) + ")")


def tool(name: str, properties: dict | None = None, **schema) -> dict:
    parameters = {"type": "object", "properties": properties or {}, **schema}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("get_weather", {"city": {"type": "string"}}, required=["city"])
NEWS = tool(
    "get_news",
    {"topic": {"type": "string"}, "limit": {"type": "integer"}},
    required=["topic"],
)


def section(*calls: tuple[str, str]) -> str:
    return BEGIN + "".join(f"{CALL}{i}{ARGS}{a}{STOP}" for i, a in calls) + END


def joined(events: list[Event]) -> list[tuple]:
    """The events with neighbouring text put together."""
    out: list[Event] = []
    for event in events:
        assert event.text or event.type in ("call", "call_end"), "no empty text"
        if out and out[-1].type == event.type in ("content", "reasoning", "arguments"):
            out[-1] = event._replace(text=out[-1].text + event.text)
        else:
            out.append(event)
    return out


def tokens(output: str, plain: tuple[str, ...] = ()) -> list[tuple[str, str | None]]:
    """(text, marker) as a server feeds them; spelled markers are tokens."""
    parts = [p for p in SPLIT.split(output) if p]
    return [("", p) if p in MARKERS and p not in plain else (p, None) for p in parts]


def run(fed, tools=None, *, text=False, reasoning=False, cut=False) -> list[Event]:
    stream = ToolCallStream(tools, reasoning=reasoning, markers_in_text=text)
    events = [e for piece in fed for e in stream.feed(*piece)]
    events += stream.finish(cut)
    assert stream.finish() == []
    return joined(events)


def token_cuts(fed):
    """Whole pieces, characters, and pieces in groups of two and three characters."""
    yield fed
    for size in (1, 2, 3, 7):
        cut = []
        for text, marker in fed:
            starts = range(0, len(text), size) if marker is None else [0]
            cut += [
                (text[i : i + size], None) if marker is None else ("", marker)
                for i in starts
            ]
        yield cut


def text_cuts(output: str):
    yield [(output,)]
    yield [(c,) for c in output]
    yield from ([(output[:i],), (output[i:],)] for i in range(1, len(output)))


def in_every_cut(output: str, tools=None, **options) -> list[Event]:
    """The events of an output whose spelled markers are tokens, checked to be the same in
    every cut, as tokens and as text."""
    whole = run(tokens(output), tools, **options)
    for fed in token_cuts(tokens(output)):
        assert run(fed, tools, **options) == whole, fed
    for fed in text_cuts(output):
        assert run(fed, tools, text=True, **options) == whole, fed
    return whole


def answer(events: list[Event]) -> dict:
    """Reasoning, content and calls as (name, index, arguments)."""
    found = {"reasoning": "", "content": "", "calls": []}
    for event in events:
        if event.type in ("reasoning", "content"):
            found[event.type] += event.text
        elif event.type == "call":
            found["calls"].append((event.name, event.index, ""))
        elif event.type == "arguments":
            name, index, arguments = found["calls"][-1]
            found["calls"][-1] = (name, index, arguments + event.text)
    return found


# The reported cases -----------------------------------------------------------------

REPORTED = [
    row
    for row in rows("cases/reported.jsonl")
    if row["model"] == "kimi_k2"
    and row["raw_output"]
    and row["kind"] in ("parser", "streaming", "history-template")
]
# The issue stands against this case: valid JSON passes byte for byte.
VERBATIM = {"k2-id-openai-name-in-args": {"name": "list_files", "path": "/home"}}
# The issue: every call begun is delivered with what it has.
CUT_CALLS = {"k2-truncated-second": [{"name": "b", "arguments": '{"y":'}]}


def decoded(arguments: str):
    try:
        return json.loads(arguments)
    except ValueError:
        return None


def matches(expect: dict, found: dict, raw: str) -> bool:
    wanted = expect.get("tool_calls", [])
    checks = {
        "tool_calls": lambda _: len(wanted) == len(found["calls"])
        and all(
            w["name"] == name
            and w["arguments"]
            == (decoded(arguments) if isinstance(w["arguments"], dict) else arguments)
            and w.get("id", f"functions.{name}:{index}") == f"functions.{name}:{index}"
            for w, (name, index, arguments) in zip(wanted, found["calls"])
        ),
        "reasoning": lambda v: found["reasoning"] == v,
        "reasoning_startswith": lambda v: found["reasoning"].startswith(v),
        "content": lambda v: found["content"] == v,
        "content_in": lambda v: found["content"] in v,
        "content_nonempty": lambda _: bool(found["content"]),
        "content_nonempty_or_error": lambda _: bool(found["content"] or found["calls"]),
        "finish_reason": lambda v: v != "tool_calls" or bool(found["calls"]),
        "no_leak": lambda v: not any(
            m in found["content"] + found["reasoning"] for m in v
        ),
        "one_of": lambda v: any(matches(e, found, raw) for e in v),
        "arguments_raw_preserved": lambda _: found["calls"][0][2] in raw,
        "no_silent_loss": lambda _: found["calls"] == [("f", 0, '{"a":')],
    }
    return all(check(expect[key]) for key, check in checks.items() if key in expect)


@pytest.mark.parametrize("row", REPORTED, ids=[r["id"] for r in REPORTED])
def test_reported(row):
    request, expect, raw = row["request"], dict(row["expect"]), row["raw_output"]
    options = {
        "reasoning": request.get("_prompt_ends_with") == "<think>",
        "cut": expect.get("finish_reason") == "length",
    }
    tools = request.get("tools")
    if row["id"] == "k2-marker-in-arg":
        # The first is ordinary text, the last the token.
        head, _, tail = raw.rpartition(STOP)
        events = run(tokens(head, (STOP,)) + tokens(STOP + tail), tools)
        for fed in text_cuts(raw):
            assert run(fed, tools, text=True) == events
    else:
        events = in_every_cut(raw, tools, **options)
    if row["id"] in VERBATIM:
        expect["tool_calls"][0]["arguments"] = VERBATIM[row["id"]]
    if row["id"] in CUT_CALLS:
        expect["tool_calls"] = expect["tool_calls"] + CUT_CALLS[row["id"]]
    if row["id"] == "k2-xml-after-name":
        expect["tool_calls"] = [{"name": "list_files", "arguments": "<path>src</path>"}]
    found = answer(events)
    assert matches(expect, found, raw), found
    for _, _, arguments in found["calls"]:
        assert not arguments.startswith('"'), "never wrapped in a second JSON string"
    chunks = request.get("_chunks")
    if chunks:
        fed = [piece for chunk in chunks for piece in tokens(chunk)]
        assert run(fed, tools) == events
        assert run([(c,) for c in chunks], tools, text=True) == events


# Names ------------------------------------------------------------------------------

# id -> (tools' names, name, index)
IDS = {
    "functions.get_weather:0": (["get_weather"], "get_weather", 0),
    " functions.get_weather:12\n": (["get_weather"], "get_weather", 12),
    "functions . get_weather : 0": (["get_weather"], "get_weather", None),
    "functions_get_weather_3": (["get_weather"], "get_weather", 3),
    "functions.get_weather_3": (["get_weather"], "get_weather", 3),
    "get_weather:0": (["get_weather"], "get_weather", None),
    "get_weather": (["get_weather"], "get_weather", None),
    "functions.get_weather": (["get_weather"], "get_weather", None),
    "functionsget_weather0": (["get_weather"], "get_weather", None),
    "functions.get_weather0": (["get_weather"], "get_weather", None),
    "functions.get_weather:": (["get_weather"], "get_weather:", None),
    "functions.step2:3": (["step", "step2"], "step2", 3),
    "functions.step2": (["step", "step2"], "step2", None),
    "functionsstep23": (["step", "step2"], "step2", None),
    "functionsstep3": (["step", "step2"], "step", None),
    "functions.step23:1": (["step", "step2"], "step23", 1),  # undeclared
    "functions_get_2_0": (["get", "get_2"], "get_2", 0),
    "functions_get_2": (["get", "get_2"], "get_2", None),
    "functions_get_7": (["get", "get_2"], "get", 7),
    "functions.a.b:0": (["a.b", "b", "a"], "a.b", 0),
    "functions.b:0": (["a.b", "b"], "b", 0),
    "functions:0": (["functions"], "functions", None),
    "functions.functions:4": (["functions"], "functions", 4),
    "functions": (["functions", "x"], "functions", None),
    "functions.functions.a:1": (["functions.a", "a"], "functions.a", 1),
    "functions.ns:do:2": (["ns:do", "ns"], "ns:do", 2),
    "functions.job:0:5": (["job:0", "job"], "job:0", 5),
    "functions.job:0": (["job:0", "job"], "job", 0),
    "job:0": (["job:0", "job"], "job:0", None),
    "functions.mcp__my-server__do-it:2": (
        ["mcp__my-server__do-it"],
        "mcp__my-server__do-it",
        2,
    ),
    "functions.天気:0": (["天気", "天"], "天気", 0),
    "functions.naïve_2:1": (["naïve_2", "naïve"], "naïve_2", 1),
    "emoji_functions.write:0": (["write", "read"], "write", None),
    "functions.get weather:0": (["get weather"], "get weather", 0),
    # Undeclared names are delivered as written.
    "functions.nonexistent:7": (["get_weather"], "nonexistent", 7),
    "nonexistent:7": (["get_weather"], "nonexistent", None),
    "functions.nonexistent": (["get_weather"], "nonexistent", None),
    "functions_nonexistent_7": (["get_weather"], "nonexistent", 7),
    "functions.a.b.c:1": ([], "a.b.c", 1),
    "get_time:2": ([], "get_time", None),
    "get_time": ([], "get_time", None),
    "functions.get_time": ([], "get_time", None),
    "functions.f:" + "9" * 5000: ([], "f", None),
    "functions.f:٣": (["f"], "f:٣", None),
}


@pytest.mark.parametrize("written", IDS, ids=[ascii(i)[:40] for i in IDS])
def test_names(written):
    names, name, index = IDS[written]
    tools = [
        tool(n, {"required_of_all": {}}, required=["required_of_all"]) for n in names
    ]
    events = (
        in_every_cut(section((written, '{"a": 1}')), tools)
        if len(written) < 100
        else None
    )
    events = events or run(tokens(section((written, '{"a": 1}'))), tools)
    assert events == [
        Event("call", name=name, id=written.strip(), index=index),
        Event("arguments", '{"a": 1}'),
        Event("call_end"),
    ]


@pytest.mark.parametrize(
    "written",
    [
        "0",
        "17",
        "call_8f2a",
        "call_abc123def456",
        "toolu_01AbCdEf",
        "chatcmpl-tool-5f",
        "",
        " ",
        "???",
        "functions",
        "functions.:0",
    ]
    + [
        "550e8400-e29b-41d4-a716-446655440000",
        "9f8e7d6c5b4a",
        "functions.0:0",
        "call_1:0",
    ],
)
def test_ids_that_name_no_tool(written):
    news, weather = '{"topic": "x", "limit": 3}', '{"city": "Oslo"}'
    for arguments, tools, name in [
        (news, [WEATHER, NEWS], "get_news"),  # the one whose schema accepts them
        (weather, [WEATHER, NEWS], "get_weather"),
        ('{"city": 5}', [WEATHER], "get_weather"),  # the only one
        ("oops", [WEATHER], "get_weather"),
        ("{'topic': 'x'}", [WEATHER, NEWS], "get_news"),  # by the mended arguments
        (
            '{"topic": "x", "other": 1}',
            [WEATHER, NEWS],
            written.strip() or "unknown_tool",
        ),
        (
            weather,
            [WEATHER, tool("other", {"city": {}})],
            written.strip() or "unknown_tool",
        ),
    ]:
        (found,) = answer(in_every_cut(section((written, arguments)), tools))["calls"]
        assert found[:2] == (name, None)


def test_a_foreign_word_is_a_name_unless_a_schema_accepts():
    assert (
        answer(run(tokens(section(("hist_tool_abc", '{"city": "Oslo"}'))), [WEATHER]))[
            "calls"
        ][0][0]
        == "get_weather"
    )
    assert (
        answer(run(tokens(section(("delete_all", '{"path": "/"}'))), [WEATHER]))[
            "calls"
        ][0][0]
        == "delete_all"
    )


@pytest.mark.parametrize(
    "tools",
    [
        None,
        [],
        {},
        5,
        "x",
        [None],
        [{"function": None}],
        [{"function": {"name": 3}}],
        [{"name": ""}],
    ]
    + [
        [{"type": "function", "function": {"name": "f", "parameters": junk}}]
        for junk in (None, 5, [], {"properties": 3})
    ],
)
def test_junk_for_tools(tools):
    for written in ("functions.f:0", "0", ""):
        assert len(answer(run(tokens(section((written, "{}"))), tools))["calls"]) == 1


# Forms ------------------------------------------------------------------------------

ID0, ID1 = "functions.get_weather:0", "functions.get_weather:1"
OSLO, ROME = '{"city": "Oslo"}', '{"city":"Rome"}'
BOTH = [("get_weather", 0, OSLO), ("get_weather", 1, ROME)]

# output -> reasoning, content, calls
FORMS = {
    "text only": ("Hello <b> <|", "", "Hello <b> <|", []),
    "two calls": (section((ID0, OSLO), (ID1, ROME)), "", "", BOTH),
    "thinking": (
        f"<think>Hm.\n</think>\n\nSo:\n{section((ID0, OSLO))}\n",
        "Hm.\n",
        "\n\nSo:\n\n",
        BOTH[:1],
    ),
    "reasoning twice": ("<think>a</think>b<think>c</think>d", "ac", "bd", []),
    "no section": (
        f"Look: {CALL}{ID0}{ARGS}{OSLO}{STOP}{CALL}{ID1}{ARGS}{ROME}{STOP}",
        "",
        "Look: ",
        BOTH,
    ),
    "no section, text after": (
        f"{CALL}{ID0}{ARGS}{OSLO}{STOP}\n Done. ",
        "",
        "\n Done. ",
        BOTH[:1],
    ),
    "call in reasoning": (
        f"<think>Hm. {CALL}{ID0}{ARGS}{OSLO}{STOP}</think>Done",
        "Hm. ",
        "Done",
        BOTH[:1],
    ),
    "section in reasoning": (
        f"<think>Hm. {section((ID0, OSLO))}</think>\n",
        "Hm. ",
        "\n",
        BOTH[:1],
    ),
    "two sections": (
        section((ID0, OSLO)) + "\n" + section((ID1, ROME)),
        "",
        "\n",
        BOTH,
    ),
    "blanks between calls": (
        f"{BEGIN}\n{CALL}{ID0}{ARGS}{OSLO}{STOP} \n {CALL}{ID1}{ARGS}{ROME}{STOP}\n{END}",
        "",
        "",
        BOTH,
    ),
    "text between calls": (
        f"{BEGIN}{CALL}{ID0}{ARGS}{OSLO}{STOP} and {CALL}{ID1}{ARGS}{ROME}{STOP}{END}",
        "",
        " and ",
        BOTH,
    ),
    "text after": (section((ID0, OSLO)) + " After.", "", " After.", BOTH[:1]),
    "call end missing": (
        f"{BEGIN}{CALL}{ID0}{ARGS}{OSLO}{CALL}{ID1}{ARGS}{ROME}{END}",
        "",
        "",
        BOTH,
    ),
    "section begins again": (
        f"{BEGIN}{CALL}{ID0}{ARGS}{OSLO}{BEGIN}{CALL}{ID1}{ARGS}{ROME}{STOP}",
        "",
        "",
        BOTH,
    ),
    "ended by the output": (f"{BEGIN}{CALL}{ID0}{ARGS}{OSLO}", "", "", BOTH[:1]),
    "argument marker missing": (
        f"{CALL}{ID0}{OSLO}{STOP}{CALL}{ID1}\n {ROME}{STOP}",
        "",
        "",
        BOTH,
    ),
    "argument marker missing, null": (
        f"{CALL}{ID0} null{STOP}",
        "",
        "",
        [("get_weather", 0, "{}")],
    ),
    "argument marker missing, encoded": (
        f"{CALL}{ID0} {json.dumps(OSLO)}{STOP}",
        "",
        "",
        BOTH[:1],
    ),
    "argument marker twice": (f"{CALL}{ID0}{ARGS}{ARGS}{OSLO}{STOP}", "", "", BOTH[:1]),
    "argument marker outside": (f"a{ARGS}b", "", "ab", []),
    "stray end markers": (f"a{STOP}b{END}c</think>d", "", "abcd", []),
    "space around the arguments": (
        f"{CALL}{ID0}{ARGS} \n{OSLO}\n {STOP}",
        "",
        "",
        BOTH[:1],
    ),
    "no arguments": (
        f"{CALL}{ID0}{STOP}{CALL}{ID1}{ARGS} \n{STOP}",
        "",
        "",
        [("get_weather", i, "{}") for i in (0, 1)],
    ),
    "a bad call costs only itself": (
        section((ID0, "{1, 2}"), (ID1, ROME)),
        "",
        "",
        [("get_weather", 0, "{1, 2}"), BOTH[1]],
    ),
    "an unclosed string costs only its call": (
        section((ID0, '{"city": "Os'), (ID1, ROME)),
        "",
        "",
        [("get_weather", 0, '{"city": "Os'), BOTH[1]],
    ),
    "an unclosed single quote": (
        section((ID0, "{'city': 'Os"), (ID1, ROME)),
        "",
        "",
        [("get_weather", 0, "{'city': 'Os"), BOTH[1]],
    ),
    "raw arguments with an apostrophe": (
        section((ID0, "it's"), (ID1, ROME)),
        "",
        "",
        [("get_weather", 0, "it's"), BOTH[1]],
    ),
    "think markers in a string": (
        section((ID0, '{"city": "<think>x</think>"}')),
        "",
        "",
        [("get_weather", 0, '{"city": "<think>x</think>"}')],
    ),
    "think markers between": (
        f"{CALL}</think>{ID0}<think>{ARGS}{OSLO}</think>{STOP}",
        "",
        "",
        BOTH[:1],
    ),
    "singular section": (
        f"Hi.{SINGULAR}{CALL}{ID0}{ARGS}{OSLO}{STOP}{CALL}{ID1}{ARGS}{ROME}{STOP}{SINGULAR_END}Bye.",
        "",
        "Hi.Bye.",
        BOTH,
    ),
    "singular section in reasoning": (
        f"<think>Hm.{SINGULAR}\n{CALL}{ID0}{ARGS}{OSLO}{STOP}{SINGULAR_END}</think>",
        "Hm.",
        "",
        BOTH[:1],
    ),
    "almost a singular section": (
        "a <|tool_call_section_begin|",
        "",
        "a <|tool_call_section_begin|",
        [],
    ),
    "empty section": (BEGIN + "\n" + END + "Hi", "", "Hi", []),
    "empty call": (CALL + STOP, "", "", [("get_weather", None, "{}")]),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form):
    output, reasoning, content, calls = FORMS[form]
    events = in_every_cut(output, [WEATHER])
    assert answer(events) == {
        "reasoning": reasoning,
        "content": content,
        "calls": calls,
    }


def test_the_prompt_opened_reasoning():
    for output, reasoning, content in [
        ("Hm.</think>Hi", "Hm.", "Hi"),
        ("<think>Hm.</think>Hi", "Hm.", "Hi"),
        ("Hm." + section((ID0, OSLO)) + "Hi", "Hm.", "Hi"),
        (f"I know {STOP}{END}markers", "I know markers", ""),
    ]:
        found = answer(in_every_cut(output, [WEATHER], reasoning=True))
        assert (found["reasoning"], found["content"]) == (reasoning, content)


def test_in_reasoning():
    stream = ToolCallStream(reasoning=True)
    assert stream.in_reasoning
    stream.feed("", "</think>")
    assert not stream.in_reasoning


def test_spelled_markers_are_text_where_there_are_tokens():
    spelled = "".join(sorted(MARKERS))
    for cut in token_cuts([(f"a {spelled} b", None)]):
        assert run(cut) == [Event("content", f"a {spelled} b")]
        assert run(cut, reasoning=True) == [Event("reasoning", f"a {spelled} b")]
    mention = f"a {SINGULAR} b {SINGULAR_END}"
    for cut in token_cuts([(mention, None)]):
        assert run(cut, reasoning=True) == [Event("reasoning", mention)]
    arguments = json.dumps({"a": f"{spelled}{SINGULAR}"})
    for cut in token_cuts(
        [("", CALL), (ID0, None), ("", ARGS), (arguments, None), ("", STOP)]
    ):
        assert answer(run(cut))["calls"] == [("get_weather", 0, arguments)]


@pytest.mark.parametrize(
    "quoted",
    [
        '"x {} y"',
        "'x {} y'",
        '"x \\" {} y"',
        '"{}", "b": "{}"',
        '"{}"\n',
        '["{}", "y{}"]',
    ],
)
def test_spelled_markers_in_a_string_are_text(quoted):
    for marker in sorted(MARKERS) + [SINGULAR, SINGULAR_END]:
        arguments = '{"a": ' + quoted.replace("{}", marker) + "}"
        output = section((ID0, arguments), (ID1, ROME))
        whole = run([(output,)], [WEATHER], text=True)
        expected = arguments.replace("'", '"')
        assert answer(whole)["calls"] == [("get_weather", 0, expected), BOTH[1]]
        assert run([(c,) for c in output], [WEATHER], text=True) == whole


@pytest.mark.parametrize(
    "output, name, arguments",
    [
        (
            f"{CALL}functions.get_weather:0{ARGS}" + '{"city":',
            "get_weather",
            '{"city":',
        ),
        (
            f"{CALL}functions.get_weather:0{ARGS}" + '{"city": "Os',
            "get_weather",
            '{"city": "Os',
        ),
        (
            f"{CALL}functions.get_weather:0{ARGS}" + '{"city": ["Os", ',
            "get_weather",
            '{"city": ["Os",',
        ),
        (f"{CALL}functions.get_weather:0{ARGS}" + "{'a': 1", "get_weather", "{'a': 1"),
        (f"{CALL}functions.get_weather:0{ARGS}" + OSLO, "get_weather", OSLO),
        (f"{CALL}functions.get_weather:0{ARGS}", "get_weather", ""),
        (f"{CALL}functions.get_weather:0", "get_weather", ""),
        (f"{CALL}functions.get_wea", "get_wea", ""),
        (f"{CALL}functions.", "get_weather", ""),
        (f"{CALL}call_1{ARGS}" + '{"city": "O', "get_weather", '{"city": "O'),
        (CALL, "get_weather", ""),
    ],
)
def test_cut_by_max_tokens(output, name, arguments):
    events = in_every_cut(BEGIN + output, [WEATHER], cut=True)
    assert [e.type for e in events if e.type != "arguments"] == ["call", "call_end"]
    assert [(n, a) for n, _, a in answer(events)["calls"]] == [(name, arguments)]


def test_when_events_come():
    stream = ToolCallStream([WEATHER])
    call = Event("call", name="get_weather", id=ID0, index=0)
    for fed, events in [
        (("Hi", None), [Event("content", "Hi")]),
        (("", BEGIN), []),
        (("", CALL), []),
        (("functions.", None), []),
        (("get_weather:0", None), []),
        (("", ARGS), [call]),
        ((' {"', None), [Event("arguments", '{"')]),
        (("city", None), [Event("arguments", "city")]),
        (('": "', None), [Event("arguments", '": "')]),
        (("Os", None), [Event("arguments", "Os")]),
        (("lo\\", None), [Event("arguments", "lo")]),
        (('n"', None), [Event("arguments", '\\n"')]),
        ((", ", None), []),
        (("'a': 1}", None), []),
        (("", STOP), [Event("arguments", ', "a": 1}'), Event("call_end")]),
        (("", CALL), []),
        (
            ("get_weather:1 {", None),
            [
                Event("call", name="get_weather", id="get_weather:1"),
                Event("arguments", "{"),
            ],
        ),
        (("", END), [Event("arguments", "}"), Event("call_end")]),
    ]:
        assert stream.feed(*fed) == events, fed
    assert stream.finish() == []


# The plugin contract ----------------------------------------------------------------


def parsed(*calls: tuple[str, dict]) -> list[dict]:
    return [
        {"id": i, "name": "get_weather", "arguments": json.loads(a)} for i, a in calls
    ]


@pytest.mark.parametrize(
    "text",
    [
        section((ID0, OSLO), (ID1, ROME)),
        section((ID0, OSLO), (ID1, ROME)).removeprefix(BEGIN).removesuffix(END),
        "Text { " + section((ID0, OSLO), (ID1, ROME)) + " after",
        "<think>Hm {</think>" + section((ID0, OSLO), (ID1, ROME)),
    ],
)
def test_parse_tool_call(text):
    assert parse_tool_call(text, [WEATHER]) == parsed((ID0, OSLO), (ID1, ROME))
    assert parse_tool_call(text) == parsed((ID0, OSLO), (ID1, ROME))


@pytest.mark.parametrize(
    "text",
    [
        f"{ID0}{ARGS}{OSLO}",
        f" {ID0} {ARGS} {OSLO} ",
        f"\n{ID0}{OSLO}{STOP}",
        f"{BEGIN}{ID0}{ARGS}{OSLO}{END}",
        f"{CALL}{ID0}{ARGS}{OSLO}",
        f"</think>{BEGIN}{ID0}{ARGS}{OSLO}{STOP}{END}",
    ],
)
def test_parse_the_inside_of_one_call(text):
    assert parse_tool_call(text, [WEATHER]) == parsed((ID0, OSLO))
    assert parse_tool_call(text) == parsed((ID0, OSLO))


def test_parse_the_inside_of_one_call_as_exo_gives_it():
    text = 'functions.multiply:0<|tool_call_argument_begin|>{"a": 2, "b": 3}'
    expected = {
        "id": "functions.multiply:0",
        "name": "multiply",
        "arguments": {"a": 2, "b": 3},
    }
    assert parse_tool_call(text, None) == [expected]
    inside = f'functions.f:0{ARGS}{{"a": "{CALL}<think>{STOP}"}}'
    assert parse_tool_call(inside)[0]["arguments"] == {"a": f"{CALL}<think>{STOP}"}


@pytest.mark.parametrize(
    "text",
    ["", " ", "Hello.", "Hello {}", OSLO, BEGIN + END, "<think>", STOP, '{"a": "x:1"}'],
)
def test_no_call_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse_tool_call(text, [WEATHER])


def test_parse_ids_and_arguments():
    for written, arguments, expected in [
        (
            "functions_get_weather_3",
            "{}",
            {"id": "functions.get_weather:3", "arguments": {}},
        ),
        ("call_1", OSLO, {"id": "call_1", "arguments": {"city": "Oslo"}}),
        (ID0, "{1, 2}", {"id": ID0, "arguments": "{1, 2}"}),
        (ID0, '{"a": 1}}', {"id": ID0, "arguments": {"a": 1}}),
        (ID0, '{"a": ' + "1" * 5000 + "}", None),
        (ID0, '{"a": ' + "[" * 10_000 + "]" * 10_000 + "}", None),
    ]:
        (call,) = parse_tool_call(section((written, arguments)), [WEATHER])
        if (
            expected is None
        ):  # beyond json's limits, which differ: the text itself, or decoded
            assert call["arguments"] == arguments or isinstance(call["arguments"], dict)
        else:
            assert call == {"name": "get_weather", **expected}


# Properties -------------------------------------------------------------------------

pieces = st.lists(
    st.sampled_from(sorted(MARKERS)).map(lambda m: ("", m))
    | st.sampled_from(
        [
            ID0,
            "call_1",
            "0",
            OSLO,
            '{"a',
            '": ',
            '"',
            "'",
            "{",
            "}",
            "[1, ",
            "]",
            ",",
            "\\",
            " ",
            "\n",
            "null",
            "True",
            "é🙂",
            "\ud800",
        ]
        + [
            "<|tool_call",
            "_section_begin|>",
            SINGULAR,
            SINGULAR_END,
            "<",
            "<think>",
            CALL,
            STOP,
            "x",
            "//",
        ]
    ).map(lambda t: (t, None)),
    max_size=25,
)


def recut(fed, where: list[int], text: bool):
    """The same output in other pieces; markers stay whole unless they are text."""
    merged: list[tuple[str, str | None]] = []
    for piece, marker in fed:
        if marker is not None and not text:
            merged.append(("", marker))
        elif merged and merged[-1][1] is None:
            merged[-1] = (merged[-1][0] + (marker or piece), None)
        else:
            merged.append((marker or piece, None))
    out = []
    for piece, marker in merged:
        edges = sorted({0, len(piece), *(i % (len(piece) + 1) for i in where)})
        cuts = [(piece[a:b], None) for a, b in pairwise(edges)]
        out += [("", marker)] if marker is not None else cuts
    return out


@given(
    pieces,
    st.lists(st.integers(0, 200), max_size=6),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, [WEATHER], [WEATHER, NEWS]]),
)
@settings(max_examples=2000, deadline=None)
def test_any_output_in_any_cut(fed, where, text, reasoning, cut, tools):
    options = {"text": text, "reasoning": reasoning, "cut": cut}
    events = run(recut(fed, [], text), tools, **options)
    assert run(recut(fed, where, text), tools, **options) == events
    assert run(recut(fed, list(range(200)), text), tools, **options) == events
    # Each call is begun and ended, and has text of its own in between at most.
    kinds = " ".join(e.type for e in events if e.type not in ("content", "reasoning"))
    assert re.fullmatch(r"(call( arguments)? call_end( |$))*", kinds)
    if not text:
        assert kinds.count("call_end") == sum(marker == CALL for _, marker in fed)
    assert all(e.name for e in events if e.type == "call")


words = st.lists(
    st.sampled_from(sorted(MARKERS)).map(lambda m: ("", m))
    | st.sampled_from(["word", " word", "word\n"]).map(lambda t: (t, None)),
    max_size=30,
)


@given(words, st.booleans(), st.booleans())
@settings(max_examples=500, deadline=None)
def test_all_text_is_accounted_for(fed, reasoning, cut):
    fed = [
        (text.replace("word", f"word{i}."), marker)
        for i, (text, marker) in enumerate(fed)
    ]
    events = run(fed, reasoning=reasoning, cut=cut)
    shown = "".join(e.text + e.id + e.name for e in events)
    for text, _ in fed:
        assert not text or text.strip() in shown
    # In content and reasoning every byte is kept, as generated, in order.
    visible = "".join(e.text for e in events if e.type in ("content", "reasoning"))
    everything = "".join(text for text, _ in fed)
    rest = iter(everything)
    assert all(char in rest for char in visible)
    assert not any(m in visible for m in MARKERS)


@given(st.text(max_size=60), st.sampled_from([None, [WEATHER]]))
@settings(max_examples=300, deadline=None)
def test_parse_tool_call_raises_only_value_error(text, tools):
    for given_text in (
        text,
        f"{CALL}{text}",
        f"{ID0}{ARGS}{text}",
        f"{CALL}0{ARGS}{{{text}{STOP}{text}",
    ):
        try:
            calls = parse_tool_call(given_text, tools)
        except ValueError:
            continue
        assert calls and all(
            {"id", "name", "arguments"} == call.keys() for call in calls
        )
        assert all(isinstance(c["arguments"], (dict, str)) for c in calls)


# Cost -------------------------------------------------------------------------------


def seconds_a_token(count: int, piece: str, end: str) -> float:
    best = float("inf")
    for _ in range(3):
        stream = ToolCallStream([WEATHER])
        for fed in [
            ("", BEGIN),
            ("", CALL),
            (ID0, None),
            ("", ARGS),
            ('{"a": "', None),
        ]:
            stream.feed(*fed)
        begin = time.perf_counter()
        for _ in range(count):
            stream.feed(piece)
        stream.feed(end)
        stream.feed("", STOP)
        best = min(best, time.perf_counter() - begin)
    return best / count


@pytest.mark.parametrize("piece, end", [(" word", '"}'), ("\\d", '"}'), ("x", "")])
def test_cost_a_token_does_not_grow(piece, end):
    # Far above noise, far below what work that grows with the call would give (32).
    assert seconds_a_token(32_000, piece, end) < 3 * seconds_a_token(1_000, piece, end)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": "' + "\\q" * 100_000,
        "[" * 200_000,
        '{"a":' * 50_000 + "}",
        "'" * 200_000,
        '{"a": "' + (STOP + CALL) * 5_000,
    ],
)
def test_hostile_arguments_take_linear_time(arguments):
    begin = time.perf_counter()
    assert parse_tool_call(f"{ID0}{ARGS}{arguments}", [WEATHER])
    run([(ID0, None) if c == 0 else (arguments, None) for c in range(2)], [WEATHER])
    assert time.perf_counter() - begin < 10


@pytest.mark.parametrize(
    "schema, arguments",
    [
        ({"type": "null"}, "null"),
        ({"type": ["null"]}, "null"),
        ({"type": "string"}, '"{\\"a\\": 1}"'),
        ({"type": "array"}, "[1, 2]"),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, '"[1]"'),
        ({"type": "object"}, "{}"),
    ],
)
def test_arguments_that_are_no_object_by_the_schema(schema, arguments):
    """The verifier's schemas may be of any type at the root; such values stay."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    output = section(("functions.f:0", arguments))
    for pieces in token_cuts(tokens(output)):
        events = run(pieces, tools)
        assert "".join(e.text for e in events if e.type == "arguments") == arguments
