"""Other policies on the journal's jobs: hand-computed figures, a process of its own, and never too often."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs hemiola[serve]")
from web_helpers import scene, wait_until

from hemiola.core.decisions import Placement
from hemiola.core.errors import InputError, PolicyError
from hemiola.core.events import Timer
from hemiola.core.job import batch_job
from hemiola.core.topology import Topology
from hemiola.live.journal import Journal, JournaledJob, Opening
from hemiola.live.web.shadow import Shadow, compare
from hemiola.trace.topologies.native import topology_text

CLUSTER = Topology.flat(hosts=1, gpus_per_host=8)


def ended(name: str, gpus: int, submitted_s: float, started_s: float, ended_s: float) -> JournaledJob:
    return JournaledJob(
        uuid=name, engine_id=name, engine_submit_s=submitted_s, user="ada", status="ended", since_s=ended_s, submitted_s=submitted_s,
        job=batch_job(id=name, submit_s=submitted_s, gpus=gpus, duration_s=1000.0), placement=Placement((0,), ((1 << gpus) - 1,)),
        served_s=ended_s - started_s, queued_s=started_s - submitted_s, first_started_s=started_s, ended_s=ended_s, outcome="finished",
    )  # fmt: skip


def filled(where: Path, origin_s: float) -> None:
    """A whole host for 100 s; one that waits for it, was started 20 s late, and runs 50 s; a short one behind that."""
    with Journal.open(where) as journal:
        epoch = journal.lead("test", origin_s, 10.0)
        assert epoch is not None
        opening = Opening(
            policy="fifo", engine="test", mode="enforce", topology=topology_text(CLUSTER), version="0.1.0"
        )
        run = journal.begin_run(epoch, opening, origin_s)
        t = origin_s
        records = [
            ended("a", 8, t, t, t + 100),
            ended("b", 8, t + 10, t + 120, t + 170),
            ended("c", 8, t + 20, t + 180, t + 190),
        ]
        journal.record_events(run, 1, [Timer(t, "")], records)


def test_figures_by_hand(tmp_path: Path):
    """FIFO: a 0-100, b 100-150, c 150-160. Shortest first: c runs before b."""
    origin_s = 1.7e9
    filled(tmp_path / "j.db", origin_s)
    with Journal.open(tmp_path / "j.db", read_only=True) as journal:
        figures, notes = compare(journal, origin_s - 1, origin_s + 1000, ["fifo", "sjf"])
    really, fifo, sjf = figures
    assert [found.policy for found in figures] == ["", "fifo", "sjf"] and {
        found.jobs for found in figures
    } == {3}
    assert really.jct_mean_s == pytest.approx((100 + 160 + 170) / 3) and really.makespan_s == pytest.approx(
        190
    )
    assert really.queueing_mean_s == pytest.approx((0 + 110 + 160) / 3)
    assert really.gpu_utilization == pytest.approx(160 / 190)
    assert fifo.jct_mean_s == pytest.approx((100 + 140 + 140) / 3) and fifo.makespan_s == pytest.approx(160)
    assert fifo.gpu_utilization == pytest.approx(1.0) and fifo.jct_p50_s == pytest.approx(140)
    assert sjf.jct_mean_s == pytest.approx((100 + 150 + 90) / 3)
    assert any("empty cluster" in note for note in notes)


def test_it_is_made_by_a_process_of_its_own_and_kept(tmp_path: Path):
    now_s = time.time()
    filled(tmp_path / "journal.db", now_s - 1000)
    shadow = Shadow(tmp_path / "journal.db", ("fifo",), every_s=3600, window_s=7200)
    with scene(tmp_path, cluster=CLUSTER, shadow=shadow) as here:
        first = here.get("shadow")
        assert first["state"] == "running" and first["figures"] == []
        assert here.get("status")["leads"] is True, "the loop does not wait"
        wait_until(lambda: here.get("shadow")["state"] != "running", 60)
        found = here.get("shadow")
        assert found["state"] == "ready", found["problem"]
        assert [each["policy"] for each in found["figures"]] == ["", "fifo"]
        assert found["figures"][1]["jct_mean_s"] == pytest.approx(380 / 3)
        assert here.get("shadow")["made_s"] == found["made_s"], "it is not made anew so soon"


def test_a_policy_of_ones_own_is_found_as_the_service_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now_s = time.time()
    filled(tmp_path / "journal.db", now_s - 1000)
    (tmp_path / "mine_alone.py").write_text(
        "from hemiola.sched.policies.fifo import Fifo\n\n\nclass Mine(Fifo):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    shadow = Shadow(tmp_path / "journal.db", ("mine_alone:Mine",), every_s=3600, window_s=7200)
    with scene(tmp_path, cluster=CLUSTER, shadow=shadow) as here:
        here.get("shadow")
        wait_until(lambda: here.get("shadow")["state"] != "running", 60)
        assert here.get("shadow")["state"] == "ready", here.get("shadow")["problem"]


def test_nothing_to_compare_is_said(tmp_path: Path):
    with scene(tmp_path, shadow=Shadow(tmp_path / "journal.db", ("fifo",))) as here:
        here.get("shadow")
        wait_until(lambda: here.get("shadow")["state"] != "running", 60)
        found = here.get("shadow")
        assert found["state"] == "failed" and "no job" in found["problem"]


def test_a_process_that_runs_ends_with_the_server(tmp_path: Path):
    shadow = Shadow(tmp_path / "journal.db", ("fifo",))
    with scene(tmp_path, shadow=shadow) as here:
        here.get("shadow")
        process = shadow._process
        assert process is not None
    assert process.poll() is not None
    assert shadow.look().state in ("running", "failed") and shadow._process in (None, process), (
        "none is begun after the end"
    )


def test_unknown_policies_are_refused_at_once(tmp_path: Path):
    with pytest.raises(PolicyError):
        Shadow(tmp_path / "j.db", ("nonsense",))
    with pytest.raises(InputError, match="no policy was named"):
        Shadow(tmp_path / "j.db", ())
