"""The Gittins index against its definition, and what learning it changes in a schedule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import CheckedMachine, check_run, cluster, job, replay, steps, times

from hemiola.core.errors import PolicyError
from hemiola.core.events import Adopted, Arrived, Finished, Held, NodeBack, NodeLost, Timer
from hemiola.sched.job_state import ENDED
from hemiola.sched.policies.gittins import Gittins, gittins_index, learnt_order
from hemiola.sched.policies.tiresias import Tiresias
from hemiola.sched.view import ClusterView

TWO = cluster([2])


def defined(sample: list[float], age: float) -> float:
    """sup over D of P(S - a <= D | S > a) / E[min(S - a, D) | S > a], every D tried at which it can peak."""
    left = [service - age for service in sample if service > age]
    return max((sum(x <= d for x in left) / sum(min(x, d) for x in left) for d in left), default=0.0)


def test_known_answers_of_two_sizes() -> None:
    assert gittins_index([2, 10], [0, 1, 2, 10]).tolist() == [0.25, 0.5, 0.125, 0.0]


def test_known_answers_of_four_sizes() -> None:
    """At 1 the best D is 15, to the very end."""
    index = gittins_index([16, 1, 8, 4], [0, 1, 2, 4, 8])
    assert index.tolist() == pytest.approx([0.25, 0.12, 1 / 6, 0.125, 0.125])


@given(st.lists(st.integers(1, 30).map(float), min_size=1, max_size=12), st.integers(0, 31).map(float))
def test_it_is_the_supremum(sample: list[float], age: float) -> None:
    assert gittins_index(sample, [age])[0] == pytest.approx(defined(sample, age))


def test_constant_sizes_grow_dearer_the_nearer_the_end() -> None:
    assert gittins_index([8.0] * 5, [0, 4, 6]).tolist() == [1 / 8, 1 / 4, 1 / 2]


def test_cells_are_ranked_by_queue_and_then_by_index() -> None:
    """Cells begin at 0, at the quantiles 2 and 10, and at 5, where the second queue does."""
    order = learnt_order(np.array([2.0, 2.0, 10.0, 10.0]), (5.0,), cells=2, promote=0, eager=True)
    assert order.thresholds_gpu_s == order.cells_gpu_s == (2.0, 5.0, 10.0)
    assert gittins_index([2, 2, 10, 10], [0, 2, 5, 10]).tolist() == [0.25, 0.125, 0.2, 0.0]
    assert order.ranks == (0, 1, 2, 3)


def test_a_rising_index_puts_the_older_cell_first() -> None:
    assert learnt_order(np.array([8.0, 8.0, 9.0]), (), cells=1, promote=0, eager=False).ranks == (1, 0)


def test_a_job_at_a_threshold_is_ranked_in_the_queue_that_it_stands_in() -> None:
    """It was stopped as it got there, and rounding left its service a little less."""
    order = learnt_order(np.array([2.0, 2.0, 10.0, 10.0]), (5.0,), cells=2, promote=0, eager=False)
    machine = CheckedMachine(ClusterView(TWO, estimates=None))  # type: ignore[arg-type]
    for name, service in (("at", 5.0), ("below", math.nextafter(5.0, 0.0))):
        machine.apply(Adopted(9.0, job(name, 0, 1, 9), None, 0.0, served_s=service))
    at, below = (order.waiting(machine.view.job(name), 9.0) for name in ("at", "below"))
    assert below == at == (1, 3, 0.0)


def test_until_enough_jobs_have_ended_it_is_tiresias() -> None:
    jobs = [job(f"j{n}", n, 1 + n % 2, 7 + 5 * (n % 4)) for n in range(30)]
    ours = replay(jobs, TWO, Gittins(thresholds="20/40", promote=2, learn_after=1000))
    theirs = replay(jobs, TWO, Tiresias(thresholds="20/40", promote=2))
    assert times(ours) == times(theirs)
    assert steps(ours) == steps(theirs)


PAST = [job("p0", 0, 2, 1), job("p1", 1, 2, 1), job("p2", 2, 2, 50)]
"""Three jobs of 2, 2 and 100 GPU-seconds, that end at 1, 2 and 52 s: whoever has had 10 is a long one."""


def test_the_index_orders_those_that_wait_in_one_queue() -> None:
    """One queue; a host fails at 58 s. a, which had 12 GPU-seconds, arrived first, but b, new, is worth more."""
    jobs = [*PAST, job("a", 52, 2, 30), job("b", 55, 2, 4)]
    failure = [NodeLost(58, 0, {}), NodeBack(60, 0)]
    plain = replay(jobs, TWO, Gittins(thresholds="", promote=0, learn_after=100), failures=failure)
    learnt = replay(jobs, TWO, Gittins(thresholds="", promote=0, learn_after=3), failures=failure)
    assert steps(plain)[-2:] == [(60, "Start", "a"), (90, "Start", "b")]
    assert steps(learnt)[-2:] == [(60, "Start", "b"), (64, "Start", "a")]


def test_eager_stops_a_running_job_of_the_same_queue() -> None:
    """b comes at 55 s, when a has had 6 GPU-seconds: past the 2 at which it would have been short."""
    jobs = [*PAST, job("a", 52, 2, 30), job("b", 55, 2, 4)]
    calm = replay(jobs, TWO, Gittins(thresholds="", promote=0, learn_after=3))
    eager = replay(jobs, TWO, Gittins(thresholds="", promote=0, learn_after=3, eager=True))
    assert times(calm)["b"] == (82, 86)
    assert times(eager)["b"] == (55, 59)
    assert times(eager)["a"] == (52, 86)


def test_it_learns_whenever_twice_as_many_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt_from: list[int] = []

    def spy(services, *rest):  # type: ignore[no-untyped-def]
        learnt_from.append(len(services))
        return learnt_order(services, *rest)

    monkeypatch.setattr("hemiola.sched.policies.gittins.learnt_order", spy)
    jobs = [job(f"j{n}", n, 1, 0.5) for n in range(40)]
    replay(jobs, TWO, Gittins(learn_after=4))
    assert learnt_from == [4, 8, 16, 32]


def test_jobs_that_are_held_have_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = CheckedMachine(ClusterView(TWO, estimates=None))  # type: ignore[arg-type]
    policy = Gittins(learn_after=2)
    monkeypatch.setattr("hemiola.sched.policies.gittins.learnt_order", None)  # nobody calls it
    machine.apply(*(Arrived(0.0, job(f"j{n}", 0, 1, 5.0)) for n in range(70)))
    machine.apply(*(Held(0.0, f"j{n}", "by its user") for n in range(70)))
    machine.apply(Arrived(0.0, job("one", 0, 1, 5.0)))
    for event in (Timer(0.0, ""), Finished(5.0, "one")):
        machine.apply(event)
        for decision in policy.decide(machine.view):
            assert machine.execute(decision) == ""
    assert machine.view.jobs["one"].status == ENDED


def test_jobs_without_service_teach_nothing() -> None:
    jobs = [job(f"j{n}", n, 1, 0.0) for n in range(9)]
    assert all(record.finish_s is not None for record in replay(jobs, TWO, Gittins(learn_after=2)).records)


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.booleans())
def test_every_job_ends_and_a_replay_repeats(seed: int, eager: bool) -> None:
    chance = np.random.Generator(np.random.PCG64(seed))
    jobs = [
        job(f"j{n}", float(chance.integers(0, 60)), int(chance.integers(1, 6)), float(chance.integers(0, 40)))
        for n in range(12)
    ]
    jobs.sort(key=lambda one: one.submit_s)
    topology = cluster([3, 2], [2])
    policy = Gittins(thresholds="15/60", promote=2, learn_after=3, cells=4, eager=eager)
    failures = [NodeLost(30.0, 0, {}), NodeBack(50.0, 0)]
    run = replay(jobs, topology, policy, failures=failures)
    check_run(run, jobs, topology)
    assert all(record.finish_s is not None for record in run.records)
    assert steps(run) == steps(replay(jobs, topology, policy, failures=failures))


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"thresholds": "5/3"}, "3250/7200"),
        ({"promote": -1.0}, "0 (never) or more"),
        ({"learn_after": 1}, "2 jobs"),
        ({"cells": 0}, "1 or more"),
    ],
)
def test_parameters_that_cannot_be(wrong: dict[str, object], remedy: str) -> None:
    with pytest.raises(PolicyError) as error:
        Gittins(**wrong)  # type: ignore[arg-type]
    assert remedy in str(error.value)
