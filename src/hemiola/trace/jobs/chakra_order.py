"""In which order a rank's spans and transfers went, for graphs that have to run in it again. No files.

Every dependency that is inferred here leads from something that began earlier to something that
began later, so that together they can make no circle.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from hemiola.core.job_timeline import SPAN_KINDS, Ints, JobTimeline

__all__ = ["RankOrder", "inferred"]

_COMMUNICATION = SPAN_KINDS.index("communication")


class RankOrder:
    """One rank's spans as lanes, and its transfers.

    Attributes:
        rows: the rank's spans in the order of the timeline.
        parent: by span the span of the same lane inside which it lies.
        previous: by span the span of the same lane that began before it.
        alone_s: by span how long it ran without the spans inside it.
        span_of: by transfer its communication span, the first if there are several.
        bare: transfers without one.
    """

    def __init__(self, timeline: JobTimeline, rows: Ints, transfers: Ints) -> None:
        self.timeline = timeline
        self.rows = rows.tolist()
        self.parent: dict[int, int] = {}
        self.previous: dict[int, int] = {}
        self._start_s: list[float] = timeline.spans.start_s.tolist()
        self._end_s: list[float] = timeline.spans.end_s.tolist()
        self.alone_s = {row: self._end_s[row] - self._start_s[row] for row in self.rows}
        self.span_of: dict[int, int] = {}
        kinds, lanes, of = (
            column.tolist() for column in (timeline.spans.kind, timeline.spans.lane, timeline.spans.transfer)
        )
        by_lane: dict[int, list[int]] = {}
        for row in sorted(self.rows, key=lambda row: (self._start_s[row], -self._end_s[row], row)):
            by_lane.setdefault(lanes[row], []).append(row)
            if kinds[row] == _COMMUNICATION and of[row] >= 0:
                self.span_of.setdefault(of[row], row)
        for lane in by_lane.values():
            self._nest(lane)
        self.bare = [transfer for transfer in transfers.tolist() if transfer not in self.span_of]
        self.transfers = transfers.tolist()
        self.works = [row for lane in by_lane.values() for row in lane if kinds[row] != _COMMUNICATION]

    def node_of(self, transfer: int) -> int:
        """The id of a transfer's node."""
        row = self.span_of.get(transfer)
        return len(self._start_s) + transfer + 1 if row is None else row + 1

    def start_s(self, row: int) -> float:
        """When a span began."""
        return self._start_s[row]

    def end_s(self, row: int) -> float:
        """When a span ended."""
        return self._end_s[row]

    def _nest(self, lane: list[int]) -> None:
        open_: list[int] = []
        for at, row in enumerate(lane):
            while open_ and self._end_s[open_[-1]] <= self._start_s[row]:
                open_.pop()
            if open_ and self._end_s[row] <= self._end_s[open_[-1]]:
                self.parent[row] = open_[-1]
                self.alone_s[open_[-1]] = max(
                    0.0, self.alone_s[open_[-1]] - (self._end_s[row] - self._start_s[row])
                )
            if at:
                self.previous[row] = lane[at - 1]
            open_.append(row)


def inferred(order: RankOrder) -> dict[int, list[int]]:
    """By node the nodes that it waits for, as times and lanes say: the lane, producers and consumers."""
    waits: dict[int, list[int]] = {row + 1: [before + 1] for row, before in order.previous.items()}
    by_end = sorted((order.end_s(row), row) for row in order.works)
    by_start = sorted((order.start_s(row), row) for row in order.works)
    for transfer in order.transfers:
        node = order.node_of(transfer)
        producer = _producer(order, transfer, by_end)
        if producer is not None:
            waits.setdefault(node, []).append(producer + 1)
        consumer = _consumer(order, transfer, by_start)
        if consumer is not None:
            waits.setdefault(consumer + 1, []).append(node)
    return {node: list(dict.fromkeys(before)) for node, before in waits.items()}


def _begin(order: RankOrder, transfer: int) -> tuple[float, int]:
    row = order.span_of.get(transfer)
    if row is None:
        return float(order.timeline.transfers.first_byte_s[transfer]), 0
    return order.start_s(row), row


def _producer(order: RankOrder, transfer: int, by_end: list[tuple[float, int]]) -> int | None:
    """The last span that had ended when the transfer was handed over (or began, where that is not known)."""
    sent = order.timeline.transfers
    handed_s = float(sent.enqueue_s[transfer])
    if math.isnan(handed_s):
        handed_s = float(sent.first_byte_s[transfer])
    place = bisect_right(by_end, (handed_s, len(order.timeline.spans))) - 1
    if place < 0:
        return None
    row = by_end[place][1]
    return row if order.start_s(row) < _begin(order, transfer)[0] else None


def _consumer(order: RankOrder, transfer: int, by_start: list[tuple[float, int]]) -> int | None:
    """The first span that began when the last byte was there and its consumer, if known, had gone on."""
    sent = order.timeline.transfers
    released_s = float(sent.released_s[transfer])
    ready_s = max(float(sent.last_byte_s[transfer]), -math.inf if math.isnan(released_s) else released_s)
    place = bisect_right(by_start, (ready_s, -1))
    if place == len(by_start):
        return None
    row = by_start[place][1]
    return row if order.start_s(row) > _begin(order, transfer)[0] else None
