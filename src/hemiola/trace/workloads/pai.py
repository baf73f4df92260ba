"""Alibaba PAI, cluster-trace-gpu-v2020 (Weng et al., NSDI'22): task table, job table, simulator input.

Source: github.com/alibaba/clusterdata. `pai_task_table.csv` and `pai_job_table.csv` have no header (one
with the published names is accepted). The job table does not say how many GPUs a job has, so only the
task table is a workload. Its `plan_gpu` is a percentage per instance, the simulator's `num_gpu` GPUs per
instance: PAI shares GPUs, this project does not, so a job's sum is rounded up to whole GPUs, and a note
counts how often.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hemiola.core.errors import FormatError, RowError
from hemiola.trace.workloads.cells import Cells, read_rows, table
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source, WorkloadFormat

__all__ = ["PAI_JOBS", "PAI_SIMULATOR", "PAI_TASKS"]


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


PAI_JOBS = WorkloadFormat(
    "pai-job-table", "PAI's pai_job_table (refused: it has no GPUs)", _match_jobs, _refuse_jobs
)
PAI_SIMULATOR = WorkloadFormat(
    "pai-simulator", "the input of PAI's simulator", _match_simulator, _read_simulator
)


# Alibaba PAI's `pai_task_table`: a job is the tasks that share its name (see `pai`).

_COLUMNS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem",
    "plan_gpu", "gpu_type",
)  # fmt: skip
_PERCENT = 0.01


class _Job:
    """The tasks of one job so far."""

    __slots__ = ("end_s", "gpus", "line", "name", "start_s", "states", "unended", "unstarted")

    def __init__(self, name: str, line: int) -> None:
        self.name, self.line = name, line
        self.gpus = 0.0
        self.start_s, self.end_s = math.inf, -math.inf
        self.unstarted = self.unended = False
        self.states: list[str] = []


def _match(source: Source) -> str:
    rows = source.first_rows(",")
    if rows and len(rows[0]) == len(_COLUMNS) and any(row[3:4] in [[s] for s in _STATES] for row in rows):
        return "it has the 10 columns of pai_task_table, a PAI status among them"
    return ""


def _read(source: Source, ledger: ReadLedger) -> None:
    shared = 0
    for job in _gather(source, ledger):
        if job.gpus == 0:
            ledger.leave_out("CPU job")
        elif job.unstarted:
            ledger.leave_out("never started")
        elif job.unended:
            ledger.leave_out("still running when the log was taken")
        else:
            shared += not math.isclose(job.gpus, round(job.gpus), abs_tol=1e-9)
            ledger.add(_draft(job), job.line, "job_name")
    ledger.note(f"{shared} jobs ask for part of a GPU and were rounded up to whole GPUs")
    ledger.note("arrival is the first task's launch: the table does not say when the job was submitted")
    ledger.note("gpu_type is where a task ran, not what it required, and is not read")


def _gather(source: Source, ledger: ReadLedger) -> Iterator[_Job]:
    jobs: dict[str, _Job] = {}
    spoilt: set[str] = set()
    torn: list[str] = []
    for cells in table(source, ledger, columns=_COLUMNS, torn=torn):
        name = cells.text("job_name")
        if cells.line == 1 and tuple(cells.values) == _COLUMNS:
            continue
        try:
            _join(jobs.setdefault(name, _Job(name, cells.line)), cells)
        except RowError as error:
            ledger.reject(error)
            spoilt.add(name)
    spoilt |= {line.partition(",")[0].strip('"') for line in (*torn, *source.undecodable.values())}
    return (job for name, job in jobs.items() if name not in spoilt)


def _join(job: _Job, cells: Cells) -> None:
    if cells.text("plan_gpu"):
        job.gpus += cells.seconds("plan_gpu") * _PERCENT * cells.whole("inst_num")
    job.states.append(cells.text("status"))
    if not cells.text("start_time"):
        job.unstarted = True
        return
    start_s = cells.seconds("start_time")
    job.start_s = min(job.start_s, start_s)
    if not cells.text("end_time"):
        job.unended = True
        return
    end_s = cells.seconds("end_time")
    if end_s < start_s:
        raise cells.bad("end_time", "is before start_time", "correct or leave out the row")
    job.end_s = max(job.end_s, end_s)


def _draft(job: _Job) -> JobDraft:
    done = all(state == "Terminated" for state in job.states)
    return JobDraft(
        id=job.name,
        submit_s=job.start_s,
        gpus=math.ceil(job.gpus - 1e-9),
        duration_s=job.end_s - job.start_s,
        recorded_state="Terminated" if done else next(s for s in job.states if s != "Terminated"),
    )


PAI_TASKS = WorkloadFormat("pai-task-table", "Alibaba PAI's pai_task_table", _match, _read)
