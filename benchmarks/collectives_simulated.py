"""All-reduces on simulated leaf–spine networks of tens to a thousand hosts, beside the bound.

    python benchmarks/collectives_simulated.py --write docs/results/collectives-simulated.md   about four minutes
    python benchmarks/collectives_simulated.py --hosts 32 --sizes 16

Hosts of 25, 50 and 100 Gbit/s are drawn with a seed; nothing is sent, so every machine finds the same times. Only how
long a schedule took to be found is measured.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from collectives_simulated_page import PICTURE, page, picture

from hemiola.core.collective.shapes import double_tree, trees
from hemiola.core.topology import Level, Topology
from hemiola.cost.collective.duration import schedule_seconds_in_pieces
from hemiola.cost.collective.rounds import ring_seconds
from hemiola.cost.places import RankPlaces, place_ranks
from hemiola.plan.collective.synthesis import PIECES_BYTES, Synthesis, synthesise

__all__ = ["Case", "Found", "found", "leaf_spine"]

GBIT = 125e6
RATES = (25, 50, 100)
RACK = 16
LATENCY_S = 20e-6
HOSTS = (32, 64, 256, 1024)
SIZES_MB = (1, 16, 256)
SEED = 1
PIECES = 32


@dataclass(frozen=True)
class Case:
    """One network.

    Attributes:
        hosts: how many, 16 in a rack.
        oversubscription: what a rack's hosts send over what its uplink bears.
        equal: whether all hosts have 50 Gbit/s and all uplinks their full rate; else rates are mixed, and of every
            eight racks one, at least one, has an uplink of half the rate.
    """

    hosts: int
    oversubscription: int
    equal: bool = False

    @property
    def name(self) -> str:
        """For people."""
        kind = "equal" if self.equal else "mixed"
        return f"{self.hosts:,} {kind}, {self.oversubscription}:1"


@dataclass(frozen=True)
class Found:
    """What an all-reduce of one size takes on one network.

    Attributes:
        seconds: by the name of the schedule; what Hemiola chooses is "Hemiola".
        bound_s: what no schedule is faster than.
        chosen: the name of what Hemiola chooses.
        took_s: CPU time to find it.
    """

    case: Case
    size_mb: int
    seconds: dict[str, float]
    bound_s: float
    chosen: str
    took_s: float

    def ratio(self, name: str) -> float:
        """To the bound."""
        return self.seconds[name] / self.bound_s


def cases(hosts: Sequence[int]) -> list[Case]:
    """All networks."""
    return [
        Case(n, over, equal) for n in hosts for over, equal in ((1, True), (1, False), (2, False), (4, False))
    ]


def leaf_spine(case: Case) -> RankPlaces:
    """The network of a case."""
    draw = np.random.default_rng(SEED)
    rates = draw.choice(RATES, size=case.hosts) * GBIT
    if case.equal:
        rates = np.full(case.hosts, 50 * GBIT)
    racks = np.arange(case.hosts) // RACK
    uplinks = np.bincount(racks, weights=rates) / case.oversubscription
    if not case.equal:
        uplinks[draw.permutation(len(uplinks))[: math.ceil(len(uplinks) / 8)]] /= 2
    names = tuple(f"r{number}" for number in range(len(uplinks)))
    flat = Topology.flat(hosts=case.hosts, gpus_per_host=1)
    own = replace(flat.hosts, nic_bytes_per_s=rates)
    return place_ranks(
        replace(flat, hosts=own, levels=(Level("rack", names, racks, uplinks),)).check(), case.hosts
    )


def found(case: Case, size_mb: int) -> Found:
    """What each schedule takes."""
    place, size_bytes = leaf_spine(case), size_mb * 1e6
    since = time.process_time()
    made = synthesise(place, size_bytes, latency_s=LATENCY_S)
    took_s = time.process_time() - since
    order = np.random.default_rng(SEED).permutation(case.hosts).tolist()
    seconds = {
        "ring, ranks anywhere": ring_seconds(order, size_bytes, place, LATENCY_S),
        "ring, rack by rack": _least(made, "ring"),
        "double tree": _double_tree(place, size_bytes),
        "halving and doubling": _least(made, "halving and doubling"),
        "Hemiola": made.chosen.seconds,
    }
    chosen = made.chosen.schedule
    if chosen.source == "double tree":
        seconds["Hemiola"] = seconds["double tree"]
    name = "ring" if chosen.source == "ring" else chosen.name
    return Found(case, size_mb, seconds, made.bounds.seconds, name, took_s)


def _double_tree(place: RankPlaces, size_bytes: float) -> float:
    """In the best of the sizes of pieces, from more pieces than `synthesise` affords."""
    shape = trees(double_tree(range(place.ranks)))
    took = schedule_seconds_in_pieces(
        shape, size_bytes, place, PIECES_BYTES, latency_s=LATENCY_S, pieces_max=PIECES
    )
    return min(took)


def _least(made: Synthesis, source: str) -> float:
    return min(one.seconds for one in made.candidates if one.schedule.source == source)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute, and print or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=list(HOSTS), help="powers of two from 32")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES_MB), metavar="MB")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="write the page there")
    asked = parser.parse_args(arguments)
    if any(hosts < 32 or hosts & (hosts - 1) for hosts in asked.hosts):
        parser.error(f"--hosts {' '.join(map(str, asked.hosts))}: give powers of two from 32")
    found(Case(4, 1), 1)  # compiles the executor
    rows = []
    for case in cases(asked.hosts):
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        rows += [found(case, size) for size in asked.sizes]
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    given = sys.argv[1:] if arguments is None else arguments
    text = page(rows, " ".join(["python benchmarks/collectives_simulated.py", *given]), mib)
    if asked.write is None:
        print(text)
        return
    asked.write.write_text(text, encoding="utf-8")
    asked.write.with_name(PICTURE).write_text(picture(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
