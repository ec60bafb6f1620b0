"""The table to read first: which Kimi a model directory holds, and what serves it.

Source of the model types and token names: the checkpoints' config.json and
tokenizer_config.json files, as Moonshot publishes them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Family:
    """What mlx-lm needs to serve one family of Kimi models.

    Attributes:
        name: the format: ``kimi_k2``, ``kimi_k25`` or ``kimi_k3``.
        tool_parser_type: module of ``mlx_lm.tool_parsers``; also names how its prompts
            show calls and results (see protocol/history.py).
        chat_template_type: module of ``mlx_lm.chat_templates``, for directories
            without a template of their own.
        end_tokens: names of the tokens that end a turn.
        thinking: start and end marker of the reasoning.
    """

    name: str
    tool_parser_type: str
    chat_template_type: str
    end_tokens: tuple[str, ...]
    thinking: tuple[str, str]


_THINK = ("<think>", "</think>")
KIMI_K2 = Family("kimi_k2", "kimi_k2", "kimi_k2", ("[EOS]", "<|im_end|>"), _THINK)
KIMI_K25 = Family("kimi_k25", "kimi_k2", "kimi_k25", ("[EOS]", "<|im_end|>"), _THINK)
KIMI_K3 = Family(
    "kimi_k3",
    "kimi_k3",
    "kimi_k3",
    ("[EOS]", "<|end_of_msg|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
)

FAMILIES: dict[str, Family] = {
    "kimi_k2": KIMI_K2,
    "kimi_k25": KIMI_K25,
    "kimi_k3": KIMI_K3,
    "kimi_linear": KIMI_K2,
    "kimi_vl": KIMI_K2,
}
# Moonlight and some conversions say deepseek_v3: there the vocabulary decides.
BY_VOCABULARY: dict[str, Family] = {"deepseek_v3": KIMI_K2}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ``{}`` if there is none or it can't be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def detect(model_path: str | Path) -> Family | None:
    """The family of a model directory, or None if it is no Kimi.

    Decided by config.json's ``model_type``; for ``deepseek_v3`` by the vocabulary.
    """
    path = Path(model_path)
    model_type = read_json(path / "config.json").get("model_type")
    if not isinstance(model_type, str):
        return None
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    if model_type in BY_VOCABULARY:
        from .directory import is_kimi_vocabulary

        if is_kimi_vocabulary(path):
            return BY_VOCABULARY[model_type]
    return None


def is_native(model_path: str | Path) -> bool:
    """Whether our request handler serves this directory.

    Not if its tokenizer_config.json names a tool parser or template of its own.
    """
    family = detect(model_path)
    if family is None:
        return False
    config = read_json(Path(model_path) / "tokenizer_config.json")
    parser = config.get("tool_parser_type", family.tool_parser_type)
    template = config.get("chat_template_type", family.chat_template_type)
    # A family's template writes what the parser of its siblings reads.
    siblings = {
        f.chat_template_type
        for f in FAMILIES.values()
        if f.tool_parser_type == family.tool_parser_type
    }
    return parser == family.tool_parser_type and template in siblings
