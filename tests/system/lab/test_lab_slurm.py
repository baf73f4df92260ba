"""A real Slurm on this machine: it comes up, does what Slurm does, breaks as told, and leaves nothing."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import until
from repository import DOCS
from slurm_helpers import (
    apart_from_the_machine,
    as_nobody,
    cables,
    cli,
    jobs_of,
    left_of,
    processes_of,
    state_of,
    submit,
    wait_for,
)

from hemiola.core.errors import LabError
from hemiola.lab import Lab, state
from hemiola.lab.slurm import SlurmLab, attach, daemons
from hemiola.lab.slurm import config as programs
from hemiola.lab.slurm.daemons import find
from hemiola.lab.slurm.record import Record, claim, load, load_all
from hemiola.lab.slurm.teardown import tear_down

pytestmark = pytest.mark.xdist_group("lab")  # its servers are started once


@pytest.fixture(scope="module")
def ready() -> None:
    """Slurm is here and may be started, with users other than root."""
    if any(programs.program(name) is None for name in programs.NEEDED):
        pytest.skip(f"needs Slurm: apt-get install {' '.join(programs.PACKAGES)}")
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture(scope="module")
def slurm(ready: None) -> Iterator[SlurmLab]:
    """One Slurm for the tests that break nothing."""
    with SlurmLab(4, gpus=8, racks=2, name=f"test-{secrets.token_hex(4)}") as lab:
        yield lab
    assert left_of(lab.name) == []


@pytest.fixture
def own(ready: None) -> Iterator[str]:
    """A Slurm's name of this test's own; nothing by that name may be left when the test ends."""
    name = f"test-{secrets.token_hex(4)}"
    yield name
    assert left_of(name) == []


def test_nodes_gpus_and_racks_are_as_asked(slurm: SlurmLab) -> None:
    assert slurm.nodes == ("h0", "h1", "h2", "h3")
    assert slurm.node_states() == dict.fromkeys(slurm.nodes, "idle")
    assert slurm.run(["sinfo", "-h", "-o", "%R %D %G"]).splitlines() == ["hemiola 4 gpu:8", "other 4 gpu:8"]
    switches = slurm.run(["scontrol", "show", "topology"])
    assert re.search(r"SwitchName=rack1 Level=0 LinkSpeed=1 Nodes=h(2,h3|\[2-3\])\s", switches), (
        "26.05 writes it with brackets"
    )
    assert "SwitchName=spine Level=1" in switches
    assert {role.kind for role in slurm.processes().values()} == {
        "munged", "slurmctld", "slurmscriptd", "slurmd",
    }  # fmt: skip
    assert {role.node for role in slurm.processes().values()} == {"", *slurm.nodes}


def test_racks_have_gpus_of_their_types_in_turn() -> None:
    with SlurmLab(6, gpus=2, racks=3, gpu_types=("h100", "a100")) as lab:
        assert lab.run(["sinfo", "-h", "-p", "hemiola", "-N", "-o", "%N %G"]).splitlines() == [
            "h0 gpu:h100:2", "h1 gpu:h100:2", "h2 gpu:a100:2", "h3 gpu:a100:2", "h4 gpu:h100:2", "h5 gpu:h100:2",
        ]  # fmt: skip
        job = submit(lab, "-p", "other", "--gres=gpu:a100:1", script="true")
        wait_for(lab, job, "COMPLETED")


def test_jobs_on_one_node_see_different_gpus(slurm: SlurmLab, tmp_path: Path) -> None:
    script = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES; sleep 0.5"
    options = ("-p", "other", "-w", "h1", "--gres=gpu:4")
    jobs = [submit(slurm, *options, f"--output={tmp_path}/{i}", script=script) for i in range(2)]
    for job in jobs:
        wait_for(slurm, job, "COMPLETED")
    printed = sorted((tmp_path / str(i)).read_text() for i in range(2))
    assert printed == ["h1 0,1,2,3\n", "h1 4,5,6,7\n"]
    until(lambda: f"JobId={jobs[1]} " in (slurm.base / "log/jobs.txt").read_text())
    too_many = submit(slurm, "-p", "other", "-w", "h1", "--gres=gpu:8", script="true")
    wait_for(slurm, too_many, "COMPLETED")
    with pytest.raises(LabError, match="not available"):
        submit(slurm, "-p", "other", "--gres=gpu:9", script="true")


def test_only_an_operator_releases_a_job_of_the_managed_partition(slurm: SlurmLab) -> None:
    sent = as_nobody(slurm, "sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 60")
    job = sent.stdout.strip()
    assert state_of(slurm, job) == "PENDING JobHeldUser", sent.stderr
    for words in (["release", job], ["update", f"jobid={job}", "priority=5"]):
        refused = as_nobody(slurm, "scontrol", *words)
        assert refused.returncode != 0, words
        assert "denied" in refused.stderr
    assert state_of(slurm, job) == "PENDING JobHeldUser"
    slurm.run(["scontrol", "update", f"jobid={job}", "ReqNodeList=h2"])
    slurm.run(["scontrol", "release", job])
    wait_for(slurm, job, "RUNNING")
    assert slurm.run(["squeue", "-h", "-j", job, "-o", "%N"]).strip() == "h2"
    assert as_nobody(slurm, "scancel", job).returncode == 0
    wait_for(slurm, job, "CANCELLED")


HELD = "hemiola:held-by-its-user"


def sent(slurm: SlurmLab, *options: str) -> str:
    """A job of an ordinary user's that begins in an hour."""
    words = ("sbatch", "--parsable", "--output=/dev/null", "--begin=now+1hour", *options, "--wrap=true")
    return as_nobody(slurm, *words).stdout.strip()


def may(slurm: SlurmLab, *words: str) -> bool:
    """Whether an ordinary user is let do that with `scontrol`."""
    return as_nobody(slurm, "scontrol", *words).returncode == 0


def shown(slurm: SlurmLab, job: str) -> list[str]:
    """Of each element of a job: whether it is held, and its comment."""
    lines = slurm.run(["squeue", "-h", "-r", "-j", job, "-o", "%i|%Q|%k"]).splitlines()
    words = [line.split("|")[1:] for line in sorted(lines)]
    return [f"{'held' if priority == '0' else 'free'} {comment}".strip() for priority, comment in words]


def test_what_is_marked_in_a_comment_outlives_a_new_one(slurm: SlurmLab) -> None:
    job = sent(slurm, "--hold")
    for said in ("hemiola model=resnet50", f"{HELD} hemiola", ""):
        assert may(slurm, "update", f"jobid={job}", f"comment={said}")
        assert shown(slurm, job) == [f"held {HELD} {said.removeprefix(HELD).strip()}".strip()]
    slurm.run(["scancel", job])


@pytest.mark.parametrize(
    "forged",
    [
        "hemiola:names-its-nodes ", HELD, f"{HELD} {HELD} ", f"{HELD}x ", "hemiola:held-as-it-left ",
        "hemiola:names-its-nodes hemiola:held-by-its-user ",
    ],
)  # fmt: skip
def test_a_mark_that_a_user_writes_is_left_out_and_lifts_no_hold(slurm: SlurmLab, forged: str) -> None:
    job = sent(slurm, f"--comment={forged}hemiola model=a")
    assert shown(slurm, job) == ["held hemiola model=a" if forged.endswith(" ") else "held model=a"]
    assert not may(slurm, "release", job) and not may(slurm, "update", f"jobid={job}", "priority=9")
    assert may(slurm, "update", f"jobid={job}", f"comment={forged}") and not may(slurm, "release", job)
    assert shown(slurm, job) == ["held hemiola"]
    slurm.run(["scancel", job])


def test_a_nice_value_lifts_no_hold(slurm: SlurmLab) -> None:
    jobs = [sent(slurm), sent(slurm, "--nice=5"), sent(slurm, "--hold"), sent(slurm, "--partition=other")]
    for job in jobs[:3]:
        assert not may(slurm, "update", f"jobid={job}", "nice=1000")
        assert shown(slurm, job)[0].startswith("held")
    assert may(slurm, "update", f"jobid={jobs[3]}", "nice=7")
    assert not may(slurm, "update", f"jobid={jobs[3]}", "partition=hemiola", "nice=8")
    slurm.run(["scancel", *jobs])


def test_a_hold_that_a_job_takes_along_and_brings_back_stays_whose_it_was(slurm: SlurmLab) -> None:
    ours, theirs, later = sent(slurm, "--comment=a"), sent(slurm, "--hold"), sent(slurm, "--comment=b")
    for job in ours, theirs, later:
        assert may(slurm, "update", f"jobid={job}", "partition=other")
    assert may(slurm, "hold", later), "there it is its user's own"
    assert shown(slurm, ours) == ["held hemiola:held-as-it-left a"]
    for job in ours, theirs, later:
        assert may(slurm, "update", f"jobid={job}", "partition=hemiola")
    assert shown(slurm, ours) == ["held a"]
    assert shown(slurm, theirs) == [f"held {HELD}"] and shown(slurm, later) == [f"held {HELD} b"]
    slurm.run(["scancel", ours, theirs, later])


@pytest.mark.parametrize(
    "change",
    ["reqnodelist=", "excnodelist=", "features=", "dependency=", "gres=gpu:8", "starttime=now+2hours"],
)
def test_a_job_that_slurm_would_start_is_held_again_when_its_user_changes_where_or_when(
    slurm: SlurmLab, change: str
) -> None:
    job = sent(slurm, "--nodelist=h2", "--exclude=h3", "--comment=a")
    assert shown(slurm, job) == ["free a"], "who names nodes has Slurm's own scheduler"
    assert may(slurm, "update", f"jobid={job}", "comment=b") and shown(slurm, job) == ["free b"]
    assert may(slurm, "update", f"jobid={job}", change)
    assert shown(slurm, job) == ["held b"] and not may(slurm, "release", job)
    slurm.run(["scancel", job])


def test_a_hold_of_some_elements_of_an_array_is_lifted_with_all(slurm: SlurmLab) -> None:
    job = sent(slurm, "--array=0-2", "--comment=a")
    assert may(slurm, "hold", f"{job}_1")
    assert shown(slurm, job) == ["held a", f"held {HELD} a", "held a"]
    may(slurm, "release", job)
    assert shown(slurm, job) == ["held a"] * 3, "nobody is taken to hold the others"
    assert may(slurm, "hold", job) and shown(slurm, job) == [f"held {HELD} a"] * 3
    assert may(slurm, "release", job) and shown(slurm, job) == ["held a"] * 3
    slurm.run(["scancel", job])


def test_where_nobody_may_name_nodes_they_are_refused_however_they_are_named(own: str) -> None:
    with SlurmLab(4, name=own) as slurm:
        lua = slurm.base / "etc" / "job_submit.lua"
        lua.write_text(lua.read_text().replace("may_name_nodes = true", "may_name_nodes = false"))
        slurm.restart_controller()
        slurm.wait_ready()
        for option in "--nodelist=h2", "--exclude=h2":
            refused = as_nobody(slurm, "sbatch", option, "--output=/dev/null", "--wrap=true")
            assert refused.returncode and "may not name nodes" in refused.stderr
        job = sent(slurm, "--comment=hemiola:names-its-nodes ")
        for words in (
            ["release", job],
            *(["update", f"jobid={job}", f"{n}nodelist=h2"] for n in ("req", "exc")),
        ):
            assert not may(slurm, *words)
        named = sent(slurm, "--partition=other", "--nodelist=h2", "--exclude=h3")
        moved = ("update", f"jobid={named}", "partition=hemiola")
        assert not may(slurm, *moved) and may(slurm, *moved, "reqnodelist=", "excnodelist=")
        assert slurm.run(["squeue", "-h", "-j", named, "-o", "%Q %n%x"]).strip() == "0"


def test_a_job_that_moves_into_the_managed_partition_is_held(slurm: SlurmLab) -> None:
    words = (
        "sbatch",
        "--parsable",
        "--output=/dev/null",
        "--partition=other",
        "--begin=now+1hour",
        "--wrap=true",
    )
    job = as_nobody(slurm, *words).stdout.strip()
    assert state_of(slurm, job) == "PENDING BeginTime"
    both = as_nobody(slurm, "scontrol", "update", f"jobid={job}", "partition=hemiola", "priority=5")
    assert both.returncode != 0
    words = ("scontrol", "update", f"jobid={job}", "partition=hemiola", "starttime=now")
    until(lambda: as_nobody(slurm, *words).returncode == 0)  # newer ones want it to be given again (EAGAIN)
    assert state_of(slurm, job) == "PENDING JobHeldUser"
    slurm.run(["scancel", job])


def test_the_other_partition_and_a_slurm_without_hold_start_jobs_themselves(
    slurm: SlurmLab, own: str
) -> None:
    job = as_nobody(
        slurm, "sbatch", "--parsable", "-p", "other", "--output=/dev/null", "--wrap=true"
    ).stdout.strip()
    listed = as_nobody(
        slurm, "sbatch", "--parsable", "-p", "other,hemiola", "--output=/dev/null", "--wrap=true"
    ).stdout.strip()
    with SlurmLab(1, gpus=0, hold=False, partition="ml", name=own) as free:
        here = submit(free, "--output=/dev/null", script="true")
        assert free.run(["sinfo", "-h", "-o", "%R %G"]).splitlines() == ["ml (null)", "other (null)"]
        wait_for(free, here, "COMPLETED")
    wait_for(slurm, job, "COMPLETED")
    assert state_of(slurm, listed) == "PENDING JobHeldUser"
    slurm.run(["scancel", listed])


def test_two_stand_side_by_side_and_end_apart(slurm: SlurmLab, own: str) -> None:
    mine = submit(slurm, "-p", "other", "--output=/dev/null", script="sleep 60")
    with SlurmLab(2, name=own) as second:
        assert second.base != slurm.base
        assert second.run(["squeue", "-h"]) == ""
        theirs = submit(second, "-p", "other", "--output=/dev/null", script="sleep 60")
        wait_for(second, theirs, "RUNNING")
        wait_for(slurm, mine, "RUNNING")
        with pytest.raises(LabError, match="stands already"):
            SlurmLab(2, name=own).up()
        assert attach(own).node_states()["h1"] == "idle"
    assert state_of(slurm, mine) == "RUNNING None"
    slurm.run(["scancel", mine])


def test_one_that_was_taken_down_leaves_the_next_of_its_name_alone(own: str) -> None:
    before = SlurmLab(1, name=own).up()
    tear_down(load(own))
    with SlurmLab(1, name=own) as slurm:
        job = submit(slurm, "-p", "other", "--output=/dev/null", script="sleep 60")
        wait_for(slurm, job, "RUNNING")
        until(lambda: len(jobs_of(slurm)) == 2)  # the script, and its sleep
        there = slurm.processes()
        for use in (lambda: before.run(["scancel", job]), before.processes, before.kill_controller):
            with pytest.raises(LabError, match="was taken down"):
                use()
        before.stop()
        assert slurm.processes() == there


def test_a_network_of_another_lab_is_left_alone(own: str) -> None:
    before = msgspec.structs.replace(claim(SlurmLab(1, name=own).spec, secrets.token_hex(8)), lab=True)
    with Lab(1, name=before.spec.lab_name) as lab:
        tear_down(before)
        assert lab.run(["true"]).status == 0


def test_a_job_outlives_its_controller(own: str) -> None:
    with SlurmLab(2, name=own) as slurm:
        job = submit(slurm, "-p", "other", "-w", "h1", "--output=/dev/null", script="sleep 60")
        wait_for(slurm, job, "RUNNING")
        until(lambda: len(jobs_of(slurm)) == 2)  # the script, and its sleep
        before = jobs_of(slurm)
        slurm.restart_controller()
        assert state_of(slurm, job).startswith("RUNNING")
        slurm.kill_controller()
        assert "slurmctld" not in {role.kind for role in slurm.processes().values()}
        with pytest.raises(LabError, match="squeue"):
            slurm.run(["squeue"], limit_s=0.5)
        slurm.start_controller()
        assert state_of(slurm, job).startswith("RUNNING")
        slurm.wait_ready()
        assert state_of(slurm, job).startswith("RUNNING")
        assert jobs_of(slurm) == before
        with pytest.raises(LabError, match="runs already"):
            slurm.start_controller()


def test_a_killed_node_goes_down_with_its_job_and_comes_back(own: str) -> None:
    with SlurmLab(2, name=own, settings={"SlurmdTimeout": "2", "MessageTimeout": "2"}) as slurm:
        escapes = "env -i setsid sleep 61 & sleep 60"
        job = submit(slurm, "-p", "other", "-w", "h0", "--output=/dev/null", script=escapes)
        wait_for(slurm, job, "RUNNING")
        until(lambda: len(jobs_of(slurm)) == 2)
        others = {pid for pid, role in find(load(own)).items() if role.node != "h0"}
        slurm.kill_slurmd("h0")
        assert len(jobs_of(slurm)) == 2
        slurm.kill_node("h0")
        assert set(slurm.processes()) == others
        until(lambda: slurm.node_states()["h0"].startswith("down"))
        wait_for(slurm, job, "PENDING")  # requeued
        slurm.start_node("h0")
        assert slurm.node_states() == {"h0": "idle", "h1": "idle"}
        with pytest.raises(LabError, match="no node 'h7'"):
            slurm.kill_node("h7")


OWNER = """
import sys, time
from hemiola.lab.slurm import SlurmLab
with SlurmLab(3, name=sys.argv[1]) as slurm:
    slurm.run(["sbatch", "-p", "other", "-N3", "--output=/dev/null", "--wrap=srun sleep 600"])
    while slurm.run(["squeue", "-h", "-o", "%T"]) != "RUNNING\\n":
        time.sleep(0.05)
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_owner_that_dies_takes_its_slurm_and_jobs_along(own: str, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, own], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        process.send_signal(number)
    until(lambda: left_of(own) == [])


@pytest.mark.parametrize(
    ("number", "stage"),
    [(signal.SIGKILL, "lab.json"), (signal.SIGINT, "slurmctld.log"), (signal.SIGKILL, "slurmd.h9.log")],
)
def test_an_up_that_is_broken_off_leaves_nothing(own: str, number: signal.Signals, stage: str) -> None:
    with subprocess.Popen(cli("up", "--nodes", "30", "--name", own), stderr=subprocess.DEVNULL) as process:
        until(lambda: any(Path(f"/run/hemiola/slurm-{own}").rglob(stage)))
        process.send_signal(number)
    until(lambda: left_of(own) == [])


KILLED = """
import os, sys
from hemiola.lab.slurm import SlurmLab, cluster, record
def dies(*given):
    done(*given)
    os.kill(os.getpid(), 9)
module, name = {"claimed": (cluster, "claim"), "before its record": (record, "_free_ports")}[sys.argv[2]]
done = getattr(module, name)
setattr(module, name, dies)
SlurmLab(2, name=sys.argv[1]).up()
"""


@pytest.mark.parametrize("moment", ["before its record", "claimed"])
def test_an_up_that_is_killed_as_it_begins_leaves_nothing(own: str, moment: str) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, own, moment])
    assert killed.returncode == -signal.SIGKILL
    until(lambda: left_of(own) == [])


def test_down_removes_what_a_killed_up_and_guardian_left_half_dead(own: str) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, own], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            if b"hemiola.lab.guardian" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
        process.kill()
    for pid, role in find(load(own)).items():
        if role.kind in ("munged", "slurmctld") or (role.kind, role.node) == ("slurmd", "h1"):
            os.kill(pid, signal.SIGKILL)
    status = subprocess.run(cli("status", "--name", own), capture_output=True, text=True)
    assert f"{own}: stale: it belonged to process {process.pid}" in status.stdout
    assert "2 slurmd" in status.stdout
    down = subprocess.run(cli("down", "--name", own), capture_output=True, text=True)
    assert (down.returncode, down.stdout) == (0, f"removed {own}\n"), down.stderr


def test_down_from_within_a_job_of_another_slurm_ends_nothing_of_that(own: str) -> None:
    with SlurmLab(1, name=own) as slurm:
        around = {**os.environ, **slurm.environ, "SLURMD_NODENAME": "node17"}
        with subprocess.Popen(["sleep", "60"], env=around) as theirs:
            down = subprocess.run(cli("down", "--name", own), env=around, capture_output=True, text=True)
            assert (down.returncode, down.stdout) == (0, f"removed {own}\n"), down.stderr
            assert theirs.poll() is None
            theirs.kill()


def test_from_up_to_down_as_it_is_typed(own: str) -> None:
    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(cli(*words), capture_output=True, text=True)

    up = typed("up", "--nodes", "2", "--gpus", "4", "--name", own, "--set", "MinJobAge=7")
    assert up.stdout.startswith(f"{own}: 2 nodes with 4 GPUs each, all idle\n"), up.stderr
    env = typed("env", "--name", own).stdout
    shell = subprocess.run(
        ["sh", "-c", f"{env} scontrol show config; sbatch -Q -p other --chdir=/ -o /dev/null --wrap='sleep 9'"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"ClusterName             = {own}" in shell.stdout
    assert "MinJobAge               = 7 sec" in shell.stdout
    status = typed("status", "--name", own).stdout
    assert f"{own}: up\n" in status and "2 slurmd" in status and f"/run/hemiola/slurm-{own}/log" in status
    again = typed("up", "--nodes", "2", "--name", own)
    assert again.returncode == 1 and "stands already" in again.stderr
    assert typed("down", "--name", own).stdout == f"removed {own}\n"
    gone = typed("down", "--name", own)
    assert gone.returncode == 1 and f"there is no Slurm '{own}'" in gone.stderr


def test_nodes_on_a_shaped_network_have_hosts_of_their_own(own: str) -> None:
    apart_from_the_machine(lambda: on_a_shaped_network(own))


def on_a_shaped_network(own: str) -> None:
    with SlurmLab(4, racks=2, rate="800mbit", uplink="400mbit", name=own) as slurm:
        assert len(cables()) == 1
        script = "echo $(hostname) $(getent hosts h3 | cut -d. -f4) $SLURM_TOPOLOGY_ADDR; scontrol ping"
        printed = slurm.run(["srun", "-p", "other", "-N4", "--chdir=/", "sh", "-c", script]).splitlines()
        assert [line for line in printed if line.startswith("h0 ")] == ["h0 4 h3 spine.rack0.h0"]
        assert sum("is UP" in line for line in printed) == 4
        submit(slurm, "-p", "other", "-w", "h3", "--output=/dev/null", script="sleep 60")
        until(lambda: {role.node for role in slurm.processes().values() if role.kind == "job"} >= {"h3"})
        slurm.kill_node("h3")
        assert not any(role.node == "h3" for role in slurm.processes().values())
        slurm.start_node("h3")
    assert cables() == []


def test_a_network_killed_half_way_is_removed(own: str) -> None:
    words = ("--nodes", "20", "--racks", "2", "--rate", "1gbit", "--uplink", "1gbit", "--name", own)
    command = ["unshare", "--net", *cli("up", *words)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        until(lambda: sum("/run/netns" in path for path in left_of(own)) > 5)
        process.kill()
    until(lambda: left_of(own) == [])


@pytest.fixture
def anyones() -> Iterator[Path]:
    """A folder with a short path that every user may write to."""
    with tempfile.TemporaryDirectory(prefix="hemiola-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def test_a_slow_removal_leaves_the_next_of_its_name_alone(
    monkeypatch: pytest.MonkeyPatch, anyones: Path
) -> None:
    """Another one is done, and the next lab runs a job, before this one has ended the first processes."""
    monkeypatch.setattr(state, "FOLDER", anyones)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(anyones))
    spec, end = SlurmLab(1, name="x").spec, daemons.end
    before = claim(spec, "before")
    with ExitStack() as jobs:

        def end_late(record: Record, wanted: daemons.Wanted, *, grace_s: float) -> None:
            monkeypatch.setattr(daemons, "end", end)
            tear_down(before)
            conf = str(claim(spec, "after").conf)
            around = {**os.environ, "SLURM_CONF": conf, "SLURMD_NODENAME": "h0"}
            job = jobs.enter_context(subprocess.Popen(["sleep", "60"], env=around))
            jobs.callback(job.kill)
            end(record, wanted, grace_s=grace_s)

        monkeypatch.setattr(daemons, "end", end_late)
        tear_down(before)
        after = load("x")
        assert after.id == "after"
        assert list(find(after).values()) == [daemons.Role("job", "h0")]


def test_an_ordinary_user_has_a_slurm_too(ready: None, anyones: Path) -> None:
    """As an ordinary user (newer Slurms refuse to be nobody's) without any right but to read this project's files, wherever they are."""
    code = (
        "import os\nfrom hemiola.lab.slurm import SlurmLab\n"
        "with SlurmLab(2, gpus=2) as slurm:\n"
        "    print(os.geteuid(), slurm.base, flush=True)\n"
        "    command = ['srun', '-p', 'other', '--gres=gpu:2', '--chdir=/', 'sh', '-c', 'echo $CUDA_VISIBLE_DEVICES']\n"
        "    print(slurm.run(command), slurm.run(['sbatch', '--chdir=/', '--wrap=true']), slurm.run(['squeue', '-h']))"
    )
    user = ("--reuid=1", "--regid=1", "--clear-groups")
    reads = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    done = subprocess.run(
        ["setpriv", *user, *reads, sys.executable, "-c", code],
        env={
            "PATH": "/usr/bin:/bin",
            "XDG_RUNTIME_DIR": str(anyones),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    uid, base = done.stdout.splitlines()[0].split()
    assert uid == "1" and base.startswith(f"{anyones}/hemiola/slurm-py-")
    assert "\n0,1\n" in done.stdout and "(JobHeldUser)" in done.stdout
    assert not Path(base).exists() and processes_of(base) == []


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("munged", "slurmctld", "slurmd", "slurmstepd", "sinfo", "squeue", "scontrol"):
        (tmp_path / name).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "DAEMONS_FOLDERS", ())
    stood = {record.spec.name for record in load_all()}
    with pytest.raises(LabError) as refused:
        SlurmLab(2).up()
    assert refused.value.what == "Slurm's programs are missing: scancel, sbatch"
    packages = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
    assert refused.value.remedy == f"apt-get install -y --no-install-recommends {packages}"
    assert {record.spec.name for record in load_all()} <= stood


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"nodes": 0}, "0 nodes"),
        ({"nodes": 251}, "251 nodes"),
        ({"nodes": 4, "gpus": -1}, "-1 GPUs"),
        ({"nodes": 4, "racks": 5}, "5 racks for 4 nodes"),
        ({"nodes": 4, "racks": 0}, "0 racks for 4 nodes"),
        ({"nodes": 4, "racks": 3}, "do not divide"),
        ({"nodes": 4, "racks": 2, "gpu_types": ["H100"]}, "GPU type 'H100'"),
        ({"nodes": 4, "racks": 2, "gpu_types": ["a", "b", "c"]}, "3 types of GPUs for 2 racks"),
        ({"nodes": 4, "gpus": 0, "gpu_types": ["a"]}, "1 type of GPUs for 1 rack with 0 GPUs"),
        ({"nodes": 4, "name": "../etc"}, "'../etc' does not suit"),
        ({"nodes": 4, "name": "a\nb"}, "does not suit"),
        ({"nodes": 4, "name": ""}, "does not suit"),
        ({"nodes": 4, "partition": "a b"}, "'a b'"),
        ({"nodes": 4, "partition": "other"}, "'other'"),
        ({"nodes": 4, "settings": {"MinJobAge": "5\nSlurmUser=me"}}, "MinJobAge"),
        ({"nodes": 4, "uplink": "1gbit"}, "without rate"),
        ({"nodes": 4, "racks": 2, "rate": "1gbit"}, "without the rate of their uplinks"),
    ],
)
def test_impossible_values_are_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(LabError, match=says):
        SlurmLab(**wrong)


def test_a_path_too_long_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(state, "FOLDER", tmp_path / ("long" * 20))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(state.FOLDER))
    with pytest.raises(LabError, match="too long"):
        claim(SlurmLab(1).spec, "0")


def test_a_setting_that_slurm_refuses_is_reported_with_its_words(own: str) -> None:
    with pytest.raises(LabError, match=r"slurmctld ended at once.*sched/nonsense"):
        SlurmLab(1, name=own, settings={"SchedulerType": "sched/nonsense"}).up()


def test_the_python_of_the_guide(ready: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = DOCS / "guides/lab-slurm.md"
    (python,) = re.findall(r"^```py\n(.*?)^```", guide.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    printed: list[tuple[Any, ...]] = []
    exec(compile(python, str(guide), "exec"), {"print": lambda *what: printed.append(what)})
    assert printed[0][0].splitlines()[0].split() == ["hemiola*", "up", "infinite", "2", "idle", "h[0-1]"]
    states, environ = printed[1]
    assert states["h1"] == "idle" and environ.keys() == {"SLURM_CONF"}
