"""What a byte of each kind of collective costs, where several kinds are often under way at once.

Whenever the last one ends, one equation is known: what was done since nothing was under way, and how long it took.
The costs are those that explain the last of these best, later ones more; what they do not tell is taken to be in
proportion to the first kind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

__all__ = ["ByteCosts"]

_KEPT = 32
"""Times in which something was under way."""
_FORGOTTEN = 0.85
"""What each of them counts, relative to the next one."""
_BELIEVED = 0.1
"""What it counts that kinds are in proportion, and that to begin costs nothing."""


class ByteCosts:
    """For one group, on its first rank's clock."""

    def __init__(self, like: Sequence[float]) -> None:
        """Of kinds 0, 1, ...

        Args:
            like: what a byte of each is expected to cost, relative to the first.
        """
        self._like = np.asarray(like, dtype=np.float64)
        self._under_way = 0
        self._since_s = 0.0
        self._bytes = np.zeros(len(like))
        self._known: deque[tuple[float, np.ndarray]] = deque(maxlen=_KEPT)
        self._each: np.ndarray | None = None

    def begin(self, now_s: float) -> None:
        """Something begins."""
        if not self._under_way:
            self._since_s = now_s
            self._bytes = np.zeros(len(self._like))
        self._under_way += 1

    def end(self, kind: int, size_bytes: float, now_s: float) -> None:
        """It has ended, and was this."""
        self._under_way -= 1
        self._bytes[kind] += size_bytes
        if not self._under_way and now_s > self._since_s:
            self._known.append((now_s - self._since_s, self._bytes))
            self._each = self._fitted()

    def seconds(self, kind: int, size_bytes: float) -> float | None:
        """What so many bytes cost, while others are under way too; None before anything of the first kind has ended."""
        return None if self._each is None else float(self._each[kind]) * size_bytes

    def _fitted(self) -> np.ndarray | None:
        """Seconds of a byte of each kind; None before anything of the first has ended."""
        took_s = np.array([seconds for seconds, _ in self._known])
        sizes = np.array([sizes for _, sizes in self._known])
        if self._each is None and not sizes[:, 0].any():
            return None
        weights = np.sqrt(_FORGOTTEN ** np.arange(len(took_s))[::-1])[:, None]
        usual = (
            weights[:, 0] @ (sizes @ self._like) / (weights[:, 0] @ took_s)
        )  # bytes/s, as of the first kind
        rows = (
            weights * np.column_stack([sizes / usual, np.full(len(took_s), took_s.mean())]) / took_s[:, None]
        )
        believed = _BELIEVED
        while True:
            found = np.linalg.lstsq(
                np.vstack([rows, believed * self._beliefs()]),
                np.concatenate([weights[:, 0], np.zeros(len(self._like))]),
                rcond=None,
            )[0]
            if (found[:-1] > 0).all():
                return np.asarray(found[:-1] / usual)
            believed *= 10

    def _beliefs(self) -> np.ndarray:
        """That every other kind is in proportion to the first, and that to begin costs nothing."""
        count = len(self._like)
        table = np.zeros((count, count + 1))
        table[: count - 1, 0] = -1.0
        table[np.arange(count - 1), np.arange(1, count)] = 1 / self._like[1:]
        table[count - 1, count] = 1.0
        return table
