"""`hemiola inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hemiola.cli.output import writable

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
    """Say where a training job's time goes: exposed communication, critical path, late ranks, overlap.

    Parameters
    ----------
    files
        What "hemiola trace", "hemiola.record" or "hemiola predict" wrote, Kineto/Chrome traces, PyTorch
        execution traces or Chakra .et. Several files are the ranks of one job.
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
    from rich.console import Console

    from hemiola.core.errors import InputError
    from hemiola.core.job_metrics import job_metrics
    from hemiola.report.job.table import job_table
    from hemiola.trace.jobs.read import read_job

    if not files:
        raise InputError("there is no file to inspect", "name one: hemiola inspect job.trace.json")
    outputs = {"report": report, "json": json, "perfetto": perfetto}
    for path in outputs.values():
        if path is not None:
            writable(path)
    timeline = read_job(files, salvage=salvage)
    metrics = job_metrics(timeline)
    other = job_metrics(read_job(against, salvage=salvage)) if against else None
    Console().print(job_table(metrics, other))
    if report is not None:
        from hemiola.report.job.page import write_job_report

        write_job_report(metrics, report, other=other, title=title)
    if json is not None:
        from hemiola.report.job.inspection import write_inspection

        write_inspection(metrics, json, other)
    if perfetto is not None:
        from hemiola.trace.jobs.perfetto_job import write_perfetto

        write_perfetto(timeline, perfetto)
    for path in outputs.values():
        if path is not None:
            Console(stderr=True).print(f"wrote {path}", style="dim", highlight=False)
