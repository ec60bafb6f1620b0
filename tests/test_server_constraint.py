"""Constrained answers through the real server, from a model of noise."""

import json
import re
import threading

import jsonschema
import pytest

from mlx_lm_kimi import grammar
from tests.chat import both, output_ids, whole
from tests.conftest import rows
from tests.constraint_model import IM_END, THINK_END, NoiseModel
from tests.scripted import CLOSE, END_OF_MSG, Scripts, Server, XtmlScripts
from tests.test_server_calls import wait_for_tokenizer

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
PICK = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "blue"]}},
    "required": ["color"],
}
REPLY = {
    "type": "object",
    "properties": {"answer": {"type": "boolean"}, "名": {"enum": ["甲", "乙"]}},
    "required": ["answer", "名"],
    "additionalProperties": False,
}
USER = [{"role": "user", "content": "go"}]


def tool(name: str, parameters: dict, **more) -> dict:
    function = {"name": name, "parameters": parameters, **more}
    return {"type": "function", "function": function}


TOOLS = [tool("get_weather", WEATHER), tool("pick", PICK)]
SCHEMAS = {"get_weather": WEATHER, "pick": PICK}


class Noise(Server):
    """A server whose model generates noise that favours what closes."""

    def _replace_model(self, provider) -> None:
        load = provider._load
        self.family = provider.cli_args.model.rpartition("/")[2]

        def noisy(*args, **kwargs):
            load(*args, **kwargs)
            ends = (CLOSE, END_OF_MSG) if self.family == "k3" else (IM_END, THINK_END)
            provider.model = NoiseModel(ends=ends)
            provider.is_batchable = True

        provider._load = noisy


@pytest.fixture(scope="module", params=["thinking", "k25", "k3"])
def noise(request, kimi_directories):
    server = Noise(
        kimi_directories[request.param], Scripts(), "--temp", "1", "--max-tokens", "400"
    )
    yield server
    server.close()


def ask(server, **request) -> dict:
    request.setdefault("messages", USER)
    return whole(server.client(), model="default_model", **request)


def check_calls(answer: dict, schemas: dict[str, dict] = SCHEMAS) -> list[dict]:
    calls = answer["message"]["tool_calls"]
    assert answer["finish_reason"] in ("tool_calls", "length")
    whole_calls = calls if answer["finish_reason"] == "tool_calls" else calls[:-1]
    for call in whole_calls:
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, schemas[call["function"]["name"]])
    return calls


def test_required(noise):
    names = set()
    fields = {}
    if noise.family == "k3":  # hotter, as its noise has one favourite at the names
        thinking = {"thinking": {"type": "disabled"}}
        fields = {"temperature": 30, "extra_body": thinking}
    for seed in range(12):
        answer = ask(noise, tools=TOOLS, tool_choice="required", seed=seed, **fields)
        calls = check_calls(answer)
        assert [c["id"].rpartition(":")[2] for c in calls] == [
            str(i) for i in range(len(calls))
        ]
        names |= {c["function"]["name"] for c in calls}
        assert not answer["message"]["content"]
        if len(names) == 2:
            break
    assert names == {"get_weather", "pick"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_named_and_one_call(noise, name):
    choice = {"type": "function", "function": {"name": name}}
    answer = ask(noise, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    (call,) = check_calls(answer)
    assert call["function"]["name"] == name


@pytest.mark.parametrize("strict", [True, False])
def test_json_schema(noise, strict):
    json_schema = {"name": "reply", "schema": REPLY, "strict": strict}
    wanted = {"type": "json_schema", "json_schema": json_schema}
    answer = ask(noise, response_format=wanted)
    assert answer["finish_reason"] == "stop"
    jsonschema.validate(json.loads(answer["message"]["content"]), REPLY)


def test_json_object(noise):
    answer = ask(noise, response_format={"type": "json_object"}, max_tokens=2000)
    if answer["finish_reason"] == "stop":
        assert isinstance(json.loads(answer["message"]["content"]), dict)


def test_strict_under_auto(noise):
    tools = [tool("pick", PICK, strict=True)]
    for _ in range(3):
        answer = ask(noise, tools=tools)
        if answer["message"].get("tool_calls"):
            check_calls(answer)


def test_ids_continue_the_conversation(noise):
    call = {"id": "functions.pick:4", "type": "function"}
    call["function"] = {"name": "pick", "arguments": '{"color":"red"}'}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.pick:4", "content": "ok"},
    ]
    answer = ask(noise, messages=messages, tools=TOOLS, tool_choice="required")
    assert check_calls(answer)[0]["id"].endswith(":5")


def test_eight_requests_at_once(noise):
    found = {}

    def run(i: int) -> None:
        schema = {
            "type": "object",
            "properties": {f"key{i}": {"enum": [i, i + 100]}},
            "required": [f"key{i}"],
            "additionalProperties": False,
        }
        tools = [tool(f"tool{i}", schema)]
        answer = ask(noise, tools=tools, tool_choice="required")
        found[i] = check_calls(answer, {f"tool{i}": schema})

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found) == list(range(8)) and all(found.values())


def test_constrained_beside_free_requests(thinking):
    """In one batch each sequence keeps its own mask, whoever comes and goes."""
    encoder = wait_for_tokenizer(thinking)._tokenizer
    found = {}

    def run(i: int, prompt: int) -> None:
        text = f"Free text, {'on and on ' * i}and the end."
        thinking.scripts.turns[f"beside-{i}"] = [output_ids(encoder, text)]
        fields = {"tools": TOOLS, "tool_choice": "required"} if i % 2 else {}
        content = f"[beside-{i}] " + "go " * prompt
        messages = [{"role": "user", "content": content}]
        answer = ask(thinking, messages=messages, max_tokens=60, **fields)["message"]
        if fields:
            found[i] = answer["tool_calls"][0]["function"]["name"] in SCHEMAS
        else:
            found[i] = answer["content"] == text

    run(0, 1)
    threads = [threading.Thread(target=run, args=(i, 9 * i)) for i in range(1, 10)]
    for thread in threads:
        thread.start()
        thread.join(0.02)  # so that some are generated while others are read
    for thread in threads:
        thread.join(60)
    assert found == dict.fromkeys(range(10), True)


def test_what_cannot_be_enforced_is_a_400(noise):
    import openai

    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    tools = [tool("f", schema, strict=True)]
    with pytest.raises(openai.BadRequestError) as raised:
        ask(noise, tools=tools, tool_choice="required")
    assert "not" in str(raised.value) and raised.value.param.startswith("tools[0]")
    ask(noise, tools=[tool("f", schema)], tool_choice="required", max_tokens=20)


def test_streamed_is_the_whole(noise):
    answer = both(
        noise.client(), messages=USER, tools=TOOLS, tool_choice="required", seed=3
    )
    check_calls(answer)


# A scripted model that tries to leave what the request allows --------------------------

SECTION, CALL, ARGUMENTS, CALL_END, SECTION_END = grammar.CALL_MARKERS
LEAVES = {
    "another tool": f'{SECTION}{CALL}functions.nobody:0{ARGUMENTS}{{"a":1}}{CALL_END}{SECTION_END}',
    "no id": f'{SECTION}{CALL}{ARGUMENTS}{{"a":1}}{CALL_END}{SECTION_END}',
    "a wrong index": f'{SECTION}{CALL}functions.get_weather:9{ARGUMENTS}{{"a":1}}{CALL_END}{SECTION_END}',
    "no section": f'{CALL}functions.get_weather:0{ARGUMENTS}{{"a":1}}{CALL_END}',
    "a set": f"{SECTION}{CALL}functions.get_weather:0{ARGUMENTS}{{1, 2}}{CALL_END}",
    "python": f"{SECTION}{CALL}functions.get_weather:0{ARGUMENTS}{{'a': True}}{CALL_END}",
    "a list": f"{SECTION}{CALL}functions.get_weather:0{ARGUMENTS}[1]{CALL_END}",
    "no arguments": f"{SECTION}{CALL}functions.get_weather:0{CALL_END}{SECTION_END}",
}


@pytest.mark.parametrize("name", LEAVES)
def test_auto_without_strict(name, thinking):
    """The call is one of a declared tool, its arguments the beginning of an object."""
    answer = ask_script(
        thinking, LEAVES[name], tools=[tool("get_weather", WEATHER)], max_tokens=60
    )
    calls = answer["message"].get("tool_calls")
    if name == "no section":  # a call can't begin without
        assert calls is None
        return
    (call,) = calls
    assert call["id"] == "functions.get_weather:0"
    assert call["function"]["name"] == "get_weather"
    arguments = call["function"]["arguments"]
    if answer["finish_reason"] == "tool_calls":
        assert isinstance(json.loads(arguments), dict)
    else:  # the script's rest is in a string or goes on
        assert re.match(r'\{\s*("|$)', arguments)


@pytest.mark.parametrize("arguments", ['{"town":1}', '{"city":3}', '{"days":1}'])
def test_auto_with_strict(arguments, thinking):
    """The call begins as its schema demands, whatever the model tries."""
    output = f"{SECTION}{CALL}functions.get_weather:0{ARGUMENTS}{arguments}{CALL_END}"
    strict = [tool("get_weather", WEATHER, strict=True)]
    answer = ask_script(thinking, output, tools=strict, max_tokens=60)
    (call,) = answer["message"]["tool_calls"]
    assert re.match(r'\{\s*"city"\s*:\s*"', call["function"]["arguments"])


def test_auto_leaves_the_models_own_style(thinking):
    """Undeclared keys, whitespace and escapes: any object, byte for byte."""
    arguments = (
        '{ "city" : "Os\\u006co \\/ \\"x\\"", "z": [ 1.50 ,-2e3, {} ],\n "n":null }'
    )
    output = f"Text.{SECTION}{CALL}functions.get_weather:0{ARGUMENTS}{arguments}{CALL_END}{SECTION_END}"
    answer = ask_script(thinking, output, tools=[tool("get_weather", WEATHER)])
    assert answer["message"]["content"] == "Text."
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["arguments"] == arguments


@pytest.mark.parametrize("server", ["thinking", "k25", "k3"])
def test_none(server, request, monkeypatch):
    """No call marker can come, whatever the model tries."""
    server = request.getfixturevalue(server)
    output = LEAVES["a list"]
    if isinstance(server.scripts, XtmlScripts):
        output = (
            "<|close|>think<|sep|><|open|>tools<|sep|>"
            '<|open|>call tool="f" index="1"<|sep|><|close|>call<|sep|>'
        )
    tools = [tool("get_weather", WEATHER)]
    answer = ask_script(server, output, tools=tools, tool_choice="none", max_tokens=60)
    assert "tool_calls" not in answer["message"]
    generated = server.scripts.seen[answer["usage"]["prompt_tokens"] :]
    names = {i: n for n, i in server.scripts.tokenizer._tokenizer.special_ids.items()}
    assert not {names.get(i) for i in generated} & set(grammar.CALL_MARKERS)
    assert "<|open|>tools" not in server.scripts.tokenizer.decode(generated)


def ask_script(server, output: str, **fields) -> dict:
    encoder = wait_for_tokenizer(server)._tokenizer
    key = f"leaves-{len(server.scripts.turns)}"
    server.scripts.turns[key] = [output_ids(encoder, output)]
    messages = [{"role": "user", "content": f"[{key}] go"}]
    return both(server.client(), messages=messages, **fields)


WALLE = rows("schemas/walle.jsonl")


def without_id(schema: dict) -> dict:
    """A schema without the odd $id that jsonschema's own check refuses."""
    return {k: v for k, v in schema.items() if k != "$id"}


@pytest.mark.parametrize("row", WALLE, ids=[r["id"] for r in WALLE])
def test_schemas_of_the_set_are_served(row, noise):
    """Each schema of the set: K2-Thinking by required, K2.5 by name and strict, K3 half so."""
    family = noise.family
    by_name = family == "k25" or (family == "k3" and WALLE.index(row) % 2 == 0)
    named = {"type": "function", "function": {"name": "f"}}
    strict = {"strict": True} if by_name else {}
    answer = ask(
        noise,
        tools=[tool("f", row["schema"], **strict)],
        tool_choice=named if by_name else "required",
        parallel_tool_calls=False,
        max_tokens=60,
    )
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "f"
    if answer["finish_reason"] == "tool_calls":
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, without_id(row["schema"]))
