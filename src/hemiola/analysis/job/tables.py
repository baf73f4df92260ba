"""A job's figures by transfer, by late rank, by operation and by piece of the critical path."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.analysis.job.breakdown import Activity, Parts, cut, exposed_between, located
from hemiola.analysis.job.complete import COMMUNICATION, WAIT
from hemiola.analysis.job.critical_path import CriticalPath
from hemiola.analysis.job.intervals import innermost, union
from hemiola.analysis.job.transfers import Lateness, Matched, Waiting
from hemiola.core.job_timeline import SPAN_KINDS, JobTimeline

__all__ = [
    "Operation", "PathItem", "Straggler", "TransferFigure", "operation_table", "path_items", "straggler_table",
    "transfer_table", "waits_per_iteration",
]  # fmt: skip

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class TransferFigure(msgspec.Struct, frozen=True):
    """One bucket or tensor: medians over ranks and steady iterations; NaN where nobody knows.

    Attributes:
        name: with " #2", ... where a name comes several times in an iteration.
        count: transfers that the medians are of.
        queued_s: from being handed over to the first byte.
        wire_s: from the first to the last byte.
        slack_s: from the last byte to being needed: positive if it was there in time, negative if not.
        exposed_s: held up by it inside iterations, mean per rank and iteration: the waits for it; where the source does not say which transfer
            is awaited, all exposed time while it was under way (which several may share).
        bandwidth_bytes_per_s: size over time on the wire.
        enqueue_s, first_byte_s, last_byte_s, needed_s: since the rank's iteration began.
    """

    name: str
    collective: str
    count: int
    size_bytes: float
    queued_s: float
    wire_s: float
    slack_s: float
    exposed_s: float
    bandwidth_bytes_per_s: float
    enqueue_s: float
    first_byte_s: float
    last_byte_s: float
    needed_s: float


class Straggler(msgspec.Struct, frozen=True):
    """How late one rank came to the collectives of steady iterations.

    Attributes:
        rank: its number.
        collectives: with at least one other rank.
        last: at how many of them it came last, by more than the clocks' errors.
        last_share: the same as a share: the rank's straggler index.
        margin_s: how much later than the one before it, when last; median. NaN if it never was.
        lateness_s, lateness_p95_s: after the first rank, median and 95th percentile.
        waited_s: how long all others together were held up for it, per iteration.
        clock_error_s: within which its times are known.
    """

    rank: int
    collectives: int
    last: int
    last_share: float
    margin_s: float
    lateness_s: float
    lateness_p95_s: float
    waited_s: float
    clock_error_s: float


class Operation(msgspec.Struct, frozen=True):
    """Time in one operation, less what others inside it took, mean per rank and iteration.

    Attributes:
        calls: per rank and iteration.
    """

    kind: str
    name: str
    seconds: float
    calls: float


class PathItem(msgspec.Struct, frozen=True):
    """What one operation or transfer has of the critical path.

    Attributes:
        kind: of `SPAN_KINDS`, or "idle" for gaps.
        name: "" for gaps.
        seconds: on the path: no speeding it up alone can save more.
        share: of the path.
    """

    kind: str
    name: str
    seconds: float
    share: float


def transfer_table(
    timeline: JobTimeline,
    found: Matched,
    every: Parts,
    acts: list[Activity],
    chosen: Bools,
    steady: Bools,
) -> tuple[TransferFigure, ...]:
    """A line for each bucket, most exposed first.

    Args:
        chosen: which transfers count.
        steady: which rows of `every` the means are of, each rank's counted by itself, whether or not it has transfers.
    """
    log, rows = found.log, np.flatnonzero(chosen)
    if not len(rows):
        return ()
    _, line = np.unique(found.key[rows], return_inverse=True)
    line_of = np.full(len(log), -1)
    line_of[rows] = line
    order = np.argsort(line, kind="stable")
    groups = np.split(rows[order], np.flatnonzero(np.diff(line[order])) + 1)
    begun = np.full(len(log), np.nan)
    begun[rows] = every.start_s[found.row[rows]]
    wire = log.last_byte_s - log.first_byte_s
    columns = {
        "size_bytes": log.size_bytes,
        "queued_s": log.first_byte_s - log.enqueue_s,
        "wire_s": wire,
        "slack_s": log.needed_s - log.last_byte_s,
        "bandwidth_bytes_per_s": np.divide(
            log.size_bytes, wire, out=np.full(len(log), np.nan), where=wire > 0
        ),
        **{
            name: getattr(log, name) - begun
            for name in ("enqueue_s", "first_byte_s", "last_byte_s", "needed_s")
        },
    }
    exposed = _exposed(timeline, line_of, every, steady, acts) / int(steady.sum())
    again = rows[found.occurrence[rows] > 0]
    several = set(zip(log.name[again].tolist(), log.collective[again].tolist(), strict=True))
    table = []
    for group in groups:
        one = int(group[0])
        exposed_s = float(exposed[line_of[one]])
        label = timeline.names[log.name[one]]
        if (int(log.name[one]), int(log.collective[one])) in several:
            label += f" #{int(found.occurrence[one]) + 1}"
        cells = {name: _median(column[group]) for name, column in columns.items()}
        table.append(
            TransferFigure(
                name=label, collective=timeline.names[log.collective[one]], count=len(group),
                exposed_s=exposed_s, **cells,
            )
        )  # fmt: skip
    return tuple(sorted(table, key=lambda transfer: (-transfer.exposed_s, transfer.enqueue_s)))


def _exposed(timeline: JobTimeline, line: Ints, every: Parts, steady: Bools, acts: list[Activity]) -> Floats:
    """How long the transfers of each line held up all ranks, in steady iterations: the waits for them; or, without any
    waits, exposed time meanwhile. What two transfers of a line share on a rank counts once.

    Args:
        line: of each transfer; -1 for those that do not count.
    """
    spans, log, ranks = timeline.spans, timeline.transfers, len(timeline.ranks)
    waits = np.flatnonzero((spans.kind == WAIT) & (spans.transfer >= 0))
    if len(waits):
        which, low, high = spans.transfer[waits], spans.start_s[waits], spans.end_s[waits]
    else:
        which, low, high = np.arange(len(log)), log.first_byte_s, log.last_byte_s
    counts = line[which] >= 0
    code = line[which] * ranks + log.rank[which]
    code, low, high = union(code[counts], low[counts], high[counts])
    piece, row, low, high = cut(every, code % ranks, low, high)
    code = code[piece]
    held = exposed_between(acts, code % ranks, low, high) * steady[row]
    return np.bincount(code // ranks, held, int(line.max()) + 1).astype(np.float64)


def _median(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else math.nan


def straggler_table(
    timeline: JobTimeline,
    found: Matched,
    late: Lateness,
    waits: Waiting,
    chosen: Bools,
    steady: Bools,
    iterations: int,
) -> tuple[Straggler, ...]:
    """A line for each rank that took part in collectives; who made others wait longest comes first.

    Args:
        chosen: which transfers count.
        steady: which rows of `Parts`.
        iterations: so many are steady.
    """
    log = found.log
    in_several = np.zeros(found.instances + 1, dtype=bool)
    in_several[late.instance] = True
    rows = np.flatnonzero(chosen & in_several[found.instance] & np.isfinite(found.arrival_s))
    first = np.full(found.instances + 1, np.inf)
    np.minimum.at(first, found.instance[rows], found.arrival_s[rows])
    after = found.arrival_s[rows] - first[found.instance[rows]]
    held = waits.waited_s * steady[waits.row]
    waited = np.bincount(waits.culprit, held, len(timeline.ranks)) / iterations
    table = []
    for rank in np.unique(log.rank[rows]).tolist():
        mine, led = after[log.rank[rows] == rank], late.margin_s[late.last == rank]
        table.append(
            Straggler(
                rank=timeline.ranks[rank].rank, collectives=len(mine), last=len(led),
                last_share=len(led) / len(mine), margin_s=_median(led), lateness_s=_median(mine),
                lateness_p95_s=float(np.percentile(mine, 95)), waited_s=float(waited[rank]),
                clock_error_s=timeline.ranks[rank].clock_error_s,
            )
        )  # fmt: skip
    return tuple(sorted(table, key=lambda rank: (-rank.waited_s, -rank.last_share, rank.rank)))


def waits_per_iteration(waits: Waiting, every: Parts, numbers: Ints) -> Floats:
    """For each iteration the longest that a rank was held up for others, over the iteration's time; of waits told together."""
    held = np.bincount(waits.row, weights=waits.waited_s, minlength=len(every)) / every.duration_s
    place = np.searchsorted(numbers, every.number)
    mine = np.isin(every.number, numbers)
    share = np.zeros(len(numbers))
    np.maximum.at(share, place[mine], held[mine])
    return share


def operation_table(timeline: JobTimeline, every: Parts, chosen: Bools) -> tuple[Operation, ...]:
    """A line for each kind and name, longest first; communication is counted whole."""
    spans = timeline.spans
    row = located(every, spans.rank, np.full(len(spans), -1), spans.start_s)
    inside = (row >= 0) & chosen[row]
    work = np.flatnonzero(inside & (spans.kind != COMMUNICATION))
    place = spans.rank * (len(timeline.lanes) + 1) + spans.lane
    cut = innermost(place[work], spans.start_s[work], spans.end_s[work])
    sent = np.flatnonzero(inside & (spans.kind == COMMUNICATION))
    span = np.concatenate([work[cut.span], sent])
    seconds = np.concatenate([cut.end_s - cut.start_s, spans.end_s[sent] - spans.start_s[sent]])
    names, size = len(timeline.names), len(timeline.names) * len(SPAN_KINDS)
    code = spans.kind.astype(np.int64) * names + spans.name
    total = np.bincount(code[span], weights=seconds, minlength=size) / int(chosen.sum())
    calls = np.bincount(code[inside], minlength=size) / int(chosen.sum())
    used = np.flatnonzero(calls)
    used = used[np.argsort(-total[used], kind="stable")]
    return tuple(
        Operation(SPAN_KINDS[i // names], timeline.names[i % names], float(total[i]), float(calls[i]))
        for i in used.tolist()
    )


def path_items(timeline: JobTimeline, path: CriticalPath) -> tuple[PathItem, ...]:
    """What the path consists of, longest first."""
    seconds: dict[tuple[str, str], float] = {}
    lengths = (path.end_s - path.start_s).tolist()
    for kind, span, length in zip(path.kind.tolist(), path.span.tolist(), lengths, strict=True):
        key = (SPAN_KINDS[kind], timeline.names[timeline.spans.name[span]]) if kind >= 0 else ("idle", "")
        seconds[key] = seconds.get(key, 0.0) + length
    whole = path.length_s or math.nan
    items = (PathItem(kind, name, total, total / whole) for (kind, name), total in seconds.items())
    return tuple(sorted(items, key=lambda item: -item.seconds))
