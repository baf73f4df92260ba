"""The jobs of the live demo, drawn from a seed. Pure: knows no Slurm and no network."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from hemiola.core.errors import InputError

__all__ = ["COMPUTE_S", "GRADIENT_BYTES", "LAYERS", "START_S", "WIDTH", "Ask", "Mix", "stream"]

COMPUTE_S = 0.08
"""Of an iteration: the pause that stands for what a GPU computes."""
WIDTH, LAYERS = 512, 3
GRADIENT_BYTES = LAYERS * WIDTH * WIDTH * 4
PAIR_S = 0.21
"""Of an iteration of two nodes in one rack, of 200 Mbit/s."""


@dataclass(frozen=True)
class Ask:
    """One job as it is submitted.

    Attributes:
        submit_s: seconds after the first.
        hosts: nodes, with one GPU of each.
        work_s: how long it works where it has its network to itself, without its start.
    """

    name: str
    submit_s: float
    hosts: int
    work_s: float

    @property
    def iterations(self) -> int:
        """That a job of several nodes trains for, wherever it runs; a one-node job only holds its node."""
        return max(2, round(self.work_s / PAIR_S)) if self.hosts > 1 else 0


@dataclass(frozen=True)
class Mix:
    """What the stream is drawn from.

    Attributes:
        jobs: in all; the first of them, one-node jobs, fill the nodes one each.
        nodes: of the cluster.
        pairs: share of two-node jobs among the others.
        shortest_s, longest_s: bounds of `Ask.work_s`, which is log-uniform.
        load: node-seconds asked for per node-second there is, after the first jobs.
    """

    jobs: int = 26
    nodes: int = 8
    pairs: float = 0.5
    shortest_s: float = 5.0
    longest_s: float = 20.0
    load: float = 1.2

    @property
    def mean_s(self) -> float:
        """Mean work of a job."""
        return (self.longest_s - self.shortest_s) / math.log(self.longest_s / self.shortest_s)


START_S = 4.0
"""A process of PyTorch needs about that before its first iteration."""
FILL_EVERY_S = 0.3


def stream(seed: int, mix: Mix) -> list[Ask]:
    """The jobs, in the order in which they are submitted; the same for the same seed.

    The cluster is busy from the start, as on any day: one-node jobs of unequal length hold its nodes and end one by
    one, here and there. Then jobs of one and of two nodes arrive at random (Poisson).

    Raises:
        InputError: none is of two nodes: there would be nothing to compare.
    """
    chance = random.Random(seed)
    node_s = (1 - mix.pairs) * mix.mean_s + mix.pairs * 2 * (mix.mean_s + START_S)
    gap_s = node_s / (mix.load * mix.nodes)
    asks: list[Ask] = []
    now = 0.0
    for number in range(mix.jobs):
        fills = number < mix.nodes
        hosts = 1 if fills or chance.random() >= mix.pairs else 2
        work_s = math.exp(chance.uniform(math.log(mix.shortest_s), math.log(mix.longest_s)))
        asks.append(Ask(f"j{number:02d}", round(now, 3), hosts, round(work_s, 2)))
        now += FILL_EVERY_S if fills else chance.expovariate(1 / gap_s)
    if all(ask.hosts == 1 for ask in asks):
        raise InputError(
            f"with seed {seed}, none of {mix.jobs} jobs is of two nodes",
            f"ask for more, such as --jobs {Mix.jobs}, or give another --seed",
        )
    return asks
