"""Microsoft's Philly traces, `cluster_job_log`: one JSON object per job, with every attempt.

Source: github.com/msr-fiddle/philly-traces (Jeon et al., ATC'19). A job may have no attempts, an
attempt no times ("could be the result of a logging error"), and a last attempt without end was
still running when the log was taken.
"""

from __future__ import annotations

import msgspec

from hemiola.core.errors import RowError
from hemiola.trace.workloads.entries import decode_entries, decode_whole, numbered
from hemiola.trace.workloads.format import WorkloadFormat
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source

__all__ = ["PHILLY_JSON"]


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
