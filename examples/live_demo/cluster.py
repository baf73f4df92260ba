"""Runs the stream on a real Slurm: under Slurm's own scheduler, or under `hemiola serve`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hemiola.core.errors import LabError
from hemiola.lab.slurm import SlurmLab
from live_demo.arms import Arm
from live_demo.links import Uplinks
from live_demo.measured import Ran, Run
from live_demo.network import Network
from live_demo.stream import Ask

__all__ = ["Told", "run", "submit", "wait"]

HERE = Path(__file__).resolve().parent
LOOK_S = 0.25
READY_S = 60.0
HANGS_S = 120.0
"""Without a job that starts or ends, for so long, something is wrong."""
MINUTES = 10
"""Every job's time limit; Slurm knows no shorter unit than a minute, and nobody is to be killed by it."""


Told = Callable[[int, int, int], None]
"""Told again and again how many jobs wait, run and have ended."""


def run(
    lab: SlurmLab,
    network: Network,
    *,
    asks: Sequence[Ask],
    arm: Arm,
    folder: Path,
    profiles: Path,
    told: Told,
) -> Run:
    """Submit every job at its time, and wait until all have ended.

    Args:
        folder: of this run, new; clocks, logs and the journal go there.
        profiles: what the jobs' model is known to send, for Hemiola.

    Raises:
        LabError: a job failed, or nothing moves any more.
    """
    folder.mkdir()
    _until(
        lambda: set(lab.node_states().values()) == {"idle"}, "nodes do not become idle: jobs before hold them"
    )
    with (
        serving(lab, network, arm=arm, folder=folder, profiles=profiles),
        Uplinks(lab, network.racks) as uplinks,
    ):
        began_s, submitted = time.time(), dict[str, float]()
        for ask in asks:
            while (left_s := began_s + ask.submit_s - time.time()) > 0:
                told(*count(folder, submitted))
                time.sleep(min(left_s, LOOK_S))
            submitted[ask.name] = time.time()
            submit(
                lab, ask, folder=folder, partition="hemiola" if arm.policy else "other", options=arm.options
            )
        wait(folder, submitted, told)
    jobs = [ran(ask, folder, submit_s=submitted[ask.name] - began_s, origin_s=began_s) for ask in asks]
    return Run(arm.name, jobs, network.per_rack, began_s, uplinks.samples)


@contextmanager
def serving(lab: SlurmLab, network: Network, *, arm: Arm, folder: Path, profiles: Path) -> Iterator[None]:
    """Hemiola beside Slurm; nothing for Slurm's own scheduler."""
    if not arm.policy:
        yield
        return
    speeds = ",".join(f"{name}={value}" for name, value in network.speeds.items())
    words = [
        "setpriv", "--pdeathsig", "TERM",  # it ends with this process, however that ends
        str(Path(sys.executable).with_name("hemiola")), "serve", "--engine", "slurm", "--mode", "enforce",
        "--policy", arm.policy, "--topology", f"slurm:{lab.base}/etc,{speeds}", "--profiles", str(profiles),
        "--journal", str(folder / "journal.db"),
    ]  # fmt: skip
    log = folder / "hemiola.log"
    with log.open("w") as stream:
        daemon = subprocess.Popen(words, env={**os.environ, **lab.environ}, stderr=stream)
        try:
            _until(lambda: "leads" in log.read_text(), "hemiola serve does not lead", log)
            yield
        finally:
            daemon.terminate()
            daemon.wait()


def submit(lab: SlurmLab, ask: Ask, *, folder: Path, partition: str, options: Sequence[str] = ()) -> None:
    """One job, with plain sbatch."""
    comment = "hemiola model=live-demo" if ask.hosts > 1 else ""
    lab.run(
        [
            "sbatch", "--partition", partition, f"--nodes={ask.hosts}", "--ntasks-per-node=1", "--gres=gpu:1",
            f"--time={MINUTES}", "--no-requeue", f"--job-name={ask.name}", f"--comment={comment}",
            f"--output={folder}/{ask.name}.log", f"--export=ALL,PYTHONPATH={HERE.parent}", *options,
            str(HERE / "job.sh"), sys.executable, ask.name, str(ask.work_s), str(ask.iterations), str(folder),
        ]
    )  # fmt: skip


def wait(folder: Path, submitted: dict[str, float], told: Told) -> None:
    """Until all have ended.

    Raises:
        LabError: a job failed, or nothing moves any more.
    """
    seen, since_s = (0, 0, 0), time.monotonic()
    while seen[2] < len(submitted):
        now = count(folder, submitted)
        told(*now)
        if now != seen:
            seen, since_s = now, time.monotonic()
        elif time.monotonic() > since_s + HANGS_S:
            raise LabError(
                f"no job has started or ended for {HANGS_S:g} s: {seen[0]} wait, {seen[1]} run",
                _last_words(folder / "hemiola.log"),
            )
        time.sleep(LOOK_S)


def count(folder: Path, submitted: dict[str, float]) -> tuple[int, int, int]:
    """How many wait, run and have ended."""
    names = {path.name for path in folder.iterdir()}
    if failed := [job for job in submitted if f"{job}.failed" in names]:
        said = (folder / f"{failed[0]}.log").read_text(errors="replace").strip().splitlines()[-3:]
        raise LabError(f"job {failed[0]} failed: {' / '.join(said)}", "the demo cannot go on")
    ended = sum(f"{job}.end" in names for job in submitted)
    started = sum(f"{job}.start" in names for job in submitted)
    return len(submitted) - started, started - ended, ended


def ran(ask: Ask, folder: Path, *, submit_s: float, origin_s: float) -> Ran:
    """What a job's own clock says, from the run's beginning."""
    clock = json.loads((folder / f"{ask.name}.json").read_text()) if ask.hosts > 1 else {}
    start_s, nodes = (folder / f"{ask.name}.start").read_text().split(maxsplit=1)
    return Ran(
        name=ask.name, hosts=tuple(nodes.split()), submit_s=submit_s, start_s=float(start_s) - origin_s,
        end_s=float((folder / f"{ask.name}.end").read_text()) - origin_s,
        iteration_s=clock.get("iteration_s", []), communication_s=clock.get("communication_s", []),
    )  # fmt: skip


def _until(met: Callable[[], bool], lacking: str, log: Path | None = None) -> None:
    """Wait for it.

    Raises:
        LabError: it does not come.
    """
    end_s = time.monotonic() + READY_S
    while not met():
        if time.monotonic() > end_s:
            raise LabError(lacking, _last_words(log))
        time.sleep(0.1)


def _last_words(log: Path | None) -> str:
    """What Hemiola said last, as a hint."""
    said = log.read_text(errors="replace").strip()[-300:] if log is not None and log.exists() else ""
    return f"Hemiola's log ends: {said}" if said else "is the machine loaded? try again"
