"""Ranks of `hemiola run` on this host: their environment, their arguments, what becomes of their output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from launching import run

TORCHRUN = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip
SHOW = """\
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "python": sys.executable, "env": dict(os.environ)}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "show.py").write_text(SHOW, encoding="utf-8")
    return tmp_path


def shown(printed: str) -> list[dict[str, object]]:
    """What each rank has printed, by rank."""
    lines = [json.loads(line.partition("{")[1] + line.partition("{")[2]) for line in printed.splitlines()]
    return sorted(lines, key=lambda line: int(line["env"]["RANK"]))


def test_ranks_find_what_torchrun_gives_them(folder: Path) -> None:
    done = run(folder, "--nproc", 3, "show.py")
    assert done.returncode == 0, done.stderr
    ranks = shown(done.stdout)
    for number, rank in enumerate(ranks):
        own = rank["env"]
        assert (own["RANK"], own["LOCAL_RANK"], own["ROLE_RANK"]) == (str(number),) * 3
        assert own["WORLD_SIZE"] == own["LOCAL_WORLD_SIZE"] == own["ROLE_WORLD_SIZE"] == "3"
        assert (own["GROUP_RANK"], own["GROUP_WORLD_SIZE"], own["MASTER_ADDR"]) == ("0", "1", "127.0.0.1")
        assert own["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        assert set(TORCHRUN) <= set(own)
        assert own["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 3))
        assert rank["cwd"] == str(folder)
        assert rank["python"] == sys.executable
    assert len({(rank["env"]["MASTER_PORT"], rank["env"]["TORCHELASTIC_RUN_ID"]) for rank in ranks}) == 1
    assert [rank["env"].get("HEMIOLA_RUN_REPORT") is not None for rank in ranks] == [True, False, False]
    assert done.stderr.count("OMP_NUM_THREADS") == 1


def test_what_follows_the_script_is_the_scripts(folder: Path) -> None:
    words = ["--nproc", "7", "--plan", "a \"b\" 'c'", "--", "-m", "$HOME", "ü;*", ""]
    done = run(folder, "--nproc=2", "show.py", *words)
    assert [rank["argv"] for rank in shown(done.stdout)] == [words, words]


def test_words_need_not_be_text(folder: Path) -> None:
    odd = os.fsdecode(b"caf\xe9")
    (folder / odd).mkdir()
    (folder / odd / odd).write_text(
        "import os, sys\nfor word in (sys.argv[1], os.environ['ODD'], os.getcwd()): print(os.fsencode(word)[-4:])\n"
    )
    done = run(folder / odd, "--nproc", 1, "--env", f"ODD={odd}", "--report", "r.json", odd, odd)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(b"caf\xe9")] * 3
    assert json.loads((folder / odd / "r.json").read_bytes())["command"] == ["caf\ufffd", "caf\ufffd"]
    done = run(folder / odd, "no" + odd)
    assert "there is no script 'nocaf\\udce9' in " in done.stderr


def test_one_rank_prints_as_if_started_by_hand(folder: Path) -> None:
    (folder / "bytes.py").write_text(
        "import os\nos.write(1, b'a\\rb\\xff no end')\nos.write(2, b'oh')\n", encoding="utf-8"
    )
    done = run(folder, "bytes.py")
    assert done.stdout == "a\nb\udcff no end"  # text mode reads the return as a line's end
    assert done.stderr.startswith("oh")
    assert "OMP_NUM_THREADS" not in done.stderr


def test_threads_that_are_set_stay(folder: Path) -> None:
    done = run(folder, "--nproc", 2, "show.py", OMP_NUM_THREADS="5")
    assert [rank["env"]["OMP_NUM_THREADS"] for rank in shown(done.stdout)] == ["5", "5"]
    assert "OMP_NUM_THREADS" not in done.stderr


def test_a_recording_leaves_the_path_that_is_given(folder: Path) -> None:
    done = run(folder, "--trace", "r.json", "--env", "PYTHONPATH=/mine", "show.py")
    inject, *rest = str(shown(done.stdout)[0]["env"]["PYTHONPATH"]).split(os.pathsep)
    assert (Path(inject).name, rest) == ("inject", ["/mine"])


def test_modules_and_programs(folder: Path) -> None:
    done = run(folder, "--nproc", 2, "-m", "show", "--lr", "0.1")
    assert [rank["argv"] for rank in shown(done.stdout)] == [["--lr", "0.1"]] * 2
    done = run(folder, "--nproc", 2, "--no-python", "sh", "-c", 'echo "$0 of $WORLD_SIZE"', "one")
    assert sorted(done.stdout.splitlines()) == ["[rank1] one of 2", "one of 2"]


def test_torchruns_options_are_understood(folder: Path) -> None:
    done = run(folder, "--standalone", "--nproc_per_node", "2", "show.py")
    assert len(shown(done.stdout)) == 2
    words = [
        "--nnodes=2",
        "--node_rank=1",
        "--nproc-per-node=2",
        "--master_addr=10.0.0.1",
        "--master-port=1234",
    ]
    ranks = shown(run(folder, *words, "show.py").stdout)
    assert [rank["env"]["RANK"] for rank in ranks] == ["2", "3"]
    for rank in ranks:
        found = [rank["env"][name] for name in ("WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")]
        assert found == ["4", "1", "10.0.0.1", "1234"]
        assert "HEMIOLA_RUN_REPORT" not in rank["env"]


def test_lines_of_ranks_never_mix_and_none_is_lost(folder: Path) -> None:
    (folder / "loud.py").write_text(
        "import os\nr = os.environ['RANK']\nfor i in range(300):\n"
        "    for part in (f'{r}:', f'{i}:', 'x' * 3000): os.write(1 + i % 2, part.encode())\n"
        "    os.write(1 + i % 2, b'\\n')\nos.write(1, b'the end')\n",
        encoding="utf-8",
    )
    done = run(folder, "--nproc", 3, "--logs", "logs", "loud.py")
    for rank in range(3):
        prefix = f"[rank{rank}] " if rank else ""
        for stream, text in enumerate((done.stdout, done.stderr)):
            mine = [line for line in text.splitlines() if line.startswith(f"{prefix}{rank}:")]
            assert mine == [f"{prefix}{rank}:{i}:{'x' * 3000}" for i in range(stream, 300, 2)]
        assert f"{prefix}the end\n" in done.stdout
        log = (folder / f"logs/rank{rank}.log").read_text(encoding="utf-8")
        assert sorted(log.splitlines()) == sorted(
            [*(f"{rank}:{i}:{'x' * 3000}" for i in range(300)), "the end"]
        )


def test_only_the_ranks_that_are_asked_for_are_shown(folder: Path) -> None:
    done = run(folder, "--nproc", 3, "--show", "1", "--logs", "logs", "show.py")
    assert [line.partition(" ")[0] for line in done.stdout.splitlines()] == ["[rank1]"]
    assert sorted(path.name for path in (folder / "logs").iterdir()) == [f"rank{i}.log" for i in range(3)]


def test_a_log_that_cannot_be_written_ends_no_training(folder: Path) -> None:
    (folder / "logs").mkdir()
    (folder / "logs/rank0.log").symlink_to("/dev/full")
    (folder / "talks.py").write_text("for i in range(3): print(i, flush=True)\n")
    done = run(folder, "--nproc", 2, "--logs", "logs", "talks.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0", "1", "2", *(f"[rank1] {i}" for i in range(3))]
    assert done.stderr.count("warning: cannot write logs/rank0.log: No space left on device") == 1
    assert (folder / "logs/rank1.log").read_text() == "0\n1\n2\n"


def test_rank_0_has_the_keyboard(folder: Path) -> None:
    (folder / "ask.py").write_text("import sys\nprint(repr(sys.stdin.read()))\n", encoding="utf-8")
    done = run(folder, "--nproc", 2, "ask.py", given="yes\n")
    assert sorted(done.stdout.splitlines()) == ["'yes\\n'", "[rank1] ''"]


@pytest.mark.slow
def test_a_process_group_forms(folder: Path) -> None:
    (folder / "group.py").write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\nassert dist.is_torchelastic_launched()\n"
        "value = torch.tensor([float(dist.get_rank() + 1)])\ndist.all_reduce(value)\nprint(value.item())\n"
        "dist.destroy_process_group()\n",
        encoding="utf-8",
    )
    done = run(folder, "--nproc", 2, "group.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["3.0", "[rank1] 3.0"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["--no-python", "nosuchprogram"], "there is no program 'nosuchprogram'"),
        (["--nproc", "0", "show.py"], "--nproc 0"),
        (["--nproc", "many", "show.py"], "--nproc many"),
        (["--nproc", "2"], "there is no script to run"),
        (["-m", "--no-python", "show"], "-m beside --no-python"),
        (["--nnodes", "2", "show.py"], "without --master-addr"),
        (["--nnodes", "2", "--node-rank", "2", "show.py"], "--node-rank 2"),
        (["--hosts", "a,a", "show.py"], "names a host twice"),
        (["--hosts", "a[3-1]", "show.py"], "runs backwards"),
        (["--show", "2", "--nproc", "2", "show.py"], "--show 2"),
        (["--env", "NOT_SET_ANYWHERE", "show.py"], "--env NOT_SET_ANYWHERE"),
        (["--full", "show.py"], "--full without --trace"),
        (["--python", "/no/python", "show.py"], "cannot run '/no/python'"),
        (["--python", "false", "show.py"], "Python cannot be started"),
        (["--logs", "show.py", "--no-python", "true"], "cannot write into show.py: File exists"),
        (["--logs", "no/folder", "--no-python", "true"], "cannot write into no/folder: No such file"),
        (["--report", "no/folder.json", "show.py"], "there is no folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(folder: Path, words: list[str], said: str) -> None:
    done = run(folder, *words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
