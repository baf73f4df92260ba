"""A comparison in the terminal. Knows Rich, and how wide the terminal is only when it is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from hemiola.core.result import Comparison
from hemiola.report.metrics import Figures
from hemiola.report.words import (
    COLUMNS,
    Column,
    cell,
    change,
    columns_of,
    never_ran,
    seed_count,
    semantics_card,
    unfinished,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

__all__ = ["ComparisonTable", "ProgressBar", "table"]

WIDE = 132
"""From this many columns on, one table holds every figure."""


def table(comparison: Comparison) -> ComparisonTable:
    """The comparison as something that Rich can print: a line per policy, means over its seeds.

    Raises:
        InternalError: if a run's figures do not add up.
    """
    return ComparisonTable(comparison)


class ComparisonTable:
    """One wide table, or on a narrow terminal two, with the notes and the semantics card below."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.figures = Figures(comparison)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """What to draw in `options.max_width` columns."""
        yield self._title()
        yield from self._warnings(never_ran(self.comparison))
        if options.max_width >= WIDE:
            yield self._table(COLUMNS, with_change=True)
        else:
            yield self._table(COLUMNS[:4], with_change=True)
            yield self._table(COLUMNS[4:], with_change=False)
        yield from self._services(wide=options.max_width >= WIDE)
        if more := columns_of(self.figures)[len(COLUMNS) :]:
            yield self._table(more, with_change=True)
        yield from self._notes()
        yield from self._card()

    def _title(self) -> RenderableType:
        from rich.text import Text

        comparison, topology = self.comparison, self.comparison.topology
        jobs = max((whole.jobs_submitted for whole in self.figures.summaries), default=0)
        text = Text(comparison.workload_name or "workload", style="bold")
        text.append(f": {jobs:,} jobs on {topology.name}, {topology.gpus:,} GPUs", style="none")
        if len({run.seed for run in comparison.runs}) > 1:
            means = f"; means over {seed_count(self.figures)}, differences paired, ± 95 % confidence"
            text.append(means, style="none")
        return text

    def _table(self, columns: Sequence[Column], *, with_change: bool) -> Table:
        from rich import box
        from rich.table import Table

        drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        drawn.add_column("policy", overflow="fold", min_width=8, style="bold")
        for column in columns:
            drawn.add_column(column.short, justify="right", no_wrap=True)
            if with_change and column is columns[0]:
                drawn.add_column(_plain(f"vs {self.comparison.baseline}"), justify="right", overflow="fold")
        for policy in self.figures.policies:
            drawn.add_row(self._name(policy), *self._cells(policy, columns, with_change))
        return drawn

    def _services(self, *, wide: bool) -> Iterator[RenderableType]:
        """What services and loans came to, in one table or in two."""
        from rich import box
        from rich.table import Table

        from hemiola.report.serving import SERVING_HEADS, serving_rows

        rows = serving_rows(self.figures)
        last = len(SERVING_HEADS)
        for part in (range(1, last),) if wide else (range(1, 5), range(5, last)):
            if rows:
                drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
                drawn.add_column("policy", overflow="fold", min_width=8, style="bold")
                for i in part:
                    drawn.add_column(SERVING_HEADS[i], justify="right", no_wrap=True)
                for row in rows:
                    drawn.add_row(row[0], *(row[i] for i in part))
                yield drawn

    def _cells(self, policy: str, columns: Sequence[Column], with_change: bool) -> Iterator[str]:
        for column in columns:
            mean = self.figures.mean(policy, column.metric)
            yield cell(None if mean is None else mean.mean, column.unit)
            if with_change and column is columns[0]:
                base = policy == self.comparison.baseline
                yield "baseline" if base else change(self.figures.difference(policy, column.metric))

    def _name(self, policy: str) -> RenderableType:
        from rich.text import Text

        cut = any(run.interrupted for run in self.figures.runs(policy))
        return Text(policy) + Text(" (interrupted)", style="bold red") if cut else Text(policy)

    def _notes(self) -> Iterator[RenderableType]:
        from rich.text import Text

        yield from self._warnings(unfinished(self.comparison, self.figures))
        for note in self.comparison.notes:
            yield Text(f"- {note}", style="dim")

    def _warnings(self, told: Sequence[str]) -> Iterator[RenderableType]:
        from rich.text import Text

        for warning in told:
            yield Text(f"! {warning}", style="yellow")

    def _card(self) -> Iterator[RenderableType]:
        from rich.table import Table

        card = semantics_card(self.comparison)
        if not card:
            return
        drawn = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
        drawn.title = "Rules that shaped these numbers"
        drawn.add_column(style="dim", no_wrap=True)
        drawn.add_column(style="dim", overflow="fold")
        for rule, values in card:
            drawn.add_row(_plain(rule), _plain("\n".join(f"{p}: {v}" if p else v for p, v in values.items())))
        yield ""
        yield drawn


def _plain(text: str) -> RenderableType:
    from rich.text import Text

    return Text(text)


# A progress bar on the terminal, and lines above it. Draws nothing where nobody watches.


class ProgressBar:
    """One bar over all runs of a comparison.

    Args:
        console: where to draw.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("jobs"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("reading", total=None)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, policy: str, seed: int, ended: int, jobs: int) -> None:
        """So many jobs of a run have ended."""
        self._progress.update(self._task, description=f"{policy}, seed {seed}", completed=ended, total=jobs)

    def say(self, line: str) -> None:
        """One line above the bar."""
        self._console.print(line, style="dim", highlight=False, markup=False)
