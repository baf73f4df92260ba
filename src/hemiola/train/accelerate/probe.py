"""What the links between the ranks give right now, measured with the all-reduces that training will use.

Where ranks compute on the cores that also move their bytes, a transfer costs computing more than the processor time
of this process: interrupts that serve it count elsewhere, and caches are cold after it (0.7 to 0.8 ns a byte counted,
1.1 to 1.7 ns missing from a multiplication, measured in a lab at 1 to 4 Gbit/s). So that is measured as it will be:
how much less is computed while a transfer is under way, and how much slower that goes.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from hemiola.comm.process_group.group import transport_options
from hemiola.comm.transport import Endpoint
from hemiola.core.hardware import CollectiveCost
from hemiola.train.accelerate.exchange import GradientExchange
from hemiola.train.accelerate.settings import AccelerationSettings

__all__ = [
    "CHUNK_BYTES_MAX",
    "Cores",
    "Processors",
    "RankLinks",
    "cores_of",
    "from_first",
    "gathered",
    "meet",
    "own_processors",
    "probe",
    "slowest",
]


_CHUNK_S, _CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 4e-3, 16 << 10, 512 << 10
"""An urgent gradient waits for no more than what takes so long to send."""

_FIRST = (1 << 20) - 64
"""Numbers of the probe's transfers: above any plan's."""
_SMALL, _ROUNDS = 30, 3
_LONG_S = 0.15
_MOST_BYTES = 64 << 20
_BESIDE, _ALONE_S = 6, 0.04
"""Rounds in which this rank computes beside a transfer, and before each of them without."""
_OVERTAKING, _URGENT = 8, 0
"""Small ones during a large one, and their priority."""
_WIDTH = 256
"""Of the matrices that are multiplied then: a few tenths of a millisecond."""


@dataclass(frozen=True)
class RankLinks:
    """One rank's measurement.

    Attributes:
        host: of the rank.
        step_s: a small all-reduce, halved: one step.
        busy_step_s: a small one that overtakes a large one, which is one step: it waits for what is on its way already.
        bytes_per_s: at which a rank sends while all do.
        beside_bytes_per_s: the same while it computes; no more than `bytes_per_s`.
        cpu_s_per_byte: processor time of this rank per byte that it sends; where that is computing's, too, what computing
            loses by it.
        cpu_s_per_step: processor time of this rank per step of a small one.
    """

    host: str
    step_s: float
    bytes_per_s: float
    beside_bytes_per_s: float
    cpu_s_per_byte: float
    cpu_s_per_step: float = 0.0
    busy_step_s: float = 0.0

    def cost(self, backend: str, ranks: int, computing: float = 0.0, sending: float = 0.0) -> CollectiveCost:
        """As predictions take it.

        Args:
            computing: share of the time in which ranks compute beside it.
            sending: the same, in which others are under way that it overtakes.
        """
        step_s = (1 - sending) * self.step_s + sending * max(self.busy_step_s, self.step_s)
        return CollectiveCost(
            backend=backend, collective="all-reduce", ranks=ranks, hosts=(self.host,) * ranks, alpha_s=step_s,
            bytes_per_s=computing * self.beside_bytes_per_s + (1 - computing) * self.bytes_per_s,
            cpu_s_per_byte=self.cpu_s_per_byte, cpu_s_per_step=self.cpu_s_per_step,
        )  # fmt: skip


def probe(exchange: GradientExchange, ranks: int, timeout_s: float, threads: int = 0) -> RankLinks:
    """Measure, and have the transport send in chunks that suit the rate; called by all ranks at once. Takes well under a second
    where the links are not very slow.

    Args:
        threads: that compute on cores which transfers need too; 0 where transfers have cores of their own. A second more.
    """
    found = _Probing(exchange, ranks, timeout_s)
    small = [found.reduce(found.few, _FIRST) for _ in range(_SMALL)]
    step_s = median(seconds for seconds, _ in small) / 2
    size_bytes = 1 << 19
    while True:
        rounds = [found.reduce(_nothing(size_bytes), _FIRST + 1) for _ in range(_ROUNDS)]
        mean_s = found.mean(median(seconds for seconds, _ in rounds))  # all go on or none
        if mean_s > _LONG_S or size_bytes >= _MOST_BYTES:
            break
        size_bytes = min(_MOST_BYTES, int(size_bytes * min(8.0, 1.2 * _LONG_S / mean_s + 0.5)) // 4096 * 4096)
    sent_bytes = 2 * (ranks - 1) / ranks * size_bytes
    exchange.end.tune(min(max(int(sent_bytes / mean_s * _CHUNK_S), _CHUNK_BYTES_MIN), CHUNK_BYTES_MAX))
    overtaking = [found.overtaking(_nothing(size_bytes), mean_s) for _ in range(_ROUNDS)]
    cpu_s, beside_s = median(cpu for _, cpu in rounds), mean_s
    if threads:
        beside = [found.beside(_nothing(size_bytes)) for _ in range(_BESIDE)]
        cpu_s = max(cpu_s, threads * found.mean(median(lost for lost, _ in beside)))
        beside_s = max(mean_s, found.mean(median(seconds for _, seconds in beside)))
    return RankLinks(
        host=socket.gethostname(),
        step_s=step_s,
        bytes_per_s=sent_bytes / max(mean_s - 2 * step_s, mean_s / 2),
        beside_bytes_per_s=sent_bytes / max(beside_s - 2 * step_s, beside_s / 2),
        cpu_s_per_byte=cpu_s / sent_bytes,
        cpu_s_per_step=median(cpu for _, cpu in small) / 2,
        busy_step_s=median(seconds for each in overtaking for seconds in each),
    )


class _Probing:
    """All-reduces whose result nobody needs."""

    def __init__(self, exchange: GradientExchange, ranks: int, timeout_s: float) -> None:
        self._exchange, self._ranks, self._timeout_s = exchange, ranks, timeout_s
        self.few = _nothing(16)
        self._matrix = _nothing(4 * _WIDTH * _WIDTH).view(_WIDTH, _WIDTH)

    def overtaking(self, flat: torch.Tensor, usual_s: float) -> list[float]:
        """The seconds of small ones during a large one, which takes so long by itself."""
        self.reduce(self.few, _FIRST)  # all begin at once
        ticket = self._exchange.all_reduce(_FIRST + 1, "the probe", flat, _URGENT + 1)
        found = []
        for _ in range(_OVERTAKING):  # the same at all ranks
            time.sleep(usual_s / (2 * _OVERTAKING))
            found.append(self.reduce(self.few, _FIRST)[0])
        ticket.wait(self._timeout_s)
        ticket.wait_sent()
        return found

    def reduce(self, flat: torch.Tensor, number: int) -> tuple[float, float]:
        """The seconds of one, and the processor's."""
        start, cpu = time.perf_counter(), time.process_time()
        ticket = self._exchange.all_reduce(number, "the probe", flat, _URGENT)
        ticket.wait(self._timeout_s)
        ticket.wait_sent()
        return time.perf_counter() - start, time.process_time() - cpu

    def mean(self, seconds: float) -> float:
        """Of all ranks: the same everywhere."""
        told = _nothing(4).fill_(seconds)
        self.reduce(told, _FIRST)
        return float(told) / self._ranks

    def beside(self, flat: torch.Tensor) -> tuple[float, float]:
        """The seconds that computing loses to one all-reduce beside it, and those of that."""
        self.reduce(self.few, _FIRST)  # all begin at once
        until = time.perf_counter() + _ALONE_S
        done, took_s = self._compute(lambda: time.perf_counter() > until)
        usual_s = took_s / done
        self.reduce(self.few, _FIRST)
        ticket = self._exchange.all_reduce(_FIRST + 1, "the probe", flat)
        until = time.perf_counter() + self._timeout_s
        done, took_s = self._compute(lambda: ticket.done or time.perf_counter() > until)
        ticket.wait(self._timeout_s)
        ticket.wait_sent()
        return max(0.0, took_s - done * usual_s), took_s

    def _compute(self, is_over: Callable[[], bool]) -> tuple[int, float]:
        """How often something was computed, and the seconds that it took."""
        done, start = 0, time.perf_counter()
        while not (done and is_over()):
            torch.mm(self._matrix, self._matrix)
            done += 1
        return done, time.perf_counter() - start


def _nothing(size_bytes: int) -> torch.Tensor:
    """Zeros, whatever the script's usual kind of tensor is; random numbers would be missing from its training."""
    return torch.zeros(size_bytes // 4, dtype=torch.float32, device="cpu")


def slowest(found: list[RankLinks]) -> RankLinks:
    """The links as the slowest rank sees them."""
    return RankLinks(
        host=found[0].host,
        step_s=max(one.step_s for one in found),
        bytes_per_s=min(one.bytes_per_s for one in found),
        beside_bytes_per_s=min(one.beside_bytes_per_s for one in found),
        cpu_s_per_byte=max(one.cpu_s_per_byte for one in found),
        cpu_s_per_step=max(one.cpu_s_per_step for one in found),
        busy_step_s=max(one.busy_step_s for one in found),
    )


# How the ranks of a process group find each other for messages of their own.

_SILENCE_S = 30.0
"""A rank of whom nothing is heard for so long is given up; its transport says something every few seconds."""


def meet(group: Any, settings: AccelerationSettings) -> Endpoint:
    """Connect all ranks of a group; called by all. The secret is made by rank 0 and told within the group."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    options = transport_options(
        _SILENCE_S,
        settings.interface,
        settings.rate_bytes_per_s,
        store=dist.distributed_c10d._get_default_store(),
    )
    end = Endpoint(rank, ranks, from_first(os.urandom(32), group), options)
    try:
        end.connect(gathered(end.address, group))
    except BaseException:
        end.close(0.0)  # or it goes on saying that this rank lives
        raise
    return end


def gathered(value: Any, group: Any) -> list[Any]:
    """Everybody's, by rank."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group=group)
    return found


def from_first(value: Any, group: Any) -> Any:
    """Rank 0's, everywhere."""
    box = [value]
    dist.broadcast_object_list(box, dist.get_global_rank(group or dist.group.WORLD, 0), group=group)
    return box[0]


# Which processor cores a rank computes on, and with whom it shares them.

_BUSY = 0.5
_COPIED_BYTES, _COPIES = 64 << 20, 5
"""More than caches hold."""
_PLENTY = 1 << 10


@dataclass(frozen=True)
class Processors:
    """What one rank runs on.

    Attributes:
        machine: the same for ranks on one machine, in whatever network namespace or container.
        cores: that it may run on, by number.
        threads: that one PyTorch operation uses.
        busy: processor seconds per second while it computes.
        copied_bytes_per_s: from one place in memory to another, while all ranks do so.
    """

    machine: str
    cores: frozenset[int]
    threads: int
    busy: float
    copied_bytes_per_s: float


@dataclass(frozen=True)
class Cores:
    """What a rank has for itself.

    Attributes:
        cores: for computing and for what its transport does.
        threads: that compute.
        copied_bytes_per_s: in memory.
    """

    cores: int = _PLENTY
    threads: int = 1
    copied_bytes_per_s: float = 4e9


def own_processors(busy: float) -> Processors:
    """This rank's."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text().strip() if boot.exists() else socket.gethostname()
    return Processors(
        machine, frozenset(os.sched_getaffinity(0)), torch.get_num_threads(), busy, _copied_bytes_per_s()
    )


def _copied_bytes_per_s() -> float:
    source, target = (torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device="cpu") for _ in range(2))
    taken = []
    for _ in range(_COPIES):
        start = time.perf_counter()
        target.copy_(source)
        taken.append(time.perf_counter() - start)
    return _COPIED_BYTES / median(taken)


def cores_of(found: Sequence[Processors]) -> Cores:
    """What each rank has, where every one has as much as the poorest; plenty, where ranks mostly sleep."""
    copied_bytes_per_s = min(one.copied_bytes_per_s for one in found)
    if min(one.busy for one in found) < _BUSY:
        return Cores(copied_bytes_per_s=copied_bytes_per_s)
    by_machine: dict[str, list[Processors]] = {}
    for one in found:
        by_machine.setdefault(one.machine, []).append(one)
    cores = min(
        len(frozenset.union(*(r.cores for r in ranks))) // len(ranks) for ranks in by_machine.values()
    )
    cores = max(1, cores)
    return Cores(cores, min(max(one.threads for one in found), cores), copied_bytes_per_s)
