"""Commands on a lab's hosts: their rendezvous, output, failures, and that none is left behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_helpers import hemiola, processes_with
from patience import patience, until

from hemiola.core.errors import LabError
from hemiola.lab import Lab, watch

ALL_REDUCE = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
value = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(value)
print(value.unique().tolist())
dist.destroy_process_group()
"""

ENVIRONMENT = (
    "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $HEMIOLA_LAB_HOST $GLOO_SOCKET_IFNAME"
)


@pytest.fixture
def lab(name: str) -> Iterator[Lab]:
    with Lab(3, name=name) as built:
        yield built


def test_ranks_of_torch_find_each_other(lab: Lab) -> None:
    out = io.StringIO()
    outcome = lab.run([sys.executable, "-c", ALL_REDUCE], hosts=("h0", "h1"), out=out)
    assert outcome.status == 0
    assert sorted(out.getvalue().splitlines()) == ["h0 | [3.0]", "h1 | [3.0]"]


def test_each_process_knows_its_place(lab: Lab) -> None:
    out, err = io.StringIO(), io.StringIO()
    outcome = lab.run(["sh", "-c", f"{ENVIRONMENT}; echo warned >&2"], hosts=("h2", "h0"), out=out, err=err)
    master = lab.addresses["h2"]
    assert sorted(out.getvalue().splitlines()) == [
        f"h0 | 1 2 0 1 {master} h0 eth0",
        f"h2 | 0 2 0 1 {master} h2 eth0",
    ]
    assert sorted(err.getvalue().splitlines()[-2:]) == ["h0 | warned", "h2 | warned"]
    assert err.getvalue().startswith(str(outcome.settings))


def test_the_first_to_fail_ends_the_others(lab: Lab) -> None:
    outcome = lab.run(["sh", "-c", "[ $RANK = 1 ] && exit 3; sleep 600"])
    assert outcome.status == 3
    assert outcome.statuses == {"h1": 3, "h0": 143, "h2": 143}


def test_what_will_not_end_is_killed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "GRACE_S", 0.3)
    code = "trap '' TERM; [ $RANK = 0 ] && sleep 0.2 && exit 4; while true; do sleep 600; done"
    outcome = lab.run(["sh", "-c", code], hosts=("h0", "h1"))
    assert outcome.status == 4
    assert outcome.statuses == {"h0": 4, "h1": 137}


def test_what_a_shell_has_started_has_its_time_to_end_too(lab: Lab, tmp_path: Path) -> None:
    begun, saved = tmp_path / "begun", tmp_path / "saved"
    saves = f"trap 'sleep 0.5 && echo all > {saved}; exit' TERM; sleep 60 & touch {begun}; wait"
    fails = f"until [ -e {begun} ]; do sleep 0.05; done; exit 3"
    code = f"if [ $RANK = 1 ]; then {fails}; fi; ({saves}) & wait"
    outcome = lab.run(["sh", "-c", code], hosts=("h0", "h1"))
    assert outcome.statuses == {"h1": 3, "h0": 143}
    assert saved.read_text() == "all\n"


def test_another_ctrl_c_leaves_no_time_to_end(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "GRACE_S", 60.0)

    def press() -> None:
        for name in ("begun", "told"):
            until((tmp_path / name).exists)
            os.kill(os.getpid(), signal.SIGINT)

    code = f"trap 'touch {tmp_path}/told' INT; sleep 600 & touch {tmp_path}/begun; while true; do wait; done"
    keys = threading.Thread(target=press)
    keys.start()
    with pytest.raises(KeyboardInterrupt):
        lab.run(["sh", "-c", code], hosts=("h0",))
    keys.join()
    assert processes_with(str(tmp_path)) == []


def test_what_runs_in_the_background_ends_with_the_run(lab: Lab) -> None:
    sign = f"{lab.name}-background"
    code = "import time; time.sleep(600)"
    outcome = lab.run(["sh", "-c", f"setsid {sys.executable} -c '{code}' {sign} & echo on"])
    assert outcome.status == 0
    assert processes_with(sign) == []


def test_a_line_without_an_end_and_bytes_that_are_no_text(lab: Lab) -> None:
    out = io.StringIO()
    lab.run(["sh", "-c", r"printf 'a\n\377b'"], hosts=("h0",), out=out)
    assert out.getvalue() == "h0 | a\nh0 | \ufffdb\n"


def test_more_output_than_a_pipe_holds(lab: Lab) -> None:
    out = io.StringIO()
    lab.run(["sh", "-c", "seq 50000; exit 0"], hosts=("h0",), out=out)
    assert out.getvalue().splitlines() == [f"h0 | {i}" for i in range(1, 50001)]


def test_commands_that_cannot_run(lab: Lab) -> None:
    err = io.StringIO()
    assert lab.run(["no-such-command"], hosts=("h0",), err=err).status == 127
    assert "no-such-command: command not found" in err.getvalue()
    assert lab.run(["/"], hosts=("h0",)).status == 126
    with pytest.raises(LabError, match="no command"):
        lab.run([])
    with pytest.raises(LabError, match="'h7'"):
        lab.run(["true"], hosts=("h7",))
    with pytest.raises(LabError, match="h0, h0"):
        lab.run(["true"], hosts=("h0", "h0"))


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGTERM, -15)]
)
def test_an_interrupted_run_leaves_no_process(lab: Lab, number: signal.Signals, status: int) -> None:
    sign = f"{lab.name}-sleeper"
    command = ["sh", "-c", f"sh -c 'sleep 600; : {sign}' & wait"]
    runner = subprocess.Popen(
        hemiola("lab", "run", "--name", lab.name, "--", *command),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: len(processes_with(f"; : {sign}")) >= 6)
    runner.send_signal(number)
    assert runner.wait(timeout=patience(60)) == status
    until(lambda: processes_with(sign) == [])
    assert lab.run(["true"]).status == 0  # the lab stands
