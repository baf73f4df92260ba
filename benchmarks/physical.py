"""Simulated completion times beside those of two physical clusters, job by job.

    HEMIOLA_SHARED=... python benchmarks/physical.py

1. Shockwave's 32 GPUs at TACC (NSDI'23): three policies under `shockwave-sim`, beside the authors' own simulator.
2. Muri's 64 V100s (SIGCOMM'22): `tiresias` and `themis` under Hemiola's own semantics, brought nearer to the cluster step by
   step, to find what sets them apart.

The error of a job is |simulated / measured - 1| of its completion time. Nothing is drawn, so there is no spread.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from page import measured_with, table

from hemiola.core.decisions import Decision
from hemiola.core.job import Workload
from hemiola.core.topology import Topology
from hemiola.sched.placement import TierAware
from hemiola.sched.policies.fifo import ByArrival
from hemiola.sched.policy import Policy
from hemiola.sched.rounds import RoundsEvery, Share, fill, reassign
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs
from hemiola.simulator.rules import Semantics, semantics_by_name
from hemiola.simulator.simulate import simulate
from hemiola.trace.workloads.read import read_workload

SHARED = Path(os.environ.get("HEMIOLA_SHARED", "."))
TACC = "120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace"
POLICIES = {
    "max-min": "max_min_fairness",
    "finish-time-fairness": "finish_time_fairness",
    "throughput": "max_sum_throughput_perf",
}
HEAD = ["", "median", "90 %", "mean completion"]
ROUND_S, START_S = 360.0, 26.0
"""Muri's cluster decides every six minutes; a start takes 26 s in the median, of the jobs that were never stopped."""


def errors(simulated: list[float], measured: list[float]) -> list[str]:
    """Median and 90th percentile of the jobs' errors, and how far the means are apart."""
    ours, theirs = np.array(simulated), np.array(measured)
    each = np.abs(ours / theirs - 1)
    apart = ours.mean() / theirs.mean() - 1
    return [f"{np.median(each):.1%}", f"{np.percentile(each, 90):.1%}", f"{apart:+.1%}"]


def tacc() -> Iterator[list[str]]:
    """Each policy of the file: ours, then the authors' own simulator."""
    folder = SHARED / "data/golden/shockwave_tacc32_physical_vs_sim.json.gz"
    known = json.loads(gzip.decompress(folder.read_bytes()))["data"]
    workload = read_workload(SHARED / "data/traces/shockwave" / TACC)
    topology = Topology.flat(hosts=8, gpus_per_host=4)
    for policy, name in POLICIES.items():
        run = simulate(workload, topology, [policy], semantics=semantics_by_name("shockwave-sim")).runs[0]
        ours = [record.jct_s or math.nan for record in sorted(run.records, key=lambda record: int(record.id))]
        measured = known[name]["physical"]["jct_list"]
        yield [f"`{policy}`", *errors(ours, measured)]
        yield [
            f"`{policy}`, the authors' simulator",
            *errors(known[name]["simulation"]["jct_list"], measured),
        ]


@dataclass(frozen=True)
class LeastServed(Policy):
    """Every six minutes those jobs run that have had GPUs for the least time; nobody knows what is left."""

    name = "least-served"
    source = "an ablation"

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        rounds = view.index(RoundsEvery(ROUND_S))
        if rounds.is_due(view.now) and view.waiting:
            left, shares = view.topology.gpus, []
            jobs = [*view.running.values(), *view.waiting.values()]
            for job in sorted(jobs, key=lambda job: (job.done_at(view.now), job.index)):
                if job.gpus <= left:
                    left -= job.gpus
                    shares.append(Share(job, job.gpus))
            yield from reassign(view, shares, TierAware(), "least served", "others are served less")
        yield from fill(view, ByArrival(), TierAware())
        yield from rounds.ask(view, "the next round")


def muri(*, iterations: bool = False, rounds: bool = False, start_s: float = 0.0) -> Workload:
    """Muri's 400 jobs: run times from iterations, arrivals seen at multiples of six minutes, a start in each."""
    workload = read_workload(SHARED / "data/traces/muri/cluster_trace.csv")
    jobs = []
    for job in workload.jobs:
        work_s = (
            job.facts["iterations"] * job.facts["iteration_time"] / 1000 if iterations else job.duration_s
        )
        seen_s = math.ceil(job.submit_s / ROUND_S) * ROUND_S if rounds else job.submit_s
        jobs.append(msgspec.structs.replace(job, duration_s=work_s + start_s, submit_s=seen_s))
    return msgspec.structs.replace(workload, jobs=tuple(sorted(jobs, key=lambda job: job.submit_s)))


def physical(policy: str) -> dict[str, tuple[float, float]]:
    """(submitted, completion time) of each job on Muri's cluster."""
    with (SHARED / f"data/golden/physical_64xV100/{policy}.job.csv").open() as file:
        return {row["job_id"]: (float(row["submit_time"]), float(row["JCT"])) for row in csv.DictReader(file)}


def beside(label: str, policy: Any, golden: str, workload: Workload, rules: Any) -> list[str]:
    """A row: a policy's run beside the cluster's."""
    run = simulate(workload, Topology.flat(hosts=8, gpus_per_host=8), [policy], semantics=rules).runs[0]
    known = physical(golden)
    ours = [(record.finish_s or math.nan) - known[record.id][0] for record in run.records]
    return [label, *errors(ours, [known[record.id][1] for record in run.records])]


def v100() -> Iterator[list[str]]:
    """What brings `tiresias` and `themis` nearer to the cluster."""
    plain, costs = Semantics(), Semantics(costs=Costs(checkpoint_s=0.0, restore_s=START_S))
    near = muri(iterations=True, rounds=True, start_s=START_S)
    never = "tiresias:thresholds=3250,promote=0"
    yield beside("`tiresias`", "tiresias", "tiresias", muri(), plain)
    yield beside("never promoted, one threshold of 3,250 GPU-s", never, "tiresias", muri(), plain)
    started = muri(iterations=True, start_s=START_S)
    yield beside("and run times by iterations, 26 s at each start", never, "tiresias", started, costs)
    yield beside("and arrivals seen every 360 s", never, "tiresias", near, costs)
    yield beside(
        "`muri-sim`, the peer's own rules", "tiresias", "tiresias", muri(), semantics_by_name("muri-sim")
    )
    yield beside("`themis`", "themis", "themis", muri(), plain)
    yield beside("with a lease, arrivals and starts as there", "themis:lease_s=360", "themis", near, costs)
    blind = "themis:lease_s=360,oracle=false"
    yield beside("and the work left unknown", blind, "themis", near, costs)
    yield beside("least time served, work left unknown", LeastServed(), "themis", near, costs)


def main() -> None:
    """Print both tables."""
    print(measured_with("python benchmarks/physical.py"), "\n")
    print(table(["Shockwave's 32 GPUs", *HEAD[1:]], list(tacc())), "\n")
    print(table(["Muri's 64 GPUs", *HEAD[1:]], list(v100())))


if __name__ == "__main__":
    main()
