"""Inference lends idle servers to training; elastic jobs share what is left by a knapsack.

Lyra (Li, Xu, Zhu, Liu, Guo, Chen, "Lyra: Elastic scheduling for deep learning clusters", EuroSys'23), of which sections are
followed so:

- Section 3: inference is never altered, and only lends; here its replicas are numbered by the same autoscaler as FaPES'.
- Section 4, reclaiming: idle servers first, then those on which jobs only lose workers, then by the sum over a server's jobs of
  1 / the servers that the job has (`sched.reclaim`).
- Section 5, allocation in two phases: the least that jobs can run with goes to as many as possible, then the spare GPUs by a
  multiple-choice knapsack whose values are the run time saved. Solved exactly by dynamic programming.

In the style of: Lyra admits the shortest jobs first and allocates anew at fixed intervals; here jobs come in order of arrival and
whenever something happens, as under `elastic`, whose weighing of restarts is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hemiola.core.decisions import Decision
from hemiola.core.job import Batch, Elastic, Service
from hemiola.sched.autoscaling import autoscaler_from_text
from hemiola.sched.delay import work_left_s
from hemiola.sched.job_state import JobState
from hemiola.sched.policies.elastic import ElasticSharing, Step
from hemiola.sched.reclaim import spread_cost
from hemiola.sched.shared_cluster import LoanRules, shared_decisions
from hemiola.sched.view import ClusterView

__all__ = ["Lyra", "knapsack"]

RULES = LoanRules(to_training=True, to_inference=False, cost=spread_cost)
Item = tuple[int, float]
"""(GPUs, seconds saved)"""


@dataclass(frozen=True)
class Lyra(ElasticSharing):
    """Elastic jobs on their own and on lent servers."""

    name = "lyra"
    source = "in the style of Li et al., Lyra, EuroSys'23: loans to training, knapsack, reclaiming by servers"
    job_kinds = frozenset({Batch, Elastic, Service})

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        if view.services:
            return shared_decisions(view, self.train, autoscaler_from_text(self.autoscaler), RULES)
        return self.train(view)

    def card(self) -> dict[str, str]:
        return {
            **super().card(),
            "loans": "idle servers of inference, to training only",
            "reclaim": "idle, then hosts where jobs only shrink, then by the sum of 1 / servers of each job",
        }

    def _deal(
        self, view: ClusterView, jobs: list[JobState], steps: dict[int, Step | None], most: dict[int, int]
    ) -> list[tuple[JobState, int]]:
        growing = [job for job in jobs if steps[job.index] is not None]
        groups = [self._items(view, job, most[job.index]) for job in growing]
        chosen = knapsack(groups, view.free)
        return [(job, job.gpus + more) for job, more in zip(growing, chosen, strict=True) if more]

    def _items(self, view: ClusterView, job: JobState, most: int) -> list[Item]:
        """What each larger size saves of the time that is left."""
        left_s = work_left_s(view, job, self.oracle)
        speed_at = view.estimates.speed_at
        now_s = left_s / speed_at(job, job.gpus)
        sizes = [gpus for gpus in view.sizes_of(job) if job.gpus < gpus <= min(most, job.gpus + view.free)]
        return [(gpus - job.gpus, now_s - left_s / speed_at(job, gpus)) for gpus in sizes]


def knapsack(groups: Sequence[Sequence[Item]], capacity: int) -> list[int]:
    """Which item of each group to take, at most one, so that the values' sum is the most and the weights fit.

    Dynamic programming over the capacity (multiple-choice knapsack, Kellerer, Pferschy, Pisinger, "Knapsack Problems", 11.5).

    Returns:
        The weight that each group takes; 0 for none. Of equal sums the lighter choice in later groups.

    Example:
        >>> knapsack([[(1, 33.3), (2, 50.0)], [(1, 30.0), (2, 40.0)]], 2)
        [1, 1]
    """
    best = [0.0] * (capacity + 1)
    taken: list[list[int]] = []
    for items in groups:
        after, choice = best[:], [0] * (capacity + 1)
        for weight, value in items:
            for room in range(weight, capacity + 1):
                if best[room - weight] + value > after[room] + 1e-12:
                    after[room], choice[room] = best[room - weight] + value, weight
        best = after
        taken.append(choice)
    room, weights = capacity, []
    for choice in reversed(taken):
        weights.append(choice[room])
        room -= choice[room]
    return weights[::-1]
