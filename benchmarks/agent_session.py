"""An agent's session of 8 turns: how many generated tokens are prefilled again.

    python -m benchmarks.agent_session

The scripted K2-Thinking thinks before each call and writes its JSON oddly (spaces, escapes,
a trailing space). A client sends the messages back as they came. A generated token is
prefilled again if the next prompt doesn't have it in the KV cache.
"""

from __future__ import annotations

import argparse
import json
import time

from benchmarks.side_by_side import run, table, worker

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
            },
        },
    }
    for name in ("read_file", "list_files", "run")
]
# (tool, arguments as the model writes them, result)
TURNS = [
    ("list_files", '{"path": "."}', "a.py\nb.py"),
    ("read_file", '{ "path" : "a.py" }', "print('é')"),
    ("read_file", '{"path":"b.py"}', "import a\n"),
    ("run", '{"path": "caf\\u00e9.py", "args": [ 1 ,2.50, 1e3 ]}', "ok"),
    ("run", '{"path": "\\/tmp\\/x", "deep": {"a" : [ ]}}', "<|im_end|> is text"),
    ("read_file", '{"path": "你好.txt"}', "世界"),
    ("run", '{"path":  "y",\n "n": 1.0}', "failed: 1"),
]


def script(tokenizer) -> list[list[int]]:
    """The ids of each turn; the last is the answer."""
    from tests.chat import output_ids

    turns = []
    for i, (name, arguments, _) in enumerate(TURNS):
        call = f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        text = (
            f"<think>Step {i}: I should use {name} now.\n</think>"
            f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|><|im_end|>"
        )
        turns.append(output_ids(tokenizer, text))
    turns.append(output_ids(tokenizer, "<think>Done.</think>All done.<|im_end|>"))
    return turns


def plain_ids(tokenizer):
    """Stock's tokenizer with the two things that output_ids asks of ours."""
    if hasattr(tokenizer, "encode_content"):
        return tokenizer

    class Plain:
        special_ids = tokenizer.get_added_vocab()

        def encode_content(self, text):
            return tokenizer.encode(text, add_special_tokens=False)

    return Plain()


def ask(client, stream: bool, messages: list[dict]) -> tuple[dict, dict]:
    """(message, usage), put together as clients do."""
    request = {"model": "default_model", "messages": messages, "tools": TOOLS}
    if not stream:
        answer = client.chat.completions.create(**request).model_dump(
            exclude_unset=True
        )
        return answer["choices"][0]["message"], answer["usage"]
    message, calls, usage = {"role": "assistant"}, {}, {}
    chunks = client.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    )
    for chunk in chunks:
        chunk = chunk.model_dump(exclude_unset=True)
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            for key in ("content", "reasoning", "reasoning_content"):
                if delta.get(key):
                    message[key] = message.get(key, "") + delta[key]
            for entry in delta.get("tool_calls") or []:
                call = calls.setdefault(entry.pop("index"), entry)
                if call is not entry:
                    text = entry["function"]["arguments"]
                    call["function"]["arguments"] += text
    if calls:
        message["tool_calls"] = list(calls.values())
    return message, usage


def session(server, stream: bool) -> tuple[int, int]:
    """(generated tokens prefilled again, generated tokens before the last turn)."""
    messages = [{"role": "user", "content": f"[agent] Fix it, please. {stream}"}]
    again = generated = before = last = 0
    for i in range(len(TURNS) + 1):
        message, usage = ask(server.client(), stream, messages)
        if i:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            again += min(last, max(0, before - cached))
            generated += last
        before, last = usage["total_tokens"], usage["completion_tokens"]
        messages.append(message)
        for call in message.get("tool_calls", []):
            result = {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": TURNS[i][2],
            }
            messages.append(result)
    return again, generated


def measure(server) -> dict:
    while server.scripts.tokenizer is None:
        time.sleep(0.1)
    inner = plain_ids(server.scripts.tokenizer._tokenizer)
    server.scripts.turns["agent"] = script(inner)
    result = {}
    for name, stream in (("whole", False), ("streamed", True)):
        try:
            result[name] = session(server, stream)
        except Exception as e:
            result[name] = f"{type(e).__name__}: {e}"
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker, measure)
    results = run("benchmarks.agent_session")
    if args.json:
        return print(json.dumps(results))
    rows = [
        (kind, *(_cell(results[who][kind]) for who in ("stock", "ours")))
        for kind in ("whole", "streamed")
    ]
    table("Generated tokens prefilled again", rows, ("8-turn session", "stock", "ours"))


def _cell(result) -> str:
    return result if isinstance(result, str) else f"{result[0]} of {result[1]}"


if __name__ == "__main__":
    main()
