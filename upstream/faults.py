"""Faults of stock mlx_lm.server, each made to show itself: still there, or gone?

    python -m upstream.faults

Runs without our hook, on whatever mlx_lm is first on the path. The model is scripted, its
directory has the real vocabulary as tokenizer.json.
"""

from __future__ import annotations

import argparse
import http.client
import inspect
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

CLIENTS = 24
DEPTH = 3000
TIMEOUT = 20
OVER = 1_000_000_000  # no vocabulary is as large
CHAT = "/v1/chat/completions"
GONE, THERE = 0, 3  # exit codes of a fault that is tried in its own process


class Fault(NamedTuple):
    """What UPSTREAM.md calls it, whether a server still has it, whether it can end it."""

    name: str
    is_there: Callable[[Any], bool]
    is_deadly: bool = False


def ask(server: Any, body: bytes | dict | None, path: str = CHAT) -> tuple[int, bytes]:
    """(status, body) of an answer; (0, b"") if the server closes the connection instead."""
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def chat(text: str = "Say hi.", **fields: Any) -> dict[str, Any]:
    """A chat request."""
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 50, **fields}


def set_arguments(server: Any) -> bool:
    return ask(server, chat("[set]", tools=[TOOL]))[0] != 200


def handler_class(server: Any) -> bool:
    import mlx_lm.server as module

    class Mine(module.APIHandler):
        pass

    given: list[Any] = []
    provider = server.generator.model_provider
    with (
        mock.patch.object(module, "ResponseGenerator"),
        mock.patch.object(
            module, "_run_http_server", lambda *a, **k: given.extend([*a, *k.values()])
        ),
    ):
        module.run("127.0.0.1", 0, provider, handler_class=Mine)
    return Mine not in given


def backlog(server: Any) -> bool:
    import mlx_lm.server as module

    parameters = inspect.signature(module._run_http_server).parameters
    made = parameters["server_class"].default
    made.address_family = socket.AF_INET
    # It listens and never accepts, as a server that is busy for a moment.
    with made(("127.0.0.1", 0), None) as httpd:
        clients = []
        try:
            for _ in range(CLIENTS):
                clients.append(
                    socket.create_connection(httpd.server_address, timeout=0.5)
                )
        except OSError:
            return True
        finally:
            for client in clients:
                client.close()
    return False


def not_utf8(server: Any) -> bool:
    return ask(server, b"\xff")[0] == 0


def deep(server: Any) -> bool:
    return ask(server, b'{"a": ' + b"[" * DEPTH + b"]" * DEPTH + b"}")[0] == 0


def stream_options(server: Any) -> bool:
    status, body = ask(server, chat(stream=True, stream_options={}))
    return status != 200 or not body.rstrip().endswith(b"data: [DONE]")


def plain_messages(server: Any) -> bool:
    # A 400 that names the field is what a client can use.
    status, body = ask(server, {"messages": ["hi"]})
    return status != 400 or b"messages" not in body


def no_messages(server: Any) -> bool:
    status, body = ask(server, {"messages": []})
    return status != 400 or b"messages" not in body


def models(server: Any) -> bool:
    status, body = ask(server, None, "/v1/models")
    return status != 200 or not body


def large_top_k(server: Any) -> bool:
    return ask(server, chat(top_k=OVER, temperature=1.0))[0] != 200


def unknown_bias(server: Any) -> bool:
    # Stock tells what goes wrong after the request was taken with a 404.
    return ask(server, chat(logit_bias={str(OVER): 1.0}))[0] not in (400, 404)


FAULTS = (
    Fault("arguments `{1, 2}` end the connection", set_arguments),
    Fault("a handler class given to `server.run` is ignored", handler_class),
    Fault("a listen backlog of 5 turns clients away", backlog),
    Fault("a body that isn't UTF-8 drops the connection", not_utf8),
    Fault("a body nested 3,000 deep drops the connection", deep),
    Fault("`stream_options` without `include_usage` cuts the stream", stream_options),
    Fault("messages that aren't objects get an exception's text", plain_messages),
    Fault("an empty list of messages is a 404", no_messages),
    Fault("`/v1/models` has an empty body without a hub cache", models),
    Fault(
        "a `top_k` over the vocabulary ends the generation thread", large_top_k, True
    ),
    Fault(
        "a `logit_bias` on a token that isn't there ends the process",
        unknown_bias,
        True,
    ),
)
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    "<|tool_call_argument_begin|>{1, 2}<|tool_call_end|><|tool_calls_section_end|>"
    "<|im_end|>"
)


def _server(path: Path) -> Any:
    from benchmarks.agent_session import plain_ids
    from tests.chat import output_ids
    from tests.scripted import Scripts, Server
    from tests.test_server_calls import wait_for_tokenizer

    server = Server(path, Scripts(), "--log-level", "CRITICAL")
    ids = plain_ids(wait_for_tokenizer(server)._tokenizer)
    server.scripts.turns["set"] = [output_ids(ids, CALL)]
    return server


def find(path: Path) -> dict[str, bool]:
    """Fault -> whether it is still there, with a server of this directory."""
    found = {}
    server = _server(path)
    for fault in FAULTS:
        if fault.is_deadly:
            command = [sys.executable, "-m", "upstream.faults", "--alone", fault.name]
            code = subprocess.run([*command, str(path)]).returncode
            if code not in (GONE, THERE) and code >= 0:
                raise RuntimeError(f"{fault.name}: could not be tried")
            found[fault.name] = code != GONE  # below 0: a signal ended it
        else:
            found[fault.name] = fault.is_there(server)
    return found


def main() -> None:
    """Print each fault as ``still there`` or ``gone``; --json for a machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    # Set before mlx_lm is imported: no hook, and a hub cache that does not exist.
    os.environ["MLX_LM_KIMI"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HUB_CACHE"] = str(Path(folder) / "none")
        stderr, sys.stderr = sys.stderr, open(os.devnull, "w")  # socketserver's traces
        if args.alone:
            name, path = args.alone
            fault = next(f for f in FAULTS if f.name == name)
            os._exit(THERE if fault.is_there(_server(Path(path))) else GONE)
        from tests import mode

        mode.install()
        from benchmarks.side_by_side import make_directory

        found = find(make_directory(Path(folder) / "kimi"))
        sys.stderr = stderr
    if args.json:
        print(json.dumps(found), flush=True)
    else:
        for name, is_there in found.items():
            print(f"{'still there' if is_there else 'gone':12} {name}", flush=True)
    os._exit(0)  # a generation thread may be left


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc(file=sys.__stderr__)
        os._exit(1)  # a server's threads would go on
