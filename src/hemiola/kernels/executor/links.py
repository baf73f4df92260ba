"""The compiled links of `kernels.executor.kernel`: which flows are on them, and which hang together."""

from __future__ import annotations

import numpy as np

from hemiola.kernels.executor import layout as col
from hemiola.kernels.executor.compiled import Floats, Ints, Shorts, compiled, whole
from hemiola.kernels.executor.layout import Net

__all__ = [
    "attach", "detach", "gather", "place_end", "rate_alone", "spread", "thread", "tight", "unthread",
]  # fmt: skip


@compiled
def place_end(ends: Floats, slots: Shorts, places: Shorts, size: int, at: int, end: float, slot: int) -> None:
    """Put a flow that ends then into the hole at place `at` of the heap of ends, up or down as needed."""
    while at > 0 and end < ends[(at - 1) >> 1]:
        above = (at - 1) >> 1
        ends[at], slots[at] = ends[above], slots[above]
        places[slots[at], col.PLACE] = at
        at = above
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and ends[child + 1] < ends[child]:
            child += 1
        if ends[child] >= end:
            break
        ends[at], slots[at] = ends[child], slots[child]
        places[slots[at], col.PLACE] = at
        at = child
    ends[at], slots[at] = end, slot
    places[slot, col.PLACE] = at


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
    return int(np.ceil(rate / bandwidth * col.FULL))


@compiled
def tight(link: int, links: Ints) -> bool:
    """Whether a link could slow any of its flows, which then are two at least."""
    return bool(links[link, col.LOAD] > col.FULL)


@compiled
def note_change(link: int, links: Ints, changed: Shorts, counters: Ints) -> None:
    """List a link whose flows need a new rate."""
    if links[link, col.LISTED] == 0:
        links[link, col.LISTED] = 1
        changed[counters[col.CHANGED]] = link
        counters[col.CHANGED] += 1


@compiled
def thread(slot: int, first: int, end: int, cells: Shorts, links: Ints) -> None:
    """Put a flow on its links' lists."""
    for k in range(first, end):
        link = cells[k, col.LINK]
        head = links[link, col.FIRST]
        cells[k, col.SLOT], cells[k, col.NEXT], cells[k, col.BEFORE] = slot, head, -1
        if head >= 0:
            cells[head, col.BEFORE] = k
        links[link, col.FIRST] = k


@compiled
def unthread(first: int, end: int, cells: Shorts, links: Ints) -> None:
    """Take a flow off its links' lists."""
    for k in range(first, end):
        link, after, before = cells[k, col.LINK], cells[k, col.NEXT], cells[k, col.BEFORE]
        if before >= 0:
            cells[before, col.NEXT] = after
        else:
            links[link, col.FIRST] = after
        if after >= 0:
            cells[after, col.BEFORE] = before


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
    thread(slot, path_start[i], path_start[i + 1], cells, links)
    free = True
    for k in range(path_start[i], path_start[i + 1]):
        link = path[k]
        links[link, col.LOAD] += share_of(rate, bandwidth[link])
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
    unthread(path_start[i], path_start[i + 1], cells, links)
    for k in range(path_start[i], path_start[i + 1]):
        link = whole(cells[k, col.LINK])
        if tight(link, links):
            note_change(link, links, changed, counters)
        links[link, col.LOAD] -= share_of(rate, bandwidth[link])


@compiled
def gather(net: Net) -> int:
    """List as members the flows that hang together with the changed links through tight ones; how many."""
    counters = net.counters
    counters[col.STAMP] += 1
    count = whole(0)
    for at in range(counters[col.CHANGED]):
        net.links[net.changed[at], col.LISTED] = 0
        count = list_flows(whole(net.changed[at]), count, net)
    return spread(whole(0), count, net)


@compiled
def spread(done: int, count: int, net: Net) -> int:
    """Add those that hang together with the members from `done` on; how many there are then."""
    places, cells, links, counters = net.places, net.cells, net.links, net.counters
    stamp = counters[col.STAMP]
    while done < count:
        slot = net.members[done]
        done += 1
        for cell in range(places[slot, col.CELLS], places[slot, col.CELLS_END]):
            link = whole(cells[cell, col.LINK])
            if links[link, col.VISIT] != stamp and tight(link, links):
                net.changed[counters[col.CHANGED]] = link
                counters[col.CHANGED] += 1
                count = list_flows(link, count, net)
    return count


@compiled
def list_flows(link: int, count: int, net: Net) -> int:
    """Add a link's flows to the members; how many there are then."""
    flows, places, cells, stamp = net.flows, net.places, net.cells, net.counters[col.STAMP]
    net.links[link, col.VISIT] = stamp
    net.room[link] = net.bandwidth[link]
    cell = net.links[link, col.FIRST]
    while cell >= 0:
        slot = cells[cell, col.SLOT]
        if places[slot, col.SEEN] != stamp:
            places[slot, col.SEEN] = stamp
            flows[slot, col.FOUND] = col.LATER
            net.members[count] = slot
            count += 1
        cell = cells[cell, col.NEXT]
    return count
