"""The compiled inside of `sim.executor`: the list scheduler, and the filling of links that flows share.

Knows arrays only, and trusts them: `sim.executor` calls `first_fault` before `run`. Importing it
imports Numba, so `sim.executor` does so when something is first executed. What it computes is written
down in `sim.executor`; the slow, clear version is tests/sim/executor_oracle.py. All in one file,
because Numba's cache of compiled code notices a change in a function's own file only.

A flow is a task that is moving bytes. Flows live in slots, which are used again, so that the arrays
at work stay small:
    flows    float64 (slots, 5): bytes left at SINCE, rate, SINCE, rate were it alone, rate being found
    places   int32 (slots, 3): task, place in the heap of ends, stamp of the last visit
    cells    int32 (path entries, 4): slot, next and previous cell on the same link (-1 ends), link
    links    int64 (links, 5): first cell, load, stamp of the last visit, flows without a rate yet,
             whether listed as changed
A link's load is the sum of what its flows would send were they alone, in units of bandwidth / FULL, in
integers so that it does not drift. Up to FULL a link slows nobody ("open"); only links above ("tight")
tie flows together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["first_fault", "run"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Shorts = NDArray[np.int32]
Flags = NDArray[np.bool_]
Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile on first call; keep the result between processes where a folder for it can be written."""
    try:
        made: Function = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # Numba finds no place for its cache
        made = numba.njit(error_model="numpy")(function)
    return made


LEFT, RATE, SINCE, ALONE, FOUND = range(5)
TASK, PLACE, SEEN = range(3)
SLOT, NEXT, BEFORE, LINK = range(4)
FIRST, LOAD, VISIT, UNSET, LISTED = range(5)
ENDS, USED, FREE, CHANGED, STAMP = range(
    5
)  # counters: flows, slots ever used, free slots, changed links, visits

FULL = 1 << 40
ARRIVAL = (1 << 32) - 1  # the low half of a queue's key: the how many-th it is to arrive at any queue; the high half is the priority
TIE = 1e-12  # of a flow's time so far: ends that close are one instant
UNFOUND, LATER = -1.0, -2.0  # in FOUND: to be found now, in a later class

# What `first_fault` finds: the wrong column, in the order of the arguments; then what takes two to be wrong.
SOUND = -1
DURATION, RESOURCE, _, RELEASE, SIZE, RATE_MAX, PATH_START, PATH, DEP_START, DEP, _, BANDWIDTH = range(12)
TWICE, STOPPED = 12, 13


@compiled
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
        for k in range(dep_start[i], dep_start[i + 1]):
            if not 0 <= dep[k] < tasks:
                return DEP, i, dep[k]
    return SOUND, -1, -1


@compiled
def successors(dep_start: Ints, dep: Ints) -> tuple[Shorts, Shorts]:
    """Who waits for task i: `waiters[first[i] : first[i + 1]]`, ascending."""
    tasks = len(dep_start) - 1
    first = np.zeros(tasks + 2, dtype=np.int32)
    waiters = np.empty(len(dep), dtype=np.int32)
    for k in range(len(dep)):
        first[dep[k] + 2] += 1
    for i in range(2, tasks + 2):
        first[i] += first[i - 1]
    for i in range(tasks):
        for k in range(dep_start[i], dep_start[i + 1]):
            waiters[first[dep[k] + 1]] = i
            first[dep[k] + 1] += 1
    return first, waiters


@compiled
def push(keys: NDArray[np.generic], items: Shorts, base: int, size: int, key: float, item: int) -> None:
    """Put into the binary heap of `size` (key, item) that begins at `base`."""
    at = size
    while at > 0:
        above = base + ((at - 1) >> 1)
        if keys[above] <= key:
            break
        keys[base + at], items[base + at] = keys[above], items[above]
        at = above - base
    keys[base + at], items[base + at] = key, item


@compiled
def pop(keys: NDArray[np.generic], items: Shorts, base: int, size: int) -> None:
    """Take out the first of the `size` that were there: the hole sinks to the bottom, then the last rises."""
    last = size - 1
    at, child = 0, 1
    while child + 1 < last:
        child += keys[base + child + 1] < keys[base + child]
        keys[base + at], items[base + at] = keys[base + child], items[base + child]
        at = child
        child = 2 * at + 1
    if child < last:
        keys[base + at], items[base + at] = keys[base + child], items[base + child]
        at = child
    push(keys, items, base, at, keys[base + last], items[base + last])


@compiled
def enqueue(keys: Ints, base: int, size: int, key: int) -> None:
    """Put a key into the queue of `size` that begins at `base`."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if keys[base + above] < key:
            break
        keys[base + at] = keys[base + above]
        at = above
    keys[base + at] = key


@compiled
def dequeue(keys: Ints, base: int, size: int) -> None:
    """Take the first key out of the queue of `size`: the hole sinks to the bottom, then the last key rises."""
    last = size - 1
    at, child = 0, 1
    while child + 1 < last:
        child += keys[base + child + 1] < keys[base + child]
        keys[base + at] = keys[base + child]
        at = child
        child = 2 * at + 1
    if child < last:
        keys[base + at] = keys[base + child]
        at = child
    enqueue(keys, base, at, keys[base + last])


@compiled
def move(ends: Floats, slots: Shorts, places: Shorts, size: int, at: int, end: float, slot: int) -> None:
    """Put a flow that ends then into the hole at place `at` of the heap of ends, up or down as needed."""
    while at > 0 and end < ends[(at - 1) >> 1]:
        above = (at - 1) >> 1
        ends[at], slots[at] = ends[above], slots[above]
        places[slots[at], PLACE] = at
        at = above
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and ends[child + 1] < ends[child]:
            child += 1
        if ends[child] >= end:
            break
        ends[at], slots[at] = ends[child], slots[child]
        places[slots[at], PLACE] = at
        at = child
    ends[at], slots[at] = end, slot
    places[slot, PLACE] = at


@compiled
def rate_alone(i: int, rate_max: Floats, path_start: Ints, path: Ints, bandwidth: Floats) -> float:
    """The rate of task i's flow were there no other; inf where nothing limits it."""
    rate: float = rate_max[i]
    for k in range(path_start[i], path_start[i + 1]):
        rate = min(rate, bandwidth[path[k]])
    return rate


@compiled
def note_change(link: int, links: Ints, changed: Shorts, counters: Ints) -> None:
    """List a link whose flows need a new rate."""
    if links[link, LISTED] == 0:
        links[link, LISTED] = 1
        changed[counters[CHANGED]] = link
        counters[CHANGED] += 1


@compiled
def share_of(rate: float, bandwidth: float) -> int:
    """The load of a flow that has this rate when alone, in units of bandwidth / FULL, rounded up."""
    return int(np.ceil(rate / bandwidth * FULL))


@compiled
def tight(link: int, links: Ints) -> bool:
    """Whether a link could slow any of its flows, which then are two at least."""
    return bool(links[link, LOAD] > FULL)


@compiled
def attach(
    slot: int,
    i: int,
    rate: float,
    path_start: Ints,
    path: Ints,
    bandwidth: Floats,
    cells: Shorts,
    links: Ints,
    changed: Shorts,
    counters: Ints,
) -> bool:
    """Put a flow on its links; whether all of them stay open."""
    free = True
    for k in range(path_start[i], path_start[i + 1]):
        link = path[k]
        head = links[link, FIRST]
        cells[k, SLOT], cells[k, NEXT], cells[k, BEFORE], cells[k, LINK] = slot, head, -1, link
        if head >= 0:
            cells[head, BEFORE] = k
        links[link, FIRST] = k
        links[link, LOAD] += share_of(rate, bandwidth[link])
        if tight(link, links):
            note_change(link, links, changed, counters)
            free = False
    return free


@compiled
def detach(
    i: int,
    rate: float,
    path_start: Ints,
    path: Ints,
    bandwidth: Floats,
    cells: Shorts,
    links: Ints,
    changed: Shorts,
    counters: Ints,
) -> None:
    """Take a flow off its links."""
    for k in range(path_start[i], path_start[i + 1]):
        link, after, before = path[k], cells[k, NEXT], cells[k, BEFORE]
        if before >= 0:
            cells[before, NEXT] = after
        else:
            links[link, FIRST] = after
        if after >= 0:
            cells[after, BEFORE] = before
        if tight(link, links):
            note_change(link, links, changed, counters)
        links[link, LOAD] -= share_of(rate, bandwidth[link])


@compiled
def gather(
    flows: Floats,
    places: Shorts,
    cells: Shorts,
    links: Ints,
    path_start: Ints,
    bandwidth: Floats,
    room: Floats,
    changed: Shorts,
    counters: Ints,
    members: Shorts,
) -> int:
    """List the flows that hang together with the changed links through tight ones; how many."""
    counters[STAMP] += 1
    stamp, count, done = counters[STAMP], 0, 0
    for at in range(counters[CHANGED]):
        link = changed[at]
        links[link, LISTED] = 0
        count = list_flows(link, stamp, flows, places, cells, links, bandwidth, room, members, count)
    counters[CHANGED] = 0
    while done < count:
        i = places[members[done], TASK]
        done += 1
        for k in range(path_start[i], path_start[i + 1]):
            link = cells[k, LINK]
            if links[link, VISIT] != stamp and tight(link, links):
                count = list_flows(link, stamp, flows, places, cells, links, bandwidth, room, members, count)
    return count


@compiled
def list_flows(
    link: int,
    stamp: int,
    flows: Floats,
    places: Shorts,
    cells: Shorts,
    links: Ints,
    bandwidth: Floats,
    room: Floats,
    members: Shorts,
    count: int,
) -> int:
    """Add a link's flows to the members; how many there are then."""
    links[link, VISIT] = stamp
    room[link] = bandwidth[link]
    cell = links[link, FIRST]
    while cell >= 0:
        slot = cells[cell, SLOT]
        if places[slot, SEEN] != stamp:
            places[slot, SEEN] = stamp
            flows[slot, FOUND] = LATER
            members[count] = slot
            count += 1
        cell = cells[cell, NEXT]
    return count


@compiled
def settle_flow(
    slot: int,
    rate: float,
    flows: Floats,
    places: Shorts,
    cells: Shorts,
    links: Ints,
    path_start: Ints,
    room: Floats,
) -> None:
    """Fix a flow's rate and take it from the tight links that it crosses."""
    flows[slot, FOUND] = rate
    i = places[slot, TASK]
    for k in range(path_start[i], path_start[i + 1]):
        link = cells[k, LINK]
        if tight(link, links):
            room[link] = max(0.0, room[link] - rate)
            links[link, UNSET] -= 1


@compiled
def fill(
    members: Shorts,
    flows: Floats,
    places: Shorts,
    cells: Shorts,
    links: Ints,
    path_start: Ints,
    room: Floats,
    levels: Floats,
    heap: Shorts,
) -> None:
    """Share what room the links have max-min among these flows, none above its rate alone.

    All rates rise together until a link is full or a flow has its limit, which fixes them; the rest
    rises on (Bertsekas and Gallager, Data Networks, 1992, 6.5.2). A link's level only rises while
    others are fixed, so a heap of levels that are too low at worst gives the next link to be full.
    """
    size, limit = 0, np.inf
    for slot in members:
        flows[slot, FOUND] = UNFOUND
        limit = min(limit, flows[slot, ALONE])
        i = places[slot, TASK]
        for k in range(path_start[i], path_start[i + 1]):
            link = cells[k, LINK]
            if tight(link, links):
                if links[link, UNSET] == 0:
                    heap[size] = link
                    size += 1
                links[link, UNSET] += 1
    for at in range(size):
        link = heap[at]
        push(levels, heap, 0, at, room[link] / links[link, UNSET], link)
    ordered, at = members[:0], 0
    while size > 0:
        link = heap[0]
        if links[link, UNSET] == 0:
            pop(levels, heap, 0, size)
            size -= 1
            continue
        level = room[link] / links[link, UNSET]
        if level > levels[0]:
            pop(levels, heap, 0, size)
            push(levels, heap, 0, size - 1, level, link)
            continue
        if limit <= level:
            if len(ordered) == 0:
                ordered = members[np.argsort(flows[:, ALONE][members], kind="mergesort")]
            while limit <= level:
                if flows[ordered[at], FOUND] == UNFOUND:
                    settle_flow(ordered[at], limit, flows, places, cells, links, path_start, room)
                at += 1
                limit = flows[ordered[at], ALONE] if at < len(ordered) else np.inf
            continue
        cell = links[link, FIRST]
        while cell >= 0:
            if flows[cells[cell, SLOT], FOUND] == UNFOUND:
                settle_flow(cells[cell, SLOT], level, flows, places, cells, links, path_start, room)
            cell = cells[cell, NEXT]
        room[link] = 0.0
    for slot in members:
        if flows[slot, FOUND] == UNFOUND:
            flows[slot, FOUND] = flows[slot, ALONE]


@compiled
def fill_by_class(
    members: Shorts,
    priority: Ints,
    flows: Floats,
    places: Shorts,
    cells: Shorts,
    links: Ints,
    path_start: Ints,
    room: Floats,
    levels: Floats,
    heap: Shorts,
) -> None:
    """Fill the links with the flows of the lowest priority number, then with the next, and so on."""
    classes = priority[places[:, TASK][members]]
    order = np.argsort(classes, kind="mergesort")
    members[:], classes = members[order], classes[order]
    low = 0
    for high in range(1, len(members) + 1):
        if high == len(members) or classes[high] != classes[low]:
            fill(members[low:high], flows, places, cells, links, path_start, room, levels, heap)
            low = high


@compiled
def resolve(
    now: float,
    by_priority: bool,
    priority: Ints,
    flows: Floats,
    places: Shorts,
    cells: Shorts,
    links: Ints,
    path_start: Ints,
    bandwidth: Floats,
    room: Floats,
    changed: Shorts,
    counters: Ints,
    members: Shorts,
    levels: Floats,
    heap: Shorts,
    ends: Floats,
    slots: Shorts,
) -> None:
    """Give the flows that hang together with the changed links their new rates and ends."""
    count = gather(flows, places, cells, links, path_start, bandwidth, room, changed, counters, members)
    if by_priority:
        fill_by_class(members[:count], priority, flows, places, cells, links, path_start, room, levels, heap)
    else:
        fill(members[:count], flows, places, cells, links, path_start, room, levels, heap)
    for slot in members[:count]:
        rate = flows[slot, FOUND]
        if rate != flows[slot, RATE]:
            left = max(0.0, flows[slot, LEFT] - flows[slot, RATE] * (now - flows[slot, SINCE]))
            flows[slot, LEFT], flows[slot, RATE], flows[slot, SINCE] = left, rate, now
            end = now + left / rate if rate > 0.0 else np.inf
            move(ends, slots, places, counters[ENDS], places[slot, PLACE], end, slot)


@compiled
def sort_few(items: Shorts, since: int, until: int) -> None:
    """Sort a stretch, which is short or nearly in order as a rule."""
    if until - since > 32:
        items[since:until].sort()
        return
    for k in range(since + 1, until):
        item, at = items[k], k
        while at > since and items[at - 1] > item:
            items[at] = items[at - 1]
            at -= 1
        items[at] = item


@compiled
def run(
    by_priority: bool,
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
) -> tuple[Floats, Floats, Floats, Ints, Shorts, float, int]:
    """Start, first byte, end, blocker, dependencies still awaited, lower bound, how many have ended."""
    tasks, resources, links_known = len(duration), len(in_order), len(bandwidth)
    first, waiters = successors(dep_start, dep)
    awaited = np.empty(tasks, dtype=np.int32)
    start, first_byte, end = np.full(tasks, np.nan), np.full(tasks, np.nan), np.full(tasks, np.nan)
    blocker = np.full(tasks, -1)
    longest = release.copy()
    work = np.zeros(resources)
    moved = np.zeros(links_known)

    # queues, one heap per resource, in one array
    base = np.zeros(resources + 1, dtype=np.int64)
    for i in range(tasks):
        if resource[i] >= 0:
            base[resource[i] + 1] += 1
    for r in range(resources):
        base[r + 1] += base[r]
    queue, arrived = np.empty(base[resources], dtype=np.int64), np.empty(base[resources], dtype=np.int32)
    arrivals, arrivals_before = 0, 0
    queued = np.zeros(resources, dtype=np.int32)
    busy = np.zeros(resources, dtype=np.bool_)
    before = np.full(resources, -1, dtype=np.int32)
    touched = np.empty(2 * resources, dtype=np.int32)
    touches = 0

    # flows
    most = 0
    for i in range(tasks):
        most += size[i] > 0.0
    flows, places = np.empty((most, 5)), np.empty((most, 3), dtype=np.int32)
    ends, slots, free = np.empty(most), np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int32)
    members = np.empty(most, dtype=np.int32)
    cells = np.empty((len(path), 4), dtype=np.int32)
    links = np.zeros((links_known, 5), dtype=np.int64)
    links[:, FIRST] = -1
    room, levels = np.empty(links_known), np.empty(links_known)
    changed, heap = np.empty(links_known, dtype=np.int32), np.empty(links_known, dtype=np.int32)
    counters = np.zeros(5, dtype=np.int64)

    # events: a task's fixed time is over, or (~task) its release has come
    event_time, event_item = np.empty(tasks), np.empty(tasks, dtype=np.int32)
    events = 0
    order, ready = np.empty(tasks, dtype=np.int32), np.empty(tasks, dtype=np.int32)
    begin = np.empty(tasks, dtype=np.int32)
    handled, done, readies, begins = 0, 0, 0, 0
    now = 0.0
    for i in range(tasks):
        awaited[i] = dep_start[i + 1] - dep_start[i]
        if awaited[i] == 0:
            if release[i] > 0.0:
                push(event_time, event_item, 0, events, release[i], ~i)
                events += 1
            else:
                ready[readies] = i
                readies += 1

    while True:
        # 1. What has ended frees its resource and readies others; flows begin; what takes no time ends too.
        while handled < done or readies > 0 or begins > 0:
            while handled < done:
                j = order[handled]
                handled += 1
                end[j] = now
                span = longest[j] + duration[j]
                longest[j] = span
                r = resource[j]
                if r >= 0:
                    work[r] += duration[j]
                    busy[r] = False
                    before[r] = j
                    touched[touches] = r
                    touches += 1
                for k in range(first[j], first[j + 1]):
                    i = waiters[k]
                    longest[i] = max(longest[i], span)
                    awaited[i] -= 1
                    if awaited[i] == 0:
                        if release[i] > now:
                            push(event_time, event_item, 0, events, release[i], ~i)
                            events += 1
                        else:
                            blocker[i] = j
                            ready[readies] = i
                            readies += 1
            while readies > 0:
                readies -= 1
                i = ready[readies]
                r = resource[i]
                if r >= 0:
                    arrived[arrivals] = i
                    arrivals += 1
                else:
                    start[i] = now
                    if duration[i] > 0.0:
                        push(event_time, event_item, 0, events, now + duration[i], i)
                        events += 1
                    elif size[i] > 0.0:
                        begin[begins] = i
                        begins += 1
                    else:
                        order[done] = i
                        done += 1
            for at in range(begins):
                i = begin[at]
                first_byte[i] = now
                rate = rate_alone(i, rate_max, path_start, path, bandwidth)
                for k in range(path_start[i], path_start[i + 1]):
                    moved[path[k]] += size[i]
                if rate == np.inf:
                    order[done] = i
                    done += 1
                    continue
                longest[i] += size[i] / rate
                if resource[i] >= 0:
                    work[resource[i]] += size[i] / rate
                if counters[FREE] > 0:
                    counters[FREE] -= 1
                    slot = free[counters[FREE]]
                else:
                    slot = counters[USED]
                    counters[USED] += 1
                flows[slot, LEFT], flows[slot, SINCE], flows[slot, ALONE] = size[i], now, rate
                places[slot, TASK], places[slot, SEEN] = i, 0
                flows[slot, RATE] = 0.0
                finish = np.inf
                if attach(slot, i, rate, path_start, path, bandwidth, cells, links, changed, counters):
                    flows[slot, RATE] = rate
                    finish = now + size[i] / rate
                counters[ENDS] += 1
                move(ends, slots, places, counters[ENDS], counters[ENDS] - 1, finish, slot)
            begins = 0
        # 2. Each free resource takes the first of its queue.
        if arrivals > arrivals_before + 1:
            sort_few(arrived, arrivals_before, arrivals)
        for at in range(arrivals_before, arrivals):
            i = arrived[at]
            r = resource[i]
            if not busy[r] and queued[r] == 0:
                touched[touches] = r
                touches += 1
            enqueue(queue, base[r], queued[r], at if in_order[r] else (priority[i] << 32) + at)
            queued[r] += 1
        for at in range(touches):
            r = touched[at]
            if queued[r] > 0 and not busy[r]:
                at_queue = queue[base[r]] & ARRIVAL
                i = arrived[at_queue]
                if at_queue < arrivals_before:
                    blocker[i] = before[r]
                dequeue(queue, base[r], queued[r])
                queued[r] -= 1
                busy[r] = True
                start[i] = now
                if duration[i] > 0.0 or size[i] == 0.0:
                    push(event_time, event_item, 0, events, now + duration[i], i)
                    events += 1
                else:
                    begin[begins] = i
                    begins += 1
        touches = 0
        arrivals_before = arrivals
        if handled < done or begins > 0:
            continue
        # 3. When nothing more happens at this instant, rates are found anew where flows came or went.
        upcoming = event_time[0] if events > 0 else np.inf
        if counters[CHANGED] > 0 and upcoming > now and (counters[ENDS] == 0 or ends[0] > now):
            resolve(
                now,
                by_priority,
                priority,
                flows,
                places,
                cells,
                links,
                path_start,
                bandwidth,
                room,
                changed,
                counters,
                members,
                levels,
                heap,
                ends,
                slots,
            )
        if counters[ENDS] > 0:
            upcoming = min(upcoming, ends[0])
        if upcoming == np.inf:
            break
        # 4. On to the next instant.
        now = upcoming
        while counters[ENDS] > 0:
            slot = slots[0]
            i = places[slot, TASK]
            if ends[0] > now + TIE * (now - first_byte[i]):
                break
            counters[ENDS] -= 1
            if counters[ENDS] > 0:
                last = counters[ENDS]
                move(ends, slots, places, last, 0, ends[last], slots[last])
            detach(i, flows[slot, ALONE], path_start, path, bandwidth, cells, links, changed, counters)
            free[counters[FREE]] = slot
            counters[FREE] += 1
            order[done] = i
            done += 1
        while events > 0 and event_time[0] <= now:
            item = event_item[0]
            pop(event_time, event_item, 0, events)
            events -= 1
            if item < 0:
                ready[readies] = ~item
                readies += 1
            elif size[item] > 0.0:
                begin[begins] = item
                begins += 1
            else:
                order[done] = item
                done += 1

    bound = 0.0
    for i in range(tasks):
        bound = max(bound, longest[i])
    for r in range(resources):
        bound = max(bound, work[r])
    for link in range(links_known):
        if moved[link] > 0.0:
            bound = max(bound, moved[link] / bandwidth[link])
    return start, first_byte, end, blocker, awaited, bound, done
