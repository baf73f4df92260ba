"""The timeline file: valid, and exactly what the GPUs did."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from replays import cluster, job
from report_build import comparison

from hemiola.simulator.simulate import Recording, simulate
from hemiola.trace.perfetto import _spans, write_timeline


@pytest.fixture
def events(tmp_path):
    found = comparison(policies=("fifo", "srtf"), stop_s=20000.0)
    write_timeline(found, tmp_path / "t.json")
    value = json.loads((tmp_path / "t.json").read_text())
    assert value["otherData"]["schema"] == "hemiola.timeline/1"
    return found, value["traceEvents"]


def test_spans_are_all_gpu_seconds(events):
    found, all_events = events
    held = sum(e["dur"] for e in all_events if e["ph"] == "X" and e["cat"] == "job") / 1e6
    assert held == pytest.approx(sum(r.run_s * r.gpus for run in found.runs for r in run.records))
    opening = sum(e["dur"] for e in all_events if e["ph"] == "X" and e["cat"] == "overhead") / 1e6
    assert opening == pytest.approx(sum(r.checkpoint_s * r.gpus for run in found.runs for r in run.records))
    assert opening > 0


def test_a_span_says_how_many_gpus_it_holds():
    """Of an elastic job that is not what it asked for."""
    jobs = [
        job("a", 0.0, 16, 2000.0, gpus_min=4, gpus_max=16),
        job("b", 1000.0, 16, 2000.0, gpus_min=4, gpus_max=16),
    ]
    found = simulate(jobs, cluster([8, 8]), ["elastic:settle_s=0"], recording=Recording(timeline=True))
    (run,) = found.runs
    threads = Counter()
    for event in _spans(run, run.timeline, found.topology, 0):
        if event["cat"] == "job":
            threads[event["name"], event["ts"], event["args"]["gpus"]] += 1
    assert {held for _, _, held in threads} != {16}
    assert all(count == held for (_, _, held), count in threads.items())


def test_no_gpu_does_two_jobs_at_once(events):
    tracks = defaultdict(list)
    for event in events[1]:
        if event["ph"] == "X" and event["cat"] == "job":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        spans.sort()
        assert all(a[1] <= b[0] + 0.01 for a, b in pairwise(spans))


def test_processes_and_threads_are_named(events):
    found, all_events = events
    names = {e["pid"]: e["args"]["name"] for e in all_events if e["name"] == "process_name"}
    assert len(names) == len(found.runs) * (len(found.topology.hosts) + 1)
    assert names[1] == "fifo seed 0 (interrupted): cluster"
    assert names[2] == "fifo seed 0 (interrupted): n0"
    threads = {(e["pid"], e["tid"]) for e in all_events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in all_events if e["ph"] == "X"} <= threads


def test_counters_never_exceed_the_cluster(events):
    busy = [e["args"]["value"] for e in events[1] if e["name"] == "GPUs busy"]
    assert 0 <= min(busy) <= max(busy) <= events[0].topology.gpus


def test_a_name_in_gz_is_compressed(tmp_path):
    found = comparison(count=5)
    write_timeline(found, tmp_path / "t.json")
    write_timeline(found, tmp_path / "t.json.gz")
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == (tmp_path / "t.json").read_bytes()
