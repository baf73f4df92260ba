"""The arithmetic of a league: paired differences, what is left of them after many comparisons, ranks, and bounds.

Pure functions of arrays; knows no policy and no file.

*Paired.* Two policies ran the same jobs. Each slice's completion times are divided by the mean of the
policy that is compared with, so that slices count alike; the change is the ratio of means, less 1.

*By blocks of arrivals.* Completion times of neighbours hang together: they queued behind the same jobs.
So jobs are not drawn one by one: slices are cut into blocks of consecutive arrivals, and blocks are drawn with
replacement from all slices together (Kuensch, "The jackknife and the bootstrap for general stationary observations", 1989;
blocks that do not overlap: Carlstein, 1986). The 95 % interval is the percentile one, and p twice the smaller tail.

*Many comparisons.* Benjamini and Hochberg, "Controlling the false discovery rate", 1995: of what is called
different, at most `rate` is so by chance, in the mean.

*Bounds.* What nobody can beat who runs these jobs on so many GPUs, knowing everything (`mean_bound_s`).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["PairedChange", "blocks_of", "false_discoveries", "mean_bound_s", "paired_change", "ranks"]

Floats = NDArray[np.float64]
FEWEST = 10
"""Blocks below which nothing is called different."""


class PairedChange(msgspec.Struct, frozen=True):
    """How much longer jobs took than under another policy.

    Attributes:
        mean: ratio of mean completion times, less 1; below 0 is shorter.
        low, high: 95 % interval.
        p_value: how often chance alone would show as much.
        blocks: how many blocks of arrivals were drawn from.
    """

    mean: float
    low: float
    high: float
    p_value: float
    blocks: int


def paired_change(
    ours: Sequence[Floats], theirs: Sequence[Floats], *, block: int = 25, resamples: int = 4000, seed: int = 0
) -> PairedChange:
    """The change from `theirs` to `ours`.

    Args:
        ours, theirs: per slice completion times in seconds, shape (jobs,), in order of arrival, the same jobs in both.
        block: consecutive arrivals that are drawn together; fewer where there would not be ten blocks. With fewer jobs than
            that nothing is sure, and p is 1.
        resamples: how many draws.
        seed: of NumPy's PCG64.

    Example:
        >>> paired_change([np.array([1.0, 2.0])], [np.array([2.0, 4.0])], block=1).mean
        -0.5
    """
    size = max(1, min(block, sum(map(len, ours)) // FEWEST))
    sums = [blocks_of(a, b, size) for a, b in zip(ours, theirs, strict=True) if len(a)]
    if not sums:
        return PairedChange(0.0, 0.0, 0.0, 1.0, 0)
    mine, other = np.concatenate(sums).T
    mean = float(mine.sum() / other.sum() - 1.0) if other.sum() > 0 else 0.0
    drawn = np.random.Generator(np.random.PCG64(seed)).integers(len(mine), size=(resamples, len(mine)))
    below = other[drawn].sum(axis=1)
    changes = np.divide(mine[drawn].sum(axis=1), below, out=np.ones(resamples), where=below > 0) - 1.0
    low, high = np.percentile(changes, [2.5, 97.5])
    tail = min(np.count_nonzero(changes >= 0), np.count_nonzero(changes <= 0))
    p_value = min(1.0, 2.0 * float(tail + 1) / (resamples + 1)) if len(mine) >= FEWEST else 1.0
    return PairedChange(mean, float(low), float(high), p_value, len(mine))


def blocks_of(ours: Floats, theirs: Floats, block: int) -> Floats:
    """Sums over blocks of consecutive arrivals, over the mean of `theirs`, shape (blocks, 2); the last may be shorter."""
    scale = float(theirs.mean()) or 1.0
    starts = np.arange(0, len(ours), block)
    both = np.stack([np.add.reduceat(ours, starts), np.add.reduceat(theirs, starts)], axis=1)
    return np.asarray(both / (scale * len(ours)))


def false_discoveries(p_values: Sequence[float], rate: float = 0.05) -> list[bool]:
    """Which of these are called different, so that at most `rate` of them are not (Benjamini, Hochberg 1995).

    Example:
        >>> false_discoveries([0.01, 0.04, 0.03, 0.2], 0.05)
        [True, False, False, False]
    """
    order = np.argsort(p_values, kind="stable")
    limits = rate * np.arange(1, len(order) + 1) / max(len(order), 1)
    passed = np.flatnonzero(np.asarray(p_values, dtype=np.float64)[order] <= limits)
    found = [False] * len(order)
    for place in order[: passed[-1] + 1] if len(passed) else ():
        found[int(place)] = True
    return found


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the least; those that are equal share the mean of their places.

    Example:
        >>> ranks([3.0, 1.0, 3.0])
        [2.5, 1.0, 2.5]
    """
    found = np.asarray(values, dtype=np.float64)
    less = (found[None, :] < found[:, None]).sum(axis=1)
    equal = (found[None, :] == found[:, None]).sum(axis=1)
    return [float(rank) for rank in less + (equal + 1) / 2]


def mean_bound_s(submit_s: Floats, shortest_s: Floats, work_gpu_s: Floats, gpus: int) -> float:
    """A mean completion time that no schedule can beat, in seconds.

    The largest of three relaxations. (1) Nobody waits: the mean of the shortest run times. (2) All GPUs are one
    machine so many times as fast, on which least work left first is optimal (Schrage, 1968). (3) Half of each
    job's work is done, in the mean, half its run time before it ends; the mean busy time of the one fast machine is
    least by least work first, pre-emptively (Goemans, 1997; Goemans, Queyranne, Schulz, Skutella and Wang, 2002). No network
    delays anybody in any of them, no job is stopped, and all is known beforehand.

    Args:
        submit_s: arrivals, ascending, shape (jobs,).
        shortest_s: run time alone at its best.
        work_gpu_s: GPU-seconds that it takes at least.
        gpus: of the cluster.

    Example:
        >>> mean_bound_s(np.zeros(2), np.ones(2), np.ones(2), 1)
        1.5
    """
    if not len(submit_s):
        return 0.0
    work_s = np.asarray(work_gpu_s, dtype=np.float64) / gpus
    ends, _ = _one_machine(submit_s, work_s, by_what_is_left=True)
    _, busy = _one_machine(submit_s, work_s, by_what_is_left=False)
    bounds = (shortest_s, ends - submit_s, busy - submit_s + shortest_s / 2)
    return max(float(np.mean(bound)) for bound in bounds)


def _one_machine(submit_s: Floats, work_s: Floats, *, by_what_is_left: bool) -> tuple[Floats, Floats]:
    """When each job ends and its mean busy time on one machine, least work (left, or at first) first, pre-emptively."""
    ends, moments = np.array(submit_s, dtype=np.float64), np.zeros(len(submit_s))
    waiting: list[tuple[float, int, float]] = []
    now, arriving, jobs = float(submit_s[0]), 0, len(submit_s)
    while waiting or arriving < jobs:
        now = max(now, float(submit_s[arriving])) if not waiting else now
        while arriving < jobs and submit_s[arriving] <= now:
            heappush(waiting, (float(work_s[arriving]), arriving, float(work_s[arriving])))
            arriving += 1
        key, job, left = waiting[0]
        until = now + left
        if arriving < jobs and submit_s[arriving] < until:
            until = float(submit_s[arriving])
        done = until - now
        moments[job] += done * (now + until) / 2
        if (rest := left - done) > 0.0 and until < now + left:
            heapreplace(waiting, (rest if by_what_is_left else key, job, rest))
        else:
            heappop(waiting)
            ends[job] = until
        now = until
    busy = np.divide(moments, work_s, out=ends.copy(), where=work_s > 0)
    return ends, busy
