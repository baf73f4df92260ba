"""What a decisions file holds, and reading it. Knows nothing of simulations or of how it is told.

The first line is the header: the cluster, and for each run its rules and what became of its
jobs. Every other line is one decision, in the order in which it was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import msgspec

from hemiola.core.decisions import (
    Align,
    Decision,
    Lend,
    Move,
    Pace,
    Placement,
    Reallocate,
    Reclaim,
    Resize,
    Scale,
    Start,
    Stop,
    WakeAt,
    configuration_of,
    parts,
    placement_of,
)
from hemiola.core.errors import DAMAGED, InputError
from hemiola.core.job import Configuration, Job
from hemiola.core.result import Comparison, JobRecord, LoggedDecision, Run
from hemiola.core.timeline import Timeline, has_timeline, job_spans, span_gpus
from hemiola.core.topology import Topology
from hemiola.trace.atomic import replacing
from hemiola.trace.results import read_bytes, wrong_schema

__all__ = [
    "DecisionLine",
    "DecisionLog",
    "HeldSpan",
    "HostGpus",
    "JobFacts",
    "RunFacts",
    "read_decisions",
    "write_decisions",
]


DECISIONS_SCHEMA = "hemiola.decisions/1"


class HostGpus(msgspec.Struct, frozen=True):
    """GPUs of one host, by name and number."""

    host: str
    gpus: tuple[int, ...]


class DecisionLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision.

    Attributes:
        kind: "start", "stop", "move", "resize", "pace", "align", "scale", "lend", "reclaim" or "wake".
        placement: hosts and GPUs in rank order, for start, move and resize.
        wake_s: when the timer is due, for wake.
        weight: share of contended links, for pace.
        refused: why it was not carried out; "" if it was.
        configuration: how the job splits its batch, for start and resize.
        replicas: hosts and GPUs of each, for scale.
        link, offset_s: for align.
        hosts, lender, borrower, due_s: for lend and reclaim.
        together: of how many lines this is one, where they were one decision (a reallocation), all or none; 1 else.
    """

    policy: str
    seed: int
    time_s: float
    kind: str
    job: str
    reason: str
    free_gpus: int
    waiting: int
    refused: str
    placement: tuple[HostGpus, ...] = ()
    wake_s: float | None = None
    weight: float | None = None
    configuration: Configuration | None = None
    replicas: tuple[tuple[HostGpus, ...], ...] = ()
    link: int | None = None
    offset_s: float | None = None
    hosts: tuple[str, ...] = ()
    lender: str = ""
    borrower: str = ""
    due_s: float | None = None
    together: int = 1


class HeldSpan(msgspec.Struct, frozen=True, array_like=True):
    """A while in which the job held GPUs: from, work from, to, GPUs, tier's name, how it ended."""

    start_s: float
    resume_s: float
    end_s: float
    gpus: int
    tier: str
    outcome: str


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asked for and what became of it; see `JobRecord` for the figures."""

    id: str
    gpus: int
    submit_s: float
    status: str
    why: str
    finish_s: float | None
    queueing_s: float
    run_s: float
    useful_s: float
    exposed_communication_s: float
    checkpoint_s: float
    lost_s: float
    ideal_s: float
    model: str
    user: str
    queue: str
    gpu_type: str | None
    required: str | None
    preferred: str | None
    spans: tuple[HeldSpan, ...]


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its rules and its jobs in order of arrival."""

    policy: str
    seed: int
    semantics: dict[str, str]
    origin_s: float
    end_s: float
    interrupted: bool
    jobs: tuple[JobFacts, ...]


class ClusterLine(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster: hosts in order of their index, and for each level each host's domain."""

    name: str
    hosts: tuple[str, ...]
    gpus: tuple[int, ...]
    gpu_types: tuple[str, ...]
    tiers: tuple[str, ...]
    levels: dict[str, tuple[str, ...]]


class LogHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    schema: str
    workload: str
    topology: ClusterLine
    runs: tuple[RunFacts, ...]


class DecisionLog(msgspec.Struct, frozen=True):
    """A decisions file."""

    header: LogHeader
    lines: tuple[DecisionLine, ...]


def read_decisions(path: Path) -> DecisionLog:
    """Read a file of `write_decisions` back.

    Raises:
        InputError: if it is missing, not such a file, or broken; names the line.
    """
    rows = read_bytes(path).splitlines()
    try:
        header = msgspec.json.decode(rows[0] if rows else b"", type=LogHeader)
    except DAMAGED as error:
        raise wrong_schema(path, DECISIONS_SCHEMA, str(error)) from error
    if header.schema != DECISIONS_SCHEMA:
        raise wrong_schema(path, DECISIONS_SCHEMA, f"its schema is {header.schema!r}")
    return DecisionLog(header, tuple(_lines(rows[1:], path)))


def _lines(rows: list[bytes], path: Path) -> Iterator[DecisionLine]:
    decode = msgspec.json.Decoder(DecisionLine).decode
    for number, row in enumerate(rows, start=2):
        try:
            yield decode(row)
        except DAMAGED as error:
            raise InputError(
                f"{path}:{number}: not a decision: {error}", "write the file again; it may have been cut off"
            ) from error


# Writing the decisions file: all that is needed to tell why a job waited. Its types stand above.


def write_decisions(comparison: Comparison, path: Path) -> None:
    """Write the decisions of every run (schema "hemiola.decisions/1").

    Raises:
        InputError: if a run kept no decisions although it made some, or no timeline, or the path
            cannot be written.
    """
    for run in comparison.runs:
        if run.decisions_made and not run.decisions:
            raise _not_kept(run, f"{run.decisions_made} decisions")
        if not has_timeline(run):
            raise _not_kept(run, "timeline")
    encode = msgspec.json.Encoder().encode
    with replacing(path) as stream:
        stream.write(encode(_header(comparison)) + b"\n")
        for run in comparison.runs:
            for logged in run.decisions:
                for line in _lines_of(run, logged, comparison.topology):
                    stream.write(encode(line) + b"\n")


def _not_kept(run: Run, what: str) -> InputError:
    where = f"the run of {run.policy!r}, seed {run.seed},"
    return InputError(f"{where} did not keep its {what}", "simulate again with both kept")


def _lines_of(run: Run, logged: LoggedDecision, topology: Topology) -> Iterator[DecisionLine]:
    """One; of a reallocation one for each of its changes."""
    together = parts(logged.decision)
    for decision in together:
        yield _line(run, logged, decision, topology, len(together))


def _line(
    run: Run, logged: LoggedDecision, decision: Decision, topology: Topology, together: int
) -> DecisionLine:
    placement = placement_of(decision)
    names = topology.hosts.names
    lending = decision if isinstance(decision, Lend | Reclaim) else None
    return DecisionLine(
        policy=run.policy,
        seed=run.seed,
        time_s=logged.time_s,
        kind=_kind(decision),
        job=decision.job_id,
        reason=decision.reason,
        free_gpus=logged.free_gpus,
        waiting=logged.waiting,
        refused=logged.refused,
        placement=() if placement is None else _places(placement, topology),
        wake_s=decision.time_s if isinstance(decision, WakeAt) else None,
        weight=decision.weight if isinstance(decision, Pace) else None,
        configuration=configuration_of(decision),
        replicas=tuple(_places(r, topology) for r in decision.replicas)
        if isinstance(decision, Scale)
        else (),
        link=decision.link if isinstance(decision, Align) else None,
        offset_s=decision.offset_s if isinstance(decision, Align) else None,
        hosts=() if lending is None else tuple(names[host] for host in lending.hosts),
        lender="" if lending is None else lending.lender,
        borrower=lending.borrower if isinstance(lending, Lend) else "",
        due_s=None if lending is None else lending.due_s if isinstance(lending, Lend) else lending.deadline_s,
        together=together,
    )


def _kind(decision: Decision) -> str:
    match decision:
        case Start():
            return "start"
        case Stop():
            return "stop"
        case Move():
            return "move"
        case Resize():
            return "resize"
        case Pace():
            return "pace"
        case WakeAt():
            return "wake"
        case Align():
            return "align"
        case Scale():
            return "scale"
        case Lend():
            return "lend"
        case Reclaim():
            return "reclaim"
        case Reallocate():
            return "reallocate"
        case _:
            assert_never(decision)


def _places(placement: Placement, topology: Topology) -> tuple[HostGpus, ...]:
    names, count = topology.hosts.names, len(topology.hosts)
    return tuple(
        HostGpus(names[host] if 0 <= host < count else f"host {host}", tuple(_bits(mask)))
        for host, mask in zip(placement.hosts, placement.masks, strict=True)
    )


def _bits(mask: int) -> Iterator[int]:
    return (gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)


def _header(comparison: Comparison) -> LogHeader:
    return LogHeader(
        schema=DECISIONS_SCHEMA,
        workload=comparison.workload_name,
        topology=_cluster(comparison.topology),
        runs=tuple(_run_facts(run, comparison) for run in comparison.runs),
    )


def _cluster(topology: Topology) -> ClusterLine:
    return ClusterLine(
        name=topology.name,
        hosts=topology.hosts.names,
        gpus=tuple(topology.hosts.gpus.tolist()),
        gpu_types=topology.hosts.gpu_types,
        tiers=topology.tiers,
        levels={
            level.name: tuple(level.domains[domain] for domain in level.domain_of_host.tolist())
            for level in topology.levels
        },
    )


def _run_facts(run: Run, comparison: Comparison) -> RunFacts:
    wanted = {job.id: job for job in comparison.workloads.get(run.seed, ())}
    spans = _spans(run.timeline, comparison.topology, len(run.records))
    return RunFacts(
        policy=run.policy,
        seed=run.seed,
        semantics=run.semantics,
        origin_s=run.origin_s,
        end_s=run.end_s,
        interrupted=run.interrupted,
        jobs=tuple(
            _job_facts(record, wanted.get(record.id), tuple(held))
            for record, held in zip(run.records, spans, strict=True)
        ),
    )


def _job_facts(record: JobRecord, job: Job | None, spans: tuple[HeldSpan, ...]) -> JobFacts:
    kept = {name: getattr(record, name) for name in JobFacts.__struct_fields__ if hasattr(record, name)}
    return JobFacts(
        **kept,
        gpu_type=None if job is None else job.gpu_type,
        required=None if job is None else job.required,
        preferred=None if job is None else job.preferred,
        spans=spans,
    )


def _spans(timeline: Timeline | None, topology: Topology, jobs: int) -> list[list[HeldSpan]]:
    spans: list[list[HeldSpan]] = [[] for _ in range(jobs)]
    if timeline is None:
        return spans
    opens = job_spans(timeline)
    gpus = span_gpus(timeline)[opens].tolist()
    columns = (
        timeline.job,
        timeline.start_s,
        timeline.resume_s,
        timeline.end_s,
        timeline.tier,
        timeline.outcome,
    )
    for (job, start_s, resume_s, end_s, tier, outcome), held in zip(
        zip(*(column[opens].tolist() for column in columns), strict=True), gpus, strict=True
    ):
        spans[job].append(
            HeldSpan(start_s, resume_s, end_s, held, topology.tiers[tier], Timeline.OUTCOMES[outcome])
        )
    return spans
