"""Who sends to whom in each round of a probe: rounds that together tell hosts and what they share apart."""

from __future__ import annotations

import random
from collections.abc import Iterator

__all__ = ["Pairs", "fans", "matchings", "probe_rounds"]

MATCHINGS_MOST = 21
"""Rounds of pairs in one pass: each pair of 22 hosts meets once, of more hosts not every pair."""
MIXES = 2
"""So often everything is done, with pairs in other company: it tells who shares an uplink."""
FANS_MOST = 16
OTHERS_MOST = 7
"""Hosts that one sends to at once."""

Pairs = tuple[tuple[int, int], ...]


def probe_rounds(hosts: int, seed: int = 0, mixes: int = MIXES) -> Iterator[Pairs]:
    """Rounds of (sender, receiver): pairs apart, both ways; one host to others, and others to it.

    Args:
        seed: of who meets in which company.
        mixes: so often everything is done; once is enough where it is known who shares an uplink.
    """
    made = random.Random(seed)
    for _ in range(mixes):
        yield from _matchings(hosts, made, MATCHINGS_MOST)
        if hosts > 2:
            for host in range(min(hosts, FANS_MOST)):
                yield from fans(hosts, host, made.randrange(1 << 30))


def matchings(hosts: int, seed: int = 0, most: int = MATCHINGS_MOST) -> Iterator[Pairs]:
    """Rounds of pairs apart, both ways."""
    return _matchings(hosts, random.Random(seed), most)


def fans(hosts: int, host: int, seed: int = 0) -> tuple[Pairs, Pairs]:
    """One host to all others, or to some of them, and these to it.

    Not both at once: acknowledgements would wait behind data, and flows would begin too slowly to fill their links.
    """
    others = [other for other in range(hosts) if other != host]
    chosen = sorted(random.Random(seed).sample(others, min(len(others), OTHERS_MOST)))
    return tuple((host, other) for other in chosen), tuple((other, host) for other in chosen)


def _matchings(hosts: int, made: random.Random, most: int) -> Iterator[Pairs]:
    """Rounds of a tournament: hosts sit in a circle, one stays and the others move on; with an odd number one rests."""
    seats: list[int | None] = [*made.sample(range(hosts), hosts), *([None] * (hosts % 2))]
    count = len(seats)
    for turn in range(min(count - 1, most)):
        here = [seats[0], *(seats[1 + (place + turn) % (count - 1)] for place in range(count - 1))]
        pairs = [(here[place], here[count - 1 - place]) for place in range(count // 2)]
        yield tuple(pair for a, b in pairs if a is not None and b is not None for pair in ((a, b), (b, a)))
