"""A job's timeline made row by row: names, lanes and groups become indices on the way in.

The columns grow as packed arrays, so that millions of spans need no Python object each.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from hemiola.core.errors import InputError
from hemiola.core.job_timeline import SPAN_KINDS, Iterations, JobTimeline, Rank, Spans, TransferLog

__all__ = ["TimelineBuilder"]

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
