"""The loop between a driver and a policy: what is asked when, and policies that would never end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from replays import CheckedMachine, check_run, cluster, job, replay, start, times

from hemiola.core.decisions import Decision, Pace, Start, Stop, WakeAt
from hemiola.core.errors import HemiolaError, PolicyError
from hemiola.core.events import Arrived, Event, Finished, Measured, Requeued
from hemiola.sched.loop import Driver, run_loop
from hemiola.sched.placement import TierAware, find
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

TOO_OFTEN = 1_000_000


class Tape(Driver):
    """Plays events back and keeps what it was told to do."""

    def __init__(self, *instants: list[Event]) -> None:
        self.instants = instants
        self.told: list[Decision] = []

    def events(self) -> Iterator[list[Event]]:
        yield from self.instants

    def execute(self, decision: Decision) -> None:
        self.told.append(decision)

    def render(self, decision: Decision) -> str:
        return repr(decision)


class Says(Policy):
    """Yields what a function of the view yields; counts how often it is asked."""

    name = "says"

    def __init__(self, speak: Any) -> None:
        self.speak = speak
        self.asked: list[float] = []

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        self.asked.append(view.now)
        assert len(self.asked) < TOO_OFTEN, "the loop has no end"
        return self.speak(view)  # type: ignore[no-any-return]


def loop(driver: Tape, policy: Policy, note: Any = None) -> tuple[tuple[int, int], CheckedMachine]:
    machine = CheckedMachine(ClusterView(cluster([4]), estimates=None))  # type: ignore[arg-type]
    return run_loop(driver, machine, policy, note), machine


def test_accepted_decisions_reach_the_driver_and_refused_ones_do_not() -> None:
    good, bad = start("a", (0, 0b11)), start("nobody", (0, 1))
    wake = WakeAt(9.0, "", "later")
    driver = Tape([Arrived(0.0, job("a", 0, 2, 10))])
    notes: list[tuple[Decision, str]] = []
    counted, machine = loop(driver, Says(lambda _: [bad, good, wake]), lambda d, why: notes.append((d, why)))
    assert driver.told == [good, wake]
    assert counted == (2, 1), "a timer is no decision about a job"
    assert [d for d, _ in notes] == [bad, bad, good, wake]
    assert [bool(why) for _, why in notes] == [False, True, False, False]
    assert "nobody" in notes[1][1]
    assert [s.id for s in machine.view.running.values()] == ["a"]


def test_a_timer_that_is_refused_counts_among_decisions() -> None:
    policy = Says(lambda view: [WakeAt(view.now - 1, "", "too late")])
    counted, _ = loop(Tape([Arrived(0.0, job("a", 0, 2, 10))]), policy)
    assert counted == (1, 1)


def test_a_view_is_current_after_each_decision() -> None:
    seen = []

    def speak(view: ClusterView) -> Iterator[Decision]:
        for name in "ab":
            seen.append(view.free)
            yield start(name, (0, 1 if name == "a" else 2))
        seen.append(view.free)

    loop(Tape([Arrived(0.0, job(n, 0, 1, 9)) for n in "ab"]), Says(speak))
    assert seen == [4, 3, 2]


def test_a_change_of_speed_alone_asks_for_no_decision() -> None:
    def speak(view: ClusterView) -> list[Decision]:
        return [start("a", (0, 1))] if view.waiting else []

    policy = Says(speak)
    driver = Tape([Arrived(0.0, job("a", 0, 1, 9))], [Measured(1.0, "a", 0.5)], [Finished(3.0, "a")])
    loop(driver, policy)
    assert policy.asked == [0.0, 3.0]


def test_a_decision_that_is_due_is_asked_for_whatever_comes_last_in_its_instant() -> None:
    def speak(view: ClusterView) -> list[Decision]:
        return [start(name, (0, 1 << index)) for index, name in enumerate(view.waiting)]

    policy = Says(speak)
    arrived = [Arrived(0.0, job(name, 0, 1, 9)) for name in "ab"]
    loop(Tape(arrived, [Requeued(1.0, "a", "it is to wait"), Measured(1.0, "b", 0.5)]), policy)
    assert policy.asked == [0.0, 1.0]


def nothing(view: ClusterView) -> list[Decision]:
    return []


def test_a_policy_may_decide_nothing() -> None:
    run = replay([job("a", 0, 4, 10)], cluster([4]), Says(nothing))
    check_run(run, [job("a", 0, 4, 10)], cluster([4]))
    assert times(run) == {"a": (None, None)}
    assert "4 GPUs" in run.records[0].why and run.records[0].status == "waiting"


def fill(view: ClusterView) -> Iterator[Decision]:
    for state in list(view.waiting.values()):
        placement = find(view.inventory, state, TierAware())
        if placement is not None:
            yield Start(state.id, placement, "it fits")


def wake_now(view: ClusterView) -> Iterator[Decision]:
    yield from fill(view)
    yield WakeAt(view.now, "", "again")


def wake_soon(view: ClusterView) -> Iterator[Decision]:
    yield WakeAt(view.now + 1.0, "", "again")


def refused_for_ever(view: ClusterView) -> Iterator[Decision]:
    while True:
        yield Stop("nobody", "")


def timers_for_ever(view: ClusterView) -> Iterator[Decision]:
    while True:
        yield WakeAt(view.now + 1.0, "", "again")


def back_and_forth(view: ClusterView) -> Iterator[Decision]:
    while view.jobs:
        yield start("a", (0, 0b1111))
        yield Stop("a", "")


def pace_for_ever(view: ClusterView) -> Iterator[Decision]:
    yield from fill(view)
    while view.running:
        yield Pace("a", 2.0, "")


@pytest.mark.parametrize(
    "speak", [wake_now, wake_soon, refused_for_ever, timers_for_ever, back_and_forth, pace_for_ever]
)
@pytest.mark.parametrize("more", [0, 1], ids=["alone", "with an arrival to come"])
def test_a_policy_that_never_ends_is_told_so(speak: Any, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hemiola.sched.loop.DECISIONS_PER_INSTANT", 2000, raising=False)
    monkeypatch.setattr("hemiola.simulator.cluster.IDLE_TIMERS", 2000, raising=False)
    jobs = [job("a", 0, 4, 10), job("b", 1000, 4, 10)][: 1 + more]
    with pytest.raises(PolicyError) as caught:
        replay(jobs, cluster([4]), Says(speak))
    assert caught.value.remedy


def test_the_patience_of_the_loop_ends_after_a_second_or_two() -> None:
    with pytest.raises(PolicyError, match="never ends"):
        replay([job("a", 0, 4, 10)], cluster([4]), Says(timers_for_ever))


def test_a_policy_that_wakes_up_often_but_gets_on_is_left_alone() -> None:
    """Some timers for this very instant, many for one later instant, and one a second for hours."""
    left = [50]

    def speak(view: ClusterView) -> Iterator[Decision]:
        yield from fill(view)
        if left[0]:
            left[0] -= 1
            yield WakeAt(view.now, "", "at once")
            yield WakeAt(7.0, "", "later")
        yield WakeAt(float(int(view.now) + 1), "", "every second")

    jobs = [job("a", 0, 4, 10), job("b", 2000, 4, 10)]
    assert times(replay(jobs, cluster([4]), Says(speak))) == {"a": (0, 10), "b": (2000, 2010)}


def test_jobs_of_no_length_may_be_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hemiola.sched.loop.INSTANTS_WITHOUT_TIME", 20)
    jobs = [job(str(i), 0, 1, 0) for i in range(50)]
    run = replay(jobs, cluster([1]), Says(fill))
    assert [record.finish_s for record in run.records] == [0.0] * 50


@pytest.mark.parametrize("odd", ["start", None, 3, ("Start", "a")])
def test_what_is_no_decision_is_an_error_of_the_policy(odd: Any) -> None:
    with pytest.raises(HemiolaError):
        replay([job("a", 0, 4, 10)], cluster([4]), Says(lambda _: [odd]))


def test_decisions_about_the_same_job_are_refused_after_the_first() -> None:
    def speak(view: ClusterView) -> Iterator[Decision]:
        if view.waiting:
            yield start("a", (0, 0b11))
            yield start("a", (0, 0b1100))

    run = replay([job("a", 0, 2, 10)], cluster([4]), Says(speak))
    assert [bool(d.refused) for d in run.decisions] == [False, True]
    assert (run.decisions_made, run.decisions_refused) == (2, 1)
    assert [d.free_gpus for d in run.decisions] == [4, 2]
    assert [d.waiting for d in run.decisions] == [1, 0]
