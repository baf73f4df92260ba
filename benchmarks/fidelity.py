"""The same jobs through the simulator and through a real Slurm, policy by policy: is what was simulated what happens?

    sudo python benchmarks/fidelity.py [--jobs 200] [--rounds 2] [--keep FOLDER] [--write docs/results/fidelity.md]

Jobs count half-seconds and keep what they have counted in a file, so that a stopped job goes on where it was, as in
the simulator. Each policy serves them on a fresh Slurm of eight nodes with eight GPUs (`hemiola serve --mode
enforce`); then the simulator replays the same submissions, eight times. What a start and a start anew cost is given to it: the
time for which jobs had GPUs beyond the half-seconds that they counted, by how often they were started (least squares
over the jobs of that run). Needs root. About eight minutes per policy and round; what is done is kept.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import date
from pathlib import Path
from statistics import mean, median

import msgspec
import numpy as np
from network_study import fingerprint
from page import machine, write_page

from hemiola.core.job import Job, batch_job
from hemiola.lab.slurm import SlurmLab
from hemiola.live.engines.slurm.client import Slurm
from hemiola.live.journal import Journal
from hemiola.sched.policies import policy_from_text
from hemiola.simulator.cluster import Costs
from hemiola.simulator.rules import Semantics
from hemiola.simulator.simulate import simulate
from hemiola.trace.topologies import read_topology

POLICIES = ("fifo", "tiresias:thresholds=60/240", "dally:thresholds=60/240")
STEP_S = 0.5
REPLAYS, LOOK_S = 8, 0.1
SAME = "leaf-spine:hosts=8,gpus_per_host=8,hosts_per_rack=4,nic=100gbit"
SCRIPT = """#!/bin/bash
file={folder}/$1; done=$(cat $file 2>/dev/null || echo 0)
while [ $done -lt $2 ]; do sleep 0.5; done=$((done+1)); echo $done > $file; done
date +%s.%N > $file.ended
"""


class Live(msgspec.Struct):
    """What happened on a real Slurm.

    Attributes:
        submitted_s, ended_s: of each job, Unix time.
        starts: how often each was placed.
        held_s: for how long each had GPUs.
    """

    policy: str
    submitted_s: dict[str, float]
    ended_s: dict[str, float]
    starts: dict[str, int]
    held_s: dict[str, float]

    def jct_s(self) -> dict[str, float]:
        return {name: end_s - self.submitted_s[name] for name, end_s in self.ended_s.items()}

    def costs(self, jobs: list[Job]) -> tuple[float, float]:
        """Seconds beyond its work for which a job holds GPUs: by its first start, and by each further one."""
        over = [self.held_s[job.id] - job.duration_s for job in jobs]
        anew = [self.starts[job.id] - 1 for job in jobs]
        if not any(anew):
            return mean(over), 0.0
        first, again = np.linalg.lstsq(np.array([[1, count] for count in anew]), np.array(over))[0]
        return float(first), float(again)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir(), "hemiola-fidelity"))
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    for policy in given.policies:
        policy_from_text(policy)
    jobs = workload(given.jobs, given.seed)
    given.keep.mkdir(exist_ok=True)
    file = given.keep / f"runs-{given.jobs}-{given.seed}-{fingerprint()}.jsonl"
    runs = kept(file)
    for number in range(given.rounds):
        for policy in given.policies:
            if sum(run.policy == policy for run in runs) > number:
                continue
            print(f"round {number + 1}: {policy}", file=sys.stderr)
            runs.append(run_live(jobs, policy))
            with file.open("ab") as stream:
                stream.write(msgspec.json.encode(runs[-1]) + b"\n")
    text = page(" ".join(sys.argv[1:]), jobs, [run for run in runs if run.policy in given.policies])
    if given.write:
        write_page(given.write, text)
    print(text)


def kept(file: Path) -> list[Live]:
    """Runs of this very code that are done already; the last line may have been cut off."""
    runs = []
    for line in file.read_bytes().splitlines() if file.exists() else ():
        with suppress(msgspec.DecodeError):
            runs.append(msgspec.json.decode(line, type=Live))
    return runs


def workload(count: int, seed: int) -> list[Job]:
    """Sizes and lengths as in a cluster of deep learning: most small, few large and long."""
    chance = random.Random(seed)
    jobs, now = [], 0.0
    for number in range(count):
        hosts, gpus = chance.choices([(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8)], [3, 2, 3, 4, 2, 1])[0]
        steps = round(min(120.0, chance.lognormvariate(2.3, 0.9)) / STEP_S) + 2
        jobs.append(
            batch_job(id=str(number), submit_s=now, gpus=hosts * gpus, hosts=hosts, duration_s=steps * STEP_S)
        )
        now += chance.expovariate(1.0)
    return jobs


def run_live(jobs: list[Job], policy: str) -> Live:
    """All of them on a fresh Slurm."""
    with tempfile.TemporaryDirectory() as folder, SlurmLab(8, gpus=8, racks=2) as lab:
        Path(folder).chmod(0o777)
        slurm = Slurm(Path(lab.environ["SLURM_CONF"]))
        script = Path(folder, "job.sh")
        script.write_text(SCRIPT.format(folder=folder))
        script.chmod(0o755)
        daemon = serve(slurm, policy, folder)
        try:
            submitted = submit(slurm, jobs, script)
            wait(slurm, len(jobs), daemon, Path(folder, "serve.log"))
            time.sleep(1.0)
        finally:
            daemon.terminate()
            daemon.wait()
        ended = {job.id: float(Path(folder, f"{job.id}.ended").read_text()) for job in jobs}
        with Journal.open(Path(folder, "journal.db"), read_only=True) as journal:
            records = {record.name: record for record in journal.jobs()}
        return Live(
            policy, submitted, ended,
            {name: record.preemptions + 1 for name, record in records.items()},
            {name: record.served_s for name, record in records.items()},
        )  # fmt: skip


def simulated(jobs: list[Job], live: Live) -> tuple[dict[str, float], float, float]:
    """Completion times of the same submissions in the simulator, their mean, and how often a job was stopped.

    A stop more or less early on changes much of what follows: a real run seldom comes out twice the same. So it is
    simulated several times, with submissions later by up to a look; of each job the median counts, of all the mean.
    """
    first_s, again_s = live.costs(jobs)
    origin_s, chance = min(live.submitted_s.values()), random.Random(1)
    costs = Costs(
        checkpoint_s=0.0, restore_s=max(0.0, again_s)
    )  # with what it does again of its last half-second
    jct_s: dict[str, list[float]] = {job.id: [] for job in jobs}
    stops = []
    for _ in range(REPLAYS):
        same = [
            msgspec.structs.replace(
                job, submit_s=live.submitted_s[job.id] - origin_s + chance.uniform(0.0, LOOK_S),
                duration_s=job.duration_s + first_s,
            )
            for job in jobs
        ]  # fmt: skip
        comparison = simulate(same, read_topology(SAME), [live.policy], semantics=Semantics(costs=costs))
        for outcome in comparison.runs[0].records:
            jct_s[outcome.id].append(outcome.finish_s - outcome.submit_s)
            stops.append(outcome.preemptions)
    middle = {name: median(times) for name, times in jct_s.items()}
    return middle, mean(map(mean, jct_s.values())), mean(stops)


def serve(slurm: Slurm, policy: str, folder: str) -> subprocess.Popen[bytes]:
    hemiola = str(Path(sys.executable).with_name("hemiola"))
    words = [
        "--engine",
        "slurm",
        "--policy",
        policy,
        "--mode",
        "enforce",
        "--journal",
        f"{folder}/journal.db",
    ]
    with Path(folder, "serve.log").open("wb") as log:
        started = subprocess.Popen([hemiola, "serve", *words], env=slurm.environ, stderr=log)
    time.sleep(3.0)
    return started


def submit(slurm: Slurm, jobs: list[Job], script: Path) -> dict[str, float]:
    began, submitted = time.time(), {}
    for job in jobs:
        time.sleep(max(0.0, began + job.submit_s - time.time()))
        submitted[job.id] = time.time()
        sbatch(slurm, job, script)
    return submitted


def sbatch(slurm: Slurm, job: Job, script: Path) -> None:
    words = [
        "sbatch", "-p", "hemiola", "-J", job.id, f"-N{job.hosts}", f"--gpus-per-node={job.gpus // job.hosts}",
        "-o", "/dev/null", "--open-mode=append", str(script), job.id, str(round(job.duration_s / STEP_S)),
    ]  # fmt: skip
    subprocess.run(words, env=slurm.environ, capture_output=True, check=True, cwd="/tmp")


def wait(slurm: Slurm, jobs: int, daemon: subprocess.Popen[bytes], log: Path) -> None:
    """Until no job is left; without the daemon they would wait for ever."""
    while left := len(slurm.ask("squeue", "-h", "-o", "%i").split()):
        print(f"\r{left} of {jobs} left ", end="", file=sys.stderr)
        if daemon.poll() is not None:
            raise RuntimeError(f"hemiola serve ended: {log.read_text()[-1000:]}")
        time.sleep(1.0)


def page(arguments: str, jobs: list[Job], runs: list[Live]) -> str:
    lines = [
        "# What was simulated, and what happened", "",
        f"`{f'python benchmarks/fidelity.py {arguments}'.strip()}`, {date.today()}, on {machine()}.", "",
        *(line.strip() for line in (__doc__ or "").splitlines()[4:10]), "",
        "| policy | mean completion, Slurm | simulated | mean | per job, median error | stops per job, Slurm | simulated "
        "| a start costs | a start anew |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    means: dict[str, list[tuple[float, float]]] = {}
    policies = list(dict.fromkeys([*POLICIES, *(live.policy for live in runs)]))
    for live in sorted(runs, key=lambda live: policies.index(live.policy)):
        real, (replayed, replayed_mean, stops) = live.jct_s(), simulated(jobs, live)
        both = mean(real.values()), replayed_mean
        means.setdefault(live.policy, []).append(both)
        error = median(abs(real[name] - replayed[name]) / real[name] for name in real)
        first_s, again_s = live.costs(jobs)
        lines.append(
            f"| {live.policy} | {both[0]:.1f} s | {both[1]:.1f} s | {both[1] / both[0] - 1:+.1%} | {error:.1%} "
            f"| {mean(live.starts.values()) - 1:.2f} | {stops:.2f} | {first_s:.2f} s | {again_s:.2f} s |"
        )
    middle = {policy: (mean(a for a, _ in both), mean(b for _, b in both)) for policy, both in means.items()}
    lines += ["", "| policy | real runs | mean completion of all | simulated | |", "|---|---|---|---|---|"]
    for policy, (real_s, replayed_s) in middle.items():
        lines.append(
            f"| {policy} | {len(means[policy])} | {real_s:.1f} s | {replayed_s:.1f} s | {replayed_s / real_s - 1:+.1%} |"
        )
    same = sorted(middle, key=lambda one: middle[one][0]) == sorted(middle, key=lambda one: middle[one][1])
    order = "The same order of policies in both." if same else "**The order of policies differs.**"
    lines += [
        "", f"Wanted: mean within 5 %, per job within 10 %. {order} Jobs have no profile here, so Dally decides as "
        "Tiresias does.", "",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
