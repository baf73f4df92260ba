"""When ranks that are ready stop waiting for those that are not: ski rental with measured costs.

Waiting costs a second per second, and then the whole collective. Starting without the late ones costs the partial
collective, in which they only relay, and later the second one that adds what they have. Who knows nothing of
arrivals to come waits as long as starting now would cost more than waiting has (Karlin et al., "Competitive snoopy
caching", 1988): at most twice what somebody pays who knows them all.

AdapCC decides so (`proto/rpc_server.py`), in slots, with costs of its own (`adapcc_costs`), never for a lone ready
rank, and gives up after a patience. There, more ready ranks make starting dearer, against which no rule
that always takes all of them is within twice: `fewer` lets it take some of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hemiola.core.errors import InputError

__all__ = ["Decision", "WaitingCosts", "adapcc_costs", "clairvoyant_s", "decide"]


@dataclass(frozen=True)
class WaitingCosts:
    """What a collective costs, in seconds.

    Attributes:
        full_s: with all ranks at once.
        partial_s: with the first 1, 2, ... N - 1 of them, and the rest afterwards; infinity where that is not done.
    """

    full_s: float
    partial_s: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, value in (("full_s", self.full_s), *(("partial_s", value) for value in self.partial_s)):
            if not value >= 0:
                raise InputError(f"{name} is {value}", "give seconds of 0 or more")

    @property
    def ranks(self) -> int:
        """All of them."""
        return len(self.partial_s) + 1

    def start_s(self, ready: int, fewer: bool) -> tuple[float, int]:
        """What starting costs when so many are ready, and with how many of them it is done."""
        if ready == self.ranks:
            return self.full_s, ready
        if not fewer:
            return self.partial_s[ready - 1], ready
        best = min(range(ready), key=lambda i: (self.partial_s[i], -i))
        return self.partial_s[best], best + 1

    def enough_s(self, ready: int, fewer: bool = True) -> float:
        """For how long so many wait for the others: as long as starting costs more than waiting has; 0 if all are ready."""
        return 0.0 if ready == self.ranks else max(self.start_s(ready, fewer)[0] - self.full_s, 0.0)


@dataclass(frozen=True)
class Decision:
    """When to start, and with whom.

    Attributes:
        after_s: since the first rank was ready.
        active: ranks that take part; the others relay.
        cost_s: until everything is added up.
    """

    after_s: float
    active: tuple[int, ...]
    cost_s: float


def decide(
    arrivals_s: Sequence[float], costs: WaitingCosts, *, slot_s: float = 0.0, patience_s: float = math.inf,
    fewer: bool = True,
) -> Decision:  # fmt: skip
    """What is decided online if ranks become ready at these times; later ones do not matter to it.

    Args:
        arrivals_s: when each rank is ready, since any moment.
        slot_s: it looks so often; 0 for whenever something changes.
        patience_s: it starts after so long whatever it costs.
        fewer: whether only some of the ready ranks may take part where that costs less.

    Raises:
        InputError: another number of ranks than the costs are for.
    """
    order, since = _ordered(arrivals_s, costs)
    for ready in range(1, costs.ranks + 1):
        start_s, taken = costs.start_s(ready, fewer)
        next_s = since[ready] if ready < costs.ranks else math.inf
        enough = costs.enough_s(ready, fewer)
        if math.isfinite(start_s):
            enough = min(enough, patience_s)
        stop_s = max(since[ready - 1], enough)
        if slot_s and math.isfinite(stop_s):
            stop_s = max(1, math.ceil(stop_s / slot_s - 1e-9)) * slot_s
        if stop_s < next_s:
            return Decision(stop_s, tuple(sorted(order[:taken])), stop_s + start_s)
    raise AssertionError("the last rank is followed by nobody")


def clairvoyant_s(arrivals_s: Sequence[float], costs: WaitingCosts) -> float:
    """The least that anybody pays who knows all arrivals."""
    _, since = _ordered(arrivals_s, costs)
    return min(since[ready - 1] + costs.start_s(ready, True)[0] for ready in range(1, costs.ranks + 1))


def adapcc_costs(
    ranks: int, size_bytes: float = 100 * 2**20, bytes_per_s_per_rank: float = 50 * 2**30 / 8
) -> WaitingCosts:
    """AdapCC's own estimate, with its constants: 100 MB, 50 Gbit/s for every rank.

    A full collective is 2 (N - 1) S / BW; one of m ranks (m - 1) / m to (N - 1) / N of that, and N S / BW to catch up.
    A lone rank never starts.
    """
    if ranks < 1:
        raise InputError(f"{ranks} ranks", "give at least one")
    one_s = size_bytes / (ranks * bytes_per_s_per_rank)
    full_s = 2 * (ranks - 1) * one_s
    partial = [
        full_s * ((ready - 1) / ready) / ((ranks - 1) / ranks) + ranks * one_s for ready in range(2, ranks)
    ]
    return WaitingCosts(full_s, (math.inf, *partial) if ranks > 1 else ())


def _ordered(arrivals_s: Sequence[float], costs: WaitingCosts) -> tuple[list[int], list[float]]:
    """Ranks as they become ready, and when each does since the first."""
    if len(arrivals_s) != costs.ranks:
        raise InputError(
            f"{len(arrivals_s)} arrivals with the costs of {costs.ranks} ranks", "give one for each"
        )
    order = sorted(range(len(arrivals_s)), key=lambda rank: (arrivals_s[rank], rank))
    return order, [arrivals_s[rank] - arrivals_s[order[0]] for rank in order]
