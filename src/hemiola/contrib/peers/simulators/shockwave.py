"""Shockwave's physical cluster (Zheng et al., NSDI'23; github.com/uw-mad-dash/shockwave): rounds of 120 s, batches that change.

The next round is planned in the middle of the present one. A round lasts until its jobs are swapped, and a job that is
started anew makes no progress for a while. Work is training steps at a batch; schemes double or enlarge the batch by epochs,
and the steps left become fewer.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from hemiola.contrib.peers.policies import SHOCKWAVE_SIM
from hemiola.contrib.peers.simulators.replay import FREEDOMS, PeerEstimates, PeerReplay, PeerRules, PeerTask
from hemiola.core.decisions import Placement
from hemiola.core.errors import InputError, PolicyError
from hemiola.core.events import Arrived, Event, NodeBack, NodeLost, Timer
from hemiola.core.job import Batch
from hemiola.cost.iteration import IterationModel
from hemiola.sched.job_state import JobState
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

__all__ = ["ShockwaveSim", "TrainedSteps", "steps_per_s"]

ROUND_S = 120.0
RESTART_S = 20.0
"""The peer's own simulator takes as much, after Pollux."""
SWAP_S, KEEP_S = 9.5, 2.0
"""From a round's end to the next one's begin, where jobs are swapped and where all keep their GPUs: the makespans of the three
published runs over their numbers of rounds."""
IDLE_ROUNDS = 100_000
SAMPLES = {
    "ResNet-18": 50_000,
    "ResNet-50": 100_000,
    "Transformer": 10_000,
    "LM": 59_675,
    "Recommendation": 117_907,
}
LARGEST = {"LM": 80, "ResNet-18": 256, "ResNet-50": 128, "Recommendation": 8192}
LARGEST_GNS = LARGEST | {"Transformer": 128}
LEAST = {"ResNet-18": 16, "ResNet-50": 16, "LM": 5, "Recommendation": 512}
DOUBLES = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71), ("ResNet-18", 32, 1): (21, 31, 51), ("ResNet-18", 64, 1): (11, 31),
    ("ResNet-18", 128, 1): (11,), ("ResNet-18", 16, 2): (21, 31, 91, 111), ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 64, 2): (21, 41), ("ResNet-18", 128, 2): (41,), ("ResNet-18", 16, 4): (11, 21, 81, 91),
    ("ResNet-18", 32, 4): (21, 31, 61), ("ResNet-18", 64, 4): (11, 61), ("ResNet-18", 128, 4): (11,),
    ("ResNet-50", 64, 1): (101,), ("ResNet-50", 32, 2): (101, 111), ("ResNet-50", 64, 2): (81,),
    ("ResNet-50", 32, 4): (131, 221), ("ResNet-50", 64, 4): (191,), ("LM", 5, 1): (31, 41, 61, 71),
    ("LM", 10, 1): (11, 21, 41), ("LM", 20, 1): (11, 41), ("LM", 40, 1): (11,), ("LM", 5, 2): (31, 51, 61, 71),
    ("LM", 10, 2): (11, 31, 41), ("LM", 20, 2): (31, 41), ("LM", 40, 2): (11,), ("LM", 5, 4): (11, 31, 71, 91),
    ("LM", 10, 4): (11, 31, 61), ("LM", 20, 4): (11, 61), ("LM", 40, 4): (61,),
    ("Recommendation", 512, 1): (21, 41, 71, 91), ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41), ("Recommendation", 4096, 1): (41,),
}  # fmt: skip
"""Epochs from which a job of a model, first batch and number of GPUs has twice the batch: facts of the peer, measured there."""


class _Steps(msgspec.Struct, frozen=True):
    model: str
    batch: int
    gpus: int
    steps_per_s: float


@cache
def _known() -> dict[tuple[str, int, int], float]:
    data = (files("hemiola.contrib.peers.simulators") / "data" / "shockwave_steps.json").read_bytes()
    return {(row.model, row.batch, row.gpus): row.steps_per_s for row in msgspec.json.decode(data, type=list[_Steps])}  # fmt: skip


def steps_per_s(model: str, batch: int, gpus: int) -> float | None:
    """Training steps in a second on so many GPUs at this batch; None where nobody measured that."""
    return _known().get((model, batch, gpus))


# One job: training steps at a batch that changes by epochs.


class TrainedSteps(PeerTask):
    """Work is training steps at the present batch.

    Attributes:
        batch, total, done: the batch, and steps in all and done at it.
        speed: steps per second.
        ran_s: seconds in which it ran, of finished rounds.
        round_s: seconds in which it runs in the present round; 0 where it does not.
        done_s: when it was done; None before.
        changes: how often its batch changed.
    """

    def __init__(self, job: Batch, index: int, tiers: int) -> None:
        super().__init__(job, index, tiers)
        self.model, self.batch = model_of(job)
        self.first_batch = self.batch
        self.scheme = next((name for name in ("accordion", "gns") if job.facts.get(name)), "")
        self.speed = _known()[self.model, self.batch, job.gpus]
        self.total, self.done = int(job.facts["total_steps"]), 0
        self.ran_s = self.round_s = 0.0
        self.done_s: float | None = None
        self.fresh = False
        self.changes = 0
        self._steps = 0

    def begin(self, placement: Placement, tier: int, now: float) -> None:
        """It gets GPUs, and loads its state."""
        super().begin(placement, tier, now)
        self.fresh = True
        self.resume_s = now + RESTART_S

    @property
    def enough(self) -> float:
        """Steps that pass all samples of all epochs: the last step of each has fewer."""
        whole = SAMPLES[self.model] / self.batch
        return self.total * whole / math.ceil(whole)

    def open_round(self, now: float, swapped_s: float) -> None:
        """Work out what it does in the round that begins now, after so long between rounds."""
        held_s = RESTART_S if self.fresh else 0.0
        self.checkpoint_s += held_s + swapped_s
        if self.fresh:
            self.resume_s = now + held_s
        self.fresh = False
        self._steps = max(0, min(int(self.speed * (ROUND_S - held_s)), self.total - self.done))
        self.round_s = ROUND_S
        if self.done + self._steps >= self.enough:
            self.round_s = held_s + self._steps / self.speed
            self.done_s = now + self.round_s

    def close_round(self) -> None:
        """Count what it did, and change its batch if its scheme says so."""
        self.ran_s += self.round_s
        self.round_s = 0.0
        if self.done_s is None:
            self.done += self._steps
            self._change_batch()

    def _change_batch(self) -> None:
        batch = self._wanted()
        speed = None if batch == self.batch else steps_per_s(self.model, batch, self.job.gpus)
        if speed is None or self.first_batch == LARGEST.get(self.model):
            return
        each, then = self._epoch(self.batch), self._epoch(batch)
        epochs = math.ceil(self.total / each)
        total = math.ceil(self.total * self.batch / batch)
        self.total = total if math.ceil(total / then) == epochs else then * epochs
        self.done = math.ceil(self.done / each) * then
        self.batch, self.speed = batch, speed
        self.changes += 1

    def _epoch(self, batch: int) -> int:
        return math.ceil(SAMPLES[self.model] / batch)

    def _wanted(self) -> int:
        """The batch that its scheme has in the epoch that it is in."""
        epoch = math.ceil(self.done / self._epoch(self.batch))
        if self.scheme == "gns" and self.batch < LARGEST_GNS[self.model]:
            doubled = bisect_right(DOUBLES.get((self.model, self.first_batch, self.job.gpus), ()), epoch + 1)
            return self.batch * 2 if self.first_batch * 2**doubled > self.batch else self.batch
        if self.scheme == "accordion" and self.model in LARGEST:
            critical = self._is_critical(epoch)
            if self.batch == self.first_batch and not critical:
                return LARGEST[self.model]
            if self.batch != self.first_batch and critical and self.batch > LEAST[self.model]:
                return self.first_batch
        return self.batch

    def _is_critical(self, epoch: int) -> bool:
        """Whether gradients change fast, so that Accordion keeps the small batch."""
        first = self.first_batch
        if self.model == "ResNet-18":
            return epoch < (20 if first == 256 else 10) or 150 <= epoch < 160 or 250 <= epoch < 260
        if self.model == "ResNet-50":
            return epoch % 30 < 10
        if self.model == "LM":
            return epoch < 10
        return epoch < {512: 30, 1024: 30, 2048: 40}.get(first, 10)

    def attained_s(self, now: float) -> float:
        """Seconds in which it ran."""
        return self.ran_s

    def remaining_s(self, now: float) -> float:
        """Seconds of work left at its present batch."""
        return max(0, self.total - self.done) / self.speed


def model_of(job: Batch) -> tuple[str, int]:
    """(model, batch) of a job type like "LM (batch size 10)".

    Raises:
        InputError: it is no such type, or nobody measured it.
    """
    model, _, rest = job.model.partition(" (batch size ")
    batch = int(rest[:-1]) if rest[-1:] == ")" and rest[:-1].isdigit() else 0
    if steps_per_s(model, batch, job.gpus) is None or not 1 <= job.facts.get("total_steps", 0) < math.inf:
        raise InputError(
            f"job {job.id!r} trains {job.model!r} on {job.gpus} GPUs, of which shockwave-sim has no steps per second, or counts no steps",
            "give a workload in Shockwave's format, or use --semantics event-driven",
        )
    return model, batch


class ShockwaveEstimates(PeerEstimates):
    """What policies are told: steps, and in which part of a round they are asked."""

    planning = True

    def _task(self, job: JobState) -> TrainedSteps:
        task = self._tasks[job.id]
        assert isinstance(task, TrainedSteps)
        return task

    def steps_per_s(self, job: JobState) -> float:
        """Training steps in a second, at the batch that the job has now."""
        return self._task(job).speed

    def steps_left(self, job: JobState) -> float:
        """Training steps that are left, at that batch."""
        task = self._task(job)
        return task.total - task.done

    def ran_s(self, job: JobState) -> float:
        """Seconds in which it ran, of finished rounds."""
        return self._task(job).ran_s

    def ran_in_round_s(self, job: JobState) -> float:
        """Seconds in which it has run in the present round, in whose middle this is asked."""
        return min(self._task(job).round_s, ROUND_S / 2)

    def batches(self) -> int:
        """How often any job changed its batch."""
        return sum(task.changes for task in self._tasks.values() if isinstance(task, TrainedSteps))


class ShockwaveReplay(PeerReplay[TrainedSteps]):
    """Passes time from the middle of a round to its end, and to the middle of the next."""

    def __init__(
        self,
        view: ClusterView,
        jobs: Sequence[Batch],
        tasks: dict[str, TrainedSteps],
        *,
        record: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(view, jobs, tasks, TrainedSteps, record=record, progress=progress)
        self._arrived = 0
        self._started = 0

    def begin(self, task: TrainedSteps, placement: Placement, now: float) -> None:
        """It runs there from the round's begin on."""
        super().begin(task, placement, now)
        self._started += 1

    def events(self) -> Iterator[list[Event]]:
        """Two lists per round: in its middle, for the plan, and at its end."""
        told = self.view.estimates
        assert isinstance(told, ShockwaveEstimates)
        told.planning = True
        yield [*self._arrivals(), Timer(self.now, "")]
        begin_s, swapped_s, idle = self.now, 0.0, 0
        yield from self._end(told, begin_s, first=True)
        while not self.stop and self.ended < len(self.jobs):
            idle = 0 if self.running or self._arrived < len(self.jobs) else idle + 1
            if idle > IDLE_ROUNDS:
                raise PolicyError("nothing runs while jobs wait", "start a job that fits an empty cluster")
            for task in self.running.values():
                task.open_round(begin_s, swapped_s)
            yield from self._middle(told, begin_s + ROUND_S / 2)
            before = len(self.running)
            yield from self._end(told, begin_s + ROUND_S)
            swapped_s = SWAP_S if self._started or len(self.running) < before else KEEP_S
            begin_s = self.now + swapped_s

    def _pass(self, now: float) -> None:
        self.ledger.pass_time(now - self.now, 0)
        self.now = now

    def _middle(self, told: ShockwaveEstimates, now: float) -> Iterator[list[Event]]:
        """Who came and who is done; the policy says who runs next."""
        self._pass(now)
        told.planning = True
        batch: list[Event] = [*self._done(now), *self._arrivals(), Timer(now, "")]
        self.events_seen += len(batch)
        yield batch

    def _end(self, told: ShockwaveEstimates, now: float, *, first: bool = False) -> Iterator[list[Event]]:
        """The round is over; the policy stops and starts."""
        self._pass(now)
        told.planning, self._started = False, 0
        batch: list[Event] = [] if first else [*self._done(now)]
        for task in self.running.values():
            task.close_round()
        self.events_seen += len(batch) + 1
        yield [*batch, Timer(now, "")]
        self.note_queue()

    def _done(self, now: float) -> Iterator[Event]:
        for task in [
            task for task in self.running.values() if task.done_s is not None and task.done_s <= now
        ]:
            assert task.done_s is not None
            task.ran_s, task.round_s = task.ran_s + task.round_s, 0.0
            self._hold(task.job.gpus * (now - task.done_s))
            yield self.finish(task, task.done_s)

    def _hold(self, gpu_s: float) -> None:
        """GPUs of a job that is done stay idle until that is noticed, wanted or not."""
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


@dataclass(frozen=True)
class ShockwaveSim(PeerRules):
    """The rounds of Shockwave's physical cluster."""

    name = "shockwave-sim"
    policies = SHOCKWAVE_SIM
    default_policies = ("max-min", "finish-time-fairness", "throughput")

    def estimates(self, model: IterationModel) -> PeerEstimates:
        """What policies are told of jobs."""
        return ShockwaveEstimates(switch_s=RESTART_S)

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
    ) -> ShockwaveReplay:
        """The cluster that plays by these rules."""
        self.check(view.topology, node_events)
        for job in jobs:
            model_of(job)
        tasks: dict[str, Any] = {}
        self.tell(view, tasks)
        return ShockwaveReplay(view, jobs, tasks, record=record, progress=progress)

    def card(self, policy: Policy, seed: int) -> dict[str, str]:
        """Every rule that shaped the numbers, by name."""
        return {
            "semantics": f"{self.name}: the rounds of Shockwave's physical cluster (NSDI'23)",
            "time": f"rounds of {ROUND_S:g} s, planned in the middle of the one before; "
            f"{SWAP_S:g} s between rounds where jobs are swapped, else {KEEP_S:g} s",
            "allocation reset": "none: a running job keeps all its GPUs or loses all",
            "duration": "training steps at the batch that the job's scheme has, at the steps per second measured at TACC",
            "jobs": FREEDOMS,
            "contention": "none",
            "preemption cost": f"{RESTART_S:g} s without progress at every start, the first included",
            "host failure": "none",
            "tie-break": "the later arrival",
            "placement": "the hosts with the fewest free GPUs that suffice; it matters to no speed",
            **policy.card(),
            "seed": f"{seed} (nothing is drawn)",
        }
