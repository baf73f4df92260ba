"""AFS and Shockwave: known answers by hand, brute force on small windows, and runs of a cluster."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import check_run, cluster, job, replay, times

from hemiola.core.errors import PolicyError
from hemiola.sched.optimise.programs import Budget
from hemiola.sched.policies import policy_from_text
from hemiola.sched.policies.afs import Bidder, deal, goes_first
from hemiola.sched.policies.shockwave import FLOOR, WindowJob, plan_window
from hemiola.simulator.cluster import Costs

FREE = Costs(scale=0.0)


def linear(left: float, most: int) -> Bidder:
    return Bidder(left, tuple((gpus, float(gpus)) for gpus in range(1, most + 1)))


def given_to(*bidders: Bidder, gpus: int) -> list[int]:
    deal(list(bidders), gpus)
    return [one.steps[one.at - 1][0] if one.at else 0 for one in bidders]


def test_everybody_gets_one_before_anybody_two_the_shorter_first() -> None:
    assert given_to(linear(10, 4), linear(30, 4), gpus=1) == [1, 0]
    assert given_to(linear(10, 4), linear(30, 4), gpus=2) == [1, 1]


def test_of_two_that_scale_alike_the_shorter_takes_the_rest() -> None:
    """Of two with one GPU each, the longer gains (2 - 1) / 2 and the shorter would lose (2 - 1) / 1: it goes first."""
    assert given_to(linear(10, 3), linear(30, 4), gpus=5) == [3, 2]


def test_a_long_job_that_scales_better_takes_it() -> None:
    """A second GPU brings the short one a tenth, the long one half of what it has then."""
    short = Bidder(10, ((1, 1.0), (2, 1.1)))
    assert given_to(short, linear(30, 4), gpus=4) == [1, 3]


def test_who_gains_nothing_is_passed_over() -> None:
    flat = Bidder(5, ((1, 1.0), (2, 1.0)))
    assert given_to(flat, gpus=2) == [1]
    assert given_to(Bidder(5, ((4, 1.0),)), gpus=3) == [0]


@given(st.floats(1, 100), st.floats(1, 100), st.integers(0, 2), st.integers(0, 2))
def test_one_of_two_goes_first(left: float, other_left: float, at: int, other_at: int) -> None:
    one, other = linear(left, 4), linear(other_left, 4)
    one.at, other.at = at, other_at
    if left / max(at, 1) != other_left / max(other_at, 1):
        assert goes_first(one, other) != goes_first(other, one)


def test_afs_shares_a_cluster_among_elastic_jobs() -> None:
    jobs = [job("long", 0.0, 4, 4000.0, gpus_min=1, gpus_max=8), job("short", 600.0, 4, 500.0, gpus_min=1, gpus_max=8)]  # fmt: skip
    run = replay(jobs, cluster([8]), "afs:oracle=true", costs=FREE)
    check_run(run, jobs, cluster([8]))
    began_s, ended_s = times(run)["short"]
    assert began_s == 600.0
    assert ended_s is not None and ended_s < 600.0 + 500.0


# ---- windows

BUDGET = Budget(nodes=1000, gap=0.0)


def worth(jobs: list[WindowJob], counts: tuple[int, ...], round_s: float, makespan: float) -> float:
    total = 0.0
    for one, count in zip(jobs, counts, strict=True):
        begin = max(one.progress, FLOOR)
        total += one.weight * (math.log(min(1.0, begin + count * one.per_round)) - math.log(begin))
    scale = makespan / max(max(one.left_s for one in jobs), 1.0)
    return total - scale * max(0.0, *(one.left_s - n * round_s for one, n in zip(jobs, counts, strict=True)))


window_jobs = st.builds(
    WindowJob, st.sampled_from([1, 2, 4]), st.floats(0.1, 5), st.floats(0, 0.9), st.floats(0.01, 0.4), st.floats(60, 5000)
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(window_jobs, min_size=1, max_size=3), st.sampled_from([2, 4]), st.floats(0, 3))
def test_a_window_is_what_enumeration_finds(jobs: list[WindowJob], gpus: int, makespan: float) -> None:
    pytest.importorskip("highspy")
    rounds = 4
    able = [n for n in itertools.product(range(rounds + 1), repeat=len(jobs))
            if sum(one.gpus * count for one, count in zip(jobs, n, strict=True)) <= gpus * rounds]  # fmt: skip
    best = max(worth(jobs, counts, 120.0, makespan) for counts in able)
    counts, _ = plan_window(jobs, gpus, rounds, 120.0, makespan, BUDGET)
    assert worth(jobs, tuple(counts), 120.0, makespan) == pytest.approx(best, abs=1e-5)


def test_who_is_treated_worst_gets_the_window() -> None:
    pytest.importorskip("highspy")
    fair, wronged = (WindowJob(4, weight, 0.5, 0.1, 600.0) for weight in (1.0, 32.0))
    counts, _ = plan_window([fair, wronged], 4, 4, 120.0, 0.0, BUDGET)
    assert counts[1] > counts[0]


def test_three_alike_share_a_host() -> None:
    pytest.importorskip("highspy")
    jobs = [job(f"j{n}", 0.0, 4, 2400.0) for n in range(3)]
    run = replay(jobs, cluster([4]), "shockwave", costs=FREE)
    check_run(run, jobs, cluster([4]))
    ends = [end or 0.0 for _, end in times(run).values()]
    assert max(ends) == pytest.approx(7200.0)
    assert min(ends) > 7200.0 - 20 * 120.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("afs:settle_s=-1", "settle_s is -1"), ("shockwave:round_s=0", "round_s is 0"), ("shockwave:window=0", "window 0"),
        ("shockwave:power=-1", "power is -1"), ("shockwave:nodes=-1", "nodes"),
    ],
)  # fmt: skip
def test_bad_parameters_are_refused(text: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        policy_from_text(text)
