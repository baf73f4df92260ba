"""LWF-kappa with AdaDUAL (Wang, Shi, Wang, Li, Chu, "Communication contention aware scheduling of
multiple deep learning training jobs", 2020), in the style of: Ada-SRSF.

- *Placement, LWF-kappa.* A GPU's workload is the time that its jobs still need. A job of at most
  kappa GPUs takes the GPUs with the least workload, ties by host; a larger one takes hosts by mean
  workload of their GPUs, least first, and fills them one by one.
- *Order, SRSF.* Least remaining time times GPUs first, without pre-emption.
- *Network, AdaDUAL.* With k messages on a link a byte takes k beta + (k - 1) eta. A message that finds
  another one on its way starts beside it only if that lowers the mean finish of the two, which is
  so exactly if new / rest of the old < beta / (2 (beta + eta)); else it waits.

Where our cluster differs, and what was chosen:
- *GPUs are exclusive.* In the paper several jobs share a GPU. A free GPU here has no workload at all,
  so jobs of at most kappa GPUs take the first free ones, and workload only tells hosts apart.
- *Remaining time is the truth*, communication at the present speed included.
- *AdaDUAL as a share of links.* The simulated network knows no single messages, only each job's
  long-run share where it meets others; so the rule is averaged over when two jobs meet. Let a and b
  be their bytes per iteration, and theta the threshold. One of a that finds one of b sending finds its
  rest even over (0, b], so it starts at once with probability q = max(0, 1 - a / (theta b)), and then
  has half the link; otherwise nothing until b is done. That a finds b rather than b finds a has the
  probability b / (a + b), since b sends for longer. Hence a's share while both want the link is

      b / (a + b) * q(a, b) / 2  +  a / (a + b) * (1 - q(b, a) / 2).

  A job's weight is the geometric mean of share / (1 - share) over those it meets and itself: for two
  jobs exactly the ratio of their shares, for all-meet-all the least-squares fit in logarithms.
- *Three or more* messages never overlap under AdaDUAL; here pairs are all that is looked at.
- Laws of contention that know no shares ("eta", "isolated") ignore the weights. An engine that cannot pace jobs (live
  ones, so far) refuses the first one; from then on order and placement are all there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from hemiola.core.decisions import Decision, Placement
from hemiola.core.errors import PolicyError
from hemiola.sched.crossing import CROSSING, Crosser, CrossingJobs, meetings, pace
from hemiola.sched.index import members
from hemiola.sched.inventory import GpuPool, Inventory
from hemiola.sched.job_state import RUNNING, JobState
from hemiola.sched.placement import Rule
from hemiola.sched.placement.rule import Pairs, build
from hemiola.sched.policies.shortest import ByRemainingService
from hemiola.sched.policy import Policy, by_order
from hemiola.sched.view import ClusterView, Index

__all__ = ["HostWorkload", "LeastWorkload", "Lwf", "adadual_overlaps", "adadual_share", "adadual_threshold"]

ORDER = ByRemainingService()


def adadual_threshold(beta: float, eta: float) -> float:
    """beta / (2 (beta + eta)): so large relative to the other's rest may a message be that overlaps.

    Example:
        >>> round(adadual_threshold(0.856, 0.235), 4)
        0.3923
    """
    return beta / (2 * (beta + eta))


def adadual_overlaps(new_bytes: float, old_left_bytes: float, beta: float, eta: float) -> bool:
    """Whether a new message should start beside one that has `old_left_bytes` to go, rather than wait."""
    return new_bytes < adadual_threshold(beta, eta) * old_left_bytes


def adadual_share(own_bytes: float, other_bytes: float, threshold: float) -> float:
    """The share of a link that a job has while both want it, averaged over when they meet.

    Example:
        >>> adadual_share(1.0, 1.0, 0.4), round(adadual_share(0.4, 1.0, 0.4), 3)
        (0.5, 0.286)
    """

    def at_once(new_bytes: float, old_bytes: float) -> float:
        return max(0.0, 1.0 - new_bytes / (threshold * old_bytes))

    comes_second = other_bytes / (own_bytes + other_bytes)
    second = at_once(own_bytes, other_bytes) / 2
    first = 1.0 - at_once(other_bytes, own_bytes) / 2
    return comes_second * second + (1.0 - comes_second) * first


class HostWorkload(Index):
    """Seconds of work that the GPUs of each host still have before them; an index.

    The sum over a host's GPUs of (finish - now) is kept as the sum of finishes and their number, and follows every change
    of speed. A job that stands still counts as if it went on at its best.
    """

    def __init__(self, view: ClusterView) -> None:
        hosts = len(view.topology.hosts)
        self._view = view
        self._gpus: list[int] = view.topology.hosts.gpus.tolist()
        self._finish_s = [0.0] * hosts
        self._busy = [0] * hosts
        self._entered: dict[int, tuple[float, Placement]] = {}

    def enter(self, job: JobState, now: float) -> None:
        """Add a running job's work to its hosts."""
        if job.status == RUNNING and job.placement is not None:
            finish_s = _finish_s(job, now)
            self._entered[job.index] = finish_s, job.placement
            self._add(finish_s, job.placement, 1)

    def leave(self, job: JobState) -> None:
        """Take it away again."""
        entered = self._entered.pop(job.index, None)
        if entered is not None:
            self._add(*entered, -1)

    def measured(self, job: JobState, now: float) -> None:
        """It ends at another time."""
        entered = self._entered.get(job.index)
        if entered is not None:
            before_s, placement = entered
            finish_s = _finish_s(job, now)
            self._entered[job.index] = finish_s, placement
            later_s = finish_s - before_s
            for host, mask in zip(placement.hosts, placement.masks, strict=True):
                self._finish_s[host] += mask.bit_count() * later_s

    def _add(self, finish_s: float, placement: Placement, sign: int) -> None:
        for host, mask in zip(placement.hosts, placement.masks, strict=True):
            count = sign * mask.bit_count()
            self._busy[host] += count
            self._finish_s[host] += count * finish_s
            if not self._busy[host]:
                self._finish_s[host] = 0.0  # forget rounding

    def mean_s(self, host: int) -> float:
        """Mean work left per GPU of this host, idle ones included."""
        left_s = self._finish_s[host] - self._busy[host] * self._view.now
        return max(0.0, left_s) / self._gpus[host]


def _finish_s(job: JobState, now: float) -> float:
    """When it ends at its present speed; if it stands still, at its best."""
    return job.finish_s if job.finish_s < math.inf else now + job.remaining_s(now)


@dataclass(frozen=True, eq=False)
class LeastWorkload(Rule):
    """LWF-kappa on one cluster.

    Args:
        workload: of that cluster.
        kappa: jobs of at most so many GPUs go wherever a GPU is free.
    """

    workload: HostWorkload
    kappa: int
    name = "lwf"
    says = "the hosts with the least work left"

    def choose(self, inventory: Inventory, pool: GpuPool, job: JobState, widest: int) -> Placement | None:
        hosts = pool.hosts.descending()
        if job.gpus <= self.kappa:
            ordered = sorted(hosts)
        else:
            mean_s = self.workload.mean_s
            ordered = sorted(hosts, key=lambda pair: (mean_s(pair[0]), pair[0]))
        return build(inventory, _fill(inventory, ordered, job.gpus, widest))


def _fill(inventory: Inventory, ordered: Pairs, gpus: int, widest: int) -> Pairs | None:
    """Host by host in this order, inside the domain of tier `widest` that is first to have enough."""
    domain_of = inventory.domain_of[widest - 1] if 0 < widest <= len(inventory.domain_of) else None
    taken: dict[int, Pairs] = {}
    left: dict[int, int] = {}
    for host, free in ordered:
        domain = host if widest == 0 else domain_of[host] if domain_of else 0
        want = left.get(domain, gpus)
        taken.setdefault(domain, []).append((host, min(free, want)))
        if want <= free:
            return taken[domain]
        left[domain] = want - free
    return None


@dataclass(frozen=True)
class _RuleSpec:
    """Says that a policy needs LWF's rule for one cluster; an index is what keeps it up to date."""

    kappa: int

    def build(self, view: ClusterView) -> _Ruled:
        return _Ruled(view, self.kappa)


class _Ruled(HostWorkload):
    def __init__(self, view: ClusterView, kappa: int) -> None:
        super().__init__(view)
        self.rule = LeastWorkload(self, kappa)


@dataclass(frozen=True)
class Lwf(Policy):
    """Least workload first placement, shortest remaining service first, AdaDUAL shares of links.

    Args:
        kappa: jobs of at most so many GPUs take whatever GPUs have the least workload.
        adadual: whether shares of links are set; else all weigh the same.
        beta: time per byte of one message alone, in any unit.
        eta: further time per byte for each message beside it, in the same unit.
    """

    kappa: int = 1
    adadual: bool = True
    beta: float = 0.856
    eta: float = 0.235
    name = "lwf"
    source = "in the style of Wang et al. 2020 (LWF-kappa, Ada-SRSF; exclusive GPUs, long-run shares)"

    def __post_init__(self) -> None:
        if self.kappa < 0:
            raise PolicyError(f"kappa is {self.kappa}", "give 0 or more GPUs")
        if not (0 < self.beta < math.inf and 0 <= self.eta < math.inf):
            raise PolicyError(
                f"beta is {self.beta} and eta {self.eta}", "give beta above 0 and eta 0 or more"
            )

    @cached_property
    def threshold(self) -> float:
        """AdaDUAL's."""
        return adadual_threshold(self.beta, self.eta)

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        ruled: _Ruled = view.index(_RuleSpec(self.kappa))
        yield from by_order(view, ORDER, ruled.rule)
        if self.adadual:
            yield from self._share_links(view)

    def _share_links(self, view: ClusterView) -> Iterator[Decision]:
        crossing: CrossingJobs = view.index(CROSSING)
        crossers = crossing.settle()
        if crossers is not None:
            weights = self._weights(view, crossers)
            yield from pace(view, crossers, weights, "AdaDUAL: its share of the links where it meets others")

    def _weights(self, view: ClusterView, crossers: list[Crosser]) -> list[float]:
        size = [view.estimates.demand(crosser.job)[1] for crosser in crossers]
        weights = []
        for own, met in zip(size, meetings(crossers), strict=True):
            shares = [adadual_share(own, size[other], self.threshold) for other in members(met)]
            log_ratios = math.fsum([math.log(share / (1 - share)) for share in shares])
            weights.append(math.exp(log_ratios / (len(shares) + 1)))
        return weights

    def card(self) -> dict[str, str]:
        return {
            "order": "remaining time x GPUs (oracle)",
            "placement": f"LWF-{self.kappa}: {LeastWorkload.says}",
            "backfill": "whoever fits",
            "preemption": "none",
            "network": f"AdaDUAL's long-run shares, threshold {self.threshold:.4f}"
            if self.adadual
            else "even",
        }
