"""What the iteration executor executes: tasks that wait for each other and share resources and links.

One type for predictions, planners and job profiles. A task may hold a serial resource (a GPU's
stream, a process' thread, a channel of a collective library), may move bytes over links that it
shares with others, or both. CPU cores shared by several processes are a link too: its "bytes" are
core-seconds, its bandwidth the number of cores, and no task draws more than it has threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Execution", "Tasks"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Tasks:
    """One entry per task in every column; a task depends on any others, but without a cycle.

    A task becomes ready when all it waits for has ended and `release_s` has passed. If it holds a
    resource, it then queues for it; a resource serves one task at a time, without pre-emption. Once
    it starts it takes `duration_s`, and after that moves `size_bytes` over its path, if it has any.

    Attributes:
        duration_s: fixed time; before the first byte (latency) where the task also moves bytes.
        resource: index of the serial resource that it holds from start to end; -1 for none.
        priority: of the ready tasks that queue for a resource the lowest goes first, then the one ready
            first, then the lowest index. On links under "priority" the lowest pre-empts.
        release_s: not before.
        size_bytes: to move; 0 for none.
        rate_max_bytes_per_s: no faster than this, however free the links are; inf for no limit.
        path_start, path: task i moves over the links `path[path_start[i] : path_start[i + 1]]`.
        dep_start, dep: task i waits for `dep[dep_start[i] : dep_start[i + 1]]`.
        resources: number of serial resources.
        in_order: per resource, whether it serves by readiness alone (a queue) and not by priority.
        link_bytes_per_s: bandwidth of every link.
        sharing: "fair" (max-min over the flows on the links) or "priority" (a flow gets what those of
            lower number leave; equals share max-min).
    """

    duration_s: Floats
    resource: Ints
    priority: Ints
    release_s: Floats
    size_bytes: Floats
    rate_max_bytes_per_s: Floats
    path_start: Ints
    path: Ints
    dep_start: Ints
    dep: Ints
    resources: int
    in_order: NDArray[np.bool_]
    link_bytes_per_s: Floats
    sharing: str = "fair"

    def __len__(self) -> int:
        return len(self.duration_s)


@dataclass(frozen=True, eq=False)
class Execution:
    """When each task ran.

    Attributes:
        start_s: it got its resource (or became ready, where it holds none).
        first_byte_s: it began to move bytes; its end where it moves none.
        end_s: it was done.
        blocker: the task whose end let it start, the last it waited for or the one that held its
            resource; -1 if nothing did. Followed back from the last task it is the critical path.
        bound_s: lower bound on the end of all, whatever the order: the longest path or the busiest
            resource or link.
    """

    start_s: Floats
    first_byte_s: Floats
    end_s: Floats
    blocker: Ints
    bound_s: float

    @property
    def makespan_s(self) -> float:
        """When the last task ended; 0 without tasks."""
        return float(self.end_s.max(initial=0.0))
