"""`hemiola doctor`: what would keep Hemiola from doing its work, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from hemiola.control.live.reading_doctor import Check

__all__ = ["doctor"]

Switch = Parameter(negative="")
DOCTOR_SCHEMA = "hemiola.doctor/1"
STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


def doctor(
    *,
    slurm_conf: Path | None = None,
    partition: str = "hemiola",
    topology: str = "",
    journal: str = "",
    alive: Path | None = None,
    json: Annotated[bool, Switch] = False,
) -> None:
    """Check Slurm, privileges, clocks, nodes, the journal and this host's network. Changes nothing.

    The exit status is 1 if a check fails, and 0 if there are warnings at most.

    Parameters
    ----------
    slurm_conf
        The slurm.conf of the cluster; where Slurm's commands look unless given.
    partition
        The one that Hemiola manages.
    topology
        The network, as for "hemiola serve".
    journal
        What "hemiola serve --journal" writes; the same place as there unless given.
    alive
        The file that "hemiola serve --alive" writes.
    json
        The checks as JSON.
    """
    import msgspec

    checks: list[Check] = []
    for check in _checks(slurm_conf, partition, topology, journal, alive):
        checks.append(check)
        if not json:
            _print(check)
    failed = [check for check in checks if check.state == "FAIL"]
    if json:
        document = {"schema": DOCTOR_SCHEMA, "time_s": time.time(), "ok": not failed, "checks": checks}
        print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    if failed:
        raise SystemExit(1)


def _checks(
    slurm_conf: Path | None, partition: str, topology: str, journal: str, alive: Path | None
) -> Iterator[Check]:
    from hemiola.control.live.reading_doctor import alive_checks, host_checks
    from hemiola.control.slurm.client import Slurm
    from hemiola.control.slurm.doctor import slurm_checks
    from hemiola.trace.topologies.read import read_topology

    found, mode = _journal(journal, partition)
    cluster = read_topology(topology) if topology else None
    yield from slurm_checks(Slurm(slurm_conf), partition, cluster, alive, mode)
    yield from found
    if alive is not None:
        yield alive_checks(alive, time.time(), mode=mode)
    yield from host_checks()


def _journal(where: str, partition: str) -> tuple[list[Check], str]:
    """The journal's checks, and the mode of its last run."""
    from hemiola.cli.live import open_journal
    from hemiola.control.live.reading_doctor import Check, journal_checks, problem_check
    from hemiola.core.errors import HemiolaError, InputError

    try:
        with open_journal(where, partition) as opened:
            runs = opened.runs()
            return list(journal_checks(opened, time.time())), runs[-1].opening.mode if runs else ""
    except InputError as problem:
        return [Check("WARN", "journal", problem.what, problem.remedy)], ""
    except HemiolaError as problem:
        return [problem_check("journal", problem)], ""


def _print(check: Check) -> None:
    """At once, as a question to Slurm may take its time."""
    from rich.console import Console
    from rich.text import Text

    from hemiola.report.live.columns import printable

    console = Console(highlight=False)
    console.soft_wrap = not console.is_terminal
    line = Text(f"{check.state:<5}", style=STYLES[check.state] if console.is_terminal else "")
    line.append(f" {check.about:<11} ", style="none").append(printable(check.what), style="none")
    lines = [line]
    if check.remedy and check.state != "OK":
        lines.append(Text(f"{'':17} {printable(check.remedy)}", style="dim" if console.is_terminal else ""))
    for text in lines:
        if console.is_terminal:
            for place, part in enumerate(text.wrap(console, max(40, console.width - 18))):
                console.print(part if not place else Text(" " * 18).append(part), no_wrap=True, crop=False)
        else:
            print(text.plain, flush=True)
