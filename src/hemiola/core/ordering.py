"""Numbers in an order in which each follows those that it waits for."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["in_order"]


def in_order(after: Sequence[Iterable[int]], key: Callable[[int], Any] = lambda number: number) -> list[int]:
    """Numbers, each after those that it has to follow; of those that could be next, the least by key, then by number.

    What is in a circle, or follows one, is left out.

    Args:
        after: by number, which ones it follows.

    Example:
        >>> in_order([[2], [], [1]])
        [1, 2, 0]
    """
    left = [0] * len(after)
    following: list[list[int]] = [[] for _ in after]
    for number, before in enumerate(after):
        for one in before:
            following[one].append(number)
            left[number] += 1
    ready = [(key(number), number) for number, count in enumerate(left) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for one in following[number]:
            left[one] -= 1
            if not left[one]:
                heapq.heappush(ready, (key(one), one))
    return order
