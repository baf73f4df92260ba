"""What hemiola expects of jobs, against textbooks and definitions, and what each of its rules does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import cluster, job, profile, replay, steps, times

from hemiola.core.errors import PolicyError
from hemiola.sched.policies.gittins import gittins_index
from hemiola.sched.policies.hemiola import AGES_S, Hemiola, expected_service, survival
from hemiola.simulator.cluster import Costs

TWO, FOUR = cluster([2]), cluster([4])
NO_PRIOR = 1e-9


def stairs(sample: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """The survival function of values that are equally likely."""
    times_s = np.sort(np.array(sample))
    return times_s, 1.0 - np.arange(1, len(sample) + 1) / len(sample)


def test_expected_service_is_one_over_the_gittins_index() -> None:
    """Tiresias' two examples: sizes 2 and 10; 1, 4, 8 and 16."""
    two = expected_service(*stairs([2.0, 10.0]), np.array([0.0, 1.0, 2.0]))
    four = expected_service(*stairs([16.0, 1.0, 8.0, 4.0]), np.array([0.0, 1.0, 2.0, 4.0, 8.0]))
    assert two == pytest.approx((4.0, 2.0, 8.0))
    assert four == pytest.approx((4.0, 1 / 0.12, 6.0, 8.0, 8.0))


@settings(max_examples=60)
@given(st.lists(st.integers(1, 30).map(float), min_size=1, max_size=10), st.integers(0, 29).map(float))
def test_and_so_for_any_sample(sample: list[float], age: float) -> None:
    index = gittins_index(sample, [age])[0]
    if index > 0:
        assert expected_service(*stairs(sample), np.array([age]))[0] == pytest.approx(1 / index)


def test_survival_is_kaplan_and_meiers() -> None:
    """Freireich's 6-MP group (1963), the textbook's example: remissions in weeks, and those that last."""
    ended = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    going = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    times_s, shares = survival(ended, going, NO_PRIOR)
    known = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    found = {t: float(shares[np.flatnonzero(times_s == t)[-1]]) for t in known}
    assert found == pytest.approx(known, abs=6e-4)


def test_jobs_that_still_run_make_others_look_longer() -> None:
    ended, going = [100.0] * 10, [5000.0] * 10
    alone, both = (expected_service(*survival(ended, more, NO_PRIOR), AGES_S) for more in ([], going))
    assert both[0] > 1.5 * alone[0]


def test_before_anything_is_learnt_the_younger_goes_first() -> None:
    """The prior is log-uniform: what has run for long is expected to run for as long again."""
    young, older, oldest = expected_service(*survival([], [], 8.0), np.array([600.0, 6000.0, 60000.0]))
    assert older > 3 * young
    assert oldest > 3 * older


def test_of_two_new_jobs_the_one_on_fewer_gpus_goes_first() -> None:
    jobs = [job("first", 0, 2, 50), job("wide", 1, 2, 50), job("narrow", 2, 1, 50)]
    assert [name for _, what, name in steps(replay(jobs, TWO, "hemiola")) if what == "Start"] == [
        "first", "narrow", "wide",
    ]  # fmt: skip


def test_a_job_that_ran_for_long_makes_way_for_a_new_one() -> None:
    run = replay([job("long", 0, 2, 100_000), job("new", 50_000, 2, 60)], TWO, "hemiola")
    assert times(run)["new"] == (50_000.0, 50_060.0)
    assert times(run)["long"][1] == pytest.approx(100_060.0)


def test_but_not_where_stopping_it_costs_more_than_it_pays() -> None:
    dear = Costs(checkpoint_s=0.0, restore_s=1e6)
    run = replay([job("long", 0, 2, 100_000), job("new", 50_000, 2, 60)], TWO, "hemiola", costs=dear)
    assert times(run)["new"][0] == 100_000.0


def test_two_alike_take_turns_at_growing_ages() -> None:
    """Each stop comes at about twice the age of the one before: few, where equal turns would be many."""
    run = replay([job("a", 0, 2, 40_000), job("b", 0, 2, 40_000)], TWO, "hemiola")
    stops = [at for at, what, _ in steps(run) if what == "Stop"]
    assert 3 <= len(stops) <= 16


def test_it_never_stops_where_it_is_told_not_to() -> None:
    run = replay([job("long", 0, 2, 100_000), job("new", 50_000, 2, 60)], TWO, Hemiola(stay=0))
    assert [what for _, what, _ in steps(run)] == ["Start", "Start"]


@pytest.mark.parametrize(("slack", "begins_s"), [(1.0, 100.0), (8.0, 0.0)])
def test_it_waits_for_a_narrow_place_that_is_so_much_faster(slack: float, begins_s: float) -> None:
    """A GPU is free on either host, across which it is expected to run seven times slower; at 100 s two are free on one."""
    there = cluster([3, 3], nic=1.0)
    jobs = [job("p", 0, 2, 100), job("q", 0, 2, 100), job("wide", 0, 2, 50, profile=profile(1.0, 2.0))]
    assert times(replay(jobs, there, Hemiola(slack=slack)))["wide"][0] == begins_s


def test_two_that_would_share_a_link_at_half_speed_go_one_after_the_other() -> None:
    """Either needs a host and a bit of the one between; both do nothing but send. Who looks at free GPUs alone starts both."""
    racks = cluster([4], [4], [4], nic=10.0, uplink=1.0)
    jobs = [job(name, 0, 5, 100, profile=profile(0.01, 1.0)) for name in ("a", "b")]
    ours, theirs = replay(jobs, racks, "hemiola"), replay(jobs, racks, "tiresias")
    assert times(ours) == {"a": (0.0, 100.0), "b": (100.0, 200.0)}
    assert min(end for _, end in times(theirs).values() if end) > 190


def test_two_that_compute_most_of_the_time_share_it() -> None:
    racks = cluster([4], [4], [4], nic=10.0, uplink=1.0)
    jobs = [job(name, 0, 5, 100, profile=profile(10.0, 0.1)) for name in ("a", "b")]
    assert times(replay(jobs, racks, "hemiola"))["b"][0] == 0.0


def test_an_elastic_job_starts_smaller_rather_than_wait_and_grows_later() -> None:
    jobs = [job("rigid", 0, 3, 1000), job("elastic", 0, 4, 1000, gpus_min=1, gpus_max=4)]
    run = replay(jobs, FOUR, "hemiola")
    what = steps(run)
    assert (0.0, "Start", "elastic") in what
    assert any(kind == "Resize" and at >= 1000 for at, kind, _ in what)


def test_a_gang_of_the_whole_cluster_gets_its_turn_while_small_jobs_come_and_go() -> None:
    """Small ones of 600 s keep half the cluster busy for ever; 4 GPUs are never free by themselves."""
    small = [job(f"s{n}", 300.0 * n, 1, 600) for n in range(600)]
    run = replay([*small, job("wide", 1, 4, 600)], FOUR, "hemiola")
    begins_s = times(run)["wide"][0]
    assert begins_s is not None
    assert begins_s < 90_000  # arrivals go on for twice as long


def test_what_happens_later_decides_nothing_now() -> None:
    """The same jobs but for how long those take that still run at 2,000 s: until then every decision is the same."""
    gpus = [1, 2, 1, 3, 4, 1, 2, 1, 2, 4, 1, 3]
    short = [job(f"s{n}", 40 * n, size, 30 + 10 * (n % 7)) for n, size in enumerate(gpus * 2)]
    told = []
    for long_s in (5_000, 90_000):
        run = replay([*short, *(job(f"l{n}", 100 * n, n, long_s) for n in (1, 2, 3))], FOUR, "hemiola")
        told.append([entry for entry in run.decisions if entry.time_s < 2_000])
    assert told[0] == told[1]
    assert len(told[0]) > 40


@pytest.mark.parametrize(
    ("parameters", "told"), [({"stay": 2}, "stay"), ({"slack": 0.5}, "slack"), ({"prior": 0}, "prior")]
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, float], told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        Hemiola(**parameters)
