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
from statistics import median

import numpy as np
from page import DotPanel, DotRow, draw_dots, measured_with, table, write_page

from hemiola.core.collective.shapes import double_tree, trees
from hemiola.core.topology import Level, Topology
from hemiola.cost.collective.duration import schedule_seconds_in_pieces
from hemiola.cost.collective.rounds import ring_seconds
from hemiola.cost.places import RankPlaces, place_ranks
from hemiola.plan.collective.synthesis import PIECES_BYTES, Synthesis, synthesise

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
    write_page(asked.write, text, {PICTURE: picture(rows)})


# The page and the picture of `benchmarks/collectives_simulated.py`.

PICTURE = "collectives-simulated.svg"
TARGET = 1.3

HEAD = """# Collectives on a thousand hosts, simulated

What an all-reduce takes on leaf–spine networks too large for a laboratory, executed move by move in the simulator that
predictions use. **Nothing was sent.** Every schedule is priced by the same rules: links are shared max-min fairly, two
hosts have one connection, a message takes 20 µs beside its bytes, adding up takes no time. So the numbers say which
schedule fits a network, and how far it is from what any schedule could do; they leave out whatever a real system adds."""

SETTING = """## The networks

Racks of 16 hosts with one rank each. *Mixed*: hosts of 25, 50 and 100 Gbit/s, drawn with a seed; of every eight racks one,
at least one, has an uplink of half the rate. *Equal*: all hosts have 50 Gbit/s, all uplinks their full rate. *4:1* means
that a rack's hosts send four times what its uplink bears.

- *ring, ranks anywhere*: ranks stand on hosts in a drawn order, and the ring follows the ranks;
- *ring, rack by rack*: each uplink is crossed once each way;
- *double tree*: two binary trees, who passes on in one is a leaf in the other (Sanders, Speck, Träff 2009; NCCL's trees
  between hosts), along the same order; *halving and doubling* too. Trees go in the best of four sizes of pieces,
  64 KiB to 1 MiB;
- *Hemiola*: what `hemiola.plan.collective.synthesis` chooses, the ring where another schedule gains less than 10 %;
- *bound*: bandwidth alone, without latency, whatever the schedule ([Schedules](../concepts/collectives.md))."""

LIMITS = """## What to keep in mind

- The bound knows no latency. Of 1 MB it is a fraction of a millisecond, less than a few hops take among many hosts, so that
  ratios there say little about what could be reached.
- Only so many pieces are executed: up to 256 of one tree (of 1,024 hosts 128), 16 to 64 of two trees, 32 of the double tree.
  What more pieces take is reckoned from that number and half of it. Checked for 256 MB among 1,024 mixed hosts (2:1) with
  two to four times as many: one tree 1.02 instead of 1.03, two packed trees 1.11 instead of 1.20, the double tree 2.53
  instead of 2.22. So the largest networks flatter the double tree, and not Hemiola.
- Rings of more than 128 ranks are priced by one round. That is exact rack by rack; with ranks anywhere it was up to 20 % too
  slow in small networks where latency decides, and right where bandwidth does.
- A spine that does not block, one rank a host, no other traffic, full duplex. No processor time for a message or a sum:
  small pieces cost more in reality.
- In these mixed networks the slowest hosts' own links decide the bound, and uplinks have room even at 4:1. That is why
  trees in which slow hosts are leaves gain a factor of two, and no more.
- NCCL chooses among its own shapes and runs them on GPUs with protocols of its own; the double tree here is its shape,
  not its implementation."""


def page(rows: Sequence[Found], command: str, mib: float) -> str:
    """The Markdown."""
    when = measured_with(command, did="Computed")
    parts = [HEAD, when, "## In short", _short(rows), _targets(rows, mib)]
    parts += [f"![All-reduces as multiples of their bound]({PICTURE})", SETTING, "## Every case"]
    parts += [
        "Milliseconds, and as multiples of the bound. The fastest in bold; *found in* is CPU time.",
        _all(rows),
    ]
    return "\n\n".join([*parts, LIMITS]) + "\n"


def _short(rows: Sequence[Found]) -> str:
    names = list(rows[0].seconds)
    lines = []
    for hosts in dict.fromkeys(row.case.hosts for row in rows):
        for size in dict.fromkeys(row.size_mb for row in rows):
            own = [row for row in rows if row.case.hosts == hosts and row.size_mb == size]
            ratios = [[row.ratio(name) for row in own] for name in names]
            lines.append([f"{hosts:,} hosts, {size} MB", *(_span(values) for values in ratios)])
    return "Median (least–most) over the networks, as multiples of the bound:\n\n" + table(
        ["", *names], lines
    )


def _span(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def _targets(rows: Sequence[Found], mib: float) -> str:
    """What was asked, and what is reached."""
    lines = []
    for size in dict.fromkeys(row.size_mb for row in rows):
        for few in (True, False):
            own = [row for row in rows if row.size_mb == size and (row.case.hosts <= 64) == few]
            if own:
                near = sum(row.ratio("Hemiola") <= TARGET for row in own)
                where = "up to 64 hosts" if few else "more than 64 hosts"
                lines.append(
                    [f"within {TARGET} of the bound, {size} MB, {where}", f"{near} of {len(own)} networks"]
                )
    for hosts in dict.fromkeys(row.case.hosts for row in rows):
        took = [row.took_s for row in rows if row.case.hosts == hosts]
        lines.append([f"{hosts:,} hosts synthesised in", f"{median(took):.1f} s (at most {max(took):.1f} s)"])
    lost = [row for row in rows if row.ratio("Hemiola") > 1.001 * min(map(row.ratio, row.seconds))]
    lines.append(
        ["another schedule is faster than what Hemiola chooses", f"{len(lost)} of {len(rows)} cases"]
    )
    if lost:
        most = max(row.ratio("Hemiola") / min(map(row.ratio, row.seconds)) for row in lost)
        lines.append(["... at most by", f"{100 * (most - 1):.0f} %"])
    lines.append(["memory at most", f"{mib:,.0f} MiB"])
    return table(["asked", "found"], lines)


def _all(rows: Sequence[Found]) -> str:
    names = list(rows[0].seconds)
    lines = []
    for row in rows:
        least = min(row.seconds.values())
        cells = [
            f"**{_cell(row, name)}**" if row.seconds[name] <= 1.001 * least else _cell(row, name)
            for name in names
        ]
        what = [f"{row.bound_s * 1e3:.3g}", row.chosen, f"{row.took_s:.1f} s"]
        lines.append([f"{row.case.name}, {row.size_mb} MB", *cells, *what])
    return table(["network, size", *names, "bound", "chosen", "found in"], lines)


def _cell(row: Found, name: str) -> str:
    return f"{row.seconds[name] * 1e3:.3g} ({row.ratio(name):.2f})"


SHOWN = ("ring, ranks anywhere", "ring, rack by rack", "double tree", "Hemiola")


def picture(rows: Sequence[Found]) -> str:
    """A row per network, a panel per size; halving and doubling is in the table alone."""
    panels = []
    for size in dict.fromkeys(row.size_mb for row in rows):
        own = [row for row in rows if row.size_mb == size]
        lines = [DotRow(row.case.name, {name: row.ratio(name) for name in SHOWN}) for row in own]
        most = max(value for line in lines for value in line.dots.values())
        panels.append(_Logarithmic(f"{size} MB", lines, _ticks(most)))
    return draw_dots(panels, "All-reduces on leaf–spine networks: time", "times the bound")


@dataclass(frozen=True)
class _Logarithmic(DotPanel):
    """With a logarithmic scale."""

    def x(self, value: float) -> float:
        return super().x(self.ticks[0] + (self.ticks[-1] - self.ticks[0]) * math.log(value, self.ticks[-1]))


def _ticks(most: float) -> list[float]:
    """1, 2, 5, 10, ... up to the first that is no less than this."""
    round_ones = [step * 10.0**power for power in range(4) for step in (1, 2, 5)]
    return round_ones[: next(n for n, tick in enumerate(round_ones) if tick >= most) + 1]


if __name__ == "__main__":
    main()
