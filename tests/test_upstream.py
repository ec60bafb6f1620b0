"""The patch series in upstream/ is what its script makes of this repository."""

import ast
import re

import pytest

from mlx_lm_kimi import activation
from tests.conftest import ROOT
from upstream import make
from upstream.series import HOOK_FILES, PATCHES, Edit, Later, Patch

UPSTREAM = ROOT / "upstream"
DIFFS = sorted(UPSTREAM.glob("*.diff"))
TEXT = (ROOT / "UPSTREAM.md").read_text()


def test_the_diffs_are_what_the_script_makes():
    if make.is_made_for_installed():
        made = {f"{patch.name}.diff": text for patch, text in make.diffs()}
        committed = {file.name: file.read_text() for file in DIFFS}
        stale = [name for name in made if made[name] != committed.get(name)]
        assert not stale and made.keys() == committed.keys(), "run: make upstream"


@pytest.mark.parametrize("diff", DIFFS, ids=lambda d: d.name)
def test_a_diff_is_nothing_but_a_diff(diff):
    lines = diff.read_text().splitlines()
    at = 0
    while at < len(lines):
        assert re.fullmatch(r"--- (a/\S+|/dev/null)", lines[at])
        assert re.fullmatch(r"\+\+\+ b/\S+", lines[at + 1])
        at += 2
        while at < len(lines) and (head := re.match(HUNK, lines[at])):
            old, new = (int(n or 1) for n in head.groups())
            at += 1
            while old or new:
                old -= lines[at][0] in " -"
                new -= lines[at][0] in " +"
                at += 1
        assert at == len(lines) or lines[at].startswith("--- ")


HUNK = r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@$"


def test_every_file_lands_somewhere_or_is_of_the_hook():
    landed = {file for files in make.assigned().values() for file in files}
    ours = {
        file.relative_to(ROOT).as_posix()
        for folder in ("mlx_lm_kimi", "tool_parsers", "chat_templates")
        for file in (ROOT / folder).rglob("*.py")
    }
    assert landed == ours - HOOK_FILES


def test_what_lands_is_whole_and_imports_nothing_of_the_hook():
    for file in {f for files in make.assigned().values() for f in files}:
        source = make.ported(file)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                names = {node.module, *(alias.name for alias in node.names)}
                assert not names & {"hook", "activation", "doctor", "cli", "demo"}
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert "mlx_lm_kimi" not in ast.unparse(node)


def test_every_diff_is_documented_with_its_size():
    for diff in DIFFS:
        rows = [line for line in TEXT.splitlines() if f"| `{diff.name}` |" in line]
        assert len(rows) == 1, f"UPSTREAM.md has no row for {diff.name}"
        assert make.summary(diff.read_text()) in rows[0], "run: make upstream"


def test_every_seam_names_its_patches():
    names = {patch.name for patch in PATCHES}
    for seam in activation.SEAMS:
        assert seam.patches and set(seam.patches) <= names


def test_every_test_that_a_patch_claims_exists():
    for patch in PATCHES:
        if list(UPSTREAM.glob(f"{patch.name}.diff")):
            for glob in patch.tests:
                assert list(ROOT.glob(glob)), glob


# The script ----------------------------------------------------------------------------


def test_without():
    source = (
        "import os\n"
        "import re, sys\n"
        "from a import b, c\n"
        "\n"
        "X = 1\n"
        "\n"
        "\n"
        "# About f.\n"
        "@b\n"
        "def f():\n"
        "    return os, sys\n"
        "\n"
        "\n"
        "def g():\n"
        "    return re, c\n"
    )
    assert make.without(source, ("f",)) == (
        "import re\n"
        "from a import c\n"
        "\n"
        "X = 1\n"
        "\n"
        "\n"
        "def g():\n"
        "    return re, c\n"
    )
    with pytest.raises(make.RecipeError, match="defines no nothing"):
        make.without(source, ("nothing",))


def test_a_moved_place_names_the_patch(monkeypatch):
    patch = Patch(
        "07-x", edits=(Edit("mlx_lm/server.py", "no such line", ""),), rest=True
    )
    monkeypatch.setattr(make, "PATCHES", (patch,))
    monkeypatch.setattr(make, "assigned", lambda: {"07-x": []})
    with pytest.raises(
        make.RecipeError, match=r"upstream/07-x\.diff: mlx_lm/server\.py"
    ):
        list(make.diffs())


def test_a_file_whose_rest_never_comes_is_a_fault():
    later = {"mlx_lm_kimi/loading.py": Later(("finish",))}
    patch = Patch("01-x", ("mlx_lm_kimi/loading.py",), later=later, rest=True)
    with pytest.raises(make.RecipeError, match="no later patch"):
        make.assigned((patch,))
