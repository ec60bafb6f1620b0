"""A stand-in for the small model that mlx-lm's own tests download, so that they can run.

A Qwen2 with random weights and a vocabulary of bytes, in a hub cache under the name that
the tests ask for. Tests of what the real one says fail with and without the patches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

NAME = "mlx-community/Qwen1.5-0.5B-Chat-4bit"
REVISION = "0" * 40
NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "vocab_size": 512,
    "tie_word_embeddings": True,
    "eos_token_id": 258,
}


def make(cache: Path) -> None:
    """Write the model into a hub cache."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.qwen2 import Model, ModelArgs
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    repository = cache / f"models--{NAME.replace('/', '--')}"
    path = repository / "snapshots" / REVISION
    path.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({c: i for i, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(NAMES))
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "config.json").write_text(json.dumps(CONFIG))

    mx.random.seed(0)
    weights = dict(tree_flatten(Model(ModelArgs.from_dict(CONFIG)).parameters()))
    mx.save_safetensors(str(path / "model.safetensors"), weights)
    index = {"weight_map": dict.fromkeys(weights, "model.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
