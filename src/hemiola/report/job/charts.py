"""The large charts of one job: where time goes, iterations, transfers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hemiola.analysis.job.breakdown import iteration_times
from hemiola.analysis.job.metrics import JobMetrics, RankFigures
from hemiola.analysis.job.tables import TransferFigure
from hemiola.core.units import format_duration
from hemiola.cost.prediction import Prediction
from hemiola.cost.whatif import WhatIf
from hemiola.report.document import Chart, Drawing, words_for
from hemiola.report.job.words import PART_WORDS, bytes_or_dash, duration, percent, rate, seconds_scale, signed

__all__ = [
    "bounds",
    "iterations",
    "lateness",
    "path_kinds",
    "side_by_side",
    "transfers",
    "what_if_chart",
    "where_time_goes",
]


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


# Two jobs as stacked bars, one above the other.


def side_by_side(metrics: JobMetrics, other: JobMetrics, names: tuple[str, str]) -> Chart:
    """The mean iteration of both, by part; names are (other, this)."""
    both = ((other, names[0]), (metrics, names[1]))
    scale, unit = seconds_scale(max(one.mean("iteration") for one, _ in both))
    data = [
        _compared_part(both, part, scale)
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


def _compared_part(both: tuple[tuple[JobMetrics, str], ...], part: str, scale: float) -> dict[str, Any]:
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


# The chart that only a prediction has: what would help.


def what_if_chart(answer: Prediction, changes: Sequence[WhatIf]) -> Chart:
    """The iteration under each change, what is exposed apart; as it was asked for on top."""
    rows = [("as asked", answer.iteration_s, answer.exposed_s, "")]
    rows += [(c.change, c.iteration_s, c.exposed_s, f" ({c.relative - 1:+.1%})") for c in changes]
    scale, unit = seconds_scale(max(seconds for _, seconds, _, _ in rows))
    names = [words_for(name, 26) for name, _, _, _ in rows]
    common = {"type": "bar", "orientation": "h", "y": names, "textangle": 0, "hoverinfo": "skip"}
    hidden = {
        **common, "x": [(seconds - exposed) / scale for _, seconds, exposed, _ in rows],
        "name": "computing and overhead", "marker": {"color": "--compute"},
    }  # fmt: skip
    exposed = {
        **common, "x": [exposed / scale for _, _, exposed, _ in rows], "name": "exposed communication",
        "marker": {"color": "--wire"}, "cliponaxis": False, "constraintext": "none",
        "text": [format_duration(seconds) + change for _, seconds, _, change in rows], "textposition": "outside",
        "outsidetextfont": {"color": "--ink"},
    }  # fmt: skip
    layout = bars_layout(f"{unit} per iteration")
    layout["xaxis"]["range"] = [0, 1.3 * max(seconds for _, seconds, _, _ in rows) / scale]
    return Chart(
        id="what-if",
        title="What if",
        about="The iteration predicted again with one change at a time, against what was asked for.",
        drawings={"": Drawing([hidden, exposed], layout)},
        height_px=140 + 30 * len(rows),
    )


# The small charts of one job, side by side on the page: the critical path, the bounds, lateness.


def bounds(metrics: JobMetrics) -> Chart | None:
    """M, P, U and gaps as bars, the two bounds of U as lines where E has a meaning; None where there is nothing to overlap."""
    found = metrics.efficiency
    if not min(found.communication_s, found.computation_s):
        return None
    best_s, worst_s = found.gaps_s + found.cost_min_s, found.gaps_s + found.cost_max_s
    scale, unit = seconds_scale(max(worst_s, found.makespan_s))
    rows = ["as it ran (U)", "computes (P)", "communicates (M)", "neither (G)"]
    values = [found.makespan_s, found.computation_s, found.communication_s, found.gaps_s]
    colors = ["--ink-bar", "--compute", "--communication", "--other"]
    lines = {} if found.reason else {"best": best_s, "no overlap": worst_s}
    bar = {
        "type": "bar", "orientation": "h", "y": rows, "x": [value / scale for value in values], "showlegend": False,
        "marker": {"color": colors}, "text": [duration(value) for value in values], "textposition": "auto",
        "insidetextanchor": "start", "textangle": 0, "hoverinfo": "skip", "constraintext": "none",
        "insidetextfont": {"color": "--on-wire"}, "cliponaxis": False,
    }  # fmt: skip
    return Chart(
        id="bounds",
        title="No scheduling efficiency" if found.reason else f"Scheduling efficiency E = {found.efficiency:.2f}",
        about=f"E has no meaning here: {found.reason}."
        if found.reason
        else f"How much of what can be hidden is: 1 all, 0 nothing. At best U = G + max(M, P) = {duration(best_s)}, "
        f"without overlap G + M + P = {duration(worst_s)}: gaps aside, hiding can gain S = {percent(found.speedup)} at most.",
        drawings={
            "": Drawing(
                [bar],
                {
                    "shapes": [_line(at / scale) for at in lines.values()],
                    "annotations": [_note(words, at / scale) for words, at in lines.items()],
                    "xaxis": {
                        "title": {"text": f"{unit} per iteration"},
                        "range": [0, 1.12 * max(worst_s, found.makespan_s) / scale],
                    },
                    "yaxis": {"showgrid": False, "autorange": "reversed", "tickfont": {"color": "--ink", "size": 12.5}},
                    "margin": {"l": 8, "r": 14, "t": 30, "b": 36},
                },
            )
        },
        height_px=270,
        small=True,
    )  # fmt: skip


def _line(at: float) -> dict[str, Any]:
    line = {"color": "--ink", "width": 1.5, "dash": "dash"}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _note(text: str, at: float) -> dict[str, Any]:
    font = {"color": "--soft", "size": 11.5}
    return {
        "text": text,
        "x": at,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
        "font": font,
    }


def lateness(metrics: JobMetrics) -> Chart | None:
    """For whom the others wait; None where nobody is ever known to be last."""
    ranks = [rank for rank in metrics.stragglers if rank.last][:10]
    if not ranks:
        return None
    scale, unit = seconds_scale(max(rank.waited_s for rank in ranks))
    worst = "" if metrics.waiting_share != metrics.waiting_share else percent(metrics.waiting_share, 1)
    bar = {
        "type": "bar", "orientation": "h", "y": [f"rank {rank.rank}" for rank in ranks],
        "x": [rank.waited_s / scale for rank in ranks], "showlegend": False,
        "marker": {"color": "--others", "pattern": pattern("others")}, "cliponaxis": False,
        "text": [f"last at {percent(rank.last_share)}" for rank in ranks], "textposition": "auto", "insidetextanchor": "start",
        "insidetextfont": {"color": "--on-others"}, "textangle": 0, "constraintext": "none",
        "customdata": [[duration(rank.waited_s), duration(rank.margin_s), rank.last, rank.collectives] for rank in ranks],
        "hovertemplate": "%{y}: last at %{customdata[2]} of %{customdata[3]} collectives, by %{customdata[1]}<br>"
        "others wait %{customdata[0]} per iteration<extra></extra>",
    }  # fmt: skip
    return Chart(
        id="lateness",
        title="For whom the others wait",
        about=f"Held-up time of all other ranks per iteration, by the rank that came last. The longest that one rank waits "
        f"for late ones is {worst} of an iteration.",
        drawings={"": Drawing([bar], bars_layout(f"{unit} per iteration, all ranks"))},
        height_px=120 + 30 * len(ranks),
        small=True,
    )


_KIND_COLOR = {
    "compute": "--compute", "communication": "--communication", "wait": "--wire", "input": "--input", "copy": "--copy",
    "other": "--other", "idle": "--idle",
}  # fmt: skip


def path_kinds(metrics: JobMetrics) -> Chart | None:
    """What the critical path consists of, by kind; None for an empty path."""
    kinds = metrics.path.by_kind()
    whole = sum(kinds.values())
    if not whole:
        return None
    bar = {
        "type": "bar", "orientation": "h", "y": ["gaps" if kind == "idle" else kind for kind in kinds], "showlegend": False,
        "x": [100 * seconds / whole for seconds in kinds.values()],
        "marker": {"color": [_KIND_COLOR[kind] for kind in kinds]}, "cliponaxis": False, "textangle": 0,
        "text": [percent(s / whole, 1) for s in kinds.values()], "textposition": "outside",
        "hoverinfo": "skip", "outsidetextfont": {"color": "--ink"},
    }  # fmt: skip
    layout = bars_layout("% of the path")
    layout["xaxis"]["range"] = [0, 130 * max(kinds.values()) / whole]
    return Chart(
        id="path",
        title="The critical path",
        about=f"What, end to end over all ranks, made iteration {metrics.path.number} last {duration(metrics.path.length_s)}. "
        "Speeding up anything else changes nothing.",
        drawings={"": Drawing([bar], layout)},
        height_px=110 + 28 * len(kinds),
        small=True,
    )
