"""Sia (Jayaram Subramanya et al., SOSP'23), in the style of: jobs of any size on GPUs of several types, by one program.

1. *Configurations* (section 3.3): a GPU type and a number of GPUs: a power of two within a host, or whole hosts.
2. *Goodput* of each (3.4) by the job's model, relative to the row's least positive one: G. A running job that would change
   keeps of it only r = (T - N S) / (T + S), equation (2): T is its age, N its restarts so far, S what one costs.
3. *The program*, equation (1), every 60 s: least sum of G^p (p = -0.5), with lambda_n = 1.1 for a job that gets nothing and
   lambda_a = 0.01 for each configuration that changes. Linear first; mixed-integer only where that is fractional.
4. *Placement*: larger first, so that whole hosts are found whole.

Where the paper is silent or wrong, and what was chosen:
- *Dropping.* r^p can make moving a job dearer than lambda_n, so that the published program would rather stop it than move it
  (and pay the restart all the same, later). Here stopping a running job costs lambda_n r^p: no less than any move.
- *Costs* are not rounded to two digits, as the released code does, which makes ties; they are at most 200, as there.
- *A job that is not elastic* has one size, on every type that it accepts. One whose sizes hold no power of two has them all.
- *The first moments.* GPUs that are free between rounds go to waiting jobs at once, in order of arrival: an idle cluster lets
  nobody wait for a round.
- *A batch* changes only with the GPUs: here either restarts the job.
- *Goodput models* are the jobs' own from the start; the paper's first profiles on one GPU are left out. Without one, each
  GPU keeps its batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hemiola.core.decisions import Decision
from hemiola.core.errors import PolicyError
from hemiola.core.job import Configuration
from hemiola.sched.inventory import GpuPool
from hemiola.sched.job_state import RUNNING, JobState
from hemiola.sched.optimise.allocation import Allocation, Choices, allocate
from hemiola.sched.optimise.programs import Budget
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policies.fifo import ByArrival
from hemiola.sched.policy import Policy
from hemiola.sched.rounds import Rounds, RoundsEvery, Share, capacity_of, fill, reassign, sizes_of, type_of
from hemiola.sched.view import ClusterView

__all__ = ["GAP", "GpuChoice", "Sia", "restart_factor", "sia_choices", "sia_sizes"]

ARRIVAL = ByArrival()
MOST_COST = 200.0
GAP = 3e-3
"""An allocation this close to the linear program's bound, as a share of it, is taken: less than a program that big gains by branching."""
NEVER = 1e-3
"""The least that is left of a goodput: what r has no more to say about."""


def restart_factor(age_s: float, restarts: int, restart_s: float) -> float:
    """Equation (2): what share of its time a job would have kept if it had restarted as often again, and once more.

    Example:
        >>> restart_factor(1000.0, 2, 100.0)
        0.7272727272727273
    """
    if age_s + restart_s <= 0:
        return 1.0
    return max(0.0, age_s - restarts * restart_s) / (age_s + restart_s)


def sia_sizes(sizes: Iterable[int], on_host: int) -> list[int]:
    """Of these numbers of GPUs, the powers of two within a host and the whole hosts; all where that leaves none.

    Example:
        >>> sia_sizes(range(1, 20), 8), sia_sizes([3], 8)
        ([1, 2, 4, 8, 16], [3])
    """
    sizes = list(sizes)
    tidy = [g for g in sizes if (g <= on_host and not g & (g - 1)) or (g >= on_host and not g % on_host)]
    return tidy or sizes


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """A configuration that a job may have.

    Attributes:
        kind: the type of GPU, by its place among the cluster's pools.
        gpus: how many.
        goodput: work per second there.
        current: whether it has this one now.
        split: how it splits its batch there.
    """

    kind: int
    gpus: int
    goodput: float
    current: bool = False
    split: Configuration | None = None


def sia_choices(
    rows: list[list[GpuChoice]], factors: list[float], fairness: float, unserved: float, change: float
) -> Choices:
    """The program's costs: a row for each job, with its restart factor (1 for one that does not run).

    Args:
        fairness: p. Above 0 the sum of G^p is to be the largest, and a job that gets nothing adds nothing.
        unserved, change: lambda_n and lambda_a.
    """
    job, gpus, kind, cost, without = [], [], [], [], []
    for index, (row, factor) in enumerate(zip(rows, factors, strict=True)):
        least = min((one.goodput for one in row), default=1.0)
        moved = max(factor, NEVER)
        has = any(one.current for one in row)
        for one in row:
            gain = one.goodput / least * (1.0 if one.current or factor >= 1.0 else moved)
            worth = min(gain**fairness, MOST_COST) if fairness < 0 else -(gain**fairness)
            job.append(index)
            gpus.append(one.gpus)
            kind.append(one.kind)
            cost.append(worth + (0.0 if one.current else change * (2.0 if has else 1.0)))
        stays = min(unserved * moved**fairness, MOST_COST) if fairness < 0 and has else unserved
        without.append((stays if fairness < 0 else 0.0) + (change if has else 0.0))
    return Choices(
        np.array(job, dtype=np.int64), np.array(gpus, dtype=float), np.array(kind, dtype=np.int64),
        np.array(cost, dtype=float), np.array(without, dtype=float),
    )  # fmt: skip


@dataclass(frozen=True)
class Sia(Policy):
    """Goodput of every configuration, one program for all jobs, every round.

    Args:
        placement: which free GPUs a job gets.
        round_s: from one round to the next, in seconds.
        fairness: p: the lower, the more the program cares for those who have least.
        unserved: lambda_n, what a job without GPUs costs; above 1, or nobody would be let in.
        change: lambda_a, what a changed configuration costs.
        nodes: of branch and bound, before the incumbent is taken as it is.
    """

    placement: Rule = TierAware()
    round_s: float = 60.0
    fairness: float = -0.5
    unserved: float = 1.1
    change: float = 0.01
    nodes: int = 200
    name = "sia"
    source = "in the style of Jayaram Subramanya et al., Sia, SOSP'23"

    def __post_init__(self) -> None:
        if not 0 < self.round_s < math.inf:
            raise PolicyError(f"round_s is {self.round_s}", "give seconds above 0")
        if not -10 <= self.fairness <= 1 or not self.fairness:
            raise PolicyError(f"fairness is {self.fairness}", "give p from -10 to 1, but not 0")
        if not 1 < self.unserved < math.inf or not 0 <= self.change < 1:
            raise PolicyError(
                f"unserved is {self.unserved}, change {self.change}",
                "give more than 1, and from 0 to below 1",
            )
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
        yield from rounds.ask(view, "then configurations are chosen anew", alone=may_gain(view))

    def _round(self, view: ClusterView) -> Iterator[Decision]:
        jobs = [job for job in (*view.running.values(), *view.waiting.values()) if not is_fixed(job)]
        if not jobs:
            return
        pools = list(view.inventory.pools.values())
        rows = [candidates(view, job, pools) for job in jobs]
        factors = [kept_of(view, job) for job in jobs]
        choices = sia_choices(rows, factors, self.fairness, self.unserved, self.change)
        capacities = [capacity_of(view, pool) for pool in pools]
        found = allocate(choices, capacities, Budget(nodes=self.nodes, gap=GAP))
        shares = shares_of(jobs, rows, found, pools)
        yield from reassign(
            view, shares, self.placement, says(found, "its goodput there is worth most to all"),
            says(found, "others' goodput is worth more"),
        )  # fmt: skip

    def card(self) -> dict[str, str]:
        return {
            "order": f"least sum of goodput^{self.fairness:g}, {self.unserved:g} for a job without GPUs",
            "backfill": "whoever fits between rounds, in order of arrival",
            "preemption": f"every {self.round_s:g} s, where the program says so",
            "elastic jobs": "powers of two within a host, or whole hosts, and the batch with most goodput",
            "solver": f"HiGHS: linear, then at most {self.nodes} nodes",
        }


# ---- what Pollux shares


def is_fixed(job: JobState) -> bool:
    """Whether a round has nothing to say about it."""
    return job.status == RUNNING and job.job.pinned


def kept_of(view: ClusterView, job: JobState) -> float:
    """The restart factor of a running job, which a change restarts; 1 for one that waits."""
    if job.status != RUNNING:
        return 1.0
    restarts = job.preemptions + job.migrations
    return restart_factor(view.now - job.submit_s, restarts, view.estimates.switch_s(job))


def may_gain(view: ClusterView) -> bool:
    """Whether a round could do anything while nobody waits: an elastic job may change, or a type of GPU."""
    return len(view.inventory.pools) > 1 or any(job.elastic for job in view.running.values())


def candidates(view: ClusterView, job: JobState, pools: list[GpuPool], *, all_sizes: bool = False) -> list[GpuChoice]:  # fmt: skip
    """What a job may have, with its goodput; with `all_sizes` every number of GPUs within a host, too."""
    found = []
    able = {pool.gpu_type for pool in job.pools}
    for kind, pool in enumerate(pools):
        if pool.gpu_type not in able or not pool.largest:
            continue
        here = job.status == RUNNING and type_of(view, job) == pool.gpu_type
        for gpus in _sizes(view, job, pool.largest, all_sizes):
            tier = view.topology.narrowest(gpus, pool.gpu_type, job.job.hosts and max(1, job.job.hosts * gpus // job.gpus))  # fmt: skip
            if tier is None:
                continue
            goodput, split = view.estimates.goodput(job, gpus, tier, pool.gpu_type)
            if Configuration in view.cannot:
                split = None
            current = here and gpus == job.gpus
            if current and split is not None and job.configuration is None:
                found.append(GpuChoice(kind, gpus, view.estimates.speed_at(job, gpus), current))
                current = False
            if goodput > 0:
                found.append(GpuChoice(kind, gpus, goodput, current, job.configuration if current else split))
    return found


def _sizes(view: ClusterView, job: JobState, on_host: int, all_sizes: bool) -> list[int]:
    sizes = sizes_of(view, job)
    if not all_sizes:
        return sorted({*sia_sizes(sizes, on_host), *((job.gpus,) if job.status == RUNNING else ())})
    tidy = [g for g in sizes if g <= on_host or not g % on_host]
    return tidy or list(sizes)


def shares_of(
    jobs: list[JobState], rows: list[list[GpuChoice]], found: Allocation, pools: list[GpuPool]
) -> list[Share]:
    """What the program gives each job."""
    flat = [one for row in rows for one in row]
    chosen = [(job, flat[choice]) for job, choice in zip(jobs, found.chosen, strict=True) if choice >= 0]
    return [Share(job, one.gpus, pools[one.kind].gpu_type, one.split) for job, one in chosen]


def says(found: Allocation, reason: str) -> str:
    """The reason, with what it leaves open where the solver's budget was used up."""
    return f"{reason} ({found.word})" if found.word else reason
