"""The Standard Workload Format, version 2.2 (Feitelson et al., Parallel Workloads Archive).

Source: cs.huji.ac.il/labs/parallel/workload/swf.html. Eighteen columns between blanks, `;` before a
comment, -1 for what is not known. The format counts processors; they are read as GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from hemiola.core.errors import RowError
from hemiola.trace.workloads.cells import Cells, read_rows
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source, WorkloadFormat

__all__ = ["SWF"]

_COLUMNS = (
    "job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "average_cpu_time",
    "used_memory", "requested_processors", "requested_time", "requested_memory", "status", "user_id",
    "group_id", "executable", "queue", "partition", "preceding_job", "think_time",
)  # fmt: skip
_STATES = {0: "FAILED", 1: "COMPLETED", 5: "CANCELLED", -1: ""}
_PARTIAL = (2, 3, 4)
_LOOKED_AT = 5


def _match(source: Source) -> str:
    rows = [
        line.split()
        for line in source.head.splitlines()
        if line.strip() and not line.lstrip().startswith(";")
    ]
    if any(len(row) == len(_COLUMNS) and all(map(_numeric, row)) for row in rows[:_LOOKED_AT]):
        return "its lines are 18 numbers between blanks"
    return ""


def _numeric(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _read(source: Source, ledger: ReadLedger) -> None:
    read_rows(_rows(source, ledger), ledger, _draft, "job_number")
    ledger.note("processors are read as GPUs; seconds throughout")


def _rows(source: Source, ledger: ReadLedger) -> Iterator[Cells]:
    cells = Cells(source.path, _COLUMNS, ledger.clock)
    for line, text in enumerate(source.text.split("\n"), 1):
        words = text.split()
        if not words or words[0].startswith(";"):
            continue
        if len(words) != len(_COLUMNS):
            ledger.reject(
                RowError(source.path, line, "(row)", text[:60], "has not 18 columns", "write -1 for unknown")
            )
            continue
        cells.values, cells.line = words, line
        yield cells


def _draft(cells: Cells) -> JobDraft | str:
    status = cells.number("status")
    if status in _PARTIAL:
        return "part of a job that has a line of its own"
    if status not in _STATES:
        raise cells.bad("status", "is no SWF status", "give -1, 0, 1, 2, 3, 4 or 5")
    submit_s = cells.seconds("submit_time")
    processors = (
        "requested_processors" if cells.number("allocated_processors") == -1 else "allocated_processors"
    )
    if cells.number("run_time") == -1:
        return "never started or run time unknown"
    if cells.number(processors) in (-1, 0):
        return "no processor"
    return JobDraft(
        id=cells.text("job_number"),
        submit_s=submit_s,
        gpus=cells.gpus(processors),
        duration_s=cells.seconds("run_time"),
        user=_known(cells, "user_id"),
        queue=_known(cells, "queue"),
        estimate_s=None if cells.number("requested_time") == -1 else cells.seconds("requested_time"),
        recorded_start_s=None if cells.number("wait_time") == -1 else submit_s + cells.seconds("wait_time"),
        recorded_state=_STATES[int(status)],
    )


def _known(cells: Cells, column: str) -> str:
    return "" if cells.text(column) == "-1" else cells.text(column)


SWF = WorkloadFormat("swf", "Standard Workload Format", _match, _read)
