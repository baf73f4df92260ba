"""One word per thing: no public class name stands for two, and nothing is named by where it was in the old house."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict

from repository import ROOT

OLD_ROOMS = re.compile(r"\bhemiola[./](?:run|control|sim)\b(?!/\d)(?:[./][a-z_]\w*)*")
"""A module of the rooms that were; "hemiola.run/1" is the schema of a file."""
TOLD_OF = (
    "src/hemiola/_moved.py",
    "tests/unit/test_moved.py",
    "tests/unit/test_words.py",
    "docs/design/",
    "CHANGELOG.md",
)
"""Where old names are the subject."""


def test_no_public_class_name_stands_for_two_things() -> None:
    homes = defaultdict(set)
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(str(path.relative_to(ROOT)))
    assert {name: sorted(files) for name, files in homes.items() if len(files) > 1} == {}


def test_nothing_names_a_module_of_the_old_house() -> None:
    named = [f"{file}: {found.group()}" for file, text in _texts() for found in OLD_ROOMS.finditer(text)]
    assert named == []


def test_strategy_is_a_word_of_the_past() -> None:
    """In names of functions and variables it is CollectiveSchedule or Parallelism; files and variables of users keep theirs."""
    named = []
    for file, text in _texts():
        if file.startswith("src/") and file.endswith(".py"):
            names = {
                node.name
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
            }
            named += [f"{file}: {name}" for name in sorted(names) if "strateg" in name.lower()]
    assert named == []


def _texts() -> list[tuple[str, str]]:
    """Python and prose of the repository, by path."""
    rooms = ("src", "tests", "docs", "tools", "benchmarks", "examples", "README.md", "CONTRIBUTING.md")
    listed = subprocess.run(
        ["git", "ls-files", *rooms], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    kept = [file for file in listed if file.endswith((".py", ".md")) and not file.startswith(TOLD_OF)]
    return [(file, (ROOT / file).read_text(encoding="utf-8")) for file in kept if (ROOT / file).exists()]
