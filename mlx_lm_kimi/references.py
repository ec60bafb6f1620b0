"""Where a ``$ref`` in a client's JSON schema leads, inside that schema only.

Nothing is ever fetched. Paths are JSON pointers (RFC 6901) from the root: ``#/a/b``.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

# What holds values, not schemas: a "$id" in there names nothing.
_VALUES = ("enum", "const", "default", "examples")


class Unresolved(Exception):
    """A reference that leads nowhere in this schema."""


class References:
    """The ids, anchors and paths of one schema document."""

    def __init__(self, root: Any):
        self._root = root
        self._ids: dict[str, str] = {}
        self._anchors: dict[str, str] = {}
        self._bases: dict[str, str] = {}
        self._indexed = False

    def resolve(self, reference: Any, path: str) -> tuple[str, Any]:
        """The path and the node that a reference at a path means.

        Raises:
            Unresolved: it leads outside, or nowhere.
        """
        if not isinstance(reference, str):
            raise Unresolved("is not a string")
        if not self._indexed:  # most schemas have no references
            self._indexed = True
            self._index()
        document, fragment = _split(reference)
        for start in self._starts(document, path):
            if fragment and not fragment.startswith("/"):
                if fragment in self._anchors:
                    start, fragment = self._anchors[fragment], ""
                else:
                    continue
            for decode in (unquote, str):
                found = self._follow(start, decode(fragment))
                if found is not None:
                    return found
        raise Unresolved(f"({reference!r}) leads nowhere in this schema")

    def _starts(self, document: str, path: str) -> list[str]:
        """Where the document of a reference may begin, the likeliest first."""
        base = self._base(path)
        if not document:
            # Strictly, the nearest node with an $id; most clients mean the root.
            return [base, "#"]
        names = (document, _joined(self._bases.get(base, ""), document))
        return [self._ids[n] for n in names if n in self._ids]

    def _base(self, path: str) -> str:
        while path not in self._bases and path != "#":
            path = path.rpartition("/")[0]
        return path

    def _follow(self, start: str, fragment: str) -> tuple[str, Any] | None:
        node = self._root
        path = "#"
        parts = start.split("/")[1:] + fragment.split("/")[1:]
        for part in parts:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdecimal() and len(key) < 7:
                if int(key) >= len(node):
                    return None
                node = node[int(key)]
            else:
                return None
            path += "/" + key.replace("~", "~0").replace("/", "~1")
        return (path, node) if isinstance(node, (dict, bool)) else None

    def _index(self) -> None:
        stack: list[tuple[Any, str]] = [(self._root, "#")]
        while stack:
            node, path = stack.pop()
            if isinstance(node, list):
                stack += [(v, f"{path}/{i}") for i, v in enumerate(node)]
                continue
            if not isinstance(node, dict):
                continue
            for key in ("$id", "id"):
                if isinstance(node.get(key), str):
                    self._name(node[key], path)
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(key), str):
                    self._anchors.setdefault(node[key], path)
            for key, value in node.items():
                if key not in _VALUES or isinstance(value, dict):
                    part = str(key).replace("~", "~0").replace("/", "~1")
                    stack.append((value, f"{path}/{part}"))

    def _name(self, name: str, path: str) -> None:
        document, fragment = _split(name)
        if fragment and not document:
            self._anchors.setdefault(fragment, path)  # draft 4 to 7: an anchor
            return
        base = self._base(path)
        full = _joined(self._bases.get(base, ""), document)
        for spelling in (name, document, full):
            self._ids.setdefault(spelling, path)
        self._bases[path] = full


def _split(name: str) -> tuple[str, str]:
    try:
        document, fragment = urldefrag(name)
    except ValueError:  # no URL, but perhaps the same word as an $id
        document, _, fragment = name.partition("#")
    return document, fragment


def _joined(base: str, name: str) -> str:
    try:
        return urljoin(base, name)
    except ValueError:
        return name
