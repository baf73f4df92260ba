"""What a prediction says: values that reports, tables and files are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from hemiola.core.job_timeline import JobTimeline

__all__ = ["Breakdown", "LinkUse", "PathStep", "Prediction", "ScheduleUse", "TransferUse"]


class Breakdown(msgspec.Struct, frozen=True):
    """Where an iteration of the slowest rank goes; the parts add up to it.

    Attributes:
        forward_s, backward_s, optimizer_s: computing, longer than alone where cores are shared.
        exposed_s: the rank stands still for communication.
        overhead_s: copies into and out of buffers, hooks, the loop.
        server_s: the rank stands still while a server applies gradients and nothing is being sent.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float
    exposed_s: float
    overhead_s: float
    server_s: float = 0.0

    @property
    def iteration_s(self) -> float:
        """All of it."""
        computing_s = self.forward_s + self.backward_s + self.optimizer_s
        return computing_s + self.exposed_s + self.overhead_s + self.server_s


class TransferUse(msgspec.Struct, frozen=True):
    """One transfer of the steady iteration; seconds since the iteration began on the slowest rank.

    Attributes:
        name, collective, algorithm: what, and how.
        size_bytes: of the tensor.
        ready_s: ready on all ranks.
        start_s: its turn came.
        end_s: complete.
        exposed_s: the rank stood still for it.
    """

    name: str
    collective: str
    algorithm: str
    size_bytes: float
    ready_s: float
    start_s: float
    end_s: float
    exposed_s: float


class ScheduleUse(msgspec.Struct, frozen=True, rename={"schedule": "strategy"}):
    """How collectives of one kind and size go, beside the usual way.

    Attributes:
        collective, size_bytes: which.
        count: per iteration.
        schedule: by which; "" for the usual way. Files call it "strategy".
        seconds: of one, with idle links and processors.
        usual: the library's algorithm without schedules.
        usual_s: of one by it, likewise.
    """

    collective: str
    size_bytes: float
    count: int
    schedule: str
    seconds: float
    usual: str
    usual_s: float


class PathStep(msgspec.Struct, frozen=True):
    """One link of the chain that made the iteration as long as it is.

    Attributes:
        name: what it was.
        kind: "compute", "communication", "overhead" or "server" (a server applies gradients).
        start_s, end_s: since the iteration began.
    """

    name: str
    kind: str
    start_s: float
    end_s: float


class LinkUse(msgspec.Struct, frozen=True):
    """What an iteration sends over a link, per direction, headers included.

    Attributes:
        name: of the link.
        bytes: per iteration.
        busy: share of the iteration that these bytes alone would take.
    """

    name: str
    bytes: float
    busy: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """What one iteration of a graph takes somewhere, and why.

    Attributes:
        name: the graph's.
        hardware, topology, parallelism: what was asked about.
        ranks, hosts: how many.
        iteration_s: expected, in the steady state.
        low_s, high_s: interval that holds `confidence` of cases, by the spreads of operations, of whole
            iterations and of measured transfers; equal to `iteration_s` where no spread is known.
        confidence: share of cases.
        bound_s: no order of these operations and transfers could be faster: the rank's own computation,
            the busiest link, or the busiest processor.
        breakdown: of the slowest rank.
        communication_s: in which a transfer was in progress; the rest of it than `exposed_s` was hidden.
        transfers: of the steady iteration, in the order of issue.
        critical_path: first to last.
        links: every link that is used, the busiest first.
        shape: (from, to, bytes) on the busiest link over the iteration.
        flop_per_s: of one rank.
        memory_bytes: of one rank.
        samples_per_s: of all ranks; 0 where the graph does not say how many an iteration takes.
        straggling_s: how much of the expected iteration is waiting for the slowest of the ranks.
        schedules: how collectives go, where schedules were asked for; else none.
        notes: what was assumed.
    """

    name: str
    hardware: str
    topology: str
    parallelism: str
    ranks: int
    hosts: int
    iteration_s: float
    low_s: float
    high_s: float
    confidence: float
    bound_s: float
    breakdown: Breakdown
    communication_s: float
    transfers: tuple[TransferUse, ...]
    critical_path: tuple[PathStep, ...]
    links: tuple[LinkUse, ...]
    shape: tuple[tuple[float, float, float], ...]
    flop_per_s: float
    memory_bytes: float
    samples_per_s: float
    straggling_s: float
    schedules: tuple[ScheduleUse, ...]
    notes: tuple[str, ...]
    _transfer_bound: Callable[[], float]
    _timeline: Callable[[], JobTimeline]

    @property
    def transfer_bound_s(self) -> float:
        """No order of these transfers could be faster, with the operations in the order in which they stand."""
        return self._transfer_bound()

    @property
    def exposed_s(self) -> float:
        """Communication that no computation hides."""
        return self.breakdown.exposed_s

    @property
    def traffic_bytes(self) -> float:
        """Bytes of the busiest link per iteration and direction."""
        return self.links[0].bytes if self.links else 0.0

    def timeline(self) -> JobTimeline:
        """The steady iteration as a timeline, every operation a span."""
        return self._timeline()
