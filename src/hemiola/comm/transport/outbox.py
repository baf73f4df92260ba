"""Which message goes next: the most urgent that its connection can take, chosen anew for every chunk.

A message of priority p given at time t has the key t + p * ageing_s: the lower goes first. So one of lower
number overtakes, and pauses, all that were given at most ageing_s per number before it, and nothing
starves. A message with a deadline goes before all others from the moment on at which it would come too late
otherwise, as far as the rate is known.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from hemiola.core.errors import HemiolaError
from hemiola.comm.transport.messages import Outgoing

__all__ = ["Outbox"]


class Outbox:
    """All messages of one endpoint that are not sent yet; any thread may add."""

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._lock = threading.Lock()
        self._heaps: dict[int, list[Outgoing]] = {}
        self._deadlines: dict[int, list[tuple[float, int, Outgoing]]] = {}
        self._sequences: dict[tuple[int, int], int] = {}
        self._order = itertools.count()

    def add(
        self, peer: int, tag: int, data: memoryview, priority: int, now_s: float, urgent_s: float
    ) -> Outgoing:
        """One more.

        Args:
            urgent_s: from when on it goes before all others; infinity for never.
        """
        with self._lock:
            sequence = self._sequences.get((peer, tag), 0)
            self._sequences[peer, tag] = sequence + 1
            order = next(self._order)
            message = Outgoing(peer, tag, sequence, data, now_s + priority * self._ageing_s, urgent_s, order)
            heapq.heappush(self._heaps.setdefault(peer, []), message)
            if urgent_s < float("inf"):
                heapq.heappush(self._deadlines.setdefault(peer, []), (urgent_s, order, message))
        return message

    def next(self, can_take: Callable[[int], bool], now_s: float) -> Outgoing | None:
        """The message whose chunk is to go now, among those to peers that can take one; it stays in the box."""
        with self._lock:
            best: Outgoing | None = None
            best_urgent = (float("inf"), 0)
            for peer, heap in self._heaps.items():
                if not heap or not can_take(peer):
                    continue
                urgent = self._urgent(peer, now_s)
                if urgent is not None and (urgent.urgent_s, urgent.order) < best_urgent:
                    best, best_urgent = urgent, (urgent.urgent_s, urgent.order)
                elif best_urgent[0] == float("inf") and (best is None or heap[0] < best):
                    best = heap[0]
            return best

    def _urgent(self, peer: int, now_s: float) -> Outgoing | None:
        deadlines = self._deadlines.get(peer)
        while (
            deadlines
            and deadlines[0][2].sent_bytes >= deadlines[0][2].size_bytes
            and deadlines[0][2].started_s
        ):
            heapq.heappop(deadlines)
        return deadlines[0][2] if deadlines and deadlines[0][0] <= now_s else None

    def remove(self, message: Outgoing) -> None:
        """All of it has been handed over."""
        with self._lock:
            heap = self._heaps[message.peer]
            if heap and heap[0] is message:
                heapq.heappop(heap)
            elif message in heap:
                heap.remove(message)
                heapq.heapify(heap)

    def waiting(self, peer: int) -> bool:
        """Whether anything is left for this peer."""
        return bool(self._heaps.get(peer))

    def fail(self, peer: int, problem: HemiolaError) -> None:
        """Nothing goes to this peer any more."""
        with self._lock:
            lost = self._heaps.pop(peer, [])
            self._deadlines.pop(peer, None)
        for message in lost:
            message.finish(problem)
