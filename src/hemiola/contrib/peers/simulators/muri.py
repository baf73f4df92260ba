"""Muri's simulator (Zhao et al., SIGCOMM'22; github.com/Rivendile/Muri) without its grouping of jobs.

Work is a number of iterations. Every interval between two decisions costs each running job its
start-up time again, unless the interval ends with the job's own end; ends are predicted without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hemiola.contrib.peers.policies import MURI_SIM
from hemiola.contrib.peers.simulators.replay import FREEDOMS, InstantReplay, PeerRules, PeerTask
from hemiola.core.decisions import Placement
from hemiola.core.errors import InputError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.job import Batch
from hemiola.cost.iteration import IterationModel
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

__all__ = ["MuriReplay", "MuriSim"]

STRETCH = 1.015
PER_SECOND = 1000.0
OTHERS_S = 10.0
SIZES = (1, 2, 4, 8, 16, 32)
START_UP_S: Mapping[str, tuple[float, ...]] = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
"""Seconds by model for 1 to 32 GPUs, from Muri's simulator (Apache-2.0); others, bert and gpt2: 10."""


def start_up_s(model: str, gpus: int) -> float:
    """Seconds that a running job loses in every interval between decisions."""
    if model not in START_UP_S or gpus not in SIZES:
        return OTHERS_S
    return START_UP_S[model][SIZES.index(gpus)]


class MuriIterations(PeerTask):
    """Work is iterations of equal length, counted in the peer's order of operations."""

    def __init__(self, job: Batch, index: int, tiers: int) -> None:
        super().__init__(job, index, tiers)
        self.step_s = job.facts["iteration_time"] * STRETCH / PER_SECOND
        self.left = job.facts["iterations"]
        self.ideal_s = self.left * self.step_s
        self.start_up_s = start_up_s(job.model, job.gpus)
        self.ran_s = 0.0
        self.since_s = 0.0

    def begin(self, placement: Placement, tier: int, now: float) -> None:
        """It gets GPUs."""
        super().begin(placement, tier, now)
        self.since_s = now

    def settle(self, now: float) -> None:
        """Count an interval that another job's end, an arrival or the timer closed."""
        interval_s = now - self.since_s
        self.left -= max(interval_s - self.start_up_s, 0.0) / self.step_s
        self.ran_s = self.ran_s + now - self.since_s
        self.checkpoint_s += min(interval_s, self.start_up_s)
        self.since_s = now

    def attained_s(self, now: float) -> float:
        """Seconds in which it held GPUs, as of the last instant."""
        return self.ran_s

    def remaining_s(self, now: float) -> float:
        """Seconds of iterations left, without start-up."""
        return max(self.left, 0.0) * self.step_s


class MuriReplay(InstantReplay[MuriIterations]):
    """Every end is predicted anew at every instant, because every interval costs work."""

    def __init__(
        self,
        view: ClusterView,
        jobs: Sequence[Batch],
        tasks: dict[str, MuriIterations],
        *,
        record: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(view, jobs, tasks, MuriIterations, record=record, progress=progress)
        self._ending: list[MuriIterations] = []

    def next_finish_s(self, now: float) -> float:
        """The earliest predicted end; exact ties end together."""
        finish_s, ending = math.inf, self._ending
        for task in self.running.values():
            at = now + task.remaining_s(now)
            if at < finish_s:
                finish_s = at
                ending.clear()
            if at == finish_s:
                ending.append(task)
        return finish_s

    def due(self, now: float) -> list[MuriIterations]:
        """The jobs that end now, in order of arrival."""
        ending = sorted(self._ending, key=lambda task: task.index)
        self._ending.clear()
        return ending

    def settle(self, now: float) -> None:
        """Count the interval of all that run on."""
        for task in self.running.values():
            task.settle(now)


@dataclass(frozen=True)
class MuriSim(PeerRules):
    """The rules of Muri's simulator for the policies that do not group jobs."""

    name = "muri-sim"
    policies = MURI_SIM
    default_policies = ("srtf", "srsf", "tiresias")

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
    ) -> MuriReplay:
        """The cluster that plays by these rules."""
        self.check(view.topology, node_events)
        for job in jobs:
            _check(job)
        tasks: dict[str, MuriIterations] = {}
        self.tell(view, tasks)
        return MuriReplay(view, jobs, tasks, record=record, progress=progress)

    def card(self, policy: Policy, seed: int) -> dict[str, str]:
        """Every rule that shaped the numbers, by name."""
        placement = getattr(policy, "rule", None)
        return {
            "semantics": f"{self.name}: the rules of Muri's simulator (SIGCOMM'22)",
            "time": "decisions at arrivals and ends, and at one timer of tiresias; no rounds",
            "allocation reset": "srtf, srsf: at every decision; tiresias: none",
            "duration": f"iterations x iteration_time x {STRETCH:g}, wherever the job runs",
            "jobs": FREEDOMS,
            "contention": "none",
            "preemption cost": (
                "every interval between decisions costs each running job 4 to 46 s by model and GPUs "
                "(10 s without an entry), unless it ends with the job; counted as checkpoint"
            ),
            "host failure": "none",
            "tie-break": "the order of the last decision, first that of arrival",
            "placement": "" if placement is None else f"{placement.name}: {placement.says}",
            **policy.card(),
            "seed": f"{seed} (nothing is drawn)",
        }


def _check(job: Batch) -> None:
    missing = [fact for fact in ("iterations", "iteration_time") if not job.facts.get(fact, 0) > 0]
    if missing:
        raise InputError(
            f"job {job.id!r} has no {' and no '.join(missing)}, which muri-sim counts work by",
            "give a trace in Muri's format, or use --semantics tiresias-sim or event-driven",
        )
