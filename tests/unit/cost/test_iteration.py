"""The timing model, each term by hand: T = C + max(0, V / r + a - o)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import at, cluster, job, profile

from hemiola.core.job import Demand, Job, Profile
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel, Need

RACKS = cluster([4, 4], [4, 4], nic=3.0, uplink=1.5, fabric=6.0, latency_s=0.01)


def wanting(gpus: int, model: Profile, **more: Any) -> Job:
    return job("a", 0.0, gpus, 10.0, profile=model, **more)


@pytest.mark.parametrize(
    ("need", "rate", "latency_s", "seconds"),
    [
        (Need(1.0, 2.0, 0.0), 4.0, 0.0, 1.5),
        (Need(1.0, 2.0, 0.0), 4.0, 0.25, 1.75),
        (Need(1.0, 2.0, 0.5), 4.0, 0.0, 1.0),  # all of it hides
        (Need(1.0, 2.0, 0.5), 4.0, 0.25, 1.25),
        (Need(1.0, 2.0, 0.5), 1.0, 0.0, 2.5),
        (Need(1.0, 2.0, 0.0), math.inf, 0.0, 1.0),
        (Need(1.0, 0.0, 0.0), 4.0, 9.0, 1.0),  # who sends nothing waits for nothing
    ],
)
def test_an_iteration_by_hand(need: Need, rate: float, latency_s: float, seconds: float) -> None:
    assert need.iteration_s(rate, latency_s) == pytest.approx(seconds)


def test_links_are_hosts_first_then_uplinks() -> None:
    model = IterationModel(RACKS)
    assert list(model.capacities_bytes_per_s) == [3.0] * 4 + [1.5] * 2
    assert model.link_names == ["n0 nic", "n1 nic", "n2 nic", "n3 nic", "rack r0 uplink", "rack r1 uplink"]


def test_a_crossing_lists_each_link_once_and_climbs_only_as_far_as_needed() -> None:
    model = IterationModel(RACKS)
    near = model.crossing(wanting(4, profile()), at((0, 3), (1, 3)))
    assert (near.links, near.factors) == ((0, 1), None)
    assert near.latency_s == pytest.approx(2 * 3 * 0.01)
    far = model.crossing(wanting(6, profile()), at((0, 3), (1, 3), (3, 3)))
    assert (far.links, far.factors) == ((0, 1, 3, 4, 5), None)
    # the slowest path inside a host, with the latency of the whole
    assert far.local_s == pytest.approx(1 + 1 / 6 + 2 * 5 * 0.01)


def test_an_all_to_all_weighs_each_link_by_what_crosses_it() -> None:
    """k of K ranks send k (K - k) / (K - 1) ranks' bytes over the link that parts them from the rest."""
    crossing = IterationModel(RACKS).crossing(
        wanting(6, profile(pattern="all-to-all")), at((0, 7), (1, 1), (3, 3))
    )
    assert crossing.links == (0, 1, 3, 4, 5)
    assert crossing.factors == pytest.approx((3 * 3 / 5, 1 * 5 / 5, 2 * 4 / 5, 4 * 2 / 5, 2 * 4 / 5))


def test_a_pod_is_climbed_through_its_racks() -> None:
    topology = cluster([1], [1], [1], pods=[0, 0, 1])
    model = IterationModel(topology)
    # hosts 0-2, racks 3-5, pods 6-7
    assert model.crossing(wanting(2, profile()), at((0, 1), (1, 1))).links == (0, 1, 3, 4)
    assert model.crossing(wanting(2, profile()), at((0, 1), (2, 1))).links == (0, 2, 3, 5, 6, 7)


def test_gpus_of_another_type_scale_the_computing_and_what_it_hides() -> None:
    model = profile(2.0, 1.0, overlap=0.5, gpu_speed={"fast": 4.0})
    need = IterationModel(RACKS).need(model, 4, "fast")
    assert (need.compute_s, need.traffic_bytes, need.hidden_s) == (0.5, 1.0, 0.25)
    measured = IterationModel(RACKS).need(model, 4, "")
    assert (measured.compute_s, measured.hidden_s) == (2.0, 1.0)


def test_islands_and_the_bus_between_them() -> None:
    topology = cluster([8], island=4, fabric=2.0, bus=0.5)
    model, wanted = IterationModel(topology), wanting(4, profile())
    assert model.on_host(wanted, 0, 0b1111) == (1.5, 1.0)
    assert model.on_host(wanted, 0, 0b11110000) == (1.5, 1.0)
    assert model.on_host(wanted, 0, 0b00111100) == (3.0, 1.0)
    assert model.on_host(wanted, 0, 0b1111) == (1.5, 1.0)


def test_equal_profiles_are_not_mixed_up_when_one_is_forgotten() -> None:
    model = IterationModel(RACKS)
    seen = [
        model.on_host(wanting(4, profile(float(c), 0.0, name=f"m{c}")), 0, 0b1111)[0] for c in range(1, 200)
    ]
    assert seen == [float(c) for c in range(1, 200)]


@pytest.mark.parametrize("pattern", ["ring", "all-to-all"])
@pytest.mark.parametrize("gpus", [1, 2, 4, 5, 8, 9, 12, 16])
def test_a_slowdown_is_one_at_home_and_grows_with_distance(pattern: Any, gpus: int) -> None:
    model = IterationModel(RACKS)
    wanted = wanting(gpus, Profile(name="m", demands=(Demand(2, 1.0, 1.0),), pattern=pattern))
    narrowest = 0 if gpus <= 4 else 1 if gpus <= 8 else 2
    slowdowns = [model.slowdown(wanted, tier, narrowest) for tier in range(3)]
    assert slowdowns[: narrowest + 1] == [1.0] * (narrowest + 1)
    assert slowdowns == sorted(slowdowns)
    if gpus == 1:
        assert slowdowns == [1.0, 1.0, 1.0], "one GPU sends nothing"


def test_a_job_without_a_profile_or_traffic_does_not_mind_where_it_runs() -> None:
    model = IterationModel(RACKS)
    assert model.slowdown(job("a", 0, 8, 1), 2, 0) == 1.0
    assert model.best_s(job("a", 0, 8, 1), 0) == 1.0
    assert model.slowdown(wanting(8, profile(1.0, 0.0)), 2, 1) == 1.0


@pytest.mark.parametrize("gpus", [2, 4, 6, 8])
def test_a_slowdown_under_load_by_hand(gpus: int) -> None:
    """With a stray piece of at most 2 GPUs in a rack of 8, a job may rely on as many of 8 shares of its uplink."""
    topology = cluster([4, 4], [4, 4], nic=1e18, uplink=2.0, fabric=1e18)
    model = IterationModel(topology)
    narrowest = 0 if gpus <= 4 else 1
    share = 2.0 * min(gpus / 2, 2) / 8
    assert model.slowdown(wanting(gpus, profile(1.0, 1.0)), 2, narrowest) == pytest.approx(1 + 1 / share)


def test_hosts_and_racks_without_gpus_relieve_nobody() -> None:
    """Nor do their links, slower and later than all others here, slow anybody down."""
    wide = cluster([4, 4, 0], [4, 4], [0, 0])
    there = wide.hosts.gpus > 0
    hosts = replace(
        wide.hosts,
        nic_bytes_per_s=np.where(there, 3.0, 0.1),
        nic_latency_s=np.where(there, 0.01, 0.5),
        fabric_bytes_per_s=np.where(there, 6.0, 60.0),
    )
    rack = replace(wide.levels[0], uplink_bytes_per_s=np.array([1.5, 1.5, 0.1]))
    more, model = IterationModel(replace(wide, hosts=hosts, levels=(rack,))), IterationModel(RACKS)
    for gpus, tier, narrowest in ((2, 1, 0), (2, 2, 0), (8, 2, 1)):
        wanted = wanting(gpus, profile(1.0, 1.0))
        assert more.slowdown(wanted, tier, narrowest) == model.slowdown(wanted, tier, narrowest) > 1


TOPOLOGIES = [
    RACKS,
    cluster([2, 2], [2, 2], [4], [4], pods=[0, 0, 1, 1], uplink=2.0, pod_uplink=0.5, fabric=3.0),
    cluster([8, 8], island=4, fabric=2.0, bus=0.5),
]
UNEVEN = cluster([4, 2], [3, 4], uplink=0.3, fabric=3.0, latency_s=0.1)


@settings(max_examples=200)
@given(
    st.sampled_from([*((t, p) for t in TOPOLOGIES for p in ("ring", "all-to-all")), (UNEVEN, "ring")]),
    st.data(), st.floats(0.1, 5.0), st.floats(0.0, 5.0), st.floats(0.0, 1.0),
)  # fmt: skip
def test_no_placement_beats_the_best(
    where: tuple[Topology, Any], data: Any, compute_s: float, traffic: float, overlap: float
) -> None:
    """`best_s` is what a trace's run time is read as: alone, no placement may be faster than it."""
    topology, pattern = where
    model = IterationModel(topology)
    kind = Profile(name="m", demands=(Demand(2, compute_s, traffic),), overlap=overlap, pattern=pattern)
    total = topology.gpus
    gpus = data.draw(st.integers(1, total))
    narrowest = _narrowest(topology, gpus)
    order = data.draw(st.permutations(range(len(topology.hosts))))
    pairs, left = [], gpus
    for host in order:
        count = min(left, int(topology.hosts.gpus[host]))
        mask = (1 << count) - 1 << data.draw(st.integers(0, int(topology.hosts.gpus[host]) - count))
        if count:
            pairs.append((host, mask))
        left -= count
    wanted = wanting(gpus, kind)
    assert _alone_s(model, wanted, pairs) >= model.best_s(wanted, narrowest) * (1 - 1e-9)


def _rated(racks: Sequence[Sequence[int]], nics: Sequence[float], uplinks: Sequence[float]) -> Topology:
    """Racks of hosts with so many GPUs each, whose links are of these rates."""
    topology = cluster(*racks, latency_s=0.1)
    hosts = replace(topology.hosts, nic_bytes_per_s=np.array(nics))
    levels = tuple(replace(level, uplink_bytes_per_s=np.array(uplinks)) for level in topology.levels)
    return replace(topology, hosts=hosts, levels=levels)


@settings(max_examples=100)
@given(st.data(), st.integers(1, 2))
def test_no_placement_beats_the_best_wherever_slow_links_are(data: Any, racks: int) -> None:
    sizes = data.draw(
        st.lists(st.lists(st.integers(1, 3), min_size=2, max_size=3), min_size=racks, max_size=racks)
    )
    count = sum(map(len, sizes))
    rates = st.sampled_from([0.5, 1.0, 2.0])
    topology = _rated(
        sizes,
        data.draw(st.lists(rates, min_size=count, max_size=count)),
        data.draw(st.lists(rates, min_size=racks, max_size=racks)),
    )
    model = IterationModel(topology)
    gpus = data.draw(st.integers(1, topology.gpus))
    wanted = wanting(gpus, profile())
    narrowest = _narrowest(topology, gpus)
    every = itertools.product(*(range(size + 1) for rack in sizes for size in rack))
    places = [
        [(host, (1 << n) - 1) for host, n in enumerate(counts) if n]
        for counts in every
        if sum(counts) == gpus
    ]
    least = min(_alone_s(model, wanted, pairs) for pairs in places if _tier(topology, pairs) == narrowest)
    assert model.best_s(wanted, narrowest) == pytest.approx(least)


def _tier(topology: Topology, pairs: Sequence[tuple[int, int]]) -> int:
    if len(pairs) == 1:
        return 0
    for tier, level in enumerate(topology.levels, start=1):
        if len({int(level.domain_of_host[host]) for host, _ in pairs}) == 1:
            return tier
    return len(topology.tiers) - 1


def test_an_all_to_all_does_best_on_even_parts() -> None:
    """Each NIC carries k (K - k) / (K - 1) ranks' bytes of k of K = 9 ranks: 3 * 6 / 8, and not the 4 * 5 / 8 of full hosts."""
    model = IterationModel(cluster([4, 4, 4]))
    assert model.best_s(wanting(9, profile(pattern="all-to-all")), 1) == pytest.approx(1 + 3 * 6 / 8)


def test_the_hosts_of_a_job_that_says_how_many_are_those_with_fast_links() -> None:
    model = IterationModel(_rated([[2, 2, 2]], [0.1, 1.0, 1.0], [1.0]))
    assert model.best_s(wanting(2, profile(), hosts=2), 1) == pytest.approx(1 + 1 + 2 * 0.1)


@pytest.mark.parametrize("islands", [(4, 8), (8, 4)])
def test_hosts_that_differ_in_islands_alone_are_two_kinds(islands: tuple[int, int]) -> None:
    topology = cluster([8, 8], fabric=2.0, bus=0.5)
    topology = replace(topology, hosts=replace(topology.hosts, island_gpus=np.array(islands)))
    assert IterationModel(topology).best_s(wanting(8, profile()), 0) == pytest.approx(1 + 1 / 2)


def _narrowest(topology: Topology, gpus: int) -> int:
    counts = topology.hosts.gpus
    if counts.max() >= gpus:
        return 0
    for tier, level in enumerate(topology.levels, start=1):
        if max(counts[level.domain_of_host == d].sum() for d in range(len(level.domains))) >= gpus:
            return tier
    return len(topology.tiers) - 1


def _alone_s(model: IterationModel, wanted: Job, pairs: list[tuple[int, int]]) -> float:
    if len(pairs) == 1:
        return model.on_host(wanted, *pairs[0])[0]
    crossing = model.crossing(wanted, at(*pairs))
    factors = crossing.factors or (1.0,) * len(crossing.links)
    rate = min(
        model.capacities_bytes_per_s[link] / f for link, f in zip(crossing.links, factors, strict=True)
    )
    return max(crossing.need.iteration_s(rate, crossing.latency_s), crossing.local_s)


def test_a_run_time_is_that_on_the_jobs_own_type_or_where_there_was_none_on_what_there_was() -> None:
    """16 of the slow GPUs are on one host, 16 of those that it names are not."""
    mixed = cluster([16, 8, 8], types=("v100", "a100", "a100"), nic=1.0, fabric=8.0)
    wants = wanting(16, profile(), gpu_type="a100")
    crossing = IterationModel(mixed).best_s(wants, 1)
    assert IterationModel(mixed, mixed).recorded_s(wants) == pytest.approx(crossing)
    untyped = IterationModel(mixed, cluster([16, 16], fabric=8.0)).recorded_s(wants)
    assert untyped == pytest.approx(
        IterationModel(cluster([16], fabric=8.0)).best_s(wanting(16, profile()), 0)
    )
    assert untyped < crossing
