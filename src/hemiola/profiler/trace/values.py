"""What a rank keeps of its own running: in memory while it happens, then as lines of its part file.

Times are nanoseconds of the rank's own monotonic clock; `merge` brings them onto one clock. A time may
also stand as an event of a device (`device.py`) until the device has passed it. Knows no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

__all__ = [
    "PART_SCHEMA",
    "ClockSample",
    "IterationDraft",
    "End",
    "PartFacts",
    "TransferGate",
    "RankGroup",
    "PartHead",
    "Instant",
    "Iteration",
    "Line",
    "TraceOptions",
    "RecordedTransfer",
    "TransferRow",
    "LateTransfers",
]

PART_SCHEMA = "hemiola.record-part/1"

Instant = Any
"""Nanoseconds, or an event of a device that will tell them."""


class TraceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to record.

    Attributes:
        path: the timeline to write in the end; what is asked for on demand lies beside it.
        parts: the folder with one part per rank, on a disk that all ranks share; "": nothing is kept, only reported
            (`reporting`).
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
