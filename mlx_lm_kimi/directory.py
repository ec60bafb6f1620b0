"""What a Kimi directory says about its tokenizer: names, chat template, settings.

The files are untrusted: what has the wrong type is as if it were not there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .families import read_json

# What only Kimi's vocabulary names. ChatML has <|im_end|> but none of the first; Moonlight
# names no tool calls; the second are K3's.
_KIMI_NAMES = (
    {"<|im_middle|>", "<|im_user|>", "<|im_system|>"},
    {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"},
)
# Settings of tokenizer_config.json that transformers' constructor is to know, and which
# values they may have. It would obey others, too, such as a token to add, or padding.
_SETTINGS = {
    "model_max_length": lambda v: isinstance(v, (int, float)) and v > 0,
    "padding_side": lambda v: v in ("left", "right"),
    "truncation_side": lambda v: v in ("left", "right"),
}
_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")
# Keys of tokenizer_config.json, or of a call of from_pretrained, about other code than ours.
_NOT_OURS = {
    "_commit_hash",
    "_from_auto",
    "add_bos_token",
    "add_eos_token",
    "added_tokens_decoder",
    "additional_special_tokens",
    "auto_map",
    "backend",
    "cache_dir",
    "chat_template",
    "clean_up_tokenization_spaces",
    "config",
    "extra_special_tokens",
    "force_download",
    "is_local",
    "local_files_only",
    "revision",
    "split_special_tokens",
    "subfolder",
    "token",
    "tokenizer_class",
    "tokenizer_file",
    "tokenizer_object",
    "trust_remote_code",
    "use_fast",
}


def config(path: Path) -> dict[str, Any]:
    """tokenizer_config.json; ``{}`` if there is none."""
    return read_json(path / "tokenizer_config.json")


def names(path: Path) -> dict[int, str] | None:
    """id -> name of the control tokens in tokenizer_config.json; None if it names none."""
    decoder = config(path).get("added_tokens_decoder")
    found = {}
    for i, token in decoder.items() if isinstance(decoder, dict) else ():
        name = token_name(token)
        if name and i.isascii() and i.isdigit() and len(i) < 10:
            found[int(i)] = name
    return found or None


def token_name(token: Any) -> str | None:
    """The name of a token, which files give as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def is_kimi_vocabulary(path: Path) -> bool:
    """Whether a directory's vocabulary is Kimi's, by the names of its control tokens."""
    found = names(path)
    if found is not None:
        return any(kimi <= set(found.values()) for kimi in _KIMI_NAMES)
    if (path / "tiktoken.model").is_file():
        return True  # no other family's file has this name and no names
    try:
        data = (path / "tokenizer.json").read_bytes()
    except OSError:
        return False
    return any(all(f'"{n}"'.encode() in data for n in kimi) for kimi in _KIMI_NAMES)


def chat_template(path: Path) -> str | dict[str, str] | None:
    """The directory's own template(s), where transformers looks for them."""
    named = {}
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        named[file.stem] = file.read_text(encoding="utf-8")
    file = path / "chat_template.jinja"
    if file.is_file():
        default = file.read_text(encoding="utf-8")
        return {"default": default, **named} if named else default
    template = config(path).get("chat_template")
    if isinstance(template, list):
        parts = [t for t in template if isinstance(t, dict)]
        template = {t.get("name"): t.get("template") for t in parts}
    if isinstance(template, dict):
        pairs = template.items()
        template = {k: v for k, v in pairs if isinstance(k, str) and isinstance(v, str)}
    elif not isinstance(template, str):
        template = None
    return template or named or None


def settings(
    path: Path, given: dict[str, Any], known: set[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What transformers' constructor is to get, and what else init_kwargs is to hold.

    Args:
        given: what the caller wants instead of the directory's.
        known: the names of the control tokens: another would get a new id.

    Raises:
        ValueError: the caller names a token that is none.
    """
    own = config(path)
    both = {k: v for k, v in {**own, **given}.items() if k not in _NOT_OURS}
    constructor: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    for key, is_valid in _SETTINGS.items():
        value = both.pop(key, None)
        if is_valid(value):
            constructor[key] = value
    for key in _NAMED:
        both.pop(key, None)
        wanted = str(given[key]) if given.get(key) is not None else None
        if wanted is not None and wanted not in known:
            raise ValueError(f"{key}: {wanted!r} is no control token of {path}")
        default = f"[{key[:3].upper()}]"
        for name in (wanted, token_name(own.get(key)), default):
            if name in known:
                constructor[key] = name
                break
    return constructor, both
