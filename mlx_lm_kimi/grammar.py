"""(family, request) -> the grammar of an answer, as llguidance's Lark text.

K2 family, as FORMATS describe what the model writes::

    <think>…</think> text <|tool_calls_section_begin|>
      <|tool_call_begin|>functions.NAME:IDX<|tool_call_argument_begin|>{…}<|tool_call_end|> …
    <|tool_calls_section_end|><|im_end|>

The grammar is of the whole turn: it also forbids markers where they have no meaning.
K3's is in grammar_xtml.py.
Pure text work; no model, no tokenizer.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .protocol.errors import RequestError
from .schema import Converted, settle

logger = logging.getLogger(__name__)

FAMILIES = ("kimi_k2", "kimi_k25")
SECTION_BEGIN, SECTION_END = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
)
CALL_BEGIN, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENT_BEGIN = "<|tool_call_argument_begin|>"
CALL_MARKERS = (SECTION_BEGIN, CALL_BEGIN, ARGUMENT_BEGIN, CALL_END, SECTION_END)
# Ordinary tokens come first in every Kimi vocabulary, control tokens from here on.
FIRST_CONTROL = 163584
FREE = f"<[0-{FIRST_CONTROL - 1}]>*"
# RFC 8259, in the model's own style; the bound ends runs of whitespace.
ANY_OBJECT = r"""any_object: "{" WS? (member (WS? "," WS? member)* WS?)? "}"
member: STRING WS? ":" WS? value
any_array: "[" WS? (value (WS? "," WS? value)* WS?)? "]"
value: STRING | NUMBER | "true" | "false" | "null" | any_object | any_array
STRING: /"([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/
WS: /[ \t\r\n]{1,40}/"""
# Calls in one answer: each has its own index, and a grammar is finite.
MAX_CALLS = 64
# One grammar serves answers whose first index is in the same block.
INDEX_BLOCK = 32
MAX_INDEX = 10**9
# Tool sets whose rules are kept.
MAX_BUILT = 32


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
    def may_call(self) -> bool:
        """Whether the answer may hold calls."""
        return bool(self.tools) and self.choice != "none"

    @property
    def must_call(self) -> bool:
        """Whether the answer is calls and nothing else."""
        return self.may_call and self.choice in ("required", "function")

    @property
    def only_forbids(self) -> bool:
        """Whether all that is demanded is that no call is made."""
        return self.choice == "none" and self.response_format is None

    @property
    def may_be_empty(self) -> bool:
        """Whether nothing at all is an answer, too."""
        return not self.must_call and self.response_format is None

    @property
    def is_demanded(self) -> bool:
        """Whether the request asks for it; else the answer may also go without."""
        strict = any(t["function"].get("strict") for t in self.tools)
        formed = self.response_format is not None
        return self.choice != "auto" or strict or formed or not self.parallel


def build(
    spec: ConstraintSpec, *, family: str, thinking_open: bool, has_thinking: bool
) -> str | None:
    """The grammar of the answer, or None if there is nothing to constrain.

    Args:
        family: a name of families.py.
        thinking_open: the prompt ends inside the think block.
        has_thinking: the model may open a think block itself.

    With required calls a response_format has no content to shape, and is ignored.
    The grammar begins with ``first_token``, if that is one.

    Raises:
        RequestError: a schema or a name can't be enforced.
    """
    kind = rules_of(family)
    if kind is None:
        logger.warning("Answers of %s are not constrained", family)
        return None
    if not (
        spec.may_call or spec.response_format is not None or kind.whole_turns(spec)
    ):
        return None
    body, rules = _rules(spec, kind)
    turn, more = kind.turn(body, thinking_open, has_thinking, spec.may_be_empty)
    rules = f"{more}{rules}"
    if not spec.may_call:
        return f"start: {turn}\n{rules}\n"
    return f"{kind.start(turn)}\n{rules}\n"


def rules_of(family: str) -> type[Rules] | None:
    """What writes the grammar of a family's answers."""
    if family == "kimi_k3":
        from .grammar_xtml import XtmlRules

        return XtmlRules
    return Rules if family in FAMILIES else None


def first_token(spec: ConstraintSpec, family: str = "kimi_k2") -> int | None:
    """The token that a matcher takes before the answer's own; None if there is none.

    It says at which index the calls begin: so one compiled grammar serves all turns of
    a conversation (it changes every INDEX_BLOCK calls). XTML counts the calls of one
    answer only.
    """
    if family not in FAMILIES:
        return None
    return _index(spec) % INDEX_BLOCK if spec.may_call else None


def _index(spec: ConstraintSpec) -> int:
    return min(max(spec.next_index, 0), MAX_INDEX)


_built: OrderedDict[str, tuple[Any, str]] = OrderedDict()
_built_lock = threading.Lock()


def _rules(spec: ConstraintSpec, kind: type[Rules]) -> tuple[Any, str]:
    """The body of a turn and the rules it needs. Kept for the last tool sets."""
    try:
        key = json.dumps(
            [
                kind.__name__,
                list(spec.tools),
                spec.choice,
                spec.name,
                spec.parallel,
                spec.response_format,
                _index(spec) // INDEX_BLOCK,
            ]
        )
    except (TypeError, ValueError, RecursionError):
        return kind(spec).text()  # which says what is wrong
    with _built_lock:
        if key in _built:
            _built.move_to_end(key)
            return _built[key]
    text = kind(spec).text()
    with _built_lock:
        _built[key] = text
        while len(_built) > MAX_BUILT:
            _built.popitem(last=False)
    return text


class Rules:
    """The rules below a turn of the K2 family, each schema once."""

    def __init__(self, spec: ConstraintSpec):
        self._spec = spec
        self._lines: list[str] = []
        self._schemas: list[tuple[str, Converted, str, str]] = []
        self._shared: dict[str, str] = {}
        # Under auto the model's own whitespace stays; what it is made to write is compact.
        self._style = "compact" if spec.must_call else "free"

    @staticmethod
    def whole_turns(spec: ConstraintSpec) -> bool:
        """Whether an answer without calls is enforced by a grammar, too."""
        return False

    @staticmethod
    def turn(
        body: Any, thinking_open: bool, has_thinking: bool, may_be_empty: bool
    ) -> tuple[str, str]:
        """The turn that begins where the prompt ends, and rules of its own.

        may_be_empty: it may end in its thought; a model that wants to would ramble.
        """
        rules = f"thought: <think> {FREE} </think>\n" if has_thinking else ""
        if thinking_open:
            turn = f"</think> {body}"
            turn = f'{FREE} ({turn} | "")' if may_be_empty else f"{FREE} {turn}"
        elif has_thinking:
            turn = f"thought? {body}"
            turn = f"({turn} | <think> {FREE})" if may_be_empty else turn
        else:
            turn = body
        return f"{turn} <|im_end|>", rules

    @staticmethod
    def start(turn: str) -> str:
        """The first rules, for a turn in which calls are counted."""
        starts = " | ".join(f"<[{k}]> turn::{k}" for k in range(INDEX_BLOCK))
        return f"start: {starts}\nturn::_: {turn}"

    def text(self) -> tuple[Any, str]:
        """The body and the rules."""
        section = self._section() if self._spec.may_call else ""
        body = self._body(section)
        settle(schema for _, schema, _, _ in self._schemas)
        written = [
            f"{name}: %json {schema.text(style) if schema.mended else text}"
            for name, schema, style, text in self._schemas
        ]
        return body, "\n".join(self._lines + written)

    def _body(self, section: str) -> Any:
        spec = self._spec
        if spec.must_call:
            return section
        if spec.response_format is not None:
            content = self._content()
            return f"({content} | {section})" if section else content
        return f'{FREE} ({section} | "")'

    def _section(self) -> str:
        """The rule of a section of calls. Its parameter counts them."""
        first = _index(self._spec) // INDEX_BLOCK * INDEX_BLOCK
        options = []
        for position, tool in callable_tools(self._spec):
            name = json.dumps(f"functions.{tool['function']['name']}:")
            arguments = self._object(self._arguments(position, tool))
            options.append(f"{name} index::_ {ARGUMENT_BEGIN} {arguments}")
        call = f"{CALL_BEGIN} ({' | '.join(options)}) {CALL_END}"
        self._count(call, first, INDEX_BLOCK + MAX_CALLS)
        return self._in_section(SECTION_BEGIN, SECTION_END)

    def _in_section(self, begin: str, end: str) -> str:
        several = self._spec.parallel and self._spec.choice != "function"
        calls = "calls" if several else "call"
        self._lines.append(f"section::_: {begin} {calls}::_ {end}")
        return "section::_"

    def _count(self, call: str, first: int, last: int) -> None:
        """The rules of one call and of several; of which the first has index ``first``."""
        self._lines += [
            f"calls::_: call::_ | call::_ calls::incr(_) %if lt(_, {last - 1})",
            f"call::_: {call}",
            "index::_: "
            + " | ".join(f'"{first + k}" %if eq(_, {k})' for k in range(last)),
        ]

    def _arguments(self, position: int, tool: dict[str, Any]) -> Converted | None:
        """The schema that a tool's arguments must fit; None if any object will do."""
        function = tool["function"]
        strict = function.get("strict") is True
        schema = function.get("parameters")
        if not (strict or self._spec.must_call):
            return None
        param = f"tools[{position}].function.parameters"
        return Converted(
            {"type": "object"} if schema is None else schema, strict=strict, param=param
        )

    def _object(self, schema: Converted | None) -> str:
        """The rule of arguments that are written as one object."""
        if schema is not None:
            return self._json(schema, self._style)
        if ANY_OBJECT not in self._lines:
            self._lines.append(ANY_OBJECT)
        return "any_object"

    def _content(self) -> str:
        """The rule of the content that response_format asks for."""
        kind, *rest = self._spec.response_format or ()
        schema, strict = {"type": "object"}, False
        if kind == "json_schema":
            schema, strict = rest[0], bool(rest[1])
        param = "response_format.json_schema.schema"
        return self._json(Converted(schema, strict=strict, param=param), "compact")

    def _json(self, schema: Converted, style: str) -> str:
        text = schema.text(style)
        key = f"{schema.strict} {style} {text}"
        if key not in self._shared:
            self._shared[key] = f"json{len(self._schemas)}"
            self._schemas.append((self._shared[key], schema, style, text))
        return self._shared[key]


def callable_tools(spec: ConstraintSpec) -> list[tuple[int, dict[str, Any]]]:
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
