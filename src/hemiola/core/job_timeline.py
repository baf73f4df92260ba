"""What the ranks of one training job did, on one clock: the counterpart of `timeline` inside a job.

A recording, a reader of somebody else's trace and the predictor all produce it, so that what ran
and what was predicted are read, compared and drawn by the same code. Columnar inside: a production
trace has millions of spans; `core.timeline_builder` makes one row by row. Files are `trace`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError

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
        clock_error_s: half the width of the interval that the offset is known to lie in; infinite if nothing
            is known of it.
    """

    rank: int
    host: str = ""
    device: str = ""
    clock_offset_s: float = 0.0
    clock_error_s: float = 0.0


class _Columns:
    """What the tables of a timeline share: columns of one length, in the order of their fields."""

    def __len__(self) -> int:
        return len(next(iter(self.columns().values())))

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[float]]) -> Self:
        """A table from rows whose entries stand in the order of the columns.

        >>> len(Iterations.from_rows([(0, 0, 0.0, 1.5), (0, 1, 1.5, 3.0)]))
        2
        """
        types = cls.column_types()
        listed = list(rows)
        if any(len(row) != len(types) for row in listed):
            raise InputError(
                f"a row of {cls.__name__} has not {len(types)} entries", f"give {', '.join(types)}"
            )
        columns = zip(*listed, strict=True) if listed else ((),) * len(types)
        return cls(*(np.array(column, kind) for column, kind in zip(columns, types.values(), strict=True)))

    @classmethod
    def empty(cls) -> Self:
        """A table without rows."""
        return cls.from_rows(())

    @classmethod
    def column_types(cls) -> dict[str, Any]:
        """Each column's name and element type, in order."""
        kinds = {"Floats": np.float64, "Ints": np.int64, "NDArray[np.int8]": np.int8}
        return {entry.name: kinds[str(entry.type)] for entry in fields(cls)}  # type: ignore[arg-type]

    def columns(self) -> dict[str, NDArray[Any]]:
        """Each column by its name, in order."""
        return {name: getattr(self, name) for name in self.column_types()}


@dataclass(frozen=True, eq=False)
class Spans(_Columns):
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


@dataclass(frozen=True, eq=False)
class TransferLog(_Columns):
    """Tensors or buckets sent between ranks, one entry for each rank that took part in each.

    Attributes:
        rank: index into the timeline's `ranks`.
        name: index into the timeline's `names` ("bucket 3", a parameter's name).
        collective: index into the timeline's `names` ("all-reduce", "all-gather", "reduce-scatter",
            "broadcast", "all-to-all", "send", "recv", ...).
        group: the ranks that take part, index into the timeline's `groups`; -1 if not known.
        size_bytes: of the tensor, as this rank holds it; NaN where a foreign trace does not say.
        enqueue_s: handed over to be sent; NaN where a foreign trace does not say.
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


@dataclass(frozen=True, eq=False)
class Iterations(_Columns):
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
        dependencies: rows (before, after) of indices into `spans`, where they are known: `after` had to wait
            for `before`, or was caused by it (a launch and its kernel). Their order says nothing.
        attributes: per span what its source said beyond the columns (plain JSON values), or empty for
            none at all.
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

    def check(self) -> Self:
        """Prove that the columns fit together; the timeline itself, to be used in passing.

        Raises:
            InputError: naming the table, the row and the value that cannot be.
        """
        _check_names(self)
        _check_spans(self)
        _check_transfers(self)
        _check_rows("iterations", self.iterations, {"rank": len(self.ranks)})
        _check_order("iterations", self.iterations, "start_s", "end_s")
        if self.dependencies.ndim != 2 or self.dependencies.shape[1] != 2:
            raise _wrong(f"dependencies have shape {self.dependencies.shape}, not (number, 2)")
        _check_range("dependencies", "span", self.dependencies.ravel(), 0, len(self.spans))
        same = np.flatnonzero(self.dependencies[:, 0] == self.dependencies[:, 1])
        if len(same):
            raise _wrong(f"dependencies row {same[0]}: a span depends on itself")
        if self.attributes and len(self.attributes) != len(self.spans):
            raise _wrong(f"{len(self.attributes)} attributes for {len(self.spans)} spans")
        return self

    def difference(self, other: JobTimeline) -> str:
        """Where this timeline and the other differ first, in words; "" if they are equal (NaN equals NaN)."""
        for entry in fields(self):
            mine, others = getattr(self, entry.name), getattr(other, entry.name)
            if isinstance(mine, _Columns):
                for name, column in mine.columns().items():
                    if not np.array_equal(column, getattr(others, name), equal_nan=column.dtype.kind == "f"):
                        return f"{entry.name}.{name}: {column} against {getattr(others, name)}"
            elif isinstance(mine, np.ndarray):
                if not np.array_equal(np.unique(mine, axis=0), np.unique(others, axis=0)):
                    return f"{entry.name}: {mine} against {others}"
            elif mine != others:
                return f"{entry.name}: {mine!r} against {others!r}"
        return ""


def _wrong(what: str) -> InputError:
    return InputError(f"not a job's timeline: {what}", "report it to whoever made the timeline")


def _check_names(timeline: JobTimeline) -> None:
    numbers = tuple(rank.rank for rank in timeline.ranks)
    for what, values in (("ranks", numbers), ("lanes", timeline.lanes), ("names", timeline.names)):
        if len(set(values)) != len(values):
            twice = next(value for at, value in enumerate(values) if value in values[:at])
            raise _wrong(f"{what} hold {twice!r} twice")
    for rank in timeline.ranks:
        if not (np.isfinite(rank.clock_offset_s) and rank.clock_error_s >= 0):
            raise _wrong(
                f"rank {rank.rank} has the clock offset {rank.clock_offset_s} ± {rank.clock_error_s}"
            )
    if not np.isfinite(timeline.origin_unix_s):
        raise _wrong(f"its origin is {timeline.origin_unix_s}")


def _check_spans(timeline: JobTimeline) -> None:
    spans = timeline.spans
    limits = {
        "rank": len(timeline.ranks),
        "lane": len(timeline.lanes),
        "name": len(timeline.names),
        "kind": len(SPAN_KINDS),
    }
    _check_rows("spans", spans, limits, {"transfer": len(timeline.transfers)})
    _check_order("spans", spans, "start_s", "end_s")
    of_transfer = np.flatnonzero(spans.transfer >= 0)
    owner = timeline.transfers.rank[spans.transfer[of_transfer]]
    strange = of_transfer[owner != spans.rank[of_transfer]]
    if len(strange):
        raise _wrong(f"spans row {strange[0]}: its transfer belongs to another rank")


def _check_transfers(timeline: JobTimeline) -> None:
    transfers = timeline.transfers
    limits = {"rank": len(timeline.ranks), "name": len(timeline.names), "collective": len(timeline.names)}
    _check_rows("transfers", transfers, limits, {"group": len(timeline.groups)})
    _check_order("transfers", transfers, "first_byte_s", "last_byte_s")
    for column in ("size_bytes", "enqueue_s", "needed_s", "released_s"):
        values = getattr(transfers, column)
        if np.isinf(values).any() or (column == "size_bytes" and (values < 0).any()):
            raise _wrong(f"transfers.{column} holds an infinite or negative value")


def _check_rows(
    table: str, columns: _Columns, limits: dict[str, int], optional: dict[str, int] | None = None
) -> None:
    for name, column in columns.columns().items():
        if column.shape != (len(columns),):
            raise _wrong(f"{table}.{name} has shape {column.shape}, not ({len(columns)},)")
    for name, limit in limits.items():
        _check_range(table, name, getattr(columns, name), 0, limit)
    for name, limit in (optional or {}).items():
        _check_range(table, name, getattr(columns, name), -1, limit)


def _check_range(table: str, name: str, column: Ints, low: int, limit: int) -> None:
    outside = np.flatnonzero((column < low) | (column >= limit))
    if len(outside):
        raise _wrong(f"{table} row {outside[0]}: {name} is {column[outside[0]]}, of {limit}")


def _check_order(table: str, columns: _Columns, first: str, last: str) -> None:
    begin, end = getattr(columns, first), getattr(columns, last)
    wrong = np.flatnonzero(~(np.isfinite(begin) & np.isfinite(end) & (begin <= end)))
    if len(wrong):
        at = wrong[0]
        raise _wrong(f"{table} row {at}: {first} is {begin[at]} and {last} {end[at]}")
