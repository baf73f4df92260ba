"""What came of the jobs of one run, and the figures that sum it up. Pure: knows no Slurm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, quantiles

__all__ = ["Alone", "Figures", "Ran", "Run", "figures"]


COMPLETING_S = 2.5
"""A node is not free at once when a job's script has ended: Slurm completes the job first."""
AT_ONCE_S = 1.0
"""Jobs that start within so short a time of each other were placed together."""


@dataclass(frozen=True)
class Alone:
    """Iterations of a two-node job that has its network to itself (s).

    Attributes:
        near_s: in one rack.
        communication_s: of `near_s`.
        far_s: across two racks.
        forecast_s: across two, as Hemiola's cost model has it from what was measured in one.
    """

    near_s: float
    communication_s: float
    far_s: float
    forecast_s: float


@dataclass(frozen=True)
class Ran:
    """One job that ended; times in seconds since the run's beginning.

    Attributes:
        submit_s: when sbatch was called.
        start_s: when its script began to run: it held its nodes.
        end_s: when its script ended.
        iteration_s: of each iteration; none where it ran on one node.
        communication_s: of that, waited for gradients of others.
    """

    name: str
    hosts: tuple[str, ...]
    submit_s: float
    start_s: float
    end_s: float
    iteration_s: list[float]
    communication_s: list[float]

    @property
    def mean_iteration_s(self) -> float:
        """Of an iteration of a job that trains."""
        return fmean(self.iteration_s)


@dataclass(frozen=True)
class Run:
    """The stream under one scheduler.

    Attributes:
        per_rack: nodes of a rack.
        origin_s: Unix time of its beginning.
        uplinks: bytes that each rack's uplink had sent, by Unix time.
    """

    name: str
    jobs: list[Ran]
    per_rack: int
    origin_s: float
    uplinks: list[tuple[float, tuple[int, ...]]]

    def racks(self, job: Ran) -> int:
        """How many racks a job was in."""
        return len({self.rack(host) for host in job.hosts})

    def rack(self, host: str) -> int:
        """The rack of a node, by its name: h0, h1, ..."""
        return int(host.removeprefix("h")) // self.per_rack

    def had_room(self, job: Ran) -> bool:
        """Whether some rack that jobs used could have held this one when it started, and for a while before."""
        others = [other for other in self.jobs if other is not job]
        used = {host for other in self.jobs for host in other.hosts}
        busy = {
            host
            for other in others
            if other.start_s < job.start_s + AT_ONCE_S and other.end_s > job.start_s - COMPLETING_S
            for host in other.hosts
        }
        free = [self.rack(host) for host in used - busy]
        return any(free.count(rack) >= len(job.hosts) for rack in free)


@dataclass(frozen=True)
class Figures:
    """A run in numbers; seconds.

    Attributes:
        jct_mean_s, jct_p90_s: from submission to end.
        makespan_s: until the last end.
        queued_mean_s: from submission to start.
        pairs: jobs of two nodes.
        crossed: of them in more than one rack.
        needless: of these, those that started while a rack had room.
        pair_iteration_s: mean over the two-node jobs of their mean iteration.
        communicated: share of the time that two-node jobs trained in which they waited for the network.
        uplink_bytes: sent over all uplinks.
    """

    jct_mean_s: float
    jct_p90_s: float
    makespan_s: float
    queued_mean_s: float
    pairs: int
    crossed: int
    needless: int
    pair_iteration_s: float
    communicated: float
    uplink_bytes: int


def figures(run: Run) -> Figures:
    """Sum a run up; it has two jobs at least, and one of several nodes."""
    completion = [job.end_s - job.submit_s for job in run.jobs]
    pairs = [job for job in run.jobs if len(job.hosts) > 1]
    crossed = [job for job in pairs if run.racks(job) > 1]
    return Figures(
        jct_mean_s=fmean(completion),
        jct_p90_s=quantiles(completion, n=10, method="inclusive")[-1],
        makespan_s=max(job.end_s for job in run.jobs),
        queued_mean_s=fmean(job.start_s - job.submit_s for job in run.jobs),
        pairs=len(pairs),
        crossed=len(crossed),
        needless=sum(map(run.had_room, crossed)),
        pair_iteration_s=fmean(job.mean_iteration_s for job in pairs),
        communicated=_sum(job.communication_s for job in pairs) / _sum(job.iteration_s for job in pairs),
        uplink_bytes=sum(run.uplinks[-1][1]) - sum(run.uplinks[0][1]) if run.uplinks else 0,
    )


def _sum(lists: Iterable[list[float]]) -> float:
    return sum(map(sum, lists))
