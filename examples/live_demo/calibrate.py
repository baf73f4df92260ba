"""Measures the demo's model before the stream: what Hemiola is told of it, and whether its forecast across racks holds."""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median

import msgspec

from hemiola.core.decisions import Placement
from hemiola.core.job import batch_job
from hemiola.cost.iteration import IterationModel
from hemiola.cost.job_profile import learnt
from hemiola.cost.profiles import SCHEMA
from hemiola.lab.slurm import SlurmLab
from hemiola.live.engines.slurm.client import Slurm
from hemiola.live.engines.slurm.snapshot import slurm_topology
from hemiola.trace.reports import JobReport
from live_demo.cluster import Told, submit, wait
from live_demo.measured import Alone
from live_demo.network import Network
from live_demo.stream import GRADIENT_BYTES, Ask

__all__ = ["calibrate"]

WORK_S = 4.0
MODEL = "live-demo"


def calibrate(lab: SlurmLab, network: Network, *, folder: Path, profiles: Path, told: Told) -> Alone:
    """Run two jobs at once, one within the first rack, one across the next two; write the profile of the first."""
    folder.mkdir()
    places = {"near": (0, 1), "far": (network.per_rack, 2 * network.per_rack)}
    for name, nodes in places.items():
        where = ["--nodelist", ",".join(f"h{node}" for node in nodes)]
        submit(lab, Ask(name, 0.0, 2, WORK_S), folder=folder, partition="other", options=where)
    wait(folder, dict.fromkeys(places, 0.0), told)
    near_s, communication_s = medians(folder / "near.json")
    far_s, _ = medians(folder / "far.json")
    model = IterationModel(slurm_topology(Slurm(lab.base / "etc/slurm.conf"), network.speeds))
    report = JobReport(
        job="near", time_s=time.time(), gpus=2, iterations=1, iteration_s=near_s,
        compute_s=near_s - communication_s, traffic_bytes=float(GRADIENT_BYTES),
    )  # fmt: skip
    job = batch_job(id="near", submit_s=0.0, gpus=2, hosts=2, duration_s=1.0, user="demo")
    found = learnt(model, job, _on(places["near"]), report, MODEL)
    profile = msgspec.structs.replace(found, name=f"demo/{MODEL}")
    profiles.write_bytes(msgspec.json.encode({"schema": SCHEMA, "profiles": [profile]}))
    known = msgspec.structs.replace(job, profile=profile)
    return Alone(near_s, communication_s, far_s, model.alone_s(known, _on(places["far"])))


def medians(clock: Path) -> tuple[float, float]:
    """An iteration and its communication, without the first ones."""
    read = json.loads(clock.read_text())
    return median(read["iteration_s"][2:]), median(read["communication_s"][2:])


def _on(nodes: tuple[int, ...]) -> Placement:
    return Placement(nodes, (1,) * len(nodes))
