"""How long the shared network takes to settle after one job left and another came, by law and scale.

    python benchmarks/contention.py            # all
    python benchmarks/contention.py --events 50

The links are the NICs of hosts in racks, and the racks' uplinks; a job that crosses uses those of its
hosts and racks. Wall time of single calls, a median of many, because they take microseconds.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from statistics import mean, median

from page import machine, table

from hemiola.kernels.fluid import SharedNetwork, Sharing, warm_up

NIC_BYTES_PER_S = 12.5e9
RULES = (Sharing("present"), Sharing("together"), Sharing("staggered"), Sharing("counting", 0.27))


@dataclass(frozen=True)
class World:
    """So many jobs on racks of hosts; `crossing` is the share of jobs that leave their rack."""

    jobs: int
    racks: int
    hosts: int
    oversubscription: float
    crossing: float
    hosts_most: int

    def __str__(self) -> str:
        return (
            f"{self.jobs:,} jobs, {self.racks:,} racks of {self.hosts}, {self.oversubscription:g}:1, "
            f"{self.crossing:.0%} cross"
        )

    def network(self, sharing: Sharing) -> SharedNetwork:
        """Empty."""
        uplink = NIC_BYTES_PER_S * self.hosts / self.oversubscription
        return SharedNetwork([NIC_BYTES_PER_S] * (self.racks * self.hosts) + [uplink] * self.racks, sharing)

    def job(self, chance: random.Random) -> dict[str, object]:
        """What to add: links, and an iteration of 0.1 to 3 s."""
        count = chance.randint(2, self.hosts_most)
        if chance.random() < self.crossing:
            racks = chance.sample(range(self.racks), chance.randint(2, min(4, self.racks)))
            hosts = [racks[i % len(racks)] * self.hosts + chance.randrange(self.hosts) for i in range(count)]
            hosts = list(dict.fromkeys(hosts))
            uplinks = dict.fromkeys(self.racks * self.hosts + host // self.hosts for host in hosts)
        else:
            first = chance.randrange(self.racks) * self.hosts
            hosts = [first + host for host in chance.sample(range(self.hosts), min(count, self.hosts))]
            uplinks = {}
        compute_s = 10 ** chance.uniform(-1, 0.5)
        return {
            "compute_s": compute_s,
            "hidden_s": compute_s * chance.choice([0.0, 0.3, 0.6]),
            "traffic_bytes": NIC_BYTES_PER_S * compute_s * 10 ** chance.uniform(-1.5, 0.3),
            "links": [*hosts, *uplinks],
        }


WORLDS = (
    World(20, 8, 4, 4, 1.0, 6),
    World(40, 64, 8, 2, 1.0, 32),
    World(500, 64, 32, 4, 1.0, 8),
    World(3000, 1500, 8, 2, 0.05, 8),
    World(3000, 1500, 8, 2, 1.0, 8),
)


def churn(world: World, sharing: Sharing, events: int) -> list[str]:
    """Fill the network, then let one job go and another come, again and again; a row of the table."""
    chance = random.Random(7)
    network = world.network(sharing)
    slots = [network.add(**world.job(chance)) for _ in range(world.jobs)]  # type: ignore[arg-type]
    since = time.perf_counter()
    network.settle()
    first_s = time.perf_counter() - since
    change_s, settle_s, changed = [], [], []
    for _ in range(events):
        place, job = chance.randrange(len(slots)), world.job(chance)
        since = time.perf_counter()
        network.remove(slots[place])
        slots[place] = network.add(**job)  # type: ignore[arg-type]
        entered = time.perf_counter()
        changed.append(len(network.settle()))
        settle_s.append(time.perf_counter() - entered)
        change_s.append(entered - since)
    slow_s = sorted(settle_s)[int(0.99 * (events - 1))]
    figures = (first_s, median(change_s), median(settle_s), mean(settle_s), slow_s)
    return [str(world), sharing.rule, *(f"{1e6 * s:,.0f}" for s in figures), f"{mean(changed):.1f}"]


def compile_s() -> tuple[float, float]:
    """Seconds to get the compiled part ready: without a cache, and with one; import of Numba included."""
    code = (
        "import time; since = time.perf_counter(); from hemiola.kernels.fluid import warm_up; warm_up(); "
        "print(time.perf_counter() - since)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        took = [
            subprocess.run(
                [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            for _ in range(2)
        ]
    return float(took[0].stdout), float(took[1].stdout)


def measure(worlds: tuple[World, ...] = WORLDS, events: int = 400, compiling: bool = True) -> str:
    """Table and compile time, in Markdown."""
    warm_up()
    lines = [
        churn(world, sharing, events if world.jobs * world.crossing < 1000 else max(10, events // 10))
        for sharing in RULES
        for world in worlds
    ]
    head = ["network", "rule", "first settle, µs", "leave and enter, µs", "settle median, µs", "mean, µs", "p99, µs", "jobs changed"]  # fmt: skip
    parts = [table(head, lines)]
    if compiling:
        cold_s, warm_s = compile_s()
        parts.append(
            f"Compiled without a cache in {cold_s:.1f} s, once per machine; from the cache in {warm_s:.2f} s."
        )
    return "\n\n".join(parts)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=400, help="changes per row (default 400)")
    asked = parser.parse_args(arguments)
    print(f"{machine()}\n\n{measure(events=asked.events)}")


if __name__ == "__main__":
    main()
