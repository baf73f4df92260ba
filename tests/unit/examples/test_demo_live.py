"""The second demo: its jobs and figures, and its page in a browser."""

from __future__ import annotations

import os
import sys

import pytest
from pages import CHROMIUM, browse
from repository import ROOT

from hemiola.core.errors import HemiolaError


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("benchmarks", "examples"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


def ran(name: str, hosts: str, start_s: float, end_s: float, iteration_s: float = 0.0):
    from live_demo.measured import Ran

    took = [iteration_s] * 4 if iteration_s else []
    return Ran(name, tuple(hosts.split()), 1.0, start_s, end_s, took, [one / 2 for one in took])


def two_runs():
    """A pair across racks of two, and the same pair within one."""
    from live_demo.measured import Run

    uplinks = [(100.0 + 0.5 * step, (1000 * step, 0, 500 * step)) for step in range(9)]
    far = [ran("j00", "h0", 1.5, 5.0), ran("j01", "h1 h2", 2.0, 12.0, 0.4)]
    near = [ran("j00", "h0", 1.5, 5.0), ran("j01", "h2 h3", 3.0, 9.0, 0.2)]
    return [Run("Slurm", far, 2, 100.0, uplinks), Run("Dally <b>", near, 2, 100.0, uplinks)]


def shown():
    from live_demo.measured import Alone
    from live_demo.network import Network
    from live_demo.page import Shown

    return Shown(Network(6, 3), two_runs(), Alone(0.2, 0.1, 0.4, 0.35), 1, "a machine")


# ---- the stream


def test_a_seed_gives_the_same_jobs_again_and_another_seed_others():
    from live_demo.stream import Mix, stream

    assert stream(3, Mix()) == stream(3, Mix())
    assert stream(3, Mix()) != stream(4, Mix())


def test_the_nodes_are_full_before_anything_else_arrives():
    from live_demo.stream import Mix, stream

    for seed in range(20):
        asks = stream(seed, Mix(jobs=60, nodes=8, pairs=0.5))
        assert {ask.hosts for ask in asks[:8]} == {1}
        assert 15 <= sum(ask.hosts == 2 for ask in asks) <= 37
        assert [ask.submit_s for ask in asks] == sorted(ask.submit_s for ask in asks)
        assert all(Mix.shortest_s <= ask.work_s <= Mix.longest_s for ask in asks)
        assert all((ask.iterations > 0) == (ask.hosts == 2) for ask in asks)
        assert len({ask.name for ask in asks}) == 60


def test_a_higher_load_has_jobs_arrive_sooner():
    from live_demo.stream import Mix, stream

    calm, busy = stream(1, Mix(load=0.5)), stream(1, Mix(load=2.0))
    assert calm[-1].submit_s - calm[8].submit_s == pytest.approx(
        4 * (busy[-1].submit_s - busy[8].submit_s), rel=0.01
    )


# ---- figures


def test_figures_of_a_run():
    from live_demo.measured import figures

    far, near = map(figures, two_runs())
    assert far.jct_mean_s == pytest.approx((4 + 11) / 2)
    assert far.queued_mean_s == pytest.approx((0.5 + 1.0) / 2)
    assert (far.makespan_s, far.pairs, far.crossed) == (12.0, 1, 1)
    assert (near.crossed, near.pair_iteration_s) == (0, pytest.approx(0.2))
    assert far.communicated == pytest.approx(0.5)
    assert far.uplink_bytes == 8 * 1500


def test_a_job_crosses_needlessly_where_a_rack_had_room():
    from live_demo.measured import Run, figures

    busy = [ran("j00", "h0", 0.0, 30.0), ran("j01", "h2", 0.0, 30.0)]
    crosses, later = ran("j02", "h1 h3", 10.0, 20.0, 0.4), ran("j03", "h4 h5", 25.0, 30.0, 0.2)
    for before, needless in (((0.0, 6.0), 1), ((0.0, 9.0), 0), ((10.5, 12.0), 0)):
        run = Run("Slurm", [*busy, crosses, later, ran("j04", "h5", *before)], 2, 0.0, [])
        assert (figures(run).crossed, figures(run).needless) == (1, needless)


def test_counters_of_uplinks_are_those_of_sent_bytes():
    from live_demo.links import uplink_bytes

    head = "Inter-|   Receive  |  Transmit\n face |bytes packets |bytes packets\n"
    rows = "    lo: 1 2 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n   up0: 11 2 0 0 0 0 0 0 77 9 0 0 0 0 0 0\n"
    assert uplink_bytes(
        head + rows + "   up1:88 2 0 0 0 0 0 0 99 9 0 0 0 0 0 0\n down0: 5 " + "5 " * 15, 2
    ) == (77, 99)


def test_rates_of_uplinks():
    from live_demo.page import rates

    x, y = rates(two_runs()[0], 0)
    assert x == [0.0, 2.0]
    assert y == pytest.approx([4000 * 8e-6 / 2] * 2, abs=0.01)


def test_what_the_benchmark_says_of_its_runs():
    import live_placement

    from live_demo.compare import Compared

    compared = {seed: Compared(shown().alone, two_runs()) for seed in (1, 2)}
    assert live_placement.summary(compared)[2] == (
        "| Dally <b> | **-20% ± 0 points** | -20%, -20% | -25% ± 0 points |"
    )
    assert live_placement.needless(compared).endswith(
        "2 jobs that crossed racks under Slurm, 0 started while a rack had room."
    )
    row = live_placement.rows(2, compared[2])[1]
    assert row.startswith("| 2 | Dally <b> | 6.0 s (-20%)")
    assert "| 0 of 1 |" in row


def test_the_simulator_runs_the_same_stream():
    import live_placement

    from live_demo.network import Network

    found = [live_placement.simulated(Network(), shown().alone, 26, seed) for seed in (1, 1, 3)]
    assert found[0] == found[1] < -0.1
    assert -0.1 < found[2] < 0.1


# ---- before anything starts


def test_what_is_missing_is_named_with_how_to_get_it(monkeypatch):
    import demo_live

    monkeypatch.setattr(demo_live, "find_spec", lambda name: None if name in ("torch", "alembic") else 1)
    with pytest.raises(HemiolaError) as caught:
        demo_live.check_packages()
    assert "torch, alembic" in caught.value.what
    assert caught.value.remedy == "pip install 'hemiola[torch,serve]'"


def test_an_ordinary_user_is_told_at_once(monkeypatch, capsys, tmp_path):
    import demo_live

    monkeypatch.setattr(demo_live, "check_programs", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["demo_live.py", "--out", str(tmp_path / "page.html")])
    assert demo_live.main() == 1
    assert "root" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_stream_without_jobs_of_two_nodes_is_refused_before_anything_starts(monkeypatch, capsys, tmp_path):
    import demo_live

    monkeypatch.setattr(demo_live, "check_machine", lambda: None)
    monkeypatch.setattr(demo_live, "check_packages", lambda: None)
    for jobs in ("8", "0", "-1"):
        monkeypatch.setattr(
            sys, "argv", ["demo_live.py", "--jobs", jobs, "--out", str(tmp_path / "page.html")]
        )
        assert demo_live.main() == 1
        assert f"none of {jobs} jobs is of two nodes" in capsys.readouterr().out


# ---- the page


def test_the_page_says_what_came_out():
    from live_demo.page import page

    text = page(shown())
    assert "Dally &lt;b&gt;: mean completion 6.0 s, -20% against Slurm&#x27;s 7.5 s" in text
    assert '"name":"two nodes across racks"' in text
    assert "Dally <b>" not in text.replace('"Dally \\u003cb>"', "")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no browser: install chromium")
def test_a_browser_draws_the_page(tmp_path):
    from live_demo.page import charts, page

    (tmp_path / "page.html").write_text(page(shown()))
    elements, complaints = browse(tmp_path / "page.html", tmp_path / "profile", 1)
    assert complaints == []
    assert "data-errors" not in elements
    assert f'data-drawn="{len(charts(shown()))}"' in elements


# ---- all of it
