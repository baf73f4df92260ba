"""A progress bar on the terminal, and lines above it. Draws nothing where nobody watches."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ProgressBar"]


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
