"""The second demo: the same training jobs on a real Slurm, placed by Slurm itself and by Hemiola's Dally.

    sudo python examples/demo_live.py [--seed 1] [--out hemiola-live.html]

Brings a Slurm of eight nodes up on this machine, each a network namespace behind a link of its own, in racks with
oversubscribed uplinks; submits a stream of real PyTorch jobs to it twice; shows what came out; takes all of it down.
Five minutes. Needs Linux, root, two cores, Slurm's packages, and hemiola[torch,lab,serve].
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from hemiola.core.errors import HemiolaError, InputError, LabError
from hemiola.lab.slurm.config import check_programs
from hemiola.report.document import write_page
from live_demo.arms import ARMS
from live_demo.machine import machine
from live_demo.measured import Run, figures
from live_demo.network import Network
from live_demo.page import Shown, page
from live_demo.stream import Mix, stream
from live_demo.words import COLUMNS, change, finding

EXTRAS = {"torch": "torch", "pyroute2": "lab", "sqlalchemy": "serve", "alembic": "serve"}
"""Packages that have to be there, and the extra of Hemiola that brings each."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of the stream")
    parser.add_argument("--jobs", type=int, default=Mix.jobs)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["slurm", "dally"], metavar="ARM")
    parser.add_argument("--out", type=Path, default=Path("hemiola-live.html"))
    parser.add_argument("--check", action="store_true", help="only say whether this machine can run it")
    given = parser.parse_args()
    console = Console(soft_wrap=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: what was built is taken down
    try:
        show(given, console)
    except HemiolaError as problem:
        console.print(f"[red]error:[/] {problem.what}", highlight=False)
        console.print(f"  hint: {problem.remedy}", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted: the Slurm and its jobs are gone, nothing was written")
        return 130
    return 0


def show(given: argparse.Namespace, console: Console) -> None:
    """All of the demo."""
    check_machine()
    if given.check:
        return
    check_packages()
    from live_demo.compare import compare

    network, began = Network(), time.monotonic()
    asks = stream(given.seed, Mix(jobs=given.jobs, nodes=network.nodes))
    pairs = sum(ask.hosts > 1 for ask in asks)
    console.print(
        f"{len(asks)} jobs, {pairs} of them of two nodes, on a real Slurm of {network.nodes} nodes in {network.racks} racks "
        f"({network.rate_mbit} Mbit/s each, {network.oversubscription:g}:1 oversubscribed), seed {given.seed}.",
        highlight=False,
    )
    with tempfile.TemporaryDirectory() as folder, progress(console, len(asks)) as said:
        compared = compare(network, asks, [ARMS[name] for name in given.arms], folder=Path(folder), said=said)
    console.print(table(compared.runs), "", finding(compared.runs), sep="\n", highlight=False)
    shown = Shown(network, compared.runs, compared.alone, given.seed, machine())
    write_page(page(shown), given.out)
    console.print(
        f"\nThe page: {given.out.resolve()} (open it in a browser; it needs no network). "
        f"{time.monotonic() - began:.0f} s in all.",
        highlight=False,
    )


def check_machine() -> None:
    """Refuse at once what could only fail later.

    Raises:
        LabError: not Linux, no Slurm, or not root; saying what to do.
    """
    check_programs()
    if os.geteuid() != 0:
        raise LabError(
            f"networks can be made only by root, and this is user {os.geteuid()}",
            "run it with sudo (sudo make demo-live), or as root in a container",
        )


def check_packages() -> None:
    """The same of Python's packages.

    Raises:
        InputError: saying what is missing, and how to get it.
    """
    lacking = [name for name in EXTRAS if find_spec(name) is None]
    if lacking:
        extras = ",".join(dict.fromkeys(EXTRAS[name] for name in lacking))
        raise InputError(
            f"not installed for {sys.executable}: {', '.join(lacking)}", f"pip install 'hemiola[{extras}]'"
        )


@contextmanager
def progress(console: Console, jobs: int) -> Iterator[Callable[[str, int, int, int], None]]:
    """A bar for each run, while the block lasts."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("ended"),
        TextColumn("[dim]{task.fields[now]}"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as drawn:
        tasks: dict[str, TaskID] = {}

        def said(name: str, waiting: int, running: int, ended: int) -> None:
            if name not in tasks:
                total = jobs if tasks else waiting + running + ended
                tasks[name] = drawn.add_task(name, total=total, now="")
                if not console.is_terminal:
                    console.print(f"{name} ...", highlight=False)
            drawn.update(tasks[name], completed=ended, now=f"{running} run, {waiting} wait")

        yield said


def table(runs: Sequence[Run]) -> Table:
    """The figures, a column for each run, with what it changes against the first."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    drawn.add_column("placed by", style="bold")
    for run in runs:
        drawn.add_column(run.name, justify="right")
        if run is not runs[0]:
            drawn.add_column("")
    base = figures(runs[0])
    for column in COLUMNS:
        cells = [column.cell(base)]
        for run in runs[1:]:
            own = figures(run)
            cells += [column.cell(own), change(column.value(own), column.value(base))]
        drawn.add_row(f"{column.title} [dim]{column.about}[/]", *cells)
    return drawn


if __name__ == "__main__":
    sys.exit(main())
