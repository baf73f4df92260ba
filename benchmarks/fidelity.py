"""The same jobs through the simulator and through a real Slurm, policy by policy: is what was simulated what happens?

    sudo python benchmarks/fidelity.py [--jobs 200] [--write docs/results/fidelity.md]

Jobs count half-seconds and keep what they have counted in a file, so that a stopped job goes on where it was, as in
the simulator. Each policy serves them on a fresh Slurm of eight nodes with eight GPUs (`hemiola serve --mode
enforce`); then `hemiola simulate` replays the same submissions. What starting, stopping and starting again costs is
measured beforehand on jobs alone, and given to the simulator. Needs root. About six minutes per policy.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import mean, median

import msgspec
from clocks import machine

from hemiola.control.semantics import Semantics
from hemiola.control.simulate import simulate
from hemiola.control.simulated import Costs
from hemiola.control.slurm.client import Slurm
from hemiola.control.slurm.serve import slurm_topology
from hemiola.core.job import Job
from hemiola.lab.slurm import SlurmLab

POLICIES = ("fifo", "tiresias:thresholds=60/240", "dally:thresholds=60/240")
STEP_S = 0.5
SCRIPT = """
file={folder}/$1; date +%s.%N >> $file.begins; done=$(cat $file 2>/dev/null || echo 0)
while [ $done -lt $2 ]; do sleep 0.5; done=$((done+1)); echo $done > $file; done
date +%s.%N > $file.ended
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--keep", type=Path, help="a folder for each run's times and journal")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    jobs = workload(given.jobs, given.seed)
    rows, live_means, simulated_means = [], [], []
    for policy in given.policies:
        live, replayed, stops = compare(jobs, policy, given.keep)
        errors = [abs(live[name] - replayed[name]) / live[name] for name in live]
        mean_error = mean(replayed.values()) / mean(live.values()) - 1
        live_means.append(mean(live.values()))
        simulated_means.append(mean(replayed.values()))
        rows.append(
            f"| {policy} | {live_means[-1]:.1f} s | {simulated_means[-1]:.1f} s | {mean_error:+.1%} | {median(errors):.1%} | {stops[0]:.2f} | {stops[1]:.2f} |"
        )
        print(rows[-1], file=sys.stderr)
    same = sorted(range(len(rows)), key=live_means.__getitem__) == sorted(
        range(len(rows)), key=simulated_means.__getitem__
    )
    text = page(given.jobs, rows, same)
    if given.write:
        given.write.write_text(text)
    print(text)


def workload(count: int, seed: int) -> list[Job]:
    """Sizes and lengths as in a cluster of deep learning: most small, few large and long."""
    chance = random.Random(seed)
    jobs, now = [], 0.0
    for number in range(count):
        hosts, gpus = chance.choices([(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8)], [3, 2, 3, 4, 2, 1])[0]
        steps = round(min(120.0, chance.lognormvariate(2.3, 0.9)) / STEP_S) + 2
        jobs.append(
            Job(id=str(number), submit_s=now, gpus=hosts * gpus, hosts=hosts, duration_s=steps * STEP_S)
        )
        now += chance.expovariate(1.0)
    return jobs


def compare(
    jobs: list[Job], policy: str, keep: Path | None
) -> tuple[dict[str, float], dict[str, float], tuple[float, float]]:
    """Completion times of the same jobs, live and simulated, and how often each was stopped on average in both."""
    with tempfile.TemporaryDirectory() as folder, SlurmLab(8, gpus=8, racks=2) as lab:
        Path(folder).chmod(0o777)
        slurm = Slurm(Path(lab.environ["SLURM_CONF"]))
        script = Path(folder, "job.sh")
        script.write_text("#!/bin/bash" + SCRIPT.format(folder=folder))
        script.chmod(0o755)
        daemon = serve(slurm, policy, folder)
        try:
            start_s = startup(slurm, script, folder)
            costs = restarting(slurm, script, folder)
            submitted = submit(slurm, jobs, script)
            wait(slurm, len(jobs))
        finally:
            daemon.terminate()
            daemon.wait()
        ended = {job.id: float(Path(folder, f"{job.id}.ended").read_text()) for job in jobs}
        starts = {job.id: begins(folder, job.id) for job in jobs}
        topology = slurm_topology(slurm)
        if keep:
            keep.mkdir(exist_ok=True)
            name = f"{policy.partition(':')[0]}-{round(time.time())}"
            shutil.copy(Path(folder, "journal.db"), keep / f"{name}.db")
            took = {
                "start_s": start_s,
                "costs": costs,
                "submitted": submitted,
                "begins": starts,
                "ended": ended,
            }
            (keep / f"{name}.json").write_bytes(msgspec.json.encode(took))
    live = {name: ended[name] - submitted[name] for name in submitted}
    first = min(submitted.values())
    again = [
        msgspec.structs.replace(job, submit_s=submitted[job.id] - first, duration_s=job.duration_s + start_s)
        for job in jobs
    ]
    print(
        f"begins after {start_s:.2f} s, is stopped in {costs.checkpoint_s:.2f} s, begins again after {costs.restore_s:.2f} s"
    )
    run = simulate(again, topology, [policy], semantics=Semantics(costs=costs)).runs[0]
    replayed = {outcome.id: outcome.finish_s - outcome.submit_s for outcome in run.records}
    stops = mean(len(times) - 1 for times in starts.values()), mean(o.preemptions for o in run.records)
    return live, replayed, stops


def serve(slurm: Slurm, policy: str, folder: str) -> subprocess.Popen[bytes]:
    command = [
        str(Path(sys.executable).with_name("hemiola")),
        "serve",
        "--engine",
        "slurm",
        "--policy",
        policy,
    ]
    command += ["--mode", "enforce", "--journal", f"{folder}/journal.db"]
    started = subprocess.Popen(command, env=slurm.environ, stderr=subprocess.DEVNULL)
    time.sleep(3.0)
    return started


def startup(slurm: Slurm, script: Path, folder: str) -> float:
    """From submission to the first line, of jobs alone; at any phase of Slurm's own loop of one second."""
    chance, took = random.Random(1), []
    for number in range(12):
        time.sleep(chance.random())
        then = time.time()
        sbatch(slurm, Job(id=f"alone{number}", submit_s=0.0, gpus=1, hosts=1, duration_s=STEP_S), script)
        wait(slurm, 1)
        took.append(begins(folder, f"alone{number}")[0] - then)
    return mean(took)


def begins(folder: str, job: str) -> list[float]:
    """When a job began, each time."""
    file = Path(folder, f"{job}.begins")
    return [float(line) for line in file.read_text().split()] if file.exists() else []


def restarting(slurm: Slurm, script: Path, folder: str) -> Costs:
    """From the order to stop until the nodes are free, and from then to the first line again: of a job alone.

    Half a step is lost each time, on average. A job begins when Slurm's loop of one second comes round, so it is stopped
    at any phase of it.
    """
    chance, stopped, again = random.Random(2), [], []
    for number in range(12):
        name = f"again{number}"
        sbatch(slurm, Job(id=name, submit_s=0.0, gpus=8, hosts=1, duration_s=4.0), script)
        until(lambda name=name: begins(folder, name))
        time.sleep(1.0 + chance.random())
        number_in_slurm = slurm.ask("squeue", "-h", "-o", "%i").strip()
        then = time.time()
        slurm.tell([f"requeuehold {number_in_slurm}"])
        until(lambda: slurm.ask("squeue", "-h", "-o", "%T").strip() == "PENDING")
        free_s = time.time()
        until(lambda name=name: len(begins(folder, name)) > 1)
        stopped.append(free_s - then)
        again.append(begins(folder, name)[1] - free_s)
        wait(slurm, 1)
    return Costs(checkpoint_s=mean(stopped) + STEP_S / 2, restore_s=mean(again))


def until(happened: Callable[[], object]) -> None:
    end_s = time.monotonic() + 60.0
    while not happened():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def submit(slurm: Slurm, jobs: list[Job], script: Path) -> dict[str, float]:
    began, submitted = time.time(), {}
    for job in jobs:
        time.sleep(max(0.0, began + job.submit_s - time.time()))
        submitted[job.id] = time.time()
        sbatch(slurm, job, script)
    return submitted


def sbatch(slurm: Slurm, job: Job, script: Path) -> None:
    words = [
        "sbatch",
        "-p",
        "hemiola",
        f"-N{job.hosts}",
        f"--gpus-per-node={job.gpus // job.hosts}",
        "-o",
        "/dev/null",
    ]
    words += ["--open-mode=append", str(script), job.id, str(round(job.duration_s / STEP_S))]
    subprocess.run(words, env=slurm.environ, capture_output=True, check=True, cwd="/tmp")


def wait(slurm: Slurm, jobs: int) -> None:
    """Until no job is left."""
    while left := len(slurm.ask("squeue", "-h", "-o", "%i").split()):
        print(f"\r{left} of {jobs} left ", end="", file=sys.stderr)
        time.sleep(0.05 if jobs == 1 else 1.0)


def page(jobs: int, rows: list[str], same: bool) -> str:
    order = "The same order of policies in both." if same else "**The order of policies differs.**"
    head = [
        "# What was simulated, and what happened", "",
        f"`python benchmarks/fidelity.py --jobs {jobs}`, {date.today()}, on {machine()}.", "",
        *(line.strip() for line in (__doc__ or "").splitlines()[4:9]), "",
        "| policy | mean completion, Slurm | simulated | mean | per job, median error | stops per job, Slurm | simulated |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    return "\n".join([*head, *rows, "", f"Wanted: mean within 5 %, per job within 10 %. {order}", ""])


if __name__ == "__main__":
    main()
