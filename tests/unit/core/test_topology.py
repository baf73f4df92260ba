from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import TopologyError
from hemiola.core.topology import MAX_GPUS_PER_HOST, Level, Topology, equal_hosts

HOSTS = equal_hosts(4, 8)


def level(name: str = "rack", place: tuple[int, ...] = (0, 0, 1, 1), **changes: Any) -> Level:
    count = max(place) + 1
    fields: dict[str, Any] = {
        "name": name,
        "domains": tuple(f"{name}{i}" for i in range(count)),
        "domain_of_host": np.array(place),
        "uplink_bytes_per_s": np.full(count, 1e9),
    }
    return Level(**(fields | changes))


def topology(*levels: Level, **hosts: Any) -> Topology:
    return Topology("t", replace(HOSTS, **hosts), levels)


def test_tiers_end_with_what_spans_everything() -> None:
    assert topology().tiers == ("host", "cluster")
    assert topology(level()).tiers == ("host", "rack", "cluster")
    assert topology(level(), level("pod", (0, 0, 0, 0))).tiers == ("host", "rack", "pod")


def test_tier_index() -> None:
    two = topology(level(), level("pod", (0, 0, 0, 0)))
    assert [two.tier_index(name) for name in ("host", "rack", "pod", "cluster")] == [0, 1, 2, 2]
    with pytest.raises(TopologyError, match="no tier 'row'") as refusal:
        two.tier_index("row")
    assert "host, rack, pod" in refusal.value.remedy


@pytest.mark.parametrize(
    ("hosts", "tier"), [((2,), 0), ((0, 1), 1), ((3, 2), 1), ((1, 2), 2), ((0, 1, 2, 3), 2)]
)
def test_span(hosts: tuple[int, ...], tier: int) -> None:
    assert topology(level()).span(hosts) == tier


def test_counts() -> None:
    mixed = topology(gpus=np.array([8, 0, 4, 4]), gpu_types=("v100", "a100", "v100", "a100"))
    assert mixed.check().gpus == 16
    assert mixed.gpu_types == ("v100", "a100")


def test_equality_is_by_value_and_ignores_the_source() -> None:
    one, other = topology(level()), replace(topology(level()), source="elsewhere")
    assert one == other
    assert hash(one) == hash(other)
    assert hash(one.levels) == hash(other.levels)
    assert one != topology(level(uplink_bytes_per_s=np.array([1e9, 2e9])))
    assert one != topology(level(), nic_latency_s=np.full(4, 1.0))
    assert one != topology(level(latency_s=1.0))
    assert one != "t"
    assert one.hosts != "t"
    assert one.levels[0] != "t"


@pytest.mark.parametrize("rate", [1e-3, 1e15, np.inf])
def test_an_uplink_may_be_slower_or_faster_than_all_nics_below(rate: float) -> None:
    topology(level(uplink_bytes_per_s=np.full(2, rate))).check()


REFUSED_HOSTS = [
    ({"names": ("a", "b", "a", "c")}, "'a' appears twice"),
    ({"gpus": np.array([8, 8])}, "gpus has 2 entries for 4 hosts"),
    ({"gpu_types": ("v100",)}, "gpu_types has 1 entries"),
    ({"gpus": np.zeros(4, dtype=int)}, "has no GPU"),
    ({"gpus": np.array([8, -1, 8, 8])}, "'n1': gpus is -1"),
    ({"gpus": np.array([8, 8, 8, MAX_GPUS_PER_HOST + 1])}, "'n3': gpus is 73"),
    ({"nic_bytes_per_s": np.array([1, 0, 1, 1.0])}, "'n1': nic_bytes_per_s is 0"),
    ({"nic_bytes_per_s": np.array([1, 1, np.nan, 1])}, "'n2': nic_bytes_per_s is nan"),
    ({"nic_bytes_per_s": np.array([1, 1, -1.0, 1])}, "'n2': nic_bytes_per_s is -1"),
    ({"nic_latency_s": np.array([0, 0, 0, -1e-6])}, "'n3': nic_latency_s"),
    ({"nic_latency_s": np.array([0, 0, 0, np.nan])}, "'n3': nic_latency_s is nan"),
    ({"nic_latency_s": np.array([0, 0, 0, np.inf])}, "'n3': nic_latency_s is inf"),
    ({"fabric_bytes_per_s": np.array([0, 1, 1, 1.0])}, "'n0': fabric_bytes_per_s"),
    ({"fabric_bytes_per_s": np.full(4, np.nan)}, "'n0': fabric_bytes_per_s is nan"),
    ({"bus_bytes_per_s": np.array([1, 1, 0, 1.0])}, "'n2': bus_bytes_per_s"),
    ({"island_gpus": np.array([8, 8, 0, 8])}, "'n2': island_gpus is 0"),
    ({"island_gpus": np.array([8, 8, 3, 8])}, "8 GPUs do not divide into islands of 3"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED_HOSTS)
def test_refuses_impossible_hosts(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message) as refusal:
        topology(level(), **changes).check()
    assert refusal.value.remedy


REFUSED_LEVELS = [
    ([level(domain_of_host=np.array([0, 1]))], "places 2 hosts of 4"),
    ([level(domains=("r", "r"))], "names a domain twice"),
    ([level(domain_of_host=np.array([0, 0, -1, 1]))], "'n2' is in no rack"),
    ([level(domain_of_host=np.array([0, 0, 2, 1]))], "'n2' is in no rack"),
    ([level(uplink_bytes_per_s=np.ones(3))], "3 uplinks for 2 domains"),
    ([level(uplink_bytes_per_s=np.array([1.0, 0]))], "uplink of 'rack1' is 0"),
    ([level(uplink_bytes_per_s=np.array([1.0, np.nan]))], "uplink of 'rack1' is nan"),
    ([level(uplink_bytes_per_s=np.array([-1.0, 1]))], "uplink of 'rack0' is -1"),
    ([level(latency_s=-1e-9)], "latency is -1e-09"),
    ([level(latency_s=np.nan)], "latency is nan"),
    ([level(latency_s=np.inf)], "latency is inf"),
    ([level("rack"), level("rack", (0, 0, 0, 0))], "levels are named"),
    ([level("host")], "levels are named"),
    ([level("cluster")], "levels are named"),
    ([level("")], "levels are named"),
    (
        [level(), level("pod", (0, 0, 0, 1))],
        r"rack 'rack1' is split between pods 'pod0' and 'pod1' \(host n3\)",
    ),
]


@pytest.mark.parametrize(("levels", "message"), REFUSED_LEVELS)
def test_refuses_impossible_levels(levels: list[Level], message: str) -> None:
    with pytest.raises(TopologyError, match=message.replace("host n3", "host 'n3'")) as refusal:
        topology(*levels).check()
    assert refusal.value.remedy


@pytest.mark.parametrize("count", [0, -3, 10**7])
def test_refuses_impossible_numbers_of_hosts(count: int) -> None:
    with pytest.raises(TopologyError, match="a cluster of"):
        Topology.flat(hosts=count, gpus_per_host=8)


def test_refuses_no_hosts() -> None:
    with pytest.raises(TopologyError, match="has no hosts"):
        Topology("empty", replace(HOSTS, names=())).check()


def test_refuses_huge_hosts() -> None:
    with pytest.raises(TopologyError, match="gpus is 1000000"):
        Topology.flat(hosts=2, gpus_per_host=10**6).check()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12),
)
def test_nesting_agrees_with_a_slow_check(places: list[tuple[int, int]]) -> None:
    inner = level("rack", tuple(p[0] for p in places), domains=tuple("abcd"), uplink_bytes_per_s=np.ones(4))
    outer = level("pod", tuple(p[1] for p in places), domains=tuple("xyz"), uplink_bytes_per_s=np.ones(3))
    nested = len(set(places)) == len({rack for rack, _ in places})
    cluster = Topology("t", equal_hosts(len(places), 1), (inner, outer))
    if nested:
        assert cluster.check() is cluster
    else:
        with pytest.raises(TopologyError, match="is split between"):
            cluster.check()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.data())
def test_span_is_the_narrowest_tier_that_holds_all(places: list[int], data: st.DataObject) -> None:
    rack = level("rack", tuple(places), domains=tuple("abcd"), uplink_bytes_per_s=np.ones(4))
    pod = level("pod", tuple(p // 2 for p in places), domains=tuple("xy"), uplink_bytes_per_s=np.ones(2))
    cluster = Topology("t", equal_hosts(len(places), 1), (rack, pod)).check()
    hosts = tuple(data.draw(st.lists(st.integers(0, len(places) - 1), min_size=1, unique=True)))
    distinct = [
        len({key(h) for h in hosts}) for key in (lambda h: h, lambda h: places[h], lambda h: places[h] // 2)
    ]
    assert cluster.span(hosts) == next((tier for tier, n in enumerate(distinct) if n == 1), 3)
