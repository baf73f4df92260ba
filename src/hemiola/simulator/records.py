"""From a finished (or interrupted) simulation to its `Run`: one record per job, every GPU-second."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import numpy as np

from hemiola.core.decisions import Placement
from hemiola.core.errors import InputError
from hemiola.core.job import Batch, Service, Utility
from hemiola.core.result import GpuSeconds, JobRecord, LoggedDecision, Run, ServingFigures
from hemiola.core.timeline import Timeline, TrafficLog
from hemiola.sched.job_state import JobState
from hemiola.sched.loop import Driver
from hemiola.sched.view import ClusterView

__all__ = ["Account", "Fidelity", "IdleLedger", "ServingRules", "SimulatedReplay", "build_run"]

Fidelity = Literal["fluid", "requests"]


class ServingRules(msgspec.Struct, frozen=True, kw_only=True):
    """How services are simulated.

    Attributes:
        fidelity: "requests" one by one, or "fluid" for long runs.
        interval_s: from one word of a service's load to the next.
        seed: of requests that are drawn, cold starts and crashes.
    """

    fidelity: Fidelity = "fluid"
    interval_s: float = 15.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.1 <= self.interval_s < math.inf:
            raise InputError(f"the control interval is {self.interval_s} s", "give 0.1 s or more")


# Where the idle GPU-seconds of a cluster went, integrated from instant to instant.


class IdleLedger:
    """Splits free GPUs over time by why they were free.

    Of `free` GPUs while waiting jobs want `wanted`, min(free, wanted) count as idle although
    wanted: by waiting if a waiting job would fit by number (so the policy, its placement rule or
    its timers chose not to start it), by fragmentation if none would. The rest had no demand.
    """

    __slots__ = ("down_gpu_s", "fragmentation_gpu_s", "no_demand_gpu_s", "view", "waiting_gpu_s")

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self.waiting_gpu_s = 0.0
        self.fragmentation_gpu_s = 0.0
        self.no_demand_gpu_s = 0.0
        self.down_gpu_s = 0.0

    def pass_time(self, dt_s: float, down_gpus: int) -> None:
        """Account for `dt_s` seconds in the present state."""
        view = self.view
        free = view.inventory.free
        if down_gpus:
            self.down_gpu_s += dt_s * down_gpus
        if not free:
            return
        if not view.waiting:
            self.no_demand_gpu_s += dt_s * free
            return
        wanted = view.wanted_gpus
        idle = wanted if wanted < free else free
        if min(view.sizes) <= free:
            self.waiting_gpu_s += dt_s * idle
        else:
            self.fragmentation_gpu_s += dt_s * idle
        self.no_demand_gpu_s += dt_s * (free - idle)


AnyLog = TypeVar("AnyLog", Timeline, TrafficLog | None)


class Account(Protocol):
    """Where one job's time went, as its driver has kept it."""

    first_start_s: float | None
    finish_s: float | None
    placement: Placement | None
    tiers_s: list[float]
    ideal_s: float

    @property
    def useful_s(self) -> float:
        """Time spent computing towards a result."""

    @property
    def exposed_s(self) -> float:
        """Time spent waiting for communication."""

    @property
    def checkpoint_s(self) -> float:
        """Time spent saving, loading, and waiting for GPUs to be handed over."""

    @property
    def lost_s(self) -> float:
        """Time whose work was lost with a host."""


class SimulatedReplay(Driver):
    """A driver whose cluster exists only in numbers, and what it leaves behind."""

    origin_s: float
    now: float
    stop: bool
    events_seen: int
    speed_changes: int = 0
    ledger: IdleLedger

    @property
    @abstractmethod
    def accounts(self) -> Mapping[str, Account]:
        """The jobs that arrived, by id."""

    def serve(self, services: Sequence[Service], rules: ServingRules) -> None:
        """Run services beside the jobs; before the first event.

        Raises:
            InputError: there is no such thing under these rules.
        """
        if services:
            raise InputError(
                f"services, {services[0].id!r} among them, cannot be run by these rules",
                "use --semantics event-driven",
            )

    def serving(self) -> ServingFigures | None:
        """Of services and loans; None without services."""
        return None

    def ideal_s(self, job: Batch) -> float:
        """Run time of a job that can run here on its best placement, alone."""
        return job.duration_s

    def resized(self) -> Iterable[tuple[float, float, float, float]]:
        """GPU-seconds (useful, exposed, checkpoint, lost) of each elastic job beyond its `gpus` times its seconds."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Account for jobs that still run when `stop` ended the replay early."""

    @abstractmethod
    def timeline(self) -> Timeline:
        """Every span in which a job held GPUs."""

    @abstractmethod
    def traffic(self) -> TrafficLog | None:
        """What jobs that cross hosts sent, if it was recorded."""


def build_run(
    driver: SimulatedReplay,
    view: ClusterView,
    jobs: Sequence[Batch],
    refused: dict[str, str],
    *,
    policy: str,
    seed: int,
    semantics: dict[str, str],
    decisions: tuple[LoggedDecision, ...],
    decisions_made: int,
    decisions_refused: int,
    wall_s: float,
    cpu_s: float,
    interrupted: bool,
    certificate: float | None = None,
    decision_s: Sequence[float] = (),
) -> Run:
    """Everything that the driver and the view know, as values."""
    records = tuple(
        _record(job, driver, view.jobs.get(job.id), refused.get(job.id, ""), interrupted) for job in jobs
    )
    serving = driver.serving()
    return Run(
        policy=policy,
        seed=seed,
        semantics=semantics,
        origin_s=driver.origin_s,
        end_s=driver.now,
        gpu_seconds=_gpu_seconds(driver, records, serving),
        serving=serving,
        records=records,
        decisions_made=decisions_made,
        decisions_refused=decisions_refused,
        events=driver.events_seen,
        speed_changes=driver.speed_changes,
        wall_s=wall_s,
        cpu_s=cpu_s,
        interrupted=interrupted,
        timeline=_by_record(driver.timeline(), jobs, refused),
        traffic=_by_record(driver.traffic(), jobs, refused),
        decisions=decisions,
        certificate=certificate,
        decision_p50_s=float(np.percentile(decision_s, 50)) if len(decision_s) else None,
        decision_p99_s=float(np.percentile(decision_s, 99)) if len(decision_s) else None,
    )


def _by_record(log: AnyLog, jobs: Sequence[Batch], refused: dict[str, str]) -> AnyLog:
    """The same rows with jobs counted as the run's records are; drivers count admitted jobs only."""
    if log is None or not refused:
        return log
    place = np.array([i for i, job in enumerate(jobs) if job.id not in refused], dtype=np.int64)
    return replace(log, job=place[log.job])


def _gpu_seconds(
    driver: SimulatedReplay, records: tuple[JobRecord, ...], serving: ServingFigures | None
) -> GpuSeconds:
    ledger = driver.ledger
    more = list(driver.resized())
    return GpuSeconds(
        useful=sum(r.gpus * r.useful_s for r in records) + sum(kinds[0] for kinds in more),
        exposed_communication=sum(r.gpus * r.exposed_communication_s for r in records)
        + sum(kinds[1] for kinds in more),
        checkpoint=sum(r.gpus * r.checkpoint_s for r in records) + sum(kinds[2] for kinds in more),
        lost=sum(r.gpus * r.lost_s for r in records) + sum(kinds[3] for kinds in more),
        idle_waiting=ledger.waiting_gpu_s,
        idle_fragmentation=ledger.fragmentation_gpu_s,
        idle_no_demand=ledger.no_demand_gpu_s,
        down=ledger.down_gpu_s,
        serving=sum(one.held_gpu_s for one in serving.services) if serving else 0.0,
    )


def _record(
    job: Batch, driver: SimulatedReplay, state: JobState | None, refused: str, interrupted: bool
) -> JobRecord:
    task = driver.accounts.get(job.id)
    status, why = _status(task, state, refused, interrupted)
    model = job.profile.name if job.profile is not None else job.model
    if task is None or state is None:
        return JobRecord(
            id=job.id, submit_s=job.submit_s, gpus=job.gpus, model=model, user=job.user, queue=job.queue,
            status=status, why=why, ideal_s=job.duration_s if refused else driver.ideal_s(job),
            utility=None if job.utility is None else 0.0, **_NOTHING,
        )  # fmt: skip
    finish_s = task.finish_s
    tiers_s = tuple(task.tiers_s)
    return JobRecord(
        id=job.id,
        submit_s=job.submit_s,
        gpus=job.gpus,
        model=model,
        user=job.user,
        queue=job.queue,
        status=status,
        why=why,
        first_start_s=task.first_start_s,
        finish_s=finish_s,
        jct_s=finish_s - job.submit_s if finish_s is not None else None,
        queueing_s=state.waited_s(driver.now),
        run_s=sum(tiers_s),
        useful_s=task.useful_s,
        exposed_communication_s=task.exposed_s,
        checkpoint_s=task.checkpoint_s,
        lost_s=task.lost_s,
        ideal_s=task.ideal_s,
        preemptions=state.preemptions,
        migrations=state.migrations,
        tiers_s=tiers_s,
        utility=None if job.utility is None else _worth(job.utility, job.submit_s, finish_s),
        declined=state.declined,
    )


def _worth(utility: Utility, submit_s: float, finish_s: float | None) -> float:
    """What a job's end was worth, 0 if it never came."""
    return 0.0 if finish_s is None else utility.at(finish_s - submit_s)


_NOTHING: dict[str, Any] = {
    "first_start_s": None,
    "finish_s": None,
    "jct_s": None,
    "queueing_s": 0.0,
    "run_s": 0.0,
    "useful_s": 0.0,
    "exposed_communication_s": 0.0,
    "checkpoint_s": 0.0,
    "lost_s": 0.0,
    "preemptions": 0,
    "migrations": 0,
    "tiers_s": (),
}


def _status(task: Account | None, state: JobState | None, refused: str, interrupted: bool) -> tuple[str, str]:
    if task is not None and task.finish_s is not None:
        return "finished", ""
    if refused:
        return "refused", refused
    if task is None or state is None:
        return "waiting", "the simulation was stopped before it arrived"
    if task.placement is not None or state.placement is not None:
        return "running", "the simulation was stopped while it ran"
    if interrupted:
        return "waiting", "the simulation was stopped while it waited"
    if state.declined:
        return "declined", state.declined
    return "waiting", f"no placement for {state.gpus} GPUs was found that the policy accepts"
