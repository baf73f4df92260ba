"""What the links between the ranks give right now, measured with the all-reduces that training will use."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from statistics import median

import torch

from hemiola.core.hardware import CollectiveCost
from hemiola.run.accelerate.exchange import Exchange

__all__ = ["Links", "probe", "slowest"]

_FIRST = (1 << 20) - 64
"""Numbers of the probe's transfers: above any plan's."""
_SMALL, _ROUNDS = 30, 3
_LONG_S = 0.15
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Links:
    """One rank's measurement.

    Attributes:
        host: of the rank.
        step_s: a small message there and back again, halved: one step.
        bytes_per_s: at which a rank sends while all do.
        cpu_s_per_byte: processor time of this rank per byte that it sends.
    """

    host: str
    step_s: float
    bytes_per_s: float
    cpu_s_per_byte: float

    def cost(self, backend: str, ranks: int) -> CollectiveCost:
        """As predictions take it."""
        return CollectiveCost(
            backend=backend, collective="all-reduce", ranks=ranks, hosts=(self.host,) * ranks, alpha_s=self.step_s,
            bytes_per_s=self.bytes_per_s, cpu_s_per_byte=self.cpu_s_per_byte,
        )  # fmt: skip


def probe(exchange: Exchange, ranks: int, timeout_s: float) -> Links:
    """Measure; called by all ranks at once. Takes well under a second where the links are not very slow."""
    number = iter(range(_FIRST, 1 << 20))
    small = torch.zeros(4)
    few = next(number)

    def timed(flat: torch.Tensor, which: int) -> tuple[float, float]:
        start, cpu = time.perf_counter(), time.process_time()
        ticket = exchange.all_reduce(which, "the probe", flat)
        ticket.wait(timeout_s)
        ticket.wait_sent()
        return time.perf_counter() - start, time.process_time() - cpu

    steps = [timed(small, few)[0] for _ in range(_SMALL)]
    share = 2 * (ranks - 1) / ranks
    size_bytes, which = 1 << 19, next(number)
    agreed = torch.zeros(1)
    while True:
        rounds = [timed(torch.zeros(size_bytes // 4), which) for _ in range(_ROUNDS)]
        took_s = median(seconds for seconds, _ in rounds)
        agreed[0] = took_s
        ticket = exchange.all_reduce(few, "the probe", agreed)  # all go on or none
        ticket.wait(timeout_s)
        mean_s = float(agreed[0]) / ranks
        if mean_s > _LONG_S or size_bytes >= _MOST_BYTES:
            break
        size_bytes = min(_MOST_BYTES, int(size_bytes * min(8.0, 1.2 * _LONG_S / mean_s + 0.5)) // 4096 * 4096)
    sent_bytes = share * size_bytes
    return Links(
        host=socket.gethostname(),
        step_s=median(steps),
        bytes_per_s=sent_bytes / max(mean_s - 2 * median(steps), mean_s / 2),
        cpu_s_per_byte=median(cpu for _, cpu in rounds) / sent_bytes,
    )


def slowest(found: list[Links]) -> Links:
    """The links as the slowest rank sees them."""
    return Links(
        host=found[0].host,
        step_s=max(one.step_s for one in found),
        bytes_per_s=min(one.bytes_per_s for one in found),
        cpu_s_per_byte=max(one.cpu_s_per_byte for one in found),
    )
