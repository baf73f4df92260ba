"""The long campaign: `PYTHONPATH=tests/helpers python tests/system/chaos/campaign.py --runs 1000 --write docs/results/chaos.md`.

Each run is kept as a line of a file as soon as it ends; what is there already is not repeated, so that a
campaign can be interrupted at any time, and gone on with.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
from chaos_page import page
from chaos_runs import Cluster, Result, one_run
from chaos_scenarios import SCENARIOS, Outcome, recovery, scenario

from hemiola.lab.slurm import SlurmLab

Kept = TypeVar("Kept", Result, Outcome)


def main() -> None:
    """Run what is asked for, and write what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="in which the daemon is killed")
    parser.add_argument("--seed", type=int, default=1, help="the first run's; the others follow")
    parser.add_argument(
        "--scenarios", type=int, default=5, help="how often each of them is played at full length"
    )
    parser.add_argument("--only", default="", help="these scenarios, with commas between")
    parser.add_argument("--restarts", type=int, default=100, help="with 1,000 jobs waiting")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "hemiola-chaos")
    parser.add_argument("--write", type=Path, help="a page with the tables of all that is kept")
    asked = parser.parse_args()
    asked.keep.mkdir(exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    runs, scenes = asked.keep / "runs.jsonl", asked.keep / "scenarios.jsonl"
    names = asked.only.split(",") if asked.only else list(SCENARIOS)
    try:
        kill_runs(runs, range(asked.seed, asked.seed + asked.runs))
        for name in names:
            play(scenes, name, range(asked.seed, asked.seed + asked.scenarios))
        restarts(scenes, asked.restarts)
    except KeyboardInterrupt:
        print("\ninterrupted; what is done is kept")
    if asked.write:
        asked.write.write_text(page(kept(runs, Result), kept(scenes, Outcome)))


def kept(file: Path, kind: type[Kept]) -> list[Kept]:
    """What has been done."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=kind) for line in lines]


@contextmanager
def on_a_slurm(**settings: str) -> Iterator[Cluster]:
    """A fresh one, of 8 nodes with 8 GPUs each in 2 racks."""
    folder = Path(tempfile.mkdtemp(prefix="hemiola-chaos-"))
    folder.chmod(0o755)
    with SlurmLab(8, gpus=8, racks=2, settings={"MinJobAge": "60", **settings}) as lab:
        yield Cluster(lab, folder)
    if not any(folder.iterdir()):  # a run that found something leaves its files
        shutil.rmtree(folder)


def each(file: Path, seeds: list[int], work: Callable[[int], Result | Outcome], what: str) -> None:
    """Do it for each seed, keep what comes of it, and say how far it is."""
    began_s = time.monotonic()
    with file.open("ab") as stream:
        for done, seed in enumerate(seeds, start=1):
            result = work(seed)
            stream.write(msgspec.json.encode(result) + b"\n")
            stream.flush()
            for violation in result.violations:
                print(f"\nseed {seed}: {violation.kind}: {violation.what}", flush=True)
            each_s = (time.monotonic() - began_s) / done
            print(f"\r{what}: {done} of {len(seeds)}, {each_s:.1f} s each ", end="", flush=True)
    print()


def kill_runs(file: Path, seeds: range) -> None:
    """Those that have not been made."""
    there = {result.seed for result in kept(file, Result)}
    if left := [seed for seed in seeds if seed not in there]:
        with on_a_slurm() as cluster:
            each(file, left, lambda seed: one_run(cluster, seed), "kills")


def play(file: Path, name: str, seeds: range) -> None:
    """A scenario, each time on a Slurm of its own."""
    there = {outcome.seed for outcome in kept(file, Outcome) if outcome.name == name}
    quick = {"SlurmdTimeout": "2", "MessageTimeout": "2"} if "node" in name else {}

    def once(seed: int) -> Outcome:
        with on_a_slurm(**quick) as cluster:
            outcome = scenario(name, cluster, cluster.folder / name, seed, long=True)
            if not outcome.violations:
                shutil.rmtree(cluster.folder / name)
            return outcome

    if left := [seed for seed in seeds if seed not in there]:
        each(file, left, once, name)


def restarts(file: Path, times: int) -> None:
    """How long a restart takes with 1,000 jobs, 64 of them running."""
    if times and not any(outcome.name == "recovery" for outcome in kept(file, Outcome)):
        with on_a_slurm() as cluster, file.open("ab") as stream:
            times_s = recovery(cluster, cluster.folder / "recovery", jobs=1000, times=times)
            shutil.rmtree(cluster.folder / "recovery")
            stream.write(msgspec.json.encode(Outcome(name="recovery", times_s=times_s)) + b"\n")


if __name__ == "__main__":
    main()
