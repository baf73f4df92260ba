"""Themis (Mahajan et al., NSDI'20), in the style of: finish-time fairness by auctions of leases.

A job's finish-time fairness is rho = T_shared / T_ideal: how long it takes from arrival to end here,
over how long it would take alone in its share of the cluster (section 3). GPUs are held on lease.
At every round (section 5)

1. all leases are over, and all GPUs are on offer;
2. the share 1 - f of the jobs with the worst rho may bid, f = 0.8;
3. the winners are those that maximise the product of 1 / rho of all bidders;
4. what is left goes to the others: whoever has GPUs keeps them, then the worst rho first.

Between rounds, what becomes free goes to those that wait, in the order of the last round; who came
since then stands behind them.

Where the paper is silent or our cluster differs, and what was chosen:
- *One app is one job*, a gang of fixed size: all or nothing. So a bid has two rows, with GPUs for one
  lease and without, and T_ideal on a 1/N share of a cluster of C GPUs is its run time on its best
  placement times max(1, GPUs x N / C), with N the mean number of jobs present during its life.
- *The product* is maximised greedily, by gain in log(1 / rho) per GPU: a knapsack, not a program.
- *No hidden payments*: a part of a gang cannot be withheld, and jobs cannot lie about rho here.
- *Remaining time* is the truth; an app estimates it from its loss curve.
- *Leases end together*, at multiples of `lease_s`; a job that starts between rounds has a first lease
  that is shorter. A holder that loses pays one save and load, which its bid without GPUs counts.
- *Leftovers* go by rho, not at random: a replay must repeat.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from hemiola.core.decisions import Decision
from hemiola.core.errors import PolicyError
from hemiola.sched.delay import work_left_s
from hemiola.sched.job_state import RUNNING, JobState
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policy import Policy, by_order
from hemiola.sched.queues import Order
from hemiola.sched.rounds import Rounds, RoundsEvery, reorder
from hemiola.sched.view import ClusterView, Index

__all__ = ["Auction", "ByAuction", "Themis", "finish_time_fairness", "ideal_s"]

BIDDER, HOLDER, LOSER, NEWCOMER = 0, 1, 2, 3


def ideal_s(work_s: float, gpus: int, jobs: float, cluster_gpus: int) -> float:
    """Run time alone on one share of a cluster that so many jobs share.

    A gang that is larger than the share takes turns with itself.

    Example:
        >>> ideal_s(100.0, 4, 8.0, 16), ideal_s(100.0, 1, 8.0, 16)
        (200.0, 100.0)
    """
    return work_s * max(1.0, gpus * jobs / cluster_gpus)


def finish_time_fairness(elapsed_s: float, remaining_s: float, ideal_s: float) -> float:
    """rho, if the job takes `remaining_s` from now; above 1 it does worse than alone in its share."""
    return (elapsed_s + remaining_s) / ideal_s if ideal_s > 0 else math.inf


@dataclass(frozen=True, eq=False)
class ByAuction(Order):
    """Bidders by what their GPUs gain, then holders, then the others, worst rho first.

    Args:
        places: by job index (class, value; smaller is better) as of the last auction. Who came
            later stands at the end, in order of arrival.
    """

    places: dict[int, tuple[int, float]]
    says = "its finish-time fairness gains most"

    def waiting(self, job: JobState, now: float) -> tuple[int, float]:
        kind, value = self.places.get(job.index, (NEWCOMER, job.submit_s))
        return max(kind, LOSER) if kind else BIDDER, value

    def running(self, job: JobState, now: float) -> tuple[int, float]:
        kind, value = self.places.get(job.index, (NEWCOMER, job.submit_s))
        return min(kind, HOLDER), value


@dataclass(frozen=True)
class _ThemisOrder(Order):
    """Names the queue of Themis in a view; each auction puts a `ByAuction` in its place."""

    says = ByAuction.says

    def waiting(self, job: JobState, now: float) -> tuple[int, float]:
        return NEWCOMER, job.submit_s

    def running(self, job: JobState, now: float) -> tuple[int, float]:
        return HOLDER, job.submit_s


QUEUE = _ThemisOrder()


class Auction(Index):
    """Knows each job's rho, and ranks all jobs by one auction; an index.

    Args:
        view: the cluster.
        offered: share of the jobs, worst rho first, that may bid: 1 - f.
        lease_s: what a bidder without GPUs loses.
        oracle: whether it knows the true work left.
    """

    def __init__(self, view: ClusterView, offered: float, lease_s: float, oracle: bool = True) -> None:
        self._view = view
        self._oracle = oracle
        self._offered = offered
        self._lease_s = lease_s
        self._presence_s = 0.0  # integral of the number of jobs over time
        self._noted_s = view.now
        self._present = 0
        self._first_seen: dict[int, tuple[float, float]] = {}  # (when, what the integral was then)

    def enter(self, job: JobState, now: float) -> None:
        """Note how many jobs there had been when it arrived, or was adopted."""
        if job.index not in self._first_seen:
            self._first_seen[job.index] = now, self._presence_s + self._present * (now - self._noted_s)

    def leave(self, job: JobState) -> None:
        """Of no interest here."""

    def refresh(self, job: JobState, now: float) -> None:
        """Of no interest here."""

    def note(self) -> None:
        """Count the jobs present; called whenever something happened."""
        view = self._view
        self._presence_s += self._present * (view.now - self._noted_s)
        self._noted_s = view.now
        self._present = len(view.waiting) + len(view.running)

    def mean_jobs(self, job: JobState) -> float:
        """Mean number of jobs present since it arrived, as far as this run saw it, itself included."""
        since_s, presence_s = self._first_seen[job.index]
        elapsed_s = self._view.now - since_s
        if elapsed_s <= 0:
            return float(max(1, self._present))
        return max(1.0, (self._presence_s - presence_s) / elapsed_s)

    def bid(self, job: JobState) -> tuple[float, float]:
        """(rho if it holds GPUs from now on, rho if it starts one lease later)."""
        view, switch_s = self._view, 0.0
        best = view.estimates.speed_at(job, job.gpus)  # not 1 where run times are those of another cluster
        work_s, left_s = job.work_s, job.work_s - job.done_s
        if not self._oracle:
            left_s = work_left_s(view, job, False)
            work_s = left_s + job.done_at(view.now)
        ideal = ideal_s(work_s / best, job.gpus, self.mean_jobs(job), view.topology.gpus)
        remaining_s = left_s / best
        with_gpus_s = remaining_s
        if job.status == RUNNING:
            if self._oracle:
                with_gpus_s = remaining_s = job.finish_s - view.now
            switch_s = view.estimates.switch_s(job)
        elapsed_s = view.now - job.submit_s
        return (
            finish_time_fairness(elapsed_s, with_gpus_s, ideal),
            finish_time_fairness(elapsed_s, remaining_s + switch_s + self._lease_s, ideal),
        )

    def hold(self) -> ByAuction:
        """The order in which GPUs go to jobs from now on."""
        view = self._view
        jobs = [*view.waiting.values(), *view.running.values()]
        bids = sorted([(-self.bid(job)[0], job.index, job) for job in jobs])
        places: dict[int, tuple[int, float]] = {}
        bidders = math.ceil(round(self._offered * len(jobs), 9))  # 1 - 0.95 is a little more than 0.05
        for place, (negative_rho, index, job) in enumerate(bids):
            if place < bidders:
                places[index] = BIDDER, -self._gain(job) / job.gpus
            else:
                places[index] = HOLDER, negative_rho
        return ByAuction(places)

    def _gain(self, job: JobState) -> float:
        """What GPUs for it add to the logarithm of the product of 1 / rho."""
        with_gpus, without = self.bid(job)
        return math.log(without / with_gpus) if 0 < with_gpus < math.inf else math.inf


@dataclass(frozen=True)
class _AuctionSpec:
    offered: float
    lease_s: float
    oracle: bool

    def build(self, view: ClusterView) -> Auction:
        return Auction(view, self.offered, self.lease_s, self.oracle)


@dataclass(frozen=True)
class Themis(Policy):
    """Leases auctioned among the jobs that are treated worst.

    Args:
        placement: which free GPUs a job gets.
        lease_s: length of a lease, and time between auctions, in seconds.
        fairness: f: only the share 1 - f of the jobs with the worst rho may bid.
        oracle: whether it knows the true work left; else as much is expected as was done, at least the mean of jobs so far.
    """

    placement: Rule = TierAware()
    lease_s: float = 1200.0
    fairness: float = 0.8
    oracle: bool = True
    name = "themis"
    source = "in the style of Mahajan et al., Themis, NSDI'20 (one job per app, greedy auction)"

    def __post_init__(self) -> None:
        if not 0 < self.lease_s < math.inf:
            raise PolicyError(f"lease_s is {self.lease_s}", "give seconds above 0")
        if not 0 <= self.fairness < 1:
            raise PolicyError(f"fairness is {self.fairness}", "give a share from 0 to below 1")

    @cached_property
    def auction(self) -> _AuctionSpec:
        """The auction it holds."""
        return _AuctionSpec(1 - self.fairness, self.lease_s, self.oracle)

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        auction: Auction = view.index(self.auction)
        rounds: Rounds = view.index(RoundsEvery(self.lease_s))
        queue = view.queue(QUEUE)
        auction.note()
        over = rounds.is_due(view.now)
        if over and view.waiting:
            reorder(view, queue, auction.hold())
        yield from by_order(view, QUEUE, self.placement, preempt=over)
        yield from rounds.ask(view, "then all leases are over")

    def card(self) -> dict[str, str]:
        return {
            "order": f"auction among the worst {1 - self.fairness:.0%} by finish-time fairness, "
            "then who holds GPUs, then by finish-time fairness",
            "backfill": "whoever fits",
            "preemption": f"every {self.lease_s:g} s, when all leases end, only as many as needed",
            "remaining time": "known (oracle)" if self.oracle else "as much as was done, at least the mean",
        }
