"""Executes tasks on shared resources and links: when would each run? Predictions, planners and profiles ask this.

An event-driven list scheduler (Graham, "Bounds on multiprocessing timing anomalies", 1969) with links
that flows share. Given the tasks, everything is determined:

1. At an instant, first all ends that ends then, and flows begin. What this makes ready and needs no
   resource and no time at all ends with it, and so on.
2. Then each free resource takes the first of its queue: the lowest priority, then the one ready first,
   then the lowest index; in order: the one ready first, then the lowest index. What takes no time at all
   though it holds a resource ends at this same instant; then 1 and 2 are done again, and what becomes
   ready by that counts as ready later.
3. Then flows get their rates: max-min fair, none above its own limit; under "priority" those of the
   lowest number first, the others from what they leave.

Two times are one instant if they are the same float; but the end of a transfer belongs to an instant
that it misses by less than 1e-12 of the transfer's own length. Numba is imported when something is
first executed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hemiola.kernels.executor.tasks import Execution, Tasks, columns_of, refusal, tasks_from_rows, unfinished

__all__ = ["critical_path", "execute", "warm_up"]


def execute(tasks: Tasks) -> Execution:
    """When each task runs. The same tasks give the same answer, to the byte.

    Raises:
        InputError: naming what cannot be: a cycle, a time that is no number of seconds, an index out of
            range, columns of different lengths, bytes over a link that has no bandwidth.

    Example:
        >>> from hemiola.kernels.executor.tasks import Row, tasks_from_rows
        >>> rows = [Row("compute", 2.0, resource="gpu"), Row("send", size_bytes=6.0, path=["wire"], after=["compute"])]
        >>> execute(tasks_from_rows(rows, {"wire": 2.0})).makespan_s
        5.0
    """
    from hemiola.kernels.executor import faults as faults
    from hemiola.kernels.executor import kernel as kernel

    columns = columns_of(tasks)
    fault, task, entry = faults.first_fault(*columns)
    if fault != faults.SOUND:
        raise refusal(fault, task, entry, tasks)
    start, first_byte, end, blocker, awaited, bound, ended = kernel.run(tasks.sharing == "priority", *columns)
    if ended < len(tasks):
        raise unfinished(tasks, awaited)
    return Execution(start, first_byte, end, blocker, min(bound, float(end.max(initial=0.0))))


def critical_path(tasks: Tasks, execution: Execution) -> NDArray[np.int64]:
    """The tasks that made the end as late as it is, first to last.

    Each was let go by the one before it; the last is the one that ended last, of several the lowest
    index. Empty without tasks.
    """
    if len(tasks) == 0:
        return np.empty(0, dtype=np.int64)
    task, path = int(np.argmax(execution.end_s)), []
    while task >= 0:
        path.append(task)
        task = int(execution.blocker[task])
    return np.array(path[::-1], dtype=np.int64)


def warm_up() -> None:
    """Import and compile the executor: seconds the first time, then from a cache."""
    execute(tasks_from_rows([], {}))
