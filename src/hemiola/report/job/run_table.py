"""What is said at the end of a run: iteration times that were predicted and measured, and what was exposed of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from hemiola.core.acceleration import Acceleration
from hemiola.analysis.job.metrics import JobMetrics
from hemiola.report.job.words import duration, percent

__all__ = ["print_acceleration", "print_measured"]


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
