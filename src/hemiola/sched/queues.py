"""Waiting and running jobs in the order of a policy, kept up to date event by event.

A policy asks its view for `view.queue(order)`. Waiting jobs are grouped by shape, because jobs of
equal shape fit or fail alike: one failed attempt answers for the whole group until something is
freed. So a decision costs a few steps per shape, however long the queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Mapping
from heapq import heappop, heappush, merge
from typing import Any, ClassVar

from hemiola.sched.index import Index
from hemiola.sched.inventory import Inventory
from hemiola.sched.job_state import RUNNING, WAITING, JobState

__all__ = ["FALLING", "Order", "Queue"]

FALLING = "falling"
"""The kind of those jobs whose keys are numbers that only fall as time passes, each in its own way."""

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

    def standing(self, job: JobState, now: float) -> Key:
        """A key that sorts the running jobs of one `kind` as `running` does, until an event about the job; of those that
        are `FALLING` what `running` is now."""
        return self.running(job, now)

    def kind(self, job: JobState, now: float) -> Hashable:
        """Running jobs among which `standing` keeps its order as time passes, or `FALLING`."""
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
        "_by_shape",
        "_entry",
        "_first_key",
        "_follows_speed",
        "_groups",
        "_held",
        "_homes",
        "_inventory",
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
        self._unsorted: dict[int, tuple[JobState, float]] = {}  # running jobs with a new key, and since when
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
        """File a running job anew if its key goes on otherwise at another speed; for the moment it is the same."""
        if self._follows_speed and self.tracks:
            self._worst = None
            self._unsorted[job.index] = job, now

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
        return before[3].group != self.order.kind(job, now) or bool(self.order.standing(job, now) > before[0])

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
            self._sort(now)
            self._sift(now)
            running = self.order.running
            worst, last = None, (None, -1)
            for home in self._running.values():
                job = home.entries[-1][2]
                key = running(job, now), job.index
                if worst is None or key > last:
                    worst, last = job, key
            found = self._worst = now, worst, last
        return found

    def worst_first(self, now: float) -> Iterator[JobState]:
        """Running jobs, the last in order first. They are filed from the first call on."""
        self._sort(now)
        backwards = [self._backwards(home, now) for home in self._running.values()]
        if len(backwards) == 1:
            return backwards[0]
        running = self.order.running
        return merge(*backwards, key=lambda job: (running(job, now), job.index), reverse=True)

    def _backwards(self, home: _Sorted, now: float) -> Iterator[JobState]:
        """The jobs of one list, the last in order first."""
        entries, backwards = home.entries, range(len(home.entries) - 1, home.start - 1, -1)
        if home.group != FALLING:
            for at in backwards:
                yield entries[at][2]
            return
        running = self.order.running
        fallen: list[tuple[float, int, JobState]] = []
        for at in backwards:
            key, index, job, _ = entries[at]
            while fallen and fallen[0] < (-key, -index):  # no other one can come after it
                yield heappop(fallen)[2]
            heappush(fallen, (-running(job, now), -index, job))
        while fallen:
            yield heappop(fallen)[2]

    def _sort(self, now: float) -> None:
        """Put the running jobs with a new key where they belong."""
        if not self.tracks:
            self.tracks = True
            self._unsorted = {job.index: (job, now) for job in self._now_running.values()}
        if self._unsorted:
            unsorted, self._unsorted = self._unsorted, {}
            for job, since in unsorted.values():
                self._file(job, since)

    def _sift(self, now: float) -> None:
        """File falling keys anew, until the one that was filed last is the last."""
        home = self._running.get(FALLING)
        while home is not None and len(home.entries) - home.start > 1:
            _, index, job, _ = home.entries[-1]
            if (self.order.running(job, now), index) >= home.entries[-2][:2]:
                return
            self._file(job, now)

    def _file(self, job: JobState, now: float) -> None:
        """Give a running job its place by its key as of then."""
        index = job.index
        before = self._entry.pop(index, None)
        if before is not None and before[3].discard(before):
            del self._running[before[3].group]
        kind = self.order.kind(job, now)
        home = self._running.get(kind)
        if home is None:
            home = self._running[kind] = _Sorted(kind)
        entry = self._entry[index] = self.order.standing(job, now), index, job, home
        home.add(entry)
