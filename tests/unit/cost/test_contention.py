"""The laws as values: their names, the answers that tell them apart, and which of them bounds which."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.cost.contention import LAWS, Colliding, Eta, Interleaved, Isolated, Law, MaxMin, by_name

CLOSE = 1 + 1e-9


def job(
    links: tuple[int, ...], compute: float, traffic: float, hidden: float = 0.0, weight: float = 1.0
) -> Any:
    return {
        "compute_s": compute, "hidden_s": hidden, "traffic_bytes": traffic, "links": links, "weight": weight,
    }  # fmt: skip


def times(law: Law, jobs: list[Any], capacity: list[float]) -> list[float]:
    network = law.network(capacity)
    for each in jobs:
        network.add(**each)
    return [iteration_s for _, iteration_s, _ in network.settle()]


def exact_times(jobs: list[Any]) -> list[float]:
    """Mean value analysis (Reiser and Lavenberg 1980) of one link of capacity 1, without hiding or weights.

    A job that starts to send finds the others as they would be without it; exact for a
    processor-sharing link and independent, random computing times.
    """
    count = len(jobs)
    sends: dict[int, list[float]] = {0: [0.0] * count}

    def takes(j: int, others: int) -> float:
        return float(jobs[j]["traffic_bytes"] * (1 + sum(sends[others])))

    for group in range(1, 2**count):
        sends[group] = [0.0] * count
        for j in range(count):
            if group >> j & 1:
                sending_s = takes(j, group & ~(1 << j))
                sends[group][j] = sending_s / (jobs[j]["compute_s"] + sending_s)
    return [each["compute_s"] + takes(j, 2**count - 1 - (1 << j)) for j, each in enumerate(jobs)]


numbers = st.floats(0.05, 5.0)
one_link_jobs = st.lists(
    st.builds(
        lambda compute, traffic, share, weight: job((0,), compute, traffic, compute * share, weight),
        numbers,
        numbers,
        st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from([0.5, 1.0, 2.0]),
    ),
    min_size=1,
    max_size=8,
)
network_jobs = st.lists(
    st.builds(
        lambda links, compute, traffic: job(tuple(sorted(links)), compute, traffic),
        st.sets(st.integers(0, 2), min_size=1),
        numbers,
        numbers,
    ),
    min_size=1,
    max_size=8,
)


# --- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", [kind() for kind in LAWS] + [Eta(0.27), Eta(1e-3)])
def test_a_law_is_found_by_the_text_it_writes(law: Law) -> None:
    assert by_name(str(law)) == law
    assert by_name(law.name).name == law.name
    assert law.sentence.endswith(".")


def test_names() -> None:
    assert [kind.name for kind in LAWS] == ["max-min", "interleaved", "colliding", "eta", "isolated"]
    assert by_name("eta:ratio=0.27") == Eta(0.27)
    assert Eta().ratio == pytest.approx(0.2745, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("maxmin", "the laws are max-min, interleaved, colliding, eta, isolated"),
        ("eta:beta=1", "its parameters are ratio"),
        ("max-min:ratio=1", "write max-min alone"),
        ("eta:ratio=much", "'much'"),
        ("eta:ratio", "write a number"),
        ("eta:ratio=1,ratio=2", "twice"),
        ("eta:ratio=-1", "0 or more"),
        ("eta:ratio=inf", "0 or more"),
        ("", "the laws are"),
    ],
)
def test_unknown_laws_and_parameters_are_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        by_name(text)


# --- answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        (Isolated(), 2.0),
        (Interleaved(), 2.0),
        (MaxMin(), 2 + (math.sqrt(5) - 1) / 2),
        (Colliding(), 3.0),
        (Eta(0.5), 3.5),
    ],
)
def test_two_jobs_that_compute_as_long_as_they_send(law: Law, expected: float) -> None:
    assert times(law, [job((0,), 1.0, 1.0)] * 2, [1.0]) == pytest.approx([expected] * 2, rel=1e-12)


def test_eta_is_the_papers_time_per_byte() -> None:
    """0.856 ms/MB alone; with two competitors more, 3 * 0.856 + 2 * 0.235 = 3.038 ms/MB."""
    capacity, traffic = 1e6 / 0.856e-3, 100e6
    assert times(Eta(), [job((0,), 1.0, traffic)] * 3, [capacity]) == pytest.approx([1.3038] * 3, rel=1e-12)


# --- bounds ------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(network_jobs)
def test_nobody_is_faster_than_alone(jobs: list[Any]) -> None:
    capacity = [1.0, 2.0, 0.5]
    alone = times(Isolated(), jobs, capacity)
    for law in (Interleaved(), MaxMin(), Colliding(), Eta()):
        assert all(a <= b * CLOSE for a, b in zip(alone, times(law, jobs, capacity), strict=True))


@settings(max_examples=100)
@given(one_link_jobs)
def test_on_one_link_colliding_bounds_max_min(jobs: list[Any]) -> None:
    usual, worst = times(MaxMin(), jobs, [1.0]), times(Colliding(), jobs, [1.0])
    assert all(a <= b * CLOSE for a, b in zip(usual, worst, strict=True))


@given(numbers, numbers, st.floats(0, 1), st.integers(1, 12))
def test_equal_jobs_on_one_link_are_ordered(compute: float, traffic: float, share: float, count: int) -> None:
    jobs = [job((0,), compute, traffic, share * compute)] * count
    found = [times(law, jobs, [1.0])[0] for law in (Isolated(), Interleaved(), MaxMin(), Colliding())]
    assert all(a <= b * CLOSE for a, b in pairwise(found))


@settings(max_examples=100)
@given(network_jobs)
def test_nobody_gains_on_interleaved_but_from_one_that_is_not_richer(jobs: list[Any]) -> None:
    """Interleaved mean rates are max-min fair: to beat one, another law slows a job with no higher one."""
    capacity = [1.0, 2.0, 0.5]

    def mean(law: Law) -> list[float]:
        return [j["traffic_bytes"] / t for j, t in zip(jobs, times(law, jobs, capacity), strict=True)]

    fair, other = mean(Interleaved()), mean(MaxMin())
    for rate, better in zip(fair, other, strict=True):
        if better > rate * (1 + 1e-6):
            assert any(o < f * (1 - 1e-9) and f <= rate * CLOSE for f, o in zip(fair, other, strict=True))


def test_interleaved_is_no_lower_bound_for_each_job() -> None:
    """A job that hardly computes sends 2/3 of the time's bytes under max-min, 1/2 if mean rates are fair."""
    greedy, usual = job((0,), 1e-9, 1.0), job((0,), 1.0, 1.0)
    assert times(Interleaved(), [greedy, usual], [1.0]) == pytest.approx([2.0, 2.0])
    assert times(MaxMin(), [greedy, usual], [1.0]) == pytest.approx([1.5, 3.0], rel=1e-6)


def test_colliding_is_no_upper_bound_over_several_links() -> None:
    """Collisions on link 0 hold the middle job back, to the gain of the job it meets on link 1."""
    rare, middle, far = job((0,), 100.0, 0.1), job((0, 1), 0.1, 10.0), job((1,), 0.1, 10.0)
    jobs = [rare] * 10 + [middle, far]
    assert times(MaxMin(), jobs, [1.0, 1.0])[-1] > 1.5 * times(Colliding(), jobs, [1.0, 1.0])[-1]


@settings(max_examples=60)
@given(st.lists(st.builds(lambda c, v: job((0,), c, v), numbers, numbers), min_size=1, max_size=5))
def test_max_min_is_near_the_exact_answer_for_random_phases(jobs: list[Any]) -> None:
    for found, exact in zip(times(MaxMin(), jobs, [1.0]), exact_times(jobs), strict=True):
        assert -0.10 < found / exact - 1 < 0.10


# --- a simulation, instant by instant ----------------------------------------------------------


def fair_rates(
    sending: list[int], links_of: list[tuple[int, ...]], capacity: list[float]
) -> dict[int, float]:
    """Max-min fair rates of the flows present."""
    rates: dict[int, float] = {}
    room, left = list(capacity), list(sending)
    while left:
        users = {link: [j for j in left if link in links_of[j]] for link in range(len(room))}
        tight = min((link for link in users if users[link]), key=lambda link: room[link] / len(users[link]))
        rate = room[tight] / len(users[tight])
        for j in users[tight]:
            rates[j] = rate
            left.remove(j)
            for link in links_of[j]:
                room[link] -= rate
    return rates


def simulated_times(
    jobs: list[Any], capacity: list[float], until_s: float, chance: random.Random
) -> list[float]:
    """Mean iteration times when computing takes an exponential time and flows share links at every instant."""
    links_of = [each["links"] for each in jobs]
    computes = [chance.expovariate(1 / each["compute_s"]) for each in jobs]
    sends, done, now = [0.0] * len(jobs), [0] * len(jobs), 0.0
    rates: dict[int, float] = {}
    while now < until_s:
        step = min(sends[j] / rates[j] if j in rates else computes[j] for j in range(len(jobs)))
        now += step
        for j, each in enumerate(jobs):
            if j in rates:
                sends[j] -= step * rates[j]
                if sends[j] <= 1e-9:
                    sends[j], done[j] = 0.0, done[j] + 1
                    computes[j] = chance.expovariate(1 / each["compute_s"])
            else:
                computes[j] -= step
                if computes[j] <= 1e-9:
                    sends[j] = each["traffic_bytes"]
        rates = fair_rates([j for j in range(len(jobs)) if sends[j]], links_of, capacity)
    return [now / count for count in done]


def test_max_min_is_near_a_simulation() -> None:
    """Six jobs on three links: no other law comes as near."""
    capacity = [1.0, 1.5, 0.7]
    jobs = [
        job((0,), 1.0, 0.8), job((0, 1), 2.0, 1.0), job((1,), 0.5, 1.0),
        job((1, 2), 1.0, 0.5), job((2,), 1.5, 0.3), job((0, 2), 3.0, 0.4),
    ]  # fmt: skip
    truth = simulated_times(jobs, capacity, 3000.0, random.Random(5))

    def error(law: Law) -> float:
        found = times(law, jobs, capacity)
        return sum(abs(a / b - 1) for a, b in zip(found, truth, strict=True)) / len(jobs)

    assert error(MaxMin()) < 0.05
    assert all(error(law) > 2 * error(MaxMin()) for law in (Interleaved(), Colliding(), Eta(), Isolated()))
