"""What the drivers of all peers share: spans, the ledger, one timer. How time passes is each one's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar, assert_never

import msgspec

from hemiola.sched.loop import cannot
from hemiola.simulator.ledger import IdleLedger
from hemiola.contrib.peers.simulators.task import PeerTask
from hemiola.simulator.records import Account, SimulatedReplay
from hemiola.core.decisions import Decision, Move, Pace, Placement, Resize, Start, Stop, WakeAt
from hemiola.core.errors import InternalError
from hemiola.core.events import Finished
from hemiola.core.job import Job
from hemiola.core.timeline import Timeline
from hemiola.sched.view import ClusterView

__all__ = ["PeerReplay"]

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
        jobs: Sequence[Job],
        tasks: dict[str, AnyTask],
        make: Callable[[Job, int, int], AnyTask],
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

    def arrive(self, job: Job) -> None:
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
            case Resize() | Pace():
                raise InternalError(f"{decision} was to be carried out: {cannot(decision)}")
            case _:
                assert_never(decision)

    def render(self, decision: Decision) -> str:
        """The decision as one line."""
        return str(decision) if type(decision) in self.supports else cannot(decision)

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


def _plain(job: Job) -> Job:
    """As peers know jobs: of one size, and free to be stopped."""
    if not (job.pinned or job.is_elastic):
        return job
    return msgspec.structs.replace(job, pinned=False, gpus_min=0, gpus_max=0)
