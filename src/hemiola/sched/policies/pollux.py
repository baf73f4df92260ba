"""Pollux (Qiao et al., OSDI'21), in the style of: GPUs and batches of all jobs together, for goodput shared out fairly.

1. *Goodput* (section 3): throughput times statistical efficiency, by GPUs, batch and gradient noise (`cost.goodput`, exact).
   A job's batch is what is best for it where it runs.
2. *Speedup* s_j (4.2): goodput over that of a fair share, one job's part of the GPUs.
3. *Fitness*: the generalised mean (1/J sum s_j^p)^(1/p) with p = -1. A job that would change has its speedup multiplied
   by (T - R d) / (T + d): T its age, R its restarts, d what one costs.
4. *At most one distributed job on a host* (4.2.1): a job over several hosts has them whole.

Where the paper's way was left, and what was chosen:
- *The search.* The paper breeds 100 allocations for 100 generations, at random. With p < 0 the fitness is largest where the
  sum of s_j^p is least, a sum over jobs: a program of the kind that `sia` solves has the best allocation at once, and the same
  on every run. So numbers are not those of the paper's simulator to the bit.
- *Jobs without GPUs* have speedup 0 and would make every fitness 0; here one costs more than the slowest that runs, so that as
  many as possible run.
- *A batch* changes only with the GPUs: here either restarts the job; the paper's jobs change it between two iterations.
- *GPU types* are one more dimension of the program; the paper has one.
- *The first moments*: free GPUs go to waiting jobs at once, in order of arrival, until the next round.
- *Exploration.* The paper limits a job to twice the GPUs that it ever had; goodput models are known here, so it is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hemiola.core.decisions import Decision
from hemiola.core.errors import PolicyError
from hemiola.sched.optimise.allocation import Choices, allocate
from hemiola.sched.optimise.programs import Budget
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policies.fifo import ByArrival
from hemiola.sched.policies.sia import (
    GAP,
    GpuChoice,
    candidates,
    is_fixed,
    kept_of,
    may_gain,
    says,
    shares_of,
)
from hemiola.sched.policy import Policy
from hemiola.sched.rounds import Rounds, RoundsEvery, capacity_of, fill, reassign
from hemiola.sched.view import ClusterView

__all__ = ["Pollux", "pollux_choices"]

ARRIVAL = ByArrival()
LEAST = 1e-3
"""The least speedup, so that no cost is infinite."""


def pollux_choices(
    rows: list[list[GpuChoice]], fair: list[float], factors: list[float], fairness: float
) -> Choices:
    """The program's costs s^p, with more than the dearest of them for a job without GPUs.

    Args:
        rows: for each job, what it may have.
        fair: its goodput with a fair share.
        factors: what is left of its speedup if it changes.
        fairness: p, below 0.
    """
    speedups = [
        max(LEAST, one.goodput / fair[job] * (1.0 if one.current else factors[job]))
        for job, row in enumerate(rows)
        for one in row
    ]
    cost = np.array(speedups) ** fairness
    flat = [(job, one) for job, row in enumerate(rows) for one in row]
    without = 1.0 + float(cost.max(initial=0.0)) * 2.0
    return Choices(
        np.array([job for job, _ in flat], dtype=np.int64),
        np.array([one.gpus for _, one in flat], dtype=float),
        np.array([one.kind for _, one in flat], dtype=np.int64),
        cost,
        np.full(len(rows), without),
    )


@dataclass(frozen=True)
class Pollux(Policy):
    """Goodput, shared out fairly: the generalised mean of speedups over a fair share.

    Args:
        placement: which free GPUs a job gets.
        round_s: from one round to the next, in seconds.
        fairness: p of the generalised mean, below 0: the lower, the more those count who have least.
        nodes: of branch and bound, before the incumbent is taken as it is.
    """

    placement: Rule = TierAware()
    round_s: float = 60.0
    fairness: float = -1.0
    nodes: int = 200
    name = "pollux"
    source = "in the style of Qiao et al., Pollux, OSDI'21 (goodput exact; a program in place of the evolutionary search)"

    def __post_init__(self) -> None:
        if not 0 < self.round_s < math.inf:
            raise PolicyError(f"round_s is {self.round_s}", "give seconds above 0")
        if not -10 <= self.fairness < 0:
            raise PolicyError(f"fairness is {self.fairness}", "give p from -10 to below 0")
        Budget(nodes=self.nodes)

    @cached_property
    def rounds(self) -> RoundsEvery:
        """When it decides."""
        return RoundsEvery(self.round_s)

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        rounds: Rounds = view.index(self.rounds)
        if rounds.is_due(view.now):
            yield from self._round(view)
        yield from fill(view, ARRIVAL, self.placement)
        yield from rounds.ask(view, "then GPUs are dealt out anew", alone=may_gain(view))

    def _round(self, view: ClusterView) -> Iterator[Decision]:
        jobs = [job for job in (*view.running.values(), *view.waiting.values()) if not is_fixed(job)]
        if not jobs:
            return
        pools = list(view.inventory.pools.values())
        rows = [candidates(view, job, pools, all_sizes=True) for job in jobs]
        capacities = [capacity_of(view, pool) for pool in pools]
        share = max(1.0, sum(capacities) / len(jobs))
        fair = [_at(row, share) for row in rows]
        choices = pollux_choices(rows, fair, [kept_of(view, job) for job in jobs], self.fairness)
        found = allocate(choices, capacities, Budget(nodes=self.nodes, gap=GAP))
        yield from reassign(
            view, shares_of(jobs, rows, found, pools), self.placement,
            says(found, "its speedup over a fair share is worth most to all"),
            says(found, "others' speedups are worth more"),
        )  # fmt: skip

    def card(self) -> dict[str, str]:
        return {
            "order": f"best generalised mean (p = {self.fairness:g}) of speedups over a fair share",
            "backfill": "whoever fits between rounds, in order of arrival",
            "preemption": f"every {self.round_s:g} s, where the mean gains from it, restarts counted",
            "elastic jobs": "any size within a host, or whole hosts, and the batch with most goodput",
            "solver": f"HiGHS: linear, then at most {self.nodes} nodes",
        }


def _at(row: list[GpuChoice], gpus: float) -> float:
    """Goodput with about so many GPUs: of the largest size up to that, or its part of the smallest."""
    if not row:
        return 1.0
    under = [one for one in row if one.gpus <= gpus]
    if under:
        return max(under, key=lambda one: (one.gpus, one.goodput)).goodput
    least = min(row, key=lambda one: (one.gpus, -one.goodput))
    return least.goodput * gpus / least.gpus
