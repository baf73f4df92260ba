"""`--on-loss continue`: a rank's end is not the others', as long as enough are left; it is said who was lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from launching import PATIENCE_S, alive, none_left, parents, remote_shell, run, start
from patience import patience
from repository import HELPERS

from hemiola.trace.jobs.timeline_json import read_timeline

MEMBER = HELPERS / "member.py"


def test_the_others_go_on_without_rank_0_and_the_run_ends_well(tmp_path: Path, mark: str) -> None:
    what = {
        "ddp": True,
        "die": {"0": [3, "kill"]},
        "membership": {"silence_s": 60.0},
    }  # the launcher says who has ended
    done = run(
        tmp_path, "--nproc", 3, "--on-loss", "continue", "--env", f"{mark}=1", "--report", "report.json", "--trace",
        "run.json", MEMBER, json.dumps(what),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warning: rank 0 was lost, with signal 9 (SIGKILL); 2 ranks go on" in done.stderr
    assert (
        "member 0 was lost (its process ended with signal 9 (SIGKILL)). Epoch 1: 2 members go on"
        in done.stderr
    )
    assert "warning: 1 lost on the way, the others ended well" in done.stderr
    first, second = (json.loads(line.partition("] ")[2]) for line in done.stdout.splitlines())
    assert first["weights"] == second["weights"]
    assert [lost["rank"] for lost in json.loads((tmp_path / "report.json").read_text())["lost"]] == [0]
    assert [rank.rank for rank in read_timeline(tmp_path / "run.json").ranks] == [0, 1, 2]
    assert not alive(mark)


def test_the_store_outlives_the_last_rank_of_its_host(tmp_path: Path, mark: str) -> None:
    what = {"die": {"0": [3, "kill"]}, "membership": {"silence_s": 60.0}}
    done = run(
        tmp_path, "--hosts", "a,b,c", "--nproc", 1, "--master-addr", "127.0.0.1", "--on-loss", "continue", "--env",
        f"{mark}=1", "--remote-shell", remote_shell(tmp_path), MEMBER, json.dumps(what),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warning: rank 0 on a was lost, with signal 9 (SIGKILL); 2 ranks go on" in done.stderr
    assert "Epoch 1: 2 members go on" in done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert not alive(mark)


ASKS_LATE = """\
import os, sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)
if os.environ["RANK"] == "1":
    time.sleep(5)  # longer than what ranks leave behind is given
    store.set("late", "yes")
    print(store.get("late").decode())
"""


def test_the_store_is_there_for_ranks_that_end_later(tmp_path: Path, mark: str) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "asks_late.py").write_text(ASKS_LATE, encoding="utf-8")
    (tmp_path / "torch.py").write_text("raise ImportError('of the job, and no library')\n", encoding="utf-8")
    done = run(
        tmp_path, "--hosts", "a,b", "--nproc", 1, "--on-loss", "continue", "--env", f"{mark}=1", "--remote-shell",
        remote_shell(tmp_path), "scripts/asks_late.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[rank1] yes\n"
    assert not alive(mark)


def test_a_store_that_cannot_be_kept_is_no_beginning(tmp_path: Path, mark: str) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(
            tmp_path, "--nproc", 2, "--on-loss", "continue", "--master-port", port, "--env", f"{mark}=1",
            "--no-python", "sleep", "600",
        )  # fmt: skip
    assert done.returncode == 2
    assert "the ranks' store cannot be kept: " in done.stderr
    assert f"port {port}" in done.stderr
    assert not alive(mark)


LOSES_IT = """\
import os, signal, time
from pathlib import Path
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)
siblings = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
[keeper] = [pid for pid in siblings if b"elastic.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes()]
os.kill(int(keeper), signal.SIGKILL)
while Path(f"/proc/{keeper}").exists():
    time.sleep(0.02)
print("trained")
"""


def test_a_store_that_is_lost_is_said_and_ends_only_who_needs_it(tmp_path: Path, mark: str) -> None:
    (tmp_path / "loses_it.py").write_text(LOSES_IT, encoding="utf-8")
    done = run(tmp_path, "--on-loss", "continue", "--env", f"{mark}=1", "loses_it.py")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "warning: the ranks' store is lost: its process ended with signal 9 (SIGKILL)" in done.stderr
    assert not alive(mark)


def test_ranks_that_need_no_store_may_fail_too(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "--nproc",
        3,
        "--on-loss",
        "continue",
        "--no-python",
        "sh",
        "-c",
        "test $RANK = 1 && exit 7; sleep 1",
    )
    assert done.returncode == 0
    assert "warning: rank 1 was lost, with exit status 7; 2 ranks go on" in done.stderr


def test_with_too_few_left_all_are_ended(tmp_path: Path, mark: str) -> None:
    done = run(
        tmp_path, "--nproc", 3, "--on-loss", "continue", "--min-ranks", 2, "--env", f"{mark}=1", "--no-python", "sh",
        "-c", "test $RANK = 0 && sleep 600; exit $RANK",
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert done.stderr.count("was lost, with exit status") == 1
    assert "; the others were ended" in done.stderr
    assert not alive(mark)


def test_when_all_fail_the_run_has_failed(tmp_path: Path) -> None:
    done = run(tmp_path, "--nproc", 2, "--on-loss", "continue", "--no-python", "sh", "-c", "exit 5")
    assert done.returncode == 5


def test_an_interrupt_is_no_loss(tmp_path: Path, mark: str) -> None:
    (tmp_path / "sits.py").write_text(
        "import time\nprint('ready', flush=True)\ntime.sleep(600)\n", encoding="utf-8"
    )
    process = start(tmp_path, "--nproc", 2, "--on-loss", "continue", "--env", f"{mark}=1", "sits.py")
    assert process.stdout is not None
    for _ in range(2):
        assert "ready" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=patience(60))
    assert process.returncode == 130
    assert "was lost" not in said
    assert not alive(mark)


def test_a_host_that_is_asked_to_end_is_a_loss_and_all_of_them_are_none(tmp_path: Path, mark: str) -> None:
    (tmp_path / "sits.py").write_text(
        "import os, time\nprint('ready', os.getppid(), flush=True)\ntime.sleep(600)\n", encoding="utf-8"
    )
    process = start(
        tmp_path, "--hosts", "a,b", "--nproc", 1, "--on-loss", "continue", "--env", f"{mark}=1", "--remote-shell",
        remote_shell(tmp_path), "sits.py",
    )  # fmt: skip
    assert process.stderr is not None
    first, second = parents(process, 2)
    os.kill(first, signal.SIGTERM)
    while "was lost, with signal 15 (SIGTERM); 1 rank goes on" not in process.stderr.readline():
        assert process.poll() is None
    os.kill(second, signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert "was lost" not in said
    assert not alive(mark)


def test_a_host_that_is_lost_after_an_interrupt_keeps_nobody(tmp_path: Path, mark: str) -> None:
    (tmp_path / "deaf.py").write_text(
        "import os, signal, time\nif os.environ['RANK'] == '1': signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print(os.getpid(), os.getppid(), flush=True)\ntime.sleep(600)\n",
        encoding="utf-8",
    )
    process = start(
        tmp_path, "--hosts", "a,b", "--nproc", 1, "--on-loss", "continue", "--env", f"{mark}=1", "--remote-shell",
        remote_shell(tmp_path), "deaf.py",
    )  # fmt: skip
    assert process.stdout is not None
    first, other = sorted((process.stdout.readline().split() for _ in range(2)), key=len)
    process.send_signal(signal.SIGINT)
    while Path("/proc", first[0]).exists():
        time.sleep(0.02)
    os.kill(int(other[2]), signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert none_left(mark)


def test_who_has_ended_does_not_go_on(tmp_path: Path) -> None:
    done = run(
        tmp_path, "--nproc", 2, "--on-loss", "continue", "--no-python", "sh", "-c",
        "test $RANK = 1 && exit 0; sleep 1; exit 7",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rank 0 was lost, with exit status 7; the others have ended\n" in done.stderr


@pytest.mark.parametrize("words", [("--min-ranks", "2"), ("--on-loss", "continue", "--min-ranks", "0")])
def test_a_least_number_of_ranks_goes_with_continuing(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path, *words, "--no-python", "true")
    assert done.returncode != 0
    assert "--min-ranks" in done.stderr
