"""The server beyond tool calls: usage, logprobs, stop sequences, errors, hanging up."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from tests.chat import both, output_ids, streamed, whole
from tests.test_server_calls import WEATHER, ask, calls, section, wait_for_tokenizer


def post(server, body: bytes, path="/v1/chat/completions", **headers):
    """(status, content type, body) of a raw request."""
    request = urllib.request.Request(
        server.url + path,
        body,
        {"Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as e:
        return e.code, e.headers["Content-Type"], e.read()


def script(server, key: str, *outputs: str) -> list[dict]:
    """Register a script; returns messages that name it."""
    tokenizer = wait_for_tokenizer(server)._tokenizer
    server.scripts.turns[key] = [output_ids(tokenizer, o) for o in outputs]
    return [{"role": "user", "content": f"[{key}] go"}]


# Stop sequences, usage, logprobs ------------------------------------------------------


@pytest.mark.parametrize(
    "stop, content",
    [
        ("three", "one two "),
        (["four", "two"], "one "),
        ([" thr"], "one two"),
        (["zzz", "five."], "one two three four "),
        ([], "one two three four five."),
        ("o", ""),
        ("five.!", "one two three four five."),
    ],
)
def test_stop_sequences(thinking, stop, content):
    answer = ask(thinking, "one two three four five.", stop=stop)
    assert answer["message"]["content"] == content
    assert answer["finish_reason"] == "stop"


def test_a_stop_sequence_is_no_part_of_reasoning_or_arguments(k25):
    output = "think stop</think>say " + section(
        ("functions.get_weather:0", '{"a": "stop"}')
    )
    answer = ask(k25, output, stop="stop", tools=[WEATHER])
    assert answer["message"]["reasoning_content"] == "think stop"
    assert calls(answer)[0][2] == '{"a": "stop"}'
    assert answer["finish_reason"] == "tool_calls"


def test_usage(k25):
    output = "I think so.</think>Yes."
    answer = ask(k25, output)
    tokenizer = k25.scripts.tokenizer._tokenizer
    usage = answer["usage"]
    assert usage["completion_tokens"] == len(output_ids(tokenizer, output)) + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    details = usage["completion_tokens_details"]
    assert details["reasoning_tokens"] == len(tokenizer.encode_content("I think so."))


def test_the_same_prompt_again_is_cached(thinking):
    messages = script(thinking, "cached", "Yes.")
    first = whole(thinking.client(), model="default_model", messages=messages)
    again = whole(thinking.client(), model="default_model", messages=messages)
    prompt = first["usage"]["prompt_tokens"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= prompt - 1


@pytest.mark.parametrize("server", ["instruct", "k3"])
def test_a_system_prompt_with_tools_is_shared(server, request):
    server = request.getfixturevalue(server)
    system = {"role": "system", "content": "Be kind. " * 100}
    for i in range(2):
        (user,) = script(server, f"shared-{i}", "Yes.")
        answer = whole(
            server.client(),
            model="default_model",
            messages=[system, user],
            tools=[WEATHER],
        )
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 200


@pytest.mark.parametrize("top", [None, 3])
def test_logprobs(thinking, top):
    request = {"logprobs": True} | ({"top_logprobs": top} if top else {})
    answer = ask(thinking, "Yes 🙂 no.", **request)
    entries = answer["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    data = b"".join(bytes(e["bytes"]) for e in entries)
    assert data.decode() == "Yes 🙂 no.<|im_end|>"
    for entry in entries:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == (top or 0)
        if top:
            assert (
                max(entry["top_logprobs"], key=lambda e: e["logprob"])["token"]
                == entry["token"]
            )


# Streams ------------------------------------------------------------------------------


def events(raw: bytes) -> list[str]:
    return [e for e in raw.decode().split("\n\n") if e]


def test_a_raw_stream(thinking):
    messages = script(
        thinking, "raw", "Hi " + section(("functions.get_weather:0", "{}"))
    )
    body = {"messages": messages, "stream": True, "tools": [WEATHER]}
    status, kind, raw = post(thinking, json.dumps(body).encode())
    assert (status, kind) == (200, "text/event-stream")
    *rest, done = events(raw)
    assert done == "data: [DONE]"
    chunks = [json.loads(e[6:]) for e in rest if e.startswith("data: ")]
    assert all(c["object"] == "chat.completion.chunk" for c in chunks)
    assert "usage" not in chunks[-1] and chunks[-1]["choices"][0]["finish_reason"]
    assert all(c["model"] == "default_model" for c in chunks)


def test_keep_alive_comments_during_prefill(thinking):
    (message,) = script(thinking, "long-prompt", "Yes.")
    message["content"] += " word" * 5000
    body = {"messages": [message], "stream": True}
    _, _, raw = post(thinking, json.dumps(body).encode())
    comments = [e for e in events(raw) if e.startswith(": keepalive ")]
    assert len(comments) >= 2


def test_concurrent_requests_do_not_touch_each_other(thinking):
    texts = {f"many-{i}": f"Answer {i}: " + "x" * (i * 7) for i in range(24)}
    messages = {key: script(thinking, key, text) for key, text in texts.items()}
    found = {}

    def run(key, stream):
        client = thinking.client()
        found[key] = (streamed if stream else whole)(
            client, model="default_model", messages=messages[key]
        )["message"]["content"]

    threads = [
        threading.Thread(target=run, args=(key, i % 2 == 0))
        for i, key in enumerate(texts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == texts


@pytest.mark.parametrize("stream", [True, False])
def test_the_client_hangs_up(thinking, stream):
    messages = script(thinking, f"endless-{stream}", "word " * 20000)
    body = json.dumps({"messages": messages, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", thinking.port)) as connection:
        connection.sendall(head.encode() + body)
        time.sleep(0.5)
    end = time.monotonic() + 20
    asked = thinking.scripts
    while time.monotonic() < end:
        before = asked.steps
        time.sleep(0.6)
        if asked.steps == before:
            break
    else:
        raise AssertionError("generation goes on after the client left")
    assert ask(thinking, "Still here.")["message"]["content"] == "Still here."


# Other paths and models ---------------------------------------------------------------


def test_models_and_health(thinking):
    for path, key in (("/v1/models", "data"), ("/health", "status")):
        with urllib.request.urlopen(thinking.url + path, timeout=30) as answer:
            assert key in json.load(answer)


def test_text_completions_are_stock(thinking):
    completion = thinking.client().completions.create(
        model="default_model", prompt="abc", max_tokens=3
    )
    assert completion.object == "text_completion"


def test_unknown_path(thinking):
    assert post(thinking, b"{}", "/v1/nothing")[0] == 404


def test_seed_takes_the_sequential_path(thinking):
    answer = ask(
        thinking,
        "One. " + section(("functions.get_weather:0", "{}")),
        tools=[WEATHER],
        seed=7,
    )
    assert answer["message"]["content"] == "One. "
    assert len(calls(answer)) == 1


def test_role_delta_and_reasoning_fields(k25):
    messages = script(k25, "fields", "Why.</think>So.")
    answer = streamed(k25.client(), model="default_model", messages=messages)
    assert answer["deltas"][0] == {"role": "assistant", "content": ""}
    assert (
        answer["message"]["reasoning"]
        == answer["message"]["reasoning_content"]
        == "Why."
    )


def test_thinking_can_be_switched_off(k25):
    answer = ask(k25, "Plain.", extra_body={"thinking": {"type": "disabled"}})
    assert answer["message"] == {"role": "assistant", "content": "Plain."}
    answer = ask(
        k25, "Plain.", extra_body={"chat_template_kwargs": {"enable_thinking": False}}
    )
    assert answer["message"] == {"role": "assistant", "content": "Plain."}


def test_the_model_name_is_as_asked(thinking):
    messages = script(thinking, "name", "Yes.")
    path = str(thinking.generator.model_provider.cli_args.model)
    answer = both(thinking.client(), model="default_model", messages=messages)
    assert answer["message"]["content"] == "Yes."
    completion = thinking.client().chat.completions.create(
        model=path, messages=messages
    )
    assert completion.model == path
