"""What a job did as one web page that needs no network. Knows the order of the page, not its charts.

Everything is inside the file: Plotly's JavaScript once, style sheets, scripts, the charts as JSON and
the timelines packed. It reads in light and dark, on a screen, on a phone and printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from hemiola.analysis.job.metrics import JobMetrics, TimelineDifference, changed, compare, job_metrics
from hemiola.core.job_timeline import JobTimeline
from hemiola.core.units import format_duration
from hemiola.report.document import Chart, asset, document, write_page
from hemiola.report.job.charts import (
    bounds,
    iterations,
    lateness,
    path_kinds,
    side_by_side,
    transfers,
    where_time_goes,
)
from hemiola.report.job.lanes import SEGMENTS, Drawn, drawn, path_iteration_s
from hemiola.report.job.words import (
    PART_ABOUT,
    PART_WORDS,
    bytes_or_dash,
    compared,
    duration,
    evidence_words,
    finding,
    labels,
    percent,
    predicted_words,
    ranks_words,
    rate,
    reasons,
    signed,
    steady_words,
    within,
)

__all__ = ["about", "charts", "render", "write_job_report"]


# The cards of the page that are words and tables: the head, late ranks, transfers, differences, where it
# came from.

LINES = 200
"""Most lines of a table."""
SHOWN = 12
"""Of these so many are not folded."""


def head(metrics: JobMetrics, title: str, verdict: str) -> str:
    """Title, the job in a line, the finding and what is behind it, and the main figures."""
    facts = [
        "predicted, not measured" if metrics.timeline.predicted else "measured",
        ranks_words(metrics),
        steady_words(metrics),
        *predicted_words(metrics),
    ]
    listed = "".join(f"<li>{escape(text)}</li>" for text in reasons(metrics))
    other = f'<p class="warning">{escape(verdict)}</p>' if verdict else ""
    return (
        f'<header><p class="brand">Hemiola</p><h1>{escape(title)}</h1><p class="facts">{escape(" · ".join(facts))}</p>'
        f'<p class="finding">{escape(finding(metrics))}</p><ul class="reasons">{listed}</ul>{other}{_card_figures(metrics)}</header>'
    )


def _card_figures(metrics: JobMetrics) -> str:
    bounds, spread = metrics.efficiency, metrics.iteration_s
    worst = f"rank {metrics.worst_rank}: {percent(metrics.exposed_share_worst, 1)}"
    shown = [
        (percent(metrics.exposed_share, 1), f"exposed communication; most on {worst}"),
        (duration(spread.median), f"iteration, median; middle half {duration(spread.p25)} to {duration(spread.p75)}"),
        ("–" if bounds.reason else f"{bounds.efficiency:.2f}", f"scheduling efficiency E ({'no meaning here' if bounds.reason else '1 is best'})"),
        (percent(bounds.speedup), "S: most that overlapping could gain over none"),
        (duration(metrics.saving_s), "of an iteration that hiding communication behind computing could save at most"),
        (percent(metrics.waiting_share, 1), "of an iteration the rank that waits longest waits for late ones"),
    ]  # fmt: skip
    cells = "".join(
        f'<div class="figure"><b>{escape(value)}</b><span>{escape(words)}</span></div>'
        for value, words in shown
    )
    return f'<div class="figures">{cells}</div>'


def late_ranks(metrics: JobMetrics) -> str:
    """Each rank's lateness; nothing where no collective could be matched."""
    if not metrics.stragglers:
        return ""
    rows = [
        (
            f"rank {one.rank}", f"{one.last:,} of {one.collectives:,}", percent(one.last_share), duration(one.margin_s),
            duration(one.lateness_s), duration(one.lateness_p95_s), duration(one.waited_s), within(one.clock_error_s),
        )
        for one in metrics.stragglers
    ]  # fmt: skip
    heads = (
        "", "comes last at", "straggler index", "by (median)", "after the first, median", "95 %", "others wait per iteration",
        "its clock",
    )  # fmt: skip
    return card(
        "Who is late",
        "When each rank hands over its part of a collective and its GPU, if it has one, has come to it. Last counts only beyond the "
        "clocks' errors; the straggler index is the share of collectives at which the rank is last.",
        table(heads, rows),
    )


def transfer_table(metrics: JobMetrics) -> str:
    """Every transfer's figures, folded."""
    if not metrics.transfers:
        return ""
    rows = [
        (
            one.name, one.collective, f"{one.count:,}", bytes_or_dash(one.size_bytes), duration(one.queued_s), duration(one.wire_s),
            rate(one.bandwidth_bytes_per_s), signed(one.slack_s), duration(one.exposed_s),
        )
        for one in metrics.transfers
    ]  # fmt: skip
    heads = (
        "transfer", "kind", "seen", "size", "queued", "on the wire", "size / time", "slack when needed", "holds up",
    )  # fmt: skip
    text = "Medians; “holds up” is a mean per rank and iteration. Slack below zero: the consumer had to wait."
    return card("Transfers in figures", text, table(heads, rows))


def path_table(metrics: JobMetrics) -> str:
    """What the critical path consists of: what to speed up."""
    most = max((one.share for one in metrics.path_items), default=1.0)
    rows = [
        (
            one.name or "gaps: nothing recorded", one.kind, duration(one.seconds), percent(one.share, 1),
            ShareBar(one.share / most, f"--{_COLOR.get(one.kind, one.kind)}"),
        )
        for one in metrics.path_items
    ]  # fmt: skip
    return card(
        "What to speed up",
        f"The critical path of iteration {metrics.path.number} by operation and transfer. No speed-up of one of them alone saves "
        "more than its time here; other paths may become critical before.",
        table(("", "kind", "on the path", "share", " "), rows),
    )


_COLOR = {"wait": "wire"}


def differences(metrics: JobMetrics, other: JobMetrics, names: tuple[str, str]) -> str:
    """Both jobs by part, by transfer and by operation; names are (other, this)."""
    found = compare(other, metrics)
    whole = found.parts[-1].before_s or 0.0
    parts = [(PART_WORDS.get(one.name, "whole iteration"), *_cells(one, whole)) for one in found.parts]
    heads = ("", *names, "change", "of the iteration")
    body = table(heads, parts)
    for title, lines in (
        ("On the wire, by transfer", found.transfers),
        ("Held up, by transfer", found.exposed),
        ("Operations", found.operations),
    ):
        if rows := [(one.name, *_cells(one, whole)) for one in changed(lines)]:
            body += f"<details><summary>{title}: {len(rows):,} differ</summary>{table(('', *heads[1:]), rows)}</details>"
    return card(
        "Differences", f"{compared(found, names)} Seconds per rank and iteration, means over ranks.", body
    )


def _cells(one: TimelineDifference, whole_s: float) -> tuple[Any, ...]:
    good = one.name in ("compute", "overlapped")
    mark = "" if abs(one.change_s) < 0.005 * whole_s or good else "good" if one.change_s < 0 else "bad"
    share = percent(one.change_s / whole_s, 1) if whole_s else "–"
    return _time(one.before_s), _time(one.after_s), Marked(signed(one.change_s), mark), Marked(share, mark)


def _time(value_s: float | None) -> str:
    return "–" if value_s is None else duration(value_s)


def about(metrics: JobMetrics, name: str = "") -> str:
    """Where the timeline came from, its clocks, what the figures rest on, what is missing."""
    timeline = metrics.timeline
    first, last = metrics.parts.start_s.min(), metrics.parts.end_s.max()
    rows = [
        ("source", timeline.source or "not stated"),
        ("exposed communication is", evidence_words(metrics)),
        ("figures are of", f"{steady_words(metrics)}: {_numbers(metrics.steady)}"),
        ("spans", f"{len(timeline.spans):,} in {format_duration(float(last - first))}"),
        *(_fact(str(key), value) for key, value in timeline.facts.items()),
    ]
    told = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in metrics.notes)
    listed = f"<ul>{notes}</ul>" if notes else ""
    parts = "".join(
        f"<dt>{escape(PART_WORDS[part])}</dt><dd>{escape(text)}</dd>" for part, text in PART_ABOUT.items()
    )
    body = f"<dl>{told}</dl>{listed}{_clocks(metrics)}<details><summary>What the parts mean</summary><dl>{parts}</dl></details>"
    return card(f"Where this came from{f': {name}' if name else ''}", "", body)


def _clocks(metrics: JobMetrics) -> str:
    ranks = metrics.timeline.ranks
    rows = [
        (f"rank {rank.rank}", rank.host or "–", rank.device or "–", signed(rank.clock_offset_s), within(rank.clock_error_s))
        for rank in ranks
    ]  # fmt: skip
    worst = max(rank.clock_error_s for rank in ranks)
    compare = "cannot be compared" if math.isinf(worst) else f"compare within {duration(2 * worst)}"
    title = f"Ranks and clocks: times of different ranks {compare}"
    heads = ("", "host", "device", "clock moved by", "known within")
    return f"<details><summary>{escape(title)}</summary>{table(heads, rows)}</details>"


def _numbers(numbers: tuple[int, ...]) -> str:
    consecutive = numbers == tuple(range(numbers[0], numbers[-1] + 1))
    if len(numbers) > 2 and consecutive:
        return f"{numbers[0]} to {numbers[-1]}"
    shown = ", ".join(map(str, numbers[:20]))
    return shown if len(numbers) <= 20 else f"{shown}, …"


def _fact(key: str, value: Any) -> tuple[str, str]:
    if key.endswith("_s") and isinstance(value, float):
        return key.removesuffix("_s"), duration(value)
    return key.replace("_", " "), _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {inner}" for key, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class ShareBar:
    """A cell that is a bar of a share of the column's width."""

    def __init__(self, share: float, color: str) -> None:
        self.html = f'<td class="bar"><i style="width:{100 * share:.1f}%;background:var({color})"></i></td>'


class Marked:
    """A cell that is good, bad or neither."""

    def __init__(self, text: str, mark: str) -> None:
        self.html = f'<td class="{mark}">{escape(text)}</td>'


def table(heads: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """A table whose later lines are folded; very long ones are cut, and say so."""
    rows = list(rows)
    head_cells = "".join(f"<th>{escape(name)}</th>" for name in heads)
    lines = [f"<tr><th>{escape(row[0])}</th>{''.join(map(_cell, row[1:]))}</tr>" for row in rows[:LINES]]
    found = _lines(head_cells, lines[:SHOWN])
    if len(lines) > SHOWN + 2:
        found += f"<details><summary>{len(rows) - SHOWN:,} more</summary>{_lines(head_cells, lines[SHOWN:])}"
        if len(rows) > LINES:
            found += f'<p class="about">{len(rows) - LINES:,} further lines are left out.</p>'
        return found + "</details>"
    return _lines(head_cells, lines)


def _lines(head_cells: str, lines: list[str]) -> str:
    return f'<div class="scroll"><table><thead><tr>{head_cells}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _cell(value: Any) -> str:
    return value.html if isinstance(value, ShareBar | Marked) else f"<td>{escape(value)}</td>"


def card(title: str, text: str, body: str) -> str:
    """A section of the page."""
    told = f'<p class="about">{escape(text)}</p>' if text else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{told}{body}</section>'


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
