"""The queue against a plain sorted list, under any history of arrivals, starts, stops and timers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from replays import cluster, job

from hemiola.core.decisions import Placement, Start, Stop
from hemiola.core.events import Arrived, Finished, Measured, Timer
from hemiola.sched.job_state import RUNNING, WAITING, JobState
from hemiola.sched.machine import StateMachine
from hemiola.sched.policies.fifo import ByArrival
from hemiola.sched.policies.shortest import ByRemaining, ByRemainingService
from hemiola.sched.policies.tiresias import ByAttainedService
from hemiola.sched.queues import Order, Queue
from hemiola.sched.view import ClusterView

ORDERS: tuple[Order, ...] = (
    ByArrival(),
    ByRemaining(),
    ByRemainingService(),
    ByAttainedService((40.0, 200.0), 2.0),
)


class Naive:
    """The same queue, sorted afresh at every question; it only remembers keys and blocked groups."""

    def __init__(self, order: Order, view: ClusterView) -> None:
        self.order, self.view = order, view
        self.keys: dict[str, Any] = {}
        self.blocked: set[Any] = set()
        self.releases = -1

    def note(self, state: JobState) -> None:
        """A job got a new key."""
        if state.status == WAITING:
            self.keys[state.id] = self.order.waiting(state, self.view.now)

    def waiting(self) -> list[JobState]:
        states = [s for s in self.view.jobs.values() if s.status == WAITING]
        return sorted(states, key=lambda s: (self.keys[s.id], s.index))

    def worst_first(self) -> list[JobState]:
        states = [s for s in self.view.jobs.values() if s.status == RUNNING]
        now = self.view.now
        return sorted(states, key=lambda s: (self.order.running(s, now), s.index), reverse=True)


@settings(max_examples=80)
@given(st.data(), st.sampled_from(ORDERS))
def test_queue_against_a_sorted_list(data: Any, order: Order) -> None:
    view = ClusterView(cluster([4] * 8), estimates=None)  # type: ignore[arg-type]
    machine = StateMachine(view)
    queue, naive = view.queue(order), Naive(order, view)
    now = 0.0
    for number in range(data.draw(st.integers(1, 40))):
        now += data.draw(st.sampled_from([0.0, 0.0, 1.0, 7.0]))
        _step(data, machine, naive, now, number)
        if isinstance(order, ByAttainedService):
            for state in list(view.running.values()):
                machine.apply(Timer(now, state.id))  # as its policies ask for where it changes by itself
        machine.validate()
        assert queue.waiting() == naive.waiting()
        assert queue.worst(now) is next(iter(naive.worst_first()), None)
        assert [(order.running(s, now), s.index) for s in queue.worst_first(now)] == [
            (order.running(s, now), s.index) for s in naive.worst_first()
        ]
        _check_groups(queue, naive)


def _step(data: Any, machine: StateMachine, naive: Naive, now: float, number: int) -> None:
    view = machine.view
    waiting, running = list(view.waiting.values()), list(view.running.values())
    action = data.draw(st.sampled_from(["arrive", "arrive", "start", "stop", "finish", "measure", "timer"]))
    if action == "arrive" or not (waiting or running):
        wanted = job(f"j{number}", now, data.draw(st.integers(1, 4)), data.draw(st.integers(1, 50)))
        machine.apply(Arrived(now, wanted))
        naive.note(view.job(wanted.id))
        return
    # an event of no consequence moves the clock before a decision does
    machine.apply(Timer(now, ""))
    if action == "start" and waiting:
        state = data.draw(st.sampled_from(waiting))
        host = view.inventory.counts.index(4) if 4 in view.inventory.counts else -1
        if host >= 0:
            assert not machine.execute(Start(state.id, Placement((host,), ((1 << state.gpus) - 1,)), ""))
    elif action == "stop" and running:
        state = data.draw(st.sampled_from(running))
        assert not machine.execute(Stop(state.id, ""))
        naive.note(state)
    elif action == "finish" and running:
        machine.apply(Finished(now, data.draw(st.sampled_from(running)).id))
    elif action == "measure" and running:
        speed = data.draw(st.sampled_from([0.25, 0.5, 1.0]))
        resume_s = data.draw(st.sampled_from([None, now, now + 5.0]))
        machine.apply(Measured(now, data.draw(st.sampled_from(running)).id, speed, resume_s))
    elif action == "timer":
        state = data.draw(st.sampled_from(waiting + running))
        machine.apply(Timer(now, state.id))
        naive.note(state)


def _check_groups(queue: Queue, naive: Naive) -> None:
    """`next` is the first of those whose group is not blocked; a blocked group is passed over as a whole."""
    left, passed = naive.waiting(), []
    queue.unblock()
    while (state := queue.next()) is not None:
        assert state == left[0]
        group = naive.order.group(state)
        assert list(queue.group_of(state)) == [s for s in left if naive.order.group(s) == group]
        passed.append(group)
        left = [s for s in left if naive.order.group(s) != group]
        queue.block(state)
    assert not left and len(set(passed)) == len(passed)
    queue.unblock()


@dataclass(frozen=True)
class Constant(Order):
    """Everyone is equal."""

    says = "whoever came first"

    def waiting(self, job: JobState, now: float) -> float:
        return 0.0


def test_a_long_queue_is_consumed_from_the_front_in_order_of_arrival() -> None:
    view = ClusterView(cluster([4]), estimates=None)  # type: ignore[arg-type]
    machine = StateMachine(view)
    queue = view.queue(Constant())
    for number in range(400):
        machine.apply(Arrived(0.0, job(f"j{number}", 0.0, 1, 1.0)))
    seen = []
    while (state := queue.next()) is not None:
        seen.append(state.id)
        assert machine.execute(Start(state.id, Placement((0,), (1,)), "")) == ""
        machine.apply(Finished(0.0, state.id))
    assert seen == [f"j{n}" for n in range(400)]


def test_a_queue_that_is_asked_for_late_knows_every_job() -> None:
    view = ClusterView(cluster([4]), estimates=None)  # type: ignore[arg-type]
    machine = StateMachine(view)
    for number, gpus in enumerate((3, 1, 2)):
        machine.apply(Arrived(0.0, job(f"j{number}", 0.0, gpus, 1.0)))
    assert machine.execute(Start("j1", Placement((0,), (1,)), "")) == ""
    queue = view.queue(ByArrival())
    assert [s.id for s in queue.waiting()] == ["j0", "j2"]
    assert [s.id for s in queue.worst_first(0.0)] == ["j1"]
    assert view.queue(ByArrival()) is queue


def test_a_blocked_group_opens_at_a_release_or_for_a_newcomer_at_its_head() -> None:
    view = ClusterView(cluster([4]), estimates=None)  # type: ignore[arg-type]
    machine = StateMachine(view)
    queue = view.queue(ByRemaining())
    machine.apply(Arrived(0.0, job("full", 0.0, 4, 9.0)))
    assert machine.execute(Start("full", Placement((0,), (0b1111,)), "")) == ""
    machine.apply(Arrived(0.0, job("long", 0.0, 2, 8.0)))
    state = queue.next()
    assert state is not None
    queue.block(state)
    assert queue.next() is None
    machine.apply(Arrived(0.0, job("longer", 0.0, 2, 9.0)))
    assert queue.next() is None, "it stands behind one that does not fit"
    machine.apply(Arrived(0.0, job("short", 0.0, 2, 1.0)))
    first = queue.next()
    assert first is not None and first.id == "short"
    queue.block(first)
    assert queue.next() is None
    machine.apply(Finished(5.0, "full"))
    assert queue.next() is not None
