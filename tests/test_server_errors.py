"""Bad requests through the real server: 400 with OpenAI's error object, whole and streamed."""

import json

import openai
import pytest

from tests.chat import both
from tests.conftest import rows
from tests.requests_table import ACCEPTED, BAD_BODIES, REFUSED
from tests.scripted import Scripts, Server, make_directory
from tests.test_server_api import post, script
from tests.test_server_calls import WEATHER, wait_for_tokenizer


@pytest.fixture(autouse=True, scope="module")
def loaded(thinking):
    wait_for_tokenizer(thinking)


@pytest.mark.parametrize("stream", [False, True])
def test_every_refused_request(thinking, stream):
    before = thinking.scripts.steps
    wrong = []
    for body, param in REFUSED:
        if "stream" not in body:
            body = {**body, "stream": stream}
        status, kind, raw = post(thinking, json.dumps(body).encode())
        if (status, kind) != (400, "application/json"):
            wrong.append((body, status))
            continue
        error = json.loads(raw)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        if error["param"] != param:
            wrong.append((body, param, error["param"]))
    assert wrong == []
    assert thinking.scripts.steps == before, "nothing was generated"


def test_every_accepted_request(thinking):
    for body in ACCEPTED:
        body = {"max_tokens": 3, **body}
        status, _, raw = post(thinking, json.dumps(body).encode())
        assert status == 200, (body, raw)


@pytest.mark.parametrize("raw", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_bad_bodies(thinking, raw):
    status, _, answer = post(thinking, raw)
    assert status == 400
    assert json.loads(answer)["error"]["message"]


def test_the_client_sees_the_field(thinking):
    with pytest.raises(openai.BadRequestError) as raised:
        thinking.client().chat.completions.create(
            model="default_model",
            messages=[{"role": "user", "content": "x"}],
            tools=[WEATHER, WEATHER],
        )
    assert raised.value.param == "tools[1].function.name"
    assert raised.value.code == "duplicate_tool"


def test_images_are_refused(thinking):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.BadRequestError) as raised:
        thinking.client().chat.completions.create(
            model="default_model", messages=[{"role": "user", "content": [part]}]
        )
    assert raised.value.param == "messages[0].content[0]"


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 10**9},
        {"logit_bias": {"5": 100}},
        {"seed": 2**70},
        {"seed": -1},
        {"max_tokens": 10**12},
        {"repetition_penalty": 1.1, "frequency_penalty": 2, "presence_penalty": -2},
        {"min_p": 1, "temperature": 5.0},
        {"xtc_probability": 1, "xtc_threshold": 0, "temperature": 1},
        {"top_logprobs": 20},
        {"temperature": 1e308},
        {"num_draft_tokens": 0},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_odd_sampling_does_not_end_the_server(thinking, sampling, stream):
    messages = script(thinking, "sampling", "Yes.")
    body = {"messages": messages, "max_tokens": 5, "stream": stream, **sampling}
    if body["max_tokens"] > 5:
        body["temperature"] = 0
    assert post(thinking, json.dumps(body).encode())[0] in (200, 400)
    assert thinking.generator._generation_thread.is_alive()


def test_a_token_outside_the_vocabulary(thinking):
    body = {"messages": [{"role": "user", "content": "x"}], "logit_bias": {"163840": 1}}
    status, _, raw = post(thinking, json.dumps(body).encode())
    assert status == 400 and json.loads(raw)["error"]["param"] == "logit_bias"


SERVED = [
    row
    for row in rows("cases/reported.jsonl")
    if row["model"] == "kimi_k2"
    and row["kind"] in ("history-template", "server-API")
    and isinstance(row["request"].get("messages"), list)
    and row["raw_output"] is None
]


@pytest.mark.parametrize("row", SERVED, ids=[r["id"] for r in SERVED])
def test_reported_requests(thinking, row):
    request = {k: v for k, v in row["request"].items() if not k.startswith("_")}
    status, _, raw = post(thinking, json.dumps({**request, "max_tokens": 4}).encode())
    expect = row["expect"]
    wanted = expect.get("http_status_in", [expect.get("http_status", 200)])
    assert status in wanted, raw
    assert status != expect.get("not_status")


def test_a_history_with_broken_json_goes_on(thinking):
    """The broken call is shown as it is; stock answers 404 to every later request."""
    broken = '{"city": "Oslo", note": "x"}'
    function = {"name": "get_weather", "arguments": broken}
    (user,) = script(thinking, "broken-history", "", "Done.")
    messages = [
        user,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "x", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "x", "content": "error"},
    ]
    answer = both(thinking.client(), messages=messages, tools=[WEATHER])
    assert answer["message"]["content"] == "Done."


@pytest.mark.parametrize("length", ["-5", "x", "1.5", ""])
def test_a_bad_content_length(thinking, length):
    import socket

    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", thinking.port)) as connection:
        connection.sendall(head.encode() + b"{}")
        answer = connection.recv(65536).decode()
    assert answer.split()[1] in ("400", "411")


def test_a_template_that_refuses_is_a_400(tmp_path):
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no systems') }}{% endif %}x"
    path = make_directory(tmp_path / "k", template=template)
    server = Server(path, Scripts(), "--max-tokens", "2")
    try:
        body = {
            "messages": [
                {"role": "system", "content": "a"},
                {"role": "user", "content": "b"},
            ]
        }
        status, _, raw = post(server, json.dumps(body).encode())
        error = json.loads(raw)["error"]
        assert (status, error["param"]) == (400, "messages")
        assert "no systems" in error["message"]
    finally:
        server.close()


@pytest.mark.parametrize(
    "fields, status",
    [
        ({"xtc_probability": 1.0, "xtc_threshold": 0.9}, 400),
        ({"repetition_penalty": 1.5, "repetition_context_size": 10**20}, 200),
        ({"presence_penalty": 1, "presence_context_size": 2**63}, 200),
        ({"frequency_penalty": 1, "frequency_context_size": 2**31}, 200),
        ({"logit_bias": {"5": 1e308}, "logprobs": True, "top_logprobs": 3}, 200),
        ({"chat_template_kwargs": {"self": 1}}, 400),
        ({"chat_template_kwargs": {"bos_token": "<|im_end|>"}}, 400),
    ],
)
def test_what_would_end_the_generation_thread(thinking, fields, status):
    messages = script(thinking, "hostile", "Yes.")
    body = {"messages": messages, "max_tokens": 3, "temperature": 1.0, **fields}
    found, _, raw = post(thinking, json.dumps(body).encode())
    assert found == status, raw
    json.loads(raw, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert thinking.generator._generation_thread.is_alive()


def test_masked_tokens_have_a_finite_logprob(thinking):
    body = {
        "messages": script(thinking, "masked", "x"),
        "tools": [WEATHER],
        "tool_choice": "required",
        "logprobs": True,
        "top_logprobs": 3,
        "max_tokens": 3,
    }
    status, _, raw = post(thinking, json.dumps(body).encode())
    assert status == 200
    json.loads(raw, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_provider_of_an_embedder_gets_stock_handling():
    """mlx-lm's own tests have such a provider: no table of models."""
    from types import SimpleNamespace

    from mlx_lm_kimi import server

    assert server.native_family(SimpleNamespace(), "default_model") is None
