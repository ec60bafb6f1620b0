"""Tool declarations, dynamic tools, tool_choice and response_format."""

import pytest

from mlx_lm_kimi.protocol.request import parse_chat_request
from mlx_lm_kimi.protocol.tools import ResponseFormat, ToolChoice, is_tool_name
from tests.conftest import rows
from tests.test_protocol_request import MISSING, TYPE, USER, VALUE, check_fault


def tool(name="f", **function):
    return {"type": "function", "function": {"name": name, **function}}


def declare(*tools, **message):
    return {"role": "system", "content": "", "tools": list(tools), **message}


# Names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "f",
        "F2",
        "_",
        "_f-g.h",
        "get_weather",
        "mcp__server.tool-name",
        "a" * 256,
        "搜索",
        "é",
        "e\u0301",  # a letter and a mark
        "मौसम_देखें",
        "أداة",
        "ค้นหา",
        "ŝerĉi2",
        "инструмент.поиск",
        "搜" * 256,
        "f٣",
    ],
)
def test_good_names(name):
    assert is_tool_name(name)
    assert parse_chat_request({"messages": [USER], "tools": [tool(name)]}).tools


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1f",
        "-f",
        ".f",
        "f g",
        " f",
        "f\n",
        "f:0",
        "f/g",
        "f!",
        "f$",
        "$web_search",
        "f\x00",
        "f\u200b",
        "😀",
        "f😀",
        "\u0301e",
        "٣f",
        "f<|tool_call_end|>",
        "a" * 257,
        "搜" * 257,
        "f" * 1_000_000,
    ],
)
def test_bad_names(name):
    assert not is_tool_name(name)
    body = {"messages": [USER], "tools": [tool("ok"), tool(name)]}
    check_fault(body, "tools[1].function.name", VALUE)
    body = {"messages": [USER, declare(tool(name))]}
    check_fault(body, "messages[1].tools[0].function.name", VALUE)


# Declarations -------------------------------------------------------------------------

TOOLS = [
    ({"f": 1}, "", TYPE),
    ("f", "", TYPE),
    (["f"], "[0]", TYPE),
    ([None], "[0]", TYPE),
    ([{}], "[0].type", VALUE),
    ([{"function": {"name": "f"}}], "[0].type", VALUE),
    ([{"type": "retrieval"}], "[0].type", VALUE),
    ([{"type": "custom", "custom": {"name": "f"}}], "[0].type", VALUE),
    ([{"type": "builtin_function", "function": {"name": "f"}}], "[0].type", VALUE),
    ([{"type": None, "function": {"name": "f"}}], "[0].type", VALUE),
    ([{"type": ["function"], "function": {"name": "f"}}], "[0].type", VALUE),
    ([{"type": "function"}], "[0].function", MISSING),
    ([{"type": "function", "name": "f"}], "[0].function", MISSING),
    ([{"type": "function", "function": "f"}], "[0].function", TYPE),
    ([{"type": "function", "function": {}}], "[0].function.name", MISSING),
    ([{"type": "function", "function": {"name": None}}], "[0].function.name", MISSING),
    ([{"type": "function", "function": {"name": 5}}], "[0].function.name", TYPE),
    ([tool(description=5)], "[0].function.description", TYPE),
    ([tool(parameters="object")], "[0].function.parameters", TYPE),
    ([tool(parameters=[])], "[0].function.parameters", TYPE),
    ([tool(parameters=True)], "[0].function.parameters", TYPE),
    ([tool(parameters={"type": 5})], "[0].function.parameters.type", TYPE),
    ([tool(parameters={"type": ["object", 5]})], "[0].function.parameters.type", TYPE),
    ([tool(parameters={"properties": []})], "[0].function.parameters.properties", TYPE),
    ([tool(parameters={"$defs": "x"})], "[0].function.parameters.$defs", TYPE),
    ([tool(parameters={"required": "a"})], "[0].function.parameters.required", TYPE),
    (
        [tool(parameters={"required": ["a", 1]})],
        "[0].function.parameters.required",
        TYPE,
    ),
    ([tool(strict="yes")], "[0].function.strict", TYPE),
    ([tool(strict=1)], "[0].function.strict", TYPE),
    ([tool(), tool("g"), tool()], "[2].function.name", "duplicate_tool"),
]


@pytest.mark.parametrize("tools, path, code", TOOLS)
def test_broken_tools(tools, path, code):
    check_fault({"messages": [USER], "tools": tools}, "tools" + path, code)


@pytest.mark.parametrize("tools, path, code", TOOLS)
def test_broken_dynamic_tools(tools, path, code):
    message = {"role": "system", "tools": tools}
    check_fault({"messages": [USER, message]}, "messages[1].tools" + path, code)


@pytest.mark.parametrize(
    "function",
    [
        {},
        {"parameters": None, "description": None, "strict": None},
        {"parameters": {}},
        {"parameters": {"type": "object", "properties": {}}, "strict": True},
        {"parameters": {"type": "object", "properties": None, "required": None}},
        {"parameters": {"type": ["object", "null"]}},
        {"parameters": {"$defs": {"N": {"$ref": "#/$defs/N"}}, "$ref": "#/$defs/N"}},
        {"parameters": {"type": "string"}, "unknown": [1]},
    ],
)
def test_good_tools(function):
    request = parse_chat_request({"messages": [USER], "tools": [tool(**function)]})
    given = {k: v for k, v in function.items() if v is not None}
    assert request.tools == request.all_tools == [tool(**given)]


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools(tools):
    request = parse_chat_request({"messages": [USER], "tools": tools})
    assert request.tools == request.all_tools == []


def test_every_schema_of_the_set_is_a_declaration():
    tools = [
        tool(f"f{i}", parameters=row["schema"], strict=True)
        for i, row in enumerate(rows("schemas/walle.jsonl"))
    ]
    assert parse_chat_request({"messages": [USER], "tools": tools}).tools == tools


# Dynamic tools ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [{}, {"content": None}, {"content": ""}, {"content": []}]
)
@pytest.mark.parametrize("role", ["system", "developer"])
def test_dynamic_tools(content, role):
    first = {"role": role, "tools": [tool("g")], **content}
    last = {"role": role, "tools": [tool("h"), tool("a")], **content}
    body = {"messages": [first, USER, last], "tools": [tool()]}
    request = parse_chat_request(body)
    assert request.tools == [tool()]
    assert request.all_tools == [tool(), tool("g"), tool("h"), tool("a")]
    assert request.history.messages[2] == {
        "role": "system",
        "content": "",
        "tools": [tool("h"), tool("a")],
    }


@pytest.mark.parametrize(
    "messages, tools, param, code",
    [
        ([USER, {**USER, "tools": [tool()]}], None, "messages[1].tools", VALUE),
        (
            [USER, {**USER, "role": "assistant", "tools": [tool()]}],
            None,
            "messages[1].tools",
            VALUE,
        ),
        ([USER, {**USER, "tools": "f"}], None, "messages[1].tools", VALUE),
        ([USER, declare(tool(), content="x")], None, "messages[1].content", VALUE),
        (
            [declare(tool(), content=[{"type": "text", "text": "x"}]), USER],
            None,
            "messages[0].content",
            VALUE,
        ),
        ([USER, declare(tool(), content=5)], None, "messages[1].content", TYPE),
        (
            [USER, declare(tool())],
            [tool()],
            "messages[1].tools[0].function.name",
            "duplicate_tool",
        ),
        (
            [declare(tool()), USER, declare(tool("g"), tool())],
            None,
            "messages[2].tools[1].function.name",
            "duplicate_tool",
        ),
    ],
)
def test_dynamic_tools_refused(messages, tools, param, code):
    check_fault({"messages": messages, "tools": tools}, param, code)


# tool_choice --------------------------------------------------------------------------


def named(name):
    return {"type": "function", "function": {"name": name}}


def allowed(*names, mode="auto"):
    tools = [named(n) for n in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    "choice, param, code",
    [
        ("any", "tool_choice", VALUE),
        ("", "tool_choice", VALUE),
        ("f", "tool_choice", VALUE),
        (5, "tool_choice", TYPE),
        (True, "tool_choice", TYPE),
        ([named("f")], "tool_choice", TYPE),
        ({}, "tool_choice.type", VALUE),
        ({"type": "tool", "name": "f"}, "tool_choice.type", VALUE),
        ({"type": "auto"}, "tool_choice.type", VALUE),
        ({"type": "function"}, "tool_choice.function.name", MISSING),
        ({"type": "function", "name": "f"}, "tool_choice.function.name", MISSING),
        ({"type": "function", "function": "f"}, "tool_choice.function.name", MISSING),
        ({"type": "function", "function": {}}, "tool_choice.function.name", MISSING),
        (named(5), "tool_choice.function.name", TYPE),
        (named("g"), "tool_choice.function.name", "unknown_tool"),
        (named(""), "tool_choice.function.name", "unknown_tool"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools", MISSING),
        (allowed("f", mode="none"), "tool_choice.allowed_tools.mode", VALUE),
        (allowed(), "tool_choice.allowed_tools.tools", "empty_array"),
        (
            allowed("f", "g"),
            "tool_choice.allowed_tools.tools[1].function.name",
            "unknown_tool",
        ),
    ],
)
def test_choices_refused(choice, param, code):
    body = {"messages": [USER], "tools": [tool("f")], "tool_choice": choice}
    check_fault(body, param, code)


@pytest.mark.parametrize("tools", [None, []])
def test_choices_without_tools(tools):
    body = {"messages": [USER], "tools": tools}
    check_fault({**body, "tool_choice": "required"}, "tool_choice", VALUE)
    check_fault(
        {**body, "tool_choice": named("f")}, "tool_choice.function.name", "unknown_tool"
    )
    for mode in ("none", "auto", None):
        choice = parse_chat_request({**body, "tool_choice": mode}).tool_choice
        assert choice == ToolChoice(mode or "auto")


@pytest.mark.parametrize(
    "choice, found",
    [
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        (named("f"), ToolChoice("function", "f")),
        (named("g"), ToolChoice("function", "g")),
    ],
)
def test_choices(choice, found):
    body = {"messages": [USER, declare(tool("g"))], "tools": [tool("f")]}
    assert parse_chat_request({**body, "tool_choice": choice}).tool_choice == found


def test_dynamic_tools_alone_can_be_forced():
    body = {"messages": [USER, declare(tool("g"))], "tools": []}
    for choice in ("required", named("g")):
        parse_chat_request({**body, "tool_choice": choice})


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools(mode):
    body = {"messages": [USER, declare(tool("h"))], "tools": [tool("f"), tool("g")]}
    request = parse_chat_request({**body, "tool_choice": allowed("h", "g", mode=mode)})
    assert request.tool_choice == ToolChoice(mode, allowed=frozenset({"g", "h"}))
    assert request.tools == [tool("f"), tool("g")]
    assert request.all_tools == [tool("g"), tool("h")]


def test_an_error_lists_few_of_many_tools():
    body = {"messages": [USER], "tools": [tool(f"f{i}") for i in range(1000)]}
    check_fault(
        {**body, "tool_choice": named("g" * 5000)},
        "tool_choice.function.name",
        "unknown_tool",
    )


# response_format ----------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def json_schema(**fields):
    return {"type": "json_schema", "json_schema": fields}


@pytest.mark.parametrize(
    "value, path, code",
    [
        ("json_object", "", TYPE),
        ([], "", TYPE),
        ({}, ".type", MISSING),
        ({"type": "json"}, ".type", VALUE),
        ({"type": 5}, ".type", VALUE),
        ({"type": ["text"]}, ".type", VALUE),
        ({"type": "json_schema"}, ".json_schema", MISSING),
        ({"type": "json_schema", "json_schema": "x"}, ".json_schema", TYPE),
        (json_schema(schema=SCHEMA), ".json_schema.name", MISSING),
        (json_schema(name=5, schema=SCHEMA), ".json_schema.name", TYPE),
        (json_schema(name="", schema=SCHEMA), ".json_schema.name", VALUE),
        (json_schema(name="a"), ".json_schema.schema", MISSING),
        (json_schema(name="a", schema=None), ".json_schema.schema", MISSING),
        (json_schema(name="a", schema="x"), ".json_schema.schema", TYPE),
        (json_schema(name="a", schema=[SCHEMA]), ".json_schema.schema", TYPE),
        (json_schema(name="a", schema={"type": 5}), ".json_schema.schema.type", TYPE),
        (json_schema(name="a", schema=SCHEMA, strict="x"), ".json_schema.strict", TYPE),
        (json_schema(name="a", schema=SCHEMA, strict=0), ".json_schema.strict", TYPE),
    ],
)
def test_formats_refused(value, path, code):
    body = {"messages": [USER], "response_format": value}
    check_fault(body, "response_format" + path, code)


@pytest.mark.parametrize(
    "value, found",
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, ResponseFormat("json_object")),
        (
            json_schema(name="a", schema=SCHEMA),
            ResponseFormat("json_schema", "a", SCHEMA),
        ),
        (
            json_schema(name="a", schema=SCHEMA, strict=None, description="d"),
            ResponseFormat("json_schema", "a", SCHEMA, False),
        ),
        (
            json_schema(name="a", schema={}, strict=True),
            ResponseFormat("json_schema", "a", {}, True),
        ),
    ],
)
def test_formats(value, found):
    body = {"messages": [USER], "response_format": value}
    assert parse_chat_request(body).response_format == found
