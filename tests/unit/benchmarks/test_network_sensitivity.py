"""The study of network sensitivity on tiny input: it runs, is taken up again, pairs seeds, and writes its page."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from repository import BENCHMARKS

from hemiola.report.metrics import interval


@pytest.fixture(autouse=True)
def _benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delenv("HEMIOLA_SHARED", raising=False)


def tiny() -> Any:
    from network_study import Study

    return Study(
        mixes=("lingjun", "philly"), nics=(10, 400), others=((25, 1),), loads=(0.6,), load_nics=(25,),
        batch_nics=(), special=(("lingjun", 10, 4),), seeds=2, fresh=2, scale=0.02,
    )  # fmt: skip


def row(policy: str, seed: int, **figures: float) -> dict[str, Any]:
    from dataclasses import asdict

    from network_study import Cell

    return asdict(Cell("muri", 10, 4)) | {"policy": policy, "seed": seed} | figures


def test_a_point_repeats_and_its_figures_add_up() -> None:
    from network_study import Cell, Point, replay

    point = Point(Cell("lingjun", 25, 4, scale=0.1), "dally", 3)
    first, second = replay(point), replay(point)
    cpu = (first.pop("cpu_s"), second.pop("cpu_s"))
    assert first == second and min(cpu) > 0
    assert first["unfinished"] == 0
    assert first["jct_p50_s"] <= first["jct_p99_s"] <= first["makespan_s"]
    assert 0 < first["floor_gpu_s"] <= first["exposed_gpu_s"] * (1 + 1e-9)


def test_iterations_are_the_same_on_every_fabric() -> None:
    from network_study import Cell, Point, replay

    slow, fast = (
        replay(Point(Cell("lingjun", nic, 4, scale=0.1), "fifo-backfill:placement=consolidated", 0))
        for nic in (10, 1600)
    )
    assert slow["offered"] > 2 * fast["offered"]
    assert slow["jct_mean_s"] > fast["jct_mean_s"]


def test_jobs_that_all_fit_one_host_are_at_the_floor_when_they_wait_for_it() -> None:
    from network_study import Cell, Point, replay

    found = replay(Point(Cell("muri", 10, 4, scale=0.05), "dally:timer=always-wait", 1))
    assert found["exposed_gpu_s"] == pytest.approx(found["floor_gpu_s"], rel=0.05)


def test_another_reset_rule_is_dally_in_all_else() -> None:
    from network_study import RESETS_ALWAYS, RESETS_NEVER, Cell, KeepsTime, Point, policy_of, replay

    assert isinstance(policy_of(RESETS_NEVER), KeepsTime)
    assert policy_of(RESETS_ALWAYS).card()["reset"] == "at every start"
    cell = Cell("lingjun", 10, 4, scale=0.1)
    found = {name: replay(Point(cell, name, 0)) for name in ("dally", RESETS_ALWAYS, RESETS_NEVER)}
    assert {one["unfinished"] for one in found.values()} == {0}


def test_stretches_of_a_trace_are_disjoint_and_have_the_load() -> None:
    from network_study import GPUS, stretch

    import hemiola

    trace = hemiola.generate("generated:jobs=1000,mix=philly,load=0.3", gpus=GPUS)
    parts = [stretch(trace, 20, seed, load=1.2) for seed in (*range(5), *range(100, 110))]
    ids = [job.id for part in parts for job in part.jobs]
    assert len(ids) == len(set(ids)) == 300
    jobs = parts[0].jobs
    work = sum(job.gpus * job.duration_s for job in jobs)
    assert work / (GPUS * (jobs[-1].submit_s - jobs[0].submit_s)) == pytest.approx(1.2)


def test_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    from network_study import Cell, Memory, Point, run_all

    points = [Point(Cell("lingjun", 25, 4, scale=0.01), "fifo-backfill", seed) for seed in (1, 0)]
    said = io.StringIO()
    rows = run_all(points, Memory(tmp_path), 1, said)
    assert [row["seed"] for row in rows] == [1, 0] and "2 replays to do" in said.getvalue()
    file = next(tmp_path.glob("points-*.jsonl"))
    file.write_text(file.read_text() + '{"key": "cut o')
    again = io.StringIO()
    assert run_all(points, Memory(tmp_path), 1, again) == rows and not again.getvalue()


def test_differences_are_paired_by_seed_and_fresh_seeds_kept_apart() -> None:
    from network_findings import Points
    from network_study import Cell

    rows = [row("a", s, x=v) for s, v in ((0, 5.0), (1, 30.0), (100, 1.0))]
    rows += [row("b", s, x=v) for s, v in ((1, 40.0), (0, 10.0), (100, 4.0))]
    points, cell = Points(rows), Cell("muri", 10, 4)
    assert points.difference(cell, "a", "b", "x") == interval([-0.5, -0.25])
    assert points.difference(cell, "a", "b", "x", fresh=True).mean == -0.75
    assert points.mean(cell, "b", "x").mean == 25.0


def test_a_verdict_needs_the_whole_interval_and_a_percent() -> None:
    from network_findings import verdict

    assert verdict(interval([-0.10, -0.11])) == "better"
    assert verdict(interval([0.10, 0.11])) == "worse"
    assert verdict(interval([-0.001, -0.0011])) == "neither"
    assert verdict(interval([-0.5, 0.3])) == "neither"
    assert verdict(interval([-0.5])) == "neither"


def test_regret_is_to_the_best_on_average() -> None:
    from network_findings import Points, regret
    from network_study import Cell

    points = Points([row(p, s, x=v) for p, v in (("a", 10.0), ("b", 12.0)) for s in (0, 1)])
    found = regret(points, Cell("muri", 10, 4), {"A": "a", "B": "b"}, "x")
    assert found["A"].mean == 0.0 and found["B"].mean == pytest.approx(0.2)


def test_the_study_runs_each_point_once_and_compares_like_with_like() -> None:
    from network_study import BASELINES, DALLY, FULL, LAWS, POLICIES

    points = FULL.points()
    assert len(points) == len(set(points))
    cells = list(FULL.cells())
    assert len(cells) == len(set(cells))
    assert {point.cell.law for point in points} == set(LAWS)
    assert DALLY in POLICIES and set(BASELINES.values()) <= set(POLICIES)
    for mix, nic, over in FULL.special:
        assert any((c.mix, c.nic_gbit, c.oversubscription, c.load) == (mix, nic, over, 1) for c in cells)


@pytest.mark.slow
def test_the_page_its_pictures_and_its_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import network_sensitivity

    monkeypatch.setattr(network_sensitivity, "QUICK", replace(tiny(), seeds=2))
    page, out = tmp_path / "page.md", tmp_path / "points.csv"
    network_sensitivity.main(["--quick", "--workers", "1", "--write", str(page), "--out", str(out)])
    text = page.read_text(encoding="utf-8")
    for title in ("In short", "Where it buys nothing", "Which timer", "What this does not show"):
        assert f"## {title}" in text
    assert "HEMIOLA_SHARED is not set" in text and "Every job finished" in text
    assert "nan" not in text.lower().split()
    for name in ("claims", "exposed", "load", "timers"):
        picture = tmp_path / "img" / f"network-{name}.svg"
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")
        assert picture.stat().st_size < 60_000 and f"(img/{picture.name})" in text
    with out.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert {"dally", "gandiva"} <= {one["policy"] for one in rows}
    network_sensitivity.write_rows([{"a": 1}], tmp_path / "one.json")
    assert json.loads((tmp_path / "one.json").read_text()) == [{"a": 1}]


def test_a_chart_cuts_what_leaves_its_axis() -> None:
    from network_sensitivity import HIGH, Series, SeriesPanel, draw_panels

    svg = draw_panels(
        "<t>",
        [[SeriesPanel("p", [Series("a & b", {1: interval([5.0]), 2: interval([0.1])}, 0)], 0.0, 1.0)]],
        "x",
    )
    root = ElementTree.fromstring(svg)
    heights = [float(dot.get("cy", "nan")) for dot in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(heights) == 2 and max(heights) - min(heights) == pytest.approx(0.9 * HIGH, abs=0.2)
    assert sys.getsizeof(svg) < 10_000
