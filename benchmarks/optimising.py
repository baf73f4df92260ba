"""What prices are worth: PD-ORS beside policies without, by demand; how long it takes to decide.

    python benchmarks/optimising.py                                      # to the terminal
    python benchmarks/optimising.py --write docs/results/optimising.md   # the page and its picture
    python benchmarks/optimising.py --seeds 10                           # more seeds
    python benchmarks/optimising.py --workload jobs.json --demand 2      # one workload as a file, for `hemiola simulate`

Jobs are of workers and parameter servers, of the evaluation's kind (specification of PD-ORS: utilities of three kinds, batch
sizes, gradients and demands by their ranges), on machines of 8 GPUs, and run by `hemiola simulate` like any other.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean, median
from time import perf_counter

import numpy as np
from page import measured_with, table, write_page

from hemiola.core.job import Batch, Utility, Workload, batch_job
from hemiola.core.resources import ResourceRequest, Resources, Roles
from hemiola.core.result import Run
from hemiola.core.topology import Topology
from hemiola.report.metrics import interval
from hemiola.sched.optimise.certificate import DualJob, certify
from hemiola.sched.optimise.curve import Fabric, best_schedule
from hemiola.sched.optimise.offer import JobOffer
from hemiola.sched.optimise.optimum import offline_optimum
from hemiola.sched.optimise.prices import Floats, Ledger, PriceLaw, law_in_theory
from hemiola.sched.optimise.programs import Budget
from hemiola.simulator.simulate import Recording, simulate
from hemiola.trace.workloads.native import write_workload

SLOT_S, SLOTS = 600.0, 20
POLICIES = (
    "pd-ors", "pd-ors:mode=theory", "earliest-finish", "oasis", "optimus", "drf", "fifo-backfill", "fifo",
)  # fmt: skip
DEMANDS = (0.5, 0.7, 1.0, 2.0, 4.0)
GB, MB = 1e9, 1e6


def cluster(machines: int) -> Topology:
    """Machines of 8 GPUs, 72 processors and 192 GB, below one switch."""
    plain = Topology.flat(hosts=machines, gpus_per_host=8)
    return replace(
        plain, hosts=replace(plain.hosts, resources=(Resources(72.0, 192 * GB, 25 * GB),) * machines)
    )


def one_job(chance: Random, name: str) -> Batch:
    """A job by the evaluation's ranges; a slot is ten minutes."""
    gpus, most = chance.choice([1, 1, 1, 2, 4]), chance.choice([1, 2, 4, 8, 16])
    roles = Roles(
        workers_per_server=chance.randint(1, 10), batch_samples=chance.randint(max(most, 8), 200),
        sample_s=SLOT_S * 10 ** chance.uniform(-5, -4), parameter_bytes=chance.uniform(30, 575) * MB,
        inside_bytes_per_s=12.5 * GB, across_bytes_per_s=chance.uniform(0.1, 0.5) * GB, gpus_per_worker=gpus,
        worker_cpus=chance.randint(1, 10), worker_memory_bytes=chance.uniform(2, 32) * GB,
        server_cpus=chance.randint(1, 10), server_memory_bytes=chance.uniform(2, 32) * GB,
    )  # fmt: skip
    kind = chance.random()
    urgency = 0.0 if kind < 0.1 else chance.uniform(0.01, 1) if kind < 0.65 else chance.uniform(4, 6)
    return batch_job(
        id=name, submit_s=SLOT_S * chance.randrange(SLOTS), gpus=gpus * most, gpus_min=gpus, gpus_max=gpus * most,
        duration_s=SLOT_S * chance.uniform(0.3, 4.0),
        utility=Utility(chance.uniform(1, 100), urgency / SLOT_S, SLOT_S * chance.uniform(1, 15)),
        resources=ResourceRequest(roles=roles),
    )  # fmt: skip


def least_gpu_s(job: Batch) -> float:
    """GPU-seconds that it needs on one host at the size that needs least."""
    assert job.roles is not None
    asked_s = job.roles.iteration_s(job.gpus, inside=True)
    return min(
        job.duration_s / asked_s * job.roles.iteration_s(gpus, inside=True) * gpus for gpus in job.sizes
    )


def workload(machines: int, demand: float, seed: int) -> Workload:
    """So many jobs that they need `demand` times the GPUs of all slots."""
    chance, jobs, needed = Random(f"{machines}/{seed}"), [], 0.0
    while needed < demand * machines * 8 * SLOTS * SLOT_S:
        jobs.append(one_job(chance, f"j{len(jobs)}"))
        needed += least_gpu_s(jobs[-1])
    jobs.sort(key=lambda job: job.submit_s)
    return Workload(jobs=tuple(jobs), name=f"demand {demand:g}, seed {seed}")


def runs(machines: int, demand: float, seeds: int, policies: Sequence[str]) -> dict[str, list[Run]]:
    """One run for each policy and seed."""
    found: dict[str, list[Run]] = {policy: [] for policy in policies}
    for seed in range(seeds):
        comparison = simulate(
            workload(machines, demand, seed), cluster(machines), policies, recording=Recording(timeline=False)
        )
        for run in comparison.runs:
            found[run.policy].append(run)
    return found


def utility(run: Run) -> float:
    """Of all jobs."""
    return sum(record.utility or 0.0 for record in run.records)


def declined(run: Run) -> float:
    """The share of jobs."""
    return sum(bool(record.declined) for record in run.records) / len(run.records)


def bound(found: dict[str, list[Run]], seed: int) -> float:
    """The least of the certificates: each holds for all policies."""
    return min(of[seed].certificate or math.inf for of in found.values())


def utility_rows(found: dict[str, list[Run]]) -> list[list[str]]:
    """One for each policy."""
    ours = [utility(run) for run in found["pd-ors"]]
    rows = []
    for policy, of in found.items():
        theirs = [utility(run) for run in of]
        gains = [a / b - 1 for a, b in zip(ours, theirs, strict=True)]
        share = mean(value / bound(found, seed) for seed, value in enumerate(theirs))
        rows.append(
            [
                f"`{policy}`", f"{mean(theirs):,.0f}", "" if policy == "pd-ors" else told(gains), f"{share:.0%}",
                f"{mean(declined(run) for run in of):.0%}",
                f"{1e3 * median(run.decision_p50_s or 0 for run in of):.2f}",
                f"{1e3 * median(run.decision_p99_s or 0 for run in of):.1f}",
            ]
        )  # fmt: skip
    return rows


def told(gains: Sequence[float]) -> str:
    """A mean with half of its interval."""
    found = interval(gains)
    half = "" if found.high is None else f" ± {100 * (found.high - found.mean):.0f}"
    return f"{found.mean:+.0%}{half}"


HEAD = ["policy", "utility", "`pd-ors` beside it", "of the bound", "declined", "decision p50 ms", "p99 ms"]

# Small cases, where the offline optimum can be found.

CASES = ((3, 5, 8), (2, 4, 16))
"""(machines, slots, jobs)."""
LAWS = ("theory", "no prices", "kappa 3, U x 0.3")


def small_rows(count: int) -> list[list[str]]:
    """Sums over cases, relative to the optimum (or to what the solver proved it cannot exceed)."""
    rows = []
    for machines, slots, jobs in CASES:
        reached, best, within, certified, beyond = dict.fromkeys(LAWS, 0.0), 0.0, 0, [], 0
        for seed in range(count):
            chance = Random(f"{machines} {slots} {jobs} {seed}")
            capacity = np.array(
                [[chance.randint(2, 4), chance.randint(4, 10)] for _ in range(machines)], float
            )
            offers = [small_offer(chance, n, slots) for n in range(jobs)]
            optimum = offline_optimum(offers, capacity, slots, Budget(nodes=300, gap=1e-4))
            best += optimum.bound
            within += not optimum.exhausted
            theory = law_in_theory(offers, capacity, slots)
            tuned = PriceLaw.scaled(3.0, [0.3 * math.exp(one) for one in theory.log_high])
            for name, law in zip(LAWS, (theory, None, tuned), strict=True):
                value, ledger = planned(offers, capacity, slots, law)
                reached[name] += value
                if name == "theory":
                    beyond += optimum.objective > theory.ratio * value * (1 + 1e-6)
                    duals = small_duals(offers, capacity, slots)
                    whole = np.broadcast_to(capacity, (slots, *capacity.shape)).copy()
                    certified.append(certify(duals, whole, value, ledger.price).bound / optimum.bound)
        rows.append(
            [
                f"{machines} machines, {slots} slots, {jobs} jobs", f"{count}, {within}",
                *(f"{reached[name] / best:.3f}" for name in LAWS), str(beyond),
                f"{median(certified):.2f} ({min(certified):.2f}–{max(certified):.2f})",
            ]
        )  # fmt: skip
    return rows


SMALL_HEAD = [
    "cases", "instances, proven optimal", *LAWS, "beyond 2 max(1, ln U/L)", "certificate / optimum: median (range)"
]  # fmt: skip


def small_offer(chance: Random, n: int, slots: int) -> JobOffer:
    """A job of up to 4 workers on hosts of two resources."""
    most, gamma = chance.randint(1, 4), chance.randint(1, 4)
    workers = np.arange(1, most + 1)
    rates = np.array([workers * 1.0, workers * chance.uniform(0.4, 1.0)])
    kind = chance.random()
    urgency = 0.0 if kind < 0.1 else chance.uniform(0.01, 1) if kind < 0.65 else chance.uniform(4, 6)
    utility = Utility(chance.uniform(1, 100), urgency, chance.uniform(1, slots))
    return JobOffer(
        str(n), chance.randrange(slots), chance.uniform(1.0, 8.0), workers, -(-workers // gamma), rates,
        np.array([1.0, chance.randint(1, 3)]), np.array([0.0, chance.randint(1, 2)]), utility.log_at,
    )  # fmt: skip


def planned(
    offers: Sequence[JobOffer], capacity: Floats, slots: int, law: PriceLaw | None
) -> tuple[float, Ledger]:
    """What PD-ORS reaches, one job after another."""
    ledger, total = Ledger(capacity, slots, law), 0.0
    for offer in sorted(offers, key=lambda offer: offer.arrival):
        found = best_schedule(offer, ledger, Fabric.flat(len(capacity)), since=offer.arrival)
        if found is not None and found.payoff > 0:
            total += found.utility
            for place in found.slots:
                amounts = offer.takes(
                    np.array(place.workers), np.array(place.servers), inside=place.scope == 0
                )
                ledger.promise(place.slot, np.array(place.hosts), amounts)
    return total, ledger


def small_duals(offers: Sequence[JobOffer], capacity: Floats, slots: int) -> list[DualJob]:
    """The same jobs for the bound, every host a kind of its own."""
    found = []
    for offer in offers:
        worth = [-math.inf if t < offer.arrival else offer.worth(t - offer.arrival + 1) for t in range(slots)]
        workers = np.outer(np.tile(offer.workers, 2), offer.alpha)
        servers = np.outer(np.tile(offer.servers, 2), offer.beta)
        whole = (workers + servers)[: len(offer.workers), None, :] <= capacity[None] + 1e-9
        some = np.broadcast_to((offer.alpha <= capacity).all(axis=1), (len(offer.workers), len(capacity)))
        kinds = np.concatenate([whole.all(axis=2), some])
        used = kinds.any(axis=1)
        if used.any():
            rates = offer.rates.ravel()[used]
            most = np.where(np.arange(slots) >= offer.arrival, rates.max(), 0.0)
            together = np.repeat([True, False], len(offer.workers))[used]
            found.append(
                DualJob(
                    offer.work,
                    np.array(worth),
                    0.0,
                    most,
                    rates,
                    workers[used],
                    servers[used],
                    kinds[used],
                    together,
                )
            )
    return found


# How long one job takes to plan, on a cluster that is half full.


def decision_ms(machines: int, slots: int, most: int, levels: int, jobs: int) -> list[float]:
    """Of each of so many jobs that come one after another."""
    chance = Random(0)
    capacity = np.tile([8.0, 72.0, 192.0, 25.0], (machines, 1))
    ledger = Ledger(capacity, slots, PriceLaw.scaled(7.0, [10.0, 1.0, 0.4, 3.0]))
    fabric, taken = Fabric.flat(machines), []
    for slot in range(slots):
        busy = np.array([[chance.uniform(0, 0.8)] for _ in range(machines)])
        ledger.promise(slot, np.arange(machines), np.floor(capacity * busy))
    for n in range(jobs + 1):
        offer = plain_offer(chance, n, most)
        begin = perf_counter()
        found = best_schedule(offer, ledger, fabric, levels=levels)
        if found is not None and found.payoff > 0:
            for place in found.slots:
                amounts = offer.takes(np.array(place.workers), np.array(place.servers))
                ledger.promise(place.slot, np.array(place.hosts), amounts)
        taken.append(1e3 * (perf_counter() - begin))
    return taken[1:]  # the first one compiles


def plain_offer(chance: Random, n: int, most: int) -> JobOffer:
    """A job of so many sizes, on one host or on several."""
    workers = np.arange(1, most + 1)
    gamma = chance.randint(1, 10)
    alpha = np.array([chance.choice([1, 1, 2, 4]), chance.randint(1, 10), chance.uniform(2, 32), 0.3])
    beta = np.array([0, chance.randint(1, 10), chance.uniform(2, 32), 0.3])
    top = chance.uniform(1, 100)
    rates = np.array([workers * 1.0, workers * 0.6])
    return JobOffer(
        str(n),
        0,
        chance.uniform(2, 60),
        workers,
        -(-workers // gamma),
        rates,
        alpha,
        beta,
        lambda d: math.log(top / d),
    )


SIZES = ((100, 20, 32, 100, 5.0), (1000, 20, 64, 200, 50.0), (100, 100, 64, 200, math.inf))


def decision_rows(jobs: int) -> list[list[str]]:
    """One for each size of cluster."""
    rows = []
    for machines, slots, most, levels, goal in SIZES:
        taken = decision_ms(machines, slots, most, levels, jobs)
        middle = median(taken)
        rows.append(
            [
                f"{machines:,}", str(slots), f"{most}, {levels}", f"{middle:.1f}", f"{np.percentile(taken, 90):.1f}",
                "–" if goal == math.inf else f"{goal:g}: {'met' if middle <= goal else 'missed'}",
            ]
        )  # fmt: skip
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print or write."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seeds", type=int, default=3, help="of each demand")
    asked.add_argument("--machines", type=int, default=10, help="of 8 GPUs each")
    asked.add_argument(
        "--demand", type=float, nargs="*", default=list(DEMANDS), help="GPU-slots wanted over those there"
    )
    asked.add_argument("--policies", nargs="*", default=list(POLICIES), help="pd-ors has to be among them")
    asked.add_argument("--jobs", type=int, default=30, help="jobs to time a decision with; 0 leaves that out")
    asked.add_argument(
        "--small", type=int, default=20, help="small cases to compare with the offline optimum; 0 for none"
    )
    asked.add_argument("--workload", type=Path, help="write the jobs of the first demand there, and stop")
    asked.add_argument("--write", type=Path, help="write the page there")
    given = asked.parse_args(arguments)
    if given.workload is not None:
        write_workload(workload(given.machines, given.demand[0], 0), given.workload)
        return
    parts = []
    if given.jobs:
        head = ["machines", "slots", "sizes, levels", "p50 ms", "p90 ms", "goal ms (p50)"]
        parts.append("## How long a decision takes\n\n" + table(head, decision_rows(given.jobs)))
        print(parts[-1], flush=True)
    if given.small:
        parts.append(
            f"## Beside the offline optimum\n\n{SMALL}\n" + table(SMALL_HEAD, small_rows(given.small))
        )
        print(parts[-1], flush=True)
    parts.append("## Utility by demand\n")
    for demand in given.demand:
        found = runs(given.machines, demand, given.seeds, given.policies)
        jobs = mean(len(run.records) for run in found["pd-ors"])
        parts.append(
            f"### Demand {demand:g} ({jobs:.0f} jobs, {given.seeds} seeds)\n\n"
            + table(HEAD, utility_rows(found))
        )
        print(parts[-1], flush=True)
        if given.write is not None:  # as far as it is, after each demand
            command = "python benchmarks/optimising.py " + " ".join(arguments or sys.argv[1:])
            write_page(given.write, page("\n\n".join(parts), command.strip()))


SMALL = """All jobs known to a mixed-integer program (`offline_optimum`), beside plans made one by one as jobs arrive, without
a simulator: one value is the sum over all instances by the sum of the optima (of the solver's bounds where 300 nodes did not
prove one). The proven ratio wants jobs that are small beside a host; the last but one column counts the instances whose jobs
are so lumpy that the optimum is beyond it. Of the last column nothing may be below 1.
"""

ABOUT = """PD-ORS plans workers and parameter servers slot by slot, at prices that rise with what is promised, and declines
what does not pay. These are its two modes beside the same plans without prices (`earliest-finish`), OASiS, Optimus, DRF and
FIFO, all through `hemiola simulate` with its costs of stopping and starting. Demand is the GPU-slots that all jobs need at
their thriftiest size over those of the 20 slots in which they arrive. "Of the bound" is utility over the least certificate:
no schedule whatever can exceed 100 %, and how much of the rest is out of reach the certificate does not say. Differences are
paired by seed, with half of the 95 % interval.

The workload is made by the ranges that OASiS and PD-ORS were evaluated with, and is not theirs: machines of 8 GPUs, slots of
ten minutes, sigmoid utilities (10 % indifferent to time, 55 % sensitive, 35 % critical). `pd-ors`'s scale of prices was tuned
on other draws (5 machines). Figures of utility repeat to the byte; decision times do not, and those of `pd-ors` hold what it
takes to plan all jobs anew when a slot begins.

Two things set `pd-ors` apart from its theory, and the table does not part them: prices at a scale that means something, and
plans made anew while idle GPUs go to whoever waits. `pd-ors:mode=theory` and `earliest-finish` keep their plans, and a job
waits for its slot though GPUs idle: where demand is high, FIFO with back-filling passes them. The strongest baseline is
Optimus, which knows the work left as `pd-ors` does.
"""


def page(parts: str, command: str) -> str:
    """The whole page."""
    return f"# What prices are worth\n\n{measured_with(command)}\n\n{ABOUT}\n{parts}\n"


if __name__ == "__main__":
    main()
