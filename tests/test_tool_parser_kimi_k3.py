"""tool_parsers/kimi_k3.py: XTML calls, in every cut, as text and as tokens."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tool_parsers import kimi_k3
from mlx_lm.tool_parsers.kimi_k3 import MARKERS, Event, ToolCallStream, parse_tool_call

from tests.test_tool_parser_kimi_k2 import WEATHER, joined, token_cuts, tool

SPLIT = re.compile("(" + "|".join(map(re.escape, MARKERS)) + ")")


def opened(tag: str) -> str:
    return f"<|open|>{tag}<|sep|>"


def closed(tag: str) -> str:
    return f"<|close|>{tag}<|sep|>"


def element(tag: str, text: str = "") -> str:
    return opened(tag) + text + closed(tag.split()[0])


def argument(key: str, value: str, kind: str = "string") -> str:
    return element(f'argument key="{key}" type="{kind}"', value)


def call(name: str, *inside: str, index: int = 1) -> str:
    return element(f'call tool="{name}" index="{index}"', "".join(inside))


def tools(*calls: str) -> str:
    return element("tools", "".join(calls))


END = closed("message")
CITY = call("get_weather", argument("city", "Oslo"))


def tokens(output: str) -> list[tuple[str, str | None]]:
    """(text, marker) as a server feeds them; spelled markers are tokens."""
    parts = [p for p in SPLIT.split(output) if p]
    return [("", p) if p in MARKERS else (p, None) for p in parts]


def run(fed, declared=None, *, text=False, reasoning=False, cut=False) -> list[Event]:
    stream = ToolCallStream(declared, reasoning=reasoning, markers_in_text=text)
    events = [e for piece in fed for e in stream.feed(*piece)]
    events += stream.finish(cut)
    assert stream.finish() == []
    return joined(events)


def read(output, declared=None, *, reasoning=True, cut=False):
    """(reasoning, content, [(name, arguments)]), the same in every cut and as text."""
    found = None
    fed = tokens(output)
    as_text = [[(output, None)], [(c, None) for c in output]]
    for pieces, text in [(p, False) for p in token_cuts(fed)] + [
        (p, True) for p in as_text
    ]:
        events = run(pieces, declared, text=text, reasoning=reasoning, cut=cut)
        now = parts(events)
        assert found in (None, now), "the same in every cut"
        found = now
    return found


def parts(events):
    reasoning = "".join(e.text for e in events if e.type == "reasoning")
    content = "".join(e.text for e in events if e.type == "content")
    calls: list[list[str]] = []
    for event in events:
        if event.type == "call":
            calls.append([event.name, ""])
        elif event.type == "arguments":
            calls[-1][1] += event.text
    return reasoning, content, [tuple(c) for c in calls]


OSLO = [("get_weather", '{"city": "Oslo"}')]
# name -> (output after the opened think element, reasoning, content, calls)
FORMS = {
    "whole turn": (
        "t"
        + closed("think")
        + element("response", "ok")
        + tools(CITY)
        + END
        + "<|end_of_msg|>",
        ("t", "ok", OSLO),
    ),
    "only an answer": (
        closed("think") + element("response", "ok") + END,
        ("", "ok", []),
    ),
    "no arguments": (closed("think") + tools(call("f")), ("", "", [("f", "{}")])),
    "two calls": (
        closed("think") + tools(call("f", argument("a", "")), call("g", index=2)),
        ("", "", [("f", '{"a": ""}'), ("g", "{}")]),
    ),
    "json block": (
        closed("think") + tools(call("f", element('json type="object"', '{"a":1}'))),
        ("", "", [("f", '{"a":1}')]),
    ),
    "json block of a string": (
        closed("think")
        + tools(call("f", element('json type="object"', r'"{\"a\":1}"'))),
        ("", "", [("f", '{"a":1}')]),
    ),
    "object without its tags": (
        closed("think") + tools(call("f", '{"a": [1,]}')),
        ("", "", [("f", '{"a": [1]}')]),
    ),
    "think not closed before tools": ("t" + tools(CITY), ("t", "", OSLO)),
    "think not closed before response": (
        "t" + opened("response") + "A." + END,
        ("t", "A.", []),
    ),
    "think not closed before a call": ("t" + CITY, ("t", "", OSLO)),
    "response closed in the thought": (
        "t" + closed("response") + tools(CITY),
        ("t", "", OSLO),
    ),
    "tools closed in the thought": ("t" + closed("tools") + "a", ("t", "a", [])),
    "no tools element": (closed("think") + CITY + END, ("", "", OSLO)),
    "nothing closed": (
        closed("think")
        + opened("tools")
        + opened('call tool="get_weather" index="1"')
        + opened('argument key="city" type="string"')
        + "Oslo",
        ("", "", OSLO),
    ),
    "call not closed before the next": (
        closed("think")
        + opened("tools")
        + opened('call tool="get_weather" index="1"')
        + argument("city", "Oslo")
        + call("f", index=2),
        ("", "", [*OSLO, ("f", "{}")]),
    ),
    "argument not closed before the next": (
        closed("think")
        + opened('call tool="f" index="1"')
        + opened('argument key="a" type="string"')
        + "x"
        + argument("b", "y"),
        ("", "", [("f", '{"a": "x", "b": "y"}')]),
    ),
    "text between elements": (
        "t" + closed("think") + "\n" + tools(CITY, "\n", "and ", call("f")) + " end",
        ("t", "\nand end", [*OSLO, ("f", "{}")]),
    ),
    "text in a call": (
        closed("think") + tools(call("f", "hm", argument("a", "x"))),
        ("", "hm", [("f", '{"a": "x"}')]),
    ),
    "tools as prose": (
        closed("think")
        + opened("response")
        + "I will "
        + opened("tools")
        + "now"
        + END,
        ("", "I will now", []),
    ),
    "escaped attributes": (
        closed("think") + call("f", argument("a&amp;&quot;b", "x")),
        ("", "", [("f", '{"a&\\"b": "x"}')]),
    ),
    "a name with <": (closed("think") + tools(call("a<b")), ("", "", [("a<b", "{}")])),
    "quotes and lines in a string": (
        closed("think") + call("f", argument("a", 'x"\\\n\t你')),
        ("", "", [("f", '{"a": "x\\"\\\\\\n\\t你"}')]),
    ),
    "markers in an argument": (
        closed("think")
        + call("f", argument("a", opened("b") + "<|sep|>" + closed("think") + "x")),
        (
            "",
            "",
            [
                (
                    "f",
                    '{"a": "<|open|>b<|sep|><|sep|><|close|>think<|sep|>x"}',
                )
            ],
        ),
    ),
    "an unknown tag": (
        closed("think") + opened("response") + "a" + opened("b") + "c",
        ("", "abc", []),
    ),
    "a stray separator": (
        closed("think") + opened("response") + "a<|sep|>b",
        ("", "ab", []),
    ),
    "a prefix and an index on the name": (
        closed("think") + tools(call("functions.get_weather:0", argument("city", "x"))),
        ("", "", [("get_weather", '{"city": "x"}')]),
    ),
    "no type": (
        closed("think") + call("f", element('argument key="a"', "1")),
        ("", "", [("f", '{"a": "1"}')]),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    output, expected = FORMS[name]
    assert read(output, [WEATHER, tool("f"), tool("g"), tool("a<b")]) == expected


# (type, text of the argument, its JSON)
TYPED = [
    ("number", "1e2", "1e2"),
    ("number", "-0.5", "-0.5"),
    ("number", " 7\n", "7"),
    ("number", "007", '"007"'),
    ("number", "NaN", '"NaN"'),
    ("number", "", '""'),
    ("integer", "3", "3"),
    ("boolean", "true", "true"),
    ("boolean", "True", "true"),
    ("boolean", "yes", '"yes"'),
    ("null", "null", "null"),
    ("null", "", "null"),
    ("object", '{"a":[1]}', '{"a":[1]}'),
    ("object", ' { "a" : 1 } ', '{ "a" : 1 }'),
    ("object", "{'a': True}", '{"a": true}'),
    ("object", '{"a": {"b": 1}', '{"a": {"b": 1}}'),
    ("object", r'"{\"a\": 1}"', '{"a": 1}'),
    ("object", "verbose, fast", '"verbose, fast"'),
    ("object", "{1, 2}", '"{1, 2}"'),
    ("object", "", "{}"),
    ("object", "null", "null"),
    ("array", "[1,2]", "[1,2]"),
    ("array", "[1, 2,]", "[1, 2]"),
    ("array", '["a", {"b": []}]', '["a", {"b": []}]'),
    ("array", "[", "[]"),
    ("array", "", "[]"),
    ("array", "a, b", '"a, b"'),
    ("string", "007", '"007"'),
    ("string", "", '""'),
    ("string", "null", '"null"'),
]


@pytest.mark.parametrize("kind, text, expected", TYPED)
def test_types(kind, text, expected):
    output = tools(call("f", argument("x", text, kind), argument("s", "é")))
    _, _, calls = read(output, [tool("f")])
    assert calls == [("f", f'{{"x": {expected}, "s": "é"}}')]
    json.loads(calls[0][1])


def test_cut_keeps_what_there_is():
    whole = tools(call("f", argument("s", 'a"b'), argument("o", '{"a": 1}', "object")))
    seen = set()
    for end in range(len(tokens(whole)) + 1):
        _, content, calls = parts(run(tokens(whole)[:end], [tool("f")], cut=True))
        assert content == ""
        assert all('{"s": "a\\"b", "o": {"a": 1}}'.startswith(a) for _, a in calls)
        seen.update(a for _, a in calls)
    assert {"", '{"s": ', '{"s": "a\\"b", "o": '} <= seen


def test_arguments_stream():
    stream = ToolCallStream([tool("write_file")])
    for text, marker in tokens(opened("tools") + opened('call tool="write_file"')):
        events = stream.feed(text, marker)
    assert [e.type for e in events] == ["call"]
    for text, marker in tokens(opened('argument key="content" type="string"')):
        events = stream.feed(text, marker)
    assert events == [Event("arguments", '{"content": ')]
    assert [stream.feed(f"x{i}")[-1].text[-2:] for i in range(5)] == [
        f"x{i}" for i in range(5)
    ]
    for text, marker in tokens(
        closed("argument") + opened('argument key="o" type="object"')
    ):
        stream.feed(text, marker)
    assert stream.feed('{"a": [1') == [Event("arguments", '{"a": [1')]


@pytest.mark.parametrize("name", ["", "call_9f8e7d", "get_wether"])
def test_a_name_that_is_none(name):
    """The arguments tell the tool, and nothing of them is lost."""
    output = tools(call(name, argument("city", "Oslo")))
    _, _, calls = read(output, [WEATHER, tool("f")])
    assert calls == OSLO


def test_parse_tool_call():
    text = CITY + call("f", argument("n", "1", "number"))
    wanted = [
        {"name": "get_weather", "arguments": {"city": "Oslo"}},
        {"name": "f", "arguments": {"n": 1}},
    ]
    assert parse_tool_call(text) == wanted
    assert parse_tool_call(kimi_k3.tool_call_start + text) == wanted
    assert parse_tool_call(tools(text), [WEATHER]) == wanted
    whole = call("f", argument("a", "x"))
    for text in (
        call("f", element('json type="object"', "not json")),
        element('call index="1"'),
        opened('call tool="f" index="1"') + '<|open|>argument key="a" ty',
        opened('call tool="f" index="1"') + opened('argument key="a"') + "x",
        "nothing here",
    ):
        with pytest.raises(ValueError):
            parse_tool_call(text)
        f = {"name": "f", "arguments": {"a": "x"}}
        assert parse_tool_call(whole + text) == [f]
    assert parse_tool_call(opened('call tool="f" index="1"') + argument("a", "x")) == [
        f
    ]


TAGS = st.sampled_from(
    [
        "think",
        "response",
        "tools",
        "message",
        'call tool="get_weather" index="1"',
        'argument key="city" type="string"',
        'argument key="n" type="number"',
        'argument key="o" type="object"',
        'json type="object"',
        "other",
    ]
)
PIECES = st.lists(
    st.one_of(
        st.text(max_size=8),
        TAGS.map(opened),
        TAGS.map(lambda t: closed(t.split()[0])),
        st.sampled_from(sorted(MARKERS)),
        st.sampled_from(['{"a": 1}', "[1, 2", "true", "{'a':", '"x"']),
    ),
    max_size=20,
)


@given(PIECES, st.booleans(), st.booleans(), st.booleans())
def test_any_output(pieces, reasoning, cut, with_tools):
    """Nothing raises, every cut gives the same, and no text is lost."""
    output = "".join(pieces)
    declared = [WEATHER, tool("f")] if with_tools else None
    fed = tokens(output)
    first = None
    for cut_up in token_cuts(fed):
        events = run(cut_up, declared, reasoning=reasoning, cut=cut)
        first = first or events
        assert parts(events) == parts(first)
    assert all(e.type != "call" or e.name for e in first)
    found = "".join(parts(first)[:2]) + "".join(a for _, a in parts(first)[2])
    for word in re.findall(r"[a-z0-9]{3,}", " ".join(t for t, _ in fed)):
        if not re.search(rf"\b{word}\b", " ".join(TAG_WORDS)):
            assert cut or word in found


TAG_WORDS = (
    "think response tools message call tool get weather index argument key city type "
    "string number object json other 1 n o true"
).split()


@given(st.text(), st.sampled_from(["string", "number", "object", "array", "null"]))
def test_any_argument(text, kind):
    """The arguments are valid JSON, unless an object or array is one in part only."""
    output = tools(call("f", argument("x", text, kind)))
    events = run(tokens(output), [tool("f")])
    calls = parts(events)[2]
    if SPLIT.search(text) is None and "\ud800" not in text:
        assert len(calls) == 1
        if kind == "string":
            assert json.loads(calls[0][1]) == {"x": text}
        elif text.strip()[:1] not in ("{", "["):
            json.loads(calls[0][1])
