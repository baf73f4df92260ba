"""A timeline with what follows from what it says, so that figures need one form only.

A recorder, a reader of somebody's trace and the predictor know different things. Spans without an end
are left out; where one of communication spans, transfers and waits is missing altogether, it is
made from the others. What was made is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from hemiola.core.job_timeline import SPAN_KINDS, JobTimeline, Spans, TransferLog

__all__ = [
    "COMMUNICATION",
    "COMPUTE",
    "COPY",
    "INPUT",
    "OTHER",
    "WAIT",
    "Completed",
    "Evidence",
    "completed",
    "missing_notes",
]


COMPUTE, COMMUNICATION, WAIT, INPUT, COPY, OTHER = range(len(SPAN_KINDS))

Evidence = Literal["waits", "transfers", "inferred"]
"""What exposed communication rests on; see `breakdown`."""

Floats = NDArray[np.float64]
Columns = TypeVar("Columns", Spans, TransferLog)


@dataclass(frozen=True, eq=False)
class Completed:
    """A timeline that has transfers for its communication and the other way round.

    Attributes:
        timeline: all of its spans end, none before it began.
        evidence: what exposed communication rests on.
        notes: what was left out or made, in words.
    """

    timeline: JobTimeline
    evidence: Evidence
    notes: tuple[str, ...]


def completed(timeline: JobTimeline) -> Completed:
    """Complete a timeline (see the module's head)."""
    timeline, notes = _ended(timeline)
    if len(timeline.transfers) and not (timeline.spans.kind == COMMUNICATION).any():
        log = timeline.transfers
        timeline = _with_spans(timeline, COMMUNICATION, "transfers", log.first_byte_s, log.last_byte_s)
        notes.append("communication is drawn from transfers: the source has no spans of it")
    elif not len(timeline.transfers) and (timeline.spans.kind == COMMUNICATION).any():
        timeline = _with_transfers(timeline)
        notes.append(
            "the source knows no transfers: each communication span counts as one, handed over when it began"
        )
    evidence: Evidence = "waits"
    if not (timeline.spans.kind == WAIT).any():
        log = timeline.transfers
        known = np.isfinite(log.needed_s) & np.isfinite(log.released_s)
        evidence = "transfers" if known.any() else "inferred"
        timeline = _with_spans(timeline, WAIT, "waits", _one_at_a_time(log), log.released_s)
    return Completed(timeline, evidence, tuple(notes))


def _ended(timeline: JobTimeline) -> tuple[JobTimeline, list[str]]:
    spans = timeline.spans
    good = np.isfinite(spans.start_s) & np.isfinite(spans.end_s) & (spans.end_s >= spans.start_s)
    if good.all():
        return timeline, []
    place = np.where(good, np.cumsum(good) - 1, -1)
    edges = place[timeline.dependencies].reshape(-1, 2)
    told = tuple(a for a, kept in zip(timeline.attributes, good.tolist(), strict=False) if kept)
    kept = replace(
        timeline, spans=_map(spans, lambda column: column[good]), attributes=told,
        dependencies=edges[(edges >= 0).all(axis=1)],
    )  # fmt: skip
    return kept, [
        f"{int((~good).sum()):,} of {len(good):,} spans have no end, or end before they begin: left out"
    ]


def _with_spans(timeline: JobTimeline, kind: int, lane: str, start: Floats, end: Floats) -> JobTimeline:
    """A span for each transfer that has these times, in a lane of their own."""
    rows, log = np.flatnonzero(end > start), timeline.transfers
    made = Spans(
        rank=log.rank[rows], lane=np.full(len(rows), len(timeline.lanes)), name=log.name[rows],
        kind=np.full(len(rows), kind, dtype=np.int8), start_s=start[rows], end_s=end[rows],
        iteration=log.iteration[rows], transfer=rows, operation=np.full(len(rows), -1),
    )  # fmt: skip
    if not len(rows):
        return timeline
    old = timeline.spans
    both = {f.name: np.concatenate([getattr(old, f.name), getattr(made, f.name)]) for f in fields(Spans)}
    told = timeline.attributes + ({},) * len(rows) if timeline.attributes else ()
    return replace(timeline, spans=Spans(**both), lanes=(*timeline.lanes, lane), attributes=told)


def _one_at_a_time(log: TransferLog) -> Floats:
    """When each transfer's own wait began: of those that a rank awaits at once, after the release before."""
    start = log.needed_s.copy()
    rows = np.flatnonzero(log.released_s > log.needed_s)
    rows = rows[np.lexsort((log.released_s[rows], log.rank[rows]))]
    next_one = log.rank[rows][1:] == log.rank[rows][:-1]
    later, before = rows[1:][next_one], rows[:-1][next_one]
    start[later] = np.maximum(log.needed_s[later], log.released_s[before])
    return start


def _with_transfers(timeline: JobTimeline) -> JobTimeline:
    spans = timeline.spans
    rows = np.flatnonzero(spans.kind == COMMUNICATION)
    unknown, start = np.full(len(rows), np.nan), spans.start_s[rows]
    log = TransferLog(
        rank=spans.rank[rows], name=spans.name[rows], collective=spans.name[rows],
        group=np.full(len(rows), -1), size_bytes=unknown, enqueue_s=start, first_byte_s=start,
        last_byte_s=spans.end_s[rows], needed_s=unknown, released_s=unknown, iteration=spans.iteration[rows],
    )  # fmt: skip
    transfer = np.full(len(spans), -1)
    transfer[rows] = np.arange(len(rows))
    return replace(timeline, transfers=log, spans=replace(spans, transfer=transfer))


def _map(columns: Columns, change: Any) -> Columns:
    return type(columns)(**{f.name: change(getattr(columns, f.name)) for f in fields(columns)})


# What a timeline says of its own gaps: damaged files, ranks that broke off, ranks that are not in it.

_NAMED = 4
"""So many absent ranks are named; of more the number is told."""


def missing_notes(timeline: JobTimeline) -> Iterator[str]:
    """Each gap in a sentence, by the facts that the timeline's source left ("damaged", "partial",
    "distributedInfo") and by the ranks that its groups name. A prediction has no gaps.
    """
    if timeline.predicted:
        return
    damaged, partial = timeline.facts.get("damaged"), timeline.facts.get("partial")
    for file, damage in damaged.items() if isinstance(damaged, dict) else ():
        yield f"{file} is {damage}; what stood behind that is not in the figures, and makes its rank look early or late"
    if isinstance(partial, list) and partial:
        yield from (f"partial: {words}" for words in partial)
    else:
        yield from _absent(timeline)


def _absent(timeline: JobTimeline) -> Iterator[str]:
    here = {rank.rank for rank in timeline.ranks}
    about = timeline.facts.get("distributedInfo")
    told = about.get("world_size") if isinstance(about, dict) else None
    world = told if isinstance(told, int) else 0
    named = sorted({rank for group in timeline.groups for rank in group} - here)
    count = max(world - len(here), len(named))
    if count <= 0:
        return
    first = named if len(named) == count else (rank for rank in range(world) if rank not in here)
    of = max(world, len(here) + count)
    if count > _NAMED:
        yield f"{count:,} of {of:,} ranks are missing: their files were not given"
    else:
        ranks = ", ".join(str(rank) for rank, _ in zip(first, range(count), strict=False))
        yield f"rank{'s' * (count > 1)} {ranks} of {of:,} {'are' if count > 1 else 'is'} missing: no file of {'them' if count > 1 else 'it'} was given"
