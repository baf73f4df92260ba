"""What a training job did, in figures: the one number, the parts, the bounds, the late ranks, the path.

Pure functions of a `JobTimeline`, the same for what was measured and what was predicted. Figures are of
steady iterations (`breakdown.steady` has the rule). A figure that cannot be known is NaN, never 0.

The one number is `exposed_share`: of all the time that the ranks spent in an iteration, the share in which
communication held them up (`breakdown` says on what evidence); the median over steady iterations.

Scheduling efficiency is TicTac's (Hashemi et al., MLSys 2019, and its released code): with M and P the
union of a rank's communicating and computing time, U from the first to the last instant of either, and G the gaps
in between, in which neither went on (TicTac's executions have none),

    E = (M + P - (U - G)) / (M + P - max(M, P))        1: all that can be hidden is; 0: nothing is
    S = (M + P - max(M, P)) / max(M, P)                by how much hiding could speed the iteration up at most

Both lie between 0 and 1. Where M or P is 0 there is nothing to hide: S is 0 and E is NaN; where both are, all are NaN.
Where gaps are longer than all that could be hidden, min(M, P), the order of computing and communicating is not what
makes the iteration long: E and S would mislead, and are NaN. `OverlapEfficiency.reason` says which it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.analysis.job.breakdown import PARTS, Parts, activity, iteration_times, parts, steady
from hemiola.analysis.job.complete import Evidence, completed, missing_notes
from hemiola.analysis.job.critical_path import CriticalPath, critical_path
from hemiola.analysis.job.tables import (
    Operation,
    PathItem,
    Straggler,
    TransferFigure,
    operation_table,
    path_items,
    straggler_table,
    transfer_table,
    waits_per_iteration,
)
from hemiola.analysis.job.transfers import Lateness, Matched, lateness, matched, waiting
from hemiola.core.job_timeline import JobTimeline
from hemiola.core.units import format_duration

__all__ = [
    "JobComparison",
    "JobMetrics",
    "RankFigures",
    "TimelineDifference",
    "changed",
    "compare",
    "efficiency",
    "job_metrics",
]


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Spread(msgspec.Struct, frozen=True):
    """Values in five figures (percentiles are NumPy's "linear")."""

    median: float
    p25: float
    p75: float
    low: float
    high: float


class OverlapEfficiency(msgspec.Struct, frozen=True):
    """How much of what could be hidden was (see the module's head); seconds per iteration.

    Attributes:
        communication_s, computation_s, makespan_s: M, P and U.
        gaps_s: G.
        cost_max_s, cost_min_s: M + P, and max(M, P): U - G without any overlap, and with all there can be.
        efficiency: E.
        speedup: S.
        reason: why E is NaN, in words; "" where it is not.
        ratio: M / P, TicTac's a; infinite without computation.
    """

    communication_s: float
    computation_s: float
    makespan_s: float
    gaps_s: float
    cost_max_s: float
    cost_min_s: float
    efficiency: float
    speedup: float
    ratio: float
    reason: str

    @property
    def busy_s(self) -> float:
        """In which either goes on: U - G."""
        return self.makespan_s - self.gaps_s


class RankFigures(msgspec.Struct, frozen=True):
    """One rank's steady iterations: means in seconds. The parts, `compute_s` to `idle_s`, sum to `iteration_s`.

    Attributes:
        rank: its number.
        wire_s: of `exposed_s`, while its own communication was under way.
        hideable_s: of `exposed_s` so much could be hidden at most: no more than there is computing that hides nothing yet.
        gpu_idle_s: its GPU neither computed, communicated nor copied, and communication did not hold it up; NaN
            where the rank is not known to have one.
        exposed_share: median over its iterations.
    """

    rank: int
    iteration_s: float
    compute_s: float
    overlapped_s: float
    exposed_s: float
    input_s: float
    other_s: float
    idle_s: float
    wire_s: float
    hideable_s: float
    gpu_idle_s: float
    exposed_share: float
    efficiency: OverlapEfficiency


@dataclass(frozen=True, eq=False)
class JobMetrics:
    """All figures of a job.

    Attributes:
        timeline: completed: what the figures are of.
        evidence: what exposed communication rests on.
        notes: what was left out or assumed, in words.
        parts: every rank's every iteration.
        steady: numbers of the iterations that the figures are of.
        warm_up: numbers of those left out.
        iteration_s: mean over ranks of an iteration's duration, spread over steady iterations.
        exposed_share: the one number.
        exposed_share_worst, worst_rank: the largest median share of a rank, and its number.
        ranks: each rank's figures.
        efficiency: of the mean over ranks and iterations.
        saving_s: by how much hiding all communication that can be hidden would shorten the median iteration at most. No
            rank gains more than its `hideable_s`; ranks that meet in collectives keep step, so none of them more than
            the one that has least. As a share of what is exposed it is that of the means.
        waiting_share: TicTac's straggler metric: the longest that a rank was held up for late ranks in an
            iteration, over the iteration's time; median over steady iterations. NaN without collectives
            that can be matched.
        stragglers: each rank's lateness, latest first.
        transfers: each bucket's or tensor's figures, most exposed first.
        operations: time per iteration by kind and name, longest first.
        path: critical path of the steady iteration whose time is nearest to the median.
        path_items: what the path consists of, longest first.
    """

    timeline: JobTimeline
    evidence: Evidence
    notes: tuple[str, ...]
    parts: Parts
    steady: tuple[int, ...]
    warm_up: tuple[int, ...]
    iteration_s: Spread
    exposed_share: float
    exposed_share_worst: float
    worst_rank: int
    ranks: tuple[RankFigures, ...]
    efficiency: OverlapEfficiency
    saving_s: float
    waiting_share: float
    stragglers: tuple[Straggler, ...]
    transfers: tuple[TransferFigure, ...]
    operations: tuple[Operation, ...]
    path: CriticalPath
    path_items: tuple[PathItem, ...]

    def mean(self, part: str) -> float:
        """Mean over ranks of one of `PARTS` or "wire", "iteration", in seconds per iteration."""
        return float(np.mean([getattr(rank, f"{part}_s") for rank in self.ranks]))


def job_metrics(timeline: JobTimeline) -> JobMetrics:
    """Compute every figure; O(n log n) in spans and transfers.

    Raises:
        InputError: if nothing was recorded.
    """
    whole = completed(timeline)
    timeline = whole.timeline
    acts = activity(whole)
    every = parts(timeline, acts)
    numbers = steady(every, predicted=timeline.predicted)
    chosen = np.isin(every.number, numbers)
    found = every.rows(chosen)
    transfers = matched(timeline, every)
    in_steady = (transfers.row >= 0) & chosen[transfers.row] if len(transfers.row) else transfers.row >= 0
    late = lateness(timeline, transfers, in_steady)
    waits = waiting(transfers, late, every, acts)
    ranks = tuple(_rank(timeline, found, rank) for rank in np.unique(found.rank).tolist())
    late_ranks = straggler_table(timeline, transfers, late, waits, in_steady, chosen, len(numbers))
    worst = max(ranks, key=lambda rank: rank.exposed_share)
    iteration_s, exposed_share = _spread(iteration_times(found)[1]), _exposed_share(found)
    hideable_share = _hideable_share(ranks, {one.rank for one in late_ranks})
    path = _path(timeline, every, transfers, numbers)
    held = waits_per_iteration(waiting(transfers, late, every, acts, together=True), every, numbers)
    return JobMetrics(
        timeline=timeline,
        evidence=whole.evidence,
        notes=(*missing_notes(timeline), *whole.notes, *_notes(timeline, every, transfers, late)),
        parts=every,
        steady=tuple(numbers.tolist()),
        warm_up=tuple(np.setdiff1d(every.number, numbers).tolist()),
        iteration_s=iteration_s,
        exposed_share=exposed_share,
        exposed_share_worst=worst.exposed_share,
        worst_rank=worst.rank,
        ranks=ranks,
        efficiency=_mean_efficiency(ranks),
        saving_s=hideable_share * exposed_share * iteration_s.median,
        waiting_share=float(np.median(held)) if len(late.instance) else math.nan,
        stragglers=late_ranks,
        transfers=transfer_table(timeline, transfers, every, acts, in_steady, chosen),
        operations=operation_table(timeline, every, chosen),
        path=path,
        path_items=path_items(timeline, path),
    )


def efficiency(
    communication_s: float, computation_s: float, makespan_s: float, gaps_s: float = 0.0
) -> OverlapEfficiency:
    """E, S and the bounds from M, P, U and G (see the module's head)."""
    cost_max, cost_min = communication_s + computation_s, max(communication_s, computation_s)
    hideable = min(communication_s, computation_s)
    gaps = max(gaps_s, makespan_s - cost_max)
    reason = _no_efficiency(communication_s, computation_s, makespan_s, gaps)
    hidden = cost_max - (makespan_s - gaps)
    return OverlapEfficiency(
        communication_s=communication_s,
        computation_s=computation_s,
        makespan_s=makespan_s,
        gaps_s=gaps,
        cost_max_s=cost_max,
        cost_min_s=cost_min,
        efficiency=math.nan if reason else min(max(hidden / hideable, 0.0), 1.0),
        speedup=math.nan if gaps > hideable > 0 or not cost_min else hideable / cost_min,
        ratio=communication_s / computation_s
        if computation_s > 0
        else math.inf
        if communication_s > 0
        else math.nan,
        reason=reason,
    )


def _no_efficiency(communication_s: float, computation_s: float, makespan_s: float, gaps_s: float) -> str:
    """Why E has no meaning; "" where it has one."""
    hideable = min(communication_s, computation_s)
    if not hideable:
        lengths = {"communication": communication_s, "computing": computation_s}
        return f"there is no {' and no '.join(what for what, length in lengths.items() if not length)}"
    if gaps_s <= hideable:
        return ""
    return (
        f"neither computing nor communication goes on for {format_duration(gaps_s)} of {format_duration(makespan_s)}, longer "
        f"than all that could be hidden, {format_duration(hideable)}"
    )


def _rank(timeline: JobTimeline, found: Parts, rank: int) -> RankFigures:
    mine = found.rows(found.rank == rank)
    seconds = {f"{part}_s": float(getattr(mine, f"{part}_s").mean()) for part in (*PARTS, "wire")}
    bounds = (mine.communication_s, mine.computation_s, mine.makespan_s, mine.gaps_s)
    on_gpu = timeline.ranks[rank].device.startswith("cuda")
    return RankFigures(
        rank=timeline.ranks[rank].rank,
        iteration_s=float(mine.duration_s.mean()),
        hideable_s=min(seconds["exposed_s"], seconds["compute_s"]),
        gpu_idle_s=float(mine.unused_s.mean()) if on_gpu else math.nan,
        exposed_share=float(np.median(mine.exposed_s / mine.duration_s)),
        efficiency=efficiency(*(float(column.mean()) for column in bounds)),
        **seconds,
    )


def _mean_efficiency(ranks: tuple[RankFigures, ...]) -> OverlapEfficiency:
    columns = ("communication_s", "computation_s", "makespan_s", "gaps_s")
    return efficiency(
        *(float(np.mean([getattr(rank.efficiency, name) for rank in ranks])) for name in columns)
    )


def _hideable_share(ranks: tuple[RankFigures, ...], meeting: set[int]) -> float:
    """What share of exposed time could be hidden; `meeting` are the numbers of the ranks that keep step."""
    exposed_s = sum(rank.exposed_s for rank in ranks)
    least_s = min((rank.hideable_s for rank in ranks if rank.rank in meeting), default=0.0)
    hidden_s = sum(least_s if rank.rank in meeting else rank.hideable_s for rank in ranks)
    return min(hidden_s / exposed_s, 1.0) if exposed_s else 0.0


def _exposed_share(found: Parts) -> float:
    _, place = np.unique(found.number, return_inverse=True)
    share = np.bincount(place, weights=found.exposed_s) / np.bincount(place, weights=found.duration_s)
    return float(np.median(share))


def _spread(values: Floats) -> Spread:
    p25, median, p75 = (float(value) for value in np.percentile(values, (25, 50, 75)))
    return Spread(median, p25, p75, float(values.min()), float(values.max()))


def _path(timeline: JobTimeline, every: Parts, found: Matched, numbers: Ints) -> CriticalPath:
    """Through the steady iteration whose time is nearest to the median."""
    all_numbers, all_times = iteration_times(every)
    time_s = all_times[np.isin(all_numbers, numbers)]
    number = int(numbers[np.argmin(np.abs(time_s - np.median(time_s)))])
    mine = every.number == number
    return critical_path(
        timeline, found, number, float(every.start_s[mine].min()), float(every.end_s[mine].max())
    )


def _notes(timeline: JobTimeline, every: Parts, found: Matched, late: Lateness) -> list[str]:
    notes = []
    if not len(timeline.iterations):
        notes.append("the source does not know where iterations begin: the whole trace counts as one")
    silent = len(timeline.ranks) - len(np.unique(every.rank))
    if silent:
        notes.append(f"{silent} of {len(timeline.ranks)} ranks recorded no iteration and are left out")
    unknown = int((~np.isfinite(found.log.enqueue_s)).sum())
    if unknown:
        notes.append(
            f"the source does not say when {unknown:,} of {len(found.log):,} transfers were handed over: their first byte "
            "counts as their rank's arrival"
        )
    unsure = int((late.last < 0).sum())
    if unsure:
        notes.append(
            f"at {unsure:,} of {len(late.last):,} collectives the ranks came so close together that the clocks cannot tell the last"
        )
    return notes


# Two timelines side by side: before and after a change, or predicted and measured.


class TimelineDifference(msgspec.Struct, frozen=True):
    """One figure of both, in seconds per rank and iteration; None where one of them has none.

    Attributes:
        kind: "part", or the kind of transfer or operation.
    """

    kind: str
    name: str
    before_s: float | None
    after_s: float | None

    @property
    def change_s(self) -> float:
        """After less before; what only one has counts as 0 in the other."""
        return (self.after_s or 0.0) - (self.before_s or 0.0)


class JobComparison(msgspec.Struct, frozen=True):
    """What differs between two jobs.

    Attributes:
        iteration_ratio: mean iteration time after over before, as in `parts`: below 1 is faster.
        parts: the parts of the iteration (mean over ranks), and the whole, in the order of `PARTS`.
        transfers: time on the wire by bucket, matched by name and collective, largest change first; a mean over
            all transfers where several groups have buckets of that name.
        exposed: the same for exposed time, the sum of the groups'.
        operations: the same for operations, matched by kind and name.
    """

    iteration_ratio: float
    parts: tuple[TimelineDifference, ...]
    transfers: tuple[TimelineDifference, ...]
    exposed: tuple[TimelineDifference, ...]
    operations: tuple[TimelineDifference, ...]


def compare(before: JobMetrics, after: JobMetrics) -> JobComparison:
    """Differences of `after` to `before`, by part, by transfer and by operation."""
    return JobComparison(
        iteration_ratio=after.mean("iteration") / before.mean("iteration"),
        parts=tuple(
            TimelineDifference("part", part, before.mean(part), after.mean(part))
            for part in (*PARTS, "iteration")
        ),
        transfers=_matched(_wire(before), _wire(after)),
        exposed=_matched(_exposed(before), _exposed(after)),
        operations=_matched(
            *({(o.kind, o.name): o.seconds for o in one.operations} for one in (before, after))
        ),
    )


def _wire(job: JobMetrics) -> dict[tuple[str, str], float]:
    total: dict[tuple[str, str], float] = {}
    count: dict[tuple[str, str], int] = {}
    for t in job.transfers:
        key = (t.collective, t.name)
        total[key] = total.get(key, 0.0) + t.wire_s * t.count
        count[key] = count.get(key, 0) + t.count
    return {key: seconds / count[key] for key, seconds in total.items()}


def _exposed(job: JobMetrics) -> dict[tuple[str, str], float]:
    total: dict[tuple[str, str], float] = {}
    for t in job.transfers:
        key = (t.collective, t.name)
        total[key] = total.get(key, 0.0) + t.exposed_s
    return total


def _matched(
    before: dict[tuple[str, str], float], after: dict[tuple[str, str], float]
) -> tuple[TimelineDifference, ...]:
    found = [
        TimelineDifference(*key, before.get(key), after.get(key)) for key in dict.fromkeys((*before, *after))
    ]
    return tuple(sorted(found, key=lambda one: -abs(one.change_s)))


def changed(found: tuple[TimelineDifference, ...]) -> tuple[TimelineDifference, ...]:
    """Those that differ by more than a nanosecond."""
    return tuple(one for one in found if abs(one.change_s) > 1e-9)
