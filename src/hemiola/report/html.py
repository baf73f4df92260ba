"""A comparison as one web page that needs no network. Knows the order of the page, not its charts.

Everything is inside the file: Plotly's JavaScript once, the style sheet, the script that draws,
and the charts as JSON. It reads in light and dark, on a screen and on a phone.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

import msgspec

from hemiola.core.errors import InputError
from hemiola.core.result import Comparison
from hemiola.report.chart import Chart
from hemiola.report.chart_gantt import gantt
from hemiola.report.charts_policies import bars, completion, differences, gpu_seconds, tiers
from hemiola.report.charts_time import heat_maps, over_time
from hemiola.report.document import asset, document, write_page
from hemiola.report.html_facts import cluster_facts, job_mix, notes, semantics
from hemiola.report.html_jobs import slowest_jobs
from hemiola.report.html_overview import header, overview
from hemiola.report.metrics import Figures

__all__ = ["card", "charts", "charts_json", "render", "write_report"]


def write_report(comparison: Comparison, path: Path) -> None:
    """Write the page.

    Raises:
        InputError: if there is no run, or the path cannot be written.
        InternalError: if a run's figures do not add up.
    """
    write_page(render(comparison), path)


def render(comparison: Comparison) -> str:
    """The page as text (about 5 MB, most of it Plotly)."""
    from plotly.offline import get_plotlyjs

    if not comparison.runs:
        raise InputError("there is no run to report on", "simulate at least one policy")
    figures = Figures(comparison)
    drawn = charts(figures)
    scripts = [
        f'<script type="application/json" id="charts">{charts_json(drawn)}</script>',
        f"<script>{get_plotlyjs()}</script>",
        f"<script>{asset('report', 'report.js')}</script>",
    ]
    title = comparison.workload_name or "comparison"
    return document(title, asset("report", "report.css"), _body(figures, drawn), scripts)


def charts(figures: Figures) -> list[Chart]:
    """All charts that have something to show, in the order of the page."""
    comparison = figures.comparison
    found: list[Chart | None] = [
        *bars(figures),
        differences(figures),
        completion(figures),
        *over_time(comparison),
        gpu_seconds(figures),
        tiers(figures),
        heat_maps(comparison),
        gantt(comparison),
    ]
    return [chart for chart in found if chart is not None]


def _body(figures: Figures, drawn: list[Chart]) -> Iterator[str]:
    comparison = figures.comparison
    yield header(figures)
    yield overview(figures)
    yield '<section class="grid">' + "".join(card(chart) for chart in drawn if chart.small) + "</section>"
    yield _seeds(figures)
    yield from (card(chart) for chart in drawn if not chart.small)
    yield slowest_jobs(comparison)
    yield semantics(comparison)
    yield job_mix(comparison)
    yield cluster_facts(comparison.topology)
    yield notes(comparison)


def _seeds(figures: Figures) -> str:
    if len({run.seed for run in figures.comparison.runs}) == 1:
        return ""
    named = f"seed{'s' * (len(figures.seeds) > 1)} {', '.join(map(str, figures.seeds))}"
    over = named if figures.seeds else "each policy's own seeds"
    return (
        f'<p class="aside">Figures are means over {over}. '
        "Charts over time, links and GPUs show the first of them.</p>"
    )


def card(chart: Chart) -> str:
    """A section that holds one chart, with a choice where there are several drawings."""
    options = "".join(f"<option>{escape(label)}</option>" for label in chart.drawings)
    chooser = (
        f'<label>policy <select aria-label="policy">{options}</select></label>'
        if len(chart.drawings) > 1
        else ""
    )
    return (
        f'<section class="card" data-chart="{escape(chart.id)}"><h2>{escape(chart.title)}</h2>'
        f'<p class="about">{escape(chart.about)}</p>{chooser}'
        f'<div class="chart" role="img" aria-label="{escape(chart.title)}" style="height:{chart.height_px}px">'
        "</div></section>"
    )


def charts_json(drawn: list[Chart]) -> str:
    """The charts, with nothing in them that could end the script element."""
    value = {
        chart.id: [
            {"label": label, "data": drawing.data, "layout": drawing.layout}
            for label, drawing in chart.drawings.items()
        ]
        for chart in drawn
    }
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")
