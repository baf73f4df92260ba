"""Which servers go back, and who grows: known answers, and every choice as the oracle."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.sched.policies.lyra import knapsack
from hemiola.sched.reclaim import fewest_stopped, reclaim_greedily

LENT = {"s1": {"a", "b"}, "s2": {"a"}, "s3": {"b", "c"}, "s4": {"c", "d"}, "s5": {"d"}}
JOBS = {"A": (100.0, 2, 4), "B": (60.0, 1, 3), "C": (30.0, 1, 2)}
"""Run time at the least size, the least size, the largest; run time falls as the size grows."""


@pytest.mark.parametrize(
    ("count", "servers", "stopped"),
    [
        (1, ["s2"], ["a"]),
        (2, ["s2", "s1"], ["a", "b"]),
        (3, ["s2", "s1", "s3"], ["a", "b", "c"]),
    ],
)
def test_lyra_reclaims_as_its_rule_says(count: int, servers: list[str], stopped: list[str]) -> None:
    assert reclaim_greedily(LENT, count) == (servers, stopped)
    assert fewest_stopped(LENT, count) == len(stopped)


def test_idle_servers_go_first_and_then_those_that_only_lose_workers() -> None:
    lent = {"busy": {"a"}, "flexible": set(), "idle": set()}
    assert reclaim_greedily(lent, 3, shrinking={"flexible"}) == (["idle", "flexible", "busy"], ["a"])


def test_lyras_rule_is_not_optimal() -> None:
    """Two servers are wanted. By 1/servers, s1 (job a has 3) looks cheapest; stopping b alone would have given two."""
    lent = {"s1": {"a"}, "s2": {"a", "c"}, "s3": {"a", "d"}, "s4": {"b"}, "s5": {"b"}}
    assert reclaim_greedily(lent, 2) == (["s1", "s4"], ["a", "b"])
    assert fewest_stopped(lent, 2) == 1


@given(
    st.dictionaries(
        st.sampled_from("pqrstu"), st.frozensets(st.sampled_from("abcde"), max_size=3), min_size=1
    ),
    st.integers(1, 6),
)
def test_never_fewer_than_the_optimum_and_everybody_there_is_stopped(
    lent: dict[str, frozenset[str]], count: int
) -> None:
    servers, stopped = reclaim_greedily(lent, count)
    assert len(servers) == min(count, len(lent)) == len(set(servers))
    assert len(stopped) == len(set(stopped)) >= fewest_stopped(lent, count)
    assert set(stopped) == set().union(*(lent[server] for server in servers))


def items(job: str) -> list[tuple[int, float]]:
    """What each larger size saves where run time is inversely proportional to it."""
    time_s, least, most = JOBS[job]
    return [(more, time_s - time_s * least / (least + more)) for more in range(1, most - least + 1)]


@pytest.mark.parametrize(
    ("spare", "more", "saved"),
    [(1, [1, 0, 0], 33.333), (2, [1, 1, 0], 63.333), (3, [2, 1, 0], 80.0), (4, [2, 1, 1], 95.0)],
)
def test_spare_gpus_go_where_they_save_most(spare: int, more: list[int], saved: float) -> None:
    groups = [items(job) for job in JOBS]
    chosen = knapsack(groups, spare)
    assert chosen == more
    assert _value(groups, chosen) == pytest.approx(saved, abs=1e-3)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 9.0)), max_size=3, unique_by=lambda i: i[0]),
        max_size=4,
    ),
    st.integers(0, 8),
)
def test_the_knapsack_is_the_best_of_all_choices(
    groups: list[list[tuple[int, float]]], capacity: int
) -> None:
    chosen = knapsack(groups, capacity)
    assert sum(chosen) <= capacity
    every = product(*([(0, 0.0), *group] for group in groups))
    best = max(
        sum(value for _, value in choice)
        for choice in every
        if sum(weight for weight, _ in choice) <= capacity
    )
    assert _value(groups, chosen) == pytest.approx(best)


def _value(groups: list[list[tuple[int, float]]], chosen: list[int]) -> float:
    return sum(dict(group)[weight] for group, weight in zip(groups, chosen, strict=True) if weight)
