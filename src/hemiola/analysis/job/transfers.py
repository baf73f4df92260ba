"""Transfers: which rows are one collective, how each bucket fared, and who came late.

A collective's rows on different ranks are found by their name, kind and group, and by being the
k-th of that sort in the rank's iteration. Where ranks disagree on how many there are, nobody can say
which belong together, and none is matched. A send belongs to the one receive that has its name, and to no
other send; where the name is no tensor's, it does not say which. Sends and receives in one, and what nobody can name,
do not say whose they are, and are matched with nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemiola.analysis.job.breakdown import Activity, Parts, cut, exposed_between, located
from hemiola.analysis.job.intervals import runs, union
from hemiola.core.job_timeline import JobTimeline, TransferLog

__all__ = ["Lateness", "Matched", "Waiting", "lateness", "matched", "waiting"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_PAIRED = {"send": "send and receive", "recv": "send and receive"}
"""The two ends of one transfer are one collective."""
_VAGUE = frozenset({"send-recv", "unknown"})
"""Between which of the group's ranks these are is not told."""


@dataclass(frozen=True, eq=False)
class Matched:
    """Transfers with their place in the job.

    Attributes:
        log: the transfers.
        arrival_s: when each rank had come: handed over, or where the source does not say that, first byte; on a
            GPU the later of both, as its host hands over what it comes to only later.
        row: index into `Parts` of the iteration in which each was handed over; -1 outside.
        key: equal for the same bucket, kind, group and k in every rank and iteration.
        occurrence: k, from 0: how often the same came before in this rank's iteration.
        instance: equal for rows that are one collective; -1 where that cannot be told.
        instances: how many there are.
    """

    log: TransferLog
    arrival_s: Floats
    row: Ints
    key: Ints
    occurrence: Ints
    instance: Ints
    instances: int


def matched(timeline: JobTimeline, found: Parts) -> Matched:
    """Find what belongs together (see the module's head)."""
    log = timeline.transfers
    handed = np.where(np.isfinite(log.enqueue_s), log.enqueue_s, log.first_byte_s)
    row = located(found, log.rank, log.iteration, handed)
    number = np.where(row >= 0, found.number[row], -1) if len(found) else row
    sort = _dense(log.name, _collectives(timeline)[log.collective], log.group)
    occurrence = _occurrence(log.rank, number, sort, handed)
    key = _dense(sort, occurrence)
    instance = _dense(number, key)
    told = _agreed(log.rank, number, sort) & _has_both_ends(timeline, instance) & ~_vague(timeline)
    instance = np.where(told, instance, -1)
    instances = int(instance.max(initial=-1)) + 1
    return Matched(log, _arrivals(timeline, handed), row, key, occurrence, instance, instances)


def _arrivals(timeline: JobTimeline, handed: Floats) -> Floats:
    """When each transfer's rank had come: with handing it over; on a GPU, whose host is ahead of it, not before the first byte."""
    on_gpu = np.array([rank.device.startswith("cuda") for rank in timeline.ranks], dtype=bool)
    log = timeline.transfers
    return np.where(on_gpu[log.rank], np.maximum(handed, log.first_byte_s), handed)


def _collectives(timeline: JobTimeline) -> Ints:
    """For each name a number, equal for the two ends of a transfer."""
    names = [_PAIRED.get(name, name) for name in timeline.names]
    return np.unique(np.array(names, dtype=object).astype(str), return_inverse=True)[1].astype(np.int64)


def _has_both_ends(timeline: JobTimeline, instance: Ints) -> Bools:
    """Whether rows are of a collective, or of one send and one receive."""
    code = {name: number for number, name in enumerate(timeline.names)}
    sent, received = (
        np.bincount(instance, timeline.transfers.collective == code.get(end, -1))[instance] for end in _PAIRED
    )
    return np.asarray((sent == received) & (sent <= 1))


def _vague(timeline: JobTimeline) -> Bools:
    """Whether rows do not say of which ranks they are."""
    codes = [number for number, name in enumerate(timeline.names) if name in _VAGUE]
    return np.isin(timeline.transfers.collective, codes)


def _dense(*columns: Ints) -> Ints:
    """A number for each row, equal where all columns are."""
    if not len(columns[0]):
        return np.empty(0, dtype=np.int64)
    order = np.lexsort(columns[::-1])
    first = runs(*(column[order] for column in columns))
    number = np.zeros(len(order), dtype=np.int64)
    number[order] = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    return number


def _occurrence(rank: Ints, number: Ints, sort: Ints, when: Floats) -> Ints:
    order = np.lexsort((when, sort, number, rank))
    first = runs(rank[order], number[order], sort[order])
    length = np.diff(np.append(first, len(order)))
    count = np.empty(len(order), dtype=np.int64)
    count[order] = np.arange(len(order)) - np.repeat(first, length)
    return count


def _agreed(rank: Ints, number: Ints, sort: Ints) -> Bools:
    """Whether every rank that took part in an iteration's collectives of a sort did so equally often."""
    mine = _dense(number, sort, rank)
    times = np.bincount(mine)[mine] if len(mine) else mine
    both = _dense(number, sort)
    most = np.zeros(int(both.max(initial=-1)) + 1, dtype=np.int64)
    least = np.full(len(most), np.iinfo(np.int64).max)
    np.maximum.at(most, both, times)
    np.minimum.at(least, both, times)
    return np.asarray(most[both] == least[both])


@dataclass(frozen=True, eq=False)
class Lateness:
    """Who came last to each collective of at least two ranks, one entry each.

    Attributes:
        instance: of the collective.
        last: index of the rank that came last; -1 where the clocks cannot tell.
        margin_s: how much later than the one before it.
        arrival_s: when the last one came.
    """

    instance: Ints
    last: Ints
    margin_s: Floats
    arrival_s: Floats


def lateness(timeline: JobTimeline, found: Matched, chosen: Bools) -> Lateness:
    """Of the chosen rows. The last is known if its margin exceeds both clocks' errors together."""
    log = found.log
    rows = np.flatnonzero(chosen & (found.instance >= 0) & np.isfinite(found.arrival_s))
    rows = rows[np.lexsort((found.arrival_s[rows], found.instance[rows]))]
    first = runs(found.instance[rows])
    stop = np.append(first[1:], len(rows))
    several = stop - first >= 2
    last, second = rows[stop[several] - 1], rows[stop[several] - 2]
    error = np.array([rank.clock_error_s for rank in timeline.ranks], dtype=np.float64)
    margin = found.arrival_s[last] - found.arrival_s[second]
    sure = margin > error[log.rank[last]] + error[log.rank[second]]
    who = np.where(sure & (log.rank[last] != log.rank[second]), log.rank[last], -1)
    return Lateness(found.instance[last], who, margin, found.arrival_s[last])


@dataclass(frozen=True, eq=False)
class Waiting:
    """How long ranks were held up because another had not come, one entry per stretch of it in an iteration.

    Attributes:
        rank: who waited.
        culprit: for whom; -1 for whomever, where that is not told apart.
        row: index into `Parts` of the iteration in which it waited.
        waited_s: exposed time of `rank` between its own arrival (or its first asking for the result,
            if that is later) and the culprit's arrival.
    """

    rank: Ints
    culprit: Ints
    row: Ints
    waited_s: Floats


def waiting(
    found: Matched, late: Lateness, every: Parts, acts: list[Activity], *, together: bool = False
) -> Waiting:
    """Who waited for whom. Several collectives that a rank awaits at once count once per culprit.

    Args:
        every: the iterations; waiting outside of them does not count, as it is in none of their parts.
        together: count them once whoever the culprits are, and tell these not apart.
    """
    log = found.log
    culprit_of = np.full(found.instances + 1, -1, dtype=np.int64)
    arrival_of = np.full(found.instances + 1, np.nan)
    culprit_of[late.instance], arrival_of[late.instance] = late.last, late.arrival_s
    culprit, arrival = culprit_of[found.instance], arrival_of[found.instance]
    low = np.fmax(found.arrival_s, log.needed_s)
    use = (culprit >= 0) & (culprit != log.rank) & (arrival > low) & (found.row >= 0) & (found.instance >= 0)
    culprit = np.full_like(culprit, -1) if together else culprit
    group = _dense(log.rank[use], culprit[use])
    example = np.zeros(int(group.max(initial=-1)) + 1, dtype=np.int64)
    example[group] = np.flatnonzero(use)
    group, start, end = union(group, low[use], arrival[use])
    which, row, start, end = cut(every, log.rank[example[group]], start, end)
    mine = example[group[which]]
    return Waiting(log.rank[mine], culprit[mine], row, exposed_between(acts, log.rank[mine], start, end))
