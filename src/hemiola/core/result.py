"""What a simulation leaves behind: one `Run` per policy and seed, and their `Comparison`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hemiola.core.decisions import Decision
from hemiola.core.job import Batch
from hemiola.core.topology import Topology

__all__ = [
    "Comparison",
    "GpuSeconds",
    "JobRecord",
    "LoggedDecision",
    "Run",
    "ServiceRecord",
    "ServingFigures",
    "baseline_among",
]


class GpuSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Where every GPU-second of the cluster went, from the first arrival to the end.

    Their sum is the cluster's GPUs times the makespan, exactly (to rounding).

    Attributes:
        useful: computing towards a result.
        exposed_communication: waiting for communication that nothing hid.
        checkpoint: saving, loading, and waiting for GPUs to be handed over.
        lost: work done again because a host failed.
        idle_waiting: free while a waiting job would have fitted by number (the policy chose to wait).
        idle_fragmentation: free while jobs waited, none of which would have fitted by number.
        idle_no_demand: free with nobody asking for that many.
        down: on failed hosts.
        serving: held by replicas of services.
    """

    useful: float
    exposed_communication: float
    checkpoint: float
    lost: float
    idle_waiting: float
    idle_fragmentation: float
    idle_no_demand: float
    down: float
    serving: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all."""
        return float(sum(msgspec.structs.astuple(self)))


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one job. Times are absolute (seconds of the workload); None where it never happened.

    Attributes:
        status: "finished", "running", "waiting", "declined", "refused" or "failed".
        why: for anything but "finished": the reason in words.
        queueing_s: time without GPUs between arrival and end.
        run_s: time with GPUs.
        useful_s, exposed_communication_s, checkpoint_s, lost_s: what `run_s` was spent on.
        ideal_s: run time on its best placement, alone.
        tiers_s: seconds run at each tier, narrow to wide.
        utility: what its end was worth, 0 if it never came; None where its owner does not say.
        declined: why the policy would not take it, with payoff and price; "" if it did. Such a job may have run on what others
            left.
    """

    id: str
    status: str
    why: str
    submit_s: float
    first_start_s: float | None
    finish_s: float | None
    gpus: int
    jct_s: float | None
    queueing_s: float
    run_s: float
    useful_s: float
    exposed_communication_s: float
    checkpoint_s: float
    lost_s: float
    ideal_s: float
    preemptions: int
    migrations: int
    tiers_s: tuple[float, ...]
    model: str
    user: str
    queue: str
    utility: float | None = None
    declined: str = ""


class ServiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one service. Requests are whole where they were simulated one by one.

    Attributes:
        gpus: of one replica.
        objective_s, share: what its users were promised.
        arrived, answered, refused, waiting: requests; the first is the sum of the others.
        missed: answered too late, or refused.
        slo_attainment: of those answered or refused, the share answered in time.
        starts, losses: replicas that were started, and that crashed or were lost with their host.
        held_gpu_s, ready_gpu_s: GPU-seconds of replicas, and of those that took requests.
        rows: of each control interval: its end, requests per second, share answered in time, replicas, those that take
            requests, requests that wait.
    """

    id: str
    gpus: int
    objective_s: float
    share: float
    arrived: float
    answered: float
    refused: float
    missed: float
    waiting: float
    slo_attainment: float
    starts: int
    losses: int
    held_gpu_s: float
    ready_gpu_s: float
    rows: tuple[tuple[float, float, float, int, int, float], ...] = ()


class ServingFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What training and inference did for each other.

    Attributes:
        services: a record of each.
        training_goodput: GPU-seconds of training's work, at the size that jobs asked for, done per second until the last job
            arrived.
        inference_goodput: requests answered within their objective, per second of the run.
        loaned_gpu_s: GPU-seconds of hosts in other hands.
        loans: how often a host changed hands.
        ceiling: the most that loans could multiply training's goodput by, over a static split (`sched.board.ceiling`); None
            without virtual clusters for both.
        rows: whenever it changed: time, and by borrower the GPUs lent to it.
    """

    services: tuple[ServiceRecord, ...]
    training_goodput: float
    inference_goodput: float
    loaned_gpu_s: float
    loans: int
    ceiling: float | None
    rows: tuple[tuple[float, dict[str, int]], ...] = ()


class LoggedDecision(msgspec.Struct, frozen=True):
    """A decision, when it was made, and whether it was carried out.

    Attributes:
        free_gpus: free GPUs just before it.
        waiting: jobs waiting just before it.
        refused: why it was not carried out; "" if it was.
    """

    time_s: float
    decision: Decision
    free_gpus: int
    waiting: int
    refused: str = ""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one workload.

    Attributes:
        policy: as it was asked for ("dally:timer=break-even").
        semantics: the card: every rule that shaped the numbers, by name.
        origin_s: the first arrival.
        end_s: the last job's end (or arrival, of one that waits for ever), or when it was interrupted.
        speed_changes: how often jobs that cross hosts ran on at another speed because others came or went.
        records: one record per submitted job, in order of arrival.
        interrupted: it was stopped before the end; what is there is true up to then.
        certificate: no schedule whatever could have reached more utility; None where no job has any.
        decision_p50_s, decision_p99_s: what the policy took to decide, of the instants at which it decided something.
        serving: of services and loans; None where the workload has no services.
    """

    policy: str
    seed: int
    semantics: dict[str, str]
    origin_s: float
    end_s: float
    gpu_seconds: GpuSeconds
    records: tuple[JobRecord, ...]
    decisions_made: int
    decisions_refused: int
    events: int
    speed_changes: int = 0
    wall_s: float
    cpu_s: float
    interrupted: bool = False
    timeline: Any = None  # a hemiola.core.timeline.Timeline
    traffic: Any = None  # a TrafficLog, where it was recorded
    serving: ServingFigures | None = None
    decisions: tuple[LoggedDecision, ...] = ()
    certificate: float | None = None
    decision_p50_s: float | None = None
    decision_p99_s: float | None = None


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs of several policies on the same jobs, cluster and seeds.

    Attributes:
        baseline: the policy that differences are taken against.
        workloads: per seed the jobs that ran (profiles assigned).
        notes: what the reader of the workload assumed, and anything else worth printing.
    """

    topology: Topology
    runs: tuple[Run, ...]
    baseline: str
    workload_name: str = ""
    workload_format: str = ""
    notes: tuple[str, ...] = ()
    workloads: dict[int, tuple[Batch, ...]] = field(default_factory=dict)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those that every policy has run to its end, in the order of the runs.

        Of an interrupted comparison without one: those that every policy has begun, perhaps none.
        """
        whole = self._common([run for run in self.runs if not run.interrupted])
        return whole or self._common(self.runs)

    def _common(self, runs: Sequence[Run]) -> tuple[int, ...]:
        """The seeds that every policy has among these runs."""
        ran = {(run.policy, run.seed) for run in runs}
        policies = {run.policy for run in self.runs}
        every = dict.fromkeys(run.seed for run in runs)
        return tuple(seed for seed in every if all((policy, seed) in ran for policy in policies))

    @property
    def never_ran(self) -> dict[str, tuple[str, ...]]:
        """The jobs that could not run under any policy here, by the reason; those of the first seed."""
        runs = [run for run in self.runs if run.seed == self.runs[0].seed]
        refused = [{r.id: r.why for r in run.records if r.status == "refused"} for run in runs]
        found: dict[str, tuple[str, ...]] = {}
        for name, why in refused[0].items() if refused else ():
            if all(name in others for others in refused):
                found[why] = (*found.get(why, ()), name)
        return found

    def run(self, policy: str, seed: int | None = None) -> Run:
        """The run of a policy (of the first seed, unless one is given)."""
        for run in self.runs:
            if run.policy == policy and seed in (None, run.seed):
                return run
        raise KeyError(policy)


def baseline_among(runs: Sequence[Run], wanted: str) -> str:
    """The policy that differences of these runs refer to: the one wanted, or the first one's where it has not run yet."""
    return wanted if any(run.policy == wanted for run in runs) else runs[0].policy
