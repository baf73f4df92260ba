"""Waiting and running jobs in the order of a policy, kept up to date event by event.

A policy asks its view for `view.queue(order)`. Waiting jobs are grouped by shape, because jobs of
equal shape fit or fail alike: one failed attempt answers for the whole group until something is
freed. So a decision costs a few steps per shape, however long the queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from itertools import islice
from math import inf
from typing import Any, ClassVar

from hemiola.sched.index import Index
from hemiola.sched.inventory import Inventory
from hemiola.sched.job_state import RUNNING, WAITING, JobState

__all__ = ["Order", "Queue"]

MOST_LOOSE = 32
"""So many running jobs without a standing key are looked at; more would cost more than they tell."""

Key = Any  # a float or a tuple of them: whatever the order compares
Entry = tuple[Key, int, JobState]


class Order(ABC):
    """Which job goes first. A value: frozen and hashable; smaller keys go first, ties by arrival."""

    says: ClassVar[str]
    knows_speed: ClassVar[bool] = False
    """Whether a running job's key depends on its speed."""

    @abstractmethod
    def waiting(self, job: JobState, now: float) -> Key:
        """The key of a waiting job; it stays valid until a `Timer` about the job is due."""

    def running(self, job: JobState, now: float) -> Key:
        """The key of a running job at this moment, to be compared with those that wait."""
        return self.waiting(job, now)

    def standing(self, job: JobState, now: float) -> Key | None:
        """A key that sorts the running jobs of one `kind` as `running` does, until an event about the job.

        None while there is none; the job is then asked again each time.
        """
        return self.running(job, now)

    def kind(self, job: JobState) -> Hashable:
        """Running jobs among which `standing` keeps its order as time passes."""
        return 0

    def group(self, job: JobState) -> Hashable:
        """Waiting jobs of one group fit or fail alike."""
        return job.shape


class _Sorted:
    """A sorted list whose front is consumed in constant time."""

    __slots__ = ("entries", "gpus", "start")

    def __init__(self, gpus: int = 0) -> None:
        self.gpus = gpus
        self.entries: list[Entry] = []
        self.start = 0

    def add(self, entry: Entry) -> None:
        entries = self.entries
        if entries and entry < entries[-1]:
            insort(entries, entry, lo=self.start)
        else:
            entries.append(entry)

    def discard(self, entry: Entry) -> None:
        entries, start = self.entries, self.start
        if entries[start] is entry:
            self.start = start + 1
            if start > 64 and start * 2 > len(entries):
                del entries[: start + 1]
                self.start = 0
            return
        del entries[bisect_left(entries, entry, lo=start)]

    def __iter__(self) -> Iterator[Entry]:
        for i in range(self.start, len(self.entries)):
            yield self.entries[i]


class Queue(Index):
    """The jobs of one view in one order.

    Attributes:
        order: the order.
        blocked: groups whose first job found no room since the last release.
        short: per job that stopping others did not help, how many GPUs must be released in all
            before it could.
    """

    __slots__ = (
        "_asked_s",
        "_by_shape",
        "_entry",
        "_groups",
        "_held",
        "_inventory",
        "_loose",
        "_now_running",
        "_running",
        "_seen",
        "_tracks",
        "_worst",
        "blocked",
        "order",
        "short",
    )

    def __init__(self, order: Order, inventory: Inventory, running: Mapping[str, JobState]) -> None:
        self.order = order
        self._now_running = running
        self._loose: dict[int, JobState] = {}
        self._asked_s = -inf
        self._worst: tuple[float, JobState | None] | None = None
        self._tracks = False
        self.blocked: set[Hashable] = set()
        self.short: dict[int, int] = {}
        self._by_shape = type(order).group is Order.group
        self._held: Entry | None = None
        self._groups: dict[Hashable, _Sorted] = {}
        self._running: dict[Hashable, _Sorted] = {}
        self._entry: dict[int, tuple[Entry, _Sorted, Hashable]] = {}
        self._inventory = inventory
        self._seen = -1

    def enter(self, job: JobState, now: float) -> None:
        """File a job under its present status (the state machine calls this)."""
        group: Hashable
        if job.status == WAITING:
            group = job.shape if self._by_shape else self.order.group(job)
            entry = (self.order.waiting(job, now), job.index, job)
            if self._held is not None and entry < self._held:
                self._held = None
            home = self._groups.get(group)
            if home is None:
                home = self._groups[group] = _Sorted(job.gpus)
                home.entries.append(entry)
                self.blocked.discard(group)
            else:
                home.add(entry)
                if home.entries[home.start] is entry:
                    self.blocked.discard(group)
        elif job.status == RUNNING:
            if not self._tracks:
                return
            self._worst = None
            key = self.order.standing(job, now)
            if key is None:
                self._loose[job.index] = job
                return
            group = self.order.kind(job)
            entry = (key, job.index, job)
            home = self._running.get(group)
            if home is None:
                home = self._running[group] = _Sorted()
            home.add(entry)
        else:
            return
        self._entry[job.index] = (entry, home, group)

    def leave(self, job: JobState) -> None:
        """Take a job out before its status changes (the state machine calls this)."""
        if job.status == RUNNING:
            if not self._tracks:
                return
            self._worst = None
        found = self._entry.pop(job.index, None)
        if found is None:
            self._loose.pop(job.index, None)
        else:
            entry, home, group = found
            if entry is self._held:
                self._held = None
            home.discard(entry)
            if home.start == len(home.entries):
                del (self._groups if job.status == WAITING else self._running)[group]

    def refresh(self, job: JobState, now: float) -> None:
        """File a job anew because time or its speed changed its key.

        A running job that fell behind a waiting one may now make room for it.
        """
        before = self._entry.get(job.index)
        if before is None:
            if self._loose.pop(job.index, None) is not None:
                self.enter(job, now)
            return
        if job.status == WAITING:
            self.short.pop(job.index, None)
        self.leave(job)
        self.enter(job, now)
        after = self._entry.get(job.index)
        if job.status == RUNNING and self.blocked and (after is None or after[0] > before[0]):
            key = self.order.running(job, now)
            if any(key > home.entries[home.start][0] for home in self._groups.values()):
                self.unblock()

    def measured(self, job: JobState, now: float) -> None:
        """File a running job anew if its speed is part of its key."""
        if self.order.knows_speed and self._tracks:
            self.refresh(job, now)

    def next(self, most_gpus: int | None = None) -> JobState | None:
        """The first waiting job whose group is not blocked, or None.

        Args:
            most_gpus: pass over jobs that want more.
        """
        if self._seen != self._inventory.releases:
            self._seen = self._inventory.releases
            self._held = None
            self.blocked.clear()
        elif self._held is not None:
            return None
        if not self._groups:
            return None
        best: Entry | None = None
        blocked = self.blocked
        for group, home in self._groups.items():
            if group not in blocked and (most_gpus is None or home.gpus <= most_gpus):
                entry = home.entries[home.start]
                if best is None or entry < best:
                    best = entry
        return None if best is None else best[2]

    def block(self, job: JobState) -> None:
        """Pass over this job's group until something is released."""
        self.blocked.add(self._entry[job.index][2])

    def hold(self, job: JobState) -> None:
        """Hold everyone behind this job, the first, until something is released or one goes before it."""
        self._held = self._entry[job.index][0]

    def unblock(self) -> None:
        """Try every group again, with stopping others too."""
        self._held = None
        self.blocked.clear()
        self.short.clear()

    def group_of(self, job: JobState) -> Iterator[JobState]:
        """The waiting jobs of this job's group, in order."""
        for _, _, other in self._entry[job.index][1]:
            yield other

    def waiting(self) -> list[JobState]:
        """All waiting jobs in order."""
        return [entry[2] for entry in sorted(e for home in self._groups.values() for e in home)]

    def worst(self, now: float) -> JobState | None:
        """The running job that is last in order; worked out once until something changes."""
        if self._worst is None or self._worst[0] != now:
            self._worst = now, self._find_worst(now)
        return self._worst[1]

    def _find_worst(self, now: float) -> JobState | None:
        if not self._tracks or len(self._running) != 1:
            return next(self.worst_first(now), None)
        if self._loose:
            self._settle_loose(now)
        for home in self._running.values():
            last = home.entries[-1][2]
        if not self._loose:
            return last
        running = self.order.running
        few = islice(self._loose.values(), MOST_LOOSE)
        return max([last, *few], key=lambda job: (running(job, now), job.index))

    def worst_first(self, now: float) -> Iterator[JobState]:
        """Running jobs, the last in order first. They are filed from the first call on."""
        if not self._tracks:
            self._tracks = True
            for job in self._now_running.values():
                self.enter(job, now)
        if self._loose:
            self._settle_loose(now)
        homes = list(self._running.values())
        if len(homes) != 1:
            yield from self._merged(homes, now)
            return
        if self._loose:
            yield from self._beside(homes[0], now)
            return
        entries, start = homes[0].entries, homes[0].start
        for at in range(len(entries) - 1, start - 1, -1):
            yield entries[at][2]

    def _beside(self, home: _Sorted, now: float) -> Iterator[JobState]:
        """One sorted list with the few loose jobs in their places."""
        running, entries, start = self.order.running, home.entries, home.start
        at = len(entries) - 1
        loose = [(running(job, now), index) for index, job in islice(self._loose.items(), MOST_LOOSE)]
        for key in sorted(loose, reverse=True):
            while at >= start and (running(entries[at][2], now), entries[at][1]) > key:
                yield entries[at][2]
                at -= 1
            yield self._loose[key[1]]
        for rest in range(at, start - 1, -1):
            yield entries[rest][2]

    def _settle_loose(self, now: float) -> None:
        """File those that have a standing key by now; it is asked for once an instant."""
        if now > self._asked_s:
            self._asked_s = now
            loose, self._loose = self._loose, {}
            for job in loose.values():
                self.enter(job, now)

    def _merged(self, homes: list[_Sorted], now: float) -> Iterator[JobState]:
        running = self.order.running
        heap: list[tuple[_Reversed, int, _Sorted, int]] = []
        for tie, home in enumerate(homes):
            entry = home.entries[-1]
            key = _Reversed((running(entry[2], now), entry[1]))
            heap.append((key, tie, home, len(home.entries) - 1))
        for tie, job in islice(self._loose.items(), MOST_LOOSE):
            alone = _Sorted(job.gpus)
            alone.entries.append((None, job.index, job))
            heap.append((_Reversed((running(job, now), job.index)), -1 - tie, alone, 0))
        heapify(heap)
        while heap:
            _, tie, home, at = heap[0]
            entries = home.entries
            yield entries[at][2]
            if at == home.start:
                heappop(heap)
            else:
                entry = entries[at - 1]
                key = _Reversed((running(entry[2], now), entry[1]))
                heapreplace(heap, (key, tie, home, at - 1))


class _Reversed:
    """Turns a min-heap into a max-heap for any comparable key."""

    __slots__ = ("key",)

    def __init__(self, key: Key) -> None:
        self.key = key

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.key < self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(self.key == other.key)
