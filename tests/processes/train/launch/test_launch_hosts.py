"""Ranks on several hosts, behind a remote shell that is real but for the way it goes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from launching import PATIENCE_S, STAYS, alive, none_left, parents, ready, reaped, remote_shell, run, start

SHOW = "import json, os, sys\nprint(json.dumps({'argv': sys.argv[1:], 'cwd': os.getcwd(), 'env': dict(os.environ)}))\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / 'it\'s a "folder" $HOME').mkdir()
    (tmp_path / 'it\'s a "folder" $HOME/show.py').write_text(SHOW, encoding="utf-8")
    return tmp_path / 'it\'s a "folder" $HOME'


@pytest.fixture
def shell(tmp_path: Path) -> str:
    return remote_shell(tmp_path)


def test_ranks_are_divided_among_the_hosts_in_order(folder: Path, shell: str) -> None:
    words = ["a \"b\" 'c' \\", "$HOME `id` ; & | * ?", "ü\tend\n", ""]
    done = run(folder, "--nproc", 2, "--hosts", "n[1-2]", "--remote-shell", shell, "show.py", *words)
    assert done.returncode == 0, done.stderr
    ranks = sorted(
        (json.loads(line[line.index("{") :]) for line in done.stdout.splitlines()),
        key=lambda r: r["env"]["RANK"],
    )
    keys = (
        "REMOTE_HOST",
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
    )
    assert [[rank["env"][key] for key in keys] for rank in ranks] == [
        ["n1", "0", "0", "0", "4", "2", "n1"],
        ["n1", "1", "1", "0", "4", "2", "n1"],
        ["n2", "2", "0", "1", "4", "2", "n1"],
        ["n2", "3", "1", "1", "4", "2", "n1"],
    ]
    assert all(rank["argv"] == words and rank["cwd"] == str(folder) for rank in ranks)
    assert len({rank["env"]["MASTER_PORT"] for rank in ranks}) == 1


def test_hosts_get_the_variables_that_training_needs_and_those_that_are_named(
    folder: Path, shell: str
) -> None:
    given = {"NCCL_DEBUG": "WARN 'x'", "UNRELATED": "1", "OTHER": "2", "OMP_NUM_THREADS": "7"}
    words = ["--hosts", "a,b", "--env", "OTHER", "--env", "MINE=a=b c", "--remote-shell", shell]
    done = run(folder, *words, "show.py", **given)
    for line in done.stdout.splitlines():
        found = json.loads(line[line.index("{") :])["env"]
        assert [found.get(name) for name in (*given, "MINE")] == ["WARN 'x'", None, "2", "7", "a=b c"]


def test_ranks_elsewhere_know_whose_iterations_they_report(folder: Path, shell: str) -> None:
    given = {"HEMIOLA_REPORTS": str(folder), "SLURM_JOB_ID": "17"}
    done = run(folder, "--hosts", "a", "--remote-shell", shell, "show.py", **given)
    found = json.loads(done.stdout)["env"]
    assert [found.get(name) for name in (*given, "HEMIOLA_JOB")] == [str(folder), None, "17"]


def test_a_failure_on_one_host_ends_the_others(folder: Path, shell: str, mark: str) -> None:
    (folder / "fails.py").write_text(
        f"import os, sys\nif os.environ['RANK'] == '2': sys.exit('I am out')\n{STAYS}"
    )
    done = run(
        folder, "--nproc", 2, "--hosts", "a,b", "--env", f"{mark}=1", "--remote-shell", shell, "fails.py"
    )
    assert done.returncode == 1
    assert "rank 2 on b failed first, with exit status 1" in done.stderr
    assert "  | I am out" in done.stderr
    assert not alive(mark)


def test_a_killed_launcher_leaves_nothing_on_any_host(folder: Path, shell: str, mark: str) -> None:
    (folder / "stays.py").write_text(STAYS)
    process = start(folder, "--hosts", "a,b", "--env", f"{mark}=1", "--remote-shell", shell, "stays.py")
    ready(process, 2)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert none_left(mark)


def test_an_interrupt_reaches_every_host(folder: Path, shell: str, mark: str) -> None:
    (folder / "stays.py").write_text(STAYS)
    process = start(folder, "--hosts", "a,b", "--env", f"{mark}=1", "--remote-shell", shell, "stays.py")
    ready(process, 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert not alive(mark)


def test_a_host_that_is_asked_to_end_ends_the_job(folder: Path, shell: str) -> None:
    (folder / "saves.py").write_text(
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(print('saved')))\n"
        "print('ready', os.getppid(), flush=True)\nwhile True: time.sleep(1)\n"
    )
    process = start(folder, "--nproc", 2, "--hosts", "a,b", "--remote-shell", shell, "saves.py")
    os.kill(parents(process, 4)[0], signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out.count("saved")) == (0, 4), err


@pytest.mark.slow
def test_who_does_not_answer_a_second_interrupt_is_given_up_and_has_failed(
    folder: Path, shell: str, mark: str
) -> None:
    (folder / "polite.py").write_text(
        "import os, time\ntry:\n    print('ready', os.getppid(), os.getpid(), flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('saved', flush=True)\n"
    )
    process = start(folder, "--hosts", "a,b", "--env", f"{mark}=1", "--remote-shell", shell, "polite.py")
    assert process.stdout is not None
    other, first = sorted(process.stdout.readline() for _ in range(2))  # "[rank1] ready 77 79", "ready 76 78"
    agent = int(other.split()[-2])
    os.kill(agent, signal.SIGSTOP)  # as if the network to its host were cut
    try:
        process.send_signal(signal.SIGINT)
        ready(process, 1, "saved")
        assert reaped(int(first.split()[-1]))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        os.kill(agent, signal.SIGKILL)
    assert process.returncode == 137
    assert "interrupted; the connection to b ended with signal 9 (SIGKILL)" in err
    assert none_left(mark)


def test_a_host_that_cannot_be_reached_is_named_and_nothing_starts(folder: Path, shell: str) -> None:
    done = run(folder, "--hosts", "a,gone", "--remote-shell", shell, "show.py")
    assert done.returncode == 2
    assert "Python cannot be started on gone (status 1): no route to host gone" in done.stderr
    assert done.stdout == ""


def test_a_host_without_the_script_or_the_folder_is_named(tmp_path: Path, folder: Path, shell: str) -> None:
    done = run(folder, "--hosts", "a,b", "--remote-shell", shell, "other.py")
    assert done.returncode == 2
    assert "on a: there is no script 'other.py'" in done.stderr or "on b: there is no script" in done.stderr


def test_a_program_that_lies_in_the_folder_is_found_wherever_a_login_begins(
    tmp_path: Path, folder: Path, shell: str
) -> None:
    (tmp_path / "home").mkdir()
    (folder / "run.sh").write_text("#!/bin/sh\npwd\n")
    (folder / "run.sh").chmod(0o755)
    elsewhere = f"env -C {tmp_path / 'home'} {shell}"
    done = run(folder, "--hosts", "a", "--remote-shell", elsewhere, "--no-python", "./run.sh")
    assert (done.returncode, done.stdout) == (0, f"{folder}\n"), done.stderr


@pytest.mark.parametrize(
    ("template", "said"), [("'", "No closing quotation"), (" ", "--remote-shell is empty")]
)
def test_a_remote_shell_that_is_none(folder: Path, template: str, said: str) -> None:
    done = run(folder, "--hosts", "a,b", "--remote-shell", template, "show.py")
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.slow
def test_a_process_group_forms_across_hosts(folder: Path, shell: str) -> None:
    (folder / "group.py").write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "value = torch.tensor([float(dist.get_rank() + 1)])\ndist.all_reduce(value)\nprint(value.item())\n"
        "dist.destroy_process_group()\n"
    )
    words = ["--hosts", "a,b", "--master-addr", "127.0.0.1", "--remote-shell", shell]
    done = run(folder, *words, "group.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["3.0", "[rank1] 3.0"]
