"""A sample of the campaign (`campaign.py`): the daemon is killed, and all around it fails, on a real Slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from chaos_checks import KINDS, _booked, _one
from chaos_jobs import Batch, Wish
from chaos_runs import Cluster, one_run
from chaos_scenarios import SCENARIOS, scenario

from hemiola.lab.slurm import SlurmLab

SEEDS = (25, 29, 59, 132, 223, 276, 2, 15)


def test_killed_anywhere(lab: SlurmLab, folder: Path) -> None:
    cluster = Cluster(lab, folder)
    results = [one_run(cluster, seed) for seed in SEEDS]
    assert [violation for result in results for violation in result.violations] == []
    assert len({kill for result in results for kill in result.kills}) > 3


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(lab: SlurmLab, folder: Path, name: str) -> None:
    if name == "disk_full" and os.geteuid() != 0:
        pytest.skip("needs root")
    assert scenario(name, Cluster(lab, folder), folder / name).violations == []


def written(folder: Path, *jobs: str, gpus: int = 8, hosts: int = 1) -> Batch:
    """Jobs 1, 2, ... that wrote these lines, parted by semicolons."""
    batch = Batch(folder)
    for number, lines in enumerate(jobs, start=1):
        file = folder / f"job{number}"
        file.write_text("".join(f"{line.strip()}\n" for line in lines.split(";")))
        batch.accepted[str(number)] = file
        batch.wishes[str(number)] = Wish(gpus, 1.0, hosts=hosts)
    return batch


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        ("start 0 h1 0 10.0; end 0 h1 0 11.0", []),
        ("start 0 h1 0 10.0", ["lost"]),
        ("start 0 h1 0 10.0; end 0 h1 0 11.0; start 0 h1 0 12.0; end 0 h1 0 13.0", ["started twice"]),
        ("start 0 h1 0 10.0; end 0 h1 0 12.0; start 1 h1 0 11.0", ["started twice", "two live placements"]),
    ],
)
def test_the_checks_see_what_jobs_wrote(tmp_path: Path, lines: str, kinds: list[str]) -> None:
    said = written(tmp_path, lines).said("1")
    found = _one("1", said, None, placed=False, reruns=False, timed=True)
    assert [violation.kind for violation in found] == kinds
    assert set(kinds) <= set(KINDS)


def test_the_checks_see_a_gpu_that_two_jobs_have(tmp_path: Path) -> None:
    two = "start 0 h[1-2] 0,1 10.0; end 0 h[1-2] 0,1 12.0", "start 0 h2 0,1 11.0; end 0 h2 0,1 13.0"
    for gpus, expected in ((4, 0), (8, 1)):
        batch = written(tmp_path, *two, gpus=gpus)
        assert len(_booked(batch, {job: batch.said(job) for job in batch.accepted})) == expected
    same = written(tmp_path, two[1], two[1].replace("11.0", "12.0"), gpus=1)
    assert len(_booked(same, {job: same.said(job) for job in same.accepted})) == 2
