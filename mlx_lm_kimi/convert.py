"""Kimi's ranks -> a fast tokenizer (tokenizers library).

Source of the facts: the checkpoints' tiktoken.model and tokenizer_config.json, and
Moonshot's published tokenizer for the splitting rules.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from . import cache

SPECIALS = 256  # ids after the ranks
FORMAT = b"3"  # of cache entries; change it when the conversion changes
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
# The names of K2's vocabulary, by their place after the ranks; for directories whose
# tokenizer_config.json names none.
STANDARD_NAMES = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|im_end|>",
    3: "<|im_user|>",
    4: "<|im_assistant|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    9: "[EOT]",
    10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>",
    13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>",
    17: "<|im_middle|>",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    22: "<think>",
    23: "</think>",
    254: "[UNK]",
    255: "[PAD]",
}


def byte_to_char() -> list[str]:
    """The character that stands for each byte in a ByteLevel vocabulary (GPT-2's)."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    table, extra = [], 256
    for byte in range(256):
        if byte in shown:
            table.append(chr(byte))
        else:
            table.append(chr(extra))
            extra += 1
    return table


BYTE_OF = {char: byte for byte, char in enumerate(byte_to_char())}


def read_ranks(data: bytes) -> list[bytes]:
    """The tokens of a tiktoken.model file, by rank.

    Raises:
        ValueError: a line is damaged, or ranks are not 0, 1, 2, …
    """
    ranks: dict[int, bytes] = {}
    try:
        for line in data.splitlines():
            if line:
                token, rank = line.split()
                ranks[int(rank)] = base64.b64decode(token, validate=True)
    except binascii.Error as e:
        raise ValueError(f"tiktoken.model is damaged: {e}") from e
    if sorted(ranks) != list(range(len(ranks))) or not ranks:
        raise ValueError("tiktoken.model is damaged: ranks are missing")
    return [ranks[i] for i in range(len(ranks))]


def read_json(data: bytes) -> tuple[list[bytes], dict[int, str]]:
    """The ranks inside a tokenizer.json, and the names (by id) that follow them.

    Raises:
        ValueError: it is damaged, or no byte-level vocabulary.
    """
    try:
        content = json.loads(data)
        added = content.get("added_tokens") or ()
        names = {int(t["id"]): str(t["content"]) for t in added}
        vocab = {i: token for token, i in content["model"]["vocab"].items()}
        count = min([len(vocab), *names])
        tokens = [bytes([BYTE_OF[c] for c in vocab[i]]) for i in range(count)]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as e:
        raise ValueError(f"tokenizer.json is no vocabulary of Kimi: {e!r}") from e
    return tokens, names


def _left(token: bytes, limit: int, ranks: dict[bytes, int]) -> int:
    """How long the left one of the two parts is that are joined last to make a token."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, limit) for a, b in zip(parts, parts[1:])]
        best = min(pairs)
        if best >= limit:
            raise ValueError(f"the rank of {token!r} can't be reached by merges")
        i = pairs.index(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return len(parts[0])


class Vocabulary(NamedTuple):
    """What a fast tokenizer is made of: no more than lists, so it can be kept as JSON."""

    tokens: list[str]  # a character for each byte
    lefts: list[int]  # how long the left one of the two joined parts is; 0: a byte
    names: list[str]  # of the control tokens


def build(tokens: list[bytes], names: dict[int, str]) -> Vocabulary:
    """The vocabulary of these ranks, with the 256 control tokens after them.

    Args:
        tokens: the bytes of each rank.
        names: id -> name; others are ``<|reserved_token_ID|>``.

    Raises:
        ValueError: two ranks are the same, or some text could not be encoded.
    """
    chars = byte_to_char()
    ranks = {token: i for i, token in enumerate(tokens)}
    if len(ranks) < len(tokens) or not ranks.keys() >= {bytes([b]) for b in range(256)}:
        raise ValueError("the vocabulary is damaged: a token is missing or there twice")
    lefts = [
        _left(token, i, ranks) if len(token) > 1 else 0
        for i, token in enumerate(tokens)
    ]
    spelled = ["".join([chars[b] for b in token]) for token in tokens]
    control = control_names(len(tokens), names, set(spelled))
    return Vocabulary(spelled, lefts, list(control.values()))


def assemble(parts: Vocabulary) -> Tokenizer:
    """The fast tokenizer of a vocabulary. Takes a quarter of a second for Kimi's."""
    tokens, lefts, names = parts
    # One merge a rank is enough: lower ranks are joined first, so by the time that this
    # one is due, its text always is in these two parts.
    merges = [(t[:left], t[left:]) for t, left in zip(tokens, lefts) if left]
    vocab = dict(zip(tokens, range(len(tokens))))
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # In the order of their ids: that is how the library numbers them.
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in names]
    )
    return tokenizer


def control_names(
    ranks: int, names: dict[int, str], vocab: Container[str] = ()
) -> dict[int, str]:
    """id -> name of the 256 control tokens that follow this many ranks.

    A name that is a rank's spelling (vocab), that is there twice, or that is no text is
    left out: the library would give it another id, and all after it, too.
    """
    if _are_shifted(ranks, names):
        given = set(names.values())
        names = {ranks + i: n for i, n in STANDARD_NAMES.items() if n in given}
    reserved = {i: f"<|reserved_token_{i}|>" for i in range(ranks, ranks + SPECIALS)}
    taken, found = set(reserved.values()), {}
    for i, own in reserved.items():
        name = names.get(i, own)
        if name in taken or name in vocab or not _is_text(name):
            name = own
        taken.add(name)
        found[i] = name
    return found


def _are_shifted(ranks: int, names: dict[int, str]) -> bool:
    """Whether names lost the gaps between them, and so their ids.

    transformers 5.4 saved such files (transformers issue 45356): ids without a gap, and
    well-known names at wrong places.
    """
    ids = sorted(i for i in names if i >= ranks)
    if not ids or len(ids) >= SPECIALS or ids != list(range(ranks, ranks + len(ids))):
        return False
    place = {name: ranks + i for i, name in STANDARD_NAMES.items()}
    return any(place.get(names[i], i) != i for i in ids)


def _is_text(name: str) -> bool:
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def convert(path: Path, names: dict[int, str] | None) -> Tokenizer:
    """The fast tokenizer of a directory, from the cache if it was converted before.

    tiktoken.model is preferred to tokenizer.json: it is Moonshot's own.

    Args:
        path: a directory with tiktoken.model, or with tokenizer.json.
        names: id -> name of its control tokens; None: those in its tokenizer.json, or
            else the standard ones.

    Raises:
        FileNotFoundError: the directory has neither file.
        ValueError: the file is damaged.
    """
    ranks, fast = path / "tiktoken.model", path / "tokenizer.json"
    if not ranks.is_file() and not fast.is_file():
        raise FileNotFoundError(
            f"{path} has neither tiktoken.model nor tokenizer.json: "
            "copy tiktoken.model from the original checkpoint."
        )
    model = ranks.read_bytes() if ranks.is_file() else None
    is_needed = fast.is_file() and (model is None or names is None)
    other = fast.read_bytes() if is_needed else b""
    key = hashlib.sha256(FORMAT)
    for part in (model or b"", other, json.dumps(names, sort_keys=True).encode()):
        key.update(b"%d:" % len(part) + part)
    kept = cache.read(key.hexdigest())
    if kept is not None:
        return assemble(Vocabulary(*kept))
    parts = _convert(model, other, names)
    cache.write(key.hexdigest(), parts)
    return assemble(parts)


def _convert(
    model: bytes | None, fast: bytes, names: dict[int, str] | None
) -> Vocabulary:
    """A vocabulary from what the files hold (model: tiktoken.model, None: no such file)."""
    tokens = None if model is None else read_ranks(model)
    if tokens is None:
        tokens, found = read_json(fast)
        names = names or found
    elif names is None and fast:
        with contextlib.suppress(ValueError):  # its ranks are not needed
            others, found = read_json(fast)
            names = found if len(others) == len(tokens) else None
    standard = {len(tokens) + i: name for i, name in STANDARD_NAMES.items()}
    return build(tokens, names or standard)
