"""What a rank keeps of its own running: in memory while it happens, then as lines of its part file.

Times are nanoseconds of the rank's own monotonic clock; `merge` brings them onto one clock. A time may
also stand as an event of a device (`device.py`) until the device has passed it. Knows no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

__all__ = [
    "PART_SCHEMA",
    "ClockSample",
    "End",
    "FirstBytes",
    "Instant",
    "Iteration",
    "IterationDraft",
    "LateTransfers",
    "Line",
    "PartFacts",
    "PartHead",
    "RankGroup",
    "RecordedTransfer",
    "TraceOptions",
    "TransferGate",
    "TransferRow",
    "is_heard",
    "is_settled",
    "is_told",
    "settle",
    "under_way",
]


PART_SCHEMA = "hemiola.record-part/1"

Instant = Any
"""Nanoseconds, or an event of a device that will tell them."""


class TraceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to record.

    Attributes:
        path: the timeline to write in the end; what is asked for on demand lies beside it.
        parts: the folder with one part per rank, on a disk that all ranks share; "": nothing is kept, only reported
            (`keeper`).
        mode: "light" or "full".
        listen: "HOST:PORT" of the metrics server, the port being that of the host's first rank; "" for none.
        keep_iterations: so many are kept at least, and twice as many at most.
        demand_iterations: length of a trace asked for by signal.
        answer_signal: whether SIGUSR2 asks for a trace.
        clock_skew_s: added to this rank's clock, to test what puts the clocks right.
    """

    path: str
    parts: str
    mode: str = "light"
    listen: str = ""
    keep_iterations: int = 1000
    demand_iterations: int = 5
    answer_signal: bool = True
    clock_skew_s: float = 0.0


class TransferGate:
    """A place where a consumer waits for several transfers at once: it came, and it went on."""

    __slots__ = ("needed", "released")

    def __init__(self, needed: Instant) -> None:
        self.needed = needed
        self.released: Instant = None


class RecordedTransfer:
    """One tensor or bucket on its way, filled in by the hooks as it goes."""

    __slots__ = (
        "clock", "collective", "enqueue", "first", "gate", "group", "handle", "last", "name", "needed", "released",
        "sequence", "size_bytes", "thread",
    )  # fmt: skip

    def __init__(
        self,
        sequence: int,
        name: str,
        collective: str,
        group: int,
        size_bytes: int,
        enqueue: int,
        clock: Callable[[], Instant],
    ) -> None:
        self.sequence = sequence
        self.name = name
        self.collective = collective
        self.group = group
        self.size_bytes = size_bytes
        self.enqueue = enqueue
        self.clock = clock
        self.first: Instant = None
        self.last: Instant = None
        self.needed: Instant = None
        self.released: Instant = None
        self.gate: TransferGate | None = None
        self.handle: Callable[[], Any] | None = None
        """The work that the script may wait for, as long as it has it."""
        self.thread = 0


class IterationDraft:
    """An iteration while it runs: phases are (name, kind, start, end)."""

    __slots__ = (
        "complete",
        "demand",
        "demand_ends",
        "end",
        "number",
        "operations",
        "phases",
        "profiled",
        "start",
        "transfers",
    )

    def __init__(self, number: int, start: Instant) -> None:
        self.number = number
        self.start = start
        self.end: Instant = None
        self.complete = False
        self.profiled = False
        self.demand = 0
        self.demand_ends = False
        self.phases: list[tuple[str, str, Instant, Instant]] = []
        self.transfers: list[RecordedTransfer] = []
        self.operations: Any = None


TransferRow = tuple[int, str, str, int, int, int, int | None, int | None, int | None, int | None]
"""sequence in its group, name, collective, group, bytes, enqueue, first, last, needed, released.

Sends and receives are counted apart from collectives.
"""


class PartHead(msgspec.Struct, tag="head", array_like=True, kw_only=True):
    """Who writes the part, in which run (a word that the ranks agree on, once they can talk). The last one holds.

    Where ranks come and go, those that are left get new ranks; the `number` is the one in the first process group that
    this one was in, -1 before there was any. The `attempt` is which one of a job that is begun anew when a rank fails, as
    its host counts them.
    """

    schema: str = PART_SCHEMA
    rank: int
    world_size: int
    host: str
    device: str
    pid: int
    mode: str
    monotonic_ns: int
    unix_ns: int
    run: str = ""
    listen: str = ""
    versions: dict[str, str] = {}
    number: int = -1
    attempt: str = ""


class RankGroup(msgspec.Struct, tag="group", array_like=True):
    """A process group: its number in this part, its name, its members' ranks, its backend."""

    number: int
    name: str
    ranks: list[int]
    backend: str


class ClockSample(msgspec.Struct, tag="clock", array_like=True):
    """At `local_ns` rank 0's clock showed `offset_ns` more than this rank's, give or take `error_ns`."""

    local_ns: int
    offset_ns: int
    error_ns: int


class Iteration(msgspec.Struct, tag="iteration", array_like=True):
    """One iteration, settled: every time in nanoseconds."""

    number: int
    start: int
    end: int
    complete: bool
    profiled: bool
    phases: list[tuple[str, str, int, int]]
    transfers: list[TransferRow]
    operations: list[tuple[str, str, str, int, int]] = []


class LateTransfers(msgspec.Struct, tag="under way", array_like=True):
    """Transfers that have been on their way for long, of iterations that are not written yet. The last one holds."""

    transfers: list[TransferRow]


class PartFacts(msgspec.Struct, tag="facts", array_like=True):
    """What became known on the way: the contents of buckets, what went wrong with the recording."""

    values: dict[str, Any]


class End(msgspec.Struct, tag="end", array_like=True, kw_only=True):
    """The rank is done; `why` if not in good order. What recording cost its training threads."""

    why: str
    iterations: int
    cost_ns: int
    forgotten_iterations: int = 0


Line = PartHead | RankGroup | ClockSample | Iteration | LateTransfers | PartFacts | End


# From an iteration as the hooks left it to numbers: when each transfer began, was needed and let go.

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


def under_way(
    drafts: Iterable[IterationDraft], before: int, is_known: Callable[[Instant], bool]
) -> list[TransferRow]:
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


def _rows(
    transfers: Sequence[RecordedTransfer], resolve: Resolve, first_bytes: FirstBytes
) -> list[TransferRow]:
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


def _first(
    transfer: RecordedTransfer, last: int | None, resolve: Resolve, first_bytes: FirstBytes
) -> int | None:
    if last is None:
        return None
    earliest = transfer.enqueue if transfer.first is None else max(resolve(transfer.first), transfer.enqueue)
    return first_bytes.begin(transfer.group, transfer.thread, earliest, last)
