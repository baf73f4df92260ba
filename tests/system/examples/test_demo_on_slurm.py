"""The second demo on a real Slurm, with a tiny stream."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from repository import ROOT

from hemiola.lab.slurm import config


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("benchmarks", "examples"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


@pytest.mark.slow
def test_a_tiny_stream_on_a_real_slurm_under_both(tmp_path):
    """Three nodes busy here and there: a two-node job that must have one rack gets one from Hemiola."""
    if any(config.program(name) is None for name in config.NEEDED):
        pytest.skip(f"needs Slurm: apt-get install {' '.join(config.PACKAGES)}")
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for name in ("torch", "pyroute2", "sqlalchemy", "plotly"):
        pytest.importorskip(name, reason=f"needs {name}")
    from live_demo.arms import ARMS
    from live_demo.compare import compare
    from live_demo.measured import figures
    from live_demo.network import Network
    from live_demo.page import Shown, page
    from live_demo.stream import Ask

    singles = [Ask(f"j{number:02d}", 0.1 * number, 1, 2.0 if number == 0 else 6.0) for number in range(5)]
    asks = [*singles, Ask("j05", 1.0, 2, 1.0)]
    words = ("--comment=hemiola model=live-demo required=rack",)
    arms = [replace(ARMS[name], options=words) for name in ("slurm", "dally")]
    told = []
    network = Network(nodes=6, racks=3)
    compared = compare(network, asks, arms, folder=tmp_path, said=lambda *now: told.append(now))
    for run in compared.runs:
        assert [job.name for job in run.jobs] == [ask.name for ask in asks]
        assert [len(job.hosts) for job in run.jobs] == [ask.hosts for ask in asks]
        assert all(job.submit_s <= job.start_s + 0.5 and job.start_s < job.end_s for job in run.jobs)
        assert len(run.jobs[-1].iteration_s) == asks[-1].iterations
        assert run.jobs[-1].end_s - run.jobs[-1].start_s >= sum(run.jobs[-1].iteration_s)
    hemiola = compared.runs[1]
    assert hemiola.racks(hemiola.jobs[-1]) == 1
    assert compared.alone.near_s < compared.alone.far_s
    assert compared.alone.near_s < compared.alone.forecast_s
    profile = json.loads((tmp_path / "profiles.json").read_text())["profiles"][0]
    assert profile["name"] == "demo/live-demo"
    assert figures(compared.runs[0]).uplink_bytes >= 0
    assert {now[0] for now in told} == {"one job alone", *(arm.name for arm in arms)}
    assert max(now[3] for now in told) == len(asks)
    assert "Slurm" in page(Shown(network, compared.runs, compared.alone, 1, "a machine"))
