"""The patch series as data: which of our files each patch adds, and its edits of mlx-lm's.

make.py turns it into diffs, check.py applies and tests them, UPSTREAM.md explains them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MADE_FOR = "0.32.2"

# Our folder -> where its files land.
TARGETS = {
    "mlx_lm_kimi": "mlx_lm/kimi",
    "tool_parsers": "mlx_lm/tool_parsers",
    "chat_templates": "mlx_lm/chat_templates",
}
# What only patching at run time needs: it lands nowhere.
HOOK_FILES = {
    "mlx_lm_kimi/__init__.py",
    "mlx_lm_kimi/_version.py",
    "mlx_lm_kimi/activation.py",
    "mlx_lm_kimi/batch.py",
    "mlx_lm_kimi/cli.py",
    "mlx_lm_kimi/demo.py",
    "mlx_lm_kimi/doctor.py",
    "mlx_lm_kimi/hook.py",
    "tool_parsers/__init__.py",
    "chat_templates/__init__.py",
}
HOOK_NAMES = {
    "mlx_lm_kimi/loading.py": ("wrap_load",),
    "mlx_lm_kimi/server.py": ("patch",),
}


class Edit(NamedTuple):
    """One place of a file, and what stands there afterwards. ``old`` occurs once."""

    file: str
    old: str
    new: str


class Later(NamedTuple):
    """What of one of our files lands with a later patch.

    Attributes:
        names: definitions of the module.
        lines: how the one line begins, for each line.
    """

    names: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Patch:
    """One patch.

    Attributes:
        name: of its file in upstream/, without ``.diff``.
        files: globs of our files that it brings; the first patch that names a file has it,
            and one in ``later`` comes again whole, with the patch that names it next.
        later: our file -> what of it comes later.
        edits: of mlx-lm's own files.
        rows: whether it adds the reported calls to mlx-lm's tests/test_tool_parsing.py.
        tests: our tests that hold from here on (pytest arguments).
        stock_tests: mlx-lm's own tests of this area.
        rest: whether it takes the files that no patch names.
    """

    name: str
    files: tuple[str, ...] = ()
    later: dict[str, Later] | None = None
    edits: tuple[Edit, ...] = ()
    rows: bool = False
    tests: tuple[str, ...] = ()
    stock_tests: tuple[str, ...] = ()
    rest: bool = False


TOKENIZER, SERVER = "mlx_lm/tokenizer_utils.py", "mlx_lm/server.py"

# In tokenizer_utils, not beside utils' own defaults: runners call this load() themselves.
SELECTION = (
    Edit(
        TOKENIZER,
        "from transformers.tokenization_utils_base import PreTrainedTokenizerBase\n",
        "from transformers.tokenization_utils_base import PreTrainedTokenizerBase\n"
        "\n"
        "from .kimi import loading as kimi\n",
    ),
    Edit(
        TOKENIZER,
        "    defaults = defaults or {}\n",
        "    defaults = {**kimi.defaults(model_path), **(defaults or {})}\n",
    ),
)

FAST_TOKENIZER = (
    Edit(
        TOKENIZER,
        "    tokenizer = AutoTokenizer.from_pretrained(\n",
        "    tokenizer = kimi.AutoTokenizer(AutoTokenizer).from_pretrained(\n",
    ),
    Edit(
        TOKENIZER,
        "    return TokenizerWrapper(\n        tokenizer,\n        detokenizer_class,\n",
        "    wrapper = TokenizerWrapper(\n        tokenizer,\n        detokenizer_class,\n",
    ),
    Edit(
        TOKENIZER,
        "        response_format=response_format,\n    )\n",
        "        response_format=response_format,\n    )\n"
        "    return kimi.finish(wrapper, model_path)\n",
    ),
)

SERVER_FAULTS = (
    # run() ignored its server_class and handler_class.
    Edit(
        SERVER,
        "        _run_http_server(host, port, response_generator)\n",
        "        _run_http_server(host, port, response_generator, server_class, handler_class)\n",
    ),
    # A backlog of 5 resets connections of more clients.
    Edit(
        SERVER,
        "def _run_http_server(\n"
        "    host: str,\n"
        "    port: int,\n"
        "    response_generator,\n"
        "    server_class=ThreadingHTTPServer,\n",
        "class HTTPServer(ThreadingHTTPServer):\n"
        '    """ThreadingHTTPServer with room for many clients that connect at once."""\n'
        "\n"
        "    request_queue_size = 128\n"
        "\n"
        "\n"
        "def _run_http_server(\n"
        "    host: str,\n"
        "    port: int,\n"
        "    response_generator,\n"
        "    server_class=HTTPServer,\n",
    ),
    Edit(
        SERVER,
        "    model_provider: ModelProvider,\n    server_class=ThreadingHTTPServer,\n",
        "    model_provider: ModelProvider,\n    server_class=HTTPServer,\n",
    ),
    # Bytes that are not UTF-8, and nesting too deep for the decoder.
    Edit(
        SERVER,
        "        except json.JSONDecodeError as e:\n"
        '            logging.error(f"JSONDecodeError: {e} - Raw body: {raw_body.decode()}")\n',
        "        except (ValueError, RecursionError) as e:\n"
        '            logging.error(f"{type(e).__name__}: {e} - Raw body: {raw_body[:1000]}")\n',
    ),
    # Arguments that are no JSON, such as a set.
    Edit(
        SERVER,
        "                parsed = self._tool_parser(tool_text, self._tools)\n"
        "            except (ValueError, json.JSONDecodeError) as e:\n",
        "                parsed = self._tool_parser(tool_text, self._tools)\n"
        "                json.dumps(parsed)\n"
        "            except (ValueError, TypeError) as e:\n",
    ),
    Edit(
        SERVER,
        "                if (\n"
        "                    self.stream_options is not None\n"
        '                    and self.stream_options["include_usage"]\n'
        "                ):\n",
        "                if self.stream_options is not None and self.stream_options.get(\n"
        '                    "include_usage"\n'
        "                ):\n",
    ),
    Edit(
        SERVER,
        '        self._validate("stream", bool)\n',
        '        self._validate("stream", bool)\n'
        '        self._validate("stream_options", dict, optional=True)\n',
    ),
    Edit(
        SERVER,
        '        assert "messages" in body, "Request did not contain messages"\n',
        '        assert "messages" in body, "Request did not contain messages"\n'
        '        messages = body["messages"]\n'
        "        if not isinstance(messages, list) or not all(\n"
        '            isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages\n'
        "        ):\n"
        '            raise ValueError("messages must be a list of objects with a role")\n'
        "        if not messages:\n"
        '            raise ValueError("messages must not be empty")\n',
    ),
    # Without a hub cache this failed after the headers were sent.
    Edit(
        SERVER,
        "        hf_cache_info = scan_cache_dir()\n"
        "        downloaded_models = [\n"
        "            repo for repo in hf_cache_info.repos if probably_mlx_lm(repo)\n"
        "        ]\n",
        "        try:\n"
        "            repos = scan_cache_dir().repos\n"
        "        except CacheNotFound:\n"
        "            repos = ()\n"
        "        downloaded_models = [repo for repo in repos if probably_mlx_lm(repo)]\n",
    ),
    Edit(
        SERVER,
        "from huggingface_hub import scan_cache_dir\n",
        "from huggingface_hub import CacheNotFound, scan_cache_dir\n",
    ),
    # All tokens is what a top_k over the vocabulary means; in the sampler it raises, and
    # a bias outside it reads past the logits: both in the generation thread.
    Edit(
        SERVER,
        "def _make_sampler(args, tokenizer):\n    return make_sampler(\n",
        "def _check_ids(args, vocab_size):\n"
        "    for i in args.logits.logit_bias or ():\n"
        "        if not 0 <= i < vocab_size:\n"
        '            raise ValueError(f"logit_bias: {i} is not in the vocabulary")\n'
        "    if args.sampling.top_k >= vocab_size:\n"
        "        args.sampling.top_k = 0\n"
        "\n"
        "\n"
        "def _make_sampler(args, tokenizer):\n    return make_sampler(\n",
    ),
    Edit(
        SERVER,
        "        vision = None\n",
        "        _check_ids(args, len(tokenizer))\n        vision = None\n",
    ),
)

HANDLER = (
    Edit(
        SERVER,
        "from .models.cache import LRUPromptCache, make_prompt_cache\n",
        "from .kimi import server as kimi\n"
        "from .kimi.handler import make_handler\n"
        "from .models.cache import LRUPromptCache, make_prompt_cache\n",
    ),
    Edit(
        SERVER,
        "import socket\nimport time\n",
        "import socket\nimport sys\nimport time\n",
    ),
    Edit(
        SERVER,
        "        _check_ids(args, len(tokenizer))\n        vision = None\n",
        "        if isinstance(request, kimi.Completion):\n"
        "            return (*kimi.tokenize(self, tokenizer, request, args), None)\n"
        "        _check_ids(args, len(tokenizer))\n        vision = None\n",
    ),
    Edit(
        SERVER,
        "class HTTPServer(ThreadingHTTPServer):\n",
        "APIHandler = make_handler(sys.modules[__name__])\n"
        "\n"
        "\n"
        "class HTTPServer(ThreadingHTTPServer):\n",
    ),
)

LOGITS_HOOK = (
    Edit(
        SERVER,
        "def _make_logits_processors(args):\n    return make_logits_processors(\n",
        "def _make_logits_processors(args):\n    processors = make_logits_processors(\n",
    ),
    Edit(
        SERVER,
        "        args.logits.frequency_context_size,\n    )\n",
        "        args.logits.frequency_context_size,\n    )\n"
        "    # What a request must fit, beside its penalties.\n"
        '    extra = getattr(args, "kimi_processor", None)\n'
        "    return processors if extra is None else [*processors, extra]\n",
    ),
)

PATCHES = (
    Patch(
        "01-k2-arguments",
        ("tool_parsers/kimi_json.py", "tool_parsers/kimi_names.py"),
        tests=("tests/test_kimi_json.py",),
    ),
    Patch(
        "02-k2-parser",
        ("tool_parsers/kimi_k2.py",),
        rows=True,
        tests=("tests/test_tool_parser_kimi_k2.py",),
        stock_tests=("test_tool_parsing.py",),
    ),
    Patch(
        "03-k3-parser",
        ("tool_parsers/*.py",),
        tests=("tests/test_tool_parser_kimi_k3*.py",),
        stock_tests=("test_tool_parsing.py",),
    ),
    Patch(
        "04-chat-templates",
        ("chat_templates/*.py",),
        tests=("tests/test_chat_templates.py",),
    ),
    Patch(
        "05-selection-by-model-type",
        (
            "mlx_lm_kimi/families.py",
            "mlx_lm_kimi/directory.py",
            "mlx_lm_kimi/loading.py",
        ),
        later={
            "mlx_lm_kimi/loading.py": Later(
                ("AutoTokenizer", "finish", "_set_thinking")
            )
        },
        edits=SELECTION,
        tests=("tests/test_selection.py",),
        stock_tests=("test_tokenizers.py", "test_utils.py"),
    ),
    Patch(
        "06-content-kept-apart",
        ("mlx_lm_kimi/template.py", "mlx_lm_kimi/segments.py"),
        tests=("tests/test_own_template.py",),
    ),
    Patch(
        "07-vocabulary",
        ("mlx_lm_kimi/convert.py", "mlx_lm_kimi/cache.py"),
    ),
    Patch(
        "08-fast-tokenizer",
        (
            "mlx_lm_kimi/loading.py",
            "mlx_lm_kimi/tokenizer.py",
            "mlx_lm_kimi/detokenizer.py",
            "mlx_lm_kimi/prompt.py",
        ),
        edits=FAST_TOKENIZER,
        tests=(
            "tests/test_tokenizer.py",
            "tests/test_detokenizer.py",
            "tests/test_segments.py",
            "tests/test_templates.py",
            "tests/test_selection.py",
            "tests/test_runner.py",
        ),
        stock_tests=("test_tokenizers.py", "test_utils.py", "test_generate.py"),
    ),
    Patch(
        "09-server-faults",
        edits=SERVER_FAULTS,
        tests=("tests/test_stock_faults.py",),
        stock_tests=("test_server.py",),
    ),
    Patch(
        "10-request-history",
        (
            "mlx_lm_kimi/protocol/__init__.py",
            "mlx_lm_kimi/protocol/errors.py",
            "mlx_lm_kimi/protocol/check.py",
            "mlx_lm_kimi/protocol/tools.py",
            "mlx_lm_kimi/protocol/messages.py",
            "mlx_lm_kimi/protocol/history.py",
        ),
    ),
    Patch(
        "11-request-fields",
        ("mlx_lm_kimi/protocol/*.py",),
        tests=("tests/test_protocol_*.py",),
    ),
    Patch(
        "12-answers",
        ("mlx_lm_kimi/stream.py", "mlx_lm_kimi/response.py"),
        tests=("tests/test_response.py",),
    ),
    Patch(
        "13-handler",
        ("mlx_lm_kimi/handler.py", "mlx_lm_kimi/server.py"),
        later={
            "mlx_lm_kimi/handler.py": Later(
                lines=("            constraint=server.constraint(",)
            ),
            "mlx_lm_kimi/server.py": Later(("constraint", "_form")),
        },
        edits=HANDLER,
        rest=True,
        tests=(
            "tests/test_server_api.py",
            "tests/test_server_calls.py",
            "tests/test_agent_session.py",
        ),
        stock_tests=("test_server.py",),
    ),
    Patch(
        "14-schemas",
        ("mlx_lm_kimi/schema*.py", "mlx_lm_kimi/references.py"),
    ),
    Patch(
        "15-constraint",
        (
            "mlx_lm_kimi/handler.py",
            "mlx_lm_kimi/server.py",
            "mlx_lm_kimi/grammar*.py",
            "mlx_lm_kimi/constrain*.py",
            "mlx_lm_kimi/bias.py",
            "mlx_lm_kimi/vocabulary.py",
        ),
        edits=LOGITS_HOOK,
        tests=(
            "tests/test_schema*.py",
            "tests/test_grammar*.py",
            "tests/test_constrain.py",
            "tests/test_server_*.py",
            "tests/test_stock_faults.py",
        ),
        stock_tests=("test_server.py", "test_sample_utils.py"),
    ),
)
