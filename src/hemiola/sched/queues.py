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
Entry = tuple[Key, int, JobState, "_Sorted"]


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
    """A sorted list of the jobs of one group, or of one kind; its front is consumed in constant time."""

    __slots__ = ("entries", "gpus", "group", "start")

    def __init__(self, group: Hashable, gpus: int = 0) -> None:
        self.group = group
        self.gpus = gpus
        self.entries: list[Entry] = []
        self.start = 0

    def add(self, entry: Entry) -> None:
        entries = self.entries
        if entries and entry < entries[-1]:
            insort(entries, entry, lo=self.start)
        else:
            entries.append(entry)

    def discard(self, entry: Entry) -> bool:
        """Take an entry out; whether that was the last one."""
        entries, start = self.entries, self.start
        if entries[start] is not entry:
            del entries[bisect_left(entries, entry, lo=start)]
            return False
        self.start = start = start + 1
        if start == len(entries) or (start > 64 and start * 2 > len(entries)):
            del entries[:start]
            self.start = 0
        return not entries

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
        "_first_key",
        "_follows_speed",
        "_groups",
        "_held",
        "_homes",
        "_inventory",
        "_loose",
        "_now_running",
        "_running",
        "_seen",
        "_unsorted",
        "_worst",
        "blocked",
        "order",
        "short",
        "tracks",
    )

    def __init__(self, order: Order, inventory: Inventory, running: Mapping[str, JobState]) -> None:
        self.order = order
        self._now_running = running
        self._loose: dict[int, JobState] = {}
        self._unsorted: dict[int, tuple[JobState, float]] = {}  # running jobs with a new key, and since when
        self._asked_s = -inf
        self._worst: tuple[float, JobState | None, tuple[Key, int]] | None = None
        self.tracks = False
        self._follows_speed = order.knows_speed
        self.blocked: set[Hashable] = set()
        self.short: dict[int, int] = {}
        self._by_shape = type(order).group is Order.group
        self._held: Entry | None = None
        self._first_key: Key | None = None  # the least key of a waiting job, once asked for
        self._homes: dict[Hashable, _Sorted] = {}
        self._groups: dict[Hashable, _Sorted] = {}  # those of `_homes` that are not empty
        self._running: dict[Hashable, _Sorted] = {}
        self._entry: dict[int, Entry] = {}
        self._inventory = inventory
        self._seen = -1

    def enter(self, job: JobState, now: float) -> None:
        """File a job under its present status (the state machine calls this)."""
        if job.status != WAITING:
            if job.status == RUNNING and self.tracks:
                self._worst = None
                self._unsorted[job.index] = job, now
            return
        group = job.shape if self._by_shape else self.order.group(job)
        home = self._homes.get(group)
        if home is None:
            home = self._homes[group] = _Sorted(group, job.gpus)
        index = job.index
        entry = self._entry[index] = (self.order.waiting(job, now), index, job, home)
        self._first_key = None
        if self._held is not None and entry < self._held:
            self._held = None
        entries = home.entries
        if not entries:
            self._groups[group] = home
            entries.append(entry)
            self.blocked.discard(group)
        else:
            home.add(entry)
            if entries[home.start] is entry:
                self.blocked.discard(group)

    def leave(self, job: JobState) -> None:
        """Take a job out before its status changes (the state machine calls this)."""
        waits = job.status == WAITING
        if not waits and not self.tracks:
            return
        index = job.index
        entry = self._entry.pop(index, None)
        if waits:
            self._first_key = None
            if entry is self._held:
                self._held = None
        else:
            self._worst = None
            self._unsorted.pop(index, None)
            if entry is None:
                self._loose.pop(index, None)
        if entry is not None:
            home = entry[3]
            if home.discard(entry):
                if waits:
                    del self._groups[home.group]
                    self.blocked.discard(home.group)
                else:
                    del self._running[home.group]

    def refresh(self, job: JobState, now: float) -> None:
        """File a job anew because time or its speed changed its key.

        A running job that fell behind a waiting one may now make room for it.
        """
        if job.status == RUNNING:
            self._rank_anew(job, now)
        elif job.status == WAITING:
            self.short.pop(job.index, None)
            self.leave(job)
            self.enter(job, now)

    def measured(self, job: JobState, now: float) -> None:
        """File a running job anew if its speed is part of its key."""
        if self._follows_speed:
            self._rank_anew(job, now)

    def _rank_anew(self, job: JobState, now: float) -> None:
        """Note that a running job's key is another one from now on; it is sorted when somebody asks."""
        if self.tracks:
            self._worst = None
            if self.blocked and self._is_behind_some(job, now) and self._fell(job, now):
                self.unblock()
            self._unsorted[job.index] = job, now

    def _is_behind_some(self, job: JobState, now: float) -> bool:
        """Whether some waiting job goes before this running one, and so may now have its place."""
        if self._first_key is None and self._groups:
            self._first_key = min([home.entries[home.start][0] for home in self._groups.values()])
        return self._first_key is not None and bool(self.order.running(job, now) > self._first_key)

    def _fell(self, job: JobState, now: float) -> bool:
        """Whether a running job comes later in order than it was filed, as far as is known."""
        before = self._entry.get(job.index)
        if before is None or job.index in self._unsorted:
            return True
        key = self.order.standing(job, now)
        return key is None or bool(key > before[0])

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
        blocked = self.blocked
        if len(blocked) == len(self._groups) or most_gpus == 0:
            return None
        best: Entry | None = None
        for group, home in self._groups.items():
            if group not in blocked and (most_gpus is None or home.gpus <= most_gpus):
                entry = home.entries[home.start]
                if best is None or entry < best:
                    best = entry
        return None if best is None else best[2]

    def block(self, job: JobState) -> None:
        """Pass over this job's group until something is released."""
        self.blocked.add(self._entry[job.index][3].group)

    def hold(self, job: JobState) -> None:
        """Hold everyone behind this job, the first, until something is released or one goes before it."""
        self._held = self._entry[job.index]

    def unblock(self) -> None:
        """Try every group again, with stopping others too."""
        self._held = None
        self.blocked.clear()
        self.short.clear()

    def group_of(self, job: JobState) -> Iterator[JobState]:
        """The waiting jobs of this job's group, in order."""
        for entry in self._entry[job.index][3]:
            yield entry[2]

    def waiting(self) -> list[JobState]:
        """All waiting jobs in order."""
        return [entry[2] for entry in sorted(e for home in self._groups.values() for e in home)]

    def key(self, job: JobState) -> tuple[Key, int]:
        """What sorts a waiting job among the waiting ones."""
        entry = self._entry[job.index]
        return entry[0], entry[1]

    def worst(self, now: float) -> JobState | None:
        """The running job that is last in order; worked out once until something changes."""
        return self._last(now)[1]

    def is_last(self, job: JobState, now: float) -> bool:
        """Whether this waiting job comes after every running one."""
        _, worst, key = self._last(now)
        return worst is None or key <= self.key(job)

    def _last(self, now: float) -> tuple[float, JobState | None, tuple[Key, int]]:
        """(now, the running job that is last in order, what sorts it)."""
        found = self._worst
        if found is None or found[0] != now:
            worst = self._find_worst(now)
            key = (None, -1) if worst is None else (self.order.running(worst, now), worst.index)
            found = self._worst = now, worst, key
        return found

    def _find_worst(self, now: float) -> JobState | None:
        self._settle(now)
        if not self.tracks or len(self._running) != 1:
            return next(self.worst_first(now), None)
        for home in self._running.values():
            last = home.entries[-1][2]
        if not self._loose:
            return last
        running = self.order.running
        few = islice(self._loose.values(), MOST_LOOSE)
        return max([last, *few], key=lambda job: (running(job, now), job.index))

    def worst_first(self, now: float) -> Iterator[JobState]:
        """Running jobs, the last in order first. They are filed from the first call on."""
        if not self.tracks:
            self.tracks = True
            for job in self._now_running.values():
                self._unsorted[job.index] = job, now
        self._settle(now)
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

    def _settle(self, now: float) -> None:
        """Sort those with a new key; file those that have a standing key by now, once an instant."""
        if self._unsorted:
            self._sort()
        if self._loose and now > self._asked_s:
            self._asked_s = now
            loose, self._loose = self._loose, {}
            for job in loose.values():
                key = self.order.standing(job, now)
                if key is None:
                    self._loose[job.index] = job
                else:
                    self._file(job, key).add(self._entry[job.index])

    def _file(self, job: JobState, key: Key) -> _Sorted:
        """Make a running job's entry; the list that it belongs to."""
        kind = self.order.kind(job)
        home = self._running.get(kind)
        if home is None:
            home = self._running[kind] = _Sorted(kind)
        self._entry[job.index] = key, job.index, job, home
        return home

    def _sort(self) -> None:
        """Put the running jobs with a new key where they belong."""
        standing, entry_of = self.order.standing, self._entry
        unsorted, self._unsorted = self._unsorted, {}
        for index, (job, since) in unsorted.items():
            before = entry_of.pop(index, None)
            if before is not None and before[3].discard(before):
                del self._running[before[3].group]
            key = standing(job, since)
            if key is None:
                self._loose[index] = job
            else:
                self._loose.pop(index, None)
                self._file(job, key).add(entry_of[index])

    def _merged(self, homes: list[_Sorted], now: float) -> Iterator[JobState]:
        running = self.order.running
        heap: list[tuple[_Reversed, int, _Sorted, int]] = []
        for tie, home in enumerate(homes):
            entry = home.entries[-1]
            key = _Reversed((running(entry[2], now), entry[1]))
            heap.append((key, tie, home, len(home.entries) - 1))
        for tie, job in islice(self._loose.items(), MOST_LOOSE):
            alone = _Sorted(tie)
            alone.entries.append((None, job.index, job, alone))
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
