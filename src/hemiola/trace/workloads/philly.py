"""Microsoft's Philly traces, `cluster_job_log`: one JSON object per job, with every attempt.

Source: github.com/msr-fiddle/philly-traces (Jeon et al., ATC'19). A job may have no attempts, an
attempt no times ("could be the result of a logging error"), and a last attempt without end was
still running when the log was taken.
"""

from __future__ import annotations

import msgspec

from hemiola.core.errors import RowError
from hemiola.trace.workloads.cells import Cells, read_rows, table
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source, WorkloadFormat, decode_entries, decode_whole, numbered

__all__ = ["PHILLY_CSV", "PHILLY_JSON"]


class _Host(msgspec.Struct):
    ip: str
    gpus: list[str]


class _Attempt(msgspec.Struct):
    start_time: str | None
    end_time: str | None
    detail: list[_Host]


class _Job(msgspec.Struct):
    status: str
    vc: str
    jobid: str
    attempts: list[_Attempt]
    submitted_time: str
    user: str = ""


def _match(source: Source) -> str:
    if source.head.lstrip().startswith("[") and '"jobid"' in source.head and '"attempts"' in source.head:
        return "it is a JSON array of jobs with jobid and attempts"
    return ""


def _read(source: Source, ledger: ReadLedger) -> None:
    raws = decode_whole(source.path, source.text, list[msgspec.Raw])
    for line, job in decode_entries(ledger, numbered(source.text, raws), _Job):
        try:
            draft = _draft(job, ledger, line)
        except RowError as error:
            ledger.reject(error)
            continue
        if isinstance(draft, str):
            ledger.leave_out(draft)
        else:
            ledger.add(draft, line, "jobid")
    ledger.note("GPUs and hosts are those of the first attempt; the duration is the sum of all attempts")
    ledger.note("jobs that failed or were killed are kept, with their recorded duration")


def _draft(job: _Job, ledger: ReadLedger, line: int) -> JobDraft | str:
    submit_s = _moment(ledger, line, "submitted_time", job.submitted_time)
    if not job.attempts:
        return "never started"
    spans = [_span(ledger, line, attempt) for attempt in job.attempts]
    if spans[-1][0] is not None and spans[-1][1] is None:
        return "still running when the log was taken"
    times = [(start_s, end_s) for start_s, end_s in spans if start_s is not None and end_s is not None]
    if len(times) < len(spans):
        return "an attempt has no start or no end"
    hosts = job.attempts[0].detail
    gpus = sum(len(host.gpus) for host in hosts)
    if not gpus:
        return "no GPU"
    start_s = times[0][0]
    early = start_s < submit_s
    if early:
        ledger.note("jobs that start before they are submitted keep no recorded start")
    return JobDraft(
        id=job.jobid,
        submit_s=submit_s,
        gpus=gpus,
        duration_s=sum(end_s - start_s for start_s, end_s in times),
        user=job.user,
        queue=job.vc,
        recorded_start_s=None if early else start_s,
        recorded_state=job.status,
        recorded_hosts=tuple(host.ip for host in hosts),
    )


def _span(ledger: ReadLedger, line: int, attempt: _Attempt) -> tuple[float | None, float | None]:
    start_s = _maybe_moment(ledger, line, "start_time", attempt.start_time)
    end_s = _maybe_moment(ledger, line, "end_time", attempt.end_time)
    if start_s is not None and end_s is not None and end_s < start_s:
        raise RowError(
            ledger.path,
            line,
            "end_time",
            attempt.end_time,
            "is before start_time",
            "correct or leave out the job",
        )
    return start_s, end_s


def _maybe_moment(ledger: ReadLedger, line: int, field: str, text: str | None) -> float | None:
    return None if text in (None, "", "None") else _moment(ledger, line, field, str(text))


def _moment(ledger: ReadLedger, line: int, field: str, text: str) -> float:
    try:
        return ledger.clock.seconds(text)
    except ValueError as error:
        raise RowError(ledger.path, line, field, text, str(error), "write 2017-10-09 07:01:55") from None


PHILLY_JSON = WorkloadFormat("philly-json", "Microsoft Philly's cluster_job_log", _match, _read)


# The Philly trace as others reduced it to a table: one row per job, no users, no states.

_COMMON = frozenset({"timestamp", "duration", "num_gpus", "cluster"})
_TOLERANCE = 1e-6


def _match_table(source: Source) -> str:
    if not source.columns >= _COMMON:
        return ""
    check = next((c for c in ("gpu_time", "submit") if c in source.columns), "")
    return f"its header has timestamp, duration, num_gpus, cluster and {check}" if check else ""


def _read_table(source: Source, ledger: ReadLedger) -> None:
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


PHILLY_CSV = WorkloadFormat(
    "philly-csv", "Philly as a table (AdaptDL's philly.csv and slices of it)", _match_table, _read_table
)
