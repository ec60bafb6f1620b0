"""Loading, encoding and detokenizing, beside stock's parts.

    python -m benchmarks.tokenizer

Stock with remote code needs tiktoken: its share (ranks, encoder, the table of bytes that
the checkpoints' tokenizer builds) is measured if tiktoken is installed.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.side_by_side import ROOT, table

DATA = ROOT / "tests/data/kimi_tokenizer"


def best(function: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest of some runs."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return min(found)


def stock_load() -> None:
    """What tokenization_kimi.py does to load."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    from mlx_lm_kimi.convert import SPLIT, byte_to_char

    ranks = load_tiktoken_bpe(str(DATA / "tiktoken.model"))
    special = {f"<|reserved_token_{i}|>": i for i in range(163584, 163840)}
    encoding = tiktoken.Encoding(
        "kimi", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens=special
    )
    chars = byte_to_char()
    for i in range(encoding.n_vocab):
        token = encoding.decode_single_token_bytes(i).decode("latin-1")
        "".join(chars[ord(c)] for c in token)


def loading() -> None:
    from mlx_lm_kimi import tokenizer

    tokenizer.load(DATA)
    ours = best(lambda: tokenizer.load(DATA))
    try:
        stock = f"{best(stock_load):.2f} s"
    except ImportError:
        stock = "pip install tiktoken"
    table("Warm load", [(stock, f"{ours:.2f} s")], ("stock, remote code", "ours"))


def detokenizing() -> None:
    from mlx_lm.tokenizer_utils import (
        BPEStreamingDetokenizer,
        NaiveStreamingDetokenizer,
    )

    from mlx_lm_kimi import tokenizer
    from mlx_lm_kimi.detokenizer import KimiStreamingDetokenizer

    kimi = tokenizer.load(DATA)
    ids = kimi.encode_content("some words and more words " * 8000)

    def cost(make: type, count: int) -> float:
        detokenizer = make(kimi)

        def run() -> None:
            detokenizer.reset()
            for i in ids[:count]:
                detokenizer.add_token(i)
                _ = detokenizer.last_segment

        return best(run, 1 if make is NaiveStreamingDetokenizer else 5) / count

    counts = (1000, 8000, 32_000)
    rows = []
    for name, make in (
        ("stock", NaiveStreamingDetokenizer),
        ("stock, with a tokenizer.json", BPEStreamingDetokenizer),
        ("ours", KimiStreamingDetokenizer),
    ):
        costs = [cost(make, count) for count in counts]
        rows.append(
            (name, *(f"{c * 1e6:.1f} µs" for c in costs), f"{costs[-1] / costs[0]:.2f}")
        )
    table("Detokenizing, no newline", rows, ("a token at", "1k", "8k", "32k", "growth"))


def encoding() -> None:
    import mlx_lm_kimi

    mlx_lm_kimi.install()
    from mlx_lm.utils import load_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for file in DATA.iterdir():
            (path / file.name).write_bytes(file.read_bytes())
        (path / "config.json").write_text(json.dumps({"model_type": "kimi_k2"}))
        kimi = load_tokenizer(path)
    text = 'hello world, the function returns 1234 and {"a": 1} 你好\n' * 300
    messages = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": text},
    ]
    messages *= 9
    spelled = kimi.apply_chat_template(messages, tokenize=False)
    plain = best(lambda: kimi.encode(spelled))
    ours = best(lambda: kimi.apply_chat_template(messages))
    count = len(kimi.apply_chat_template(messages))
    rows = [(f"{count:,}", f"{plain:.2f} s", f"{ours:.2f} s", f"{ours / plain:.2f}")]
    columns = ("tokens", "plain encode", "render and encode as data", "ratio")
    table("A long prompt", rows, columns)


if __name__ == "__main__":
    encoding()
    loading()
    detokenizing()
