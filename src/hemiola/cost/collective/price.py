"""A schedule as a `Cost`: what it loads and how long it takes beside that, so that it can share links with others.

Loads are exact: each move's share of the data over the links between its two ranks. The latency is what remains of
the schedule's executed time (`cost.collective.duration`) beyond the busiest link's: hops, and filling the pipeline. So its
cost alone is its executed time, and what other flows do to it follows from the loads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hemiola.core.collective.schedule import Collective, CollectiveSchedule
from hemiola.core.errors import InputError
from hemiola.core.hardware import Hardware
from hemiola.cost.collective.duration import schedule_seconds
from hemiola.cost.collective.library import GROUP, Cost, Library, measurement
from hemiola.cost.collective.rounds import Roads, unsaid_bytes
from hemiola.cost.places import RankPlaces

__all__ = ["FITTED", "Choose", "Fitting", "both_ways", "busy_seconds", "given_schedule", "schedule_cost"]

FITTED: tuple[Collective, ...] = ("all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce")
"""Collectives that go by schedules; an all-to-all goes directly."""

Choose = Callable[[Collective, float], CollectiveSchedule | None]
"""Which schedule a collective of so many bytes, rooted in rank 0 if at all, goes by; None for the usual way."""
Fitting = Callable[[RankPlaces], Choose]
"""How schedules are chosen for ranks on hosts."""


def given_schedule(schedule: CollectiveSchedule) -> Fitting:
    """This one for its collective; others go the usual way."""

    def fitting(place: RankPlaces) -> Choose:
        schedule.check_ranks(place.ranks)
        return lambda collective, size_bytes: schedule if collective == schedule.collective else None

    return fitting


def schedule_cost(
    schedule: CollectiveSchedule,
    size_bytes: float,
    place: RankPlaces,
    library: Library = GROUP,
    hardware: Hardware | None = None,
) -> Cost:
    """What a schedule needs on a placement.

    Args:
        size_bytes: of the whole data: what `CollectiveSchedule.chunks` divide.
        library: that carries it out: its steps, headers and limits are those of its other algorithms.
        hardware: whose measurements go before the library's constants.

    Raises:
        InputError: the library carries out no schedules, or bytes over a link that has no bandwidth.
        ScheduleError: the schedule is for another number of ranks.
    """
    if not library.by_schedules:
        raise InputError(
            f"{library.name} chooses its own algorithms, and cannot be given a schedule",
            "ask about Hemiola's process group (cost.collectives.GROUP)",
        )
    schedule.check_ranks(place.ranks)
    variants = library.variants
    variant = variants.get(schedule.collective, variants["all-reduce"])[0]
    measured = measurement(hardware, library, variant, schedule.collective, place)
    local_s = measured.alpha_s if measured else variant.local_s
    network_s = local_s + place.latency_s if measured else max(variant.network_s, place.latency_s)
    traffic, data_share = _Traffic(schedule, place), variant.data_share(place)
    cost = Cost(
        algorithm=_named(schedule),
        latency_s=0.0,
        loads=tuple((link, share * size_bytes / data_share) for link, share in traffic.loads),
        sent_bytes=traffic.busiest * size_bytes,
        rate_max_bytes_per_s=measured.bytes_per_s if measured else math.inf,
        cpu_s=measured.cpu_s_per_byte * traffic.busiest * size_bytes
        + measured.cpu_s_per_step * traffic.messages(size_bytes)
        if measured
        else 0.0,
        spread=measured.spread if measured else 0.0,
        latency_spread=measured.alpha_spread if measured else 0.0,
    )
    usable = _usable(place, data_share, cost.rate_max_bytes_per_s)
    seconds = schedule_seconds(schedule, size_bytes, usable, latency_s=network_s, local_s=local_s)
    return replace(cost, latency_s=variant.start_s + max(0.0, seconds - cost.seconds(place)))


def both_ways(costs: Sequence[Cost], links: int) -> list[Cost]:
    """The same costs with what goes into hosts beside what comes out of them, if one of them says it.

    A collective that loads both directions alike says only what goes out, which is enough as long as all do.

    Args:
        links: of the placement, outgoing.
    """
    says = [any(link >= links for link, _ in cost.loads) for cost in costs]
    if not any(says):
        return list(costs)
    return [
        cost
        if own
        else replace(cost, loads=cost.loads + tuple((at + links, size) for at, size in cost.loads))
        for cost, own in zip(costs, says, strict=True)
    ]


def busy_seconds(schedule: CollectiveSchedule, place: RankPlaces) -> list[float]:
    """For how long each link between hosts is busy in its busier direction, for a byte of the data."""
    links = len(place.links)
    found = [0.0] * links
    for link, share in _Traffic(schedule, place).loads:
        found[link % links] = max(found[link % links], share)
    return [
        share / link.bytes_per_s for share, link in zip(found, place.links, strict=True) if not link.inner
    ]


@dataclass(frozen=True, eq=False)
class _Traffic:
    """What is sent, relative to the data."""

    schedule: CollectiveSchedule
    place: RankPlaces

    @cached_property
    def between(self) -> dict[tuple[int, int], float]:
        """By sender and receiver."""
        schedule = self.schedule
        if not schedule.weights:
            sent = schedule.traffic().chunks_between
            return {pair: chunks / schedule.chunks for pair, chunks in sent.items()}
        found: Counter[tuple[int, int]] = Counter()
        for move in schedule.moves:
            if move.is_sent:
                found[move.source.rank, move.target.rank] += sum(  # type: ignore[assignment]
                    schedule.weights[at.index % schedule.chunks] for at in move.sources()
                )
        return dict(found)

    @cached_property
    def busiest(self) -> float:
        """What the busiest rank sends or receives."""
        found: dict[tuple[int, bool], float] = {}
        for (source, target), share in self.between.items():
            for end in ((source, True), (target, False)):
                found[end] = found.get(end, 0.0) + share
        return round(max(found.values(), default=0.0), 12)

    @cached_property
    def loads(self) -> tuple[tuple[int, float], ...]:
        """Of every link of the placement that bears something; only of outgoing ones if the others bear the same.

        Of what joins a host's GPUs, that of the rank that sends (receives) most over it.
        """
        place, roads = self.place, Roads(self.place)
        links, found = len(place.links), dict[int, float]()
        for (source, target), share in self.between.items():
            for link in roads.between(source, target):
                found[link] = found.get(link, 0.0) + share
        inner = {next(iter(link.hosts)): i for i, link in enumerate(place.links) if link.inner}
        for rank, host in enumerate(place.host_of):
            for way in (0, 1):
                share = found.pop(2 * links + way * place.ranks + rank, 0.0)
                link = way * links + inner.get(host, 0)
                if share > found.get(link, 0.0):
                    found[link] = share
        rounded = {link: round(share, 12) for link, share in sorted(found.items()) if share}
        if all(rounded.get(link, 0.0) == rounded.get(link + links, 0.0) for link in range(links)):
            return tuple((link, share) for link, share in rounded.items() if link < links)
        return tuple(rounded.items())

    def messages(self, size_bytes: float) -> float:
        """That the busiest rank sends, or receives."""
        schedule = self.schedule
        weights = schedule.weights or (1 / schedule.chunks,) * schedule.chunks
        piece_bytes = schedule.chunk_bytes or unsaid_bytes(schedule)
        found: Counter[tuple[int, bool]] = Counter()
        for move in schedule.moves:
            if move.is_sent:
                chunk_bytes = max(weights[at.index % schedule.chunks] for at in move.sources()) * size_bytes
                pieces = max(1, math.ceil(chunk_bytes / piece_bytes))
                found[move.source.rank, True] += pieces
                found[move.target.rank, False] += pieces
        return max(found.values(), default=0)


def _usable(place: RankPlaces, data_share: float, rate_max_bytes_per_s: float) -> RankPlaces:
    """The same links with what they leave for data, no faster than the ranks below them."""
    links = tuple(
        replace(
            link,
            bytes_per_s=min(
                link.bytes_per_s * data_share, rate_max_bytes_per_s * (1 if link.inner else link.inside)
            ),
        )
        for link in place.links
    )
    return replace(place, links=links)


def _named(schedule: CollectiveSchedule) -> str:
    """As it is shown: a ring of many ranks has a long name."""
    return (
        schedule.name if len(schedule.name) <= 32 else f"{schedule.source or 'schedule'} of {schedule.ranks}"
    )
