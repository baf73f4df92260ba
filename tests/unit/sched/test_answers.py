"""Schedules worked out by hand: arrival, shortest first, pre-emption, placement, failures."""

from __future__ import annotations

import pytest
from replays import FREE, check_run, cluster, job, profile, replay, steps, times

from hemiola.core.errors import PolicyError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.job import Job
from hemiola.sched.placement import Yarn
from hemiola.sched.policies import policy_from_text
from hemiola.sched.policies.fifo import Fifo
from hemiola.sched.policies.shortest import Sjf, Srtf
from hemiola.simulator.cluster import Costs

ONE = cluster([4])


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fifo", {"a": (0, 10), "b": (10, 15), "c": (15, 18)}),
        ("fifo-backfill", {"a": (0, 10), "b": (10, 15), "c": (2, 5)}),
        ("sjf", {"a": (0, 10), "b": (10, 15), "c": (2, 5)}),
        # at 1 b (5 s) stops a (9 s left); at 2 c (3 s) stops b (4 s left) and a runs beside it
        ("srtf", {"a": (0, 15), "b": (1, 9), "c": (2, 5)}),
    ],
)
def test_three_jobs_on_one_host(policy: str, expected: object) -> None:
    jobs = [job("a", 0, 2, 10), job("b", 1, 4, 5), job("c", 2, 2, 3)]
    run = replay(jobs, ONE, policy)
    check_run(run, jobs, ONE)
    assert times(run) == expected


def test_shortest_first_knows_what_its_name_says() -> None:
    """b is the longer one and declares less; d declares nothing and is the shortest."""
    topology = cluster([2])
    jobs = [job("a", 0, 2, 10), job("b", 1, 2, 9, estimate_s=1.0), job("c", 2, 2, 3, estimate_s=60.0)]
    jobs.append(job("d", 3, 2, 1))
    truth = {"a": (0, 10), "b": (14, 23), "c": (11, 14), "d": (10, 11)}
    assert times(replay(jobs, topology, "sjf")) == truth
    assert times(replay(jobs, topology, "sjf:knows=truth")) == truth
    declared = {"a": (0, 10), "b": (10, 19), "c": (19, 22), "d": (22, 23)}
    assert times(replay(jobs, topology, "sjf:knows=estimate")) == declared


def test_the_card_says_what_shortest_first_knows() -> None:
    assert Sjf().card()["order"] == "run time (oracle)"
    assert "declared at submission" in Sjf(knows="estimate").card()["order"]
    with pytest.raises(PolicyError, match="knows is 'users'") as refused:
        Sjf(knows="users")
    assert "truth, estimate" in refused.value.remedy


@pytest.mark.parametrize("text", ["srtf", "srsf", "lwf", "themis", "crux:order=sjf", "crux:order=srsf",
                                  "dally:oracle=true", "elastic:oracle=true"])  # fmt: skip
def test_who_knows_the_true_run_time_says_so(text: str) -> None:
    assert "oracle" in " ".join(policy_from_text(text).card().values())


def test_least_remaining_time_first() -> None:
    jobs = [job("a", 0, 2, 10), job("b", 2, 2, 3), job("c", 4, 2, 0.5)]
    run = replay(jobs, cluster([2]), "srtf")
    assert times(run) == {"a": (0, 13.5), "b": (2, 5.5), "c": (4, 4.5)}
    assert steps(run) == [
        (0, "Start", "a"),
        (2, "Stop", "a"), (2, "Start", "b"),
        (4, "Stop", "b"), (4, "Start", "c"),
        (4.5, "Start", "b"), (5.5, "Start", "a"),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", ["srtf", "srsf"])
def test_whoever_has_most_left_is_stopped_however_slow_it_is(policy: str) -> None:
    """b runs at a tenth of its speed. At 50 s it has 90 s left and a 50; w wants 60, and asks after y did in vain."""
    topology = cluster([1, 1], types=["A", "B"])
    slow = profile(1.0, 0.0, gpu_speed={"B": 0.1})
    jobs = [
        job("a", 0, 1, 100, gpu_type="A"), job("b", 0, 1, 95, gpu_type="B", profile=slow),
        job("y", 1, 1, 200, gpu_type="A"), job("w", 50, 1, 60, gpu_type="B"),
    ]  # fmt: skip
    run = replay(jobs, topology, policy)
    check_run(run, jobs, topology)
    assert steps(run) == [
        (0, "Start", "b"), (0, "Start", "a"), (50, "Stop", "b"), (50, "Start", "w"), (100, "Start", "y"),
        (110, "Start", "b"),
    ]  # fmt: skip
    assert times(run)["b"] == (0, 110 + 900)


def test_equal_remaining_time_stops_nobody() -> None:
    jobs = [job("a", 0, 2, 10), job("b", 2, 2, 8)]
    run = replay(jobs, cluster([2]), "srtf")
    assert times(run) == {"a": (0, 10), "b": (10, 18)}
    assert sum(r.preemptions for r in run.records) == 0


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("srtf", {"a": (0, 6), "b": (6, 16)}), ("srsf", {"a": (0, 16), "b": (1, 11)})],
)
def test_service_counts_gpus_and_time_counts_only_seconds(policy: str, expected: object) -> None:
    """At 1 s a has 5 s x 4 GPUs left, b wants 10 s x 1 GPU."""
    jobs = [job("a", 0, 4, 6), job("b", 1, 1, 10)]
    assert times(replay(jobs, ONE, policy)) == expected


def test_the_saving_of_a_victim_delays_whoever_takes_its_gpus() -> None:
    """a is stopped at 2; b waits until a is saved at 4; a loads from 7 to 10 and has 8 s left."""
    jobs = [job("a", 0, 2, 10), job("b", 2, 2, 3)]
    topology = cluster([2])
    run = replay(jobs, topology, "srtf", costs=Costs(checkpoint_s=2.0, restore_s=3.0))
    check_run(run, jobs, topology)
    assert times(run) == {"a": (0, 18), "b": (2, 7)}
    a, b = run.records
    assert (a.queueing_s, a.run_s, a.useful_s, a.checkpoint_s, a.preemptions) == (5, 13, 10, 3, 1)
    assert (b.queueing_s, b.run_s, b.useful_s, b.checkpoint_s, b.preemptions) == (0, 5, 3, 2, 0)
    assert run.gpu_seconds.useful == 26 and run.gpu_seconds.checkpoint == 10


@pytest.mark.parametrize("policy", ["srtf", "srsf"])
def test_a_job_that_was_one_gpu_short_tries_again_when_one_is_released(policy: str) -> None:
    """w would stop l (3 GPUs), but needs h's GPU too, and h goes first: at 10 it is free."""
    jobs = [job("h", 0, 1, 10), job("l", 0, 3, 100), job("w", 1, 4, 20)]
    run = replay(jobs, ONE, policy)
    assert times(run) == {"h": (0, 10), "l": (0, 120), "w": (10, 30)}


@pytest.mark.parametrize("restore_s", [0, 30])
def test_a_job_that_loads_hides_nobody_behind_it(restore_s: float) -> None:
    """r has 15 s of work left, loading or not; n has 37 s when w, with 20 s, arrives: w stops n."""
    topology = cluster([2, 2], types=["A", "B"])
    jobs = [job("r", 0, 2, 15, gpu_type="A"), job("n", 0, 2, 40, gpu_type="B"), job("w", 3, 2, 20)]
    costs = Costs(checkpoint_s=0, restore_s=restore_s, checkpoint_interval_s=1)
    run = replay(jobs, topology, "srtf", costs=costs, failures=[NodeLost(1, 0), NodeBack(2, 0)])
    check_run(run, jobs, topology)
    assert times(run) == {"r": (0, 16 + restore_s), "n": (0, 60 + restore_s), "w": (3, 23)}


def test_only_as_many_victims_as_needed_the_last_in_order_first() -> None:
    jobs = [job("a", 0, 2, 100), job("b", 0, 1, 50), job("c", 0, 1, 60), job("d", 1, 2, 5)]
    run = replay(jobs, cluster([2, 2]), "srtf")
    assert times(run) == {"a": (0, 105), "b": (0, 50), "c": (0, 60), "d": (1, 6)}


def test_victims_whose_gpus_are_not_used_are_spared() -> None:
    """a (99 s left) goes first but frees one GPU only; with c (94 s) host 1 suffices, so a runs on."""
    jobs = [job("a", 0, 1, 100), job("b", 0, 1, 90), job("c", 0, 2, 95), job("d", 1, 2, 5, required="host")]
    run = replay(jobs, cluster([2, 2]), "srtf")
    assert times(run) == {"a": (0, 100), "b": (0, 90), "c": (0, 100), "d": (1, 6)}


def test_no_job_is_stopped_and_started_again_in_one_instant() -> None:
    """v loads until 55 s; every event in that while must leave it alone: it has less work left than w."""
    jobs = [job("v", 0, 8, 1000), job("w", 1, 8, 1010), job("x", 10, 8, 10)]
    jobs += [job(f"s{n}", 26.0 + 2 * n, 1, 1) for n in range(5)]
    topology = cluster([8, 1])
    run = replay(jobs, topology, "srtf", costs=Costs(checkpoint_s=5.0, restore_s=25.0))
    check_run(run, jobs, topology)
    done = steps(run)
    again = [(t, name) for t, what, name in done if what == "Start" and (t, "Stop", name) in done]
    assert again == []
    # x waits 5 s for v to be saved: 10-25; v loads 25 s and has 990 s left
    assert times(run)["v"] == (0, 1040)
    assert times(run)["w"] == (1040, 2050), "it never ran before: nothing to load"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("tier-aware", (1, 6)), ("best-fit", (1, 6)), ("first-fit", (1, 6)), ("random", (1, 6)),
     ("consolidated", (20, 25)), ("yarn", (20, 25))],
)  # fmt: skip
def test_rules_that_wait_for_locality_and_rules_that_do_not(rule: str, expected: object) -> None:
    """At 1 s three GPUs are free: one in the first rack, two in the second."""
    topology = cluster([2, 2], [2, 2])
    jobs = [
        job("x", 0, 1, 30, required="host"), job("u", 0, 2, 30, required="host"),
        job("v", 0, 2, 20, required="host"), job("z", 1, 3, 5),
    ]  # fmt: skip
    policy = "fifo" if rule == "random" else f"fifo:placement={rule}"
    run = replay(jobs, topology, policy)
    assert times(run)["z"] == expected


def test_strict_order_goes_past_a_job_that_its_rule_can_never_place() -> None:
    topology = cluster([4], [4])
    jobs = [job("whole", 0, 8, 10), job("next", 1, 4, 5), job("other", 2, 8, 10), job("last", 3, 4, 5)]
    run = replay(jobs, topology, Fifo(Yarn()))
    check_run(run, jobs, topology)
    assert times(run) == {"whole": (None, None), "next": (1, 6), "other": (None, None), "last": (3, 8)}
    assert [r.status for r in run.records] == ["waiting", "finished", "waiting", "finished"]
    assert "8 GPUs" in run.records[0].why


def test_strict_order_goes_past_such_a_job_while_hosts_are_down() -> None:
    """Whether it is known already, or comes when a host is down; and a job that could run on that host holds all."""
    topology = cluster([4], [4, 4])
    jobs = [
        job("whole", 0, 12, 10), job("next", 1, 4, 5), job("other", 25, 9, 10), job("last", 26, 4, 5),
        job("wide", 40, 8, 1), job("behind", 41, 4, 1),
    ]  # fmt: skip
    run = replay(jobs, topology, Fifo(Yarn()), failures=[NodeLost(0.5, 2), NodeBack(60, 2)])
    check_run(run, jobs, topology)
    assert times(run) == {
        "whole": (None, None), "next": (1, 6), "other": (None, None), "last": (26, 31),
        "wide": (60, 61), "behind": (60, 61),
    }  # fmt: skip


def test_strict_order_waits_for_a_host_that_is_down() -> None:
    topology = cluster([4, 4])
    jobs = [job("whole", 5, 8, 10), job("next", 6, 4, 5)]
    run = replay(jobs, topology, "fifo", failures=[NodeLost(1, 0), NodeBack(20, 0)])
    check_run(run, jobs, topology)
    assert times(run) == {"whole": (20, 30), "next": (30, 35)}


def test_a_job_larger_than_the_cluster_is_refused_and_holds_nobody() -> None:
    jobs = [job("huge", 0, 5, 10), job("small", 0, 4, 10), job("rare", 1, 1, 1, gpu_type="Z")]
    topology = cluster([4], types=["A"])
    run = replay(jobs, topology, "fifo")
    check_run(run, jobs, topology)
    assert times(run) == {"huge": (None, None), "small": (0, 10), "rare": (None, None)}
    assert [r.status for r in run.records] == ["refused", "finished", "refused"]
    assert run.records[0].why == "it wants 5 GPUs, more than the cluster has"
    assert "'Z'" in run.records[2].why


def test_a_cluster_that_can_run_no_job_ends_at_once() -> None:
    jobs = [job("huge", 7, 5, 10)]
    run = replay(jobs, ONE, "fifo")
    check_run(run, jobs, ONE)
    assert run.gpu_seconds.total == 0 and run.end_s == run.origin_s


def test_gpus_that_are_freed_at_an_instant_are_taken_at_that_instant() -> None:
    jobs = [job("a", 0, 4, 5), job("b", 5, 4, 5), job("c", 5, 4, 0), job("d", 5, 4, 5)]
    run = replay(jobs, ONE, "fifo")
    assert times(run) == {"a": (0, 5), "b": (5, 10), "c": (10, 10), "d": (10, 15)}


def test_jobs_of_no_length_take_no_time_but_their_turn() -> None:
    jobs = [job(f"j{n}", 3, 4, 0) for n in range(5)] + [job("after", 3, 4, 2)]
    run = replay(jobs, ONE, "fifo")
    check_run(run, jobs, ONE)
    assert set(times(run).values()) == {(3, 3), (3, 5)}
    assert run.origin_s == 3 and run.end_s == 5


def test_equal_arrivals_go_in_the_order_of_the_file() -> None:
    jobs = [job(name, 0, 4, 1) for name in "zyxab"]
    assert [t[0] for t in times(replay(jobs, ONE, "fifo")).values()] == [0, 1, 2, 3, 4]


def test_two_gpu_types_make_two_clusters() -> None:
    """Any type: A first, as the topology lists it; two types together never."""
    topology = cluster([2, 2, 2], types=["A", "B", "A"])
    jobs = [
        job("b", 0, 2, 10, gpu_type="B"), job("any", 0, 2, 10), job("four", 1, 4, 5), job("more", 2, 2, 5),
        job("second", 3, 2, 5, gpu_type="B"),
    ]  # fmt: skip
    run = replay(jobs, topology, "fifo-backfill")
    check_run(run, jobs, topology)
    assert times(run) == {
        "b": (0, 10), "any": (0, 10), "four": (10, 15), "more": (2, 7), "second": (10, 15),
    }  # fmt: skip


def test_a_job_that_may_not_leave_its_rack_waits_for_one() -> None:
    topology = cluster([2, 2], [2, 2])
    held = [job("p", 0, 1, 10, required="host"), job("q", 0, 1, 10), job("r", 0, 2, 30)]
    free = job("free", 1, 4, 5)
    bound: Job = job("bound", 1, 4, 5, required="rack")
    fill = [job("s", 0, 1, 20), job("t", 0, 1, 30)]
    # p and q share the first host, r has the second; s and t share the third; the fourth is free
    assert times(replay([*held, *fill, bound], topology, "fifo"))["bound"] == (30, 35)
    assert times(replay([*held, *fill, free], topology, "fifo"))["free"] == (10, 15)


# ---- hosts that fail -------------------------------------------------------------------------


def test_work_since_the_last_checkpoint_is_done_again() -> None:
    """Lost at 50 s: with a checkpoint every 30 s, 20 s are lost and 70 s are left."""
    topology = cluster([4, 4])
    jobs = [job("a", 0, 4, 100)]
    costs = Costs(checkpoint_s=0, restore_s=0, checkpoint_interval_s=30)
    run = replay(jobs, topology, "fifo", costs=costs, failures=[NodeLost(50, 0), NodeBack(60, 0)])
    check_run(run, jobs, topology)
    a = run.records[0]
    assert (a.finish_s, a.run_s, a.useful_s, a.lost_s, a.queueing_s, a.preemptions) == (
        120,
        120,
        100,
        20,
        0,
        0,
    )
    assert run.gpu_seconds.down == 40 and run.gpu_seconds.lost == 80


def test_a_failed_job_loads_again_and_waits_for_a_host() -> None:
    jobs = [job("a", 0, 4, 100)]
    costs = Costs(checkpoint_s=5, restore_s=25, checkpoint_interval_s=1800)
    run = replay(jobs, ONE, "fifo", costs=costs, failures=[NodeLost(40, 0), NodeBack(60, 0)])
    check_run(run, jobs, ONE)
    a = run.records[0]
    assert (a.finish_s, a.queueing_s, a.lost_s, a.checkpoint_s) == (60 + 25 + 100, 20, 40, 25)
    assert run.gpu_seconds.down == 80


def test_a_whole_rack_fails_in_one_instant() -> None:
    topology = cluster([4, 4], [4, 4])
    jobs = [job("a", 0, 8, 100), job("b", 0, 8, 100)]
    lost = [NodeLost(50, 0), NodeLost(50, 1), NodeBack(60, 0), NodeBack(60, 1)]
    run = replay(jobs, topology, "fifo", failures=lost)
    check_run(run, jobs, topology)
    assert times(run) == {"a": (0, 160), "b": (0, 100)}
    assert run.gpu_seconds.down == 80 and run.gpu_seconds.lost == 400


@pytest.mark.parametrize(
    ("failures", "down_gpu_s"),
    [
        ([NodeLost(10, 1), NodeBack(10, 1)], 0),
        ([NodeLost(10, 1), NodeBack(20, 1), NodeLost(20, 1), NodeBack(50, 1)], 160),
        ([NodeLost(10, 1), NodeLost(10, 1), NodeBack(20, 1)], 40),
        ([NodeLost(10, 1), NodeLost(15, 1), NodeBack(20, 1)], 40),
        ([NodeBack(10, 1), NodeBack(20, 1)], 0),
        ([NodeLost(-50, 1), NodeBack(-20, 1)], 0),
        ([NodeLost(-50, 1), NodeBack(20, 1)], 80),
        ([NodeLost(10, 1)], 360),
        ([NodeLost(100, 1)], 0),
        ([NodeLost(500, 1)], 0),
        ([NodeBack(30, 1), NodeLost(20, 1)], 40),  # in no order
    ],
    ids=str,
)
def test_whatever_fails_and_returns_every_gpu_second_is_accounted_for(
    failures: list[NodeLost | NodeBack], down_gpu_s: float
) -> None:
    topology = cluster([4, 4])
    jobs = [job("a", 0, 4, 100)]
    later = [NodeLost(f.time_s + 1000, f.host) if isinstance(f, NodeLost) else NodeBack(f.time_s + 1000, f.host) for f in failures]  # fmt: skip
    run = replay([job("a", 1000, 4, 100)], topology, "fifo", failures=later)
    check_run(run, jobs, topology)
    assert times(run) == {"a": (1000, 1100)}
    assert run.gpu_seconds.down == down_gpu_s


def test_a_job_that_ends_as_its_host_fails_has_failed() -> None:
    """Failures come first in an instant."""
    jobs = [job("a", 0, 4, 100)]
    run = replay(jobs, ONE, Srtf(), costs=FREE, failures=[NodeLost(100, 0), NodeBack(110, 0)])
    check_run(run, jobs, ONE)
    assert times(run) == {"a": (0, 210)}
