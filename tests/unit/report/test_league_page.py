"""Verdicts, ranks, tables and the page of a league, from cells made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hemiola.core.errors import InputError
from hemiola.report.league import LeagueScore, finding, markdown, render_league, write_league_json
from hemiola.simulator.league import League, LeagueCell, LeagueEntry, LeagueSlice

LEAGUE = League(champion="hemiola", block=5)
JOBS = 100


def entry(policy: str, factor: float, left: int = 0, **more: float) -> LeagueEntry:
    jct_s = factor * np.linspace(100.0, 300.0, JOBS)
    jct_s[:left] = np.nan
    return LeagueEntry(
        policy=policy, jct_s=jct_s, end_s=1e5, preemptions=3, exposed_fraction=0.25, cpu_s=0.5, **more
    )


def cell(trace: str, /, bound_s: float = 100.0, **factors: float | LeagueEntry) -> LeagueCell:
    entries = {}
    for name, made in factors.items():
        name = name.replace("_", "-")
        entries[name] = made if isinstance(made, LeagueEntry) else entry(name, made)
    one = LeagueSlice(seed=0, submit_s=np.arange(JOBS) * 10.0, bound_s=bound_s, left_out=2, entries=entries)
    return LeagueCell(trace=trace, fabric="flat", load="1.0", slices=(one,))


CELLS = (
    cell("won", fifo=2.0, tiresias=1.5, hemiola=1.2, srsf=1.0),
    cell("tied", fifo=2.0, tiresias=1.5, hemiola=1.5, srsf=1.0),
    cell("lost", fifo=1.0, tiresias=1.5, hemiola=1.2, srsf=0.9),
)


def test_the_champion_meets_the_best_that_goes_by_no_true_run_times() -> None:
    score = LeagueScore(LEAGUE, CELLS)
    assert [(m.cell, m.rival, m.verdict, m.rank) for m in score.matches] == [
        ("won; flat; load 1.0", "tiresias", "better", 1.0),
        ("tied; flat; load 1.0", "tiresias", "tie", 1.5),
        ("lost; flat; load 1.0", "fifo", "worse", 2.0),
    ]
    assert [m.change.mean for m in score.matches] == pytest.approx([-0.2, 0.0, 0.2])
    assert score.median_change == 0.0
    assert score.median_foresight == pytest.approx(-1 / 3)
    assert "better in 1 of 3 cells, ties in 1 and is worse in 1" in finding(score)


def test_standings_count_against_each_and_rank_who_may_be_ranked() -> None:
    found = {one.policy: one for one in LeagueScore(LEAGUE, CELLS).standings}
    assert [one.policy for one in LeagueScore(LEAGUE, CELLS).standings][-1] == "srsf"
    assert (found["fifo"].better, found["fifo"].tied, found["fifo"].worse) == (2, 0, 1)
    assert (found["tiresias"].better, found["tiresias"].tied, found["tiresias"].worse) == (2, 1, 0)
    assert found["srsf"].clairvoyant
    assert found["srsf"].rank_mean is None
    assert found["hemiola"].rank_mean == pytest.approx(1.5)
    assert found["hemiola"].over_bound == pytest.approx(1.4)  # twice the bound at a factor of 1


def test_who_leaves_jobs_is_not_the_rival_to_beat() -> None:
    """It takes no time at all for those that it ends."""
    picky = cell("picky", fifo=2.0, gandiva=entry("gandiva", 0.1, left=60), hemiola=1.0)
    score = LeagueScore(LEAGUE, [picky])
    assert score.matches[0].rival == "fifo"
    assert next(one for one in score.standings if one.policy == "gandiva").unfinished == 60
    assert picky.jct_s("gandiva")[0].mean() > 0.5 * 1e5


def test_seeds_that_saw_the_same_arrivals_count_once() -> None:
    one = cell("short", fifo=2.0, hemiola=1.9)
    three = LeagueCell(trace="short", fabric="flat", load="1.0", slices=one.slices * 3)
    alone, again = (LeagueScore(LEAGUE, [some]).matches[0].change for some in (one, three))
    assert again.blocks == alone.blocks == 20
    assert (again.mean, again.low) == pytest.approx((alone.mean, alone.low))


def test_what_a_run_reports_of_its_certificate_is_told() -> None:
    sure = cell("sure", fifo=2.0, gandiva=entry("gandiva", 3.0, utility=75.0, certificate=100.0), hemiola=1.0)
    found = {one.policy: one for one in LeagueScore(LEAGUE, [sure]).standings}
    assert found["gandiva"].over_certificate == pytest.approx(0.25)
    assert found["fifo"].over_certificate is None


def test_files_say_the_same(tmp_path: Path) -> None:
    score = LeagueScore(LEAGUE, CELLS)
    write_league_json(score, tmp_path / "l.json")
    told = json.loads((tmp_path / "l.json").read_text())
    assert told["schema"] == "hemiola.league/1"
    assert told["verdicts"] == {"better": 1, "tie": 1, "worse": 1}
    assert told["cells"][0]["match"]["rival"] == "tiresias"
    assert told["cells"][0]["policies"]["fifo"]["jct_mean_s"] == pytest.approx(400.0)
    assert told["cells"][0]["jobs_left_out"] == 2
    text = markdown(score)
    assert "| won; flat; load 1.0 | tiresias | −20.0 % (−20.0 % to −20.0 %) | better | 1 |" in text


def test_the_page_escapes_names_and_draws_each_cell() -> None:
    page = render_league(LeagueScore(LEAGUE, [*CELLS, cell("<b>", fifo=2.0, hemiola=1.0)]))
    assert page.count("<circle") == 4
    assert "<b>;" not in page
    assert "&lt;b&gt;; flat" in page
    assert "<script" not in page


def test_a_league_without_rivals_or_cells_is_refused() -> None:
    with pytest.raises(InputError, match="no rival"):
        LeagueScore(LEAGUE, [cell("alone", hemiola=1.0, srsf=1.0)])
    with pytest.raises(InputError, match="no cell"):
        LeagueScore(LEAGUE, [])
