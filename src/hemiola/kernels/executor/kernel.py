"""The compiled inside of `kernels.executor`: the list scheduler.

Knows arrays only, and trusts them: `kernels.executor` calls `faults.first_fault` before `run`.
Importing it imports Numba, so `kernels.executor` does so when something is first executed. What it computes
is written down in `kernels.executor`; the slow, clear version is tests/helpers/executor_oracle.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hemiola.kernels.executor import compiled as executor_compiled
from hemiola.kernels.executor import layout as col
from hemiola.kernels.executor import layout as executor_layout
from hemiola.kernels.executor import links as executor_links
from hemiola.kernels.executor import orders
from hemiola.kernels.executor import rates as executor_rates
from hemiola.kernels.executor.compiled import Flags, Floats, Ints, Shorts, compiled, kept, sources_of, whole
from hemiola.kernels.executor.layout import no_flows
from hemiola.kernels.executor.links import attach, detach, place_end, rate_alone
from hemiola.kernels.executor.orders import (
    dequeue,
    enqueue,
    offsets,
    pop,
    push,
    set_until,
    sort_few,
    successors,
)
from hemiola.kernels.executor.rates import resolve

__all__ = ["run"]

Executed = tuple[Floats, Floats, Floats, Ints, Shorts, float, int]
"""Start, first byte, end, blocker, dependencies still awaited, lower bound, how many have ended."""

TIE = 1e-12  # of a flow's time so far: ends that close are one instant
ARRIVAL = (1 << 32) - 1  # the low half of a queue's key: how many came before; the high half is the priority


@compiled
def execute(
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
) -> Executed:
    """Start, first byte, end, blocker, dependencies still awaited, lower bound, how many have ended."""
    tasks, resources, links_known = len(duration), len(in_order), len(bandwidth)
    first, waiters = successors(dep_start, dep)
    awaited = np.empty(tasks, dtype=np.int32)
    start, blocker = np.empty(tasks), np.full(tasks, -1)
    end = release.copy()  # until a task ends, the length of the longest path to its start
    work = np.zeros(resources)
    moved = np.zeros(links_known)

    # queues, one heap per resource, in one array
    base = offsets(resource, resources)
    most, released = whole(0), False
    for i in range(tasks):
        most += size[i] > 0.0
        released |= release[i] > 0.0
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
    begin = np.empty(most, dtype=np.int32)
    net = no_flows(most, by_priority, path, bandwidth)
    flows, places, cells, links, ends = net.flows, net.places, net.cells, net.links, net.ends
    slots, free, changed, counters = net.slots, net.free, net.changed, net.counters

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
                if counters[col.FREE] > 0:
                    counters[col.FREE] -= 1
                    slot = free[counters[col.FREE]]
                else:
                    slot = counters[col.USED]
                    counters[col.USED] += 1
                places[slot, col.TASK], places[slot, col.SEEN] = i, 0
                places[slot, col.CELLS], places[slot, col.CELLS_END] = path_start[i], path_start[i + 1]
                alone = attach(slot, i, rate, path_start, path, bandwidth, cells, links, changed, counters)
                flows[slot, col.LEFT], flows[slot, col.SINCE], flows[slot, col.ALONE] = size[i], now, rate
                flows[slot, col.RATE] = rate if alone else 0.0
                finish = now + size[i] / rate if alone else np.inf
                last = counters[col.FLOWS]
                counters[col.FLOWS] += 1
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
            if counters[col.CHANGED] > 0 and upcoming > now and (counters[col.FLOWS] == 0 or ends[0] > now):
                resolve(now, by_priority, priority, net)
            if counters[col.FLOWS] > 0:
                upcoming = min(upcoming, ends[0])
        if upcoming == np.inf:
            break
        # 4. On to the next instant.
        now = upcoming
        while counters[col.FLOWS] > 0:
            slot = slots[0]
            i = places[slot, col.TASK]
            if ends[0] > now + TIE * (now - first_byte[i]):
                break
            detach(i, flows[slot, col.ALONE], path_start, bandwidth, cells, links, changed, counters)
            free[counters[col.FREE]] = slot
            counters[col.FREE] += 1
            counters[col.FLOWS] -= 1
            last = counters[col.FLOWS]
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
    bound = max(bound, busiest(work, moved, bandwidth))
    return start, first_byte, end, blocker, awaited, bound, done


@compiled
def busiest(work: Floats, moved: Floats, bandwidth: Floats) -> float:
    """How long the busiest resource or link is at work."""
    most = 0.0
    for r in range(len(work)):
        most = max(most, work[r])
    for link in range(len(bandwidth)):
        if moved[link] > 0.0:
            most = max(most, moved[link] / bandwidth[link])
    return most


def kept_from(sources: int) -> Callable[..., Executed]:
    """`execute`, kept between processes as long as what it calls has these sources."""

    @kept
    def run(by_priority: bool, *columns: Any) -> Executed:
        return execute(by_priority and sources >= 0, *columns)

    return run


PARTS = (executor_compiled, executor_layout, executor_links, orders, executor_rates)
run = kept_from(sources_of(PARTS))
