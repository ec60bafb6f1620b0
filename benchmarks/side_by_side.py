"""Runs one measurement twice, with this package and with stock mlx-lm, in fresh processes.

Both get the same directory: the real vocabulary as tokenizer.json (stock could not load it
otherwise without remote code) and a K2 chat template.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def make_directory(path: Path, model_type: str = "kimi_k2") -> Path:
    """A scripted Kimi's directory that stock mlx-lm can load, too."""
    from mlx_lm_kimi import tokenizer
    from tests import scripted

    template = (ROOT / "tests/data/templates" / f"{model_type}.jinja").read_text()
    scripted.make_directory(path, model_type, template=template, eos_token_id=163586)
    tokenizer.load(path).save_pretrained(path)
    (path / "tokenization_kimi.py").unlink()
    config = json.loads((path / "tokenizer_config.json").read_text())
    config.pop("auto_map", None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "chat_template.jinja").write_text(template)
    return path


def run(module: str, *arguments: str, model_type: str = "kimi_k2") -> dict[str, Any]:
    """{"ours": …, "stock": …}: what `python -m MODULE --worker DIR` prints as JSON."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        path = make_directory(Path(folder) / "kimi", model_type)
        for name, switch in (("stock", "0"), ("ours", "1")):
            command = [sys.executable, "-m", module, "--worker", str(path), *arguments]
            printed = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "MLX_LM_KIMI": switch},
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            ).stdout
            results[name] = json.loads(printed.splitlines()[-1])
    return results


def table(title: str, rows: list[tuple[str, ...]], columns: tuple[str, ...]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    out = Table(title=title, title_justify="left")
    for column in columns:
        out.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        out.add_row(*row)
    Console(width=100).print(out)


def worker(path: str, script: Callable[[Any], dict[str, Any]]) -> None:
    """Run a measurement on a server of this directory and print its result as JSON."""
    from tests.scripted import Scripts, Server

    server = Server(
        Path(path), Scripts(), "--max-tokens", "100000", "--log-level", "ERROR"
    )
    print(json.dumps(script(server)), flush=True)
    server.close()
    os._exit(0)  # a client that hung up may have left a thread behind
