"""A plan's page: the predicted iteration as DistributedDataParallel has it and by the plan, on one axis of time.

One drawing and two tables, without scripts. Drawn is the slowest rank in the steady state, in which every iteration
is like the one before: what a plan hands over to the next iteration is on its way at this one's beginning,
and therefore at its end too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, log10
from pathlib import Path

from hemiola.core.job_timeline import SPAN_KINDS, JobTimeline
from hemiola.cost.prediction import Prediction
from hemiola.plan.advice import Advice
from hemiola.report.document import asset, document, write_page
from hemiola.report.job.words import duration, percent, seconds_scale

__all__ = ["render_plan", "write_plan_page"]

WIDTH, GUTTER, RIGHT = 1120, 96, 14
LANE, ROW, GAP, HEAD = 30, 10, 6, 34
ROWS = 6
"""Most transfers that are drawn side by side; further ones share the last row."""
_TEXT = 'font-size="13"'
_COLORS = {"compute": "--compute", "communication": "--communication", "wait": "--wire", "other": "--other", "copy": "--copy"}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A stretch of a lane: what it is called, of which kind, from when to when."""

    name: str
    kind: str
    start_s: float
    end_s: float


def write_plan_page(advice: Advice, path: Path) -> None:
    """Write the page.

    Raises:
        InputError: the path cannot be written.
    """
    write_page(render_plan(advice), path)


def render_plan(advice: Advice) -> str:
    """The page as text."""
    title = f"{advice.after.name}: {advice.plan.name}"
    styles = asset("report", "report.css") + asset("report.job", "job.css")
    return document(title, styles, [_head(advice), _drawing(advice), _steps(advice), _changes(advice)])


def _head(advice: Advice) -> str:
    before, after = advice.before, advice.after
    ranks = f"{after.ranks:,} rank{'s' * (after.ranks != 1)}"
    facts = ["predicted, not measured", f"{ranks} on {after.topology}", after.hardware]
    above = after.iteration_s / advice.bound_s - 1 if advice.bound_s > 0 else 0.0
    figures = [
        (f"{1 + advice.gain:.2f}", "times as fast"),
        (duration(before.exposed_s), f"waiting for communication as DDP: {percent(before.exposed_s / before.iteration_s)}"),
        (duration(after.exposed_s), f"waiting for communication by the plan: {percent(after.exposed_s / after.iteration_s)}"),
        (percent(above, 1), f"above {duration(advice.bound_s)}: no order of the same work takes less"),
    ]  # fmt: skip
    cells = "".join(
        f'<div class="figure"><b>{escape(value)}</b><span>{escape(words).replace(" %", "&nbsp;%")}</span></div>'
        for value, words in figures
    )
    finding = f"{duration(after.iteration_s)} per iteration instead of {duration(before.iteration_s)}"
    return (
        f'<header><p class="brand">Hemiola</p><h1>{escape(after.name)}: the plan</h1><p class="facts">{escape(" · ".join(facts))}</p>'
        f'<p class="finding">{escape(finding)}</p><div class="figures">{cells}</div></header>'
    )


def _drawing(advice: Advice) -> str:
    keys = "".join(
        f'<span><i style="background-color:var({color})"></i>{words}</span>'
        for words, color in (
            ("computing", "--compute"), ("waiting for communication", "--wire"), ("transfers", "--communication"),
            ("other work", "--other"),
        )
    )  # fmt: skip
    return (
        '<section class="card"><h2>One iteration, before and after</h2><p class="about">The slowest rank, in the steady state: what is '
        "still on its way at the end goes on at the beginning of the next iteration. Transfers that overlap lie one below "
        f'the other, in {ROWS} rows at most.</p><div class="tools"><div class="keys">'
        f"{keys}</div></div>{_svg(advice)}</section>"
    )


def _svg(advice: Advice) -> str:
    longest_s = max(advice.before.iteration_s, advice.after.iteration_s)
    scale = (WIDTH - GUTTER - RIGHT) / longest_s
    parts: list[str] = []
    y = 0.0
    for label, prediction in (
        ("as DistributedDataParallel", advice.before),
        ("by the plan", advice.after),
    ):
        drawn, high = _panel(label, prediction, y, scale)
        parts += drawn
        y += high
    parts += _bound(advice.bound_s, scale, y)
    parts += _axis(longest_s, scale, y)
    return (
        f'<div class="scroll"><svg viewBox="0 0 {WIDTH} {y + 26:.0f}" width="100%" style="min-width:680px;display:block" role="img" '
        f'shape-rendering="crispEdges" aria-label="The predicted iteration before and after" font-family="inherit">{"".join(parts)}</svg></div>'
    )


def _panel(label: str, prediction: Prediction, y: float, scale: float) -> tuple[list[str], float]:
    """One iteration: its heading, what the rank does, what the network does; and how high that is."""
    work, sent = _lanes(prediction.timeline(), prediction.iteration_s)
    rows = _rows(sent)
    row_high = max(ROW, 22 / max(len(rows), 1))
    high = HEAD + LANE + GAP + row_high * max(len(rows), 1) + 2 * GAP
    end = GUTTER + prediction.iteration_s * scale
    transfers_y = y + HEAD + LANE + GAP
    parts = [
        f'<text x="0" y="{y + 20}" font-size="14" fill="var(--ink)"><tspan font-weight="650">{escape(label)}</tspan>'
        f'<tspan dx="10" fill="var(--soft)">{escape(duration(prediction.iteration_s))}</tspan></text>',
        f'<text x="0" y="{y + HEAD + 20}" {_TEXT} fill="var(--soft)">the rank</text>',
        f'<text x="0" y="{transfers_y + 15}" {_TEXT} fill="var(--soft)">the network</text>',
        *(_box(block, scale, y + HEAD, LANE) for block in _thick(work, scale)),
    ]
    for number, row in enumerate(rows):
        parts += [_box(block, scale, transfers_y + number * row_high, row_high - 1.5) for block in row]
    parts.append(
        f'<line x1="{end:.2f}" x2="{end:.2f}" y1="{y + HEAD - 6}" y2="{y + high - GAP}" stroke="var(--ink)" stroke-width="1.5"/>'
    )
    return parts, high


def _lanes(timeline: JobTimeline, iteration_s: float) -> tuple[list[Block], list[Block]]:
    """(what the slowest rank does, what is sent) within [0, iteration), what began before 0 continued at its end."""
    spans, every = timeline.spans, timeline.iterations
    slowest = int(every.rank[(every.end_s - every.start_s).argmax()])
    work: list[Block] = []
    sent: list[Block] = []
    columns = (spans.rank, spans.lane, spans.name, spans.kind, spans.start_s, spans.end_s)
    for rank, lane, name, kind, start_s, end_s in zip(*(column.tolist() for column in columns), strict=True):
        if rank == slowest:
            into = sent if timeline.lanes[lane] == "communication" else work
            into += _wrapped(Block(timeline.names[name], SPAN_KINDS[kind], start_s, end_s), iteration_s)
    return sorted(work, key=lambda block: block.start_s), sorted(sent, key=lambda block: block.start_s)


def _wrapped(block: Block, iteration_s: float) -> Iterator[Block]:
    for shift_s in (0.0, iteration_s):
        start_s, end_s = max(block.start_s + shift_s, 0.0), min(block.end_s + shift_s, iteration_s)
        if end_s > start_s and block.start_s < (iteration_s if not shift_s else 0.0):
            yield Block(block.name, block.kind, start_s, end_s)


def _rows(blocks: Sequence[Block]) -> list[list[Block]]:
    """Each block in the first row in which nothing is in its way."""
    rows: list[list[Block]] = []
    for block in blocks:
        free = next((row for row in rows if row[-1].end_s <= block.start_s + 1e-12), None)
        if free is None and len(rows) < ROWS:
            rows.append(free := [])
        (rows[-1] if free is None else free).append(block)
    return rows


def _thick(blocks: Sequence[Block], scale: float) -> Iterator[Block]:
    """What is too narrow to be seen, together with its neighbours of the same kind."""
    group: list[Block] = []
    for block in blocks:
        if group and (
            block.kind != group[-1].kind
            or (block.end_s - group[0].start_s) * scale > 3.0
            or (block.start_s - group[-1].end_s) * scale > 0.2
        ):
            yield _joined(group)
            group = []
        group.append(block)
    if group:
        yield _joined(group)


def _joined(group: list[Block]) -> Block:
    name = group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}"
    return Block(name, group[0].kind, group[0].start_s, group[-1].end_s)


def _box(block: Block, scale: float, y: float, high: float) -> str:
    left, right = (round(GUTTER + edge_s * scale, 2) for edge_s in (block.start_s, block.end_s))
    wide = right - left
    said = f"{block.name}: {duration(block.start_s)} to {duration(block.end_s)}"
    inset = 1.0 if wide > 3 and block.kind == "communication" else 0.0
    return (
        f'<rect x="{left:.2f}" y="{y:.1f}" width="{max(wide - inset, 0.3):.2f}" height="{high}" '
        f'fill="var({_COLORS.get(block.kind, "--other")})"><title>{escape(said)}</title></rect>'
    )


def _bound(bound_s: float, scale: float, y: float) -> Iterator[str]:
    x = GUTTER + bound_s * scale
    yield (
        f'<line x1="{x:.2f}" x2="{x:.2f}" y1="6" y2="{y}" stroke="var(--bad)" stroke-width="1.5" stroke-dasharray="5 4"/>'
        f'<text x="{x - 6:.2f}" y="16" {_TEXT} text-anchor="end" fill="var(--bad)">no order takes less: {escape(duration(bound_s))}</text>'
    )


def _axis(longest_s: float, scale: float, y: float) -> Iterator[str]:
    unit_s, unit = seconds_scale(longest_s)
    step = _nice(longest_s / unit_s / 8)
    yield f'<line x1="{GUTTER}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="var(--line)"/>'
    for number in range(int(longest_s / unit_s / step) + 1):
        x = GUTTER + number * step * unit_s * scale
        yield (
            f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{y}" y2="{y + 5}" stroke="var(--soft)"/>'
            f'<text x="{x:.2f}" y="{y + 20}" font-size="12" text-anchor="middle" fill="var(--soft)">{number * step:g}</text>'
        )
    yield f'<text x="{GUTTER - 12}" y="{y + 20}" font-size="12" text-anchor="end" fill="var(--soft)">{unit}</text>'


def _nice(step: float) -> float:
    """The next of 1, 2, 5, 10, ..."""
    power = 10.0 ** (ceil(log10(step)) - 1)
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step)


def _steps(advice: Advice) -> str:
    before_s, longest_s = advice.before.iteration_s, max(seconds for _, seconds in advice.steps)
    rows = "".join(
        f"<tr><th>{escape(what)}</th><td>{escape(duration(seconds))}</td><td>{_against(seconds, before_s)}</td>"
        f'<td class="bar"><i style="width:{100 * seconds / longest_s:.1f}%;background:var(--communication)"></i></td></tr>'
        for what, seconds in advice.steps
    )
    bound = (
        f"<tr><th>no order takes less</th><td>{escape(duration(advice.bound_s))}</td><td>{_against(advice.bound_s, before_s)}</td>"
        f'<td class="bar"><i style="width:{100 * advice.bound_s / longest_s:.1f}%;background:var(--bad)"></i></td></tr>'
    )
    return (
        '<section class="card"><h2>Step by step</h2><p class="about">The first row is DistributedDataParallel, the second what all plans '
        "begin with. Each further change was kept because the predicted iteration became at least 0.1 % shorter, or no more than 0.3 % longer "
        "with fewer transfers. The bound is the larger of what a rank computes and what the busiest link carries.</p>"
        '<div class="scroll"><table><thead><tr><th>step</th><th>iteration</th><th>against DDP</th><th></th></tr></thead>'
        f"<tbody>{rows}{bound}</tbody></table></div></section>"
    )


def _against(seconds: float, before_s: float) -> str:
    return "" if seconds == before_s else f"{100 * (seconds / before_s - 1):+.1f} %"


def _changes(advice: Advice) -> str:
    changes = "".join(f"<li>{escape(change)}</li>" for change in advice.plan.changes)
    notes = "".join(f"<li>{escape(note)}</li>" for note in advice.after.notes)
    assumed = f"<details><summary>What was assumed</summary><ul>{notes}</ul></details>" if notes else ""
    count = len(advice.plan.transfers)
    return (
        f'<section class="card"><h2>What the plan changes</h2><p class="about">{count:,} transfer{"s" * (count != 1)}, '
        f"of which one is paused for a more urgent one after every {advice.plan.chunk_bytes / 1024:,.0f} KiB at the latest.</p>"
        f"<ul>{changes}</ul>{assumed}</section>"
    )
