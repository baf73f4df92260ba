"""Two jobs as stacked bars, one above the other."""

from __future__ import annotations

from typing import Any

from hemiola.analysis.job.metrics import JobMetrics
from hemiola.report.chart import Chart, Drawing, words_for
from hemiola.report.job.charts import LEAST, SHOWN, pattern
from hemiola.report.job.words import PART_WORDS, duration, percent, seconds_scale

__all__ = ["side_by_side"]


def side_by_side(metrics: JobMetrics, other: JobMetrics, names: tuple[str, str]) -> Chart:
    """The mean iteration of both, by part; names are (other, this)."""
    both = ((other, names[0]), (metrics, names[1]))
    scale, unit = seconds_scale(max(one.mean("iteration") for one, _ in both))
    data = [
        _part(both, part, scale)
        for part in SHOWN
        if any(_mean(one, part) > LEAST * one.mean("iteration") for one, _ in both)
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.3,
        "xaxis": {"title": {"text": f"{unit} per iteration, mean over ranks"}, "rangemode": "tozero"},
        "yaxis": {
            "range": [1.5, -0.5],
            "tickvals": [0, 1],
            "ticktext": [words_for(name, 28) for _, name in both],
            "showgrid": False,
            "tickfont": {"color": "--ink", "size": 12.5},
        },
        "legend": {"traceorder": "normal"},
    }
    return Chart(
        id="compared",
        title=f"{names[1]} against {names[0]}",
        about="Where an iteration's time goes in both.",
        drawings={"": Drawing(data, layout)},
        height_px=220,
    )


def _mean(metrics: JobMetrics, part: str) -> float:
    return metrics.mean("exposed") - metrics.mean("wire") if part == "others" else metrics.mean(part)


def _part(both: tuple[tuple[JobMetrics, str], ...], part: str, scale: float) -> dict[str, Any]:
    values = [_mean(one, part) for one, _ in both]
    shares = [value / one.mean("iteration") for value, (one, _) in zip(values, both, strict=True)]
    return {
        "type": "bar", "orientation": "h", "name": PART_WORDS[part], "y": [0, 1], "x": [value / scale for value in values],
        "marker": {"color": f"--{part}", "line": {"color": "--paper", "width": 1}, "pattern": pattern(part)},
        "text": [duration(v) if share >= 0.07 else "" for v, share in zip(values, shares, strict=True)],
        "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
        "insidetextfont": {"color": f"--on-{part}", "size": 12},
        "customdata": [[duration(value), percent(share, 1)] for value, share in zip(values, shares, strict=True)],
        "hovertemplate": "%{customdata[0]}, %{customdata[1]}<extra>%{fullData.name}</extra>",
    }  # fmt: skip
