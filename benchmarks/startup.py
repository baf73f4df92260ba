"""From keystroke to table: the command line in processes of its own, in wall and CPU time."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

from clocks import Took, spread, table, verdict
from workloads import SLICE_JOBS, SMALL, philly_slice

HEMIOLA = [sys.executable, "-c", "from hemiola.cli import main; main()"]
IMPORT = [sys.executable, "-c", "import hemiola"]


def measure(jobs: int = SLICE_JOBS, rounds: int = 5) -> str:
    """The section of the report."""
    source = philly_slice(jobs)
    simulate = [*HEMIOLA, "simulate", *source.command(), "--cluster", SMALL]
    commands: list[tuple[str, Sequence[str], float | None]] = [
        ("`python -c 'import hemiola'`", IMPORT, 0.3),
        ("`hemiola --help`", [*HEMIOLA, "--help"], 0.5),
        *(
            (f"`hemiola simulate ... --policy {p}`", [*simulate, "--policy", p], 3.0)
            for p in ("fifo", "srtf", "tiresias", "dally")
        ),
        (
            "`hemiola simulate ... --policy fifo tiresias dally`",
            [*simulate, "--policy", "fifo", "tiresias", "dally"],
            None,
        ),
    ]
    lines = []
    for name, command, limit in commands:
        took = [_once(command) for _ in range(rounds + 1)][1:]
        said = "" if limit is None else f"{limit:g} s: {verdict(median(t.wall_s for t in took), limit)}"
        lines.append([name, said, spread([t.wall_s for t in took]), spread([t.cpu_s for t in took])])
    return "\n\n".join(
        [
            f"`...` stands for {source.says} and `--cluster {SMALL}`; {rounds} runs after one that fills caches, "
            "median (least–most).",
            table(["command", "target", "wall s", "CPU s"], lines),
        ]
    )


def _once(command: Sequence[str]) -> Took:
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall)
