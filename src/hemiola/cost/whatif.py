"""What would help? One prediction per change, beside the one that was asked for.

Twice the bandwidth, half the ranks per host, other buckets, collectives the usual way, computing and sending one after
the other, other hardware. A change that cannot be made here (too few hosts to spread over) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from hemiola.core.graph import Graph
from hemiola.core.hardware import Hardware
from hemiola.core.topology import Topology
from hemiola.cost.collective.library import CARRIED
from hemiola.cost.parallelism import DDP, Parallelism
from hemiola.cost.places import RankLink, place_ranks
from hemiola.cost.prediction import USUAL, Prediction, PredictionOptions, predict

__all__ = ["Question", "WhatIf", "halved_placement", "scaled_collectives", "scaled_network", "what_ifs"]

MIB = 2**20
BUCKETS = (1 * MIB, 5 * MIB, 25 * MIB, 100 * MIB)


class WhatIf(msgspec.Struct, frozen=True):
    """One change and what it does.

    Attributes:
        change: in words.
        iteration_s, low_s, high_s, exposed_s: with it.
        relative: iteration time with it over that without it; below 1 it helps.
    """

    change: str
    iteration_s: float
    low_s: float
    high_s: float
    exposed_s: float
    relative: float


@dataclass(frozen=True, eq=False)
class Question:
    """What `predict` is asked, as a value that can be changed."""

    graph: Graph
    hardware: Hardware
    topology: Topology
    ranks: int
    parallelism: Parallelism
    placement: tuple[int, ...] | None = None
    options: PredictionOptions = USUAL

    def answer(self) -> Prediction:
        """The prediction."""
        return predict(
            self.graph, self.hardware, self.topology, self.ranks, self.parallelism,
            placement=self.placement, options=self.options,
        )  # fmt: skip


def what_ifs(question: Question, base: Prediction, others: Sequence[Hardware] = ()) -> tuple[WhatIf, ...]:
    """Each change alone.

    Args:
        base: the answer to `question`.
        others: hardware to compare with.
    """
    found = []
    for change, asked in _changes(question, others):
        answer = asked.answer()
        found.append(
            WhatIf(
                change,
                answer.iteration_s,
                answer.low_s,
                answer.high_s,
                answer.exposed_s,
                answer.iteration_s / base.iteration_s,
            )
        )
    return tuple(found)


def _changes(question: Question, others: Sequence[Hardware]) -> Iterator[tuple[str, Question]]:
    if question.ranks > 1:
        place = place_ranks(question.topology, question.ranks, question.placement)
        between = [link for link in place.links if not link.inner]
        yield (
            "network bandwidth ×2",
            replace(
                question,
                topology=scaled_network(question.topology, 2.0),
                hardware=scaled_collectives(question.hardware, between, 2.0),
            ),
        )
        spread = halved_placement(question)
        if spread is not None:
            yield "half the ranks per host", replace(question, placement=spread)
        if isinstance(question.parallelism, DDP):
            yield from _buckets(question, question.parallelism)
        if question.options.schedules is not None:
            usual = replace(question.options, schedules=None)
            yield "collectives the usual way", replace(question, options=usual)
        yield "no overlap", replace(question, options=replace(question.options, overlap=False))
    for hardware in others:
        if hardware != question.hardware:
            yield f"on {hardware.name}", replace(question, hardware=hardware)


def _buckets(question: Question, parallelism: DDP) -> Iterator[tuple[str, Question]]:
    for size in BUCKETS:
        if size != parallelism.limits[1]:
            changed = replace(parallelism, bucket_bytes=float(size), first_bucket_bytes=None)
            yield f"buckets of {size // MIB} MiB", replace(question, parallelism=changed)


def scaled_network(topology: Topology, factor: float) -> Topology:
    """The same cluster with so many times the bandwidth between hosts."""
    hosts = replace(topology.hosts, nic_bytes_per_s=topology.hosts.nic_bytes_per_s * factor)
    levels = tuple(
        replace(level, uplink_bytes_per_s=level.uplink_bytes_per_s * factor) for level in topology.levels
    )
    return replace(topology, name=f"{topology.name} ×{factor:g}", hosts=hosts, levels=levels)


def scaled_collectives(hardware: Hardware, links: Iterable[RankLink], factor: float) -> Hardware:
    """The same hardware with collectives so many times as fast, where one of these links was what limited them.

    That is taken to be so of what was measured at a link's own rate (`CARRIED`): between hosts that of a NIC or an
    uplink, within a host that of what joins its GPUs.
    """
    rates, (low, high) = {(link.inner, link.bytes_per_s) for link in links}, CARRIED
    collectives = tuple(
        msgspec.structs.replace(c, bytes_per_s=c.bytes_per_s * factor)
        if any(inner != c.between_hosts and low <= c.bytes_per_s / rate <= high for inner, rate in rates)
        else c
        for c in hardware.collectives
    )
    return msgspec.structs.replace(hardware, collectives=collectives)


def halved_placement(question: Question) -> tuple[int, ...] | None:
    """Half as many ranks on each host, the others on further hosts in order; None where that cannot be."""
    place = place_ranks(question.topology, question.ranks, question.placement)
    most = max(count for _, count in place.counts)
    if most < 2:
        return None
    gpus, used = question.topology.hosts.gpus.tolist(), [host for host, _ in place.counts]
    left, counts = question.ranks, [0] * len(gpus)
    for host in dict.fromkeys((*used, *range(len(gpus)))):
        counts[host] = min(left, gpus[host], (most + 1) // 2)
        left -= counts[host]
    return None if left else tuple(counts)
