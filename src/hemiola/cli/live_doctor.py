"""`hemiola doctor`: what would keep Hemiola from doing its work, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from hemiola.live.query.health_checks import Check
    from hemiola.core.topology import Topology

__all__ = ["doctor"]

Switch = Parameter(negative="")
DOCTOR_SCHEMA = "hemiola.doctor/1"
STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


def doctor(
    *,
    engine: Literal["slurm", "ray"] = "slurm",
    slurm_conf: Path | None = None,
    ray_address: str = "127.0.0.1:6379",
    partition: str = "hemiola",
    topology: str = "",
    journal: str = "",
    alive: Path | None = None,
    json: Annotated[bool, Switch] = False,
) -> None:
    """Check the engine, privileges, clocks, nodes, the journal and this host's network. Changes nothing.

    The exit status is 1 if a check fails, and 0 if there are warnings at most.

    Parameters
    ----------
    engine
        What runs the jobs.
    slurm_conf
        The slurm.conf of the cluster; where Slurm's commands look unless given.
    ray_address
        Ray's head. A node of Ray has to run on this host.
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

    from hemiola.trace.topologies.read import read_topology

    cluster = read_topology(topology, keep_unusable=True) if topology else None
    found, mode = _journal(journal, partition)
    if engine == "slurm":
        engines = _slurm(slurm_conf, partition, cluster, alive, mode)
    else:
        engines = _ray(ray_address, cluster, mode)
    checks: list[Check] = []
    for check in chain(engines, found, _host(alive, mode)):
        checks.append(check)
        if not json:
            _print(check)
    failed = [check for check in checks if check.state == "FAIL"]
    if json:
        document = {"schema": DOCTOR_SCHEMA, "time_s": time.time(), "ok": not failed, "checks": checks}
        print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    if failed:
        raise SystemExit(1)


def _slurm(
    conf: Path | None, partition: str, topology: Topology | None, alive: Path | None, mode: str
) -> Iterator[Check]:
    from hemiola.live.engines.slurm.client import Slurm
    from hemiola.live.engines.slurm.doctor import slurm_checks

    yield from slurm_checks(Slurm(conf), partition, topology, alive, mode)


def _ray(address: str, topology: Topology | None, mode: str) -> Iterator[Check]:
    from hemiola.live.engines.ray.client import Ray
    from hemiola.live.engines.ray.doctor import ray_checks

    ray = Ray(address)
    try:
        yield from ray_checks(ray, topology, mode)
    finally:
        ray.close()


def _host(alive: Path | None, mode: str) -> Iterator[Check]:
    from hemiola.live.query.health_checks import alive_checks, host_checks

    if alive is not None:
        yield alive_checks(alive, time.time(), mode=mode)
    yield from host_checks()


def _journal(where: str, partition: str) -> tuple[list[Check], str]:
    """The journal's checks, and the mode of its last run."""
    from hemiola.cli.live import open_journal
    from hemiola.live.query.health_checks import Check, journal_checks, problem_check
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
