"""`mlx_lm_kimi doctor`: what is installed, what serves a directory, what is wrong."""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import activation, families, hook
from ._version import __version__

OK, BAD = "ok", "PROBLEM"
Row = tuple[str, str, str]  # what, found, the fix if it is wrong


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def installed(hook_was_on: bool) -> list[Row]:
    """Rows on the packages and the hook; the fix is empty where all is well."""
    rows = [("mlx-lm-kimi", __version__, "")]
    version = _version("mlx-lm")
    fix = ""
    if version is None:
        fix = "pip install mlx-lm"
    elif not activation.is_supported(version):
        fix = (
            f"mlx-lm is left as it is: this package knows {activation.SUPPORTED}; "
            "upgrade mlx-lm-kimi"
        )
    rows.append(("mlx-lm", version or "missing", fix))
    try:
        importlib.import_module("mlx.core")
        rows.append(("mlx", _version("mlx") or "?", ""))
    except ImportError as e:
        rows.append(
            ("mlx", f"does not import: {e}", "on Linux: pip install 'mlx[cpu]'")
        )
    rows.append(_hook_row(hook_was_on))
    return rows


def _hook_row(hook_was_on: bool) -> Row:
    if hook.is_off():
        return ("hook", "switched off", f"unset {hook.OFF_SWITCH}")
    if not hook_was_on:
        fix = "reinstall mlx-lm-kimi (its .pth file did not run), or call mlx_lm_kimi.install()"
        return ("hook", "not registered", fix)
    return ("hook", "on", "")


def seams() -> list[Row]:
    """One row a patched place of mlx_lm, applied in this process."""
    rows = []
    for seam in activation.SEAMS:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                importlib.import_module(seam.module)
            except Exception as e:
                rows.append(
                    (seam.name, f"{seam.module}: {e}", "see mlx and mlx-lm above")
                )
                continue
        active = activation.is_active(seam)
        why = "; ".join(
            str(w.message) for w in caught if "mlx-lm-kimi" in str(w.message)
        )
        fix = "" if active else why or "the hook is off, or mlx-lm is not supported"
        rows.append((seam.name, seam.module, fix))
    return rows


def _files(path: Path) -> list[Row]:
    rows = []
    tokenizers = [
        n for n in ("tiktoken.model", "tokenizer.json") if (path / n).is_file()
    ]
    fix = "" if tokenizers else "copy tiktoken.model from the original checkpoint"
    rows.append(("tokenizer", ", ".join(tokenizers) or "missing", fix))
    config = path / "tokenizer_config.json"
    fix = "" if config.is_file() else "copy tokenizer_config.json: it names the tokens"
    rows.append(("token names", config.name if not fix else "missing", fix))
    weights = sorted(path.glob("model*.safetensors"))
    fix = "" if weights else "no model*.safetensors: convert or download the weights"
    rows.append(("weights", f"{len(weights)} file(s)", fix))
    return rows


def directory(path: Path) -> list[Row]:
    """Rows on a model directory: its family, and what would be served natively."""
    if not path.is_dir():
        return [("directory", "does not exist", f"no directory {path}")]
    config = families.read_json(path / "config.json")
    if not config:
        fix = "copy config.json from the checkpoint"
        return [("config.json", "missing or not a JSON object", fix)]
    model_type = config.get("model_type")
    family = families.detect(path)
    if family is None:
        known = ", ".join((*families.FAMILIES, *families.BY_VOCABULARY))
        fix = f"not a Kimi (known: {known} with Kimi's vocabulary); stock mlx-lm serves it"
        return [("model_type", str(model_type), fix)]
    rows = [("model_type", str(model_type), ""), ("family", family.name, "")]
    rows += _files(path)
    return rows + (_served(path, family) if not any(r[2] for r in rows) else [])


def _served(path: Path, family: families.Family) -> list[Row]:
    from mlx_lm.utils import load_tokenizer

    try:
        tokenizer = load_tokenizer(path)
    except Exception as e:
        return [("tokenizer loads", f"{type(e).__name__}: {e}", "see the error")]
    names = tokenizer.convert_ids_to_tokens(sorted(tokenizer.eos_token_ids))
    thinking = "no"
    if tokenizer.has_thinking:
        thinking = f"{tokenizer.think_start} … {tokenizer.think_end}"
    native = families.is_native(path)
    handler = "mlx_lm_kimi (streamed calls)" if native else "mlx_lm's own"
    return [
        (
            "chat template",
            (
                "the directory's own"
                if tokenizer.chat_template
                else family.chat_template_type
            ),
            "",
        ),
        (
            "tool calling",
            f"{tokenizer.tool_call_start} … {tokenizer.tool_call_end}",
            "" if tokenizer.has_tool_calling else "no tool parser for this family here",
        ),
        ("thinking", thinking, ""),
        ("end tokens", " ".join(names), ""),
        ("request handler", handler, ""),
        ("remote code", "never run", ""),
    ]


def _print(console: Console, title: str, rows: list[Row]) -> bool:
    table = Table(title=title, title_justify="left")
    for column in ("", "found", "state", "fix"):
        table.add_column(column, overflow="fold")
    for what, found, fix in rows:
        # Text, not markup: tokens such as [EOS] are shown as they are.
        table.add_row(*map(Text, (what, found, BAD if fix else OK, fix)))
    console.print(table)
    return not any(fix for _, _, fix in rows)


def doctor(path: str | None = None) -> int:
    """Print the tables; returns 0 if nothing is wrong, else 1."""
    hook_was_on = hook._finder in sys.meta_path
    console = Console()
    good = _print(console, "Installed", installed(hook_was_on))
    if _version("mlx-lm") is not None:
        good &= _print(console, "Patched places of mlx-lm", seams())
    if path is not None:
        good &= _print(console, path, directory(Path(path)))
    return 0 if good else 1
