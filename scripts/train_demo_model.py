"""Trains the demo model from nothing, on synthetic dialogues with tools.

    python -m scripts.train_demo_model            # 66 minutes on 2 busy cores, with OpenBLAS
    python -m scripts.train_demo_model --steps 50 --out DIR

mlx's CPU backend for Linux comes with a plain BLAS of some GFLOP/s. With OpenBLAS in its place
the training is ten times as fast (Debian: apt install libopenblas0-pthread):

    LD_PRELOAD=/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3 python -m …

A real Kimi in shape: the deepseek_v3 architecture (MLA and MoE), the first ranks of the real
vocabulary and its 256 control tokens, K2-Instruct's prompt format.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map

import mlx_lm_kimi
from scripts.dialogues import dialogue

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY = ROOT / "tests/data/kimi_tokenizer"
OUT = ROOT / "mlx_lm_kimi/demo_model"
RANKS = 1000
FULL_RANKS = 163584
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "vocab_size": RANKS + 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 64,
    "q_lora_rank": None,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 48,
    "max_position_embeddings": 2048,
    "rope_theta": 1000.0,
    "torch_dtype": "float32",
    "eos_token_id": RANKS + 2,
}


def write_vocabulary(out: Path) -> None:
    """The first ranks of the real vocabulary, and the names of K2-Instruct after them."""
    lines = (VOCABULARY / "tiktoken.model").read_bytes().splitlines(keepends=True)
    (out / "tiktoken.model").write_bytes(b"".join(lines[:RANKS]))
    config = json.loads((VOCABULARY / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {
        str(int(i) - FULL_RANKS + RANKS): token
        for i, token in config["added_tokens_decoder"].items()
        if token["content"] not in ("<think>", "</think>")
    }
    config.pop("auto_map", None)
    text = json.dumps(config, indent=1, ensure_ascii=False)
    (out / "tokenizer_config.json").write_text(text + "\n")
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")


def encode(tokenizer, messages, tools) -> tuple[list[int], list[float]]:
    """(ids, weight of each id in the loss): only what the assistant writes counts."""
    ids = tokenizer.apply_chat_template(messages, tools=tools, return_dict=False)
    special = tokenizer.special_ids
    roles = [special[f"<|im_{role}|>"] for role in ("system", "user", "assistant")]
    weights, role, writing = [], None, False
    for token in ids:
        weights.append(1.0 if writing else 0.0)
        if token in roles:
            role = token
        elif token == special["<|im_end|>"]:
            writing = False
        elif token == special["<|im_middle|>"]:
            writing = role == special["<|im_assistant|>"]
    return ids, weights


class Batches:
    """Padded batches of fresh dialogues, sorted by length to waste little."""

    def __init__(self, tokenizer, size: int, seed: int):
        self.tokenizer, self.size = tokenizer, size
        self.short, self.varied = True, False
        self.rng = random.Random(seed)
        self.pool: list[tuple[list[int], list[float]]] = []

    def _fill(self) -> None:
        rows = [
            encode(self.tokenizer, *dialogue(self.rng, self.short, self.varied))
            for _ in range(self.size * 16)
        ]
        rows.sort(key=lambda row: len(row[0]))
        chunks = [rows[i : i + self.size] for i in range(0, len(rows), self.size)]
        self.rng.shuffle(chunks)
        self.pool = chunks

    def next(self) -> tuple[mx.array, ...]:
        if not self.pool:
            self._fill()
        rows = self.pool.pop()
        # Multiples of 32 and 256, so that few shapes are compiled.
        length = -(-max(len(ids) for ids, _ in rows) // 32) * 32
        ids = mx.array([i + [0] * (length - len(i)) for i, _ in rows])
        # (row, position, next id) of all that the assistant writes.
        written = [
            (row, at - 1, ids[at])
            for row, (ids, weights) in enumerate(rows)
            for at in range(1, len(ids))
            if weights[at]
        ]
        count = len(written)
        written += [(0, 0, 0)] * (-count % 256)
        where = mx.array([row * length + at for row, at, _ in written])
        targets = mx.array([target for _, _, target in written])
        return ids, where, targets, mx.array(count)


def loss_fn(model, ids, where, targets, count):
    hidden = model.model(ids)
    hidden = hidden.reshape(-1, hidden.shape[-1])[where]
    losses = nn.losses.cross_entropy(model.lm_head(hidden), targets)
    return (losses * (mx.arange(losses.size) < count)).sum() / count


def initialise(model) -> None:
    def scaled(name, value):
        if value.ndim < 2:
            return value
        return mx.random.normal(value.shape) * 0.05

    flat = [(n, scaled(n, v)) for n, v in tree_flatten(model.parameters())]
    model.load_weights(flat)


@dataclass(frozen=True)
class Stage:
    """A part of the training, with a learning rate that rises and falls."""

    steps: int
    rate: float
    short: float  # the part of its steps that are on short dialogues
    varied: bool  # words of any form


# Copying is learned on short dialogues first, at a third of the cost; then on words of
# any form, so that it does not depend on how a word is made.
STAGES = (Stage(2400, 3e-3, 1 / 3, False), Stage(900, 1.5e-3, 1 / 2, True))


def train(
    out: Path, batch: int, seed: int, stages: Sequence[Stage], resume: bool
) -> None:
    """Train and save; deterministic for a seed on one machine."""
    from mlx_lm.models.deepseek_v3 import Model, ModelArgs

    from mlx_lm_kimi.tokenizer import load

    mx.random.seed(seed)
    out.mkdir(parents=True, exist_ok=True)
    write_vocabulary(out)
    model = Model(ModelArgs.from_dict(CONFIG))
    initialise(model)
    if resume:
        model.load_weights(str(out / "model.safetensors"))
    count = sum(v.size for _, v in tree_flatten(model.parameters()))
    print(f"{count:,} parameters, {count * 4 / 1e6:.2f} MB")
    for number, stage in enumerate(stages):
        run_stage(model, stage, Batches(load(out), batch, seed + number), out)


def run_stage(model, stage: Stage, batches: Batches, out: Path) -> None:
    steps, rate = stage.steps, stage.rate
    schedule = optim.join_schedules(
        [
            optim.linear_schedule(rate / 50, rate, 50),
            optim.cosine_decay(rate, max(1, steps - 50), rate / 20),
        ],
        [50],
    )
    optimizer = optim.AdamW(
        learning_rate=schedule, betas=[0.9, 0.98], weight_decay=0.01
    )
    state = [model.state, optimizer.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(*batch):
        loss, grads = nn.value_and_grad(model, loss_fn)(model, *batch)
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        optimizer.update(model, grads)
        return loss

    start, recent = time.time(), []
    batches.varied = stage.varied
    for i in range(1, steps + 1):
        batches.short = i <= stage.short * steps
        loss = step(*batches.next())
        mx.eval(state, loss)
        recent.append(loss.item())
        if i % 50 == 0 or i == steps:
            mean = sum(recent) / len(recent)
            print(f"step {i}  loss {mean:.4f}  {time.time() - start:.0f} s", flush=True)
            recent = []
        if i % 100 == 0 or i == steps:
            save(model, out)


def save(model, out: Path) -> None:
    weights = dict(
        tree_flatten(tree_map(lambda v: v.astype(mx.float32), model.parameters()))
    )
    mx.save_safetensors(str(out / "model.safetensors"), weights, {"format": "mlx"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="of each stage, for a quick try")
    parser.add_argument("--resume", type=int, help="go on at this stage")
    args = parser.parse_args()
    mlx_lm_kimi.install()
    stages = STAGES[args.resume or 0 :]
    if args.steps:
        stages = [replace(stage, steps=args.steps) for stage in stages]
    seed = args.seed + (args.resume or 0)
    train(args.out, args.batch, seed, stages, args.resume is not None)


if __name__ == "__main__":
    main()
