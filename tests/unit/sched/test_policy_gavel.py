"""Gavel: known answers of its programs, what holds of every X, and rounds that keep to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import check_run, cluster, job, profile, replay, times

from hemiola.core.decisions import parts
from hemiola.core.errors import PolicyError
from hemiola.sched.optimise.programs import Budget
from hemiola.sched.policies import policy_from_text
from hemiola.sched.policies.gavel import Wishes, cheapest, equal_share, fairest, max_min
from hemiola.simulator.cluster import Costs

pytest.importorskip("highspy")

BUDGET = Budget()
TWO = Wishes(np.array([[4.0, 1.0], [3.0, 2.0]]), np.ones(2), np.ones(2))


def test_two_jobs_on_two_types_get_half_of_each() -> None:
    """Equal shares give 2.5 each; 1 + 3 a of the first is 3 - a of the second at a = 1/2: nothing is better for both."""
    assert equal_share(TWO).tolist() == [2.5, 2.5]
    x, value = max_min(TWO, equal_share(TWO), BUDGET)
    assert value == pytest.approx(1.0)
    assert x == pytest.approx(np.full((2, 2), 0.5))


def test_who_could_have_more_without_taking_from_the_least_does() -> None:
    """Job 0 runs on type A alone, with job 1; job 2 has type B to itself."""
    wishes = Wishes(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.ones(3), np.array([1.0, 1.0]))
    x, value = max_min(wishes, np.ones(3), BUDGET)
    assert value == pytest.approx(0.5)
    assert x[:, 0].tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert x[2, 1] == pytest.approx(1.0)


def test_the_makespan_goes_by_what_is_left() -> None:
    """One GPU, 30 s and 10 s left: shares 3/4 and 1/4 end both after 40 s."""
    wishes = Wishes(np.ones((2, 1)), np.ones(2), np.ones(1))
    x, rate = max_min(wishes, np.array([30.0, 10.0]), BUDGET, levels=1)
    assert 1 / rate == pytest.approx(40.0)
    assert x[:, 0].tolist() == pytest.approx([0.75, 0.25])


def test_finish_time_fairness_makes_up_for_what_was_missed() -> None:
    """Two jobs of 100 s on one GPU: half of it is 200 s. With ages 100 and 0 and all to do, rho is r where 100 / (200 r - 100) +
    100 / (200 r) = 1: r = (3 + sqrt(5)) / 4."""
    wishes, whole = Wishes(np.ones((2, 1)), np.ones(2), np.ones(1)), np.array([100.0, 100.0])
    x, rho = fairest(wishes, whole, 2 * whole, np.array([100.0, 0.0]), BUDGET)
    assert rho == pytest.approx((3 + 5**0.5) / 4, rel=5e-3)
    assert x[0, 0] > 0.6 > 0.4 > x[1, 0]
    even, rho = fairest(wishes, whole, 2 * whole, np.zeros(2), BUDGET)
    assert rho == pytest.approx(1.0, rel=5e-3)
    assert even[:, 0].tolist() == pytest.approx([0.5, 0.5], abs=5e-3)


def test_cost_buys_where_throughput_is_cheapest() -> None:
    """Per price type B gives the first 1 / 0.2, A gives the second 3 / 1 and B 2 / 0.2."""
    x, value = cheapest(TWO, np.ones(2), np.array([1.0, 0.2]), BUDGET)
    assert value == pytest.approx(10.0)
    assert x[:, 0].tolist() == pytest.approx([0.0, 0.0], abs=1e-9)
    assert x[1, 1] == pytest.approx(1.0)


numbers = st.floats(0.1, 10)


@st.composite
def wishes(draw: st.DrawFn) -> Wishes:
    jobs, kinds = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    rows = [[draw(numbers) for _ in range(kinds)] for _ in range(jobs)]
    gpus = [float(draw(st.sampled_from([1, 2, 4]))) for _ in range(jobs)]
    capacities = [float(draw(st.sampled_from([4, 8]))) for _ in range(kinds)]
    return Wishes(np.array(rows), np.array(gpus), np.array(capacities))


def keeps_limits(x: np.ndarray, given: Wishes) -> bool:
    fits = (given.gpus @ x <= given.capacities + 1e-6).all()
    return bool(fits and (x.sum(axis=1) <= 1 + 1e-6).all() and (x >= -1e-9).all())


@settings(max_examples=40, deadline=None)
@given(wishes(), st.integers(0, 1000))
def test_no_other_shares_have_a_better_least(given: Wishes, seed: int) -> None:
    equal = equal_share(given)
    x, value = max_min(given, equal, BUDGET)
    assert keeps_limits(x, given)
    assert ((given.throughput * x).sum(axis=1) / equal).min() == pytest.approx(value, rel=1e-5)
    assert value >= 1 - 1e-6
    chance = np.random.default_rng(seed)
    for _ in range(20):
        other = chance.dirichlet(np.ones(len(given.capacities) + 1), len(given.gpus))[:, :-1]
        other /= max(1.0, float((given.gpus @ other / given.capacities).max()))
        assert ((given.throughput * other).sum(axis=1) / equal).min() <= value * (1 + 1e-6)


@settings(max_examples=25, deadline=None)
@given(wishes(), st.lists(st.floats(1, 1e4), min_size=5, max_size=5), st.lists(st.floats(0, 1e4), min_size=5, max_size=5))  # fmt: skip
def test_finish_time_fairness_is_no_worse_than_equal_shares(given: Wishes, left: list[float], age: list[float]) -> None:  # fmt: skip
    jobs = len(given.gpus)
    work, age_s, equal = np.array(left[:jobs]), np.array(age[:jobs]), equal_share(given)
    x, rho = fairest(given, work, 2 * work / equal, age_s, BUDGET)
    assert keeps_limits(x, given)
    assert rho <= ((age_s + work / equal) / (2 * work / equal)).max() * 1.01 + 1e-3


# ---- in a cluster

FAST = profile(1.0, 0.0, name="fast", gpu_speed={"A": 4.0, "B": 1.0})
EVEN = profile(1.0, 0.0, name="even", gpu_speed={"A": 1.5, "B": 1.0})
TYPES = cluster([4, 4], types=["A", "B"])
FREE = Costs(scale=0.0)


@pytest.mark.parametrize("objective", ["max-min", "finish-time-fairness", "makespan", "throughput", "cost"])
def test_all_objectives_run_a_cluster(objective: str) -> None:
    jobs = [job(f"j{n}", 100.0 * n, 4, 4000.0, profile=(FAST, EVEN)[n % 2]) for n in range(5)]
    run = replay(jobs, TYPES, f"gavel:objective={objective}", costs=FREE)
    check_run(run, jobs, TYPES)
    assert {record.status for record in run.records} == {"finished"}
    assert run.decisions_refused == 0


def test_only_at_the_begin_of_rounds_where_that_is_wished() -> None:
    jobs = [job("a", 10.0, 4, 100.0), job("b", 20.0, 4, 100.0)]
    run = replay(jobs, cluster([4]), "gavel:fill=false,round_s=60", costs=FREE)
    assert [begun for begun, _ in times(run).values()] == [60.0, 120.0]


def test_the_most_steps_per_second_go_first() -> None:
    slow, fast = ({"total_steps": steps} for steps in (100.0, 1e5))
    jobs = [job("slow", 0.0, 4, 2000.0, facts=slow), job("fast", 1.0, 4, 2000.0, facts=fast)]
    ends = times(replay(jobs, cluster([4]), "gavel:objective=throughput", costs=FREE))
    assert (ends["fast"][1] or 0.0) < (ends["slow"][1] or 0.0)


@pytest.mark.parametrize("objective", ["max-min", "finish-time-fairness"])
def test_a_budget_that_is_used_up_leaves_equal_shares_and_says_so(objective: str) -> None:
    jobs = [job(f"j{n}", 10.0 * n, 4, 2000.0, profile=(FAST, EVEN)[n % 2]) for n in range(5)]
    run = replay(jobs, TYPES, f"gavel:iterations=1,objective={objective}", costs=FREE)
    assert {record.status for record in run.records} == {"finished"}
    reasons = [part.reason for entry in run.decisions for part in parts(entry.decision)]
    assert any("budget used up" in reason for reason in reasons)


def test_three_alike_on_one_host_share_its_time() -> None:
    """Each has a third of the time, in rounds of 360 s, so all end within some rounds of each other."""
    jobs = [job(f"j{n}", 0.0, 4, 3600.0) for n in range(3)]
    ends = [end or 0.0 for _, end in times(replay(jobs, cluster([4]), "gavel", costs=FREE)).values()]
    assert max(ends) == pytest.approx(10800.0)
    assert min(ends) > 10800.0 - 4 * 360.0


def test_makespan_gives_the_fast_type_to_whom_it_helps() -> None:
    jobs = [job("even", 0.0, 4, 3600.0, profile=EVEN), job("fast", 0.0, 4, 3600.0, profile=FAST)]
    run = replay(jobs, TYPES, "gavel:objective=makespan,round_s=60", costs=FREE)
    fifo = replay(jobs, TYPES, "fifo", costs=FREE)
    last = max(end or 0.0 for _, end in times(run).values())
    assert last < max(end or 0.0 for _, end in times(fifo).values())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gavel:objective=speed", "choose one of"), ("gavel:round_s=0", "above 0"),
        ("gavel:prices=V100", "TYPE=PRICE"), ("gavel:prices=V100=-1", "TYPE=PRICE"), ("gavel:iterations=0", "iterations"),
    ],
)  # fmt: skip
def test_bad_parameters_are_refused(text: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        policy_from_text(text)
