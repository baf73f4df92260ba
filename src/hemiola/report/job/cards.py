"""The cards of the page that are words and tables: the head, late ranks, transfers, differences, where it came from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import Any

from hemiola.analysis.job.compare import TimelineDifference, changed, compare
from hemiola.analysis.job.metrics import JobMetrics
from hemiola.core.units import format_duration
from hemiola.report.job.words import (
    PART_ABOUT,
    PART_WORDS,
    bytes_or_dash,
    compared,
    duration,
    evidence_words,
    finding,
    percent,
    predicted_words,
    ranks_words,
    rate,
    reasons,
    signed,
    steady_words,
    within,
)

__all__ = ["about", "differences", "head", "late_ranks", "path_table", "transfer_table"]

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
        f'<p class="finding">{escape(finding(metrics))}</p><ul class="reasons">{listed}</ul>{other}{_figures(metrics)}</header>'
    )


def _figures(metrics: JobMetrics) -> str:
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
