"""What `kernels.executor.kernel` and what it calls put in order, compiled: heaps, sorts and offsets in plain arrays.

Numba's own sorts take seconds to compile, so what has to be sorted goes through a heap. Where time
goes, indices are unsigned, or made so: that spares Numba's look at their sign, a tenth of all.
"""

from __future__ import annotations

import numpy as np

from hemiola.kernels.executor.compiled import Floats, Indices, Ints, Shorts, compiled

__all__ = [
    "dequeue", "enqueue", "offsets", "pop", "push", "set_until", "sort_by", "sort_few", "successors",
]  # fmt: skip

FEW = 32


@compiled
def push(keys: Floats, items: Shorts, size: int, key: float, item: int | np.int64) -> None:
    """Put (key, item) into the binary heap of `size`."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if keys[np.uint64(above)] <= key:
            break
        keys[np.uint64(at)], items[np.uint64(at)] = keys[np.uint64(above)], items[np.uint64(above)]
        at = above
    keys[np.uint64(at)], items[np.uint64(at)] = key, item


@compiled
def pop(keys: Floats, items: Shorts, size: int) -> None:
    """Take out the first of `size`: the hole sinks to the bottom, from where the last one rises.

    That compares more than the textbook's way, but no branch of it hangs on the keys.
    """
    last = size - 1
    at, child = 0, 1
    while child + 1 < last:
        child += keys[np.uint64(child + 1)] < keys[np.uint64(child)]
        keys[np.uint64(at)], items[np.uint64(at)] = keys[np.uint64(child)], items[np.uint64(child)]
        at = child
        child = 2 * at + 1
    if child < last:
        keys[np.uint64(at)], items[np.uint64(at)] = keys[np.uint64(child)], items[np.uint64(child)]
        at = child
    push(keys, items, at, keys[np.uint64(last)], items[np.uint64(last)])


@compiled
def enqueue(keys: Ints, base: int, size: int, key: int) -> None:
    """Put a key into the queue of `size` that begins at `base`, a heap as well."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if keys[np.uint64(base + above)] < key:
            break
        keys[np.uint64(base + at)] = keys[np.uint64(base + above)]
        at = above
    keys[np.uint64(base + at)] = key


@compiled
def dequeue(keys: Ints, base: int, size: int) -> None:
    """Take out the first key, as `pop` does."""
    last = size - 1
    at, child = 0, 1
    while child + 1 < last:
        child += keys[np.uint64(base + child + 1)] < keys[np.uint64(base + child)]
        keys[np.uint64(base + at)] = keys[np.uint64(base + child)]
        at = child
        child = 2 * at + 1
    if child < last:
        keys[np.uint64(base + at)] = keys[np.uint64(base + child)]
        at = child
    enqueue(keys, base, at, keys[np.uint64(base + last)])


@compiled
def set_until(until: Floats, winner: Shorts, r: np.uint64, time: float) -> None:
    """Say until when resource r's task takes its fixed time: inf for none.

    `until` is a tree of minima, root at 1, whose leaves are the resources; `winner` says whose minimum.
    """
    at = (len(until) >> 1) + int(r)
    until[np.uint64(at)] = time
    while at > 1:
        one = at & -2
        a, b = until[np.uint64(one)], until[np.uint64(one + 1)]
        who = winner[np.uint64(one)] if a <= b else winner[np.uint64(one + 1)]
        at >>= 1
        until[np.uint64(at)], winner[np.uint64(at)] = min(a, b), who


@compiled
def sort_few(items: Indices, since: int, until: int) -> None:
    """Sort a stretch, which is short or nearly in order as a rule."""
    count = until - since
    if count > FEW:
        keys = np.empty(count, dtype=np.int64)
        for k in range(count):
            enqueue(keys, 0, k, items[since + k])
        for k in range(count):
            items[since + k] = keys[0]
            dequeue(keys, 0, count - k)
        return
    for k in range(since + 1, until):
        item, at = items[k], k
        while at > since and items[at - 1] > item:
            items[at] = items[at - 1]
            at -= 1
        items[at] = item


@compiled
def sort_by(keys: Floats, items: Shorts) -> None:
    """Sort both by the keys. Numba's own sorts take seconds to compile."""
    heap_keys, heap_items = np.empty(len(keys)), np.empty(len(keys), dtype=np.int32)
    for k in range(len(keys)):
        push(heap_keys, heap_items, k, keys[k], items[k])
    for k in range(len(keys)):
        keys[k], items[k] = heap_keys[0], heap_items[0]
        pop(heap_keys, heap_items, len(keys) - k)


@compiled
def offsets(of: Ints, known: int) -> Ints:
    """Where each of the known begins, were the entries (-1: none) put in order."""
    base = np.zeros(known + 1, dtype=np.int64)
    for each in of:
        if each >= 0:
            base[each + 1] += 1
    for each in range(known):
        base[each + 1] += base[each]
    return base


@compiled
def successors(dep_start: Ints, dep: Ints) -> tuple[Indices, Indices]:
    """Who waits for task i: `waiters[first[i] : first[i + 1]]`, ascending."""
    tasks = len(dep_start) - 1
    first = np.zeros(tasks + 2, dtype=np.uint32)
    waiters = np.empty(len(dep), dtype=np.uint32)
    for k in range(len(dep)):
        first[dep[k] + 2] += 1
    for i in range(2, tasks + 2):
        first[i] += first[i - 1]
    for i in range(tasks):
        for k in range(dep_start[i], dep_start[i + 1]):
            waiters[first[dep[k] + 1]] = i
            first[dep[k] + 1] += 1
    return first, waiters
