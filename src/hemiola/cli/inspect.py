"""`hemiola inspect`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hemiola.cli.output import terminal, writable

if TYPE_CHECKING:
    from hemiola.core.errors import ScheduleError

__all__ = ["inspect"]

Files = Annotated[tuple[Path, ...], Parameter(name="--against", consume_multiple=True, negative="")]


def inspect(
    *files: Path,
    against: Files = (),
    report: Path | None = None,
    json: Path | None = None,
    perfetto: Path | None = None,
    title: str = "",
    salvage: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Say where a training job's time goes, where a network is narrow, or what a collective's schedule sends.

    Of a job: exposed communication, critical path, late ranks, overlap. Of a topology: hosts that are alike, their
    rates and intervals, uplinks, the slowest link. Of a schedule: whether it is proved right, and who sends how much
    to whom.

    Parameters
    ----------
    files
        What "hemiola trace", "hemiola.record" or "hemiola predict" wrote, Kineto/Chrome traces, PyTorch
        execution traces or Chakra .et. Several files are the ranks of one job. Or one topology (TOML, or a
        generator's line), or one schedule (Hemiola's JSON or MSCCL's XML).
    against
        The file (or files) of another job to compare with: before a change, or measured where FILE is predicted.
    report
        Write a page with the pictures there (HTML).
    json
        Write all figures there.
    perfetto
        Write a timeline there that Perfetto opens.
    title
        Of the page; the job's name unless given.
    salvage
        Of damaged files read what stands before the damage.
    """
    from hemiola.core.errors import InputError

    if not files:
        raise InputError("there is no file to inspect", "name one: hemiola inspect job.trace.json")
    outputs = (report, json, perfetto)
    writable(*outputs)
    options = {"--against": against, "--perfetto": perfetto, "--salvage": salvage}
    kind = _kind(files, against, [name for name, value in options.items() if value])
    problem = None
    if kind:
        problem = _network(kind, files[0], report, json, title)
    else:
        _job(files, against, report, json, perfetto, title, salvage)
    for path in outputs:
        if path is not None:
            terminal(stderr=True).print(f"wrote {path}", style="dim", highlight=False, soft_wrap=True)
    if problem is not None:
        raise problem


def _kind(files: Sequence[Path], against: Sequence[Path], options: Sequence[str]) -> str:
    """ "topology" or "schedule", or "" for a job; the first two stand alone."""
    from hemiola.core.errors import InputError
    from hemiola.report.network.inspection import recognise

    for path in (*files, *against):
        if kind := recognise(path):
            if len(files) > 1 or options:
                beside = "other files" if len(files) > 1 else options[0]
                raise InputError(
                    f"{str(path)!r} is a {kind}, and does not go with {beside}",
                    f"inspect it alone: hemiola inspect {shlex.quote(str(path))} --report page.html",
                )
            return kind
    return ""


def _network(
    kind: str, file: Path, report: Path | None, json: Path | None, title: str
) -> ScheduleError | None:
    """Show a topology or a schedule; return why a schedule is not right, if it is not."""
    from hemiola.report.network.inspection import show_schedule, show_topology

    if kind == "schedule":
        return show_schedule(file, terminal(), report=report, json=json, title=title)
    show_topology(file, terminal(), report=report, json=json, title=title)
    return None


def _job(
    files: Sequence[Path], against: Sequence[Path], report: Path | None, json: Path | None, perfetto: Path | None, title: str,
    salvage: bool,
) -> None:  # fmt: skip
    from hemiola.analysis.job.metrics import job_metrics
    from hemiola.report.job.table import job_table
    from hemiola.trace.jobs.read import read_job

    timeline = read_job(files, salvage=salvage)
    metrics = job_metrics(timeline)
    other = job_metrics(read_job(against, salvage=salvage)) if against else None
    if report is not None:
        from hemiola.report.job.page import write_job_report

        write_job_report(metrics, report, other=other, title=title)
    if json is not None:
        from hemiola.report.job.inspection import write_inspection

        write_inspection(metrics, json, other)
    if perfetto is not None:
        from hemiola.trace.jobs.perfetto import write_perfetto

        write_perfetto(timeline, perfetto)
    terminal().print(job_table(metrics, other))
