"""All-reduces whose shares follow what each host's link can take, without anything being measured for it.

Every rank is the middle of a star, in which the others send it their part and get the sum back. A middle of the
share w of M bytes among N ranks sends, and receives, M (1 + (N - 2) w), and all of them together 2 (N - 1) M: so
shares that give every link its time meet the bound max(M / min B, 2 (N - 1) M / sum B) that holds for any schedule
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

from hemiola.core.collective.schedule import CollectiveSchedule, SendRate
from hemiola.core.collective.shapes import star_of_each

__all__ = [
    "NAME",
    "RANKS",
    "TIGHT",
    "Received",
    "SeenRates",
    "balanced",
    "bound_s",
    "is_alone",
    "paced",
    "shares",
]

NAME = "balanced"
RANKS = range(3, 17)
"""Of two, both send the same whatever their shares are; many would exchange very many messages."""
LEAST_SHARE = 1 / 64
"""Whoever should have less has nothing."""
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
"""A rate that is so many times as high as was believed, or a collective that takes so many times as long as it should: a
link has changed."""
KEPT = 4
"""The highest of the last so many is believed: what was seen of a link is never much more than it takes, and less in one
of four."""
PACE = 0.9
"""A link that should be done in less of the time than this is not kept busy: it may be faster than was seen."""
LOWER = 0.85
"""If a link has changed to the worse, no more of its rate than this was seen."""
TIGHT = 1.05
"""So much faster than is needed a rank sends to each other one, where what comes is to show that a link takes more."""
HELD = 1.02
"""The same where shares are planned once. Whoever has little to send and may send it faster takes that from those that have
much: with 1.05, seven hosts at 1, 1, 1, 1, 1, 1.5 and 2 take 1.13 of the bound, with 1.02 they take 1.04."""
OVERHEAD = 1.05
"""What is expected, over the bound."""
AS_LIKELY = 0.9
"""A link that explains this much of what the one that explains most does may be why as well."""
LONGER = 1.1
"""What takes so much longer than the bound is a sign of some link that is slower than is believed."""


def bound_s(rates: Sequence[float], size_bytes: float) -> float:
    """No all-reduce of so many bytes takes less among hosts with links of these rates, in bytes/s."""
    return size_bytes * max(1 / min(rates), 2 * (len(rates) - 1) / sum(rates))


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


def balanced(rates: Sequence[float], size_bytes: int, *, over: float = TIGHT) -> CollectiveSchedule:
    """Stars with these shares; those of nothing are left out.

    Args:
        rates: as for `shares`.
        size_bytes: of what every rank gives.
        over: so many times as fast as is needed each rank sends to each other one at most. With infinity nobody is held
            back, to show what each link takes.
    """
    least, most = PIECES_BYTES
    slowest = min(rates)
    piece = min(max(1 << round(math.log2(max(PIECE_S * slowest, size_bytes / PIECES))), least), most)
    ahead_bytes = max(2 * piece, int(AHEAD_S * slowest)) if is_alone(rates) and over < math.inf else 0
    stars = paced(rates, over) if over < math.inf else star_of_each(shares(rates))
    return msgspec.structs.replace(stars, name=NAME, chunk_bytes=piece, ahead_bytes=ahead_bytes, source=NAME)


def paced(rates: Sequence[float], over: float = HELD) -> CollectiveSchedule:
    """Stars with these shares, in which every pair of ranks is held back to what has all links done at once.

    On links that are shared evenly, whoever has little to send over one keeps those waiting that have much: where all
    hosts are busy all the time, with one of four at twice the rate of the others, they take 1.25 of the bound.

    Args:
        rates: as for `shares`.
        over: as for `balanced`, finite.
    """
    found = shares(rates)
    others, ranks = len(rates) - 2, range(len(rates))
    each_s = max((1 + others * share) / rate for share, rate in zip(found, rates, strict=True))
    held = tuple(
        SendRate(a, b, over * (found[a] + found[b]) / each_s)
        for a in ranks
        for b in ranks
        if a != b and found[a] + found[b] > 0
    )
    return msgspec.structs.replace(star_of_each(found), name="paced stars", paces=held, source="paced stars")


def is_alone(rates: Sequence[float]) -> bool:
    """Whether the slowest link sets the pace: all others wait for it."""
    return 1 / min(rates) > SLOWEST * 2 * (len(rates) - 1) / sum(rates)


@dataclass(frozen=True)
class Received:
    """What came to one rank during a collective.

    Attributes:
        seconds: that it took there, from when that rank was ready.
        highest_bytes_per_s: that was kept up for a while; 0 if it was too short to tell.
    """

    seconds: float
    highest_bytes_per_s: float


class SeenRates:
    """What each rank's link takes, as collectives show it.

    Attributes:
        rates: believed, in bytes/s.
        unsure: whether the last one took much too long, and it may be for several links.
    """

    def __init__(self, rates: Sequence[float]) -> None:
        """As believed at first."""
        self.rates = list(rates)
        self.unsure = False
        self._last: list[deque[float]] = [deque([rate], KEPT) for rate in rates]

    def note(self, size_bytes: float, received: Sequence[Received], used: Sequence[float]) -> bool:
        """A collective of stars has ended; whether a link has changed much.

        The highest rate that was seen lately is believed. Of a link that is not kept busy that is no less than what was
        believed before, unless it is among what explains why all took too long. If they took much too long, those links are
        believed at once. One that has become much faster may be faster still: with the share of a slow one, little came to
        it.

        Args:
            used: the rates that its shares were made for.
        """
        if not all(one.highest_bytes_per_s > 0 for one in received):
            return False
        seconds = min(one.seconds for one in received)  # of who was ready last
        duty = [size_bytes * (1 + (len(used) - 2) * share) for share in shares(used)]
        pace_s = max(each / rate for each, rate in zip(duty, used, strict=True))
        explains = [each / one.highest_bytes_per_s for each, one in zip(duty, received, strict=True)]
        slower = seconds > JUMP * OVERHEAD * pace_s
        likely = [each >= AS_LIKELY * max(explains) for each in explains]
        self.unsure = slower and sum(likely) > 1
        has_jumped = slower
        for rank, one in enumerate(received):
            found, last, rate = one.highest_bytes_per_s, self._last[rank], self.rates[rank]
            is_kept_busy = duty[rank] / used[rank] >= PACE * pace_s
            is_why = seconds > LONGER * pace_s and likely[rank]
            if found > JUMP * rate:
                has_jumped = True
                last.clear()
                found = max(found, median(self.rates))
            elif slower and is_why and found < LOWER * rate:
                last.clear()
            elif is_why:
                while len(last) > 1:
                    last.popleft()
            elif not is_kept_busy:
                found = max(found, rate)
            last.append(found)
            self.rates[rank] = max(last)
        return has_jumped
