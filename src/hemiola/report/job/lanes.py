"""The timeline as the page's viewer takes it: rows of segments, packed; few enough to stay quick.

Drawn are the iterations around the one whose critical path is shown, as many as fit. What is still too
much is joined: short segments of one row and kind that lie close together become one block that says so.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.analysis.job.intervals import Segments, innermost, runs
from hemiola.analysis.job.metrics import JobMetrics
from hemiola.core.job_timeline import SPAN_KINDS

__all__ = ["SEGMENTS", "Drawn", "drawn", "path_iteration_s"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SEGMENTS = 80_000
"""Most segments of one viewer."""
PIECES = 6_000
"""Most pieces of the critical path that are drawn one by one."""
RANKS = 16
LANES = 6
_TICKS = 2**32 - 1


@dataclass(frozen=True)
class Drawn:
    """A viewer's data, and in words what of the timeline it leaves out."""

    data: dict[str, Any]
    about: str
    rows: int


def path_iteration_s(metrics: JobMetrics) -> float:
    """How long the iteration of the critical path took, from the first rank's beginning to the last one's end."""
    mine = metrics.parts.number == metrics.path.number
    return float(metrics.parts.end_s[mine].max() - metrics.parts.start_s[mine].min())


def drawn(metrics: JobMetrics, view_s: float, most: int = SEGMENTS) -> Drawn:
    """Choose ranks, lanes, iterations; cut; join; pack.

    Args:
        metrics: of the job.
        view_s: how much time is seen at first, from the beginning of the critical path's iteration.
        most: segments.
    """
    timeline, spans = metrics.timeline, metrics.timeline.spans
    ranks = _ranks(metrics)
    lane = spans.rank * len(timeline.lanes) + spans.lane
    lanes, hidden = _lanes(metrics, ranks, lane)
    low, high, numbers = _window(metrics, np.isin(lane, lanes), most)
    chosen = np.isin(lane, lanes) & (spans.end_s > low) & (spans.start_s < high)
    index = np.flatnonzero(chosen)
    cut = innermost(lane[index], spans.start_s[index], spans.end_s[index])
    cut = Segments(cut.lane, index[cut.span], np.maximum(cut.start_s, low), np.minimum(cut.end_s, high))
    cut = _part(cut, cut.end_s > cut.start_s)
    count = np.ones(len(cut), dtype=np.int64)
    joined = 0
    if len(cut) > most:
        before = len(cut)
        cut, count = _joined(cut, spans.kind, most, high - low)
        joined = before - int((count == 1).sum())
    about = _about(metrics, ranks, hidden, numbers, joined)
    data = _packed(metrics, cut, count, lanes, low, high) | {"view": view_s}
    return Drawn(data, about, len(lanes))


def _ranks(metrics: JobMetrics) -> Ints:
    """All ranks; of many those on the critical path, the late, those that wait most, and some others."""
    every = np.unique(metrics.parts.rank)
    if len(every) <= RANKS:
        return every
    place = {rank.rank: i for i, rank in enumerate(metrics.timeline.ranks)}
    wanted = dict.fromkeys(list(dict.fromkeys(metrics.path.rank.tolist()[::-1]))[:4])
    wanted |= dict.fromkeys(place[one.rank] for one in metrics.stragglers[:4])
    wanted |= dict.fromkeys(
        place[one.rank] for one in sorted(metrics.ranks, key=lambda r: -r.exposed_share)[:4]
    )
    wanted |= dict.fromkeys(every[np.linspace(0, len(every) - 1, RANKS).astype(int)].tolist())
    return np.sort(np.array(list(wanted)[:RANKS]))


def _lanes(metrics: JobMetrics, ranks: Ints, lane: Ints) -> tuple[Ints, int]:
    """Of each rank the lanes in which most goes on; and how many are left out."""
    spans, names = metrics.timeline.spans, len(metrics.timeline.lanes)
    busy = np.bincount(
        lane, weights=spans.end_s - spans.start_s, minlength=names * len(metrics.timeline.ranks)
    )
    kept: list[int] = []
    hidden = 0
    for rank in ranks.tolist():
        mine = np.flatnonzero(busy[rank * names : (rank + 1) * names] > 0)
        best = mine[np.argsort(-busy[rank * names + mine], kind="stable")]
        kept += sorted((rank * names + best[:LANES]).tolist())
        hidden += max(0, len(best) - LANES)
    return np.array(kept, dtype=np.int64), hidden


def _window(metrics: JobMetrics, shown: NDArray[np.bool_], most: int) -> tuple[float, float, tuple[int, int]]:
    """The iterations around the path's, as many as fit; each time the side that lies nearer."""
    spans = metrics.timeline.spans
    numbers, starts, ends = _bounds(metrics)
    by_start = np.sort(spans.start_s[shown])
    first = last = int(np.searchsorted(numbers, metrics.path.number))

    def size(a: int, b: int) -> int:
        return int(np.searchsorted(by_start, ends[b]) - np.searchsorted(by_start, starts[a]))

    grew = True
    while grew:
        grew = False
        if last + 1 < len(numbers) and size(first, last + 1) <= most:
            last, grew = last + 1, True
        if first > 0 and size(first - 1, last) <= most:
            first, grew = first - 1, True
    low, high = float(starts[first : last + 1].min()), float(ends[first : last + 1].max())
    if first == 0 and last == len(numbers) - 1 and size(first, last) < len(by_start) <= most:
        low, high = float(spans.start_s.min()), float(spans.end_s.max())
    return low, high, (int(numbers[first]), int(numbers[last]))


def _bounds(metrics: JobMetrics) -> tuple[Ints, Floats, Floats]:
    """(number, from, to) of each iteration, over all ranks."""
    every = metrics.parts
    numbers, place = np.unique(every.number, return_inverse=True)
    start_s, end_s = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
    np.minimum.at(start_s, place, every.start_s)
    np.maximum.at(end_s, place, every.end_s)
    return numbers, start_s, end_s


def _part(cut: Segments, chosen: NDArray[np.bool_]) -> Segments:
    return Segments(cut.lane[chosen], cut.span[chosen], cut.start_s[chosen], cut.end_s[chosen])


def _joined(cut: Segments, kind: NDArray[np.int8], most: int, span_s: float) -> tuple[Segments, Ints]:
    """The longest half as they are, the rest in blocks: closer together than a gap that grows until few are left."""
    length = cut.end_s - cut.start_s
    long = np.zeros(len(cut), dtype=bool)
    long[np.argsort(-length, kind="stable")[: most // 2]] = True
    short = _part(cut, ~long)
    order = np.lexsort((short.start_s, kind[short.span], short.lane))
    short = Segments(short.lane[order], short.span[order], short.start_s[order], short.end_s[order])
    lanes, kinds, gap = short.lane, kind[short.span].astype(np.int64), span_s / 8000
    while True:
        far = np.append(False, short.start_s[1:] > short.end_s[:-1] + gap).cumsum()
        first = runs(lanes, kinds, far)
        if len(first) <= most // 2 or gap > span_s:
            break
        gap *= 2
    last = np.append(first[1:], len(short)) - 1
    parts = (
        np.concatenate([cut.lane[long], short.lane[first]]),
        np.concatenate([cut.span[long], short.span[first]]),
        np.concatenate([cut.start_s[long], short.start_s[first]]),
        np.concatenate([cut.end_s[long], np.maximum(short.end_s[last], short.end_s[first])]),
    )
    count = np.concatenate([np.ones(int(long.sum()), dtype=np.int64), last - first + 1])
    again = np.lexsort((parts[2], parts[0]))
    return Segments(*(part[again] for part in parts)), count[again]


def _about(metrics: JobMetrics, ranks: Ints, hidden: int, numbers: tuple[int, int], joined: int) -> str:
    left_out = []
    every = np.unique(metrics.parts.number)
    if numbers != (every[0], every[-1]):
        left_out.append(f"iterations {numbers[0]} to {numbers[1]} of {every[0]} to {every[-1]}")
    if len(ranks) < len(metrics.ranks):
        left_out.append(
            f"{len(ranks)} of {len(metrics.ranks):,} ranks: on the path, late, waiting most, and some others"
        )
    if hidden:
        left_out.append(f"without the {hidden:,} lanes in which least goes on")
    if joined:
        left_out.append(f"{joined:,} short spans joined into blocks")
    return f" Drawn: {'; '.join(left_out)}." if left_out else ""


def _packed(
    metrics: JobMetrics, cut: Segments, count: Ints, lanes: Ints, low: float, high: float
) -> dict[str, Any]:
    timeline, spans, log = metrics.timeline, metrics.timeline.spans, metrics.timeline.transfers
    tick = (high - low) / _TICKS
    row_of = np.searchsorted(lanes, cut.lane)
    used, name = np.unique(spans.name[cut.span], return_inverse=True)
    transfer = spans.transfer[cut.span]
    size = np.full(len(cut), np.nan)
    if len(log):
        size = np.where(transfer >= 0, log.size_bytes[transfer], np.nan)
    modules, module = _modules(timeline.attributes, cut.span)
    width = len(timeline.lanes)
    rows = [
        {
            "rank": timeline.ranks[lane // width].rank,
            "host": timeline.ranks[lane // width].host,
            "lane": timeline.lanes[lane % width],
        }
        for lane in lanes.tolist()
    ]
    return {
        "rows": rows,
        "kinds": list(SPAN_KINDS),
        "names": [timeline.names[i] for i in used.tolist()],
        "modules": modules,
        "seconds": high - low,
        "length": len(cut),
        "row": _base64(row_of, np.uint16),
        "kind": _base64(spans.kind[cut.span], np.uint8),
        "name": _base64(name, np.uint32),
        "module": _base64(module, np.uint32) if modules else "",
        "start": _base64(np.round((cut.start_s - low) / tick), np.uint32),
        "end": _base64(np.round((cut.end_s - low) / tick), np.uint32),
        "size": _base64(size, np.float32) if np.isfinite(size).any() else "",
        "count": _base64(count, np.uint32) if (count > 1).any() else "",
        "path": _path(metrics, lanes, low),
        "iterations": _iterations(metrics, low, high),
    }


def _modules(attributes: tuple[dict[str, Any], ...], span: Ints) -> tuple[list[str], Ints]:
    """The module of each segment's span, where the source says it: index + 1 into a list, 0 for none."""
    place: dict[str, int] = {}
    if not attributes:
        return [], np.zeros(len(span), dtype=np.int64)
    told = (attributes[i].get("module") for i in span.tolist())
    found = [place.setdefault(str(name), len(place)) + 1 if name else 0 for name in told]
    return list(place), np.array(found, dtype=np.int64)


def _path(metrics: JobMetrics, lanes: Ints, low: float) -> list[list[float | int | str]]:
    """[row or -1, kind or -1, from, to, name] of each piece; of many, neighbours of one row and kind as one."""
    path, spans, width = metrics.path, metrics.timeline.spans, len(metrics.timeline.lanes)
    if not len(path):
        return []
    span = np.maximum(path.span, 0)
    lane = spans.rank[span] * width + spans.lane[span]
    row = np.minimum(np.searchsorted(lanes, lane), len(lanes) - 1)
    row = np.where((lanes[row] == lane) & (path.span >= 0), row, -1)
    each = np.arange(len(path))
    first = each if len(path) <= PIECES else runs(row, path.kind.astype(np.int64))
    count = np.diff(np.append(first, len(path)))
    columns = (
        row[first].tolist(), path.kind[first].tolist(), (path.start_s[first] - low).tolist(),
        (path.end_s[first + count - 1] - low).tolist(), spans.name[span[first]].tolist(), count.tolist(),
    )  # fmt: skip
    return [
        [where, kind, _short(start), _short(end), _piece(metrics, kind, name, several)]
        for where, kind, start, end, name, several in zip(*columns, strict=True)
    ]


def _piece(metrics: JobMetrics, kind: int, name: int, count: int) -> str:
    if kind < 0:
        return ""
    return metrics.timeline.names[name] if count == 1 else f"{count:,} spans"


def _iterations(metrics: JobMetrics, low: float, high: float) -> list[list[float | int]]:
    """[number, from, to, whether the path is through it] over all ranks."""
    columns = (column.tolist() for column in _bounds(metrics))
    return [
        [number, _short(start - low), _short(end - low), int(number == metrics.path.number)]
        for number, start, end in zip(*columns, strict=True)
        if end > low and start < high
    ]


def _short(seconds: float) -> float:
    """Nine digits are enough to draw with."""
    return seconds if seconds == 0 else round(seconds, 9 - math.ceil(math.log10(abs(seconds))))


def _base64(values: NDArray[Any], kind: Any) -> str:
    return base64.b64encode(
        np.ascontiguousarray(values.astype(kind)).astype(np.dtype(kind).newbyteorder("<")).tobytes()
    ).decode()
