"""A Kimi whose output is scripted: the forward pass is replaced, all else is real.

The model directory has the real vocabulary, the server is mlx_lm.server. The KV cache
holds the token ids themselves, so batching, trimming and the prompt cache are mlx_lm's.
"""

import json
import re
import shutil
import sys
import threading
from pathlib import Path
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from tests import mode
from tests.conftest import DATA

VOCABULARY = 163840
IM_END, IM_USER, IM_ASSISTANT = 163586, 163587, 163588
THINK = 163606
OPEN, CLOSE, SEP, END_OF_MSG = XTML = range(163586, 163590)
XTML_NAMES = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "intermediate_size": 8,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "n_shared_experts": None,
    "n_routed_experts": None,
    "kv_lora_rank": 4,
    "q_lora_rank": None,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 4,
    "max_position_embeddings": 4096,
}


def make_directory(
    path: Path,
    model_type: str = "kimi_k2",
    *,
    thinking: bool = True,
    weights: bool = True,
    template: str | None = None,
    **config,
) -> Path:
    """A Kimi directory with the real vocabulary, as a download would give it.

    It also names remote code that must never run. thinking: whether the vocabulary
    names <think> (K2-Instruct's does not).
    """
    path.mkdir(parents=True, exist_ok=True)
    source = DATA / "kimi_tokenizer"
    shutil.copy(source / "tiktoken.model", path)
    tokenizer_config = json.loads((source / "tokenizer_config.json").read_text())
    if not thinking:
        for token in ("163606", "163607"):
            tokenizer_config["added_tokens_decoder"].pop(token, None)
    if model_type == "kimi_k3":
        for i, name in zip(XTML, XTML_NAMES):
            tokenizer_config["added_tokens_decoder"][str(i)] = {"content": name}
    tokenizer_config["auto_map"] = {
        "AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]
    }
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (path / "tokenization_kimi.py").write_text("raise SystemExit('remote code ran')\n")
    full = {"model_type": model_type, **CONFIG, **config}
    if model_type == "kimi_k25":
        full = {"model_type": model_type, "text_config": {**CONFIG, **config}}
    (path / "config.json").write_text(json.dumps(full))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    if weights:
        _save_weights(path)
    return path


def _save_weights(path: Path) -> None:
    from mlx_lm.models import deepseek_v3
    from mlx_lm.utils import _get_classes

    # The forward pass is replaced anyway, and mlx-lm 0.31.3 has no K3.
    sys.modules["mlx_lm.models.kimi_k3"] = deepseek_v3
    config = json.loads((path / "config.json").read_text())
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(path / "model.safetensors"), weights)


class Scripts:
    """What the model says: the turns of each script, by the key in the user's text.

    The user's text names its script as ``[key]``. Turn n of a script answers the n-th
    generation after that user message. Tokens past the end are <|im_end|>.
    """

    def __init__(self):
        self.turns: dict[str, list[list[int]]] = {}
        self.default: list[int] = [IM_END]
        self.tokenizer = None
        self.steps = 0
        self.seen: list[int] = []  # the last history
        self._found: dict[tuple[int, ...], str] = {}

    def next_token(self, history: list[int]) -> int:
        """The token after a history of ids that ends in a generation."""
        self.seen = history
        if IM_ASSISTANT not in history:
            return IM_END
        start = _last(history, IM_ASSISTANT)
        user = _last(history[:start], IM_USER)
        turn = history[user:].count(IM_ASSISTANT) - 1
        generated = history[start + 3 :]  # after "assistant" <|im_middle|>
        turns = self.turns.get(self._key(history, user), [self.default])
        script = turns[min(turn, len(turns) - 1)]
        skip = _opened(generated, script)
        said = len(generated) - skip
        return script[said] if 0 <= said < len(script) else IM_END

    def _key(self, history: list[int], user: int) -> str:
        end = user + history[user:].index(IM_END) if IM_END in history[user:] else user
        ids = tuple(history[user:end])
        if ids not in self._found:
            match = re.search(r"\[([\w-]+)\]", self.tokenizer.decode(list(ids)))
            self._found[ids] = match.group(1) if match else ""
        return self._found[ids]


class XtmlScripts(Scripts):
    """Scripts of a K3. A turn begins after the opened think or response element."""

    def __init__(self):
        super().__init__()
        self.default = [END_OF_MSG]

    def next_token(self, history: list[int]) -> int:
        self.seen = history
        start = self._find(history, 'message role="assistant"')
        user = self._find(history[:start], 'message role="user"')
        if start < 0 or user < 0:
            return END_OF_MSG
        opened = history[start:].index(SEP) + start + 1  # <|open|>think<|sep|>
        if SEP not in history[opened:]:
            return END_OF_MSG
        generated = history[history[opened:].index(SEP) + opened + 1 :]
        header = self._header('message role="assistant"')
        turn = sum(history[i : i + len(header)] == header for i in range(user, start))
        turns = self.turns.get(self._xtml_key(history, user), [self.default])
        script = turns[min(turn, len(turns) - 1)]
        return script[len(generated)] if len(generated) < len(script) else END_OF_MSG

    def _header(self, tag: str) -> list[int]:
        return [OPEN, *self.tokenizer._tokenizer.encode_content(tag)]

    def _find(self, history: list[int], tag: str) -> int:
        """Where the last element with this tag begins, -1 if there is none."""
        header = self._header(tag)
        for i in range(len(history) - len(header), -1, -1):
            if history[i : i + len(header)] == header:
                return i
        return -1

    def _xtml_key(self, history: list[int], user: int) -> str:
        end = user + history[user:].index(END_OF_MSG)
        match = re.search(r"\[([\w-]+)\]", self.tokenizer.decode(history[user:end]))
        return match.group(1) if match else ""


def _last(ids: list[int], token: int) -> int:
    for i in range(len(ids) - 1, -1, -1):
        if ids[i] == token:
            return i
    return 0


def _opened(generated: list[int], script: list[int]) -> int:
    """How many tokens of the answer the prompt has written: <think>, or that closed."""
    if generated[:1] != [THINK] or script[:1] == [THINK]:
        return 0
    if generated[1:2] == [THINK + 1] and script[:1] != [THINK + 1]:
        return 2
    return 1


class ScriptedModel(nn.Module):
    """mlx_lm's model interface; the keys in its KV cache are the token ids."""

    def __init__(self, scripts: Scripts, vocabulary: int = VOCABULARY):
        super().__init__()
        self._scripts = scripts
        self._vocabulary = vocabulary
        self.layers = [nn.Identity()]
        self.model_type = "kimi_k2"

    def __call__(self, inputs, cache=None, **kwargs):
        ids = inputs.astype(mx.float32)[:, None, :, None]
        keys, _ = cache[0].update_and_fetch(ids, ids)
        batch, length = inputs.shape
        if length > 8:
            return mx.zeros((batch, length, self._vocabulary))
        self._scripts.steps += 1
        rows = keys[:, 0, :, 0].astype(mx.int32).tolist()
        targets = [
            [
                self._scripts.next_token(row[: len(row) - length + 1 + i])
                for i in range(length)
            ]
            for row in rows
        ]
        hot = mx.arange(self._vocabulary) == mx.array(targets)[..., None]
        return mx.where(hot, 30.0, 0.0)

    def make_cache(self):
        from mlx_lm.models.cache import KVCache

        return [KVCache()]


class Server:
    """mlx_lm.server in a thread, with a scripted model unless `scripts` is None."""

    def __init__(self, path: Path, scripts: Scripts | None, *arguments: str):
        mode.install()
        import mlx_lm.server as module

        self.scripts = scripts
        self._module = module
        self._ready = threading.Event()
        provider = self._provider(path, arguments)
        if scripts is not None:
            self._replace_model(provider)
        cache = module.LRUPromptCache(provider.cli_args.prompt_cache_size)
        self.generator = module.ResponseGenerator(provider, cache)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def _replace_model(self, provider) -> None:
        load = provider._load

        def scripted(*args, **kwargs):
            load(*args, **kwargs)
            provider.model = ScriptedModel(self.scripts)
            provider.is_batchable = True
            self.scripts.tokenizer = provider.tokenizer

        provider._load = scripted

    def _provider(self, path: Path, arguments: tuple[str, ...]):
        """The provider that main() would make of these arguments."""
        argv = ["mlx_lm.server", "--model", str(path), "--port", "0", *arguments]
        found = []
        with (
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(self._module, "run", lambda *a: found.append(a[2])),
        ):
            self._module.main()
        return found[0]

    def _serve(self):
        from http.server import ThreadingHTTPServer

        outer = self

        class Capture(ThreadingHTTPServer):
            request_queue_size = 128

            def serve_forever(self, poll_interval=0.05):
                outer.httpd = self
                outer._ready.set()
                super().serve_forever(poll_interval)

        self._module._run_http_server(
            "127.0.0.1", 0, self.generator, server_class=Capture
        )

    @property
    def port(self) -> int:
        return self.httpd.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self):
        """The real openai client, without retries."""
        import openai

        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60
        )

    def close(self):
        self.httpd.shutdown()
        self.httpd.server_close()
        self.generator.stop_and_join()
