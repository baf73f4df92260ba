"""Writing the decisions file: all that is needed to tell why a job waited. `decision_log` has its types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import msgspec

from hemiola.core.decisions import Decision, Move, Pace, Placement, Resize, Start, Stop, WakeAt, placement_of
from hemiola.core.errors import InputError
from hemiola.core.job import Job
from hemiola.core.result import Comparison, JobRecord, LoggedDecision, Run
from hemiola.core.series import has_timeline, job_spans, span_gpus
from hemiola.core.timeline import Timeline
from hemiola.core.topology import Topology
from hemiola.trace.atomic import replacing
from hemiola.trace.decision_log import (
    DECISIONS_SCHEMA,
    ClusterLine,
    LogHeader,
    JobFacts,
    DecisionLine,
    HostGpus,
    RunFacts,
    HeldSpan,
)

__all__ = ["write_decisions"]


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
                stream.write(encode(_line(run, logged, comparison.topology)) + b"\n")


def _not_kept(run: Run, what: str) -> InputError:
    where = f"the run of {run.policy!r}, seed {run.seed},"
    return InputError(f"{where} did not keep its {what}", "simulate again with both kept")


def _line(run: Run, logged: LoggedDecision, topology: Topology) -> DecisionLine:
    decision = logged.decision
    placement = placement_of(decision)
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
