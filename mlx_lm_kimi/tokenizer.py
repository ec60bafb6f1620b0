"""A Kimi directory's tokenizer, without remote code."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import BatchEncoding, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import TruncationStrategy
from transformers.utils import PaddingStrategy

from . import convert, directory, prompt
from .directory import is_kimi_vocabulary as is_kimi_vocabulary
from .families import read_json

# Moonshot's encoder cuts text into pieces of at most this many characters, and at
# every run of spaces or non-spaces of this length.
MAX_CHARACTERS = 400_000
MAX_RUN = 25_000
_RUN = re.compile(r"\s+|\S+")
_NOTHING = {
    "padding": PaddingStrategy.DO_NOT_PAD,
    "truncation": TruncationStrategy.DO_NOT_TRUNCATE,
}
_PADDING = {
    "max_length",
    "pad_to_multiple_of",
    "padding_side",
    "return_attention_mask",
    "return_tensors",
}


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


def _clean(text: Any) -> Any:
    """Text that can be encoded as UTF-8: a lone surrogate becomes U+FFFD."""
    if isinstance(text, (list, tuple)):
        return type(text)(map(_clean, text))
    if isinstance(text, str):
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
            is_id = 0 <= token < len(self)
            spelled = self._tokenizer.id_to_token(int(token)) if is_id else None
            known = bytes([convert.BYTE_OF[c] for c in spelled or ""])
            self._bytes[token] = known
        return known

    def encode_content(self, text: str) -> list[int]:
        """Ids of text as data: control-token spellings are ordinary text. Linear."""
        ids: list[int] = []
        for piece in pieces(_clean(text)):
            ids += self._content.encode(piece, add_special_tokens=False).ids
        return ids

    def _encode_plus(
        self, text: Any, text_pair: Any = None, **kwargs: Any
    ) -> BatchEncoding:
        text, text_pair = _clean(text), _clean(text_pair)
        texts = text if isinstance(text, (list, tuple)) else [text]
        if text_pair is None and not kwargs.get("is_split_into_words"):
            if any(isinstance(t, str) and len(t) > MAX_RUN for t in texts):
                return self._encode_long(texts, isinstance(text, str), **kwargs)
        sides = [kwargs.get(f"{k}_strategy", none) for k, none in _NOTHING.items()]
        if kwargs.get("split_special_tokens") or sides != list(_NOTHING.values()):
            # transformers sets these on the tokenizer that other threads use.
            private = copy.copy(self)
            private._tokenizer = self._copy_backend()
            return super(KimiTokenizer, private)._encode_plus(text, text_pair, **kwargs)
        return super()._encode_plus(text, text_pair, **kwargs)

    def _copy_backend(self) -> Tokenizer:
        """Another tokenizer over the same model: that is what is large."""
        backend = Tokenizer(self._tokenizer.model)
        backend.pre_tokenizer = self._tokenizer.pre_tokenizer
        backend.decoder = self._tokenizer.decoder
        added = self._tokenizer.get_added_tokens_decoder()
        backend.add_special_tokens([token for _, token in sorted(added.items())])
        return backend

    def _encode_long(
        self, texts: list[str], is_one: bool, **kwargs: Any
    ) -> BatchEncoding:
        """Texts that are encoded in pieces; without offsets or overflowing tokens."""
        is_data = kwargs.get("split_special_tokens")
        encode = (self._content if is_data else self._tokenizer).encode
        ids: list[list[int]] = [[] for _ in texts]
        for found, text in zip(ids, texts):
            for piece in pieces(text):
                found += encode(piece, add_special_tokens=False).ids
        limit, none = kwargs.get("max_length"), _NOTHING["truncation"]
        if limit is not None and kwargs.get("truncation_strategy", none) != none:
            is_right = self.truncation_side == "right"
            ids = [i[:limit] if is_right else i[max(len(i) - limit, 0) :] for i in ids]
        return self.pad(
            {
                "input_ids": (
                    ids[0] if is_one and not kwargs.get("return_tensors") else ids
                )
            },
            padding=kwargs.get("padding_strategy", _NOTHING["padding"]),
            **{k: v for k, v in kwargs.items() if k in _PADDING},
        )

    def tokenize(self, text: str, pair: str | None = None, **kwargs: Any) -> list[str]:
        """The tokens of a text, spelled as the vocabulary spells them."""
        ids = self._encode_plus(text, pair, **kwargs)["input_ids"]
        return self.convert_ids_to_tokens(ids)

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

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """As transformers': the saved directory loads here and in plain transformers."""
        saved = super().save_pretrained(save_directory, *args, **kwargs)
        file = Path(save_directory) / "tokenizer_config.json"
        config = read_json(file)
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        config["added_tokens_decoder"] = {
            str(i): {"content": name, "special": True}
            for name, i in self.special_ids.items()
            if not name.startswith("<|reserved_token_")
        }
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False))
        return saved


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
    template = kwargs.pop("chat_template", None) or directory.chat_template(path)
    backend = convert.convert(path, directory.names(path))
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    constructor, others = directory.settings(path, kwargs, known)
    tokenizer = KimiTokenizer(
        tokenizer_object=_Given(backend), chat_template=template, **constructor
    )
    tokenizer.name_or_path = str(path)
    tokenizer.init_kwargs.update(others)  # mlx-lm looks there for its own keys
    return tokenizer
