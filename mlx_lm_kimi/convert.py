"""Kimi's ranks -> a fast tokenizer (tokenizers library), cached.

Source of the facts: the checkpoints' tiktoken.model and tokenizer_config.json, and
Moonshot's published tokenizer for the splitting rules.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

SPECIALS = 256  # ids after the ranks
FORMAT = b"1"  # of the cache; change it when the conversion changes
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
    10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>",
    13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>",
    17: "<|im_middle|>",
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


def read_ranks(data: bytes) -> list[bytes]:
    """The tokens of a tiktoken.model file, by rank.

    Raises:
        ValueError: a line is damaged, or a rank is missing.
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


def _ranks_of_json(data: bytes) -> list[bytes]:
    """The ranks inside a tokenizer.json, up to its first control token."""
    content = json.loads(data)
    vocab = {i: token for token, i in content["model"]["vocab"].items()}
    first = min((t["id"] for t in content.get("added_tokens", ())), default=len(vocab))
    back = {char: byte for byte, char in enumerate(byte_to_char())}
    return [bytes(back[c] for c in vocab[i]) for i in range(min(first, len(vocab)))]


def _merge(token: bytes, limit: int, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two parts that byte pair encoding joins last to make this token."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, limit) for a, b in zip(parts, parts[1:])]
        best = min(pairs)
        if best >= limit:
            raise ValueError(f"the rank of {token!r} can't be reached by merges")
        i = pairs.index(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts[0], parts[1]


def build(tokens: list[bytes], names: dict[int, str]) -> Tokenizer:
    """A fast tokenizer of these ranks, with the 256 control tokens after them.

    Args:
        tokens: the bytes of each rank.
        names: id -> name; others are ``<|reserved_token_ID|>``.
    """
    chars = byte_to_char()
    spelled = ["".join([chars[b] for b in token]) for token in tokens]
    ranks = {token: i for i, token in enumerate(tokens)}
    merges = []
    for i, token in enumerate(tokens):
        if len(token) > 1:
            # One merge a rank is enough: a pair's rank is that of what it makes.
            left, right = _merge(token, i, ranks)
            merges.append((spelled[ranks[left]], spelled[ranks[right]]))
    vocab = {token: i for i, token in enumerate(spelled)}
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
        [
            AddedToken(name, special=True, normalized=False)
            for name in control_names(len(tokens), names).values()
        ]
    )
    return tokenizer


def control_names(ranks: int, names: dict[int, str]) -> dict[int, str]:
    """id -> name of the 256 control tokens that follow this many ranks."""
    return {
        i: names.get(i, f"<|reserved_token_{i}|>")
        for i in range(ranks, ranks + SPECIALS)
    }


def cache_directory() -> Path | None:
    """Where converted vocabularies are kept (``MLX_LM_KIMI_CACHE`` overrides it).

    None where there is no home directory.
    """
    try:
        return _cache_directory()
    except RuntimeError:
        return None


def _cache_directory() -> Path:
    if override := os.environ.get("MLX_LM_KIMI_CACHE"):
        return Path(override)
    if sys.platform == "darwin":
        return Path("~/Library/Caches/mlx-lm-kimi").expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "mlx-lm-kimi"


def _read_cache(path: Path) -> Tokenizer | None:
    """A cache entry: a checksum line, then tokenizer.json. None if damaged or absent."""
    try:
        checksum, _, payload = path.read_bytes().partition(b"\n")
        if hashlib.sha256(payload).hexdigest().encode() != checksum:
            return None
        return Tokenizer.from_buffer(payload)
    except Exception:  # a wrong entry is made anew, whatever is wrong with it
        return None


def _write_cache(path: Path, tokenizer: Tokenizer) -> None:
    payload = tokenizer.to_str().encode()
    checksum = hashlib.sha256(payload).hexdigest().encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(checksum + b"\n" + payload)
            os.replace(name, path)  # whole or not at all, for other processes too
        except BaseException:
            os.unlink(name)
            raise
    except OSError:
        pass  # nothing is writable here: it is converted again next time


def convert(path: Path, names: dict[int, str] | None) -> Tokenizer:
    """The fast tokenizer of a directory, from the cache if it was converted before.

    Args:
        path: a directory with tiktoken.model, or with tokenizer.json.
        names: id -> name of its control tokens; None for the standard ones.

    Raises:
        FileNotFoundError: the directory has neither file.
        ValueError: the file is damaged.
    """
    source = path / "tiktoken.model"
    read: Callable[[bytes], list[bytes]] = read_ranks
    if not source.is_file():
        source, read = path / "tokenizer.json", _ranks_of_json
    if not source.is_file():
        raise FileNotFoundError(
            f"{path} has neither tiktoken.model nor tokenizer.json: "
            "copy tiktoken.model from the original checkpoint."
        )
    data = source.read_bytes()
    key = hashlib.sha256(FORMAT + data + json.dumps(names, sort_keys=True).encode())
    cache = cache_directory()
    entry = cache and cache / f"{key.hexdigest()}.json"
    tokenizer = _read_cache(entry) if entry else None
    if tokenizer is None:
        try:
            tokens = read(data)
        except (AttributeError, LookupError, TypeError) as e:
            raise ValueError(f"{source} is no vocabulary of Kimi: {e!r}") from e
        if names is None:
            names = {len(tokens) + i: name for i, name in STANDARD_NAMES.items()}
        tokenizer = build(tokens, names)
        if entry:
            _write_cache(entry, tokenizer)
    return tokenizer
