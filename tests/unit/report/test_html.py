"""The page: whole, without network, safe against names, and drawn by a real browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import msgspec
import pytest
from pages import CHROMIUM, browse, without_plotly
from report_build import cluster, comparison

from hemiola.core.errors import InputError
from hemiola.core.result import Comparison
from hemiola.report.html import charts, render, write_report
from hemiola.report.metrics import Figures


def hostile(found: Comparison) -> Comparison:
    """The same with names that try to be markup."""
    evil = "</script><img src=x onerror=alert(1)>"
    runs = tuple(
        msgspec.structs.replace(
            run,
            policy=f"{run.policy}{evil}",
            records=tuple(msgspec.structs.replace(r, id=f"{r.id}{evil}", model=evil) for r in run.records),
        )
        for run in found.runs
    )
    return replace(found, runs=runs, baseline=f"fifo{evil}", workload_name=evil, notes=(evil,))


def test_the_page_needs_no_network_and_is_no_larger_than_it_must(tmp_path):
    path = tmp_path / "report.html"
    write_report(comparison(seeds=(0, 1)), path)
    page = path.read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", without_plotly(page))
    assert "@import" not in without_plotly(page)
    assert page.count("plotly.js v") == 1
    assert len(without_plotly(page)) < 300_000


def test_charts_are_json_without_nan():
    page = render(comparison(stop_s=1001.0))
    text = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, flags=re.S)[1]
    found = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert {"bar-jct_mean_s", "completion", "gpu-seconds"} <= set(found)


def test_data_stays_small_for_a_large_run():
    found = comparison(count=3000, topology=cluster(4, 8, 8), load_s=40, policies=("fifo", "sjf"))
    assert len(without_plotly(render(found))) < 5_000_000


def test_names_are_never_markup():
    page = without_plotly(render(hostile(comparison())))
    assert "<img" not in page
    assert page.count("</script>") == 2


def test_interrupted_and_unfinished_are_said():
    page = without_plotly(render(comparison(stop_s=9000.0)))
    assert page.count('<span class="warning">interrupted</span>') == 3
    assert "INTERRUPTED after 2.22 h" in page


def test_the_finding_owns_up_to_chance():
    assert "One seed: how certain this is cannot be said." in render(comparison())
    assert "this could be chance" in render(comparison(seeds=(0, 1)))


def test_a_comparison_that_was_cut_says_which_seeds_it_compares():
    found = comparison(seeds=(0, 1), policies=("fifo", "sjf"), stop_s=9000.0)
    page = without_plotly(render(replace(found, runs=found.runs[:3])))
    assert "Figures are means over seed 0." in page and " · 1 seed<" in page
    page = without_plotly(render(replace(found, runs=(found.runs[0], found.runs[3]))))
    assert "which is best cannot be said" in page and "each policy's own seeds" in page
    assert " · unlike seeds<" in page and "Lowest mean" not in page


def test_no_winner_is_named_where_a_run_that_counts_was_cut():
    found = comparison(policies=("fifo", "sjf"))
    cut = msgspec.structs.replace(found.runs[1], interrupted=True)
    page = without_plotly(render(replace(found, runs=(found.runs[0], cut))))
    assert "which is best cannot be said" in page and "Lowest mean" not in page


def test_no_run_no_page():
    with pytest.raises(InputError, match="no run"):
        render(Comparison(cluster(), (), "fifo"))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no browser: install chromium")
@pytest.mark.parametrize(("scheme", "ink"), [(0, "231, 234, 240"), (1, "27, 31, 39")], ids=["dark", "light"])
def test_a_browser_draws_every_chart(tmp_path, scheme, ink):
    found = hostile(comparison(seeds=(0, 1)))
    write_report(found, tmp_path / "report.html")
    elements, complaints = browse(tmp_path / "report.html", tmp_path / "profile", scheme)
    assert complaints == []
    assert "data-errors" not in elements
    ids = [chart.id for chart in charts(Figures(found))]
    assert f'data-drawn="{len(ids)}"' in elements
    cards = dict(re.findall(r'data-chart="([^"]+)"(.*?)</section>', elements, flags=re.S))
    assert list(cards) == ids
    for name, card in cards.items():
        assert "main-svg" in card, name
        marks = r'class="(point|trace scatter|trace bars|hm)|<image'
        assert re.search(marks, card), f"{name} is empty"
        assert f"fill: rgb({ink})" in card or name.startswith("bar-") or name == "links", name
