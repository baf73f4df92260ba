"""The critical path of one iteration: what, end to end and across ranks, made it as long as it is.

Walked backwards from the last instant of the rank that ended last. From a piece of work the walk goes
to what it waited for, the latest of:

  * the spans that it depends on, where the source knows them;
  * the one before it in its lane (program order);
  * of a transfer: what the last rank to come to it did until then; where that one had handed it over before, as a GPU's host
    does, what its part had to wait for. A collective's last byte depends on its latest rank, so nothing before that
    rank's arrival counts as communication;
  * where none of these ended just before it began: whatever of its rank ended last. If its dependencies are known, these are
    launches or data, and do not say for what other stream it waited: then whatever work ended last, and no call, since
    the host is ahead of its GPU.

A wait is not work: the walk goes on to the transfer that ended it. Gaps, where nothing was recorded, are
on the path as such. The pieces are contiguous, so their shares sum to one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemiola.analysis.job.complete import COMMUNICATION, COMPUTE, COPY, WAIT
from hemiola.analysis.job.intervals import innermost, runs
from hemiola.analysis.job.transfers import Matched
from hemiola.core.job_timeline import SPAN_KINDS, JobTimeline

__all__ = ["CriticalPath", "critical_path"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SAME_S = 1e-9
"""Times that differ by no more than this are the same instant."""

_WORK = (COMPUTE, COMMUNICATION, COPY)
"""Kinds of span that do the work; the others ask for it, or wait."""


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """Contiguous pieces in order of time, one entry each in every column.

    Attributes:
        number: of the iteration.
        rank: index into the timeline's `ranks`; on a gap, who waited.
        kind: index into `SPAN_KINDS`; -1 where nothing was recorded.
        span: index into the spans; -1 where nothing was recorded.
        start_s, end_s: from, to.
    """

    number: int
    rank: Ints
    kind: NDArray[np.int8]
    span: Ints
    start_s: Floats
    end_s: Floats

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def length_s(self) -> float:
        """From the first piece's start to the last one's end."""
        return float(self.end_s[-1] - self.start_s[0]) if len(self) else 0.0

    def by_kind(self) -> dict[str, float]:
        """Seconds on the path of each kind of span, and "idle" for gaps; longest first."""
        seconds: dict[str, float] = {}
        for kind, length in zip(self.kind.tolist(), (self.end_s - self.start_s).tolist(), strict=True):
            name = SPAN_KINDS[kind] if kind >= 0 else "idle"
            seconds[name] = seconds.get(name, 0.0) + length
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def critical_path(
    timeline: JobTimeline, found: Matched, number: int, low_s: float, high_s: float
) -> CriticalPath:
    """The path through the window [low_s, high_s] of iteration `number`, over all ranks.

    Args:
        timeline: completed (`complete`).
        found: its transfers.
        number: told to the reader.
        low_s: where the walk stops: the iteration's first instant on any rank.
        high_s: where it begins: the last instant on any rank.
    """
    nodes = _nodes(timeline, low_s, high_s)
    walk = _Walk(timeline, found, nodes)
    pieces = walk.back(low_s, high_s)[::-1]
    columns = list(zip(*pieces, strict=True)) if pieces else [()] * 5
    return CriticalPath(
        number,
        np.array(columns[0], dtype=np.int64),
        np.array(columns[1], dtype=np.int8),
        np.array(columns[2], dtype=np.int64),
        np.array(columns[3], dtype=np.float64),
        np.array(columns[4], dtype=np.float64),
    )


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Work in the window: innermost segments, and communication as it is; sorted by lane, then end."""

    lane: list[int]
    rank: list[int]
    kind: list[int]
    span: list[int]
    transfer: list[int]
    start: list[float]
    end: list[float]


def _nodes(timeline: JobTimeline, low_s: float, high_s: float) -> _Nodes:
    spans = timeline.spans
    inside = (spans.end_s > low_s) & (spans.start_s < high_s) & (spans.end_s > spans.start_s)
    sent = np.flatnonzero(inside & (spans.kind == COMMUNICATION))
    rest = np.flatnonzero(inside & (spans.kind != COMMUNICATION))
    place = spans.rank * (len(timeline.lanes) + 1) + spans.lane
    cut = innermost(place[rest], spans.start_s[rest], spans.end_s[rest])
    span = np.concatenate([rest[cut.span], sent])
    start = np.concatenate([cut.start_s, spans.start_s[sent]])
    end = np.concatenate([cut.end_s, spans.end_s[sent]])
    order = np.lexsort((start, end, place[span]))
    span = span[order]
    return _Nodes(
        place[span].tolist(), spans.rank[span].tolist(), spans.kind[span].tolist(), span.tolist(),
        spans.transfer[span].tolist(), start[order].tolist(), end[order].tolist(),
    )  # fmt: skip


_Piece = tuple[int, int, int, float, float]
_Step = tuple[float, int]
"""(when its work was done as far as the path goes, node)"""


class _Walk:
    """One walk backwards; holds the look-ups that it needs."""

    def __init__(self, timeline: JobTimeline, found: Matched, nodes: _Nodes) -> None:
        self.nodes = nodes
        self.lanes = _slices(nodes)
        self.of_rank: dict[int, list[int]] = {}
        for lane, (first, _) in self.lanes.items():
            self.of_rank.setdefault(nodes.rank[first], []).append(lane)
        self.node_of_span = {span: node for node, span in enumerate(nodes.span)}
        self.sent = {
            transfer: node
            for node, (transfer, kind) in enumerate(zip(nodes.transfer, nodes.kind, strict=True))
            if kind == COMMUNICATION and transfer >= 0
        }
        self.before = _before(timeline, self.node_of_span)
        self.arrival = _arrivals(found, [*self.sent])
        self.log = found.log

    def back(self, low_s: float, high_s: float) -> list[_Piece]:
        """The pieces, last first."""
        pieces: list[_Piece] = []
        ended = [self.doing(rank, high_s) for rank in self.of_rank]
        step = max((found for found in ended if found), default=None)
        at = high_s
        rank = self.nodes.rank[step[1]] if step else 0
        while step is not None and at > low_s:
            leave, node = step
            _add(pieces, rank, -1, -1, max(leave, low_s), at)
            if leave <= low_s:
                return pieces
            rank = self.nodes.rank[node]
            at, step = self.through(node, leave, low_s, pieces)
        _add(pieces, rank, -1, -1, low_s, at)
        return pieces

    def through(
        self, node: int, leave: float, low_s: float, pieces: list[_Piece]
    ) -> tuple[float, _Step | None]:
        """Add the node up to `leave`; return where it begins on the path, and the step before it."""
        nodes = self.nodes
        begin, came, settled = nodes.start[node], None, False
        if nodes.kind[node] == WAIT and (came := self.ender(node, leave)):
            begin, settled = came[0], True
        elif nodes.kind[node] == COMMUNICATION and (arrival := self.arrived(node, leave)):
            came, settled = arrival[1], arrival[0] >= begin
            begin = max(begin, arrival[0])
        _add(pieces, nodes.rank[node], nodes.kind[node], nodes.span[node], max(begin, low_s), leave)
        return begin, came if settled else self.earlier(node, begin, came)

    def earlier(self, node: int, at: float, came: _Step | None) -> _Step | None:
        """The latest of what may have kept the node from beginning before `at`."""
        nodes = self.nodes
        told = self.before.get(nodes.span[node])
        known = [self.until(other, at) for other in told or ()]
        steps = [step for step in (*known, self.previous(nodes.lane[node], at), came) if step]
        best = max(steps, key=lambda step: step[0], default=None)
        if came or (best is not None and best[0] >= at - _SAME_S):
            return best
        others = [step for lane in self.of_rank[nodes.rank[node]] if (step := self.previous(lane, at))]
        if told is not None:
            others = [step for step in others if nodes.kind[step[1]] in _WORK]
        return max((*steps, *others), key=lambda step: step[0], default=None)

    def until(self, node: int, at: float) -> _Step | None:
        """A node that began before `at`, up to then."""
        return (min(self.nodes.end[node], at), node) if self.nodes.start[node] < at else None

    def previous(self, lane: int, at: float) -> _Step | None:
        """The lane's last node that ended by `at`."""
        first, last = self.lanes[lane]
        node = bisect_right(self.nodes.end, at + _SAME_S, first, last) - 1
        while node >= first and self.nodes.start[node] >= at:
            node -= 1
        return (min(self.nodes.end[node], at), node) if node >= first else None

    def doing(self, rank: int, at: float) -> _Step | None:
        """What the rank did just before `at`: computing rather than anything else; else what ended last."""
        steps = [step for lane in self.of_rank.get(rank, ()) if (step := self.active(lane, at))]
        return max(steps, key=lambda step: (step[0], self.nodes.kind[step[1]] == COMPUTE), default=None)

    def active(self, lane: int, at: float) -> _Step | None:
        """The lane's node that runs just before `at`, else the last that ended."""
        first, last = self.lanes[lane]
        node = bisect_left(self.nodes.end, at - _SAME_S, first, last)
        if node < last and self.nodes.start[node] < at:
            return min(self.nodes.end[node], at), node
        return self.previous(lane, at)

    def ender(self, wait: int, leave: float) -> _Step | None:
        """The transfer whose last byte ended a wait, if one was under way during it."""
        nodes = self.nodes
        node = self.sent.get(nodes.transfer[wait])
        if node is None:
            lanes = self.of_rank[nodes.rank[wait]]
            sent = [step for lane in lanes if (step := self.active(lane, leave)) and self._sends(step)]
            node = max(sent, default=(0.0, None))[1]
        if node is None or nodes.end[node] <= nodes.start[wait] or nodes.start[node] >= leave:
            return None
        return min(nodes.end[node], leave), node

    def _sends(self, step: _Step) -> bool:
        return self.nodes.kind[step[1]] == COMMUNICATION

    def arrived(self, node: int, leave: float) -> tuple[float, _Step] | None:
        """When the last rank came, and what had kept it until then."""
        for arrival, transfer in self.arrival.get(self.nodes.transfer[node], ()):
            if arrival < leave and (kept := self.kept(transfer, arrival)):
                return arrival, kept
        return None

    def kept(self, transfer: int, at: float) -> _Step | None:
        """What a rank did until it came: until it handed over; or, had it done so before, what its part had to wait for."""
        done, node = self.work(int(self.log.rank[transfer]), at), self.sent.get(transfer)
        if node is None or self.log.enqueue_s[transfer] >= at:
            return done
        # where launches are known, kernels are seen one by one: who still ran then has kept nobody
        return self.earlier(node, at, None if self.nodes.span[node] in self.before else done)

    def work(self, rank: int, at: float) -> _Step | None:
        """What the rank, neither sending nor waiting, was at when it handed something over."""
        steps = [step for lane in self.of_rank.get(rank, ()) if (step := self.active(lane, at))]
        mine = [step for step in steps if self.nodes.kind[step[1]] not in (COMMUNICATION, WAIT)]
        return max(mine, key=lambda step: (step[0], self.nodes.kind[step[1]] == COMPUTE), default=None)


def _add(pieces: list[_Piece], rank: int, kind: int, span: int, start: float, end: float) -> None:
    if end > start:
        pieces.append((rank, kind, span, start, end))


def _slices(nodes: _Nodes) -> dict[int, tuple[int, int]]:
    lane = np.array(nodes.lane, dtype=np.int64)
    first = runs(lane)
    stop = np.append(first[1:], len(lane))
    return {nodes.lane[a]: (a, b) for a, b in zip(first.tolist(), stop.tolist(), strict=True)}


def _before(timeline: JobTimeline, node_of_span: dict[int, int]) -> dict[int, list[int]]:
    """For each span in the window whose dependencies are known those nodes of the window that it depends on."""
    found: dict[int, list[int]] = {}
    if not len(timeline.dependencies):
        return found
    here = np.zeros(len(timeline.spans), dtype=bool)
    here[list(node_of_span)] = True
    for before, after in timeline.dependencies[here[timeline.dependencies[:, 1]]].tolist():
        nodes = found.setdefault(after, [])
        if before in node_of_span:
            nodes.append(node_of_span[before])
    return found


def _arrivals(found: Matched, transfers: list[int]) -> dict[int, list[tuple[float, int]]]:
    """For each transfer (time, whose) of the last rank to come to it, then of its own: each rank's part is a transfer."""
    rows = np.flatnonzero((found.instance >= 0) & np.isfinite(found.arrival_s))
    rows = rows[np.argsort(found.arrival_s[rows], kind="stable")]
    latest = np.full(found.instances, -1)
    latest[found.instance[rows]] = rows
    known: dict[int, list[tuple[float, int]]] = {}
    for transfer in transfers:
        instance = int(found.instance[transfer])
        who = [int(latest[instance])] if instance >= 0 and latest[instance] >= 0 else []
        known[transfer] = [
            (float(found.arrival_s[row]), row)
            for row in (*who, transfer)
            if np.isfinite(found.arrival_s[row])
        ]
    return known
