"""What the drivers of all peers share: spans, the ledger, one timer. How time passes is each one's own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar, assert_never

from hemiola.contrib.peers.policies.placing import PeerPolicy
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
)  # fmt: skip
from hemiola.core.errors import InputError, InternalError, TopologyError
from hemiola.core.events import Arrived, Event, Finished, NodeBack, NodeLost, Timer
from hemiola.core.job import Batch
from hemiola.core.timeline import Timeline
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.sched.job_state import JobState
from hemiola.sched.loop import cannot, why_not
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.records import Account, IdleLedger, SimulatedReplay
from hemiola.simulator.rules import Rules

__all__ = ["FREEDOMS", "InstantReplay", "PeerEstimates", "PeerReplay", "PeerRules", "PeerTask"]


# One job as a peer's simulator counts it: when it held GPUs, and what it did with them.


class PeerTask(ABC):
    """The account of one job; how its work shrinks is the peer's business.

    Attributes:
        index: order of arrival.
        start_s: since when it holds GPUs.
        resume_s: until then its span does no work, as the timeline shows it.
        version: counts its spans; what was predicted in an older one is void.
        checkpoint_s: time with GPUs in which the peer counts no progress.
        ideal_s: run time alone, never stopped.
    """

    exposed_s = 0.0
    lost_s = 0.0

    def __init__(self, job: Batch, index: int, tiers: int) -> None:
        self.job = job
        self.index = index
        self.placement: Placement | None = None
        self.tier = 0
        self.start_s = 0.0
        self.resume_s = 0.0
        self.version = 0
        self.first_start_s: float | None = None
        self.finish_s: float | None = None
        self.checkpoint_s = 0.0
        self.ideal_s = job.duration_s
        self.tiers_s = [0.0] * tiers

    @property
    def useful_s(self) -> float:
        """Time with GPUs in which it made progress."""
        return sum(self.tiers_s) - self.checkpoint_s

    def begin(self, placement: Placement, tier: int, now: float) -> None:
        """It gets GPUs."""
        self.placement = placement
        self.tier = tier
        self.start_s = self.resume_s = now
        if self.first_start_s is None:
            self.first_start_s = now

    def end(self, now: float) -> None:
        """It gives them back."""
        self.tiers_s[self.tier] += now - self.start_s
        self.placement = None
        self.version += 1

    @abstractmethod
    def attained_s(self, now: float) -> float:
        """Seconds in which it held GPUs."""

    @abstractmethod
    def remaining_s(self, now: float) -> float:
        """Seconds of work left, as the peer predicts them."""


class PeerEstimates:
    """What policies are told under a peer's rules: every placement runs alike, and progress to the bit.

    Args:
        switch_s: what a pre-emption costs a job.
    """

    def __init__(self, switch_s: float = 0.0) -> None:
        self._tasks: Mapping[str, PeerTask] = {}
        self._switch_s = switch_s

    def watch(self, tasks: Mapping[str, PeerTask]) -> None:
        """Tell from now on what a driver keeps in these accounts."""
        self._tasks = tasks

    def slowdown(self, job: JobState, tier: int) -> float:
        """1: the peer's policies know of no slower tier."""
        return 1.0

    def speed_at(self, job: JobState, gpus: int) -> float:
        """In proportion to its GPUs."""
        return gpus / job.asked_gpus

    def goodput(self, job: JobState, gpus: int, tier: int, gpu_type: str = "") -> tuple[float, None]:
        """In proportion to its GPUs, with its own batch."""
        return self.speed_at(job, gpus), None

    def switch_s(self, job: JobState) -> float:
        """Seconds to save and load the job once."""
        return self._switch_s

    def demand(self, job: JobState) -> tuple[float, float, float]:
        """(compute_s, traffic_bytes, hidden_s): nothing is sent."""
        return 1.0, 0.0, 0.0

    def remaining_s(self, job: JobState, now: float) -> float:
        """Seconds of work left."""
        return self._tasks[job.id].remaining_s(now)

    def attained_s(self, jobs: Iterable[JobState], now: float) -> list[float]:
        """Seconds in which each of them held GPUs."""
        tasks = self._tasks
        return [tasks[job.id].attained_s(now) for job in jobs]


FINISHED, STOPPED, MOVED, STILL_RUNNING = 0, 1, 2, 5
AnyTask = TypeVar("AnyTask", bound=PeerTask)


class PeerReplay(SimulatedReplay, Generic[AnyTask]):
    """A cluster without network, failures or costs of its own.

    Args:
        view: the view that the state machine keeps; read, never written.
        jobs: in order of arrival; all must be admissible.
        tasks: where to keep each job's account, by id; whoever tells policies reads it too.
        make: a job's account, from the job, its order of arrival and the number of tiers.
        record: keep the timeline's rows and the queue's log.
        progress: called with the number of jobs that ended, after each.

    Attributes:
        now: the present instant.
        stop: set it to end the replay after this instant.
        wake_s: the timer that was asked for last; each instant forgets it.
    """

    supports = frozenset({Start, Stop, Move, WakeAt})

    def __init__(
        self,
        view: ClusterView,
        jobs: Sequence[Batch],
        tasks: dict[str, AnyTask],
        make: Callable[[Batch, int, int], AnyTask],
        *,
        record: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.view = view
        self.tasks = tasks
        self.ledger = IdleLedger(view)
        self.origin_s = jobs[0].submit_s if jobs else view.now
        self.now = self.origin_s
        self.stop = False
        self.events_seen = 0
        self.ended = 0
        self.wake_s = math.inf
        self.queue_log: list[tuple[float, int, int, int]] = []
        self.jobs = [_plain(job) for job in jobs]
        self.running: dict[str, AnyTask] = {}
        self._make = make
        self._record = record
        self._progress = progress
        self._rows: list[tuple[int, int, int, float, float, float, int, int]] = []

    def arrive(self, job: Batch) -> None:
        """Open its account."""
        self.tasks[job.id] = self._make(job, len(self.tasks), len(self.view.topology.tiers))

    def finish(self, task: AnyTask, finish_s: float) -> Finished:
        """It ended at that time."""
        self._leave(task, finish_s, FINISHED)
        task.finish_s = finish_s
        self.ended += 1
        if self._progress is not None:
            try:
                self._progress(self.ended)
            except KeyboardInterrupt:
                self.stop = True
        return Finished(finish_s, task.job.id)

    def execute(self, decision: Decision) -> None:
        """Carry out an accepted decision at the view's present time."""
        now = self.view.now
        match decision:
            case Start(job_id, placement):
                self.begin(self.tasks[job_id], placement, now)
            case Stop(job_id):
                self._leave(self.tasks[job_id], now, STOPPED)
            case Move(job_id, placement):
                self._leave(self.tasks[job_id], now, MOVED)
                self.begin(self.tasks[job_id], placement, now)
            case WakeAt(time_s):
                self.wake_s = time_s
            case Resize() | Pace() | Align() | Scale() | Lend() | Reclaim() | Reallocate():
                raise InternalError(f"{decision} was to be carried out: {cannot(decision)}")
            case _:
                assert_never(decision)

    def render(self, decision: Decision) -> str:
        """The decision as one line."""
        return why_not(decision, self.supports) or str(decision)

    def begin(self, task: AnyTask, placement: Placement, now: float) -> None:
        """It runs there from now on."""
        tier = 0 if len(placement.hosts) == 1 else self.view.jobs[task.job.id].tier
        task.begin(placement, tier, now)
        self.running[task.job.id] = task

    def _leave(self, task: AnyTask, now: float, outcome: int) -> None:
        placement = task.placement
        assert placement is not None
        if self._record and (now > task.start_s or outcome == FINISHED):
            resume_s = min(task.resume_s, now)
            for host, mask in zip(placement.hosts, placement.masks, strict=True):
                self._rows.append((task.index, host, mask, task.start_s, now, resume_s, task.tier, outcome))
        task.end(now)
        del self.running[task.job.id]

    def note_queue(self) -> None:
        """Keep (when, jobs waiting, GPUs they want, GPUs busy) where it changed."""
        if not self._record:
            return
        view = self.view
        entry = (self.now, len(view.waiting), view.wanted_gpus, view.topology.gpus - view.inventory.free)
        if not self.queue_log or self.queue_log[-1][1:] != entry[1:]:
            self.queue_log.append(entry)

    def close(self) -> None:
        """Account for jobs that still run when `stop` ended the replay early."""
        for task in list(self.running.values()):
            self._leave(task, self.now, STILL_RUNNING)

    @property
    def accounts(self) -> Mapping[str, Account]:
        """The jobs that arrived, by id."""
        return self.tasks

    def timeline(self) -> Timeline:
        """Every span in which a job held GPUs."""
        return Timeline.from_rows(self._rows)

    def traffic(self) -> None:
        """Nothing is sent."""
        return


def _plain(job: Batch) -> Batch:
    """As peers know jobs: of one size, and free to be stopped."""
    if not (job.pinned or job.is_elastic):
        return job
    facts = {name: getattr(job, name) for name in Batch.__struct_fields__}
    return Batch(**facts | {"pinned": False})


# Tiresias's and Muri's way of passing time: decisions at arrivals, ends, and one timer; never between.


class InstantReplay(PeerReplay[AnyTask]):
    """Passes time from instant to instant; ends when nothing runs and nothing arrives."""

    @abstractmethod
    def next_finish_s(self, now: float) -> float:
        """When the next running job ends if nothing is decided before; infinity for never."""

    @abstractmethod
    def due(self, now: float) -> list[AnyTask]:
        """The running jobs that end at exactly this time, in order of arrival."""

    @abstractmethod
    def settle(self, now: float) -> None:
        """Count the progress of all running jobs since the last instant."""

    def events(self) -> Iterator[list[Event]]:
        """One list per instant."""
        jobs, arrived, now = self.jobs, 0, self.now
        while not self.stop:
            finish_s = self.next_finish_s(now)
            arrival_s = jobs[arrived].submit_s if arrived < len(jobs) else math.inf
            next_s = min(finish_s, arrival_s)
            if next_s == math.inf:
                return
            batch: list[Event] = []
            if self.wake_s < next_s:
                next_s = self.wake_s
                batch.append(Timer(next_s, ""))
            self.ledger.pass_time(next_s - now, 0)
            now = self.now = next_s
            self.wake_s = math.inf
            if finish_s == now:
                batch += [self.finish(task, now) for task in self.due(now)]
            while arrived < len(jobs) and jobs[arrived].submit_s == now:
                self.arrive(jobs[arrived])
                batch.append(Arrived(now, jobs[arrived]))
                arrived += 1
            self.settle(now)
            self.events_seen += len(batch)
            yield batch
            self.note_queue()


# What the peers' rules share: equal hosts, no network, no failures, no options.

FREEDOMS = "each has the GPUs that it asked for, and may be stopped, whatever its user said"


class PeerRules(Rules, ABC):
    """Rules of a published simulator."""

    def estimates(self, model: IterationModel) -> PeerEstimates:
        """What policies are told of jobs."""
        return PeerEstimates()

    def refusal(self, job: Batch, policy: Policy, topology: Topology) -> str:
        """Why this job could never run: too large for the scheme, or with wishes the peer does not know."""
        if job.required:
            return f"it must stay within one {job.required}, a constraint that {self.name} does not know"
        if job.hosts > 1 and job.gpus != job.hosts * topology.hosts.gpus[0]:
            return f"it wants parts of {job.hosts} hosts, a constraint that {self.name} does not know"
        if isinstance(policy, PeerPolicy) and job.gpus > policy.largest(topology):
            return (
                f"it wants {job.gpus} GPUs, more than one switch has; placement=yarn never crosses switches"
            )
        return ""

    def tell(self, view: ClusterView, tasks: Mapping[str, PeerTask]) -> None:
        """Let policies see what a driver keeps in these accounts."""
        told = view.estimates
        assert isinstance(told, PeerEstimates)
        told.watch(tasks)

    def check(self, topology: Topology, node_events: Sequence[NodeLost | NodeBack]) -> None:
        """Refuse what the peer cannot describe.

        Raises:
            TopologyError: unequal hosts. InputError: failures.
        """
        kinds = set(zip(topology.hosts.gpus.tolist(), topology.hosts.gpu_types, strict=True))
        if len(kinds) > 1:
            raise TopologyError(
                f"{self.name} knows only equal hosts; {topology.name!r} has {len(kinds)} kinds",
                "choose a cluster of equal hosts, or --semantics event-driven",
            )
        if node_events:
            raise InputError(
                f"{self.name} knows no failures of hosts", "leave them out, or use --semantics event-driven"
            )
