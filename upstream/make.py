"""Writes upstream/*.diff from this repository's own files and the installed mlx-lm.

    python -m upstream.make

The diffs apply in order with ``patch -p1`` or ``git apply`` in mlx-lm's source tree.
"""

from __future__ import annotations

import ast
import difflib
import fnmatch
import importlib.util
import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from .series import (
    HOOK_FILES,
    HOOK_NAMES,
    MADE_FOR,
    PATCHES,
    TARGETS,
    Edit,
    Later,
    Patch,
)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PACKAGE = '"""Kimi models: tokenizer, prompts, requests, answers."""\n'
CONTEXT = 3
WIDTH = 88  # black's
# Where the reported calls go in mlx-lm's tests/test_tool_parsing.py, which pip does not
# install: the line, and the lines around it.
ROWS_FILE, ROWS_LINE = "tests/test_tool_parsing.py", 520
ROWS_BEFORE = (
    "            },",
    "        ]",
    "        self.assertEqual(tool_calls, expected)",
)
ROWS_AFTER = ("", "    def test_kimi_k3(self):", "        # Typed per-key arguments")


class RecipeError(Exception):
    """The recipe and the files don't fit."""


def installed_version() -> str:
    """The version of the installed mlx-lm."""
    return version("mlx-lm")


def is_made_for_installed() -> bool:
    """Whether the committed diffs are for the mlx-lm that is installed."""
    return installed_version() == MADE_FOR


def stock(path: str) -> str | None:
    """The text of a file of the installed mlx-lm (``mlx_lm/…``); None if it has none."""
    spec = importlib.util.find_spec("mlx_lm")
    file = Path(spec.submodule_search_locations[0]).parent / path
    return file.read_text(encoding="utf-8") if file.is_file() else None


def target(file: str) -> str:
    """Where one of our files lands in mlx-lm."""
    folder, _, rest = file.partition("/")
    return f"{TARGETS[folder]}/{rest}"


def our_files() -> list[str]:
    """All of our files that land in mlx-lm."""
    found = [
        file.relative_to(ROOT).as_posix()
        for folder in TARGETS
        for file in sorted((ROOT / folder).rglob("*.py"))
    ]
    return [file for file in found if file not in HOOK_FILES]


def assigned(patches: tuple[Patch, ...] = PATCHES) -> dict[str, list[str]]:
    """Patch name -> the files of ours that it brings.

    Raises:
        RecipeError: a file that no patch takes.
    """
    chosen: dict[str, list[str]] = {patch.name: [] for patch in patches}
    rest = next(patch for patch in patches if patch.rest)
    for file in our_files():
        open_parts = True
        for patch in patches:
            if open_parts and any(fnmatch.fnmatch(file, glob) for glob in patch.files):
                chosen[patch.name].append(file)
                open_parts = file in (patch.later or {})
        if not any(file in files for files in chosen.values()):
            chosen[rest.name].append(file)
        elif open_parts:
            raise RecipeError(f"{file}: no later patch brings the rest of it")
    return chosen


def without(source: str, names: tuple[str, ...], file: str = "") -> str:
    """A module without some of its definitions, and without imports only they used.

    Raises:
        RecipeError: a name that the module does not define.
    """
    lines = source.splitlines(keepends=True)
    found = set()
    for node in reversed(ast.parse(source).body):
        if getattr(node, "name", None) in names:
            found.add(node.name)
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
            while lines[first - 1].startswith("#"):
                first -= 1
            while not lines[first - 1].strip():
                first -= 1
            del lines[first : node.end_lineno]
    if missing := set(names) - found:
        raise RecipeError(f"{file} defines no {', '.join(sorted(missing))}")
    return _used_imports("".join(lines)) if names else source


def _used_imports(source: str) -> str:
    tree = ast.parse(source)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    lines = source.splitlines(keepends=True)
    for node in reversed(tree.body):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        if getattr(node, "module", "") == "__future__":
            continue
        kept = [
            a
            for a in node.names
            if (a.asname or a.name).partition(".")[0] in used or a.name == a.asname
        ]
        if len(kept) == len(node.names):
            continue
        node.names = kept
        lines[node.lineno - 1 : node.end_lineno] = (
            [ast.unparse(node) + "\n"] if kept else []
        )
    # A group of imports that is gone leaves one blank line, not two.
    return re.sub(r"\n{3}(?=from|import)", "\n\n", "".join(lines))


def ported(file: str, later: Later | None = None) -> str:
    """One of our files as it lands: without what patches mlx-lm at run time."""
    later = later or Later()
    source = (ROOT / file).read_text(encoding="utf-8")
    for begin in later.lines:
        lines = [line for line in source.splitlines(True) if line.startswith(begin)]
        source = _replaced(source, Edit(file, lines[0] if lines else begin, ""))
    source = without(source, HOOK_NAMES.get(file, ()) + later.names, file)
    return re.sub(
        r"^(\s*(?:from|import) )mlx_lm_kimi\b", r"\1mlx_lm.kimi", source, flags=re.M
    )


def _replaced(text: str, edit: Edit) -> str:
    count = text.count(edit.old)
    if count != 1:
        raise RecipeError(
            f"{edit.file}: {count} times instead of once:\n{edit.old.rstrip()}"
        )
    return text.replace(edit.old, edit.new)


def _diff(path: str, before: str | None, after: str) -> str:
    lines = difflib.unified_diff(
        (before or "").splitlines(keepends=True),
        after.splitlines(keepends=True),
        "/dev/null" if before is None else f"a/{path}",
        f"b/{path}",
        n=CONTEXT,
    )
    return "".join(lines)


def reported_rows() -> list[tuple[str, list[str], list[dict]]]:
    """(text between the section markers, tool names, calls) of what people reported.

    Only whole sections whose calls are objects: what mlx-lm's parse_tool_call can show.
    """
    found = []
    begin, end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    for line in (ROOT / "tests/data/cases/reported.jsonl").read_text().splitlines():
        row = json.loads(line)
        raw, calls = row["raw_output"] or "", row["expect"].get("tool_calls")
        is_whole = raw.startswith(begin) and raw.endswith(end) and raw.count(begin) == 1
        if (row["kind"], row["model"]) != ("parser", "kimi_k2") or not is_whole:
            continue
        # In the last, the marker inside is text: parse_tool_call sees no tokens.
        if not calls or row["id"] in ("k2-id-openai-name-in-args", "k2-marker-in-arg"):
            continue
        names = [tool["function"]["name"] for tool in row["request"]["tools"]]
        wanted = [
            {"name": call["name"], "arguments": call["arguments"]} for call in calls
        ]
        if all(isinstance(call["arguments"], dict) for call in wanted):
            found.append((raw[len(begin) : -len(end)], names, wanted))
    return found


def _rows_diff() -> str:
    lines = [
        "",
        "    def test_kimi_k2_reported(self):",
        "        # Calls that people reported: (text, tools, calls)",
        "        test_cases = [",
    ]
    for text, names, calls in reported_rows():
        lines += ["            ("]
        for value in (text, names, calls):
            lines += f"{' ' * 16}{_quoted(value, 16)},".splitlines()
        lines += ["            ),"]
    lines += [
        "        ]",
        "        for text, names, expected in test_cases:",
        '            tools = [{"type": "function", "function": {"name": n}} for n in names]',
        "            with self.subTest(text=text):",
        "                tool_calls = kimi_k2.parse_tool_call(text, tools)",
        "                found = [",
        '                    {"name": c["name"], "arguments": c["arguments"]} for c in tool_calls',
        "                ]",
        "                self.assertEqual(found, expected)",
    ]
    before, after = len(ROWS_BEFORE), len(ROWS_AFTER)
    start = ROWS_LINE - before + 1
    head = (
        f"--- a/{ROWS_FILE}\n+++ b/{ROWS_FILE}\n"
        f"@@ -{start},{before + after} +{start},{before + after + len(lines)} @@\n"
    )
    body = [" " + line for line in ROWS_BEFORE]
    body += ["+" + line for line in lines]
    body += [" " + line for line in ROWS_AFTER]
    return head + "\n".join(body) + "\n"


def _quoted(value: object, indent: int = 0, used: int = 0) -> str:
    """As black writes it: strings in double quotes, long lists a line for each.

    used: what stands before it on its line, beside the indent.
    """
    if isinstance(value, str):
        # Or in single ones, if that takes fewer escapes.
        quoted = json.dumps(value, ensure_ascii=False)
        return repr(value) if '"' in value and "'" not in value else quoted
    if not isinstance(value, (dict, list)):
        return repr(value)
    begin, end = "{}" if isinstance(value, dict) else "[]"

    def items(inner: int) -> list[str]:
        if isinstance(value, list):
            return [_quoted(v, inner) for v in value]
        pairs = [(f"{_quoted(k)}: ", v) for k, v in value.items()]
        return [key + _quoted(v, inner, len(key)) for key, v in pairs]

    line = begin + ", ".join(items(-9999)) + end
    if indent + used + len(line) < WIDTH:
        return line
    rows = [f"{' ' * (indent + 4)}{item},\n" for item in items(indent + 4)]
    return f"{begin}\n{''.join(rows)}{' ' * indent}{end}"


def diffs() -> Iterator[tuple[Patch, str]]:
    """(patch, text of its diff) of the series; patches that change nothing are left out.

    Raises:
        RecipeError: mlx-lm, or one of our files, moved what the recipe looks for. The
            message names the patch.
    """
    tree: dict[str, str | None] = {}
    files = assigned()
    for patch in PATCHES:
        before = dict(tree)
        try:
            _apply(patch, files[patch.name], tree)
        except RecipeError as e:
            raise RecipeError(f"upstream/{patch.name}.diff: {e}") from e
        text = "".join(
            _diff(path, before[path] if path in before else stock(path), tree[path])
            for path in sorted(tree)
            if before.get(path) != tree[path]
        )
        if patch.rows:
            text += _rows_diff()
        if text:
            yield patch, text


def _apply(patch: Patch, files: list[str], tree: dict[str, str | None]) -> None:
    for file in files:
        path = target(file)
        tree[path] = ported(file, (patch.later or {}).get(file))
        if path.startswith("mlx_lm/kimi/") and "mlx_lm/kimi/__init__.py" not in tree:
            tree["mlx_lm/kimi/__init__.py"] = PACKAGE
    for edit in patch.edits:
        text = tree[edit.file] if edit.file in tree else stock(edit.file)
        if text is None:
            raise RecipeError(f"mlx-lm has no {edit.file}")
        tree[edit.file] = _replaced(text, edit)


def counts(text: str) -> tuple[int, int]:
    """(lines added, lines removed) of a diff."""
    lines = text.splitlines()
    added = sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)
    gone = sum(line.startswith("-") and not line.startswith("--- ") for line in lines)
    return added, gone


def summary(text: str) -> str:
    """The size of a diff, as UPSTREAM.md gives it."""
    added, gone = counts(text)
    files = len(re.findall(r"^\+\+\+ b/", text, re.M))
    return f"+{added} −{gone} in {files} file{'s' * (files > 1)}"


def documented(text: str, made: dict[str, str]) -> str:
    """UPSTREAM.md with the sizes of these diffs (name -> text) in their rows."""
    for name, diff in made.items():
        size = r"(`" + re.escape(name) + r"\.diff`.*?)\+\d+ −\d+ in \d+ files?"
        text = re.sub(size, lambda m, diff=diff: m[1] + summary(diff), text)
    return text


def main() -> None:
    """Write the diffs, and their sizes into UPSTREAM.md."""
    if not is_made_for_installed():
        raise SystemExit(
            f"The series is for mlx-lm {MADE_FOR}, and {installed_version()} is installed: "
            "set MADE_FOR in upstream/series.py, then look at what does not fit."
        )
    made = list(diffs())
    for old in HERE.glob("*.diff"):
        old.unlink()
    for patch, text in made:
        (HERE / f"{patch.name}.diff").write_text(text, encoding="utf-8")
        print(f"{patch.name}: {summary(text)}")
    page = ROOT / "UPSTREAM.md"
    sizes = documented(page.read_text(encoding="utf-8"), {p.name: t for p, t in made})
    page.write_text(sizes, encoding="utf-8")


if __name__ == "__main__":
    main()
