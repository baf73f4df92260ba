"""PD-ORS: the known answers of its specification, its failure cases, and runs through the simulator."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from replays import FREE, cluster, job, profile, replay
from rich.console import Console

from hemiola.analysis.cluster_metrics import summary
from hemiola.core.decisions import EVERY_ABILITY, Decision, Move, Placement, Reallocate, Resize, Start, Stop
from hemiola.core.errors import PolicyError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.job import Batch, Utility, Workload, batch_job
from hemiola.core.resources import ResourceRequest, Resources, Roles
from hemiola.core.result import LoggedDecision, Run
from hemiola.core.topology import Topology
from hemiola.report.table import table
from hemiola.sched.optimise.curve import Fabric, best_schedule
from hemiola.sched.optimise.offer import JobOffer
from hemiola.sched.optimise.prices import Ledger, PriceLaw, law_in_theory
from hemiola.sched.policies import policy_from_text
from hemiola.sched.policies.pd_ors import PdOrs
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.rules import Semantics
from hemiola.simulator.simulate import Recording, simulate
from hemiola.trace.workloads import read_workload
from hemiola.trace.workloads.native import write_workload

INSIDE, ACROSS, PARAMETERS, SAMPLE_S, BATCH = 1e5, 2.5e4, 50.0, 5e-4, 4
JOBS = (
    ("0", 0, 4000, 2, (1, 2), (20.0, 1.0, 2.0)),
    ("1", 0, 3000, 1, (1, 1), (5.0, 0.0, 2.0)),
    ("2", 1, 2000, 2, (2, 1), (40.0, 3.0, 1.0)),
)
"""T3 of the specification: (name, arrival, samples, gamma, (GPUs, CPUs) of a worker, theta); a server has 1 CPU."""
CAPACITY = np.array([[4.0, 8.0], [2.0, 8.0]])


def roles(gamma: int, gpus: int = 1, cpus: float = 1.0, server_cpus: float = 1.0) -> Roles:
    return Roles(
        workers_per_server=gamma, batch_samples=BATCH, sample_s=SAMPLE_S, parameter_bytes=PARAMETERS,
        inside_bytes_per_s=INSIDE, across_bytes_per_s=ACROSS, gpus_per_worker=gpus, worker_cpus=cpus,
        server_cpus=server_cpus,
    )  # fmt: skip


def offer(
    name: str,
    arrival: int,
    samples: int,
    gamma: int,
    alpha: tuple[int, int],
    theta: tuple[float, float, float],
) -> JobOffer:
    """A job of T3, in slots of a second."""
    workers = np.arange(1, BATCH + 1)
    slots_per_sample = [SAMPLE_S + gamma * 2 * PARAMETERS / (rate * BATCH) for rate in (INSIDE, ACROSS)]
    return JobOffer(
        name, arrival, samples, workers, -(-workers // gamma), np.array([workers / one for one in slots_per_sample]),
        np.array(alpha, float), np.array((0.0, 1.0)), Utility(*theta).log_at,
    )  # fmt: skip


def job_of(
    name: str,
    arrival: int,
    samples: int,
    gamma: int,
    alpha: tuple[int, int],
    theta: tuple[float, float, float],
) -> Batch:
    """The same as a job of a workload; it may have as many workers as there are GPUs for."""
    its = roles(gamma, *alpha)
    gpus = min(BATCH * alpha[0], 4)
    return batch_job(
        id=name, submit_s=float(arrival), gpus=gpus, gpus_min=alpha[0], gpus_max=gpus, utility=Utility(*theta),
        duration_s=samples / BATCH * its.iteration_s(gpus, inside=True), resources=ResourceRequest(roles=its),
    )  # fmt: skip


def machines() -> Topology:
    """(GPU, CPU) = (4, 8), (2, 8)."""
    plain = cluster([4, 2])
    return replace(plain, hosts=replace(plain.hosts, resources=(Resources(cpus=8.0), Resources(cpus=8.0))))


def test_t1_prices_and_whom_they_admit() -> None:
    law = PriceLaw.between(0.5, [8.0])
    assert law.price(np.array([[0.0], [0.5], [1.0]]))[:, 0] == pytest.approx([0.5, 2.0, 8.0])
    ledger = Ledger(np.array([[2.0]]), 1, law)
    payoffs = []
    for n, worth in enumerate((1.0, 1.5, 3.0, 8.0)):
        one = np.ones(1)
        unit = JobOffer(
            str(n), 0, 1.0, np.array([1]), np.array([0]), np.array([[1.0], [1.0]]), one, 0 * one,
            lambda d, worth=worth: math.log(worth),
        )  # fmt: skip
        found = best_schedule(unit, ledger, Fabric.flat(1))
        payoffs.append(-math.inf if found is None else found.payoff)
        if found is not None and found.payoff > 0:
            ledger.promise(0, np.array([0]), np.array([[1.0]]))
    assert payoffs[:3] == pytest.approx([0.5, -0.5, 1.0])
    assert payoffs[3] == -math.inf  # full; its payoff at the price of a full host is 8 - 8 = 0
    assert 11 / 4 <= law.ratio == pytest.approx(2 * math.log(16))


def test_t2_what_a_sample_takes_by_locality() -> None:
    one = offer(*JOBS[0])
    assert one.workers / one.rates == pytest.approx(np.array([[0.001] * 4, [0.0025] * 4]))


def test_t3_prices_plans_and_payoffs() -> None:
    offers = [offer(*row) for row in JOBS]
    law = law_in_theory(offers, CAPACITY, 3)
    assert np.exp(law.log_high) == pytest.approx([14.6211716, 10.0])
    assert [math.exp(h - k) for h, k in zip(law.log_high, law.kappa, strict=True)] == pytest.approx(
        [0.0107786075] * 2
    )
    ledger, payoffs, places = Ledger(CAPACITY, 3, law), [], []
    for one in offers:
        found = best_schedule(one, ledger, Fabric.flat(2), since=one.arrival)
        assert found is not None
        payoffs.append(found.payoff)
        places.append([(p.slot, p.hosts, p.workers, p.servers) for p in found.slots])
        for p in found.slots:
            ledger.promise(p.slot, np.array(p.hosts), one.takes(np.array(p.workers), np.array(p.servers)))
    assert payoffs == pytest.approx([9.849099, 2.402993, 19.924550], abs=1e-6)
    assert places == [
        [(0, (1,), (2,), (1,)), (1, (1,), (2,), (1,))],
        [(0, (0,), (3,), (3,))],
        [(1, (0,), (2,), (1,))],
    ]
    assert (ledger.used <= CAPACITY + 1e-9).all()


def run_t3(**more: object) -> Run:
    law = PriceLaw.between(0.0107786075, (14.6211716, 10.0))
    policy = PdOrs(mode="theory", slot_s=1.0, horizon_slots=3, law=law, **more)  # type: ignore[arg-type]
    return replay([job_of(*row) for row in JOBS], machines(), policy, costs=FREE)


def test_t3_through_the_simulator() -> None:
    run = run_t3()
    assert [record.utility for record in run.records] == pytest.approx([10.0, 2.5, 20.0])
    assert [record.finish_s for record in run.records] == pytest.approx([2.0, 0.75, 2.0])
    assert run.certificate is not None
    assert run.certificate >= 32.5 - 1e-9
    reasons = [entry.decision.reason for entry in run.decisions]
    assert any("payoff 9.849" in reason for reason in reasons)


def worth(
    name: str, submit_s: float, gpus: int, duration_s: float, value: float = 10.0, **more: object
) -> Batch:
    """A job whose time does not matter, worth so much."""
    return job(name, submit_s, gpus, duration_s, utility=Utility(2 * value), **more)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "text", ["pd-ors", "pd-ors:mode=theory", "oasis", "earliest-finish", "fifo", "drf", "optimus"]
)
def test_workers_and_servers_run_under_every_policy(text: str) -> None:
    run = replay([job_of(*row) for row in JOBS], machines(), text, costs=FREE)
    assert {record.status for record in run.records} == {"finished"}
    starts = [entry.decision for entry in run.decisions if isinstance(entry.decision, Start)]
    for start in starts:
        row = next(row for row in JOBS if row[0] == start.job_id)
        workers = start.placement.gpus // row[4][0]
        assert sum(count for _, count in start.placement.servers) == -(-workers // row[3])


def test_a_placement_without_its_servers_is_refused() -> None:
    wanted = job_of(*JOBS[0])

    @dataclass(frozen=True)
    class Careless(Policy):
        placement: Placement
        name = "careless"

        def decide(self, view: ClusterView) -> Iterable[Decision]:
            if view.waiting:
                yield Start(wanted.id, self.placement, "to see what happens")
                yield Start(wanted.id, Placement((0,), (0b11,), ((0, 1),)), "as it should be")

    for wrong, why in (
        (Placement((0,), (0b11,)), "it wants 1 parameter servers, the placement has 0"),
        (Placement((0,), (0b11,), ((0, 2),)), "it wants 1 parameter servers, the placement has 2"),
        (Placement((0,), (0b11,), ((7, 1),)), "a host of its parameter servers is down, or not there"),
        (Placement((0,), (0b1111,), ((0, 2),)), "n0 has 8 CPUs left, and it needs 10"),
    ):
        run = replay([wanted], machines(), Careless(wrong), costs=FREE)
        assert run.decisions[0].refused == why
        assert run.records[0].status == "finished"


def test_servers_apart_from_their_workers_are_slower_as_the_formula_says() -> None:
    wanted = job_of(*JOBS[0])

    @dataclass(frozen=True)
    class Apart(Policy):
        name = "apart"

        def decide(self, view: ClusterView) -> Iterable[Decision]:
            if view.waiting:
                yield Start(wanted.id, Placement((0,), (0b11,), ((1, 1),)), "workers here, the server there")

    run = replay([wanted], machines(), Apart(), costs=FREE)
    assert run.records[0].finish_s == pytest.approx(4000 * 0.0025 / 2)
    assert run.records[0].tiers_s == pytest.approx((0.0, 5.0))


def test_a_host_that_holds_servers_alone_takes_the_job_with_it() -> None:
    wanted = job_of(*JOBS[0])

    @dataclass(frozen=True)
    class Apart(Policy):
        name = "apart"

        def decide(self, view: ClusterView) -> Iterable[Decision]:
            if view.waiting and not view.inventory.down[1]:
                yield Start(wanted.id, Placement((0,), (0b11,), ((1, 1),)), "workers here, the server there")

    run = replay([wanted], machines(), Apart(), costs=FREE, failures=[NodeLost(1.0, 1), NodeBack(3.0, 1)])
    assert run.records[0].finish_s == pytest.approx(3.0 + 5.0)  # nothing was saved


def test_who_does_not_pay_is_declined_with_payoff_and_price_and_takes_what_is_left() -> None:
    law = PriceLaw.scaled(1.0, [5.0])
    jobs = [worth("rich", 0.0, 4, 90.0, 1000.0), worth("poor", 0.0, 4, 30.0, 0.001)]
    run = replay(jobs, cluster([4]), PdOrs(mode="theory", slot_s=10.0, law=law), costs=FREE)
    rich, poor = run.records
    assert rich.finish_s == pytest.approx(90.0)
    assert not rich.declined
    assert poor.declined.startswith("payoff -")
    assert "price is" in poor.declined
    assert poor.status == "finished"  # after all, on what no plan uses
    assert poor.first_start_s == pytest.approx(90.0)


def test_a_declined_job_never_runs_if_so_asked_and_has_a_status_of_its_own() -> None:
    law = PriceLaw.scaled(1.0, [5.0])
    policy = PdOrs(mode="theory", slot_s=10.0, law=law, declined="reject")
    run = replay([worth("poor", 0.0, 4, 30.0, 0.001)], cluster([4]), policy, costs=FREE)
    (poor,) = run.records
    assert poor.status == "declined"
    assert poor.why == poor.declined
    assert poor.utility == 0.0
    figures = summary(run, cluster([4]))
    assert (figures.jobs_declined, figures.jobs_unfinished, figures.utility) == (1, 1, 0.0)


def test_a_job_too_long_for_the_horizon_is_declined_in_theory_and_planned_in_part_in_practice() -> None:
    jobs = [worth("long", 0.0, 4, 1000.0)]
    theory = replay(jobs, cluster([4]), PdOrs(mode="theory", slot_s=10.0, horizon_slots=5), costs=FREE)
    assert "no slots within the horizon" in theory.records[0].declined
    assert theory.records[0].finish_s == pytest.approx(1000.0)
    practice = replay(jobs, cluster([4]), PdOrs(slot_s=10.0, horizon_slots=5), costs=FREE)
    assert not practice.records[0].declined
    assert practice.records[0].finish_s == pytest.approx(1000.0)


def test_a_critical_job_whose_utility_underflows_prices_nothing_at_0_and_runs() -> None:
    critical = job("critical", 0.0, 2, 5.0, utility=Utility(50.0, 6.0, 5.0))
    run = replay(
        [critical, worth("other", 0.0, 2, 40.0)], cluster([4]), PdOrs(mode="theory", slot_s=10.0), costs=FREE
    )
    assert {record.status for record in run.records} == {"finished"}


@pytest.mark.parametrize("favour", ["packing", "cover"])
def test_t3_with_the_program_relaxed_and_rounded_reaches_as_much(favour: str) -> None:
    run = run_t3(rounding=favour)
    assert sum(record.utility or 0.0 for record in run.records) == pytest.approx(32.5)


@pytest.mark.parametrize("text", ["fifo", "drf", "pd-ors", "pd-ors:mode=theory"])
def test_every_run_has_a_certificate_that_it_does_not_exceed(text: str) -> None:
    jobs = [
        worth(f"j{n}", 5.0 * n, 1 + n % 4, 20.0 + n, 5.0 + n, profile=profile(1.0, 1.0)) for n in range(8)
    ]
    run = replay(jobs, cluster([4, 4], [4]), text, costs=FREE)
    figures = summary(run, cluster([4, 4], [4]))
    assert figures.certificate is not None
    assert figures.utility is not None
    assert figures.utility <= figures.certificate * (1 + 1e-9)
    assert figures.certificate <= sum(job.utility.value for job in jobs if job.utility)
    assert figures.decision_p50_s is not None
    assert figures.decision_p99_s is not None
    assert 0 <= figures.decision_p50_s <= figures.decision_p99_s


def test_nobody_has_a_certificate_where_nothing_is_worth_anything() -> None:
    run = replay([job("a", 0.0, 1, 5.0)], cluster([4]), "pd-ors", costs=FREE)
    assert run.certificate is None
    assert run.records[0].utility is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("pd-ors:mode=fast", "mode is 'fast'"), ("pd-ors:declined=lost", "declined is 'lost'"),
        ("pd-ors:slot_s=0", "slot_s is 0.0"), ("pd-ors:kappa=701", "kappa is 701.0"),
        ("pd-ors:rounding=up", "rounding is 'up'"), ("pd-ors:delta=1", "delta is 1.0"), ("pd-ors:law=x", "law is 'x'"),
        ("drf:period_s=0", "period_s is 0.0"), ("optimus:period_s=nan", "period_s is nan"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(text: str, named: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(named)):
        policy_from_text(text)


def test_utility_and_roles_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    before = Workload(jobs=(job_of(*JOBS[2]), worth("plain", 3.0, 2, 5.0)))
    write_workload(before, tmp_path / "jobs.json")
    assert read_workload(tmp_path / "jobs.json").jobs[0].roles == job_of(*JOBS[2]).roles
    assert [one.utility for one in read_workload(tmp_path / "jobs.json").jobs] == [
        one.utility for one in before.jobs
    ]


def test_drf_gives_the_next_part_to_whom_it_has_given_least() -> None:
    jobs = [
        job("a1", 0.0, 4, 1000.0, user="ann", gpus_min=1, gpus_max=8), job("a2", 0.0, 4, 1000.0, user="ann", gpus_min=1, gpus_max=8),
        job("b", 0.0, 4, 1000.0, user="bob", gpus_min=1, gpus_max=8),
    ]  # fmt: skip
    run = replay(jobs, cluster([8]), "drf:period_s=10", costs=FREE)
    last = {entry.decision.job_id: entry.decision.placement.gpus for entry in run.decisions if entry.time_s == 10.0
            for entry in _parts(entry)}  # fmt: skip
    assert last == {"a1": 2, "a2": 2, "b": 4}


def test_optimus_gives_the_next_part_to_whom_it_saves_most() -> None:
    jobs = [
        job("long", 0.0, 1, 4000.0, gpus_min=1, gpus_max=4), job("short", 0.0, 1, 100.0, gpus_min=1, gpus_max=4),
    ]  # fmt: skip
    run = replay(jobs, cluster([4]), "optimus:period_s=10", costs=FREE)
    first = {entry.decision.job_id: entry.decision.placement.gpus for entry in run.decisions if entry.time_s == 10.0
             for entry in _parts(entry)}  # fmt: skip
    assert first == {"long": 3}  # (3990 - 1995), (1995 - 1330) s saved by the second and third, against 45 s


def _parts(entry: LoggedDecision) -> list[LoggedDecision]:
    changes = entry.decision.changes if isinstance(entry.decision, Reallocate) else (entry.decision,)
    return [
        LoggedDecision(entry.time_s, change, 0, 0)
        for change in changes
        if isinstance(change, Start | Resize | Move)
    ]


def test_plans_do_not_depend_on_the_order_of_machines() -> None:
    offers, law = [offer(*row) for row in JOBS], PriceLaw.scaled(3.0, [10.0, 5.0])
    found = []
    for order in ([0, 1], [1, 0]):
        ledger, payoffs = Ledger(CAPACITY[order], 3, law), []
        for one in offers:
            plan = best_schedule(one, ledger, Fabric.flat(2), since=one.arrival)
            assert plan is not None
            payoffs.append(plan.payoff)
            for p in plan.slots:
                ledger.promise(p.slot, np.array(p.hosts), one.takes(np.array(p.workers), np.array(p.servers)))
        found.append(payoffs)
    assert found[0] == pytest.approx(found[1])


def test_the_table_shows_utility_only_where_somebody_has_any() -> None:
    with_it = [worth("a", 0.0, 1, 5.0)]
    for jobs, shown in ((with_it, True), ([job("a", 0.0, 1, 5.0)], False)):
        comparison = simulate(jobs, cluster([4]), ["pd-ors", "fifo"])
        console = Console(width=200, record=True, file=StringIO())
        console.print(table(comparison))
        assert all(not record.declined for run in comparison.runs for record in run.records)
        assert ("of bound" in console.export_text()) is shown


@pytest.mark.parametrize(
    "text", ["pd-ors:slot_s=10", "pd-ors:slot_s=10,mode=theory", "drf:period_s=10", "optimus:period_s=10"]
)
@pytest.mark.parametrize("lacks", [{Resize}, {Move}, {Stop}, {Reallocate}])
def test_an_engine_that_can_less_runs_them_all(text: str, lacks: set[type]) -> None:
    """What it refuses once is not asked again and again."""
    jobs = [worth(f"j{n}", 7.0 * n, 2 + n % 3, 60.0, 1.0 + n % 5, gpus_min=1, gpus_max=6) for n in range(8)]
    rules = Semantics(costs=FREE, supports=EVERY_ABILITY - lacks)
    run = simulate(jobs, cluster([4, 4]), [text], semantics=rules, recording=Recording(decisions=True)).runs[
        0
    ]
    assert {record.status for record in run.records} == {"finished"}
    assert run.decisions_refused <= (8 if "pd-ors" in text else 24)
