"""Asking a server whole and streamed, with every rule of a stream checked on the way."""

import re
from typing import Any

MARKERS = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<think>",
    "</think>",
    "<|im_end|>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|end_of_msg|>",
)
_SPLIT = re.compile("(" + "|".join(map(re.escape, MARKERS)) + ")")


def output_ids(tokenizer, text: str, plain: tuple[str, ...] = ()) -> list[int]:
    """The ids of a scripted output: spelled markers are tokens, except those in plain."""
    ids: list[int] = []
    run: list[str] = []
    for piece in _SPLIT.split(text):
        if piece in tokenizer.special_ids and piece not in plain:
            ids += tokenizer.encode_content("".join(run))
            ids.append(tokenizer.special_ids[piece])
            run = []
        else:
            run.append(piece)
    return ids + tokenizer.encode_content("".join(run))


def whole(client, **request) -> dict[str, Any]:
    """The answer of a request that is not streamed: message, finish_reason, usage."""
    answer = client.chat.completions.create(**request).model_dump(exclude_unset=True)
    (choice,) = answer["choices"]
    return {
        "message": choice["message"],
        "finish_reason": choice["finish_reason"],
        "usage": answer["usage"],
        "logprobs": choice.get("logprobs"),
    }


def streamed(client, **request) -> dict[str, Any]:
    """The same from a stream, put together as a client does."""
    chunks = [
        chunk.model_dump(exclude_unset=True)
        for chunk in client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **request
        )
    ]
    *chunks, last = chunks
    assert last["choices"] == [] and last["usage"], "usage comes last"
    assert len({c["id"] for c in chunks}) == 1
    choices = [c["choices"][0] for c in chunks]
    assert choices[0]["delta"]["role"] == "assistant", "a role delta comes first"
    reasons = [c["finish_reason"] for c in choices if c["finish_reason"]]
    assert len(reasons) == 1 and choices[-1]["finish_reason"] == reasons[0]
    message = join([c["delta"] for c in choices])
    logprobs = [
        e for c in choices if c.get("logprobs") for e in c["logprobs"]["content"]
    ]
    return {
        "message": message,
        "finish_reason": reasons[0],
        "usage": last["usage"],
        "logprobs": {"content": logprobs} if logprobs else None,
        "deltas": [c["delta"] for c in choices],
    }


def join(deltas: list[dict]) -> dict[str, Any]:
    """The message that the deltas of a stream add up to."""
    text: dict[str, list[str]] = {}
    calls: list[dict] = []
    for delta in deltas:
        for key in ("content", "reasoning_content", "reasoning"):
            if delta.get(key):
                text.setdefault(key, []).append(delta[key])
        entries = delta.get("tool_calls")
        assert entries is None or entries, "no empty tool_calls list"
        indices = [e["index"] for e in entries or []]
        assert len(indices) == len(set(indices)), "one entry an index a chunk"
        for entry in entries or []:
            _add_call(calls, entry)
    message = {"role": "assistant", "content": None if calls else ""}
    message |= {key: "".join(parts) for key, parts in text.items()}
    if calls:
        message["tool_calls"] = calls
    return message


def _add_call(calls: list[dict], entry: dict) -> None:
    if entry["index"] == len(calls):  # the opening delta of the next call
        assert entry["type"] == "function" and entry["id"]
        assert entry["function"]["name"] and entry["function"]["arguments"] == ""
        call = {k: v for k, v in entry.items() if k != "index"}
        calls.append({**call, "function": dict(call["function"])})
        return
    assert entry["index"] == len(calls) - 1, "indices start at 0 and have no gaps"
    assert set(entry) == {"index", "function"} and set(entry["function"]) == {
        "arguments"
    }
    assert entry["function"]["arguments"], "no empty argument delta"
    calls[-1]["function"]["arguments"] += entry["function"]["arguments"]


def both(client, **request) -> dict[str, Any]:
    """The whole answer, after checking that the streamed one is the same."""
    request.setdefault("model", "default_model")
    answer, stream = whole(client, **request), streamed(client, **request)
    assert stream["message"] == answer["message"]
    assert stream["finish_reason"] == answer["finish_reason"]
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert stream["usage"][key] == answer["usage"][key]
    assert stream["logprobs"] == answer["logprobs"]
    return answer
