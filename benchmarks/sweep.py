"""What two workers are worth to a sweep, and what is left to do when drivers and workers are killed.

    python benchmarks/sweep.py [--rounds 3] [--runs 24] [--small 1000] [--write docs/results/sweep.md]

Speed-up: the same runs on one worker and on two, of a pool and of Ray, by turns, each from the call to the last
result, processes started within that time. Two processes that know nothing of each other show what the machine has
to give. Kills: `hemiola simulate --resume` on many small simulations, whose driver and workers are killed (SIGKILL)
again and again; its figures are compared with those of a sweep that nobody disturbed. About six minutes.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from statistics import median

from page import machine, table, write_page

from hemiola.simulator.scenario import Prepared, Scenario, prepare
from hemiola.simulator.simulate import Recording
from hemiola.simulator.sweep import Executor, Here, ProcessPool
from hemiola.simulator.sweep.on_ray import OnRay
from hemiola.simulator.sweep.tasks import Work, tasks_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/helpers"))
from patience import until
from ray_cluster import RayCluster, RayNode, ray_cluster
from sweep_helpers import figures, kept

CLUSTER = "leaf-spine:hosts=16,gpus_per_host=8,hosts_per_rack=4,oversubscription=4"
POLICIES = ("fifo-backfill", "tiresias", "dally")
BARE = Recording(timeline=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=6000)
    parser.add_argument("--small", type=int, default=1000)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with ray_cluster(RayNode("one")) as one, ray_cluster(RayNode("two", num_cpus=2)) as two:
        parts = [speed_up(given.runs, given.jobs, given.rounds, one, two), kills(given.small, two)]
    text = page(" ".join(sys.argv[1:]), load, parts)
    if given.write:
        write_page(given.write, text)
    print(text)


# ---- speed-up --------------------------------------------------------------------------------


def speed_up(runs: int, jobs: int, rounds: int, one: RayCluster, two: RayCluster) -> str:
    """One worker and two by turns."""
    prepared = prepare(
        Scenario(
            workload=f"generated:jobs={jobs},load=0.9,mix=philly", cluster=CLUSTER, policies=POLICIES,
            seeds=-(-runs // len(POLICIES)),
        )
    )  # fmt: skip
    pairs: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "two processes apart": (lambda: _apart(prepared, 1), lambda: _apart(prepared, 2)),
        "`--workers`": (lambda: _took(ProcessPool(1), prepared), lambda: _took(ProcessPool(2), prepared)),
        "`--ray`": (lambda: _took(OnRay(one.address), prepared), lambda: _took(OnRay(two.address), prepared)),
    }
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in pairs}
    for _ in range(rounds):
        for name, (single, double) in pairs.items():
            took[name].append((single(), double()))
            print(name, took[name][-1], file=sys.stderr)
    rows = [_row(name, times) for name, times in took.items()]
    head = ("", "one worker, s", "two, s", "speed-up, median (least–most)")
    count = len(tasks_of([prepared]))
    return f"{count} runs of {jobs:,} jobs, {rounds} rounds.\n\n{table(head, rows)}"


def _row(name: str, times: Sequence[tuple[float, float]]) -> list[str]:
    ratios = [single / double for single, double in times]
    return [
        name, f"{median(single for single, _ in times):.1f}", f"{median(double for _, double in times):.1f}",
        f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
    ]  # fmt: skip


def _took(executor: Executor, prepared: Prepared) -> float:
    since = time.perf_counter()
    work = Work([prepared], tasks_of([prepared]), BARE)
    assert sum(1 for _ in executor.answers(work)) == len(work.tasks)
    return time.perf_counter() - since


def _apart(prepared: Prepared, processes: int) -> float:
    """The same runs halved by hand between processes that are forked, so that nothing is sent or started anew."""
    tasks = tasks_of([prepared])
    since = time.perf_counter()
    children = []
    for number in range(processes):
        child = os.fork()
        if child == 0:
            mine = tasks[number::processes]
            os._exit(len(mine) - sum(1 for _ in Here().answers(Work([prepared], mine, BARE))))
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    return time.perf_counter() - since


# ---- kills -----------------------------------------------------------------------------------


def kills(runs: int, cluster: RayCluster) -> str:
    """Many small simulations, whose driver and workers die."""
    seeds = -(-runs // 2)
    asked = [
        "generated:jobs=60,load=0.9,mix=philly", "--cluster", CLUSTER, "--policy", "fifo", "dally",
        "--seeds", str(seeds),
    ]  # fmt: skip
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _simulate(asked, ["--workers", "1", "--json", str(folder / "calm.json")], folder).communicate()
        calm = figures(folder / "calm.json")
        for title, where, workers in (
            ("`--workers 2`", ["--workers", "2"], _pool_workers),
            ("`--ray`", ["--ray", cluster.address], lambda _: _ray_workers(cluster)),
        ):
            rows.append(
                [title, *_disturbed(asked, where, workers, folder / where[0].strip("-"), 2 * seeds, calm)]
            )
            print(rows[-1], file=sys.stderr)
    head = (
        "",
        "drivers killed",
        "workers killed",
        "kept when killed, and at the end",
        "of these done again",
        "figures",
        "took",
    )
    return f"{2 * seeds:,} simulations of 60 jobs.\n\n{table(head, rows)}"


def _disturbed(
    asked: list[str],
    where: list[str],
    workers: Callable[[int], list[int]],
    folder: Path,
    runs: int,
    calm: object,
) -> list[str]:
    """A worker is killed at each odd tenth of the way, the driver at each even one but the last."""
    store, output = folder / "kept", folder / "figures.json"
    store.mkdir(parents=True)
    killed, left, found = 0, [0], []
    since = time.perf_counter()
    words = [*where, "--resume", str(store), "--json", str(output)]
    for tenth in range(1, 10, 2):
        driver = _simulate(asked, words, folder)
        until(lambda tenth=tenth: kept(store) >= runs * tenth // 10, "a tenth more")
        victims: list[int] = []
        until(
            lambda victims=victims, pid=driver.pid: victims or victims.extend(workers(pid)), "a busy worker"
        )
        with suppress(ProcessLookupError):
            os.kill(victims[0], signal.SIGKILL)
            killed += 1
        if tenth < 9:
            until(lambda tenth=tenth: kept(store) >= runs * (tenth + 1) // 10, "a tenth more")
            driver.kill()
        _, err = driver.communicate()
        found.append(int(err.replace("\n", " ").split("kept runs: ")[1].split(" of ")[0].replace(",", "")))
        left.append(kept(store))
    assert driver.returncode == 0, err
    took = time.perf_counter() - since
    same = "the same" if figures(output) == calm else "DIFFER"
    lost = sum(was - again for was, again in zip(left, found, strict=False))
    return ["4", str(killed), ", ".join(map(str, left[1:])), str(lost), same, f"{took:.0f} s"]


def _simulate(asked: list[str], words: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from hemiola.cli import main; main()", "simulate", *asked, *words],
        cwd=folder.parent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _pool_workers(driver: int) -> list[int]:
    children = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _ray_workers(cluster: RayCluster) -> list[int]:
    return [
        pid
        for pid in cluster.pids("two")
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::_work")
    ]


def page(arguments: str, load: float, parts: Sequence[str]) -> str:
    about = (__doc__ or "").split("\n\n")[2].strip()
    return (
        "# Sweeps on several workers\n\n"
        f"`python benchmarks/sweep.py {arguments}`, {date.today()}, on {machine()}; load before it {load:.1f}.\n\n"
        f"{about}\n\n## Two workers against one\n\n{parts[0]}\n\n## Killed and resumed\n\n{parts[1]}\n"
    )


if __name__ == "__main__":
    main()
