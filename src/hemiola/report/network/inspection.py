"""Shows a topology or a strategy wherever it is asked for: terminal, page, JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hemiola.report.document import write_page
from hemiola.report.network.as_json import network_as_json, strategy_as_json, write_json
from hemiola.report.network.figures import network_figures
from hemiola.report.network.page import render_network
from hemiola.report.network.recognise import read_any_strategy, topology_of
from hemiola.report.network.sent import strategy_figures
from hemiola.report.network.strategy_page import render_strategy
from hemiola.report.network.strategy_table import ScheduleTable
from hemiola.report.network.table import NetworkTable

if TYPE_CHECKING:
    from rich.console import Console

    from hemiola.core.errors import ScheduleError

__all__ = ["show_strategy", "show_topology"]


def show_topology(
    path: Path, console: Console, *, report: Path | None, json: Path | None, title: str
) -> None:
    """Write a topology's page and figures where that is asked for, and print it.

    Raises:
        HemiolaError: if it cannot be read, or a path cannot be written.
    """
    figures = network_figures(topology_of(path))
    _write(report, lambda: render_network(figures, title), json, lambda: network_as_json(figures))
    console.print(NetworkTable(figures))


def show_strategy(
    path: Path, console: Console, *, report: Path | None, json: Path | None, title: str
) -> ScheduleError | None:
    """Write a strategy's page and figures where that is asked for, and print it.

    Returns:
        Why it is not right, if it is not.

    Raises:
        HemiolaError: if it cannot be read, or a path cannot be written.
    """
    figures = strategy_figures(read_any_strategy(path))
    _write(report, lambda: render_strategy(figures, title), json, lambda: strategy_as_json(figures))
    console.print(ScheduleTable(figures))
    return figures.problem


def _write(report: Path | None, page: Callable[[], str], json: Path | None, value: Callable[[], Any]) -> None:
    if report is not None:
        write_page(page(), report)
    if json is not None:
        write_json(value(), json)
