"""The floor: a bare event loop that replays jobs and knows nothing else.

A heap of finishes, hosts bucketed by free GPUs, strict FIFO, best fit. No validation, no
accounting, no network, no reasons. Every speed in the docs is quoted as a multiple of it,
measured in the same run.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush


def replay(jobs: list[tuple[float, int, float]], hosts: int, gpus_per_host: int) -> float:
    """Replay (submit_s, gpus, duration_s) rows; return the mean completion time in seconds."""
    free = [gpus_per_host] * hosts
    buckets: list[set[int]] = [set() for _ in range(gpus_per_host + 1)]
    buckets[gpus_per_host].update(range(hosts))
    total_free = hosts * gpus_per_host
    heap: list[tuple[float, int, list[tuple[int, int]]]] = []
    queue: deque[tuple[float, int, float]] = deque()
    total_s, sequence, i = 0.0, 0, 0

    def take(host: int, count: int) -> None:
        buckets[free[host]].remove(host)
        free[host] -= count
        buckets[free[host]].add(host)

    while i < len(jobs) or heap:
        if heap and (i >= len(jobs) or heap[0][0] <= jobs[i][0]):
            now, _, held = heappop(heap)
            for host, count in held:
                take(host, -count)
                total_free += count
        else:
            now = jobs[i][0]
            queue.append(jobs[i])
            i += 1
        while queue and queue[0][1] <= total_free:
            submit_s, gpus, duration_s = queue.popleft()
            held, left = [], gpus
            while left:
                size = next((k for k in range(left, gpus_per_host + 1) if buckets[k]), 0)
                size = size or next(k for k in range(gpus_per_host, 0, -1) if buckets[k])
                host = next(iter(buckets[size]))
                count = min(left, size)
                take(host, count)
                held.append((host, count))
                left -= count
            total_free -= gpus
            sequence += 1
            heappush(heap, (now + duration_s, sequence, held))
            total_s += now + duration_s - submit_s
    return total_s / max(len(jobs), 1)
