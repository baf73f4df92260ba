"""One short run on each real engine that is installed; the many are in `tests/system`."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_slurm import Live
from ray_cluster import RayNode, need_ray, ray_cluster


@pytest.mark.slow
def test_a_job_runs_once_on_a_real_slurm(live: Live) -> None:
    with live.serving():
        assert live.wait_outcome(live.submit("-N2 --gres=gpu:8", "true")) == "finished"


@pytest.mark.slow
def test_a_job_runs_once_on_a_real_ray(tmp_path: Path) -> None:
    need_ray()
    from live_ray import LiveRay

    with ray_cluster(RayNode("h0", num_cpus=4, num_gpus=2), dashboard=True) as cluster:
        live = LiveRay(cluster, tmp_path / "journal.db")
        with live.serving():
            job = live.submit("gpus=2", f"echo $HEMIOLA_GPUS >> {tmp_path}/ran")
            assert live.wait_outcome(job) == "finished"
        live.clear()
    assert (tmp_path / "ran").read_text() == "2\n"
