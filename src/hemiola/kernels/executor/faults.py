"""The compiled look at the columns before `kernels.executor.kernel` trusts them: what is wrong first?

Calls nothing in other files, so that what is kept of it is compiled anew when it has to be.
"""

from __future__ import annotations

import numpy as np

from hemiola.kernels.executor.compiled import Flags, Floats, Ints, compiled, kept

__all__ = ["SOUND", "first_fault"]

# What `first_fault` finds: the wrong column, in the order of the arguments; then what takes two to be wrong.
SOUND = -1
DURATION, RESOURCE, _, RELEASE, SIZE, RATE_MAX, PATH_START, PATH, DEP_START, DEP, _, BANDWIDTH = range(12)
TWICE, STOPPED = 12, 13


@compiled
def owner(starts: Ints, entry: int) -> int:
    """The task whose entries include this one."""
    task = 0
    while starts[task + 1] <= entry:
        task += 1
    return task


@kept
def first_fault(
    duration: Floats,
    resource: Ints,
    priority: Ints,
    release: Floats,
    size: Floats,
    rate_max: Floats,
    path_start: Ints,
    path: Ints,
    dep_start: Ints,
    dep: Ints,
    in_order: Flags,
    bandwidth: Floats,
) -> tuple[int, int, int]:
    """What is wrong first (SOUND if nothing is), the task, and the link, task or entry that it names."""
    tasks, links = len(duration), len(bandwidth)
    for link in range(links):
        if not bandwidth[link] >= 0.0:
            return BANDWIDTH, -1, link
    if path_start[0] != 0 or path_start[tasks] != len(path):
        return PATH_START, -1, tasks if path_start[0] == 0 else 0
    if dep_start[0] != 0 or dep_start[tasks] != len(dep):
        return DEP_START, -1, tasks if dep_start[0] == 0 else 0
    for i in range(tasks):  # all starts before any is followed
        if path_start[i + 1] < path_start[i]:
            return PATH_START, i, i + 1
        if dep_start[i + 1] < dep_start[i]:
            return DEP_START, i, i + 1
    for k in range(len(dep)):
        if not 0 <= dep[k] < tasks:
            return DEP, owner(dep_start, k), dep[k]
    crossed_by = np.full(links, -1, dtype=np.int32)
    for i in range(tasks):
        if not 0.0 <= duration[i] < np.inf:
            return DURATION, i, i
        if not 0.0 <= release[i] < np.inf:
            return RELEASE, i, i
        if not 0.0 <= size[i] < np.inf:
            return SIZE, i, i
        if not rate_max[i] >= 0.0 or (rate_max[i] == 0.0 and size[i] > 0.0):
            return RATE_MAX, i, i
        if not -1 <= resource[i] < len(in_order):
            return RESOURCE, i, i
        for k in range(path_start[i], path_start[i + 1]):
            link = path[k]
            if not 0 <= link < links:
                return PATH, i, link
            if crossed_by[link] == i:
                return TWICE, i, link
            if bandwidth[link] == 0.0 and size[i] > 0.0:
                return STOPPED, i, link
            crossed_by[link] = i
    return SOUND, -1, -1
