"""How much an iteration does: times are compared only where it was the same.

A script may go over from four forwards a step to one, or to shorter texts, while it is measured. That is no gain of a plan's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["Work", "change"]


class Work(NamedTuple):
    """Of one iteration: forwards that a backward may follow, how many of them are exchanged, and elements that they are given."""

    forwards: int = 0
    exchanged: int = 0
    elements: int = 0

    def more(self, syncs: bool, given: Any) -> Work:
        """With another forward."""
        return Work(self.forwards + 1, self.exchanged + bool(syncs), self.elements + _elements(given))


def _elements(given: Any, depth: int = 5) -> int:
    """Of all tensors in it, so deep; whatever it holds beside them takes next to no time."""
    if isinstance(given, Tensor):
        return int(given.numel())
    if depth == 0 or isinstance(given, (int, float, str)):
        return 0
    if isinstance(given, Mapping):
        given = list(given.values())
    return sum(_elements(each, depth - 1) for each in given) if isinstance(given, (list, tuple)) else 0


_WORDS = ("{} forwards", "{} exchanges of gradients", "{:,} elements of input")


def change(before: Sequence[Work], now: Sequence[Work]) -> str:
    """What usual iterations do otherwise than those before, in words; "" where they do the same.

    Where batches are of many sizes, the usual one of each is among those of the other.
    """
    if not before or not now:
        return ""
    for kind, words in enumerate(_WORDS):
        old, new = [work[kind] for work in before], [work[kind] for work in now]
        usual, usual_now = median_low(old), median_low(new)
        if not (min(new) <= usual <= max(new) and min(old) <= usual_now <= max(old)):
            return f"an iteration had {words.format(usual)} then and has {words.format(usual_now)} now"
    return ""
