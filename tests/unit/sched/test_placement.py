"""Every placement rule against a search through all it could have done."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import cluster, job

from hemiola.core.decisions import Placement
from hemiola.core.errors import PolicyError
from hemiola.core.events import Arrived, NodeLost
from hemiola.core.job import Job
from hemiola.core.topology import Topology
from hemiola.sched.inventory import Inventory
from hemiola.sched.job_state import JobState
from hemiola.sched.machine import StateMachine
from hemiola.sched.placement import (
    RULES,
    BestFit,
    Consolidated,
    FirstFit,
    Random,
    Rule,
    TierAware,
    Yarn,
    find,
    rule_by_name,
)
from hemiola.sched.view import ClusterView

CLUSTERS = [
    cluster([4, 4, 4]),
    cluster([4, 4], [4, 4]),
    cluster([4, 2], [1, 4], [3], types=["A", "B", "A", "A", "B"]),
    cluster([2, 2], [2, 2], [2], [4, 2], pods=[0, 0, 1, 1]),
    cluster([1, 1], [1, 1], [2], [2, 1], pods=[0, 0, 1, 0], types=["A", "B", "A", "A", "B", "A", "A"]),
    cluster([2, 2], [2, 2], pods=[0, 0]),  # one pod: it is the widest tier
]
GREEDY = (TierAware(), BestFit(), FirstFit(), Random(), Random(seed=7))
ALL = (*GREEDY, Consolidated(), Yarn())


class Case:
    """A cluster in some state, and a job that asks for room."""

    def __init__(self, topology: Topology, wanted: Job, busy: list[int], lost: list[int]) -> None:
        self.topology = topology
        self.view = ClusterView(topology, estimates=None)  # type: ignore[arg-type]
        machine = StateMachine(self.view)
        self.refused = machine.admission(wanted)
        if self.refused:
            return
        machine.apply(Arrived(0.0, wanted))
        for host, mask in enumerate(busy):
            mask &= self.inventory.masks[host]
            if mask:
                self.inventory.take(Placement((host,), (mask,)))
        for host in lost:
            machine.apply(NodeLost(0.0, host))
        self.state = self.view.job(wanted.id)

    @property
    def inventory(self) -> Inventory:
        return self.view.inventory

    def room(self, kind: str, tier: int) -> list[int]:
        """The most free GPUs of a type that any domain of the tier has, per domain."""
        hosts = [h for h, t in enumerate(self.topology.hosts.gpu_types) if t == kind]
        if tier == 0:
            return [self.inventory.counts[h] for h in hosts]
        if tier > len(self.topology.levels):
            return [sum(self.inventory.counts[h] for h in hosts)]
        level = self.topology.levels[tier - 1]
        return [
            sum(self.inventory.counts[h] for h in hosts if level.domain_of_host[h] == domain)
            for domain in range(len(level.domains))
        ]

    def fits(self, kind: str, tier: int) -> bool:
        return max(self.room(kind, tier), default=0) >= self.state.gpus


@st.composite
def cases(draw: Any) -> Case:
    topology = draw(st.sampled_from(CLUSTERS))
    tiers = ["", *topology.tiers]
    wanted = job(
        draw(st.sampled_from(["a", "b"])), 0.0, draw(st.integers(1, 9)), 1.0,
        gpu_type=draw(st.sampled_from(["", *topology.gpu_types])),
        required=draw(st.sampled_from(tiers)), preferred=draw(st.sampled_from(tiers)),
    )  # fmt: skip
    busy = [draw(st.integers(0, 15)) if draw(st.booleans()) else 0 for _ in topology.hosts.names]
    lost = draw(st.lists(st.integers(0, len(topology.hosts) - 1), max_size=2, unique=True))
    return Case(topology, wanted, busy, lost)


def check_promises(case: Case, placement: Placement) -> None:
    """What holds of every placement by every rule."""
    state, topology = case.state, case.topology
    assert placement.gpus == state.gpus
    assert len(set(placement.hosts)) == len(placement.hosts) and 0 not in placement.masks
    assert case.inventory.is_free(placement)
    assert topology.span(placement.hosts) <= state.widest
    kinds = {topology.hosts.gpu_types[h] for h in placement.hosts}
    assert len(kinds) == 1 and kinds <= {pool.gpu_type for pool in state.pools}
    for level in topology.levels:
        domains = [int(level.domain_of_host[h]) for h in placement.hosts]
        changes = sum(a != b for a, b in pairwise(domains))
        assert changes == len(set(domains)) - 1, "a ring would cross a domain twice"


@settings(max_examples=250)
@given(cases(), st.sampled_from(ALL))
def test_every_placement_keeps_every_constraint(case: Case, rule: Rule) -> None:
    if case.refused:
        return
    placement = find(case.inventory, case.state, rule)
    assert find(case.inventory, case.state, rule) == placement, "a rule has no state"
    if placement is not None:
        check_promises(case, placement)


@settings(max_examples=250)
@given(cases(), st.sampled_from(GREEDY))
def test_greedy_rules_place_whatever_fits(case: Case, rule: Rule) -> None:
    if case.refused:
        return
    possible = any(case.fits(pool.gpu_type, case.state.widest) for pool in case.state.pools)
    assert (find(case.inventory, case.state, rule) is not None) == possible


@settings(max_examples=250)
@given(cases())
def test_tier_aware_takes_the_narrowest_tier_and_its_tightest_domain(case: Case) -> None:
    if case.refused:
        return
    placement = find(case.inventory, case.state, TierAware())
    if placement is None:
        return
    topology, state = case.topology, case.state
    kind = topology.hosts.gpu_types[placement.hosts[0]]
    span = topology.span(placement.hosts)
    narrowest = next(t for t in range(len(topology.tiers)) if case.fits(kind, t))
    assert span == narrowest
    first = next(p.gpu_type for p in state.pools if case.fits(p.gpu_type, state.widest))
    assert kind == first
    if span == 0:
        tightest = min(n for n in case.room(kind, 0) if n >= state.gpus)
        assert case.inventory.counts[placement.hosts[0]] == tightest
    elif span <= len(topology.levels):
        domain = int(topology.levels[span - 1].domain_of_host[placement.hosts[0]])
        enough = [n for n in case.room(kind, span) if n >= state.gpus]
        assert case.room(kind, span)[domain] == min(enough)
    if span == 1:
        assert len(placement.hosts) == _fewest_hosts(case, kind, placement)


def _fewest_hosts(case: Case, kind: str, placement: Placement) -> int:
    """Hosts needed at least inside the domain of tier 1 that was chosen."""
    topology = case.topology
    home = [True] * len(topology.hosts)
    if topology.levels:
        level = topology.levels[0]
        home = [bool(d == level.domain_of_host[placement.hosts[0]]) for d in level.domain_of_host]
    counts = [
        n
        for h, n in enumerate(case.inventory.counts)
        if home[h] and topology.hosts.gpu_types[h] == kind and n
    ]
    for size in range(1, len(counts) + 1):
        if any(sum(chosen) >= case.state.gpus for chosen in combinations(counts, size)):
            return size
    raise AssertionError("it does not fit at all")


@settings(max_examples=250)
@given(cases())
def test_consolidated_waits_for_the_narrowest_tier_that_could_ever_hold_it(case: Case) -> None:
    if case.refused:
        return
    state = case.state
    placement = find(case.inventory, state, Consolidated())
    possible = any(case.fits(pool.gpu_type, state.narrowest) for pool in state.pools)
    assert (placement is not None) == possible
    if placement is not None:
        assert case.topology.span(placement.hosts) <= state.narrowest


@settings(max_examples=250)
@given(cases())
def test_yarn_gives_one_host_or_whole_hosts_under_one_switch(case: Case) -> None:
    if case.refused:
        return
    state, topology = case.state, case.topology
    placement = find(case.inventory, state, Yarn())
    assert (placement is not None) == any(_yarn_fits(case, pool.gpu_type) for pool in state.pools)
    if placement is None:
        return
    size = max(
        n for n, t in zip(topology.hosts.gpus, topology.hosts.gpu_types, strict=True)
        if t == topology.hosts.gpu_types[placement.hosts[0]]
    )  # fmt: skip
    if state.gpus <= size:
        assert len(placement.hosts) == 1
    else:
        assert topology.span(placement.hosts) == 1
        counts = sorted(mask.bit_count() for mask in placement.masks)
        assert len(counts) == -(-state.gpus // size) and all(n == size for n in counts[1:])


def _yarn_fits(case: Case, kind: str) -> bool:
    topology, state = case.topology, case.state
    own = [h for h, t in enumerate(topology.hosts.gpu_types) if t == kind]
    size = max(int(topology.hosts.gpus[h]) for h in own)
    if state.gpus <= size:
        return case.fits(kind, 0)
    if state.widest == 0:
        return False
    whole, rest = divmod(state.gpus, size)
    domain_of = topology.levels[0].domain_of_host if topology.levels else [0] * len(topology.hosts)
    for domain in set(domain_of):
        counts = sorted((case.inventory.counts[h] for h in own if domain_of[h] == domain), reverse=True)
        full = counts.count(size)
        if full >= whole and (not rest or any(n >= rest for n in counts[whole:])):
            return True
    return False


@settings(max_examples=200)
@given(cases(), st.sampled_from([BestFit(), FirstFit(), TierAware()]))
def test_one_host_is_enough_where_one_host_suffices(case: Case, rule: Rule) -> None:
    if case.refused:
        return
    placement = find(case.inventory, case.state, rule)
    if placement is None:
        return
    kind = case.topology.hosts.gpu_types[placement.hosts[0]]
    enough = [
        (n, h) for h, n in enumerate(case.inventory.counts)
        if n >= case.state.gpus and case.topology.hosts.gpu_types[h] == kind
    ]  # fmt: skip
    if enough:
        expected = min(h for _, h in enough) if isinstance(rule, FirstFit) else min(enough)[1]
        assert placement.hosts == (expected,)


@settings(max_examples=200)
@given(cases(), st.sampled_from(GREEDY))
def test_the_preferred_tier_is_kept_where_it_has_room(case: Case, rule: Rule) -> None:
    if case.refused:
        return
    placement = find(case.inventory, case.state, rule)
    if placement is None:
        return
    kind = case.topology.hosts.gpu_types[placement.hosts[0]]
    wish = min(case.state.preferred, case.state.widest)
    if case.fits(kind, wish):
        assert case.topology.span(placement.hosts) <= wish


def test_a_limit_of_the_policy_narrows_the_search() -> None:
    case = Case(CLUSTERS[1], job("a", 0, 4, 1), [1, 1, 1, 1], [])
    assert find(case.inventory, case.state, TierAware(), widest=0) is None
    found = find(case.inventory, case.state, TierAware(), widest=1)
    assert found is not None and case.topology.span(found.hosts) == 1


def test_chance_is_the_seed_and_the_job_alone() -> None:
    def drawn(seed: int, name: str, preemptions: int = 0) -> tuple[int, ...]:
        case = Case(cluster([4] * 12), job(name, 0, 4, 1), [], [])
        state: JobState = case.state
        state.preemptions = preemptions
        found = find(case.inventory, state, Random(seed))
        assert found is not None
        return found.hosts

    assert drawn(0, "a") == drawn(0, "a")
    assert len({drawn(seed, name, n) for seed in range(4) for name in "ab" for n in range(3)}) > 4


def test_rules_by_name() -> None:
    assert {name: type(rule_by_name(name)) for name in RULES} == RULES
    with pytest.raises(PolicyError) as caught:
        rule_by_name("nearest")
    assert "'nearest'" in str(caught.value) and all(name in str(caught.value) for name in RULES)
