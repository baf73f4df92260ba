"""Services in the simulated cluster: their queues, their replicas, and what training and inference lend each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import FREE, CheckedMachine, cluster, job
from serving import service

from hemiola.analysis.cluster_metrics import summary
from hemiola.core.decisions import Decision, Lend, Placement, Reclaim, Scale, Start, Stop
from hemiola.core.errors import InputError, PolicyError
from hemiola.core.events import Arrived, Load, NodeBack, NodeLost
from hemiola.core.job import Batch, Elastic, RequestRate, Service, Workload
from hemiola.core.result import Run
from hemiola.core.virtual_cluster import VirtualCluster
from hemiola.report.html import render
from hemiola.sched.policies.fapes import Fapes
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs
from hemiola.simulator.records import ServingRules
from hemiola.simulator.rules import Semantics
from hemiola.simulator.scenario import load_scenario, prepare, run_scenario
from hemiola.simulator.simulate import Recording, simulate
from hemiola.trace.results import comparison_as_json

SPLIT = (VirtualCluster("inference", (0, 1)), VirtualCluster("training", (2, 3)))


# ---- replicas in a cluster ------------------------------------------------------------------


class Scripted(Policy):
    """Scales a service as it is told, by time."""

    name = "scripted"
    job_kinds = frozenset({Batch, Elastic, Service})

    def __init__(self, *plan: tuple[float, tuple[Placement, ...]]) -> None:
        self.plan = list(plan)
        self.seen: list[tuple[float, int, int]] = []

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        state = view.services["chat"]
        while self.plan and self.plan[0][0] <= view.now:
            yield Scale("chat", self.plan.pop(0)[1], "as planned")
        self.seen.append((view.now, len(state.replicas), state.ready))


def at(host: int, gpu: int) -> Placement:
    return Placement((host,), (1 << gpu,))


def run(
    workload: Workload, policy: Policy | str, *, hosts: int = 4, clusters: Any = SPLIT, **more: Any
) -> Run:
    more.setdefault("serving", ServingRules(fidelity="requests", interval_s=5.0))
    topology = cluster([4] * hosts)
    semantics = more.pop("semantics", Semantics(costs=FREE))
    done = simulate(
        workload,
        topology,
        [policy],
        clusters=clusters,
        semantics=semantics,
        recording=Recording(decisions=True),
        **more,
    )
    summary(done.runs[0], topology)  # every GPU-second is accounted for
    return done.runs[0]


def test_a_replica_starts_cold_and_is_ready_and_drains() -> None:
    policy = Scripted((0.0, (at(0, 0),)), (60.0, (at(0, 0), at(0, 1))), (120.0, ()))
    record = run(Workload(jobs=(), services=(service(until_s=200.0, timeout_s=30.0),)), policy).serving
    assert record is not None
    (one,) = record.services
    ready = {now: ready for now, _, ready in policy.seen}
    assert (ready[5.0], ready[10.0], ready[65.0], ready[70.0], ready[120.0]) == (0, 1, 1, 2, 0)
    assert (
        one.starts == 2
        and one.held_gpu_s == pytest.approx(120 + 60)
        and one.ready_gpu_s == pytest.approx(110 + 50)
    )
    assert one.refused > 100 and one.arrived == one.answered + one.refused + one.waiting


def test_a_host_that_fails_takes_its_replicas_with_it() -> None:
    policy = Scripted((0.0, (at(0, 0), at(1, 0))))
    done = run(
        Workload(jobs=(), services=(service(),)), policy, node_events=(NodeLost(100.0, 0), NodeBack(200.0, 0))
    )
    assert done.serving is not None and done.serving.services[0].losses == 1
    assert {ready for now, _, ready in policy.seen if 100.0 <= now < 600.0} == {1}


def test_replicas_that_crash_at_once_are_started_less_and_less_often() -> None:
    done = run(
        Workload(jobs=(), services=(service(until_s=3600.0, replica_life_s=0.0),)),
        "static-split",
        clusters=SPLIT,
    )
    assert done.serving is not None
    losses = done.serving.services[0].losses
    times = [entry.time_s for entry in done.decisions if isinstance(entry.decision, Scale)]
    assert 0 < losses <= 8 * 20, "every 20 s without back-off would be 8 x 180"
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert gaps[-1] >= 300.0 > gaps[0]


def test_a_service_scales_to_zero_and_back() -> None:
    rates = (
        RequestRate(0.0, 4.0),
        RequestRate(300.0, 0.0),
        RequestRate(1500.0, 4.0),
        RequestRate(1800.0, 0.0),
    )
    done = run(Workload(jobs=(), services=(service(arrivals=rates, timeout_s=60.0),)), "elastic")
    assert done.serving is not None
    replicas = {row[0]: row[3] for row in done.serving.services[0].rows}
    assert replicas[200.0] > 0 and replicas[1200.0] == 0 and replicas[1600.0] > 0
    assert done.serving.services[0].refused == 0


# ---- loans ----------------------------------------------------------------------------------


def mixed(jobs: int = 12, rate: float = 6.0, **more: Any) -> Workload:
    several = tuple(job(f"j{i}", 20.0 * i, 4, 300.0, gpus_min=2, gpus_max=8) for i in range(jobs))
    return Workload(jobs=several, services=(service(rate, until_s=2400.0, **more),))


def mean_jct_s(done: Run) -> float:
    return sum(record.jct_s or math.inf for record in done.records) / len(done.records)


def test_loans_shorten_training_and_keep_the_objective() -> None:
    without, lent = (run(mixed(), f"fapes:loans={loans},risk=1") for loans in ("none", "both"))
    assert mean_jct_s(lent) < 0.95 * mean_jct_s(without)
    assert without.serving is not None and lent.serving is not None
    assert lent.serving.loaned_gpu_s > 0 == without.serving.loaned_gpu_s
    assert lent.serving.services[0].slo_attainment >= without.serving.services[0].slo_attainment - 0.005


def test_elastic_is_fapes_without_loans() -> None:
    same = [run(mixed(), policy) for policy in ("elastic", "fapes:loans=none")]
    assert next([r.finish_s for r in one.records] for one in same) == [r.finish_s for r in same[1].records]


def test_without_requests_training_has_all_that_can_be_lent() -> None:
    """Nobody ever asked in ten minutes: the policy is the elastic one on the whole cluster."""
    idle = mixed(rate=0.0)
    early = msgspec.structs.replace(idle.services[0], submit_s=-600.0)
    idle = msgspec.structs.replace(idle, services=(early,))
    lent = run(idle, "fapes:risk=1", serving=ServingRules(interval_s=0.5))
    alone = simulate(
        Workload(jobs=idle.jobs), cluster([4] * 4), ["elastic"], semantics=Semantics(costs=FREE)
    ).runs[0]
    assert mean_jct_s(lent) == pytest.approx(mean_jct_s(alone), rel=0.02)


def test_inference_borrows_when_its_own_hosts_are_too_few() -> None:
    """Needs about ten replicas and has eight; training gives one of its two hosts."""
    asked = mixed(jobs=3, rate=34.0, replicas_max=16)
    fluid = ServingRules(interval_s=5.0)
    lent, one_way = (run(asked, f"fapes:loans={loans}", serving=fluid) for loans in ("both", "to-training"))
    assert lent.serving is not None and one_way.serving is not None
    assert lent.serving.services[0].slo_attainment > one_way.serving.services[0].slo_attainment + 0.05
    borrowed = [
        entry.decision for entry in lent.decisions if isinstance(entry.decision, Lend) and not entry.refused
    ]
    assert {(one.lender, one.borrower) for one in borrowed} >= {("training", "inference")}


def test_a_burst_takes_lent_hosts_back_and_jobs_shrink_or_stop() -> None:
    rates = (RequestRate(0.0, 0.5), RequestRate(600.0, 24.0), RequestRate(1200.0, 0.0))
    asked = msgspec.structs.replace(mixed(), services=(service(arrivals=rates),))
    done = run(asked, "fapes:risk=1,loans=to-training")
    back = [
        entry
        for entry in done.decisions
        if isinstance(entry.decision, Reclaim) and entry.decision.lender == "inference"
    ]
    assert back and not any(entry.refused for entry in back)
    assert all(record.status == "finished" for record in done.records)


@pytest.mark.parametrize("save_s", [5.0, 500.0])
def test_inference_waits_for_training_no_longer_than_the_deadline(save_s: float) -> None:
    """Jobs that save longer than until the deadline are killed at it, and do again what they had not saved."""
    rates = (RequestRate(0.0, 0.5), RequestRate(600.0, 24.0), RequestRate(1200.0, 0.0))
    asked = Workload(jobs=mixed().jobs, services=(service(arrivals=rates, replicas_max=8),))
    costs = Costs(checkpoint_s=save_s, restore_s=0.0)
    done = run(asked, "fapes:risk=1,loans=to-training,reclaim_s=30", semantics=Semantics(costs=costs))
    assert done.serving is not None
    ready = {row[0]: row[4] for row in done.serving.services[0].rows}
    told_s, cold_s = 605.0, 10.0
    assert ready[600.0] < 8 and ready[told_s + min(save_s, 30.0) + cold_s + 5.0] == 8
    lost_s = sum(record.lost_s for record in done.records)
    assert (lost_s > 0) == (save_s > 30.0) and all(record.status == "finished" for record in done.records)


def test_a_host_that_is_lost_while_lent_is_its_owners_debt() -> None:
    """It goes home although it is down, and is not lent again before it is back."""
    done = run(mixed(rate=0.5), "fapes:risk=1", node_events=(NodeLost(300.0, 1), NodeBack(900.0, 1)))
    assert done.serving is not None and all(record.status == "finished" for record in done.records)
    lent = [
        entry.time_s
        for entry in done.decisions
        if isinstance(entry.decision, Lend) and 1 in entry.decision.hosts
    ]
    assert lent and not any(300.0 < time_s < 900.0 for time_s in lent)


def test_two_services_that_want_the_same_gpus_both_get_some() -> None:
    both = (service(20.0, until_s=900.0), msgspec.structs.replace(service(20.0, until_s=900.0), id="code"))
    done = run(Workload(jobs=(), services=both), "elastic", serving=ServingRules(interval_s=5.0))
    assert done.serving is not None
    starts = [one.starts for one in done.serving.services]
    assert min(starts) >= 3


def test_a_replica_that_fits_nowhere_is_refused() -> None:
    wide = msgspec.structs.replace(service(), gpus=64)
    with pytest.raises(InputError, match="a replica of service 'chat' could never run here"):
        run(Workload(jobs=(), services=(wide,)), "elastic")


def test_whoever_shares_needs_two_virtual_clusters() -> None:
    with pytest.raises(PolicyError, match="give one virtual cluster for services and one for jobs"):
        run(mixed(), "fapes", clusters=())
    with pytest.raises(PolicyError, match="loans is 'maybe'"):
        Fapes(loans="maybe")
    with pytest.raises(PolicyError, match="lends by itself"):
        Fapes(training="lyra")


def test_a_training_policy_with_rounds_is_woken_and_sees_its_part_alone() -> None:
    """Gandiva's time slices are those that it gives on a cluster of training's size."""
    several = tuple(job(f"j{i}", 0.0, 4, 2000.0) for i in range(4))
    asked = Workload(jobs=several, services=(service(1.0, until_s=4000.0),))
    done = run(asked, "fapes:training=gandiva,loans=none")
    alone = simulate(asked.jobs, cluster([4] * 2), ["gandiva"], semantics=Semantics(costs=FREE)).runs[0]
    assert [one.first_start_s for one in done.records] == [one.first_start_s for one in alone.records]
    assert [one.preemptions for one in done.records] == [1, 1, 1, 1]


def test_lyra_lends_to_training_only() -> None:
    done = run(mixed(), "lyra")
    assert done.serving is not None and all(record.status == "finished" for record in done.records)
    assert {one.decision.lender for one in done.decisions if isinstance(one.decision, Lend)} <= {"inference"}


def test_a_forecast_that_is_three_times_too_high_costs_training_and_not_the_objective() -> None:
    right, wrong = (
        run(mixed(), f"fapes:risk=1,autoscaler=forecast/headroom={times}") for times in (1.15, 3.45)
    )
    assert right.serving is not None and wrong.serving is not None
    assert wrong.serving.services[0].slo_attainment >= right.serving.services[0].slo_attainment - 1e-9
    assert wrong.serving.loaned_gpu_s <= right.serving.loaned_gpu_s


class Watched(Policy):
    """Fapes, with every state between two decisions checked."""

    name = "watched"
    job_kinds = Fapes.job_kinds

    def __init__(self, inner: Policy) -> None:
        self.inner = inner

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        for decision in self.inner.decide(view):
            yield decision
            _check_hands(view)


def _check_hands(view: ClusterView) -> None:
    """Whoever runs on a host has it: its owner, or to whom it is lent."""
    owner = {host: name for name, part in view.clusters.items() for host in part.hosts}
    for host, loan in view.loans.items():
        assert owner[host] == loan.lender != loan.borrower and loan.since_s <= view.now
    hand = {host: view.loans[host].borrower if host in view.loans else name for host, name in owner.items()}
    for state in view.services.values():
        assert {hand[place.hosts[0]] for place in state.replicas} <= {"inference"}
    for running in view.running.values():
        assert running.placement is not None
        assert {hand[host] for host in running.placement.hosts} <= {"training"}


@settings(max_examples=25)
@given(st.data())
def test_gpus_are_conserved_and_nothing_is_lent_twice(data: st.DataObject) -> None:
    draw = data.draw
    times = sorted(draw(st.lists(st.integers(1, 1200), min_size=2, max_size=5, unique=True)))
    rates = (
        RequestRate(0.0, draw(st.floats(0, 30))),
        *(RequestRate(float(t), draw(st.floats(0, 30))) for t in times),
    )
    asked = service(
        arrivals=(*rates, RequestRate(1300.0, 0.0)), cold_start_s=draw(st.floats(0, 60)), replicas_max=12,
        replica_life_s=draw(st.sampled_from([None, 400.0, 0.0])), timeout_s=30.0,
    )  # fmt: skip
    jobs = tuple(
        job(f"j{i}", float(draw(st.integers(0, 900))), gpus, float(draw(st.integers(10, 600))), **sizes)
        for i, (gpus, sizes) in enumerate(
            draw(
                st.lists(
                    st.sampled_from(
                        [(1, {}), (4, {}), (2, {"gpus_max": 6}), (6, {"gpus_min": 2, "gpus_max": 12})]
                    ),
                    max_size=8,
                )
            )
        )
    )
    lost = draw(st.integers(0, 3))
    inner = draw(
        st.sampled_from(
            [Fapes(risk=1.0), Fapes(risk=0.3, cost="servers"), Fapes(training="fifo-backfill", risk=1.0)]
        )
    )
    done = run(
        Workload(jobs=jobs, services=(asked,)), Watched(inner), serving=ServingRules(interval_s=15.0),
        node_events=(NodeLost(500.0, lost), NodeBack(700.0, lost)),
    )  # fmt: skip
    assert done.serving is not None
    (one,) = done.serving.services
    assert one.arrived == pytest.approx(one.answered + one.refused + one.waiting)
    refused = [entry for entry in done.decisions if entry.refused]
    assert not refused, refused[:1]


def test_what_ignores_the_recall_is_stopped_at_the_deadline() -> None:
    """A job whose shrinking and stopping came to nothing still runs on the host when it should be back."""
    machine = CheckedMachine(
        ClusterView(cluster([4] * 4), Semantics(costs=FREE).estimates(None), clusters=SPLIT)
    )  # type: ignore[arg-type]
    machine.apply(Arrived(0.0, job("a", 0.0, 4, 1e5)), Arrived(0.0, service()))
    policy = Fapes(risk=0.0, training="fifo")
    assert not machine.execute(Lend((1,), "inference", "training", math.inf, ""))
    assert not machine.execute(Start("a", Placement((1,), (0b1111,)), ""))
    assert not machine.execute(Reclaim((1,), "inference", 30.0, ""))
    machine.apply(Load(29.0, "chat", 0.0, 0, 0.0))
    assert not any(isinstance(one, Stop) for one in _decided(machine, policy))
    machine.apply(Load(31.0, "chat", 0.0, 0, 0.0))
    assert any(
        isinstance(one, Stop) and "was to be back with inference" in one.reason
        for one in _decided(machine, policy)
    )
    assert 1 not in machine.view.loans


def _decided(machine: CheckedMachine, policy: Policy) -> list[Decision]:
    made = []
    for decision in policy.decide(machine.view):
        machine.execute(decision)
        made.append(decision)
    return made


# ---- scenarios ------------------------------------------------------------------------------

SCENARIO = """
workload = "generated:jobs=12,gpus=8,load=0.8,mix=philly,largest=4,duration_max=10min,elastic=0.5"
cluster = "flat:hosts=4,gpus_per_host=4"
policies = ["static-split", "fapes"]
serving = "requests"
[clusters]
inference = "0-1"
training = "2,3"
[[services]]
id = "chat"
gpus = 1
objective = { latency_s = 1.0 }
latency = { batches = [{ batch = 1, seconds = 0.25 }] }
replicas_max = 8
requests_from = { path = "rates.csv", each_seed_s = 600.0, span_s = 600.0 }
"""


def test_a_scenario_names_clusters_and_services(tmp_path: Any) -> None:
    (tmp_path / "s.toml").write_text(SCENARIO)
    (tmp_path / "rates.csv").write_text("time_s,requests_per_s\n0,3\n600,9\n1200,1\n1800,1\n")
    prepared = prepare(load_scenario(tmp_path / "s.toml"))
    assert prepared.clusters == SPLIT
    rates = [
        [rate.requests_per_s for rate in prepared.workload(seed).services[0].arrivals] for seed in (0, 1)
    ]
    assert rates == [[3.0, 0.0], [9.0, 0.0]]
    done = run_scenario(load_scenario(tmp_path / "s.toml"))
    figures = [summary(one, done.topology) for one in done.runs]
    assert all(one.slo_attainment is not None and one.requests_arrived for one in figures)
    assert figures[0].requests_arrived == figures[1].requests_arrived, "the same requests for every policy"
    text = comparison_as_json(done)["runs"][1]
    assert text["ceiling"] >= 1.0 and text["services"][0]["id"] == "chat" and "loaned_gpu_s" in text
    drawn = render(done)
    assert (
        "Services and loans" in drawn
        and "GPUs in other hands" in drawn
        and "Requests answered in time" in drawn
    )


def test_a_virtual_cluster_of_hosts_that_are_not_there_is_refused(tmp_path: Any) -> None:
    (tmp_path / "rates.csv").write_text("time_s,requests_per_s\n0,3\n600,9\n1200,1\n")
    for hosts, why in (("0-9", "there is no host"), ("1-x", "there is no host|no number"), ("", "no number")):
        (tmp_path / "s.toml").write_text(SCENARIO.replace('"0-1"', f'"{hosts}"'))
        with pytest.raises(InputError, match=why):
            prepare(load_scenario(tmp_path / "s.toml"))
