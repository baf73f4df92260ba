"""Sia and Pollux: the published example, enumeration on small cases, and what they do with a cluster."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import check_run, cluster, job, profile, replay, times

from hemiola.core.decisions import EVERY_ABILITY, Configuration, Reallocate, Resize, parts
from hemiola.core.errors import PolicyError
from hemiola.core.goodput import GoodputModel, Noise
from hemiola.core.job import Job
from hemiola.core.result import Run
from hemiola.sched.optimise.allocation import Choices, allocate
from hemiola.sched.optimise.programs import Budget
from hemiola.sched.policies import policy_from_text
from hemiola.sched.policies.pollux import pollux_choices
from hemiola.sched.policies.sia import GpuChoice, restart_factor, sia_choices, sia_sizes
from hemiola.simulator.cluster import Costs
from hemiola.simulator.rules import Semantics
from hemiola.simulator.simulate import Recording, simulate

pytest.importorskip("highspy")

TABLE = ((1, 1.5, 1.5, 2.5, 3.5), (1.2, 2.1, 1, 1.9, 3.6))
COLUMNS = ((0, 1), (0, 2), (1, 1), (1, 2), (1, 4))
"""(type, GPUs) of Table 1: (1, A), (2, A), (1, B), (2, B), (4, B)."""
BUDGET = Budget(nodes=500, gap=0.0)


def table(rows: Any = TABLE) -> list[list[GpuChoice]]:
    return [[GpuChoice(*column, goodput) for column, goodput in zip(COLUMNS, row, strict=True)] for row in rows]  # fmt: skip


def chosen(rows: list[list[GpuChoice]], choices: Choices, capacities: list[float]) -> list[GpuChoice | None]:
    flat = [one for row in rows for one in row]
    found = allocate(choices, capacities, BUDGET)
    return [flat[choice] if choice >= 0 else None for choice in found.chosen]


def test_the_published_example() -> None:
    """Table 1 with 2 GPUs of type A, 4 of type B, p = 1: job 1 gets (4, B), job 2 (2, A), in sum 5.6."""
    rows = table()
    first, second = chosen(rows, sia_choices(rows, [1.0, 1.0], 1.0, 1.1, 0.0), [2, 4])
    assert first is not None and second is not None
    assert (first.kind, first.gpus, first.goodput) == (1, 4, 3.5)
    assert (second.kind, second.gpus, second.goodput) == (0, 2, 2.1)


def brute(choices: Choices, capacities: list[float]) -> float:
    """The least cost over all ways to choose."""
    jobs = len(choices.without)
    options = [[-1, *np.flatnonzero(choices.job == job).tolist()] for job in range(jobs)]
    best = np.inf
    for combination in itertools.product(*options):
        taken = [choice for choice in combination if choice >= 0]
        used = np.bincount(choices.kind[taken], choices.gpus[taken], minlength=len(capacities))
        if np.all(used <= capacities):
            nothing = sum(choices.without[job] for job, choice in enumerate(combination) if choice < 0)
            best = min(best, nothing + choices.cost[taken].sum())
    return float(best)


goodputs = st.lists(st.floats(0.1, 10), min_size=len(COLUMNS), max_size=len(COLUMNS))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(goodputs, st.integers(-1, 4), st.floats(0, 1)), min_size=1, max_size=4),
    st.sampled_from([[2, 4], [1, 1], [0, 3], [8, 8]]),
    st.sampled_from([-0.5, -1.0, 1.0]),
)
def test_the_program_is_what_enumeration_finds(jobs: Any, capacities: list[float], fairness: float) -> None:
    rows = [
        [GpuChoice(*column, g, current=at == current) for at, (column, g) in enumerate(zip(COLUMNS, row, strict=True))]
        for row, current, _ in jobs
    ]  # fmt: skip
    factors = [factor if current >= 0 else 1.0 for _, current, factor in jobs]
    sia = sia_choices(rows, factors, fairness, 1.1, 0.01)
    assert allocate(sia, capacities, BUDGET).cost == pytest.approx(brute(sia, capacities), abs=1e-6)
    if fairness < 0:
        pollux = pollux_choices(rows, [row[0].goodput for row in rows], factors, fairness)
        found = allocate(pollux, capacities, BUDGET)
        assert found.cost == pytest.approx(brute(pollux, capacities), rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(goodputs, st.floats(0, 1), st.integers(0, 4))
def test_nobody_is_stopped_rather_than_moved(row: list[float], factor: float, current: int) -> None:
    """The published program may: its move costs up to 200, its stop 1.1. Here whoever cannot stay moves, where it can."""
    rows = [[GpuChoice(*column, g, current=at == current) for at, (column, g) in enumerate(zip(COLUMNS, row, strict=True))]]  # fmt: skip
    gone = [0 if COLUMNS[current][0] == kind else 4 for kind in (0, 1)]
    if max(factor, 1e-3) ** -0.5 * 1.1 < 150:
        assert chosen(rows, sia_choices(rows, [factor], -0.5, 1.1, 0.01), gone)[0] is not None


def test_what_a_restart_leaves() -> None:
    assert restart_factor(1000, 2, 100) == pytest.approx(800 / 1100)
    assert restart_factor(0, 0, 0) == 1.0
    assert restart_factor(10, 5, 100) == 0.0
    assert sia_sizes(range(1, 40), 8) == [1, 2, 4, 8, 16, 24, 32]


def test_a_budget_that_is_used_up_is_in_the_reason() -> None:
    """Costs that make the linear program fractional, and no node to go on with."""
    chance = np.random.default_rng(1)
    jobs, sizes = 30, (3, 5, 7)
    choices = Choices(
        np.repeat(np.arange(jobs), len(sizes)), np.tile(sizes, jobs).astype(float), np.zeros(jobs * len(sizes), int),
        1 - chance.random(jobs * len(sizes)) * np.tile(sizes, jobs), np.ones(jobs),
    )  # fmt: skip
    found = allocate(choices, [61], Budget(nodes=0, gap=0.0))
    best = allocate(choices, [61], Budget(nodes=10_000, gap=0.0))
    assert not found.integral
    assert best.cost <= found.cost + 1e-9
    taken = [choice for choice in found.chosen if choice >= 0]
    assert choices.gpus[taken].sum() <= 61
    if found.cost > best.cost + 1e-9:
        assert "budget used up" in found.word


# ---- in a cluster

MODEL = GoodputModel(
    step_s=(0.02, 0.004), host_sync_s=(0.01, 0.001), network_sync_s=(0.05, 0.002), overlap=1.5,
    first_batch=64, largest_batch=2048, largest_on_gpu=256, noise=(Noise(0.0, 200.0), Noise(0.6, 1500.0)),
)  # fmt: skip
COSTS = Costs(checkpoint_s=5.0, restore_s=25.0)


def trained(name: str, submit_s: float, gpus: int, duration_s: float) -> Job:
    model = profile(0.3, 0.0, goodput=MODEL, checkpoint_s=5.0, restore_s=25.0)
    return job(name, submit_s, gpus, duration_s, profile=model, gpus_min=1, gpus_max=8)


def sizes(run: Run, name: str) -> list[int]:
    changes = [change for entry in run.decisions for change in parts(entry.decision)]
    return [c.placement.gpus for c in changes if getattr(c, "job_id", "") == name and hasattr(c, "placement")]


@pytest.mark.parametrize("policy", ["sia", "pollux"])
def test_a_lone_job_grows_and_is_told_its_batch(policy: str) -> None:
    jobs = [trained("a", 0.0, 1, 4000.0)]
    run = replay(jobs, cluster([4, 4]), policy, costs=COSTS)
    check_run(run, jobs, cluster([4, 4]))
    assert sizes(run, "a")[-1] > 1
    assert (times(run)["a"][1] or 1e9) < 3000.0
    last = [e.decision for e in run.decisions if isinstance(e.decision, Resize)][-1]
    assert isinstance(last.configuration, Configuration)
    assert last.configuration.batch > 64


@pytest.mark.parametrize("policy", ["sia", "pollux", "afs"])
@pytest.mark.parametrize("lacks", [{Configuration}, {Reallocate}, {Configuration, Reallocate}, {Resize}])
def test_an_engine_that_can_less_runs_them_all_the_same(policy: str, lacks: set[type]) -> None:
    """What it refuses once is asked of it another way."""
    jobs = [trained("a", 0.0, 8, 3000.0), trained("b", 100.0, 4, 900.0), trained("c", 130.0, 2, 500.0)]
    rules = Semantics(costs=COSTS, supports=EVERY_ABILITY - lacks)
    run = simulate(
        jobs, cluster([4, 4]), [policy], semantics=rules, recording=Recording(decisions=True)
    ).runs[0]
    assert {record.status for record in run.records} == {"finished"}
    assert run.decisions_refused <= 6


@pytest.mark.parametrize("policy", ["sia", "pollux"])
def test_nothing_changes_while_nothing_happens(policy: str) -> None:
    """Two alike jobs that share the cluster are given their halves once."""
    jobs = [trained("a", 0.0, 4, 3000.0), trained("b", 0.0, 4, 3000.0)]
    run = replay(jobs, cluster([4, 4]), policy, costs=COSTS)
    changed = [e for e in run.decisions if not isinstance(e.decision, type(None)) and parts(e.decision)]
    moving = [e.time_s for e in changed if isinstance(e.decision, Resize | Reallocate)]
    assert len(moving) <= 2, moving


@pytest.mark.parametrize("policy", ["sia", "pollux"])
def test_a_waiting_job_is_let_in_beside_one_that_has_all(policy: str) -> None:
    jobs = [trained("a", 0.0, 8, 5000.0), trained("b", 100.0, 4, 300.0)]
    run = replay(jobs, cluster([4, 4]), policy, costs=COSTS)
    began_s = times(run)["b"][0]
    assert began_s is not None and began_s <= 180.0


@pytest.mark.parametrize("policy", ["sia", "pollux"])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_every_run_of_jobs_with_models_adds_up(policy: str, data: Any) -> None:
    topology = cluster([4, 2], [4], types=["A", "B", "A"], nic=1e3)
    draw = data.draw
    jobs = [
        trained(f"j{n}", float(n * draw(st.integers(0, 90))), draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([30.0, 400.0])))
        for n in range(draw(st.integers(1, 6)))
    ]  # fmt: skip
    jobs.sort(key=lambda one: one.submit_s)
    run = replay(jobs, topology, policy, costs=COSTS)
    check_run(run, jobs, topology)
    assert {record.status for record in run.records} == {"finished"}
    assert run.decisions_refused == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sia:round_s=0", "round_s is 0"), ("sia:fairness=0", "but not 0"), ("sia:unserved=1", "more than 1"),
        ("sia:nodes=-1", "nodes"), ("pollux:fairness=1", "below 0"), ("pollux:round_s=-1", "above 0"),
    ],
)  # fmt: skip
def test_bad_parameters_are_refused(text: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        policy_from_text(text)
