"""Services in workload files and scenarios: as an entry of JSON or TOML, and as a row of Hemiola's own table.

A row has the columns of a job and `kind` (service), `duration_s` empty; what a replica takes stands in `latency_s` as
"1:0.2;8:0.4" (batch and seconds), rates in `arrivals` as "0:3;600:5" (from when on, requests per second).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from hemiola.core.errors import InputError
from hemiola.core.job import Objective, RequestRate, Service
from hemiola.core.latency import BatchTime, LatencyProfile, Request
from hemiola.core.resources import ResourceRequest
from hemiola.trace.workloads.cells import Cells

if TYPE_CHECKING:
    from hemiola.trace.requests import RequestTrace

__all__ = [
    "SERVICE_COLUMNS",
    "RequestsFrom",
    "ServiceEntry",
    "entry_of",
    "read_row",
    "service_of",
    "table_of",
]


class RequestsFrom(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file of requests, and what of it is taken (`trace.requests`).

    Attributes:
        path: beside the file that names it.
        scale: so many times as many requests per second.
        start_s, span_s: only what comes from then on, for so long; the whole file unless given.
        each_seed_s: each further seed of a scenario begins so much later in the file, round its end.
        every_s: rates become straight lines, one rate for each so many seconds.
        after_s: the first request comes so long after the service is submitted, as of one that starts before it is announced.
    """

    path: str
    scale: float = 1.0
    start_s: float = 0.0
    span_s: float | None = None
    each_seed_s: float = 0.0
    every_s: float = 0.0
    after_s: float = 0.0


class ServiceEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A service as a file has it: the fields of `core.job.Service`, and where its requests are."""

    id: str
    gpus: int
    objective: Objective
    submit_s: float = 0.0
    arrivals: tuple[RequestRate, ...] = ()
    requests: tuple[Request, ...] = ()
    requests_from: RequestsFrom | None = None
    latency: LatencyProfile | None = None
    replicas_min: int = 0
    replicas_max: int = 1
    cold_start_s: float = 0.0
    cold_start_spread: float = 0.0
    burst_cv: float = 0.0
    burst_s: float = 5.0
    timeout_s: float = 60.0
    replica_life_s: float | None = None
    model: str = ""
    user: str = ""
    queue: str = ""
    gpu_type: str = ""
    required: str = ""
    preferred: str = ""
    hosts: int = 0
    pinned: bool = False
    resources: ResourceRequest | None = None
    facts: dict[str, float] = {}


def service_of(entry: ServiceEntry, trace: RequestTrace | None = None, seed: int = 0) -> Service:
    """The service, with the part of the trace that it takes.

    Raises:
        InputError: it has requests of its own and a file of them, or the file has none for it.
    """
    facts = msgspec.structs.asdict(entry)
    facts.pop("requests_from")
    wanted = entry.requests_from
    if wanted is not None and trace is not None:
        if entry.arrivals or entry.requests:
            raise InputError(f"service {entry.id!r} has requests, and a file of them", "leave one out")
        span_s = math.inf if wanted.span_s is None else wanted.span_s
        start_s = wanted.start_s + seed * wanted.each_seed_s
        if seed and trace.span_s:
            room_s = max(trace.span_s - (0.0 if math.isinf(span_s) else span_s), 1.0)
            start_s %= room_s
        part = trace.part(scale=wanted.scale, start_s=start_s, span_s=span_s, every_s=wanted.every_s)
        begin_s = entry.submit_s + wanted.after_s
        facts["arrivals"] = tuple(
            RequestRate(one.since_s + begin_s, one.requests_per_s) for one in part.arrivals
        )
        facts["requests"] = tuple(
            Request(one.time_s + begin_s, one.input_tokens, one.output_tokens) for one in part.requests
        )
    return Service(**facts)


def entry_of(service: Service) -> ServiceEntry:
    """The entry that reads back as this service."""
    facts = {f: getattr(service, f) for f in ServiceEntry.__struct_fields__ if f != "requests_from"}
    return ServiceEntry(**facts)


# ---- a row of a table -----------------------------------------------------------------------

_OF_A_TABLE: dict[str, Callable[[Service], Any]] = {
    "objective_latency_s": lambda one: one.objective.latency_s,
    "objective_share": lambda one: one.objective.share,
    "replicas_min": lambda one: one.replicas_min,
    "replicas_max": lambda one: one.replicas_max,
    "cold_start_s": lambda one: one.cold_start_s,
    "latency_s": lambda one: (
        ";".join(f"{b.batch}:{b.seconds!r}" for b in one.latency.batches) if one.latency else ""
    ),
    "arrivals": lambda one: ";".join(f"{r.since_s!r}:{r.requests_per_s!r}" for r in one.arrivals),
    "burst_cv": lambda one: one.burst_cv,
    "timeout_s": lambda one: one.timeout_s,
}
SERVICE_COLUMNS = ("kind", *_OF_A_TABLE)
"""Columns of a table that services fill, and jobs leave empty."""
_BARE = {"objective_share": 0.99, "replicas_min": 0, "replicas_max": 1, "cold_start_s": 0.0, "burst_cv": 0.0, "timeout_s": 60.0}  # fmt: skip


def read_row(cells: Cells) -> Service:
    """The service of a row. Raises RowError for a cell that cannot be read."""

    def number(column: str) -> float:
        return cells.number(column) if cells.text(column) else _BARE[column]

    latency = tuple(BatchTime(int(batch), seconds) for batch, seconds in _pairs(cells, "latency_s"))
    arrivals = tuple(RequestRate(since_s, rate) for since_s, rate in _pairs(cells, "arrivals"))
    return Service(
        id=cells.text("id"),
        submit_s=cells.seconds("submit_s"),
        gpus=cells.gpus("gpus"),
        objective=Objective(cells.number("objective_latency_s"), number("objective_share")),
        arrivals=arrivals,
        latency=LatencyProfile(latency) if latency else None,
        replicas_min=int(number("replicas_min")),
        replicas_max=int(number("replicas_max")),
        cold_start_s=number("cold_start_s"),
        burst_cv=number("burst_cv"),
        timeout_s=number("timeout_s"),
        model=cells.text("model"),
        user=cells.text("user"),
        queue=cells.text("queue"),
        gpu_type=cells.text("gpu_type"),
        required=cells.text("required"),
        preferred=cells.text("preferred"),
    )


def _pairs(cells: Cells, column: str) -> list[tuple[float, float]]:
    text = cells.text(column)
    try:
        pairs = [tuple(float(number) for number in pair.split(":")) for pair in text.split(";") if pair]
        return [(one, other) for one, other in pairs]
    except ValueError:
        raise cells.bad(column, "is no list of pairs of numbers", "write it as 0:3;600:5") from None


def table_of(service: Service) -> dict[str, str]:
    """The cells of a service that a job has not.

    Raises:
        InputError: it has what no column holds.
    """
    cells = {"kind": "service", **{name: str(value(service)) for name, value in _OF_A_TABLE.items()}}
    bare = Service(
        id=service.id, submit_s=service.submit_s, gpus=service.gpus, arrivals=service.arrivals,
        objective=Objective(service.objective.latency_s, service.objective.share),
        latency=LatencyProfile(service.latency.batches) if service.latency else None,
        replicas_min=service.replicas_min, replicas_max=service.replicas_max, cold_start_s=service.cold_start_s,
        burst_cv=service.burst_cv, timeout_s=service.timeout_s, model=service.model, user=service.user,
        queue=service.queue, gpu_type=service.gpu_type, required=service.required, preferred=service.preferred,
    )  # fmt: skip
    if bare != service:
        raise InputError(
            f"service {service.id!r} has single requests, tokens or more, for which a table has no column",
            "write JSON instead",
        )
    return cells
