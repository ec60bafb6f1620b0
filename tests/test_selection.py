"""By model type: what serves a directory follows from its config.json."""

import json
from importlib.util import find_spec

import pytest
from mlx_lm import tokenizer_utils
from mlx_lm.utils import load_tokenizer
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from mlx_lm_kimi import families, loading

NAMES = (
    "[BOS]",
    "[EOS]",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_system|>",
    "<|im_middle|>",
)
MARKERS = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")


@pytest.fixture
def converted(tmp_path):
    """A conversion that stock loads: tokenizer.json, a template that spells no marker."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({c: i for i, c in enumerate(bytes_)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*NAMES, *MARKERS])
    path = tmp_path / "converted"
    path.mkdir()
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "[EOS]",
        "chat_template": "{{ messages[0].content }}",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return write(path, model_type="kimi_k2")


def write(path, **config):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    "model_type, parser, template",
    [
        ("kimi_k2", "kimi_k2", "kimi_k2"),
        ("kimi_k25", "kimi_k2", "kimi_k25"),
        ("kimi_k3", "kimi_k3", "kimi_k3"),
        ("kimi_linear", "kimi_k2", "kimi_k2"),
        ("kimi_vl", "kimi_k2", "kimi_k2"),
    ],
)
def test_defaults(tmp_path, model_type, parser, template):
    wanted = {"tool_parser_type": parser, "chat_template_type": template}
    if find_spec(f"mlx_lm.tool_parsers.{parser}") is None:
        del wanted["tool_parser_type"]  # K3's, in mlx-lm 0.31.3
    assert loading.defaults(write(tmp_path, model_type=model_type)) == wanted


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", None, 3])
def test_no_defaults_for_others(tmp_path, model_type):
    assert loading.defaults(write(tmp_path, model_type=model_type)) == {}
    assert families.detect(tmp_path / "nothing") is None


def test_the_parser_is_chosen_though_no_template_names_it(converted):
    tokenizer = load_tokenizer(converted)
    assert tokenizer.has_tool_calling
    assert tokenizer.tool_call_start == "<|tool_calls_section_begin|>"
    assert tokenizer.tool_call_end == "<|tool_calls_section_end|>"
    (call,) = tokenizer.tool_parser(
        'functions.f:3<|tool_call_argument_begin|>{"a": 1}', None
    )
    assert (call["name"], call["arguments"]) == ("f", {"a": 1})


def test_runners_that_call_the_tokenizer_loader_themselves(converted):
    tokenizer = tokenizer_utils.load(
        converted, {"trust_remote_code": True}, eos_token_ids=[257]
    )
    assert tokenizer.has_tool_calling and 257 in tokenizer.eos_token_ids


def test_a_directory_that_names_its_parser_keeps_it(converted):
    file = converted / "tokenizer_config.json"
    config = {**json.loads(file.read_text()), "tool_parser_type": "json_tools"}
    file.write_text(json.dumps(config))
    assert load_tokenizer(converted).tool_call_start == "<tool_call>"


def test_deepseek_with_a_kimi_vocabulary(converted):
    write(converted, model_type="deepseek_v3")
    assert families.detect(converted) is families.KIMI_K2
    assert load_tokenizer(converted).has_tool_calling


def test_deepseek_itself_is_left_alone(converted):
    write(converted, model_type="deepseek_v3")
    text = (converted / "tokenizer.json").read_text().replace("<|im_", "<|other_")
    (converted / "tokenizer.json").write_text(text)
    assert families.detect(converted) is None
    assert not load_tokenizer(converted).has_tool_calling
