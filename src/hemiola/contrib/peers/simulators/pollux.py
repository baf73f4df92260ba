"""Pollux's simulator (Qiao et al., OSDI'21; github.com/petuum/adaptdl, osdi21-artifact): rounds of 60 s.

Arrivals and ends are seen at the end of the round in which they happen. A job that gets GPUs makes
no progress for 30 s. Work is iterations by epoch; an epoch takes a whole number of seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeVar

import msgspec

from hemiola.contrib.peers.policies import POLLUX_SIM
from hemiola.contrib.peers.simulators.replay import FREEDOMS, PeerEstimates, PeerReplay, PeerRules, PeerTask
from hemiola.core.decisions import Placement
from hemiola.core.errors import InputError, PolicyError
from hemiola.core.events import Arrived, Event, NodeBack, NodeLost, Timer
from hemiola.core.job import Batch
from hemiola.cost.iteration import IterationModel
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

__all__ = ["BatchSplit", "PolluxSim", "batch_of", "epoch_iterations", "iteration_s"]


# What Pollux's simulator knows of its six applications: work per epoch, and time per iteration.


class BatchLimits(msgspec.Struct, frozen=True):
    """Batch sizes of an application: the first, the largest, and the largest on one GPU."""

    first: int
    largest: int
    on_one_gpu: int


LIMITS = {
    "bert": BatchLimits(12, 384, 12),
    "cifar10": BatchLimits(128, 4096, 1024),
    "deepspeech2": BatchLimits(20, 640, 80),
    "imagenet": BatchLimits(200, 12800, 200),
    "ncf": BatchLimits(256, 32768, 32768),
    "yolov3": BatchLimits(8, 512, 8),
}
MOST_HOSTS = 16


class BatchSplit(msgspec.Struct, frozen=True):
    """How a job's batch is worked off.

    Attributes:
        on_one_gpu: samples per GPU and step.
        accumulated: steps before the one that synchronises.
        effective: samples per iteration; not always what was asked for.
    """

    on_one_gpu: int
    accumulated: int
    effective: int


class _Epochs(msgspec.Struct, frozen=True):
    application: str
    batch: int
    iterations: tuple[float, ...]


class _Steps(msgspec.Struct, frozen=True):
    application: str
    gpus: int
    local_batch: int
    step_and_sync_s: dict[str, tuple[float, float]]


T = TypeVar("T")


def _rows(name: str, kind: type[T]) -> list[T]:
    data = (files("hemiola.contrib.peers.simulators") / "data" / name).read_bytes()
    return msgspec.json.decode(data, type=list[kind])  # type: ignore[valid-type]


@cache
def _epochs() -> dict[tuple[str, int], tuple[float, ...]]:
    return {(row.application, row.batch): row.iterations for row in _rows("pollux_epochs.json", _Epochs)}


@cache
def _steps() -> dict[tuple[str, int, int], dict[str, tuple[float, float]]]:
    rows = _rows("pollux_steps.json", _Steps)
    return {(row.application, row.gpus, row.local_batch): row.step_and_sync_s for row in rows}


def batch_of(application: str, batch_size: int, gpus: int) -> BatchSplit:
    """How a batch is split over GPUs and, where it does not fit them, over steps.

    Raises:
        InputError: an application that Pollux has no record of.
    """
    if application not in LIMITS:
        raise InputError(f"pollux-sim knows no application {application!r}", f"it knows {', '.join(LIMITS)}")
    limits = LIMITS[application]
    share = -(-batch_size // gpus)
    accumulated = -(-share // limits.on_one_gpu) - 1
    if gpus == 1 and batch_size > limits.first:
        accumulated = max(accumulated, 1)
    steps = accumulated + 1
    local = min(-(-share // steps), limits.largest // (gpus * steps))
    return BatchSplit(local, accumulated, gpus * local * steps)


def epoch_iterations(application: str, batch_size: int, gpus: int) -> tuple[float, ...]:
    """Iterations of each epoch, statistical efficiency included.

    Raises:
        InputError: no record of that application at that batch size and number of GPUs.
    """
    batch = batch_of(application, batch_size, gpus)
    known = _epochs().get((application, batch.effective))
    if known is None or (application, gpus, batch.on_one_gpu) not in _steps():
        sizes = ", ".join(str(size) for name, size in _epochs() if name == application)
        raise InputError(
            f"pollux-sim has no record of {application} with batch size {batch_size} on {gpus} GPUs",
            f"for {application} it knows effective batch sizes {sizes}, as in the published workloads",
        )
    return known


def iteration_s(application: str, batch_size: int, per_host: tuple[int, ...]) -> float:
    """Seconds of one iteration with so many GPUs on each host, in the order of the ranks.

    Measured for placements on up to 4 hosts of 4 GPUs, which count as equal when rotated; for
    others the peer interpolates by number of hosts, with 16 the most.

    Raises:
        InputError: no record of that placement.
    """
    gpus = sum(per_host)
    batch = batch_of(application, batch_size, gpus)
    known = _steps().get((application, gpus, batch.on_one_gpu), {})
    rotations = (per_host[i:] + per_host[:i] for i in range(len(per_host)))
    exact = "".join(str(count) for count in min(rotations))
    found = known.get(exact) or known.get(f"{min(len(per_host), MOST_HOSTS)}+")
    if found is None:
        raise InputError(
            f"pollux-sim has no record of {application} on {len(per_host)} hosts with {per_host} GPUs",
            "choose hosts with 4 GPUs each, as in the published cluster",
        )
    step_s, sync_s = found
    return step_s + batch.accumulated * (step_s - sync_s)


# One job of Pollux's simulator: iterations by epoch, worked off round by round.

ROUND_S = 60.0
RESTART_S = 30.0


class Epochs(PeerTask):
    """Work is iterations by epoch, at a speed that the placement sets.

    Attributes:
        done_s: when its last epoch ended; None before.
    """

    def __init__(self, job: Batch, index: int, tiers: int) -> None:
        super().__init__(job, index, tiers)
        self.batch_size = int(job.facts["batch_size"])
        self.epochs = epoch_iterations(job.model, self.batch_size, job.gpus)
        self.epoch = 0
        self.left = self.epochs[0]
        self.hold_s = 0.0
        self.step_s = 0.0
        self.ran_s = 0.0
        self.done_s: float | None = None

    def begin(self, placement: Placement, tier: int, now: float) -> None:
        """It gets GPUs, and restarts."""
        super().begin(placement, tier, now)
        self.hold_s = RESTART_S
        self.resume_s = now + RESTART_S
        per_host = tuple(mask.bit_count() for mask in placement.masks)
        self.step_s = iteration_s(self.job.model, self.batch_size, per_host)

    def advance(self, now: float) -> None:
        """Work through the round that begins now."""
        self.ran_s += ROUND_S
        left_s = self._restart(ROUND_S)
        now += ROUND_S - left_s
        while left_s > 0:
            epoch_s = self.left * self.step_s
            if left_s < epoch_s:
                self.left -= left_s / self.step_s
                return
            whole_s = float(round(epoch_s))
            now, left_s = now + whole_s, left_s - whole_s
            self.epoch += 1
            if self.epoch == len(self.epochs):
                self.done_s = now
                return
            self.left = self.epochs[self.epoch]

    def _restart(self, round_s: float) -> float:
        """Sit out what is left of the restart; what then is left of the round."""
        held_s = min(self.hold_s, round_s)
        self.hold_s -= held_s
        self.checkpoint_s += held_s
        return round_s - held_s

    def attained_s(self, now: float) -> float:
        """Seconds in which it held GPUs, restarts included."""
        return self.ran_s

    def remaining_s(self, now: float) -> float:
        """Seconds of work left where it runs; infinity where it does not."""
        if self.placement is None:
            return math.inf
        return (self.left + sum(self.epochs[self.epoch + 1 :])) * self.step_s


IDLE_ROUNDS = 100_000


class PolluxReplay(PeerReplay[Epochs]):
    """Passes time from round to round; each list of events ends with the round's timer."""

    def __init__(
        self,
        view: ClusterView,
        jobs: Sequence[Batch],
        tasks: dict[str, Epochs],
        *,
        record: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(view, jobs, tasks, Epochs, record=record, progress=progress)
        self._arrived = 0

    def events(self) -> Iterator[list[Event]]:
        """One list per round with something to decide about."""
        round_s = 0.0
        idle = 0
        while not self.stop and self.ended < len(self.jobs):
            if len(self.tasks) == self.ended:
                round_s = max(round_s, _round_after(self.jobs[self._arrived].submit_s) - ROUND_S)
            idle = 0 if self.running or self._arrived < len(self.jobs) else idle + 1
            _check_alive(idle)
            ended = self._advance(round_s)
            round_s += ROUND_S
            self.ledger.pass_time(round_s - self.now, 0)
            self.now = round_s
            batch: list[Event] = [*self._finish(ended), *self._arrivals()]
            batch.sort(key=lambda event: event.time_s)
            self.events_seen += len(batch)
            yield [*batch, Timer(round_s, "")]
            self.note_queue()

    def _advance(self, now: float) -> list[Epochs]:
        for task in self.running.values():
            task.advance(now)
        return [task for task in self.running.values() if task.done_s is not None]

    def _finish(self, ended: list[Epochs]) -> Iterator[Event]:
        for task in ended:
            assert task.done_s is not None
            self._hold(task.job.gpus * (self.now - task.done_s))
            yield self.finish(task, task.done_s)

    def _hold(self, gpu_s: float) -> None:
        """GPUs of a job that is done stay idle to the end of the round, wanted or not."""
        if self.view.waiting:
            self.ledger.waiting_gpu_s += gpu_s
        else:
            self.ledger.no_demand_gpu_s += gpu_s

    def _arrivals(self) -> Iterator[Event]:
        jobs = self.jobs
        while self._arrived < len(jobs) and jobs[self._arrived].submit_s <= self.now:
            job = jobs[self._arrived]
            self.arrive(job)
            self._arrived += 1
            yield Arrived(job.submit_s, job)


def _round_after(time_s: float) -> float:
    """The first end of a round at or after this time; never before the first."""
    return max(ROUND_S, math.ceil(time_s / ROUND_S) * ROUND_S)


def _check_alive(idle_rounds: int) -> None:
    if idle_rounds > IDLE_ROUNDS:
        raise PolicyError(
            f"nothing ran for {idle_rounds} rounds while jobs wait and none is to arrive",
            "a policy must start a job that fits an empty cluster",
        )


@dataclass(frozen=True)
class PolluxSim(PeerRules):
    """The rules of Pollux's simulator for jobs that are not elastic."""

    name = "pollux-sim"
    policies = POLLUX_SIM
    default_policies = ("tiresias",)

    def estimates(self, model: IterationModel) -> PeerEstimates:
        """What policies are told of jobs."""
        return PeerEstimates(switch_s=RESTART_S)

    def driver(
        self,
        view: ClusterView,
        jobs: Sequence[Batch],
        model: IterationModel,
        *,
        node_events: Sequence[NodeLost | NodeBack],
        record: bool,
        record_traffic: bool,
        progress: Callable[[int], None] | None,
    ) -> PolluxReplay:
        """The cluster that plays by these rules."""
        self.check(view.topology, node_events)
        for job in jobs:
            _check(job)
        tasks: dict[str, Epochs] = {}
        self.tell(view, tasks)
        return PolluxReplay(view, jobs, tasks, record=record, progress=progress)

    def card(self, policy: Policy, seed: int) -> dict[str, str]:
        """Every rule that shaped the numbers, by name."""
        return {
            "semantics": f"{self.name}: the rules of Pollux's simulator (OSDI'21)",
            "time": f"rounds of {ROUND_S:g} s; arrivals and ends are seen at the round's end",
            "allocation reset": "none: a running job keeps all its GPUs or loses all",
            "duration": "recorded iterations by epoch and time per iteration by placement; whole seconds per epoch",
            "jobs": FREEDOMS,
            "contention": "none",
            "preemption cost": f"{RESTART_S:g} s without progress at every start, the first included",
            "host failure": "none",
            "tie-break": "order of entry into a queue, first that of arrival",
            **policy.card(),
            "seed": f"{seed} (nothing is drawn)",
        }


def _check(job: Batch) -> None:
    if not 1 <= job.facts.get("batch_size", 0) < math.inf or not job.model:
        raise InputError(
            f"job {job.id!r} names no application or no batch_size of at least 1, which pollux-sim counts work by",
            "give a workload in Pollux's format, or use --semantics event-driven",
        )
    epoch_iterations(job.model, int(job.facts["batch_size"]), job.gpus)
