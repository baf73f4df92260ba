"""Job timelines from short lists, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hemiola.core.job_timeline import SPAN_KINDS, Iterations, JobTimeline, Rank, Spans, TransferLog

NAN = float("nan")


class Build:
    """Collects spans, transfers and iterations; `timeline()` makes the columns of them."""

    def __init__(self, ranks: int | Sequence[Rank] = 1) -> None:
        self.ranks = tuple(Rank(i) for i in range(ranks)) if isinstance(ranks, int) else tuple(ranks)
        self.spans: list[tuple[Any, ...]] = []
        self.transfers: list[tuple[Any, ...]] = []
        self.iterations: list[tuple[int, int, float, float]] = []
        self.edges: list[tuple[int, int]] = []
        self.lanes: dict[str, int] = {}
        self.names: dict[str, int] = {}

    def span(
        self, rank: int, kind: str, start: float, end: float, name: str = "", *, lane: str = "", transfer: int = -1,
        iteration: int = -1,
    ) -> int:  # fmt: skip
        """Add a span; return its index."""
        lane = lane or ("network" if kind == "communication" else "main")
        self.spans.append(
            (rank, self._lane(lane), self._name(name or kind), SPAN_KINDS.index(kind), start, end, iteration, transfer, -1)
        )  # fmt: skip
        return len(self.spans) - 1

    def transfer(
        self, rank: int, name: str, enqueue: float, first: float, last: float, needed: float = NAN,
        released: float = NAN, *, size: float = NAN, iteration: int = -1, collective: str = "all-reduce", group: int = -1,
        drawn: bool = True,
    ) -> int:  # fmt: skip
        """Add a transfer and (if drawn) its communication span; return its index."""
        self.transfers.append(
            (rank, self._name(name), self._name(collective), group, size, enqueue, first, last, needed, released, iteration)
        )  # fmt: skip
        if drawn:
            self.span(
                rank,
                "communication",
                first,
                last,
                name,
                transfer=len(self.transfers) - 1,
                iteration=iteration,
            )
        return len(self.transfers) - 1

    def iteration(self, rank: int, number: int, start: float, end: float) -> None:
        """Add an iteration."""
        self.iterations.append((rank, number, start, end))

    def every(self, number: int, start: float, end: float) -> None:
        """Add an iteration of every rank."""
        for rank in range(len(self.ranks)):
            self.iteration(rank, number, start, end)

    def _lane(self, lane: str) -> int:
        return self.lanes.setdefault(lane, len(self.lanes))

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def timeline(self, **more: Any) -> JobTimeline:
        """All of it."""
        return JobTimeline(
            **{
                "name": "a test", "ranks": self.ranks, "lanes": tuple(self.lanes), "names": tuple(self.names),
                "groups": (), "spans": _columns(Spans, self.spans), "transfers": _columns(TransferLog, self.transfers),
                "iterations": _columns(Iterations, self.iterations),
                "dependencies": np.array(self.edges, dtype=np.int64).reshape(-1, 2), **more,
            }
        )  # fmt: skip


def _columns(kind: Any, rows: Iterable[tuple[Any, ...]]) -> Any:
    rows = list(rows)
    types = {"kind": np.int8}
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(kind.__dataclass_fields__)
    return kind(
        **{
            name: np.array(
                column,
                dtype=types.get(name, np.float64 if name.endswith(("_s", "_bytes")) else np.int64),
            )
            for name, column in zip(kind.__dataclass_fields__, columns, strict=True)
        }
    )
