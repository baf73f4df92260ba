"""`hemiola top`: the live cluster on one screen, from the journal; nothing is asked of the daemon."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hemiola.cli.live import open_journal

if TYPE_CHECKING:
    from rich.console import Console

    from hemiola.cli.live_frame import ScreenState
    from hemiola.live.journal import Journal
    from hemiola.live.query.run_state import Following

__all__ = ["top"]

Switch = Parameter(negative="")
PIPED_WIDTH = 120
LOOK_S, ASK_S, SHARE = 0.2, 5.0, 4.0
"""How often keys and the terminal's size are looked at; how often the engine is asked; and reading takes a fifth at most."""


def top(
    *,
    journal: str = "",
    partition: str = "hemiola",
    interval: str = "2s",
    slurm_conf: Path | None = None,
    once: Annotated[bool, Switch] = False,
) -> None:
    """Show the live cluster: GPUs by rack and job, links, the queue and why each job waits. Ends with q or Ctrl-C.

    Parameters
    ----------
    journal
        What "hemiola serve --journal" writes; the same place as there unless given.
    partition
        The one that Hemiola manages.
    interval
        How often to look.
    slurm_conf
        The slurm.conf of the cluster, to ask whether its controller answers.
    once
        Print one picture, whole and without a screen of its own.
    """
    from rich.console import Console

    from hemiola.cli.live_frame import frame
    from hemiola.live.query.run_state import Following
    from hemiola.core.units import parse_duration

    interval_s, console = parse_duration(interval), Console(highlight=False)
    with open_journal(journal, partition) as opened:
        runs = opened.runs()
        engine = _Engine(slurm_conf, is_slurm=not runs or not runs[-1].opening.engine.startswith("ray"))
        if once or not console.is_terminal:
            engine.ask()
            seen, piped = _look(opened, engine, Following()), not console.is_terminal
            lines = frame(seen, PIPED_WIDTH if piped else console.width, None, whole=piped)
            for line in lines:
                console.print(line, no_wrap=True, crop=False, overflow="ignore", soft_wrap=True)
            return
        engine.begin()
        _show(opened, engine, console, interval_s)


def _look(journal: Journal, engine: _Engine, following: Following) -> ScreenState:
    """Read all that a picture needs; of the run what has come since the last one."""
    from hemiola.cli.live_frame import ScreenState
    from hemiola.live.query.cluster import Names, engine_ids, read_cluster
    from hemiola.live.query.forecast import predicted_loads
    from hemiola.core.errors import HemiolaError

    cluster = read_cluster(journal, time.time(), following=following)
    loads, problem = [], ""
    if cluster.run is not None:
        records = journal.open_jobs()
        names = Names(journal, engine_ids(records))
        try:
            loads = [
                (load, [names.of(uuid) for uuid in load.jobs])
                for load in predicted_loads(journal, cluster.run, records, cluster.as_of_s, following)
            ]
        except HemiolaError as error:  # a job came or went between the two readings
            problem = error.what
    return ScreenState(cluster, loads, problem, engine.says)


def _show(journal: Journal, engine: _Engine, console: Console, interval_s: float) -> None:
    """Draw again and again; the size is the terminal's at that moment."""
    from rich.console import Group
    from rich.live import Live

    from hemiola.cli.live_frame import frame
    from hemiola.live.query.run_state import Following

    following = Following()
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        due_s, size, seen = 0.0, (0, 0), None
        while not pressed():
            fresh = time.monotonic() >= due_s
            if fresh:
                began_s = time.monotonic()
                seen = _look(journal, engine, following)
                due_s = time.monotonic() + max(interval_s, SHARE * (time.monotonic() - began_s))
            if seen is not None and (fresh or size != tuple(console.size)):
                size = (console.size.width, console.size.height)
                live.update(Group(*frame(seen, *size)), refresh=True)


@contextmanager
def _keys() -> Iterator[Callable[[], bool]]:
    """A function that waits a moment for a key, and says whether it was q."""
    import termios
    import tty

    def nothing() -> bool:
        time.sleep(LOOK_S)
        return False

    if not sys.stdin.isatty():
        yield nothing
        return
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)

    def pressed() -> bool:
        ready, _, _ = select.select([handle], [], [], LOOK_S)
        return bool(ready) and os.read(handle, 64) in (b"q", b"Q", b"\x03", b"")

    tty.setcbreak(handle)
    try:
        yield pressed
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


class _Engine:
    """Whether Slurm's controller answers; asked in a thread of its own, as that may take long.

    Attributes:
        says: in words.
    """

    def __init__(self, conf: Path | None, *, is_slurm: bool) -> None:
        self._conf, self._is_slurm = conf, is_slurm
        self.says = "Slurm not asked yet" if is_slurm else ""

    def begin(self) -> None:
        """Ask again and again."""
        if self._is_slurm:
            threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        while True:
            self.ask()
            time.sleep(ASK_S)

    def ask(self) -> None:
        """Once."""
        if not self._is_slurm:
            return
        from hemiola.live.engines.slurm.client import Slurm
        from hemiola.core.errors import EngineError

        try:
            Slurm(self._conf, limit_s=5.0).table("squeue", "-t", "SUSPENDED", "-o", "%i")
            self.says = "Slurm answers"
        except EngineError as problem:
            self.says = f"Slurm is away: {problem.what}"
