"""The launcher's parts by themselves: lines, prefixes, words of a command line, shares of ranks."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.cli.run import separated
from hemiola.core.errors import InputError
from hemiola.train.launch.agent import descendants, gpus, refusal
from hemiola.train.launch.hosts import connect, remote_command
from hemiola.train.launch.output import Output
from hemiola.train.launch.places import (
    REMOTE_SHELL,
    HostFacts,
    HostNumber,
    LaunchSpec,
    divided,
    rank_environments,
)


def shown(chunks: list[tuple[int, bytes]], **options: object) -> bytes:
    """What of that comes out on standard output."""
    out = io.BytesIO()
    output = Output(False, out, io.BytesIO(), **options)
    for rank, chunk in chunks:
        output.take(rank, "out", chunk)
    output.close()
    return out.getvalue()


def test_lines_come_whole_with_their_rank() -> None:
    assert shown([(0, b"a"), (1, b"b\nc"), (0, b"d\n"), (1, b"e\n")]) == b"[rank1] b\nad\n[rank1] ce\n"
    assert sorted(shown([(1, b"no end"), (0, b"none")]).splitlines()) == [b"[rank1] no end", b"none"]


def test_progress_bars_go_back_and_windows_line_ends_stay_one() -> None:
    assert shown([(0, b"10%\r"), (0, b"20%\r"), (0, b"\n")]) == b"10%\r20%\r\n"
    assert shown([(1, b"a\r"), (1, b"\nb\r\n")]) == b"[rank1] a\r\n[rank1] b\r\n"


def test_an_unfinished_line_is_looked_through_once() -> None:
    begun_s = time.process_time()
    parts = [b"a" * 8192] * 2 + [b"."] * 10
    assert shown([(1, part) for part in (*parts, b"\n")]) == b"[rank1] " + b"".join(parts) + b"\n"
    assert time.process_time() - begun_s < 5  # it was half a minute


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    found = shown([(1, b"a" * (1 << 20)), (1, b"a"), (1, b"b\n")])
    assert found == b"[rank1] " + b"a" * ((1 << 20) + 1) + b"\n[rank1] b\n"


def test_colour_and_choice() -> None:
    assert shown([(0, b"a\n"), (2, b"b\n")], coloured=True) == b"a\n\x1b[36m[rank2]\x1b[0m b\n"
    assert shown([(0, b"a\n"), (2, b"b\n")], shown=frozenset({2})) == b"[rank2] b\n"


@given(st.lists(st.tuples(st.integers(0, 2), st.text("ab\r\n", max_size=5))))
def test_nothing_is_lost_however_it_is_cut(parts: list[tuple[int, str]]) -> None:
    found = shown([(rank, text.encode()) for rank, text in parts], shown=frozenset({0})).decode()
    whole = "".join(text for rank, text in parts if rank == 0)
    assert found in (whole, whole + "\n")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["run", "a.py", "-m"], ["run", "--", "a.py", "-m"]),
        (["run", "-m", "pkg", "--nproc", "3"], ["run", "-m", "--", "pkg", "--nproc", "3"]),
        (["run", "--nproc", "2", "--full", "a.py"], ["run", "--nproc", "2", "--full", "--", "a.py"]),
        (
            ["run", "--nproc=2", "--no-python", "a", "--"],
            ["run", "--nproc=2", "--no-python", "--", "a", "--"],
        ),
        (["run", "--hosts", "a", "--", "--odd.py"], ["run", "--hosts", "a", "--", "--odd.py"]),
        (["run", "--standalone", "--no_python", "a"], ["run", "--standalone", "--no_python", "--", "a"]),
        (["run", "--help"], ["run", "--help"]),
        (["run"], ["run"]),
        (["lab", "run", "a.py"], ["lab", "run", "a.py"]),
        ([], []),
    ],
)
def test_the_script_is_found_among_the_words(words: list[str], found: list[str]) -> None:
    assert separated(words) == found


def test_remote_commands() -> None:
    assert remote_command(REMOTE_SHELL, "n1", "a 'b'")[-2:] == ["n1", "a 'b'"]
    assert remote_command("ssh -p 22", "n1", "a") == ["ssh", "-p", "22", "n1", "a"]
    assert remote_command("srun -w {host} sh -c", "n1", "a") == ["srun", "-w", "n1", "sh", "-c", "a"]
    assert remote_command("k exec pod-{host} -- sh -c {command}", "1", "a") == [
        "k",
        "exec",
        "pod-1",
        "--",
        "sh",
        "-c",
        "a",
    ]


def test_this_host_is_known_by_the_first_part_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "n0.cluster.org")
    for name in ("n0", "n0.cluster.org"):
        host = connect(name, "false", sys.executable)
        said: list[str] = []
        while host.alive and not said:
            said = [verb for verb, _ in host.receive()]
        host.close()
        assert (said, host.status(10.0)) == (["hello"], 0)


def facts(gpus: int, cores: int = 8, threads: str = "") -> HostFacts:
    return HostFacts("h", cores, gpus, 4000, threads)


@pytest.mark.parametrize(
    ("asked", "gpus", "ranks"),
    [("", 0, 1), ("", 4, 4), ("auto", 4, 4), ("auto", 0, 8), ("gpu", 2, 2), ("cpu", 2, 8), ("3", 2, 3)],
)
def test_ranks_of_a_host(asked: str, gpus: int, ranks: int) -> None:
    assert divided(LaunchSpec(("x",), ranks_per_host=asked), [facts(gpus)]).ranks == ranks


def test_no_gpu_is_an_error_where_they_are_asked_for() -> None:
    for environment in ({}, {"CUDA_VISIBLE_DEVICES": ""}):
        with pytest.raises(InputError, match="h has no GPU"):
            divided(
                LaunchSpec(("x",), ranks_per_host="gpu", environment=environment),
                [facts(8 if environment else 0)],
            )


@pytest.mark.parametrize(
    ("asked", "visible", "ranks"),
    [
        ("", "0,1", 2),
        ("auto", "0,1", 2),
        ("gpu", "3", 1),
        ("", "", 1),
        ("", "0,1,2,3,4,5,6,7", 4),
        ("3", "0", 3),
    ],
)
def test_ranks_are_as_many_as_the_gpus_that_they_will_see(asked: str, visible: str, ranks: int) -> None:
    job = LaunchSpec(("x",), ranks_per_host=asked, environment={"CUDA_VISIBLE_DEVICES": visible})
    assert divided(job, [facts(4)]).ranks == ranks


def test_hosts_may_differ() -> None:
    world = divided(LaunchSpec(("x",), hosts=("a", "b", "c")), [facts(2), facts(0), facts(4, cores=2)])
    assert [(place.first, place.ranks, place.threads) for place in world.places] == [
        (0, 2, 4),
        (2, 1, 0),
        (3, 4, 1),
    ]
    assert (world.ranks, world.hosts, world.address, world.port) == (7, 3, "a", 4000)
    assert [rank for place in world.places for rank, _ in rank_environments(world, place, "r")] == list(
        range(7)
    )


def test_hosts_started_by_hand_agree_without_talking() -> None:
    job = LaunchSpec(("x",), ranks_per_host="2", nodes=HostNumber(2, 4), master_address="m")
    world = divided(job, [facts(0)])
    assert (world.places[0].first, world.ranks, world.hosts, world.address, world.port) == (
        4,
        8,
        4,
        "m",
        29500,
    )


def test_gpus_that_can_be_seen(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpus(None, tmp_path) == 3
    assert [gpus(text, tmp_path) for text in ("", "-1", "0", "3,1", "1,-1,2", "GPU-5a,MIG-7")] == [
        0,
        0,
        1,
        2,
        1,
        2,
    ]


def test_processes_may_be_called_anything() -> None:
    names_itself = (
        "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'caf\\xc3) S'); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", names_itself], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.pid in descendants()


def test_what_is_missing_on_a_host(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    assert refusal(str(tmp_path), ["script", "a.py"], {}) is None
    assert refusal(str(tmp_path), ["program", "sh"], {"PATH": "/bin"}) is None
    for cwd, needs in (
        (tmp_path / "no", ["", ""]),
        (tmp_path, ["script", "b.py"]),
        (tmp_path, ["program", "a.py"]),
    ):
        assert refusal(str(cwd), needs, {"PATH": "/bin"}) is not None
