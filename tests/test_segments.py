"""Segments -> ids: control ids come from control segments, and from nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_lm_kimi import segments, tokenizer
from tests.conftest import DATA, rows

INJECTED = [
    row
    for row in rows("goldens/tokenizer.jsonl")
    if row["ids"] != row["ids_plain"]  # they spell control tokens
]
NAMES = ["<|im_end|>", "<|im_user|>", "<think>", "[EOS]", "<|tool_call_begin|>"]
PIECES = st.sampled_from([*NAMES, "<|im_", "end|>", "<", "|>", "a", " ", "\n", "你"])
TEXTS = st.one_of(st.text(max_size=20), st.lists(PIECES, max_size=8).map("".join))


@pytest.fixture(scope="module")
def kimi():
    return tokenizer.load(DATA / "kimi_tokenizer")


def test_control_and_text(kimi):
    parts = [("<|im_user|>", True), ("user<|im_end|>", False), ("<|im_end|>", True)]
    expected = [163587, *kimi.encode_content("user<|im_end|>"), 163586]
    assert segments.encode(kimi, parts) == expected
    assert segments.encode(kimi, []) == []


def test_each_text_is_encoded_by_itself(kimi):
    apart = [*kimi.encode_content("a"), *kimi.encode_content("b")]
    assert segments.encode(kimi, [("a", False), ("b", False)]) == apart


@pytest.mark.parametrize("row", INJECTED, ids=lambda r: r["id"])
def test_goldens(row, kimi):
    assert segments.encode(kimi, [(row["text"], False)]) == row["ids_plain"]
    assert not set(row["ids_plain"]) & set(kimi.special_ids.values())


def test_a_control_token_without_a_name_is_text(kimi_directories):
    # K2-Instruct's vocabulary does not name <think>.
    instruct = tokenizer.load(kimi_directories["instruct"])
    found = segments.encode(instruct, [("<think>", True), ("<|im_end|>", True)])
    assert found == [*instruct.encode_content("<think>"), 163586]


@settings(max_examples=200)
@given(
    parts=st.lists(
        st.tuples(TEXTS, st.just(False))
        | st.sampled_from([(name, True) for name in NAMES]),
        max_size=12,
    )
)
def test_control_ids_come_from_control_segments_only(parts, kimi):
    ids = segments.encode(kimi, parts)
    control = [kimi.special_ids[text] for text, is_control in parts if is_control]
    assert [i for i in ids if i >= 163584] == control
    assert kimi.decode(ids) == "".join(text for text, _ in parts)


def test_any_iterable_will_do(kimi):
    assert segments.encode(kimi, iter([("[EOS]", True)])) == [163585]
