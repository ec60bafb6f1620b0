"""Requests that the server must refuse (with the field that is named), and accept."""

USER = {"role": "user", "content": "hi"}


def tool(name="get_weather", **function) -> dict:
    return {"type": "function", "function": {"name": name, **function}}


def call(name="f", call_id="functions.f:0", arguments="{}") -> dict:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def assistant(*calls, **rest) -> dict:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **rest}


def body(*messages, **rest) -> dict:
    return {"messages": list(messages) or [USER], **rest}


def choose(name) -> dict:
    return {"type": "function", "function": {"name": name}}


def schema_format(**json_schema) -> dict:
    return {"type": "json_schema", "json_schema": json_schema}


REFUSED = [
    # messages
    ({}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": {"role": "user"}}, "messages"),
    (body("hi"), "messages[0]"),
    (body({"content": "x"}), "messages[0].role"),
    (body({"role": "wizard", "content": "x"}), "messages[0].role"),
    (body({"role": 5, "content": "x"}), "messages[0].role"),
    (body(USER, {"role": "user", "content": 5}), "messages[1].content"),
    (body({"role": "user", "content": {"text": "x"}}), "messages[0].content"),
    (body({"role": "user"}), "messages[0].content"),
    (body({"role": "user", "content": ["x"]}), "messages[0].content[0]"),
    (
        body({"role": "user", "content": [{"type": "text"}]}),
        "messages[0].content[0].text",
    ),
    (
        body({"role": "user", "content": [{"type": "sound"}]}),
        "messages[0].content[0].type",
    ),
    (body({"role": "user", "content": "x", "name": 1}), "messages[0].name"),
    (body(USER, assistant("x")), "messages[1].tool_calls[0]"),
    (body(USER, assistant({"id": "a"})), "messages[1].tool_calls[0].function"),
    (
        body(USER, assistant({"function": {}})),
        "messages[1].tool_calls[0].function.name",
    ),
    (
        body(USER, assistant(call(arguments=[1]))),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (body(USER, assistant(call(call_id=7))), "messages[1].tool_calls[0].id"),
    (body(USER, {"role": "assistant", "tool_calls": {}}), "messages[1].tool_calls"),
    (
        body(USER, {"role": "assistant", "content": "a", "reasoning_content": 1}),
        "messages[1].reasoning_content",
    ),
    (body(USER, {"role": "tool", "content": "x"}), "messages[1].tool_call_id"),
    (
        body(USER, {"role": "tool", "tool_call_id": None, "content": "x"}),
        "messages[1].tool_call_id",
    ),
    (
        body(USER, {"role": "tool", "tool_call_id": "call_1", "content": "x"}),
        "messages[1].tool_call_id",
    ),
    (
        body(
            USER,
            assistant(call()),
            {"role": "tool", "tool_call_id": "other", "content": "x"},
        ),
        "messages[2].tool_call_id",
    ),
    # tools
    (body(tools={}), "tools"),
    (body(tools=["x"]), "tools[0]"),
    (body(tools=[{"type": "retrieval"}]), "tools[0].type"),
    (body(tools=[{"function": {"name": "f"}}]), "tools[0].type"),
    (body(tools=[{"type": "function"}]), "tools[0].function"),
    (body(tools=[{"type": "function", "function": "f"}]), "tools[0].function"),
    (body(tools=[{"type": "function", "function": {}}]), "tools[0].function.name"),
    (body(tools=[tool(""), USER]), "tools[0].function.name"),
    (body(tools=[tool(5)]), "tools[0].function.name"),
    (body(tools=[tool("1st")]), "tools[0].function.name"),
    (body(tools=[tool("-x")]), "tools[0].function.name"),
    (body(tools=[tool("a b")]), "tools[0].function.name"),
    (body(tools=[tool("a:0")]), "tools[0].function.name"),
    (body(tools=[tool("a<|im_end|>")]), "tools[0].function.name"),
    (body(tools=[tool("a\n")]), "tools[0].function.name"),
    (body(tools=[tool("a" * 257)]), "tools[0].function.name"),
    (body(tools=[tool("a"), tool("b", parameters=[])]), "tools[1].function.parameters"),
    (body(tools=[tool("b", parameters="object")]), "tools[0].function.parameters"),
    (
        body(tools=[tool("b", parameters={"properties": []})]),
        "tools[0].function.parameters.properties",
    ),
    (
        body(tools=[tool("b", parameters={"required": "x"})]),
        "tools[0].function.parameters.required",
    ),
    (body(tools=[tool("b", strict="yes")]), "tools[0].function.strict"),
    (body(tools=[tool("b", description=1)]), "tools[0].function.description"),
    (body(tools=[tool("a"), tool("a")]), "tools[1].function.name"),
    # dynamic tools
    (
        body(USER, {"role": "system", "content": "x", "tools": [tool()]}),
        "messages[1].content",
    ),
    (body({"role": "user", "content": "x", "tools": [tool()]}), "messages[0].tools"),
    (
        body(USER, {"role": "assistant", "content": "x", "tools": [tool()]}),
        "messages[1].tools",
    ),
    (body(USER, {"role": "system", "tools": [{}]}), "messages[1].tools[0].type"),
    (body(USER, {"role": "system", "tools": "x"}), "messages[1].tools"),
    (
        body(USER, {"role": "system", "tools": [tool()]}, tools=[tool()]),
        "messages[1].tools[0].function.name",
    ),
    # tool_choice
    (body(tool_choice="always", tools=[tool()]), "tool_choice"),
    (body(tool_choice=1, tools=[tool()]), "tool_choice"),
    (body(tool_choice="required"), "tool_choice"),
    (body(tool_choice="required", tools=[]), "tool_choice"),
    (body(tool_choice={"type": "tool"}, tools=[tool()]), "tool_choice.type"),
    (
        body(tool_choice={"type": "function"}, tools=[tool()]),
        "tool_choice.function.name",
    ),
    (body(tool_choice=choose("other"), tools=[tool()]), "tool_choice.function.name"),
    (body(tool_choice=choose("get_weather")), "tool_choice.function.name"),
    # response_format
    (body(response_format="json"), "response_format"),
    (body(response_format={"type": "xml"}), "response_format.type"),
    (body(response_format={}), "response_format.type"),
    (body(response_format={"type": "json_schema"}), "response_format.json_schema"),
    (
        body(response_format=schema_format(schema={})),
        "response_format.json_schema.name",
    ),
    (
        body(response_format=schema_format(name="r")),
        "response_format.json_schema.schema",
    ),
    (
        body(response_format=schema_format(name="r", schema=[])),
        "response_format.json_schema.schema",
    ),
    (
        body(response_format=schema_format(name="r", schema={}, strict="x")),
        "response_format.json_schema.strict",
    ),
    # sampling and the rest
    (body(n=2), "n"),
    (body(n=0), "n"),
    (body(temperature=-0.1), "temperature"),
    (body(temperature="hot"), "temperature"),
    (body(temperature=True), "temperature"),
    (body(top_p=1.5), "top_p"),
    (body(top_k=1.5), "top_k"),
    (body(min_p=-1), "min_p"),
    (body(max_tokens=0), "max_tokens"),
    (body(max_tokens="9"), "max_tokens"),
    (body(max_completion_tokens=1.0), "max_completion_tokens"),
    (body(seed="x"), "seed"),
    (body(stop=5), "stop"),
    (body(stop=["a", 5]), "stop[1]"),
    (body(stream="yes"), "stream"),
    (body(stream_options=[]), "stream_options"),
    (body(stream_options={"include_usage": 1}), "stream_options.include_usage"),
    (body(logprobs=1), "logprobs"),
    (body(top_logprobs=21), "top_logprobs"),
    (body(logit_bias=[]), "logit_bias"),
    (body(logit_bias={"x": 1}), "logit_bias.x"),
    (body(logit_bias={"5": "1"}), "logit_bias.5"),
    (body(frequency_penalty="x"), "frequency_penalty"),
    (body(parallel_tool_calls="no"), "parallel_tool_calls"),
    (body(model=5), "model"),
    (body(repetition_context_size=-1), "repetition_context_size"),
    (body(reasoning_effort="huge"), "reasoning_effort"),
    (body(thinking="on"), "thinking"),
    (body(thinking={"type": "maybe"}), "thinking.type"),
    (body(thinking={"keep": "some"}), "thinking.keep"),
    (body(chat_template_kwargs=[]), "chat_template_kwargs"),
    (body(chat_template_kwargs={"thinking": "no"}), "chat_template_kwargs.thinking"),
    (body(chat_template_kwargs={"tokenize": False}), "chat_template_kwargs.tokenize"),
]


ACCEPTED = [
    body({"role": "developer", "content": "x"}, USER),
    body(
        USER,
        assistant(call()),
        {"role": "tool", "tool_call_id": "functions.f:0", "content": ""},
    ),
    body(
        USER,
        assistant(call()),
        {"role": "tool", "tool_call_id": "functions.f:0", "content": []},
    ),
    body(USER, assistant(call()), {"role": "tool", "tool_call_id": "functions.f:0"}),
    body(USER, {"role": "assistant", "tool_calls": [call()]}, USER),
    body(USER, assistant(call(arguments={"a": 1}))),
    body(USER, assistant(call(arguments=None))),
    body(USER, assistant(call(arguments="not json"))),
    body(
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        }
    ),
    body(
        {"role": "user", "content": "x", "name": "Ana", "refusal": None, "extra": [1]}
    ),
    body(USER, {"role": "assistant", "content": "", "refusal": "no"}),
    body(tools=[]),
    body(tools=None, tool_choice=None),
    body(tool_choice="none"),
    body(tool_choice="auto"),
    body(tools=[tool("天气.get-x_1"), tool("_a"), tool("हिन्दी"), tool("a" * 256)]),
    body(tools=[tool(parameters=None, description=None, strict=None)]),
    body(tools=[tool(parameters={})], tool_choice="required"),
    body(
        tools=[tool(parameters={"type": ["object", "null"]})],
        tool_choice=choose("get_weather"),
    ),
    body(
        USER,
        {"role": "system", "content": "", "tools": [tool()]},
        tool_choice=choose("get_weather"),
    ),
    body(
        {"role": "system", "tools": [tool()]},
        USER,
        {"role": "system", "content": None, "tools": [tool("b")]},
        tool_choice="required",
    ),
    body(
        max_completion_tokens=5,
        parallel_tool_calls=False,
        stream_options={},
        metadata={"a": "b"},
        store=True,
        user="u",
        service_tier="auto",
        unknown={"x": 1},
    ),
    body(
        stream_options=None,
        stop=None,
        temperature=None,
        top_p=None,
        n=None,
        seed=None,
        logprobs=None,
        top_logprobs=None,
        logit_bias=None,
        response_format=None,
        max_tokens=None,
        model=None,
        stream=None,
    ),
    body(
        n=1,
        temperature=0,
        top_p=1,
        top_logprobs=-1,
        seed=-5,
        stop=["", "x"],
        logit_bias={"5": -100},
    ),
    body(response_format={"type": "text"}),
    body(response_format={"type": "json_object"}),
    body(
        response_format=schema_format(name="r", schema={"type": "object"}, strict=True)
    ),
    body(thinking={"type": "enabled", "keep": "all"}),
    body(thinking=None, reasoning_effort=None, chat_template_kwargs=None),
]


BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b"5",
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b"\xff\xfe",
    b'{"a": "\xff"}',
    b'{"a": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    b'{"a": ' + b"[" * 300000,
    b'{"a": ' + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"}",
    b'{"a": ' + b"9" * 5000 + b"}",
]
