"""What the ranks of one training job did, on one clock: the counterpart of `timeline` inside a job.

A recording, a reader of somebody else's trace and the predictor all produce it, so that what ran
and what was predicted are read, compared and drawn by the same code. Columnar inside: a production
trace has millions of spans; `TimelineBuilder` makes one row by row. Files are `trace`'s business.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError

__all__ = ["SPAN_KINDS", "Iterations", "JobTimeline", "Rank", "Spans", "TimelineBuilder", "TransferLog"]


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
        facts: what else is known of the whole (what recording cost, the parallelism, the framework's version).
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


# A job's timeline made row by row: names, lanes and groups become indices on the way in.

_KIND_INDEX = {kind: index for index, kind in enumerate(SPAN_KINDS)}
_NOTHING: dict[str, Any] = {}


class TimelineBuilder:
    """Collects ranks, spans, transfers, iterations and dependencies; `build` gives the timeline.

    >>> builder = TimelineBuilder("two steps")
    >>> rank = builder.rank(0, host="a")
    >>> builder.span(rank, "main thread", "forward", "compute", 0.0, 1.5)
    0
    >>> len(builder.build().spans)
    1
    """

    def __init__(self, name: str) -> None:
        self._title = name
        self._ranks: list[Rank] = []
        self._rank_places: dict[int, int] = {}
        self._lanes: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._groups: dict[tuple[int, ...], int] = {}
        self._spans = _Table(Spans.column_types())
        self._transfers = _Table(TransferLog.column_types())
        self._iterations = _Table(Iterations.column_types())
        self._dependencies = array("q")
        self._attributes: list[dict[str, Any]] = []

    def __len__(self) -> int:
        """How many spans there are."""
        return len(self._spans)

    def rank(self, number: int, **about: Any) -> int:
        """The place of the rank of that number in the timeline's `ranks`; `about` is a `Rank`'s other fields.

        Given again without fields it only answers; with fields it replaces what was said of the rank.
        """
        place = self._rank_places.setdefault(number, len(self._ranks))
        if place == len(self._ranks):
            self._ranks.append(Rank(number, **about))
        elif about:
            self._ranks[place] = msgspec.structs.replace(self._ranks[place], **about)
        return place

    def lane(self, name: str) -> int:
        """The place of a lane's name."""
        return self._lanes.setdefault(name, len(self._lanes))

    def name(self, text: str) -> int:
        """The place of a name."""
        return self._names.setdefault(text, len(self._names))

    def group(self, members: Sequence[int]) -> int:
        """The place of a set of ranks, by their numbers; -1 for none, which says "not known"."""
        return self._groups.setdefault(tuple(members), len(self._groups)) if members else -1

    def span(
        self,
        rank: int,
        lane: str,
        name: str,
        kind: str,
        start_s: float,
        end_s: float,
        *,
        iteration: int = -1,
        transfer: int = -1,
        operation: int = -1,
        attributes: dict[str, Any] | None = None,
    ) -> int:
        """Add a span of a rank (its place, as `rank` gave it); the span's index.

        Raises:
            InputError: if the kind is not one of `SPAN_KINDS`.
        """
        if kind not in _KIND_INDEX:
            raise InputError(f"{kind!r} is no kind of span", f"use one of {', '.join(SPAN_KINDS)}")
        index = len(self._spans)
        self._spans.append(
            rank, self.lane(lane), self.name(name), _KIND_INDEX[kind], start_s, end_s, iteration, transfer,
            operation,
        )  # fmt: skip
        if attributes:
            self._attributes.extend([_NOTHING] * (index - len(self._attributes)))
            self._attributes.append(attributes)
        return index

    def transfer(
        self,
        rank: int,
        name: str,
        collective: str,
        size_bytes: float,
        enqueue_s: float,
        first_byte_s: float,
        last_byte_s: float,
        *,
        group: Sequence[int] = (),
        needed_s: float = math.nan,
        released_s: float = math.nan,
        iteration: int = -1,
    ) -> int:
        """Add a rank's part in a transfer; its index, for `span(..., transfer=...)`."""
        self._transfers.append(
            rank, self.name(name), self.name(collective), self.group(group), size_bytes, enqueue_s,
            first_byte_s, last_byte_s, needed_s, released_s, iteration,
        )  # fmt: skip
        return len(self._transfers) - 1

    def iteration(self, rank: int, number: int, start_s: float, end_s: float) -> None:
        """Add where one of a rank's iterations began and ended."""
        self._iterations.append(rank, number, start_s, end_s)

    def depend(self, before: int, after: int) -> None:
        """Say that span `after` had to wait for span `before`, or was caused by it (a launch and its kernel)."""
        self._dependencies.extend((before, after))

    def build(
        self,
        *,
        predicted: bool = False,
        origin_unix_s: float = 0.0,
        facts: Mapping[str, Any] | None = None,
        source: str = "",
    ) -> JobTimeline:
        """The timeline, checked.

        Raises:
            InputError: if the columns do not fit together, as `JobTimeline.check` says.
        """
        spare = len(self._spans) - len(self._attributes) if self._attributes else 0
        return JobTimeline(
            name=self._title,
            ranks=tuple(self._ranks),
            lanes=tuple(self._lanes),
            names=tuple(self._names),
            groups=tuple(self._groups),
            spans=Spans(*self._spans.arrays()),
            transfers=TransferLog(*self._transfers.arrays()),
            iterations=Iterations(*self._iterations.arrays()),
            dependencies=np.array(self._dependencies, dtype=np.int64).reshape(-1, 2),
            attributes=(*self._attributes, *([_NOTHING] * spare)),
            predicted=predicted,
            origin_unix_s=origin_unix_s,
            facts=dict(facts or {}),
            source=source,
        ).check()


class _Table:
    """Columns that grow by rows."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = tuple(types.values())
        self._columns = tuple(array(np.dtype(kind).char.replace("l", "q")) for kind in self._types)
        self._appends = tuple(column.append for column in self._columns)

    def __len__(self) -> int:
        return len(self._columns[0])

    def append(self, *row: float) -> None:
        for append, value in zip(self._appends, row, strict=True):
            append(value)

    def arrays(self) -> list[Any]:
        return [np.array(column, kind) for column, kind in zip(self._columns, self._types, strict=True)]
