"""Which job held which GPUs when. Large runs are drawn by their largest spans, the rest summed.

A bar is as high as the GPUs it stands for and as long as they were held. Neighbouring GPUs of one
span are one bar. What is too small to be drawn is summed in a grey ground below the bars.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.core.result import Comparison, Run
from hemiola.core.timeline import Timeline
from hemiola.core.topology import Topology
from hemiola.core.units import format_duration
from hemiola.report.charts import first_runs, tier_color, tier_words
from hemiola.report.document import Chart, Drawing, time_scale, words_for
from hemiola.report.links import binned

__all__ = ["gantt"]

_ROWS_MOST = 8000
"""Bars on the whole page, shared among the policies."""
_ROWS_LEAST = 500
_GROUND_ROWS = 80
_GROUND_BINS = 240
_TICKS = 24
_LINES = 64
"""Up to so many hosts are parted by a line."""


@dataclass(frozen=True)
class _Bar:
    job: int
    low: int
    high: int
    start_s: float
    end_s: float
    resume_s: float
    tier: int
    outcome: int


def gantt(comparison: Comparison) -> Chart | None:
    """Every policy's use of the GPUs; None if no run kept a timeline."""
    runs = [run for run in first_runs(comparison) if run.timeline is not None and len(run.timeline.job)]
    if not runs:
        return None
    most = max(_ROWS_MOST // len(runs), _ROWS_LEAST)
    hidden = {run.policy: _hidden(run.timeline, most) for run in runs}
    return Chart(
        id="gantt",
        title="Who held which GPUs",
        about="A bar is one job on neighbouring GPUs; its colour is the narrowest tier that contained the "
        f"whole job. Drag to zoom, double-click to return.{_left_out(runs, hidden)}",
        drawings={run.policy: _draw(run, comparison.topology, hidden[run.policy]) for run in runs},
        height_px=min(900, max(380, 140 + 9 * comparison.topology.gpus)),
    )


def _hidden(timeline: Timeline, most: int) -> NDArray[np.bool_]:
    """Which rows are too small: all but the `most` with the most GPU-seconds."""
    hidden = np.zeros(len(timeline.job), dtype=bool)
    hidden[np.argsort(-_gpu_s(timeline), kind="stable")[most:]] = True
    return hidden


def _gpu_s(timeline: Timeline) -> NDArray[np.float64]:
    return np.asarray(np.bitwise_count(timeline.gpu_mask) * (timeline.end_s - timeline.start_s))


def _left_out(runs: list[Run], hidden: dict[str, NDArray[np.bool_]]) -> str:
    parts = []
    for run in runs:
        out = hidden[run.policy]
        if out.any():
            share = _gpu_s(run.timeline)[out].sum() / _gpu_s(run.timeline).sum()
            parts.append(
                f"{run.policy}: {int(out.sum()):,} of {len(out):,} ({share:.1%} of held GPU-seconds)"
            )
    return f" Too small to be bars, and summed in the grey ground: {'; '.join(parts)}." if parts else ""


def _draw(run: Run, topology: Topology, hidden: NDArray[np.bool_]) -> Drawing:
    scale, unit = time_scale(run.end_s - run.origin_s)
    offset = np.concatenate([[0], np.cumsum(topology.hosts.gpus)])
    drawn = list(_merged(_blocks(run.timeline, np.flatnonzero(~hidden), offset)))
    traces = _ground(run, topology, hidden, offset, scale) if hidden.any() else []
    for tier, name in enumerate(topology.tiers):
        if mine := [bar for bar in drawn if bar.tier == tier]:
            traces.append(_bars(run, mine, scale, tier_words(name), tier_color(tier, topology)))
    if opening := [bar for bar in drawn if bar.resume_s > bar.start_s]:
        traces.append(_openings(run, opening, scale))
    return Drawing(traces, _layout(topology, offset, unit, (run.end_s - run.origin_s) / scale))


def _blocks(timeline: Timeline, rows: NDArray[np.int64], offset: NDArray[np.int64]) -> Iterator[_Bar]:
    """A bar for each run of neighbouring GPUs of each row."""
    order = rows[np.lexsort((timeline.host[rows], timeline.start_s[rows], timeline.job[rows]))]
    columns = (timeline.job, timeline.host, timeline.gpu_mask, timeline.start_s, timeline.end_s, timeline.resume_s, timeline.tier, timeline.outcome)  # fmt: skip
    for job, host, mask, *rest in zip(*(column[order].tolist() for column in columns), strict=True):
        first = int(offset[host])
        while mask:
            low = (mask & -mask).bit_length() - 1
            length = ((~(mask >> low)) & ((mask >> low) + 1)).bit_length() - 1
            yield _Bar(job, first + low, first + low + length, *rest)
            mask &= ~(((1 << length) - 1) << low)


def _merged(blocks: Iterator[_Bar]) -> Iterator[_Bar]:
    """Neighbouring bars of the same span as one."""
    last: _Bar | None = None
    for bar in blocks:
        if last and (last.job, last.start_s, last.high) == (bar.job, bar.start_s, bar.low):
            last = _Bar(bar.job, last.low, bar.high, *_rest(last))
            continue
        if last:
            yield last
        last = bar
    if last:
        yield last


def _rest(bar: _Bar) -> tuple[float, float, float, int, int]:
    return bar.start_s, bar.end_s, bar.resume_s, bar.tier, bar.outcome


def _bars(run: Run, bars: list[_Bar], scale: float, name: str, color: str) -> dict[str, Any]:
    return {
        **_rectangles(run, bars, [bar.end_s for bar in bars], scale),
        "name": name,
        "marker": {"color": color, "line": {"color": "--paper", "width": 0.6}},
        "customdata": [_details(run, bar) for bar in bars],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>held for %{customdata[2]}, "
        "then %{customdata[3]}<extra></extra>",
    }


def _details(run: Run, bar: _Bar) -> list[str]:
    record = run.records[bar.job]
    wanted = f"{record.gpus} GPU{'s' if record.gpus > 1 else ''}"
    about = f"{wanted} of {record.model}" if record.model else wanted
    held = format_duration(bar.end_s - bar.start_s)
    return [words_for(record.id, 60), words_for(about, 60), held, Timeline.OUTCOMES[bar.outcome]]


def _openings(run: Run, bars: list[_Bar], scale: float) -> dict[str, Any]:
    return {
        **_rectangles(run, bars, [bar.resume_s for bar in bars], scale),
        "name": "checkpoint and restore",
        "marker": {"color": "--checkpoint", "line": {"width": 0}},
        "hoverinfo": "skip",
    }


def _rectangles(run: Run, bars: list[_Bar], until_s: list[float], scale: float) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "base": [round((bar.start_s - run.origin_s) / scale, 5) for bar in bars],
        "x": [round((end_s - bar.start_s) / scale, 5) for bar, end_s in zip(bars, until_s, strict=True)],
        "y": [(bar.low + bar.high) / 2 for bar in bars],
        "width": [bar.high - bar.low for bar in bars],
    }


def _ground(
    run: Run, topology: Topology, hidden: NDArray[np.bool_], offset: NDArray[np.int64], scale: float
) -> list[dict[str, Any]]:
    """The spans that are no bars, summed over groups of hosts and bins of time."""
    timeline, hosts = run.timeline, len(topology.hosts)
    first = np.unique(np.linspace(0, hosts, min(hosts, _GROUND_ROWS) + 1).round().astype(np.int64))
    group = np.searchsorted(first, timeline.host[hidden], side="right") - 1
    edges = np.linspace(run.origin_s, run.end_s, _GROUND_BINS + 1)
    held = np.bitwise_count(timeline.gpu_mask[hidden]).astype(np.float64)
    busy = binned(
        group, timeline.start_s[hidden], timeline.end_s[hidden], held, rows=len(first) - 1, edges_s=edges
    )
    share = np.round(busy / np.maximum(np.diff(offset[first]), 1)[:, None], 2)
    return [
        {
            "type": "heatmap",
            "x": np.round((edges - run.origin_s) / scale, 5).tolist(),
            "y": offset[first].tolist(),
            "z": [[value if value > 0 else None for value in row] for row in share.tolist()],
            "zmin": 0,
            "zmax": 1,
            "colorscale": [[0, "--paper"], [1, "--ground"]],
            "showscale": False,
            "hovertemplate": "%{z:.0%} held by spans too small to draw<extra></extra>",
        }
    ]


def _layout(topology: Topology, offset: NDArray[np.int64], unit: str, end: float) -> dict[str, Any]:
    hosts = len(topology.hosts)
    shown = range(0, hosts, max(1, -(-hosts // _TICKS)))
    middle = [(low + high) / 2 for low, high in pairwise(offset.tolist())]
    edges = offset[1:-1].tolist() if hosts <= _LINES else []
    return {
        "barmode": "overlay",
        "bargap": 0,
        "shapes": [_rule(edge) for edge in edges],
        "xaxis": {"title": {"text": f"{unit} since the first arrival"}, "range": [0, end]},
        "yaxis": {
            "range": [topology.gpus, 0],
            "tickvals": [middle[host] for host in shown],
            "ticktext": [words_for(topology.hosts.names[host], 40) for host in shown],
            "showgrid": False,
            "zeroline": False,
        },
    }


def _rule(edge: int) -> dict[str, Any]:
    line = {"color": "--line", "width": 1}
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": edge,
        "y1": edge,
        "layer": "below",
        "line": line,
    }
