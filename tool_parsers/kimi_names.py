"""
Which tool a Kimi K2 call means: the id before the arguments, matched against the tools.

The model is taught to write functions.NAME:IDX, where IDX counts the calls of the whole
conversation. Seen as well, since clients rewrite ids in the history that it imitates:

    functions_NAME_IDX   functions.NAME_IDX    separators replaced
    NAME:IDX   functions.NAME   NAME           parts left out
    functionsNAMEIDX   functions.NAMEIDX       separators lost
    0   call_9f8e7d   chatcmpl-tool-…   ???    no name at all

A name may itself hold dots, dashes, underscores, colons and digits, so only the declared
tools can tell where it ends. An id without a name gets the tool whose schema accepts the
arguments.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

# For an id in which there is nothing at all to go by.
UNKNOWN = "unknown_tool"

_MAX_ID = 1000  # longer ones are no ids; keeps every match here bounded
_MAX_INDEX_DIGITS = 9
_PREFIX = re.compile(r"(?:.*?[\W_])??functions[._:/-]?", re.DOTALL)
_IDX = re.compile(r"[:_.-]?([0-9]+)$")
# What this format or a client's rewriting of it gives; IDX can be trusted.
_WITH_INDEX = re.compile(r"functions(?:\.(?P<dot>\S+):|_(?P<under>\S+)_)[0-9]+")
_SPACED = re.compile(r"\s*([.:])\s*")
_FOREIGN = re.compile(
    r"[\W\d_]*|(?:call|toolu|tool|fc|chatcmpl|functions?)\W?[0-9]*"
    r"|(?:call|toolu|tool|fc|chatcmpl(?:-tool)?)[_-][\w-]*"
    r"|(?=.*[0-9])[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]+)*"
)


class Resolved(NamedTuple):
    """What an id says.

    Attributes:
        name: the tool's name; for an unsure one what to call it if nothing else is known.
        index: IDX where the id is well formed, or a client's rewriting of such a one.
        sure: whether the id names a tool; if not, the arguments have to tell.
        foreign: an id that can't be a name, such as call_9f8e7d.
    """

    name: str
    index: int | None
    sure: bool
    foreign: bool = False


class Tools:
    """The tools of a request.

    Args:
        tools: OpenAI's list of tools; whatever in it is no such tool is left out.
    """

    def __init__(self, tools: Any = None):
        self._schemas: dict[str, Any] = {}
        for tool in tools if isinstance(tools, (list, tuple)) else ():
            tool = tool if isinstance(tool, dict) else {}
            function = tool.get("function", tool)
            name = function.get("name") if isinstance(function, dict) else None
            if isinstance(name, str) and name.strip():
                self._schemas[name] = function.get("parameters") or {}

    def takes_object(self, name: str) -> bool:
        """Whether a tool's arguments may be an object; schemas can say they are none."""
        return _allows_object(self._schemas.get(name))

    def is_id(self, text: str) -> bool:
        """Whether text can only be meant as an id, without markers around it."""
        text = text.strip()
        compact = _compact(text)
        named = self._declared(text, compact) is not None
        return named or re.fullmatch(r"\S*[^\W\d]\S*:[0-9]+", compact) is not None

    def split(self, text: str) -> tuple[str, str]:
        """The id that text begins with, and the rest, where no marker parts them."""
        written = text.strip()
        compact = _compact(written)
        if self._declared(written, compact) or not re.search(r"\s", compact):
            return written, ""
        written, rest = text.split(None, 1)
        return written, rest

    def resolve(self, written: str) -> Resolved:
        """The tool that an id names."""
        written = written.strip()
        compact = _compact(written)
        if name := self._declared(written, compact):
            return Resolved(name, _index(written, name), sure=True)
        if found := _WITH_INDEX.fullmatch(compact):
            name = found["dot"] or found["under"]
            if not _is_index(name):
                return Resolved(name, _index(written, name), sure=True)
        name, _, idx = compact.rpartition(":")
        bare = (name if _is_index(idx) else compact).removeprefix("functions.")
        foreign = _FOREIGN.fullmatch(bare) is not None
        is_named = bare != compact and not foreign
        if is_named or not self._schemas:
            return Resolved(bare or UNKNOWN, None, sure=True)
        return Resolved(written or UNKNOWN, None, sure=False, foreign=foreign)

    def _declared(self, written: str, compact: str) -> str | None:
        """The declared tool that an id names, by the likeliest of its readings."""
        if len(written) > _MAX_ID:
            return written if written in self._schemas else None
        readings = itertools.chain(_readings(written), _readings(compact))
        return next((name for name in readings if name in self._schemas), None)

    def choose(self, resolved: Resolved, arguments: str) -> str:
        """The tool of a call whose id named none.

        It is the one whose schema accepts the arguments, else the only one there is, else
        what was written in place of a name. What looks like a name is not given to a tool
        that would not accept the arguments.
        """
        value = _decode(arguments)
        accepting = [n for n, s in self._schemas.items() if accepts(s, value)]
        if len(accepting) == 1:
            return accepting[0]
        if len(self._schemas) == 1 and resolved.foreign:
            return next(iter(self._schemas))
        return resolved.name


def _compact(text: str) -> str:
    """An id without spaces around its separators."""
    return text if len(text) > _MAX_ID else _SPACED.sub(r"\1", text)


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _readings(text: str) -> Iterator[str]:
    """The names that an id can be read as, the likeliest first."""
    yield text
    bodies = [text]
    if prefix := _PREFIX.match(text):
        # A tool may itself be named functions…, so only the full prefix is surely one.
        bodies.insert(prefix.group() != "functions.", text[prefix.end() :])
    for body in bodies:
        name, _, idx = body.rpartition(":")
        if _is_index(idx):
            yield name
        yield body
        if found := _IDX.search(body):
            if found.start() < found.start(1):
                yield body[: found.start()]
            # No separator: some of the digits may be the name's, so the longest first.
            for end in range(len(body) - 1, found.start(1) - 1, -1):
                yield body[:end]


def _index(written: str, name: str) -> int | None:
    """IDX of functions.NAME:IDX, or of the same with underscores for separators."""
    if not written.startswith((f"functions.{name}", f"functions_{name}")):
        return None
    tail = written[len("functions.") + len(name) :]
    is_index = tail[:1] in (":", "_") and _is_index(tail[1:])
    return int(tail[1:]) if is_index and len(tail) <= _MAX_INDEX_DIGITS else None


def _decode(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None


def _allows_object(schema: Any, depth: int = 0) -> bool:
    """Whether nothing at the root of a schema says that it is about other types only."""
    if not isinstance(schema, dict) or depth > 5:
        return True
    types = schema.get("type", "object")
    if "object" not in (types if isinstance(types, list) else [types]):
        return False
    options = _items(schema, "anyOf") or _items(schema, "oneOf")
    return not options or any(_allows_object(o, depth + 1) for o in options)


def accepts(schema: Any, arguments: Any) -> bool:
    """Whether arguments are a dict valid by a JSON schema, with no key it doesn't declare.

    Knows the keywords that tools use; the work is bounded, and False where it was not enough.
    """
    if not isinstance(arguments, dict):
        return False
    validator = _Validator(schema)
    return validator.accepts(schema, arguments) and validator.declares(
        schema, arguments
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_TYPES = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": _is_number,
    "integer": lambda v: _is_number(v) and (isinstance(v, int) or v.is_integer()),
}


def _equal(a: Any, b: Any) -> bool:
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def _items(schema: dict, key: str) -> list:
    value = schema.get(key)
    return value if isinstance(value, list) else []


class _Validator:
    """Validates values by one schema and the definitions in it."""

    def __init__(self, root: Any):
        self._root = root
        self._budget = 10_000

    def accepts(self, schema: Any, value: Any, depth: int = 0) -> bool:
        self._budget -= 1
        if self._budget < 0 or depth > 50:
            return False
        if not isinstance(schema, dict):
            return schema is not False
        checks = (self._type, self._value, self._branches, self._object, self._array)
        return all(check(schema, value, depth + 1) for check in checks)

    def _type(self, schema: dict, value: Any, depth: int) -> bool:
        types = schema.get("type")
        names = types if isinstance(types, list) else [types]
        known = [_TYPES[n] for n in names if isinstance(n, str) and n in _TYPES]
        return not known or any(is_type(value) for is_type in known)

    def _value(self, schema: dict, value: Any, depth: int) -> bool:
        if "const" in schema and not _equal(schema["const"], value):
            return False
        allowed = schema.get("enum")
        return not isinstance(allowed, list) or any(_equal(a, value) for a in allowed)

    def _branches(self, schema: dict, value: Any, depth: int) -> bool:
        def valid(key: str) -> Iterator[bool]:
            return (self.accepts(s, value, depth) for s in _items(schema, key))

        return (
            ("$ref" not in schema or self.accepts(self._target(schema), value, depth))
            and all(valid("allOf"))
            and (not _items(schema, "anyOf") or any(valid("anyOf")))
            and (not _items(schema, "oneOf") or sum(valid("oneOf")) == 1)
        )

    def _target(self, schema: dict) -> Any:
        """What $ref points to; a schema that accepts nothing if that isn't here."""
        path = schema["$ref"]
        if not isinstance(path, str) or not path.startswith("#"):
            return False
        target = self._root
        for key in path[1:].split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or key not in target:
                return False
            target = target[key]
        return target

    def _object(self, schema: dict, value: Any, depth: int) -> bool:
        if not isinstance(value, dict):
            return True
        if not all(
            not isinstance(k, str) or k in value for k in _items(schema, "required")
        ):
            return False
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        others = schema.get("additionalProperties", True)
        if schema.get("patternProperties"):
            others = True  # which keys it allows is not looked into
        return all(
            self.accepts(properties.get(k, others), v, depth) for k, v in value.items()
        )

    def _array(self, schema: dict, value: Any, depth: int) -> bool:
        items = schema.get("items")
        if not isinstance(value, list) or not isinstance(items, (dict, bool)):
            return True
        return all(self.accepts(items, v, depth) for v in value)

    def declares(self, schema: Any, keys: dict) -> bool:
        """Whether each key is a property of the schema or of a branch of it."""
        declared: set[str] = set()
        todo = [schema]
        for _ in range(1000):
            if not todo:
                break
            if isinstance(schema := todo.pop(), dict):
                properties = schema.get("properties")
                declared.update(properties if isinstance(properties, dict) else ())
                for key in ("allOf", "anyOf", "oneOf"):
                    todo += _items(schema, key)
                if "$ref" in schema:
                    todo.append(self._target(schema))
        return declared.issuperset(keys)
