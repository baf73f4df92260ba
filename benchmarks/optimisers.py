"""Policies that choose sizes and batches beside those that do not, on elastic jobs with a goodput model.

    python benchmarks/optimisers.py             # five seeds
    python benchmarks/optimisers.py --seeds 2

200 jobs after Philly's sizes and run times on 64 GPUs, at two loads. Each job may have a quarter of its GPUs up to
four times as many, at most 32; its gradients' noise grows tenfold half-way. Means of completion time, and paired differences to
`elastic` with their 95 % intervals (Student's t over the seeds).
"""

from __future__ import annotations

import argparse
import math
from statistics import mean, stdev

from page import measured_with, table

from hemiola.core.goodput import GoodputModel, Noise
from hemiola.core.job import Batch, Demand, Profile, batch_job
from hemiola.core.topology import Topology
from hemiola.kernels.generate import generate
from hemiola.simulator.simulate import Recording, simulate

POLICIES = ("elastic", "fifo-backfill", "tiresias", "gavel", "shockwave", "afs", "sia", "pollux")
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}
MODEL = GoodputModel(
    step_s=(0.05, 0.004), host_sync_s=(0.01, 0.002), network_sync_s=(0.08, 0.002), overlap=1.5, first_batch=128,
    largest_batch=4096, largest_on_gpu=256, noise=(Noise(0.0, 200.0), Noise(0.5, 2000.0)),
)  # fmt: skip
PROFILE = Profile(
    name="trained", demands=(Demand(1, 0.3, 0.0), Demand(8, 0.3, 1e8)), goodput=MODEL, checkpoint_s=10.0, restore_s=30.0
)  # fmt: skip


def elastic(job: Batch) -> Batch:
    """The same job with sizes, and a model that says how it trains at them."""
    facts = {name: getattr(job, name) for name in Batch.__struct_fields__}
    most = max(job.gpus, min(32, job.gpus * 4))
    return batch_job(gpus_min=max(1, job.gpus // 4), gpus_max=most, **facts | {"profile": PROFILE})


def means_h(load: float, seeds: int) -> dict[str, list[float]]:
    """Mean completion in hours, by policy and seed."""
    topology, found = Topology.flat(hosts=8, gpus_per_host=8), {policy: [0.0] * seeds for policy in POLICIES}
    for seed in range(seeds):
        text = f"generated:jobs=200,gpus=64,mix=philly,load={load},duration_mean=2h,seed={seed}"
        jobs = [elastic(job) for job in generate(text).jobs]
        for policy in POLICIES:
            run = simulate(jobs, topology, [policy], recording=Recording(timeline=False)).runs[0]
            found[policy][seed] = mean(record.jct_s or math.nan for record in run.records) / 3600
    return found


def rows(load: float, seeds: int) -> list[list[str]]:
    """A row for each policy."""
    found, lines = means_h(load, seeds), []
    for policy in POLICIES:
        apart = [a / b - 1 for a, b in zip(found[policy], found["elastic"], strict=True)]
        half = T_95.get(seeds, 2.0) * stdev(apart) / math.sqrt(seeds) if seeds > 1 else math.nan
        against = "" if policy == "elastic" else f"{mean(apart):+.0%} ± {half:.0%}"
        lines.append([f"`{policy}`", f"{mean(found[policy]):.2f} h", against])
    return lines


def main() -> None:
    """Print a table for each load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    print(measured_with("python benchmarks/optimisers.py"))
    for load in (0.9, 4.0):
        print(f"\nLoad {load:g}, {seeds} seeds\n")
        print(table(["policy", "mean completion", "beside `elastic`"], rows(load, seeds)))


if __name__ == "__main__":
    main()
