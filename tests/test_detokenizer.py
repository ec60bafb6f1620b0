"""Streamed text: the decoded text, whole characters, constant work a token."""

import copy
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_tokenizer

from mlx_lm_kimi import tokenizer
from mlx_lm_kimi.detokenizer import KimiStreamingDetokenizer
from tests.conftest import DATA, rows


@pytest.fixture(scope="module")
def kimi():
    return tokenizer.load(DATA / "kimi_tokenizer")


def stream(detokenizer, ids):
    """The segments of a whole answer, one a token and one for the end."""
    segments = []
    for i in ids:
        detokenizer.add_token(i)
        segments.append(detokenizer.last_segment)
    detokenizer.finalize()
    return [*segments, detokenizer.last_segment]


@pytest.mark.parametrize("row", rows("goldens/tokenizer.jsonl"), ids=lambda r: r["id"])
def test_goldens(row, kimi):
    for ids in (row["ids"], row["ids_plain"]):
        assert "".join(stream(KimiStreamingDetokenizer(kimi), ids)) == row["text"]


@settings(max_examples=150)
@given(ids=st.lists(st.integers(0, 163839), max_size=40))
def test_streamed_text_is_the_decoded_text(ids, kimi):
    detokenizer = KimiStreamingDetokenizer(kimi)
    segments = stream(detokenizer, ids)
    official = b"".join(kimi.token_bytes(i) for i in ids).decode("utf-8", "replace")
    assert "".join(segments) == detokenizer.text == kimi.decode(ids) == official
    assert detokenizer.tokens == ids and detokenizer.offset == len(official)


@settings(max_examples=150)
@given(text=st.text(), data=st.data())
def test_cut_anywhere(text, data, kimi):
    ids = kimi.encode_content(text)
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    assert "".join(stream(KimiStreamingDetokenizer(kimi), ids)) == kimi.decode(ids)


# The first 256 ranks are the bytes in GPT-2's order: here tokens cut each character.
@settings(max_examples=100)
@given(text=st.text(max_size=20))
def test_bytes_one_by_one(text, kimi):
    of_byte = {kimi.token_bytes(i): i for i in range(256)}
    detokenizer = KimiStreamingDetokenizer(kimi)
    segments = stream(detokenizer, [of_byte[bytes([b])] for b in text.encode()])
    assert "".join(segments) == text
    whole = [s for s in segments if s]
    assert whole == list(text), "each character comes at its last byte, whole"


def test_bytes_that_are_no_text(kimi):
    of_byte = {kimi.token_bytes(i): i for i in range(256)}
    for data in (b"\xff", b"a\xe4\xbd", b"\xe4\xbda", b"\xf0\x9f\x98", b"\xed\xa0\x80"):
        ids = [of_byte[bytes([b])] for b in data]
        found = "".join(stream(KimiStreamingDetokenizer(kimi), ids))
        assert found == kimi.decode(ids) == data.decode("utf-8", "replace")


def test_ids_outside_the_vocabulary_are_no_text(kimi):
    # A model's vocabulary may be padded.
    for i in (163840, 10**12, -1):
        assert stream(KimiStreamingDetokenizer(kimi), [i, 64]) == ["", "a", ""]


def test_characters_are_never_cut(kimi_directories):
    wrapper = load_tokenizer(kimi_directories["thinking"])
    detokenizer = wrapper.detokenizer
    text = "🙂🚀 𝒳𝓎 é 你好 👍🏽" * 3
    segments = stream(detokenizer, wrapper.encode(text))
    assert not any("\ufffd" in s for s in segments) and detokenizer.text == text
    assert wrapper.detokenizer.text == "", "every caller gets a fresh one"


def test_copies_are_independent(kimi):
    # mlx-lm's wrapper gives each request a copy of one, after a reset.
    first = KimiStreamingDetokenizer(kimi)
    emoji = kimi.encode_content("🦜")
    assert len(emoji) > 1
    first.add_token(emoji[0])
    second = copy.copy(first)
    second.reset()
    assert stream(second, kimi.encode_content("ok"))[-1] == "" and second.text == "ok"
    assert "".join(stream(first, emoji[1:])) == first.text == "🦜"


def test_finalize_more_than_once(kimi):
    detokenizer = KimiStreamingDetokenizer(kimi)
    detokenizer.add_token(kimi.encode_content("🦜")[0])
    detokenizer.finalize()
    detokenizer.finalize()
    assert detokenizer.last_segment == detokenizer.text == "\ufffd"
    detokenizer.add_token(64)
    assert detokenizer.last_segment == "a", "the cut character is over"


def test_it_is_linear(kimi):
    ids = kimi.encode_content("word " * 40_000)

    def seconds(count: int) -> float:
        best = 1e9
        for _ in range(3):
            start = time.perf_counter()
            stream(KimiStreamingDetokenizer(kimi), ids[:count])
            best = min(best, time.perf_counter() - start)
        return best / count

    # Quadratic cost would be a factor of 16; the bound leaves room for a busy machine.
    assert seconds(32_000) < 5 * seconds(2_000)
