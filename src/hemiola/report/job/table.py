"""A job in the terminal: the finding, where each rank's time goes, who is late, which buckets are exposed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hemiola.analysis.job.compare import changed, compare
from hemiola.analysis.job.metrics import JobMetrics
from hemiola.analysis.job.breakdown import PARTS
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

__all__ = ["RankTable", "job_table"]

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
