"""The page of a job, drawn by a real browser."""

from __future__ import annotations

import re

import pytest
from job_build import Build
from pages import CHROMIUM, browse
from report_sample import ddp

from hemiola.analysis.job.metrics import job_metrics
from hemiola.report.job import write_job_report
from hemiola.report.job.lanes import drawn, path_iteration_s
from hemiola.report.job.page import charts

EVIL = "</script><img src=x onerror=alert(1)>"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no browser: install chromium")
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_a_browser_draws_everything(tmp_path, scheme):
    one, other = job_metrics(ddp(evil=EVIL)), job_metrics(ddp(evil=EVIL, rate=1e9))
    write_job_report(one, tmp_path / "job.html", other=other)
    elements, complaints = browse(tmp_path / "job.html", tmp_path / "profile", scheme)
    assert complaints == []
    assert "data-errors" not in elements
    ids = [chart.id for chart in charts(one, other, ("a", "b"))]
    assert f'data-drawn="{len(ids)}"' in elements
    for metrics in (one, other):
        assert f'data-drawn="{drawn(metrics, path_iteration_s(metrics), 80_000).data["length"]}"' in elements
    cards = dict(re.findall(r'data-chart="([^"]+)"(.*?)</section>', elements, flags=re.S))
    assert set(cards) == set(ids)
    for name, card in cards.items():
        assert re.search(r'class="(point|trace scatter|trace bars)', card), f"{name} is empty"


POINTS_AT_THE_FIRST_ROW = """<script>
const canvas = document.querySelector(".viewer canvas"), at = canvas.getBoundingClientRect();
canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: at.left + at.width / 2, clientY: at.top + 60 }));
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no browser: install chromium")
def test_a_browser_tells_a_whole_number_of_seconds_as_one(tmp_path):
    build = Build()
    build.span(0, "compute", 0, 1200, "a long step")
    write_job_report(build.timeline(), tmp_path / "job.html")
    page = (tmp_path / "job.html").read_text()
    (tmp_path / "job.html").write_text(page.replace("</body>", POINTS_AT_THE_FIRST_ROW))
    elements, complaints = browse(tmp_path / "job.html", tmp_path / "profile", 1)
    assert complaints == []
    assert "<b>a long step</b><span>compute for 1200 s, from 0 s</span>" in elements
