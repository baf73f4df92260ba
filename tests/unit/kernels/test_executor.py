"""The executor against exact fractions on random tasks, and against what holds whatever the order."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from executor_oracle import Oracle
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hemiola.kernels.executor import critical_path, execute
from hemiola.kernels.executor.tasks import Execution, Tasks, tasks_from_columns

COUNTS = st.integers(0, 3).map(float)
UNEVEN = st.integers(1, 9999).map(lambda k: k * 0.0137)  # seldom the same sum twice


@st.composite
def graphs(draw: st.DrawFn, times: st.SearchStrategy[float], most: int = 9, flows: bool = True) -> Tasks:
    """Tasks whose indices are in no particular order; zeros, ties and infinite bandwidths included."""
    n, resources = draw(st.integers(1, most)), draw(st.integers(0, 3))
    bandwidths = draw(st.lists(UNEVEN | st.just(math.inf), max_size=3)) if flows else []
    some = st.just(0.0) | times

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=n, max_size=n))

    rank = draw(st.permutations(range(n)))
    waits = [(i, k) for i in range(n) for k in range(n) if rank[k] < rank[i] and draw(st.integers(0, 3)) == 0]
    crosses = [(i, k) for i in range(n) for k in range(len(bandwidths)) if draw(st.booleans())]
    return tasks_from_columns(
        column(some),
        resource=column(st.integers(-1, resources - 1)),
        priority=column(st.integers(-2, 2)),
        release_s=column(st.just(0.0) | some),
        size_bytes=column(some) if flows else 0.0,
        rate_max_bytes_per_s=column(st.just(math.inf) | UNEVEN) if flows else math.inf,
        crosses=([i for i, _ in crosses], [k for _, k in crosses]),
        waits=([i for i, _ in waits], [k for _, k in waits]),
        resources=resources,
        in_order=draw(st.lists(st.booleans(), min_size=resources, max_size=resources)),
        link_bytes_per_s=bandwidths,
        sharing=draw(st.sampled_from(["fair", "priority"])),
    )


@st.composite
def crowds(draw: st.DrawFn) -> Tasks:
    """Transfers that mostly meet on a few links, and set each other going."""
    n, links, resources = draw(st.integers(3, 9)), draw(st.integers(1, 4)), draw(st.integers(0, 2))
    seed = draw(st.integers(0, 2**32 - 1))
    chance = np.random.default_rng(seed)
    rank = chance.permutation(n)
    before = (rank[None, :] < rank[:, None]) & (
        chance.random((n, n)) < draw(st.sampled_from([0.0, 0.1, 0.4]))
    )
    return tasks_from_columns(
        np.where(chance.random(n) < 0.5, 0.0, chance.random(n)),
        resource=chance.integers(-1, resources, n),
        priority=chance.integers(0, draw(st.integers(1, 3)), n),
        release_s=np.where(chance.random(n) < 0.6, 0.0, chance.random(n)),
        size_bytes=np.where(chance.random(n) < 0.2, 0.0, chance.integers(1, 100, n)),
        rate_max_bytes_per_s=np.where(chance.random(n) < 0.5, math.inf, chance.integers(1, 20, n)),
        crosses=np.nonzero(chance.random((n, links)) < draw(st.sampled_from([0.4, 0.7]))),
        waits=np.nonzero(before),
        resources=resources,
        in_order=chance.random(resources) < 0.3,
        link_bytes_per_s=chance.integers(5, 40, links),
        sharing=draw(st.sampled_from(["fair", "priority"])),
    )


@st.composite
def pauses(draw: st.DrawFn) -> Tasks:
    """Transfers of many priorities that come one by one, most of them paused most of the time."""
    n, links = draw(st.integers(4, 24)), draw(st.integers(1, 5))
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    waiter = np.flatnonzero(chance.random(n) < draw(st.sampled_from([0.0, 0.3])))
    waiter = waiter[waiter > 0]
    return tasks_from_columns(
        np.where(chance.random(n) < 0.7, 0.0, chance.random(n)),
        priority=chance.permutation(n) // draw(st.sampled_from([1, 1, 3])),
        release_s=np.where(chance.random(n) < 0.3, 0.0, 3 * chance.random(n)),
        size_bytes=chance.integers(1, 100, n) * 1.37,
        rate_max_bytes_per_s=np.where(chance.random(n) < 0.7, math.inf, chance.integers(1, 20, n)),
        crosses=np.nonzero(chance.random((n, links)) < draw(st.sampled_from([0.3, 0.6, 1.0]))),
        waits=(waiter, chance.integers(0, waiter)),
        link_bytes_per_s=chance.integers(5, 40, links),
        sharing="priority",
    )


ANY = crowds() | pauses() | graphs(UNEVEN) | graphs(COUNTS) | graphs(COUNTS, flows=False)


@given(graphs(COUNTS, most=14, flows=False))
@settings(max_examples=500)
def test_fixed_durations_are_executed_exactly(tasks: Tasks) -> None:
    done, oracle = execute(tasks), Oracle(tasks).run()
    assert done.start_s.tolist() == [float(state.start) for state in oracle.states]
    assert done.end_s.tolist() == done.first_byte_s.tolist() == [float(state.end) for state in oracle.states]


@given(pauses())
@settings(max_examples=150)
def test_flows_pause_each_other_as_exact_fractions_say(tasks: Tasks) -> None:
    as_the_oracle_says(tasks)


@given(crowds() | graphs(UNEVEN))
@settings(max_examples=800)
def test_flows_share_links_as_exact_fractions_say(tasks: Tasks) -> None:
    as_the_oracle_says(tasks)


def as_the_oracle_says(tasks: Tasks) -> None:
    oracle = Oracle(tasks).run()
    assume(not oracle.fragile)
    done = execute(tasks)
    for got, wanted in (
        (done.start_s, [float(state.start) for state in oracle.states]),
        (done.first_byte_s, [float(state.first_byte) for state in oracle.states]),
        (done.end_s, [float(state.end) for state in oracle.states]),
    ):
        assert got.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("sharing", ["fair", "priority"])
@pytest.mark.parametrize("seed", range(6))
def test_forty_flows_at_once_share_as_exact_fractions_say(seed: int, sharing: Any) -> None:
    chance, n, links = np.random.default_rng(seed), 40, 6
    crosses = np.nonzero(chance.random((n, links)) < (0.2, 0.5)[seed % 2])
    tasks = tasks_from_columns(
        chance.integers(0, 3, n) * 0.7,
        priority=chance.integers(0, 3, n),
        size_bytes=chance.integers(1, 500, n),
        rate_max_bytes_per_s=np.where(chance.random(n) < 0.4, chance.integers(1, 30, n) / 7, math.inf),
        crosses=crosses,
        link_bytes_per_s=chance.integers(10, 90, links),
        sharing=sharing,
    )
    oracle = Oracle(tasks).run()
    wanted = [float(state.end) for state in oracle.states]
    assert execute(tasks).end_s.tolist() == pytest.approx(wanted, rel=1e-9)


def dependencies(tasks: Tasks, i: int) -> list[int]:
    return tasks.dep[tasks.dep_start[i] : tasks.dep_start[i + 1]].tolist()


def path(tasks: Tasks, i: int) -> list[int]:
    return tasks.path[tasks.path_start[i] : tasks.path_start[i + 1]].tolist()


def ready_s(tasks: Tasks, done: Execution, i: int) -> float:
    return max([float(tasks.release_s[i]), *(float(done.end_s[k]) for k in dependencies(tasks, i))])


@given(ANY)
@settings(max_examples=300)
def test_nothing_starts_too_early_and_no_resource_idles_beside_a_queue(tasks: Tasks) -> None:
    done = execute(tasks)
    for i in range(len(tasks)):
        since = ready_s(tasks, done, i)
        assert done.start_s[i] >= since
        assert done.first_byte_s[i] >= done.start_s[i]
        assert done.end_s[i] >= done.first_byte_s[i]
        held = [
            (float(done.start_s[k]), float(done.end_s[k]))
            for k in range(len(tasks))
            if k != i and tasks.resource[k] == tasks.resource[i] >= 0
        ]
        assert all(end <= done.start_s[i] or start >= done.end_s[i] for start, end in held)
        for start, end in sorted(held):
            if start <= since < end <= done.start_s[i]:
                since = end
        assert done.start_s[i] == since


@given(ANY)
@settings(max_examples=300)
def test_a_resource_takes_the_first_of_its_queue(tasks: Tasks) -> None:
    done = execute(tasks)
    ready = [ready_s(tasks, done, i) for i in range(len(tasks))]

    def rank(i: int) -> tuple[int, float]:
        return (0 if tasks.in_order[tasks.resource[i]] else int(tasks.priority[i]), ready[i])

    for i in range(len(tasks)):
        for k in range(len(tasks)):
            if tasks.resource[i] == tasks.resource[k] >= 0 and ready[i] < done.start_s[k] < done.start_s[i]:
                assert rank(k) <= rank(i)


@given(ANY)
@settings(max_examples=300)
def test_no_link_carries_more_than_it_can_and_no_flow_beats_its_limit(tasks: Tasks) -> None:
    """Of any stretch of time: what began and ended within it had to fit into it."""
    done = execute(tasks)
    for i in range(len(tasks)):
        limit = min([tasks.rate_max_bytes_per_s[i], *tasks.link_bytes_per_s[path(tasks, i)]])
        took = done.end_s[i] - done.first_byte_s[i]
        assert took >= tasks.size_bytes[i] / limit * (1 - 1e-9) - 1e-12 * done.end_s[i]
    for link, bandwidth in enumerate(tasks.link_bytes_per_s):
        users = [i for i in range(len(tasks)) if tasks.size_bytes[i] > 0 and link in path(tasks, i)]
        for first in users:
            for last in users:
                since, until = done.first_byte_s[first], done.end_s[last]
                inside = [i for i in users if done.first_byte_s[i] >= since and done.end_s[i] <= until]
                moved = sum([tasks.size_bytes[i] for i in inside])
                assert not inside or moved / bandwidth <= (until - since) * (1 + 1e-9) + 1e-9


@given(ANY)
@settings(max_examples=300)
def test_the_end_is_not_before_the_bound_and_the_critical_path_leads_to_it(tasks: Tasks) -> None:
    done = execute(tasks)
    assert 0.0 <= done.bound_s <= done.makespan_s == done.end_s.max()
    critical = critical_path(tasks, done).tolist()
    assert done.end_s[critical[-1]] == done.makespan_s
    for before, after in pairwise(critical):
        assert done.start_s[after] == done.end_s[before]
        same = tasks.resource[before] == tasks.resource[after] >= 0
        assert same or before in dependencies(tasks, after)
    assert done.start_s[critical[0]] == tasks.release_s[critical[0]]


@given(graphs(COUNTS, flows=False))
def test_without_queues_the_bound_is_the_end(tasks: Tasks) -> None:
    alone = replace(tasks, resource=np.full(len(tasks), -1))
    done = execute(alone)
    assert done.bound_s == done.makespan_s


@given(st.lists(COUNTS, min_size=1), st.booleans())
def test_one_resource_without_dependencies_is_busy_to_the_end(durations: list[float], in_order: bool) -> None:
    tasks = tasks_from_columns(durations, resource=0, resources=1, in_order=in_order)
    assert execute(tasks).makespan_s == execute(tasks).bound_s == sum(durations)


@given(ANY, st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_indices_do_not_matter_where_priorities_differ(tasks: Tasks, chance: Any) -> None:
    n = len(tasks)
    tasks = replace(
        tasks, priority=np.array(chance.sample(range(n), n)), in_order=np.zeros_like(tasks.in_order)
    )
    assume(not Oracle(tasks).run().fragile)
    order = np.array(chance.sample(range(n), n))  # the new place i holds the old task order[i]
    place = np.argsort(order)
    moved = tasks_from_columns(
        tasks.duration_s[order],
        resource=tasks.resource[order],
        priority=tasks.priority[order],
        release_s=tasks.release_s[order],
        size_bytes=tasks.size_bytes[order],
        rate_max_bytes_per_s=tasks.rate_max_bytes_per_s[order],
        crosses=(
            [i for i in range(n) for _ in path(tasks, order[i])],
            [k for i in range(n) for k in path(tasks, order[i])],
        ),
        waits=(
            [i for i in range(n) for _ in dependencies(tasks, order[i])],
            [place[k] for i in range(n) for k in dependencies(tasks, order[i])],
        ),
        resources=tasks.resources,
        in_order=tasks.in_order,
        link_bytes_per_s=tasks.link_bytes_per_s,
        sharing=tasks.sharing,
    )
    assert execute(moved).end_s[place].tolist() == pytest.approx(execute(tasks).end_s.tolist(), rel=1e-9)


@given(ANY)
def test_the_same_tasks_give_the_same_bytes(tasks: Tasks) -> None:
    first, second = execute(tasks), execute(tasks)
    for name in ("start_s", "first_byte_s", "end_s", "blocker"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    assert first.bound_s == second.bound_s
