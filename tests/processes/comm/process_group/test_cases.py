"""The backend where a job is unusual: slow links, threads in other modes, what cannot be averaged, hooks that wait."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from ranks import run

from hemiola.core.collective.shapes import ring
from hemiola.trace.struct_json import write_schedule

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


def case(name: str, ranks: int, folder: Path) -> set[str]:
    """What the ranks say."""
    return set(run(HERE / "cases.py", ranks, str(folder / "meet"), name))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_an_average_is_divided_only_when_nothing_of_it_is_on_its_way(ranks, tmp_path):
    assert case("averages", ranks, tmp_path) == {"right"}


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_cannot_be_averaged_raises_at_every_rank(ranks, tmp_path):
    assert case("no_averages", ranks, tmp_path) == {"raised"}


@pytest.mark.parametrize("schedule", ["", "ring.json"])
def test_what_there_is_not_for_a_type_raises_at_every_rank(schedule, tmp_path, monkeypatch):
    write_schedule(ring([0, 1]), tmp_path / "ring.json")
    monkeypatch.setenv("HEMIOLA_STRATEGY", str(tmp_path / schedule) if schedule else "")
    assert case("no_bits", 2, tmp_path) == {"raised"}


@pytest.mark.parametrize("schedule", ["", "ring.json"])
def test_what_has_not_a_part_for_each_rank_raises_at_every_rank(schedule, tmp_path, monkeypatch):
    write_schedule(ring([0, 1, 2]), tmp_path / "ring.json")
    monkeypatch.setenv("HEMIOLA_STRATEGY", str(tmp_path / schedule) if schedule else "")
    assert case("unequal", 3, tmp_path) == {"raised"}


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_cannot_be_written_raises(ranks, tmp_path):
    assert case("unwritable", ranks, tmp_path) == {"raised"}


@pytest.mark.parametrize(("schedule", "late"), [("", ""), ("ring.json", ""), ("", "relay")])
def test_ranks_may_be_in_inference_mode_or_not(schedule, late, tmp_path, monkeypatch):
    write_schedule(msgspec.structs.replace(ring([1, 2, 0]), chunk_bytes=65536), tmp_path / "ring.json")
    monkeypatch.setenv("HEMIOLA_STRATEGY", str(tmp_path / schedule) if schedule else "")
    monkeypatch.setenv("HEMIOLA_STRAGGLERS", late)
    assert case("inference", 3, tmp_path) == {"right"}


@pytest.mark.parametrize(("schedule", "late"), [("", ""), ("ring.json", ""), ("", "relay")])
def test_a_rank_that_does_not_come_ends_all_waits_in_time(schedule, late, tmp_path, monkeypatch):
    write_schedule(ring([0, 1]), tmp_path / "ring.json")
    monkeypatch.setenv("HEMIOLA_STRATEGY", str(tmp_path / schedule) if schedule else "")
    monkeypatch.setenv("HEMIOLA_STRAGGLERS", late)
    assert case("unanswered", 2, tmp_path) == {"raised"}


@pytest.mark.parametrize(("schedule", "late"), [("", ""), ("ring.json", ""), ("", "relay")])
def test_who_leaves_ends_first_what_it_has_begun(schedule, late, tmp_path, monkeypatch):
    write_schedule(ring([1, 2, 0]), tmp_path / "ring.json")
    monkeypatch.setenv("HEMIOLA_STRATEGY", str(tmp_path / schedule) if schedule else "")
    monkeypatch.setenv("HEMIOLA_STRAGGLERS", late)
    assert case("leaving", 3, tmp_path) == {"right"}


def test_who_fails_leaves_at_once(tmp_path):
    assert case("failing", 2, tmp_path) == {"soon"}


def test_who_ends_without_leaving_sends_first_what_others_need(tmp_path):
    assert case("not_left", 2, tmp_path) == {"right"}


def test_checkpoints_are_written_and_read(tmp_path):
    assert case("checkpoints", 2, tmp_path) == {"as they were"}


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_done_after_a_collective_may_wait_for_others(ranks, tmp_path):
    assert case("nested", ranks, tmp_path) == {"right"}


def test_a_hook_that_waits_trains_as_with_gloo(tmp_path):
    assert case("power", 2, tmp_path) == {"as with gloo"}
