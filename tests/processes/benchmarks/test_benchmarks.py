"""Each benchmark runs on tiny input and says something that can be checked."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from repository import BENCHMARKS

CLUSTER = "leaf-spine:hosts=4,gpus_per_host=8,hosts_per_rack=2,nic=100gbit,oversubscription=4"


@pytest.fixture(autouse=True)
def _benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delenv("HEMIOLA_SHARED", raising=False)


def test_the_floor_replays_in_strict_order_and_packs_tightly() -> None:
    import floor

    wait_behind = [(0.0, 8, 10.0), (1.0, 16, 5.0), (2.0, 1, 1.0)]
    assert floor.replay(wait_behind, 2, 8) == pytest.approx((10 + 14 + 14) / 3)
    tight = [(0.0, 4, 9.0), (0.0, 4, 9.0), (0.0, 8, 1.0)]
    assert floor.replay(tight, 2, 8) == pytest.approx(19 / 3)
    assert floor.replay([], 2, 8) == 0.0


def test_the_floor_is_about_fifty_lines() -> None:
    assert len((BENCHMARKS / "floor.py").read_text(encoding="utf-8").splitlines()) <= 60


def test_multiples_of_the_floor() -> None:
    import speed

    text = speed.against_floor(jobs=60, rounds=1)
    assert [line.split("|")[1].strip() for line in text.splitlines()[4:8]] == [*speed.LIMITS]
    assert "FIFO without a network and the floor agree" in text
    assert "HEMIOLA_SHARED is not set" in text


def test_a_replay_with_a_stopwatch_decides_the_same() -> None:
    import child

    spec = {"workload": "generated:jobs=40,load=2,seed=1", "cluster": CLUSTER, "policy": "srtf"}
    plain, watched = child.replay(spec), child.replay(spec | {"latency": True})
    for name in ("jobs", "events", "decisions", "preemptions", "queueing_mean_s"):
        assert plain[name] == watched[name]
    assert 0 < watched["step_p50_s"] <= watched["step_p99_s"] <= watched["instant_max_s"]
    assert plain["before_mib"] <= plain["peak_mib"] < 10_000


@pytest.mark.slow
def test_replays_in_processes_of_their_own() -> None:
    import speed

    text = speed.philly(jobs=40, rounds=1, policies=["fifo"])
    assert "under 1 GiB" in text
    assert "2.5 s: met" in text


@pytest.mark.slow
def test_the_largest_cluster_with_the_time_of_each_decision() -> None:
    import speed

    text = speed.huge(jobs=40, cluster=CLUSTER, policies=["fifo"])
    assert text.count(": met |") == 4
    given_up = speed.huge(jobs=40, cluster=CLUSTER, policies=["fifo"], limit_s=0.01)
    assert given_up.count("more than 0.01 wall s: missed") == 2


def test_the_curve_and_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import speed

    monkeypatch.setattr(speed, "EVENTS_LEAST", 1)
    picture = tmp_path / "curve.svg"
    text = speed.curve(picture, sizes=(16, 32), jobs_per_gpu=1.0, rounds=1)
    assert text.count("| srtf |") == 3
    root = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    assert root.tag.endswith("svg")
    assert len([e for e in root if e.tag.endswith("polyline")]) == 9
    assert picture.stat().st_size < 50_000


def test_the_network_settles() -> None:
    import contention

    tiny = contention.World(4, 2, 2, 4.0, 1.0, 3)
    text = contention.measure(worlds=(tiny,), events=10, compiling=False)
    assert [text.count(f"| {sharing.rule} |") for sharing in contention.RULES] == [1, 1, 1, 1]


def test_the_page_names_its_command_and_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import speed

    page = tmp_path / "speed.md"
    speed.main(["--only", "peers", "--write", str(page)])
    text = page.read_text(encoding="utf-8")
    assert "--only peers" in text
    assert f"Python {sys.version_info.major}." in text
    assert "Tiresias simulator" in capsys.readouterr().out


def test_a_label_is_never_drawn_over_another() -> None:
    from page import LogLine, draw_curves

    lines = [LogLine(name, {1: 1.0, 10: 2.0}, i) for i, name in enumerate("abc")]
    root = ElementTree.fromstring(draw_curves(lines, "a < b"))
    labels = [e for e in root if e.tag.endswith("text") and e.text in {"a", "b", "c"}]
    heights = sorted(float(e.attrib["y"]) for e in labels)
    assert len(heights) == 3
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 15
