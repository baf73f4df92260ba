"""The page of a job: whole, without network, safe against names, and drawn by a real browser."""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from job_build import Build
from pages import Elements, without_plotly
from report_sample import ddp

from hemiola.analysis.job.metrics import JobMetrics, job_metrics
from hemiola.core.errors import InputError
from hemiola.core.job_timeline import SPAN_KINDS, JobTimeline
from hemiola.report.job import write_job_report
from hemiola.report.job.lanes import Drawn, drawn, path_iteration_s
from hemiola.report.job.page import charts, render

EVIL = "</script><img src=x onerror=alert(1)>"


def without_clocks(timeline: JobTimeline) -> JobTimeline:
    """The same, and nothing is known of its ranks' clocks."""
    ranks = tuple(msgspec.structs.replace(rank, clock_error_s=math.inf) for rank in timeline.ranks)
    return replace(timeline, ranks=ranks)


def draw(metrics: JobMetrics, most: int = 80_000) -> Drawn:
    return drawn(metrics, path_iteration_s(metrics), most)


def column(data: dict[str, Any], name: str, kind: type) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(data[name]), dtype=kind)


@pytest.mark.parametrize("other", [False, True], ids=["one", "two"])
def test_the_page_is_whole_and_needs_no_network(tmp_path, other):
    path = tmp_path / "job.html"
    write_job_report(
        ddp(), path, other=ddp(rate=3e9, name="faster") if other else None, title="My job & others"
    )
    page = path.read_text()
    rest = without_plotly(page)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", rest)
    assert "http" not in rest
    assert "@import" not in rest
    assert page.count("plotly.js v") == 1
    found = Elements()
    found.feed(rest)
    found.close()
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert "<h1>My job &amp; others</h1>" in page
    assert rest.count('class="viewer"') == 1 + other
    assert ("<h2>Differences</h2>" in page) == other


def test_the_page_says_the_figures():
    metrics = job_metrics(ddp())
    page = without_plotly(render(metrics))
    assert f"{100 * metrics.exposed_share:.0f} % of each iteration waits for communication" in page
    assert f"<b>{100 * metrics.exposed_share:.1f} %</b>" in page
    assert f"<b>{metrics.efficiency.efficiency:.2f}</b>" in page
    assert f"<b>{1e3 * metrics.iteration_s.median:.2f} ms</b>" in page
    assert "transformer.h.3" in page
    assert "0.8 % of iteration time" in page
    assert "5 iterations (1 of warm-up left out)" in page


def test_a_clock_of_which_nothing_is_known_is_said_to_be_one():
    page = without_plotly(render(job_metrics(without_clocks(ddp(ranks=2)))))
    assert "times of different ranks cannot be compared" in page
    assert page.count("<td>not known</td>") == 4, "among those who are late, and among the clocks"
    assert "never" not in page


def test_a_prediction_is_shown_as_one():
    facts = {
        "strategy": "fsdp", "topology": "racks", "hardware": "H100", "ranks": 16, "hosts": 2, "ranks_shown": 1,
        "confidence": 0.9, "low_s": 0.2, "high_s": 0.3,
    }  # fmt: skip
    build = Build()
    build.span(0, "compute", 0, 4)
    build.span(0, "wait", 4, 5)
    page = without_plotly(render(job_metrics(build.timeline(predicted=True, facts=facts))))
    head = page[page.index('class="facts"') : page.index("</header>")]
    assert "predicted, not measured · 16 ranks on 2 hosts, 1 drawn for all of them · 1 iteration" in head
    assert "H100 · racks · fsdp · 90 % interval 200.00 ms to 300.00 ms" in head
    assert "measured: " not in page and "the recording says" not in page
    assert "predicted: the model says when a rank stands still" in page


def test_charts_agree_with_the_figures():
    metrics = job_metrics(ddp())
    chart = next(chart for chart in charts(metrics, None, ("", "")) if chart.id == "parts")
    bars = chart.drawings[""].data
    total = np.sum([bar["x"] for bar in bars], axis=0)
    slowest_first = sorted(metrics.ranks, key=lambda rank: -rank.exposed_share)
    assert bars[0]["y"] == [f"rank {rank.rank}" for rank in slowest_first]
    assert total == pytest.approx([1e3 * rank.iteration_s for rank in slowest_first])


def test_json_without_nan_and_names_that_are_no_markup():
    page = render(job_metrics(ddp(evil=EVIL)), job_metrics(ddp(evil=EVIL, rate=1e9)))
    rest = without_plotly(page)
    assert "<img" not in rest
    blocks = re.findall(r'<script type="application/json" id="[^"]*">(.*?)</script>', page, flags=re.S)
    assert len(blocks) == 3
    for text in blocks:
        json.loads(text, parse_constant=lambda word: pytest.fail(word))


def test_a_drawn_timeline_is_the_timeline():
    metrics = job_metrics(ddp(iterations=2))
    data = draw(metrics).data
    tick = data["seconds"] / (2**32 - 1)
    start, end = (column(data, name, np.uint32) * tick for name in ("start", "end"))
    kind, row = column(data, "kind", np.uint8), column(data, "row", np.uint16)
    spans = metrics.timeline.spans
    assert data["length"] == len(spans)
    assert (np.diff(row) >= 0).all()
    for rank in range(4):
        for which in range(len(SPAN_KINDS)):
            mine = np.isin(row, [i for i, one in enumerate(data["rows"]) if one["rank"] == rank]) & (
                kind == which
            )
            here = (spans.rank == rank) & (spans.kind == which)
            assert (end - start)[mine].sum() == pytest.approx(
                (spans.end_s - spans.start_s)[here].sum(), abs=1e-6
            )


def test_many_spans_are_joined_and_the_page_says_so(tmp_path):
    timeline = ddp(ranks=8, iterations=12, operations=80)
    assert len(timeline.spans) > 180_000
    metrics = job_metrics(timeline)
    write_job_report(metrics, tmp_path / "large.html")
    assert (tmp_path / "large.html").stat().st_size < 8_000_000
    few = draw(metrics, 5000)
    assert few.data["length"] <= 5000
    assert "short spans joined into blocks" in few.about
    assert "iterations" in few.about
    count = column(few.data, "count", np.uint32)
    assert count.max() > 1
    assert [one[3] for one in few.data["iterations"]].count(1) == 1


def test_of_many_ranks_the_late_one_is_drawn():
    found = draw(job_metrics(ddp(ranks=40, iterations=3, late=33)))
    ranks = {one["rank"] for one in found.data["rows"]}
    assert 33 in ranks
    assert len(ranks) == 16
    assert "16 of 40 ranks" in found.about


def test_of_many_ranks_those_on_the_path_are_drawn_however_many_pieces_each_has_of_it():
    metrics = job_metrics(without_clocks(ddp(ranks=40, iterations=3, late=34)))
    assert set(metrics.path.rank.tolist()) == {34, 39} and set(metrics.path.rank[-4:].tolist()) == {39}
    assert {34, 39} <= {one["rank"] for one in draw(metrics).data["rows"]}


def test_each_of_very_many_iterations_is_drawn_from_its_first_rank_to_its_last():
    """Ranks in turn begin half a second early, and end one late."""
    count = 20_000
    build = Build(2)
    build.span(0, "compute", 0, 4 * count)
    for number in range(count):
        for rank in (0, 1):
            first = (number + rank) % 2
            build.iteration(rank, number, 4 * number - first / 2, 4 * number + 2 + first)
    metrics = job_metrics(build.timeline())
    drawn_from_s = float(metrics.parts.start_s.min())
    assert draw(metrics).data["iterations"] == [
        [
            number,
            4 * number - 0.5 - drawn_from_s,
            4 * number + 3 - drawn_from_s,
            int(number == metrics.path.number),
        ]
        for number in range(count)
    ]
    chart = next(chart for chart in charts(metrics, None, ("", "")) if chart.id == "iterations")
    hollow = [at == "circle-open" for at in chart.drawings[""].data[0]["marker"]["symbol"]]
    assert hollow == [number in metrics.warm_up for number in range(count)]


def test_a_job_about_which_little_is_known(tmp_path):
    build = Build()
    build.span(0, "compute", 0, 1)
    page = without_plotly(render(job_metrics(build.timeline(name=""))))
    assert "What the job did" in page
    assert "there is nothing to overlap" in page
    assert "the whole trace counts as one" in page
    with pytest.raises(InputError, match="nothing was recorded"):
        write_job_report(Build().timeline(), tmp_path / "nothing.html")
    assert not (tmp_path / "nothing.html").exists()
