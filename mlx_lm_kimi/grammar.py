"""(family, request) -> the grammar of an answer, as llguidance's Lark text.

K2 family, as FORMATS describe what the model writes::

    <think>…</think> text <|tool_calls_section_begin|>
      <|tool_call_begin|>functions.NAME:IDX<|tool_call_argument_begin|>{…}<|tool_call_end|> …
    <|tool_calls_section_end|><|im_end|>

The grammar is of the whole turn: it also forbids markers where they have no meaning.
Pure text work; no model, no tokenizer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .protocol.errors import RequestError
from .schema import Converted, settle

logger = logging.getLogger(__name__)

FAMILIES = ("kimi_k2", "kimi_k25")
SECTION_BEGIN, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENT_BEGIN = "<|tool_call_argument_begin|>"
CALL_MARKERS = (SECTION_BEGIN, CALL_BEGIN, ARGUMENT_BEGIN, CALL_END, SECTION_END)
# Ordinary tokens come first in every Kimi vocabulary, control tokens from here on.
FIRST_CONTROL = 163584
FREE = f"<[0-{FIRST_CONTROL - 1}]>*"
# Calls in one answer; each has its own index, and a grammar is finite.
MAX_CALLS = 128
MAX_INDEX = 10**9


@dataclass(frozen=True)
class ConstraintSpec:
    """What a request demands of the answer. Plain data; it travels to every rank.

    Attributes:
        tools: OpenAI tool objects, those that may be called.
        choice: "auto", "none", "required" or "function" (the one called ``name``).
        parallel: whether one answer may hold several calls.
        response_format: None, ("json_object",) or ("json_schema", schema, strict, name).
        next_index: the index of the answer's first call.
    """

    tools: Sequence[dict[str, Any]] = ()
    choice: str = "auto"
    name: str | None = None
    parallel: bool = True
    response_format: tuple[Any, ...] | None = None
    next_index: int = 0

    @property
    def must_call(self) -> bool:
        """Whether the answer is calls and nothing else."""
        return self.choice in ("required", "function")

    @property
    def only_forbids(self) -> bool:
        """Whether all that is demanded is that no call is made."""
        return self.choice == "none" and self.response_format is None


def build(
    spec: ConstraintSpec, *, family: str, thinking_open: bool, has_thinking: bool
) -> str | None:
    """The grammar of the answer, or None if there is nothing to constrain.

    Args:
        family: a name of families.py; only K2's are constrained.
        thinking_open: the prompt ends inside the think block.
        has_thinking: the model may open a think block itself.

    With required calls a response_format has no content to shape, and is ignored.

    Raises:
        RequestError: a schema or a name can't be enforced.
    """
    calls_possible = bool(spec.tools) and spec.choice != "none"
    if not calls_possible and spec.response_format is None:
        return None
    if family not in FAMILIES:
        logger.warning("Answers of %s are not constrained", family)
        return None
    rules = _Rules(spec)
    section = rules.section() if calls_possible else ""
    if spec.must_call:
        body = section
    elif spec.response_format is not None:
        content = rules.content()
        body = f"({content} | {section})" if section else content
    else:
        body = f"{FREE} {section}?"
    thought = ""
    if thinking_open:
        thought = f"{FREE} </think> "
    elif has_thinking:
        thought = "thought? "
        rules.lines.append(f"thought: <think> {FREE} </think>")
    return "\n".join([f"start: {thought}{body} <|im_end|>", *rules.text(), ""])


class _Rules:
    """The rules below start, each schema once."""

    def __init__(self, spec: ConstraintSpec):
        self._spec = spec
        self.lines: list[str] = []
        self._schemas: list[tuple[str, Converted, str]] = []
        self._shared: dict[str, str] = {}
        # Under auto the model's own whitespace stays; what it is made to write is compact.
        self._style = "compact" if spec.must_call else "free"

    def text(self) -> list[str]:
        settle(schema for _, schema, _ in self._schemas)
        written = [
            f"{name}: %json {schema.text(style)}" for name, schema, style in self._schemas
        ]
        return self.lines + written

    def section(self) -> str:
        """The rule of a section of calls."""
        spec, called = self._spec, _callable_tools(self._spec)
        first = min(max(spec.next_index, 0), MAX_INDEX)
        if spec.parallel and spec.choice != "function":
            self.lines += [
                f"section: {SECTION_BEGIN} calls::0 {SECTION_END}",
                f"calls::_: call::_ | call::_ calls::incr(_) %if lt(_, {MAX_CALLS - 1})",
                "index::_: "
                + " | ".join(f'"{first + k}" %if eq(_, {k})' for k in range(MAX_CALLS)),
            ]
            head, index = "call::_", ":\" index::_"
        else:
            self.lines.append(f"section: {SECTION_BEGIN} call {SECTION_END}")
            head, index = "call", f':{first}"'
        options = []
        for position, tool in called:
            name = json.dumps("functions." + tool["function"]["name"])[:-1]
            options.append(f"{name}{index} {self._arguments(position, tool)}")
        self.lines.append(f"{head}: {CALL_BEGIN} ({' | '.join(options)}) {CALL_END}")
        return "section"

    def _arguments(self, position: int, tool: dict[str, Any]) -> str:
        """The rule of a tool's arguments. Tools with equal schemas share it."""
        function = tool["function"]
        strict = function.get("strict") is True
        schema = function.get("parameters")
        if schema is None or not (strict or self._spec.must_call):
            schema = {"type": "object"}
        param = f"tools[{position}].function.parameters"
        converted = Converted(schema, strict=strict, param=param)
        return self._rule(converted, self._style, ARGUMENT_BEGIN, str(strict))

    def content(self) -> str:
        """The rule of the content that response_format asks for."""
        kind, *rest = self._spec.response_format or ()
        if kind == "json_object":
            schema, strict = {"type": "object"}, False
        else:
            schema, strict = rest[0], bool(rest[1])
        param = "response_format.json_schema.schema"
        return self._rule(Converted(schema, strict=strict, param=param), "compact", "")

    def _rule(self, schema: Converted, style: str, before: str, key: str = "") -> str:
        shared = key + style + before + schema.text(style)
        if shared not in self._shared:
            name = f"json{len(self._schemas)}"
            self._schemas.append((name, schema, style))
            self._shared[shared] = name
        return f"{before} {self._shared[shared]}".strip()


def _callable_tools(spec: ConstraintSpec) -> list[tuple[int, dict[str, Any]]]:
    """(position, tool) of the tools that the answer may call, each name once."""
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    for position, tool in enumerate(spec.tools):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not _is_writable(name):
            raise RequestError(
                f"tools[{position}].function.name must be a name.",
                param=f"tools[{position}].function.name",
                code="invalid_value",
            )
        if spec.choice != "function" or name == spec.name:
            found.setdefault(name, (position, tool))
    if not found:
        raise RequestError(
            f"tool_choice: no tool is called {spec.name!r}.",
            param="tool_choice",
            code="invalid_value",
        )
    return list(found.values())


def _is_writable(name: str) -> bool:
    return bool(name) and name.encode("utf-8", "replace").decode() == name
