"""Crux (Cao et al., SIGCOMM'24), in the style of: GPU-intensity-aware shares of the network.

A job's GPU intensity is I = W / t: the computation of an iteration over the time that its traffic
takes on its slowest link, t = max over links of M_e / B_e. Whose traffic goes first decides how
much the cluster computes, so

1. *priority* P = k I. The reference job, the one with the most traffic, has k = 1; for another one
   the two are played against each other on one link, once with either in front. If the reference
   gains x seconds of sending by leading, and the other one gains y, then k = y / x;
2. *compression* to the K <= 8 levels that switches have: jobs that share a link are joined by an
   edge from higher to lower priority that weighs the higher one's intensity, and the levels are the
   cut of greatest weight that keeps the order, found by dynamic programming over `orders` random
   topological orders.

Crux schedules traffic, not jobs: order and placement of jobs are a host scheduler's, here parameters.

Where our cluster differs, and what was chosen:
- *Strict priority* is approximated by weights: a job of one level has `ratio` times the share of one
  of the next. Laws of contention that know no shares ("eta", "isolated") ignore them; where everybody
  always sends ("colliding") the lower levels starve, which no real job's pauses would let happen.
- *No choice of paths* (Crux's first step): links are trees here, parallel uplinks count as one.
- *W* is GPUs times computing time, not FLOP: the model's jobs say no FLOP.
- *t* takes every link to carry the job's bytes once, also for all-to-all traffic.
- *k* is clipped to 1/100 .. 100, and is 1 where neither gains; the pair is played for up to 60
  of the longer iterations. The paper's testbed measures a job alone for 30 s; here its profile is known.
- *An engine that cannot pace jobs* (live ones, so far) refuses the first weight; from then on the host scheduler is
  all there is.
- *Levels are per group* of jobs that hang together through shared links: others never meet. A group
  of at most K jobs needs no compression.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np
from numpy.typing import NDArray

from hemiola.core.decisions import Decision
from hemiola.core.errors import PolicyError
from hemiola.sched.crossing import CROSSING, Crosser, CrossingJobs, groups, meetings, pace
from hemiola.sched.index import members
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policies.fifo import ARRIVAL
from hemiola.sched.policies.shortest import DURATION, SERVICE
from hemiola.sched.policy import Policy, by_order
from hemiola.sched.queues import Order
from hemiola.sched.view import ClusterView

__all__ = ["Crux", "Rhythm", "compress", "correction", "cut_weight", "sent_s"]

ORDERS: dict[str, Order] = {"fifo": ARRIVAL, "sjf": DURATION, "srsf": SERVICE}
PLAYED_ITERATIONS = 60
LARGEST_CORRECTION = 100.0


@dataclass(frozen=True)
class Rhythm:
    """One iteration of a job: it sends first, and the part of its computing that can hide starts with it.

    Attributes:
        compute_s: computing time.
        send_s: time to send, alone.
        hidden_s: of `compute_s`, what does not wait for the traffic.
    """

    compute_s: float
    send_s: float
    hidden_s: float = 0.0

    @property
    def period_s(self) -> float:
        """Iteration time alone."""
        return max(self.send_s, self.hidden_s) + self.compute_s - self.hidden_s


def sent_s(leader: Rhythm, follower: Rhythm, horizon_s: float) -> tuple[float, float]:
    """Seconds that each of two jobs sends until `horizon_s` on one link where the leader goes first.

    Example:
        >>> sent_s(Rhythm(2.0, 2.0), Rhythm(1.0, 1.0), 12.0)
        (6.0, 3.0)
    """
    period_s, busy_s = leader.period_s, leader.send_s
    gap_s = period_s - busy_s

    def free_s(until_s: float) -> float:
        """Seconds in which the leader left the link alone."""
        periods, rest_s = divmod(until_s, period_s)
        return periods * gap_s + max(0.0, rest_s - busy_s)

    def reached_s(free: float) -> float:
        """The first moment by which it left it alone for so long."""
        periods = math.ceil(free / gap_s * (1 - 1e-12)) - 1
        return periods * period_s + busy_s + free - periods * gap_s

    led_s = horizon_s - free_s(horizon_s)
    if gap_s <= 0:
        return led_s, 0.0
    followed_s, now = 0.0, 0.0
    while True:
        before = free_s(now)
        sent_at_s = reached_s(before + follower.send_s)
        if sent_at_s >= horizon_s:
            return led_s, followed_s + free_s(horizon_s) - before
        followed_s += follower.send_s
        now = max(sent_at_s, now + follower.hidden_s) + follower.compute_s - follower.hidden_s
        if now >= horizon_s:
            return led_s, followed_s


@lru_cache(maxsize=65536)
def correction(reference: Rhythm, other: Rhythm, horizon_s: float | None = None) -> float:
    """k of the other job: what it gains by leading over what the reference gains by leading.

    Example:
        >>> correction(Rhythm(2.0, 2.0), Rhythm(1.0, 1.0), 12.0)
        1.5
    """
    horizon = horizon_s or _horizon_s(*sorted((reference.period_s, other.period_s)))
    reference_leads, other_follows = sent_s(reference, other, horizon)
    other_leads, reference_follows = sent_s(other, reference, horizon)
    x, y = reference_leads - reference_follows, other_leads - other_follows
    least = 1e-9 * horizon
    if x <= least and y <= least:
        return 1.0
    return min(max(y / max(x, least), 1 / LARGEST_CORRECTION), LARGEST_CORRECTION)


def _horizon_s(shorter_s: float, longer_s: float) -> float:
    """Many iterations of the longer one, but fewer where that would be thousands of the shorter one."""
    return max(3 * longer_s, min(PLAYED_ITERATIONS * longer_s, 50 * PLAYED_ITERATIONS * shorter_s))


def compress(
    priorities: list[float], intensities: list[float], met: list[int], levels: int, orders: int = 10
) -> list[int]:
    """A level for each job, 0 the highest, so that jobs that meet seldom share one.

    Args:
        priorities: higher goes first; ties by position.
        intensities: what is lost if a job shares its level with one of lower priority that it meets.
        met: for each job the bitset of those it shares a link with.
        levels: K.
        orders: topological orders to try.

    Example:
        >>> compress([4, 3, 2, 1], [4, 3, 2, 1], [0b10, 0b1, 0b1000, 0b100], 2)
        [0, 1, 0, 1]
    """
    chance = Random(0)
    best, found = -1.0, [0] * len(priorities)
    lower = _lower(priorities, met)
    for _ in range(orders):
        order = _topological(lower, chance)
        cut, ends = _best_split(_weights(order, lower, intensities), levels)
        if cut > best:
            best = cut
            for level, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
                for job in order[start:end]:
                    found[job] = level
    return found


def cut_weight(levels: list[int], priorities: list[float], intensities: list[float], met: list[int]) -> float:
    """What these levels save: the intensity of the higher job of each pair that meets on two levels."""
    lower = _lower(priorities, met)
    return math.fsum(
        intensities[job]
        for job, bits in enumerate(lower)
        for other in members(bits)
        if levels[job] != levels[other]
    )


def _lower(priorities: list[float], met: list[int]) -> list[int]:
    """For each job the bitset of those of lower priority that it meets."""
    ranking = sorted(range(len(priorities)), key=lambda job: (-priorities[job], job))
    lower, left = [0] * len(ranking), (1 << len(ranking)) - 1
    for job in ranking:
        left ^= 1 << job
        lower[job] = met[job] & left
    return lower


def _topological(lower: list[int], chance: Random) -> list[int]:
    """A random order, breadth first, in which each job stands before the lower ones it meets."""
    higher = [0] * len(lower)
    for bits in lower:
        for job in members(bits):
            higher[job] += 1
    ready = [job for job, count in enumerate(higher) if not count]
    order: list[int] = []
    while ready:
        chance.shuffle(ready)
        order += ready
        reached = []
        for job in ready:
            for other in members(lower[job]):
                higher[other] -= 1
                if not higher[other]:
                    reached.append(other)
        ready = reached
    return order


def _weights(order: list[int], lower: list[int], intensities: list[float]) -> NDArray[np.float64]:
    """Weight of the edge from place a to place b of the order, shape (n, n)."""
    place = {job: at for at, job in enumerate(order)}
    weights = np.zeros((len(order), len(order)))
    for at, job in enumerate(order):
        weights[at, [place[other] for other in members(lower[job])]] = intensities[job]
    return weights


def _best_split(weights: NDArray[np.float64], levels: int) -> tuple[float, list[int]]:
    """(cut, ends of the parts) of the best split of an order into at most so many parts.

    f(i, k) = max over j < i of f(j, k - 1) + C(j, i), with C(j, i) the weight from the first j to (j, i].
    """
    count = len(weights)
    prefix = np.zeros((count + 1, count + 1))
    prefix[1:, 1:] = weights.cumsum(axis=0).cumsum(axis=1)
    gain = prefix - np.diag(prefix)[:, None]  # C(j, i)
    gain[np.tri(count + 1, k=-1, dtype=bool)] = -np.inf  # j > i; j = i is an empty part
    best = np.full(count + 1, -np.inf)
    best[0] = 0.0
    choices = []
    for _ in range(levels):
        through = best[:, None] + gain
        choices.append(through.argmax(axis=0))
        best = through.max(axis=0)
    ends, end = [], count
    for choice in reversed(choices):
        ends.append(end)
        end = int(choice[end])
    return float(best[count]), ends[::-1]


@dataclass(frozen=True)
class Crux(Policy):
    """Shares of the network by GPU intensity, under a simple host scheduler.

    Args:
        placement: which free GPUs a job gets.
        order: of the host scheduler: "fifo", "sjf" or "srsf", with back-filling, without pre-emption.
        levels: K, the priority levels of the network.
        ratio: share of a level relative to the next one's.
        orders: topological orders that compression tries.
    """

    placement: Rule = TierAware()
    order: str = "fifo"
    levels: int = 8
    ratio: float = 8.0
    orders: int = 10
    name = "crux"
    source = "in the style of Cao et al., Crux, SIGCOMM'24 (weights for strict priority, no choice of paths)"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise PolicyError(f"order is {self.order!r}", f"choose one of {', '.join(ORDERS)}")
        if not 1 <= self.levels <= 64:
            raise PolicyError(f"levels is {self.levels}", "give 1 to 64")
        if not 1 <= self.ratio <= 1e9 ** (1 / self.levels):
            most = 1e9 ** (1 / self.levels)
            raise PolicyError(f"ratio is {self.ratio}", f"give 1 to {most:.3g} for {self.levels} levels")
        if self.orders < 1:
            raise PolicyError(f"orders is {self.orders}", "give 1 or more")

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        yield from by_order(view, ORDERS[self.order], self.placement)
        crossing: CrossingJobs = view.index(CROSSING)
        crossers = crossing.settle()
        if crossers:
            weights = [self.ratio**level for level in self._levels_from_below(view, crossers)]
            yield from pace(view, crossers, weights, "its GPU intensity among those it shares links with")

    def _levels_from_below(self, view: ClusterView, crossers: list[Crosser]) -> Iterator[int]:
        """For each job how many levels lie below its own."""
        intensities, priorities = _priorities(view, crossers)
        met = meetings(crossers)
        below = [0] * len(crossers)
        for group in groups(met):
            levels = self._levels(group, intensities, priorities, met)
            for job, level in zip(group, levels, strict=True):
                below[job] = max(levels) - level
        yield from below

    def _levels(
        self, group: list[int], intensities: list[float], priorities: list[float], met: list[int]
    ) -> list[int]:
        priority = [priorities[job] for job in group]
        if len(group) <= self.levels:
            ranking = sorted(range(len(group)), key=lambda at: (-priority[at], at))
            return [ranking.index(at) for at in range(len(group))]
        place = {job: at for at, job in enumerate(group)}
        inside = [sum(1 << place[other] for other in members(met[job])) for job in group]
        return compress(priority, [intensities[job] for job in group], inside, self.levels, self.orders)

    def card(self) -> dict[str, str]:
        return {
            "order": f"{ORDERS[self.order].says} (host scheduler{'' if self.order == 'fifo' else '; oracle'})",
            "backfill": "whoever fits",
            "preemption": "none",
            "network": f"{self.levels} levels by GPU intensity, each {self.ratio:g}x the share of the next",
        }


def _priorities(view: ClusterView, crossers: list[Crosser]) -> tuple[list[float], list[float]]:
    """(intensity, priority) of each."""
    rhythms, intensities, traffic = [], [], []
    for crosser in crossers:
        compute_s, traffic_bytes, hidden_s = view.estimates.demand(crosser.job)
        rhythms.append(Rhythm(compute_s, crosser.alone_s, hidden_s))
        intensities.append(crosser.job.gpus * compute_s / crosser.alone_s)
        traffic.append(traffic_bytes)
    reference = rhythms[max(range(len(traffic)), key=traffic.__getitem__)]
    corrections = [correction(reference, rhythm) for rhythm in rhythms]
    return intensities, [k * i for k, i in zip(corrections, intensities, strict=True)]
