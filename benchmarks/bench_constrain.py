"""What constrained decoding costs, at Kimi's real vocabulary. Needs no model.

    python -m benchmarks.bench_constrain

Rows: making the mask of a token and adding it to the logits (median and p99, and their
share of a 20 ms token), and what the first and later requests of a tool set pay.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_lm_kimi import constrain, grammar
from mlx_lm_kimi.grammar import ConstraintSpec
from mlx_lm_kimi.tokenizer import load

VOCABULARY = 163840
TOKEN_MS = 20.0
DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "kimi_tokenizer"
ARGUMENTS = (
    '{"path":"src/main.py","mode":"write","content":"def main():\\n    print(\\"hello'
    ' 世界\\")\\n","options":{"tags":["a","b"],"recursive":true},"limit":25}'
)


def tool(number: int) -> dict:
    """A tool as agents have them: five parameters, one of them an object."""
    properties = {
        "path": {"type": "string", "description": "A path below the working folder."},
        "mode": {"type": "string", "enum": ["read", "write", f"mode{number}"]},
        "content": {"type": "string"},
        "options": {
            "type": "object",
            "properties": {
                "tags": {"type": "array", "items": {"type": "string"}},
                "recursive": {"type": "boolean"},
            },
        },
        "limit": {"type": "integer", "minimum": 1},
    }
    parameters = {"type": "object", "properties": properties, "required": ["path"]}
    return {
        "type": "function",
        "function": {"name": f"tool_{number}", "parameters": parameters},
    }


def milliseconds(work) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def compile_rows(tokenizer, repeats: int) -> list[list[str]]:
    """What a tool set costs once, and what a later request with it costs."""
    compiler = constrain._compiler(tokenizer)
    rows = []
    for choice in ("auto", "required"):
        for count in (1, 20, 200):
            spec = ConstraintSpec(tools=[tool(i) for i in range(count)], choice=choice)

            def request(spec=spec):
                constrain.logits_processor(spec, tokenizer, thinking_open=False)

            checks, firsts, laters = [], [], []
            for _ in range(repeats):
                grammar._built.clear()
                compiler._matchers.clear()
                checks.append(milliseconds(lambda spec=spec: constrain.check(spec)))
                firsts.append(milliseconds(request))
                laters.append(milliseconds(request))
            times = [statistics.median(t) for t in (checks, firsts, laters)]
            rows.append([f"{count} tools, {choice}", *(f"{t:.1f} ms" for t in times)])
    return rows


def turn(tokenizer) -> list[int]:
    """The ids of one call by the third of 20 tools, after some free text."""
    special = tokenizer.special_ids
    text = tokenizer.encode_content
    return [
        *text("Let me write that file for you. " * 20),
        special[grammar.SECTION_BEGIN],
        special[grammar.CALL_BEGIN],
        *text("functions.tool_3:0"),
        special[grammar.ARGUMENT_BEGIN],
        *text(ARGUMENTS),
        special[grammar.CALL_END],
        special[grammar.SECTION_END],
        special["<|im_end|>"],
    ]


def mask_rows(tokenizer, repeats: int) -> list[list[str]]:
    """Microseconds a token, in free text and in a call, for what the server runs."""
    strict = [tool(i) for i in range(20)]
    for one in strict:
        one["function"]["strict"] = True
    spec = ConstraintSpec(tools=strict, choice="auto")
    logits = mx.random.normal((1, VOCABULARY))
    ids = turn(tokenizer)
    begin = ids.index(tokenizer.special_ids[grammar.SECTION_BEGIN])
    spent: dict[str, list[float]] = {"free text": [], "call": []}
    masks: list[float] = []
    for _ in range(repeats):
        run = constrain.logits_processor(spec, tokenizer, thinking_open=False)
        make = run._mask
        run._mask = lambda make=make: _timed(make, masks)
        for length in range(len(ids)):
            tokens = mx.array([1, *ids[:length]])
            mx.eval(logits, tokens)
            start = time.perf_counter()
            mx.eval(run(tokens, logits))
            if length:
                kind = "free text" if length < begin else "call"
                spent[kind].append((time.perf_counter() - start) * 1e6)
    rows = [["mask alone", *_figures(masks)]]
    return rows + [
        [f"follow, mask, add: {kind}", *_figures(t)] for kind, t in spent.items()
    ]


def _timed(make, into: list[float]):
    start = time.perf_counter()
    mask = make()
    into.append((time.perf_counter() - start) * 1e6)
    return mask


def _figures(times: list[float]) -> list[str]:
    median, p99 = statistics.median(times), float(np.percentile(times, 99))
    share = median / (TOKEN_MS * 1e3)
    return [f"{median:.0f} µs", f"{p99:.0f} µs", f"{share:.2%}"]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    tokenizer = load(DATA)
    once = milliseconds(lambda: constrain._compiler(tokenizer).vocabulary.tokenizer())
    load_average = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, {mx.default_device()}, load {load_average:.1f}\n")
    print(f"The vocabulary, once, with the first constrained request: {once:.0f} ms\n")
    head = ["a token", "median", "p99", f"of a {TOKEN_MS:.0f} ms token"]
    print(table(head, mask_rows(tokenizer, repeats)))
    head = ["a request", "check (HTTP thread)", "first processor", "later processor"]
    print(table(head, compile_rows(tokenizer, repeats)))


if __name__ == "__main__":
    main()
