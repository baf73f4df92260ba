"""Crux: its examples, a pair played tick by tick, compression against brute force, and what it buys."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import check_run, cluster, job, profile, replay, steps, times

from hemiola.core.decisions import Pace
from hemiola.core.errors import PolicyError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.result import Run
from hemiola.sched.policies.crux import Crux, Rhythm, compress, correction, cut_weight, sent_s
from hemiola.sched.policies.fifo import FifoBackfill

REFERENCE, OTHER = Rhythm(compute_s=2.0, send_s=2.0), Rhythm(compute_s=1.0, send_s=1.0)
PAIRS = [0b10, 0b01, 0b1000, 0b0100]
"""Jobs 0 and 1 meet on one link, 2 and 3 on another."""


def test_known_answer_of_the_reference_pair() -> None:
    """10 GPUs each compute for as long as they send: 9 of 24 s are 37.5 %, 10 of 24 s 41.67 %."""
    assert sent_s(REFERENCE, OTHER, 12.0) == (6.0, 3.0)
    assert sent_s(OTHER, REFERENCE, 12.0) == (6.0, 4.0)
    assert correction(REFERENCE, OTHER, 12.0) == 1.5
    assert correction(REFERENCE, OTHER) == pytest.approx(1.5, rel=0.05)
    assert correction(REFERENCE, REFERENCE) == 1.0


def ticked(leader: Rhythm, follower: Rhythm, horizon: int) -> tuple[float, float]:
    """The same by the tick of a second: whoever may send does, the leader first."""
    left = [[one.send_s, one.hidden_s, one.compute_s - one.hidden_s] for one in (leader, follower)]
    sent = [0.0, 0.0]
    for _ in range(horizon):
        busy = False
        for n, one in enumerate((leader, follower)):
            sending, hiding = left[n][0] > 0, left[n][1] > 0
            if sending and not busy:
                busy = True
                left[n][0] -= 1
                sent[n] += 1
            if hiding:
                left[n][1] -= 1
            if not sending and not hiding:
                left[n][2] -= 1
            if not any(left[n]):
                left[n] = [one.send_s, one.hidden_s, one.compute_s - one.hidden_s]
    return sent[0], sent[1]


@st.composite
def rhythms(draw: st.DrawFn) -> Rhythm:
    compute_s = draw(st.integers(1, 6))
    return Rhythm(float(compute_s), float(draw(st.integers(1, 6))), float(draw(st.integers(0, compute_s))))


@given(rhythms(), rhythms(), st.integers(1, 80))
def test_a_pair_sends_as_it_does_tick_by_tick(leader: Rhythm, follower: Rhythm, horizon: int) -> None:
    assert sent_s(leader, follower, float(horizon)) == pytest.approx(ticked(leader, follower, horizon))


def test_corrections_are_bounded_and_one_where_nobody_gains() -> None:
    always = Rhythm(1.0, 5.0, 1.0)  # sends without a pause: whoever follows it starves
    assert 1 / 100 <= correction(always, OTHER) <= 100
    assert correction(Rhythm(9.0, 1e-12), Rhythm(9.0, 1e-12)) == 1.0


def test_known_answer_of_compression() -> None:
    levels = compress([4, 3, 2, 1], [4, 3, 2, 1], PAIRS, levels=2)
    assert levels == [0, 1, 0, 1]
    assert cut_weight(levels, [4, 3, 2, 1], [4, 3, 2, 1], PAIRS) == 6
    assert cut_weight([0, 0, 1, 1], [4, 3, 2, 1], [4, 3, 2, 1], PAIRS) == 0


@st.composite
def meeting_jobs(draw: st.DrawFn) -> tuple[list[float], list[float], list[int], int]:
    count = draw(st.integers(1, 6))
    priorities = [float(draw(st.integers(1, 9))) for _ in range(count)]
    intensities = [float(draw(st.integers(1, 9))) for _ in range(count)]
    met = [0] * count
    for i in range(count):
        for j in range(i):
            if draw(st.booleans()):
                met[i] |= 1 << j
                met[j] |= 1 << i
    return priorities, intensities, met, draw(st.integers(1, 3))


def keeps_order(levels: tuple[int, ...] | list[int], priorities: list[float], met: list[int]) -> bool:
    return all(
        levels[i] <= levels[j]
        for i in range(len(levels))
        for j in range(len(levels))
        if met[i] >> j & 1 and (-priorities[i], i) < (-priorities[j], j)
    )


@settings(max_examples=40)
@given(meeting_jobs())
def test_compression_keeps_the_order_and_comes_near_the_best_cut(case: tuple) -> None:  # type: ignore[type-arg]
    """Not all topological orders are breadth first, so the best of all assignments may escape it."""
    priorities, intensities, met, count = case
    levels = compress(priorities, intensities, met, count, orders=10)
    assert set(levels) <= set(range(count))
    assert keeps_order(levels, priorities, met)
    best = max(
        cut_weight(list(each), priorities, intensities, met)
        for each in product(range(count), repeat=len(met))
        if keeps_order(each, priorities, met)
    )
    assert cut_weight(levels, priorities, intensities, met) <= best
    many = compress(priorities, intensities, met, count, orders=50)
    assert cut_weight(many, priorities, intensities, met) >= 0.8 * best
    assert compress(priorities, intensities, met, count) == compress(priorities, intensities, met, count)


def weights(run: Run, time_s: float) -> dict[str, float]:
    return {
        entry.decision.job_id: entry.decision.weight
        for entry in run.decisions
        if isinstance(entry.decision, Pace) and entry.time_s == time_s
    }


THREE_HOSTS = cluster([2, 2, 2])
RIVALS = [
    job("talker", 0, 3, 100, profile=profile(0.5, 2.0)),
    job("thinker", 0, 3, 100, profile=profile(2.0, 0.5)),
]
"""Jobs of three GPUs on three hosts of two: they meet in the middle one's NIC."""


def test_the_more_intense_job_goes_first() -> None:
    """Only the weight above the lowest level is asked for; it is neutral again when the rival is gone."""
    run = replay(RIVALS, THREE_HOSTS, Crux(ratio=8))
    check_run(run, RIVALS, THREE_HOSTS)
    assert weights(run, 0) == {"thinker": 8.0}
    fair = replay(RIVALS, THREE_HOSTS, FifoBackfill())
    assert times(run)["thinker"][1] < times(fair)["thinker"][1]  # type: ignore[operator]


def test_one_level_is_the_host_scheduler_alone() -> None:
    run = replay(RIVALS, THREE_HOSTS, Crux(levels=1))
    assert not [entry for entry in run.decisions if isinstance(entry.decision, Pace)]
    assert times(run) == times(replay(RIVALS, THREE_HOSTS, FifoBackfill()))


def test_jobs_that_never_meet_are_left_alone() -> None:
    jobs = [job("a", 0, 2, 9, profile=profile()), job("b", 0, 2, 9, profile=profile(2.0, 0.1))]
    run = replay(jobs, cluster([1, 1, 1, 1]), Crux())
    assert not [entry for entry in run.decisions if isinstance(entry.decision, Pace)]


def test_jobs_over_links_without_a_limit_are_left_alone() -> None:
    run = replay([job("a", 0, 8, 10, profile=profile())], cluster([4, 4], nic=math.inf), Crux())
    assert times(run) == {"a": (0, 10)}
    assert not [entry for entry in run.decisions if isinstance(entry.decision, Pace)]


def test_more_jobs_than_levels_are_compressed() -> None:
    """Five jobs of two GPUs on racks of one-GPU hosts all meet in the uplinks."""
    topology = cluster([1] * 5, [1] * 5)
    jobs = [job(f"j{n}", 0, 2, 50, profile=profile(1.0, 0.1 * (n + 1))) for n in range(5)]
    run = replay(jobs, topology, Crux(levels=2, ratio=4))
    assert set(weights(run, 0).values()) <= {1.0, 4.0}


@pytest.mark.parametrize("order", ["fifo", "sjf", "srsf"])
def test_jobs_are_ordered_by_the_host_scheduler(order: str) -> None:
    jobs = [job("a", 0, 2, 10), job("b", 1, 2, 9), job("c", 2, 2, 5)]
    run = replay(jobs, cluster([2]), Crux(order=order))
    assert [name for _, _, name in steps(run)] == (["a", "b", "c"] if order == "fifo" else ["a", "c", "b"])


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_every_job_ends_and_a_replay_repeats(seed: int) -> None:
    chance = np.random.Generator(np.random.PCG64(seed))
    models = [
        profile(1.0, 1.0, name="a"),
        profile(0.5, 0.1, name="b"),
        profile(0.3, 2.0, name="c", overlap=0.5),
    ]
    jobs = [
        job(f"j{n}", float(at), int(chance.integers(1, 7)), float(chance.integers(0, 60)),
            profile=models[chance.integers(0, 3)])
        for n, at in enumerate(sorted(chance.integers(0, 60, 12)))
    ]  # fmt: skip
    topology = cluster([1, 1, 1, 2], [2, 2])
    failures = [NodeLost(30.0, 0, {}), NodeBack(50.0, 0)]
    run = replay(jobs, topology, Crux(levels=2), failures=failures)
    check_run(run, jobs, topology)
    assert all(record.finish_s is not None for record in run.records)
    assert steps(run) == steps(replay(jobs, topology, Crux(levels=2), failures=failures))


@pytest.mark.parametrize(
    "wrong",
    [{"order": "lifo"}, {"levels": 0}, {"ratio": 0.5}, {"ratio": math.inf}, {"ratio": 1e300}, {"orders": 0}],
)
def test_parameters_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(PolicyError, match=next(iter(wrong))):
        Crux(**wrong)  # type: ignore[arg-type]
