"""`tools/house.py` counts what it says, and `simulate` enters no more files than it may."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(**texts: str) -> dict[str, ast.Module]:
    return {f"p.{name}": ast.parse(text) for name, text in texts.items()}


def test_a_name_counts_once_for_each_file_that_defines_it(house: ModuleType) -> None:
    trees = parsed(
        a="class A: ...\nclass _B: ...", b="class A: ...\nclass C:\n    class A: ...", c="class C: ..."
    )
    assert house.public_classes(trees) == {"A": 2, "C": 2}


def test_circles_are_found_through_others_and_within_functions(house: ModuleType) -> None:
    trees = parsed(
        a="from p.b import x",
        b="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import c",
        c="import p.a\ndef f():\n    from p.d import y",
        d="def g():\n    from p.c import z",
        e="from p.a import x",
    )
    assert house.circles(house.imports(trees, inner=False)) == [["p.a", "p.b", "p.c"]]
    assert house.circles(house.imports(trees, inner=True)) == [["p.a", "p.b", "p.c", "p.d"]]


def test_functions_are_measured_with_their_methods_and_types(house: ModuleType) -> None:
    trees = parsed(
        a="class A:\n    def f(self, x: int) -> int:\n        y = x\n        return y\n\ndef g(*z): ...\n"
    )
    found = {f.name: (house.length(f), house.is_annotated(f)) for f in house.functions(trees)}
    assert found == {"f": (3, True), "g": (1, False)}


def test_rooms_are_the_folders_below_the_package(house: ModuleType) -> None:
    assert house.rooms({"p": 1, "p.a": 2, "p.a.b": 3, "p.a.c.d": 4, "p.e.f": 5}) == {"": 3, "a": 7, "e": 5}


def test_the_present_tree_is_counted(house: ModuleType) -> None:
    trees = house.trees_of(ROOT / "src" / "hemiola")
    assert {"hemiola", "hemiola.sched.machine", "hemiola.core.units"} <= set(trees)
    assert all(map(house.is_annotated, house.functions(trees)))


def test_no_benchmark_imports_in_a_circle(house: ModuleType) -> None:
    files = (ROOT / "benchmarks").glob("*.py")
    trees = {file.stem: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    assert not house.circles(house.imports(trees, inner=True))


def test_simulate_with_fifo_enters_few_files(house: ModuleType) -> None:
    with_code, _ = house.entered(ROOT, house.FROM_PYTHON)
    assert with_code <= 50, "import on demand what FIFO does not need"


def test_names_of_policies_and_semantics_are_known_without_importing_them() -> None:
    from hemiola.sched.policies import POLICIES
    from hemiola.simulator.rules import PEERS, known_semantics

    assert [POLICIES[name].name for name in POLICIES] == list(POLICIES)
    assert [rules.name for rules in known_semantics().values()] == ["event-driven", *PEERS]
    assert "fifo" in POLICIES and "nobody" not in POLICIES


@pytest.mark.parametrize(("words", "verb"), [((), "simulate"), (("lab",), "up"), (("lab", "slurm"), "env")])
def test_help_says_what_each_verb_does_though_none_is_imported_before(
    words: tuple[str, ...], verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from hemiola.cli import app

    app([*words, "--help"], result_action="return_value")
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(f"│ {verb} "))
    assert len(row.strip("│ ").split()) > 3
