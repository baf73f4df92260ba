"""Damaged files give Hemiola's errors, never a library's, and never a hang; unknown files are refused in words."""

from __future__ import annotations

import gzip
import json
import os
import random
from dataclasses import replace

import pytest
from job_samples import nccl_trace, two_ranks, write_json

from hemiola.analysis.job.metrics import job_metrics
from hemiola.core.errors import FormatError, HemiolaError, InputError
from hemiola.profiler.trace.parts import PartWriter
from hemiola.profiler.trace.values import PartHead
from hemiola.report.job import write_job_report
from hemiola.report.job.inspection import write_inspection
from hemiola.trace.jobs.chakra.nodes import write_et
from hemiola.trace.jobs.chakra.to_chakra import to_chakra
from hemiola.trace.jobs.execution_trace import read_execution_trace
from hemiola.trace.jobs.perfetto import write_perfetto
from hemiola.trace.jobs.read import read_job
from hemiola.trace.jobs.timeline_json import write_timeline

MUTATIONS = 60


def chakra_json(path):
    nodes = [
        {
            "Id": at,
            "Name": f"n{at}",
            "NodeType": 4 + 3 * (at % 2),
            "data_deps": [at - 1],
            "runtime": 5,
            "comm_type": 0,
        }
        for at in range(9)
    ]
    write_json({"workload_graph": nodes}, path)


def execution(path):
    tensor = [9, 5, 0, 4, 4, "cpu"]
    node = {
        "id": 2,
        "name": "a",
        "ctrl_deps": 1,
        "inputs": {"values": [tensor]},
        "outputs": {"values": [[tensor]]},
        "attrs": [{"name": "rf_id", "value": 3}],
    }
    write_json({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [node] * 3}, path)


SAMPLES = {
    "timeline.json": lambda path: write_timeline(two_ranks(), path),
    "timeline.json.gz": lambda path: write_timeline(two_ranks(), path),
    "perfetto.json": lambda path: write_perfetto(two_ranks(), path),
    "kineto.json": lambda path: write_json(nccl_trace(0), path),
    "kineto.json.gz": lambda path: path.write_bytes(
        gzip.compress(json.dumps(nccl_trace(0)).encode(), mtime=0)
    ),
    "chakra.et": lambda path: write_et(to_chakra(two_ranks())[0], path),
    "chakra.json": chakra_json,
    "execution.json": execution,
}


def read(path):
    if path.name.startswith("execution"):
        read_execution_trace(path)
    else:
        read_job([path])
    if path.name.startswith("kineto"):
        read_job([path], salvage=True)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("how", ["cut", "flip", "swap"])
def test_damage_is_an_error_of_hemiola_or_harmless(tmp_path, name, how):
    path = tmp_path / name
    SAMPLES[name](path)
    read(path)
    whole = path.read_bytes()
    chance = random.Random(f"{name} {how}")
    refused = 0
    for _ in range(MUTATIONS):
        path.write_bytes(bytes(mutated(bytearray(whole), how, chance)))
        try:
            read(path)
        except HemiolaError as error:
            refused += 1
            assert path.name in error.what
    assert refused > (MUTATIONS // 2 if how == "cut" else 3)


def mutated(content, how, chance):
    at = chance.randrange(len(content))
    if how == "cut":
        return content[:at]
    if how == "flip":
        for _ in range(chance.choice((1, 1, 8))):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        return content
    other = chance.randrange(len(content))
    length = chance.choice((1, 3, 40))
    return content[:at] + content[other : other + length] + content[at + length :]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"{}", b"[]", b"[1, 2]", b'{"a": 1}', b"\x89PNG\r\n\x1a\n", b"time,job\n1,2\n", b"[" * 100_000,
     b'{"traceEvents": []}', b'{"nodes": [{"ph": 1}]}', b'{"otherData": {"schema": "hemiola.timeline/1"}, "traceEvents": [{"ph": "M"}]}'],
)  # fmt: skip
def test_unknown_files_are_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match="file"):
        read_job([tmp_path / "file"])


def test_an_unknown_format_says_what_was_looked_for(tmp_path):
    with pytest.raises(FormatError) as caught:
        read_job([write_json({"a": 1}, tmp_path / "x.json")])
    assert "it has the members 'a'" in caught.value.what
    for word in ("hemiola.job-timeline/1", "traceEvents", "workload_graph", "nodes", "protobuf"):
        assert word in caught.value.remedy


def test_empty_lists_and_events_of_other_kinds_are_said(tmp_path):
    for content in ([], {}, {"traceEvents": []}):
        with pytest.raises(FormatError, match="no member of it holds anything"):
            read_job([write_json(content, tmp_path / "x.json")])
    events = {"traceEvents": [{"ph": "X", "ts": "abc"}, {"ph": "i"}, {"ph": "i"}]}
    with pytest.raises(InputError, match=r"2 of 'ph i', 1 of 'ph X'"):
        read_job([write_json(events, tmp_path / "x.json")])


def test_a_mark_of_utf_8_before_the_text_is_no_damage(tmp_path):
    write_timeline(two_ranks(), tmp_path / "timeline.json")
    write_json(nccl_trace(0), tmp_path / "kineto.json")
    for name in ("timeline.json", "kineto.json"):
        path = tmp_path / name
        plain = read_job([path])
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert read_job([path]).difference(plain) == ""


def test_paths_may_be_texts(tmp_path):
    write_timeline(two_ranks(), tmp_path / "a.json")
    assert read_job([str(tmp_path / "a.json")]).difference(read_job([tmp_path / "a.json"])) == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            {"schema": "hemiola.job-timeline/99"},
            "'hemiola.job-timeline/99', newer than the 'hemiola.job-timeline/1'",
        ),
        ({"otherData": {"schema": "hemiola.job-perfetto/99"}}, "newer than"),
        ({"schema": "hemiola.graph/1"}, "of schema 'hemiola.graph/1', and no job's timeline"),
    ],
)
def test_another_schema_of_hemiola_is_named(tmp_path, content, said):
    with pytest.raises(FormatError, match=said):
        read_job([write_json(content, tmp_path / "x.json")])


@pytest.mark.parametrize("named", ["a b.json.parts", "a b.json.parts/rank00000-5-1.a.jsonl"])
def test_a_ranks_part_of_a_recording_is_named_with_what_puts_it_together(tmp_path, named):
    parts = tmp_path / "a b.json.parts"
    writer = PartWriter(parts / "rank00000-5-1", 10)
    writer.write(
        PartHead(rank=0, world_size=1, host="h", device="cpu", pid=5, mode="light", monotonic_ns=0, unix_ns=0)
    )
    writer.close()
    with pytest.raises(FormatError, match="is a rank's part of a recording") as refused:
        read_job([tmp_path / named])
    assert f"python -m hemiola.profiler.trace '{parts}' '{tmp_path / 'a b.json'}'" in refused.value.remedy


@pytest.mark.parametrize("write", [write_timeline, write_perfetto])
def test_hemiolas_own_files_cannot_be_salvaged_and_say_why(tmp_path, write):
    path = tmp_path / "cut.json"
    write(two_ranks(), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"cut\.json") as refused:
        read_job([path], salvage=True)
    assert "has columns" in refused.value.remedy
    assert "with salvage" not in refused.value.remedy


def test_a_salvaged_file_is_told_among_the_notes(tmp_path):
    path = write_json(nccl_trace(0), tmp_path / "cut.json")
    path.write_bytes(path.read_bytes()[:-300])
    notes = job_metrics(read_job([path], salvage=True)).notes
    assert any(note.startswith("cut.json is cut off or damaged at byte") for note in notes)


def test_files_of_different_formats_are_refused(tmp_path):
    write_timeline(two_ranks(), tmp_path / "a.json")
    write_json(nccl_trace(0), tmp_path / "b.json")
    with pytest.raises(FormatError, match="different formats"):
        read_job([tmp_path])
    with pytest.raises(FormatError, match="each of the 2 files is a whole job"):
        read_job([tmp_path / "a.json", tmp_path / "a.json"])


def test_missing_and_empty(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_job([tmp_path / "nothing.json"])
    with pytest.raises(InputError, match="no trace file is in"):
        read_job([tmp_path])
    with pytest.raises(InputError, match="no trace file is named"):
        read_job([])


@pytest.mark.parametrize("sample", ["kineto.json", "chakra.json"])
def test_names_that_are_no_unicode_are_read_as_what_can_be_written(tmp_path, sample):
    """Those of files, and halves of characters that are escaped."""
    plain, strange = tmp_path / sample, tmp_path / os.fsdecode(b"tr\xff.json")
    SAMPLES[sample](plain)
    content = plain.read_text()
    name = next(name for name in read_job([plain]).names if f'"{name}"' in content)
    strange.write_text(content.replace(f'"{name}"', f'"{name}\\ud800"'))
    timeline = read_job([strange])
    assert "tr\ufffd.json" in timeline.source
    assert f"{name}\ufffd" in timeline.names
    write_timeline(timeline, tmp_path / "y.json")
    assert read_job([tmp_path / "y.json"]).names == timeline.names
    write_inspection(job_metrics(timeline), tmp_path / "z.json")
    write_job_report(job_metrics(timeline), tmp_path / "page.html", title=strange.name)


def test_text_that_is_no_unicode_is_refused_when_written(tmp_path):
    timeline = replace(two_ranks(), source="a\ud800b")
    for write in (write_timeline, write_perfetto):
        with pytest.raises(InputError, match="cannot be kept"):
            write(timeline, tmp_path / "y.json")
    with pytest.raises(InputError, match="cannot be kept"):
        to_chakra(timeline)
