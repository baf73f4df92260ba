"""Charts with one mark per policy: how long, how wide, where the GPU-seconds went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.core.result import Run
from hemiola.core.series import has_timeline
from hemiola.core.topology import Topology
from hemiola.report.chart import Chart, Drawing, policy_color, policy_dash, time_scale, words_for
from hemiola.report.metrics import Figures, ConfidenceInterval
from hemiola.report.words import COLUMNS, Column, cell, change

__all__ = ["bars", "completion", "differences", "gpu_seconds", "tier_color", "tier_words", "tiers"]

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
