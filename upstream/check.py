"""Applies the series to the installed mlx-lm, patch by patch, and tests what each claims.

    python -m upstream.check            (make upstream-check, which makes the environment)

Nothing of this package is installed or on the path: our tests run on the patched copy
alone, then mlx-lm's own tests of the same areas do, with a stand-in for the model that most
of them download. Those that fail on stock mlx-lm, too, are counted apart. Ends with one line.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

from . import make
from .series import PATCHES, Patch

SUITE = ("tests", "benchmarks", "upstream")


class Result(NamedTuple):
    """Names of tests by how they ended."""

    passed: set[str]
    failed: set[str]


class Tree:
    """A copy of the installed mlx-lm with its own tests, and our tests beside it."""

    def __init__(self, folder: Path, sdist: Path):
        self.folder = folder
        self.source = folder / "mlx-lm"
        self.suite = folder / "suite"
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        next(f for f in folder.glob("mlx_lm-*") if f.is_dir()).rename(self.source)
        # What is installed counts, not what the sdist holds of it.
        shutil.rmtree(self.source / "mlx_lm")
        spec = make.importlib.util.find_spec("mlx_lm")
        shutil.copytree(
            spec.submodule_search_locations[0],
            self.source / "mlx_lm",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        for name in SUITE:
            shutil.copytree(
                make.ROOT / name,
                self.suite / name,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(self.source),
            "PYTHONNOUSERSITE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "MLX_LM_KIMI_CACHE": str(folder / "cache"),
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_CACHE": str(folder / "hub"),
            "KIMI_TEST_MODE": "patched",
        }
        self._runs = 0
        self.run("-m", "upstream.standin", str(folder / "hub"))

    def run(self, *command: str, folder: Path | None = None) -> int:
        """The exit status of a Python command in the suite's folder (or another)."""
        command = (sys.executable, *command)
        env = self.environment
        return subprocess.run(command, cwd=folder or self.suite, env=env).returncode

    def test(self, files: list[str], folder: Path | None = None) -> Result:
        """Run tests with pytest."""
        self._runs += 1
        report = self.folder / f"report-{self._runs}.xml"
        # What fails of mlx-lm's own is told by name, against stock.
        trace = "--tb=short" if folder is None else "--tb=no"
        options = ["-q", "--no-header", trace, "-p", "no:cacheprovider"]
        command = ["-m", "pytest", *options, f"--junitxml={report}", *files]
        status = self.run(*command, folder=folder)
        if not report.is_file():
            return Result(set(), {f"pytest ended with {status}: {' '.join(files)}"})
        return _read(report)

    def apply(self, patch: Patch) -> bool:
        """Apply a diff, exactly: no fuzz."""
        diff = str(make.HERE / f"{patch.name}.diff")
        checks = [["git", "apply", "--check", diff]] if shutil.which("git") else []
        for command in [*checks, ["patch", "-p1", "-s", "-f", "-F", "0", "-i", diff]]:
            if subprocess.run(command, cwd=self.source).returncode != 0:
                return False
        return True

    def imports(self, patch: Patch) -> Result:
        """Whether every module that a patch brings can be imported by itself."""
        passed, failed = set(), set()
        for file in make.assigned()[patch.name]:
            module = make.target(file).removesuffix(".py").replace("/", ".")
            module = module.removesuffix(".__init__")
            name = f"import {module}"
            (failed if self.run("-c", name) else passed).add(name)
        return Result(passed, failed)


def _read(report: Path) -> Result:
    passed, failed = set(), set()
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        elif case.find("skipped") is None:
            passed.add(name)
    return Result(passed - failed, failed)


def fetch_sdist(folder: Path) -> Path:
    """mlx-lm's sdist of the installed version: it holds the tests that pip leaves out."""
    wanted = f"mlx-lm=={make.installed_version()}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    pip += ["--disable-pip-version-check", "--no-binary", "mlx-lm"]
    subprocess.run([*pip, "--dest", str(folder), wanted], check=True)
    return next(folder.glob("mlx_lm-*.tar.gz"))


def existing(folder: Path, globs: tuple[str, ...]) -> list[str]:
    """The files of these names that there are."""
    return sorted({str(f) for glob in globs for f in folder.glob(glob)})


def check(tree: Tree, only: set[str] | None = None) -> tuple[int, int, int]:
    """(passed, failed, failed on stock as well), over all patches."""
    own = tree.source / "tests"
    names = tuple({name for patch in PATCHES for name in patch.stock_tests})
    stock = Result(set(), set())
    if only is None:
        print("mlx-lm's own tests, on stock", flush=True)
        stock = tree.test(existing(own, names), tree.source)
    totals = {"passed": 0, "failed": 0}
    alike: set[str] = set()

    def count(result: Result) -> None:
        totals["passed"] += len(result.passed)
        alike.update(result.failed & stock.failed)
        for name in sorted(result.failed - stock.failed):
            totals["failed"] += 1
            print(f"FAILED {name}", flush=True)

    files: list[str] = []
    for patch in PATCHES:
        if not (make.HERE / f"{patch.name}.diff").is_file():
            continue
        print(f"\n{patch.name}", flush=True)
        if not tree.apply(patch):
            count(Result(set(), {f"{patch.name}.diff does not apply"}))
            break
        if only is not None and patch.name not in only:
            continue
        count(tree.imports(patch))
        files = existing(tree.suite, patch.tests)
        if files:
            count(tree.test(files))
        if only is None and patch.stock_tests:
            count(tree.test(existing(own, patch.stock_tests), tree.source))
    if only is None:
        # The last patch's tests have just run on the whole series.
        print("\nthe whole series, what earlier patches claim", flush=True)
        claims = tuple({glob for patch in PATCHES for glob in patch.tests})
        again = set(existing(tree.suite, claims)) - set(files)
        count(tree.test(sorted(again)))
        count(tree.test(existing(own, names), tree.source))
    return totals["passed"], totals["failed"], len(alike)


def main() -> None:
    """Run the check and print its one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sdist", type=Path, help="of the same mlx-lm; else from PyPI")
    parser.add_argument("--only", nargs="*", help="patches to test, by name")
    args = parser.parse_args()
    if make.importlib.util.find_spec("mlx_lm_kimi.hook") and _is_installed():
        raise SystemExit("mlx-lm-kimi is installed here: take a fresh environment")
    with tempfile.TemporaryDirectory() as folder:
        sdist = args.sdist or fetch_sdist(Path(folder))
        tree = Tree(Path(folder), sdist)
        passed, failed, alike = check(tree, set(args.only) if args.only else None)
    print(f"\nmlx-lm {make.installed_version()}, series made for {make.MADE_FOR}")
    also = f" ({alike} of mlx-lm's own fail on stock, too)" if alike else ""
    print(f"upstream-check: {passed} passed, {failed} failed{also}")
    sys.exit(failed > 0)


def _is_installed() -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version("mlx-lm-kimi")
    except PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main()
