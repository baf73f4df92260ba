"""Tiresias's simulator (Gu et al., NSDI'19; github.com/SymbioticLab/Tiresias): whole seconds, no costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from hemiola.contrib.peers.policies import TIRESIAS_SIM
from hemiola.contrib.peers.simulators.replay import FREEDOMS, InstantReplay, PeerRules, PeerTask
from hemiola.core.decisions import Placement
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.job import Batch
from hemiola.cost.iteration import IterationModel
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

__all__ = ["TiresiasReplay", "TiresiasSim"]


class WholeSeconds(PeerTask):
    """Work is the run time of the trace, cut to whole seconds; every second with GPUs counts."""

    def __init__(self, job: Batch, index: int, tiers: int) -> None:
        super().__init__(job, index, tiers)
        self.work_s = self.ideal_s = float(math.floor(job.duration_s))
        self.ran_s = 0.0

    def attained_s(self, now: float) -> float:
        """Seconds in which it held GPUs."""
        return self.ran_s if self.placement is None else self.ran_s + (now - self.start_s)

    def remaining_s(self, now: float) -> float:
        """Seconds of work left."""
        return self.work_s - self.attained_s(now)

    def end(self, now: float) -> None:
        """It gives its GPUs back."""
        self.ran_s += now - self.start_s
        super().end(now)


class TiresiasReplay(InstantReplay[WholeSeconds]):
    """Ends are known when a job starts, so they wait in a heap."""

    def __init__(
        self,
        view: ClusterView,
        jobs: Sequence[Batch],
        tasks: dict[str, WholeSeconds],
        *,
        record: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(view, jobs, tasks, WholeSeconds, record=record, progress=progress)
        self._heap: list[tuple[float, int, int, WholeSeconds]] = []

    def begin(self, task: WholeSeconds, placement: Placement, now: float) -> None:
        """It runs there from now on, until its work is done."""
        super().begin(task, placement, now)
        heappush(self._heap, (now + task.remaining_s(now), task.index, task.version, task))

    def next_finish_s(self, now: float) -> float:
        """The earliest end of a span that still stands."""
        heap = self._heap
        while heap and heap[0][2] != heap[0][3].version:
            heappop(heap)
        return heap[0][0] if heap else math.inf

    def due(self, now: float) -> list[WholeSeconds]:
        """The jobs that end now, in order of arrival."""
        ending: list[WholeSeconds] = []
        while self.next_finish_s(now) == now:
            task = heappop(self._heap)[3]
            ending.append(task)
        return ending

    def settle(self, now: float) -> None:
        """Nothing to do: progress is a difference of times."""


@dataclass(frozen=True)
class TiresiasSim(PeerRules):
    """The rules of Tiresias's simulator, without its lost jobs."""

    name = "tiresias-sim"
    policies = TIRESIAS_SIM
    default_policies = ("fifo", "shortest-gpu", "dlas-gpu")

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
    ) -> TiresiasReplay:
        """The cluster that plays by these rules."""
        self.check(view.topology, node_events)
        tasks: dict[str, WholeSeconds] = {}
        self.tell(view, tasks)
        return TiresiasReplay(view, jobs, tasks, record=record, progress=progress)

    def card(self, policy: Policy, seed: int) -> dict[str, str]:
        """Every rule that shaped the numbers, by name."""
        placement = getattr(policy, "rule", None)
        return {
            "semantics": f"{self.name}: the rules of Tiresias's simulator (NSDI'19)",
            "time": "decisions at arrivals and ends, and at one timer of dlas and dlas-gpu; no rounds",
            "allocation reset": "sjf, shortest, shortest-gpu: at every decision; others: none",
            "duration": "the trace's run time in whole seconds, wherever the job runs",
            "jobs": FREEDOMS,
            "contention": "none",
            "preemption cost": "none",
            "host failure": "none",
            "tie-break": "the order of the last decision, first that of arrival",
            "placement": "" if placement is None else f"{placement.name}: {placement.says}",
            **policy.card(),
            "seed": f"{seed} (nothing is drawn)",
        }
