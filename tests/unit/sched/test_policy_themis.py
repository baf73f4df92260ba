"""Themis by hand: finish-time fairness, who may bid, who wins, who keeps its GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import FREE, CheckedMachine, check_run, cluster, job, profile, replay, steps, times

from hemiola.core.decisions import Decision
from hemiola.core.errors import PolicyError
from hemiola.core.events import Adopted, Arrived, Finished, NodeBack, NodeLost, Timer
from hemiola.cost.iteration import IterationModel
from hemiola.sched.policies.themis import BIDDER, Auction, ByAuction, Themis, finish_time_fairness, ideal_s
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs, SimulatedEstimates

TWO = cluster([2])


class Watch(Policy):
    """Lets Themis decide and notes its auction's answers at some moments."""

    name = "watch"

    def __init__(self, policy: Themis, *at: float) -> None:
        self.policy = policy
        self.at = at
        self.seen: dict[tuple[float, str], tuple[float, tuple[float, float]]] = {}

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        auction: Auction = view.index(self.policy.auction)
        auction.note()
        if view.now in self.at:
            for one in (*view.waiting.values(), *view.running.values()):
                self.seen[view.now, one.id] = auction.mean_jobs(one), auction.bid(one)
        return self.policy.decide(view)


def test_ideal_time_is_that_in_a_share_of_the_cluster() -> None:
    """Four jobs on 8 GPUs: a share is 2 GPUs, in which a gang of 4 takes turns with itself."""
    assert ideal_s(100.0, 2, 4, 8) == 100.0
    assert ideal_s(100.0, 4, 4, 8) == 200.0


def test_fairness_is_the_time_here_over_the_time_alone() -> None:
    assert finish_time_fairness(10.0, 90.0, 50.0) == 2.0
    assert finish_time_fairness(0.0, 0.0, 0.0) == math.inf


def test_bids_of_a_holder_and_of_one_that_waits() -> None:
    """At 10 s. a: 10 s here, 90 to go, 1.8 jobs in the mean. b: 8 s here, 10 to go, always 2 jobs.

    Without GPUs for the next lease of 10 s a pays a switch of 3 s, too.
    """
    watch = Watch(Themis(lease_s=10, fairness=0), 10)
    replay([job("a", 0, 2, 100), job("b", 2, 2, 10)], TWO, watch, costs=Costs(checkpoint_s=1, restore_s=2))
    mean_a, bid_a = watch.seen[10, "a"]
    mean_b, bid_b = watch.seen[10, "b"]
    assert mean_a == pytest.approx(1.8) and mean_b == pytest.approx(2)
    assert bid_a == pytest.approx((100 / 180, 113 / 180))
    assert bid_b == pytest.approx((18 / 20, 28 / 20))


def test_bids_are_in_seconds_here_where_run_times_are_those_of_another_cluster() -> None:
    """The same: an iteration takes 2 s here and took 3 s there."""
    watch = Watch(Themis(lease_s=10, fairness=0), 10)
    model = profile(1.0, 1.0, checkpoint_s=1, restore_s=2)
    jobs = [job("a", 0, 2, 150, profile=model), job("b", 2, 2, 15, profile=model)]
    replay(jobs, cluster([1, 1]), watch, recorded_on=cluster([1, 1], nic=0.5))
    assert watch.seen[10, "a"][1] == pytest.approx((100 / 180, 113 / 180))
    assert watch.seen[10, "b"][1] == pytest.approx((18 / 20, 28 / 20))


def test_the_mean_number_of_jobs_is_of_what_was_seen() -> None:
    """Ten jobs are there when it begins, one of them ten hours old; three end a minute later."""
    machine = CheckedMachine(ClusterView(TWO, estimates=None))  # type: ignore[arg-type]
    auction: Auction = machine.view.index(Themis().auction)
    machine.apply(*(Arrived(36_000.0, job(f"j{n}", 36_000, 2, 1e6)) for n in range(9)))
    machine.apply(Adopted(36_000.0, job("old", 0, 2, 1e6), None, 0.0))
    old = machine.view.jobs["old"]
    auction.note()
    assert auction.mean_jobs(old) == 10.0
    machine.apply(*(Finished(36_060.0, f"j{n}") for n in range(3)))
    auction.note()
    machine.apply(Timer(36_180.0, ""))
    auction.note()
    assert auction.mean_jobs(old) == pytest.approx((60 * 10 + 120 * 7) / 180)


def test_the_auction_gives_to_whoever_gains_most() -> None:
    """f = 0: both bid. A lease lifts b's rho by log 28/18, a's only by log 110/100."""
    jobs = [job("a", 0, 2, 100), job("b", 2, 2, 10)]
    run = replay(jobs, TWO, Themis(lease_s=10, fairness=0))
    check_run(run, jobs, TWO)
    assert steps(run) == [(0, "Start", "a"), (10, "Stop", "a"), (10, "Start", "b"), (20, "Start", "a")]


def test_only_the_worst_treated_may_bid() -> None:
    """With f = 0.8 one of two bids. b takes 1000 s: at first a is worse off and stays.

    At 40 s b has rho 1038 / 2000, a 100 / (100 * 1.95): now b bids. At 50 s a is worse off again.
    """
    jobs = [job("a", 0, 2, 100), job("b", 2, 2, 1000)]
    run = replay(jobs, TWO, Themis(lease_s=10, fairness=0.8))
    check_run(run, jobs, TWO)
    assert steps(run)[:5] == [
        (0, "Start", "a"), (40, "Stop", "a"), (40, "Start", "b"), (50, "Stop", "b"), (50, "Start", "a"),
    ]  # fmt: skip


def test_nothing_changes_between_rounds_but_what_is_free_is_taken() -> None:
    jobs = [job("a", 0, 1, 7), job("b", 0, 1, 100), job("c", 2, 1, 5), job("d", 3, 1, 5)]
    run = replay(jobs, TWO, Themis(lease_s=1000))
    assert times(run) == {"a": (0, 7), "b": (0, 100), "c": (7, 12), "d": (12, 17)}


def test_no_round_is_held_while_nobody_waits() -> None:
    run = replay([job("a", 0, 2, 1e6)], TWO, Themis(lease_s=10))
    assert not any(type(entry.decision).__name__ == "WakeAt" for entry in run.decisions)


def test_bidders_then_holders_then_the_rest_then_newcomers() -> None:
    class Stub:
        def __init__(self, index: int) -> None:
            self.index, self.submit_s = index, 50.0 + index

    order = ByAuction({0: (0, -2.0), 1: (0, -1.0), 2: (1, -5.0), 3: (1, -4.0)})
    waiting = [order.waiting(Stub(n), 0.0) for n in range(5)]  # type: ignore[arg-type]
    running = [order.running(Stub(n), 0.0) for n in range(5)]  # type: ignore[arg-type]
    assert waiting == [(0, -2.0), (0, -1.0), (2, -5.0), (2, -4.0), (3, 54.0)]
    assert running == [(0, -2.0), (0, -1.0), (1, -5.0), (1, -4.0), (1, 54.0)]
    assert max(running[2:]) < min(waiting[2:])  # holders keep what bidders do not take


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 0.8]))
def test_every_job_ends_and_a_replay_repeats(seed: int, fairness: float) -> None:
    chance = np.random.Generator(np.random.PCG64(seed))
    model = profile(1.0, 1.0, checkpoint_s=0.5, restore_s=1.0)
    jobs = [
        job(f"j{n}", float(at), int(chance.integers(1, 7)), float(chance.integers(0, 60)),
            profile=model if chance.random() < 0.5 else None)
        for n, at in enumerate(sorted(chance.integers(0, 60, 12)))
    ]  # fmt: skip
    topology = cluster([3, 2], [2, 2])
    failures = [NodeLost(30.0, 0, {}), NodeBack(50.0, 0)]
    policy = Themis(lease_s=7.0, fairness=fairness)
    run = replay(jobs, topology, policy, costs=FREE, failures=failures)
    check_run(run, jobs, topology)
    assert all(record.finish_s is not None for record in run.records)
    assert steps(run) == steps(replay(jobs, topology, policy, costs=FREE, failures=failures))


@pytest.mark.parametrize(
    "wrong", [{"lease_s": 0.0}, {"lease_s": math.inf}, {"fairness": 1.0}, {"fairness": -0.1}]
)
def test_parameters_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match=next(iter(wrong))):
        Themis(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fairness", "jobs", "bidders"),
    [(0.95, 20, 1), (0.95, 40, 2), (0.7, 10, 3), (0.7, 100, 30), (0.85, 20, 3), (0.8, 11, 3)],
)
def test_the_share_that_bids_is_the_one_that_was_asked_for(fairness: float, jobs: int, bidders: int) -> None:
    """1 - 0.95 is a little more than 0.05: of 20 jobs, still one."""
    machine = CheckedMachine(ClusterView(TWO, SimulatedEstimates(IterationModel(TWO), FREE)))
    machine.apply(*(Arrived(0.0, job(f"j{n}", 0, 2, 1e6)) for n in range(jobs)))
    auction: Auction = machine.view.index(Themis(fairness=fairness).auction)
    auction.note()
    assert [kind for kind, _ in auction.hold().places.values()].count(BIDDER) == bidders


def test_who_knows_nothing_of_work_bids_by_what_was_done() -> None:
    """Two jobs, alike but for the work that they have left, of which nobody is told: they bid alike."""
    machine = CheckedMachine(ClusterView(TWO, SimulatedEstimates(IterationModel(TWO), FREE)))
    machine.apply(Arrived(0.0, job("short", 0, 2, 100.0)), Arrived(0.0, job("long", 0, 2, 1e6)))
    machine.apply(Timer(50.0, ""))
    for oracle, alike in ((True, False), (False, True)):
        auction: Auction = machine.view.index(Themis(oracle=oracle).auction)
        auction.note()
        bids = [auction.bid(machine.view.jobs[name]) for name in ("short", "long")]
        assert (bids[0] == bids[1]) is alike
    assert "mean" in Themis(oracle=False).card()["remaining time"]
