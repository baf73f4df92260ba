"""What users of NCCL take along: the order of ranks, settings of the tuner plugin, a strategy as XML, and how to use them.

Only texts are made here, by their file's name. NCCL's side was read in its sources (2.27 to 2.30), MSCCL's in RCCL's and
in microsoft/msccl's README; nothing of it was run on a GPU, and the texts say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hemiola.core.errors import InputError
from hemiola.core.collective.schedule import Collective
from hemiola.core.topology import Topology
from hemiola.core.units import format_bytes, format_duration
from hemiola.cost.places import RankPlaces, place_ranks
from hemiola.cost.collective.duration import strategy_seconds
from hemiola.plan.collective.nccl import GAIN, Choice, NcclTimes, Range, nccl_choices
from hemiola.plan.collective.nccl_order import NcclOrder, nccl_order, reordered
from hemiola.plan.collective.nccl_readme import readme
from hemiola.plan.collective.synthesis import Synthesis, synthesise
from hemiola.trace.msccl import Equal, beyond_limits, equal_chunks, msccl_text

__all__ = ["NAMES", "NcclAdvice", "advise_nccl"]

NAMES = ("README.txt", "hosts.txt", "hostfile", "slurm-hostfile", "tuner.csv", "nccl.env", "strategy.xml")
_LARGEST = (1 << 63) - 1
_SMALLER = 4
"""A strategy is used for collectives down to this part of what it was made for."""


@dataclass(frozen=True)
class NcclAdvice:
    """All that was found.

    Attributes:
        place: with hosts in the new order, along which ranks are numbered.
        order: how it was found.
        ranges: for which sizes another choice than NCCL's own is better.
        found: the strategy, on `place`: without paces, which XML does not have.
        equal: the same with equal chunks, as XML has it.
        equal_s: what it takes then.
        xml: the document; "" where the strategy is the ring, which NCCL has itself.
        beyond: which limits of MSCCL it exceeds.
    """

    place: RankPlaces
    order: NcclOrder
    ranges: tuple[Range, ...]
    found: Synthesis
    equal: Equal
    equal_s: float
    xml: str
    beyond: tuple[str, ...]

    @property
    def hosts(self) -> list[tuple[str, int]]:
        """In order: their names, and how many ranks they have."""
        names = self.place.topology.hosts.names
        return [(names[host], count) for host, count in self.place.counts]

    @property
    def bytes_min(self) -> int:
        """Of the collectives that go by the XML: MSCCL leaves smaller ones to NCCL."""
        return int(self.found.size_bytes) // _SMALLER

    @property
    def rounding_loss(self) -> float:
        """The share by which equal chunks make the strategy slower."""
        return self.equal_s / self.found.chosen.seconds - 1 if self.found.chosen.seconds else 0.0

    def files(self) -> dict[str, str]:
        """Texts by file name: of `NAMES`, all but the last where there is no XML."""
        hosts = self.hosts
        texts = (
            readme(self),
            ",".join(name for name, _ in hosts) + "\n",
            "".join(f"{name} slots={count}\n" for name, count in hosts),
            "".join(f"{name}\n" * count for name, count in hosts),
            tuner_csv(self.ranges, len(hosts), self.place.ranks),
            environment(self.order),
            self.xml,
        )
        return {name: text for name, text in zip(NAMES, texts, strict=True) if text}


def advise_nccl(
    topology: Topology, ranks: int, size_bytes: float, collective: Collective = "all-reduce", *,
    placement: tuple[int, ...] | None = None,
) -> NcclAdvice:  # fmt: skip
    """For these ranks and collectives of about this size.

    Raises:
        InputError: ranks that cannot be placed, one rank, or a link without bandwidth.
        StrategyError: an all-to-all.
    """
    before = place_ranks(topology, ranks, placement)
    if ranks < 2:
        raise InputError("one rank has nobody to send to", "give two ranks or more")
    order = nccl_order(before, size_bytes)
    place = reordered(before, order.order)
    found = synthesise(place, size_bytes, collective, paces=False)
    equal = equal_chunks(found.chosen.strategy)
    seconds = found.chosen.seconds
    if equal.excess:
        seconds = strategy_seconds(equal.strategy, size_bytes, place)
    usual = found.chosen is found.usual
    xml = "" if usual else msccl_text(equal.strategy, int(size_bytes) // _SMALLER)
    ranges = tuple(nccl_choices(NcclTimes(place)))
    return NcclAdvice(
        place, order, ranges, found, equal, seconds, xml, tuple(beyond_limits(xml)) if xml else ()
    )


def tuner_csv(ranges: Sequence[Range], nodes: int, ranks: int) -> str:
    """The configuration of NCCL's example tuner plugin: the first line that fits, and that NCCL can do, is taken."""
    lines = [
        "# Written by hemiola strategy --nccl. For NCCL's example tuner plugin; README.txt says how it has to be built.",
        "# collective,least bytes,most bytes,algorithm,protocol,channels (-1: NCCL's),nodes,ranks,operations,registered",
    ]
    if not ranges:
        lines.append(
            "# Nothing is over a tenth faster than what NCCL may choose by itself: no line is needed."
        )
    for one in ranges:
        lines.append(f"# {format_bytes(max(one.least_bytes, 1024))}: {_gain(one.best, one.usual)}")
        for choice in (one.best, one.instead):
            if choice:
                most = _LARGEST if one.most_bytes is None else one.most_bytes
                lines.append(
                    f"allreduce,{one.least_bytes},{most},{choice.algorithm},{choice.protocol},-1,{nodes},{ranks},-1,-1"
                )
    return "\n".join(lines) + "\n"


def environment(order: NcclOrder) -> str:
    """Variables for NCCL."""
    lines = [
        "# Written by hemiola strategy --nccl. With the tuner plugin, give paths that all hosts have:",
        "#NCCL_TUNER_PLUGIN=/path/libnccl-tuner-example.so",
        "#NCCL_TUNER_CONFIG_FILE=/path/tuner.csv",
    ]
    if (
        order.usual.seconds <= (1 + GAIN) * order.best.seconds
        or order.best.algorithm == order.usual.algorithm
    ):
        lines.append("# Without it: nothing. NCCL's own choice between ring and tree is as good here.")
    else:
        lines += [
            "# Without it, for all-reduces of every size (NCCL 2.24 and later; before, NCCL_ALGO=Ring or Tree holds for all",
            f"# collectives). {format_bytes(order.size_bytes)}: {_gain(order.best, order.usual)}",
            f"NCCL_ALGO=allreduce:{order.best.algorithm}",
        ]
    return "\n".join(lines) + "\n"


def _gain(best: Choice, usual: Choice) -> str:
    return f"{best} {format_duration(best.seconds)} predicted, instead of {usual} {format_duration(usual.seconds)}"
