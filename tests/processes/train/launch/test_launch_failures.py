"""When a rank fails, when someone interrupts, when the launcher is killed: all end, nothing is left, and it is said who was first."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import PATIENCE_S, STAYS, alive, all_there, none_left, parents, ready, run, start


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "stays.py").write_text(STAYS, encoding="utf-8")
    yield tmp_path


def test_the_first_failure_ends_the_others_and_is_named(folder: Path, mark: str) -> None:
    (folder / "fails.py").write_text(
        f"import os, sys\nif os.environ['RANK'] == '2':\n    print('I am', 'tired', file=sys.stderr); sys.exit(7)\n{STAYS}",
        encoding="utf-8",
    )
    done = run(folder, "--nproc", 3, "--env", f"{mark}=1", "fails.py")
    assert done.returncode == 7
    assert (
        "rank 2 failed first, with exit status 7; the others were ended. It said last:\n  | I am tired"
        in done.stderr
    )
    assert not alive(mark)


def test_the_last_lines_are_the_last(folder: Path) -> None:
    (folder / "fails.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == '0': time.sleep(600)\n"
        "for i in range(100): print('line', i, file=sys.stderr)\nraise ValueError('no')\n",
        encoding="utf-8",
    )
    done = run(folder, "--nproc", 2, "fails.py")
    said = [line for line in done.stderr.splitlines() if line.startswith("  | ")]
    assert len(said) == 20
    assert said[-1] == "  | ValueError: no"
    assert "  | line 99" in said
    assert "  | line 0" not in said


def test_last_words_stand_as_they_were_said(folder: Path) -> None:
    said = "train.py:100: [bold]no[/bold] :x:"
    (folder / "fails.py").write_text(f"import sys\nsys.exit({said!r})\n", encoding="utf-8")
    done = run(folder, "--nproc", 2, "fails.py")
    assert f"It said last:\n  | {said}\n" in done.stderr


def test_a_signal_is_named_and_becomes_the_status(folder: Path) -> None:
    done = run(folder, "--nproc", 2, "--no-python", "sh", "-c", "test $RANK = 0 && sleep 600; kill -SEGV $$")
    assert done.returncode == 128 + signal.SIGSEGV
    assert "rank 1 failed first, with signal 11 (SIGSEGV)" in done.stderr


def test_an_interrupt_reaches_every_rank_and_is_no_failure_if_they_take_it_well(
    folder: Path, mark: str
) -> None:
    (folder / "polite.py").write_text(
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('saved', flush=True)\n",
        encoding="utf-8",
    )
    process = start(folder, "--nproc", 2, "--env", f"{mark}=1", "polite.py")
    ready(process, 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == ["[rank1] saved", "saved"]
    assert none_left(mark)


def test_an_interrupt_ends_a_plain_script(folder: Path, mark: str) -> None:
    process = start(folder, "--nproc", 2, "--env", f"{mark}=1", "stays.py")
    ready(process, 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "interrupted; rank" in err
    assert not alive(mark)


@pytest.mark.parametrize(
    ("number", "to"),
    [
        (signal.SIGINT, "launcher"), (signal.SIGTERM, "launcher"), (signal.SIGINT, "agent"), (signal.SIGTERM, "agent"),
    ],
)  # fmt: skip
def test_who_saves_after_an_interrupt_is_not_ended_by_who_does_not(
    folder: Path, mark: str, number: signal.Signals, to: str
) -> None:
    """A scheduler may take the ranks' parent for the job, and signal that alone."""
    (folder / "saves.py").write_text(
        f"import os, signal, sys, time\nsignal.signal({int(number)}, signal.default_int_handler)\n"
        "try:\n    print('ready', os.getppid(), flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    if os.environ['RANK'] == '1': raise\n"
        "    time.sleep(1)\n    print('saved', flush=True)\n",
        encoding="utf-8",
    )
    process = start(folder, "--nproc", 2, "--env", f"{mark}=1", "saves.py")
    [agent] = parents(process, 2)
    os.kill(agent if to == "agent" else process.pid, number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert out == "saved\n", err
    assert process.returncode == 130
    assert "interrupted; rank 1 ended with signal 2 (SIGINT)" in err
    assert none_left(mark)


def test_the_second_interrupt_kills(folder: Path, mark: str) -> None:
    (folder / "deaf.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGINT, lambda *_: print('heard', flush=True))\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\nwhile True: time.sleep(1)\n",
        encoding="utf-8",
    )
    process = start(folder, "--nproc", 2, "--env", f"{mark}=1", "deaf.py")
    ready(process, 2)
    process.send_signal(signal.SIGINT)
    ready(process, 2, "heard")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 137
    assert not alive(mark)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_is_passed_on_once_and_is_no_second_interrupt(
    folder: Path, number: signal.Signals
) -> None:
    (folder / "hears.py").write_text(
        f"import os, signal, sys, time\nsignal.signal({int(number)}, lambda *_: print('heard', flush=True))\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\nprint('ready', os.getppid(), flush=True)\n"
        "while True: time.sleep(1)\n",
        encoding="utf-8",
    )
    process = start(folder, "--nproc", 2, "hears.py")
    [agent] = parents(process, 2)
    os.kill(agent, number)
    process.send_signal(number)
    ready(process, 2, "heard")
    process.send_signal(signal.SIGUSR1)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, ""), err


@pytest.mark.parametrize(
    ("number", "to"),
    [
        (signal.SIGTERM, "launcher"), (signal.SIGUSR1, "launcher"), (signal.SIGUSR2, "launcher"),
        (signal.SIGUSR1, "agent"),
    ],
)  # fmt: skip
def test_other_signals_are_passed_on(folder: Path, number: signal.Signals, to: str) -> None:
    (folder / "told.py").write_text(
        f"import os, signal, sys, time\nsignal.signal({int(number)}, lambda *_: sys.exit(0))\n"
        "print('ready', os.getppid(), flush=True)\nwhile True: time.sleep(1)\n",
        encoding="utf-8",
    )
    process = start(folder, "--nproc", 2, "told.py")
    [agent] = parents(process, 2)
    os.kill(agent if to == "agent" else process.pid, number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err


def test_a_killed_launcher_leaves_nothing(folder: Path, mark: str) -> None:
    process = start(folder, "--nproc", 2, "--env", f"{mark}=1", "stays.py")
    ready(process, 2)
    assert all_there(mark, 4)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert none_left(mark)


def test_a_killed_agent_leaves_no_rank_and_is_a_failure(folder: Path, mark: str) -> None:
    (folder / "sits.py").write_text(
        "import os, time\nprint('ready', os.getppid(), flush=True)\ntime.sleep(600)\n", encoding="utf-8"
    )
    process = start(folder, "--nproc", 1, "--env", f"{mark}=1", "sits.py")
    assert process.stdout is not None
    agent = int(process.stdout.readline().split()[1])
    subprocess.run(["kill", "-KILL", str(agent)], check=True)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 137
    assert "the connection to the ranks failed" in err
    assert none_left(mark)


def test_what_a_rank_leaves_behind_ends_with_the_job(folder: Path, mark: str) -> None:
    (folder / "leaves.py").write_text(STAYS.rpartition("time.sleep(600)")[0], encoding="utf-8")
    done = run(folder, "--nproc", 2, "--env", f"{mark}=1", "leaves.py")
    assert done.returncode == 0, done.stderr
    assert not alive(mark)


def test_who_reads_the_output_no_more_ends_the_job(folder: Path, mark: str) -> None:
    (folder / "talks.py").write_text("while True: print('ready', flush=True)\n", encoding="utf-8")
    process = start(folder, "--nproc", 2, "--env", f"{mark}=1", "talks.py")
    ready(process, 2)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 141
    assert none_left(mark)
    assert process.stderr is not None
    process.stderr.close()
