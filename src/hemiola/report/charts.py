"""Charts with one mark per policy: how long, how wide, where the GPU-seconds went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.core.result import Comparison, Run
from hemiola.core.timeline import Timeline, has_timeline, queue_series
from hemiola.core.topology import Topology
from hemiola.core.units import format_duration
from hemiola.report.document import Chart, Drawing, policy_color, policy_dash, time_scale, words_for
from hemiola.report.links import LinkLoad, binned, link_load, step_means
from hemiola.report.metrics import ConfidenceInterval, Figures
from hemiola.report.words import COLUMNS, Column, cell, change

__all__ = [
    "bars",
    "completion",
    "differences",
    "first_runs",
    "gantt",
    "gpu_seconds",
    "heat_maps",
    "over_time",
    "tier_color",
    "tier_words",
    "tiers",
]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_BARS = ("jct_mean_s", "jct_p99_s", "makespan_s", "queueing_mean_s", "exposed_communication_fraction", "gpu_utilization")  # fmt: skip
_SPENT = (
    ("useful", "useful computation", "--useful", ""),
    ("exposed_communication", "exposed communication", "--exposed", ""),
    ("serving", "replicas of services", "--policy-5", ""),
    ("checkpoint", "checkpoint and restore", "--checkpoint", ""),
    ("lost", "lost to failures", "--lost", ""),
    ("idle_waiting", "idle: a waiting job would have fitted by number", "--idle-0", ""),
    ("idle_fragmentation", "idle: too few free for any waiting job", "--idle-1", "/"),
    ("idle_no_demand", "idle: nobody waited", "--idle-2", ""),
    ("down", "host down", "--down", "x"),
)
_QUANTILES = 400


def bars(figures: Figures) -> Iterator[Chart]:
    """A small chart for each of the main figures, with the 95 % interval where there are seeds."""
    for column in COLUMNS:
        if column.metric in _BARS:
            yield _bar(figures, column)


def _bar(figures: Figures, column: Column) -> Chart:
    means = [figures.mean(policy, column.metric) for policy in figures.policies]
    scale, unit = _scale(column, means)
    text = [cell(None if mean is None else mean.mean, column.unit) for mean in means]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [None if mean is None else mean.mean / scale for mean in means],
        "y": [words_for(policy) for policy in figures.policies],
        "marker": {"color": [policy_color(i) for i in range(len(means))]},
        "error_x": _errors(means, scale),
        "text": text,
        "textposition": "none",
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }
    ticks = {"tickformat": ".0%"} if column.unit == "share" else {}
    most = max((mean.high or mean.mean for mean in means if mean is not None), default=0.0)
    layout = {
        "xaxis": {"title": {"text": unit}, "range": [0, 1.06 * most / scale or 1.0], "nticks": 5, **ticks},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "bargap": 0.35,
        "showlegend": False,
    }
    return Chart(
        id=f"bar-{column.metric}",
        title=column.title,
        about=f"{column.about[:1].upper()}{column.about[1:]}{_better(column)}.",
        drawings={"": Drawing([trace], layout)},
        height_px=84 + 34 * len(means),
        small=True,
    )


def _scale(column: Column, means: list[ConfidenceInterval | None]) -> tuple[float, str]:
    if column.unit != "duration":
        return 1.0, ""
    return time_scale(max((mean.mean for mean in means if mean is not None), default=0.0))


def _better(column: Column) -> str:
    return f"; {column.better} is better" if column.better else ""


def _errors(means: list[ConfidenceInterval | None], scale: float) -> dict[str, Any]:
    half = [0.0 if m is None or m.high is None else (m.high - m.mean) / scale for m in means]
    return {
        "type": "data",
        "array": half,
        "visible": any(half),
        "color": "--ink",
        "thickness": 1.5,
        "width": 4,
    }


def differences(figures: Figures) -> Chart | None:
    """How far each policy is from the baseline, figure by figure; None with one policy."""
    base = figures.comparison.baseline
    others = [(i, policy) for i, policy in enumerate(figures.policies) if policy != base]
    if not others or base not in figures.policies:
        return None
    columns = [column for column in COLUMNS if column.better]
    traces = [_dots(figures, columns, i, policy) for i, policy in others]
    layout = {
        "xaxis": {
            "title": {"text": f"difference to {words_for(base, 60)}"},
            "tickformat": "+.0%",
            "zeroline": True,
        },
        "yaxis": {"autorange": "reversed", "showgrid": True},
        "scattermode": "group",
        "scattergap": 0.4,
    }
    return Chart(
        id="differences",
        title=f"Difference to {base}",
        about="Relative difference of each figure. Left of the line is less. "
        "Whiskers: 95 % confidence over paired seeds, where there are several.",
        drawings={"": Drawing(traces, layout)},
        height_px=120 + len(columns) * max(34, 14 * len(others)),
    )


def _dots(figures: Figures, columns: list[Column], index: int, policy: str) -> dict[str, Any]:
    found = [figures.difference(policy, column.metric) for column in columns]
    half = [0.0 if d is None or d.high is None else d.high - d.mean for d in found]
    return {
        "type": "scatter",
        "mode": "markers",
        "orientation": "h",
        "name": words_for(policy, 40),
        "x": [None if d is None else d.mean for d in found],
        "y": [column.title for column in columns],
        "text": [change(d) for d in found],
        "marker": {"color": policy_color(index), "size": 9, "symbol": index % 8},
        "error_x": {"type": "data", "array": half, "visible": any(half), "thickness": 1.5, "width": 4},
        "hovertemplate": "%{y}: %{text}<extra>%{fullData.name}</extra>",
    }


def completion(figures: Figures) -> Chart:
    """The distribution of completion times of the seeds that all have run, on a logarithmic axis."""
    times = {policy: _jct(figures.runs(policy)) for policy in figures.policies}
    scale, unit = time_scale(min((float(np.median(t)) for t in times.values() if len(t)), default=0.0))
    traces = [_curve(times[policy] / scale, policy, i, unit) for i, policy in enumerate(figures.policies)]
    layout = {
        "xaxis": {
            "title": {"text": f"job completion time, {unit} (logarithmic)"},
            "type": "log",
            "dtick": "D2",
            "exponentformat": "none",
        },
        "yaxis": {"title": {"text": "share of finished jobs"}, "tickformat": ".0%", "range": [0, 1.02]},
        "hovermode": "closest",
    }
    return Chart(
        id="completion",
        title="How long jobs took",
        about="Share of the finished jobs that took at most so long. Further left and up is better.",
        drawings={"": Drawing(traces, layout)},
    )


def _jct(runs: list[Run]) -> Floats:
    times = [
        record.jct_s
        for run in runs
        for record in run.records
        if record.status == "finished" and record.jct_s is not None
    ]
    return np.sort(np.array(times, dtype=np.float64))


def _curve(times: Floats, policy: str, index: int, unit: str) -> dict[str, Any]:
    count = len(times)
    at: Indices = np.unique(
        np.linspace(0, max(count - 1, 0), min(count, _QUANTILES)).round().astype(np.int64)
    )
    return {
        "type": "scatter",
        "mode": "lines",
        "name": words_for(policy, 40),
        "x": [float(f"{times[i]:.6g}") for i in at],
        "y": [round((int(i) + 1) / count, 5) for i in at],
        "line": {"color": policy_color(index), "dash": policy_dash(index), "width": 2, "shape": "hv"},
        "hovertemplate": f"%{{y:.1%}} took at most %{{x:.3g}} {unit}<extra>%{{fullData.name}}</extra>",
    }


def gpu_seconds(figures: Figures) -> Chart:
    """Where every GPU-second went, as shares; means over seeds."""
    traces = []
    for field, name, color, shape in _SPENT:
        means = [figures.mean(policy, field) for policy in figures.policies]
        hours = [0.0 if mean is None else mean.mean / 3600 for mean in means]
        if any(hours):
            traces.append(_stack(figures, name, hours, color, shape))
    return Chart(
        id="gpu-seconds",
        title="Where every GPU-second went",
        about="All GPUs from the first arrival to the end, by what they did. Each bar adds up to 100 %.",
        drawings={"": Drawing(_shares(traces), _stacked_layout("share of GPU-seconds"))},
        height_px=150 + 38 * len(figures.policies),
    )


def tiers(figures: Figures) -> Chart | None:
    """How widely jobs were spread: GPU-seconds held at each tier, as shares; means over seeds; None without timelines."""
    if not all(has_timeline(run) for run in figures.comparison.runs):
        return None
    topology = figures.comparison.topology
    held = {policy: _held_by_tier(figures.runs(policy), topology) / 3600 for policy in figures.policies}
    traces = []
    for tier, name in enumerate(topology.tiers):
        hours = [float(held[policy][tier]) for policy in figures.policies]
        traces.append(_stack(figures, tier_words(name), hours, tier_color(tier, topology), ""))
    return Chart(
        id="tiers",
        title="How widely jobs were spread",
        about="GPU-seconds that jobs held, by the narrowest tier that contained the whole job.",
        drawings={"": Drawing(_shares(traces), _stacked_layout("share of held GPU-seconds"))},
        height_px=130 + 38 * len(figures.policies),
    )


def tier_color(tier: int, topology: Topology) -> str:
    """The colour of a tier, narrow to wide from cool to hot, the same in every chart."""
    last = max(len(topology.tiers) - 1, 1)
    return f"--tier-{round(4 * tier / last)}"


def tier_words(tier: str) -> str:
    """How a legend names a tier."""
    return "the whole cluster" if tier == "cluster" else f"within one {tier}"


def _held_by_tier(runs: list[Run], topology: Topology) -> Floats:
    """GPU-seconds, the mean over seeds."""
    tiers = len(topology.tiers)
    held = []
    for run in runs:
        if run.timeline is not None:
            spans = run.timeline
            gpu_s = np.bitwise_count(spans.gpu_mask) * (spans.end_s - spans.start_s)
            held.append(np.bincount(spans.tier, weights=gpu_s, minlength=tiers))
    return np.asarray(np.mean(held, axis=0))


def _stack(figures: Figures, name: str, hours: list[float], color: str, shape: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": hours,
        "y": [words_for(policy) for policy in figures.policies],
        "customdata": [f"{value:,.1f}" for value in hours],
        "marker": {
            "color": color,
            "pattern": _pattern(shape, color),
        },
        "hovertemplate": "%{x:.1%}, %{customdata} GPU-hours<extra>%{fullData.name}</extra>",
    }


def _pattern(shape: str, color: str) -> dict[str, Any]:
    return {"shape": shape, "bgcolor": color, "fgcolor": "--paper", "size": 6, "solidity": 0.25}


def _shares(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same bars as shares of their sum."""
    sums = [sum(column) for column in zip(*(trace["x"] for trace in traces), strict=True)]
    return [
        trace
        | {"x": [hours / whole if whole else 0.0 for hours, whole in zip(trace["x"], sums, strict=True)]}
        for trace in traces
    ]


def _stacked_layout(title: str) -> dict[str, Any]:
    return {
        "barmode": "stack",
        "bargap": 0.35,
        "xaxis": {"title": {"text": title}, "tickformat": ".0%", "range": [0, 1]},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "legend": {"traceorder": "normal"},
    }


# Charts over time: utilisation, the queue, and how full the links were.

_STEPS = 500
_HEAT_BINS = 160
_HEAT_LINKS = 60


def first_runs(comparison: Comparison) -> list[Run]:
    """Each policy's run of the first seed that all have run, or else of its own first: what charts over time show."""
    first = next(iter(comparison.seeds), None)
    return [comparison.run(policy, first) for policy in dict.fromkeys(run.policy for run in comparison.runs)]


def over_time(comparison: Comparison) -> Iterator[Chart]:
    """GPUs in use, and jobs waiting; nothing for runs that kept no timeline."""
    told = [(i, run, queue_series(run)) for i, run in enumerate(first_runs(comparison)) if has_timeline(run)]
    if not told:
        return
    longest_s = max(run.end_s - run.origin_s for _, run, _ in told)
    scale, unit = time_scale(longest_s)
    averaged = max(len(steps.time_s) for _, _, steps in told) > _STEPS
    fine = f" Each step is a mean over about {format_duration(longest_s / _STEPS)}." if averaged else ""
    total = comparison.topology.gpus
    axis = {"title": {"text": f"{unit} since the first arrival"}, "rangemode": "tozero"}
    busy = [_line(run, i, steps.time_s, steps.busy / total, scale) for i, run, steps in told]
    waiting = [_line(run, i, steps.time_s, steps.waiting, scale) for i, run, steps in told]
    share = {"title": {"text": "GPUs in use"}, "tickformat": ".0%", "range": [0, 1.02]}
    queue = {"title": {"text": "jobs waiting"}, "rangemode": "tozero"}
    for trace in busy:
        trace["hovertemplate"] = f"%{{y:.1%}} at %{{x:.2f}} {unit}<extra>%{{fullData.name}}</extra>"
    for trace in waiting:
        trace["hovertemplate"] = f"%{{y:.3~g}} jobs at %{{x:.2f}} {unit}<extra>%{{fullData.name}}</extra>"
    yield Chart(
        id="utilisation",
        title="GPUs in use over time",
        about=f"Share of the cluster's {total:,} GPUs held by jobs.{fine}",
        drawings={"": Drawing(busy, {"xaxis": axis, "yaxis": share})},
        height_px=340,
    )
    yield Chart(
        id="queue",
        title="Jobs waiting over time",
        about=f"Jobs in the queue.{fine}",
        drawings={"": Drawing(waiting, {"xaxis": axis, "yaxis": queue})},
        height_px=340,
    )


def _line(run: Run, index: int, time_s: Any, value: Any, scale: float) -> dict[str, Any]:
    x, y = step_means(time_s, value, run.end_s, _STEPS) if len(time_s) else (time_s, value)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": words_for(run.policy, 40),
        "x": np.round((x - run.origin_s) / scale, 5).tolist(),
        "y": np.round(y, 4).tolist(),
        "line": {"color": policy_color(index), "width": 1.6, "shape": "hv"},
    }


def heat_maps(comparison: Comparison) -> Chart | None:
    """The load of every link over time, per policy; None if no run recorded traffic between hosts."""
    loads = {
        run.policy: load for run in first_runs(comparison) if (load := _load(run, comparison)) is not None
    }
    if not loads:
        return None
    runs = {run.policy: run for run in first_runs(comparison)}
    peak = max(float(load.share.max()) for load in loads.values())
    rows = max(len(load.names) for load in loads.values())
    left_out = max(load.left_out for load in loads.values())
    rest = f" The {rows} busiest are drawn, up to {left_out:,} others are left out." if left_out else ""
    return Chart(
        id="links",
        title="How full the links were",
        about="Mean share of each link's bandwidth in use: uplinks above, network cards of the hosts "
        f"below. Links that carried nothing are left out.{rest}",
        drawings={policy: _heat(load, runs[policy], peak) for policy, load in loads.items()},
        height_px=min(900, 150 + 15 * rows),
    )


def _load(run: Run, comparison: Comparison) -> LinkLoad | None:
    if run.traffic is None or not len(run.traffic.job):
        return None
    return link_load(
        run.traffic, comparison.topology, run.origin_s, run.end_s, bins=_HEAT_BINS, most=_HEAT_LINKS
    )


def _heat(load: LinkLoad, run: Run, peak: float) -> Drawing:
    scale, unit = time_scale(run.end_s - run.origin_s)
    middle = (load.edges_s[1:] + load.edges_s[:-1]) / 2
    trace = {
        "type": "heatmap",
        "x": np.round((middle - run.origin_s) / scale, 4).tolist(),
        "y": [words_for(name, 60) for name in load.names],
        "z": np.round(load.share, 3).tolist(),
        "zmin": 0,
        "zmax": max(1.0, round(peak, 2)),
        "colorscale": [
            [0, "--heat-0"],
            [0.25, "--heat-1"],
            [0.5, "--heat-2"],
            [0.75, "--heat-3"],
            [1, "--heat-4"],
        ],
        "colorbar": {"tickformat": ".0%", "thickness": 10, "outlinewidth": 0, "len": 1.0},
        "hovertemplate": f"%{{y}}: %{{z:.1%}} full at %{{x:.2f}} {unit}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": f"{unit} since the first arrival"}, "showgrid": False},
        "yaxis": {"autorange": "reversed", "showgrid": False, "type": "category"},
    }
    return Drawing([trace], layout)


# Which job held which GPUs when. Large runs are drawn by their largest spans, the rest summed.
#
# A bar is as high as the GPUs it stands for and as long as they were held. Neighbouring GPUs of one
# span are one bar. What is too small to be drawn is summed in a grey ground below the bars.

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
