"""What the Helios and Acme tables share: the columns of a Slurm-like accounting log.

Times are dates; `duration` and `queue` (seconds) repeat their differences and are checked.
"""

from __future__ import annotations

from hemiola.trace.workloads.cells import Cells, read_rows, table
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source, WorkloadFormat

__all__ = ["ACME", "HELIOS"]


COLUMNS = frozenset(
    {"job_id", "user", "gpu_num", "node_num", "state", "submit_time", "start_time", "end_time", "duration"}
)
_ABSENT = ("", "None", "Unknown", "nan", "NaT")
_FROM_SUBMISSION = "duration counts from submission in some rows; end_time - start_time is used"


def draft(cells: Cells, ledger: ReadLedger) -> JobDraft | str:
    """A job of one row, or the reason why it is none. The run time is end_time - start_time."""
    gpus = cells.whole("gpu_num")
    submit_s = cells.moment("submit_time")
    if gpus == 0:
        return "CPU job"
    if cells.text("start_time") in _ABSENT:
        return "never started"
    if cells.text("end_time") in _ABSENT:
        return "still running when the log was taken"
    start_s, end_s = cells.moment("start_time"), cells.moment("end_time")
    _check(cells, ledger, submit_s, start_s, end_s)
    return JobDraft(
        id=cells.text("job_id"),
        submit_s=submit_s,
        gpus=gpus,
        duration_s=end_s - start_s,
        user=cells.text("user"),
        queue=cells.text("vc"),
        recorded_start_s=start_s,
        recorded_state=cells.text("state"),
    )


def _check(cells: Cells, ledger: ReadLedger, submit_s: float, start_s: float, end_s: float) -> None:
    if end_s < start_s:
        raise cells.bad("end_time", "is before start_time", "correct or leave out the row")
    if start_s < submit_s:
        raise cells.bad("start_time", "is before submit_time", "correct or leave out the row")
    declared_s = cells.seconds("duration")
    if abs(declared_s - (end_s - start_s)) > 1.0:
        if abs(declared_s - (end_s - submit_s)) > 1.0:
            raise cells.bad(
                "duration", "is not end_time - start_time", f"expected {end_s - start_s:g} s; give seconds"
            )
        ledger.note(_FROM_SUBMISSION)


# SenseTime's Helios traces, `cluster_log.csv` (Hu et al., SC'21).


def _match_helios(source: Source) -> str:
    if source.columns >= COLUMNS | {"vc"}:
        return "its header has job_id, vc, gpu_num, node_num and the times of an accounting log"
    return ""


def _read_helios(source: Source, ledger: ReadLedger) -> None:
    read_rows(table(source, ledger), ledger, lambda cells: draft(cells, ledger), "job_id")
    ledger.note("jobs that failed, timed out or were cancelled while running are kept")


HELIOS = WorkloadFormat("helios", "SenseTime Helios cluster_log.csv", _match_helios, _read_helios)


# Shanghai AI Lab's Acme traces, `trace_seren.csv` and `trace_kalos.csv` (Hu et al., NSDI'24).


def _match_acme(source: Source) -> str:
    if source.columns >= COLUMNS | {"type", "gpu_time"}:
        return "its header has job_id, type, gpu_num, gpu_time and the times of an accounting log"
    return ""


def _read_acme(source: Source, ledger: ReadLedger) -> None:
    def make(cells: Cells) -> JobDraft | str:
        made = draft(cells, ledger)
        if isinstance(made, JobDraft):
            expected = cells.seconds("duration") * made.gpus
            if abs(cells.number("gpu_time") - expected) > max(1e-6 * expected, made.gpus):
                raise cells.bad("gpu_time", "is not duration * gpu_num", f"expected {expected:g}")
            made.model = cells.text("type")
        return made

    read_rows(table(source, ledger), ledger, make, "job_id")
    ledger.note("model is the trace's workload type (Pretrain, SFT, Evaluation, ...)")
    ledger.note("jobs that failed, timed out or were cancelled while running are kept")


ACME = WorkloadFormat(
    "acme", "Shanghai AI Lab Acme trace_seren.csv, trace_kalos.csv", _match_acme, _read_acme
)
