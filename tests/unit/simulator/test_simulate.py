"""Comparing policies: what is asked of the input, what comes out, and that seeds and policies pair up."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from replays import check_run, cluster, job, profile, replay, times

from hemiola.core.decisions import Decision
from hemiola.core.errors import HemiolaError, InputError, PolicyError, TopologyError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.job import Batch, Elastic, Job, Objective, Service, Workload
from hemiola.core.topology import Hosts, Topology
from hemiola.cost.contention import Isolated
from hemiola.sched.placement import Random
from hemiola.sched.policies.fifo import Fifo
from hemiola.sched.policies.tiresias import Tiresias
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.rules import Semantics, semantics_by_name
from hemiola.simulator.simulate import Recording, simulate

ONE = cluster([4])
JOBS = [job("a", 0, 2, 10), job("b", 1, 4, 5), job("c", 2, 2, 3)]


def test_every_policy_runs_on_every_seed_and_pairs_up() -> None:
    def drawn(seed: int) -> Workload:
        return Workload(jobs=tuple(job(f"s{seed}-{n}", n, 2, 5 + seed) for n in range(3)), name="drawn",
                        notes=("times in seconds", f"seed {seed}"))  # fmt: skip

    result = simulate(drawn, ONE, ["fifo", "sjf"], seeds=[3, 5])
    assert [(run.policy, run.seed) for run in result.runs] == [
        ("fifo", 3),
        ("sjf", 3),
        ("fifo", 5),
        ("sjf", 5),
    ]
    assert result.workload_name == "drawn" and result.baseline == "fifo"
    assert result.notes == ("times in seconds", "seed 3", "seed 5")
    assert [j.id for j in result.workloads[5]] == ["s5-0", "s5-1", "s5-2"]
    assert result.run("sjf", 5) is result.runs[3]
    assert result.run("sjf") is result.runs[1]
    with pytest.raises(KeyError):
        result.run("srtf")


def test_policies_do_not_see_each_other() -> None:
    alone = simulate(JOBS, ONE, ["tiresias"]).runs[0]
    after = simulate(JOBS, ONE, ["srtf", "fifo", "tiresias"], baseline="fifo")
    assert after.run("tiresias").records == alone.records
    assert after.baseline == "fifo"


def test_one_policy_object_can_run_twice() -> None:
    policy = Tiresias(thresholds="10/20", promote=1.0)
    runs = [simulate(JOBS, ONE, [policy], seeds=[0, 1]).runs for _ in range(2)]
    assert len({run.records for pair in runs for run in pair}) == 1


def test_each_seed_places_anew_what_is_placed_at_random() -> None:
    jobs = [job(f"j{n}", n, 1, 100) for n in range(8)]
    hosts = cluster([4] * 8)

    def drawn(policy: Policy | str) -> list[tuple[Any, ...]]:
        result = simulate(jobs, hosts, [policy], seeds=range(3), recording=Recording(decisions=True))
        return [tuple(entry.decision for entry in run.decisions) for run in result.runs]

    by_run = drawn("fifo:placement=random")
    assert len(set(by_run)) == 3
    assert drawn(Fifo(Random(1))) == [by_run[1]] * 3, "a seed of its own stays"
    both = simulate(jobs, hosts, [Fifo(Random(seed)) for seed in (1, 2)])
    assert [run.policy for run in both.runs] == [f"fifo:placement=random:seed={seed}" for seed in (1, 2)]


def test_two_forms_of_one_policy_can_be_compared() -> None:
    named = simulate(JOBS, ONE, ["fifo:placement=yarn", "fifo:placement=best-fit", "fifo"])
    assert len(named.runs) == 3
    values = simulate(JOBS, ONE, [Tiresias(promote=0.0), Tiresias(promote=8.0)])
    assert len({run.policy for run in values.runs}) == 2


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        ([], "no jobs"),
        ([job("a", 0, 1, 1), job("a", 1, 1, 1)], "two jobs are called 'a'"),
        ([job("a", 0, 0, 1)], "wants 0 GPUs"),
        ([job("a", 0, -1, 1)], "wants -1 GPUs"),
        ([job("a", 0, 1, -1)], "duration_s is -1"),
        ([job("a", 0, 1, math.nan)], "duration_s is nan"),
        ([job("a", 0, 1, math.inf)], "duration_s is inf"),
        ([job("a", math.nan, 1, 1)], "submit_s is nan"),
        ([job("a", math.inf, 1, 1)], "submit_s is inf"),
        ([job("a", 0, 1, 1, estimate_s=math.nan)], "estimate_s"),
        ([job("a", 0, 1, 1, estimate_s=-1.0)], "estimate_s"),
    ],
    ids=str,
)
def test_jobs_that_cannot_be(jobs: list[Any], why: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(jobs, ONE, ["fifo"])
    assert why in caught.value.what and caught.value.remedy


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"policies": []}, "no policy"),
        ({"policies": ["fifo", "fifo"]}, "'fifo' was given twice"),
        ({"policies": ["fifo"], "seeds": []}, "no seed"),
        ({"policies": ["fifo"], "baseline": "sjf"}, "'sjf' is not among"),
        ({"policies": ["fifo"], "node_events": [NodeLost(5, 9)]}, "host 9"),
        ({"policies": ["fifo"], "node_events": [NodeBack(5, -1)]}, "host -1"),
        ({"policies": ["fifo"], "node_events": [NodeLost(math.nan, 0)]}, "nan"),
        ({"policies": ["nope"]}, "'nope'"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises((InputError, PolicyError)) as caught:
        simulate(JOBS, ONE, **arguments)
    assert why in caught.value.what and caught.value.remedy


def test_a_topology_that_cannot_be_is_refused_before_anything_runs() -> None:
    hosts = Hosts(("n0",), np.array([0]), ("",), *(np.ones(1) for _ in range(3)), np.ones(1, dtype=np.int64), np.ones(1))  # fmt: skip
    with pytest.raises(TopologyError):
        simulate(JOBS, Topology("empty", hosts), ["fifo"])


def test_jobs_in_no_order_are_sorted_by_arrival_ties_kept() -> None:
    mixed = [JOBS[2], JOBS[0], JOBS[1]]
    for given in (mixed, Workload(jobs=tuple(mixed)), lambda seed: Workload(jobs=tuple(mixed))):
        run = simulate(given, ONE, ["fifo"]).runs[0]
        assert times(run) == times(replay(JOBS, ONE, "fifo"))
        check_run(run, JOBS, ONE)
    ties = [job(name, 0, 4, 1) for name in "cab"]
    assert [r.id for r in simulate(ties, ONE, ["fifo"]).runs[0].records] == ["c", "a", "b"]


@pytest.mark.parametrize("origin_s", [-1e6, -0.5, 0.0, 1e6, 1.7e9])
def test_time_may_begin_anywhere(origin_s: float) -> None:
    jobs = [job("a", origin_s, 2, 8), job("b", origin_s + 1, 4, 4), job("c", origin_s + 2, 2, 2)]
    run = replay(jobs, ONE, "fifo", failures=[NodeLost(origin_s - 9, 0), NodeBack(origin_s + 1, 0)])
    check_run(run, jobs, ONE)
    assert run.origin_s == origin_s
    spans = [(s - origin_s, e - origin_s) for s, e in times(run).values() if s is not None and e is not None]
    assert spans == [(1, 9), (9, 13), (13, 15)]


def test_a_wish_for_more_than_there_is_never_lets_anything_through() -> None:
    """Refused jobs change nothing for the others, wherever they stand in the queue."""
    huge = [job(f"huge{n}", n, 5 + n, 10) for n in range(4)]
    odd = [job("odd", 0, 1, 1, required="pod"), job("rare", 0, 1, 1, gpu_type="Z")]
    mixed = sorted([*JOBS, *huge, *odd], key=lambda each: each.submit_s)
    typed = cluster([4], types=["A"])
    for policy in ("fifo", "sjf", "srtf", "tiresias"):
        run = replay(mixed, typed, policy)
        check_run(run, mixed, typed)
        left = {name: span for name, span in times(run).items() if name in "abc"}
        assert left == times(replay(JOBS, ONE, policy))
        assert sum(r.status == "refused" and bool(r.why) for r in run.records) == 6


def test_types_of_which_profiles_do_not_speak_are_named() -> None:
    topology = cluster([1, 1, 1], types=["tesla_v100", "k80", "a100"])
    known = profile(name="known", gpu_speed={"K80": 0.1, "A100": 2.0}, gpu_type="V100")
    model = profile(gpu_speed={"V100": 1.0})

    def said(*jobs: Job, on: Topology = topology) -> list[str]:
        return [
            note for note in simulate(jobs, on, ["fifo", "sjf"], seeds=[0, 1]).notes if "GPU types" in note
        ]

    assert said(job("a", 0, 1, 1, profile=known), job("b", 0, 1, 1)) == []
    assert said(job("a", 0, 1, 1, profile=model, gpu_type="tesla_v100")) == []
    assert said(job("a", 0, 1, 1, profile=model), on=cluster([1, 1], types=["k80", ""])) == []
    (note,) = said(job("a", 0, 1, 1, profile=known), job("b", 0, 1, 1, profile=model))
    assert "no gpu_speed of k80, a100;" in note
    (note,) = said(job("b", 0, 1, 1, profile=model, gpu_type="k80"))
    assert "no gpu_speed of k80;" in note


def test_types_are_left_aside_where_the_cluster_says_none() -> None:
    typed = [msgspec.structs.replace(each, gpu_type=kind) for each, kind in zip(JOBS, "xyx", strict=True)]
    found = simulate([*typed, job("d", 9, 1, 1)], ONE, ["fifo"], seeds=[0, 1])
    plain = simulate([*JOBS, job("d", 9, 1, 1)], ONE, ["fifo"])
    assert times(found.runs[0]) == times(plain.runs[0]) and not found.never_ran
    (note,) = [note for note in found.notes if note.startswith("GPU types")]
    assert note.startswith("GPU types: 3 of 4 jobs ask for one (x, y), and the cluster does not say which")
    assert found.workloads[0][0].gpu_type == "x", "what a job asked for is still told"


def test_types_that_no_host_has_are_refused_by_name_where_the_cluster_says_some() -> None:
    typed = [job("a", 0, 1, 1, gpu_type="a"), job("b", 0, 1, 1, gpu_type="b"), job("c", 0, 9, 1)]
    found = simulate(typed, cluster([1, 1], types=["a", ""]), ["fifo", "srtf"], seeds=[0, 1])
    assert not any(note.startswith("GPU types: ") for note in found.notes)
    assert found.never_ran == {
        "no host has GPUs of type 'b' (there are a)": ("b",),
        "it wants 9 GPUs of one type, more than the cluster has": ("c",),
    }


def test_what_is_recorded_is_what_was_asked_for() -> None:
    little = simulate(JOBS, ONE, ["fifo"], recording=Recording(timeline=False)).runs[0]
    assert len(little.timeline.job) == 0 and little.decisions == () and little.traffic is None
    much = simulate(JOBS, ONE, ["fifo"], recording=Recording(decisions=True, traffic=True)).runs[0]
    assert len(much.timeline.job) == 3 and len(much.decisions) == 3 and much.traffic is not None
    assert much.records == little.records


def test_rules_by_name_and_as_values() -> None:
    assert semantics_by_name("event-driven") == Semantics()
    with pytest.raises(HemiolaError) as caught:
        semantics_by_name("magic")
    assert "'magic'" in caught.value.what and "event-driven" in caught.value.remedy
    run = simulate(JOBS, ONE, ["fifo"], semantics=Semantics(law=Isolated())).runs[0]
    assert "isolated" in run.semantics["contention"]


def test_a_stop_ends_the_comparison_with_the_run_that_it_met() -> None:
    def progress(policy: str, seed: int, ended: int, jobs: int) -> None:
        if policy == "sjf" and ended == 1:
            raise KeyboardInterrupt

    result = simulate(JOBS, ONE, ["fifo", "sjf", "srtf"], seeds=[0, 1], progress=progress)
    assert [(run.policy, run.interrupted) for run in result.runs] == [("fifo", False), ("sjf", True)]
    check_run(result.runs[1], JOBS, ONE)
    result = simulate(JOBS, ONE, ["fifo", "sjf", "srtf"], baseline="srtf", progress=progress)
    assert result.baseline == "fifo", "the one that was asked for has no run"


def test_ctrl_c_is_a_stop_between_two_instants_and_is_handed_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)

    def progress(policy: str, seed: int, ended: int, jobs: int) -> None:
        if ended == 1:
            signal.raise_signal(signal.SIGINT)

    run = simulate(JOBS, ONE, ["fifo"], progress=progress).runs[0]
    assert run.interrupted
    check_run(run, JOBS, ONE)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_of_a_policy_is_not_swallowed_and_the_signal_is_handed_back() -> None:
    class Broken(Fifo):
        def decide(self, view: Any) -> Any:
            raise RuntimeError("mine")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError, match="mine"):
        simulate(JOBS, ONE, [Broken()])
    assert signal.getsignal(signal.SIGINT) is before


def test_faster_links_and_a_kinder_law_never_lengthen_a_lone_job() -> None:
    """Of one job alone this is sure; of many it is not (Graham's anomalies)."""
    ends = []
    for uplink in (0.25, 0.5, 1.0, 2.0, 1e9):
        topology = cluster([2, 2], [2, 2], uplink=uplink, nic=1.0)
        run = replay([job("a", 0, 8, 10, profile=profile(1.0, 1.0)), job("b", 0, 1, 5)], topology, "fifo")
        ends.append(run.records[0].run_s - run.records[0].useful_s)
    assert ends == sorted(ends, reverse=True)


def test_an_elastic_job_may_grow_beyond_the_cluster_that_it_was_recorded_on() -> None:
    elastic = job("a", 0, 8, 100, profile=profile(1.0, 1.0), gpus_max=16)
    found = simulate([elastic], cluster([8, 8], nic=10.0), ["elastic"], recorded_on=cluster([8]))
    assert found.runs[0].records[0].status == "finished"


def test_a_job_that_cannot_have_been_recorded_there_is_refused_before_anything_runs() -> None:
    jobs = [job("a", 0, 1, 10, profile=profile()), job("b", 5, 9, 10, profile=profile())]
    with pytest.raises(InputError, match="'b' wants 9 GPUs, more than small has"):
        simulate(jobs, cluster([8, 8]), [Stubborn()], recorded_on=cluster([8]))
    # of one that can run nowhere it is no matter
    found = simulate(jobs, cluster([8]), ["fifo"], recorded_on=cluster([8]))
    assert [record.status for record in found.runs[0].records] == ["finished", "refused"]


class Stubborn(Policy):
    """Is not to be asked."""

    name = "stubborn"

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        raise AssertionError("something runs")


class Elsewhere(Semantics):
    """Rules under which there are no services."""

    runs_services = False


class Serving(Policy):
    """Knows services, too."""

    name = "serving"
    job_kinds = frozenset({Batch, Elastic, Service})

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return ()


def test_services_are_refused_by_who_would_leave_them_out() -> None:
    chat = Service(id="chat", submit_s=0.0, gpus=1, objective=Objective(0.5))
    workload = Workload(jobs=(job("a", 0.0, 1, 1.0),), services=(chat,))
    with pytest.raises(PolicyError, match=r"'fifo' knows no services.*'chat'"):
        simulate(workload, cluster([4]), ["fifo"])
    with pytest.raises(InputError, match=r"runs no services.*'chat'"):
        simulate(workload, cluster([4]), [Serving()], semantics=Elsewhere())
    with pytest.raises(InputError, match=r"'chat' cannot be simulated: nobody says how long a replica takes"):
        simulate(workload, cluster([4]), [Serving()])
