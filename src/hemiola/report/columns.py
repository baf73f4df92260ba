"""Columns of text as Slurm's tools print them, and times as their readers know them. Knows no job and no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

__all__ = ["ago", "clock", "columns", "cut", "elapsed", "printable"]

DAY_S = 86400.0


def printable(text: str) -> str:
    """Users name their jobs as they like: without what moves a terminal's cursor."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str], width: int | None = None
) -> list[str]:
    """Lines, the headings first; one space at least between columns, none behind the last.

    Args:
        right: headings of columns that are flush right.
        width: lines are cut there, with "…"; None for a pipe, where nothing is cut.
    """
    table = [list(headings), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(headings))]
    lines = []
    for row in table:
        cells = [
            cell.rjust(size) if heading in right else cell.ljust(size)
            for cell, size, heading in zip(row, widths, headings, strict=True)
        ]
        lines.append(cut("  ".join(cells).rstrip(), width))
    return lines


def cut(text: str, width: int | None) -> str:
    """At most so many columns."""
    return text if width is None or len(text) <= width else text[: max(0, width - 1)] + "…"


def elapsed(duration_s: float) -> str:
    """[days-][hours:]minutes:seconds, as squeue has it."""
    days, rest = divmod(int(max(0.0, duration_s)), 86400)
    hours, minutes, seconds = rest // 3600, rest // 60 % 60, rest % 60
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def clock(time_s: float, now_s: float, *, seconds: bool = False) -> str:
    """A time of this host's zone, with its day if it is not today's: "14:02", "Jan 15 14:02", "2028-01-15 14:02"."""
    then, now = datetime.fromtimestamp(time_s), datetime.fromtimestamp(now_s)
    text = then.strftime("%H:%M:%S" if seconds else "%H:%M")
    if then.date() == now.date():
        return text
    return then.strftime("%b %d " if then.year == now.year else "%Y-%m-%d ") + text


def ago(duration_s: float) -> str:
    """A duration with as many figures as people read: "3 s", "6 min", "1.5 h", "12 d"."""
    duration_s = max(0.0, duration_s)
    if duration_s < 99.5:
        return f"{duration_s:.0f} s"
    for unit, size in (("min", 60.0), ("h", 3600.0), ("d", DAY_S)):
        if duration_s < 99.5 * size or unit == "d":
            value = duration_s / size
            return f"{value:.1f} {unit}" if value < 9.95 and unit != "min" else f"{value:.0f} {unit}"
    raise AssertionError
