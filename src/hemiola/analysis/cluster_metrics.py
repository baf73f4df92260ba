"""The figures of one run, as functions of what it left behind. Knows no files and no screens.

Percentiles are NumPy's "linear": between two values the position is interpolated. Figures about
completion count finished jobs only; the number of the others stands beside them. A figure that
has nothing to be computed from is None, never 0.

Finish-time fairness is Themis' (Mahajan et al., NSDI 2020): rho = T_shared / T_ideal, where
T_shared is the job's completion time and T_ideal what it would be on a 1/N share of the cluster.
Here N is the mean number of jobs present during the job's own life, and a share of G/N GPUs runs
a job of g GPUs in `ideal_s * max(1, g N / G)`. Above 1 the job got less than a fair share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InternalError
from hemiola.core.result import GpuSeconds, JobRecord, Run
from hemiola.core.topology import Topology

__all__ = ["STATUSES", "Fairness", "Summary", "conservation", "finish_time_fairness", "summary"]

STATUSES = ("finished", "running", "waiting", "declined", "refused", "failed")


class Fairness(msgspec.Struct, frozen=True, kw_only=True):
    """Finish-time fairness over the finished jobs; None without any.

    Attributes:
        rho_mean, rho_p95, rho_max: of rho = JCT / JCT on a fair share.
        unfair_share: share of jobs with rho above 1.
    """

    rho_mean: float | None
    rho_p95: float | None
    rho_max: float | None
    unfair_share: float | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One run in figures. Times in seconds.

    Attributes:
        jobs_unfinished: submitted but not finished: still running or waiting, refused, failed.
        makespan_s: from the first arrival to the end.
        jct_mean_s, jct_p50_s, jct_p95_s, jct_p99_s: job completion time, finished jobs.
        queueing_mean_s: mean time without GPUs, finished jobs.
        exposed_communication_fraction: exposed / (exposed + useful) GPU-seconds.
        gpu_utilization: (useful + exposed + checkpoint + lost) / all GPU-seconds.
        gpu_seconds: where every one went.
        preemptions, migrations: over all jobs.
        simulation_wall_s, simulation_cpu_s: what the simulation itself took (differs between repeats).
        decisions: made by the policy, of which `decisions_refused` were not carried out.
        utility: of all jobs that have one, 0 for those that did not finish; None without any.
        certificate: an upper bound on what any schedule could have reached.
        utility_of_certificate: the one over the other.
        jobs_declined: those that the policy would not take, whether or not they ran on what others left.
        decision_p50_s, decision_p99_s: what the policy took to decide (differs between repeats).
        slo_attainment: of the requests answered or refused, the share answered within the objective. This and what follows
            is None where the workload has no services.
        requests_arrived, requests_answered, requests_refused, requests_waiting: the first is the sum of the others.
        requests_missed: answered too late, or refused.
        training_goodput: GPU-seconds of work, at the size that jobs asked for, per second until the last job arrived.
        inference_goodput: requests answered within their objective per second.
        loaned_gpu_s, loans: GPU-seconds of hosts in other hands, and how often one changed hands.
        ceiling: the most that loans could multiply training's goodput by, over a static split.
    """

    jobs_submitted: int
    jobs_finished: int
    jobs_unfinished: int
    makespan_s: float
    jct_mean_s: float | None
    jct_p50_s: float | None
    jct_p95_s: float | None
    jct_p99_s: float | None
    queueing_mean_s: float | None
    exposed_communication_fraction: float | None
    gpu_utilization: float | None
    gpu_seconds: GpuSeconds
    preemptions: int
    migrations: int
    simulation_wall_s: float
    simulation_cpu_s: float
    decisions: int
    decisions_refused: int
    fairness: Fairness
    utility: float | None = None
    certificate: float | None = None
    utility_of_certificate: float | None = None
    jobs_declined: int = 0
    decision_p50_s: float | None = None
    decision_p99_s: float | None = None
    slo_attainment: float | None = None
    requests_arrived: float | None = None
    requests_answered: float | None = None
    requests_refused: float | None = None
    requests_missed: float | None = None
    requests_waiting: float | None = None
    training_goodput: float | None = None
    inference_goodput: float | None = None
    loaned_gpu_s: float | None = None
    loans: int | None = None
    ceiling: float | None = None


def summary(run: Run, topology: Topology) -> Summary:
    """The figures of a run.

    Raises:
        InternalError: if GPU-seconds or jobs do not add up (see `conservation`).
    """
    conservation(run, topology)
    finished = [record for record in run.records if record.status == "finished"]
    jct_s = np.array([record.jct_s for record in finished], dtype=np.float64)
    spent = run.gpu_seconds
    utility = _utility(run)
    busy = spent.useful + spent.exposed_communication + spent.checkpoint + spent.lost
    return Summary(
        jobs_submitted=len(run.records),
        jobs_finished=len(finished),
        jobs_unfinished=len(run.records) - len(finished),
        makespan_s=_makespan_s(run),
        jct_mean_s=_mean(jct_s),
        jct_p50_s=_percentile(jct_s, 50),
        jct_p95_s=_percentile(jct_s, 95),
        jct_p99_s=_percentile(jct_s, 99),
        queueing_mean_s=_mean(np.array([record.queueing_s for record in finished], dtype=np.float64)),
        exposed_communication_fraction=_ratio(
            spent.exposed_communication, spent.exposed_communication + spent.useful
        ),
        gpu_utilization=_ratio(busy, spent.total),
        gpu_seconds=spent,
        preemptions=sum(record.preemptions for record in run.records),
        migrations=sum(record.migrations for record in run.records),
        simulation_wall_s=run.wall_s,
        simulation_cpu_s=run.cpu_s,
        decisions=run.decisions_made,
        decisions_refused=run.decisions_refused,
        fairness=_fairness(run, topology),
        utility=utility,
        certificate=run.certificate,
        utility_of_certificate=None if utility is None else _ratio(utility, run.certificate or 0.0),
        jobs_declined=sum(bool(record.declined) for record in run.records),
        decision_p50_s=run.decision_p50_s,
        decision_p99_s=run.decision_p99_s,
        **_serving(run),
    )


def _utility(run: Run) -> float | None:
    values = [record.utility for record in run.records if record.utility is not None]
    return float(sum(values)) if values else None


def _makespan_s(run: Run) -> float:
    """To the end; where services go on, to the end of the last job."""
    if run.serving is None or any(record.status in ("running", "waiting") for record in run.records):
        return run.end_s - run.origin_s
    ends = [record.finish_s for record in run.records if record.finish_s is not None]
    return max(ends, default=run.end_s) - run.origin_s


def _serving(run: Run) -> dict[str, Any]:
    """What services and loans amounted to."""
    if run.serving is None:
        return {}
    found = run.serving
    sums = {
        f"requests_{name}": math.fsum(getattr(one, name) for one in found.services)
        for name in ("arrived", "answered", "refused", "missed", "waiting")
    }
    done = sums["requests_answered"] + sums["requests_refused"]
    return {
        **sums,
        "slo_attainment": 1.0 - sums["requests_missed"] / done if done else 1.0,
        "training_goodput": found.training_goodput,
        "inference_goodput": found.inference_goodput,
        "loaned_gpu_s": found.loaned_gpu_s,
        "loans": found.loans,
        "ceiling": found.ceiling,
    }


def conservation(run: Run, topology: Topology) -> None:
    """Check that nothing was lost or counted twice.

    Raises:
        InternalError: unless the GPU-seconds are the cluster's GPUs times the makespan (relative
            1e-9), each part is non-negative, and every submitted job has one known status.
    """
    due = topology.gpus * (run.end_s - run.origin_s)
    spent = run.gpu_seconds
    where = f"run {run.policy!r}, seed {run.seed}"
    if not math.isclose(spent.total, due, rel_tol=1e-9, abs_tol=1e-9):
        raise InternalError(f"{where}: {spent.total!r} GPU-seconds are accounted for, of {due!r}")
    if min(msgspec.structs.astuple(spent)) < -1e-9 * max(due, 1.0):
        raise InternalError(f"{where}: a part of the GPU-seconds is negative: {spent}")
    statuses = Counter(record.status for record in run.records)
    if sum(statuses[status] for status in STATUSES) != len(run.records):
        raise InternalError(
            f"{where}: {len(run.records)} jobs were submitted, their states are {dict(statuses)}"
        )
    for record in run.records:
        if record.status == "finished" and (record.jct_s is None or record.finish_s is None):
            raise InternalError(f"{where}: job {record.id!r} finished, but has no completion time")


def finish_time_fairness(run: Run, topology: Topology) -> NDArray[np.float64]:
    """Rho of each record (see the module's head); NaN for a job that did not finish or has no work."""
    presence = [(r.submit_s, _left(r, run)) for r in run.records if r.status != "refused"]
    time_s, integral = _presence_integral(presence)
    submit_s = np.array([r.submit_s for r in run.records], dtype=np.float64)
    leave_s = np.array([_left(r, run) for r in run.records], dtype=np.float64)
    life_s = leave_s - submit_s
    gpus = np.array([r.gpus for r in run.records], dtype=np.float64)
    ideal_s = np.array([r.ideal_s for r in run.records], dtype=np.float64)
    counted = (
        np.array([r.status == "finished" for r in run.records], dtype=bool) & (life_s > 0) & (ideal_s > 0)
    )
    rho = np.full(len(run.records), np.nan)
    if counted.any():
        area = np.interp(leave_s, time_s, integral) - np.interp(submit_s, time_s, integral)
        present = np.maximum(area[counted] / life_s[counted], 1.0)
        slower = np.maximum(1.0, gpus[counted] * present / topology.gpus)
        rho[counted] = life_s[counted] / (ideal_s[counted] * slower)
    return rho


def _left(record: JobRecord, run: Run) -> float:
    return run.end_s if record.finish_s is None else record.finish_s


def _presence_integral(
    presence: Sequence[tuple[float, float]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times, and up to each of them the integral of the number of jobs present."""
    if not presence:
        return np.zeros(1), np.zeros(1)
    edges = np.array(presence, dtype=np.float64).ravel(order="F")
    step = np.repeat([1.0, -1.0], len(presence))
    order = np.argsort(edges, kind="stable")
    time_s, count = edges[order], np.cumsum(step[order])
    return time_s, np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(time_s))])


def _fairness(run: Run, topology: Topology) -> Fairness:
    rho = finish_time_fairness(run, topology)
    rho = rho[~np.isnan(rho)]
    return Fairness(
        rho_mean=_mean(rho),
        rho_p95=_percentile(rho, 95),
        rho_max=_percentile(rho, 100),
        unfair_share=_mean((rho > 1 + 1e-9).astype(np.float64)),
    )


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def _percentile(values: NDArray[np.float64], percent: float) -> float | None:
    return float(np.percentile(values, percent, method="linear")) if len(values) else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
