"""The import hook: nothing before mlx_lm is imported, everything after, never a crash."""

import os
import subprocess
import sys
import textwrap
import warnings

import pytest

from mlx_lm_kimi import activation, hook
from tests.conftest import ROOT

# What the .pth file's line does at a Python start.
PTH = (ROOT / "mlx_lm_kimi.pth").read_text()


def python(code: str, **env: str) -> str:
    """Run code in a fresh Python that has read the .pth line; returns what it prints."""
    code = f"exec({PTH!r})\n" + textwrap.dedent(code)
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **env},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_nothing_is_imported_at_start():
    printed = python(
        """
        import sys
        names = [m for m in sys.modules if m.partition(".")[0] in ("mlx", "mlx_lm")]
        ours = sorted(m for m in sys.modules if m.startswith("mlx_lm_kimi"))
        print(names, ours)
        """
    )
    assert printed == "[] ['mlx_lm_kimi', 'mlx_lm_kimi._version', 'mlx_lm_kimi.hook']"


def test_the_hook_imports_only_the_standard_library():
    before = python("import sys; print(len(sys.modules))", MLX_LM_KIMI="0")
    after = python("import sys; print(len(sys.modules))")
    assert int(after) - int(before) == 0  # only os and sys, which every start has


SEAMS_STATE = """
    import mlx_lm.server, mlx_lm.tool_parsers, mlx_lm.chat_templates
    from mlx_lm_kimi import activation
    print([s.name for s in activation.SEAMS if not activation.is_active(s)])
"""


def test_every_seam_is_active_after_mlx_lm_is_imported():
    assert python(SEAMS_STATE) == "[]"


def test_off_switch():
    inactive = python(SEAMS_STATE, MLX_LM_KIMI="0")
    assert inactive == str([s.name for s in activation.SEAMS])
    assert (
        python("import mlx_lm_kimi; print(mlx_lm_kimi.install())", MLX_LM_KIMI="0")
        == "False"
    )


def test_install_after_mlx_lm_was_imported():
    printed = python(
        """
        import os, sys
        sys.meta_path[:] = [f for f in sys.meta_path if "kimi" not in repr(f)]
        import mlx_lm.server, mlx_lm.utils
        import mlx_lm_kimi
        print(mlx_lm_kimi.install(), mlx_lm_kimi.install(), mlx_lm_kimi.install())
        from mlx_lm_kimi import activation
        print([s.name for s in activation.SEAMS if not activation.is_active(s)])
        print(len(mlx_lm.tool_parsers.__path__) if hasattr(mlx_lm, "tool_parsers") else 0)
        print(sum("kimi" in repr(f) and "Finder" in repr(f) for f in sys.meta_path) - sum("editable" in repr(f) for f in sys.meta_path))
        import mlx_lm.tool_parsers.kimi_k2 as k
        print(hasattr(k, "ToolCallStream"))
        """
    )
    lines = printed.splitlines()
    assert lines[0] == "True True True"
    assert lines[-1] == "True"


def test_an_unknown_version_warns_once_and_changes_nothing():
    printed = python(
        """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import mlx_lm._version
            mlx_lm._version.__version__ = "9.9.9"
            from mlx_lm_kimi import activation
            activation.mlx_lm_version.cache_clear()
            import mlx_lm.server
            import mlx_lm.tool_parsers, mlx_lm.chat_templates
        ours = [str(w.message) for w in caught if "mlx-lm-kimi" in str(w.message)]
        print(len(ours), "9.9.9" in ours[0])
        print(mlx_lm.server.APIHandler.__module__, len(mlx_lm.tool_parsers.__path__))
        """
    )
    assert printed.splitlines() == ["1 True", "mlx_lm.server 1"]


def test_a_moved_seam_leaves_the_module_as_it_is():
    import types

    seam = activation.SEAMS[-1]
    module = types.ModuleType(seam.module)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert hook._activate(module) is False
    assert "APIHandler.do_POST" in str(caught[0].message)


@pytest.mark.parametrize(
    "version, known",
    [
        ("0.31.3", True),
        ("0.32.0", True),
        ("0.32.2", True),
        ("0.32.17", True),
        ("0.31.2", False),
        ("0.33.0", False),
        ("0.32.2.dev1", False),
        ("1.0", False),
        (None, False),
    ],
)
def test_supported_versions(version, known):
    assert activation.is_supported(version) is known


def test_a_broken_package_never_breaks_a_start(tmp_path):
    (tmp_path / "mlx_lm_kimi").mkdir()
    (tmp_path / "mlx_lm_kimi" / "__init__.py").write_text("raise RuntimeError\n")
    (tmp_path / "start.py").write_text(f"exec({PTH!r})\nprint('started')\n")
    result = subprocess.run(
        [sys.executable, "start.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (result.stdout, result.stderr) == ("started\n", "")


def test_run_as_a_module_uses_the_patched_server():
    printed = python(
        """
        import runpy, sys
        sys.argv = ["mlx_lm.server", "--help"]
        try:
            runpy.run_module("mlx_lm.server", run_name="__main__")
        except SystemExit:
            pass
        import mlx_lm.server
        print(mlx_lm.server.APIHandler.__module__)
        """
    )
    assert printed.splitlines()[-1] == "mlx_lm_kimi.handler"


def test_source_can_still_be_read():
    import inspect

    import mlx_lm.tokenizer_utils

    assert "class TokenizerWrapper" in inspect.getsource(mlx_lm.tokenizer_utils)


def test_a_reload_is_patched_again():
    printed = python(
        """
        import importlib
        import mlx_lm.server, mlx_lm.tool_parsers
        importlib.reload(mlx_lm.server)
        importlib.reload(mlx_lm.tool_parsers)
        print(mlx_lm.server.APIHandler.__module__, len(mlx_lm.tool_parsers.__path__))
        """
    )
    assert printed == "mlx_lm_kimi.handler 2"
