"""A job in the terminal: the finding, where each rank's time goes, who is late, which buckets are exposed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hemiola.analysis.job.breakdown import PARTS
from hemiola.analysis.job.metrics import JobMetrics, changed, compare
from hemiola.core.plan import Acceleration
from hemiola.core.units import format_bytes, format_duration
from hemiola.cost.job_profile import Fit
from hemiola.cost.prediction import Prediction
from hemiola.cost.whatif import WhatIf
from hemiola.report.job.words import (
    bytes_or_dash,
    compared,
    duration,
    evidence_words,
    finding,
    labels,
    percent,
    ranks_words,
    rate,
    reasons,
    signed,
    steady_words,
    within,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


__all__ = ["job_table", "print_acceleration", "print_measured", "print_prediction"]


MOST = 12
"""Lines of a table; what is left out is told."""


def job_table(metrics: JobMetrics, other: JobMetrics | None = None) -> RankTable:
    """The job as something that Rich can print; with another, its differences to that one."""
    return RankTable(metrics, other)


class RankTable:
    """The tables, one below the other."""

    def __init__(self, metrics: JobMetrics, other: JobMetrics | None) -> None:
        self.metrics = metrics
        self.other = other

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """What to draw."""
        from rich.text import Text

        metrics = self.metrics
        kind = "predicted" if metrics.timeline.predicted else "measured"
        ranks = ranks_words(metrics)
        yield Text(metrics.timeline.name or "job", style="bold") + Text(
            f": {kind}, {ranks}, {steady_words(metrics)}", style="not bold"
        )
        yield Text(finding(metrics), style="bold")
        yield from (Text(f"- {line}") for line in reasons(metrics))
        yield from self._ranks()
        yield from self._bounds()
        yield from self._transfers(wide=options.max_width >= 100)
        yield from self._stragglers()
        yield from self._path()
        yield from self._compared()
        yield Text(f"Exposed communication is {evidence_words(metrics)}.", style="dim")
        yield from (Text(f"! {note}", style="yellow") for note in metrics.notes)

    def _ranks(self) -> Iterator[RenderableType]:
        ranks = sorted(self.metrics.ranks, key=lambda rank: -rank.exposed_share)
        rows = (
            (
                f"rank {rank.rank}",
                duration(rank.iteration_s),
                *(percent(getattr(rank, f"{part}_s") / rank.iteration_s, 1) for part in PARTS),
            )
            for rank in ranks
        )
        heads = ("iteration", *PARTS)
        yield from _table("Where the time goes", heads, rows, len(ranks))

    def _bounds(self) -> Iterator[RenderableType]:
        from rich.text import Text

        bounds = self.metrics.efficiency
        if not bounds.reason:
            yield Text(
                f"Scheduling efficiency E {bounds.efficiency:.2f}, largest speed-up S {percent(bounds.speedup)}: computes "
                f"{duration(bounds.computation_s)}, communicates {duration(bounds.communication_s)}, both take "
                f"{duration(bounds.busy_s)} (and gaps {duration(bounds.gaps_s)}); at best {duration(bounds.cost_min_s)}, without "
                f"overlap {duration(bounds.cost_max_s)}"
            )

    def _transfers(self, *, wide: bool) -> Iterator[RenderableType]:
        rows = (
            (
                one.name, bytes_or_dash(one.size_bytes), duration(one.queued_s), duration(one.wire_s),
                *([rate(one.bandwidth_bytes_per_s)] if wide else []), signed(one.slack_s), duration(one.exposed_s),
            )
            for one in self.metrics.transfers
        )  # fmt: skip
        heads = ("size", "queued", "on the wire", *(["rate"] if wide else []), "slack", "exposed")
        yield from _table("Transfers, most exposed first", heads, rows, len(self.metrics.transfers))

    def _stragglers(self) -> Iterator[RenderableType]:
        if not any(one.last for one in self.metrics.stragglers):
            return
        rows = (
            (
                f"rank {one.rank}", f"{one.last} of {one.collectives} ({percent(one.last_share)})", duration(one.margin_s),
                duration(one.lateness_s), duration(one.waited_s), within(one.clock_error_s),
            )
            for one in self.metrics.stragglers
        )  # fmt: skip
        heads = ("comes last", "by", "after the first", "others wait", "clock")
        yield from _table("Who is late", heads, rows, len(self.metrics.stragglers))

    def _path(self) -> Iterator[RenderableType]:
        rows = (
            (one.name or "(gaps)", one.kind, duration(one.seconds), percent(one.share, 1))
            for one in self.metrics.path_items
        )
        title = f"Critical path of iteration {self.metrics.path.number}"
        yield from _table(title, ("kind", "time", "share"), rows, len(self.metrics.path_items))

    def _compared(self) -> Iterator[RenderableType]:
        from rich.text import Text

        if self.other is None:
            return
        names, found = labels(self.metrics, self.other), compare(self.other, self.metrics)
        yield ""
        yield Text(compared(found, names), style="bold")
        for title, lines in (
            ("Parts", found.parts),
            ("Exposed by transfer", changed(found.exposed)),
            ("Operations", changed(found.operations)),
        ):
            rows = (
                (
                    one.name,
                    duration(_known(one.before_s)),
                    duration(_known(one.after_s)),
                    signed(one.change_s),
                )
                for one in lines
            )
            yield from _table(title, (*names, "change"), rows, len(lines))


def _known(value: float | None) -> float:
    return float("nan") if value is None else value


def _table(
    title: str, heads: tuple[str, ...], rows: Iterable[tuple[str, ...]], count: int
) -> Iterator[RenderableType]:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not count:
        return
    more = f" ({MOST} of {count:,})" if count > MOST else ""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
    table.title = Text(title + more, style="bold not italic")
    shown = [row for row, _ in zip(rows, range(MOST), strict=False)]
    table.add_column("", overflow="fold", style="bold", min_width=min(20, max(len(row[0]) for row in shown)))
    for head in heads:
        table.add_column(Text(head), justify="right", overflow="fold")
    for row in shown:
        table.add_row(*map(Text, row))
    yield table


# What is said at the end of a run: iteration times that were predicted and measured, and what was exposed
# of them.


def print_acceleration(console: Console, state: Acceleration) -> None:
    """What acceleration was predicted to bring and what it brought, and how far that is from what is possible."""
    planned = any(value is not None for value in (state.predicted_s, state.measured_s))
    table = Table("iteration", "as DDP", *(["by the plan"] * planned))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, *values in _rows(state):
        if any(values):
            table.add_row(name, *(value or "–" for value in values[: 1 + planned]))
    if table.row_count:
        console.print(table)
    if state.words:
        console.print(state.words, soft_wrap=True, markup=False, emoji=False)


def print_measured(console: Console, metrics: JobMetrics) -> None:
    """What a recording says of a run that nothing was predicted of."""
    table = Table("iteration", "measured", "exposed")
    for column in table.columns[1:]:
        column.justify = "right"
    whole_s = metrics.iteration_s.median
    table.add_row(
        f"median of {len(metrics.steady)}",
        duration(whole_s),
        _exposed(metrics.exposed_share * whole_s, whole_s),
    )
    console.print(table)


def _rows(state: Acceleration) -> Iterator[tuple[str, str, str]]:
    yield "predicted", _time(state.predicted_before_s), _time(state.predicted_s)
    yield "measured", _time(state.before_s), _time(state.measured_s)
    yield (
        "exposed", _exposed(state.exposed_before_s, state.before_s), _exposed(state.exposed_s, state.measured_s)
    )  # fmt: skip
    yield "least possible", "", _time(state.bound_s)


def _time(value_s: float | None) -> str:
    return "" if value_s is None else duration(value_s)


def _exposed(exposed_s: float | None, whole_s: float | None) -> str:
    if exposed_s is None or math.isnan(exposed_s):
        return ""
    return duration(exposed_s) + (f" ({percent(exposed_s / whole_s)})" if whole_s else "")


# A prediction as text for the terminal: headline, parts, demand, transfers, critical path, what-ifs.

ROWS = 12
"""So many transfers, and steps of the critical path, are shown: the longest."""


def print_prediction(
    console: Console, answer: Prediction, changes: Sequence[WhatIf] = (), fit: Fit | None = None
) -> None:
    """Everything an engineer asks of a prediction, in reading order.

    Args:
        console: without markup, which names may look like.
        changes: what-ifs to lay beside it.
        fit: of the job profile that was made of it.
    """
    console.print(_headline(answer), soft_wrap=True)
    console.print(_parts(answer))
    console.print(_demand(answer), soft_wrap=True)
    if answer.transfers:
        console.print(_transfers(answer))
    console.print(_path(answer))
    if changes:
        console.print(_what_ifs(answer, changes))
    if fit is not None:
        console.print(
            f"profile: the simulator's law repeats these predictions on {len(fit.times)} placements with a mean "
            f"error of {fit.mean_error:.1%}, at most {fit.largest_error:.1%}", soft_wrap=True,
        )  # fmt: skip
    for note in answer.notes:
        console.print(f"note: {note}", style="dim", soft_wrap=True)


def _headline(answer: Prediction) -> Text:
    interval = (
        f" ({answer.confidence:.0%}: {format_duration(answer.low_s)} to {format_duration(answer.high_s)})"
        if answer.high_s > answer.low_s
        else ""
    )
    where = f"{_many(answer.ranks, 'rank')} on {_many(answer.hosts, 'host')} of {answer.topology}, {answer.hardware}, {answer.parallelism}"
    rate = f", {answer.samples_per_s:,.1f} samples/s" if answer.samples_per_s else ""
    whole = f"{answer.name}: {format_duration(answer.iteration_s)} per iteration"
    return Text.assemble((whole, "bold"), f"{interval}{rate}\n{where}")


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _parts(answer: Prediction) -> Table:
    table = Table("part", "time", "share")
    for column in table.columns[1:]:
        column.justify = "right"
    words = {
        "exposed_s": "exposed communication", "overhead_s": "copies and overhead", "server_s": "waiting for the server's update"
    }  # fmt: skip
    for field, seconds in msgspec.structs.asdict(answer.breakdown).items():
        if field == "server_s" and not seconds:
            continue
        word = words.get(field, field.removesuffix("_s"))
        table.add_row(word, format_duration(seconds), f"{seconds / answer.iteration_s:.1%}")
    return table


def _demand(answer: Prediction) -> str:
    lines = [
        f"each rank: {answer.flop_per_s / 1e12:.3g} TFLOP/s, {format_bytes(answer.memory_bytes)} of memory"
    ]
    if answer.links:
        busiest = answer.links[0]
        hidden_s = max(0.0, answer.communication_s - answer.exposed_s)
        lines.append(
            f"busiest link: {busiest.name}, {format_bytes(busiest.bytes)} per iteration and direction, busy {busiest.busy:.0%}"
        )
        lines.append(
            f"communication: {format_duration(answer.communication_s)}, of which {format_duration(hidden_s)} hidden"
        )
    lines.append(f"no order of the same work takes less than {format_duration(answer.bound_s)}")
    if answer.straggling_s:
        lines.append(f"waiting for the slowest rank: {format_duration(answer.straggling_s)} of it")
    return "\n".join(lines)


def _transfers(answer: Prediction) -> Table:
    rows = sorted(answer.transfers, key=lambda t: -t.exposed_s)[:ROWS]
    shown = [t for t in answer.transfers if t in rows]
    left = len(answer.transfers) - len(shown)
    table = Table("transfer", "how", "size", "ready", "starts", "ends", "exposed")
    for column in table.columns[2:]:
        column.justify = "right"
    for t in shown:
        times = (_signed(seconds) for seconds in (t.ready_s, t.start_s, t.end_s, t.exposed_s))
        table.add_row(t.name, f"{t.collective}, {t.algorithm}", format_bytes(t.size_bytes), *times)
    if left:
        table.caption = f"and {left} more that are exposed less"
    return table


def _signed(seconds: float) -> str:
    """Of what began in the iteration before, how long before this one."""
    return f"-{format_duration(-seconds)}" if seconds < -1e-9 else format_duration(max(seconds, 0.0))


def _path(answer: Prediction) -> Table:
    table = Table("critical path", "kind", "time")
    table.columns[2].justify = "right"
    longest = sorted(answer.critical_path, key=lambda s: s.start_s - s.end_s)[:ROWS]
    for step in answer.critical_path:
        if step in longest:
            table.add_row(step.name, step.kind, format_duration(step.end_s - step.start_s))
    left = len(answer.critical_path) - len(longest)
    if left > 0:
        table.caption = f"and {left} shorter steps"
    return table


def _what_ifs(answer: Prediction, changes: Sequence[WhatIf]) -> Table:
    table = Table("what if", "iteration", "change", "exposed")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("as asked", format_duration(answer.iteration_s), "", format_duration(answer.exposed_s))
    for c in changes:
        table.add_row(
            c.change, format_duration(c.iteration_s), f"{c.relative - 1:+.1%}", format_duration(c.exposed_s)
        )
    return table
