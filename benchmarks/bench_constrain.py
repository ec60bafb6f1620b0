"""What constrained decoding costs, at Kimi's real vocabulary. Needs no model.

    python -m benchmarks.bench_constrain

Tables: the work for one token (median and p99), what a token then takes longer in
mlx-lm's own batch generation, where most of that work is done while the model computes,
and what the first and later requests of a tool set pay. With RUST_BACKTRACE=1 llguidance
compiles a third slower.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
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


def constrained_tools() -> ConstraintSpec:
    """Tools with strict: true under auto, so that free text and a call are masked."""
    strict = [tool(i) for i in range(20)]
    for one in strict:
        one["function"]["strict"] = True
    return ConstraintSpec(tools=strict, choice="auto")


def work_rows(tokenizer, repeats: int) -> list[list[str]]:
    """Microseconds of work for one token, evaluation of the new logits included."""
    spec = constrained_tools()
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
    rows = [["mask", *_figures(masks)]]
    return rows + [
        [f"follow, mask, add: {kind}", *_figures(t)] for kind, t in spent.items()
    ]


class Steady(nn.Module):
    """Says a script; a token takes as long as some small products, which stay in cache."""

    def __init__(self, script: list[int], products: int):
        super().__init__()
        self.layers: list = []
        self._script, self._step, self._products = script, 0, products
        self._square = mx.eye(96)

    def make_cache(self) -> list:
        self._step = 0
        return []

    def __call__(self, inputs, cache=None):
        # The logits need the last token, as a real model's do.
        work = self._square * inputs[:, -1:].astype(mx.float32)
        for _ in range(self._products):
            work = work @ self._square
        wanted = self._script[min(self._step, len(self._script) - 1)]
        self._step += 1
        logits = mx.zeros((1, VOCABULARY)) + 0 * work[:1, :1]
        return logits.at[0, wanted].add(30.0)[:, None, :]


class Run:
    """One sequence of mlx-lm's batch generation that says a script."""

    def __init__(self, script: list[int], products: int, processors: list):
        from mlx_lm.generate import BatchGenerator

        self._generator = BatchGenerator(Steady(script, products))
        self._generator.insert(
            [[1]], max_tokens=[len(script) + 1], logits_processors=[processors]
        )
        self.said: list[int] = []

    def token(self) -> float:
        """Milliseconds until the next token is there, and the logits after it."""
        return milliseconds(self._next)

    def _next(self) -> None:
        (response,) = self._generator.next_generated()
        mx.eval(self._generator._generation_batch._next_tokens)
        self.said.append(response.token)


def products_of_a_token(script: list[int]) -> int:
    """How many products make a token of ``Steady`` take TOKEN_MS on this machine."""
    few, many = 10, 60
    took = []
    for products in (few, many):
        probe = Run(script, products, [])
        took.append(statistics.median(probe.token() for _ in range(60)))
    each = (took[1] - took[0]) / (many - few)
    return many + round((TOKEN_MS - took[1]) / each)


def share_rows(tokenizer, repeats: int) -> list[list[str]]:
    """What a token takes without a processor, with one that does nothing, with ours.

    The three take turns token by token, as machines are noisy.
    """
    ids = turn(tokenizer)
    begin = ids.index(tokenizer.special_ids[grammar.SECTION_BEGIN])
    products, spec = products_of_a_token(ids), constrained_tools()
    kinds = {
        "no logits processor": list,
        "one that does nothing": lambda: [lambda tokens, logits: logits],
        "constraint": lambda: [
            constrain.logits_processor(spec, tokenizer, thinking_open=False)
        ],
    }
    times: list[list[list[float]]] = [[[] for _ in kinds] for _ in range(2)]
    for _ in range(repeats):
        runs = [Run(ids, products, make()) for make in kinds.values()]
        for i in range(len(ids) - 1):
            for kind, run in enumerate(runs):
                times[i >= begin][kind].append(run.token())
        assert all(run.said == ids[:-1] for run in runs)
    rows = []
    for kind, name in enumerate(kinds):
        row = [name]
        for part in times:
            more = [with_ - without for with_, without in zip(part[kind], part[0])]
            row.append(f"{statistics.median(part[kind]):.2f} ms")
            row.append(f"{statistics.median(more) / TOKEN_MS:+.2%}")
        rows.append(row)
    return rows


def _timed(make, into: list[float]):
    start = time.perf_counter()
    mask = make()
    into.append((time.perf_counter() - start) * 1e6)
    return mask


def _figures(times: list[float]) -> list[str]:
    median, p99 = statistics.median(times), float(np.percentile(times, 99))
    return [f"{median:.0f} µs", f"{p99:.0f} µs"]


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
    print(table(["work for a token", "median", "p99"], work_rows(tokenizer, repeats)))
    share = f"more, of {TOKEN_MS:.0f} ms"
    head = ["a token of batch generation", "free text", share, "call", share]
    print(table(head, share_rows(tokenizer, repeats)))
    head = ["a request", "check (HTTP thread)", "first processor", "later processor"]
    print(table(head, compile_rows(tokenizer, repeats)))


if __name__ == "__main__":
    main()
