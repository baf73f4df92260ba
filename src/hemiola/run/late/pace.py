"""How many bytes a second were got while anything of a kind was under way."""

from __future__ import annotations

__all__ = ["Pace"]

_KEPT = 0.8
"""Of what was measured before, whenever a time ends in which something was under way."""


class Pace:
    """Of one kind of collective. Several that overlap count their time once."""

    def __init__(self) -> None:
        self._under_way = 0
        self._since_s = 0.0
        self._bytes = self._now_bytes = self._seconds = 0.0

    def begin(self, now_s: float) -> None:
        """One begins."""
        if not self._under_way:
            self._since_s = now_s
        self._under_way += 1

    def end(self, size_bytes: float, now_s: float) -> None:
        """One has ended, of so many bytes."""
        self._under_way -= 1
        self._now_bytes += size_bytes
        if not self._under_way:
            self._bytes = _KEPT * self._bytes + self._now_bytes
            self._seconds = _KEPT * self._seconds + now_s - self._since_s
            self._now_bytes = 0.0

    def seconds(self, size_bytes: float) -> float | None:
        """What so many bytes would take; None before one has ended."""
        return size_bytes * self._seconds / self._bytes if self._bytes else None
