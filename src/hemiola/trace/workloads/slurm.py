"""Slurm accounting dumps: `sacct --parsable2 --format=JobID,...` with its header.

    TZ=UTC sacct --allusers --allocations --parsable2 --starttime 2024-01-01 --format \\
      JobID,User,Partition,Submit,Start,End,ElapsedRaw,State,AllocTRES,NodeList,Timelimit

Needs JobID, Submit, Start, End, State and AllocTRES or ReqTRES; reads ElapsedRaw, Elapsed, User, Partition,
NodeList, Timelimit and Comment ("model=gpt2") where they are. Job steps (123.batch) are left out; each task of a
job array (12_3) and each component of a heterogeneous job (12+0) is a job of its own.
"""

from __future__ import annotations

import re

from hemiola.core.errors import FormatError, InputError
from hemiola.core.hostlist import expand
from hemiola.trace.workloads.cells import MAX_GPUS, Cells, read_rows, table
from hemiola.trace.workloads.clock import limit_seconds
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source, WorkloadFormat

__all__ = ["SLURM"]

_REQUIRED = frozenset({"JobID", "Submit", "Start", "End", "State"})
_TRES = ("AllocTRES", "ReqTRES")
_ABSENT = ("", "Unknown", "None")
_GPUS = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=(\d{1,9})(?=,|$)")
_SET_BACK = (
    "clocks may have been set back at the end of summer time: add ElapsedRaw to sacct's --format, "
    "which says how long the job ran; else correct or leave out the row"
)
_ALSO_SET_BACK = (
    "clocks may have been set back at the end of summer time: run it again as TZ=UTC sacct ...; "
    "else correct or leave out the row"
)
_MODEL = re.compile(r"(?:^|[\s,;])model=([^\s,;]+)")


def _columns(source: Source) -> frozenset[str]:
    rows = source.first_rows("|")
    return frozenset(word.strip() for word in rows[0]) if rows else frozenset()


def _match(source: Source) -> str:
    return (
        "its header is sacct's, with JobID and Submit between bars"
        if _columns(source) >= {"JobID", "Submit"}
        else ""
    )


def _read(source: Source, ledger: ReadLedger) -> None:
    missing = _REQUIRED - _columns(source)
    if missing or not _columns(source) & {*_TRES}:
        lacking = ", ".join(sorted(missing)) or " or ".join(_TRES)
        raise FormatError(f"{source.path} has no column {lacking}", f"add it to sacct's --format: {lacking}")
    rows = table(source, ledger, delimiter="|", quoted=False, trailing=True)
    read_rows(rows, ledger, _draft, "JobID")
    ledger.note(
        "jobs that failed, timed out or were cancelled while running are kept, with their recorded run time"
    )


def _draft(cells: Cells) -> JobDraft | str:
    if "." in cells.text("JobID"):
        return "job step"
    words = cells.text("State").split()
    state = words[0] if words else ""
    submit_s = cells.moment("Submit")
    if cells.text("Start") in _ABSENT or state in ("PENDING", "REQUEUED"):
        return "never started"
    if cells.text("End") in _ABSENT or state in ("RUNNING", "SUSPENDED", "COMPLETING"):
        return "still running when the log was taken"
    start_s, end_s = cells.moment("Start"), cells.moment("End")
    if _never_allocated(cells):
        return "never started"
    gpus, gpu_type = _gpus(cells)
    if gpus == 0:
        return "CPU job"
    elapsed_s = _elapsed(cells)
    if elapsed_s is None and end_s < start_s:
        raise cells.bad("End", "is before Start", _SET_BACK)
    if start_s < submit_s:
        raise cells.bad("Start", "is before Submit", _ALSO_SET_BACK)
    model = _MODEL.search(cells.text("Comment"))
    return JobDraft(
        id=cells.text("JobID"),
        submit_s=submit_s,
        gpus=gpus,
        duration_s=end_s - start_s if elapsed_s is None else elapsed_s,
        model=model[1] if model else "",
        user=cells.text("User"),
        queue=cells.text("Partition"),
        gpu_type=gpu_type,
        estimate_s=_limit(cells),
        recorded_start_s=start_s,
        recorded_state=state,
        recorded_hosts=_hosts(cells),
    )


def _elapsed(cells: Cells) -> float | None:
    """How long Slurm itself says the job ran, whatever was done to clocks meanwhile; None where it does not say."""
    if cells.text("ElapsedRaw"):
        return cells.seconds("ElapsedRaw")
    try:
        return limit_seconds(cells.text("Elapsed"))
    except ValueError:
        raise cells.bad("Elapsed", "is no run time", "write [days-]hours:minutes:seconds") from None


def _never_allocated(cells: Cells) -> bool:
    return "AllocTRES" in cells.index and not cells.text("AllocTRES")


def _gpus(cells: Cells) -> tuple[int, str]:
    """GPUs held (or else requested), and the type that the job asked for, if exactly one."""
    column = next(name for name in _TRES if name in cells.index)
    found = _GPUS.findall(cells.text(column))
    untyped = [int(count) for kind, count in found if not kind]
    count = untyped[0] if untyped else sum(int(count) for _, count in found)
    if count > MAX_GPUS:
        raise cells.bad(column, "is not a number of GPUs", f"give at most {MAX_GPUS}")
    asked = {kind for kind, _ in _GPUS.findall(cells.text("ReqTRES")) if kind}
    return count, asked.pop() if len(asked) == 1 else ""


def _limit(cells: Cells) -> float | None:
    try:
        return limit_seconds(cells.text("Timelimit"))
    except ValueError as error:
        raise cells.bad("Timelimit", str(error), "write [days-]hours:minutes:seconds or UNLIMITED") from None


def _hosts(cells: Cells) -> tuple[str, ...]:
    if cells.text("NodeList") in ("", "None assigned", "(null)"):
        return ()
    try:
        return tuple(expand(cells.text("NodeList")))
    except InputError as error:
        raise cells.bad("NodeList", "is no list of hosts", error.what) from None


SLURM = WorkloadFormat("slurm", "Slurm's sacct --parsable2", _match, _read)
