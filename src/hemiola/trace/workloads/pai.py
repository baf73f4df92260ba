"""Alibaba PAI, cluster-trace-gpu-v2020 (Weng et al., NSDI'22): task table, job table, simulator input.

Source: github.com/alibaba/clusterdata. `pai_task_table.csv` and `pai_job_table.csv` have no header (one
with the published names is accepted). The job table does not say how many GPUs a job has, so only the
task table is a workload. Its `plan_gpu` is a percentage per instance, the simulator's `num_gpu` GPUs per
instance: PAI shares GPUs, this project does not, so a job's sum is rounded up to whole GPUs, and a note
counts how often.
"""

from __future__ import annotations

import math

from hemiola.core.errors import FormatError
from hemiola.trace.workloads.cells import Cells, read_rows, table
from hemiola.trace.workloads.format import WorkloadFormat
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source

__all__ = ["PAI_JOBS", "PAI_SIMULATOR"]

_JOB_TABLE = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_SIMULATOR = frozenset({"job_id", "duration", "num_gpu", "num_cpu", "submit_time"})
_STATES = ("Running", "Terminated", "Failed", "Waiting")


def _match_jobs(source: Source) -> str:
    rows = source.first_rows(",")
    if rows and len(rows[0]) == len(_JOB_TABLE) and any(row[3:4] in [[s] for s in _STATES] for row in rows):
        return "it has the 6 columns of pai_job_table, a PAI status among them"
    return ""


def _refuse_jobs(source: Source, ledger: ReadLedger) -> None:
    raise FormatError(
        f"{source.path} is PAI's job table, which does not say how many GPUs a job has",
        "give pai_task_table.csv",
    )


def _match_simulator(source: Source) -> str:
    if source.columns >= _SIMULATOR and "iterations" not in source.columns:
        return "its header has job_id, num_gpu, num_cpu, submit_time and duration"
    return ""


def _read_simulator(source: Source, ledger: ReadLedger) -> None:
    shared = 0

    def make(cells: Cells) -> JobDraft | str:
        nonlocal shared
        instances = cells.whole("num_inst", "instances") if cells.text("num_inst") else 1
        wanted = cells.seconds("num_gpu") * instances if cells.text("num_gpu") else 0.0
        gpus = math.ceil(wanted - 1e-9)
        if gpus == 0:
            return "CPU job"
        shared += not math.isclose(wanted, gpus, abs_tol=1e-9)
        submit_s = cells.seconds("submit_time")
        wait_s = cells.maybe_seconds("wait_time")
        return JobDraft(
            id=cells.text("job_id"),
            submit_s=submit_s,
            gpus=gpus,
            duration_s=cells.seconds("duration"),
            user=cells.text("user"),
            recorded_start_s=None if wait_s is None else submit_s + wait_s,
            recorded_state=cells.text("status"),
        )

    read_rows(table(source, ledger), ledger, make, "job_id")
    ledger.note(f"{shared} jobs ask for part of a GPU and were rounded up to whole GPUs")
    ledger.note("seconds throughout; gpu_type is where a job ran, not what it required, and is not read")


PAI_JOBS = WorkloadFormat("pai-job-table", "PAI's pai_job_table (refused: it has no GPUs)", _match_jobs, _refuse_jobs)
PAI_SIMULATOR = WorkloadFormat("pai-simulator", "the input of PAI's simulator", _match_simulator, _read_simulator)
