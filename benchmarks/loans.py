"""What loans between training and inference bring, and where they bring nothing.

    python benchmarks/loans.py RATES.csv                    # to the terminal
    python benchmarks/loans.py RATES.csv --part scalers     # one of: demand, split, parts, scalers, short

RATES.csv are requests per second of two weeks, as ServeGen's language_m-large (Alibaba, Apache-2.0) gives them each 10 minutes.
128 GPUs in 16 hosts, two virtual clusters; jobs as in Philly's trace, half of them elastic (a quarter to twice their GPUs), their
models drawn from the default mix, on a network; two days of arrivals, everything ends. Each seed begins a day later in the rates, and
draws jobs anew; policies are compared pairwise on equal seeds. Lines are printed as they come.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from hemiola.analysis.cluster_metrics import Summary, summary
from hemiola.core.job import Objective
from hemiola.core.latency import BatchTime, LatencyProfile
from hemiola.report.metrics import ConfidenceInterval, interval
from hemiola.sched.board import mean_over_peak
from hemiola.simulator.scenario import Scenario, prepare
from hemiola.simulator.simulate import Recording, simulate
from hemiola.trace.requests import read_requests
from hemiola.trace.workloads.services import RequestsFrom, ServiceEntry

HOSTS, EACH, DAYS, DAY_S = 16, 8, 2, 86400.0
PROFILE = LatencyProfile(
    (BatchTime(1, 0.2), BatchTime(8, 0.4)), source="a choice: 20 requests/s per GPU in batches of 8"
)
FIVE = ("static-split", "elastic", "fapes:training=fifo-backfill", "lyra", "fapes")
SCALERS = tuple(
    f"fapes:autoscaler={name}" for name in ("forecast", "ray-serve", "kpa", "hpa", "dynamo", "peak")
)


def scenario(
    rates: Path, *, inference: int, demand: float, elastic: float = 0.5, share: float = 0.8, burst_cv: float = 0.0,
    cold_start_s: float = 20.0, jobs: int = 700, services_most: int = 0,
) -> Scenario:  # fmt: skip
    """One cluster and what it has to do.

    Args:
        inference: hosts of the virtual cluster for services.
        demand: of training, times what its own hosts can do.
        share: of what inference's hosts answer, the rate at the 99.9th percentile.
    """
    gpus = (HOSTS - inference) * EACH
    peak = sorted(one.requests_per_s for one in read_requests(rates).arrivals)[-3]
    able = inference * EACH * PROFILE.rate(1.0).requests_per_s
    service = ServiceEntry(
        id="chat", gpus=1, objective=Objective(1.0, 0.999), latency=PROFILE, replicas_min=1,
        replicas_max=services_most or inference * EACH, cold_start_s=cold_start_s, burst_cv=burst_cv,
        requests_from=RequestsFrom(
            path=str(rates), scale=share * able / peak, span_s=DAYS * DAY_S, each_seed_s=DAY_S, every_s=60.0, after_s=120.0
        ),
    )  # fmt: skip
    return Scenario(
        workload=f"generated:jobs={round(jobs * demand * gpus / 64)},gpus={gpus},load={demand},mix=philly,largest=32,"
        f"duration_max=1d,elastic={elastic}",
        cluster=f"leaf-spine:hosts={HOSTS},gpus_per_host={EACH},hosts_per_rack=8,nic=100gbit,oversubscription=2",
        clusters={"inference": f"0-{inference - 1}", "training": f"{inference}-{HOSTS - 1}"},
        services=(service,),
    )  # fmt: skip


def compare(what: str, asked: Scenario, policies: Sequence[str], seeds: int) -> None:
    """Run and print: of each policy what it did, and its change against the first and the second."""
    prepared = prepare(asked)
    found: dict[str, list[Summary]] = {name: [] for name in policies}
    for seed in range(seeds):
        done = simulate(
            prepared.workload, prepared.topology, policies, seeds=[seed], clusters=prepared.clusters, serving=prepared.serving,
            recording=Recording(timeline=False),
        )  # fmt: skip
        for run in done.runs:
            found[run.policy].append(summary(run, prepared.topology))
    used = fmean(mean_over_peak(prepared.workload(seed).services) for seed in range(seeds))
    ceiling = fmean(one.ceiling or 0.0 for one in found[policies[0]])
    print(
        f"## {what}: {seeds} seeds, mean load / peak {used:.2f}, ceiling of training goodput x{ceiling:.2f}",
        flush=True,
    )
    for name, runs in found.items():
        print(f"  {name:34}" + "".join(_figures(runs, found, policies)), flush=True)


def _spread(found: ConfidenceInterval, digits: int) -> str:
    if found.low is None or found.high is None:
        return f"{found.mean:+.{digits}f}"
    return f"{found.mean:+.{digits}f} [{found.low:+.{digits}f}, {found.high:+.{digits}f}]"


def _figures(runs: list[Summary], found: dict[str, list[Summary]], policies: Sequence[str]) -> list[str]:
    jct = fmean(one.jct_mean_s or 0.0 for one in runs) / 3600
    kept = [one.slo_attainment or 0.0 for one in runs]
    left = sum(one.jobs_unfinished for one in runs)
    parts = [
        f" jct {jct:6.2f} h", f" objective {100 * fmean(kept):.3f} [{100 * min(kept):.3f}]",
        f" goodput {fmean(one.training_goodput or 0.0 for one in runs):5.1f}|{fmean(one.inference_goodput or 0.0 for one in runs):6.1f}",
        f" lent {fmean((one.loaned_gpu_s or 0.0) for one in runs) / 3600:5.0f} GPUh", f" unfinished {left}" if left else "",
    ]  # fmt: skip
    for base in dict.fromkeys(policies[:2]):
        pairs = list(zip(runs, found[base], strict=True))
        change = interval([100 * ((a.jct_mean_s or 0.0) / (b.jct_mean_s or 1.0) - 1) for a, b in pairs])
        gain = fmean((a.training_goodput or 0.0) / (b.training_goodput or 1.0) for a, b in pairs)
        objective = interval(
            [100 * ((a.slo_attainment or 0.0) - (b.slo_attainment or 0.0)) for a, b in pairs]
        )
        parts.append(
            f" | vs {base}: jct {_spread(change, 1)} %, goodput x{gain:.2f}, objective {_spread(objective, 3)}"
        )
    return parts


def main() -> None:
    """All parts, or the one that is asked for."""
    reading = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    reading.add_argument("rates", type=Path)
    reading.add_argument("--part", choices=("demand", "split", "parts", "scalers", "short"))
    reading.add_argument("--seeds", type=int, default=10)
    asked = reading.parse_args()
    part, rates, seeds = asked.part, asked.rates, asked.seeds
    if part in (None, "demand"):
        for demand in (1.0, 0.6, 1.2):
            compare(f"64/64 GPUs, demand {demand}", scenario(rates, inference=8, demand=demand), FIVE, seeds)
    if part in (None, "short"):
        wanted = scenario(rates, inference=8, demand=0.6, share=1.5, services_most=96)
        ways = ("fapes:loans=to-training", "fapes", "elastic:autoscaler=ray-serve", "elastic:autoscaler=kpa")
        compare("64/64 GPUs, load 1.5 x the static share", wanted, ways, seeds)
    if part in (None, "scalers"):
        compare(
            "smooth, cold start 20 s", scenario(rates, inference=8, demand=0.9), SCALERS, max(1, seeds // 3)
        )
        bursts = scenario(rates, inference=8, demand=0.9, burst_cv=0.7, cold_start_s=60.0, share=0.3)
        compare("bursts (gamma, 5 s, cv 0.7), cold start 60 s", bursts, SCALERS, max(1, seeds // 3))
    if part in (None, "split"):
        for inference in (10, 12):
            wanted = scenario(rates, inference=inference, demand=2.5, elastic=1.0, jobs=500)
            compare(
                f"{inference * EACH}/{128 - inference * EACH} GPUs, demand 2.5, all elastic",
                wanted,
                ("static-split", "elastic", "fapes"),
                max(1, seeds // 3),
            )


if __name__ == "__main__":
    main()
