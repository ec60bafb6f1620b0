"""The tokenizer: exact ids, what a directory names, the cache."""

import json
import os
import stat
import subprocess
import sys
import threading
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_tokenizer

from mlx_lm_kimi import convert, directory, families, tokenizer
from tests.conftest import DATA, ROOT, rows
from tests.scripted import make_directory

GOLDENS = rows("goldens/tokenizer.jsonl")


@pytest.fixture(scope="module")
def kimi(kimi_directories):
    return tokenizer.load(kimi_directories["thinking"])


@pytest.mark.parametrize("row", GOLDENS, ids=lambda r: r["id"])
def test_goldens(row, kimi):
    assert kimi.encode(row["text"]) == row["ids"]
    assert kimi(row["text"])["input_ids"] == row["ids"]
    assert kimi.encode_content(row["text"]) == row["ids_plain"]
    assert kimi.decode(row["ids"]) == row["text"]


def test_batches(kimi):
    texts = [row["text"] for row in GOLDENS[:60]]
    assert kimi(texts)["input_ids"] == [row["ids"] for row in GOLDENS[:60]]


def test_names(kimi, kimi_directories):
    assert len(kimi) == 163840 and len(kimi.special_ids) == 256
    expected = {
        "[BOS]": 163584,
        "[EOS]": 163585,
        "<|im_end|>": 163586,
        "<|im_user|>": 163587,
        "<|im_assistant|>": 163588,
        "<|im_system|>": 163594,
        "<|tool_calls_section_begin|>": 163595,
        "<|tool_calls_section_end|>": 163596,
        "<|tool_call_begin|>": 163597,
        "<|tool_call_argument_begin|>": 163598,
        "<|tool_call_end|>": 163599,
        "<|im_middle|>": 163601,
        "<think>": 163606,
        "</think>": 163607,
        "[UNK]": 163838,
        "[PAD]": 163839,
        "<|reserved_token_163600|>": 163600,
    }
    for name, i in expected.items():
        assert kimi.convert_tokens_to_ids(name) == kimi.special_ids[name] == i
        assert kimi.convert_ids_to_tokens(i) == name and kimi.decode([i]) == name
    assert (
        kimi.decode([163606]) + "hello" + kimi.decode([163607])
        == "<think>hello</think>"
    )
    assert kimi.decode(kimi.encode("a<|im_end|>"), skip_special_tokens=True) == "a"
    instruct = tokenizer.load(kimi_directories["instruct"])
    assert "<think>" not in instruct.get_vocab() and "<think>" in kimi.get_vocab()


@pytest.mark.parametrize(
    "unit, count",
    [
        ("a", 60_001),
        (" ", 60_001),
        ("ab ", 150_000),
        ("x", 25_000),
        ("x", 25_001),
        ("你", 30_000),
    ],
)
def test_long_runs_are_cut_as_moonshots_encoder_does(unit, count, kimi):
    text = unit * count
    cut, start, run = [], 0, 1
    for begin in range(0, len(text), 400_000):
        part, start, run = text[begin : begin + 400_000], 0, 1
        for i in range(1, len(part)):
            run = run + 1 if part[i].isspace() == part[i - 1].isspace() else 1
            if run > 25_000:
                cut.append(part[start:i])
                start, run = i, 1
        cut.append(part[start:])
    expected = [i for piece in cut for i in kimi._content.encode(piece).ids]
    assert kimi.encode_content(text) == kimi.encode(text) == expected


def test_lone_surrogates_do_not_raise(kimi):
    assert kimi.decode(kimi.encode("a\ud800b")) == "a\ufffdb"
    assert kimi.decode(kimi.encode_content("\udfff")) == "\ufffd"


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_round_trip(text):
    kimi = _shared()
    assert kimi.decode(kimi.encode_content(text)) == text
    assert not set(kimi.encode_content(text)) & set(kimi.special_ids.values())


_loaded = []


def _shared():
    if not _loaded:
        _loaded.append(tokenizer.load(DATA / "kimi_tokenizer"))
    return _loaded[0]


LONG = "ab " * 10 + "x" * 60_000


def test_batches_of_odd_texts(kimi):
    # Each as it would be alone: cut into pieces, without lone surrogates.
    texts = [LONG, "a\ud800<|im_end|>", ""]
    assert kimi(texts)["input_ids"] == [kimi.encode(t) for t in texts]
    assert kimi.tokenize(LONG) == kimi.convert_ids_to_tokens(kimi.encode(LONG))
    assert kimi("a", "\ud800")["input_ids"] == [64, *kimi.encode("\ufffd")]


@pytest.mark.parametrize("text", ["a b c<|im_end|>", LONG], ids=["short", "long"])
def test_padding_and_truncation(text, kimi):
    ids = kimi.encode(text)
    assert kimi.encode(text, truncation=True, max_length=3) == ids[:3]
    batch = kimi([text, "a"], padding=True)
    assert batch["input_ids"] == [ids, [64] + [163839] * (len(ids) - 1)]
    assert batch["attention_mask"][1] == [1] + [0] * (len(ids) - 1)
    arrays = kimi(text, return_tensors="np")
    assert arrays["input_ids"].tolist() == [ids]
    split = kimi.encode(f"{text}[EOS]", split_special_tokens=True)
    assert split == kimi.encode_content(f"{text}[EOS]")


def test_threads_do_not_disturb_each_other(kimi):
    # transformers sets padding and splitting on the tokenizer that all threads share.
    text, wrong = "a b<|im_end|>", []
    right = kimi.encode(text)

    def disturb():
        for _ in range(100):
            kimi.encode(text, split_special_tokens=True)
            kimi([text, "a"], padding="max_length", max_length=9, truncation=True)

    def encode():
        for _ in range(600):
            if kimi.encode(text) != right or 163586 in kimi.encode_content(text):
                wrong.append(1)

    threads = [threading.Thread(target=f) for f in (disturb, encode, encode)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Loading ------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", [True, False])
def test_remote_code_never_runs(kimi_directories, trust):
    wrapper = load_tokenizer(kimi_directories["thinking"], {"trust_remote_code": trust})
    assert isinstance(wrapper._tokenizer, tokenizer.KimiTokenizer)
    assert wrapper.encode("<|im_end|>") == [163586]


@pytest.mark.parametrize("directory", ["instruct", "thinking", "k25"])
def test_selection_by_model_type(directory, kimi_directories):
    wrapper = load_tokenizer(kimi_directories[directory])
    assert wrapper.has_tool_calling and wrapper.has_chat_template
    assert wrapper.tool_call_start == "<|tool_calls_section_begin|>"
    assert wrapper.tool_call_end == "<|tool_calls_section_end|>"
    assert wrapper.eos_token_ids == {163585, 163586}
    assert wrapper.has_thinking == (directory != "instruct")
    if wrapper.has_thinking:
        assert (wrapper.think_start, wrapper.think_end) == ("<think>", "</think>")


@pytest.mark.parametrize("eos", [163585, 163586, [163586], None])
def test_end_tokens_whatever_the_configuration_says(eos, kimi_directories):
    wrapper = load_tokenizer(kimi_directories["thinking"], eos_token_ids=eos)
    assert wrapper.eos_token_ids == {163585, 163586}


@pytest.mark.parametrize("model_type", ["kimi_linear", "kimi_vl", "deepseek_v3"])
def test_other_model_types(model_type, tmp_path):
    path = make_directory(tmp_path / "k", model_type, weights=False)
    assert families.detect(path) is families.KIMI_K2
    assert load_tokenizer(path).tool_parser.__module__ == "mlx_lm.tool_parsers.kimi_k2"


def test_k3_names(tmp_path):
    path = make_directory(tmp_path / "k", "kimi_k3", weights=False)
    wrapper = load_tokenizer(path)
    assert wrapper.eos_token_ids == {163585, 163589}
    assert wrapper.think_start_tokens == (163586, 39964, 163588)
    # mlx-lm 0.31.3 has neither K3's model nor a parser for it.
    if find_spec("mlx_lm.tool_parsers.kimi_k3") is not None:
        assert wrapper.tool_call_start == "<|open|>tools<|sep|>"


def test_deepseek_is_left_alone(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v3"}')
    plain = Tokenizer(BPE(vocab={"a": 0, "<|im_end|>": 1}, merges=[]))
    plain.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    assert families.detect(tmp_path) is None
    wrapper = load_tokenizer(tmp_path)
    assert not isinstance(wrapper._tokenizer, tokenizer.KimiTokenizer)
    assert not wrapper.has_tool_calling


def test_a_directorys_own_parser_wins(tmp_path):
    path = make_directory(tmp_path / "k", weights=False)
    file = path / "tokenizer_config.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text()), "tool_parser_type": "json_tools"})
    )
    assert load_tokenizer(path).tool_call_start == "<tool_call>"
    assert not families.is_native(path)


def test_without_token_names(tmp_path):
    path = make_directory(tmp_path / "k", weights=False)
    (path / "tokenizer_config.json").unlink()
    assert tokenizer.load(path).encode("<|im_middle|>[EOS]") == [163601, 163585]


def tokenizer_json(path, kimi, change=lambda content: None):
    """Leaves a directory with a tokenizer.json only, and no names but in that."""
    kimi.save_pretrained(path)
    (path / "tiktoken.model").unlink(missing_ok=True)
    (path / "tokenizer_config.json").write_text("{}")
    content = json.loads((path / "tokenizer.json").read_text())
    change(content)
    (path / "tokenizer.json").write_text(json.dumps(content))


def test_names_come_from_a_tokenizer_json_too(tmp_path, kimi):
    tokenizer_json(tmp_path, kimi)
    assert tokenizer.load(tmp_path).special_ids == kimi.special_ids
    (tmp_path / "tiktoken.model").symlink_to(DATA / "kimi_tokenizer/tiktoken.model")
    assert tokenizer.load(tmp_path).special_ids == kimi.special_ids


def test_names_that_lost_their_gaps(tmp_path, kimi):
    # huggingface/transformers#45356: ids after 163588 were shifted.
    def shift(content):
        added = content["added_tokens"]
        added = [t for t in added if not t["content"].startswith("<|reserved_token_")]
        content["added_tokens"] = [{**t, "id": 163584 + i} for i, t in enumerate(added)]

    tokenizer_json(tmp_path, kimi, shift)
    again = tokenizer.load(tmp_path)
    assert again.special_ids == kimi.special_ids
    assert again.decode([163606]) == "<think>" and again.decode([163607]) == "</think>"


NAMED = {2000: "[BOS]", 2001: "[EOS]", 2002: "<|im_end|>"}


@pytest.mark.parametrize(
    "name", ["<|im_end|>", "in", "\ud800", "", 7, None, "<|reserved_token_2009|>"]
)
def test_an_unusable_name_costs_only_itself(name, small):
    # Twice, a rank's spelling, no text: the library would shift all ids after it.
    path, _ = small
    decoder = {str(i): {"content": n} for i, n in {**NAMED, 2005: name}.items()}
    decoder |= {"\u00b2": {"content": "x"}, "-1": {"content": "y"}, "2300": "z"}
    config = {"added_tokens_decoder": decoder, "eos_token": {"content": "[EOS]"}}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    found = tokenizer.load(path)
    assert len(found) == 2256 and found.eos_token_id == 2001
    assert found.convert_ids_to_tokens([2002, 2005, 2006, 2255]) == [
        "<|im_end|>",
        "<|reserved_token_2005|>",
        "<|reserved_token_2006|>",
        "<|reserved_token_2255|>",
    ]


@pytest.mark.parametrize(
    "setting",
    [
        {"eos_token": "</s>"},
        {"image_token": "<image>"},
        {"extra_special_tokens": ["<new>"]},
        {"model_specific_special_tokens": {"image_token": "<image>"}},
        {"add_bos_token": True},
        {"split_special_tokens": True},
        {"post_processor": "x"},
        {"tokenizer_padding": {"length": 9}},
        {"padding_side": "up", "model_max_length": "long"},
        {"chat_template": [{"x": 1}, 2]},
        {"tokenizer_object": 1, "backend": 2, "vocab": [], "gguf_file": "x"},
    ],
    ids=str,
)
def test_a_setting_changes_no_ids(setting, small):
    path, _ = small
    (path / "tokenizer_config.json").write_text(json.dumps(setting))
    found = tokenizer.load(path)
    assert found.encode("hi<|im_end|>") == [71, 72, 2002] and len(found) == 2256
    assert found.eos_token_id == 2001 and not found.chat_template


def test_what_the_caller_wants(small):
    path, _ = small
    config = {"tool_parser_type": "x", "padding_side": "right", "chat_template": "own"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    own = tokenizer.load(path)
    assert (own.chat_template, own.padding_side) == ("own", "right")
    assert own.init_kwargs["tool_parser_type"] == "x"
    wanted = {"chat_template": "C", "eos_token": "<|im_end|>", "padding_side": "left"}
    found = tokenizer.load(path, trust_remote_code=True, revision=None, **wanted)
    assert {key: getattr(found, key) for key in wanted} == wanted
    with pytest.raises(ValueError, match="</s>"):
        tokenizer.load(path, eos_token="</s>")


KIMI, XTML = directory._KIMI_NAMES


@pytest.mark.parametrize(
    "names, is_kimi",
    [
        (KIMI, True),
        (XTML, True),
        ({"<|im_start|>", "<|im_end|>"}, False),
        (set(), False),
    ],
)
def test_whose_vocabulary_it_is(names, is_kimi, tmp_path):
    fast, config = tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"
    assert not tokenizer.is_kimi_vocabulary(tmp_path)
    added = [{"id": i, "content": name} for i, name in enumerate(names)]
    fast.write_text(json.dumps({"added_tokens": added}))
    assert tokenizer.is_kimi_vocabulary(tmp_path) == is_kimi
    fast.unlink()
    config.write_text(json.dumps({"added_tokens_decoder": dict(enumerate(added))}))
    assert tokenizer.is_kimi_vocabulary(tmp_path) == is_kimi


def test_a_tokenizer_json_is_served(tmp_path, kimi):
    path = make_directory(tmp_path / "k", weights=False)
    kimi.save_pretrained(path)
    (path / "tiktoken.model").unlink()
    again = load_tokenizer(path)
    for row in GOLDENS[::5]:
        assert again.encode(row["text"]) == row["ids"]


def test_a_saved_directory_loads_in_transformers(tmp_path, kimi):
    from transformers import AutoTokenizer

    kimi.save_pretrained(tmp_path)
    stock = AutoTokenizer.from_pretrained(tmp_path)
    for row in GOLDENS[::5]:
        if len(row["text"]) < 25_000:
            assert stock.encode(row["text"]) == row["ids"]


@pytest.mark.parametrize(
    "damage",
    ["missing", "not base64", "a rank is missing", "empty", "twice", "no bytes", "cut"],
)
def test_a_damaged_vocabulary(damage, tmp_path):
    path = make_directory(tmp_path / "k", weights=False)
    file = path / "tiktoken.model"
    lines = file.read_bytes().splitlines(keepends=True)
    if damage == "missing":
        file.unlink()
    else:
        broken = {
            "not base64": [b"?? 0\n"],
            "a rank is missing": lines[:5] + lines[6:9],
            "empty": [],
            "twice": [*lines[:2000], b"IQ== 2000\n"],
            "no bytes": lines[:100],
            "cut": [*lines[:2000], b"IGFi"],
        }
        file.write_bytes(b"".join(broken[damage]))
    with pytest.raises((ValueError, FileNotFoundError)):
        tokenizer.load(path)


# The cache ------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A directory with few ranks, and an empty cache."""
    path = make_directory(tmp_path / "k", weights=False)
    lines = (path / "tiktoken.model").read_bytes().splitlines(keepends=True)
    (path / "tiktoken.model").write_bytes(b"".join(lines[:2000]))
    (path / "tokenizer_config.json").unlink()
    monkeypatch.setenv("MLX_LM_KIMI_CACHE", str(tmp_path / "cache"))
    return path, tmp_path / "cache"


def test_the_cache_is_used(small, monkeypatch):
    path, cache = small
    ids = tokenizer.load(path).encode("hello <|im_end|>")
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(convert, "build", None)
    assert tokenizer.load(path).encode("hello <|im_end|>") == ids


@pytest.mark.parametrize("damage", [b"", b"x", b"x\n{}", None])
def test_a_damaged_cache_is_rebuilt(small, damage):
    path, cache = small
    ids = tokenizer.load(path).encode("hello")
    (entry,) = cache.iterdir()
    whole = entry.read_bytes()
    # None: one byte in the middle is another.
    middle = len(whole) // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    entry.write_bytes(changed if damage is None else damage)
    assert tokenizer.load(path).encode("hello") == ids
    assert entry.read_bytes() == whole


def test_an_entry_under_anothers_name_is_damaged(small):
    path, cache = small
    tokenizer.load(path)
    (other,) = cache.iterdir()
    names = {"added_tokens_decoder": {"2002": {"content": "<|other|>"}}}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    tokenizer.load(path)
    (entry,) = set(cache.iterdir()) - {other}
    entry.write_bytes(other.read_bytes())
    assert tokenizer.load(path).special_ids["<|other|>"] == 2002


def test_other_names_are_another_entry(small):
    path, cache = small
    tokenizer.load(path)
    names = {"added_tokens_decoder": {"2002": {"content": "<|other|>"}}}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    assert tokenizer.load(path).special_ids["<|other|>"] == 2002
    assert len(list(cache.iterdir())) == 2


def test_nothing_is_writable(small, monkeypatch, tmp_path):
    path, _ = small
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLX_LM_KIMI_CACHE", str(tmp_path / "file" / "below"))
    assert tokenizer.load(path).encode("<|im_end|>") == [2002]
    os.chmod(path, stat.S_IRUSR | stat.S_IXUSR)
    assert tokenizer.load(path).encode("<|im_end|>") == [2002]


def test_several_processes_at_once(small):
    path, cache = small
    code = f"from {tokenizer.__package__} import tokenizer; print(tokenizer.load({str(path)!r}).encode('hello'))"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    printed = {process.communicate()[0] for process in started}
    assert len(printed) == 1 and printed.pop().startswith("[")
    assert len(list(cache.iterdir())) == 1, "no temporary file is left"


def test_without_a_home_directory(small, monkeypatch):
    def no_home(self):
        raise RuntimeError("Could not determine home directory.")

    path, _ = small
    monkeypatch.delenv("MLX_LM_KIMI_CACHE")
    monkeypatch.setattr("pathlib.Path.expanduser", no_home)
    assert tokenizer.load(path).encode("<|im_end|>") == [2002]


def test_a_tokenizer_json_of_another_kind(small):
    path, _ = small
    (path / "tiktoken.model").unlink()
    (path / "tokenizer.json").write_text('{"model": {"vocab": {"\u2581a": 0}}}')
    with pytest.raises(ValueError, match="no vocabulary of Kimi"):
        tokenizer.load(path)
