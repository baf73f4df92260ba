"""Elastic jobs on a real Slurm."""

from __future__ import annotations

from pathlib import Path

from live_policies import want
from live_slurm import Live, until

from hemiola.live.engines.slurm.release import hand_back


def counted(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def test_an_elastic_job_begins_again_on_as_many_nodes_as_are_decided(live: Live, tmp_path: Path):
    wanted, begins = tmp_path / "hosts", tmp_path / "begins"
    want(1, wanted)
    script = (
        f"echo $SLURM_JOB_NUM_NODES:$SLURM_NTASKS >> {begins}; sleep $((SLURM_JOB_NUM_NODES == 2 ? 1 : 60))"
    )
    with live.serving(f"live_policies:WholeHosts,file={wanted}"):
        job = live.submit("-N1-3 --gpus-per-node=8 --ntasks-per-node=2", script)
        until(lambda: counted(begins) == ["1:2"], "it runs on one node")
        assert live.rows()[job].host_list == "h0"
        want(3, wanted)
        until(lambda: counted(begins)[1:] == ["3:6"], "it runs on three nodes")
        assert live.rows()[job].host_list == "h[0-2]"
        record = live.record(job)
        assert (record.job.gpus, record.job.gpus_max, record.placement.gpus) == (8, 24, 24)
    with live.serving(f"live_policies:WholeHosts,file={wanted}"):
        until(lambda: live.record(job).placement.gpus == 24, "a daemon that begins anew finds it on three")
        want(2, wanted)
        assert live.wait_outcome(job) == "finished"
    assert counted(begins) == ["1:2", "3:6", "2:4"]
    assert live.rows(ended=True)[job].restarts == 2


def test_nodes_are_taken_from_a_job_as_it_runs_if_it_says_so(live: Live, tmp_path: Path):
    wanted, begins, go = tmp_path / "hosts", tmp_path / "begins", tmp_path / "go"
    want(3, wanted)
    script = f"echo $SLURM_JOB_NUM_NODES >> {begins}; until [ -e {go} ]; do sleep 0.2; done"
    with live.serving(f"live_policies:WholeHosts,file={wanted}") as service:
        job = live.submit("-N1-3 --gpus-per-node=8", script, comment="hemiola shrink=live")
        live.wait_state(job, "RUNNING")
        want(1, wanted)
        until(lambda: live.rows()[job].host_list == "h0", "it has one node left")
        want(2, wanted)
        until(lambda: counted(begins) == ["3", "2"], "to have more it begins again")
        go.touch()
        assert live.wait_outcome(job) == "finished"
        assert service.driver is not None
    assert live.rows(ended=True)[job].restarts == 1


def test_a_released_elastic_job_has_the_range_that_it_was_submitted_for(live: Live, tmp_path: Path):
    wanted = tmp_path / "hosts"
    want(3, wanted)
    with live.serving(f"live_policies:WholeHosts,file={wanted}"):
        job = live.submit("-N2-4 --gpus-per-node=8 --ntasks-per-node=1", "sleep 60")
        live.wait_state(job, "RUNNING")
    live.command("scontrol", "requeuehold", job)
    live.wait_state(job, "PENDING")
    live.command("scontrol", "update", "nodename=h[2-3]", "state=drain", "reason=test")
    try:
        hand_back(live.slurm, "hemiola")
        # a requeued job waits for two minutes
        live.command("scontrol", "update", f"jobid={job}", "StartTime=now+1")
        live.wait_state(job, "RUNNING")
        assert live.hosts(job) == "h[0-1]", "two nodes are enough for it again"
    finally:
        live.command("scontrol", "update", "nodename=h[2-3]", "state=resume")
