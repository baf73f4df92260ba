"""Hemiola's own table: id, submit_s, gpus, duration_s, and whichever other facts of a job are known.

Everything of a `core.job.Job` but its profile and facts; reading what was written gives the same jobs.
"""

from __future__ import annotations

import msgspec

from hemiola.core.errors import FormatError, InputError
from hemiola.core.job import Job, Workload
from hemiola.trace.workloads.cells import Cells, read_rows, table
from hemiola.trace.workloads.format import WorkloadFormat
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source

__all__ = ["NATIVE_CSV", "to_csv"]

_REQUIRED = ("id", "submit_s", "gpus", "duration_s")
_TEXTS = ("model", "user", "queue", "gpu_type", "required", "preferred", "recorded_state")
_TIMES = ("estimate_s", "recorded_start_s")
_COUNTS = ("hosts", "gpus_min", "gpus_max")
_PINNED, _RECORDED_HOSTS = "pinned", "recorded_hosts"
_OPTIONAL = (*_TEXTS, *_COUNTS, _PINNED, *_TIMES, _RECORDED_HOSTS)
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Job)}
_BETWEEN_HOSTS = ";"
_QUOTED = ',"\r\n'


def _match(source: Source) -> str:
    return "its header has id, submit_s, gpus and duration_s" if source.columns >= {*_REQUIRED} else ""


def _read(source: Source, ledger: ReadLedger) -> None:
    unknown = source.columns - {*_REQUIRED, *_OPTIONAL}
    if unknown:
        raise FormatError(
            f"{source.path} has the unknown column {', '.join(map(repr, sorted(unknown)))}",
            f"leave it out; known are {', '.join(_REQUIRED + _OPTIONAL)}",
        )
    read_rows(table(source, ledger), ledger, _draft, "id")


def _draft(cells: Cells) -> JobDraft:
    recorded_hosts = cells.text(_RECORDED_HOSTS)
    return JobDraft(
        id=cells.text("id"),
        submit_s=cells.seconds("submit_s"),
        gpus=cells.gpus("gpus"),
        duration_s=cells.seconds("duration_s"),
        estimate_s=cells.maybe_seconds("estimate_s"),
        recorded_start_s=cells.maybe_seconds("recorded_start_s"),
        recorded_hosts=tuple(recorded_hosts.split(_BETWEEN_HOSTS)) if recorded_hosts else (),
        model=cells.text("model"),
        user=cells.text("user"),
        queue=cells.text("queue"),
        gpu_type=cells.text("gpu_type"),
        required=cells.text("required"),
        preferred=cells.text("preferred"),
        hosts=cells.maybe_whole("hosts", "hosts"),
        gpus_min=cells.maybe_whole("gpus_min"),
        gpus_max=cells.maybe_whole("gpus_max"),
        pinned=cells.yes(_PINNED),
        recorded_state=cells.text("recorded_state"),
    )


def to_csv(workload: Workload) -> str:
    """The workload as a native table; columns that no job fills are left out.

    Raises InputError for a job with a profile or facts, or a host whose name holds a semicolon.
    """
    columns = [c for c in _OPTIONAL if any(getattr(job, c) != _DEFAULTS[c] for job in workload.jobs)]
    lines = [",".join((*_REQUIRED, *columns))]
    for job in workload.jobs:
        _refuse(job)
        lines.append(",".join(_cell(job, column) for column in (*_REQUIRED, *columns)))
    return "\n".join(lines) + "\n"


def _refuse(job: Job) -> None:
    if job.profile is not None or job.facts:
        what = "facts" if job.profile is None else "a profile"
        raise InputError(f"job {job.id!r} has {what}, for which a table has no column", "write JSON instead")
    if any(_BETWEEN_HOSTS in host or not host for host in job.recorded_hosts):
        raise InputError(f"job {job.id!r}: a host's name is empty or holds ';'", "write JSON instead")


def _cell(job: Job, column: str) -> str:
    value = getattr(job, column)
    if value == _DEFAULTS[column]:
        return ""
    if column == _PINNED:
        return "yes"
    text = _BETWEEN_HOSTS.join(value) if column == _RECORDED_HOSTS else str(value)
    if any(character in text for character in _QUOTED):
        return '"' + text.replace('"', '""') + '"'
    return text


NATIVE_CSV = WorkloadFormat("native-csv", "Hemiola's own table", _match, _read, from_first=False)
