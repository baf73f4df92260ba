"""A network is found again from what its own fair sharing lets be measured."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.cost.network_fit import (
    ProbedFlow,
    RateInterval,
    UplinkGroup,
    fair_rates,
    fit_network,
    probe_rounds,
)

MB = 1e6


def measured(
    rates: list[float], racks: dict[tuple[int, ...], float], noise: float = 0.0, seed: int = 0, mixes: int = 2
):
    """All rounds of a probe on hosts of these rates, with uplinks by their hosts."""
    made = random.Random(seed)
    groups = [UplinkGroup(hosts, RateInterval(rate, rate, rate)) for hosts, rate in racks.items()]
    able = np.array(rates)
    rounds = []
    for pairs in probe_rounds(len(rates), seed, mixes):
        flows = [ProbedFlow(a, b, 1.0) for a, b in pairs]
        found = fair_rates(flows, able, able, groups)
        rounds.append(
            [
                ProbedFlow(flow.source, flow.target, float(rate) * made.uniform(1 - noise, 1 + noise))
                for flow, rate in zip(flows, found, strict=True)
            ]
        )
    return rounds


def test_fair_rates_are_those_of_a_textbook() -> None:
    """Two flows of one sender share it; the third gets what the first leaves of its receiver."""
    flows = [ProbedFlow(0, 2, 1.0), ProbedFlow(0, 3, 1.0), ProbedFlow(1, 2, 1.0)]
    able = np.array([10.0, 100.0, 12.0, 100.0])
    assert fair_rates(flows, able, able, ()).tolist() == [5.0, 5.0, 7.0]


@pytest.mark.parametrize("rates", [[50 * MB] * 2, [50 * MB, 12.5 * MB, 50 * MB], [50 * MB] * 3 + [12.5 * MB]])
def test_hosts_on_one_switch(rates: list[float]) -> None:
    found = fit_network(len(rates), measured(rates, {}, noise=0.04))
    slow_pair = min(rates) if len(rates) == 2 else 0.0
    for host, rate in enumerate(rates):
        assert found.rate(host).bytes_per_s == pytest.approx(
            max(min(rate, sum(rates) - rate), slow_pair), rel=0.05
        )
    assert found.groups == ()


def test_one_fast_host_among_slow_ones_is_seen_by_all_sending_at_once() -> None:
    found = fit_network(4, measured([100 * MB, 25 * MB, 25 * MB, 25 * MB], {}))
    assert found.rate(0).bytes_per_s == pytest.approx(75 * MB), "what all others together could show"


@pytest.mark.parametrize(
    ("hosts", "racks"),
    [
        (4, [(0, 1), (2, 3)]),
        (4, [(0, 2), (1, 3)]),
        (6, [(0, 1, 2), (3, 4, 5)]),
        (8, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (8, [(0, 3), (1, 7), (2, 4), (5, 6)]),
        (16, [tuple(range(4 * k, 4 * k + 4)) for k in range(4)]),
    ],
)
@pytest.mark.parametrize("oversubscription", [2.0, 4.0])
def test_racks_are_found_again(hosts: int, racks: list[tuple[int, ...]], oversubscription: float) -> None:
    uplink = len(racks[0]) * 50 * MB / oversubscription
    rounds = measured([50 * MB] * hosts, dict.fromkeys(racks, uplink), noise=0.04, seed=3)
    found = fit_network(hosts, rounds)
    assert sorted(group.hosts for group in found.groups) == sorted(racks)
    for group in found.groups:
        assert group.uplink.bytes_per_s == pytest.approx(uplink, rel=0.08)


@given(st.lists(st.sampled_from([10.0, 25.0, 50.0, 100.0]), min_size=2, max_size=8), st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_no_group_is_seen_where_none_is(rates: list[float], seed: int) -> None:
    found = fit_network(len(rates), measured([rate * MB for rate in rates], {}, noise=0.05, seed=seed))
    assert found.groups == ()
    for host, rate in enumerate(rates):
        assert found.rate(host).bytes_per_s <= rate * MB * 1.06


def test_known_racks_need_one_pass_without_a_search() -> None:
    """One rack behind an uplink, two hosts beside it; now the uplink is slower than when it was found."""
    rounds = measured([50 * MB] * 4, {(0, 2): 12.5 * MB}, noise=0.04, mixes=1)
    found = fit_network(4, rounds, known=[(0, 2)])
    assert [group.hosts for group in found.groups] == [(0, 2)]
    assert found.groups[0].uplink.bytes_per_s == pytest.approx(12.5 * MB, rel=0.08)


def test_every_pair_meets_in_every_pass() -> None:
    for hosts in (2, 3, 5, 8):
        rounds = list(probe_rounds(hosts, seed=1))
        pairs = {pair for flows in rounds for pair in flows}
        assert pairs == set(itertools.permutations(range(hosts), 2))


def test_a_host_that_was_left_out_is_named() -> None:
    with pytest.raises(InputError, match="host 2 took part in no measurement"):
        fit_network(3, [[ProbedFlow(0, 1, 1.0), ProbedFlow(1, 0, 1.0)]])
