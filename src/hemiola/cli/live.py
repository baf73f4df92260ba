"""`hemiola jobs` and `nodes`: what a live cluster does, from the journal alone, in the manner of Slurm's tools.

The drawing of what the journal tells stands here and not in `report`: its values are control's, which `report` may
not import, and a second set of the same values would only be there to be copied into. What needs no such value
(columns, times) is `report.live`'s.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from hemiola.cli.engines import chosen_engine, with_engine_flags
from hemiola.live.engines.base import Examination
from hemiola.live.engines.registry import DEFAULT

if TYPE_CHECKING:
    from hemiola.live.engines.base import Engine, EngineConnection
    from hemiola.live.journal import Journal
    from hemiola.live.query.cluster import LiveCluster, LiveHost, LiveJob
    from hemiola.live.query.health_checks import Check


__all__ = [
    "daemon_text",
    "doctor",
    "jobs",
    "journal_path",
    "nodes",
    "open_journal",
    "print_json",
    "reason_text",
]


Switch = Parameter(negative="")
FOLDER = Path("/var/lib/hemiola")
JOBS_SCHEMA, NODES_SCHEMA = "hemiola.jobs/1", "hemiola.nodes/1"
JOB_COLUMNS = ("JOBID", "NAME", "USER", "ST", "GPUS", "NODES", "TIME", "EST", "WAITED", "NODELIST(REASON)")
NODE_COLUMNS = ("RACK", "NODES", "STATE", "GPUS", "USED", "FREE", "BLOCKED", "NODELIST", "JOBS(GPUS)")
FLUSH_RIGHT = frozenset({"JOBID", "GPUS", "NODES", "TIME", "EST", "WAITED", "USED", "FREE", "BLOCKED"})
ORDER = {"waiting": 0, "held": 1, "running": 2, "ended": 3}
ENDED_SINCE_S = 86400.0


def jobs(
    *,
    journal: str = "",
    partition: str = "hemiola",
    user: str = "",
    state: Literal["", "waiting", "held", "running", "ended"] = "",
    all: Annotated[bool, Switch] = False,
    json: Annotated[bool, Switch] = False,
) -> None:
    """List the live cluster's jobs, and why each one waits.

    TIME is how long a job has had GPUs in all, EST how long it is expected to need them (- where nobody said so).

    Parameters
    ----------
    journal
        What "hemiola serve --journal" writes; the same place as there unless given.
    partition
        The one that Hemiola manages.
    user
        Only this user's.
    state
        Only these.
    all
        Also those that have ended, as long as the journal keeps them; without it, with --state ended, those of a day.
    json
        Everything that is known, as JSON.
    """
    from hemiola.live.query.cluster import read_cluster

    now_s = time.time()
    since_s = 0.0 if all else now_s - ENDED_SINCE_S if state == "ended" else None
    with open_journal(journal, partition) as opened:
        cluster = read_cluster(opened, now_s, ended_since_s=since_s)
    chosen = [job for job in cluster.jobs if user in ("", job.user) and state in ("", job.state)]
    chosen.sort(key=lambda job: ORDER[job.state])
    if json:
        print_json(JOBS_SCHEMA, cluster, jobs=chosen)
        return
    warn(cluster)
    print_lines(JOB_COLUMNS, [job_row(job, cluster.now_s) for job in chosen], "ST")


def nodes(
    *, journal: str = "", partition: str = "hemiola", json: Annotated[bool, Switch] = False
) -> None:  # fmt: skip
    """List the live cluster's hosts by rack: whose GPUs are whose, which are free, which are not Hemiola's to give.

    Parameters
    ----------
    journal
        What "hemiola serve --journal" writes; the same place as there unless given.
    partition
        The one that Hemiola manages.
    json
        Host by host, as JSON.
    """
    from hemiola.live.query.cluster import read_cluster

    with open_journal(journal, partition) as opened:
        cluster = read_cluster(opened, time.time())
    if json:
        print_json(NODES_SCHEMA, cluster, nodes=cluster.hosts)
        return
    warn(cluster)
    print_lines(NODE_COLUMNS, list(_node_rows(cluster.hosts)), "STATE")


def journal_path(partition: str) -> Path:
    """Where "hemiola serve" keeps it unless told otherwise: the first place that has one.

    Raises:
        InputError: neither has.
    """
    from hemiola.core.errors import InputError

    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "hemiola"
    places = [folder / f"{partition}.db" for folder in (FOLDER, home)]
    for place in places:
        if os.path.isfile(place):  # noqa: PTH113 - Path.is_file raises where a folder may not be looked into
            return place
    raise InputError(
        f"there is no journal at {' or '.join(map(str, places))}",
        'name it with --journal, or begin one with "hemiola serve"',
    )


@contextmanager
def open_journal(where: str, partition: str) -> Iterator[Journal]:
    """For reading, while a daemon may be writing."""
    from hemiola.live.journal import Journal

    with Journal.open(where or journal_path(partition), read_only=True) as opened:
        yield opened


def daemon_text(cluster: LiveCluster) -> str:
    """Who serves, or that nobody does, in a sentence."""
    from hemiola.report.columns import ago

    daemon, now_s = cluster.daemon, cluster.now_s
    heard = f"{ago(now_s - daemon.heard_s)} ago" if daemon.heard_s is not None else "never"
    if daemon.state == "leads":
        return f"{_who(daemon.holder)} leads, heard {heard}"
    if daemon.state == "silent":
        gone = "; its process is gone" if daemon.gone else ""
        return f"Hemiola is silent: {_who(daemon.holder)} was last heard {heard}{gone}"
    if daemon.state == "stopped":
        return f"Hemiola does not run: it ended {heard} ({daemon.why or 'it does not say why'})"
    return "Hemiola has never run on this journal"


def warn(cluster: LiveCluster) -> None:
    """On stderr, if what follows is not of now."""
    from hemiola.report.columns import clock

    if cluster.daemon.state == "leads":
        return
    as_of = (
        f"; this is as of {clock(cluster.as_of_s, cluster.now_s, seconds=True)}" if cluster.as_of_s else ""
    )
    print(f"warning: {daemon_text(cluster)}{as_of}", file=sys.stderr)


def reason_text(job: LiveJob, now_s: float) -> str:
    """Why it waits, and until when."""
    from hemiola.report.columns import ago, clock

    if job.until_s is None:
        return job.reason
    return f"{job.reason}; next look {clock(job.until_s, now_s)}, in {ago(job.until_s - now_s)}"


def state_text(job: LiveJob) -> str:
    """Slurm's two letters."""
    if job.state == "ended":
        return "CD" if job.reason == "finished" else "CA" if job.reason.startswith("cancel") else "F"
    return "R" if job.state == "running" else "PD"


def print_json(schema: str, cluster: LiveCluster, **values: Any) -> None:
    """One object: the schema, who serves, of when it is, and the values."""
    import msgspec

    run = cluster.run
    document = {
        "schema": schema, "time_s": cluster.now_s, "as_of_s": cluster.as_of_s, "daemon": cluster.daemon,
        "policy": run.opening.policy if run else None, "mode": run.opening.mode if run else None,
        "engine": run.opening.engine if run else None, **values,
    }  # fmt: skip
    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_lines(headings: tuple[str, ...], rows: list[tuple[str, ...]], coloured: str) -> None:
    """A table: cut and coloured on a terminal, whole and plain in a pipe."""
    from rich.console import Console
    from rich.text import Text

    from hemiola.report.columns import columns

    console = Console(highlight=False)
    width = console.width if console.is_terminal else None
    head, *lines = columns(headings, rows, right=FLUSH_RIGHT, width=width)
    if not console.is_terminal:
        print("\n".join([head, *lines]))
        return
    place = headings.index(coloured)
    console.print(Text(head, style="bold"), no_wrap=True, crop=False)
    for line, row in zip(lines, rows, strict=True):
        text = Text(line)
        if style := STYLES.get(row[place], ""):
            text.highlight_regex(rf"(?<=\s){row[place]}(?=\s)", style)
        console.print(text, no_wrap=True, crop=False)


STYLES = {
    "PD": "yellow", "R": "green", "F": "red", "CA": "dim", "CD": "dim", "down": "red", "blocked": "red", "draining": "red",
    "full": "green", "mixed": "cyan", "idle": "dim",
}  # fmt: skip


def _who(holder: str) -> str:
    """ "n0 (process 77)" of a `process_identity`."""
    from hemiola.report.columns import printable

    words = printable(holder).split("/")
    return f"{words[0]} (process {words[2]})" if len(words) == 5 else printable(holder)


def job_row(job: LiveJob, now_s: float) -> tuple[str, ...]:
    """By `JOB_COLUMNS`."""
    from hemiola.core.hostlist import compress
    from hemiola.report.columns import elapsed

    where = compress([name for name, _ in job.where])
    expected_s = job.predicted_s if job.predicted_s is not None else job.estimate_s
    known = job.estimate_from != "default"  # what is predicted rests on it
    reason = f"({reason_text(job, now_s)})"
    return (
        job.id, job.name or "-", job.user, state_text(job), str(job.gpus), str(len(job.where) or job.hosts or "-"),
        elapsed(job.run_s), elapsed(expected_s) if known else "-", elapsed(job.waited_s),
        where if job.state == "running" else f"{where} {reason}".strip() if job.state == "ended" else reason,
    )  # fmt: skip


def _node_rows(hosts: tuple[LiveHost, ...]) -> Iterator[tuple[str, ...]]:
    """Hosts that are alike in all of this share a line, as in sinfo."""
    from hemiola.core.hostlist import compress

    alike: dict[tuple[object, ...], list[LiveHost]] = {}
    for host in hosts:
        key = (host.rack, host.state, host.gpus, host.used, host.free, host.blocked, tuple(host.jobs.items()))
        alike.setdefault(key, []).append(host)
    racks = {host.rack: place for place, host in reversed(list(enumerate(hosts)))}
    for group in sorted(alike.values(), key=lambda group: racks[group[0].rack]):
        first, count = group[0], len(group)
        yield (
            first.rack or "-", str(count), first.state, *(str(n * count) for n in (first.gpus, first.used, first.free, first.blocked)),
            compress([host.name for host in group]),
            " ".join(f"{job}({gpus * count})" for job, gpus in first.jobs.items()) or "-",
        )  # fmt: skip
    yield (
        "total", str(len(hosts)), "", *(str(sum(getattr(host, name) for host in hosts)) for name in ("gpus", "used", "free", "blocked")),
        "", f"{len({job for host in hosts for job in host.jobs})} jobs",
    )  # fmt: skip


# `hemiola doctor`: what would keep Hemiola from doing its work, and what to do about it.

DOCTOR_SCHEMA = "hemiola.doctor/1"
DOCTOR_STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


@with_engine_flags("doctor")
def doctor(
    *,
    engine: str = DEFAULT,
    partition: str = "hemiola",
    topology: str = "",
    journal: str = "",
    alive: Path | None = None,
    json: Annotated[bool, Switch] = False,
    **options: Any,
) -> None:
    """Check the engine, privileges, clocks, nodes, the journal and this host's network. Changes nothing.

    The exit status is 1 if a check fails, and 0 if there are warnings at most.

    Parameters
    ----------
    engine
        What runs the jobs, as in "hemiola serve".
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
    its, to = chosen_engine(engine, options, partition=partition, has_topology=cluster is not None)
    engines = _engine(its, to, Examination(topology=cluster, alive=alive, mode=mode))
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


def _engine(engine: Engine[Any], to: EngineConnection, what: Examination) -> Iterator[Check]:
    with engine.connected(to) as client:
        yield from engine.doctor(client, what)


def _host(alive: Path | None, mode: str) -> Iterator[Check]:
    from hemiola.live.query.health_checks import alive_checks, host_checks

    if alive is not None:
        yield alive_checks(alive, time.time(), mode=mode)
    yield from host_checks()


def _journal(where: str, partition: str) -> tuple[list[Check], str]:
    """The journal's checks, and the mode of its last run."""
    from hemiola.core.errors import HemiolaError, InputError
    from hemiola.live.query.health_checks import Check, journal_checks, problem_check

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

    from hemiola.report.columns import printable

    console = Console(highlight=False)
    console.soft_wrap = not console.is_terminal
    line = Text(f"{check.state:<5}", style=DOCTOR_STYLES[check.state] if console.is_terminal else "")
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
