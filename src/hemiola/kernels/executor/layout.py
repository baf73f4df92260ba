"""The arrays that the links of `kernels.executor.kernel`, and the flows on them, consist of; and their columns.

A flow is a task that is moving bytes. Flows live in slots, which are used again, so that the arrays
at work stay small:
    flows    float64 (slots, 5): bytes left at SINCE, rate, SINCE, rate were it alone, rate being found
    places   int32 (slots, 5): task, place in the heap of ends, stamp of the last visit, first cell,
             end of its cells
    cells    int32 (path entries, 4): slot, next and previous cell on the same link (-1 ends), link
    links    int64 (links, 5): first cell, load, stamp of the last visit, flows without a rate yet,
             whether listed as changed
    ends     float64 (flows now,): a heap of when they end as things stand; `slots` says whose end it is
    changed  int32 (links,): those whose flows need a new rate; then all that are visited for that
    counters int64 (5,): flows now, slots ever used, free slots, changed links, visits
A link's load is the sum of what its flows would send were they alone, in units of bandwidth / FULL, in
integers so that it does not drift. Up to FULL a link slows nobody ("open"); only links above ("tight")
tie flows together.

Under priority, a flow that a full link stops is paused: it is on no link's list of cells, though part of
the load, and waits at one full link that it crosses until that has room for its priority. So an event
costs what the flows cost that move, however many are paused:
    waiting  int64 (path entries,): a heap per link of keys, the high half a priority, the low half a slot
    waits    int64 (links, 2): where the link's heap begins, and how many wait there
    turns    int64 (slots + links,): whose turn it is, a heap of such keys; a link stands for those that
             wait there
    batch    int32 (slots,): the flows of one priority, while they get their rates
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hemiola.kernels.executor.compiled import Floats, Ints, Shorts, compiled
from hemiola.kernels.executor.orders import offsets

__all__ = ["Net", "no_flows"]

LEFT, RATE, SINCE, ALONE, FOUND = range(5)
TASK, PLACE, SEEN, CELLS, CELLS_END = range(5)
SLOT, NEXT, BEFORE, LINK = range(4)
FIRST, LOAD, VISIT, UNSET, LISTED = range(5)
FLOWS, USED, FREE, CHANGED, STAMP = range(5)
BASE, SIZE = range(2)

FULL = 1 << 40
LATER, UNFOUND = -2.0, -1.0  # in FOUND: to be found in a later class, now


class Net(NamedTuple):
    """All that the links and the flows on them consist of; see the module's head."""

    flows: Floats
    places: Shorts
    cells: Shorts
    links: Ints
    bandwidth: Floats
    ends: Floats
    slots: Shorts
    free: Shorts
    changed: Shorts
    counters: Ints
    members: Shorts
    room: Floats
    levels: Floats
    heap: Shorts
    waiting: Ints
    waits: Ints
    turns: Ints
    batch: Shorts


@compiled
def no_flows(most: int, by_priority: bool, path: Ints, bandwidth: Floats) -> Net:
    """Links without flows, and room for so many."""
    known, entries = len(bandwidth), len(path)
    cells, links = np.empty((entries, 4), dtype=np.int32), np.zeros((known, 5), dtype=np.int64)
    for k in range(entries):
        cells[k, LINK] = path[k]
    for link in range(known):
        links[link, FIRST] = -1
    pausing, at_links = (most, known) if by_priority else (0, 0)
    waits = np.zeros((at_links, 2), dtype=np.int64)
    if by_priority:
        base = offsets(path, known)
        for link in range(known):
            waits[link, BASE] = base[link]
    return Net(
        np.empty((most, 5)), np.empty((most, 5), dtype=np.int32), cells, links, bandwidth,
        np.empty(most), np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int32),
        np.empty(known, dtype=np.int32), np.zeros(5, dtype=np.int64), np.empty(most, dtype=np.int32),
        np.empty(known), np.empty(known), np.empty(known, dtype=np.int32),
        np.empty(entries if by_priority else 0, dtype=np.int64), waits,
        np.empty(pausing + at_links, dtype=np.int64), np.empty(pausing, dtype=np.int32),
    )  # fmt: skip
