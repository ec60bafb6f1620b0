"""The faults of stock mlx_lm.server in UPSTREAM.md: there without the patches, gone with them."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests import mode
from tests.conftest import ROOT
from upstream.faults import FAULTS
from upstream.series import MADE_FOR


@pytest.fixture(scope="module")
def found():
    """Fault -> whether mlx_lm without our hook has it."""
    result = subprocess.run(
        [sys.executable, "-m", "upstream.faults", "--json"],
        cwd=ROOT,
        env={**os.environ, "MLX_LM_KIMI": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.is_there.__name__)
def test_fault(fault, found):
    if mode.PATCHED:
        assert not found[fault.name], "upstream/09-server-faults.diff"
    elif version("mlx-lm") == MADE_FOR:
        # Gone in a release: then UPSTREAM.md and the patch must say so.
        assert found[fault.name]


@pytest.mark.skipif(mode.PATCHED, reason="UPSTREAM.md stays in this repository")
def test_every_fault_is_documented():
    text = (ROOT / "UPSTREAM.md").read_text()
    assert not [fault.name for fault in FAULTS if f"| {fault.name} |" not in text]
