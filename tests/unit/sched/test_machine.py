"""The state machine: every legal transition, every refusal with its reason, and that refusals change nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
from replays import CheckedMachine, cluster, job

from hemiola.core.decisions import Move, Pace, Placement, Resize, Start, Stop, WakeAt
from hemiola.core.errors import HemiolaError, InputError, InternalError
from hemiola.core.events import Arrived, Failed, Finished, Measured, NodeBack, NodeLost, Started, Timer
from hemiola.core.topology import Topology
from hemiola.sched.job_state import ENDED, RUNNING, WAITING, JobState
from hemiola.sched.view import ClusterView

TWO_TYPES = cluster([4, 4], [4, 4], types=["A", "B", "A", "A"])


def machine_on(topology: Topology) -> CheckedMachine:
    return CheckedMachine(ClusterView(topology, estimates=None))  # type: ignore[arg-type]


def started(topology: Topology | None = None) -> CheckedMachine:
    """`run` runs on host 0, `wait` waits, `end` has ended, at 10 s; `small` must stay on one rack."""
    machine = machine_on(topology or TWO_TYPES)
    machine.apply(Arrived(0.0, job("end", 0.0, 1, 5.0)))
    assert machine.execute(Start("end", Placement((0,), (1,)), "")) == ""
    machine.apply(Finished(5.0, "end"))
    machine.apply(Arrived(5.0, job("run", 5.0, 2, 50.0)))
    assert machine.execute(Start("run", Placement((0,), (0b11,)), "")) == ""
    machine.apply(Arrived(10.0, job("wait", 10.0, 4, 50.0, gpu_type="A")))
    machine.apply(Arrived(10.0, job("small", 10.0, 4, 50.0, required="rack")))
    machine.apply(Arrived(10.0, job("one", 10.0, 4, 50.0, required="host")))
    return machine


FULL = 0b1111


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (Start("nobody", Placement((2,), (FULL,)), ""), "no job is called 'nobody'"),
        (Start("run", Placement((2,), (0b11,)), ""), "not waiting"),
        (Start("end", Placement((2,), (1,)), ""), "not waiting"),
        (Start("wait", Placement((2,), (0b111,)), ""), "wants 4 GPUs, the placement has 3"),
        (Start("wait", Placement((), ()), ""), "wants 4 GPUs, the placement has 0"),
        (Start("wait", Placement((2, 3), (FULL, 1)), ""), "wants 4 GPUs, the placement has 5"),
        (Start("wait", Placement((0, 2), (0b110, 0b11)), ""), "occupied"),
        (Start("wait", Placement((2,), (0b11110,)), ""), "not there"),
        (Start("wait", Placement((9,), (FULL,)), ""), "not there"),
        (Start("wait", Placement((-1,), (FULL,)), ""), "not there"),
        (Start("wait", Placement((2, 2), (0b11, 0b1100)), ""), "twice"),
        (Start("wait", Placement((2, 3), (FULL, 0)), ""), "without GPUs"),
        (Start("wait", Placement((2, 3), (FULL,)), ""), "twice, or without"),
        (Start("wait", Placement((1,), (FULL,)), ""), "type B"),
        (Start("small", Placement((0, 1), (0b1100, 0b11)), ""), "type A and B"),
        (Start("small", Placement((0, 2), (0b1100, 0b11)), ""), "within one rack"),
        (Start("one", Placement((2, 3), (0b11, 0b11)), ""), "within one host"),
        (Stop("nobody", ""), "not running"),
        (Stop("wait", ""), "not running"),
        (Stop("end", ""), "not running"),
        (Move("wait", Placement((2,), (FULL,)), ""), "not running"),
        (Move("run", Placement((1,), (0b111,)), ""), "wants 2 GPUs"),
        (Move("run", Placement((0, 1), (1, 1)), ""), "type A and B"),
        (Move("run", Placement((0,), (1 << 5 | 1,)), ""), "not there"),
        (Resize("run", Placement((2,), (FULL,)), ""), "elastic"),
        (Pace("wait", 2.0, ""), "not running"),
        (Pace("run", 0.0, ""), "above 0"),
        (Pace("run", -1.0, ""), "above 0"),
        (Pace("run", math.nan, ""), "above 0"),
        (Pace("run", math.inf, ""), "above 0"),
        (WakeAt(20.0, "nobody", ""), "no job is called"),
        (WakeAt(9.0, "run", ""), "past"),
        (WakeAt(math.nan, "run", ""), "nan"),
        (WakeAt(math.inf, "", ""), "inf"),
        (WakeAt(-math.inf, "", ""), "past"),
    ],
    ids=str,
)
def test_a_refusal_names_its_reason(decision: Any, why: str) -> None:
    assert why in started().execute(decision)  # that nothing changed is checked by CheckedMachine


def test_what_is_no_decision_is_an_error_of_the_policy() -> None:
    with pytest.raises(HemiolaError):
        started().execute("start")  # type: ignore[arg-type]


def test_a_move_may_use_the_gpus_that_the_job_holds() -> None:
    machine = started()
    assert machine.execute(Move("run", Placement((0,), (0b110,)), "")) == ""
    state = machine.view.job("run")
    assert (state.status, state.migrations, state.preemptions) == (RUNNING, 1, 0)
    assert machine.view.inventory.masks[0] == 0b1001


def test_a_host_that_is_down_takes_nobody_until_it_is_back() -> None:
    machine = started()
    machine.apply(NodeLost(11.0, 2))
    there = Start("wait", Placement((2,), (FULL,)), "")
    assert "down" in machine.execute(there)
    machine.apply(NodeLost(11.0, 2))  # once more: no harm
    machine.apply(NodeBack(12.0, 2))
    machine.apply(NodeBack(12.0, 2))
    assert machine.execute(there) == ""


def test_a_lost_host_puts_its_jobs_back_with_the_work_they_lose() -> None:
    machine = started()
    machine.apply(Measured(10.0, "run", 0.5))
    machine.apply(NodeLost(20.0, 0, {"run": 4.0}))
    state = machine.view.job("run")
    assert (state.status, state.preemptions, state.placement, state.tier) == (WAITING, 0, None, -1)
    assert state.done_s == pytest.approx(5 + 5 - 4)  # 5 s at speed 1, 10 s at speed 0.5, 4 s lost
    assert state.served_s == 15.0
    assert machine.view.free == 12


def test_the_view_of_one_job_through_its_life() -> None:
    machine = machine_on(cluster([4]))
    machine.apply(Arrived(0.0, job("a", 0.0, 2, 100.0)))
    state = machine.view.job("a")
    machine.apply(Timer(10.0, ""))
    assert (state.waited_s(10.0), state.held_s(10.0), state.done_at(10.0)) == (10.0, 0.0, 0.0)
    assert machine.execute(Start("a", Placement((0,), (0b11,)), "")) == ""
    machine.apply(Measured(10.0, "a", 0.5, resume_s=20.0))
    machine.apply(Started(12.0, "a"))
    assert state.finish_s == 20.0 + 200.0
    assert state.done_at(15.0) == 0.0 and state.done_at(30.0) == 5.0
    assert state.remaining_s(30.0) == 95.0
    assert (state.held_s(30.0), state.service_gpu_s(30.0)) == (20.0, 40.0)
    machine.apply(Timer(30.0, "a"))
    assert machine.execute(Stop("a", "")) == ""
    assert (state.waited_s(40.0), state.held_s(40.0), state.done_at(40.0)) == (20.0, 20.0, 5.0)
    assert state.preemptions == 1
    machine.apply(Timer(40.0, ""))
    assert machine.execute(Start("a", Placement((0,), (0b1100,)), "")) == ""
    machine.apply(Finished(135.0, "a"))
    assert (state.status, state.waited_s(999.0), state.held_s(999.0)) == (ENDED, 20.0, 115.0)
    assert state.done_s == state.work_s


def test_a_job_that_fails_while_it_waits_keeps_its_waiting_time() -> None:
    machine = machine_on(cluster([4]))
    machine.apply(Arrived(0.0, job("a", 0.0, 2, 100.0)))
    machine.apply(Failed(30.0, "a", "cancelled"))
    state = machine.view.job("a")
    assert (state.status, list(machine.view.waiting)) == (ENDED, [])
    assert state.waited_s(99.0) == 30.0


def test_timers_are_seen_in_their_instant_only() -> None:
    machine = started()
    machine.apply(Timer(20.0, "wait"))
    machine.apply(Timer(20.0, "end"))  # of a job that has ended: nobody asks any more
    assert [s.id for s in machine.view.timers] == ["wait"]
    machine.apply(Timer(21.0, ""))
    assert machine.view.timers == []


def test_sizes_count_the_waiting_jobs() -> None:
    machine = started()
    assert {size: n for size, n in machine.view.sizes.items() if n} == {4: 3}
    assert machine.execute(Stop("run", "")) == ""
    assert {size: n for size, n in machine.view.sizes.items() if n} == {4: 3, 2: 1}


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ((17, "", "", ""), "17 GPUs of one type, more than the cluster has"),
        ((13, "", "", ""), "of one type"),  # 12 of A and 4 of B
        ((13, "A", "", ""), "13 GPUs of type A, more than the cluster has"),
        ((5, "", "host", ""), "more than one host has"),
        ((9, "", "rack", ""), "more than one rack has"),
        ((5, "B", "", ""), "5 GPUs of type B"),
        ((1, "C", "", ""), "no host has GPUs of type 'C' (there are A, B)"),
        ((1, "", "pod", ""), "no tier 'pod' (there are host, rack, cluster)"),
        ((1, "", "", "pod"), "no tier 'pod'"),
    ],
)
def test_what_could_never_run_is_not_admitted(wanted: tuple[int, str, str, str], why: str) -> None:
    gpus, gpu_type, required, preferred = wanted
    asked = job("a", 0, gpus, 1, gpu_type=gpu_type, required=required, preferred=preferred)
    assert why in machine_on(TWO_TYPES).admission(asked)


def test_where_no_type_is_named_the_remedy_is() -> None:
    wanted = job("a", 0, 1, 1, gpu_type="a100")
    assert machine_on(cluster([4])).admission(wanted) == (
        "no host has GPUs of type 'a100' (the cluster does not say which it has: add gpu_type=...)"
    )
    assert machine_on(cluster([4, 4], types=["", "v100"])).admission(wanted).endswith("(there are v100)")


@pytest.mark.parametrize(
    ("wanted", "narrowest"),
    [
        ((4, "", "", ""), 0), ((5, "A", "", ""), 1), ((8, "A", "rack", ""), 1), ((9, "A", "", ""), 2),
        ((12, "", "cluster", "host"), 2), ((4, "B", "host", "rack"), 0),
    ],
)  # fmt: skip
def test_what_could_run_is_admitted_with_its_narrowest_tier(
    wanted: tuple[int, str, str, str], narrowest: int
) -> None:
    machine = machine_on(TWO_TYPES)
    gpus, gpu_type, required, preferred = wanted
    asked = job("a", 0, gpus, 1, gpu_type=gpu_type, required=required, preferred=preferred)
    assert machine.admission(asked) == ""
    machine.apply(Arrived(0.0, asked))
    state: JobState = machine.view.job("a")
    assert state.narrowest == narrowest
    assert state.widest == (2 if not required else machine.view.topology.tier_index(required))


def test_a_job_arrives_once_and_only_if_it_is_admissible() -> None:
    machine = machine_on(cluster([4]))
    machine.apply(Arrived(0.0, job("a", 0.0, 1, 1.0)))
    with pytest.raises(InputError, match="arrived twice"):
        machine.apply(Arrived(1.0, job("a", 1.0, 1, 1.0)))
    with pytest.raises(InputError, match="more than the cluster has"):
        machine.apply(Arrived(1.0, job("b", 1.0, 5, 1.0)))


def test_validate_notices_a_broken_invariant() -> None:
    machine = started()
    machine.view.inventory.masks[3] ^= 1
    with pytest.raises(InternalError, match="do not match"):
        machine.validate()
