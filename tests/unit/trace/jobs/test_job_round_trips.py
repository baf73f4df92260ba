"""What is written is read back equal, in every format that Hemiola writes."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from job_samples import timelines, two_ranks

from hemiola.core.errors import InputError
from hemiola.core.job_timeline import Rank
from hemiola.trace.jobs import json_stream
from hemiola.trace.jobs.chakra.from_chakra import from_chakra
from hemiola.trace.jobs.chakra.nodes import read_et, write_et
from hemiola.trace.jobs.chakra.to_chakra import to_chakra, write_chakra
from hemiola.trace.jobs.perfetto import read_perfetto, write_perfetto
from hemiola.trace.jobs.read import read_job
from hemiola.trace.jobs.timeline_json import (
    read_timeline,
    timeline_from_json,
    timeline_to_json,
    write_timeline,
)


@given(timelines())
@settings(max_examples=40)
def test_json(timeline):
    assert timeline.difference(timeline_from_json(timeline_to_json(timeline), "x")) == ""


@given(timelines())
@settings(max_examples=40)
def test_perfetto(tmp_path_factory, timeline):
    path = tmp_path_factory.getbasetemp() / "job.json"
    write_perfetto(timeline, path)
    assert timeline.difference(read_perfetto(path)) == ""


@pytest.mark.parametrize("name", ["job.json", "job.json.gz"])
def test_perfetto_of_many_dependencies(tmp_path, monkeypatch, name):
    """They stand in one member, which may be larger than any event."""
    monkeypatch.setattr(json_stream, "_BLOCK", 1 << 10)
    monkeypatch.setattr(json_stream, "_LARGEST", 1 << 12)
    timeline = two_ranks()
    pairs = np.array([(before, after) for before in range(6) for after in range(6, 12)] * 28, dtype=np.int64)
    timeline = replace(timeline, dependencies=pairs).check()
    write_perfetto(timeline, tmp_path / name)
    assert timeline.difference(read_perfetto(tmp_path / name)) == ""


@given(timelines())
@settings(max_examples=40)
def test_chakra(tmp_path_factory, timeline):
    traces = to_chakra(timeline)
    path, read = tmp_path_factory.getbasetemp() / "job.et", []
    for trace in traces:
        write_et(trace, path)
        read.append(read_et(path))
    assert tuple(read) == traces
    assert timeline.difference(from_chakra(read[::-1])) == ""  # their order says nothing


@pytest.mark.parametrize("name", ["job.json", "job.json.gz"])
@pytest.mark.parametrize("write", [write_timeline, write_perfetto])
def test_files_are_recognised_and_compressed_by_suffix(tmp_path, write, name):
    write(two_ranks(), tmp_path / name)
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    found = read_job([tmp_path / name])
    assert replace(found, source="a test").difference(two_ranks()) == ""
    assert found.source.startswith("a test; read as Hemiola's")


def test_a_renamed_compressed_file_is_still_read(tmp_path):
    write_timeline(two_ranks(), tmp_path / "job.json.gz")
    (tmp_path / "job.json.gz").rename(tmp_path / "job.json")
    assert two_ranks().difference(read_timeline(tmp_path / "job.json")) == ""


def test_the_json_is_what_the_reference_says(tmp_path):
    write_timeline(two_ranks(), tmp_path / "job.json")
    value = json.loads((tmp_path / "job.json").read_text())
    assert value["schema"] == "hemiola.job-timeline/1"
    assert value["groups"] == [[0, 1]]
    assert value["transfers"]["needed_s"] == [6.0, 6.0]
    assert value["dependencies"] == {"before": [0, 1, 3, 6, 7, 9, 1], "after": [1, 3, 5, 7, 9, 11, 9]}
    assert value["attributes"] == {"span": [2, 8], "values": [{"why": ["a", 1]}] * 2}


def test_what_json_cannot_keep_is_refused_before_anything_is_written(tmp_path):
    for value in (math.nan, (1, 2), b"bytes", {1: 2}, math.inf):
        for write in (write_timeline, write_perfetto):
            with pytest.raises(InputError, match="facts cannot be kept"):
                write(replace(two_ranks(), facts={"key": value}), tmp_path / "job.json")
    assert not list(tmp_path.iterdir())


def test_an_unknown_clock_survives(tmp_path):
    timeline = two_ranks()
    ranks = (timeline.ranks[0], Rank(1, "b", "cpu", 0.0, math.inf))
    write_timeline(replace(timeline, ranks=ranks), tmp_path / "job.json")
    assert read_timeline(tmp_path / "job.json").ranks == ranks


def test_perfetto_shows_lanes_arrows_and_bytes_in_flight(tmp_path):
    write_perfetto(two_ranks(), tmp_path / "job.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "job.json.gz").read_bytes()))["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "s", "f", "C"}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == [
        "gloo",
        "gloo",
        "iterations",
        "iterations",
        "main thread",
        "main thread",
    ]
    arrows = [
        (e["ph"], names[e["pid"], e["tid"]], e["ts"]) for e in events if e["ph"] in "sf" and e["pid"] == 0
    ]
    assert arrows == [
        ("s", "main thread", 4e6), ("f", "gloo", 5e6), ("s", "gloo", 8e6), ("f", "main thread", 8.5e6),
    ]  # fmt: skip
    flying = [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["pid"] == 1]
    assert flying == [(5e6, 4e6), (8e6, 0.0)]


def test_perfetto_threads_never_hold_spans_that_cross(tmp_path):
    """The viewer drops a slice that begins inside another one of its thread and ends after it."""

    @given(timelines())
    @settings(max_examples=40)
    def check(timeline):
        write_perfetto(timeline, tmp_path / "job.json")
        slices = [
            e
            for e in json.loads((tmp_path / "job.json").read_text())["traceEvents"]
            if "row" in e.get("args", ())
        ]
        for one in slices:
            for other in slices:
                if (one["pid"], one["tid"]) == (other["pid"], other["tid"]):
                    a, b, c, d = (e["args"][k] for e in (one, other) for k in ("start_s", "end_s"))
                    assert not a < c < b < d

    check()


def test_chakra_has_communication_nodes_with_dependencies_on_both_sides():
    trace = to_chakra(two_ranks())[0]
    by_name = {node.name: node for node in trace.nodes}
    sent = by_name["all-reduce"]
    assert Counter(node.type for node in trace.nodes) == {4: 5, 7: 1}
    assert (sent.get("comm_type"), sent.get("comm_size"), sent.get("pg_name")) == (0, 4_000_000, "0")
    assert sent.get("involved_dim") == (True,)
    assert sent.data_deps == (by_name["backward"].id,)
    assert sent.id in by_name["step"].data_deps
    assert by_name["wait"].duration_micros == 0  # a replay must not count waiting as work
    assert (sent.start_micros, sent.duration_micros) == (5_000_000, 3_000_000)


def test_a_transfer_without_a_span_still_has_its_node():
    timeline = two_ranks()
    keep = timeline.spans.kind != 1
    spans = type(timeline.spans)(*(column[keep] for column in timeline.spans.columns().values()))
    bare = replace(timeline, spans=spans, dependencies=timeline.dependencies[:0], attributes=()).check()
    traces = to_chakra(bare)
    assert [node.type for node in traces[0].nodes].count(7) == 1
    assert bare.difference(from_chakra(traces)) == ""


@given(timelines())
@settings(max_examples=40)
def test_inferred_dependencies_make_no_circle(timeline):
    """With what Hemiola infers alone, a simulator can run every node."""
    for trace in to_chakra(replace(timeline, dependencies=timeline.dependencies[:0])):
        left = {node.id: set(node.data_deps) for node in trace.nodes}
        while left:
            ready = {node for node, deps in left.items() if not deps & left.keys()}
            assert ready
            left = {node: deps for node, deps in left.items() if node not in ready}


@pytest.mark.parametrize("stem", ["job", "job.eth0", "job.et.gz.v2"])
@pytest.mark.parametrize(("given", "ending"), [(".et", ".et"), (".et.gz", ".et.gz"), ("", ".et")])
def test_chakra_files_are_named_by_rank(tmp_path, stem, given, ending):
    paths = write_chakra(two_ranks(), tmp_path / f"{stem}{given}")
    assert [path.name for path in paths] == [f"{stem}.0{ending}", f"{stem}.1{ending}"]
    assert replace(read_job([tmp_path]), source="a test").difference(two_ranks()) == ""


def test_one_rank_of_a_chakra_job_can_be_read_alone():
    found = from_chakra(to_chakra(two_ranks())[1:])
    assert (len(found.spans), len(found.transfers), len(found.iterations)) == (6, 1, 1)
    assert set(found.spans.rank) == {1}
    assert len(found.ranks) == 2


def test_traces_of_two_jobs_do_not_become_one():
    other = to_chakra(replace(two_ranks(), name="another"))
    with pytest.raises(InputError, match="different jobs: name"):
        from_chakra([to_chakra(two_ranks())[0], other[1]])
    with pytest.raises(InputError, match="one rank"):
        from_chakra([other[0], other[0]])
