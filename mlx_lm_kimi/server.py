"""The seams in mlx_lm.server: our request handler, and what it needs of generation.

Glue only: requests are read in protocol/, prompts come from the tokenizer, answers are
made in response.py.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from jinja2 import TemplateError

from . import families
from .protocol.errors import RequestError
from .protocol.request import ChatRequest

# A prompt ends at most this many tokens after the thinking marker that opens the answer.
THINKING_TAIL = 11
# Tokens of an XTML tag that are looked at.
HEADER = 16
MAX_BIAS = 1e4
FREE_CALLS = "MLX_LM_KIMI_FREE_CALLS"


@dataclass
class Local:
    """What the generation thread tells the handler; stays on the handler's rank."""

    tokenizer: Any = None
    thinking_open: bool = False


@dataclass
class Completion:
    """A chat request for a Kimi model, in the place of mlx_lm's CompletionRequest.

    ``request_type``, ``prompt``, ``messages``, ``tools`` and ``role_mapping`` are
    mlx_lm's; the others are ours. Picklable: with mlx.launch it travels to every rank.
    """

    request_type: str
    prompt: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    role_mapping: dict[str, Any] | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    constraint: Any = None
    local: Local = field(default_factory=Local)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "local": Local()}


def model_path(provider: Any, requested: str) -> str | None:
    """The path or repository that mlx_lm.server would load for a request's model.

    None if only the provider knows: an embedder's own may have no such table.
    """
    models = getattr(provider, "_model_map", None)
    return None if models is None else models.get(requested, requested)


@functools.lru_cache(maxsize=64)
def _native_family(path: str) -> families.Family | None:
    """The family of a directory or repository (of which the configuration is fetched)."""
    from mlx_lm.utils import _download

    files = ["*.json", "tiktoken.model", "*.jinja"]
    directory = _download(path, allow_patterns=files)
    return families.detect(directory) if families.is_native(directory) else None


def native_family(provider: Any, requested: str) -> families.Family | None:
    """The family of the requested model if our handler serves it, else None."""
    path = model_path(provider, requested)
    if not path:
        return None
    try:
        return _native_family(path)
    except Exception:
        return None  # mlx_lm.server will say what is wrong with it


@dataclass(frozen=True)
class Layout:
    """Where the parts of a prompt are that concern the server (positions of tokens).

    Attributes:
        user: the first user message; 0 if there is none.
        answer: what follows the header of the answer: the opened reasoning, or the end.
        thinking_open: whether the prompt ends inside the reasoning.
    """

    user: int
    answer: int
    thinking_open: bool


def layout(tokenizer: Any, prompt: list[int]) -> Layout:
    """The layout of a prompt of either format.

    Control ids come from the template only, so they can be trusted here.
    """
    special = tokenizer.special_ids
    if "<|open|>" in special:
        return _xtml_layout(tokenizer, prompt, special["<|open|>"], special["<|sep|>"])
    user, start, end = (
        special.get(name) for name in ("<|im_user|>", "<think>", "</think>")
    )
    first = prompt.index(user) if user in prompt else 0
    tail = range(len(prompt) - 1, max(len(prompt) - THINKING_TAIL, first) - 1, -1)
    answer = next((i for i in tail if prompt[i] == start), len(prompt))
    last = next((t for t in reversed(prompt) if t in (start, end)), None)
    return Layout(first, answer, last is not None and last == start)


def _xtml_layout(tokenizer: Any, prompt: list[int], opens: int, sep: int) -> Layout:
    def header(at: int) -> str:
        end = at + 1
        while end < len(prompt) and prompt[end] != sep and end - at < HEADER:
            end += 1
        return tokenizer.decode(prompt[at + 1 : end])

    opened = [i for i, token in enumerate(prompt) if token == opens]
    users = (i for i in opened if header(i).startswith('message role="user"'))
    answer = opened[-1] if opened else len(prompt)
    close = tokenizer.special_ids["<|close|>"]
    is_open = bool(opened) and close not in prompt[answer:]
    return Layout(next(users, 0), answer, is_open and header(answer) == "think")


def _segments(
    prompt: list[int], found: Layout, last_role: str
) -> tuple[list[list[int]], list[str]]:
    """The parts of a prompt that mlx_lm's prompt cache keeps apart.

    Returns:
        Token lists that join to the prompt, and the type of each: "system", "user",
        "assistant" (the opened reasoning), as in mlx_lm's ResponseGenerator._tokenize.
    """
    if last_role != "user":
        return [prompt], ["assistant"]
    parts = [
        (prompt[: found.user], "system"),
        (prompt[found.user : found.answer], "user"),
        (prompt[found.answer :], "assistant"),
    ]
    parts = [(ids, kind) for ids, kind in parts if ids]
    return [ids for ids, _ in parts], [kind for _, kind in parts]


def _check_ids(args: Any, vocab_size: int) -> None:
    bias = args.logits.logit_bias or {}
    if outside := [i for i in bias if not 0 <= i < vocab_size]:
        raise RequestError(
            f"logit_bias: token id {outside[0]} is not in the vocabulary "
            f"(0 to {vocab_size - 1}).",
            param="logit_bias",
            code="invalid_value",
        )
    if args.sampling.top_k >= vocab_size:
        args.sampling.top_k = 0  # all tokens: what such a number means


def constraint(request: ChatRequest, family: str) -> Any:
    """What the answer must fit, or None: then nothing is masked.

    Calls under ``auto`` fit as well; FREE_CALLS set to 1 in the environment leaves those
    to the model that the request does not ask to constrain.

    Raises:
        RequestError: a schema that can't be enforced.
    """
    choice, tools = request.tool_choice, request.all_tools
    if request.response_format is None and not tools:
        return None
    from . import constrain, grammar

    spec = grammar.ConstraintSpec(
        tools=tuple(tools),
        choice=choice.mode,
        name=choice.name,
        parallel=request.parallel_tool_calls,
        response_format=_form(request.response_format),
        next_index=request.history.next_index,
    )
    if not spec.is_demanded and os.environ.get(FREE_CALLS) == "1":
        return None
    constrain.check(spec, family)
    return spec


def template_kwargs(request: ChatRequest, family: families.Family) -> dict[str, Any]:
    """What the template is told beside messages and tools.

    A K3 prompt also says what tool_choice and response_format demand, in messages of
    type "tool-choice" and "response-format" (Moonshot's encoder).
    """
    kwargs = dict(request.template_kwargs)
    if family.tool_parser_type != "kimi_k3":
        return kwargs
    if request.tool_choice.mode in ("required", "function"):
        kwargs["tool_choice"] = "required"
    if request.response_format is not None:
        kwargs["response_format"] = request.body["response_format"]
    return kwargs


def _form(wanted: Any) -> tuple[Any, ...] | None:
    if wanted is None or wanted.type == "json_object":
        return wanted and ("json_object",)
    return ("json_schema", wanted.schema, wanted.strict, wanted.name)


def tokenize(generator: Any, tokenizer: Any, request: Completion, args: Any) -> tuple:
    """The prompt of a chat request, in the shape of ResponseGenerator._tokenize.

    Runs in the generation thread, on every rank. Also makes the logits processor of the
    request's constraint: a fault in it is then an answer, not the end of the thread.
    """
    inner = tokenizer._tokenizer
    kwargs = {
        **generator.model_provider.cli_args.chat_template_args,
        **request.template_kwargs,
    }
    try:
        prompt = tokenizer.apply_chat_template(
            request.messages, tools=request.tools, add_generation_prompt=True, **kwargs
        )
    except (TemplateError, ValueError) as e:
        raise RequestError(
            f"messages: the chat template can't show this conversation: {e}",
            param="messages",
            code="invalid_value",
        ) from e
    _check_ids(args, len(inner))
    found = layout(inner, prompt)
    request.local.tokenizer = inner
    request.local.thinking_open = found.thinking_open
    args.kimi_processor = _processor(request.constraint, inner, found.thinking_open)
    segments, types = _segments(prompt, found, request.messages[-1]["role"])
    return prompt, segments, types, "normal"


def _processor(spec: Any, tokenizer: Any, thinking_open: bool) -> Any:
    """The logits processor of a request. What it does not ask for may also fail."""
    if spec is None:
        return None
    from . import constrain

    try:
        return constrain.logits_processor(spec, tokenizer, thinking_open=thinking_open)
    except RequestError as e:
        if spec.is_demanded:
            raise
        logging.warning("The calls of a request are not constrained: %s", e)
        return None


def generation_arguments(module: ModuleType, cli: Any, request: ChatRequest) -> Any:
    """mlx_lm's GenerationArguments; what a request leaves out is the server's default."""

    def given(value: Any, default: Any) -> Any:
        return default if value is None else value

    def size(value: int | None) -> int:
        # mlx slices the history with it, in 32 bits.
        return min(given(value, 20), 2**31 - 1)

    bias = request.logit_bias
    if bias is not None:
        # Enough to force or forbid a token, and finite in float32.
        bias = {i: max(-MAX_BIAS, min(MAX_BIAS, b)) for i, b in bias.items()}

    seed = request.seed
    return module.GenerationArguments(
        model=module.ModelDescription(
            model=given(request.model, "default_model"),
            draft=given(request.draft_model, "default_model"),
            adapter=request.adapters,
        ),
        sampling=module.SamplingArguments(
            temperature=given(request.temperature, cli.temp),
            top_p=given(request.top_p, cli.top_p),
            top_k=given(request.top_k, cli.top_k),
            min_p=given(request.min_p, cli.min_p),
            xtc_probability=given(request.xtc_probability, 0.0),
            xtc_threshold=given(request.xtc_threshold, 0.1),
        ),
        logits=module.LogitsProcessorArguments(
            logit_bias=bias,
            repetition_penalty=given(request.repetition_penalty, 0.0),
            repetition_context_size=size(request.repetition_context_size),
            presence_penalty=given(request.presence_penalty, 0.0),
            presence_context_size=size(request.presence_context_size),
            frequency_penalty=given(request.frequency_penalty, 0.0),
            frequency_context_size=size(request.frequency_context_size),
        ),
        stop_words=[],  # found in the text, by response.py
        max_tokens=given(request.max_tokens, cli.max_tokens),
        num_draft_tokens=given(request.num_draft_tokens, cli.num_draft_tokens),
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        seed=None if seed is None else seed % 2**64,
        chat_template_kwargs=request.template_kwargs,
    )


def patch(module: ModuleType) -> None:
    """Put our handler, prompt and logits hook into mlx_lm.server."""
    from . import batch
    from .activation import mlx_lm_version
    from .handler import make_handler

    if mlx_lm_version() == "0.31.3":
        batch.patch(inspect.getmodule(module.BatchGenerator))

    generator = module.ResponseGenerator
    stock_tokenize = generator._tokenize
    stock_processors = module._make_logits_processors
    stock_run = module._run_http_server
    handler = make_handler(module)
    # 0.32 added the images of a prompt to what _tokenize returns.
    has_vision = hasattr(module, "Vision")

    @functools.wraps(stock_tokenize)
    def _tokenize(self, tokenizer, request, args):
        if not isinstance(request, Completion):
            return stock_tokenize(self, tokenizer, request, args)
        result = tokenize(self, tokenizer, request, args)
        return (*result, None) if has_vision else result

    @functools.wraps(stock_processors)
    def _make_logits_processors(args):
        processors = stock_processors(args)
        processor = getattr(args, "kimi_processor", None)
        return processors if processor is None else [*processors, processor]

    class Server(module.ThreadingHTTPServer):
        request_queue_size = 128  # the default of 5 resets connections of 24 clients

    signature = inspect.signature(stock_run)

    @functools.wraps(stock_run)
    def _run_http_server(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.arguments.setdefault("server_class", Server)
        bound.arguments.setdefault("handler_class", handler)
        return stock_run(*bound.args, **bound.kwargs)

    stock_sampler = module.make_sampler

    @functools.wraps(stock_sampler)
    def make_sampler(*args, **kwargs):
        # 0.31.3 gives a list in this list, which ends the generation thread.
        if ids := kwargs.get("xtc_special_tokens"):
            nested = (i if isinstance(i, list) else [i] for i in ids)
            kwargs["xtc_special_tokens"] = [i for some in nested for i in some]
        return stock_sampler(*args, **kwargs)

    module.make_sampler = make_sampler
    generator._tokenize = _tokenize
    module._make_logits_processors = _make_logits_processors
    module._run_http_server = _run_http_server
    module.APIHandler = handler
