"""The backend against gloo, in real processes: the same results, the same training, clear errors."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from patience import patience
from ranks import run, start

from hemiola.core.collective.shapes import chain, ring, trees
from hemiola.trace.struct_json import write_schedule

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_collective_gives_what_gloo_gives(ranks, tmp_path):
    assert run(HERE / "compare.py", ranks, str(tmp_path / "meet")) == ["all the same"] * ranks


SLOW_HOST = """[cluster]
name = "one slow host"

[[hosts]]
names = "h[0-2]"
gpus = 1
nic = "400mbit"

[[hosts]]
names = "h3"
gpus = 1
nic = "100mbit"
"""
RACKS = """[[hosts]]
names = "h[0-3]"
gpus = 1
nic = "400mbit"

[[level]]
name = "rack"

[[level.domain]]
name = "a"
hosts = "h[0,2]"
uplink = "200mbit"

[[level.domain]]
name = "b"
hosts = "h[1,3]"
uplink = "200mbit"
"""


@pytest.mark.parametrize(
    ("topology", "used"),
    [(SLOW_HOST, "all-reduce, broadcast, reduce"), (RACKS, "all-gather, all-reduce, broadcast, reduce, reduce-scatter")],
)  # fmt: skip
def test_by_schedules_every_collective_gives_the_same(topology, used, tmp_path, monkeypatch):
    (tmp_path / "network.toml").write_text(topology, encoding="utf-8")
    monkeypatch.setenv("HEMIOLA_STRATEGY", str(tmp_path / "network.toml"))
    said = run(HERE / "compare.py", 4, str(tmp_path / "meet"))
    assert said == [f"all the same, by schedules: {used}"] * 4


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_training_by_a_measured_schedule_gives_all_ranks_the_same_parameters(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("HEMIOLA_STRATEGY", str(tmp_path / "ring.json"))
    write_schedule(msgspec.structs.replace(ring([1, 2, 0]), chunk_bytes=4096), tmp_path / "ring.json")
    ours = run(HERE / "train.py", 3, str(tmp_path / "ours"), "hemiola", kind)
    assert len(set(ours)) == 1


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("none.json", None, "none.json"),
        ("three.json", "three", "is for 3 ranks, here are 2"),
        ("wrong.json", "wrong", "holds chunk"),
        ("other.toml", SLOW_HOST.replace("h[0-2]", "x[0-2]").replace('"h3"', '"x3"'), "has no host"),
    ],
)
def test_a_wrong_schedule_ends_every_rank_with_the_reason(name, content, problem, tmp_path, monkeypatch):
    path = tmp_path / name
    if content == "three":
        write_schedule(ring([0, 1, 2]), path)
    elif content == "wrong":
        write_schedule(msgspec.structs.replace(ring([0, 1]), moves=ring([0, 1]).moves[:-1]), path)
    elif content:
        path.write_text(content, encoding="utf-8")
    monkeypatch.setenv("HEMIOLA_STRATEGY", str(path))
    ranks = [start(HERE / "train.py", rank, 2, str(tmp_path / "meet"), "hemiola", "ddp") for rank in range(2)]
    for process in ranks:
        _, said = process.communicate(timeout=patience(60))
        assert process.returncode and problem in said, said[-2000:]


@pytest.mark.parametrize("schedule", ["", "auto"])
def test_nothing_is_left_of_a_group_that_was_left(schedule, tmp_path, monkeypatch):
    monkeypatch.setenv("HEMIOLA_STRATEGY", schedule)
    assert run(HERE / "leaves.py", 3, str(tmp_path / "meet")) == ["0 sockets and no threads left"] * 3


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_training_on_two_ranks_is_gloos_to_the_bit(kind, tmp_path):
    ours = run(HERE / "train.py", 2, str(tmp_path / "ours"), "hemiola", kind)
    gloo = run(HERE / "train.py", 2, str(tmp_path / "gloo"), "gloo", kind)
    assert ours == gloo
    assert ours[0] == ours[1]


@pytest.mark.parametrize("schedule", ["", "auto"])
def test_sums_that_begin_without_a_late_rank_are_the_same(schedule, tmp_path, monkeypatch):
    monkeypatch.setenv("HEMIOLA_STRAGGLERS", "relay")
    monkeypatch.setenv("HEMIOLA_STRATEGY", schedule)
    assert all(
        said.startswith("all the same") for said in run(HERE / "compare.py", 3, str(tmp_path / "meet"))
    )


def test_training_with_a_late_rank_is_gloos_to_the_bit(tmp_path, monkeypatch):
    """Two ranks: however it is added up, it is one addition."""
    monkeypatch.setenv("TRAIN_LATE_S", "0.1")
    gloo = run(HERE / "train.py", 2, str(tmp_path / "gloo"), "gloo", "ddp")
    monkeypatch.setenv("HEMIOLA_STRAGGLERS", "relay")
    assert run(HERE / "train.py", 2, str(tmp_path / "ours"), "hemiola", "ddp") == gloo
    monkeypatch.setenv("HEMIOLA_STRAGGLERS", "carry-over")
    carried = run(HERE / "train.py", 3, str(tmp_path / "carried"), "hemiola", "ddp")
    assert len(set(carried)) == 1, "all ranks have the same parameters"


def test_another_word_about_stragglers_ends_every_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("HEMIOLA_STRAGGLERS", "hurry")
    ranks = [start(HERE / "train.py", rank, 2, str(tmp_path / "meet"), "hemiola", "ddp") for rank in range(2)]
    for process in ranks:
        _, said = process.communicate(timeout=patience(60))
        assert process.returncode and "HEMIOLA_STRAGGLERS=hurry" in said, said[-2000:]


def test_a_killed_rank_ends_the_others_collective_with_its_name_also_where_a_child_of_it_lives(tmp_path):
    processes = [start(HERE / "waits.py", rank, 2, str(tmp_path / "meet")) for rank in range(2)]
    until = time.monotonic() + patience(60)
    while not (tmp_path / "meet.1").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGKILL)
    try:
        output, problem = processes[0].communicate(timeout=patience(60))
    finally:
        os.kill(int((tmp_path / "meet.1").read_text(encoding="utf-8")), signal.SIGKILL)
    assert "rank 1 is gone" in output, problem[-2000:]
    processes[1].communicate()


@pytest.mark.parametrize("elements", [1, 1_000_000], ids=["small", "by a schedule"])
def test_a_killed_rank_ends_a_collective_also_where_nobody_talks_to_it(tmp_path, monkeypatch, elements):
    monkeypatch.setenv("HEMIOLA_STRATEGY", str(tmp_path / "chain.json"))
    write_schedule(trees([chain([0, 1, 2])]), tmp_path / "chain.json")
    _last_one_is_lost(3, tmp_path, str(elements))


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "reduce_scatter"])
def test_a_killed_rank_ends_usual_collectives_on_every_rank(tmp_path, collective):
    _last_one_is_lost(4, tmp_path, "1000000", collective)


def test_a_killed_rank_ends_small_broadcasts_of_a_root_that_has_not_called_them(tmp_path):
    _last_one_is_lost(4, tmp_path, "10", "broadcast_from_first", idle=[0])


def _last_one_is_lost(ranks: int, folder: Path, *more: str, idle: Sequence[int] = ()) -> None:
    processes = [start(HERE / "dies.py", rank, ranks, str(folder / "meet"), *more) for rank in range(ranks)]
    for rank, process in enumerate(processes[:-1]):
        output, problem = process.communicate(timeout=patience(60))
        assert output.count(f"rank {ranks - 1} is gone") == 2 * (rank not in idle), problem[-2000:]
    processes[-1].communicate()
