"""What services and loans came to: a table of figures, and how it went over time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hemiola.core.result import Comparison, Run
from hemiola.report.charts import first_runs
from hemiola.report.document import Chart, Drawing, policy_color, policy_dash, time_scale, words_for
from hemiola.report.links import step_means
from hemiola.report.metrics import Figures

__all__ = ["SERVING_HEADS", "serving_charts", "serving_rows"]

SERVING_HEADS = (
    "policy", "objective kept", "answered", "refused", "missed", "training goodput", "inference goodput", "lent", "loans", "ceiling",
)  # fmt: skip
"""Headings of `serving_rows`. Training's goodput is work per second, in GPU-seconds at the size that jobs asked for, until the last
job arrived; inference's is requests answered within the objective per second. The ceiling is the most that loans could multiply
training's by, over a static split."""
_BINS = 300


def serving_rows(figures: Figures) -> list[tuple[str, ...]]:
    """A row of text for each policy, means over its seeds; none where there are no services."""
    if not any(run.serving is not None for run in figures.comparison.runs):
        return []
    return [(policy, *_cells(figures, policy)) for policy in figures.policies]


def _cells(figures: Figures, policy: str) -> Iterator[str]:
    def mean(metric: str) -> float:
        found = figures.mean(policy, metric)
        return math.nan if found is None else found.mean

    kept = mean("slo_attainment")
    yield "-" if math.isnan(kept) else f"{100 * kept:.3f} %"
    for name in ("answered", "refused", "missed"):
        yield f"{mean(f'requests_{name}'):,.0f}"
    yield f"{mean('training_goodput'):.1f}"
    yield f"{mean('inference_goodput'):.1f}/s"
    yield f"{mean('loaned_gpu_s') / 3600:,.0f} GPU-h"
    yield f"{mean('loans'):,.0f}"
    ceiling = mean("ceiling")
    yield "-" if math.isnan(ceiling) else f"×{ceiling:.2f}"


def serving_charts(comparison: Comparison) -> Iterator[Chart]:
    """Loans, the share of requests answered in time, load and replicas over time; nothing for runs that kept none of it."""
    told = [
        (i, run) for i, run in enumerate(first_runs(comparison))
        if run.serving is not None and any(one.rows for one in run.serving.services)
    ]  # fmt: skip
    if not told:
        return
    scale, unit = time_scale(max(run.end_s - run.origin_s for _, run in told))
    axis = {"title": {"text": f"{unit} since the first arrival"}, "rangemode": "tozero"}
    yield _chart(
        "loans", "GPUs in other hands", "Above zero: lent to training; below: lent to inference.", axis,
        {"title": {"text": "GPUs lent"}}, [_loans(run, i, scale) for i, run in told],
    )  # fmt: skip
    kept = [_attainment(run, i, scale) for i, run in told]
    least = min(min(line["y"]) for line in kept)
    yield _chart(
        "attainment", "Requests answered in time", "Share of all services' requests in each stretch of time.", axis,
        {"title": {"text": "answered in time"}, "tickformat": ".1%", "range": [min(least - 0.02, 0.98), 1.002]}, kept,
    )  # fmt: skip
    held = [_series(run, i, scale, _replica_gpus(run), run.policy) for i, run in told]
    load = _series(told[0][1], 0, scale, _load(told[0][1]), "requests per second")
    load |= {"yaxis": "y2", "line": {"color": "--ink", "width": 1, "dash": "dot"}}
    yield _chart(
        "replicas", "Load, and the GPUs of replicas", "Dotted: requests per second, on the right.", axis,
        {"title": {"text": "GPUs of replicas"}, "rangemode": "tozero"}, [*held, load],
        yaxis2={"automargin": True, "overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False},
    )  # fmt: skip


def _chart(
    id: str, title: str, about: str, x: dict[str, Any], y: dict[str, Any], data: list[dict[str, Any]], **more: Any
) -> Chart:  # fmt: skip
    return Chart(
        id=id,
        title=title,
        about=about,
        drawings={"": Drawing(data, {"xaxis": x, "yaxis": y, **more})},
        height_px=320,
    )


def _series(run: Run, index: int, scale: float, steps: tuple[Any, Any], name: str) -> dict[str, Any]:
    time_s, value = steps
    x, y = step_means(time_s, value, run.end_s, _BINS)
    return {
        "type": "scatter", "mode": "lines", "name": words_for(name, 40),
        "x": np.round((x - run.origin_s) / scale, 5).tolist(), "y": np.round(y, 5).tolist(),
        "line": {"color": policy_color(index), "dash": policy_dash(index), "width": 1.6, "shape": "hv"},
    }  # fmt: skip


def _loans(run: Run, index: int, scale: float) -> dict[str, Any]:
    """GPUs lent to training, less those lent to inference."""
    assert run.serving is not None
    homes = {record.queue for record in run.records} or {"training"}
    rows = [(run.origin_s, {}), *run.serving.rows]
    net = [
        sum(gpus if name != "inference" or name in homes else -gpus for name, gpus in lent.items())
        for _, lent in rows
    ]
    return _series(run, index, scale, (np.array([time_s for time_s, _ in rows]), np.array(net)), run.policy)


def _attainment(run: Run, index: int, scale: float) -> dict[str, Any]:
    """Weighted by the requests of each control interval."""
    time_s, rows = _rows(run)
    weight, kept = rows[:, :, 0].sum(axis=0), (rows[:, :, 0] * rows[:, :, 1]).sum(axis=0)
    group = np.minimum((np.arange(len(time_s)) * _BINS) // max(len(time_s), _BINS), _BINS - 1)
    whole = np.bincount(group, weight)
    share = np.divide(np.bincount(group, kept), whole, out=np.ones_like(whole), where=whole > 0)
    first = np.searchsorted(group, np.arange(len(whole)))
    return _series(run, index, scale, (time_s[np.minimum(first, len(time_s) - 1)], share), run.policy)


def _replica_gpus(run: Run) -> tuple[Any, Any]:
    assert run.serving is not None
    time_s, rows = _rows(run)
    gpus = np.array([[one.gpus] for one in run.serving.services])
    return time_s, (rows[:, :, 2] * gpus).sum(axis=0)


def _load(run: Run) -> tuple[Any, Any]:
    time_s, rows = _rows(run)
    return time_s, rows[:, :, 0].sum(axis=0)


def _rows(run: Run) -> tuple[Any, Any]:
    """Times, and by service and time: requests per second, share answered in time, replicas."""
    assert run.serving is not None
    several = [np.array(one.rows, dtype=np.float64) for one in run.serving.services if one.rows]
    length = min(len(rows) for rows in several)
    return several[0][:length, 0], np.stack([rows[:length, 1:4] for rows in several])
