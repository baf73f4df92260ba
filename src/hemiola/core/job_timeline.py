"""What the ranks of one training job did, on one clock: the counterpart of `timeline` inside a job.

A recording, a reader of somebody else's trace and the predictor all produce it, so that what ran
and what was predicted are read, compared and drawn by the same code. Columnar inside: a production
trace has millions of spans. Files are `trace`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["SPAN_KINDS", "Iterations", "JobTimeline", "Rank", "Spans", "TransferLog"]

SPAN_KINDS = ("compute", "communication", "wait", "input", "copy", "other")
"""What a rank did in a span.

compute: an operation of forward, backward or the optimizer. communication: a collective or a transfer
in progress, from its first to its last byte. wait: the rank's computation stood still for communication.
input: it stood still for, or prepared, its next batch. copy: between host and device. other: the rest.
"""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Rank(msgspec.Struct, frozen=True):
    """One process of the job.

    Attributes:
        rank: its number.
        host: where it ran.
        device: "cpu", "cuda:0", ...; "" if not known.
        clock_offset_s: what was added to its clock to bring it onto the timeline's.
        clock_error_s: half the width of the interval that the offset is known to lie in.
    """

    rank: int
    host: str = ""
    device: str = ""
    clock_offset_s: float = 0.0
    clock_error_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Spans:
    """Stretches of time in which something was done, one entry each in every column.

    Attributes:
        rank: index into the timeline's `ranks`.
        lane: index into the timeline's `lanes`: what of the rank did it (a thread, a stream, a link).
        name: index into the timeline's `names`.
        kind: index into `SPAN_KINDS`.
        start_s, end_s: from, to.
        iteration: its number; -1 outside of iterations.
        transfer: index into the timeline's `transfers`, of a communication or a wait; -1 elsewhere.
        operation: index into the graph's operations, where one is known; -1 elsewhere.
    """

    rank: Ints
    lane: Ints
    name: Ints
    kind: NDArray[np.int8]
    start_s: Floats
    end_s: Floats
    iteration: Ints
    transfer: Ints
    operation: Ints

    def __len__(self) -> int:
        return len(self.start_s)


@dataclass(frozen=True, eq=False)
class TransferLog:
    """Tensors or buckets sent between ranks, one entry for each rank that took part in each.

    Attributes:
        rank: index into the timeline's `ranks`.
        name: index into the timeline's `names` ("bucket 3", a parameter's name).
        collective: index into the timeline's `names` ("all-reduce", "all-gather", "reduce-scatter",
            "broadcast", "all-to-all", "send", "recv", ...).
        group: the ranks that take part, index into the timeline's `groups`; -1 if not known.
        size_bytes: of the tensor, as this rank holds it.
        enqueue_s: handed over to be sent.
        first_byte_s, last_byte_s: of its being on its way.
        needed_s: its consumer first asked for it; NaN where nobody did.
        released_s: its consumer went on; NaN where nobody waited.
        iteration: its number; -1 outside of iterations.
    """

    rank: Ints
    name: Ints
    collective: Ints
    group: Ints
    size_bytes: Floats
    enqueue_s: Floats
    first_byte_s: Floats
    last_byte_s: Floats
    needed_s: Floats
    released_s: Floats
    iteration: Ints

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, eq=False)
class Iterations:
    """Where each rank's iterations began and ended, one entry each in every column.

    Attributes:
        rank: index into the timeline's `ranks`.
        number: of the iteration.
        start_s, end_s: from, to.
    """

    rank: Ints
    number: Ints
    start_s: Floats
    end_s: Floats

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, eq=False)
class JobTimeline:
    """What the ranks of one job did.

    Attributes:
        name: what to call it.
        ranks: the processes; columns refer to their places here, not to their numbers.
        lanes: names of lanes ("main thread", "stream 7", "gloo").
        names: every other name, once.
        groups: sets of ranks (their numbers) that communicate.
        spans, transfers, iterations: the columns.
        dependencies: rows (before, after) of indices into `spans`, where they are known.
        attributes: per span what its source said beyond the columns, or empty for none at all.
        predicted: whether it was computed and not measured.
        origin_unix_s: the wall clock at second 0 of the timeline; 0 if not known.
        facts: what else is known of the whole (what recording cost, the strategy, the framework's version).
        source: where it came from.
    """

    name: str
    ranks: tuple[Rank, ...]
    lanes: tuple[str, ...]
    names: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    spans: Spans
    transfers: TransferLog
    iterations: Iterations
    dependencies: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    attributes: tuple[dict[str, Any], ...] = ()
    predicted: bool = False
    origin_unix_s: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    source: str = ""
