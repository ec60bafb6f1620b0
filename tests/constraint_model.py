"""Random answers under a constraint: walks without a model, and a model of noise."""

import functools
import random
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_lm_kimi import constrain, grammar
from mlx_lm_kimi.grammar import ConstraintSpec
from mlx_lm_kimi.tokenizer import load

DATA = Path(__file__).resolve().parent / "data"
VOCABULARY = 163840
IM_END, THINK, THINK_END = 163586, 163606, 163607


@functools.cache
def tokenizer():
    return load(DATA / "kimi_tokenizer")


def tool(name: str, parameters: object, **more) -> dict:
    function = {"name": name, "parameters": parameters, **more}
    return {"type": "function", "function": function}


def spec(*tools: dict, choice: str = "required", **more) -> ConstraintSpec:
    return ConstraintSpec(tools=tools, choice=choice, **more)


def text(ids) -> str:
    return b"".join(map(tokenizer().token_bytes, ids)).decode("utf-8", "replace")


def ids(output: str) -> list[int]:
    """Ids of an output in which markers are spelled out."""
    import re

    special = tokenizer().special_ids
    names = "|".join(re.escape(n) for n in sorted(special, key=len, reverse=True))
    found = []
    for part in re.split(f"({names})", output):
        if part in special:
            found.append(special[part])
        elif part:
            found += tokenizer().encode_content(part)
    return found


def accepts(one: ConstraintSpec, output: str, **kwargs) -> bool:
    """Whether an output fits the grammar of a request, and may end there."""
    text = grammar.build(
        one,
        **{
            "family": "kimi_k2",
            "thinking_open": False,
            "has_thinking": False,
            **kwargs,
        },
    )
    matcher = constrain._compiler(tokenizer()).matcher(text, grammar.first_token(one))
    tokens = ids(output)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@functools.cache
def candidates() -> np.ndarray:
    """Tokens that end things soon, and some that go on; markers too."""
    closing = [
        i for i in range(3000) if set(tokenizer().token_bytes(i)) <= set(b'"}],:')
    ]
    others = random.Random(0).sample(range(163584), 400)
    digits = [tokenizer().encode_content(d)[0] for d in "0123456789"]
    markers = [tokenizer().special_ids[n] for n in grammar.CALL_MARKERS]
    return np.array(
        [*closing * 6, *others, *digits * 2, *[IM_END, THINK_END] * 60, *markers]
    )


def walk(processor, seed: int = 0, limit: int = 400, prompt: int = 3) -> list[int]:
    """A random answer: each token one of those that the processor lets through."""
    rng = np.random.default_rng(seed)
    history = [1] * prompt
    zeros = mx.zeros((1, VOCABULARY))
    while len(history) - prompt < limit:
        allowed = np.array(processor(mx.array(history), zeros))[0] == 0
        some = candidates()[allowed[candidates()]]
        if not len(some) or rng.random() < 0.02:
            some = np.flatnonzero(allowed)
        history.append(int(rng.choice(some)))
        if history[-1] == IM_END:
            break
    return history[prompt:]


def answer(one: ConstraintSpec, seed: int = 0, limit: int = 400, thinking=False) -> str:
    processor = constrain.logits_processor(one, tokenizer(), thinking_open=thinking)
    return text(walk(processor, seed, limit))


def calls(output: str) -> list[tuple[str, str]]:
    """(id, arguments) of the calls in an output."""
    found = []
    for part in output.split("<|tool_call_begin|>")[1:]:
        name, _, rest = part.partition("<|tool_call_argument_begin|>")
        found.append((name, rest.partition("<|tool_call_end|>")[0]))
    return found


class NoiseModel(nn.Module):
    """mlx_lm's model interface; the logits are noise that favours what closes."""

    def __init__(
        self,
        seed: int = 0,
        script: list[int] | None = None,
        ends: tuple[int, ...] = (IM_END, THINK_END),
    ):
        super().__init__()
        self._bias = self.bias(ends)
        self._script = script
        self._noise = mx.random.normal((VOCABULARY,), key=mx.random.key(seed))
        self.layers = [nn.Identity()]

    @staticmethod
    @functools.cache
    def bias(ends: tuple[int, ...]) -> mx.array:
        bias = np.full(VOCABULARY, -8.0, dtype=np.float32)
        bias[candidates()] = 0.0
        closing = [
            i
            for i in candidates()
            if set(tokenizer().token_bytes(int(i))) <= set(b'"}],')
        ]
        bias[closing] = 3.0
        bias[list(ends)] = 8.0
        return mx.array(bias)

    def __call__(self, inputs, cache=None, **kwargs):
        batch, length = inputs.shape
        keys = inputs.astype(mx.float32)[:, None, :, None]
        history, _ = cache[0].update_and_fetch(keys, keys)
        if self._script is not None:
            said = history.shape[2] - length - self._start + 1
            hot = [
                self._script[min(max(said + i, 0), len(self._script) - 1)]
                for i in range(length)
            ]
            out = mx.where(mx.arange(VOCABULARY) == mx.array(hot)[:, None], 30.0, 0.0)
            return mx.broadcast_to(out, (batch, length, VOCABULARY))
        # Other noise at each place, without a generator's cost.
        rolls = [(inputs[0, i] * 7919 + 31 * i) for i in range(length)]
        rows = [mx.roll(self._noise, r.item() % VOCABULARY) for r in rolls]
        out = mx.stack(rows)[None] * 2 + self._bias
        return mx.broadcast_to(out, (batch, length, VOCABULARY))

    _start = 3

    def make_cache(self):
        from mlx_lm.models.cache import KVCache

        return [KVCache()]
