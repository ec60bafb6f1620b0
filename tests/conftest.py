"""Shared fixtures: the data folder, servers with a scripted model."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests import mode

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(__file__).resolve().parent / "data"

# The same examples each time; HYPOTHESIS_PROFILE=default looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Puts our folders first in mlx_lm's plugin packages, also where no .pth file was read.
mode.install()


def rows(name: str) -> list[dict]:
    """The rows of tests/data/NAME (a .jsonl file)."""
    with open(DATA / name, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


@pytest.fixture
def free_calls(monkeypatch):
    """Calls under auto as the model writes them, for scripts that write odd ones."""
    monkeypatch.setenv("MLX_LM_KIMI_FREE_CALLS", "1")


@pytest.fixture(scope="session")
def data() -> Path:
    return DATA


@pytest.fixture(scope="session")
def kimi_directories(tmp_path_factory) -> dict[str, Path]:
    """Model directories with the real vocabulary: K2-Instruct, K2-Thinking, K2.5, K3."""
    from tests.scripted import make_directory

    root = tmp_path_factory.mktemp("kimi")
    return {
        "instruct": make_directory(root / "instruct", thinking=False),
        "thinking": make_directory(root / "thinking"),
        "k25": make_directory(root / "k25", "kimi_k25"),
        "k3": make_directory(root / "k3", "kimi_k3", thinking=False),
    }


def _server(path):
    from tests.scripted import Scripts, Server, XtmlScripts

    scripts = XtmlScripts() if path.name == "k3" else Scripts()
    server = Server(path, scripts, "--max-tokens", "100000")
    yield server
    server.close()


@pytest.fixture(scope="session")
def instruct(kimi_directories):
    """A server of a scripted K2-Instruct."""
    yield from _server(kimi_directories["instruct"])


@pytest.fixture(scope="session")
def thinking(kimi_directories):
    """A server of a scripted K2-Thinking, which opens its reasoning itself."""
    yield from _server(kimi_directories["thinking"])


@pytest.fixture(scope="session")
def k25(kimi_directories):
    """A server of a scripted K2.5, whose prompt opens the reasoning."""
    yield from _server(kimi_directories["k25"])


@pytest.fixture(scope="session")
def k3(kimi_directories):
    """A server of a scripted K3, whose prompt opens the reasoning."""
    yield from _server(kimi_directories["k3"])
