"""The Philly trace as others reduced it to a table: one row per job, no users, no states.

Two shapes are read: Petuum's (`timestamp,duration,num_gpus,gpu_time,cluster`), which AdaptDL's
OSDI'21 artifact ships, and benchmark slices of it (`timestamp,submit,duration,num_gpus,cluster`).
Both derive from Microsoft's Philly traces (Jeon et al., ATC'19). The redundant column is checked:
it gives a wrong unit away.
"""

from __future__ import annotations

from hemiola.trace.workloads.cells import Cells, read_rows, table
from hemiola.trace.workloads.format import WorkloadFormat
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source

__all__ = ["PHILLY_CSV"]

_COMMON = frozenset({"timestamp", "duration", "num_gpus", "cluster"})
_TOLERANCE = 1e-6


def _match(source: Source) -> str:
    if not source.columns >= _COMMON:
        return ""
    check = next((c for c in ("gpu_time", "submit") if c in source.columns), "")
    return f"its header has timestamp, duration, num_gpus, cluster and {check}" if check else ""


def _read(source: Source, ledger: ReadLedger) -> None:
    by_gpu_time = "gpu_time" in source.columns
    number = 0
    torn: list[str] = []
    offset_s: float | None = None

    def make(cells: Cells) -> JobDraft:
        nonlocal number, offset_s
        number += 1
        submit_s = cells.moment("timestamp")
        gpus = cells.gpus("num_gpus")
        duration_s = cells.seconds("duration")
        if by_gpu_time:
            _check_gpu_time(cells, duration_s * gpus)
        else:
            offset_s = _check_submit(cells, submit_s, offset_s)
        return JobDraft(
            id=str(number + len(torn)),
            submit_s=submit_s,
            gpus=gpus,
            duration_s=duration_s,
            queue=cells.text("cluster"),
        )

    read_rows(table(source, ledger, torn=torn), ledger, make, "timestamp")
    checked = "gpu_time = duration * num_gpus" if by_gpu_time else "submit against timestamp"
    ledger.note(f"seconds throughout ({checked} holds); jobs are numbered in the order of the file")


def _check_gpu_time(cells: Cells, expected: float) -> None:
    if abs(cells.seconds("gpu_time") - expected) > _TOLERANCE * max(expected, 1.0):
        raise cells.bad(
            "gpu_time", "is not duration * num_gpus", f"expected {expected:g}; give duration in seconds"
        )


def _check_submit(cells: Cells, moment_s: float, offset_s: float | None) -> float:
    found = moment_s - cells.seconds("submit")
    if offset_s is not None and abs(found - offset_s) > 1.0:
        raise cells.bad(
            "submit", "does not follow timestamp", f"expected {moment_s - offset_s:g}; give submit in seconds"
        )
    return found if offset_s is None else offset_s


PHILLY_CSV = WorkloadFormat("philly-csv", "Philly as a table (AdaptDL's philly.csv and slices of it)", _match, _read)
