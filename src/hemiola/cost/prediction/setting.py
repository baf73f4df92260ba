"""Everything that a prediction is about, as one value; and what was assumed where nothing was measured."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hemiola.core.collective.schedule import FEWEST_BYTES
from hemiola.core.errors import GraphError, InputError
from hemiola.core.graph import PHASES, Graph
from hemiola.core.hardware import Hardware
from hemiola.core.units import format_bytes, format_rate
from hemiola.cost.collective.library import (
    CARRIED,
    LIBRARIES,
    Cost,
    Library,
    collective_cost,
    library_of,
    measurement,
    measurements,
)
from hemiola.cost.collective.price import FITTED, Fitting, both_ways, schedule_cost
from hemiola.cost.operations import EVIDENCE, operation_seconds
from hemiola.cost.parallelism import Parallelism, Transfer
from hemiola.cost.places import RankPlaces
from hemiola.cost.prediction.value import ScheduleUse

__all__ = ["QUARTILE", "USUAL", "PredictionOptions", "Setting", "estimate", "exact", "server_cost"]


# What each operation is expected to take, and which of these expectations are off together.

QUARTILE = NormalDist().inv_cdf(0.75)
"""Half the interquartile range of a normal law, in standard deviations: what calibration gives as spread."""


@dataclass(frozen=True, eq=False)
class OperationEstimates:
    """One entry per operation in every column.

    Attributes:
        seconds: expected.
        deviation: relative standard deviation.
        together: operations of one number are off together, others independently.
    """

    seconds: NDArray[np.float64]
    deviation: NDArray[np.float64]
    together: NDArray[np.int64]


def estimate(graph: Graph, hardware: Hardware) -> OperationEstimates:
    """From the hardware: measured operations are off by signature, all others with their kind.

    Raises:
        HardwareError: the hardware does not know a type that the graph computes in.
    """
    costs = operation_seconds(graph, hardware)
    measured = costs.evidence == EVIDENCE.index("measured")
    operations = graph.operations
    return OperationEstimates(
        seconds=costs.seconds,
        deviation=np.where(measured, costs.spread / QUARTILE, costs.spread),
        together=np.where(
            measured, operations.signature, len(graph.signatures) + operations.kind.astype(np.int64)
        ),
    )


def exact(seconds: NDArray[np.float64]) -> OperationEstimates:
    """Times that are known, such as those of emulated computation."""
    return OperationEstimates(seconds, np.zeros(len(seconds)), np.zeros(len(seconds), dtype=np.int64))


# What a push to a parameter server, or a pull from it, loads: all workers send to one host, or it to all
# of them.


def server_cost(transfer: Transfer, place: RankPlaces, library: Library, hardware: Hardware) -> Cost:
    """The bytes on every link for one parameter of all workers.

    Server s stands with rank s % ranks, as `hemiola.synchronise` places them.
    """
    home = place.host_of[transfer.server % place.ranks]
    push = transfer.collective == "push"
    variant = library.variants["send"][0]
    best = measurement(hardware, library, variant, "send", place)
    loads = []
    for i, link in enumerate(place.links):
        own = home in link.hosts
        if link.inner and not own:
            continue
        copies = place.ranks - link.inside if own and not link.inner else link.inside
        outgoing = push != own
        loads.append(
            (
                i if outgoing else i + len(place.links),
                copies * transfer.size_bytes / variant.data_share(place),
            )
        )
    step_s = variant.network_s if len(place.counts) > 1 else variant.local_s
    alpha_s = best.alpha_s if best else variant.start_s + step_s
    return Cost(
        algorithm="direct",
        latency_s=alpha_s + place.latency_s,
        loads=tuple(load for load in loads if load[1] > 0),
        sent_bytes=transfer.size_bytes,
        rate_max_bytes_per_s=best.bytes_per_s if best else math.inf,
        cpu_s=best.cpu_s_per_byte * transfer.size_bytes + best.cpu_s_per_step if best else 0.0,
        spread=best.spread if best else 0.0,
        latency_spread=best.alpha_spread if best else 0.0,
    )


# Which collectives go by schedules, and what those need: large ones of a library that carries them out.

Alike = tuple[str, float, int, str]
"""What transfers have in common that need the same: collective, size, server, algorithm."""


def _alike(transfer: Transfer) -> Alike:
    """Of one of them."""
    return transfer.collective, transfer.size_bytes, transfer.server, transfer.algorithm


def _check_schedules(library: Library, parallelism: Parallelism) -> None:
    """Refuse schedules where nothing can go by them.

    Raises:
        InputError: a library that chooses by itself, or transfers that pause each other.
    """
    if parallelism.preemptive:
        raise InputError(
            f"collectives by schedules beside {parallelism.label}, whose transfers pause each other",
            "a plan has algorithms of its own: leave --schedules or --plan out",
        )
    if not library.by_schedules:
        raise InputError(
            f"collectives by schedules, and {library.name}, which chooses its own algorithms",
            "predict with Hemiola's process group (--library hemiola), or leave --schedules out",
        )


def _costs_by_schedules(
    transfers: Iterable[Transfer], fitting: Fitting, place: RankPlaces, library: Library, hardware: Hardware
) -> dict[Alike, Cost]:
    """What those transfers need that go by schedules."""
    if place.ranks < 2:
        return {}
    choose, found = fitting(place), dict[Alike, Cost]()
    for key in dict.fromkeys(map(_alike, transfers)):
        name, size_bytes, server, _ = key
        collective = next((one for one in FITTED if one == name), None)
        if collective is None or server >= 0 or size_bytes <= FEWEST_BYTES:
            continue
        schedule = choose(collective, size_bytes)
        if schedule is not None:
            found[key] = schedule_cost(schedule, size_bytes, place, library, hardware)
    return found


def _schedule_uses(
    transfers: Iterable[Transfer],
    fitted: Mapping[Alike, Cost],
    usual: Callable[[Transfer], Cost],
    place: RankPlaces,
) -> tuple[ScheduleUse, ...]:
    """How each kind and size of collective goes, beside the usual way; of each kind the largest first.

    Args:
        fitted: what those need that go by schedules.
        usual: what one would need without them.
    """
    own = [transfer for transfer in transfers if transfer.server < 0]
    count, one_of = Counter(map(_alike, own)), {_alike(transfer): transfer for transfer in own}
    found = []
    for key in sorted(count, key=lambda key: (key[0], -key[1])):
        its, otherwise = fitted.get(key), usual(one_of[key])
        seconds = (its or otherwise).seconds(place)
        found.append(
            ScheduleUse(
                key[0], key[1], count[key], its.algorithm if its else "", seconds,
                otherwise.algorithm, otherwise.seconds(place),
            )
        )  # fmt: skip
    return tuple(found)


OPTIMIZER = PHASES.index("optimizer")

_FOR = re.compile(r"^captured with PyTorch \S+ for (\w+)")
"""How a captured graph's source begins: with the device's type."""
_UNFUSED = ("aten._softmax", "aten._safe_softmax")
"""What attention that is not fused is recognised by; a loss has a log_softmax."""


@dataclass(frozen=True)
class PredictionOptions:
    """How a prediction is made.

    Attributes:
        overlap: whether the ranks compute while they send; without, computation waits for each transfer.
        straggling: whether a step that waits for all ranks waits for the slowest of so many (by the spread
            of the hardware's iterations, `Hardware.noise`, where that was measured).
        symmetric: ranks that are alike are executed once; without, every rank by itself.
        cores: processor cores that all ranks share, where the hosts are really one machine; None where each
            host has the hardware's.
        library: the collective library; None for PyTorch's choice (gloo on processors, NCCL on GPUs).
        schedules: how schedules for large collectives are chosen, as a process group "hemiola" does with
            HEMIOLA_STRATEGY (`plan.collective.planner.fitted_to`, `cost.collective.price.given_schedule`); None for
            the library's usual way.
        confidence: share of cases that the interval is to hold.
    """

    overlap: bool = True
    straggling: bool = True
    symmetric: bool = True
    cores: float | None = None
    library: Library | None = None
    schedules: Fitting | None = None
    confidence: float = 0.9

    def __post_init__(self) -> None:
        if self.cores is not None and not self.cores > 0:
            raise InputError(f"{self.cores} cores", "give a number above 0")
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence {self.confidence}", "give a share above 0 and below 1, such as 0.9")


USUAL = PredictionOptions()
"""Overlap, stragglers, symmetry, and PyTorch's collective library."""


@dataclass(frozen=True, eq=False)
class Setting:
    """One graph on one placement with one parallelism.

    Attributes:
        graph, hardware, place, parallelism, options: as given.
        estimates: of each operation on this hardware.
    """

    graph: Graph
    hardware: Hardware
    place: RankPlaces
    parallelism: Parallelism
    estimates: OperationEstimates
    options: PredictionOptions = USUAL

    def __post_init__(self) -> None:
        seconds = self.estimates.seconds
        if len(seconds) != len(self.graph.operations):
            raise GraphError(
                f"seconds: {len(seconds)} entries for {len(self.graph.operations)} operations",
                "estimate the same graph that is predicted",
            )
        if not (np.isfinite(seconds) & (seconds >= 0)).all():
            raise GraphError("seconds has an entry that is no number of 0 or more", "estimate it again")
        if self.options.schedules is not None:
            _check_schedules(self.library, self.parallelism)

    @cached_property
    def library(self) -> Library:
        """The collective library."""
        return self.options.library or LIBRARIES.get(self.parallelism.library) or library_of(self.hardware)

    @property
    def preemptive(self) -> bool:
        """Whether transfers pause each other: the parallelism asks for it, and the library can."""
        return self.parallelism.preemptive and self.library.preemptive

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """What is exchanged, in the order of issue."""
        found = self.parallelism.transfers(self.graph, self.place.ranks, self.hardware.kind)
        return found if self.options.overlap else tuple(self._at_once(transfer) for transfer in found)

    def _at_once(self, transfer: Transfer) -> Transfer:
        """The same transfer, waited for as soon as it is ready; a push is by its pull."""
        if transfer.collective == "push":
            return transfer
        return replace(transfer, before=transfer.after + 1, next_iteration=False)

    @cached_property
    def costs(self) -> tuple[Cost, ...]:
        """What each transfer needs of the links and the processor."""
        one_of = {_alike(transfer): transfer for transfer in self.transfers}
        costs = {key: self._fitted.get(key) or self._usual(transfer) for key, transfer in one_of.items()}
        if self._fitted:
            costs = dict(zip(costs, both_ways(list(costs.values()), len(self.place.links)), strict=True))
        return tuple(costs[_alike(transfer)] for transfer in self.transfers)

    def _usual(self, transfer: Transfer) -> Cost:
        if transfer.server < 0:
            return collective_cost(
                transfer.collective, transfer.size_bytes, self.place, self.library, self.hardware, transfer.algorithm
            )  # fmt: skip
        return server_cost(transfer, self.place, self.library, self.hardware)

    @cached_property
    def _fitted(self) -> dict[Alike, Cost]:
        """Of transfers that go by schedules."""
        fitting = self.options.schedules
        if fitting is None:
            return {}
        return _costs_by_schedules(self.transfers, fitting, self.place, self.library, self.hardware)

    def goes_by_schedule(self, transfer: Transfer) -> bool:
        """Whether it does."""
        return _alike(transfer) in self._fitted

    @cached_property
    def schedule_uses(self) -> tuple[ScheduleUse, ...]:
        """How collectives go where schedules are asked for, beside the usual way."""
        if self.options.schedules is None:
            return ()
        return _schedule_uses(self.transfers, self._fitted, self._usual, self.place)

    @cached_property
    def compute_s(self) -> NDArray[np.float64]:
        """Seconds that a rank computes per operation: of the optimizer only its share."""
        share = self.parallelism.optimizer_share(self.place.ranks)
        seconds = self.estimates.seconds
        if share == 1:
            return seconds
        fixed = np.minimum(seconds, self.hardware.phases["optimizer"].operation_s if share else 0.0)
        own = self.graph.operations.phase == OPTIMIZER
        return np.where(own, fixed + (seconds - fixed) * share, seconds)

    @cached_property
    def added_s(self) -> NDArray[np.float64]:
        """Seconds after each operation for exchanging: hooks, packing, starting a collective.

        One entry more than operations: the last is for what is ready at the iteration's start.
        """
        added = np.zeros(len(self.graph.operations) + 1)
        for transfer in self.transfers:
            added[transfer.after] += self.copy_s(transfer.pack_bytes)
        exchange = self.hardware.exchange
        if exchange is not None:
            reduced = [transfer for transfer in self.transfers if transfer.collective == "all-reduce"]
            for transfer in reduced:
                added[transfer.after] += exchange.bucket_s
            for i in {i for transfer in reduced for i in transfer.parameters}:  # once, in however many pieces
                added[self.graph.parameters[i].gradient_ready] += exchange.parameter_s
        return added

    def copy_s(self, size_bytes: float) -> float:
        """Copying so many bytes on the device: half of DDP's measured copying there and back, else read and write."""
        if self.hardware.exchange is not None:
            return size_bytes * self.hardware.exchange.copy_s_per_byte / 2
        return 2 * size_bytes / self.hardware.memory_bytes_per_s

    def arrival_s(self, transfer: Transfer) -> tuple[float, float]:
        """What a rank does with a transfer that has arrived: copies it, and applies it where that is its own work."""
        copied_s = self.copy_s(transfer.unpack_bytes)
        if not self.parallelism.updates_on_arrival:
            return copied_s, 0.0
        return copied_s, float(self.update_s[list(transfer.completes)].sum())

    @cached_property
    def iteration_s(self) -> float:
        """Per iteration beside everything else."""
        exchange = self.hardware.exchange
        own = exchange.iteration_s if exchange is not None and self.transfers else 0.0
        return self.hardware.iteration_s + own

    @cached_property
    def update_s(self) -> NDArray[np.float64]:
        """Seconds in which each parameter is updated by itself, on a server or on arrival: its share, by bytes, of the optimizer's work."""
        sizes = np.array([p.gradient_bytes for p in self.graph.parameters], dtype=np.float64)
        total = float(self.estimates.seconds[self.graph.operations.phase == OPTIMIZER].sum())
        return total * sizes / max(float(sizes.sum()), 1.0)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, and what a reader should know before relying on the number."""
        found = []
        memory, sharing = self.parallelism.memory_bytes(self.graph, self.place.ranks), self._sharing_memory
        if memory * sharing > self.hardware.memory_bytes:
            each = "per rank" if sharing == 1 else f"for each of {sharing} ranks"
            found.append(
                f"does not fit: {memory / 1e9:.1f} GB {each}, {self.hardware.name} has "
                f"{self.hardware.memory_bytes / 1e9:.1f} GB"
            )
        found += self._captured_elsewhere() + self._inside_hosts()
        if self.transfers:
            found += self._measured_elsewhere()
            if self.hardware.exchange is None:
                found.append(
                    "what exchanging gradients costs the processor was not measured: only copies are counted"
                )
        return tuple(found)

    @property
    def _sharing_memory(self) -> int:
        """How many ranks share what the hardware holds: a GPU's is one rank's, a processor's that of all on its host."""
        if self.hardware.kind == "gpu":
            return 1
        one_machine = self.options.cores is not None
        return self.place.ranks if one_machine else max(count for _, count in self.place.counts)

    def _captured_elsewhere(self) -> list[str]:
        """Whether the graph has the operations of another kind of device than the hardware's."""
        captured, gpu = _FOR.search(self.graph.source), self.hardware.kind == "gpu"
        if captured is None or (captured[1] != "cpu") == gpu:
            return []
        effect = ""
        if gpu and any(name.startswith(_UNFUSED) for name in self.graph.operations.name):
            effect = (
                ": its attention is the processor's, single operations that keep the whole matrix of scores, where a "
                "GPU runs one fused kernel, so time and memory are overstated"
            )
        return [
            f"the graph was captured for {captured[1]}, and {self.hardware.name} is a {'GPU' if gpu else 'processor'}"
            f"{effect}; capture again with hemiola capture --device {'cuda, where a GPU is' if gpu else 'cpu'}"
        ]

    def _measured_elsewhere(self) -> list[str]:
        """Whether transfers between such ranks were measured, and on a network as fast as this one."""
        name, measured = self.library.name, measurements(self.hardware, self.library, self.place)
        if not measured:
            within = " within a host" if any(c.backend == name for c in self.hardware.collectives) else ""
            return [f"no measured {name} transfers{within}: {self.library.source}"]
        rates = [link.bytes_per_s for link in self.place.links if not link.inner]
        if not rates:
            return []
        found = []
        if not any(c.between_hosts for c in measured):
            found.append(
                f"{name} was measured within a host only, and is taken to be the same between hosts, up to what their "
                "links carry: hemiola calibrate --links adds what was measured there"
            )
        sent, carried = min(cost.rate_max_bytes_per_s for cost in self.costs), min(rates)
        if sent < CARRIED[0] * carried:
            found.append(
                f"{name} sends at {format_rate(sent)} as measured, where every link between these hosts carries "
                f"{format_rate(carried)} or more: that counts as its own limit, which no faster network lifts; if it "
                "was the limit of a slower network, measure on this one (hemiola calibrate --links)"
            )
        return found

    def _inside_hosts(self) -> list[str]:
        """Which of the topology's and the hardware's rates between GPUs of one host was taken, where they differ."""
        inner = min(
            (link for link in self.place.links if link.inner), key=lambda link: link.bytes_per_s, default=None
        )
        if inner is None or self.hardware.kind == "cpu" or not self.transfers:
            return []
        own, name = self.hardware.fabric_bytes_per_s, self.hardware.name
        taken = f"GPUs of one host send at {format_bytes(inner.bytes_per_s)}/s"
        if not own:
            return [
                f"{taken}, the bus (PCIe) of the topology: {name} has no NVLink (fabric_bytes_per_s is 0)"
            ]
        if inner.name.endswith("bus"):
            return [f"{taken}, the bus (PCIe) of the topology: ranks of a host are on several NVLink islands"]
        given = float(self.place.topology.hosts.fabric_bytes_per_s[self.place.counts[min(inner.hosts)][0]])
        if given < own:
            return [
                f"{taken}, the fabric of the topology, not the {format_bytes(own)}/s of {name}'s NVLink: give the "
                "topology fabric= if its hosts have more"
            ]
        if given > own:
            return [f"{taken}, {name}'s NVLink, not the {format_bytes(given)}/s of the topology's fabric"]
        return []
