"""`mlx_lm_kimi doctor` and `mlx_lm_kimi demo`, as a user runs them."""

import json
import os
import subprocess
import sys

import pytest

from mlx_lm_kimi.demo import MODEL
from tests.conftest import ROOT
from tests.scripted import make_directory

# The hook as a .pth file would register it, then the command.
PTH = (ROOT / "mlx_lm_kimi.pth").read_text()
COMMAND = (
    f"exec({PTH!r})\nimport sys\nfrom mlx_lm_kimi.cli import main\nsys.exit(main())"
)


def run(*arguments: str, **env: str) -> tuple[int, str]:
    """(exit status, what is printed, its white space folded)."""
    result = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200", **env},
    )
    return result.returncode, " ".join(result.stdout.split())


def test_doctor_of_a_good_directory():
    status, printed = run("doctor", str(MODEL))
    assert status == 0, printed
    assert "PROBLEM" not in printed
    for text in (
        "kimi_k2",
        "<|tool_calls_section_begin|>",
        "[EOS] <|im_end|>",
        "never run",
    ):
        assert text in printed


def test_doctor_alone():
    status, printed = run("doctor")
    assert status == 0 and "request handler" in printed


@pytest.mark.parametrize(
    "damage, fix",
    [
        ("no directory", "does not exist"),
        ("config.json", "copy config.json"),
        ("tiktoken.model", "copy tiktoken.model"),
        ("tokenizer_config.json", "copy tokenizer_config.json"),
        ("model.safetensors", "no model*.safetensors"),
        ("another model", "not a Kimi"),
    ],
)
def test_doctor_says_what_is_wrong(damage, fix, tmp_path):
    path = make_directory(tmp_path / "k", weights=False)
    (path / "model.safetensors").write_bytes(b"")
    if damage == "no directory":
        path = tmp_path / "nothing"
    elif damage == "another model":
        (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    else:
        (path / damage).unlink()
    status, printed = run("doctor", str(path))
    assert status == 1
    assert fix in printed


def test_doctor_with_the_hook_off():
    status, printed = run("doctor", MLX_LM_KIMI="0")
    assert status == 1 and "unset MLX_LM_KIMI" in printed


def test_demo():
    status, printed = run("demo")
    assert status == 0, printed
    for text in ("get_weather", '{"city":"Oslo"}', "12 C, rain", "All steps worked."):
        assert text in printed


def test_demo_fails_when_a_step_fails(tmp_path):
    status, printed = run("demo", "--model", str(tmp_path))
    assert status == 1 and "FAILED" in printed
