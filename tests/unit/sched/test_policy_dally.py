"""Dally by hand: who waits for whom, when timers end, what the tuner learns, and who is left where it is."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass

import pytest
from replays import FREE, CheckedMachine, at, check_run, cluster, job, profile, replay, start, steps, times

from hemiola.core.decisions import Move, Start, Stop, WakeAt
from hemiola.core.events import Adopted, Arrived, Finished, Profiled, Started, Undone
from hemiola.core.events import Timer as Due
from hemiola.core.job import Job
from hemiola.core.result import Run
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.sched.delay import RECENT_WAITS, Delay, DelayTimer, RecentWaits
from hemiola.sched.job_state import RUNNING, JobState
from hemiola.sched.policies.dally import Dally
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs, SimulatedEstimates

SENSITIVE = profile(1.0, 1.0)
FLAT = cluster([4, 4])
NO_QUEUES = "thresholds=1e9"


def alone(*names: str) -> list[Job]:
    """Jobs that leave one GPU of a host each, for long."""
    return [job(name, 0, 3, 10_000) for name in names]


def wakes(run: Run, name: str) -> list[tuple[float, float, str]]:
    """(when asked for, when due, why) of a job's timers."""
    return [
        (entry.time_s, entry.decision.time_s, entry.decision.reason)
        for entry in run.decisions
        if isinstance(entry.decision, WakeAt) and entry.decision.job_id == name
    ]


# ---- who waits for whom


def test_a_job_that_takes_any_place_does_not_wait_behind_one_that_holds_out() -> None:
    """One GPU is free on each host: x holds out for a host until 110 s, y sends nothing and takes both at 20 s."""
    jobs = [*alone("p", "q"), job("x", 10, 2, 100, profile=SENSITIVE), job("y", 20, 2, 30)]
    run = replay(jobs, FLAT, f"dally:timer=manual,host_s=100,{NO_QUEUES}")
    check_run(run, jobs, FLAT)
    assert times(run)["y"] == (20, 50)
    assert times(run)["x"] == (110, 310), "over both hosts an iteration takes 2 s instead of 1 s"


def test_jobs_alike_whose_timers_end_at_different_times_leave_one_by_one() -> None:
    """The share of time lost over hosts is 12/13 of heavy's and half of light's: so they wait of 100 s."""
    topology = cluster([4, 4, 4, 4])
    heavy, light = profile(1.0, 3.0, name="heavy"), profile(1.0, 0.25, name="light")
    jobs = [
        *alone(*"pqrs"), job("heavy", 10, 2, 1000, profile=heavy), job("light", 10, 2, 1000, profile=light),
    ]  # fmt: skip
    run = replay(jobs, topology, f"dally:host_s=100,{NO_QUEUES}")
    check_run(run, jobs, topology)
    assert times(run)["light"][0] == pytest.approx(10 + 100 / 2)
    assert times(run)["heavy"][0] == pytest.approx(10 + 100 * 12 / 13)


def test_who_gains_by_a_move_is_asked_behind_one_alike_that_does_not() -> None:
    """A GPU is free on each host. To move p aside costs 3 GPU-s: x would gain 2 by it, and y 400."""
    little, much = profile(1.0, 0.005, name="little"), profile(1.0, 1.0, name="much")
    jobs = [
        job("b", 0, 3, 10_000), job("done", 0, 1, 50), job("p", 0, 1, 10_000), job("a", 0, 2, 10_000),
        job("x", 60, 2, 100, profile=little), job("y", 60, 2, 100, profile=much),
    ]  # fmt: skip
    run = replay(jobs, FLAT, f"dally:{NO_QUEUES}", costs=Costs(checkpoint_s=1.0, restore_s=0.0))
    check_run(run, jobs, FLAT)
    assert steps(run)[4:6] == [(60, "Move", "p"), (60, "Start", "y")]


@pytest.mark.parametrize(("there", "moved"), [(FLAT, ["p"]), (cluster([1] * 8, nic=0.1), [])])
def test_what_a_move_gains_is_in_seconds_here(there: Topology, moved: list[str]) -> None:
    """y may have 50 s to go, which over both hosts would be 250 s: 400 GPU-s for 60. As they were run by hosts of one GPU,
    where an iteration took 11 s rather than 1 s, they are but 5 s here."""
    jobs = [
        job("b", 0, 3, 10_000), job("done", 0, 1, 50), job("p", 0, 1, 10_000), job("a", 0, 2, 10_000),
        job("y", 60, 2, 100, profile=SENSITIVE),
    ]  # fmt: skip
    costs = Costs(checkpoint_s=20.0, restore_s=0.0)
    run = replay(jobs, FLAT, f"dally:{NO_QUEUES}", costs=costs, recorded_on=there)
    assert [name for _, what, name in steps(run) if what == "Move"] == moved


# ---- when timers end


def test_the_next_tier_s_timer_starts_when_one_ends() -> None:
    """One GPU is free in each rack. Nothing else happens between 5,000 s and 5,200 s; the long jobs are in the last queue."""
    topology = cluster([4, 4], [4, 4], nic=1.0, uplink=0.5)
    long = [job(f"long{n}", 0, gpus, 20_000) for n, gpus in enumerate((4, 3, 4, 3))]
    jobs = [*long, job("x", 5000, 2, 100, profile=SENSITIVE)]
    run = replay(jobs, topology, "dally:timer=manual,host_s=100,rack_s=100")
    check_run(run, jobs, topology)
    assert {steps(run)[n][2] for n in range(4)} == {"long0", "long1", "long2", "long3"}
    assert times(run)["x"][0] == 5200
    first, second = wakes(run, "x")[:2]
    assert first[:2] == (5000, 5100) and "holds out for host for 100 s" in first[2]
    assert second == (5100, 5200, "accepts rack by now, and holds out for that for 100 s")


def test_a_timer_of_nothing_ends_at_once_at_every_tier() -> None:
    topology = cluster([4, 4], [4, 4], nic=1.0, uplink=0.5)
    long = [job(f"long{n}", 0, gpus, 20_000) for n, gpus in enumerate((4, 3, 4, 3))]
    jobs = [*long, job("x", 10, 2, 100, profile=SENSITIVE)]
    assert times(replay(jobs, topology, f"dally:timer=never-wait,{NO_QUEUES}"))["x"][0] == 10
    assert times(replay(jobs, topology, f"dally:timer=manual,host_s=50,rack_s=0,{NO_QUEUES}"))["x"][0] == 60


@dataclass(frozen=True)
class Growing(DelayTimer):
    """100 s, and longer after that."""

    def wait_s(self, view: ClusterView, job: JobState, tier: int) -> float:
        return 100.0 if view.now < 50.0 else 1000.0


class Patient(Dally):
    waits = Growing()


def test_when_a_timer_ends_is_settled_when_it_starts() -> None:
    jobs = [*alone("p", "q"), job("x", 10, 2, 100, profile=SENSITIVE)]
    assert times(replay(jobs, FLAT, Patient(thresholds="1e9")))["x"][0] == 110


def test_what_was_paid_is_kept_unless_it_was_nothing() -> None:
    note = Delay(0)
    note.allowed, note.until_s, note.declined = 1, 7.0, True
    note.started(0)
    assert (note.allowed, note.until_s, note.declined) == (1, None, False)
    note.started(0)
    assert note.allowed == 0


# ---- what the tuner learns


def test_only_starts_out_of_the_queue_are_waits() -> None:
    machine = CheckedMachine(ClusterView(FLAT, estimates=None))  # type: ignore[arg-type]
    view = machine.view
    recent: RecentWaits = view.index(RECENT_WAITS)

    def seen() -> dict[tuple[int, int], list[float]]:
        return {key: list(waits) for key, waits in recent.waits.items()}

    machine.apply(Arrived(0.0, job("a", 0.0, 2, 100.0)), Arrived(7.0, job("b", 7.0, 2, 100.0)))
    assert not machine.execute(start("a", (0, 0b11)))
    machine.apply(Profiled(7.0, "a", SENSITIVE))
    assert seen() == {(2, 0): [7.0]}, "what is learnt of its model is no start"
    machine.apply(Arrived(20.0, job("c", 20.0, 2, 100.0)))
    assert not machine.execute(Move("a", at((0, 1), (1, 1)), ""))
    assert seen() == {(2, 0): [7.0]}, "a move is none either"
    assert not machine.execute(Stop("a", "")) and not machine.execute(start("a", (1, 0b11)))
    assert seen() == {(2, 0): [7.0, 0.0]}, "but stopped and started is"
    machine.apply(Adopted(30.0, job("d", 0.0, 2, 100.0), at((1, 0b1100)), 0.0, served_s=30.0))
    machine.apply(Finished(40.0, "a"))
    assert not machine.execute(start("b", (0, 1), (1, 1)))
    assert seen() == {(2, 0): [7.0, 0.0], (2, 1): [33.0]}
    machine.apply(Started(50.0, "c", at((0, 0b110))))
    assert seen() == {(2, 0): [7.0, 0.0, 30.0], (2, 1): [33.0]}, "its engine started it by itself"


def test_waits_count_before_anybody_has_declined_an_offer() -> None:
    """w0 to w3 waited 10 s for half a host; x would lose half of its time over both hosts."""
    jobs = [
        job("a", 0, 4, 10), job("b", 0, 4, 10), *(job(f"w{n}", 0, 2, 90) for n in range(4)),
        job("p", 110, 3, 10_000), job("q", 110, 3, 10_000),
        job("x", 130, 2, 100, profile=profile(1.0, 0.25)),
    ]  # fmt: skip
    run = replay(jobs, FLAT, f"dally:{NO_QUEUES}")
    check_run(run, jobs, FLAT)
    assert [times(run)[f"w{n}"][0] for n in range(4)] == [10] * 4
    assert times(run)["x"][0] == pytest.approx(130 + 10 / 2)


def test_what_was_not_carried_out_is_no_start() -> None:
    view = ClusterView(FLAT, SimulatedEstimates(IterationModel(FLAT), FREE))
    machine, policy = CheckedMachine(view), Dally(timer="manual", host_s=50, thresholds="1e9")

    def decide() -> list[str]:
        decisions = []
        for decision in policy.decide(view):
            assert machine.execute(decision) == ""
            decisions.append(type(decision).__name__)
        return decisions

    machine.apply(*(Arrived(0.0, one) for one in alone("p", "q")))
    decide()
    machine.apply(Arrived(10.0, job("x", 10, 2, 100, profile=SENSITIVE)))
    assert decide() == ["WakeAt"], "it holds out"
    x, recent = view.job("x"), view.index(RECENT_WAITS)
    for now in (60.0, 70.0):
        machine.apply(Due(now, "x"))
        waits, note = copy.deepcopy(recent.waits), (x.note.allowed, x.note.until_s, x.note.declined)
        assert note == (1, None, True)
        undone = Undone(now, "x", None, x.since_s, x.done_s, x.served_s, x.queued_s, 0, 0)
        assert decide()[0] == "Start"
        machine.apply(undone)
        assert recent.waits == waits | {(2, 1): deque()}
        assert (x.note.allowed, x.note.until_s, x.note.declined) == note
    p = view.job("p")
    undone = Undone(70.0, "p", p.placement, p.since_s, p.done_at(70.0), p.served_s, p.queued_s, 0, 0)
    assert machine.execute(Stop("p", "")) == ""
    machine.apply(undone)
    assert p.status == RUNNING and recent.waits == waits | {(2, 1): deque()}


# ---- reviews


def test_who_runs_wide_soon_after_a_review_is_reviewed_too() -> None:
    """x is moved at 610 s and leaves nobody wide; y is from 700 s on, and could have a host from 800 s on."""
    jobs = [
        *alone("p"), job("q", 0, 3, 500), job("x", 10, 2, 5000, profile=SENSITIVE),
        job("left", 620, 1, 70), job("right", 630, 1, 170), job("y", 700, 2, 5000, profile=SENSITIVE),
    ]  # fmt: skip
    run = replay(jobs, FLAT, f"dally:timer=never-wait,{NO_QUEUES}")
    check_run(run, jobs, FLAT)
    moves = [(now, name) for now, what, name in steps(run) if what == "Move"]
    assert moves == [(610, "x"), (910, "y")]


def test_what_a_review_leaves_whole_is_offered_at_once() -> None:
    """From 1,000 s on three GPUs are free on each host beside x, which the review at 1,010 s gathers on one of them."""
    jobs = [
        job("l", 0, 3, 1000), job("r", 0, 3, 1000), job("x", 10, 2, 5000, profile=SENSITIVE),
        job("w", 1005, 4, 100, profile=SENSITIVE),
    ]  # fmt: skip
    run = replay(jobs, FLAT, f"dally:timer=manual,host_s=400,{NO_QUEUES}")
    check_run(run, jobs, FLAT)
    assert steps(run)[-2:] == [(1010, "Move", "x"), (1010, "Start", "w")]


# ---- GPU types


def test_nobody_is_moved_to_slower_gpus() -> None:
    """A host of the slow type is free all the time, and none of the other."""
    topology = cluster([2, 2], [2], types=["A", "A", "B"])
    model = profile(1.0, 1.0, gpu_speed={"A": 1.0, "B": 0.1})
    jobs = [
        job("done", 0, 1, 50, gpu_type="A"), job("left", 0, 1, 5000, gpu_type="A", pinned=True),
        job("right", 0, 1, 5000, gpu_type="A", pinned=True), job("wide", 60, 2, 1000, profile=model),
    ]  # fmt: skip
    for timer in ("never-wait", "auto"):
        run = replay(jobs, topology, f"dally:timer={timer},host_s=100,{NO_QUEUES}")
        check_run(run, jobs, topology)
        (placement,) = [
            entry.decision.placement
            for entry in run.decisions
            if isinstance(entry.decision, Start | Move) and entry.decision.job_id == "wide"
        ]
        assert placement.hosts == (0, 1)


def test_who_needs_nobody_moved_starts_though_nobody_has_ended_yet() -> None:
    """Of how long jobs run nothing is known. A, which is asked first, has room on two hosts only; B on one."""
    topology = cluster([4, 4, 4], types=["A", "A", "B"])
    jobs = [
        *(job(name, 0, 2, 10_000, gpu_type="A", required="host") for name in "pq"),
        job("x", 1, 4, 100, profile=SENSITIVE),
    ]  # fmt: skip
    run = replay(jobs, topology, f"dally:{NO_QUEUES},placement=random")
    assert times(run)["x"][0] == 1


# ---- pinned jobs


def test_no_pinned_job_moves_aside() -> None:
    """One GPU is free on each host from 50 s on. With p on the other host x could have one of its own."""
    jobs = [
        job("b", 0, 3, 10_000), job("done", 0, 1, 50), job("p", 0, 1, 10_000), job("a", 0, 2, 10_000),
        job("x", 60, 2, 100, profile=SENSITIVE),
    ]  # fmt: skip
    text = f"dally:{NO_QUEUES}"
    assert steps(replay(jobs, FLAT, text))[-2:] == [(60, "Move", "p"), (60, "Start", "x")]
    run = replay(pinned(jobs, "p"), FLAT, text)
    assert not any(what == "Move" for _, what, _ in steps(run)) and run.decisions_refused == 0
    assert times(run)["x"][0] > 60


def test_no_pinned_job_moves_to_a_narrower_place() -> None:
    """x takes both hosts at 10 s and could have one of its own from 500 s on."""
    jobs = [*alone("p"), job("q", 0, 3, 500), job("x", 10, 2, 5000, profile=SENSITIVE)]
    text = f"dally:timer=never-wait,{NO_QUEUES}"
    (moved,) = [entry for entry in replay(jobs, FLAT, text).decisions if isinstance(entry.decision, Move)]
    assert (moved.time_s, moved.decision.job_id) == (610, "x")  # type: ignore[union-attr]
    run = replay(pinned(jobs, "x"), FLAT, text)
    assert not any(what == "Move" for _, what, _ in steps(run)) and run.decisions_refused == 0


def pinned(jobs: list[Job], *names: str) -> list[Job]:
    """The same jobs, some of which may not be stopped."""
    return [
        job(one.id, one.submit_s, one.gpus, one.duration_s, profile=one.profile, pinned=one.id in names)
        for one in jobs
    ]
