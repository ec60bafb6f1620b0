"""A long tool call through the server: when its first delta comes, and in how many.

    python -m benchmarks.tool_call_stream              # 16k tokens; a minute or two
    python -m benchmarks.tool_call_stream --tokens 2000

Also the cost of a token on its way from id to delta, at 1k and 32k tokens.
"""

from __future__ import annotations

import argparse
import json
import time

from benchmarks.side_by_side import run, table, worker

TOOL = {
    "type": "function",
    "function": {
        "name": "write_file",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        },
    },
}


def long_call(tokenizer, tokens: int) -> list[int]:
    """The ids of one call of about this many tokens."""
    from benchmarks.agent_session import plain_ids
    from tests.chat import output_ids

    lines = "".join(
        f"line {i}: some text, and more of it\n" for i in range(tokens // 10)
    )
    arguments = json.dumps({"path": "a.txt", "content": lines})
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0"
        f"<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    )
    return output_ids(plain_ids(tokenizer), text)


def stream(server, tokens: int) -> dict:
    """Positions (tokens generated) at which deltas of the call arrive."""
    while server.scripts.tokenizer is None:
        time.sleep(0.1)
    ids = long_call(server.scripts.tokenizer._tokenizer, tokens)
    server.scripts.turns["long"] = [ids]
    chunks = server.client().chat.completions.create(
        model="default_model",
        messages=[{"role": "user", "content": "[long]"}],
        tools=[TOOL],
        stream=True,
        timeout=1800,
    )
    start, positions = server.scripts.steps, []
    for chunk in chunks:
        if chunk.choices and chunk.choices[0].delta.tool_calls:
            positions.append(server.scripts.steps - start)
    return {"tokens": len(ids), "positions": positions}


def cost(tokens: int) -> float:
    """Seconds a token from id to delta, of our stream and response rooms; best of 3."""
    from mlx_lm.tool_parsers import kimi_k2

    from mlx_lm_kimi import tokenizer
    from mlx_lm_kimi.response import CallIds, Response
    from mlx_lm_kimi.stream import TokenStream
    from tests.conftest import DATA

    loaded = tokenizer.load(DATA / "kimi_tokenizer")
    ids = long_call(loaded, tokens)
    best = float("inf")
    for _ in range(3):
        parser = kimi_k2.ToolCallStream([TOOL])
        one = TokenStream(loaded, parser, kimi_k2.MARKERS)
        response = Response(CallIds())
        start = time.process_time()
        for i in ids:
            response.add(one.feed(i))
        response.add(one.finish())
        best = min(best, time.process_time() - start)
    return best / len(ids)


def plot(results: dict, file: str) -> None:
    """Deltas received over tokens generated, as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for who, style in (("stock", "o-"), ("ours", "-")):
        positions = results[who]["positions"]
        pyplot.plot(positions, range(1, len(positions) + 1), style, label=who)
    pyplot.xlabel("tokens generated")
    pyplot.ylabel("deltas of the call received")
    pyplot.legend()
    pyplot.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, default=16_000)
    parser.add_argument(
        "--plot", metavar="FILE", help="also draw a picture (matplotlib)"
    )
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker, lambda server: stream(server, args.tokens))
    results = run("benchmarks.tool_call_stream", "--tokens", str(args.tokens))
    if args.plot:
        plot(results, args.plot)
    for result in results.values():
        result |= {"first": result["positions"][0], "deltas": len(result["positions"])}
    rows = [
        ("tokens of the call", *(str(results[w]["tokens"]) for w in ("stock", "ours"))),
        (
            "first delta after tokens",
            *(str(results[w]["first"]) for w in ("stock", "ours")),
        ),
        ("deltas", *(str(results[w]["deltas"]) for w in ("stock", "ours"))),
    ]
    table("One long tool call", rows, ("", "stock", "ours"))
    short, long = cost(1000), cost(32_000)
    rows = [(f"{short * 1e6:.1f} µs", f"{long * 1e6:.1f} µs", f"{long / short:.2f}")]
    table("Cost of a token, id to delta", rows, ("1k tokens", "32k tokens", "growth"))


if __name__ == "__main__":
    main()
