"""Client schemas: what is rewritten, what is refused, and the limits."""

import json
import logging
import time

import pytest

from mlx_lm_kimi.protocol.errors import RequestError
from mlx_lm_kimi.schema import Converted, settle
from mlx_lm_kimi.schema_limits import pattern_size
from tests.constraint_model import accepts, spec, tool


def convert(schema, *, strict=False):
    converted = Converted(schema, strict=strict, param="tools[0].function.parameters")
    settle([converted])
    return converted


def takes(schema, arguments: str) -> bool:
    """Whether a required call may have these arguments."""
    output = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        f"<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        "<|tool_calls_section_end|><|im_end|>"
    )
    return accepts(spec(tool("f", schema)), output)


TEXT = {"type": "string"}

# (schema, an instance that fits, one that does not), by JSON Schema's own rules.
MEANING = {
    "id": (
        {"$id": "odd#/x y", "type": "object", "properties": {"a": TEXT}},
        '{"a":"b"}',
        '{"a":1}',
    ),
    "ref to a path": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}},
        },
        '{"a":1,"b":2}',
        '{"a":1,"b":"2"}',
    ),
    "ref into a list": (
        {
            "anyOf": [
                {"type": "null"},
                {"type": "array", "items": {"$ref": "#/anyOf/0"}},
            ]
        },
        "[null]",
        "[1]",
    ),
    "escaped path": (
        {
            "properties": {"a/b": {"type": "null"}, "c": {"$ref": "#/properties/a~1b"}},
            "type": "object",
        },
        '{"c":null}',
        '{"c":1}',
    ),
    "percent path": (
        {
            "properties": {
                "ü x": {"type": "null"},
                "c": {"$ref": "#/properties/%C3%BC%20x"},
            },
            "type": "object",
        },
        '{"c":null}',
        '{"c":1}',
    ),
    "anchor": (
        {
            "$defs": {"x": {"$anchor": "here", "type": "null"}},
            "type": "object",
            "properties": {"a": {"$ref": "#here"}},
        },
        '{"a":null}',
        '{"a":1}',
    ),
    "id and path": (
        {
            "$id": "https://example.com/root.json",
            "$defs": {"x": {"$id": "x.json", "$defs": {"y": {"type": "null"}}}},
            "type": "object",
            "properties": {"a": {"$ref": "x.json#/$defs/y"}},
        },
        '{"a":null}',
        '{"a":1}',
    ),
    "a path below an id": (
        {
            "$defs": {"y": TEXT},
            "type": "object",
            "properties": {
                "a": {
                    "$id": "https://example.com/a",
                    "$defs": {"y": {"type": "null"}},
                    "anyOf": [{"$ref": "#/$defs/y"}],
                },
            },
        },
        '{"a":null}',
        '{"a":"x"}',
    ),
    "own id": (
        {
            "$id": "node",
            "type": "object",
            "properties": {"next": {"$ref": "node"}},
            "additionalProperties": False,
        },
        '{"next":{"next":{}}}',
        '{"next":1}',
    ),
    "ref to itself": (
        {
            "type": "object",
            "properties": {"a": {"$ref": "#"}},
            "additionalProperties": False,
        },
        '{"a":{"a":{}}}',
        '{"a":{"b":{}}}',
    ),
    "description beside a ref": (
        {
            "$defs": {"x": {"type": "null"}},
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/x", "description": "d"}},
        },
        '{"a":null}',
        '{"a":1}',
    ),
    "old tuples": (
        {"type": "array", "items": [{"type": "null"}], "additionalItems": TEXT},
        '[null,"a"]',
        "[1]",
    ),
    "old exclusive bound": (
        {"type": "integer", "minimum": 3, "exclusiveMinimum": True},
        "4",
        "3",
    ),
    "definitions": (
        {
            "definitions": {"x": {"type": "null"}},
            "type": "array",
            "items": {"$ref": "#/definitions/x"},
        },
        "[null]",
        "[1]",
    ),
    "a key named $ref": (
        {"type": "object", "properties": {"$ref": TEXT, "$id": TEXT}},
        '{"$ref":"a","$id":"b"}',
        '{"$ref":1}',
    ),
    "oneOf refs told apart by a constant": (
        {
            "oneOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/d"}],
            "$defs": {
                n: {
                    "type": "object",
                    "properties": {"k": {"const": n}},
                    "required": ["k"],
                    "additionalProperties": False,
                }
                for n in "cd"
            },
        },
        '{"k":"d"}',
        '{"k":"e"}',
    ),
    "undeclared key of a type": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "additionalProperties": TEXT,
        },
        '{"a":1,"b":"c"}',
        '{"a":1,"b":2}',
    ),
    "either key is needed": (
        {
            "type": "object",
            "properties": {"a": TEXT, "b": TEXT},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        '{"b":"x"}',
        "{}",
    ),
    "keywords of other types": (
        {"type": "string", "minimum": 5, "uniqueItems": True, "not": False},
        '"a"',
        "1",
    ),
    "great bounds": ({"type": "integer", "maximum": 10**30, "minimum": 0}, "5", "-5"),
    "bound beyond 2**53": (
        {"type": "integer", "maximum": 2**53 + 3},
        "9007199254740994",
        "9007199254740996",
    ),
    "date": ({"type": "string", "format": "date"}, '"2026-02-03"', '""'),
    "multiples with a bound": (
        {"type": "number", "multipleOf": 5, "minimum": 1},
        "10",
        "7",
    ),
    "non-ASCII names": (
        {"type": "object", "properties": {"城市": TEXT}, "required": ["城市"]},
        '{"城市":"上海"}',
        '{"city":"x"}',
    ),
}


@pytest.mark.parametrize("case", MEANING)
def test_a_rewritten_schema_means_the_same(case):
    schema, good, bad = MEANING[case]
    convert(schema, strict=True)
    assert takes(schema, good)
    assert not takes(schema, bad)


def test_a_minimum_that_nobody_reaches_is_not_forgotten():
    assert not takes({"type": "string", "minLength": 999999999999}, '"abc"')
    assert takes({"type": "string", "maxLength": 10**30}, '"abc"')
    assert not takes({"type": "array", "minItems": 10**12}, "[1]")


# (schema, path, keyword): each can't be enforced.
UNSUPPORTED = [
    ({"properties": {"x": {"not": {"type": "string"}}}}, "properties.x", "not"),
    ({"if": {"type": "null"}, "then": False}, "", "if"),
    ({"items": {"type": "array", "uniqueItems": True}}, "items", "uniqueItems"),
    ({"type": "array", "contains": TEXT}, "", "contains"),
    ({"dependentRequired": {"a": ["b"]}}, "", "dependentRequired"),
    ({"propertyNames": {"maxLength": 3}}, "", "propertyNames"),
    ({"unevaluatedProperties": False}, "", "unevaluatedProperties"),
    (
        {"properties": {"x": {"type": "string", "pattern": "^(?!a)"}}},
        "properties.x",
        "pattern",
    ),
    ({"type": "string", "pattern": "(((a{1,99}){99}){99}){99}"}, "", "pattern"),
    ({"type": "string", "format": "color"}, "", "format"),
    ({"oneOf": [{"type": "object"}, {"type": "object"}]}, "", "oneOf"),
    ({"$ref": "https://example.com/other"}, "", "$ref"),
    ({"$ref": "#/$defs/none"}, "", "$ref"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "", "$ref"),
    (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "",
        "$ref",
    ),
    ({"type": "string", "enum": [1]}, "", "enum"),
    ({"enum": [2**53 + 1]}, "", "enum"),
    ({"const": "\ud800"}, "", "const"),
    ({"type": "integer", "multipleOf": 1000003}, "", "multipleOf"),
    ({"type": "integer", "multipleOf": 99991}, "", "multipleOf"),
    ({"type": "integer", "multipleOf": 997, "minimum": 0}, "", "multipleOf"),
    ({"type": "number", "minimum": 1e300}, "", "minimum"),
    (
        {"type": "object", "minProperties": 2, "additionalProperties": TEXT},
        "",
        "minProperties",
    ),
    ({"type": "made-up"}, "", "type"),
    ({"properties": [1]}, "", "properties"),
    ({"required": "a"}, "", "required"),
    ({"anyOf": []}, "", "anyOf"),
    ({"minLength": -1}, "", "minLength"),
]


@pytest.mark.parametrize(
    "schema, path, keyword", UNSUPPORTED, ids=lambda v: str(v)[:40]
)
def test_strict_names_path_and_keyword(schema, path, keyword):
    with pytest.raises(RequestError) as fault:
        convert(schema, strict=True)
    base = "tools[0].function.parameters"
    assert fault.value.param == ".".join(p for p in (base, path, keyword) if p)
    assert repr(keyword) in str(fault.value)
    assert "#" + "".join(f"/{p}" for p in path.split(".") if p) in str(fault.value)


@pytest.mark.parametrize(
    "schema, path, keyword", UNSUPPORTED, ids=lambda v: str(v)[:40]
)
def test_otherwise_it_is_served_without_it_and_logged(schema, path, keyword, caplog):
    with caplog.at_level(logging.WARNING):
        convert(schema)
    assert any(repr(keyword) in r.message for r in caplog.records)


def test_only_the_part_that_cant_be_enforced_is_free():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^(?!x)"},
            "b": {"type": "integer"},
        },
        "additionalProperties": False,
    }
    assert takes(schema, '{"a":"x","b":1}')
    assert not takes(schema, '{"a":1,"b":1}')
    assert not takes(schema, '{"a":"x","b":"y"}')


def deep(levels):
    schema = {}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


HOSTILE = {
    "deep": deep(5000),
    "properties": {"type": "object", "properties": {f"p{i}": {} for i in range(5000)}},
    "many objects": {
        "anyOf": [
            {"type": "object", "properties": {f"p{i}": {} for i in range(900)}}
            for _ in range(10)
        ]
    },
    "enum": {"enum": [f"value {i}" for i in range(100_000)]},
    "enum of objects": {"enum": [{"a": i} for i in range(5000)]},
    "text": {"description": "x" * 2_000_000},
    "long number": {"maximum": 10**5000},
    "infinite": {"maximum": float("inf")},
    "pattern": {"type": "string", "pattern": "a|" * 5000},
    "tree of references": {
        "$defs": {
            f"d{i}": {"oneOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 3} for i in range(30)
        }
        | {"d30": {"type": "null"}},
        "$ref": "#/$defs/d0",
    },
    "products": {
        "allOf": [
            {
                "anyOf": [
                    {"type": "object", "properties": {f"k{j}_{i}": {}}}
                    for i in range(6)
                ]
            }
            for j in range(8)
        ]
    },
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_schema_costs_a_refusal_and_no_time(case, strict):
    start = time.process_time()
    try:
        convert(HOSTILE[case], strict=strict)
    except RequestError as e:
        assert e.status == 400
    else:
        assert case == "products" and not strict
    assert time.process_time() - start < 2


def test_options_are_ours():
    converted = convert({"x-guidance": {"lenient": True}, "type": "object"})
    options = json.loads(converted.text("compact"))["x-guidance"]
    assert options["json_allow_general_unicode_escapes"] is True
    assert "lenient" not in options


@pytest.mark.parametrize(
    "pattern, size",
    [
        ("^[a-z]{1,5000}$", 5002),
        ("([0-9a-f]{1,4}:){7}x", 36),
        ("(((a{1,100}){1,100}){1,100})", 1_000_000),
        (r"\{3}", 3),
        ("((((", 0),
        ("))", 2),
    ],
)
def test_pattern_size_writes_repeats_out(pattern, size):
    assert pattern_size(pattern) == size
