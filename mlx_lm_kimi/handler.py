"""The request handler: mlx_lm.server's own, plus chat requests for Kimi models.

Whatever is not a chat request for a Kimi model goes to mlx_lm's handler unchanged.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import math
import os
import socket
import time
import uuid
from types import ModuleType
from typing import Any

from huggingface_hub.constants import HF_HUB_CACHE

from . import families, server
from .protocol.errors import RequestError
from .protocol.request import (
    MAX_BODY_BYTES,
    ChatRequest,
    decode_body,
    parse_chat_request,
    refuse_images,
)
from .response import CallIds, Response
from .stream import TokenStream

IMAGE_TYPES = ("image", "image_url", "input_image")
CHAT_PATHS = ("/v1/chat/completions", "/chat/completions")
IMPOSSIBLE = -9999.0  # OpenAI's logprob of a token that can't come
# How often a client that gets nothing is looked after, in seconds.
CLIENT_CHECK = 0.25


class ClientGone(ConnectionError):
    """The client closed the connection."""


def make_handler(module: ModuleType) -> type:
    """A subclass of mlx_lm.server's APIHandler that serves Kimi chat requests itself."""

    class KimiAPIHandler(module.APIHandler):
        def do_POST(self) -> None:
            if self.path.partition("?")[0] not in CHAT_PATHS:
                return super().do_POST()
            provider = self.response_generator.model_provider
            is_ours = server.native_family(provider, "default_model") is not None
            length = self.headers.get("Content-Length") or ""
            if not (length.isascii() and length.isdigit()):
                if not is_ours:
                    return super().do_POST()
                return _send_error(self, _length_error(length))
            # Only our own requests are limited.
            raw = _read_body(self, int(length), limited=is_ours)
            try:
                body, error = decode_body(raw), None
            except RequestError as e:
                body, error = {}, e
            family = server.native_family(provider, _requested_model(body))
            if family is None or _has_images_for(provider, body):
                return self._stock_post(raw)
            if error is not None:
                return _send_error(self, error)
            Chat(self, module, family).serve(body)

        def _stock_post(self, raw: bytes) -> None:
            """mlx_lm's own handling, of a body that was read already."""
            rfile, self.rfile = self.rfile, io.BytesIO(raw)
            try:
                super().do_POST()
            finally:
                self.rfile = rfile

        def handle_models_request(self) -> None:
            # Without a hub cache mlx_lm fails after it has sent the headers.
            provider = self.response_generator.model_provider
            if server.native_family(provider, "default_model") is not None:
                with contextlib.suppress(OSError):
                    os.makedirs(HF_HUB_CACHE, exist_ok=True)
            super().handle_models_request()

    KimiAPIHandler.__name__ = KimiAPIHandler.__qualname__ = "APIHandler"
    return KimiAPIHandler


def _has_images_for(provider: Any, body: dict[str, Any]) -> bool:
    """Whether a request has images, and the loaded model a processor in mlx_lm."""
    if getattr(provider, "processor", None) is None:
        return False
    messages = body.get("messages")
    contents = [
        message.get("content")
        for message in (messages if isinstance(messages, list) else [])
        if isinstance(message, dict)
    ]
    return any(
        isinstance(part, dict) and part.get("type") in IMAGE_TYPES
        for content in contents
        if isinstance(content, list)
        for part in content
    )


def _length_error(length: str) -> RequestError:
    if not length:
        return RequestError("The Content-Length header is required.", status=411)
    return RequestError(f"Content-Length must be a whole number, not {length!r}.")


def _read_body(handler: Any, length: int, limited: bool) -> bytes:
    """The body; of one over the limit, the rest is read and thrown away."""
    if not limited:
        return handler.rfile.read(length)
    raw = handler.rfile.read(min(length, MAX_BODY_BYTES + 1))
    left = min(length - len(raw), 16 * MAX_BODY_BYTES)
    while left > 0 and (chunk := handler.rfile.read(min(left, 1 << 20))):
        left -= len(chunk)
    return raw


def _requested_model(body: dict[str, Any]) -> str:
    model = body.get("model")
    return model if isinstance(model, str) else "default_model"


def _send_json(handler: Any, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    handler._set_completion_headers(status)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
    handler.wfile.flush()


def _send_error(handler: Any, error: RequestError) -> None:
    _send_json(handler, error.status, error.body())


def _as_error(e: Exception) -> RequestError:
    """What a client is told of an exception that is no fault of its request."""
    if isinstance(e, RequestError):
        return e
    logging.exception("A request failed", exc_info=e)
    return RequestError(str(e) or type(e).__name__, type="server_error", status=500)


class Chat:
    """One chat request on a connection."""

    def __init__(self, handler: Any, module: ModuleType, family: families.Family):
        self.handler = handler
        self.module = module
        self.family = family
        self.id = f"chatcmpl-{uuid.uuid4()}"
        self.headers_sent = False
        self.checked = time.monotonic()

    def serve(self, body: dict[str, Any]) -> None:
        """Answer the request; a fault is an error object, whole or streamed."""
        try:
            request = parse_chat_request(body, style=self.family.tool_parser_type)
            refuse_images(request)
            self._answer(request)
        except (ConnectionError, TimeoutError) as e:
            logging.info("The client closed the connection: %s", e)
        except Exception as e:
            self._fail(_as_error(e))

    def _fail(self, error: RequestError) -> None:
        try:
            if self.headers_sent:  # a stream has begun: the error is its last event
                self.send_event(error.body())
            else:
                _send_error(self.handler, error)
        except OSError:
            logging.info("The client left before it could be told: %s", error)

    def _answer(self, request: ChatRequest) -> None:
        generator = self.handler.response_generator
        completion = server.Completion(
            "chat",
            "",
            request.history.messages,
            request.tools or None,
            request.role_mapping,
            template_kwargs=server.template_kwargs(request, self.family),
            constraint=server.constraint(request, self.family.name),
        )
        args = server.generation_arguments(self.module, generator.cli_args, request)
        self.request = request
        context, tokens = generator.generate(
            completion, args, progress_callback=self._progress
        )
        try:
            Answer(self, request, completion.local, context, args).run(tokens)
        finally:
            context.stop()

    def _progress(self, processed: int, total: int) -> None:
        logging.info("Prompt processing progress: %d/%d", processed, total)
        if self.request.stream:
            self._write(f": keepalive {processed}/{total}\n\n")
        else:
            self.check_client(now=True)

    def start_stream(self) -> None:
        self.handler._set_stream_headers(200)
        self.handler.end_headers()
        self.headers_sent = True

    def _write(self, text: str) -> None:
        self.handler.wfile.write(text.encode("utf-8", "replace"))
        self.handler.wfile.flush()
        self.checked = time.monotonic()

    def send_event(self, body: dict[str, Any]) -> None:
        self._write(f"data: {json.dumps(body)}\n\n")

    def send_done(self) -> None:
        self._write("data: [DONE]\n\n")

    def send_whole(self, body: dict[str, Any]) -> None:
        _send_json(self.handler, 200, body)

    def check_client(self, now: bool = False) -> None:
        """Raise ClientGone if the connection was closed at the other end."""
        if not now and time.monotonic() - self.checked < CLIENT_CHECK:
            return
        self.checked = time.monotonic()
        try:
            flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
            if self.handler.connection.recv(1, flags):
                return
        except BlockingIOError:
            return
        except OSError as e:
            raise ClientGone(str(e)) from e
        if not self.headers_sent:
            raise ClientGone("end of file")
        # It may have closed its own side only: a stream finds out by writing.
        self._write(": keepalive\n\n")


class Answer:
    """The generated tokens of one request, as an OpenAI answer."""

    def __init__(
        self, chat: Chat, request: ChatRequest, local: Any, context: Any, args: Any
    ):
        name = f"mlx_lm.tool_parsers.{chat.family.tool_parser_type}"
        module = importlib.import_module(name)
        self.chat = chat
        self.request = request
        self.context = context
        self.args = args
        self.tokenizer = local.tokenizer
        parser = module.ToolCallStream(request.all_tools, reasoning=local.thinking_open)
        self.stream = TokenStream(self.tokenizer, parser, module.MARKERS)
        history = request.history
        self.response = Response(
            CallIds(set(history.used_ids), history.next_index),
            calls_allowed=bool(request.all_tools)
            and request.tool_choice.mode != "none",
            stops=request.stop,
        )
        self.logprobs: list[dict[str, Any]] = []
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.created = int(time.time())

    def run(self, tokens: Any) -> None:
        """Generate to the end, sending the answer whole or as it comes."""
        if self.request.stream:
            self.chat.start_stream()
            self._send_delta({"role": "assistant", "content": ""})
        reason = "stop"
        for generated in tokens:
            self._take(generated)
            if generated.finish_reason is not None:
                reason = generated.finish_reason
            if self.response.stopped:
                break
            self.chat.check_client()
        self._emit(self.response.add(self.stream.finish(reason == "length")))
        self._emit(self.response.finish())
        self._end(self.response.finish_reason(reason))

    def _take(self, generated: Any) -> None:
        self.completion_tokens += 1
        is_end = generated.finish_reason == "stop"
        events = [] if is_end else self.stream.feed(generated.token)
        if self.stream.in_reasoning:
            self.reasoning_tokens += 1
        if self.args.logprobs or self.args.top_logprobs > 0:
            self.logprobs.append(self._logprob(generated))
        self._emit(self.response.add(events))

    def _logprob(self, generated: Any) -> dict[str, Any]:
        """OpenAI's entry for one token; ``id`` is mlx_lm.server's addition."""

        def entry(token: int, logprob: float) -> dict[str, Any]:
            data = self.tokenizer.token_bytes(token)
            text = data.decode("utf-8", "replace")
            if not math.isfinite(logprob):
                logprob = IMPOSSIBLE  # a masked token; infinity is no JSON
            return {
                "id": token,
                "token": text,
                "logprob": logprob,
                "bytes": list(data),
            }

        top = [entry(t["id"], t["logprob"]) for t in generated.top_tokens]
        return {**entry(generated.token, generated.logprob), "top_logprobs": top}

    def _emit(self, deltas: list[dict[str, Any]]) -> None:
        if self.request.stream:
            for delta in deltas:
                self._send_delta(delta)

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.chat.id,
            "object": kind,
            "created": self.created,
            "model": self.request.model or "default_model",
            "system_fingerprint": self.chat.handler.system_fingerprint,
            "choices": choices,
        }

    def _choice(self, key: str, value: dict[str, Any], reason: str | None) -> dict:
        content, self.logprobs = self.logprobs, []
        return {
            "index": 0,
            key: value,
            "logprobs": {"content": content} if content else None,
            "finish_reason": reason,
        }

    def _send_delta(self, delta: dict[str, Any], reason: str | None = None) -> None:
        choice = self._choice("delta", delta, reason)
        self.chat.send_event(self._envelope("chat.completion.chunk", [choice]))

    def _end(self, reason: str) -> None:
        if not self.request.stream:
            choice = self._choice("message", self.response.message(), reason)
            body = self._envelope("chat.completion", [choice])
            return self.chat.send_whole({**body, "usage": self._usage()})
        self._send_delta({}, reason)
        if self.request.include_usage:
            body = self._envelope("chat.completion.chunk", [])
            self.chat.send_event({**body, "usage": self._usage()})
        self.chat.send_done()

    def _usage(self) -> dict[str, Any]:
        prompt, completion = len(self.context.prompt), self.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {
                "cached_tokens": max(0, self.context.prompt_cache_count)
            },
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }
