"""Tens to a thousand hosts behind leaves and a spine: trees are right, near the bound, and found quickly enough."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from hemiola.core.collective.shapes import double_tree, trees
from hemiola.core.topology import Level, Topology
from hemiola.cost.collective.duration import bounds
from hemiola.cost.places import RankPlaces, place_ranks
from hemiola.plan.collective.packing import packings
from hemiola.plan.collective.synthesis import synthesise, tree_schedule

MB = 1e6


def leaf_spine(count: int, oversubscription: float, seed: int = 0) -> RankPlaces:
    """Racks of 16 hosts of 25, 50 and 100 Gbit/s, one uplink in eight at half its rate."""
    draw = np.random.default_rng(seed)
    rates = draw.choice([25, 50, 100], size=count) * 125 * MB
    racks = np.arange(count) // 16
    uplinks = np.bincount(racks, weights=rates) / oversubscription
    uplinks[::8] /= 2
    names = tuple(f"r{number}" for number in range(len(uplinks)))
    flat = Topology.flat(hosts=count, gpus_per_host=1)
    own = replace(flat.hosts, nic_bytes_per_s=rates)
    return place_ranks(
        replace(flat, hosts=own, levels=(Level("rack", names, racks, uplinks),)).check(), count
    )


@pytest.mark.parametrize("oversubscription", [1, 4])
def test_32_hosts_are_near_the_bound(oversubscription: float) -> None:
    found = synthesise(leaf_spine(32, oversubscription), 64 * MB, latency_s=20e-6)
    assert found.bounds.seconds < found.chosen.seconds < 1.3 * found.bounds.seconds
    assert found.gain > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("oversubscription", [1, 2, 4])
@pytest.mark.parametrize("latency_s", [10e-6, 50e-6])
def test_64_hosts_are_near_the_bound(oversubscription: float, latency_s: float) -> None:
    found = synthesise(leaf_spine(64, oversubscription, seed=1), 64 * MB, latency_s=latency_s)
    assert found.bounds.seconds < found.chosen.seconds < 1.3 * found.bounds.seconds


@pytest.mark.slow
def test_a_thousand_hosts_have_trees_that_are_right_and_flat() -> None:
    """Two hosts have one connection, and links are shared by those: few are in two trees."""
    place = leaf_spine(1024, 2)
    least = bounds("all-reduce", 1.0, place).seconds
    for packing, hops in zip(packings(place, (2, 4)), (24, 16), strict=True):
        schedule = tree_schedule(place, packing).verify()
        assert packing.seconds_per_byte < 1.1 * least
        assert schedule.traffic().hops <= hops
        pairs = Counter(frozenset(edge) for edges in packing.edges for edge in edges)
        assert len(pairs) > 0.9 * sum(pairs.values())


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13, 64, 100])
def test_the_double_tree_is_right_and_loads_nobody_twice(count: int) -> None:
    order = np.random.default_rng(count).permutation(count).tolist()
    both = double_tree(order)
    schedule = trees(both).verify()
    assert schedule.traffic().hops <= 4 * max(1, count - 1).bit_length()
    degrees = [Counter(rank for pair in enumerate(tree) for rank in pair if pair[1] >= 0) for tree in both]
    for rank in range(count):
        first, second = (degree[rank] for degree in degrees)
        assert min(first, second) <= 1 and max(first, second) <= 3
