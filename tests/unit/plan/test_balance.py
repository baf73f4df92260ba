"""Shares that follow links: against the bound, against brute force, and what is learnt of links from what came."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.topology import Topology
from hemiola.cost.collective.duration import bounds, schedule_seconds
from hemiola.cost.places import RankPlaces, place_ranks
from hemiola.plan.collective.balance import (
    KEPT,
    LEAST_SHARE,
    PIECES_BYTES,
    Received,
    SeenRates,
    balanced,
    bound_s,
    paced,
    shares,
)

RATES = st.lists(st.floats(0.05, 1.0), min_size=3, max_size=8)


def seconds(rates: Sequence[float], each: Sequence[float]) -> float:
    """What stars of these shares take, for a byte."""
    return max((1 + (len(rates) - 2) * share) / rate for rate, share in zip(rates, each, strict=True))


@given(RATES)
def test_shares_meet_the_bound_but_for_what_is_left_out(rates: list[float]) -> None:
    found = shares(rates)
    assert sum(found) == pytest.approx(1) and all(share >= 0 for share in found)
    least = 1 + (len(rates) - 2) * LEAST_SHARE * len(rates)
    assert bound_s(rates, 1) * (1 - 1e-9) <= seconds(rates, found) <= bound_s(rates, 1) * least


@pytest.mark.parametrize("rates", [(1, 1, 1), (1, 0.5, 0.25), (0.3, 1, 0.9), (1, 0.4, 0.4, 0.8)])
def test_no_other_shares_are_better(rates: tuple[float, ...]) -> None:
    steps = 24
    others = (
        [part / steps for part in parts]
        for parts in itertools.product(range(steps + 1), repeat=len(rates))
        if sum(parts) == steps
    )
    assert seconds(rates, shares(rates)) <= min(seconds(rates, each) for each in others) * 1.02


def test_equal_hosts_have_equal_shares_and_a_slow_one_none() -> None:
    assert shares([2.0] * 4) == pytest.approx([0.25] * 4)
    assert shares([4.0, 4.0, 4.0, 1.0]) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


@given(RATES.map(lambda rates: [50e6 * rate for rate in rates]), st.integers(65536, 1 << 28))
def test_its_stars_are_proved_and_send_what_shares_say(rates: list[float], size_bytes: int) -> None:
    schedule = balanced(rates, size_bytes).verify()
    assert schedule == balanced(rates, size_bytes)
    assert PIECES_BYTES[0] <= schedule.chunk_bytes <= PIECES_BYTES[1]
    sent: Counter[int] = Counter()
    for move in schedule.moves:
        sent[move.source.rank] += schedule.weights[move.source.index]
    ranks = len(rates)
    for rank, share in enumerate(shares(rates)):
        assert sent[rank] == pytest.approx(1 + (ranks - 2) * share)


def test_others_do_not_run_far_ahead_of_a_link_that_sets_the_pace_alone() -> None:
    assert balanced([50e6, 45e6, 40e6, 42e6], 2 << 20).ahead_bytes == 0
    slow = balanced([50e6, 45e6, 11e6, 42e6], 2 << 20)
    assert 2 * slow.chunk_bytes <= slow.ahead_bytes < 128 << 10


@given(RATES, st.floats(1.0, 3.0))
def test_at_its_paces_no_link_carries_more_than_it_takes_and_one_is_full(
    rates: list[float], over: float
) -> None:
    schedule = paced(rates, over).verify()
    sent, came = [0.0] * len(rates), [0.0] * len(rates)
    for pace in schedule.paces:
        sent[pace.source] += pace.bytes_per_s
        came[pace.target] += pace.bytes_per_s
    assert sent == pytest.approx(came)
    assert max(out / rate for out, rate in zip(sent, rates, strict=True)) == pytest.approx(over)


def test_nobody_is_held_back_where_all_is_to_be_seen() -> None:
    rates = [50e6, 45e6, 11e6, 42e6]
    free, usual = balanced(rates, 2 << 20, over=math.inf), balanced(rates, 2 << 20)
    assert free.ahead_bytes == 0 < usual.ahead_bytes
    assert not free.paces and usual.paces


@pytest.mark.parametrize(
    "rates",
    [
        (1, 1, 1, 2),
        (1, 1, 1, 1.5),
        (1, 1, 1, 1, 1, 3),
        (1, 2, 2, 2, 3),
        (1, 1, 1.5, 2, 1, 1, 1),
        (0.8, 1, 0.9, 0.95),
    ],
)
def test_held_back_they_meet_the_bound_where_all_hosts_are_busy(rates: tuple[float, ...]) -> None:
    """Shared evenly, links would take up to a third longer: whoever has little to send keeps the others waiting."""
    flat = Topology.flat(hosts=len(rates), gpus_per_host=1)
    own = replace(flat.hosts, nic_bytes_per_s=np.array(rates) * 12.5e6)
    place = place_ranks(replace(flat, hosts=own), len(rates))
    bound, schedule = bounds("all-reduce", 16e6, place).seconds, paced(place_rates(place))
    held = schedule_seconds(msgspec.structs.replace(schedule, chunk_bytes=64 << 10), 16e6, place, latency_s=0)
    assert bound <= held < 1.05 * bound
    exact = msgspec.structs.replace(paced(place_rates(place), 1.0), chunk_bytes=64 << 10)
    assert schedule_seconds(exact, 16e6, place, latency_s=0) < 1.015 * bound


def place_rates(place: RankPlaces) -> list[float]:
    return [link.bytes_per_s for link in place.links]


def came(true: Sequence[float], believed: Sequence[float]) -> list[Received]:
    """What stars for believed rates show on true ones: of links that are not kept busy, a fifth more than their pace."""
    duty = [1 + (len(true) - 2) * share for share in shares(believed)]
    took = max(each / rate for each, rate in zip(duty, true, strict=True))
    return [Received(took, min(rate, 1.2 * each / took)) for each, rate in zip(duty, true, strict=True)]


def follow(believed: list[float], true: Sequence[float], count: int) -> SeenRates:
    """What is believed after so many of them."""
    seen = SeenRates(believed)
    for _ in range(count):
        seen.note(1.0, came(true, seen.rates), tuple(seen.rates))
    return seen


@given(RATES.filter(lambda rates: len(rates) == 4), RATES.filter(lambda rates: len(rates) == 4))
def test_what_came_leads_to_shares_near_the_bound(believed: list[float], true: list[float]) -> None:
    seen = follow(believed, true, 60)
    assert seconds(true, shares(seen.rates)) <= 1.15 * bound_s(true, 1)


def test_a_link_that_has_become_slow_is_believed_after_one_collective() -> None:
    true = [1.0, 1.0, 0.25, 1.0]
    seen = SeenRates([1.0, 1.0, 1.0, 1.0])
    slow = came(true, seen.rates)[2]
    others = Received(slow.seconds, 0.7)
    assert seen.note(1.0, [others, others, slow, others], (1.0,) * 4)
    assert seen.rates == pytest.approx([1.0, 1.0, 0.25, 1.0])
    assert shares(seen.rates)[2] < 0.05
    assert seconds(true, shares(seen.rates)) < 1.1 * bound_s(true, 1)


def test_of_two_that_may_be_why_both_are_believed_and_the_next_one_tells() -> None:
    """A slow link recovers while another becomes slow: the first is kept waiting, and looks slower still."""
    believed = (0.81, 0.77, 0.21, 0.33)
    duty = [1 + 2 * share for share in shares(believed)]
    took = duty[1] / 0.13
    seen = SeenRates(believed)
    shown = [Received(took, rate) for rate in (0.98, 0.13, duty[2] / took, 0.97)]
    assert seen.note(1.0, shown, believed) and seen.unsure
    assert seen.rates[1:3] == pytest.approx([0.13, 1 / took])
    assert shares(seen.rates)[1] == 0
    assert not SeenRates([1.0] * 4).unsure


def test_one_that_has_recovered_is_too() -> None:
    assert min(follow([1.0, 1.0, 0.25, 1.0], [1.0] * 4, 10).rates) > 0.6


def test_a_link_that_others_keep_waiting_does_not_stay_without_a_share() -> None:
    """As hosts at 0.85 and 0.89 that were believed to be 0.36, and looked like that."""
    true = [0.85, 0.96, 0.69, 0.89]
    seen = follow([0.36, 1.13, 0.71, 0.37], true, 12)
    assert seconds(true, shares(seen.rates)) < 1.2 * bound_s(true, 1)


@pytest.mark.parametrize(("shown", "believed"), [(0.7, 1.0), (1.04, 1.04)])
def test_the_highest_of_the_last_few_is_believed(shown: float, believed: float) -> None:
    """A link that was kept busy shows less than it takes now and then, and hardly ever more."""
    seen = follow([1.0] * 4, [1.0] * 4, 5)
    usual = came([1.0] * 4, seen.rates)
    odd = [Received(usual[0].seconds, shown), *usual[1:]]
    assert not seen.note(1.0, odd, (1.0,) * 4)
    assert seen.rates == pytest.approx([believed, 1.0, 1.0, 1.0])
    for _ in range(KEPT):
        seen.note(1.0, usual, (1.0,) * 4)
    assert seen.rates == pytest.approx([1.0] * 4)


def test_a_link_with_time_left_is_not_believed_to_be_slower() -> None:
    """The slowest sets the pace alone: others have no more to do than this lets them."""
    rates = (1.0, 1.0, 0.25, 1.0)
    seen = follow(list(rates), rates, KEPT + 1)
    shown = [one.highest_bytes_per_s for one in came(rates, rates)]
    assert max(shown[0], shown[1], shown[3]) <= 0.5
    assert seen.rates == pytest.approx(rates)


def test_of_a_collective_that_took_too_long_only_the_link_that_explains_it_is_believed() -> None:
    """All look slow then: they wait for it."""
    seen = SeenRates([1.0] * 4)
    assert seen.note(1.0, came([1.0, 1.0, 1.0, 0.2], seen.rates), (1.0,) * 4)
    assert seen.rates == pytest.approx([1.0, 1.0, 1.0, 0.2])


def test_a_rank_that_was_late_changes_nothing() -> None:
    """Who was ready last saw how long it took."""
    seen = SeenRates([1.0] * 4)
    usual = came([1.0] * 4, seen.rates)
    waited = [*usual[:3], Received(9 * usual[3].seconds, usual[3].highest_bytes_per_s)]
    assert not seen.note(1.0, waited, (1.0,) * 4)
    assert seen.rates == pytest.approx([1.0] * 4)


def test_what_was_too_short_to_tell_tells_nothing() -> None:
    seen = SeenRates([1.0, 0.5, 1.0])
    short = [Received(9.0, 0.0), Received(9.0, 0.1), Received(9.0, 0.1)]
    assert not seen.note(1.0, short, (1.0, 0.5, 1.0))
    assert seen.rates == [1.0, 0.5, 1.0]
