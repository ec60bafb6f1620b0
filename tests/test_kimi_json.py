"""tool_parsers/kimi_json.py: what of an argument string is certain, and mending."""

import json
from itertools import pairwise

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlx_lm.tool_parsers.kimi_json import ObjectScanner, is_object, mend
from mlx_lm.tool_parsers.kimi_names import accepts


def scan(pieces, ended: bool = True) -> tuple[str, str]:
    """What is passed on as it comes, and what at the end of the call."""
    scanner = ObjectScanner()
    certain = "".join([scanner.feed(piece) for piece in pieces])
    return certain, scanner.finish(ended)


def every_cut(text: str):
    """The text whole, character by character, and cut in two at each place."""
    yield [text]
    yield list(text)
    yield from ([text[:i], text[i:]] for i in range(1, len(text)))


# Byte for byte: all of RFC 8259.
VALID = [
    "{}",
    "{ }",
    '{"city": "Oslo"}',
    '{ "a" : 1e999 , "a":"\\u00e9\\/" , "b": 123456789012345678901234567890 }',
    '{\n  "a": [1, -0, 0.5, 1E+2, 10e-3, [], [[]], {}],\r\n\t"b": {"c": null}\n}',
    '{"t": true, "f": false, "n": null, "": ""}',
    '{"lone": "\\ud800", "pair": "\\ud83d\\ude00", "raw": "\ud800", "del": "\x7f\u2028"}',
    '{"path": "C:\\new\\table", "s": "5", "<|tool_call_end|>": "</think>"}',
    '{"digits": ' + "9" * 5000 + "}",
    '{"deep": ' + "[" * 10_000 + "]" * 10_000 + "}",
]


@pytest.mark.parametrize("text", VALID, ids=range(len(VALID)))
def test_valid_objects_pass_byte_for_byte(text):
    cuts = every_cut(text) if len(text) < 1000 else ([text], list(text))
    for pieces in cuts:
        assert scan(pieces) == (text, "")
    assert scan([" \n", text, "\n "]) == (text, "")
    assert scan([text], ended=False) == (text, "")


# Argument text -> the argument string of a call that was properly ended.
MENDED = {
    "empty": ("", "{}"),
    "blank": (" \n ", "{}"),
    "null": ("null", "{}"),
    "None": ("None", "{}"),
    "python": (
        "{'a': True, 'b': None, 'c': [False]}",
        '{"a": true, "b": null, "c": [false]}',
    ),
    "python later": ("{\"a\": 1, 'b': True}", '{"a": 1, "b": true}'),
    "python quotes": (
        r"""{'a': 'it\'s "x" \" \\ \n'}""",
        r"""{"a": "it's \"x\" \" \\ \n"}""",
    ),
    "escaped apostrophe": (r"""{"a": "it\'s"}""", """{"a": "it's"}"""),
    "trailing commas": (
        '{"a": [1,2,], "b": {"c": 3, },}',
        '{"a": [1,2], "b": {"c": 3 }}',
    ),
    "raw control characters": ('{"a": "x\n\ty\r\x00"}', '{"a": "x\\n\\ty\\r\\u0000"}'),
    "stray backslashes": (
        r'{"a": "\d+ C:\Users \x41 \u12"}',
        r'{"a": "\\d+ C:\\Users \\x41 \\u12"}',
    ),
    "line continuation": ('{"a": "ls \\\n  -l"}', '{"a": "ls \\\\\\n  -l"}'),
    "comments": (
        '{"a": 1, // one\n "b": /* two */ 2 # three\n}',
        '{"a": 1, \n "b":  2 \n}',
    ),
    "comment in a string": (
        '{"a": "http://x/*y*/#z", b: 1}',
        '{"a": "http://x/*y*/#z", "b": 1}',
    ),
    "unquoted keys": (
        "{a: 1, b_2: {$c-d: 2}, é: 3}",
        '{"a": 1, "b_2": {"$c-d": 2}, "é": 3}',
    ),
    "doubly encoded": (r'"{\"a\": \"x\\ny\"}"', r'{"a": "x\ny"}'),
    "encoded three times": (json.dumps(json.dumps('{"a": 1}')), '{"a": 1}'),
    "doubly encoded, mended": ("\"{'a': 1}\"", '{"a": 1}'),
    "doubly encoded, raw newline": ('"{\n\\"a\\": 1}"', '{\n"a": 1}'),
    "fence": ('```json\n{"a": 1}\n```', '{"a": 1}'),
    "bare fence": ('```{"a": 1}```', '{"a": 1}'),
    "fence in a string": ('{"a": "```"}', '{"a": "```"}'),
    "bracket missing": ('{"a": {"b": 1}', '{"a": {"b": 1}}'),
    "brackets missing": ('{"a": [{"b": [1, 2', '{"a": [{"b": [1, 2]}]}'),
    "all missing": ("{", "{}"),
    "missing after a comma": ('{"a": [1, ', '{"a": [1]}'),
    "missing after a word": ('{"a": true', '{"a": true}'),
    "missing inside": ('{"a": [{"b": 1}, {"b": 2}, "c": 3}', None),
    "missing before another": (
        '{"a": [{"b": 1}, {"b": 2}}',
        '{"a": [{"b": 1}, {"b": 2}]}',
    ),
    "one too many": ('{"a": 1}}', '{"a": 1}'),
    "one too many inside": ('{"a": 1]}', '{"a": 1}'),
    "many too many": ('{"a": 1}\n]}', '{"a": 1}'),
    "odd space": ('{"a":\u00a01}', '{"a": 1}'),
    "well-formed parts keep their bytes": (
        '{"a":1e999 , "\\u00e9\\/":-0.0, "a":"5", x:12345678901234567890}',
        '{"a":1e999 , "\\u00e9\\/":-0.0, "a":"5", "x":12345678901234567890}',
    ),
    # No sane reading, or more than one: the text itself.
    "set": ("{1, 2}", None),
    "set of strings": ("{'a', 'b'}", None),
    "tuple": ('{"a": (1, 2)}', None),
    "NaN": ('{"a": NaN}', None),
    "infinity": ('{"a": [-Infinity]}', None),
    "number forms": ('{"a": 012}', None),
    "hexadecimal": ('{"a": 0x1F}', None),
    "number key": ('{1: "a"}', None),
    "word key": ('{None: "a"}', None),
    "word value": ('{"a": yes}', None),
    "missing quote": ('{"a": "ls", b": "x"}', None),
    "unclosed string": ('{"a": "ls', None),
    "unclosed string with a space": ('{"a": "ls ', None),
    "quotes in a string": ('{"a": "say "hi" now"}', None),
    "missing value": ('{"a": }', None),
    "missing value at the end": ('{"a":', None),
    "missing colon": ('{"a" 1}', None),
    "missing comma": ('{"a": 1 "b": 2}', None),
    "two commas": ('{"a": 1,, "b": 2}', None),
    "leading comma": ('{, "a": 1}', None),
    "half a word": ('{"a": tru', None),
    "half a number": ('{"a": 1.', None),
    "text after": ('{"a": 1} Done.', None),
    "two objects": ('{"a": 1}{"b": 2}', None),
    "closed too early": ('{"a": {"b": 1}}, "c": 2}', None),
    "unclosed comment": ('{"a": 1 /* }', None),
    "text": ("oops", None),
    "xml": ("<path>src</path>", None),
    "array": ("[1, 2]", None),
    "number": ("42", None),
    "string": ('"just text"', None),
    "empty string": ('""', None),
    "nested nul": ("nul", None),
}


@pytest.mark.parametrize("case", MENDED)
def test_mending(case):
    text, expected = MENDED[case]
    expected = text if expected is None else expected
    cuts = list(every_cut(text))
    whole = scan(cuts[0])
    assert "".join(whole) == expected
    for pieces in cuts:
        assert scan(pieces) == whole, pieces
    # What was cut off is left as it is.
    cut = "".join(scan([text], ended=False))
    assert text == "null" or cut == text.strip() or cut == text


def test_what_is_passed_on_before_the_end():
    """Only what can no longer change; a comma may be a trailing one, an escape none."""
    for text, certain in {
        '{"a': '{"a',
        '{"a": 1, ': '{"a": 1',
        '{"a": 1, "': '{"a": 1, "',
        '{"a": "x\\': '{"a": "x',
        '{"a": "x\\u12': '{"a": "x',
        '{"a": "x\\u1234': '{"a": "x\\u1234',
        '{"a": "x\n': '{"a": "x',
        '{"a": 1, \'b': '{"a": 1',
        "nul": "",
        '"{\\"a': "",
        '{"a": 1} ': '{"a": 1}',
    }.items():
        assert scan(text)[0] == certain, text


def test_where_a_string_is_open():
    for text, quote in {
        "": "",
        '{"a': '"',
        '{"a"': "",
        '{"a\\"': '"',
        '{"a\\u00': '"',
        "{'a": "'",
        "{'a\\'": "'",
        "{'a'": "",
        "{'a\"": "'",
        '{"x\n': '"',
        '{"x\n"': "",
        '{"x\\': '"',
        '{"x\\q': '"',
        '{"x\\u1"': "",
        '"{\\"': '"',
    }.items():
        for pieces in every_cut(text):
            scanner = ObjectScanner()
            for piece in pieces:
                scanner.feed(piece)
            assert scanner.quote == quote, pieces


def test_a_whole_object_is_decoded_once():
    scanner = ObjectScanner()
    scanner.feed(' {"a": [1]} ')
    assert scanner.value == {"a": [1]}
    scanner.feed("}")
    assert scanner.value is None


HOSTILE = {
    "open brackets": '{"a": ' + "[" * 10_000,
    "open objects": '{"a":' * 10_000,
    "open, then faulty": "{a: " + "[" * 10_000 + "}",
    "closing": "{a: 1" + "]" * 10_000,
    "huge integer": '{"a": ' + "7" * 100_000 + ", b: 1}",
    "a megabyte": '{"a": "' + "\\q" * 500_000 + '"}',
    "quotes": '"' * 10_000,
    "fences": "```" * 10_000,
    "lone surrogates": "{'\ud800': '\udfff\ud800'}",
    "nothing but backslashes": '{"a": "' + "\\" * 9_999,
    "wrapped too often": json.dumps(
        json.dumps(json.dumps(json.dumps(json.dumps('{"a": 1}'))))
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_raises(case):
    text = HOSTILE[case]
    certain, rest = scan([text])
    assert text.startswith(certain)
    assert certain + rest == text or is_object(certain + rest)


# Properties -------------------------------------------------------------------------

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda v: st.lists(v, max_size=4)
    | st.dictionaries(st.text(max_size=5), v, max_size=4),
    max_leaves=12,
)
json_objects = st.dictionaries(st.text(max_size=5), json_values, max_size=4)
# Text near JSON: the pieces that make and break it.
near_json = st.lists(
    st.sampled_from(
        list('{}[]:,"\'\\/ \n\t01-.eEtfn#*`u{}"",,::')
        + [
            '"a"',
            "'b'",
            "c",
            "True",
            "None",
            "null",
            "1.5",
            '"x',
            "\\u00",
            "//",
            "/*",
            "*/",
            "\ud800",
            "```",
            "\\'",
        ]
    ),
    max_size=25,
).map("".join)


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(i % (len(text) + 1) for i in places)})
    return [text[a:b] for a, b in pairwise(edges)]


places = st.lists(st.integers(0, 1000), max_size=8)


@given(json_objects, st.booleans(), st.sampled_from([None, 1]), places)
@settings(max_examples=300, deadline=None)
def test_any_valid_object_is_unchanged(value, ascii_only, indent, where):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert scan(cut(text, where)) == (text, "")
    assert mend(text) == text


@given(json_objects, places)
@settings(max_examples=200, deadline=None)
def test_python_literals_are_mended(value, where):
    # repr writes what json can't read back as the same only for floats and characters
    # that it escapes by \x; the rest is one reading.
    text = repr(value)
    if "\\x" in text or "\\U" in text:
        return
    assert json.loads("".join(scan(cut(text, where)))) == value


@given(near_json, places, st.booleans())
@example('{"a":1,', [6], True)
@settings(max_examples=1500, deadline=None)
def test_any_text(text, where, ended):
    whole = scan([text], ended)
    assert scan(cut(text, where), ended) == whole
    certain, final = whole[0], "".join(whole)
    assert text.lstrip().startswith(certain)
    assert (
        final in (text.strip(), text.lstrip(), "{}")
        or is_object(final)
        or final == certain
    )
    if not ended and text.strip() != "null":
        assert text.lstrip().startswith(final)


def reject(constant):
    raise ValueError(constant)


@given(near_json)
@settings(max_examples=1000, deadline=None)
def test_valid_means_what_json_says(text):
    try:
        valid = isinstance(json.loads(text, parse_constant=reject), dict)
    except ValueError:
        valid = False
    scanner = ObjectScanner()
    for char in text:  # so that json itself is not asked
        scanner.feed(char)
    assert scanner.complete == valid
    if valid:
        assert "".join(scan([text])) == text.strip()


# Schemas ----------------------------------------------------------------------------

OBJECT = {"type": "object"}
NODE = {
    "$defs": {
        "Node": {
            **OBJECT,
            "properties": {"child": {"$ref": "#/$defs/Node"}, "n": {"type": "integer"}},
        }
    },
    "$ref": "#/$defs/Node",
}
CITY = {**OBJECT, "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    "schema, value, expected",
    [
        (CITY, {"city": "Oslo"}, True),
        (CITY, {"city": 5}, False),
        (CITY, {}, False),
        (CITY, {"city": "Oslo", "x": 1}, False),  # a key it doesn't declare
        (CITY, "Oslo", False),
        ({}, {}, True),
        ({}, {"a": 1}, False),
        (NODE, {"child": {"child": {"n": 1}}}, True),
        (NODE, {"child": {"child": {"n": "1"}}}, False),
        ({"properties": {"a": {"enum": [1, "x"]}}}, {"a": True}, False),
        ({"properties": {"a": {"enum": [1, "x"]}}}, {"a": "x"}, True),
        ({"properties": {"a": {"const": None}}}, {"a": None}, True),
        ({"properties": {"a": {"type": ["string", "null"]}}}, {"a": None}, True),
        ({"properties": {"a": {"type": "integer"}}}, {"a": 2.0}, True),
        ({"properties": {"a": {"type": "integer"}}}, {"a": float("inf")}, False),
        ({"properties": {"a": {"type": "number"}}}, {"a": True}, False),
        ({"properties": {"a": {"items": {"type": "string"}}}}, {"a": ["x", 1]}, False),
        (
            {"properties": {"a": {**OBJECT, "additionalProperties": False}}},
            {"a": {"b": 1}},
            False,
        ),
        (
            {"properties": {"a": {"additionalProperties": {"type": "string"}}}},
            {"a": {"b": 1}},
            False,
        ),
        (
            {"anyOf": [CITY, {"properties": {"zip": {}}, "required": ["zip"]}]},
            {"zip": 1},
            True,
        ),
        ({"oneOf": [CITY, CITY]}, {"city": "x"}, False),
        ({"allOf": [CITY, {"properties": {"zip": {}}}]}, {"city": "x", "zip": 1}, True),
        ({"$ref": "#"}, {}, False),
        ({"$ref": "https://example.com/x"}, {}, False),
        ({"$ref": 7, "properties": 5, "required": 3, "type": {}, "enum": 1}, {}, False),
        ({"properties": 5, "required": "city", "type": {"a": 1}, "anyOf": 1}, {}, True),
        (None, {}, True),
        ([], {}, True),
        ({"anyOf": [{"$ref": "#"}] * 100}, {}, False),
    ],
)
def test_schemas(schema, value, expected):
    assert accepts(schema, value) is expected


kinds = st.sampled_from(
    ["object", "array", "string", "integer", "number", "boolean", "null"]
)
schemas = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={"type": kinds | st.lists(kinds, min_size=1, max_size=2, unique=True)},
    )
    | st.fixed_dictionaries(
        {
            "enum": st.lists(
                st.integers(0, 2) | st.booleans(),
                min_size=1,
                max_size=2,
                unique_by=repr,
            )
        }
    )
    | st.fixed_dictionaries({"const": st.integers(0, 2)}),
    lambda s: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), s, max_size=3),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "additionalProperties": s | st.booleans(),
            "items": s,
            "anyOf": st.lists(s, min_size=1, max_size=2),
            "oneOf": st.lists(s, min_size=1, max_size=2),
            "allOf": st.lists(s, min_size=1, max_size=2),
        },
    ),
    max_leaves=5,
)
instances = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 2)
    | st.floats(0, 2)
    | st.sampled_from(["", "x"]),
    lambda v: st.lists(v, max_size=2)
    | st.dictionaries(st.sampled_from("abc"), v, max_size=3),
    max_leaves=5,
)


@given(schemas, st.dictionaries(st.sampled_from("abc"), instances, max_size=3))
@settings(max_examples=400, deadline=None)
def test_schemas_as_jsonschema_does(schema, value):
    declared = {"allOf": [schema, {"properties": {key: {} for key in "abc"}}]}
    assert accepts(declared, value) == jsonschema.Draft202012Validator(
        declared
    ).is_valid(value)
