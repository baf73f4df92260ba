"""From the ranks' parts to one timeline: clocks put right, phases cut around waits, gaps in knowledge stated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hemiola.core.job_timeline import JobTimeline, TimelineBuilder
from hemiola.profiler.trace.clock import ClockFit, bound_by_causality, fit_clock
from hemiola.profiler.trace.parts import TracePart, read_parts
from hemiola.profiler.trace.recorder import cut
from hemiola.profiler.trace.server import waits
from hemiola.profiler.trace.values import Iteration, TransferRow
from hemiola.trace.struct_json import as_text

__all__ = ["collect"]

_UNKNOWN_NS = 10**9


def collect(folder: Path, name: str = "", since_ns: int = 0) -> JobTimeline:
    """One timeline of the parts that the ranks left in the folder.

    What is missing is in its facts: "partial" (ranks that left nothing, or ended without saying so), "unfinished" (transfers
    without a last byte, of a killed rank those that had been on their way for long), "clocks" (how each offset was found).

    Args:
        name: of the timeline; the folder's unless given.
        since_ns: leaves out what is of a later recording; see `parts.part_files`.

    Raises:
        InputError: if the folder holds no part.
    """
    parts = read_parts(folder, since_ns)
    fits, how = _fits(parts)
    origin = min((fits[p.head.rank].apply(time) for p in parts for time in p.times_ns), default=0.0)
    builder = TimelineBuilder(as_text(name or folder.name))
    unfinished: list[dict[str, Any]] = []
    for part in parts:
        _Rank(builder, part, fits[part.head.rank], origin, unfinished).add()
    facts = _facts(parts, fits, how)
    if unfinished:
        facts["unfinished"] = unfinished
    first = parts[0]
    zero = fits[first.head.rank].apply(first.head.monotonic_ns)
    return builder.build(
        origin_unix_s=(first.head.unix_ns + origin - zero) / 1e9,
        facts=facts,
        source=f"recorded: {as_text(folder)}",
    )


def _key(row: TransferRow) -> tuple[int, str, int]:
    return row[3], row[2], row[0]


class _Rank:
    """Adds one rank's part to the timeline."""

    def __init__(
        self,
        builder: TimelineBuilder,
        part: TracePart,
        fit: ClockFit,
        origin: float,
        unfinished: list[dict[str, Any]],
    ) -> None:
        self._builder = builder
        self._part = part
        self._fit = fit
        self._origin = origin
        self._unfinished = unfinished
        self._waited: list[tuple[int, int]] = []
        head = part.head
        self._rank = builder.rank(
            head.rank,
            host=head.host,
            device=head.device,
            clock_offset_s=fit.offset_ns / 1e9,
            clock_error_s=fit.error_ns / 1e9,
        )

    def add(self) -> None:
        for iteration in self._part.iterations:
            number = iteration.number if iteration.complete else -1
            if iteration.complete:
                self._builder.iteration(self._rank, number, self._s(iteration.start), self._s(iteration.end))
            self._add_iteration(iteration, number)
        if self._part.end is None:
            written = {_key(row) for iteration in self._part.iterations for row in iteration.transfers}
            self._unfinished += [
                self._describe(row) for row in self._part.under_way if _key(row) not in written
            ]

    def _s(self, local_ns: int) -> float:
        return round((self._fit.apply(local_ns) - self._origin) / 1e9, 9)

    def _add_iteration(self, iteration: Iteration, number: int) -> None:
        builder = self._builder
        awaited: list[tuple[int, int, int, str]] = []
        for row in iteration.transfers:
            if row[7] is None:
                self._unfinished.append(self._describe(row))
                continue
            transfer = self._add_transfer(row, number)
            start, end = self._s(row[6] if row[6] is not None else row[7]), self._s(row[7])
            builder.span(
                self._rank, self._lane(row), row[1] or row[2], "communication", start, max(start, end),
                iteration=number, transfer=transfer,
            )  # fmt: skip
            if row[8] is not None and row[9] is not None:
                awaited.append((row[8], row[9], transfer, row[1] or row[2]))
        self._add_waits(awaited, number)
        # what an iteration has left on its way may be waited for in a later one
        self._waited = [wait for wait in self._waited if wait[1] > iteration.start] + waits(iteration)
        for name, kind, start_ns, end_ns in cut(iteration.phases, self._waited, _window(iteration)):
            builder.span(self._rank, "main", name, kind, self._s(start_ns), self._s(end_ns), iteration=number)
        for lane, name, kind, start_ns, end_ns in iteration.operations:
            builder.span(self._rank, lane, name, kind, self._s(start_ns), self._s(end_ns), iteration=number)

    def _add_transfer(self, row: TransferRow, number: int) -> int:
        _, name, collective, group, size, enqueue, first, last, needed, released = row
        assert last is not None
        known = self._part.groups.get(group)
        return self._builder.transfer(
            self._rank, name or collective, collective, float(size), self._s(enqueue),
            self._s(last if first is None else first), self._s(last),
            group=known.ranks if known else (),
            needed_s=float("nan") if needed is None else self._s(needed),
            released_s=float("nan") if released is None else self._s(released),
            iteration=number,
        )  # fmt: skip

    def _add_waits(self, awaited: list[tuple[int, int, int, str]], number: int) -> None:
        """One wait after the other: of several that are waited for at once, each has what it adds."""
        reached = -(2**63)
        for needed, released, transfer, name in sorted(awaited):
            if released > max(needed, reached):
                self._builder.span(
                    self._rank, "main", f"wait for {name}", "wait", self._s(max(needed, reached)),
                    self._s(released), iteration=number, transfer=transfer,
                )  # fmt: skip
            reached = max(reached, released)

    def _lane(self, row: TransferRow) -> str:
        group = self._part.groups.get(row[3])
        return f"{group.backend or 'group'} {group.name}" if group else f"group {row[3]}"

    def _describe(self, row: TransferRow) -> dict[str, Any]:
        return {
            "rank": self._part.head.rank, "name": row[1] or row[2], "collective": row[2], "bytes": row[4],
            "enqueue_s": self._s(row[5]),
        }  # fmt: skip


def _window(iteration: Iteration) -> tuple[int, int] | None:
    return (iteration.start, iteration.end) if iteration.complete else None


def _fits(parts: Sequence[TracePart]) -> tuple[dict[int, ClockFit], dict[str, str]]:
    """Each rank's clock against rank 0's, and how it was found; against the first one's where nobody has asked rank 0's."""
    asked = [part for part in parts if part.clocks]
    reference = asked[0] if asked and parts[0].head.rank > 0 else parts[0]
    own = fit_clock(reference.clocks, reference.times_ns) if reference.clocks else ClockFit(0, 0.0, 0.0, 0.0)
    fits: dict[int, ClockFit] = {}
    how: dict[str, str] = {}
    for part in parts:
        rank = part.head.rank
        if part.clocks:
            fit = fit_clock(part.clocks, part.times_ns)
            fits[rank], how[str(rank)] = fit, f"asked {len(part.clocks)} times"
        elif part is reference:
            fits[rank], how[str(rank)] = own, "the reference"
        elif (bound := bound_by_causality(reference, part)) is not None:
            fits[rank], how[str(rank)] = bound.then(own), "bounded by what collectives allow"
        else:
            fits[rank], how[str(rank)] = _by_wall_clock(reference, part).then(own), "wall clocks, unchecked"
    return fits, how


def _by_wall_clock(reference: TracePart, part: TracePart) -> ClockFit:
    mine, theirs = part.head, reference.head
    offset = (theirs.monotonic_ns - theirs.unix_ns) - (mine.monotonic_ns - mine.unix_ns)
    return ClockFit(0, float(offset), 0.0, float(_UNKNOWN_NS))


def _facts(parts: Sequence[TracePart], fits: Mapping[int, ClockFit], how: dict[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "mode": parts[0].head.mode,
        "world_size": parts[0].head.world_size,
        "versions": dict(parts[0].head.versions),
        "clocks": how,
        "drift_ppm": {str(rank): round(fit.drift * 1e6, 3) for rank, fit in fits.items()},
        "cost": _cost(parts),
    }
    for part in parts:
        facts |= {key: value for key, value in part.facts.items() if key not in facts}
    partial = _partial(parts)
    if partial:
        facts["partial"] = partial
    forgotten = {
        str(p.head.rank): p.end.forgotten_iterations for p in parts if p.end and p.end.forgotten_iterations
    }
    if forgotten:
        facts["forgotten_iterations"] = forgotten
    return facts


def _cost(parts: Sequence[TracePart]) -> dict[str, float]:
    """What recording cost: time within the hooks, and how much longer profiled iterations took than others."""
    iterations = [one for part in parts for one in part.iterations if one.complete]
    light = [one.end - one.start for one in iterations if not one.profiled and one.number > 0]
    full = [one.end - one.start for one in iterations if one.profiled]
    cost: dict[str, float] = {}
    counted = sum(part.end.iterations for part in parts if part.end)
    if counted:
        cost["hooks_s_per_iteration"] = (
            sum(part.end.cost_ns for part in parts if part.end and part.end.iterations) / counted / 1e9
        )
    told = [
        float(str(part.facts["light_iteration_s"])) for part in parts if "light_iteration_s" in part.facts
    ]
    light_s = median(light) / 1e9 if light else median(told) if told else 0.0
    if full and light_s > 0:
        cost["profiled_iteration_s"] = median(full) / 1e9
        cost["light_iteration_s"] = light_s
        cost["profiler_fraction"] = median(full) / 1e9 / light_s - 1
    return cost


def _partial(parts: Sequence[TracePart]) -> list[str]:
    """What is missing, in words."""
    there = {part.head.rank for part in parts}
    missing = [rank for rank in range(parts[0].head.world_size) if rank not in there]
    words = [f"rank {rank} left nothing" for rank in missing]
    for part in parts:
        if part.end is None:
            words.append(f"rank {part.head.rank} ended without saying so (killed?)")
        elif part.end.why:
            words.append(f"rank {part.head.rank}: {part.end.why}")
    return words
