"""`mlx_lm_kimi demo`: a tool call through stock mlx_lm.server and the openai client.

With the tiny model in demo_model/ by default. It shows the plumbing, not intelligence.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from . import families

MODEL = Path(__file__).parent / "demo_model"
START_TIMEOUT = 300  # seconds until the server must answer
QUESTION = "What is the weather in Oslo?"


def _tool(name: str, description: str) -> dict[str, Any]:
    city = {"type": "string", "description": "The city"}
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    _tool("get_weather", "The weather in a city"),
    _tool("get_time", "The time in a city"),
]
RESULTS = {"get_weather": "12 C, rain", "get_time": "14:30"}


class Failed(Exception):
    """A step of the demo did not give what it should."""


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _server_command() -> list[str]:
    script = Path(sys.executable).with_name("mlx_lm.server")
    if script.exists():
        return [str(script)]
    found = shutil.which("mlx_lm.server")
    return [found] if found else [sys.executable, "-m", "mlx_lm", "server"]


@contextlib.contextmanager
def serve(model: Path) -> Iterator[str]:
    """Stock mlx_lm.server with a model on a free port; yields its URL.

    Raises:
        Failed: the server ended, or did not answer in time; with the end of its log.
    """
    port = _free_port()
    command = [*_server_command(), "--model", str(model), "--port", str(port)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen, url: str, log: Any) -> None:
    end = time.monotonic() + START_TIMEOUT
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except urllib.error.HTTPError:
            break  # the model could not be loaded
        except OSError:
            time.sleep(0.1)
    log.seek(0)
    raise Failed(f"mlx_lm.server did not start:\n{log.read()[-2000:]}")


def _say(console: Console, who: str, text: str, style: str = "") -> None:
    console.print(Text(f"{who:>10}  ", style="bold").append(Text(text, style=style)))


def _stream(client: Any, console: Console, messages: list[dict]) -> dict[str, Any]:
    """One streamed answer, shown as it arrives; returns the assistant message."""
    chunks = client.chat.completions.create(
        model="default_model", messages=messages, tools=TOOLS, stream=True
    )
    content, calls, pieces, reason = "", {}, 0, None
    for chunk in chunks:
        choice = chunk.choices[0]
        reason = choice.finish_reason or reason
        content += choice.delta.content or ""
        for delta in choice.delta.tool_calls or []:
            pieces += 1
            call = calls.setdefault(delta.index, {"type": "function"})
            if delta.id:
                call |= {"id": delta.id}
                call["function"] = {"name": delta.function.name, "arguments": ""}
                _say(console, "call", f"{delta.function.name}  (id {delta.id})", "cyan")
            call["function"]["arguments"] += delta.function.arguments or ""
    for call in calls.values():
        _say(console, "arguments", call["function"]["arguments"], "cyan")
    if calls:
        _say(console, "", f"{pieces} deltas, finish_reason {reason}", "dim")
    message: dict[str, Any] = {"role": "assistant", "content": content or None}
    if calls:
        message["tool_calls"] = list(calls.values())
    return message


def _run_tool(call: dict[str, Any]) -> str:
    name = call["function"]["name"]
    arguments = json.loads(call["function"]["arguments"])
    if name not in RESULTS or set(arguments) != {"city"}:
        raise Failed(f"not a call of a declared tool: {call['function']}")
    return RESULTS[name]


def _talk(client: Any, console: Console, check: bool) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    _say(console, "tools", ", ".join(t["function"]["name"] for t in TOOLS))
    _say(console, "user", QUESTION, "green")
    message = _stream(client, console, messages)
    calls = message.get("tool_calls", [])
    if not calls:
        raise Failed(f"no tool call arrived, but the text {message['content']!r}")
    messages.append(message)
    for call in calls:
        result = _run_tool(call)
        _say(console, "result", result, "yellow")
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    answer = _stream(client, console, messages)["content"] or ""
    _say(console, "answer", answer, "green")
    function = calls[0]["function"]
    if not answer:
        raise Failed("no answer arrived")
    if check and (function["name"], json.loads(function["arguments"])) != (
        "get_weather",
        {"city": "Oslo"},
    ):
        raise Failed(f"the wrong call: {function}")
    if check and "12" not in answer:
        raise Failed("the answer does not use the tool's result")


def demo(model: str | None = None) -> int:
    """Run the demo; returns 0, or 1 when a step fails (and says which)."""
    console = Console(highlight=False)
    try:
        import openai
    except ImportError:
        console.print("The demo needs the openai client: pip install openai")
        return 1
    path = Path(model) if model else MODEL
    try:
        if families.detect(path) is None:
            raise Failed(f"{path} is no Kimi directory: see mlx_lm_kimi doctor {path}")
        _say(console, "server", "mlx_lm.server (stock) is starting")
        with serve(path) as url:
            _say(console, "", url, "dim")
            client = openai.OpenAI(
                base_url=url, api_key="none", max_retries=0, timeout=300
            )
            _talk(client, console, check=model is None)
    except (Failed, openai.OpenAIError, ValueError) as e:
        console.print(Text(f"FAILED: {e}", style="bold red"))
        return 1
    console.print(Text("All steps worked.", style="bold green"))
    return 0
