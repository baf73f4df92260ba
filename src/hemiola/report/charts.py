"""Charts with one mark per policy: how long, how wide, where the GPU-seconds went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.core.result import Comparison, Run
from hemiola.core.timeline import has_timeline, queue_series
from hemiola.core.topology import Topology
from hemiola.core.units import format_duration
from hemiola.report.document import Chart, Drawing, policy_color, policy_dash, time_scale, words_for
from hemiola.report.links import LinkLoad, link_load, step_means
from hemiola.report.metrics import ConfidenceInterval, Figures
from hemiola.report.words import COLUMNS, Column, cell, change

__all__ = [
    "bars",
    "completion",
    "differences",
    "first_runs",
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
