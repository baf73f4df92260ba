"""A rank's phases without overlaps: each instant of its main lane belongs to one thing. Knows no PyTorch.

Waiting comes before all else, then input, then the phase that began last (a backward pass inside an
optimizer's closure). What an iteration has besides is "other"; where nobody told when the forward pass
began, the time before a backward pass is taken for it.
"""

from __future__ import annotations

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
    taken = list(waits)
    pieces: list[Phase] = []
    for name, kind, start, end in sorted(_with_forward(phases, window), key=_urgency):
        for left, right in _free(start, end, taken):
            pieces.append((name, kind, left, right))
        taken.append((start, end))
    if window is not None:
        pieces += [("other", "other", left, right) for left, right in _free(*window, taken)]
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


def _free(start: int, end: int, taken: Sequence[Interval]) -> list[Interval]:
    """What of an interval is in none of those taken."""
    free: list[Interval] = []
    for left, right in sorted(taken):
        if left > start:
            free.append((start, min(left, end)))
        start = max(start, right)
        if start >= end:
            break
    if start < end:
        free.append((start, end))
    return [(left, right) for left, right in free if right > left]
