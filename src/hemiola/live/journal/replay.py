"""A run of the journal decided once more: the same events, and what the policy says to them today."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import msgspec

from hemiola.core.decisions import Decision
from hemiola.core.errors import InputError
from hemiola.core.job import Batch, Workload
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.live.journal.journal import Journal
from hemiola.live.journal.records import DECISIONS, Instant, JournaledJob, Opening
from hemiola.sched.loop import DecisionGate, is_quiet
from hemiola.sched.machine import StateMachine
from hemiola.sched.policies import policy_from_text
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import SimulatedEstimates
from hemiola.simulator.scenario import Served
from hemiola.trace.struct_json import as_text
from hemiola.trace.topologies.native import read_native

__all__ = ["SERVED", "replay", "workload"]


Answered = tuple[tuple[Decision, str], ...]


class ReplayDifference(msgspec.Struct, frozen=True):
    """An instant that is decided otherwise now.

    Attributes:
        written, decided: each decision with why it was refused ("" if not).
    """

    instant: int
    time_s: float
    written: Answered
    decided: Answered


class ReplayResult(msgspec.Struct, frozen=True):
    """How far a replay came.

    Attributes:
        instants, decisions: how many were the same.
        difference: the first that was not, and the last to be compared: what follows was decided on another view.
    """

    instants: int
    decisions: int
    difference: ReplayDifference | None


def replay(journal: Journal, run: int, policy: Policy | None = None) -> ReplayResult:
    """Feed a run's events to a fresh state machine and compare what is decided, to the byte.

    Ends where the journal was cut off: at an instant whose decisions were never written.

    Args:
        policy: the policy to ask; the run's own unless given.

    Raises:
        InputError: there is no such run.
        JournalError: the journal cannot be read, or holds what this version does not know.
        PolicyError: the run's policy is not known here.
    """
    record = journal.run(run)
    policy = policy or policy_from_text(record.opening.policy)
    machine = _machine(record.opening, record.began_s, f"the topology of run {run} of {journal.name}")
    gate = DecisionGate(machine, record.opening.supported)
    instants = decisions = 0
    for instant in journal.instants(run):
        if instant.decisions is None:
            break
        decided = _decide(machine, gate, policy, instant)
        if DECISIONS.encode(decided) != DECISIONS.encode(instant.decisions):
            return ReplayResult(
                instants,
                decisions,
                ReplayDifference(instant.instant, machine.view.now, instant.decisions, decided),
            )
        instants, decisions = instants + 1, decisions + len(decided)
    return ReplayResult(instants, decisions, None)


def _machine(opening: Opening, began_s: float, where: str) -> StateMachine:
    topology = read_native(opening.topology, where)
    model = IterationModel(topology, fitted=opening.fitted)
    return StateMachine(ClusterView(topology, SimulatedEstimates(model, opening.costs), now=began_s))


def _decide(machine: StateMachine, gate: DecisionGate, policy: Policy, instant: Instant) -> Answered:
    """As `run_loop` does; written and read back, so that 1 and 1.0 do not differ."""
    machine.apply(*instant.events)
    if not instant.events or is_quiet(instant.events):
        return ()
    return DECISIONS.decode(DECISIONS.encode(gate.decide(policy)), "a decision")


# What a live cluster was really given to do, as a workload to simulate.

FORMAT = "journal"


def workload(journal: Journal, since_s: float | None = None, until_s: float | None = None) -> Workload:
    """The jobs that were submitted at `since_s` or later and before `until_s`, and have run and ended.

    A job's run time is the time for which it held GPUs; where its speed was measured, the time that the same work
    takes at full speed. Failed and cancelled jobs that ran are kept. Jobs that never started took no GPUs, and of
    jobs that have not ended, or ended while nobody watched, nobody knows the run time: all are left out and counted.

    Raises:
        InputError: no job is left.
        JournalError: the journal cannot be read.
    """
    skipped: Counter[str] = Counter()
    kept: list[JournaledJob] = []
    for record in journal.jobs_by_submission(since_s, until_s):
        if why := _left_out(record):
            skipped[why] += 1
        else:
            kept.append(record)
    if not kept:
        left_out = ", ".join(f"{count:,} {why}" for why, count in skipped.items()) or "it has none at all"
        raise InputError(
            f"no job of {journal.name} can be simulated: {left_out}", "wait until jobs have ended"
        )
    origin_s = kept[0].submitted_s
    return Workload(
        jobs=tuple(_job(record, origin_s) for record in kept),
        name=as_text(journal.name),
        format=FORMAT,
        why="it is the journal of `hemiola serve`",
        skipped=dict(skipped),
        notes=_notes(kept, origin_s),
    )


def _served_topology(path: str) -> Topology:
    with Journal.open(path, read_only=True) as journal:
        runs = journal.runs()
    if not runs:
        raise InputError(f"the journal {path} has no run", "wait until it was served, or give --cluster")
    return read_native(runs[-1].opening.topology, as_text(path))


def _served_workload(path: str) -> Workload:
    with Journal.open(path, read_only=True) as journal:
        return workload(journal)


SERVED = Served(topology=_served_topology, workload=_served_workload)
"""How `simulator.scenario.prepare` reads a scenario's journal."""


def _left_out(record: JournaledJob) -> str:
    if record.status != "ended":
        return "not ended yet" if record.first_started_s is not None else "not started yet"
    if record.unwatched:
        return "ended while nobody watched"
    return "never started" if record.first_started_s is None else ""


def _job(record: JournaledJob, origin_s: float) -> Batch:
    assert record.first_started_s is not None
    return msgspec.structs.replace(
        record.job,
        submit_s=record.submitted_s - origin_s,
        duration_s=_work_s(record),
        recorded_start_s=record.first_started_s - origin_s,
        recorded_state=record.outcome,
    )


def _work_s(record: JournaledJob) -> float:
    """Its run time on the GPUs that it asked for, at full speed where its speed was measured.

    Of an elastic job, unless that was measured: as much shorter than on fewer GPUs as they are fewer.
    """
    if record.speed is not None:
        return record.served_s * record.speed
    if record.service_gpu_s is not None:
        return record.service_gpu_s / record.job.gpus
    return record.served_s


def _notes(kept: list[JournaledJob], origin_s: float) -> tuple[str, ...]:
    when = datetime.fromtimestamp(origin_s, UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
    measured = sum(record.speed is not None for record in kept)
    others = sum(record.outcome != "finished" for record in kept)
    notes = [
        f"time 0 is the first submission, {when} UTC",
        f"run times are those that the jobs really had, where they ran; of {measured:,} of {len(kept):,} the speed was "
        "measured, and theirs is what the same work takes at full speed",
    ]
    if others:
        notes.append(
            f"{others:,} jobs that failed or were cancelled while running are kept, with the time they had"
        )
    if stopped := sum(record.preemptions > 0 for record in kept):
        notes.append(
            f"{stopped:,} jobs were stopped and began again; their run times are the sum of all attempts"
        )
    return tuple(notes)
