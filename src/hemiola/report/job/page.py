"""What a job did as one web page that needs no network. Knows the order of the page, not its charts.

Everything is inside the file: Plotly's JavaScript once, style sheets, scripts, the charts as JSON and
the timelines packed. It reads in light and dark, on a screen, on a phone and printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import msgspec

from hemiola.analysis.job.compare import compare
from hemiola.analysis.job.metrics import JobMetrics, job_metrics
from hemiola.core.job_timeline import JobTimeline
from hemiola.report.chart import Chart
from hemiola.report.document import asset, document, write_page
from hemiola.report.job.cards import about, differences, head, late_ranks, path_table, transfer_table
from hemiola.report.job.charts import iterations, transfers, where_time_goes
from hemiola.report.job.charts_compare import side_by_side
from hemiola.report.job.charts_small import bounds, lateness, path_kinds
from hemiola.report.job.lanes import SEGMENTS, Drawn, drawn, path_iteration_s
from hemiola.report.job.words import compared, labels

__all__ = ["charts", "render", "write_job_report"]


def write_job_report(
    timeline: JobTimeline | JobMetrics,
    path: Path,
    *,
    other: JobTimeline | JobMetrics | None = None,
    title: str = "",
    more: Sequence[Chart] = (),
) -> None:
    """Write the page.

    Args:
        timeline: what to show, or its figures if they are known already.
        path: of the page.
        other: a timeline to compare it with: before a change, or measured where `timeline` is predicted.
        title: of the page; the timeline's name unless given.
        more: charts that stand below where the time goes.

    Raises:
        InputError: if nothing was recorded, or the path cannot be written.
    """
    metrics, against = _figures(timeline), _figures(other) if other is not None else None
    write_page(render(metrics, against, title=title, more=more), path)


def _figures(given: JobTimeline | JobMetrics) -> JobMetrics:
    return given if isinstance(given, JobMetrics) else job_metrics(given)


def render(
    metrics: JobMetrics, other: JobMetrics | None = None, *, title: str = "", more: Sequence[Chart] = ()
) -> str:
    """The page as text (about 5 MB, most of it Plotly; with 100,000 spans and more up to 8 MB)."""
    from plotly.offline import get_plotlyjs

    names = labels(metrics, other) if other else ("", metrics.timeline.name)
    drawings = [*charts(metrics, other, names), *more]
    most = SEGMENTS // 2 if other else SEGMENTS
    shown = [one for one in (metrics, other) if one]
    lanes = [drawn(one, max(path_iteration_s(each) for each in shown), most) for one in shown]
    heading = title or metrics.timeline.name or "What the job did"
    scripts = [
        f'<script type="application/json" id="charts">{_charts_json(drawings)}</script>',
        *(
            f'<script type="application/json" id="timeline-{i}">{_json(one.data)}</script>'
            for i, one in enumerate(lanes)
        ),
        f"<script>{asset('report.job', 'viewer.js')}</script>",
        f"<script>{get_plotlyjs()}</script>",
        f"<script>{asset('report', 'report.js')}</script>",
    ]
    styles = asset("report", "report.css") + asset("report.job", "job.css")
    body = _body(metrics, other, names, heading, drawings, lanes, [chart.id for chart in more])
    return document(heading, styles, body, scripts)


def charts(metrics: JobMetrics, other: JobMetrics | None, names: tuple[str, str]) -> list[Chart]:
    """All charts that have something to show, in the order of the page."""
    found: list[Chart | None] = [
        where_time_goes(metrics),
        side_by_side(metrics, other, names) if other else None,
        path_kinds(metrics),
        bounds(metrics),
        lateness(metrics),
        transfers(metrics),
        iterations(metrics, other, names),
    ]
    return [chart for chart in found if chart is not None]


def _body(
    metrics: JobMetrics, other: JobMetrics | None, names: tuple[str, str], title: str, drawings: list[Chart], lanes: list[Drawn],
    first: list[str],
) -> Iterator[str]:  # fmt: skip
    large = {chart.id: _card(chart) for chart in drawings if not chart.small}
    verdict = compared(compare(other, metrics), names) if other else ""
    yield head(metrics, title, verdict)
    yield large.pop("parts")
    yield from map(large.pop, first)
    if other:
        yield large.pop("compared")
        yield differences(metrics, other, names)
    yield from (_viewer(i, one, names[1 - i] if other else "") for i, one in enumerate(lanes))
    yield '<section class="grid">' + "".join(_card(chart) for chart in drawings if chart.small) + "</section>"
    yield path_table(metrics)
    yield from large.values()
    yield transfer_table(metrics)
    yield late_ranks(metrics)
    yield about(metrics, names[1] if other else "")
    if other:
        yield about(other, names[0])


_KEYS = (
    ("compute", "--compute", ""), ("communication", "--communication", ""), ("waiting", "--wire", "held"),
    ("input", "--input", ""), ("copy", "--copy", ""), ("other", "--other", ""),
)  # fmt: skip
_ACTS = (
    ("in", "+", "zoom in"), ("out", "−", "zoom out"), ("left", "←", "to the left"), ("right", "→", "to the right"),
    ("home", "one iteration", "the iteration of the critical path"), ("all", "all", "all that is drawn"),
)  # fmt: skip


def _viewer(number: int, one: Drawn, name: str) -> str:
    buttons = "".join(
        f'<button type="button" data-act="{act}" aria-label="{said}" title="{said}">{sign}</button>' for act, sign, said in _ACTS
    )  # fmt: skip
    keys = "".join(
        f'<span><i class="{look}" style="background-color:var({color})"></i>{words}</span>' for words, color, look in _KEYS
    )  # fmt: skip
    label = f"The timeline{f': {name}' if name else ''}"
    return (
        f'<section class="card"><h2>{escape(label)}</h2><p class="about">Drag to zoom, Shift and drag to move, Ctrl and wheel, '
        "or the keys + − ← →; double-click returns. Times count from where the iteration of the critical path began. "
        f'The line through the lanes is that path: each piece waited for the one before it.{escape(one.about)}</p><div class="tools">{buttons}<div class="keys">{keys}</div></div>'
        f'<div class="viewer" tabindex="0" role="img" aria-label="{escape(label)}" data-source="timeline-{number}"><canvas></canvas>'
        '<div class="tip"></div></div></section>'
    )


def _card(chart: Chart) -> str:
    return (
        f'<section class="card" data-chart="{escape(chart.id)}"><h2>{escape(chart.title)}</h2>'
        f'<p class="about">{escape(chart.about)}</p>'
        f'<div class="chart" role="img" aria-label="{escape(chart.title)}" style="height:{chart.height_px}px">'
        "</div></section>"
    )


def _charts_json(drawings: list[Chart]) -> str:
    value = {
        chart.id: [
            {"label": label, "data": one.data, "layout": one.layout} for label, one in chart.drawings.items()
        ]
        for chart in drawings
    }
    return _json(value)


def _json(value: object) -> str:
    """JSON with nothing in it that could end the script element."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")
