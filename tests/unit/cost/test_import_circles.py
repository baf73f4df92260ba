"""No circle of imports among the modules of predictions and plans, not even one that is put off into a function."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import hemiola

SRC = Path(hemiola.__file__).parent


def imports(path: Path) -> set[str]:
    """Modules that a file names, wherever it does, those that only types need too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("package", ["cost/prediction", "plan"])
def test_nothing_imports_what_imports_it(package: str) -> None:
    names = {
        ".".join(("hemiola", *path.relative_to(SRC).with_suffix("").parts)): path
        for path in (SRC / package).rglob("*.py")
        if path.stem != "__init__"
    }
    graph = {name: imports(path) & names.keys() for name, path in names.items()}
    assert sorted(TopologicalSorter(graph).static_order()) == sorted(names)
