"""Hemiola's own JSON: {"schema": "hemiola.workload/1", "name": ..., "notes": [...], "jobs": [...]}.

A job has the fields of `core.job.Elastic`, profile included, and one of "services" those of `core.job.Service`, or
`requests_from`, the file of its requests (`services`); fields at their default may be missing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from hemiola.core.errors import FormatError, InputError, RowError
from hemiola.core.job import Batch, Configuration, Elastic, Profile, Service, Utility, Workload
from hemiola.core.resources import ResourceRequest
from hemiola.trace.atomic import replacing
from hemiola.trace.workloads.cells import MAX_GPUS, MAX_SECONDS, Cells, table
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.services import (
    SERVICE_COLUMNS,
    ServiceEntry,
    entry_of,
    read_row,
    service_of,
    table_of,
)
from hemiola.trace.workloads.source import Source, WorkloadFormat, decode_entries, decode_whole, numbered

__all__ = ["NATIVE_CSV", "NATIVE_JSON", "write_workload"]


SCHEMA = "hemiola.workload/1"
_COUNTS = (("gpus", "GPUs", 1), ("hosts", "hosts", 0), ("gpus_min", "GPUs", 0), ("gpus_max", "GPUs", 0))


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    jobs: list[msgspec.Raw] = []
    services: list[msgspec.Raw] = []
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
    configurations: tuple[Configuration, ...] = ()
    estimate_s: float | None = None
    recorded_start_s: float | None = None
    recorded_state: str = ""
    recorded_hosts: tuple[str, ...] = ()
    resources: ResourceRequest | None = None
    utility: Utility | None = None
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
    for line, service in decode_entries(ledger, numbered(source.text, found.services), ServiceEntry):
        error = _flaw(source.path, line, service)
        if error is not None:
            ledger.reject(error)
        else:
            _add_service(source, ledger, line, service)
    for note in found.notes:
        ledger.note(note)


def _add_service(source: Source, ledger: ReadLedger, line: int, entry: ServiceEntry) -> None:
    """The service, with its requests read from the file beside this one that it names."""
    from hemiola.trace.requests import read_requests  # which reads its files as workloads are read

    trace = None
    if entry.requests_from is not None:
        trace = read_requests(Path(source.path).parent / entry.requests_from.path)
        for note in trace.notes:
            ledger.note(note)
    ledger.add_service(service_of(entry, trace), line, "id")


def _flaw(path: str, line: int, entry: _Entry | ServiceEntry) -> RowError | None:
    """What is wrong with an entry of the right shape, if anything."""
    for field, of, least in _COUNTS:
        count = getattr(entry, field, least)
        if not least <= count <= MAX_GPUS:
            return RowError(
                path, line, field, count, f"is not a number of {of}", f"give {least} to {MAX_GPUS}"
            )
    for field in ("submit_s", "duration_s", "estimate_s", "recorded_start_s"):
        value = getattr(entry, field, None)
        if value is not None and not 0 <= value <= MAX_SECONDS:
            return RowError(
                path, line, field, value, "is no time", "give seconds, 0 or more, less than 300 years"
            )
    if entry.resources is not None and (flaw := entry.resources.flaw()):
        return RowError(path, line, "resources", entry.resources, flaw, "give amounts of 0 or more")
    if isinstance(entry, _Entry) and (found := _worth(entry)) is not None:
        return RowError(path, line, *found)
    return None


def _worth(entry: _Entry) -> tuple[str, object, str, str] | None:
    """What is wrong with its utility or its roles, if anything: (field, value, problem, remedy)."""
    if entry.utility is not None and (flaw := entry.utility.flaw()):
        return "utility", entry.utility, flaw, "give numbers of 0 or more"
    roles = None if entry.resources is None else entry.resources.roles
    if roles is not None and (flaw := roles.flaw(entry.gpus)):
        return "resources", roles, flaw, "give whole workers, and rates above 0"
    return None


def to_json(workload: Workload) -> str:
    """The workload as native JSON, one job per line. Raises InputError for a number JSON has not."""
    head = msgspec.json.encode({"schema": SCHEMA, "name": workload.name, "notes": workload.notes}).decode()
    lines = ",\n".join(_line(job) for job in workload.jobs)
    services = ",\n".join(_service_line(service) for service in workload.services)
    tail = f',"services":[\n{services}\n]' if services else ""
    return f'{head[:-1]},"jobs":[\n{lines}\n]{tail}}}\n'


def _line(job: Batch) -> str:
    if not (math.isfinite(job.submit_s) and math.isfinite(job.duration_s)):
        raise InputError(f"job {job.id!r} has a time that is not finite", "correct it before writing")
    facts = {f: getattr(job, f) for f in _Entry.__struct_fields__ if hasattr(job, f)}
    return msgspec.json.encode(_Entry(**facts)).decode()


def _service_line(service: Service) -> str:
    if (flaw := service.flaw()) or not math.isfinite(service.submit_s):
        raise InputError(
            f"service {service.id!r} cannot be: {flaw or 'its arrival is not finite'}",
            "correct it before writing",
        )
    return msgspec.json.encode(entry_of(service)).decode()


NATIVE_JSON = WorkloadFormat("native-json", "Hemiola's own JSON", _match, _read, from_first=False)


# Hemiola's own table: id, submit_s, gpus, duration_s, and whichever other facts of a job are known.

_REQUIRED = ("id", "submit_s", "gpus", "duration_s")
_TEXTS = ("model", "user", "queue", "gpu_type", "required", "preferred", "recorded_state")
_TIMES = ("estimate_s", "recorded_start_s")
_TABLE_COUNTS = ("hosts", "gpus_min", "gpus_max")
_PINNED, _RECORDED_HOSTS = "pinned", "recorded_hosts"
_OPTIONAL = (*_TEXTS, *_TABLE_COUNTS, _PINNED, *_TIMES, _RECORDED_HOSTS)
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Elastic)}
_BETWEEN_HOSTS = ";"
_IN_JSON_ONLY = {
    "profile": "a profile", "facts": "facts", "configurations": "configurations", "resources": "resources",
    "utility": "a utility",
}  # fmt: skip
_QUOTED = ',"\r\n'


def _match_table(source: Source) -> str:
    return "its header has id, submit_s, gpus and duration_s" if source.columns >= {*_REQUIRED} else ""


def _read_table(source: Source, ledger: ReadLedger) -> None:
    unknown = source.columns - {*_REQUIRED, *_OPTIONAL, *SERVICE_COLUMNS}
    if unknown:
        raise FormatError(
            f"{source.path} has the unknown column {', '.join(map(repr, sorted(unknown)))}",
            f"leave it out; known are {', '.join(_REQUIRED + _OPTIONAL + SERVICE_COLUMNS)}",
        )
    for cells in table(source, ledger):
        try:
            if _is_service(cells):
                ledger.add_service(read_row(cells), cells.line, "id")
            else:
                ledger.add(_draft(cells), cells.line, "id")
        except RowError as error:
            ledger.reject(error)


def _is_service(cells: Cells) -> bool:
    kind = cells.text("kind")
    if kind not in ("", "job", "service"):
        raise cells.bad("kind", "is no kind", "write job or service")
    return kind == "service"


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

    Raises InputError for a job with a profile or facts, a host whose name holds a semicolon, or a service with what no
    column holds.
    """
    several: tuple[Batch | Service, ...] = (*workload.jobs, *workload.services)
    columns = [c for c in _OPTIONAL if any(_value(one, c) != _DEFAULTS[c] for one in several)]
    columns += SERVICE_COLUMNS if workload.services else ()
    lines = [",".join((*_REQUIRED, *columns))]
    for job in workload.jobs:
        _refuse(job)
        lines.append(",".join(_cell(job, column) for column in (*_REQUIRED, *columns)))
    for service in workload.services:
        cells = table_of(service)
        lines.append(",".join(cells.get(c, "") or _cell(service, c) for c in (*_REQUIRED, *columns)))
    return "\n".join(lines) + "\n"


def _refuse(job: Batch) -> None:
    what = next((words for field, words in _IN_JSON_ONLY.items() if _value(job, field)), "")
    if what:
        raise InputError(f"job {job.id!r} has {what}, for which a table has no column", "write JSON instead")
    if any(_BETWEEN_HOSTS in host or not host for host in job.recorded_hosts):
        raise InputError(f"job {job.id!r}: a host's name is empty or holds ';'", "write JSON instead")


def _value(job: Batch | Service, column: str) -> Any:
    """The field; of jobs that have none such, its default."""
    return getattr(job, column, _DEFAULTS.get(column))


def _cell(job: Batch | Service, column: str) -> str:
    value = _value(job, column)
    if value == _DEFAULTS.get(column) or (column == "duration_s" and isinstance(job, Service)):
        return ""
    if column == _PINNED:
        return "yes"
    text = _BETWEEN_HOSTS.join(value) if column == _RECORDED_HOSTS else str(value)
    if any(character in text for character in _QUOTED):
        return '"' + text.replace('"', '""') + '"'
    return text


NATIVE_CSV = WorkloadFormat("native-csv", "Hemiola's own table", _match_table, _read_table, from_first=False)


# One way out: a workload as a native table or native JSON, plain or gzip.


def write_workload(workload: Workload, path: str | Path) -> None:
    """Write `workload` to `path`: .csv or .json, with .gz behind it to pack it.

    Reading it back gives the same jobs. Equal workloads give equal files.

    Raises:
        FormatError: the name has another ending.
        InputError: a table cannot hold one of the jobs, or the file cannot be written.
    """
    name = Path(path).name
    plain = name.removesuffix(".gz")
    if plain.endswith(".csv"):
        text = to_csv(workload)
    elif plain.endswith(".json"):
        text = to_json(workload)
    else:
        raise FormatError(
            f"{path}: the ending tells how to write it", "end it in .csv or .json, .gz may follow"
        )
    with replacing(Path(path)) as stream:
        stream.write(text.encode())
