"""Cost of the K2 tool-call parser alone, beside stock mlx-lm's.

    python -m benchmarks.bench_parser
    python -m benchmarks.bench_parser --tokens 1000 32000 --megabytes 1 --json out.json

Streaming: time a token while one long argument is generated, at several lengths. Stock
only appends to the text of a section until it ends, and has no figure here.
Whole: parse time of a large argument as a multiple of json.loads of the same text. Text
that is not ASCII takes 2 or 4 bytes a character in memory, and getting several MB of it
from the system can cost more than the parsing, for stock as well.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx_lm

import mlx_lm_kimi

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
ID = "functions.write_file:0"


def our_parser() -> ModuleType:
    """This project's parser, in mlx_lm's place for it."""
    mlx_lm_kimi.install()
    from mlx_lm.tool_parsers import kimi_k2

    return kimi_k2


def stock_parser() -> ModuleType:
    """The parser that mlx-lm itself has, whatever is installed over it."""
    path = Path(mlx_lm.__file__).parent / "tool_parsers" / "kimi_k2.py"
    spec = importlib.util.spec_from_file_location("stock_kimi_k2", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seconds(runs: list[Callable[[], Any]], repeats: int) -> list[float]:
    """The least processor time of each run, in seconds; taken in turns, as machines vary."""
    best = [float("inf")] * len(runs)
    for _ in range(repeats):
        for i, run in enumerate(runs):
            begin = time.process_time()
            run()
            best[i] = min(best[i], time.process_time() - begin)
    return best


def pieces(kind: str, count: int) -> list[str]:
    """About as many tokens of argument text of a kind."""
    words = ["lorem", " ipsum", " dolor", ",", " sit", "\\n", " <b", ">"]
    text = ['{"', "content", '": "', *(words[i % 8] for i in range(count)), '"', "}"]
    if kind == "prose":
        return text
    if kind == "faulty":  # a fault at the start: everything waits for the end
        return ["{'", *text[1:-2], "'", "}"]
    items = ['{"', "a", '":', " ", "1", ",", ' "', "b", '":', " true", "}", ", "]
    return ['{"', "x", '": [', *(items * (count // 12)), "0", "]", "}"]


def stream(parser: ModuleType, tokens: list[str]) -> None:
    machine = parser.ToolCallStream()
    for marker in (BEGIN, CALL):
        machine.feed("", marker)
    machine.feed(ID)
    machine.feed("", ARGUMENTS)
    for token in tokens:
        machine.feed(token)
    for marker in (CALL_END, END):
        machine.feed("", marker)
    machine.finish()


def streaming_rows(counts: list[int], repeats: int) -> Iterator[dict[str, Any]]:
    parser = our_parser()
    stream(parser, pieces("prose", counts[0]))  # warm up
    for kind in ("prose", "dense JSON", "faulty"):
        outputs = [pieces(kind, count) for count in counts]
        runs = [lambda t=tokens: stream(parser, t) for tokens in outputs]
        times = seconds(runs, repeats)
        costs = [t / len(tokens) for t, tokens in zip(times, outputs)]
        row: dict[str, Any] = {"argument": kind}
        row |= {f"us/token at {n:,}": round(c * 1e6, 3) for n, c in zip(counts, costs)}
        yield row | {"growth": round(costs[-1] / costs[0], 3)}


def arguments(size: int) -> dict[str, str]:
    """Arguments of about so many characters, by kind."""
    random.seed(0)
    line = 'def f(x):\n\treturn "é🙂" if x < 2 else None  # <b>\n'
    rows = [
        {
            "id": i,
            "v": random.random(),
            "name": f"name {i}",
            "ok": i % 2 == 0,
            "n": None,
        }
        for i in range(size // 82)
    ]
    return {
        "one long string": json.dumps({"s": "lorem ipsum " * (size // 12)}),
        "source code": json.dumps({"s": line * (size // len(line))}),
        "source code, not ASCII": json.dumps(
            {"s": line * (size // len(line))}, ensure_ascii=False
        ),
        "dense JSON": json.dumps({"rows": rows}),
        "many integers": json.dumps({"n": list(range(size // 7))}),
    }


def whole_rows(size: int, repeats: int) -> Iterator[dict[str, Any]]:
    ours, stock = our_parser(), stock_parser()
    for kind, text in arguments(size).items():
        call = f"{CALL}{ID}{ARGUMENTS}{text}{CALL_END}"
        runs = [
            lambda t=text: json.loads(t),
            lambda c=call: ours.parse_tool_call(c),
            lambda c=call: stock.parse_tool_call(c),
        ]
        base, *times = seconds(runs, repeats)
        yield {
            "argument": kind,
            "characters": len(text),
            "json.loads ms": round(base * 1e3, 2),
            "ours ms": round(times[0] * 1e3, 2),
            "ours": round(times[0] / base, 2),
            "stock": round(times[1] / base, 2),
        }


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print a table; a plain one where rich isn't installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(title)
        for row in rows:
            print("  " + "  ".join(f"{k}: {v}" for k, v in row.items()))
        return
    table = Table(title=title)
    for key in rows[0]:
        table.add_column(key, justify="left" if key == "argument" else "right")
    for row in rows:
        table.add_row(*(str(v) for v in row.values()))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000, 8_000, 32_000])
    parser.add_argument("--megabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    streaming = list(streaming_rows(args.tokens, args.repeats))
    whole = list(whole_rows(int(args.megabytes * 1e6), args.repeats))
    show("Streamed: cost a token of one call (target: growth under 1.2)", streaming)
    show("Whole: parse time over json.loads (target: ours under 3)", whole)
    if args.json:
        args.json.write_text(
            json.dumps({"streamed": streaming, "whole": whole}, indent=2)
        )


if __name__ == "__main__":
    main()
