"""Constrained answers through the real server, from a model of noise."""

import json
import threading

import jsonschema
import pytest

from tests.chat import both, whole
from tests.conftest import rows
from tests.constraint_model import NoiseModel
from tests.scripted import Scripts, Server

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

        def noisy(*args, **kwargs):
            load(*args, **kwargs)
            provider.model = NoiseModel()
            provider.is_batchable = True

        provider._load = noisy


@pytest.fixture(scope="module", params=["thinking", "k25"])
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
    for seed in range(4):
        answer = ask(noise, tools=TOOLS, tool_choice="required", seed=seed)
        calls = check_calls(answer)
        assert [c["id"].rpartition(":")[2] for c in calls] == [
            str(i) for i in range(len(calls))
        ]
        names |= {c["function"]["name"] for c in calls}
        assert not answer["message"]["content"]
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


WALLE = rows("schemas/walle.jsonl")


def test_schemas_of_the_set_are_served(noise):
    """A sample, so that the suite stays short; test_constrain.py walks all of them."""
    first = 0 if noise.generator.model_provider.cli_args.model.endswith("k25") else 6
    for row in WALLE[first::12]:
        answer = ask(
            noise,
            tools=[tool("f", row["schema"])],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=60,
        )
        (call,) = answer["message"]["tool_calls"]
        assert call["function"]["name"] == "f"
