"""The compiled inside of `kernels.fluid`: who shares links with whom, and the filling of those links.

Knows arrays only. Importing it imports Numba, so `kernels.fluid` does so when two jobs first share a
link. The formulas are those of docs/concepts/contention.md; the slow, clear version of `fill` is in
tests/unit/kernels/test_fluid.py. All in one file, because Numba's cache of compiled code notices a change in
a function's own file only.

Arrays, one row per slot, per (job, link) pair ("cell"), or per link:
    jobs     float64 (slots, 10): the columns COMPUTE ... RATE of `kernels.fluid.table`
    rows     int64 (slots, 4): first cell, number of cells, stamp of the last visit, local number
    cells    int64 (cells, 4): link, slot, next and previous cell on the same link (-1 ends)
    factors  float64 (cells,): how many times the job's traffic crosses the link
    links    int64 (links, 5): first cell, whether it can bind, stamp of the last visit, local number,
             number of jobs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from hemiola.kernels.fluid.table import (
    ALONE,
    CAP,
    COMPUTE,
    DRAG,
    DRAG_HIDDEN,
    HIDDEN,
    ITERATION,
    RATE,
    TRAFFIC,
    WEIGHT,
)

__all__ = ["attach", "detach", "mean_load", "settle", "settle_counting"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile on first call; keep the result between processes where a folder for it can be written."""
    try:
        made: Function = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # Numba finds no place for its cache
        made = numba.njit(error_model="numpy")(function)
    return made


FIRST, COUNT, SEEN, LOCAL = range(4)
LINK, SLOT, NEXT, PREVIOUS = range(4)
BINDS, JOBS = 1, 4

TOLERANCE = 1e-12  # of a level, relative: below it Newton's step ends the search
TIE = 1e-12  # of a capacity: jobs that close are stopped together
CHANGED = 1e-9  # of an iteration time, relative: below it nothing is reported
STEPS_MAX = 200  # Newton took 2.7 on average and at most 6; bisection alone would need 60


@compiled
def attach(slot: int, rows: Ints, cells: Ints, links: Ints) -> None:
    """Put a job's cells at the head of their links' lists."""
    for cell in range(rows[slot, FIRST], rows[slot, FIRST] + rows[slot, COUNT]):
        link = cells[cell, LINK]
        head = links[link, FIRST]
        cells[cell, SLOT] = slot
        cells[cell, NEXT] = head
        cells[cell, PREVIOUS] = -1
        if head >= 0:
            cells[head, PREVIOUS] = cell
        links[link, FIRST] = cell
        links[link, JOBS] += 1


@compiled
def detach(slot: int, rows: Ints, cells: Ints, links: Ints) -> None:
    """Take a job's cells out of their links' lists."""
    for cell in range(rows[slot, FIRST], rows[slot, FIRST] + rows[slot, COUNT]):
        after, before = cells[cell, NEXT], cells[cell, PREVIOUS]
        links[cells[cell, LINK], JOBS] -= 1
        if before >= 0:
            cells[before, NEXT] = after
        else:
            links[cells[cell, LINK], FIRST] = after
        if after >= 0:
            cells[after, PREVIOUS] = before


@compiled
def duty(drag: float, drag_hidden: float, rate: float) -> float:
    """Share of time in which a job sends, when it sends at this rate."""
    return 1.0 / max(drag_hidden * rate, drag * rate + 1.0)


@compiled
def can_bind(link: int, capacity: Floats, jobs: Floats, cells: Ints, factors: Floats, links: Ints) -> bool:
    """Whether a link could slow any of its jobs, were they all as fast as they are alone."""
    if links[link, JOBS] < 2:
        return False
    load, own = 0.0, 0.0
    cell = links[link, FIRST]
    while cell >= 0:
        job = cells[cell, SLOT]
        full = factors[cell] * jobs[job, CAP]
        share = full * duty(jobs[job, DRAG], jobs[job, DRAG_HIDDEN], jobs[job, CAP])
        load += share
        own = max(own, full - share)
        cell = cells[cell, NEXT]
    return bool(load + own > capacity[link])


@compiled
def sift_down(heap: Ints, size: int, at: int, keys: Floats) -> None:
    """Restore the heap after the key at position `at` grew."""
    item = heap[at]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and keys[heap[child + 1]] < keys[heap[child]]:
            child += 1
        if keys[heap[child]] >= keys[item]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = item


@compiled
def heap_of(keys: Floats) -> Ints:
    """Indices of `keys` as a binary heap, the smallest first."""
    heap = np.arange(len(keys))
    for at in range(len(keys) // 2 - 1, -1, -1):
        sift_down(heap, len(keys), at, keys)
    return heap


@compiled
def level_of(room: float, low: float, share: Floats, slow: Floats, quick: Floats, busy: Floats) -> float:
    """The lowest level at which one of these jobs, always present, and the others fill the room.

    `low` is a level that is not too high. The load is concave in the level for each job that may be
    the one that is always present, so Newton's steps from below do not overshoot except where that
    job changes; then the bracket holds them. -1.0 if STEPS_MAX do not suffice. `busy` is scratch.
    """
    high, level = np.inf, low
    for _ in range(STEPS_MAX):
        load, slope, own, own_slope = 0.0, 0.0, -1.0, 0.0
        for i in range(len(share)):  # apart from the sums, so that the compiler can vectorise it
            busy[i] = 1.0 / max(quick[i] * level, slow[i] * level + 1.0)
        for i in range(len(share)):
            gain = 0.0 if quick[i] * level > slow[i] * level + 1.0 else busy[i] * busy[i]
            full = share[i] * level
            load += full * busy[i]
            slope += share[i] * gain
            if full * (1.0 - busy[i]) > own:
                own, own_slope = full * (1.0 - busy[i]), share[i] * (1.0 - gain)
        missing = room - load - own
        if missing >= 0.0:
            low = level
        else:
            high = level
        step = missing / (slope + own_slope)
        if abs(step) <= TOLERANCE * level:
            return level + step
        level += step
        if level < low or level > high:
            level = 0.5 * (low + high)
        if high - low <= TOLERANCE * low:
            return low
    return -1.0


@compiled
def fill(
    weight: Floats,
    cap: Floats,
    drag: Floats,
    drag_hidden: Floats,
    row_start: Ints,
    row_link: Ints,
    row_factor: Floats,
    link_start: Ints,
    capacity: Floats,
) -> Floats:
    """Rates of one component's jobs by progressive filling; empty if a level was not found.

    The lowest level of all (of a link or of a job's own limit) is final: stop the jobs that set it,
    charge their mean load to their links, and go on. A link's level only rises as jobs stop, so an
    old level bounds it from below and is renewed only when it has become the lowest.
    """
    rate = np.full(len(cap), -1.0)
    room, end, stale = capacity.copy(), link_start[1:].copy(), np.ones(len(capacity), np.bool_)
    member, share, slow, quick = by_link(
        weight, drag, drag_hidden, row_start, row_link, row_factor, link_start
    )
    limit, level, busy = cap / weight, np.empty(len(capacity)), np.empty(len(share))
    for link in range(len(capacity)):
        level[link] = capacity[link] / share[link_start[link] : end[link]].sum()
    by_limit, by_level, waiting = heap_of(limit), heap_of(level), len(cap)
    while waiting > 0:
        job, link = by_limit[0], by_level[0]
        if rate[job] >= 0.0 or limit[job] <= level[link]:
            if rate[job] < 0.0:
                stop(job, cap[job], rate, room, stale, drag, drag_hidden, row_start, row_link, row_factor)
            waiting -= 1
            by_limit[0] = by_limit[waiting]
            sift_down(by_limit, waiting, 0, limit)
            continue
        begin = link_start[link]
        if stale[link]:
            end[link] = drop_stopped(begin, end[link], rate, member, share, slow, quick)
            stale[link] = False
            if begin == end[link]:
                level[link] = np.inf
            else:
                here = slice(begin, end[link])
                level[link] = level_of(
                    room[link], level[link], share[here], slow[here], quick[here], busy[here]
                )
            if level[link] < 0.0:
                return np.empty(0)
            sift_down(by_level, len(capacity), 0, level)
            continue
        most = 0.0
        for i in range(begin, end[link]):
            busy[i] = share[i] * level[link] * (1.0 - duty(slow[i], quick[i], level[link]))
            most = max(most, busy[i])
        for i in range(begin, end[link]):
            if busy[i] >= most - TIE * capacity[link]:
                job = member[i]
                value = weight[job] * level[link]
                stop(job, value, rate, room, stale, drag, drag_hidden, row_start, row_link, row_factor)
    return rate


@compiled
def by_link(
    weight: Floats,
    drag: Floats,
    drag_hidden: Floats,
    row_start: Ints,
    row_link: Ints,
    row_factor: Floats,
    link_start: Ints,
) -> tuple[Ints, Floats, Floats, Floats]:
    """Link by link: its jobs, and of each what it sends per unit of level and its two drags per level."""
    at, size = link_start.copy(), len(row_link)
    member, share, slow, quick = np.empty(size, np.int64), np.empty(size), np.empty(size), np.empty(size)
    for job in range(len(weight)):
        for i in range(row_start[job], row_start[job + 1]):
            place = at[row_link[i]]
            at[row_link[i]] += 1
            member[place], share[place] = job, weight[job] * row_factor[i]
            slow[place], quick[place] = weight[job] * drag[job], weight[job] * drag_hidden[job]
    return member, share, slow, quick


@compiled
def drop_stopped(
    begin: int, end: int, rate: Floats, member: Ints, share: Floats, slow: Floats, quick: Floats
) -> int:
    """Close the ranks of a link's jobs that still grow; their new end."""
    kept = begin
    for i in range(begin, end):
        if rate[member[i]] < 0.0:
            member[kept], share[kept], slow[kept], quick[kept] = member[i], share[i], slow[i], quick[i]
            kept += 1
    return kept


@compiled
def stop(
    job: int,
    value: float,
    rate: Floats,
    room: Floats,
    stale: NDArray[np.bool_],
    drag: Floats,
    drag_hidden: Floats,
    row_start: Ints,
    row_link: Ints,
    row_factor: Floats,
) -> None:
    """Fix a job's rate, and take its mean load out of its links' room."""
    rate[job] = value
    mean = value * duty(drag[job], drag_hidden[job], value)
    for i in range(row_start[job], row_start[job + 1]):
        room[row_link[i]] -= row_factor[i] * mean
        stale[row_link[i]] = True


@compiled
def component(
    slot: int, stamp: int, queue: Ints, found: Ints, rows: Ints, cells: Ints, links: Ints
) -> tuple[int, int, int]:
    """Jobs (`queue`) and binding links (`found`) that hang together with a job; how many, and cells."""
    queue[0], jobs, size, pairs, at = slot, 1, 0, 0, 0
    rows[slot, SEEN], rows[slot, LOCAL] = stamp, 0
    while at < jobs:
        job = queue[at]
        at += 1
        for cell in range(rows[job, FIRST], rows[job, FIRST] + rows[job, COUNT]):
            link = cells[cell, LINK]
            if links[link, BINDS] == 0:
                continue
            pairs += 1
            if links[link, SEEN] == stamp:
                continue
            links[link, SEEN], links[link, LOCAL] = stamp, size
            found[size] = link
            size += 1
            other = links[link, FIRST]
            while other >= 0:
                neighbour = cells[other, SLOT]
                if rows[neighbour, SEEN] != stamp:
                    rows[neighbour, SEEN], rows[neighbour, LOCAL] = stamp, jobs
                    queue[jobs] = neighbour
                    jobs += 1
                other = cells[other, NEXT]
    return jobs, size, pairs


@compiled
def solve(
    members: Ints,
    found: Ints,
    pairs: int,
    jobs: Floats,
    rows: Ints,
    cells: Ints,
    factors: Floats,
    links: Ints,
    capacity: Floats,
) -> Floats:
    """Gather one component into arrays of its own, and fill it."""
    row_start, row_link, row_factor = np.empty(len(members) + 1, np.int64), np.empty(pairs, np.int64), np.empty(pairs)  # fmt: skip
    link_start, local = np.zeros(len(found) + 1, np.int64), jobs[members]
    at = 0
    for i in range(len(members)):
        row_start[i] = at
        first = rows[members[i], FIRST]
        for cell in range(first, first + rows[members[i], COUNT]):
            link = cells[cell, LINK]
            if links[link, BINDS] != 0:
                row_link[at], row_factor[at] = links[link, LOCAL], factors[cell]
                link_start[links[link, LOCAL] + 1] += 1
                at += 1
    row_start[len(members)] = at
    return fill(
        local[:, WEIGHT].copy(),
        local[:, CAP].copy(),
        local[:, DRAG].copy(),
        local[:, DRAG_HIDDEN].copy(),
        row_start,
        row_link,
        row_factor,
        np.cumsum(link_start),
        capacity[found],
    )


@compiled
def publish(slot: int, iteration_s: float, rate: float, jobs: Floats, changed: Ints, count: int) -> int:
    """Store a job's new iteration time, and list the job if that changed; the new length of the list."""
    jobs[slot, RATE] = rate
    old = jobs[slot, ITERATION]
    if abs(iteration_s - old) <= CHANGED * old:
        return count
    jobs[slot, ITERATION] = iteration_s
    changed[count] = slot
    return count + 1


@compiled
def publish_filled(slot: int, value: float, mean: bool, jobs: Floats, changed: Ints, count: int) -> int:
    """Turn what `fill` found (a sending rate, or with `mean` a mean rate) into an iteration time."""
    compute, hidden, traffic = jobs[slot, COMPUTE], jobs[slot, HIDDEN], jobs[slot, TRAFFIC]
    if mean and value < jobs[slot, CAP]:
        iteration_s = traffic / value
        sending_s = max(iteration_s - compute + hidden, traffic / jobs[slot, ALONE])
        return publish(slot, iteration_s, traffic / sending_s, jobs, changed, count)
    rate = jobs[slot, ALONE] if mean else value
    return publish(slot, compute + max(0.0, traffic / rate - hidden), rate, jobs, changed, count)


@compiled
def affected(
    stamp: int,
    dirty: Ints,
    touched: Ints,
    jobs: Floats,
    rows: Ints,
    cells: Ints,
    factors: Floats,
    links: Ints,
    capacity: Floats,
    any_shared: bool,
) -> Ints:
    """The touched jobs, and those on dirty links that bound or bind now (or, with `any_shared`, all)."""
    seeds, count = np.empty(len(jobs), np.int64), 0
    for slot in touched:
        if rows[slot, SEEN] != -stamp:
            rows[slot, SEEN] = -stamp
            seeds[count] = slot
            count += 1
    for link in dirty:
        before = links[link, BINDS]
        links[link, BINDS] = any_shared or can_bind(link, capacity, jobs, cells, factors, links)
        cell = links[link, FIRST] if before + links[link, BINDS] > 0 else -1
        while cell >= 0:
            if rows[cells[cell, SLOT], SEEN] != -stamp:
                rows[cells[cell, SLOT], SEEN] = -stamp
                seeds[count] = cells[cell, SLOT]
                count += 1
            cell = cells[cell, NEXT]
    return seeds[:count]


@compiled
def settle(
    stamp: int,
    mean: bool,
    dirty: Ints,
    touched: Ints,
    jobs: Floats,
    rows: Ints,
    cells: Ints,
    factors: Floats,
    links: Ints,
    capacity: Floats,
    changed: Ints,
) -> int:
    """Solve every component that the dirty links or touched jobs belong to.

    Returns the number of jobs in `changed`, or -1 if a level was not found.
    """
    queue, found, count = np.empty(len(jobs), np.int64), np.empty(len(links), np.int64), 0
    for seed in affected(stamp, dirty, touched, jobs, rows, cells, factors, links, capacity, False):
        if rows[seed, SEEN] == stamp:
            continue
        size, width, pairs = component(seed, stamp, queue, found, rows, cells, links)
        if width > 0:
            rate = solve(queue[:size], found[:width], pairs, jobs, rows, cells, factors, links, capacity)
        else:
            rate = jobs[queue[:1], CAP]
        if len(rate) == 0:
            return -1
        for i in range(size):
            count = publish_filled(queue[i], rate[i], mean, jobs, changed, count)
    return count


@compiled
def settle_counting(
    stamp: int,
    penalty: float,
    dirty: Ints,
    touched: Ints,
    jobs: Floats,
    rows: Ints,
    cells: Ints,
    factors: Floats,
    links: Ints,
    capacity: Floats,
    changed: Ints,
) -> int:
    """The same where a link with k jobs takes k + (k - 1) * penalty times as long per byte."""
    count = 0
    for slot in affected(stamp, dirty, touched, jobs, rows, cells, factors, links, capacity, True):
        slowest = 0.0
        for cell in range(rows[slot, FIRST], rows[slot, FIRST] + rows[slot, COUNT]):
            link = cells[cell, LINK]
            competitors = links[link, JOBS]
            times = competitors + (competitors - 1) * penalty
            slowest = max(slowest, factors[cell] * times / capacity[link])
        rate = 1.0 / slowest if slowest > 0.0 else np.inf
        count = publish_filled(slot, rate, False, jobs, changed, count)
    return count


@compiled
def mean_load(slots: Ints, jobs: Floats, rows: Ints, cells: Ints, factors: Floats, load: Floats) -> None:
    """Add the mean bytes/s of these jobs to the links they use."""
    for slot in slots:
        if np.isnan(jobs[slot, ITERATION]):
            continue
        mean = jobs[slot, TRAFFIC] / jobs[slot, ITERATION]
        for cell in range(rows[slot, FIRST], rows[slot, FIRST] + rows[slot, COUNT]):
            load[cells[cell, LINK]] += mean * factors[cell]
