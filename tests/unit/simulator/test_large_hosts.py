"""Hosts with more GPUs than NumPy's integers have bits: simulated, sent, drawn and told like smaller ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from replays import check_run, job

from hemiola.core.result import Comparison
from hemiola.core.timeline import queue_series
from hemiola.core.topology import MAX_GPUS_PER_HOST, Topology, equal_hosts
from hemiola.report.html import write_report
from hemiola.report.story import explain
from hemiola.simulator.rules import semantics_by_name
from hemiola.simulator.simulate import Recording, simulate
from hemiola.simulator.sweep.answers import answer_of
from hemiola.trace.decisions import write_decisions
from hemiola.trace.perfetto import write_timeline

ALL = Recording(timeline=True, decisions=True, traffic=True)


def compared(
    gpus_per_host: int, policies: tuple[str, ...] = ("fifo", "srtf"), rules: str = "event-driven"
) -> Comparison:
    """A job on one whole host, one on two, and one on four GPUs."""
    topology = Topology("flat", equal_hosts(2, gpus_per_host)).check()
    jobs = [job("one", 0, gpus_per_host, 10), job("both", 1, 2 * gpus_per_host, 5), job("few", 2, 4, 3)]
    return simulate(jobs, topology, policies, semantics=semantics_by_name(rules), recording=ALL)


@pytest.mark.parametrize("gpus", [64, 65, MAX_GPUS_PER_HOST])
def test_a_run_holds_every_gpu_of_its_hosts(gpus: int) -> None:
    found = compared(gpus)
    for run in found.runs:
        check_run(run, found.workloads[0], found.topology)
        whole = [
            int(mask)
            for mask, index in zip(run.timeline.gpu_mask, run.timeline.job, strict=True)
            if index < 2
        ]
        assert set(whole) == {(1 << gpus) - 1}
        assert queue_series(run).busy.max() == 2 * gpus


def test_large_hosts_change_no_time_of_jobs_on_whole_ones() -> None:
    small, large = (compared(gpus, ("fifo",)).runs[0] for gpus in (8, MAX_GPUS_PER_HOST))
    for column in ("job", "host", "start_s", "end_s", "resume_s", "tier", "outcome"):
        assert np.array_equal(getattr(small.timeline, column), getattr(large.timeline, column)), column


def test_masks_of_usual_hosts_stay_integers_of_numpy() -> None:
    line = compared(64).runs[0].timeline
    assert line.gpu_mask.dtype == np.uint64


@pytest.mark.parametrize("gpus", [8, MAX_GPUS_PER_HOST])
def test_a_run_that_was_sent_is_the_same(gpus: int) -> None:
    run = compared(gpus).runs[0]
    sent = answer_of(run, ()).read().run
    assert sent.timeline.gpu_mask.tolist() == run.timeline.gpu_mask.tolist()
    assert sent.decisions == run.decisions


def test_a_peer_s_replay_ends_too() -> None:
    run = compared(MAX_GPUS_PER_HOST, ("fifo",), "tiresias-sim").runs[0]
    assert max(run.timeline.gpu_mask.tolist()).bit_count() == MAX_GPUS_PER_HOST


def test_the_timeline_file_has_every_gpu(tmp_path: Path) -> None:
    write_timeline(compared(MAX_GPUS_PER_HOST), tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    held = {event["tid"] for event in events if event["ph"] == "X" and event["name"] == "one"}
    assert held == set(range(1, MAX_GPUS_PER_HOST + 1))


def test_report_and_decisions_can_be_written(tmp_path: Path) -> None:
    found = compared(MAX_GPUS_PER_HOST)
    write_report(found, tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size > 0
    write_decisions(found, tmp_path / "d.jsonl")
    assert "GPU 0-71" in explain(tmp_path / "d.jsonl", "one", policy="fifo")
