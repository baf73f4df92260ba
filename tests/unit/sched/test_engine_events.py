"""What live engines do by themselves: jobs held, put back and adopted, GPUs that are not ours; and jobs of a fixed shape."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import FREE, CheckedMachine, at, cluster, job, profile, start

from hemiola.core.decisions import Decision, Move, Placement, Start, Stop, WakeAt
from hemiola.core.events import (
    Adopted,
    Arrived,
    Blocked,
    Finished,
    Held,
    NodeBack,
    NodeLost,
    Released,
    Requeued,
    Started,
    Timer,
    Undone,
)
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.sched.job_state import ENDED, HELD, RUNNING, WAITING, JobState
from hemiola.sched.placement import Consolidated, TierAware, find
from hemiola.sched.policies import policy_from_text
from hemiola.sched.policies.gandiva import Gandiva
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import SimulatedEstimates

SMALL = cluster([4, 4], [4, 4])


def machine_on(topology: Topology = SMALL) -> CheckedMachine:
    return CheckedMachine(ClusterView(topology, estimates=None))  # type: ignore[arg-type]


def decided(machine: CheckedMachine, policy: Policy) -> list[Decision]:
    """What the policy decides now, all of which is accepted."""
    decisions = []
    for decision in policy.decide(machine.view):
        assert machine.execute(decision) == "", decision
        decisions.append(decision)
    return decisions


def as_before(state: JobState, now: float) -> Undone:
    """That nothing is carried out of what is decided of a job from now on."""
    return Undone(
        now, state.id, state.placement, state.since_s, state.done_at(now), state.served_s, state.queued_s,
        state.preemptions, state.migrations,
    )  # fmt: skip


def test_a_held_job_is_nobodys_to_start_and_its_time_does_not_count():
    machine = machine_on()
    machine.apply(Arrived(0.0, job("a", 0.0, 4, 10.0)))
    machine.apply(Held(5.0, "a", "begins later"))
    state = machine.view.jobs["a"]
    assert state.status == HELD and not machine.view.waiting and state.waited_s(9.0) == 5.0
    assert "not waiting" in machine.execute(Start("a", Placement((0,), (0b1111,)), ""))
    machine.apply(Released(20.0, "a"))
    assert state.status == WAITING and state.waited_s(22.0) == 7.0
    assert state.withheld_s == 15.0, "its user waited all the same"
    assert machine.execute(Start("a", Placement((0,), (0b1111,)), "")) == ""
    machine.apply(Held(25.0, "a", "too late: it runs"))
    assert state.status == RUNNING


def test_a_held_job_may_be_cancelled():
    machine = machine_on()
    machine.apply(Arrived(0.0, job("a", 0.0, 4, 10.0)), Held(0.0, "a", "by its user"))
    machine.apply(Finished(3.0, "a"))
    assert machine.view.jobs["a"].status == ENDED and machine.view.jobs["a"].withheld_s == 3.0
    machine.apply(Released(4.0, "a"))
    assert not machine.view.waiting


def test_what_the_engine_puts_back_waits_again_with_what_it_has_done():
    machine = machine_on()
    machine.apply(Arrived(0.0, job("a", 0.0, 4, 10.0)))
    machine.execute(Start("a", Placement((0,), (0b1111,)), ""))
    machine.apply(Requeued(4.0, "a", "its prolog failed"))
    state = machine.view.jobs["a"]
    assert (state.status, state.done_s, state.served_s, state.preemptions) == (WAITING, 4.0, 4.0, 0)
    assert machine.view.returned == [state] and machine.view.free == 16
    machine.apply(Requeued(5.0, "a", "once more"))
    assert state.since_s == 4.0, "it waited already"


def test_what_the_engine_never_started_has_waited():
    machine = machine_on()
    machine.apply(Arrived(0.0, job("a", 0.0, 4, 10.0)), Timer(3.0, ""))
    machine.execute(Start("a", Placement((0,), (0b1111,)), ""))
    machine.apply(Requeued(4.0, "a", "its nodes were not free", False))
    state = machine.view.jobs["a"]
    assert (state.status, state.done_s, state.served_s, state.queued_s) == (WAITING, 0.0, 0.0, 4.0)


def test_adopted_jobs_go_on_with_what_they_had():
    machine = machine_on()
    machine.apply(
        Adopted(100.0, job("runs", 0.0, 4, 50.0), Placement((1,), (0b1111,)), 90.0, done_s=7.0, served_s=20.0, preemptions=2),
        Adopted(100.0, job("waits", 0.0, 4, 50.0), None, 95.0, queued_s=30.0),
    )  # fmt: skip
    runs, waits = machine.view.jobs["runs"], machine.view.jobs["waits"]
    assert runs.held_s(110.0) == 40.0 and runs.remaining_s(110.0) == 33.0 and runs.preemptions == 2
    assert waits.waited_s(110.0) == 45.0 and machine.view.free == 12


def test_blocked_gpus_are_free_ones_first_and_the_rest_as_they_become_free():
    machine = machine_on()
    machine.apply(Arrived(0.0, job("a", 0.0, 3, 10.0)))
    machine.execute(Start("a", Placement((0,), (0b0111,)), ""))
    machine.apply(Blocked(1.0, 0, 4))  # the host is drained: what runs goes on
    assert machine.view.free == 12 and machine.view.jobs["a"].status == RUNNING
    machine.apply(Finished(2.0, "a"))
    assert machine.view.free == 12 and not machine.view.inventory.is_free_on(0, 1)
    machine.apply(Blocked(3.0, 0, 1))
    assert machine.view.free == 15
    machine.apply(Blocked(4.0, 0, 0))
    assert machine.view.free == 16 and not machine.view.inventory.blocked


@pytest.mark.parametrize("policy", ["srtf", "srsf", "tiresias:thresholds=1", "gandiva:slice_s=1"])
def test_nobody_is_stopped_for_gpus_that_are_withheld_once_they_are_free(policy):
    chosen = policy_from_text(policy)
    machine = machine_on(cluster([4]))
    machine.apply(Arrived(0.0, job("long", 0.0, 4, 1000.0)))
    assert machine.execute(start("long", (0, 0b1111))) == ""
    machine.apply(Blocked(1.0, 0, 4))
    machine.apply(Arrived(10.0, job("short", 10.0, 4, 5.0)))
    decided(machine, chosen)
    assert machine.view.jobs["long"].status == RUNNING
    machine.apply(Blocked(20.0, 0, 0))  # it is ours again
    then = [type(decision) for decision in decided(machine, chosen)]
    assert [what for what in then if what is not WakeAt] == [Stop, Start]


def test_whose_gpus_are_withheld_makes_room_for_nobody_but_with_another():
    """Two of four GPUs are to be blocked: the two of whoever goes first."""
    machine = machine_on(cluster([4]))
    machine.apply(*(Arrived(0.0, job(name, 0.0, 2, 1000.0)) for name in "ab"))
    assert machine.execute(start("a", (0, 0b1100))) == machine.execute(start("b", (0, 0b0011))) == ""
    machine.apply(Blocked(1.0, 0, 2), Arrived(2.0, job("w", 2.0, 2, 5.0)))
    stops_and_start = decided(machine, policy_from_text("srtf"))
    assert [decision.job_id for decision in stops_and_start] == ["b", "a", "w"]


def test_a_move_onto_gpus_that_would_be_withheld_is_refused():
    machine = machine_on()
    machine.apply(Arrived(0.0, job("a", 0.0, 2, 10.0)))
    assert machine.execute(start("a", (0, 0b1100))) == ""
    machine.apply(Blocked(1.0, 0, 4))
    assert "occupied" in machine.execute(Move("a", at((0, 0b1100)), ""))
    assert "occupied" in machine.execute(Move("a", at((0, 1), (1, 1)), ""))
    assert machine.execute(Move("a", at((1, 0b11)), "")) == ""


def test_what_was_not_carried_out_on_a_drained_host_is_undone():
    machine = machine_on()
    machine.apply(*(Arrived(0.0, job(name, 0.0, 4, 100.0)) for name in "ab"))
    assert machine.execute(start("a", (0, 0b1111))) == machine.execute(start("b", (1, 0b1111))) == ""
    machine.apply(Blocked(1.0, 0, 4))
    a, b, inventory = machine.view.jobs["a"], machine.view.jobs["b"], machine.view.inventory
    events = [as_before(a, 1.0), as_before(b, 1.0)]
    assert machine.execute(Stop("a", "")) == machine.execute(Move("b", at((2, 0b1111)), "")) == ""
    machine.apply(*events)
    assert (a.placement, b.placement) == (at((0, 0b1111)), at((1, 0b1111)))
    assert inventory.blocked == {} and inventory.owed == {0: 4}
    machine.apply(Started(2.0, "a", at((0, 0b1111))))  # as its engine says, too
    assert a.status == RUNNING and inventory.owed == {0: 4}


def test_strict_order_holds_while_hosts_are_not_ours_and_afterwards():
    fifo = policy_from_text("fifo")
    machine = machine_on(cluster([8, 8]))
    machine.apply(Arrived(0.0, job("runs", 0.0, 4, 100.0)), Blocked(0.0, 1, 8))
    decided(machine, fifo)
    machine.apply(Arrived(1.0, job("all", 1.0, 16, 10.0)), Arrived(1.0, job("small", 1.0, 2, 10.0)))
    assert decided(machine, fifo) == []
    machine.apply(Blocked(5.0, 1, 0))
    assert decided(machine, fifo) == []


def test_who_did_not_start_after_all_waits_where_it_waited():
    gandiva = Gandiva()
    machine = machine_on(cluster([4]))
    machine.apply(Arrived(0.0, job("a", 0.0, 4, 10.0)))
    queue = machine.view.queue(gandiva.order)
    machine.apply(Arrived(10.0, job("b", 10.0, 4, 10.0)))
    machine.apply(Timer(20.0, ""))
    a = machine.view.jobs["a"]
    event = as_before(a, 20.0)
    assert machine.execute(start("a", (0, 0b1111))) == ""
    machine.apply(event)
    assert queue.next() is a and a.since_s == 0.0


def test_who_is_adopted_late_waits_with_those_who_came_when_it_did():
    gandiva = Gandiva()
    machine = machine_on(cluster([4]))
    machine.apply(Arrived(10.0, job("b", 10.0, 4, 10.0)))
    queue = machine.view.queue(gandiva.order)
    machine.apply(Adopted(20.0, job("a", 0.0, 4, 10.0), None, 0.0))
    assert queue.next() is machine.view.jobs["a"]


@pytest.mark.parametrize("policy", ["tiresias", "gittins", "dally"])
def test_who_is_started_by_the_engine_goes_down_the_queues_too(policy):
    machine = machine_on(cluster([4]))
    chosen = policy_from_text(policy)
    machine.apply(Arrived(0.0, job("a", 0.0, 2, 1e6)), Held(0.0, "a", "by its user"))
    assert decided(machine, chosen) == []
    machine.apply(Started(10.0, "a", at((0, 0b11))))
    (wake,) = decided(machine, chosen)
    assert isinstance(wake, WakeAt) and (wake.job_id, wake.time_s) == ("a", 10.0 + 3250.0 / 2)


@pytest.mark.parametrize("policy", ["tiresias", "gittins", "dally"])
def test_who_is_held_is_not_promoted_until_it_may_wait_again(policy):
    """It ran for 5 s and would be promoted after 8 times as long; its timer of before was for its service."""
    topology = cluster([4])
    machine = CheckedMachine(ClusterView(topology, SimulatedEstimates(IterationModel(topology), FREE)))
    chosen = policy_from_text(policy)
    machine.apply(Arrived(0.0, job("a", 0.0, 2, 1e6)))
    assert [type(decision) for decision in decided(machine, chosen)] == [Start, WakeAt]
    machine.apply(Requeued(5.0, "a", "its prolog failed"), Held(5.0, "a", "its prolog failed"))
    assert decided(machine, chosen) == []
    for time_s in (45.0, 3250.0 / 2):
        machine.apply(Timer(time_s, "a"))
        assert decided(machine, chosen) == []
    machine.apply(Blocked(2000.0, 0, 4), Released(2000.0, "a"))
    (wake,) = decided(machine, chosen)
    assert isinstance(wake, WakeAt) and (wake.job_id, wake.time_s) == ("a", 2000.0 + 8 * 5.0)


EVENTS = st.one_of(
    st.tuples(st.just("block"), st.integers(0, 3), st.integers(0, 6)),
    st.tuples(st.sampled_from(["lost", "back"]), st.integers(0, 3), st.just(0)),
    st.tuples(st.sampled_from(["hold", "release", "requeue", "end"]), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("start"), st.integers(0, 5), st.integers(0, 3)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=40))
def test_in_whatever_order_things_happen_every_gpu_and_every_job_is_somewhere(happened):
    machine = machine_on()  # checks every invariant after every step
    machine.apply(*(Arrived(0.0, job(f"j{i}", 0.0, 1 + i % 3, 10.0)) for i in range(6)))
    for now, (what, which, count) in enumerate(happened, start=1):
        time_s, name = float(now), f"j{which}"
        if what == "start":
            placement = find(machine.view.inventory, machine.view.jobs[name], TierAware())
            if placement is not None:
                machine.execute(Start(name, placement, ""))
        elif machine.view.jobs[name].status == ENDED and what == "end":
            continue
        else:
            machine.apply({
                "block": lambda t=time_s, h=which, n=count: Blocked(t, h, n),
                "lost": lambda t=time_s, h=which: NodeLost(t, h),
                "back": lambda t=time_s, h=which: NodeBack(t, h),
                "hold": lambda t=time_s, n=name: Held(t, n, ""),
                "release": lambda t=time_s, n=name: Released(t, n),
                "requeue": lambda t=time_s, n=name: Requeued(t, n, ""),
                "end": lambda t=time_s, n=name: Finished(t, n),
            }[what]())  # fmt: skip
        supposed = free_without_all(machine.view)
    wanted = {which: min(count, 4) for what, which, count in happened if what == "block"}
    for host, count in wanted.items():
        held = sum(
            mask.bit_count()
            for job in machine.view.running.values()
            for at, mask in zip(job.placement.hosts, job.placement.masks, strict=True)
            if at == host
        )
        assert machine.view.inventory.blocked.get(host, 0).bit_count() == min(count, 4 - held)
    if happened:
        for running in list(machine.view.running):
            assert machine.execute(Stop(running, "")) == ""
        assert machine.view.inventory.masks == supposed


HAPPENED = st.tuples(
    st.sampled_from(["arrive", "arrive", "arrive", "block", "end"]), st.integers(0, 3), st.integers(0, 4)
)


@pytest.mark.parametrize(
    "policy",
    ["srtf", "tiresias:thresholds=20", "gandiva:slice_s=10", "themis:lease_s=10", "dally:thresholds=20,review_s=5", "elastic"],
)  # fmt: skip
@settings(max_examples=40, deadline=None)
@given(st.lists(HAPPENED, max_size=40))
def test_no_policy_counts_on_gpus_that_are_withheld_once_they_are_free(policy, happened):
    chosen = policy_from_text(policy)
    view = ClusterView(SMALL, SimulatedEstimates(IterationModel(SMALL), FREE))
    machine = CheckedMachine(view)
    for n, (what, which, count) in enumerate(happened):
        now = 5.0 * n
        machine.apply(Timer(now, ""))
        if what == "arrive":
            long_s, sizes = 20.0 * (1 + which), {"gpus_min": 1, "gpus_max": 8}
            machine.apply(Arrived(now, job(f"j{n}", now, 1 + count, long_s, profile=profile(), **sizes)))
        elif what == "block":
            machine.apply(Blocked(now, which, count))
        elif view.running:
            machine.apply(Finished(now, list(view.running)[which % len(view.running)]))
        decided(machine, chosen)


def free_without_all(view: ClusterView) -> list[int]:
    """What would be free if nobody ran; asking leaves no trace."""
    inventory = view.inventory

    def state():
        return (
            list(inventory.masks), dict(inventory.blocked), dict(inventory.owed), list(inventory.counts),
            inventory.free, inventory.releases, inventory.released_gpus,
        )  # fmt: skip

    before = state()
    with view.supposing() as trial:
        trial.without(view.running.values())
        free = list(inventory.masks)
    assert state() == before
    return free


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=6, max_size=6), st.integers(1, 4), st.integers(1, 4), st.booleans()
)
def test_a_job_of_a_fixed_shape_gets_it_wherever_there_is_room(free, hosts, gpus, narrow):
    topology = cluster([4, 4, 4], [4, 4, 4])
    machine = machine_on(topology)
    machine.apply(*(Blocked(0.0, host, 4 - count) for host, count in enumerate(free)))
    machine.apply(
        Arrived(
            0.0,
            job("a", 0.0, hosts * gpus, 10.0, hosts=hosts, required="rack" if narrow and hosts < 4 else ""),
        )
    )
    state = machine.view.jobs["a"]
    placement = find(machine.view.inventory, state, TierAware())
    able = [
        chosen for chosen in combinations(range(6), hosts)
        if all(free[host] >= gpus for host in chosen) and topology.span(chosen) <= state.widest
    ]  # fmt: skip
    if not able:
        assert placement is None
        return
    assert placement is not None and topology.span(placement.hosts) == min(
        topology.span(chosen) for chosen in able
    )
    assert machine.execute(Start("a", placement, "")) == ""
    found = find(machine.view.inventory, state, Consolidated())
    assert found is None or topology.span(found.hosts) == state.narrowest


@pytest.mark.parametrize(
    ("hosts", "gpus", "why"),
    [
        (3, 8, "equally many on each"),
        (5, 5, "5 GPUs on 5 hosts, more than the cluster has"),
        (1, 8, "8 GPUs on 1 hosts"),
    ],
)
def test_a_shape_that_the_cluster_cannot_hold_is_refused_with_its_reason(hosts, gpus, why):
    assert why in machine_on().admission(job("a", 0, gpus, 1, hosts=hosts))


def test_another_shape_than_the_jobs_is_refused():
    machine = machine_on()
    machine.apply(Arrived(0.0, job("a", 0.0, 4, 10.0, hosts=2)))
    for placement in (Placement((0,), (0b1111,)), Placement((0, 1), (0b111, 0b1))):
        assert machine.execute(Start("a", placement, "")) == "it wants 2 GPUs on each of 2 hosts"
    assert machine.execute(Start("a", Placement((0, 1), (0b11, 0b11)), "")) == ""
