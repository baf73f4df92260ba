"""Figures against known answers, brute force and the laws they must keep."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from report_build import cluster, comparison, jobs, simulate, simulate_with_queue

from hemiola.analysis.cluster_metrics import conservation, finish_time_fairness, summary
from hemiola.core.errors import InputError, InternalError
from hemiola.core.result import Comparison, Run
from hemiola.core.timeline import queue_series
from hemiola.core.topology import Topology
from hemiola.report.metrics import Figures, difference, interval
from hemiola.report.words import never_ran, no_job_ended, unfinished


def brute_rho(run: Run, topology: Topology, index: int) -> float:
    record = run.records[index]
    assert record.finish_s is not None
    others = [(r.submit_s, run.end_s if r.finish_s is None else r.finish_s) for r in run.records]
    present = sum(max(0.0, min(e, record.finish_s) - max(s, record.submit_s)) for s, e in others)
    life = record.finish_s - record.submit_s
    return life / (record.ideal_s * max(1.0, record.gpus * present / life / topology.gpus))


def test_summary_of_a_run_by_hand():
    topology = cluster()
    run = simulate(topology, jobs(30, 1), "fifo", 1)
    found = summary(run, topology)
    jct = [record.jct_s for record in run.records]
    assert found.jobs_submitted == found.jobs_finished == 30
    assert found.jct_mean_s == pytest.approx(sum(jct) / 30)
    assert found.jct_p50_s == pytest.approx((sorted(jct)[14] + sorted(jct)[15]) / 2)
    assert found.makespan_s == max(r.finish_s for r in run.records) - run.records[0].submit_s
    spent = run.gpu_seconds
    assert found.exposed_communication_fraction == spent.exposed_communication / (
        spent.exposed_communication + spent.useful
    )
    assert 0 < found.gpu_utilization < 1


def test_what_is_not_known_is_none():
    topology = cluster()
    run = simulate(topology, jobs(5, 0), "fifo", 0, stop_s=1000.5)
    found = summary(run, topology)
    assert found.jobs_finished == 0
    assert found.jobs_unfinished == len(run.records)
    assert found.jct_mean_s is found.jct_p99_s is found.queueing_mean_s is found.fairness.rho_mean is None


@pytest.mark.parametrize("policy", ["fifo", "sjf", "srtf"])
@pytest.mark.parametrize("stop_s", [math.inf, 9000.0])
def test_fairness_equals_brute_force(policy, stop_s):
    topology = cluster()
    run = simulate(topology, jobs(40, 3), policy, 3, stop_s)
    rho = finish_time_fairness(run, topology)
    for index, record in enumerate(run.records):
        if record.status == "finished":
            assert rho[index] == pytest.approx(brute_rho(run, topology, index))
        else:
            assert math.isnan(rho[index])


def test_a_job_alone_is_treated_fairly():
    topology = cluster()
    run = simulate(topology, jobs(1, 5), "fifo", 0)
    record = run.records[0]
    assert finish_time_fairness(run, topology)[0] == pytest.approx(record.run_s / record.ideal_s)


def test_lost_gpu_seconds_are_noticed():
    topology = cluster()
    run = simulate(topology, jobs(10, 0), "fifo", 0)
    conservation(run, topology)
    spent = msgspec.structs.replace(run.gpu_seconds, useful=run.gpu_seconds.useful * (1 + 1e-6))
    with pytest.raises(InternalError, match="GPU-seconds are accounted for"):
        conservation(msgspec.structs.replace(run, gpu_seconds=spent), topology)
    shifted = msgspec.structs.replace(run.gpu_seconds, lost=-5000.0, useful=run.gpu_seconds.useful + 5000.0)
    with pytest.raises(InternalError, match="negative"):
        conservation(msgspec.structs.replace(run, gpu_seconds=shifted), topology)


def test_a_job_in_no_known_state_is_noticed():
    topology = cluster()
    run = simulate(topology, jobs(3, 0), "fifo", 0)
    records = (msgspec.structs.replace(run.records[0], status="vanished"), *run.records[1:])
    with pytest.raises(InternalError, match="vanished"):
        conservation(msgspec.structs.replace(run, records=records), topology)


def test_interval_of_known_values():
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.seeds) == (2.0, 3)
    assert found.high - found.mean == pytest.approx(4.303 / math.sqrt(3))
    assert interval([7.0]).low is None
    assert interval([4.0, 4.0]).low == 4.0


def test_interval_with_many_seeds_is_never_too_narrow():
    values = [float(i % 2) for i in range(40)]
    half = interval(values).high - interval(values).mean
    assert half == pytest.approx(2.042 * np.std(values, ddof=1) / math.sqrt(40))


def test_difference_is_paired_by_seed():
    found = comparison(seeds=(0, 1, 2), policies=("fifo", "sjf"))
    by_hand = [
        summary(found.run("sjf", s), found.topology).jct_mean_s
        / summary(found.run("fifo", s), found.topology).jct_mean_s
        - 1
        for s in (0, 1, 2)
    ]
    got = difference(found, "sjf", "jct_mean_s")
    assert got == interval(by_hand)
    assert difference(found, "fifo", "jct_mean_s").mean == 0.0


def test_difference_needs_a_partner_and_a_figure():
    found = comparison(seeds=(0, 1), policies=("fifo", "sjf"))
    alone = Comparison(found.topology, found.runs[1:3], "fifo", workloads=found.workloads)
    assert difference(alone, "sjf", "jct_mean_s") is None
    assert difference(found, "sjf", "preemptions") is None
    with pytest.raises(InputError, match="no metric 'jct'"):
        difference(found, "sjf", "jct")
    with pytest.raises(InputError, match="policy 'lifo'"):
        difference(found, "lifo", "jct_mean_s")


def test_of_a_comparison_that_was_cut_means_are_over_the_seeds_that_all_have():
    found = comparison(seeds=(0, 1), policies=("fifo", "sjf"))
    cut = replace(found, runs=found.runs[:3])
    figures = Figures(cut)
    assert figures.seeds == cut.seeds == (0,)
    for policy in ("fifo", "sjf"):
        (alone,) = [run for run in found.runs if (run.policy, run.seed) == (policy, 0)]
        assert figures.mean(policy, "jct_mean_s") == interval([summary(alone, found.topology).jct_mean_s])
    assert unfinished(cut, figures) == [
        "of 2 seeds all policies have run 1, and means are over these (fifo: 2; sjf: 1)"
    ]
    assert unfinished(found, Figures(found)) == []


def test_of_jobs_that_did_not_finish_the_commonest_reason_is_told():
    found = comparison(policies=("fifo",))
    (run,) = found.runs
    whys = ["too wide", "no such GPU", "no such GPU"]
    left = [
        msgspec.structs.replace(r, status="refused", why=why)
        for r, why in zip(run.records, whys, strict=False)
    ]
    cut = replace(found, runs=(msgspec.structs.replace(run, records=(*left, *run.records[3:])),))
    assert unfinished(cut, Figures(cut)) == [
        "fifo, seed 0: 3 of 40 jobs did not finish and do not count in JCT and queueing; 2 of them: no such GPU"
    ]


def test_jobs_that_no_policy_can_run_are_told_by_reason_and_name():
    found = comparison(policies=("fifo", "sjf"))
    runs = []
    for run, few in zip(found.runs, (6, 5), strict=True):
        whys = ["too wide", *["no such GPU"] * (few - 1)]
        left = [
            msgspec.structs.replace(r, status="refused", why=why)
            for r, why in zip(run.records, whys, strict=False)
        ]
        runs.append(msgspec.structs.replace(run, records=(*left, *run.records[few:])))
    names = [record.id for record in runs[0].records]
    assert never_ran(replace(found, runs=tuple(runs))) == [
        f"1 of 40 jobs can never run here: too wide (job {names[0]})",
        f"4 of 40 jobs can never run here: no such GPU (job {', '.join(names[1:4])} and 1 more)",
    ]
    assert never_ran(found) == no_job_ended(found) == []


def test_where_no_seed_was_run_under_every_policy_means_are_over_each_one_s_own():
    found = comparison(seeds=(0, 1), policies=("fifo", "sjf"))
    cut = replace(found, runs=(found.runs[0], found.runs[3]))
    figures = Figures(cut)
    assert figures.seeds == ()
    assert figures.mean("sjf", "jct_mean_s").mean == figures.by_seed("sjf", "jct_mean_s")[1]
    assert unfinished(cut, figures) == [
        "no seed was run under every policy, so that means cannot be compared (fifo: 1; sjf: 1)"
    ]


@pytest.mark.parametrize("baseline", ["fifo", "srtf"])
def test_of_a_comparison_that_was_cut_differences_are_over_the_seeds_that_count(baseline):
    found = comparison(seeds=(0, 1))
    cut = replace(found, runs=found.runs[:5], baseline=baseline)
    first = replace(found, runs=found.runs[::2], baseline=baseline)
    for policy in ("fifo", "sjf", "srtf"):
        got = difference(cut, policy, "jct_mean_s")
        assert got is not None and got == difference(first, policy, "jct_mean_s")


def test_where_no_seed_was_run_under_every_policy_differences_are_over_the_baseline_s_own():
    found = comparison(seeds=(0, 1))
    fifo, later, sjf, _, _, srtf = found.runs
    cut = replace(found, runs=(fifo, later, sjf, srtf), baseline="sjf")
    first = replace(cut, runs=(fifo, sjf))
    assert difference(cut, "fifo", "jct_mean_s") == difference(first, "fifo", "jct_mean_s")
    assert difference(cut, "srtf", "jct_mean_s") is None


def test_figures_of_parts_are_found_by_name():
    figures = Figures(comparison(policies=("fifo",)))
    assert figures.mean("fifo", "useful").mean == figures.summaries[0].gpu_seconds.useful
    assert figures.mean("fifo", "rho_max").mean == figures.summaries[0].fairness.rho_max
    with pytest.raises(InputError, match="no metric 'gpu_seconds'"):
        figures.mean("fifo", "gpu_seconds")


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
@pytest.mark.parametrize("stop_s", [math.inf, 9000.0])
def test_queue_derived_from_spans_equals_the_recorded_one(policy, stop_s):
    run, queue = simulate_with_queue(cluster(), jobs(60, 2), policy, 2, stop_s)
    log = np.array(queue)
    steps = queue_series(run)
    at = np.linspace(run.origin_s, run.end_s - 1e-3, 3000)
    recorded = log[np.searchsorted(log[:, 0], at, side="right") - 1]
    now = np.searchsorted(steps.time_s, at, side="right") - 1
    for column, series in enumerate((steps.waiting, steps.wanted, steps.busy), start=1):
        assert (recorded[:, column] == series[now]).all()
