"""Run as a program: requests to a server in this process, the answers printed as JSON.

    python -m tests.differential other DIR     a model that is no Kimi, raw bytes
    python -m tests.differential kimi DIR      a scripted Kimi, what an answer says

Once with MLX_LM_KIMI=0 and once without, the two must say the same.
"""

import json
import os
import re
import sys
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path

from tests.scripted import Scripts, Server

USER = [{"role": "user", "content": "a b"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OTHER = [
    {"messages": USER, "max_tokens": 5},
    {"messages": USER, "max_tokens": 5, "stream": True},
    {"messages": USER, "max_tokens": 3, "tools": [TOOL]},
    {"messages": USER, "max_tokens": 3, "logprobs": True, "top_logprobs": 2},
    {
        "messages": USER,
        "max_tokens": 8,
        "stop": ["b"],
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    {"messages": [{"role": "tool", "content": "x"}], "max_tokens": 2},
    {"messages": USER, "temperature": -1},
    {"messages": USER, "seed": 3, "temperature": 1, "max_tokens": 4},
    {"max_tokens": 2},
    {"messages": USER, "tool_choice": "nonsense", "max_tokens": 2},
    "not json",
    [],
]
CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'
)
# (what the model says, the request)
KIMI = [
    ("Hello.", {}),
    ("Hello.", {"stream": True}),
    ("One two three four.", {"max_tokens": 3}),
    ("<think>Hm.</think>So.", {}),
    (f"Text.{CALL}", {"tools": [TOOL]}),
    (f"<think>Hm.</think>{CALL}", {"tools": [TOOL], "stream": True}),
    ("One STOP two.", {"stop": [" STOP"]}),
    ("Seeded.", {"seed": 1}),
]


def post(server, body) -> tuple[int, dict, str]:
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", raw)
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as e:
        answer = e
    except ConnectionError:  # stock drops some requests
        return 0, {}, "dropped"
    headers = {k: v for k, v in answer.headers.items() if k not in ("Date", "Server")}
    return answer.status, headers, answer.read().decode()


def normal(text: str) -> str:
    """Without what differs from one run to the next."""
    text = re.sub(r"chatcmpl-[0-9a-f-]+", "ID", text)
    return re.sub(r'"created": \d+', '"created": 0', text)


def other(path: str) -> list:
    server = Server(Path(path), None)
    found = []
    for body in OTHER:
        status, headers, text = post(server, body)
        headers.pop("Content-Length", None)  # of ids and times
        found.append([status, headers, normal(text)])
    with urllib.request.urlopen(f"{server.url}/health", timeout=30) as answer:
        found.append(answer.read().decode())
    return found


def message(text: str, stream: bool) -> dict:
    """What an answer says, the names that only one side has left out."""
    content, reasoning, calls, reason = "", "", {}, None
    bodies = (
        [json.loads(text)]
        if not stream
        else [
            json.loads(line[6:])
            for line in text.splitlines()
            if line.startswith("data: {")
        ]
    )
    for body in bodies:
        for choice in body["choices"]:
            part = choice["delta" if stream else "message"]
            content += part.get("content") or ""
            reasoning += part.get("reasoning") or ""
            reason = choice["finish_reason"] or reason
            for i, call in enumerate(part.get("tool_calls") or []):
                known = calls.setdefault(call.get("index", i), {"arguments": ""})
                known |= {k: call[k] for k in ("id", "type") if k in call}
                known["name"] = call["function"].get("name", known.get("name"))
                known["arguments"] += call["function"].get("arguments", "")
    return {
        "content": content,
        "reasoning": reasoning,
        "calls": calls,
        "reason": reason,
    }


def kimi(path: str) -> list:
    from benchmarks.agent_session import plain_ids
    from tests.chat import output_ids

    server = Server(Path(path), Scripts(), "--max-tokens", "50")
    while server.scripts.tokenizer is None:
        time.sleep(0.1)
    inner = plain_ids(server.scripts.tokenizer._tokenizer)
    found = []
    for i, (says, request) in enumerate(KIMI):
        server.scripts.turns[f"d{i}"] = [output_ids(inner, says)]
        messages = [{"role": "user", "content": f"[d{i}]"}]
        status, _, text = post(server, {"messages": messages, **request})
        found.append([status, message(text, request.get("stream", False))])
    return found


if __name__ == "__main__":
    kind, directory = sys.argv[1:]
    try:
        print(json.dumps({"other": other, "kimi": kimi}[kind](directory)), flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the server's threads would go on
    os._exit(0)
