"""The small charts of one job, side by side on the page: the critical path, the bounds, lateness."""

from __future__ import annotations

from typing import Any

from hemiola.analysis.job.metrics import JobMetrics
from hemiola.report.chart import Chart, Drawing
from hemiola.report.job.charts import bars_layout, pattern
from hemiola.report.job.words import duration, percent, seconds_scale

__all__ = ["bounds", "lateness", "path_kinds"]


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
