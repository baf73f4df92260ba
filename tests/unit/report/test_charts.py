"""What charts draw must be what happened: sums are kept, whatever is left out is said."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import replays
from hypothesis import given
from hypothesis import strategies as st
from report_build import cluster, comparison

from hemiola.core.timeline import Timeline, TrafficLog
from hemiola.cost.iteration import IterationModel
from hemiola.report.charts import (
    bars,
    completion,
    differences,
    gantt,
    gpu_seconds,
    heat_maps,
    over_time,
    tiers,
)
from hemiola.report.document import POLICY_COLORS, policy_color, policy_dash, time_scale, words_for
from hemiola.report.html import charts
from hemiola.report.links import binned, link_load, links_of, step_means
from hemiola.report.metrics import Figures

times = st.floats(0, 10)
spans = st.lists(st.tuples(st.integers(0, 2), times, times, st.floats(0, 5)), min_size=1, max_size=20)


@given(spans)
def test_bins_hold_what_overlaps_them(drawn):
    row, a, b, weight = (np.array(column) for column in zip(*drawn, strict=True))
    start, end = np.minimum(a, b), np.maximum(a, b)
    edges = np.linspace(0.5, 9.5, 8)
    found = binned(row.astype(np.int64), start, end, weight, rows=3, edges_s=edges)
    for r in range(3):
        for k in range(7):
            overlap = np.minimum(end, edges[k + 1]) - np.maximum(start, edges[k])
            due = (np.maximum(overlap, 0) * weight * (row == r)).sum() / (edges[1] - edges[0])
            assert found[r, k] == pytest.approx(due, abs=1e-9)


def test_step_means_keep_the_integral():
    time_s = np.sort(np.random.default_rng(0).uniform(0, 100, 5000))
    value = np.random.default_rng(1).integers(0, 50, 5000)
    x, y = step_means(time_s, value, 100.0, 100)
    integral = (value * np.diff(np.append(time_s, 100.0))).sum()
    assert len(x) == 101
    assert (y[:-1] * np.diff(x)).sum() == pytest.approx(integral)
    assert step_means(time_s[:3], value[:3], 100.0, 100)[0].tolist() == [*time_s[:3], 100.0]


def test_links_that_a_job_crosses():
    topology = cluster(racks=2, hosts_per_rack=2)
    assert links_of(topology).names == (
        "rack r0 uplink", "rack r1 uplink", "n0 NIC", "n1 NIC", "n2 NIC", "n3 NIC",
    )  # fmt: skip
    log = TrafficLog(
        job=np.array([0, 1]), start_s=np.array([0.0, 5.0]), end_s=np.array([5.0, 10.0]),
        iteration_s=np.ones(2), bytes_per_s=np.array([1.25e9, 2.5e9]), hosts=((0, 1), (1, 2)),
    )  # fmt: skip
    load = link_load(log, topology, 0.0, 10.0, bins=2, most=10)
    assert load.names == ("rack r0 uplink", "rack r1 uplink", "n0 NIC", "n1 NIC", "n2 NIC")
    assert load.share.tolist() == pytest.approx(
        np.array([[0, 1.0], [0, 1.0], [0.1, 0], [0.1, 0.2], [0, 0.2]]), abs=1e-9
    )


@pytest.mark.parametrize("pattern", ["ring", "all-to-all"])
def test_the_load_of_links_is_what_the_law_puts_on_them(pattern):
    """3 of 4 ranks on one host: an all-to-all sends 3 * 1 / 3 of a rank's bytes over its card, 2 * 2 / 3 between racks."""
    topology = replays.cluster([3, 1], [3, 1], nic=2.0, uplink=2.0)
    model = replays.profile(1.0, 1.0, pattern=pattern)
    jobs = [replays.job("a", 0, 4, 100, profile=model), replays.job("b", 0, 4, 50, profile=model)]
    lines = {0: [replays.start("a", (0, 3), (2, 1), (3, 1)), replays.start("b", (0, 4), (1, 1), (2, 6))]}
    run = replays.replay(jobs, topology, replays.Script(lines))
    model_of = IterationModel(topology)
    until_s = min(run.traffic.end_s)
    load = link_load(run.traffic, topology, 0.0, float(until_s), bins=1, most=10)
    expected = dict.fromkeys(links_of(topology).names, 0.0)
    named = dict(zip(model_of.link_names, range(6), strict=True))
    assert sorted(named) == sorted(name.replace(" NIC", " nic") for name in expected)
    for index, place in enumerate([replays.at((0, 3), (2, 1), (3, 1)), replays.at((0, 4), (1, 1), (2, 6))]):
        crossing = model_of.crossing(jobs[index], place)
        row = int(np.flatnonzero(run.traffic.job == index)[0])
        rate = crossing.need.traffic_bytes / run.traffic.iteration_s[row]
        for link, factor in zip(crossing.links, crossing.factors or [1.0] * 6, strict=False):
            name = model_of.link_names[link].replace(" nic", " NIC")
            expected[name] += rate * factor / 2.0
    assert dict(zip(load.names, load.share[:, 0].tolist(), strict=True)) == pytest.approx(
        {name: share for name, share in expected.items() if share}
    )


def test_only_the_busiest_links_are_kept_and_the_rest_counted():
    found = comparison(policies=("fifo",))
    run = found.runs[0]
    load = link_load(run.traffic, found.topology, run.origin_s, run.end_s, bins=20, most=2)
    assert load.names == ("rack r0 uplink", "rack r1 uplink")
    assert load.left_out == 4


@pytest.mark.parametrize("most", [8000, 15])
def test_bars_and_ground_of_the_gantt_are_all_gpu_seconds(monkeypatch, most):
    monkeypatch.setattr("hemiola.report.charts._ROWS_MOST", most)
    monkeypatch.setattr("hemiola.report.charts._ROWS_LEAST", 1)
    found = comparison(policies=("srtf",), count=60)
    run = found.runs[0]
    drawing = gantt(found).drawings["srtf"]
    scale, _ = time_scale(run.end_s - run.origin_s)
    rectangles = [t for t in drawing.data if t["type"] == "bar" and t["name"] != "checkpoint and restore"]
    drawn = sum(x * w for t in rectangles for x, w in zip(t["x"], t["width"], strict=True)) * scale
    for ground in (t for t in drawing.data if t["type"] == "heatmap"):
        share = np.array([[0.0 if value is None else value for value in row] for row in ground["z"]])
        area = np.diff(np.array(ground["y"]))[:, None] * np.diff(np.array(ground["x"])) * scale
        drawn += (share * area).sum()
    held = sum(record.run_s * record.gpus for record in run.records)
    assert drawn == pytest.approx(held, rel=1e-3 if most == 8000 else 0.05)


def test_neighbouring_gpus_are_one_bar():
    found = comparison(policies=("fifo",), count=1)
    drawing = gantt(found).drawings["fifo"]
    assert [trace["width"] for trace in drawing.data] == [[found.runs[0].records[0].gpus]]


def test_stacks_add_up_to_everything():
    figures = Figures(comparison(seeds=(0, 1)))
    for chart in (gpu_seconds(figures), tiers(figures)):
        sums = np.sum([trace["x"] for trace in chart.drawings[""].data], axis=0)
        assert sums == pytest.approx(np.ones(3))


def test_hours_by_tier_are_those_of_one_run():
    found = comparison(seeds=(0, 1), policies=("fifo",))
    told = [
        float(trace["customdata"][0].replace(",", "")) for trace in tiers(Figures(found)).drawings[""].data
    ]
    kinds = ("useful", "exposed_communication", "checkpoint", "lost")
    held_s = [sum(getattr(run.gpu_seconds, kind) for kind in kinds) for run in found.runs]
    assert sum(told) == pytest.approx(np.mean(held_s) / 3600, abs=0.05 * len(told))


def test_completion_ends_at_one_and_never_falls():
    for trace in completion(Figures(comparison(seeds=(0, 1)))).drawings[""].data:
        assert trace["y"][-1] == 1.0
        assert np.all(np.diff(trace["x"]) >= 0)
        assert np.all(np.diff(trace["y"]) > 0)


def test_bars_show_means_and_intervals():
    figures = Figures(comparison(seeds=(0, 1)))
    chart = next(bars(figures))
    trace = chart.drawings[""].data[0]
    mean = figures.mean("sjf", "jct_mean_s")
    scale, unit = time_scale(max(figures.mean(p, "jct_mean_s").mean for p in figures.policies))
    assert unit == "hours"
    assert trace["x"][1] * scale == pytest.approx(mean.mean)
    assert trace["error_x"]["array"][1] * scale == pytest.approx(mean.high - mean.mean)


def test_no_difference_without_another_policy():
    assert differences(Figures(comparison(policies=("fifo",)))) is None


def test_over_time_starts_and_ends_with_the_run():
    found = comparison()
    for chart in over_time(found):
        for run, trace in zip(found.runs, chart.drawings[""].data, strict=True):
            scale, _ = time_scale(max(r.end_s - r.origin_s for r in found.runs))
            assert trace["x"][0] == 0
            assert trace["x"][-1] * scale == pytest.approx(run.end_s - run.origin_s, abs=0.1)


def test_charts_leave_out_what_was_not_recorded():
    found = comparison(count=3, topology=cluster(racks=1, hosts_per_rack=1, gpus_per_host=8))
    assert heat_maps(found) is None
    assert "links" not in [chart.id for chart in charts(Figures(found))]


@pytest.mark.parametrize("timeline", [None, Timeline.from_rows([])])
def test_no_chart_is_drawn_from_a_timeline_that_was_not_kept(timeline):
    found = comparison()
    bare = tuple(msgspec.structs.replace(r, timeline=timeline, traffic=None) for r in found.runs)
    drawn = {chart.id for chart in charts(Figures(replace(found, runs=bare)))}
    assert not drawn & {"utilisation", "queue", "tiers", "links", "gantt"}


def test_policies_stay_apart():
    looks = {(policy_color(i), policy_dash(i)) for i in range(4 * POLICY_COLORS)}
    assert len(looks) == 4 * POLICY_COLORS


def test_labels_are_no_markup():
    assert words_for("a<b>") == "a&lt;b&gt;"
    assert words_for("dally:timer=break-even,reset=on") == "dally:<br>timer=break-even,<br>reset=on"
