"""The compiled inside of `sim.executor`: the list scheduler, and the filling of links that flows share.

Knows arrays only, and trusts them: `sim.executor` calls `first_fault` before `run`. Importing it
imports Numba, so `sim.executor` does so when something is first executed. What it computes is written
down in `sim.executor`; the slow, clear version is tests/sim/executor_oracle.py. All in one file,
because Numba's cache of compiled code notices a change in a function's own file only. Where time goes,
indices are unsigned, or made so: that spares Numba's look at their sign, a tenth of all.

A flow is a task that is moving bytes. Flows live in slots, which are used again, so that the arrays
at work stay small:
    flows    float64 (slots, 5): bytes left at SINCE, rate, SINCE, rate were it alone, rate being found
    places   int32 (slots, 5): task, place in the heap of ends, stamp of the last visit, first cell,
             end of its cells
    cells    int32 (path entries, 4): slot, next and previous cell on the same link (-1 ends), link
    links    int64 (links, 5): first cell, load, stamp of the last visit, flows without a rate yet,
             whether listed as changed
    ends     float64 (flows now,): a heap of when they end as things stand; `slots` says whose end it is
    counters int64 (5,): flows now, slots ever used, free slots, changed links, visits
A link's load is the sum of what its flows would send were they alone, in units of bandwidth / FULL, in
integers so that it does not drift. Up to FULL a link slows nobody ("open"); only links above ("tight")
tie flows together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["first_fault", "run"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Shorts = NDArray[np.int32]
Indices = NDArray[np.uint32]
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
TASK, PLACE, SEEN, CELLS, CELLS_END = range(5)
SLOT, NEXT, BEFORE, LINK = range(4)
FIRST, LOAD, VISIT, UNSET, LISTED = range(5)
FLOWS, USED, FREE, CHANGED, STAMP = range(5)

FULL = 1 << 40
TIE = 1e-12  # of a flow's time so far: ends that close are one instant
UNFOUND, LATER = -1.0, -2.0  # in FOUND: to be found now, in a later class
ARRIVAL = (1 << 32) - 1  # the low half of a queue's key: how many came before; the high half is the priority
FEW = 32

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
def place_end(ends: Floats, slots: Shorts, places: Shorts, size: int, at: int, end: float, slot: int) -> None:
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


class Net(NamedTuple):
    """All that the links and the flows on them consist of; see the module's head."""

    flows: Floats
    places: Shorts
    cells: Shorts
    links: Ints
    bandwidth: Floats
    ends: Floats
    slots: Shorts
    changed: Shorts
    counters: Ints
    members: Shorts
    room: Floats
    levels: Floats
    heap: Shorts


@compiled
def rate_alone(i: int, rate_max: Floats, path_start: Ints, path: Ints, bandwidth: Floats) -> float:
    """The rate of task i's flow were there no other; inf where nothing limits it."""
    rate: float = rate_max[i]
    for k in range(path_start[i], path_start[i + 1]):
        rate = min(rate, bandwidth[path[k]])
    return rate


@compiled
def share_of(rate: float, bandwidth: float) -> int:
    """The load of a flow that has this rate when alone, in units of bandwidth / FULL, rounded up."""
    return int(np.ceil(rate / bandwidth * FULL))


@compiled
def tight(link: int, links: Ints) -> bool:
    """Whether a link could slow any of its flows, which then are two at least."""
    return bool(links[link, LOAD] > FULL)


@compiled
def note_change(link: int, links: Ints, changed: Shorts, counters: Ints) -> None:
    """List a link whose flows need a new rate."""
    if links[link, LISTED] == 0:
        links[link, LISTED] = 1
        changed[counters[CHANGED]] = link
        counters[CHANGED] += 1


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
    bandwidth: Floats,
    cells: Shorts,
    links: Ints,
    changed: Shorts,
    counters: Ints,
) -> None:
    """Take a flow off its links."""
    for k in range(path_start[i], path_start[i + 1]):
        link, after, before = cells[k, LINK], cells[k, NEXT], cells[k, BEFORE]
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
def gather(net: Net) -> int:
    """List as members the flows that hang together with the changed links through tight ones; how many."""
    places, cells, links, counters = net.places, net.cells, net.links, net.counters
    counters[STAMP] += 1
    stamp, count, done = counters[STAMP], 0, 0
    for at in range(counters[CHANGED]):
        links[net.changed[at], LISTED] = 0
        count = list_flows(net.changed[at], stamp, count, net)
    counters[CHANGED] = 0
    while done < count:
        slot = net.members[done]
        done += 1
        for cell in range(places[slot, CELLS], places[slot, CELLS_END]):
            link = cells[cell, LINK]
            if links[link, VISIT] != stamp and tight(link, links):
                count = list_flows(link, stamp, count, net)
    return count


@compiled
def list_flows(link: int, stamp: int, count: int, net: Net) -> int:
    """Add a link's flows to the members; how many there are then."""
    flows, places, cells = net.flows, net.places, net.cells
    net.links[link, VISIT] = stamp
    net.room[link] = net.bandwidth[link]
    cell = net.links[link, FIRST]
    while cell >= 0:
        slot = cells[cell, SLOT]
        if places[slot, SEEN] != stamp:
            places[slot, SEEN] = stamp
            flows[slot, FOUND] = LATER
            net.members[count] = slot
            count += 1
        cell = cells[cell, NEXT]
    return count


@compiled
def fix_rate(
    slot: int, rate: float, flows: Floats, places: Shorts, cells: Shorts, links: Ints, room: Floats
) -> None:
    """Fix a flow's rate and take it from the tight links that it crosses."""
    flows[slot, FOUND] = rate
    for cell in range(places[slot, CELLS], places[slot, CELLS_END]):
        link = cells[cell, LINK]
        if tight(link, links):
            room[link] = max(0.0, room[link] - rate)
            links[link, UNSET] -= 1


@compiled
def crossed(members: Shorts, net: Net) -> int:
    """Heap the tight links that these flows cross by what each of them could have; how many links."""
    places, cells, links = net.places, net.cells, net.links
    size = 0
    for slot in members:
        net.flows[slot, FOUND] = UNFOUND
        for cell in range(places[slot, CELLS], places[slot, CELLS_END]):
            link = cells[cell, LINK]
            if tight(link, links):
                if links[link, UNSET] == 0:
                    net.heap[size] = link
                    size += 1
                links[link, UNSET] += 1
    for at in range(size):
        link = net.heap[at]
        push(net.levels, net.heap, at, net.room[link] / links[link, UNSET], link)
    return size


@compiled
def fill(members: Shorts, net: Net) -> None:
    """Share what room the links have max-min among these flows, none above its rate alone.

    All rates rise together until a link is full or a flow has its limit, which fixes them; the rest
    rises on (Bertsekas and Gallager, Data Networks, 1992, 6.5.2). A link's level only rises while
    others are fixed, so a heap of levels that are too low at worst gives the next link to be full.
    """
    flows, places, cells, links, room = net.flows, net.places, net.cells, net.links, net.room
    levels, heap = net.levels, net.heap
    size, limit = crossed(members, net), np.inf
    for slot in members:
        limit = min(limit, flows[slot, ALONE])
    limits, ordered, at = np.empty(0), members[:0], 0
    while size > 0:
        link = heap[0]
        if links[link, UNSET] == 0:
            pop(levels, heap, size)
            size -= 1
            continue
        level = room[link] / links[link, UNSET]
        if level > levels[0]:
            pop(levels, heap, size)
            push(levels, heap, size - 1, level, link)
            continue
        if limit <= level:
            if len(ordered) == 0:
                ordered, limits = members.copy(), np.empty(len(members))
                for k in range(len(members)):
                    limits[k] = flows[members[k], ALONE]
                sort_by(limits, ordered)
            while limit <= level:
                if flows[ordered[at], FOUND] == UNFOUND:
                    fix_rate(ordered[at], limit, flows, places, cells, links, room)
                at += 1
                limit = limits[at] if at < len(ordered) else np.inf
            continue
        cell = links[link, FIRST]
        while cell >= 0:
            if flows[cells[cell, SLOT], FOUND] == UNFOUND:
                fix_rate(cells[cell, SLOT], level, flows, places, cells, links, room)
            cell = cells[cell, NEXT]
        room[link] = 0.0
    for slot in members:
        if flows[slot, FOUND] == UNFOUND:
            flows[slot, FOUND] = flows[slot, ALONE]


@compiled
def fill_by_class(members: Shorts, priority: Ints, net: Net) -> None:
    """Fill the links with the flows of the lowest priority number, then with the next, and so on."""
    classes = np.empty(len(members))
    for k in range(len(members)):
        classes[k] = priority[net.places[members[k], TASK]]
    sort_by(classes, members)
    low = 0
    for high in range(1, len(members) + 1):
        if high == len(members) or classes[high] != classes[low]:
            fill(members[low:high], net)
            low = high


@compiled
def resolve(now: float, by_priority: bool, priority: Ints, net: Net) -> None:
    """Give the flows that hang together with the changed links their new rates and ends."""
    flows, places = net.flows, net.places
    members = net.members[: gather(net)]
    if by_priority:
        fill_by_class(members, priority, net)
    else:
        fill(members, net)
    for slot in members:
        rate = flows[slot, FOUND]
        if rate != flows[slot, RATE]:
            left = max(0.0, flows[slot, LEFT] - flows[slot, RATE] * (now - flows[slot, SINCE]))
            flows[slot, LEFT], flows[slot, RATE], flows[slot, SINCE] = left, rate, now
            end = now + left / rate if rate > 0.0 else np.inf
            place_end(net.ends, net.slots, places, net.counters[FLOWS], places[slot, PLACE], end, slot)


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
    start, blocker = np.empty(tasks), np.full(tasks, -1)
    end = release.copy()  # until a task ends, the length of the longest path to its start
    work = np.zeros(resources)
    moved = np.zeros(links_known)

    # queues, one heap per resource, in one array
    base = np.zeros(resources + 1, dtype=np.int64)
    most, released = 0, False
    for i in range(tasks):
        most += size[i] > 0.0
        released |= release[i] > 0.0
        if resource[i] >= 0:
            base[resource[i] + 1] += 1
    for r in range(resources):
        base[r + 1] += base[r]
    queue, arrived = np.empty(base[resources], dtype=np.int64), np.empty(tasks + 1, dtype=np.uint32)
    arrivals_before, arrivals, met = 0, 0, 0
    queued = np.zeros(resources, dtype=np.int32)
    busy = np.zeros(resources, dtype=np.bool_)
    holder = np.zeros(resources, dtype=np.uint32)
    touched = np.empty(tasks + resources + 1, dtype=np.int32)
    touches = 0
    leaves = 1
    while leaves < resources:
        leaves *= 2
    until, winner = np.full(2 * leaves, np.inf), np.zeros(2 * leaves, dtype=np.int32)
    for r in range(leaves):
        winner[leaves + r] = r

    # flows; without any, nothing is written where its first byte would be
    first_byte = np.empty(tasks) if most > 0 else end
    flows, places = np.empty((most, 5)), np.empty((most, 5), dtype=np.int32)
    ends, slots, free = np.empty(most), np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int32)
    members = np.empty(most, dtype=np.int32)
    cells = np.empty((len(path), 4), dtype=np.int32)
    links = np.zeros((links_known, 5), dtype=np.int64)
    links[:, FIRST] = -1
    room, levels = np.empty(links_known), np.empty(links_known)
    changed, heap = np.empty(links_known, dtype=np.int32), np.empty(links_known, dtype=np.int32)
    counters = np.zeros(5, dtype=np.int64)
    begin = np.empty(most, dtype=np.int32)
    net = Net(
        flows, places, cells, links, bandwidth, ends, slots, changed, counters, members, room, levels, heap
    )

    # events: a task's fixed time is over, or (~task) its release has come
    event_time, event_item = np.empty(tasks), np.empty(tasks, dtype=np.int32)
    events = 0
    ended = np.empty(tasks, dtype=np.uint32)
    done, handled, stopped, begins, claims = 0, 0, 0, 0, 0
    sources = 1  # of arrivals since resources last chose: each brings them in order of index, here the start
    now, bound = 0.0, 0.0
    for i in range(tasks):
        awaited[i] = dep_start[i + 1] - dep_start[i]
        if awaited[i] == 0:
            if release[i] > 0.0:
                push(event_time, event_item, events, release[i], ~i)
                events += 1
            else:
                arrived[arrivals] = i
                arrivals += 1

    while True:
        # 1. What has ended frees its resource and readies others; flows begin; what takes no time ends too.
        while handled < stopped or met < arrivals or begins > 0:
            while handled < stopped:
                j = ended[np.uint64(handled)]
                handled += 1
                span = end[j] + duration[j]
                end[j] = now
                bound = max(bound, span)
                if resource[j] >= 0:
                    held = np.uint64(resource[j])
                    work[held] += duration[j]
                    busy[held] = False
                    touched[np.uint64(touches)] = held
                    touches += 1
                for k in range(first[j], first[j + 1]):
                    i = waiters[k]
                    end[i] = max(end[i], span)
                    left = awaited[i] - 1
                    awaited[i] = left
                    blocker[i] = j
                    arrived[np.uint64(arrivals)] = i
                    arrivals += left == 0
                    if released and left == 0 and release[i] > now:
                        push(event_time, event_item, events, release[i], ~np.int64(i))
                        events += 1
                        arrivals -= 1
                        blocker[i] = -1
            done += handled
            sources += handled
            handled, stopped = 0, 0
            while met < arrivals:
                i = arrived[np.uint64(met)]
                met += 1
                if resource[i] >= 0:
                    claims += 1
                else:
                    start[i] = now
                    if duration[i] > 0.0:
                        push(event_time, event_item, events, now + duration[i], i)
                        events += 1
                    elif most > 0 and size[i] > 0.0:
                        begin[begins] = i
                        begins += 1
                    else:
                        ended[stopped] = i
                        stopped += 1
            for at in range(begins):
                i = begin[at]
                first_byte[i] = now
                rate = rate_alone(i, rate_max, path_start, path, bandwidth)
                for k in range(path_start[i], path_start[i + 1]):
                    moved[path[k]] += size[i]
                if rate == np.inf:
                    ended[stopped] = i
                    stopped += 1
                    continue
                end[i] += size[i] / rate
                if resource[i] >= 0:
                    work[resource[i]] += size[i] / rate
                if counters[FREE] > 0:
                    counters[FREE] -= 1
                    slot = free[counters[FREE]]
                else:
                    slot = counters[USED]
                    counters[USED] += 1
                places[slot, TASK], places[slot, SEEN] = i, 0
                places[slot, CELLS], places[slot, CELLS_END] = path_start[i], path_start[i + 1]
                alone = attach(slot, i, rate, path_start, path, bandwidth, cells, links, changed, counters)
                flows[slot, LEFT], flows[slot, SINCE], flows[slot, ALONE] = size[i], now, rate
                flows[slot, RATE] = rate if alone else 0.0
                finish = now + size[i] / rate if alone else np.inf
                last = counters[FLOWS]
                counters[FLOWS] += 1
                place_end(ends, slots, places, last + 1, last, finish, slot)
            begins = 0
        # 2. Each free resource takes the first of its queue.
        if sources > 1 and claims > 1:
            sort_few(arrived, arrivals_before, arrivals)
        for at in range(arrivals_before, arrivals):
            i = arrived[np.uint64(at)]
            if resource[i] < 0:
                continue
            held = np.uint64(resource[i])
            touched[np.uint64(touches)] = held
            touches += not busy[held]
            enqueue(queue, base[held], queued[held], at if in_order[held] else (priority[i] << 32) + at)
            queued[held] += 1
        for at in range(touches):
            held = np.uint64(touched[np.uint64(at)])
            if queued[held] > 0 and not busy[held]:
                place = queue[np.uint64(base[held])] & ARRIVAL
                i = arrived[np.uint64(place)]
                if place < arrivals_before:
                    blocker[i] = holder[held]
                dequeue(queue, base[held], queued[held])
                queued[held] -= 1
                busy[held] = True
                holder[held] = i
                start[i] = now
                if duration[i] > 0.0 or most == 0 or size[i] == 0.0:
                    set_until(until, winner, held, now + duration[i])
                else:
                    begin[begins] = i
                    begins += 1
        touches, sources, claims = 0, 0, 0
        arrivals_before = arrivals
        if begins > 0:
            continue
        # 3. When nothing more happens at this instant, rates are found anew where flows came or went.
        upcoming = until[1]
        if events > 0:
            upcoming = min(upcoming, event_time[0])
        if most > 0:
            if counters[CHANGED] > 0 and upcoming > now and (counters[FLOWS] == 0 or ends[0] > now):
                resolve(now, by_priority, priority, net)
            if counters[FLOWS] > 0:
                upcoming = min(upcoming, ends[0])
        if upcoming == np.inf:
            break
        # 4. On to the next instant.
        now = upcoming
        while counters[FLOWS] > 0:
            slot = slots[0]
            i = places[slot, TASK]
            if ends[0] > now + TIE * (now - first_byte[i]):
                break
            detach(i, flows[slot, ALONE], path_start, bandwidth, cells, links, changed, counters)
            free[counters[FREE]] = slot
            counters[FREE] += 1
            counters[FLOWS] -= 1
            last = counters[FLOWS]
            if last > 0:
                place_end(ends, slots, places, last, 0, ends[last], slots[last])
            ended[stopped] = i
            stopped += 1
        while until[1] <= now:
            held = np.uint64(winner[1])
            i = holder[held]
            set_until(until, winner, held, np.inf)
            if most > 0 and size[i] > 0.0:
                begin[begins] = i
                begins += 1
            else:
                ended[stopped] = i
                stopped += 1
        while events > 0 and event_time[0] <= now:
            item = event_item[0]
            pop(event_time, event_item, events)
            events -= 1
            if item < 0:
                arrived[arrivals] = ~item
                arrivals += 1
                sources += 1
            elif most > 0 and size[item] > 0.0:
                begin[begins] = item
                begins += 1
            else:
                ended[stopped] = item
                stopped += 1

    if most > 0:
        for i in range(tasks):
            if size[i] == 0.0:
                first_byte[i] = end[i]
    for r in range(resources):
        bound = max(bound, work[r])
    for link in range(links_known):
        if moved[link] > 0.0:
            bound = max(bound, moved[link] / bandwidth[link])
    return start, first_byte, end, blocker, awaited, bound, done
