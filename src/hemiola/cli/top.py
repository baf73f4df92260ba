"""`hemiola top`: the live cluster on one screen, from the journal; nothing is asked of the daemon."""

from __future__ import annotations

import os
import select
import string
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hemiola.cli.engines import engine_of_journal, with_engine_flags
from hemiola.cli.live import JOB_COLUMNS, daemon_text, job_row, open_journal, reason_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from hemiola.live.engines.base import Engine, EngineConnection
    from hemiola.live.journal import Journal
    from hemiola.live.query.cluster import Following, LiveCluster, LiveHost, LiveJob, Made
    from hemiola.live.query.forecast import ForecastLinkLoad


__all__ = ["frame", "top"]


# The picture of `hemiola top`: lines of text for a width and a height. Knows no terminal and no journal.

COLOURS = (
    "#4e9de0", "#e0a44e", "#6bbf6b", "#c77fd1", "#d9736b", "#5bbfc0", "#b5b04a", "#8f8fe0", "#d98fb0", "#8fb39a",
)  # fmt: skip
LETTERS = string.ascii_letters
LINKS, DECISIONS, QUEUE_LEAST, RUNNING_LEAST = 6, 6, 4, 4
BAR = 20
FULL, HIGH = 0.9, 0.6


@dataclass(frozen=True)
class ScreenState:
    """What is drawn.

    Attributes:
        loads: links with the ids of the jobs that send over them, the fullest first.
        problem: why there are no loads; "" if there are.
        engine: whether it answers, in words.
    """

    cluster: LiveCluster
    loads: Sequence[tuple[ForecastLinkLoad, list[str]]]
    problem: str
    engine: str


def frame(seen: ScreenState, width: int, height: int | None, *, whole: bool = False) -> list[Text]:
    """The lines.

    Args:
        height: of the screen; None for as many lines as there are to show.
        whole: cut no line, though it is wider.
    """
    wide = 10**6 if whole else width
    cluster = seen.cluster
    running = [job for job in cluster.jobs if job.state == "running"]
    waiting = [job for state in ("waiting", "held") for job in cluster.jobs if job.state == state]
    keys = {job.id: (LETTERS[i % len(LETTERS)], COLOURS[i % len(COLOURS)]) for i, job in enumerate(running)}
    head = list(_head(seen, width, wide))
    racks = list(_racks(cluster, keys, width))
    links = list(_links(seen, wide))
    decisions = [_decision(made, cluster, wide) for made in list(reversed(cluster.decisions))[:DECISIONS]]
    if height is not None:
        links, decisions = links[: max(2, height // 6)], decisions[: max(2, height // 6)]
        room = height - len(head) - len(links) - len(decisions) - 5  # five headings
        racks = _fitted(
            racks, max(2, room - QUEUE_LEAST - RUNNING_LEAST - 2), "more lines of racks: hemiola nodes"
        )
        room -= len(racks)
        queue_room = max(QUEUE_LEAST, room - min(len(running) + 1, max(RUNNING_LEAST, room // 2)))
    else:
        queue_room, room = len(waiting) + 1, 10**9
    queue = _fitted(list(_queue(waiting, cluster, wide)), queue_room, "more: hemiola jobs --state waiting")
    runs = _fitted(
        list(_running(running, cluster, keys, wide)),
        max(2, room - len(queue)),
        "more: hemiola jobs --state running",
    )
    held = sum(job.state == "held" for job in waiting)
    lines = [
        *head, _title("GPUs by rack", "· free   # not ours   x down", width), *racks,
        _title("links", "predicted from the jobs' models, not measured", width), *links,
        _title(f"queue: {len(waiting)} waiting" + (f", {held} of them held" if held else ""), "", width), *queue,
        _title(f"running: {len(running)}", "", width), *runs,
        _title("last decisions", "", width), *decisions,
    ]  # fmt: skip
    return [_cut(line, wide) for line in (lines if height is None else lines[:height])]


def _head(seen: ScreenState, width: int, wide: int) -> Iterator[Text]:
    from rich.text import Text

    from hemiola.report.columns import clock

    cluster, run = seen.cluster, seen.cluster.run
    line = Text()
    line.append("hemiola top", style="bold")
    if run is not None:
        line.append(f"  {run.opening.policy}, ", style="none")
        line.append(run.opening.mode, style="bold green" if run.opening.mode == "enforce" else "bold yellow")
        line.append(
            f"  on {cluster.topology.name if cluster.topology else '?'} ({run.opening.engine})", style="none"
        )
    now = clock(cluster.now_s, cluster.now_s, seconds=True)
    yield _ends(line, Text(now, style="dim"), width)
    well = cluster.daemon.state == "leads"
    line = Text(daemon_text(cluster), style="none" if well else "bold red")
    if not well and cluster.as_of_s:
        line.append(f"; this is as of {clock(cluster.as_of_s, cluster.now_s, seconds=True)}")
    away = "away" in seen.engine
    line.append("   ").append(seen.engine, style="bold red" if away else "dim")
    yield _cut(line, wide)
    yield _cut(_use(cluster), wide)


def _use(cluster: LiveCluster) -> Text:
    from rich.text import Text

    gpus, used = sum(host.gpus for host in cluster.hosts), sum(host.used for host in cluster.hosts)
    free = sum(host.free for host in cluster.hosts)
    share = used / gpus if gpus else 0.0
    line = Text()
    line.append_text(_bar(share, BAR, "#6bbf6b"))
    line.append(f" {share:.0%} of {gpus} GPUs in use, {free} free")
    if rest := gpus - used - free:
        line.append(", ").append(f"{rest} not to be had", style="red")
    return line


def _racks(cluster: LiveCluster, keys: dict[str, tuple[str, str]], width: int) -> Iterator[Text]:
    """A line per rack, or several; each host's GPUs by the letters of their jobs."""
    from rich.text import Text

    racks: dict[str, list[LiveHost]] = {}
    for host in cluster.hosts:
        racks.setdefault(host.rack, []).append(host)
    label = max((len(rack) for rack in racks), default=0) + 2
    name = max((len(host.name) for host in cluster.hosts), default=0)
    for rack, hosts in racks.items():
        line = Text().append(f"{rack:<{label}}", style="bold")
        for host in hosts:
            if len(line) > label and len(line) + name + host.gpus + 3 > width:
                yield line
                line = Text(" " * label)
            style = "red" if host.state in ("down", "blocked", "draining") else "none"
            line.append(f"{host.name:>{name}} ", style=style).append_text(_cells(host, keys)).append(
                "  ", style="none"
            )
        yield line


def _cells(host: LiveHost, keys: dict[str, tuple[str, str]]) -> Text:
    from rich.text import Text

    line = Text()
    for job in host.cells:
        if job in keys:
            letter, colour = keys[job]
            line.append(letter, style=f"#101418 on {colour}")
        elif host.state == "down":
            line.append("x", style="red")
        else:
            line.append("#" if job else "·", style="red" if job else "dim")
    return line


def _links(seen: ScreenState, width: int) -> Iterator[Text]:
    from rich.text import Text

    from hemiola.core.units import format_rate

    if not seen.loads:
        why = seen.problem or "no running job of a known model sends over the network"
        yield _cut(Text(f"  {why}", style="dim"), width)
    name = max((len(load.link) for load, _ in seen.loads), default=0)
    for load, jobs in seen.loads[:LINKS]:
        share = load.bytes_per_s / load.capacity_bytes_per_s
        colour = "#d9736b" if share > FULL else "#e0a44e" if share > HIGH else "#6bbf6b"
        line = Text(f"  {load.link:<{name}} ")
        line.append_text(_bar(share, BAR, colour))
        line.append(f" {share:4.0%} of {format_rate(load.capacity_bytes_per_s)}", style="none")
        line.append(f"  job {', '.join(jobs)}", style="dim")
        yield _cut(line, width)


def _queue(waiting: Sequence[LiveJob], cluster: LiveCluster, width: int) -> Iterator[Text]:
    from rich.text import Text

    from hemiola.report.columns import columns, elapsed

    if not waiting:
        yield Text("  nobody waits", style="dim")
        return
    rows = [
        (job.id, job.name or "-", job.user, str(job.gpus), str(job.hosts or "-"), elapsed(job.waited_s),
         ("held: " if job.state == "held" else "") + reason_text(job, cluster.now_s))
        for job in waiting
    ]  # fmt: skip
    headings = ("JOBID", "NAME", "USER", "GPUS", "NODES", "WAITED", "REASON")
    right = frozenset({"JOBID", "GPUS", "NODES", "WAITED"})
    for place, line in enumerate(columns(headings, rows, right=right, width=width - 2)):
        yield Text(f"  {line}", style="none" if place else "dim")


def _running(
    running: Sequence[LiveJob], cluster: LiveCluster, keys: dict[str, tuple[str, str]], width: int
) -> Iterator[Text]:
    from rich.text import Text

    from hemiola.report.columns import columns

    if not running:
        yield Text("  nothing runs", style="dim")
        return
    kept = [place for place, heading in enumerate(JOB_COLUMNS) if heading not in ("ST", "NODES")]
    rows = [tuple(job_row(job, cluster.now_s)[place] for place in kept) for job in running]
    headings = tuple(JOB_COLUMNS[place] for place in kept)
    right = frozenset({"JOBID", "GPUS", "TIME", "EST", "WAITED"})
    head, *lines = columns((*headings[:-1], "NODELIST"), rows, right=right, width=width - 4)
    yield Text(f"    {head}", style="dim")
    for job, line in zip(running, lines, strict=True):
        letter, colour = keys[job.id]
        yield Text("  ").append(letter, style=f"#101418 on {colour}").append(f" {line}", style="none")


def _decision(made: Made, cluster: LiveCluster, width: int) -> Text:
    from rich.text import Text

    from hemiola.core.decisions import placement_of
    from hemiola.core.hostlist import compress
    from hemiola.live.query.cluster import host_names
    from hemiola.report.columns import clock

    decision = made.decision
    kind = type(decision).__name__.lower()
    placement = placement_of(decision)
    where = compress([name for name, _ in host_names(placement, cluster.topology)])
    observes = cluster.run is not None and cluster.run.opening.mode != "enforce"
    line = Text("  ").append(clock(made.time_s, cluster.now_s, seconds=True), style="dim")
    line.append("  would " if observes else "  ", style="yellow")
    line.append(f"{kind:<5} ", style="red" if made.refused else "yellow" if kind == "stop" else "green")
    line.append(f"{decision.job_id}{f' on {where}' if where else ''}: ", style="none")
    line.append(f"refused: {made.refused}" if made.refused else decision.reason, style="dim")
    return _cut(line, width)


def _bar(share: float, size: int, colour: str) -> Text:
    """Eighths of a cell, so that little shows, too."""
    from rich.text import Text

    eighths = round(min(1.0, max(0.0, share)) * size * 8)
    full, part = divmod(eighths, 8)
    bar = "█" * full + ("▏▎▍▌▋▊▉"[part - 1] if part else "")
    return Text(bar, style=colour).append("░" * (size - len(bar)), style="#444444")


def _title(text: str, note: str, width: int) -> Text:
    from rich.text import Text

    line = Text().append("─ ", style="dim").append(text, style="bold")
    line.append(f" ({note}) " if note else " ", style="dim")
    return _cut(line.append("─" * max(0, width - len(line)), style="dim"), width)


def _ends(left: Text, right: Text, width: int) -> Text:
    gap = width - len(left) - len(right)
    if gap < 1:
        return _cut(left, width)
    return left.append(" " * gap, style="none").append_text(right)


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _fitted(lines: list[Text], most: int, more: str) -> list[Text]:
    """As many as there is room for; then how many are left out."""
    from rich.text import Text

    if len(lines) <= most:
        return lines
    kept = lines[: max(0, most - 1)]
    return [*kept, Text(f"  … {len(lines) - len(kept)} {more}", style="dim")]


Switch = Parameter(negative="")
PIPED_WIDTH = 120
LOOK_S, ASK_S, SHARE = 0.2, 5.0, 4.0
"""How often keys and the terminal's size are looked at; how often the engine is asked; and reading takes a fifth at most."""


@with_engine_flags("top")
def top(
    *,
    journal: str = "",
    partition: str = "hemiola",
    engine: str = "",
    interval: str = "2s",
    once: Annotated[bool, Switch] = False,
    **options: Any,
) -> None:
    """Show the live cluster: GPUs by rack and job, links, the queue and why each job waits. Ends with q or Ctrl-C.

    Parameters
    ----------
    journal
        What "hemiola serve --journal" writes; the same place as there unless given.
    partition
        The one that Hemiola manages.
    engine
        What runs the jobs, as in "hemiola serve". Default: what the journal says; an engine of your own has to be named.
    interval
        How often to look.
    once
        Print one picture, whole and without a screen of its own.
    """
    from rich.console import Console

    from hemiola.core.units import parse_duration
    from hemiola.live.query.cluster import Following

    interval_s, console = parse_duration(interval), Console(highlight=False)
    with open_journal(journal, partition) as opened:
        asked = _Engine(*engine_of_journal(opened, engine, options, partition=partition))
        if once or not console.is_terminal:
            asked.ask()
            seen, piped = _look(opened, asked, Following()), not console.is_terminal
            lines = frame(seen, PIPED_WIDTH if piped else console.width, None, whole=piped)
            for line in lines:
                console.print(line, no_wrap=True, crop=False, overflow="ignore", soft_wrap=True)
            return
        asked.begin()
        _show(opened, asked, console, interval_s)


def _look(journal: Journal, engine: _Engine, following: Following) -> ScreenState:
    """Read all that a picture needs; of the run what has come since the last one."""
    from hemiola.core.errors import HemiolaError
    from hemiola.live.query.cluster import Names, engine_ids, read_cluster
    from hemiola.live.query.forecast import predicted_loads

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

    from hemiola.live.query.cluster import Following

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
    """Whether the engine answers; asked in a thread of its own, as that may take long.

    Args:
        engine: None: nobody is asked.

    Attributes:
        says: in words.
    """

    def __init__(self, engine: Engine[Any] | None, to: EngineConnection) -> None:
        self._engine = engine if engine is not None and engine.answers is not None else None
        self._to = to
        self.says = f"{self._engine.title} not asked yet" if self._engine is not None else ""

    def begin(self) -> None:
        """Ask again and again."""
        if self._engine is not None:
            threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        while True:
            self.ask()
            time.sleep(ASK_S)

    def ask(self) -> None:
        """Once."""
        if self._engine is not None:
            self.says = self._engine.says(self._to)
