"""The arithmetic of a league against known answers, definitions and brute force."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.analysis.league import blocks_of, false_discoveries, mean_bound_s, paired_change, ranks


def test_a_constant_ratio_is_found_without_doubt() -> None:
    theirs = [np.arange(1.0, 101.0), np.arange(5.0, 55.0)]
    change = paired_change([0.8 * jct_s for jct_s in theirs], theirs, block=10)
    assert (change.mean, change.low, change.high) == pytest.approx((-0.2, -0.2, -0.2))
    assert change.p_value == pytest.approx(2 / 4001)
    assert change.blocks == 15


def test_of_a_handful_of_jobs_nothing_is_sure() -> None:
    theirs = [np.arange(1.0, 9.0)]
    assert paired_change([0.5 * theirs[0]], theirs).p_value == 1.0
    assert paired_change([0.5 * np.arange(1.0, 41.0)], [np.arange(1.0, 41.0)]).blocks == 10


def test_two_that_are_equal_do_not_differ() -> None:
    same = [np.arange(1.0, 101.0)]
    change = paired_change(same, same)
    assert (change.mean, change.p_value) == (0.0, 1.0)


def test_slices_count_alike_however_long_their_jobs_are() -> None:
    """One slice is a third faster, the other of much longer jobs as fast: the mean of the ratios."""
    change = paired_change([np.full(50, 2.0), np.full(50, 9e6)], [np.full(50, 3.0), np.full(50, 9e6)])
    assert change.mean == pytest.approx(-1 / 6)


def test_blocks_keep_neighbours_together() -> None:
    ours, theirs = np.array([1.0, 3.0, 5.0]), np.array([2.0, 2.0, 2.0])
    assert (6.0 * blocks_of(ours, theirs, 2)).tolist() == [[4.0, 4.0], [5.0, 2.0]]


def test_what_hangs_together_is_surer_one_by_one_than_it_is() -> None:
    """Ten busy periods in which all jobs wait alike: 200 jobs, of which ten are news."""
    rng = np.random.Generator(np.random.PCG64(1))
    theirs = np.full(200, 10.0)
    ours = theirs + np.repeat(rng.normal(0.6, 2.0, size=10), 20)
    alone, together = (paired_change([ours], [theirs], block=block) for block in (1, 20))
    assert alone.high - alone.low < 0.5 * (together.high - together.low)


def test_chance_alone_is_seldom_called_a_difference() -> None:
    rng = np.random.Generator(np.random.PCG64(2))
    found = 0
    for _ in range(200):
        ours, theirs = rng.exponential(10.0, size=(2, 100))
        found += paired_change([ours], [theirs], block=5, resamples=400).p_value < 0.05
    assert found <= 24  # 5 % would be 10; blocks are few


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), max_size=12), st.sampled_from([0.05, 0.2]))
def test_benjamini_and_hochberg_by_definition(p_values: list[float], rate: float) -> None:
    """The largest k with p_(k) <= rate k / m; the k smallest are discoveries."""
    ordered, m = sorted(p_values), len(p_values)
    k = max((n for n in range(1, m + 1) if ordered[n - 1] <= rate * n / m), default=0)
    found = false_discoveries(p_values, rate)
    assert sum(found) == k
    assert all(p <= ordered[k - 1] for p, called in zip(p_values, found, strict=True) if called)


def test_equal_values_share_their_places() -> None:
    assert ranks([5.0, 1.0, 5.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]


def test_the_bound_of_jobs_that_need_the_whole_cluster_is_their_best_order() -> None:
    """Least work left first on one machine: 3 is stopped for 1, then 2 is as long as what is left of it."""
    submit_s, work_s = np.array([0.0, 1.0, 2.0]), np.array([3.0, 1.0, 2.0])
    assert mean_bound_s(submit_s, work_s, 4 * work_s, 4) == pytest.approx((4 + 1 + 4) / 3)


def test_nobody_waits_where_there_is_room() -> None:
    assert mean_bound_s(np.zeros(4), np.full(4, 7.0), np.full(4, 7.0), 64) == 7.0


def test_no_jobs_have_no_bound() -> None:
    assert mean_bound_s(np.zeros(0), np.zeros(0), np.zeros(0), 4) == 0.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 2), st.integers(0, 5)), min_size=1, max_size=5))
def test_no_list_schedule_beats_the_bound(jobs: list[tuple[int, int, int]]) -> None:
    """Every order of starting on 2 GPUs, without pre-emption, leaves a mean of at least the bound."""
    jobs = sorted(jobs)
    submit_s, gpus, run_s = (np.array(column, dtype=np.float64) for column in zip(*jobs, strict=True))
    bound_s = mean_bound_s(submit_s, run_s, gpus * run_s, 2)
    best_s = min(_listed(order, jobs) for order in permutations(range(len(jobs))))
    assert bound_s <= best_s + 1e-9


def _listed(order: tuple[int, ...], jobs: list[tuple[int, int, int]]) -> float:
    free_s = [0.0, 0.0]
    total_s = 0.0
    for at in order:
        submit_s, gpus, run_s = jobs[at]
        free_s.sort()
        end_s = max(submit_s, free_s[gpus - 1]) + run_s
        free_s[:gpus] = [end_s] * gpus
        total_s += end_s - submit_s
    return total_s / len(jobs)
