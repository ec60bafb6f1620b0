"""Wheel, sdist and editable install: what is in them, and what an uninstall leaves."""

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT


def run(*command: str, cwd: Path = ROOT) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """(wheel, sdist); the wheel is built from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", str(out), str(ROOT))
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_wheel_contents(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    assert {
        "mlx_lm_kimi.pth",
        "mlx_lm_kimi/py.typed",
        "mlx_lm_kimi/tool_parsers/kimi_k2.py",
        "mlx_lm_kimi/chat_templates/kimi_k2.py",
        "mlx_lm_kimi/chat_templates/kimi_k25.py",
        "mlx_lm_kimi/demo_model/model.safetensors",
        "mlx_lm_kimi/demo_model/tiktoken.model",
    } <= names
    tops = {name.partition("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {
        "mlx_lm_kimi",
        "mlx_lm_kimi.pth",
    }
    notices = [n for n in names if n.endswith(("licenses/LICENSE", "licenses/NOTICE"))]
    assert len(notices) == 2


def test_sdist_contents(built):
    names = tarfile.open(built[1]).getnames()
    names = {n.partition("/")[2] for n in names}
    assert {
        "tool_parsers/kimi_k2.py",
        "mlx_lm_kimi.pth",
        "hatch_build.py",
        "NOTICE",
    } <= names
    assert "tests/data/kimi_tokenizer/tiktoken.model" in names


@pytest.fixture
def fresh(tmp_path):
    """A fresh environment that sees this one's packages, but none of its .pth files."""
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    before = set(Path(site).iterdir())
    # The path has no .pth suffix inside it that site would read again.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python, Path(site), before


CHECK = """
import sys
assert not any(m.startswith("mlx_lm.") for m in sys.modules)
import mlx_lm.server, mlx_lm.tool_parsers, mlx_lm.chat_templates
from mlx_lm_kimi import activation
assert all(activation.is_active(s) for s in activation.SEAMS)
import mlx_lm.tool_parsers.kimi_k2 as parser, mlx_lm_kimi
for name in ("tool_parsers", "chat_templates"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} is a top-level name")
import mlx_lm_kimi.tool_parsers, mlx_lm_kimi.chat_templates.kimi_k2
print(parser.__file__)
"""


def pip(python: str, *arguments: str) -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", *arguments)


def test_wheel_install_and_uninstall(built, fresh, tmp_path):
    python, site, before = fresh
    pip(python, "install", "-q", "--no-deps", str(built[0]))
    where = run(python, "-c", CHECK, cwd=tmp_path)
    assert where == str(site / "mlx_lm_kimi" / "tool_parsers" / "kimi_k2.py")
    pip(python, "uninstall", "-q", "-y", "mlx-lm-kimi")
    assert set(site.iterdir()) - {site / "dependencies.pth"} == before


def test_editable_install(fresh, tmp_path):
    python, site, _ = fresh
    pip(python, "install", "-q", "editables")
    kept = set(site.iterdir())
    pip(python, "install", "-q", "--no-deps", "-e", str(ROOT))
    where = run(python, "-c", CHECK, cwd=tmp_path)
    assert where == str(ROOT / "tool_parsers" / "kimi_k2.py")
    pip(python, "uninstall", "-q", "-y", "mlx-lm-kimi")
    assert set(site.iterdir()) == kept
