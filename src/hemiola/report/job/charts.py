"""The large charts of one job: where time goes, iterations, transfers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hemiola.analysis.job.metrics import JobMetrics, RankFigures
from hemiola.analysis.job.breakdown import iteration_times
from hemiola.analysis.job.tables import TransferFigure
from hemiola.report.chart import Chart, Drawing, words_for
from hemiola.report.job.words import PART_WORDS, bytes_or_dash, duration, percent, rate, seconds_scale, signed

__all__ = ["LEAST", "SHOWN", "bars_layout", "iterations", "pattern", "transfers", "where_time_goes"]

RANKS = 24
TRANSFERS = 40
LEAST = 5e-4
"""Parts below this share of every iteration are not drawn."""
SHOWN = ("compute", "overlapped", "wire", "others", "input", "other", "idle")
"""The parts as drawn: `exposed` in two, its own transfer on the wire and not."""


def seconds_of(rank: RankFigures, part: str) -> float:
    """Seconds per iteration of a part as drawn."""
    return rank.exposed_s - rank.wire_s if part == "others" else float(getattr(rank, f"{part}_s"))


def where_time_goes(metrics: JobMetrics) -> Chart:
    """A stacked bar for each rank; of many ranks those that wait most and least."""
    ranks = sorted(metrics.ranks, key=lambda rank: -rank.exposed_share)
    told = f" The {RANKS} of {len(ranks):,} ranks that wait most and least." if len(ranks) > RANKS else ""
    if len(ranks) > RANKS:
        ranks = ranks[: RANKS // 2] + ranks[-RANKS // 2 :]
    scale, unit = seconds_scale(max(rank.iteration_s for rank in ranks))
    rows = [f"rank {rank.rank}" for rank in ranks]
    data = [
        _part(ranks, rows, part, scale)
        for part in SHOWN
        if any(seconds_of(rank, part) > LEAST * rank.iteration_s for rank in ranks)
    ]
    return Chart(
        id="parts",
        title="Where the time goes",
        about="Mean steady iteration of each rank, the one that waits most first. Every instant is in exactly one part; "
        f"only what is orange costs time that a better network or schedule could save.{told}",
        drawings={"": Drawing(data, bars_layout(f"{unit} per iteration"))},
        height_px=118 + (34 if len(rows) <= 8 else 23) * len(rows),
    )


def _part(ranks: list[RankFigures], rows: list[str], part: str, scale: float) -> dict[str, Any]:
    values = [seconds_of(rank, part) for rank in ranks]
    shares = [value / rank.iteration_s for value, rank in zip(values, ranks, strict=True)]
    return {
        "type": "bar", "orientation": "h", "name": PART_WORDS[part], "y": rows, "x": [value / scale for value in values],
        "marker": {"color": f"--{part}", "line": {"color": "--paper", "width": 1}, "pattern": pattern(part)},
        "text": [percent(share) if share >= 0.045 else "" for share in shares], "textposition": "inside",
        "insidetextanchor": "middle", "textangle": 0, "insidetextfont": {"color": f"--on-{part}", "size": 12},
        "customdata": [[duration(value), percent(share, 1)] for value, share in zip(values, shares, strict=True)],
        "hovertemplate": "%{y}: %{customdata[0]}, %{customdata[1]}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def pattern(part: str) -> dict[str, Any]:
    """A second sign beside the colour for time that is held up."""
    if part not in ("wire", "others"):
        return {}
    return {
        "shape": "/",
        "fillmode": "overlay",
        "fgcolor": "--paper",
        "fgopacity": 0.35,
        "size": 7,
        "solidity": 0.22,
    }


def bars_layout(title: str) -> dict[str, Any]:
    """Horizontal stacked bars, the first on top; the title is of the axis."""
    return {
        "barmode": "stack",
        "bargap": 0.28,
        "xaxis": {"title": {"text": title}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "showgrid": False, "tickfont": {"color": "--ink", "size": 12.5}},
        "legend": {"traceorder": "normal"},
    }


def iterations(metrics: JobMetrics, other: JobMetrics | None, names: tuple[str, str]) -> Chart | None:
    """Time of each iteration and the part of it that waited; None for a single one."""
    both = [(metrics, names[1], "solid"), *([(other, names[0], "dot")] if other else [])]
    if max(len(one.steady) + len(one.warm_up) for one, _, _ in both) < 2:
        return None
    scale, unit = seconds_scale(max(one.iteration_s.high for one, _, _ in both))
    data = [
        line for one, name, dash in both for line in _lines(one, f"{name}: " if other else "", dash, scale)
    ]
    out = (
        f" Hollow points: warm-up, left out of all figures ({len(metrics.warm_up)})."
        if metrics.warm_up
        else ""
    )
    return Chart(
        id="iterations",
        title="Iteration by iteration",
        about=f"Mean over ranks. Median {duration(metrics.iteration_s.median)}, middle half "
        f"{duration(metrics.iteration_s.p25)} to {duration(metrics.iteration_s.p75)}.{out}",
        drawings={
            "": Drawing(
                data,
                {
                    "xaxis": {"title": {"text": "iteration"}, "tickformat": "d", **_whole_ticks(both)},
                    "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
                },
            )
        },
        height_px=320,
    )


def _whole_ticks(both: Sequence[tuple[JobMetrics, str, str]]) -> dict[str, Any]:
    """No tick between two iterations where there are few."""
    few = all(len(one.steady) + len(one.warm_up) <= 20 for one, _, _ in both)
    return {"dtick": 1} if few else {}


def _lines(metrics: JobMetrics, name: str, dash: str, scale: float) -> Iterator[dict[str, Any]]:
    numbers, time_s = iteration_times(metrics.parts)
    place = np.searchsorted(numbers, metrics.parts.number)
    exposed = np.bincount(place, weights=metrics.parts.exposed_s) / np.bincount(place)
    symbols = np.where(np.isin(numbers, metrics.steady), "circle", "circle-open").tolist()
    for values, words, color in (
        (time_s, "whole", "--ink"),
        (exposed, "waiting for communication", "--wire"),
    ):
        yield {
            "type": "scatter", "mode": "lines+markers", "name": f"{name}{words}", "x": numbers.tolist(),
            "y": (values / scale).tolist(), "line": {"color": color, "dash": dash, "width": 2},
            "marker": {"symbol": symbols, "size": 7, "color": color}, "customdata": [duration(v) for v in values.tolist()],
            "hovertemplate": "iteration %{x}: %{customdata}<extra>%{fullData.name}</extra>",
        }  # fmt: skip


def transfers(metrics: JobMetrics) -> Chart | None:
    """Each bucket's life inside the iteration; None without transfers."""
    if not metrics.transfers:
        return None
    shown = sorted(metrics.transfers[:TRANSFERS], key=lambda one: one.first_byte_s)
    more = (
        f" The {TRANSFERS} most exposed of {len(metrics.transfers):,}."
        if len(metrics.transfers) > TRANSFERS
        else ""
    )
    ends = [t for one in shown for t in (one.last_byte_s, one.needed_s) if t == t]
    scale, unit = seconds_scale(max(ends, default=1.0))
    rows = list(range(len(shown)))
    waited = [
        min(one.first_byte_s, one.enqueue_s) if one.enqueue_s == one.enqueue_s else one.first_byte_s
        for one in shown
    ]
    data = [
        _segment(shown, rows, waited, [o.first_byte_s for o in shown], "queued: handed over, no byte sent", "--queued", scale),
        _segment(shown, rows, [o.first_byte_s for o in shown], [o.last_byte_s for o in shown], "on the wire", "--communication", scale),
        {
            "type": "scatter", "mode": "markers", "name": "needed", "y": rows, "x": [_unit(o.needed_s, scale) for o in shown],
            "marker": {
                "symbol": "diamond", "size": 11, "line": {"color": "--paper", "width": 1.2},
                "color": ["--wire" if o.slack_s < 0 else "--ink" for o in shown],
            },
            "customdata": [_life(o) for o in shown], "hovertemplate": _LIFE,
        },
    ]  # fmt: skip
    return Chart(
        id="transfers",
        title="What each transfer does inside the iteration",
        about="Medians over ranks and steady iterations, since the iteration began. A diamond is when the result was first "
        f"needed: to the right of the bar it was there in time, inside or left of it (orange) somebody waited.{more}",
        drawings={
            "": Drawing(
                data,
                {
                    "barmode": "overlay", "bargap": 0.35,
                    "xaxis": {"title": {"text": f"{unit} since the iteration began"}, "rangemode": "tozero"},
                    "yaxis": {"range": [len(shown) - 0.4, -0.6], "tickvals": rows,
                        "ticktext": [words_for(one.name, 34) for one in shown], "showgrid": False, "tickfont": {"color": "--ink", "size": 12}},
                },
            )
        },
        height_px=130 + 26 * len(shown),
    )  # fmt: skip


_LIFE = (
    "<b>%{customdata[0]}</b> %{customdata[1]}, %{customdata[2]}<br>queued %{customdata[3]}, on the wire %{customdata[4]} "
    "at %{customdata[5]}<br>slack %{customdata[6]}, held up %{customdata[7]} per iteration<extra></extra>"
)


def _life(one: TransferFigure) -> list[str]:
    return [
        words_for(one.name, 60), words_for(one.collective, 40), bytes_or_dash(one.size_bytes), duration(one.queued_s),
        duration(one.wire_s), rate(one.bandwidth_bytes_per_s), signed(one.slack_s), duration(one.exposed_s),
    ]  # fmt: skip


def _segment(
    shown: list[TransferFigure],
    rows: list[int],
    start: list[float],
    end: list[float],
    name: str,
    color: str,
    scale: float,
) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "name": name, "y": rows, "base": [_unit(a, scale) for a in start],
        "x": [_unit(b - a, scale) for a, b in zip(start, end, strict=True)],
        "marker": {"color": color, "line": {"width": 0}}, "customdata": [_life(o) for o in shown], "hovertemplate": _LIFE,
    }  # fmt: skip


def _unit(seconds: float, scale: float) -> float | None:
    return seconds / scale if seconds == seconds else None
