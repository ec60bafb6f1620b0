"""Beside stock: other models byte for byte, and what stock answered right."""

import json
import os
import subprocess
import sys

import mlx.core as mx
from mlx.utils import tree_flatten

from benchmarks.side_by_side import make_directory
from tests.conftest import ROOT

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 32,
}


def make_llama(path):
    """A tiny model of another family, with a chat template."""
    from mlx_lm.models.llama import Model, ModelArgs
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel

    words = {
        "<unk>": 0,
        "</s>": 1,
        "user": 2,
        **{chr(97 + i): 3 + i for i in range(26)},
    }
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": template,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "config.json").write_text(json.dumps(CONFIG))
    mx.random.seed(0)
    weights = dict(tree_flatten(Model(ModelArgs.from_dict(CONFIG)).parameters()))
    mx.save_safetensors(str(path / "model.safetensors"), weights)


def run(kind: str, path, switch: str):
    result = subprocess.run(
        [sys.executable, "-m", "tests.differential", kind, str(path)],
        cwd=ROOT,
        env={**os.environ, "MLX_LM_KIMI": switch},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_other_models_are_served_byte_for_byte(tmp_path):
    make_llama(tmp_path)
    stock, ours = (run("other", tmp_path, switch) for switch in "01")
    assert ours == stock
    assert [answer[0] for answer in ours[:3]] == [200, 200, 200]


def test_what_stock_answers_right_is_answered_the_same(tmp_path):
    path = make_directory(tmp_path / "kimi")
    stock, ours = (run("kimi", path, switch) for switch in "01")
    for (stock_status, said), (status, answer) in zip(stock, ours):
        assert status == stock_status == 200
        for call in said["calls"].values():
            call["arguments"] = json.dumps(json.loads(call["arguments"]))
        assert answer == said
