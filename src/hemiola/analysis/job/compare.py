"""Two timelines side by side: before and after a change, or predicted and measured."""

from __future__ import annotations

import msgspec

from hemiola.analysis.job.metrics import JobMetrics
from hemiola.analysis.job.breakdown import PARTS

__all__ = ["TimelineDifference", "JobComparison", "changed", "compare"]


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
            TimelineDifference("part", part, before.mean(part), after.mean(part)) for part in (*PARTS, "iteration")
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
    found = [TimelineDifference(*key, before.get(key), after.get(key)) for key in dict.fromkeys((*before, *after))]
    return tuple(sorted(found, key=lambda one: -abs(one.change_s)))


def changed(found: tuple[TimelineDifference, ...]) -> tuple[TimelineDifference, ...]:
    """Those that differ by more than a nanosecond."""
    return tuple(one for one in found if abs(one.change_s) > 1e-9)
