"""Count what the house is made of: files, names that stand for two things, circles of imports, long functions.

    python tools/house.py                  # this tree
    python tools/house.py --at be86e3a     # an older commit, laid out in a folder that is removed afterwards

Counted from the text alone, but for two rows: which files `simulate` enters is seen by running it, with this Python
and what is installed for it.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
SHORT_LINES = 50
JOBS = "generated:jobs=20,load=1,seed=1"
CLUSTER = "leaf-spine:hosts=4,gpus_per_host=8,hosts_per_rack=2,nic=100gbit,oversubscription=4"
COUNTED = """
import json, sys
files = {m.__file__ for name, m in sys.modules.items() if name.split(".")[0] == "hemiola" and m.__file__}
sys.stderr.write(json.dumps([sum(len(open(file).readlines()) > 3 for file in files), len(files)]))
"""
"""Tells how many files were entered, without and with those that only name a package."""
FROM_PYTHON = f"""
import hemiola
cluster = hemiola.read_topology({CLUSTER!r})
hemiola.simulate(hemiola.generate({JOBS!r}, gpus=32), cluster, ["fifo"])
{COUNTED}"""
FROM_COMMAND = f"""
import sys
from hemiola.cli import main
sys.argv[1:] = ["simulate", {JOBS!r}, "--cluster", {CLUSTER!r}, "--policy", "fifo"]
try:
    main()
except SystemExit:
    pass
{COUNTED}"""

Trees = Mapping[str, ast.Module]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def trees_of(package: Path) -> dict[str, ast.Module]:
    """Every module of a package, by its dotted name."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(file.read_text(encoding="utf-8"))
    return found


def public_classes(trees: Trees) -> dict[str, int]:
    """How many modules define a class of this name, without those that begin with _."""
    return Counter(
        name for tree in trees.values() for name in {n.name for n in tree.body if isinstance(n, ast.ClassDef)}
        if not name.startswith("_")
    )  # fmt: skip


def functions(trees: Trees) -> list[Function]:
    """Every function and method."""
    return [
        node for tree in trees.values() for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]  # fmt: skip


def length(function: Function) -> int:
    """Lines, from `def` to the last one."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def is_annotated(function: Function) -> bool:
    """Whether it says the type of what it returns and of every argument but self and cls."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    named = [one for one in every if one is not None and one.arg not in ("self", "cls")]
    return function.returns is not None and all(one.annotation is not None for one in named)


def imports(trees: Trees, *, inner: bool) -> dict[str, set[str]]:
    """Which modules each imports, those under TYPE_CHECKING included.

    Args:
        inner: count imports within functions too.
    """
    return {name: set(_imported(tree, trees, inner=inner)) - {name} for name, tree in trees.items()}


def _imported(tree: ast.Module, known: Trees, *, inner: bool) -> Iterator[str]:
    within = {
        id(node) for function in ast.walk(tree) if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }  # fmt: skip
    for node in ast.walk(tree):
        if not inner and id(node) in within:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield from (name for name in (whole if whole in known else node.module,) if name in known)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or by way of others (Tarjan 1972)."""
    place: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        place[name] = lowest[name] = len(place)
        path.append(name)
        for other in graph.get(name, ()):
            if other not in place:
                visit(other)
            if other in path:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == place[name]:
            group = path[path.index(name) :]
            del path[path.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in place:
            visit(name)
    return found


def rooms(lines: Mapping[str, int]) -> dict[str, int]:
    """Lines of each room, by lines of each module: the folders under the package, and "" for the files beside them."""
    found: dict[str, int] = defaultdict(int)
    for name, count in lines.items():
        parts = name.split(".")
        found[parts[1] if len(parts) > 2 else ""] += count
    return dict(found)


def percentile(values: Sequence[int], share: float) -> int:
    """The value that this share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def tests_in(files: Iterable[Path]) -> int:
    """Functions that pytest would take, each once however often it is parametrised."""
    return sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    )


def entered(root: Path, script: str) -> tuple[int, int]:
    """How many of the package's files such a script enters: those with something in them, and all."""
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    some, every = json.loads(done.stderr[done.stderr.rindex("[") :])
    return some, every


def counts(root: Path) -> list[tuple[str, str]]:
    """What is counted and how much it is, in the order of the table."""
    package = root / "src" / "hemiola"
    trees = trees_of(package)
    lines = {name: len(_file(package, name).read_text(encoding="utf-8").splitlines()) for name in trees}
    classes = public_classes(trees)
    every = functions(trees)
    lengths = [length(function) for function in every]
    largest, most = max(((room, n) for room, n in rooms(lines).items() if room), key=lambda one: one[1])
    test_files = list((root / "tests").rglob("*.py"))
    python, command = entered(root, FROM_PYTHON), entered(root, FROM_COMMAND)
    return [
        ("files under src", f"{len(trees):,}"),
        ("lines", f"{sum(lines.values()):,}"),
        (f"files under {SHORT_LINES} lines", f"{sum(n < SHORT_LINES for n in lines.values()):,}"),
        ("public class names", f"{len(classes):,}"),
        ("of them in two or more files", f"{sum(n > 1 for n in classes.values()):,}"),
        ("circles of imports, at module level", f"{len(circles(imports(trees, inner=False)))}"),
        ("circles of imports, those in functions too", f"{len(circles(imports(trees, inner=True)))}"),
        ("largest room", f"{largest}, {most / sum(lines.values()):.0%} of the lines"),
        ("lines per function: median, 99 %, most",
         f"{median(lengths):g}, {percentile(lengths, 0.99)}, {max(lengths)}"),
        ("functions annotated in full", f"{sum(map(is_annotated, every)) / len(every):.1%}"),
        ("test files", f"{len(test_files):,}"),
        ("test functions", f"{tests_in(test_files):,}"),
        ("files under benchmarks", f"{sum(1 for file in (root / 'benchmarks').iterdir() if file.is_file())}"),
        ("files that hemiola.simulate enters with FIFO", f"{python[0]} (with empty ones {python[1]})"),
        ("files that the command simulate enters", f"{command[0]} (with empty ones {command[1]})"),
    ]  # fmt: skip


def _file(package: Path, name: str) -> Path:
    place = package.parent.joinpath(*name.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def lay_out(revision: str, folder: Path) -> None:
    """The files of a commit, in this folder."""
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def table(columns: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Markdown: a row for each thing counted, a column for each tree."""
    rows = [[what, *(found[number][1] for found in columns.values())]
            for number, (what, _) in enumerate(next(iter(columns.values())))]  # fmt: skip
    head = [["", *columns], ["---", *("---:" for _ in columns)]]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*head, *rows])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--at", metavar="REV", nargs="+", default=[], help="commits to count beside this tree"
    )
    columns = {}
    for revision in parser.parse_args().at:
        with tempfile.TemporaryDirectory() as folder:
            lay_out(revision, Path(folder))
            columns[revision] = counts(Path(folder))
    columns["this tree"] = counts(ROOT)
    print(table(columns))


if __name__ == "__main__":
    main()
