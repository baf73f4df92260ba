"""Hemiola's own JSON: {"schema": "hemiola.workload/1", "name": ..., "notes": [...], "jobs": [...]}.

A job has the fields of `core.job.Job`, profile included; fields at their default may be missing.
"""

from __future__ import annotations

import math

import msgspec

from hemiola.core.errors import FormatError, InputError, RowError
from hemiola.core.job import Job, Profile, Workload
from hemiola.trace.workloads.cells import MAX_GPUS, MAX_SECONDS
from hemiola.trace.workloads.entries import decode_entries, decode_whole, numbered
from hemiola.trace.workloads.format import WorkloadFormat
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source

__all__ = ["NATIVE_JSON", "SCHEMA", "to_json"]

SCHEMA = "hemiola.workload/1"
_COUNTS = (("gpus", "GPUs", 1), ("hosts", "hosts", 0), ("gpus_min", "GPUs", 0), ("gpus_max", "GPUs", 0))


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    jobs: list[msgspec.Raw]
    name: str = ""
    notes: list[str] = []


class _Entry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    submit_s: float
    gpus: int
    duration_s: float
    profile: Profile | None = None
    model: str = ""
    user: str = ""
    queue: str = ""
    gpu_type: str = ""
    required: str = ""
    preferred: str = ""
    hosts: int = 0
    pinned: bool = False
    gpus_min: int = 0
    gpus_max: int = 0
    estimate_s: float | None = None
    recorded_start_s: float | None = None
    recorded_state: str = ""
    recorded_hosts: tuple[str, ...] = ()
    facts: dict[str, float] = {}


def _match(source: Source) -> str:
    if source.text.lstrip().startswith("{") and '"hemiola.workload/' in source.text:
        return 'it is a JSON object whose schema is "hemiola.workload/..."'
    return ""


def _read(source: Source, ledger: ReadLedger) -> None:
    found = decode_whole(source.path, source.text, _File)
    if found.schema != SCHEMA:
        raise FormatError(f"{source.path} has the schema {found.schema!r}", f"this version reads {SCHEMA!r}")
    for line, entry in decode_entries(ledger, numbered(source.text, found.jobs), _Entry):
        error = _flaw(source.path, line, entry)
        if error is not None:
            ledger.reject(error)
        else:
            ledger.add(JobDraft(**msgspec.structs.asdict(entry)), line, "id")
    for note in found.notes:
        ledger.note(note)


def _flaw(path: str, line: int, entry: _Entry) -> RowError | None:
    """What is wrong with an entry of the right shape, if anything."""
    for field, of, least in _COUNTS:
        count = getattr(entry, field)
        if not least <= count <= MAX_GPUS:
            return RowError(
                path, line, field, count, f"is not a number of {of}", f"give {least} to {MAX_GPUS}"
            )
    for field in ("submit_s", "duration_s", "estimate_s", "recorded_start_s"):
        value = getattr(entry, field)
        if value is not None and not 0 <= value <= MAX_SECONDS:
            return RowError(
                path, line, field, value, "is no time", "give seconds, 0 or more, less than 300 years"
            )
    return None


def to_json(workload: Workload) -> str:
    """The workload as native JSON, one job per line. Raises InputError for a number JSON has not."""
    head = msgspec.json.encode({"schema": SCHEMA, "name": workload.name, "notes": workload.notes}).decode()
    lines = ",\n".join(_line(job) for job in workload.jobs)
    return f'{head[:-1]},"jobs":[\n{lines}\n]}}\n'


def _line(job: Job) -> str:
    if not (math.isfinite(job.submit_s) and math.isfinite(job.duration_s)):
        raise InputError(f"job {job.id!r} has a time that is not finite", "correct it before writing")
    return msgspec.json.encode(_Entry(**{f: getattr(job, f) for f in _Entry.__struct_fields__})).decode()


NATIVE_JSON = WorkloadFormat("native-json", "Hemiola's own JSON", _match, _read, from_first=False)
