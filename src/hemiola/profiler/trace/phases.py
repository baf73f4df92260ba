"""A rank's phases without overlaps: each instant of its main lane belongs to one thing. Knows no PyTorch.

Waiting comes before all else, then input, then the phase that began last (a backward pass inside an
optimizer's closure). What an iteration has besides is "other"; where nobody told when the forward pass
began, the time before a backward pass is taken for it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

__all__ = ["cut"]

Phase = tuple[str, str, int, int]
Interval = tuple[int, int]


def cut(phases: Sequence[Phase], waits: Iterable[Interval], window: Interval | None) -> list[Phase]:
    """The phases cut around the waits and around each other, in order of time.

    Args:
        phases: (name, kind, start, end).
        waits: from when to when the rank stood still for communication.
        window: the iteration, whose remaining time is filled; None if there is none to fill.
    """
    taken = _Taken(waits)
    pieces: list[Phase] = []
    for name, kind, start, end in sorted(_with_forward(phases, window), key=_urgency):
        pieces += [(name, kind, left, right) for left, right in taken.take(start, end)]
    if window is not None:
        pieces += [("other", "other", left, right) for left, right in taken.take(*window)]
    return sorted(pieces, key=lambda piece: (piece[2], piece[3]))


def _urgency(phase: Phase) -> tuple[bool, int]:
    return (phase[1] != "input", -phase[2])


def _with_forward(phases: Sequence[Phase], window: Interval | None) -> list[Phase]:
    found = list(phases)
    if window is not None and not any(name == "forward" for name, *_ in phases):
        since = window[0]
        for name, _, start, end in sorted(phases, key=lambda phase: phase[2]):
            if name == "backward" and start > since:
                found.append(("forward", "compute", since, start))
            since = max(since, end)
    return found


class _Taken:
    """Stretches of time that are no longer free: in order, and apart from each other."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in intervals:
            self.take(start, end)

    def take(self, start: int, end: int) -> list[Interval]:
        """Take an interval; what of it was free."""
        if start >= end:
            return []
        met = slice(bisect_left(self._ends, start), bisect_right(self._starts, end))
        starts, ends = self._starts[met], self._ends[met]
        bounds = zip([start, *ends], [*starts, end], strict=True)  # what lies between those that it meets
        free = [(left, right) for left, right in bounds if right > left]
        self._starts[met], self._ends[met] = [min([start, *starts[:1]])], [max([end, *ends[-1:]])]
        return free
