"""What keeps itself up to date as jobs change: the base of queues and of policies' own indices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from hemiola.sched.job_state import JobState

__all__ = ["CountIndex", "Index", "lowest", "members"]


class Index(ABC):
    """Something a policy keeps about the jobs: entered and left as their status changes.

    Attributes:
        tracks: whether it wants to know of running jobs, too.
    """

    __slots__ = ()

    tracks: bool = True

    @abstractmethod
    def enter(self, job: JobState, now: float) -> None:
        """A job has a new status."""

    @abstractmethod
    def leave(self, job: JobState) -> None:
        """A job's status is about to change."""

    def refresh(self, job: JobState, now: float) -> None:
        """A timer about the job is due; its status did not change."""
        self.leave(job)
        self.enter(job, now)

    def measured(self, job: JobState, now: float) -> None:  # noqa: B027 - to do nothing is the rule
        """The job's speed changed. Most indexes do not care."""

    def undone(self, job: JobState, now: float) -> None:  # noqa: B027 - to do nothing is the rule
        """What was decided of the job at this instant is not carried out; it is entered next as it was before."""


# Items bucketed by a small count, found by count in a constant number of steps.


def lowest(bits: int) -> int:
    """Index of the lowest set bit."""
    return (bits & -bits).bit_length() - 1


def members(bits: int) -> Iterator[int]:
    """Indices of the set bits, ascending."""
    base = 0
    while bits:
        if bits & 0xFFFFFFFFFFFFFFFF == 0:
            skip = lowest(bits) & ~63
            bits >>= skip
            base += skip
        word = bits & 0xFFFFFFFFFFFFFFFF
        while word:
            low = word & -word
            yield base + low.bit_length() - 1
            word ^= low
        bits >>= 64
        base += 64


class CountIndex:
    """Items 0..n-1, each with a count from 0 to `most`.

    Attributes:
        buckets: `buckets[k]` is the bitset of items whose count is k.
        occupied: bitset of the counts that have items.
    """

    __slots__ = ("bits", "buckets", "occupied")

    def __init__(self, items: int, most: int) -> None:
        self.buckets = [0] * (most + 1)
        self.occupied = 0
        self.bits = [1 << i for i in range(items)]

    def add(self, item: int, count: int) -> None:
        """Enter an item."""
        self.buckets[count] |= self.bits[item]
        self.occupied |= 1 << count

    def remove(self, item: int, count: int) -> None:
        """Take an item out."""
        left = self.buckets[count] ^ self.bits[item]
        self.buckets[count] = left
        if not left:
            self.occupied ^= 1 << count

    def move(self, item: int, old: int, new: int) -> None:
        """Change an item's count."""
        bit, buckets = self.bits[item], self.buckets
        buckets[old] = left = buckets[old] ^ bit
        if not left:
            self.occupied ^= 1 << old
        if not buckets[new]:
            self.occupied |= 1 << new
        buckets[new] |= bit

    def tightest(self, count: int) -> int:
        """The item with the smallest count of at least `count` (ties: lowest index), or -1."""
        over = self.occupied >> count
        if not over:
            return -1
        bucket = self.buckets[count + (over & -over).bit_length() - 1]
        return (bucket & -bucket).bit_length() - 1

    def descending(self, within: int = -1) -> Iterator[tuple[int, int]]:
        """(item, count) from the greatest count down to 1, ties by index; only items of `within`."""
        left = self.occupied & ~1
        while left:
            count = left.bit_length() - 1
            left ^= 1 << count
            bucket = self.buckets[count] if within < 0 else self.buckets[count] & within
            for item in members(bucket):
                yield item, count
