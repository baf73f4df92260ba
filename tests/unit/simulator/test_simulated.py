"""The simulated cluster by hand: contention, islands, GPU types, hand-over, moves, and chaos."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from random import Random as Chance
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import FREE, Script, at, check_run, cluster, job, profile, replay, start, times

from hemiola.core.decisions import Decision, Move, Pace, Placement, Reallocate, Resize, Start, Stop, WakeAt
from hemiola.core.errors import InputError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.job import Demand, Job, Profile
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.sched.placement import TierAware, find
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs

GOLDEN = (1 + math.sqrt(5)) / 2
SHARED = cluster([1, 1], [1, 1], nic=1e18)  # two racks whose uplinks of 1 byte/s are all that limits
UNIT = profile(1.0, 1.0)  # computes 1 s, then sends 1 byte


def dear(**costs: float) -> Profile:
    """UNIT with costs of its own; saving is free unless said."""
    return profile(1.0, 1.0, **{"checkpoint_s": 0.0, "restore_s": 0.0} | costs)


def run_script(jobs: list[Job], topology: Topology, lines: dict[float, list[Decision]], **more: Any) -> Any:
    run = replay(jobs, topology, Script(lines), **more)
    check_run(run, jobs, topology)
    assert run.decisions_refused == 0, [d for d in run.decisions if d.refused]
    return run


def test_two_jobs_on_one_uplink_meet_as_the_law_says() -> None:
    """T = 1 + 1/r, and the other is present for its share of time spent sending: T = (3 + sqrt 5) / 2."""
    jobs = [job("a", 0, 2, 10, profile=UNIT), job("b", 0, 2, 20, profile=UNIT)]
    lines: dict[float, list[Decision]] = {0: [start("a", (0, 1), (2, 1)), start("b", (1, 1), (3, 1))]}
    run = run_script(jobs, SHARED, lines)
    first = 10 * GOLDEN**2
    # b has 10 iterations left when a ends; alone one takes 2 s
    assert times(run) == {"a": (0, pytest.approx(first)), "b": (0, pytest.approx(first + 20))}
    a, b = run.records
    assert (a.useful_s, b.useful_s) == (pytest.approx(10), pytest.approx(20))
    assert a.exposed_communication_s == pytest.approx(first - 10)
    assert a.tiers_s == (0, 0, pytest.approx(first))


def test_one_job_on_an_uplink_sends_at_its_full_rate() -> None:
    jobs = [job("a", 0, 2, 10, profile=UNIT)]
    run = run_script(jobs, SHARED, {0: [start("a", (0, 1), (2, 1))]})
    assert times(run) == {"a": (0, pytest.approx(20))}


def test_a_job_inside_a_rack_does_not_meet_those_that_cross_it() -> None:
    topology = cluster([1, 1, 2], [1, 1], nic=1e18)
    jobs = [job(n, 0, 2, 10, profile=UNIT) for n in "abc"]
    lines: dict[float, list[Decision]] = {
        0: [start("a", (0, 1), (3, 1)), start("b", (1, 1), (4, 1)), start("c", (2, 3))]
    }
    assert times(run_script(jobs, topology, lines))["c"] == (0, 10)


def test_jobs_that_share_a_network_card_share_its_bandwidth() -> None:
    """Two jobs, each with one of the two GPUs of both hosts; their best would be one host."""
    topology = cluster([2, 2], nic=1.0)
    jobs = [job("a", 0, 2, 10, profile=UNIT), job("b", 0, 2, 10, profile=UNIT)]
    lines: dict[float, list[Decision]] = {0: [start("a", (0, 1), (1, 1)), start("b", (0, 2), (1, 2))]}
    assert times(run_script(jobs, topology, lines))["b"] == (0, pytest.approx(10 * GOLDEN**2))


def test_hidden_communication_costs_nothing_until_it_sticks_out() -> None:
    """C = 1, half of it hides: V / r = 0.5 is free alone; two together need rates of max-min."""
    half = profile(1.0, 0.5, overlap=0.5)
    jobs = [job("a", 0, 2, 10, profile=half)]
    run = run_script(jobs, SHARED, {0: [start("a", (0, 1), (2, 1))]})
    assert times(run) == {"a": (0, pytest.approx(10))}
    assert run.records[0].exposed_communication_s == pytest.approx(0, abs=1e-9)


def test_latency_counts_per_step_of_the_ring() -> None:
    """Two ranks, 2 (2 - 1) steps of 0.25 s within a rack; one more byte takes 1 s: T = 1 + 1 + 0.5."""
    topology = cluster([1, 1], [2], nic=1.0, latency_s=0.25)
    jobs = [job("near", 0, 2, 10, profile=UNIT)]
    # its best is one host (the second rack's): T = 1
    assert times(run_script(jobs, topology, {0: [start("near", (0, 1), (1, 1))]})) == {
        "near": (0, pytest.approx(25))
    }


def test_islands_of_fast_links_inside_a_host() -> None:
    """Inside an island T = 1 + 1/2; over two islands the bus of 0.5 byte/s makes it 1 + 2."""
    topology = cluster([8], island=4, fabric=2.0, bus=0.5)
    jobs = [job("in", 0, 4, 10, profile=UNIT), job("out", 0, 4, 10, profile=UNIT)]
    first = run_script(jobs[:1], topology, {0: [start("in", (0, 0b11110000))]})
    assert times(first) == {"in": (0, 10)}
    both = run_script(jobs[1:], topology, {0: [start("out", (0, 0b00111100))]})
    assert times(both) == {"out": (0, pytest.approx(20))}


def test_a_rule_of_placement_keeps_a_job_inside_an_island() -> None:
    topology = cluster([8], island=4, fabric=2.0, bus=0.5)
    jobs = [job("one", 0, 1, 30, profile=UNIT), job("four", 0, 4, 10, profile=UNIT)]
    assert times(replay(jobs, topology, "fifo"))["four"] == (0, 10)


@pytest.mark.parametrize("gpus", [8, 16])
def test_the_best_placement_that_there_is_takes_the_trace_s_time_with_islands(gpus: int) -> None:
    topology = cluster([8, 8], island=4, fabric=2.0, bus=0.5, nic=1.0)
    jobs = [job("a", 0, gpus, 10, profile=UNIT)]
    assert times(replay(jobs, topology, "fifo")) == {"a": (0, pytest.approx(10))}


@pytest.mark.parametrize("pattern", ["ring", "all-to-all"])
@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 6, 8, 12, 16])
def test_the_best_placement_takes_the_trace_s_time(pattern: Any, gpus: int) -> None:
    topology = cluster([4, 4], [4, 4], nic=3.0, uplink=1.5, fabric=5.0, latency_s=1e-3)
    model = Profile(name="m", demands=(Demand(2, 1.0, 1.0),), pattern=pattern)
    run = replay([job("a", 0, gpus, 10, profile=model)], topology, "fifo")
    assert times(run)["a"][1] == pytest.approx(10)


def test_an_all_to_all_loads_an_uplink_with_all_that_its_ranks_send_across() -> None:
    """4 ranks over two racks of two: each uplink carries 2 x 2 / 3 of a rank's bytes; a card only one rank's."""
    model = Profile(name="m", demands=(Demand(4, 1.0, 1.0),), pattern="all-to-all")
    jobs = [job("a", 0, 4, 10, profile=model)]
    topology = cluster([1, 1], [1, 1], [4], nic=1e18, uplink=1.0)
    placement = {0: [start("a", (0, 1), (1, 1), (2, 1), (3, 1))]}
    assert times(run_script(jobs, topology, placement)) == {"a": (0, pytest.approx(10 * (1 + 4 / 3)))}  # type: ignore[arg-type]


@pytest.mark.parametrize("types", ["A B C", "a nvidia_b NVIDIA-C-SXM4-80GB"])
def test_gpu_types_compute_at_their_own_speed(types: str) -> None:
    a, b, c = types.split()
    topology = cluster([1, 1, 1], types=[a, b, c])
    model = profile(1.0, 0.0, gpu_speed={"A": 1.0, "B": 0.5, "C": 4.0}, gpu_type="A")
    jobs = [job(t, 0, 1, 10, profile=model, gpu_type=t) for t in (a, b, c)]
    run = replay(jobs, topology, "fifo")
    check_run(run, jobs, topology)
    assert times(run) == {a: (0, 10), b: (0, 20), c: (0, 2.5)}


def test_a_job_is_slow_on_a_slow_type_and_moves_on_to_a_fast_one() -> None:
    topology = cluster([1, 1], types=["A", "B"])
    model = profile(1.0, 0.0, gpu_speed={"A": 1.0, "B": 0.5})
    jobs = [job("a", 0, 1, 10, profile=model)]
    lines: dict[float, list[Decision]] = {0: [start("a", (1, 1))], 8: [Move("a", at((0, 1)), "")]}
    assert times(run_script(jobs, topology, lines)) == {"a": (0, 8 + 6)}


@pytest.mark.parametrize("first", ["A", "B"])
def test_what_a_job_loses_over_hosts_does_not_depend_on_who_asked_first(first: str) -> None:
    """Eight GPUs on two hosts: an iteration takes 1 + 1/2 s at best on A, 1 + 1/0.5 s on B."""
    nic = np.array([2.0, 2.0, 0.5, 0.5])
    topology = cluster([4, 4], [4, 4], types=["A", "A", "B", "B"])
    topology = dataclasses.replace(topology, hosts=dataclasses.replace(topology.hosts, nic_bytes_per_s=nic))
    model, other = IterationModel(topology), IterationModel(topology)
    asked = {kind: job(kind, 0, 8, 10, profile=UNIT, gpu_type=kind) for kind in "AB"}
    model.slowdown(asked[first], 2, 1)
    ratio = model.slowdown(asked["B"], 2, 1) / model.slowdown(asked["A"], 2, 1)
    assert ratio == pytest.approx(model.best_s(asked["A"], 1) / model.best_s(asked["B"], 1)) == 1.5 / 3.0
    assert model.slowdown(asked["A"], 2, 1) == other.slowdown(asked["A"], 2, 1)


# ---- saving, loading, handing over -----------------------------------------------------------

DEAR = Costs(checkpoint_s=2.0, restore_s=3.0)


def test_a_move_saves_then_loads() -> None:
    jobs = [job("a", 0, 4, 100)]
    lines: dict[float, list[Decision]] = {0: [start("a", (0, 15))], 50: [Move("a", at((1, 15)), "")]}
    run = run_script(jobs, cluster([4, 4]), lines, costs=DEAR)
    a = run.records[0]
    assert (a.finish_s, a.checkpoint_s, a.migrations, a.preemptions, a.queueing_s) == (105, 5, 1, 0, 0)


def test_a_move_that_keeps_some_gpus_saves_then_loads_once() -> None:
    jobs = [job("a", 0, 2, 100)]
    lines: dict[float, list[Decision]] = {0: [start("a", (0, 3))], 50: [Move("a", at((0, 6)), "")]}
    assert times(run_script(jobs, cluster([4]), lines, costs=DEAR)) == {"a": (0, 105)}


def test_a_job_restarted_elsewhere_in_the_instant_it_is_stopped_saves_first() -> None:
    jobs = [job("a", 0, 4, 100)]
    lines: dict[float, list[Decision]] = {0: [start("a", (0, 15))], 50: [Stop("a", ""), start("a", (1, 15))]}
    assert times(run_script(jobs, cluster([4, 4]), lines, costs=DEAR)) == {"a": (0, 105)}


def test_gpus_of_a_victim_that_are_not_taken_delay_nobody() -> None:
    jobs = [job("a", 0, 2, 100), job("b", 0, 2, 10)]
    lines: dict[float, list[Decision]] = {
        0: [start("a", (0, 0b11))],
        20: [Stop("a", ""), start("b", (0, 0b1100))],
        21: [start("a", (0, 0b11))],
    }
    run = run_script(jobs, cluster([4]), lines, costs=DEAR)
    # a is saved at 22, though it gets GPUs at 21: then it loads until 25 with 80 s left
    assert times(run) == {"a": (0, 105), "b": (20, 30)}


def test_the_gpus_stay_busy_until_the_victim_is_saved_whoever_holds_them_meanwhile() -> None:
    """a saves until 22; b takes its GPUs at 20 and is stopped at 21, before it did anything: c waits until 22."""
    jobs = [job("a", 0, 1, 100), job("b", 0, 1, 10), job("c", 0, 1, 10)]
    lines: dict[float, list[Decision]] = {
        0: [start("a", (0, 1))],
        20: [Stop("a", ""), start("b", (0, 1))],
        21: [Stop("b", ""), start("c", (0, 1))],
        32: [start("b", (0, 1))],
        50: [start("a", (0, 1))],
    }
    run = run_script(jobs, cluster([1]), lines, costs=DEAR)
    b = run.records[1]
    assert times(run)["c"] == (21, 32)
    assert b.finish_s == 42, "b never did any work: there is nothing to load"
    assert times(run)["a"] == (0, 133)


def test_a_job_stopped_while_it_loads_has_nothing_new_to_save() -> None:
    jobs = [job("a", 0, 1, 100), job("b", 0, 1, 10)]
    lines: dict[float, list[Decision]] = {
        0: [start("a", (0, 1))],
        20: [Stop("a", "")],
        30: [start("a", (0, 1))],
        31: [Stop("a", ""), start("b", (0, 1))],
        41: [start("a", (0, 1))],
    }
    run = run_script(jobs, cluster([1]), lines, costs=DEAR)
    assert times(run) == {"b": (31, 41), "a": (0, 41 + 3 + 80)}
    assert run.records[0].checkpoint_s == 1 + 3


def test_costs_come_from_the_profile_and_can_be_scaled() -> None:
    model = profile(1.0, 0.0, checkpoint_s=4.0, restore_s=6.0)
    jobs = [job("a", 0, 4, 100, profile=model)]
    lines: dict[float, list[Decision]] = {0: [start("a", (0, 15))], 50: [Move("a", at((1, 15)), "")]}
    for scale, end_s in ((1.0, 110), (0.5, 105), (0.0, 100)):
        run = run_script(jobs, cluster([4, 4]), dict(lines), costs=Costs(scale=scale))
        assert times(run) == {"a": (0, end_s)}


def test_a_failure_while_a_job_loads_loses_no_work() -> None:
    jobs = [job("a", 0, 1, 100)]
    lines: dict[float, list[Decision]] = {
        0: [start("a", (0, 1))],
        20: [Stop("a", "")],
        30: [start("a", (0, 1))],
        32: [start("a", (1, 1))],
    }
    lost = [NodeLost(31, 0)]
    run = run_script(jobs, cluster([1, 1]), lines, costs=DEAR, failures=lost)
    assert (run.records[0].finish_s, run.records[0].lost_s) == (32 + 3 + 80, 0)


def test_periodic_checkpoints_count_from_when_the_job_made_progress() -> None:
    """It loads until 33 and then works; checkpoints at 43, 53: lost at 56, 3 s are done again."""
    jobs = [job("a", 0, 1, 100)]
    lines: dict[float, list[Decision]] = {
        0: [start("a", (0, 1))],
        20: [Stop("a", "")],
        30: [start("a", (0, 1))],
        56: [start("a", (1, 1))],
    }
    costs = Costs(checkpoint_s=2.0, restore_s=3.0, checkpoint_interval_s=10.0)
    run = run_script(jobs, cluster([1, 1]), lines, costs=costs, failures=[NodeLost(56, 0)])
    a = run.records[0]
    assert a.lost_s == pytest.approx(3)
    assert a.finish_s == pytest.approx(56 + 3 + (100 - 20 - 20))


def test_what_was_done_before_a_checkpoint_is_kept_at_whatever_speed() -> None:
    """Alone it does 1/2 of work a second, from 12 on beside another less; kept at 10 are 5, lost at 16 are 6 s."""
    jobs = [job("a", 0, 2, 50, profile=UNIT), job("b", 0, 2, 50, profile=UNIT)]
    lines: dict[float, list[Decision]] = {
        0: [start("a", (0, 1), (2, 1))],
        12: [start("b", (1, 1), (3, 1))],
        16: [Stop("b", ""), start("a", (1, 1), (3, 1))],
        200: [start("b", (1, 1), (3, 1))],
    }
    costs = Costs(scale=0.0, checkpoint_interval_s=10.0)
    run = run_script(jobs, SHARED, lines, costs=costs, failures=[NodeLost(16, 0)])
    a = run.records[0]
    assert a.lost_s == pytest.approx(6)
    assert a.finish_s == pytest.approx(16 + 2 * (50 - 5))


def test_a_job_that_loads_its_state_leaves_links_to_others() -> None:
    """b runs for 1 s and loads from 2 to 12: until then a, which began at 2, does 1/2 of work a second."""
    jobs = [job("a", 0, 2, 20, profile=UNIT), job("b", 0, 2, 50, profile=dear(restore_s=10.0))]
    lines: dict[float, list[Decision]] = {
        0: [start("b", (1, 1), (3, 1))],
        1: [Stop("b", "")],
        2: [start("b", (1, 1), (3, 1)), start("a", (0, 1), (2, 1))],
    }
    run = run_script(jobs, SHARED, lines, costs=Costs())
    assert times(run)["a"][1] == pytest.approx(12 + 15 * GOLDEN**2)
    assert run.records[1].checkpoint_s == pytest.approx(10)
    rows = sorted(zip(run.traffic.job, run.traffic.start_s, strict=True))
    assert [start_s for index, start_s in rows if index == 1][:2] == [0, 12], "it sends while it works"


def test_a_job_that_is_stopped_while_it_loads_never_sends() -> None:
    jobs = [job("a", 0, 2, 20, profile=UNIT), job("b", 0, 2, 50, profile=dear(restore_s=10.0))]
    lines: dict[float, list[Decision]] = {
        0: [start("b", (1, 1), (3, 1))],
        1: [Stop("b", "")],
        2: [start("b", (1, 1), (3, 1)), start("a", (0, 1), (2, 1)), Pace("b", 2.0, "")],
        5: [Stop("b", "")],
        60: [start("b", (1, 1), (3, 1))],
    }
    assert times(run_script(jobs, SHARED, lines, costs=Costs()))["a"] == (2, pytest.approx(2 + 40))


def test_a_weight_that_is_set_while_a_job_loads_counts_once_it_sends() -> None:
    ends = []
    for weight in (1.0, 4.0):
        jobs = [job("a", 0, 2, 50, profile=UNIT), job("b", 0, 2, 50, profile=dear(restore_s=10.0))]
        lines: dict[float, list[Decision]] = {
            0: [start("b", (1, 1), (3, 1))],
            1: [Stop("b", "")],
            2: [start("b", (1, 1), (3, 1)), start("a", (0, 1), (2, 1)), Pace("b", weight, "")],
        }
        ends.append(times(run_script(jobs, SHARED, lines, costs=Costs()))["b"][1])
    assert ends[1] < ends[0]


def test_a_job_that_stops_again_before_its_state_is_saved_still_waits_for_that() -> None:
    """Saved from 20 to 70; the stop at 22 has nothing new to save, and the state is there no sooner."""
    jobs = [job("a", 0, 1, 100)]
    lines: dict[float, list[Decision]] = {
        0: [start("a", (0, 1))],
        20: [Stop("a", "")],
        21: [start("a", (1, 1))],
        22: [Stop("a", "")],
        23: [start("a", (2, 1))],
    }
    costs = Costs(checkpoint_s=50.0, restore_s=3.0)
    assert times(run_script(jobs, cluster([1, 1, 1]), lines, costs=costs))["a"] == (0, 70 + 3 + 80)


def test_what_a_job_sent_until_its_host_failed_is_logged() -> None:
    jobs = [job("a", 0, 2, 10, profile=UNIT)]
    lines: dict[float, list[Decision]] = {0: [start("a", (0, 1), (2, 1))], 8: [start("a", (1, 1), (3, 1))]}
    run = run_script(jobs, SHARED, lines, failures=[NodeLost(6, 0)])
    assert [*zip(run.traffic.start_s, run.traffic.end_s, strict=True)] == [(0, 6), (8, 28)]


def test_what_is_told_of_a_job_on_more_gpus_that_is_no_faster() -> None:
    """An iteration takes 1 s on 4 GPUs and 2 s on 8: it does twice the work in it, 1 s a second."""
    model = Profile(name="m", demands=(Demand(4, 1.0, 0.0), Demand(8, 2.0, 0.0)))
    seen: list[float] = []

    class Watch(Script):
        def decide(self, view: ClusterView) -> Iterator[Decision]:
            yield from super().decide(view)
            seen.extend(state.speed for state in view.running.values() if view.now == 10)

    lines: dict[float, list[Decision]] = {0: [start("a", (0, 0xFF))], 10: []}
    run = replay([job("a", 0, 4, 100, profile=model, gpus_max=8)], cluster([8]), Watch(lines))
    assert times(run)["a"] == (0, 100)
    assert seen == [1.0]


def test_a_speed_that_stays_the_same_is_no_change() -> None:
    """Bound by the bus of its hosts, it does not mind who else is on its links."""
    slow_inside = cluster([2, 2], [2, 2], nic=1e18, uplink=1.0, fabric=0.1)
    jobs = [job("a", 0, 4, 10, profile=UNIT), job("b", 0, 2, 1, profile=profile(1.0, 0.1))]
    lines: dict[float, list[Decision]] = {
        0: [start("a", (0, 3), (2, 3))],
        3: [start("b", (1, 1), (3, 1))],
    }
    run = run_script(jobs, slow_inside, lines)
    assert run.speed_changes == 0
    assert sorted(run.traffic.job) == [0, 1]


@pytest.mark.parametrize("interval_s", [0.0, -5.0, math.nan])
def test_an_interval_of_checkpoints_that_cannot_be(interval_s: float) -> None:
    with pytest.raises(InputError, match="checkpoint_interval"):
        Costs(checkpoint_interval_s=interval_s)


@pytest.mark.parametrize("field", ["checkpoint_s", "restore_s", "scale"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_costs_that_cannot_be(field: str, value: float) -> None:
    with pytest.raises(InputError, match=field):
        Costs(**{field: value})


def test_a_weight_moves_bandwidth_from_one_job_to_the_other() -> None:
    jobs = [job("a", 0, 2, 50, profile=UNIT), job("b", 0, 2, 50, profile=UNIT)]
    lines: dict[float, list[Decision]] = {
        0: [start("a", (0, 1), (2, 1)), start("b", (1, 1), (3, 1)), Pace("a", 4.0, "")]
    }
    run = run_script(jobs, SHARED, lines)
    a_end, b_end = (times(run)[n][1] for n in "ab")
    assert a_end is not None and b_end is not None
    assert a_end < 50 * GOLDEN**2 < b_end
    assert a_end > 50 * 2, "never faster than alone"


def test_equal_jobs_that_follow_each_other_on_the_same_links_run_alike() -> None:
    """The slot that one leaves in an instant and the next takes must not look unchanged."""
    topology = cluster([2, 2, 2, 2], nic=1.0)
    jobs = [job(n, 0, 4, 10, profile=profile(1.0, 1.0)) for n in "abcdef"]
    run = replay(jobs, topology, "fifo")
    check_run(run, jobs, topology)
    assert [t[1] for t in times(run).values()] == pytest.approx([10, 10, 20, 20, 30, 30])


def test_a_zero_length_job_across_hosts_ends_at_once() -> None:
    jobs = [job("a", 3, 2, 0, profile=UNIT)]
    assert times(run_script(jobs, SHARED, {3: [start("a", (0, 1), (2, 1))]})) == {"a": (3, 3)}


def test_traffic_is_logged_while_the_speed_stays_the_same() -> None:
    jobs = [job("a", 0, 2, 10, profile=UNIT), job("b", 0, 2, 20, profile=UNIT)]
    lines: dict[float, list[Decision]] = {0: [start("a", (0, 1), (2, 1)), start("b", (1, 1), (3, 1))]}
    traffic = run_script(jobs, SHARED, lines).traffic
    first = 10 * GOLDEN**2
    rows = sorted(zip(traffic.job, traffic.start_s, traffic.end_s, traffic.iteration_s, strict=True))
    assert rows == [
        (0, 0, pytest.approx(first), pytest.approx(GOLDEN**2)),
        (1, 0, pytest.approx(first), pytest.approx(GOLDEN**2)),
        (1, pytest.approx(first), pytest.approx(first + 20), pytest.approx(2)),
    ]
    assert traffic.bytes_per_s * traffic.iteration_s == pytest.approx([1.0] * 3)


# ---- chaos -----------------------------------------------------------------------------------


class Chaos(Policy):
    """Decides at random, much of it nonsense; after so many decisions it settles down to fill the cluster."""

    name = "chaos"

    def __init__(self, seed: int, patience: int = 60) -> None:
        self.chance = Chance(seed)
        self.patience = patience

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        while self.patience > 0 and self.chance.random() < 0.75:
            self.patience -= 1
            yield self._anything(view)
        for state in list(view.waiting.values()):
            placement = find(view.inventory, state, TierAware())
            if placement is not None and (self.patience <= 0 or self.chance.random() < 0.7):
                yield Start(state.id, placement, "it fits")
        if self.patience > 0:
            yield WakeAt(view.now + self.chance.choice([0.0, 0.5, 7.0]), "", "to do more harm")

    def _anything(self, view: ClusterView) -> Decision:
        chance = self.chance
        name = chance.choice([*view.jobs, "nobody"])
        kinds = (Start, Stop, Stop, Move, Move, Move, Pace, Resize, WakeAt, Reallocate)
        kind = chance.choice(kinds)
        if kind is Stop:
            return Stop(name, "chaos")
        if kind is Reallocate:
            ids = chance.sample([*view.jobs], min(len(view.jobs), 2))
            kind = chance.choice((Start, Move, Resize))
            changes = [Stop(ids[0], "chaos"), *(kind(i, self._anywhere(view, i), "chaos") for i in ids[1:])]
            return Reallocate(tuple(changes), "chaos")
        if kind is Pace:
            return Pace(name, chance.choice([0.5, 1.0, 3.0, 0.0, math.nan]), "chaos")
        if kind is WakeAt:
            return WakeAt(view.now + chance.choice([-1.0, 0.0, 3.0, math.nan, math.inf]), name, "chaos")
        return kind(name, self._anywhere(view, name), "chaos")

    def _anywhere(self, view: ClusterView, name: str) -> Placement:
        """Often a good placement, even one over many hosts; sometimes nonsense."""
        chance, masks = self.chance, view.inventory.masks
        if name not in view.jobs or chance.random() < 0.2:
            hosts = chance.choices(range(-1, len(masks) + 1), k=chance.randint(0, 3))
            return Placement(tuple(hosts), tuple(chance.randint(-1, 31) for _ in hosts))
        state, pairs = view.jobs[name], []
        left = chance.choice(state.job.sizes)
        own = dict(zip(state.placement.hosts, state.placement.masks, strict=True)) if state.placement else {}
        for host in chance.sample(range(len(masks)), len(masks)):
            free = masks[host] | own.get(host, 0)
            bits = [1 << i for i in range(8) if free >> i & 1]
            take = sum(chance.sample(bits, min(left, len(bits), chance.randint(1, 4))))
            if take:
                pairs.append((host, take))
                left -= take.bit_count()
        return at(*pairs)


CHAOTIC = [
    cluster([4, 4], [4, 2], nic=3.0, uplink=2.0, latency_s=1e-3),
    cluster([4, 2], [4, 4], types=["A", "B", "A", "B"], uplink=0.7, island=2, bus=0.4, fabric=5.0),
]


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(CHAOTIC), st.data())
def test_whatever_a_policy_tries_the_books_balance(seed: int, topology: Topology, data: Any) -> None:
    models = (
        None,
        UNIT,
        profile(0.5, 2.0, overlap=0.5, checkpoint_s=1.0, restore_s=2.0, gpu_speed={"B": 0.5}),
    )
    jobs = [
        job(
            f"j{n}", float(3 * (n // 2)), data.draw(st.integers(1, 6)), data.draw(st.sampled_from([0.0, 4.0, 30.0])),
            profile=data.draw(st.sampled_from(models)), required=data.draw(st.sampled_from(["", "", "rack"])),
            gpus_min=data.draw(st.sampled_from([0, 0, 1])), gpus_max=data.draw(st.sampled_from([0, 0, 6])),
        )
        for n in range(data.draw(st.integers(1, 7)))
    ]  # fmt: skip
    lost = [NodeLost(9.0, 0), NodeLost(9.0, 1), NodeBack(9.0, 1), NodeBack(20.0, 0)]
    lost = lost if data.draw(st.booleans()) else []
    costs = data.draw(
        st.sampled_from([FREE, Costs(checkpoint_s=2.0, restore_s=3.0, checkpoint_interval_s=5.0)])
    )
    run = replay(jobs, topology, Chaos(seed), costs=costs, failures=lost)
    check_run(run, jobs, topology)
    assert {r.status for r in run.records} <= {"finished", "refused"}
    work = {j.id: j.duration_s * j.gpus / j.sizes[-1] for j in jobs}
    for record in run.records:
        if record.status == "finished" and jobs[0].profile is None:
            assert record.run_s >= 0
        if record.status == "finished" and record.exposed_communication_s == 0 and record.lost_s == 0:
            assert record.useful_s >= work[record.id] * (1 - 1e-9)


# ---- run times that were recorded elsewhere --------------------------------------------------


def test_a_run_time_recorded_on_another_fabric_keeps_its_iterations() -> None:
    """There T = 1 + 1/1, here 1 + 1/0.5: ten seconds there are five iterations, fifteen seconds here."""
    here, there = cluster([1, 1], nic=0.5), cluster([1, 1], nic=1.0)
    jobs = [job("a", 0, 2, 10, profile=UNIT), job("plain", 20, 2, 10)]
    run = replay(jobs, here, "fifo", recorded_on=there)
    check_run(run, jobs, here)
    assert times(run) == {"a": (0, pytest.approx(15)), "plain": (20, 30)}
    assert run.records[0].ideal_s == pytest.approx(15)


def test_recorded_on_the_same_cluster_changes_nothing() -> None:
    topology = CHAOTIC[0]
    jobs = [job(f"j{n}", n, 1 + 2 * n, 20, profile=UNIT) for n in range(5)]
    one, two = replay(jobs, topology, "srtf"), replay(jobs, topology, "srtf", recorded_on=topology)
    assert one.records == two.records


def test_a_job_larger_than_the_cluster_it_was_recorded_on_is_an_error_of_the_input() -> None:
    jobs = [job("a", 0, 4, 10, profile=UNIT)]
    with pytest.raises(InputError, match="'a' wants 4 GPUs"):
        replay(jobs, cluster([4]), "fifo", recorded_on=cluster([2]))
