"""From an iteration as the hooks left it to numbers: when each transfer began, was needed and let go.

**First byte.** A backend carries out a group's transfers in the order of their being handed over: gloo
on a few threads per group, NCCL on one stream. So a transfer begins when it is handed over, or when its
thread or stream has finished what it had before, whichever is later. Where the thread is known (it is
the one that reported the last byte) that is exact; else the thread that is free first is meant. A full
trace has gloo's own word for it.

**Needed and released.** Where Python waits for one transfer, the wait tells. Where C++ waits for several
at a gate (DDP at the end of backward, in the order of buckets), all are needed when it comes to the gate;
each is released when it and all before it are done, the last when it leaves the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from hemiola.profiler.trace.values import IterationDraft, TransferGate, Instant, Iteration, RecordedTransfer, TransferRow

__all__ = ["GLOO_THREADS", "FirstBytes", "is_heard", "is_settled", "is_told", "settle", "under_way"]

GLOO_THREADS = 2
"""Threads that torch gives each gloo group on each device."""

Resolve = Callable[[Instant], int]


class FirstBytes:
    """When each group's threads will be free: carried from one iteration to the next."""

    def __init__(self) -> None:
        self._free: dict[int, dict[int, int]] = {}

    def begin(self, group: int, thread: int, earliest: int, last: int) -> int:
        """The time of the first byte of a transfer whose predecessors in its group have been asked for.

        Args:
            group: its number.
            thread: which thread or stream carried it out; 0 if not known.
            earliest: when it was handed over and its tensor was there.
            last: the time of its last byte.
        """
        threads = self._free.setdefault(group, {})
        if thread == 0:
            busy = len(threads) >= GLOO_THREADS
            thread = min(threads, key=threads.__getitem__) if busy else 0
        first = min(max(earliest, threads.get(thread, earliest)), last)
        if thread:
            threads[thread] = max(last, threads.get(thread, last))
        return first


def is_settled(draft: IterationDraft, is_known: Callable[[Instant], bool]) -> bool:
    """Whether every transfer has ended, nobody can wait for one any more, and the device has told every time."""
    open_ended = any(one.last is None or _may_be_awaited(one) for one in draft.transfers)
    return not open_ended and is_told(draft, is_known)


def is_heard(draft: IterationDraft) -> bool:
    """Whether every transfer that somebody has waited for has told of its last byte: it does so on the backend's thread,
    and who waits may go on before that."""
    return not any(
        one.last is None
        and (one.released is not None or (one.gate is not None and one.gate.released is not None))
        for one in draft.transfers
    )


def is_told(draft: IterationDraft, is_known: Callable[[Instant], bool]) -> bool:
    """Whether the device has told every time that there is: to read another is to wait for the device."""
    times = [draft.start, draft.end, *(time for phase in draft.phases for time in phase[2:])]
    for transfer in draft.transfers:
        times += [transfer.last, transfer.needed, transfer.released, transfer.first]
        if transfer.gate is not None:
            times += [transfer.gate.needed, transfer.gate.released]
    return all(time is None or isinstance(time, int) or is_known(time) for time in times)


def _may_be_awaited(transfer: RecordedTransfer) -> bool:
    """Whether the script still has what it can wait for it with, and has not: it may in a later iteration."""
    return transfer.released is None and transfer.handle is not None and transfer.handle() is not None


def under_way(drafts: Iterable[IterationDraft], before: int, is_known: Callable[[Instant], bool]) -> list[TransferRow]:
    """The transfers that were handed over before then and have not ended: rows without their other times."""
    return [
        (
            one.sequence,
            one.name,
            one.collective,
            one.group,
            one.size_bytes,
            one.enqueue,
            None,
            None,
            None,
            None,
        )
        for draft in drafts
        for one in list(draft.transfers)  # training adds to those of the last draft meanwhile
        if one.enqueue < before
        and (one.last is None or not (isinstance(one.last, int) or is_known(one.last)))
    ]


def settle(draft: IterationDraft, resolve: Resolve, first_bytes: FirstBytes) -> Iteration:
    """The iteration in numbers; a transfer that has not ended has no last byte."""
    rows = _rows(draft.transfers, resolve, first_bytes)
    start = resolve(draft.start)
    return Iteration(
        number=draft.number,
        start=start,
        end=max(start, resolve(draft.end)),
        complete=draft.complete,
        profiled=draft.profiled,
        phases=[(name, kind, resolve(begin), resolve(end)) for name, kind, begin, end in draft.phases],
        transfers=rows,
    )


def _rows(transfers: Sequence[RecordedTransfer], resolve: Resolve, first_bytes: FirstBytes) -> list[TransferRow]:
    latest: dict[TransferGate, int] = {}
    rows: list[TransferRow] = []
    for transfer in sorted(transfers, key=attrgetter("enqueue")):
        needed = None if transfer.needed is None else resolve(transfer.needed)
        released = None if transfer.released is None else resolve(transfer.released)
        last = None if transfer.last is None else max(resolve(transfer.last), transfer.enqueue)
        gate = transfer.gate
        if needed is None and gate is not None and gate.released is not None and last is not None:
            leaves = resolve(gate.released)
            needed = max(resolve(gate.needed), transfer.enqueue)
            last = min(last, max(leaves, transfer.enqueue))
            latest[gate] = max(latest.get(gate, needed), last)
            released = max(needed, min(latest[gate], leaves))
        elif released is not None and last is not None:
            last = max(min(last, released), transfer.enqueue)
        first = _first(transfer, last, resolve, first_bytes)
        rows.append((
            transfer.sequence, transfer.name, transfer.collective, transfer.group, transfer.size_bytes,
            transfer.enqueue, first, last, needed, released,
        ))  # fmt: skip
    return rows


def _first(transfer: RecordedTransfer, last: int | None, resolve: Resolve, first_bytes: FirstBytes) -> int | None:
    if last is None:
        return None
    earliest = transfer.enqueue if transfer.first is None else max(resolve(transfer.first), transfer.enqueue)
    return first_bytes.begin(transfer.group, transfer.thread, earliest, last)
