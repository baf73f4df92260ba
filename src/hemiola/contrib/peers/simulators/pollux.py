"""Pollux's simulator (Qiao et al., OSDI'21; github.com/petuum/adaptdl, osdi21-artifact): rounds of 60 s.

Arrivals and ends are seen at the end of the round in which they happen. A job that gets GPUs makes
no progress for 30 s. Work is iterations by epoch; an epoch takes a whole number of seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hemiola.contrib.peers.simulators.epochs import RESTART_S, ROUND_S, Epochs
from hemiola.contrib.peers.simulators.pollux_facts import epoch_iterations
from hemiola.contrib.peers.simulators.replay import PeerReplay
from hemiola.contrib.peers.simulators.rules import FREEDOMS, PeerRules
from hemiola.contrib.peers.simulators.task import PeerEstimates
from hemiola.core.errors import InputError, PolicyError
from hemiola.core.events import Arrived, Event, NodeBack, NodeLost, Timer
from hemiola.core.job import Job
from hemiola.cost.iteration import IterationModel
from hemiola.contrib.peers.policies import POLLUX_SIM
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

__all__ = ["PolluxReplay", "PolluxSim"]

IDLE_ROUNDS = 100_000


class PolluxReplay(PeerReplay[Epochs]):
    """Passes time from round to round; each list of events ends with the round's timer."""

    def __init__(
        self,
        view: ClusterView,
        jobs: Sequence[Job],
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
        jobs: Sequence[Job],
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


def _check(job: Job) -> None:
    if not 1 <= job.facts.get("batch_size", 0) < math.inf or not job.model:
        raise InputError(
            f"job {job.id!r} names no application or no batch_size of at least 1, which pollux-sim counts work by",
            "give a workload in Pollux's format, or use --semantics event-driven",
        )
    epoch_iterations(job.model, int(job.facts["batch_size"]), job.gpus)
