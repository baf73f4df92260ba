"""What Hemiola adds to a real Slurm: submit-to-start latency, binding, looking, deciding.

    sudo python benchmarks/live.py [--jobs 100] [--rounds 3] [--write docs/results/live.md]

1. Submit-to-start latency of single jobs at ten a second, on eight nodes: plain Slurm (the partition that is not
   managed) and Hemiola (a daemon of its own process) by turns; the difference of medians is what Hemiola adds.
2. Two hundred placements bound at once: from the first order to the last release, with the look whether each was taken.
3. One look at Slurm with 10,000 pending jobs.
4. The mean completion of a stream of jobs, with and without two jobs among them whose bind always fails, by turns.
5. One decision at 10,000 pending jobs on 1,000 nodes, by policy: after each end of a job, and the first of all.

Needs root and Slurm's packages. About eight minutes.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import mean, median, quantiles

from page import machine, write_page

from hemiola.core.decisions import Placement, Start
from hemiola.core.events import Arrived, Finished
from hemiola.core.job import batch_job
from hemiola.cost.iteration import IterationModel
from hemiola.lab.slurm import SlurmLab
from hemiola.lab.slurm.spec import CPUS_MIN
from hemiola.live.engines.slurm.client import Slurm
from hemiola.live.engines.slurm.driver import SlurmDriver
from hemiola.live.engines.slurm.snapshot import slurm_topology
from hemiola.live.journal import Journal
from hemiola.live.polling_driver import Clock
from hemiola.sched.machine import StateMachine
from hemiola.sched.policies import policy_from_text
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs, SimulatedEstimates
from hemiola.trace.topologies import read_topology

POLICIES = ("fifo", "srtf", "tiresias", "dally")
GOLDEN = 0.6180339887498949
"""Submissions are spread evenly over the second at whose end Slurm's own loop comes round."""
RATE = 10.0
SETTLE_S = 3.0
STREAM = 60
DOOMED = (
    "-p hemiola --gres=gpu:8 -L never",  # the one licence is taken
    f"-p hemiola --gres=gpu:8 --cpus-per-task={CPUS_MIN}",  # of each node one processor is taken
)
SCRIPT = "date +%s.%N >> {folder}/$SLURM_JOB_ID; sleep 0.2"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100, help="of each kind in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    parts = [
        latency(given.jobs, given.rounds),
        binding(given.rounds),
        looking(),
        failing(given.rounds),
        deciding(),
    ]
    text = page(parts)
    if given.write:
        write_page(given.write, text)
    print(text)


# ---- latency


def latency(jobs: int, rounds: int) -> list[str]:
    """Submit-to-start of plain Slurm and of Hemiola, by turns."""
    found: dict[str, list[float]] = {"other": [], "hemiola": []}
    with tempfile.TemporaryDirectory() as folder, SlurmLab(8, gpus=8, racks=2) as lab:
        Path(folder).chmod(0o777)
        slurm = Slurm(Path(lab.environ["SLURM_CONF"]))
        with serving(slurm, folder, lab.wake):
            for number in range(rounds):
                for partition in found if number % 2 else reversed(found):
                    found[partition] += list(starts(slurm, partition, jobs, folder))
                    print(
                        f"round {number + 1}: {partition}: {1e3 * median(found[partition]):.0f} ms",
                        file=sys.stderr,
                    )
    lines = ["| | median | p99 |", "|---|---|---|"]
    for name, words in (("other", "plain Slurm"), ("hemiola", "placed by Hemiola")):
        lines.append(
            f"| {words} | {1e3 * median(found[name]):.0f} ms | {1e3 * percentile(found[name], 99):.0f} ms |"
        )
    added = median(found["hemiola"]) - median(found["other"])
    tail = percentile(found["hemiola"], 99) - percentile(found["other"], 99)
    lines.append(
        f"| added | **{1e3 * added:.0f} ms** (at most 100 wanted) | **{1e3 * tail:.0f} ms** (at most 1,000) |"
    )
    return [
        "## Submit to start",
        "",
        f"{jobs * rounds} jobs of one GPU each way, {RATE:g} a second.",
        "",
        *lines,
    ]


@contextmanager
def serving(slurm: Slurm, folder: str, wake: Path) -> Iterator[None]:
    """A daemon of its own process."""
    hemiola = str(Path(sys.executable).with_name("hemiola"))
    words = [
        "--engine",
        "slurm",
        "--policy",
        "fifo-backfill",
        "--mode",
        "enforce",
        "--wake",
        str(wake),
        "--journal",
    ]
    daemon = subprocess.Popen(
        [hemiola, "serve", *words, f"{folder}/journal.db"], env=slurm.environ, stderr=subprocess.DEVNULL
    )
    time.sleep(SETTLE_S)
    try:
        yield
    finally:
        daemon.terminate()
        daemon.wait()


def starts(slurm: Slurm, partition: str, jobs: int, folder: str) -> Iterator[float]:
    """How long each job took from submission to its first line."""
    submitted: dict[str, float] = {}
    words = ["sbatch", "--parsable", "-p", partition, "--gres=gpu:1", "-o", "/dev/null"]
    words += ["--wrap", SCRIPT.format(folder=folder)]
    began = time.monotonic()
    for number in range(jobs):
        time.sleep(max(0.0, began + (number + number * GOLDEN % 1.0) / RATE - time.monotonic()))
        then = time.time()
        done = subprocess.run(
            words, env=slurm.environ, capture_output=True, text=True, check=True, cwd=folder
        )
        submitted[done.stdout.strip()] = then
    while slurm.ask("squeue", "-h", "-p", partition).strip():
        time.sleep(0.2)
    for job, then in submitted.items():
        yield float(Path(folder, job).read_text().split()[0]) - then


def percentile(values: list[float], which: int) -> float:
    return quantiles(values, n=100, method="inclusive")[which - 1]


# ---- binding and looking


def binding(rounds: int) -> list[str]:
    """Two hundred jobs on 64 nodes, bound and released at once."""
    took = []
    for _ in range(rounds):
        with SlurmLab(64, gpus=4, racks=8) as lab:
            slurm = Slurm(Path(lab.environ["SLURM_CONF"]))
            batch(slurm, "-p hemiola --gres=gpu:1 --array=1-200", "sleep 1")
            machine_, driver = driven(slurm)
            for number, name in enumerate(machine_.view.waiting.copy()):
                decision = Start(name, Placement((number % 64,), (1 << number // 64,)), "bench")
                assert not machine_.execute(decision)
                driver.execute(decision)
            began = time.monotonic()
            driver._carry_out(driver._decided)
            took.append(time.monotonic() - began)
            assert sum(known.bound_s is not None for known in driver.tracked.values()) == 200
    lines = f"{median(took):.2f} s ({min(took):.2f} to {max(took):.2f}; at most 3 wanted)"
    return ["## Two hundred placements", "", f"Bound, looked at and released in {lines}."]


def looking() -> list[str]:
    """One look at 10,000 pending jobs."""
    with SlurmLab(8, gpus=8, racks=2, settings={"MaxJobCount": "20000"}) as lab:
        slurm = Slurm(Path(lab.environ["SLURM_CONF"]))
        for _ in range(10):
            batch(slurm, "-p hemiola --gres=gpu:8 --array=1-1000", "sleep 1")
        _, driver = driven(slurm)
        took = []
        for _ in range(9):
            began = time.monotonic()
            assert not driver._look(driver._clock.now_s())
            took.append(time.monotonic() - began)
    return [
        "## One look",
        "",
        f"At 10,000 pending jobs: {1e3 * median(took):.0f} ms, {1e3 * max(took):.0f} at most.",
    ]


def driven(slurm: Slurm) -> tuple[StateMachine, SlurmDriver]:
    """A machine and a driver after their first look."""
    clock = Clock()
    made = StateMachine(ClusterView(slurm_topology(slurm), None, now=clock.now_s()))  # type: ignore[arg-type]
    driver = SlurmDriver(slurm, made, "hemiola", clock=clock, profile=lambda model: None)  # type: ignore[arg-type,return-value]
    made.apply(*driver._look(clock.now_s()))
    driver._first = False
    return made, driver


# ---- jobs whose bind always fails


def failing(rounds: int) -> list[str]:
    """What two jobs that are bound in vain cost the others: for want of a licence, and of a processor on each node."""
    found: dict[bool, list[float]] = {False: [], True: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        SlurmLab(8, gpus=8, racks=2, settings={"Licenses": "never:1"}) as lab,
    ):
        Path(folder).chmod(0o777)
        slurm = Slurm(Path(lab.environ["SLURM_CONF"]))
        batch(slurm, "-p other -N8 --ntasks-per-node=1 -L never", "sleep 100000")
        with serving(slurm, folder, lab.wake):
            for number in range(rounds):
                for with_them in (False, True) if number % 2 else (True, False):
                    doomed = [batch(slurm, options, "sleep 1") for options in DOOMED] if with_them else []
                    found[with_them].append(completion(slurm, folder))
                    with Journal.open(f"{folder}/journal.db", read_only=True) as journal:
                        tried = [record.binds_failed for job in doomed if (record := journal.job(job))]
                    assert len(tried) == len(doomed) and all(tried), tried
                    for job in doomed:
                        subprocess.run(["scancel", job], env=slurm.environ, check=True)
                    print(f"round {number + 1}: {with_them}: {found[with_them][-1]:.2f} s", file=sys.stderr)
    without, beside = median(found[False]), median(found[True])
    return [
        "## Jobs whose bind always fails", "",
        f"{STREAM} jobs of half a node or a whole one at 80 % load complete after {without:.2f} s on average, and beside "
        f"two jobs that Slurm never starts where they are bound (one for want of a licence, one of a processor) after {beside:.2f} s: **{beside / without - 1:+.1%}** (at most 5 % wanted; medians "
        f"of {rounds} rounds, which differ by {max(found[False]) / min(found[False]) - 1:.1%} without them).",
    ]  # fmt: skip


def completion(slurm: Slurm, folder: str) -> float:
    """The mean of a stream of jobs, always the same one."""
    chance, submitted = random.Random(5), {}
    began, at_s = time.monotonic(), 0.0
    for _ in range(STREAM):
        gpus, seconds = chance.choice((4, 4, 8)), chance.uniform(2.0, 8.0)
        at_s += chance.expovariate(0.8 * 64 / (16 / 3 * 5.5))
        time.sleep(max(0.0, began + at_s - time.monotonic()))
        then = time.time()
        script = f"sleep {seconds:.2f}; date +%s.%N > {folder}/$SLURM_JOB_ID"
        submitted[batch(slurm, f"-p hemiola --gres=gpu:{gpus}", script)] = then
    while not all(Path(folder, job).exists() for job in submitted):
        time.sleep(0.2)
    time.sleep(0.5)
    return mean(float(Path(folder, job).read_text()) - then for job, then in submitted.items())


def batch(slurm: Slurm, options: str, script: str) -> str:
    words = ["sbatch", "--parsable", *options.split(), "-o", "/dev/null", "--wrap", script]
    done = subprocess.run(words, env=slurm.environ, capture_output=True, text=True, check=True, cwd="/tmp")
    return done.stdout.strip()


# ---- deciding


def deciding() -> list[str]:
    """Ends of jobs on a full cluster with 10,000 jobs pending."""
    topology = read_topology(
        "leaf-spine:hosts=1000,gpus_per_host=8,hosts_per_rack=20,nic=100gbit,oversubscription=4"
    )
    lines = ["| policy | first decision of all | after an end: median | worst of 100 |", "|---|---|---|---|"]
    for name in POLICIES:
        first_s, took = decided(topology, name)
        lines.append(
            f"| {name} | {1e3 * first_s:.0f} ms | {1e3 * median(took):.2f} ms | {1e3 * max(took):.1f} ms |"
        )
    return [
        "## Deciding", "", "More than 10,000 jobs pending on 1,000 nodes with 8,000 GPUs; CPU time. At most 300 ms wanted.", "",
        *lines,
    ]  # fmt: skip


def decided(topology: object, name: str) -> tuple[float, list[float]]:
    chance = random.Random(1)
    view = ClusterView(topology, SimulatedEstimates(IterationModel(topology), Costs()))  # type: ignore[arg-type]
    made, policy = StateMachine(view), policy_from_text(name)
    shapes = [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (8, 8)]
    for number in range(13_000):
        gpus, hosts = chance.choice(shapes)
        job = batch_job(
            id=f"j{number}",
            submit_s=0.0,
            gpus=gpus * hosts,
            hosts=hosts,
            duration_s=chance.uniform(600, 36_000),
        )
        made.apply(Arrived(0.0, job))

    def cycle() -> float:
        began = time.process_time()
        for decision in policy.decide(view):
            made.execute(decision)
        return time.process_time() - began

    first_s, took = cycle(), []
    for number in range(1, 101):
        ends = [Finished(30.0 * number, job) for job in list(view.running)[: 1 + number % 3]]
        made.apply(*ends)
        took.append(cycle())
    assert len(view.waiting) > 10_000
    return first_s, took


def page(parts: list[list[str]]) -> str:
    head = [
        "# Hemiola on a live Slurm", "",
        f"`python benchmarks/live.py`, {date.today()}, on {machine()}. A real Slurm 22.05 on one machine (`hemiola lab slurm`), "
        "all of its nodes and Hemiola on the same processors.", "",
    ]  # fmt: skip
    return "\n".join([*head, *(line for part in parts for line in [*part, ""])])


if __name__ == "__main__":
    main()
