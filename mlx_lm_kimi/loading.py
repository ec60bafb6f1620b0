"""What mlx_lm's tokenizer loading does for a Kimi directory.

mlx-lm's own `load` stays in charge: it gets our tokenizer from `AutoTokenizer`, and the
parser and template by its own selection (`tool_parser_type`, `chat_template_type`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import families


class AutoTokenizer:
    """transformers' AutoTokenizer, except that a Kimi directory gets our tokenizer."""

    def __init__(self, original: Any):
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def from_pretrained(self, path: str | Path, *args: Any, **kwargs: Any) -> Any:
        """A tokenizer; for a Kimi directory without running any code from it."""
        family = families.detect(path)
        if family is None:
            return self._original.from_pretrained(path, *args, **kwargs)
        from . import tokenizer

        loaded = tokenizer.load(Path(path), **kwargs)
        loaded.kimi_family = family.name
        return loaded


def _has_module(package: str, name: str) -> bool:
    try:
        importlib.import_module(f"mlx_lm.{package}.{name}")
    except ImportError:
        return False
    return True


def defaults(model_path: str | Path) -> dict[str, Any]:
    """mlx-lm's TOKENIZER_DEFAULTS by model type, ``{}`` for a directory that is no Kimi.

    Only what this mlx-lm has the modules for.
    """
    family = families.detect(model_path)
    if family is None:
        return {}
    found = {}
    if _has_module("tool_parsers", family.tool_parser_type):
        found["tool_parser_type"] = family.tool_parser_type
    if _has_module("chat_templates", family.chat_template_type):
        found["chat_template_type"] = family.chat_template_type
    return found


def wrap_load(original: Callable[..., Any]) -> Callable[..., Any]:
    """mlx_lm.tokenizer_utils.load that selects by model type for Kimi directories."""
    has_defaults = "defaults" in inspect.signature(original).parameters

    @functools.wraps(original)
    def load(model_path, tokenizer_config_extra=None, *args, **kwargs):
        if families.detect(model_path) is None:
            return original(model_path, tokenizer_config_extra, *args, **kwargs)
        own = defaults(model_path)
        if has_defaults and len(args) < 2:
            kwargs["defaults"] = {**own, **(kwargs.get("defaults") or {})}
        else:  # 0.31.3: the same keys, as if the directory named them
            config = families.read_json(Path(model_path) / "tokenizer_config.json")
            tokenizer_config_extra = {
                **{k: v for k, v in own.items() if k not in config},
                **(tokenizer_config_extra or {}),
            }
        wrapper = original(model_path, tokenizer_config_extra, *args, **kwargs)
        return finish(wrapper, model_path)

    return load


def finish(wrapper: Any, model_path: str | Path) -> Any:
    """Set on mlx-lm's wrapper of a Kimi directory's tokenizer what its loader can't be told."""
    family = families.detect(model_path)
    if family is None:
        return wrapper
    from .detokenizer import KimiStreamingDetokenizer

    config = families.read_json(Path(model_path) / "tokenizer_config.json")
    tokenizer = wrapper._tokenizer
    ids = tokenizer.special_ids
    wrapper.eos_token_ids = set(wrapper.eos_token_ids) | {
        ids[name] for name in family.end_tokens if name in ids
    }
    if hasattr(wrapper, "_detokenizer_class"):  # 0.31.3
        wrapper._detokenizer_class = KimiStreamingDetokenizer
    else:
        wrapper._detokenizer = KimiStreamingDetokenizer(tokenizer)
    if len(family.thinking[0]) > len("<think>"):
        _set_thinking(wrapper, family)  # mlx-lm takes <think> where it is named, too
    if "chat_template_type" not in config:  # else it names one of mlx-lm's templates
        # The tokenizer renders itself: only so can content be told from control tokens.
        wrapper._chat_template = None
        wrapper.has_chat_template = True
    return wrapper


def _set_thinking(wrapper: Any, family: families.Family) -> None:
    start, end = family.thinking
    wrapper._think_start, wrapper._think_end = start, end
    wrapper._think_start_tokens = tuple(wrapper._tokenizer.encode(start))
    wrapper._think_end_tokens = tuple(wrapper._tokenizer.encode(end))
