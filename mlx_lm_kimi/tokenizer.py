"""A Kimi directory's tokenizer, without remote code."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import BatchEncoding, PreTrainedTokenizerFast

from . import convert, prompt
from .families import read_json

# Moonshot's encoder cuts text into pieces of at most this many characters, and at
# every run of spaces or non-spaces of this length.
MAX_CHARACTERS = 400_000
MAX_RUN = 25_000
_RUN = re.compile(r"\s+|\S+")
_BYTE_OF = {char: byte for byte, char in enumerate(convert.byte_to_char())}
# What only Kimi's vocabulary names (ChatML has <|im_end|>, but none of these).
_KIMI_NAMES = ("<|im_middle|>", "<|im_user|>", "<|im_system|>")
# Keys of tokenizer_config.json that are about other code than ours.
_NOT_OURS = (
    "added_tokens_decoder",
    "auto_map",
    "backend",
    "chat_template",
    "is_local",
    "tokenizer_class",
    "tokenizer_file",
    "tokenizer_object",
)


def pieces(text: str) -> Iterator[str]:
    """The pieces of a text that Moonshot's encoder encodes one by one. Linear."""
    if len(text) <= MAX_RUN:
        yield text
        return
    for start in range(0, len(text), MAX_CHARACTERS):
        part = text[start : start + MAX_CHARACTERS]
        at = 0
        for run in _RUN.finditer(part):
            for cut in range(run.start() + MAX_RUN, run.end(), MAX_RUN):
                yield part[at:cut]
                at = cut
        yield part[at:]


def _clean(text: str) -> str:
    """Text that can be encoded as UTF-8: a lone surrogate becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class KimiTokenizer(PreTrainedTokenizerFast):
    """transformers' fast tokenizer with Kimi's ranks, names and prompts.

    ``encode(text)`` is Moonshot's own: a control token's spelling becomes its id. For
    text that comes from outside use ``encode_content``: there it stays text.
    """

    kimi_family = "kimi_k2"

    @functools.cached_property
    def special_ids(self) -> dict[str, int]:
        """name -> id of the 256 control tokens."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: i for i, token in added.items()}

    @functools.cached_property
    def _content(self) -> Tokenizer:
        # The same model object without the control tokens: nothing is toggled between
        # two threads, and nothing is loaded twice.
        content = Tokenizer(self._tokenizer.model)
        content.pre_tokenizer = self._tokenizer.pre_tokenizer
        return content

    def get_vocab(self) -> dict[str, int]:
        """token -> id. mlx-lm asks several times while loading, so it is kept."""
        size = self._tokenizer.get_vocab_size()
        if len(self.__dict__.get("_vocab", ())) != size:
            self.__dict__["_vocab"] = super().get_vocab()
        return dict(self.__dict__["_vocab"])

    @functools.cached_property
    def _bytes(self) -> dict[int, bytes]:
        return {i: name.encode() for name, i in self.special_ids.items()}

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; of a control token, its spelling. Empty if unknown."""
        known = self._bytes.get(token)
        if known is None:
            # Made when first met: a table of all takes longer than most answers need.
            spelled = self._tokenizer.id_to_token(token) if token >= 0 else None
            known = bytes([_BYTE_OF[c] for c in spelled or ""])
            self._bytes[token] = known
        return known

    def encode_content(self, text: str) -> list[int]:
        """Ids of text as data: control-token spellings are ordinary text. Linear."""
        ids: list[int] = []
        for piece in pieces(_clean(text)):
            ids += self._content.encode(piece, add_special_tokens=False).ids
        return ids

    def _encode_plus(self, text: Any, *args: Any, **kwargs: Any) -> BatchEncoding:
        if isinstance(text, str):
            text = _clean(text)
            parts = list(pieces(text))
            if len(parts) > 1 and not args:
                return self._encode_parts(parts, **kwargs)
        return super()._encode_plus(text, *args, **kwargs)

    def _encode_parts(self, parts: list[str], **kwargs: Any) -> BatchEncoding:
        ids: list[int] = []
        for part in parts:
            ids += super()._encode_plus(part, add_special_tokens=False)["input_ids"]
        tensors = kwargs.get("return_tensors")
        data = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        return BatchEncoding(
            data, tensor_type=tensors, prepend_batch_axis=tensors is not None
        )

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        tools: list[Any] | None = None,
        documents: Any = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        return_tensors: Any = None,
        return_dict: bool = True,
        **kwargs: Any,
    ) -> Any:
        """The prompt of a conversation; ids in which content can't be a control token.

        As transformers' method, for what mlx-lm and its users pass. A directory's own
        chat template decides the text; without one the family's built-in one does.

        Raises:
            ValueError: the template can't show a part of the conversation.
        """
        for ignored in ("padding", "truncation", "max_length", "tokenizer_kwargs"):
            kwargs.pop(ignored, None)
        if conversation and isinstance(conversation[0], (list, tuple)):
            batch = [
                self.apply_chat_template(
                    one,
                    tools,
                    chat_template=chat_template,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    tokenize=tokenize,
                    return_dict=False,
                    **kwargs,
                )
                for one in conversation
            ]
            return self._result(batch, tokenize, return_tensors, return_dict)
        if documents is not None:
            kwargs["documents"] = documents
        rendered = prompt.render(
            self,
            conversation,
            tools,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            **kwargs,
        )
        if continue_final_message:
            rendered = prompt.continue_final(rendered)
        out = prompt.encode(self, rendered, tokenize)
        return self._result(out, tokenize, return_tensors, return_dict)

    def _result(self, out: Any, tokenize: bool, tensors: Any, as_dict: bool) -> Any:
        if not tokenize or (tensors is None and not as_dict):
            return out
        is_batch = bool(out) and isinstance(out[0], list)
        mask = [[1] * len(o) for o in out] if is_batch else [1] * len(out)
        encoding = BatchEncoding(
            {"input_ids": out, "attention_mask": mask},
            tensor_type=tensors,
            prepend_batch_axis=tensors is not None and not is_batch,
        )
        return encoding if as_dict else encoding["input_ids"]

    def save_pretrained(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """As transformers': the saved directory loads here and in plain transformers."""
        import json

        saved = super().save_pretrained(directory, *args, **kwargs)
        file = Path(directory) / "tokenizer_config.json"
        config = read_json(file)
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        config["added_tokens_decoder"] = {
            str(i): {"content": name, "special": True}
            for name, i in self.special_ids.items()
            if not name.startswith("<|reserved_token_")
        }
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False))
        return saved


def _names(path: Path) -> dict[int, str] | None:
    """id -> name from a directory's tokenizer_config.json; None if it names none."""
    decoder = read_json(path / "tokenizer_config.json").get("added_tokens_decoder")
    if not isinstance(decoder, dict) or not decoder:
        return None
    names = {}
    for i, token in decoder.items():
        content = token.get("content") if isinstance(token, dict) else token
        if i.isdigit() and isinstance(content, str) and content:
            names[int(i)] = content
    return names or None


def is_kimi_vocabulary(path: Path) -> bool:
    """Whether a directory's vocabulary is Kimi's, by the names of its control tokens."""
    names = _names(path)
    if names is not None:
        return set(_KIMI_NAMES) <= set(names.values())
    if (path / "tiktoken.model").is_file():
        return True  # no other family's file has this name and no names
    try:
        data = (path / "tokenizer.json").read_bytes()
    except OSError:
        return False
    return all(f'"{name}"'.encode() in data for name in _KIMI_NAMES)


def _chat_template(path: Path, config: dict[str, Any]) -> Any:
    """The directory's own template(s), where transformers looks for them."""
    named = {}
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        named[file.stem] = file.read_text(encoding="utf-8")
    file = path / "chat_template.jinja"
    if file.is_file():
        default = file.read_text(encoding="utf-8")
        return {"default": default, **named} if named else default
    template = config.get("chat_template")
    if isinstance(template, list):
        return {t["name"]: t["template"] for t in template}
    return template if isinstance(template, str) else named or None


class _Given:
    """A backend that transformers takes as it is: its deep copy costs half a second."""

    def __init__(self, backend: Tokenizer):
        self.backend = backend

    def __deepcopy__(self, memo: dict) -> Tokenizer:
        return self.backend


def load(path: str | Path, **kwargs: Any) -> KimiTokenizer:
    """The tokenizer of a Kimi directory; nothing of its code is run.

    Args:
        path: a directory with tiktoken.model or tokenizer.json.
        kwargs: what mlx-lm passes to transformers' AutoTokenizer: they override
            tokenizer_config.json; ``trust_remote_code`` changes nothing.

    Raises:
        FileNotFoundError, ValueError: there is no vocabulary, or it is damaged.
    """
    path = Path(path)
    config = read_json(path / "tokenizer_config.json")
    template = kwargs.pop("chat_template", None) or _chat_template(path, config)
    for key in ("trust_remote_code", "use_fast", "revision", "config", "token"):
        kwargs.pop(key, None)
    backend = convert.convert(path, _names(path))
    known = {t.content for t in backend.get_added_tokens_decoder().values()}
    options = {k: v for k, v in config.items() if k not in _NOT_OURS}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        default = f"[{key[:3].upper()}]"
        options.setdefault(key, default if default in known else None)
    for key in ("additional_special_tokens", "extra_special_tokens"):
        # All 256 are control tokens already; a name unknown to them would get a new id.
        options.pop(key, None)
    options["clean_up_tokenization_spaces"] = False
    return KimiTokenizer(
        tokenizer_object=_Given(backend),
        chat_template=template,
        **{**options, **kwargs},
    )
