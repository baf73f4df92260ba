"""The compiled filling of links that flows share, for `kernels.executor.kernel`: max-min, and class by class."""

from __future__ import annotations

import numpy as np

from hemiola.kernels.executor import layout as col
from hemiola.kernels.executor.compiled import Floats, Ints, Shorts, compiled, whole
from hemiola.kernels.executor.layout import Net
from hemiola.kernels.executor.links import gather, place_end, spread, thread, tight, unthread
from hemiola.kernels.executor.orders import dequeue, enqueue, pop, push, sort_by

__all__ = ["resolve"]

LOW = (1 << 32) - 1  # the half of a key that is no priority


@compiled
def fix_rate(
    slot: int, rate: float, flows: Floats, places: Shorts, cells: Shorts, links: Ints, room: Floats
) -> None:
    """Fix a flow's rate and take it from the tight links that it crosses."""
    flows[slot, col.FOUND] = rate
    for cell in range(places[slot, col.CELLS], places[slot, col.CELLS_END]):
        link = whole(cells[cell, col.LINK])
        if tight(link, links):
            room[link] = max(0.0, room[link] - rate)
            links[link, col.UNSET] -= 1


@compiled
def crossed(members: Shorts, net: Net) -> int:
    """Heap the tight links that these flows cross by what each of them could have; how many links."""
    places, cells, links = net.places, net.cells, net.links
    size = 0
    for slot in members:
        net.flows[slot, col.FOUND] = col.UNFOUND
        for cell in range(places[slot, col.CELLS], places[slot, col.CELLS_END]):
            link = whole(cells[cell, col.LINK])
            if tight(link, links):
                if links[link, col.UNSET] == 0:
                    net.heap[size] = link
                    size += 1
                links[link, col.UNSET] += 1
    for at in range(size):
        link = net.heap[at]
        push(net.levels, net.heap, at, net.room[link] / links[link, col.UNSET], link)
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
        limit = min(limit, flows[slot, col.ALONE])
    limits, ordered, at = np.empty(0), members[:0], 0
    while size > 0:
        link = heap[0]
        if links[link, col.UNSET] == 0:
            pop(levels, heap, size)
            size -= 1
            continue
        level = room[link] / links[link, col.UNSET]
        if level > levels[0]:
            pop(levels, heap, size)
            push(levels, heap, size - 1, level, link)
            continue
        if limit <= level:
            if len(ordered) == 0:
                ordered, limits = members.copy(), np.empty(len(members))
                for k in range(len(members)):
                    limits[k] = flows[members[k], col.ALONE]
                sort_by(limits, ordered)
            while limit <= level:
                if flows[ordered[at], col.FOUND] == col.UNFOUND:
                    fix_rate(ordered[at], limit, flows, places, cells, links, room)
                at += 1
                limit = limits[at] if at < len(ordered) else np.inf
            continue
        cell = links[link, col.FIRST]
        while cell >= 0:
            if flows[cells[cell, col.SLOT], col.FOUND] == col.UNFOUND:
                fix_rate(cells[cell, col.SLOT], level, flows, places, cells, links, room)
            cell = cells[cell, col.NEXT]
        room[link] = 0.0
    for slot in members:
        if flows[slot, col.FOUND] == col.UNFOUND:
            flows[slot, col.FOUND] = flows[slot, col.ALONE]


@compiled
def fill_by_class(priority: Ints, net: Net) -> int:
    """Fill the links with the flows of the lowest priority number, then with the next, and so on; how many flows.

    Who waits at a link has its turn only where that is not full yet. What it crosses besides may not
    have been visited: then the more urgent flows there have their turn before.
    """
    slots, count = len(net.ends), gather(net)
    size = take_turns(whole(0), whole(0), count, whole(0), priority, net)
    while size > 0:
        urgency, woken, few = net.turns[0] >> 32, count, 0
        while size > 0 and net.turns[0] >> 32 == urgency:
            item = net.turns[0] & LOW
            dequeue(net.turns, 0, size)
            size -= 1
            if item < slots:
                net.batch[few] = item
                few += 1
            elif not full(item - slots, net):
                count = wake(item - slots, urgency, count, net)
                size = offer(item - slots, size, net)
        for at in range(woken, count):
            net.batch[few] = net.members[at]
            few += 1
        known, visited = count, net.counters[col.CHANGED]
        count = spread(woken, count, net)
        size = take_turns(known, visited, count, size, priority, net)
        if size > 0 and net.turns[0] >> 32 <= urgency:
            for at in range(few):
                enqueue(net.turns, 0, size + at, (urgency << 32) + net.batch[at])
            size += few
            continue
        fill(net.batch[: pause(few, urgency, net)], net)
    return count


@compiled
def take_turns(member: int, visited: int, count: int, size: int, priority: Ints, net: Net) -> int:
    """Give a turn to the members from one on, and to who waits at the links visited from one on; how many turns."""
    for at in range(member, count):
        slot = net.members[at]
        enqueue(net.turns, 0, size, (priority[net.places[slot, col.TASK]] << 32) + slot)
        size += 1
    for at in range(visited, net.counters[col.CHANGED]):
        size = offer(whole(net.changed[at]), size, net)
    return size


@compiled
def offer(link: int, size: int, net: Net) -> int:
    """Give a turn to the most urgent that wait at the link, if any do; how many turns there are then."""
    if net.waits[link, col.SIZE] == 0:
        return size
    urgency = net.waiting[net.waits[link, col.BASE]] >> 32
    enqueue(net.turns, 0, size, (urgency << 32) + len(net.ends) + link)
    return size + 1


@compiled
def full(link: int, net: Net) -> bool:
    """Whether more urgent flows have left nothing of a link that is visited."""
    return bool(tight(link, net.links) and net.room[link] == 0.0)


@compiled
def wake(link: int, urgency: int, count: int, net: Net) -> int:
    """Put those of this priority that wait at the link on their links, as members; how many members."""
    flows, places, cells, links = net.flows, net.places, net.cells, net.links
    base = net.waits[link, col.BASE]
    while net.waits[link, col.SIZE] > 0 and net.waiting[base] >> 32 == urgency:
        slot = net.waiting[base] & LOW
        dequeue(net.waiting, base, net.waits[link, col.SIZE])
        net.waits[link, col.SIZE] -= 1
        thread(
            whole(slot),
            whole(places[slot, col.CELLS]),
            whole(places[slot, col.CELLS_END]),
            cells,
            links,
        )
        places[slot, col.SEEN] = net.counters[col.STAMP]
        flows[slot, col.FOUND] = col.LATER
        net.members[count] = slot
        count += 1
    return count


@compiled
def pause(few: int, urgency: int, net: Net) -> int:
    """Let those of the batch that cross a full link wait there; how many are left."""
    places, cells, links, left = net.places, net.cells, net.links, 0
    for at in range(few):
        slot = net.batch[at]
        net.batch[left] = slot
        left += 1
        for cell in range(places[slot, col.CELLS], places[slot, col.CELLS_END]):
            link = whole(cells[cell, col.LINK])
            if full(link, net):
                enqueue(
                    net.waiting, net.waits[link, col.BASE], net.waits[link, col.SIZE], (urgency << 32) + slot
                )
                net.waits[link, col.SIZE] += 1
                unthread(whole(places[slot, col.CELLS]), whole(places[slot, col.CELLS_END]), cells, links)
                net.flows[slot, col.FOUND] = 0.0
                left -= 1
                break
    return left


@compiled
def resolve(now: float, by_priority: bool, priority: Ints, net: Net) -> None:
    """Give the flows that hang together with the changed links their new rates and ends."""
    flows, places = net.flows, net.places
    if by_priority:
        members = net.members[: fill_by_class(priority, net)]
    else:
        members = net.members[: gather(net)]
        fill(members, net)
    net.counters[col.CHANGED] = 0
    for slot in members:
        rate = flows[slot, col.FOUND]
        if rate != flows[slot, col.RATE]:
            left = max(0.0, flows[slot, col.LEFT] - flows[slot, col.RATE] * (now - flows[slot, col.SINCE]))
            flows[slot, col.LEFT], flows[slot, col.RATE], flows[slot, col.SINCE] = left, rate, now
            end = now + left / rate if rate > 0.0 else np.inf
            place_end(
                net.ends, net.slots, places, net.counters[col.FLOWS], places[slot, col.PLACE], end, slot
            )
