"""The inventory's indices against a recount from its masks, after any history."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import cluster, job

from hemiola.core.decisions import Placement, Start
from hemiola.core.errors import InternalError, PolicyError
from hemiola.core.events import Arrived
from hemiola.core.topology import Topology
from hemiola.sched.inventory import Inventory
from hemiola.sched.machine import StateMachine
from hemiola.sched.view import ClusterView

CLUSTERS = [
    cluster([4, 4]),
    cluster([2, 0, 3], types=["A", "", "A"]),
    cluster([4, 2], [8, 1], types=["A", "B", "A", "B"]),
    cluster([2, 2], [2], [4, 1], pods=[0, 0, 1], types=["A", "A", "B", "A", "A"]),
]


def recount(inventory: Inventory, topology: Topology) -> None:
    """Compare every index with what the masks say."""
    up = [0 if inventory.down[h] else m.bit_count() for h, m in enumerate(inventory.masks)]
    assert inventory.counts == up
    assert inventory.free == sum(up)
    for kind, pool in inventory.pools.items():
        own = [h for h, t in enumerate(topology.hosts.gpu_types) if t == kind]
        alive = [h for h in own if not inventory.down[h]]
        assert pool.free == sum(up[h] for h in own)
        assert pool.capacity == sum(int(topology.hosts.gpus[h]) for h in alive)
        assert pool.members == sum(1 << h for h in alive)
        for count, bucket in enumerate(pool.hosts.buckets):
            assert bucket == sum(1 << h for h in alive if up[h] == count)
        for level, index, free in zip(topology.levels, pool.levels, pool.domain_free, strict=True):
            for domain in range(len(level.domains)):
                inside = sum(up[h] for h in own if level.domain_of_host[h] == domain)
                assert free[domain] == inside
                assert index.buckets[inside] >> domain & 1


@settings(max_examples=60)
@given(st.data(), st.sampled_from(CLUSTERS))
def test_inventory_against_a_recount(data: Any, topology: Topology) -> None:
    inventory, held = Inventory(topology), []
    recount(inventory, topology)
    for _ in range(data.draw(st.integers(1, 25))):
        _step(data, inventory, held)
        recount(inventory, topology)


def _step(data: Any, inventory: Inventory, held: list[Placement]) -> None:
    action = data.draw(st.sampled_from(["take", "take", "release", "lose", "regain"]))
    host = data.draw(st.integers(0, len(inventory.masks) - 1))
    if action == "take":
        hosts = data.draw(st.lists(st.integers(0, len(inventory.masks) - 1), min_size=1, unique=True))
        masks = [data.draw(st.integers(0, 255)) & inventory.masks[h] for h in hosts]
        placement = Placement(tuple(hosts), tuple(masks))
        if inventory.is_free(placement):
            inventory.take(placement)
            held.append(placement)
        else:
            assert any(inventory.down[h] for h in hosts)
    elif action == "release" and held:
        inventory.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
    elif action == "lose" and not inventory.down[host]:
        for placement in [p for p in held if host in p.hosts]:
            held.remove(placement)
            inventory.release(placement)
        inventory.lose(host)
    elif action == "regain" and inventory.down[host]:
        inventory.regain(host)


def test_taking_or_freeing_twice_is_a_broken_invariant() -> None:
    inventory = Inventory(CLUSTERS[0])
    two = Placement((0,), (0b11,))
    inventory.take(two)
    with pytest.raises(InternalError, match="not free"):
        inventory.take(two)
    inventory.release(two)
    with pytest.raises(InternalError, match="free already"):
        inventory.release(two)


@pytest.mark.parametrize(
    "placement",
    [Placement((9,), (1,)), Placement((-1,), (1,)), Placement((0,), (1 << 4,)), Placement((0,), (-1,))],
)
def test_gpus_that_are_not_there_are_not_free(placement: Placement) -> None:
    assert not Inventory(CLUSTERS[0]).is_free(placement)


@pytest.mark.parametrize("topology", CLUSTERS)
def test_hosts_of_one_domain_stand_together_in_the_order_of_ranks(topology: Topology) -> None:
    inventory = Inventory(topology)
    order = sorted(range(len(topology.hosts)), key=lambda h: inventory.rank_of_host[h])
    for level in topology.levels:
        domains = [int(level.domain_of_host[h]) for h in order]
        changes = sum(a != b for a, b in itertools.pairwise(domains))
        assert changes == len(set(domains)) - 1


def test_a_supposition_leaves_no_trace() -> None:
    view = ClusterView(CLUSTERS[0], estimates=None)  # type: ignore[arg-type]
    machine = StateMachine(view)
    machine.apply(Arrived(0.0, job("a", 0, 4, 10)))
    assert machine.execute(Start("a", Placement((0,), (0b1111,)), "")) == ""
    before = (list(view.inventory.masks), view.free, view.inventory.releases)
    with pytest.raises(RuntimeError), view.supposing() as trial:
        trial.without([view.job("a")])
        assert view.free == 8
        raise RuntimeError
    assert (list(view.inventory.masks), view.free, view.inventory.releases) == before
    with pytest.raises(PolicyError, match="no job is called 'b'"):
        view.job("b")
