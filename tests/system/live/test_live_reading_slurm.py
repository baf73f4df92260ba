"""`hemiola jobs`, `nodes`, `explain`, `doctor` and `top` beside a daemon on a real Slurm."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_slurm import Live, need_slurm, until

from hemiola.cli.live import doctor, jobs, nodes
from hemiola.cli.simulate import explain
from hemiola.cli.top import top
from hemiola.core.errors import InputError
from hemiola.lab.slurm import SlurmLab

JobLabels = Callable[..., str]


@pytest.fixture
def here(live: Live, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """The Slurm of this shell; a node that was drained is brought back."""
    monkeypatch.setenv("SLURM_CONF", live.lab.environ["SLURM_CONF"])
    yield live
    live.command("scontrol", "update", "nodename=h3", "state=resume")


@pytest.fixture
def said(here: Live, capsys: pytest.CaptureFixture[str]) -> JobLabels:
    def printed(verb: Callable[..., None], *arguments: object, **options: object) -> str:
        capsys.readouterr()
        verb(*arguments, journal=str(here.journal_path), **options)
        return capsys.readouterr().out

    return printed


def test_operators_see_a_live_cluster(here: Live, live: Live, said: JobLabels, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    with live.serving("dally", alive=alive):
        ids = [live.submit(f"-N2 --gres=gpu:8 -J big{i} -t {5 + i}", "sleep 30") for i in range(3)]
        array = live.submit("--gres=gpu:1 --array=1-2", "sleep 30")
        huge = live.submit("-N5 --gres=gpu:8")
        for job in ids[:2]:
            live.wait_state(job, "RUNNING")
        until(lambda: live.known(f"{array}_2"), "the array is known")
        live.command("scontrol", "update", "nodename=h3", "state=drain", "reason=fan | 3 is loud")
        until(lambda: "draining" in said(nodes), "it is seen")

        listed = {line.split()[0]: line for line in said(jobs).splitlines()}
        assert listed[ids[0]].split()[1:6] == ["big0", "root", "R", "16", "2"]
        assert {listed[job].split()[-1] for job in ids[:2]} == {"h[0-1]", "h[2-3]"}
        assert listed[ids[2]].split()[1:6] == ["big2", "root", "PD", "16", "2"]
        assert "(needs 16 GPUs, 0 are free)" in listed[ids[2]]

        told = said(explain, ids[2])
        assert "Expected start: about" in told and "time limits (2)" in told
        assert f"held by job {ids[0]} (to be pre-empted" in told or f"held by job {ids[1]} (to be" in told
        assert "runs there: the engine has confirmed it" in said(explain, ids[0])
        never = " ".join(said(explain, huge).split())
        assert "held (" in never and "never run here: it wants 40 GPUs on 5 hosts, more than" in never, never
        named = live.submit("-N1 --gres=gpu:8 -w h0")
        with pytest.raises(InputError) as theirs:
            said(explain, named)
        assert "on which nodes it may run, so Slurm starts it" in f"{theirs.value.what} {theirs.value.remedy}"
        with pytest.raises(InputError, match=r"no job '4711'") as unknown:
            said(explain, "4711")
        assert "hemiola jobs --all" in unknown.value.remedy
        with pytest.raises(InputError) as whole:
            said(explain, array)
        assert f"{array}_1" in whole.value.remedy

        frame = said(top, once=True)
        assert "Slurm answers" in frame and "leads, heard" in frame and "bbbbbbbb" in frame
        until(lambda: alive.exists() and time.time() - float(alive.read_text()) < 5, "it says that it lives")
        well = _checks(said, alive=alive)
        assert well["nodes"]["state"] == "WARN" and "h3 is drain" in well["nodes"]["what"]
        assert "fan | 3 is loud" in well["nodes"]["what"] and "state=resume" in well["nodes"]["remedy"]
        for about in (
            "slurm",
            "clocks",
            "select",
            "partition",
            "privileges",
            "requeue",
            "preempt",
            "topology",
            "daemon",
            "alive",
        ):
            assert well[about]["state"] == "OK", well[about]
        assert well["topology"]["what"] == "4 hosts in 2 racks, 32 GPUs, as Slurm counts them"
        with pytest.raises(SystemExit):
            said(doctor, partition="nobodys")
    assert said(nodes).splitlines()[-1].split()[:2] == ["total", "4"]
    live.command("scancel", "-u", "root")


def _checks(said: JobLabels, **options: object) -> dict[str, dict[str, str]]:
    try:
        text = said(doctor, json=True, **options)
    except SystemExit as end:
        raise AssertionError("a check fails") from end
    return {check["about"]: check for check in json.loads(text)["checks"]}


def test_doctor_tells_what_is_wrong_with_a_slurm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_slurm()
    bad = {"JobRequeue": "0", "SchedulerParameters": "bf_interval=5", "MinJobAge": "5", "PreemptMode": "REQUEUE",
           "PreemptType": "preempt/partition_prio"}  # fmt: skip
    with SlurmLab(2, gpus=2, hold=False, name=f"live-{secrets.token_hex(4)}", settings=bad) as slurm:
        conf = Path(slurm.environ["SLURM_CONF"])
        with pytest.raises(SystemExit) as end:
            doctor(
                slurm_conf=conf, topology="leaf-spine:hosts=4,gpus_per_host=4,hosts_per_rack=2",
                journal=str(tmp_path / "none.db"), json=True,
            )  # fmt: skip
        told = json.loads(capsys.readouterr().out)["checks"]
        assert end.value.code == 1
        states = {(check["about"], check["state"]) for check in told}
        assert states >= {
            ("job_submit", "FAIL"), ("requeue", "WARN"), ("preempt", "WARN"), ("latency", "WARN"), ("memory", "WARN"),
            ("topology", "WARN"), ("journal", "WARN"), ("partition", "OK"),
        }  # fmt: skip
        assert all(check["remedy"] for check in told if check["state"] != "OK")
