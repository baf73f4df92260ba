"""What a schedule takes: formulas that a reader can work out, the slow host of AdapCC's setting, and bounds that always hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules_drawn import shapes

from hemiola.core.collective.schedule import Collective, CollectiveSchedule
from hemiola.core.collective.shapes import all_pairs, halving_doubling, ring, trees
from hemiola.core.errors import ScheduleError
from hemiola.core.topology import Level, Topology
from hemiola.cost.collective.duration import Roads, bounds, schedule_seconds, schedule_seconds_in_pieces
from hemiola.cost.collective.rounds import ring_order, ring_seconds, rounds_seconds
from hemiola.cost.places import RankPlaces, place_ranks

MB = 1e6


def hosts(*rates: float, gpus: int = 1) -> RankPlaces:
    """Hosts under one switch, with NICs of these rates."""
    flat = Topology.flat(hosts=len(rates), gpus_per_host=gpus)
    own = replace(flat.hosts, nic_bytes_per_s=np.array(rates, dtype=float))
    return place_ranks(replace(flat, hosts=own), len(rates) * gpus)


def racks() -> Topology:
    """Racks a and b of two hosts each, 50 MB/s, behind 25 MB/s."""
    level = Level("rack", ("a", "b"), np.array([0, 0, 1, 1]), np.array([25 * MB, 25 * MB]))
    four = Topology.flat(hosts=4, gpus_per_host=1, nic_bytes_per_s=50 * MB)
    return replace(four, levels=(level,)).check()


def in_pieces(schedule: CollectiveSchedule, chunk_bytes: int) -> CollectiveSchedule:
    return msgspec.structs.replace(schedule, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_ring_takes_what_the_formula_says(ranks: int) -> None:
    """2 (N - 1) steps, each a latency and an N-th of the data."""
    found = schedule_seconds(ring(range(ranks)), 60.0, hosts(*[10.0] * ranks), latency_s=0.5)
    assert found == pytest.approx(2 * (ranks - 1) * (0.5 + 60 / ranks / 10))


def test_pieces_of_a_chain_follow_each_other() -> None:
    """(P + k - 1) pieces one after the other, and k latencies."""
    chain = in_pieces(trees([[-1, 0, 1, 2]], collective="broadcast"), 10)
    assert schedule_seconds(chain, 80.0, hosts(*[10.0] * 4), latency_s=0.5) == pytest.approx(
        (8 + 3 - 1) * 1 + 3 * 0.5
    )


@pytest.mark.parametrize("pieces_max", [2, 4, 5, 32])
def test_more_pieces_than_are_executed_are_reckoned(pieces_max: int) -> None:
    """80 pieces of a second of 1/10 each, and the two hops that the last one is behind."""
    chain = in_pieces(trees([[-1, 0, 1]], collective="broadcast"), 1)
    found = schedule_seconds(chain, 80.0, hosts(10, 10, 10), pieces_max=pieces_max, latency_s=0.5)
    assert found == pytest.approx((80 + 2 - 1) * 0.1 + 2 * 0.5)


def test_fewer_pieces_than_the_most_that_are_executed_are_reckoned_between() -> None:
    """101 pieces, between half of 201 and all of them."""
    place, chain = hosts(10, 10, 10), trees([[-1, 0, 1]], collective="broadcast")
    found = schedule_seconds_in_pieces(chain, 201.0, place, [1, 2], latency_s=0.5)
    alone = [schedule_seconds(in_pieces(chain, size), 201.0, place, latency_s=0.5) for size in (1, 2)]
    assert found == pytest.approx(alone)


def test_a_slow_host_is_a_leaf_and_half_a_root() -> None:
    """400, 400, 400 and 100 Mbit/s, 16 MB: the ring takes 3/2 of the bound, trees in pieces 1 % more than it."""
    place = hosts(50 * MB, 50 * MB, 50 * MB, 12.5 * MB)
    least = bounds("all-reduce", 16 * MB, place)
    assert least.cut_s == pytest.approx(1.28)
    assert least.total_s == pytest.approx(6 * 16 / 162.5)
    assert least.narrowest == "n3 nic" and least.seconds == least.cut_s

    def took(schedule: CollectiveSchedule) -> float:
        return schedule_seconds(in_pieces(schedule, 1 << 16), 16 * MB, place, latency_s=1e-4, pieces_max=256)

    assert took(ring([0, 1, 2, 3])) == pytest.approx(1.5 * 1.28, rel=0.001)
    for parents in ([[-1, 0, 0, 0]], [[-1, 0, 0, 1]], [[-1, 0, 1, 2], [1, 2, 3, -1]]):
        assert 1.28 < took(trees(parents)) < 1.28 * 1.02


def test_equal_hosts_are_best_served_by_a_ring() -> None:
    place = hosts(*[50 * MB] * 4)
    best = schedule_seconds(ring([0, 1, 2, 3]), 16 * MB, place, latency_s=0)
    assert best == pytest.approx(bounds("all-reduce", 16 * MB, place).seconds)
    tree = in_pieces(trees([[-1, 0, 0, 1]]), 1 << 16)
    assert schedule_seconds(tree, 16 * MB, place, latency_s=0, pieces_max=256) > 1.3 * best


def test_a_narrow_uplink_is_crossed_once_each_way_in_good_order() -> None:
    """Two racks of two hosts behind uplinks of half their rate: a ring rack by rack takes its 1.5 M over the
    uplink; one that goes to and fro takes twice as much."""
    place = place_ranks(racks(), 4)
    good = schedule_seconds(ring([0, 1, 2, 3]), 16 * MB, place, latency_s=0)
    bad = schedule_seconds(ring([0, 2, 1, 3]), 16 * MB, place, latency_s=0)
    assert bounds("all-reduce", 16 * MB, place).narrowest.endswith("uplink")
    assert good == pytest.approx(1.5 * 16 / 25)
    assert bad == pytest.approx(2 * good)


def test_a_message_crosses_what_lies_between() -> None:
    roads = Roads(place_ranks(racks(), 4))
    assert [roads.names[i] for i in roads.between(0, 1)] == ["n0 nic", "n1 nic in"]
    assert {roads.names[i] for i in roads.between(1, 2)} == {
        "n1 nic", "rack a uplink", "n2 nic in", "rack b uplink in",
    }  # fmt: skip
    within = Roads(hosts(1, 1, gpus=2))
    assert [within.names[i] for i in within.between(2, 3)] == ["rank 2 out", "rank 3 in"]


@settings(max_examples=60)
@given(st.data())
def test_nothing_is_faster_than_the_bound(data: Any) -> None:
    rates = data.draw(st.lists(st.sampled_from([1.0, 2.0, 5.0, 10.0]), min_size=1, max_size=4))
    gpus = data.draw(st.integers(1, 2))
    place = hosts(*rates, gpus=gpus)
    schedule = data.draw(shapes(ranks=place.ranks))
    chunk_bytes = data.draw(st.sampled_from([0, 7, 30]))
    found = schedule_seconds(
        in_pieces(schedule, chunk_bytes), 60.0, place, latency_s=data.draw(st.sampled_from([0.0, 0.3]))
    )
    assert found >= bounds(schedule.collective, 60.0, place).seconds * (1 - 1e-9)


def test_a_schedule_of_other_ranks_is_refused() -> None:
    with pytest.raises(ScheduleError, match="for 4 ranks, here are 3"):
        schedule_seconds(all_pairs(4), 1.0, hosts(1, 1, 1))


def leaf_spine(count: int, rack: int) -> RankPlaces:
    """Hosts of three rates in racks whose uplinks bear half of what these send."""
    rates = np.array([25, 50, 100] * count)[:count] * MB
    racks = np.arange(count) // rack
    uplinks = np.bincount(racks, weights=rates) / 2
    names = tuple(f"r{number}" for number in range(len(uplinks)))
    flat = Topology.flat(hosts=count, gpus_per_host=1)
    own = replace(flat.hosts, nic_bytes_per_s=rates)
    return place_ranks(
        replace(flat, hosts=own, levels=(Level("rack", names, racks, uplinks),)).check(), count
    )


@pytest.mark.parametrize("collective", ["all-reduce", "reduce-scatter", "all-gather"])
@pytest.mark.parametrize("latency_s", [0.0, 1e-3])
def test_a_large_ring_is_the_rounds_of_a_small_one(collective: Collective, latency_s: float) -> None:
    """Through rack after rack no two messages share a link, and rounds say what following each chunk says."""
    place, own = leaf_spine(12, 4), ring(range(12), collective)
    followed = schedule_seconds(own, 16 * MB, place, latency_s=latency_s)
    assert rounds_seconds(own, 16 * MB, place, latency_s, chunks_max=9) == pytest.approx(followed)


def test_rounds_of_messages_that_share_links_are_nearly_right() -> None:
    """To and fro between racks: where bandwidth decides, and 2 % off with a latency a tenth of a message's time."""
    place, order = leaf_spine(24, 4), np.random.default_rng(1).permutation(24).tolist()
    for latency_s, near in ((0.0, 1e-6), (1e-3, 0.02)):
        followed = schedule_seconds(ring(order), 16 * MB, place, latency_s=latency_s)
        assert ring_seconds(order, 16 * MB, place, latency_s) == pytest.approx(followed, rel=near)


@pytest.mark.parametrize("latency_s", [0.0, 1e-3])
def test_a_large_halving_and_doubling_goes_message_by_message(latency_s: float) -> None:
    place, own = leaf_spine(16, 4), halving_doubling(16)
    followed = schedule_seconds(own, 16 * MB, place, latency_s=latency_s)
    assert rounds_seconds(own, 16 * MB, place, latency_s, chunks_max=9) == pytest.approx(followed, rel=0.02)


def test_only_rings_and_halving_and_doubling_are_taken_by_rounds() -> None:
    good = ring([2, 0, 1])
    assert ring_order(good) == [2, 0, 1]
    for other in (all_pairs(4), trees([[-1, 0, 1, 2]])):
        assert rounds_seconds(other, 1.0, hosts(1, 1, 1, 1), 0.0, chunks_max=0) is None
    swapped = (good.moves[1], good.moves[0], *good.moves[2:])
    assert not ring_order(msgspec.structs.replace(good, moves=swapped))
    wrong = (*good.moves[:-1], good.moves[0])
    assert not ring_order(msgspec.structs.replace(good, moves=wrong))


def test_several_sizes_of_pieces_are_what_each_alone_is() -> None:
    place, tree = hosts(50 * MB, 50 * MB, 12.5 * MB), trees([[-1, 0, 1], [1, -1, 1]])
    sizes = [0, 1 << 14, 1 << 16, 1 << 20]
    found = schedule_seconds_in_pieces(tree, 16 * MB, place, sizes, latency_s=1e-4)
    alone = [schedule_seconds(in_pieces(tree, size), 16 * MB, place, latency_s=1e-4) for size in sizes]
    assert found == alone and len(set(found)) == 4


def test_a_rack_of_slow_hosts_is_a_bound_of_its_own() -> None:
    """Three hosts of 1, behind an uplink of 1, among fast ones: 4 places, so 2 * 3 sendings, over 3 links and the
    uplink: 6 / 4. Neither the narrowest link (1) nor the mean of all hosts says so."""
    level = Level("rack", ("a", "b"), np.array([0, 0, 0, 1, 1, 1]), np.array([1.0, 10.0]))
    flat = Topology.flat(hosts=6, gpus_per_host=1)
    own = replace(flat.hosts, nic_bytes_per_s=np.array([1.0, 1, 1, 10, 10, 10]))
    place = place_ranks(replace(flat, hosts=own, levels=(level,)).check(), 6)
    least = bounds("all-reduce", 1.0, place)
    assert (least.cut_s, least.total_s) == (1.0, pytest.approx(10 / 33))
    assert least.seconds == pytest.approx(6 / 4)


@settings(max_examples=60)
@given(st.data())
def test_nothing_is_faster_than_the_bound_between_racks(data: Any) -> None:
    count = data.draw(st.integers(2, 6))
    rates = data.draw(st.lists(st.sampled_from([1.0, 2.0, 10.0]), min_size=count, max_size=count))
    racks = np.array(data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    uplinks = np.array(data.draw(st.lists(st.sampled_from([0.5, 1.0, 9.0]), min_size=2, max_size=2)))
    flat = Topology.flat(hosts=count, gpus_per_host=1)
    own, level = (
        replace(flat.hosts, nic_bytes_per_s=np.array(rates)),
        Level("rack", ("a", "b"), racks, uplinks),
    )
    place = place_ranks(replace(flat, hosts=own, levels=(level,)).check(), count)
    schedule = data.draw(shapes(ranks=count))
    found = schedule_seconds(
        in_pieces(schedule, data.draw(st.sampled_from([0, 7, 30]))), 60.0, place, latency_s=0
    )
    assert found >= bounds(schedule.collective, 60.0, place).seconds * (1 - 1e-9)
