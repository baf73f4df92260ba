"""What a real Slurm does that is seldom: forged comments, jobs that are changed or corrected, nodes that leave partitions."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import BLOCK
from live_slurm import Live, until

from hemiola.sched.job_state import WAITING


def test_a_forged_comment_blocks_nothing(live: Live):
    words = ("-p", "other", "-N2", "--gpus=3", "-o", "/dev/null", "-D", "/tmp", "--wrap", "sleep 60")
    live.command("sbatch", f"--comment={BLOCK}", f"--job-name={BLOCK}", *words)
    with live.serving("fifo:placement=first-fit") as service:
        until(lambda: service.view and service.view.inventory.blocked, "its GPUs count as taken")
        assert sum(mask.bit_count() for mask in service.view.inventory.blocked.values()) == 3
        one = live.submit("-N2 --gres=gpu:8")
        assert live.wait_outcome(one) == "finished"


def test_the_kill_switch_hands_back_what_was_just_stopped(live: Live, tmp_path: Path):
    switch, alive = tmp_path / "off", tmp_path / "alive"
    with live.serving(kill_switch=switch, alive=alive):
        one = live.submit("-N4 --gres=gpu:8", "trap '' TERM; sleep 3; sleep 3")
        live.wait_state(one, "RUNNING")
        until(alive.exists, "it says that it lives")
        live.command("scontrol", "requeuehold", one)
        switch.touch()
        until(lambda: alive.read_text().endswith(" stopped\n"), "no more jobs are to be held")
        until(lambda: live.rows()[one].restarts, "it is back")
        until(lambda: live.rows()[one].priority, "it is handed back")


def test_a_job_that_its_user_changes_is_read_anew(live: Live, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hemiola.live.engines.slurm.driver.COMMENTS_S", 0.5)
    with live.serving() as service:

        def wishes() -> list[tuple[int, str]]:
            states = service.view.jobs.values() if service.view else ()
            return [(state.job.gpus, state.job.model) for state in states if state.status == WAITING]

        large = live.submit("-N4 --gres=gpu:8", "sleep 5")
        live.wait_state(large, "RUNNING")
        one = live.submit("-N2 --gres=gpu:8", comment="hemiola model=resnet50")
        until(lambda: wishes() == [(16, "resnet50")], "it is known")
        live.command("scontrol", "update", f"jobid={one}", "NumNodes=1")
        until(lambda: wishes() == [(8, "resnet50")], "its nodes are read")
        live.command("scontrol", "update", f"jobid={one}", "Comment=hemiola model=vgg16")
        until(lambda: wishes() == [(8, "vgg16")], "its comment is read")
        live.wait_state(one, "COMPLETED")


def test_a_job_that_can_never_run_may_be_corrected(live: Live):
    with live.serving():
        one = live.submit("-N2 --gres=gpu:8", comment="hemiola required=host")
        until(lambda: live.reason(one), "it can never run")
        live.command("scontrol", "update", f"jobid={one}", "NumNodes=1")
        live.wait_state(one, "COMPLETED")


HETEROGENEOUS = """#!/bin/sh
#SBATCH -p {0} -N1 --gpus-per-node=2 -o /dev/null
#SBATCH hetjob
#SBATCH -p {0} -N1 --gpus-per-node=3
sleep {1}
"""


def test_heterogeneous_jobs_are_slurms_and_stop_nobody(live: Live, tmp_path: Path):
    def submit(partition: str, seconds: int) -> None:
        script = tmp_path / "het.sh"
        script.write_text(HETEROGENEOUS.format(partition, seconds))
        live.command("sbatch", "-D", "/tmp", str(script))

    with live.serving() as service:
        submit("other", 60)
        until(lambda: service.view and len(service.view.inventory.blocked) == 2, "its nodes count as taken")
        submit("hemiola", 1)
        one = live.submit("--nodes=1 --gpus-per-node=2")
        assert live.wait_outcome(one) == "finished"
        until(lambda: len(live.rows()) == 2, "Slurm has run those of the partition")


def test_a_node_that_is_taken_out_of_all_partitions_keeps_its_job(live: Live):
    with live.serving("fifo:placement=first-fit") as service:
        live.submit("-N3 --gres=gpu:8", "sleep 2")
        first = live.submit("-N1 --gres=gpu:8", "sleep 4")
        live.wait_state(first, "RUNNING")
        assert live.hosts(first) == "h3"
        try:
            for partition in "hemiola", "other":
                live.command("scontrol", "update", f"PartitionName={partition}", "Nodes=h[0-2]")
            until(lambda: service.view and service.view.inventory.owed, "it is seen")
            assert live.wait_outcome(first) == "finished"
            assert not live.rows(ended=True)[first].restarts
        finally:
            for partition in "hemiola", "other":
                live.command("scontrol", "update", f"PartitionName={partition}", "Nodes=h[0-3]")
        again = live.submit("-N4 --gres=gpu:8")
        assert live.wait_outcome(again) == "finished"
