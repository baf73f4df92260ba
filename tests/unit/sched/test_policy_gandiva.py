"""Gandiva by hand: turns that end together, and moves that pay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import FREE, check_run, cluster, job, profile, replay, steps, times

from hemiola.core.decisions import Move
from hemiola.core.errors import PolicyError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.job import Job
from hemiola.sched.policies.gandiva import ByTurn, Gandiva, worth_moving
from hemiola.simulator.cluster import Costs

TWO = cluster([2])


def test_two_jobs_take_turns() -> None:
    jobs = [job("a", 0, 2, 25), job("b", 3, 2, 12)]
    run = replay(jobs, TWO, Gandiva(slice_s=10))
    check_run(run, jobs, TWO)
    assert steps(run) == [
        (0, "Start", "a"),
        (10, "Stop", "a"), (10, "Start", "b"),
        (20, "Stop", "b"), (20, "Start", "a"),
        (30, "Stop", "a"), (30, "Start", "b"),
        (32, "Start", "a"),
    ]  # fmt: skip
    assert times(run) == {"a": (0, 37), "b": (10, 32)}


def test_the_longest_waiting_goes_next() -> None:
    jobs = [job("a", 0, 2, 20), job("b", 1, 2, 20), job("c", 2, 2, 20)]
    run = replay(jobs, TWO, Gandiva(slice_s=10))
    assert [name for _, what, name in steps(run) if what == "Start"] == ["a", "b", "c", "a", "b", "c"]
    assert times(run) == {"a": (0, 40), "b": (10, 50), "c": (20, 60)}


def test_whose_turn_is_over_runs_on_until_somebody_waits() -> None:
    """Nobody wants a's GPUs at 10 s; b takes them at once at 13 s."""
    jobs = [job("a", 0, 2, 30), job("b", 13, 2, 4)]
    assert times(replay(jobs, TWO, Gandiva(slice_s=10))) == {"a": (0, 34), "b": (13, 17)}


@pytest.mark.parametrize(
    ("since_s", "ends_s"), [(0, 10), (4, 10), (5, 10), (6, 20), (9.9, 20), (10, 20), (1e6, 1e6 + 10)]
)
def test_a_turn_lasts_from_half_a_slice_to_one_and_a_half(since_s: float, ends_s: float) -> None:
    assert ByTurn(10.0).turn_ends_s(since_s) == ends_s


def test_a_gang_gets_its_turn_among_many_small_jobs() -> None:
    """Turns end together, so that at 20 s the gang of 4 finds all four GPUs, though more small ones wait."""
    topology = cluster([2, 2])
    jobs = [*(job(f"s{n}", 0, 1, 100) for n in range(4)), job("gang", 1, 4, 10)]
    jobs += [job(f"t{n}", 2, 1, 100) for n in range(4)]
    run = replay(jobs, topology, Gandiva(slice_s=20))
    check_run(run, jobs, topology)
    assert times(run)["gang"] == (20, 30)


def test_a_switch_costs_what_it_costs() -> None:
    """b waits for a's state to be saved and ends at 20 s, just as its turn does; a then loads for 3 s."""
    jobs = [job("a", 0, 2, 12), job("b", 3, 2, 9)]
    run = replay(jobs, TWO, Gandiva(slice_s=10), costs=Costs(checkpoint_s=1.0, restore_s=3.0))
    check_run(run, jobs, TWO)
    assert times(run) == {"a": (0, 25), "b": (10, 20)}


def test_moving_pays_if_it_gains_more_than_a_switch() -> None:
    assert worth_moving(61.0, 2.0, 1.0, 30.0)
    assert not worth_moving(60.0, 2.0, 1.0, 30.0)
    assert not worth_moving(1e9, 2.0, 2.0, 0.0)


def test_small_jobs_sit_together_so_that_a_host_stays_whole() -> None:
    topology = cluster([4, 4])
    jobs = [*(job(f"s{n}", 0, 1, 50) for n in range(4)), job("big", 1, 4, 10)]
    assert times(replay(jobs, topology, Gandiva()))["big"] == (1, 11)


def spread(**costs: float) -> list[Job]:
    """On two hosts of two GPUs "wide" must spread over both at half its speed, until "left" ends at 40 s."""
    return [
        job("left", 0, 1, 40), job("filler", 0, 1, 5), job("right", 0, 1, 300),
        job("wide", 6, 2, 100, profile=profile(1.0, 1.0, **costs)),
    ]  # fmt: skip


def test_a_spread_job_moves_together_when_room_appears() -> None:
    """By 40 s it has done 17 of its 100 s; in one host the rest takes 83 s."""
    topology = cluster([2, 2])
    run = replay(spread(), topology, Gandiva())
    check_run(run, spread(), topology)
    assert steps(run)[-1] == (40, "Move", "wide")
    assert times(run)["wide"] == (6, 123)
    (move,) = [entry.decision for entry in run.decisions if isinstance(entry.decision, Move)]
    assert move.reason == "within one host its iterations take 33% of the time"


def test_it_stays_where_moving_costs_more_than_it_gains() -> None:
    """34 s on GPUs, of which two thirds would be gained: less than 30 s to save and load."""
    run = replay(spread(checkpoint_s=10.0, restore_s=20.0), cluster([2, 2]), Gandiva(), costs=Costs())
    assert times(run)["wide"] == (6, 206)


def test_no_moves_if_told_so() -> None:
    assert times(replay(spread(), cluster([2, 2]), Gandiva(migrate=False)))["wide"] == (6, 206)


@pytest.mark.parametrize("slow", ["B", "nvidia_b"])
def test_it_does_not_move_to_slower_gpus(slow: str) -> None:
    """Both GPUs of the third host are free; it would compute there at a tenth of its speed."""
    topology = cluster([2, 2], [2], types=["A", "A", slow])
    model = profile(1.0, 1.0, gpu_speed={"A": 1.0, "B": 0.1})
    jobs = [
        job("left", 0, 1, 300, gpu_type="A"), job("filler", 0, 1, 5, gpu_type="A"),
        job("right", 0, 1, 300, gpu_type="A"), job("wide", 6, 2, 100, profile=model),
        job("event", 40, 2, 5, gpu_type=slow),
    ]  # fmt: skip
    run = replay(jobs, topology, Gandiva())
    assert not any(isinstance(entry.decision, Move) for entry in run.decisions)
    assert times(run)["wide"] == (6, 206)


@pytest.mark.parametrize("slice_s", [33.3, 600.1, 0.7])
def test_turns_go_on_where_multiples_of_the_slice_are_rounded(slice_s: float) -> None:
    jobs = [job("a", 0, 2, 80 * slice_s), job("b", 0, 2, 80 * slice_s)]
    run = replay(jobs, TWO, Gandiva(slice_s=slice_s))
    stops = [now for now, what, _ in steps(run) if what == "Stop"]
    assert stops[:150] == [n * slice_s for n in range(1, 151)]


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_every_job_ends_and_a_replay_repeats(seed: int) -> None:
    chance = np.random.Generator(np.random.PCG64(seed))
    model = profile(1.0, 1.0, checkpoint_s=0.5, restore_s=1.0)
    jobs = [
        job(f"j{n}", float(at), int(chance.integers(1, 7)), float(chance.integers(0, 60)),
            profile=model if chance.random() < 0.7 else None)
        for n, at in enumerate(sorted(chance.integers(0, 60, 12)))
    ]  # fmt: skip
    topology = cluster([3, 2], [2, 2])
    failures = [NodeLost(30.0, 0, {}), NodeBack(50.0, 0)]
    for costs in (FREE, Costs(checkpoint_s=1.0, restore_s=2.0)):
        run = replay(jobs, topology, Gandiva(slice_s=9.0), costs=costs, failures=failures)
        check_run(run, jobs, topology)
        assert all(record.finish_s is not None for record in run.records)
        assert steps(run) == steps(
            replay(jobs, topology, Gandiva(slice_s=9.0), costs=costs, failures=failures)
        )


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), float("nan")])
def test_a_slice_that_cannot_be(wrong: float) -> None:
    with pytest.raises(PolicyError, match="slice_s"):
        Gandiva(slice_s=wrong)
