"""All-reduces whose shares follow what each host's link can take, without anything being measured for it.

Every rank is the middle of a star, in which the others send it their part and get the sum back. A middle of the
share w of M bytes among N ranks sends, and receives, M (1 + (N - 2) w), and all of them together 2 (N - 1) M: so
shares that give every link its time meet the bound max(M / min B, 2 (N - 1) M / sum B) that holds for any strategy
(specification, 3.1). Nobody passes anything on. What comes to a rank therefore shows what its link takes, while
there is much for it: at the beginning, when everybody has its own to send; and all the time, if its link is the
slowest. So each collective tells the shares of the next one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from hemiola.core.strategy import Strategy
from hemiola.core.strategy_shapes import ring, trees

__all__ = [
    "JUMP", "NAME", "RANKS", "Received", "SeenRates", "balanced", "bound_s", "expected_s", "is_ring", "shares",
]  # fmt: skip

NAME = "balanced"
RANKS = range(3, 17)
"""Of two, both send the same whatever their shares are; many would exchange very many messages."""
LEAST_SHARE = 1 / 64
"""Whoever should have less has nothing."""
RING, RING_BYTES = 1.2, 128 << 10
"""Where stars could gain no more than this, a ring is used, in pieces of this size: each of its connections is busy all
the time, and TCP finds its rate again sooner after a change. But a ring hides which link is slow."""
PIECE_S, PIECES_BYTES = 1.5e-3, (16 << 10, 1 << 20)
"""What a piece takes at the slowest link, and the least and the most of it."""
PIECES = 512
"""There are no more of them: each costs time of processors."""
SLOWEST = 1.15
"""One link sets the pace alone, if it takes so many times as long as all together would."""
AHEAD_S = 5.5e-3
"""Then so much of its time others run ahead of it. They would fill the queues to the middles: of two hosts at 340 and
400 Mbit/s, one at 230 and one at 92, 2 MiB took 5 to 10 % longer then."""
JUMP = 1.35
"""A rate that is so many times as high as was believed, or a collective that takes so many times as long as it should, is
believed at once; else what counts is the median of the last `KEPT`: single ones differ by 5 to 30 %."""
KEPT = 5
PACE, GROWS = 0.9, 1.1
"""A link that would have been done in less of the time that it took did not set the pace: it may be faster than is believed, and
is taken to be so much faster the next time, up to the highest rate of any that was seen."""
KEEPS = 0.98
"""Of that highest rate, after each one."""
HARDLY = 0.9
"""A link that sets the pace was seen to carry this of its rate on average."""
OVERHEAD = 1.05
"""What is expected, over the bound."""


def bound_s(rates: Sequence[float], size_bytes: float) -> float:
    """No all-reduce of so many bytes takes less among hosts with links of these rates, in bytes/s."""
    return size_bytes * max(1 / min(rates), 2 * (len(rates) - 1) / sum(rates))


def _ring_s(rates: Sequence[float], size_bytes: float) -> float:
    return size_bytes * 2 * (len(rates) - 1) / len(rates) / min(rates)


def is_ring(rates: Sequence[float], size_bytes: float, explores: bool) -> bool:
    """Whether `balanced` is a ring."""
    return not explores and _ring_s(rates, size_bytes) <= RING * bound_s(rates, size_bytes)


def expected_s(rates: Sequence[float], size_bytes: float, explores: bool) -> float:
    """What `balanced` should take."""
    seconds = _ring_s if is_ring(rates, size_bytes, explores) else bound_s
    return OVERHEAD * seconds(rates, size_bytes)


def shares(rates: Sequence[float]) -> list[float]:
    """Each rank's share of the sums, together 1, such that all links are done at the same time or the slowest alone sets it.

    Args:
        rates: bytes/s that each can send and receive at the same time; above 0, of three or more.
    """
    others = len(rates) - 2
    order = sorted(range(len(rates)), key=rates.__getitem__, reverse=True)
    found = [0.0] * len(rates)
    for count in range(len(rates), 0, -1):
        some = order[:count]
        each_s = (others + count) / sum(rates[rank] for rank in some)
        if each_s * rates[some[-1]] >= 1 + others * LEAST_SHARE or count == 1:
            for rank in some:
                found[rank] = (each_s * rates[rank] - 1) / others
            break
    return found


def balanced(rates: Sequence[float], size_bytes: int, explores: bool = False) -> Strategy:
    """Stars with these shares, those of nothing left out; or the ring, where they could gain little.

    Args:
        rates: as for `shares`.
        size_bytes: of what every rank gives.
        explores: stars in any case: they show what links take.
    """
    if is_ring(rates, size_bytes, explores):
        return msgspec.structs.replace(
            ring(range(len(rates))), name=NAME, chunk_bytes=RING_BYTES, source="balanced"
        )
    each = shares(rates)
    middles = [rank for rank, share in enumerate(each) if share > 0]
    parents = [[-1 if rank == middle else middle for rank in range(len(rates))] for middle in middles]
    whole = sum(each[middle] for middle in middles)
    least, most = PIECES_BYTES
    slowest = min(rates)
    piece = min(max(1 << round(math.log2(max(PIECE_S * slowest, size_bytes / PIECES))), least), most)
    alone = 1 / slowest > SLOWEST * 2 * (len(rates) - 1) / sum(rates)
    return msgspec.structs.replace(
        trees(parents, [each[middle] / whole for middle in middles]),
        name=NAME, chunk_bytes=piece, ahead_bytes=max(2 * piece, int(AHEAD_S * slowest)) if alone else 0, source="balanced",
    )  # fmt: skip


@dataclass(frozen=True)
class Received:
    """What came to one rank during a collective.

    Attributes:
        seconds: that it took there, from when that rank was ready.
        size_bytes: that came.
        highest_bytes_per_s: while a good part of it came; 0 if it was too short to tell.
    """

    seconds: float
    size_bytes: float
    highest_bytes_per_s: float


class SeenRates:
    """What each rank's link takes, as collectives show it.

    Attributes:
        rates: believed, in bytes/s.
    """

    def __init__(self, rates: Sequence[float]) -> None:
        """As believed at first."""
        self.rates = list(rates)
        self._last: list[deque[float]] = [deque([rate], KEPT) for rate in rates]
        self._highest = 0.0

    def note(self, size_bytes: float, received: Sequence[Received], used: Sequence[float]) -> bool:
        """A collective of stars has ended; whether a link has changed much.

        Of a link that set the pace, as far as is known, and of the busiest one, what came shows the rate; of any other one it
        does only if it is higher. Those are taken to be faster, little by little: a link that others keep waiting looks as slow as they
        are, and would never be given more. If all took much too long, the busiest one has become slower.

        Args:
            used: the rates that its shares were made for.
        """
        if not all(one.highest_bytes_per_s > 0 for one in received):
            return False
        seconds = min(one.seconds for one in received)  # of who was ready last
        mean = [one.size_bytes / seconds for one in received]
        busy = [each / one.highest_bytes_per_s for each, one in zip(mean, received, strict=True)]
        duty = [size_bytes * (1 + (len(used) - 2) * share) for share in shares(used)]
        self._highest = max(KEEPS * self._highest, *(one.highest_bytes_per_s for one in received))
        slower = seconds > JUMP * expected_s(used, size_bytes, explores=True)
        has_jumped = slower
        for rank, one in enumerate(received):
            found, last, rate = one.highest_bytes_per_s, self._last[rank], self.rates[rank]
            is_busiest = busy[rank] == max(busy)
            if slower and is_busiest:
                self._believe(rank, min(found, mean[rank] / HARDLY))
            elif found > JUMP * rate:
                has_jumped = True
                self._believe(rank, found)
            elif found > rate or (not slower and (is_busiest or duty[rank] / rate > PACE * seconds)):
                last.append(found)
                self.rates[rank] = median(last)
            elif duty[rank] / rate < PACE * seconds:
                self._believe(rank, max(rate, min(GROWS * rate, self._highest)))
        return has_jumped

    def _believe(self, rank: int, rate: float) -> None:
        """From now on, whatever was seen before."""
        self.rates[rank] = rate
        self._last[rank].clear()
        self._last[rank].append(rate)
