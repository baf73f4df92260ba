"""Where each rank's time went in each iteration: six parts that sum to it, and TicTac's bounds.

At every instant a rank is in exactly one part:

    compute      it computes, and none of its communication is under way
    overlapped   it computes while its communication is under way
    exposed      communication holds it up
    input        none of these, and it waits for or prepares its next batch
    other        none of these, and something else was recorded (copies, the framework's own work)
    idle         nothing was recorded

What `exposed` rests on (`complete.Evidence`), the same for the whole timeline:

    waits      the timeline has spans of kind "wait": exposed is their union, and nothing else. A rank that
               waits does not compute, whatever operation encloses the wait. It includes waiting for late ranks.
    transfers  no such spans, but transfers know when they were needed and when their consumer went on:
               the union of [needed, released] takes the place of the waits.
    inferred   neither: exposed is communication under way while the rank computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hemiola.analysis.job.complete import COMMUNICATION, COMPUTE, COPY, INPUT, OTHER, WAIT, Completed
from hemiola.analysis.job.intervals import Lengths, covered, hull, union
from hemiola.core.errors import InputError
from hemiola.core.job_timeline import SPAN_KINDS, Iterations, JobTimeline

__all__ = [
    "PARTS", "Activity", "Parts", "activity", "cut", "exposed_between", "iteration_times", "located", "parts", "steady",
]  # fmt: skip

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PARTS = ("compute", "overlapped", "exposed", "input", "other", "idle")
"""The parts of an iteration, in the order in which they are shown."""

_SETS = ("wire", "communication", "computation", "used")
"""What else is measured of an iteration."""

WARM_UP = 1.25
"""A leading iteration that took so many times the median of the later half is warm-up."""


@dataclass(frozen=True, eq=False)
class Activity:
    """What one rank did, as lengths of sets in any window.

    Attributes:
        sets: of each part but idle; and of "communication" (M), "computation" (P), "wire" (exposed
            while own communication is under way), "used" (computing, exposed, or own communication or a copy under way).
        busy: starts and ends of computing or communicating, disjoint and sorted.
    """

    sets: dict[str, Lengths]
    busy: tuple[Floats, Floats]


@dataclass(frozen=True, eq=False)
class Parts:
    """One entry for each rank and iteration in every column; seconds.

    Attributes:
        rank: index into the timeline's `ranks`.
        number: of the iteration.
        start_s, end_s: from, to.
        compute_s, overlapped_s, exposed_s, input_s, other_s, idle_s: the parts; they sum to end - start.
        wire_s: of `exposed_s`, while the rank's own communication was under way. The rest waited for
            other ranks, or for a transfer's turn.
        communication_s: union of communication, TicTac's M.
        computation_s: union of computing less waits, TicTac's P.
        makespan_s: from the first to the last instant of either, TicTac's U.
        used_s: in which it computed, was held up by communication, or had some or a copy under way; the
            rest is a GPU's idle time.
    """

    rank: Ints
    number: Ints
    start_s: Floats
    end_s: Floats
    compute_s: Floats
    overlapped_s: Floats
    exposed_s: Floats
    input_s: Floats
    other_s: Floats
    idle_s: Floats
    wire_s: Floats
    communication_s: Floats
    computation_s: Floats
    makespan_s: Floats
    used_s: Floats

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def duration_s(self) -> Floats:
        """Of each iteration."""
        return self.end_s - self.start_s

    @property
    def gaps_s(self) -> Floats:
        """What of the makespan is neither communication nor computation."""
        either = self.communication_s + self.computation_s - self.overlapped_s
        return np.maximum(self.makespan_s - either, 0.0)

    @property
    def unused_s(self) -> Floats:
        """What of the duration is not in `used_s`."""
        return np.maximum(self.duration_s - self.used_s, 0.0)

    def rows(self, chosen: Bools) -> Parts:
        """Only these."""
        return Parts(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


def activity(whole: Completed) -> list[Activity]:
    """Every rank's activity, in the order of `ranks`."""
    timeline, measured = whole.timeline, whole.evidence != "inferred"
    spans, kinds = timeline.spans, len(SPAN_KINDS)
    group = spans.rank * kinds + spans.kind.astype(np.int64)
    group, start, end = union(group, spans.start_s, spans.end_s)
    ends = np.searchsorted(group, np.arange(len(timeline.ranks) * kinds + 1))
    by_kind = [(start[a:b], end[a:b]) for a, b in pairwise(ends.tolist())]
    return [
        _activity(by_kind[rank * kinds : (rank + 1) * kinds], measured) for rank in range(len(timeline.ranks))
    ]


def _activity(kinds: list[tuple[Floats, Floats]], measured: bool) -> Activity:
    edges = np.unique(np.concatenate([column for pair in kinds for column in pair]))
    on = [covered(start, end, edges[:-1]) for start, end in kinds]
    waits = on[WAIT] if measured else np.zeros(max(len(edges) - 1, 0), dtype=bool)
    computing, sending = on[COMPUTE] & ~waits, on[COMMUNICATION]
    exposed = waits if measured else sending & ~computing
    taken = computing | exposed
    reading = on[INPUT] & ~taken
    sets = {
        "compute": computing & ~sending,
        "overlapped": computing & sending,
        "exposed": exposed,
        "input": reading,
        "other": (on[COPY] | on[OTHER]) & ~taken & ~reading,
        "wire": exposed & sending,
        "communication": sending,
        "computation": computing,
        "used": taken | sending | on[COPY],
    }
    either = computing | sending
    zeros = np.zeros(int(either.sum()), dtype=np.int64)
    _, begins, ends = union(zeros, edges[:-1][either], edges[1:][either])
    return Activity({name: Lengths.of(edges, inside) for name, inside in sets.items()}, (begins, ends))


def parts(timeline: JobTimeline, acts: list[Activity]) -> Parts:
    """The parts of every rank's every iteration, sorted by rank and start.

    A timeline without iterations counts as one iteration, number 0, from its first to its last instant.

    Raises:
        InputError: if nothing was recorded.
    """
    windows = _windows(timeline)
    order = np.lexsort((windows.start_s, windows.rank))
    rank, number = windows.rank[order], windows.number[order]
    low, high = windows.start_s[order], windows.end_s[order]
    columns = {name: np.zeros(len(rank)) for name in (*PARTS, *_SETS)}
    makespan = np.zeros(len(rank))
    for first, last in _stretches(rank):
        mine, here = acts[int(rank[first])], slice(first, last)
        for name, lengths in mine.sets.items():
            columns[name][here] = lengths.within(low[here], high[here])
        makespan[here] = hull(*mine.busy, low[here], high[here])
    known = sum(columns[name] for name in PARTS[:-1])
    columns["idle"] = np.maximum(high - low - known, 0.0)
    named = {f"{name}_s": column for name, column in columns.items()}
    return Parts(rank, number, low, high, makespan_s=makespan, **named)


def _stretches(rank: Ints) -> list[tuple[int, int]]:
    first = np.flatnonzero(np.diff(rank, prepend=-1))
    return list(zip(first.tolist(), [*first[1:].tolist(), len(rank)], strict=True))


def _windows(timeline: JobTimeline) -> Iterations:
    given = timeline.iterations
    good = given.end_s > given.start_s
    if good.any():
        return Iterations(given.rank[good], given.number[good], given.start_s[good], given.end_s[good])
    spans = timeline.spans
    if not (spans.end_s > spans.start_s).any():
        raise InputError(f"nothing was recorded in {timeline.name or 'this timeline'!r}", "trace it again")
    ranks, low, high = np.unique(spans.rank), spans.start_s.min(), spans.end_s.max()
    return Iterations(
        ranks, np.zeros(len(ranks), dtype=np.int64), np.full(len(ranks), low), np.full(len(ranks), high)
    )


def cut(found: Parts, rank: Ints, start: Floats, end: Floats) -> tuple[Ints, Ints, Floats, Floats]:
    """Ranks' intervals cut at iterations: (which interval, row of `found`, from, to); what is outside of them is left out."""
    pieces = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))]
    for first, last in _stretches(found.rank):
        mine = np.flatnonzero(rank == found.rank[first])
        low = np.searchsorted(np.maximum.accumulate(found.end_s[first:last]), start[mine], "right")
        count = np.maximum(np.searchsorted(found.start_s[first:last], end[mine], "left") - low, 0)
        step = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        pieces.append((np.repeat(mine, count), first + np.repeat(low, count) + step))
    which, row = (np.concatenate(column) for column in zip(*pieces, strict=True))
    begin, stop = np.maximum(start[which], found.start_s[row]), np.minimum(end[which], found.end_s[row])
    real = stop > begin
    return which[real], row[real], begin[real], stop[real]


def exposed_between(acts: list[Activity], rank: Ints, start: Floats, end: Floats) -> Floats:
    """How long each interval's rank was held up by communication in it."""
    held = np.zeros(len(rank))
    for one in np.unique(rank).tolist():
        mine = rank == one
        held[mine] = acts[one].sets["exposed"].within(start[mine], end[mine])
    return held


def located(found: Parts, rank: Ints, number: Ints, time_s: Floats) -> Ints:
    """The row of `found` that each (rank, iteration) belongs to; -1 for none.

    Where the number is -1 the time decides: the rank's last iteration that began by then and still runs.
    """
    row = np.full(len(rank), -1, dtype=np.int64)
    for first, last in _stretches(found.rank):
        mine = np.flatnonzero(rank == found.rank[first])
        told, when = number[mine], time_s[mine]
        by_number = np.argsort(found.number[first:last], kind="stable")
        sorted_numbers = found.number[first:last][by_number]
        place = np.minimum(np.searchsorted(sorted_numbers, told), last - first - 1)
        same = sorted_numbers[place] == told
        row[mine[same]] = first + by_number[place[same]]
        unknown = (told == -1) & ~same & np.isfinite(when)
        at = np.searchsorted(found.start_s[first:last], when[unknown], "right") - 1
        inside = (at >= 0) & (when[unknown] <= found.end_s[first:last][np.maximum(at, 0)])
        row[mine[unknown][inside]] = first + at[inside]
    return row


def steady(found: Parts, *, predicted: bool) -> Ints:
    """Numbers of the iterations that figures are taken of: all but warm-up, in order.

    The rule: of three or more measured iterations the first is warm-up (lazy allocation, autotuning, cold
    caches), and so is each further leading one whose time, the mean over ranks, is above 1.25 times
    the median of the later half. At least the later half stays. Predicted timelines have no warm-up.
    """
    numbers, time_s = iteration_times(found)
    if len(numbers) < 3 or predicted:
        return numbers
    half = len(numbers) // 2
    slow = time_s > WARM_UP * np.median(time_s[half:])
    slow[0] = True
    first = int(np.argmin(slow[:half])) if not slow[:half].all() else half
    return numbers[first:]


def iteration_times(found: Parts) -> tuple[Ints, Floats]:
    """(numbers, mean over ranks of their duration), by number."""
    numbers, place = np.unique(found.number, return_inverse=True)
    count = np.bincount(place, minlength=len(numbers))
    return numbers, np.bincount(place, weights=found.duration_s, minlength=len(numbers)) / count
