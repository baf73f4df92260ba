"""Runs points in processes of their own and remembers them, so that a study can be taken up again.

The memory is one file of JSON lines per state of the code that decides results: a change of any of
it, of the data or of what a point means begins a new one.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import network_points
from network_points import Point, Row, replay

import hemiola

MATTERS = (
    "core",
    "sched",
    "cost",
    "kernels",
    "trace",
    "analysis",
    "simulator",
    "contrib",
)


def fingerprint() -> str:
    """Twelve hexadecimal digits of the code and of where real data comes from."""
    package = Path(hemiola.__file__).parent
    digest = hashlib.sha256(os.environ.get("HEMIOLA_SHARED", "").encode())
    digest.update(Path(network_points.__file__).read_bytes())
    for pattern in MATTERS:
        pattern += ".py" if pattern.endswith("*") else "/**/*.*"
        for file in sorted(package.glob(pattern)):
            if file.suffix in (".py", ".json"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def key(point: Point) -> str:
    """What a point is remembered by."""
    return json.dumps([asdict(point.cell), point.policy, point.seed], sort_keys=True)


class Memory:
    """Points that were run before.

    Args:
        folder: where it is kept; None for nowhere.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / f"points-{fingerprint()}.jsonl"
        self._rows: dict[str, Row] = {}
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._read(self._file)

    def _read(self, file: Path) -> None:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for line in lines:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # the run was cut off while it wrote this line
            self._rows[entry["key"]] = entry["row"]

    def __contains__(self, point: Point) -> bool:
        return key(point) in self._rows

    def row(self, point: Point) -> Row:
        """What came out."""
        return self._rows[key(point)]

    def add(self, point: Point, row: Row) -> None:
        """Remember it, at once and on disk."""
        self._rows[key(point)] = row
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"key": key(point), "row": row}) + "\n")


def run_all(points: Sequence[Point], memory: Memory, workers: int, says: TextIO = sys.stderr) -> list[Row]:
    """The rows of all points, in their order; those not remembered are run."""
    missing = sorted(
        {point for point in points if point not in memory},
        key=lambda p: (p.cell.mix, p.cell.load, p.seed, p.cell.nic_gbit, p.cell.oversubscription, p.policy),
    )
    if missing:
        print(f"{len(missing):,} replays to do, {len(points) - len(missing):,} known", file=says, flush=True)
        began = time.perf_counter()
        for done, (point, row) in enumerate(_replays(missing, workers), 1):
            memory.add(point, row)
            if done % max(1, len(missing) // 20) == 0 or done == len(missing):
                spent = time.perf_counter() - began
                print(f"  {done:,} of {len(missing):,} after {spent:.0f} s", file=says, flush=True)
    return [memory.row(point) for point in points]


def _replays(points: Sequence[Point], workers: int) -> Iterator[tuple[Point, Row]]:
    if workers <= 1:
        yield from map(_one, points)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_one, points, chunksize=12)


def _one(point: Point) -> tuple[Point, Row]:
    return point, replay(point)
