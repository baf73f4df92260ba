"""Charts over time: utilisation, the queue, and how full the links were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hemiola.core.result import Comparison, Run
from hemiola.core.series import has_timeline, queue_series
from hemiola.core.units import format_duration
from hemiola.report.binning import step_means
from hemiola.report.chart import Chart, Drawing, policy_color, time_scale, words_for
from hemiola.report.links import LinkLoad, link_load

__all__ = ["first_runs", "heat_maps", "over_time"]

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
