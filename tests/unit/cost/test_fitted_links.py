"""What fitted trees put on links, without the trees: by hand, and never more than the bound allows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.core.topology import Level, Topology
from hemiola.cost.collective.duration import bounds
from hemiola.cost.network_fit import KEEP_RING, HostLinks, fitted_loads
from hemiola.cost.places import RankPlaces, place_ranks
from hemiola.plan.collective.synthesis import synthesise


def test_a_slow_host_is_crossed_once_and_the_others_share_the_rest() -> None:
    """Rates 4, 4, 4, 1: six ends of edges, one of them at the slow host."""
    assert fitted_loads(HostLinks((4.0, 4.0, 4.0, 1.0)), 4) == pytest.approx((5 / 3, 5 / 3, 5 / 3, 1))


def test_an_unlimited_host_takes_all_that_the_others_leave() -> None:
    """Six ends of edges, one at each host of rate 1."""
    assert fitted_loads(HostLinks((1.0, 1.0, 1.0, math.inf)), 4) == pytest.approx((1, 1, 1, 3))


def test_a_narrow_uplink_is_crossed_once() -> None:
    """Two racks of two hosts: a ring puts 1.5 on each link, trees 1 on the uplinks of half the hosts' rate."""
    racks = HostLinks((2.0,) * 4, ((0, 0, 1, 1),), ((1.0, 1.0),))
    assert fitted_loads(racks, 4) == pytest.approx((1.5, 1.5, 1.5, 1.5, 1, 1))


def test_slow_hosts_hang_outside_their_rack_as_far_as_its_uplink_bears() -> None:
    """Rack a has one host of 4 and two of 1 behind an uplink of 2.1: to be one piece, hosts of 1 as leaves, the one of 4
    has three ends: two inside, one out. Rack b, all of 4, takes the rest: five hosts have eight ends."""
    racks = HostLinks((4.0, 1.0, 1.0, 4.0, 4.0), ((0, 0, 0, 1, 1),), ((2.1, 2.1),))
    found = fitted_loads(racks, 5)
    assert found is not None
    assert sum(found[:5]) == pytest.approx(8)
    assert found[1:3] == pytest.approx((1, 1))
    assert max(found[5:]) <= 2.1


@pytest.mark.parametrize(
    "links", [HostLinks((3.0,) * 5), HostLinks((3.0,) * 4, ((0, 0, 1, 1),), ((9.0, 9.0),))]
)
def test_equal_links_keep_the_ring(links: HostLinks) -> None:
    assert fitted_loads(links, len(links.nics)) is None


def test_hosts_of_several_gpus_add_up_before_they_send() -> None:
    """Sixteen GPUs on two hosts: 15/8 by a ring of GPUs, 1 by a tree of hosts."""
    assert fitted_loads(HostLinks((1.0, 1.0)), 16) == pytest.approx((1, 1))


def placed(links: HostLinks, gpus: int) -> RankPlaces:
    bare = Topology.flat(hosts=len(links.nics), gpus_per_host=gpus)
    levels = tuple(
        Level(name, tuple(f"d{i}" for i in range(len(rates))), np.array(numbers), np.array(rates))
        for name, numbers, rates in zip(("rack", "pod"), links.domains, links.uplinks, strict=False)
    )
    hosts = replace(bare.hosts, nic_bytes_per_s=np.array(links.nics))
    return place_ranks(replace(bare, hosts=hosts, levels=levels).check(), len(links.nics) * gpus)


@st.composite
def drawn(draw: Any) -> HostLinks:
    """Hosts in up to three racks."""
    nics = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 8.0]), min_size=2, max_size=8))
    racks = draw(st.integers(1, min(3, len(nics))))
    if racks == 1:
        return HostLinks(tuple(nics))
    numbers = tuple(host * racks // len(nics) for host in range(len(nics)))
    rates = tuple(draw(st.sampled_from([1.0, 2.0, 4.5, 20.0])) for _ in range(racks))
    return HostLinks(tuple(nics), (numbers,), (rates,))


@settings(max_examples=200)
@given(drawn(), st.integers(1, 3))
def test_no_link_carries_more_than_in_the_least_time(links: HostLinks, gpus: int) -> None:
    ranks, hosts = len(links.nics) * gpus, len(links.nics)
    least_s = bounds("all-reduce", 1.0, placed(links, gpus)).seconds
    ring_s = 2 * (ranks - 1) / ranks / links.narrowest
    found = fitted_loads(links, ranks)
    if found is None:
        assert ring_s <= least_s * (1 + KEEP_RING) * (1 + 1e-6)
        return
    rates = [*links.nics, *(rate for level in links.uplinks for rate in level)]
    taken_s = [load / rate for load, rate in zip(found, rates, strict=True)]
    assert max(taken_s) <= least_s * (1 + 1e-6)
    assert sum(found[:hosts]) == pytest.approx(2 * (hosts - 1))
    assert min(found) >= 1 - 1e-6
    assert ring_s > least_s * (1 + KEEP_RING)


@settings(max_examples=12)
@given(drawn())
def test_what_is_built_is_no_faster_and_takes_what_its_few_trees_take(links: HostLinks) -> None:
    """A large message without latency. Where trees gain less than a tenth, the ring is built.

    Where every host is busy all the time, sharing links by pair costs trees up to a sixth.
    """
    place = placed(links, 1)
    found, built = fitted_loads(links, place.ranks), synthesise(place, 1e9, latency_s=0.0)
    if found is None:
        assert built.chosen.schedule.source == "ring"
        return
    rates = [*links.nics, *(rate for level in links.uplinks for rate in level)]
    taken_s = max(load / rate for load, rate in zip(found, rates, strict=True)) * 1e9
    assert taken_s * (1 - 1e-6) <= built.chosen.seconds <= built.packed_s * 1.17 * (1 + KEEP_RING)
