"""Converted vocabularies in the user's cache directory."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def directory() -> Path | None:
    """Where converted vocabularies are kept (``MLX_LM_KIMI_CACHE`` overrides it).

    None where there is no home directory.
    """
    try:
        if override := os.environ.get("MLX_LM_KIMI_CACHE"):
            return Path(override).expanduser()
        if sys.platform == "darwin":
            return Path("~/Library/Caches/mlx-lm-kimi").expanduser()
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(base).expanduser() / "mlx-lm-kimi"
    except RuntimeError:
        return None


def _checksum(key: str, payload: bytes) -> bytes:
    # The key is part of it: an entry under another's name is damaged, too.
    return hashlib.sha256(key.encode() + payload).hexdigest().encode()


def read(key: str) -> Any:
    """The value of an entry; None if it is absent, or damaged in any way.

    An entry is a line with its checksum, then JSON.
    """
    folder = directory()
    if folder is None:
        return None
    try:
        checksum, _, payload = (folder / f"{key}.json").read_bytes().partition(b"\n")
        return json.loads(payload) if checksum == _checksum(key, payload) else None
    except (OSError, ValueError):  # it is made anew, whatever is wrong with it
        return None


def write(key: str, value: Any) -> None:
    """Keep a JSON value: whole or not at all, for other processes too.

    Where nothing can be written nothing is, and it is converted again next time.
    """
    folder = directory()
    if folder is None:
        return
    payload = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(_checksum(key, payload) + b"\n" + payload)
            os.replace(name, folder / f"{key}.json")
        except BaseException:
            os.unlink(name)
            raise
    except OSError:
        pass
