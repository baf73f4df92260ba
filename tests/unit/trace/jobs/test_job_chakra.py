"""Chakra's files: the published samples, unknown fields, damage."""

from __future__ import annotations

import io
import math
import sys
import tarfile
from collections import Counter

import pytest
from job_samples import two_ranks, write_json

from hemiola.analysis.job.metrics import job_metrics
from hemiola.core.errors import InputError
from hemiola.trace.jobs.chakra import nodes as chakra_schema
from hemiola.trace.jobs.chakra.from_chakra import from_chakra
from hemiola.trace.jobs.chakra.nodes import (
    IO,
    VALUE_KINDS,
    Attribute,
    ChakraNode,
    ChakraTrace,
    read_chakra,
    read_et,
    stream_nodes,
    write_et,
)
from hemiola.trace.jobs.chakra.to_chakra import to_chakra
from hemiola.trace.jobs.execution_trace import data_dependencies, read_execution_trace
from hemiola.trace.jobs.read import read_job

VALUES = {"bool": True, "string": "text", "bytes": b"\x00\xff", "double": 0.1, "float": 0.5}


def value_of(kind):
    scalar, what = kind.split("_")
    value = VALUES.get(scalar, 7 if scalar.startswith(("u", "fixed")) else -7)
    return value if what == "val" else (value, value)


def test_every_kind_of_attribute_survives(tmp_path):
    attributes = tuple(Attribute(f"a {kind}", kind, value_of(kind), "doc") for kind in VALUE_KINDS)
    empty = tuple(Attribute(kind, kind, ()) for kind in VALUE_KINDS if kind.endswith("_list"))
    node = ChakraNode(
        2**64 - 1,
        "n",
        7,
        (1, 2),
        (3,),
        5,
        6,
        IO("v", "s", "t"),
        IO(),
        (*attributes, *empty, Attribute("no value")),
    )
    trace = ChakraTrace("0.0.4", attributes, (node, ChakraNode(0)))
    write_et(trace, tmp_path / "x.et.gz")
    assert read_et(tmp_path / "x.et.gz") == trace


def test_fields_of_a_newer_schema_survive(tmp_path):
    """Field 11 of a node is StorageInfo in later schemas; field 200 is nobody's yet."""
    unknown = b"\x5a\x02\x08\x02" + b"\xc2\x0c\x03abc"
    inner = Attribute("a", unknown=b"\xc2\x0c\x01z")
    trace = ChakraTrace(
        "9", (inner,), (ChakraNode(1, "n", 8, inputs=IO(unknown=b"\x22\x01q"), unknown=unknown),), b"\x18\x07"
    )
    write_et(trace, tmp_path / "x.et")
    assert read_et(tmp_path / "x.et") == trace
    write_et(read_et(tmp_path / "x.et"), tmp_path / "y.et")
    assert (tmp_path / "x.et").read_bytes() == (tmp_path / "y.et").read_bytes()


def test_the_wire_format_is_the_published_one(tmp_path):
    """Bytes worked out by hand from et_def.proto: the order and numbers of its fields."""
    node = ChakraNode(
        5,
        "n",
        7,
        (),
        (3,),
        0,
        9,
        attributes=(Attribute("comm_type", "int64_val", 2), Attribute("c", "bool_val", True)),
    )
    write_et(ChakraTrace("0.0.4", (), (node,)), tmp_path / "x.et")
    first = b"\x52\x0d\x0a\x09comm_type\x48\x02"  # field 10; name = 1, int64_val = 9
    second = b"\x52\x06\x0a\x01c\xd8\x01\x01"  # bool_val = 27
    body = b"\x08\x05\x12\x01n\x18\x07\x2a\x01\x03\x38\x09" + first + second
    assert (tmp_path / "x.et").read_bytes() == b"\x07\x0a\x050.0.4" + bytes([len(body)]) + body


def test_nodes_stream(tmp_path):
    write_et(ChakraTrace("0.0.4", (), ()), tmp_path / "x.et", nodes=(ChakraNode(at) for at in range(1000)))
    head, nodes = stream_nodes(tmp_path / "x.et")
    assert (head.version, next(nodes).id, sum(1 for _ in nodes)) == ("0.0.4", 0, 999)


def test_a_cut_file_names_the_byte(tmp_path):
    write_et(to_chakra(two_ranks())[0], tmp_path / "x.et")
    content = (tmp_path / "x.et").read_bytes()
    (tmp_path / "x.et").write_bytes(content[:-3])
    with pytest.raises(InputError, match=r"message at byte \d+ is cut off"):
        read_job([tmp_path / "x.et"])


def test_a_length_that_is_damage_takes_no_memory(tmp_path):
    (tmp_path / "x.et").write_bytes(b"\x07\x0a\x050.0.4" + b"\xff\xff\xff\xff\x07" + b"abc")
    with pytest.raises(InputError, match="message at byte 8"):
        read_et(tmp_path / "x.et")


def test_without_protobuf_the_extra_is_named(tmp_path, monkeypatch):
    write_et(ChakraTrace("", (), ()), tmp_path / "x.et")
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    chakra_schema.messages.cache_clear()
    with pytest.raises(InputError) as caught:
        read_et(tmp_path / "x.et")
    assert caught.value.remedy == "pip install 'hemiola[chakra]'"


def foreign(*nodes):
    return from_chakra([ChakraTrace("0.0.4", (), nodes)])


def test_without_start_times_nodes_begin_as_early_as_they_may():
    """1 (10 µs) and 2 (30 µs) begin at once, 3 after both, 4 after 1."""
    timeline = foreign(
        ChakraNode(3, "c", 4, data_deps=(1, 2), duration_micros=5), ChakraNode(1, "a", 4, duration_micros=10),
        ChakraNode(2, "b", 4, duration_micros=30), ChakraNode(4, "d", 4, (2,), (1, 99), duration_micros=1),
    )  # fmt: skip
    assert [round(start * 1e6) for start in timeline.spans.start_s] == [30, 0, 0, 10]
    assert "no start times" in timeline.facts["times"]
    assert timeline.facts["dependencies_on_nodes_not_in_the_trace"] == 1
    assert sorted(map(tuple, timeline.dependencies.tolist())) == [(1, 0), (1, 3), (2, 0)]


def test_start_times_are_kept():
    timeline = foreign(
        ChakraNode(1, "a", 4, start_micros=100, duration_micros=7), ChakraNode(2, "b", 4, start_micros=150)
    )
    assert [round(start * 1e6) for start in timeline.spans.start_s] == [0, 50]


def test_a_node_without_a_start_time_leaves_the_others_where_they_are():
    now = 1_700_000_000_000_000
    timeline = foreign(
        ChakraNode(1, "a", 4, start_micros=now, duration_micros=7), ChakraNode(2, "b", 4), ChakraNode(3, "c", 4, start_micros=now + 50)
    )  # fmt: skip
    assert [round(start * 1e6) for start in timeline.spans.start_s] == [0, 0, 50]
    assert timeline.facts["nodes_without_start_time"] == 1


def reduced(start_micros=0, group=""):
    """A trace of one collective."""
    attributes = (Attribute("comm_type", "int64_val", 0), Attribute("pg_name", "string_val", group))
    node = ChakraNode(1, "reduce", 7, start_micros=start_micros, duration_micros=9, attributes=attributes)
    return ChakraTrace("0.0.4", (), (node,))


@pytest.mark.parametrize("starts", [(100, 150), (0, 0)])
def test_of_several_traces_nobody_knows_how_their_clocks_differ(starts):
    timeline = from_chakra([reduced(start) for start in starts])
    assert [rank.clock_error_s for rank in timeline.ranks] == [math.inf] * 2
    assert [(rank.collectives, rank.last) for rank in job_metrics(timeline).stragglers] == [(1, 0)] * 2
    assert from_chakra([reduced(starts[0])]).ranks[0].clock_error_s == 0


def test_collectives_of_other_groups_are_other_collectives():
    one, two = (from_chakra([reduced(5, "1"), reduced(5, group)]) for group in ("1", "2"))
    assert [rank.collectives for rank in job_metrics(one).stragglers] == [1, 1]
    assert job_metrics(two).stragglers == ()


def test_a_circle_is_named():
    with pytest.raises(InputError, match="data dependencies of node 1 go round"):
        foreign(ChakraNode(1, "a", 4, data_deps=(2,)), ChakraNode(2, "b", 4, data_deps=(1,)))


def test_foreign_communication_becomes_transfers():
    timeline = foreign(
        ChakraNode(1, "k", 7, duration_micros=4, attributes=(Attribute("comm_type", "int64_val", 7), Attribute("comm_size", "int64_val", 64))),
        ChakraNode(2, "s", 5), ChakraNode(3, "c10d::allreduce_", 7, attributes=(Attribute("is_cpu_op", "bool_val", True),)),
        ChakraNode(4, "ncclKernel_AllGather", 7, attributes=(Attribute("is_cpu_op", "bool_val", False),)),
    )  # fmt: skip
    assert [timeline.names[name] for name in timeline.transfers.collective] == [
        "reduce-scatter",
        "send",
        "all-gather",
    ]
    assert timeline.transfers.size_bytes[0] == 64


def test_json_form(tmp_path):
    nodes = [
        {
            "Id": 1,
            "Name": "a",
            "NodeType": 4,
            "ctrlDeps": [9],
            "data_deps": [],
            "runtime": 3,
            "is_cpu_op": True,
        },
        {
            "Id": 2,
            "Name": "b",
            "NodeType": 7,
            "data_deps": [1],
            "comm_type": 0,
            "comm_size": 8,
            "odd": {"x": [1, "y"]},
        },
    ]
    path = write_json({"workload_graph": nodes, "ngpus": 8}, tmp_path / "x.json")
    trace = read_chakra(path)
    assert trace.metadata == (Attribute("ngpus", "int64_val", 8),)
    assert trace.nodes[0] == ChakraNode(
        1, "a", 4, (9,), (), 0, 3, attributes=(Attribute("is_cpu_op", "bool_val", True),)
    )
    assert trace.nodes[1].attributes[-1] == Attribute("odd", "string_val", '{"x":[1,"y"]}', "JSON")
    write_et(trace, tmp_path / "x.et")
    assert read_chakra(tmp_path / "x.et") == trace


def members(shared, archive):
    with tarfile.open(shared / "data" / "chakra" / archive) as found:
        for entry in found:
            if entry.isfile() and not entry.name.rpartition("/")[2].startswith("._"):
                content = found.extractfile(entry)
                assert content is not None
                yield entry.name.rpartition("/")[2], content.read()


@pytest.mark.shared_data
def test_the_feeders_sample_is_rewritten_to_the_byte(shared, tmp_path):
    ((name, content),) = members(shared, "feeder_tests_trace.tar.gz")
    (tmp_path / name).write_bytes(content)
    trace = read_et(tmp_path / name)
    write_et(trace, tmp_path / "again.et")
    assert (tmp_path / "again.et").read_bytes() == content
    assert Counter(node.type for node in trace.nodes) == {4: 3643, 7: 21}
    timeline = read_job([tmp_path / name])
    assert (len(timeline.spans), len(timeline.transfers)) == (3664, 7)
    assert (
        timeline.transfers.size_bytes.sum()
        == 212480 + 424 + 8196000 + 31502336 + 26255360 + 26550272 + 9724160
    )
    assert "no start times" in timeline.facts["times"]


@pytest.mark.shared_data
def test_the_json_samples(shared, tmp_path):
    found = {}
    for name, content in members(shared, "json_trace.tar.gz"):
        (tmp_path / name).write_bytes(content)
        found[name] = read_job([tmp_path / name])
        trace = read_chakra(tmp_path / name)
        write_et(trace, tmp_path / "x.et")
        assert read_et(tmp_path / "x.et") == trace
    assert {name: len(timeline.spans) for name, timeline in found.items()} == {
        "chakra.0.json": 3664,
        "small_chakra.0.json": 7,
    }
    small = found["small_chakra.0.json"]
    assert small.facts["ngpus"] == 8
    assert [round(start * 1e6) for start in small.spans.start_s] == [0, 318, 318, 0, 85, 346, 0]


@pytest.mark.shared_data
def test_the_execution_trace_sample(shared, tmp_path):
    ((name, content),) = members(shared, "1.0.2-chakra.0.0.4.tgz")
    (tmp_path / name).write_bytes(content)
    trace = read_execution_trace(tmp_path / name)
    assert (trace.schema, trace.pid, len(trace.nodes)) == (
        "1.0.2-chakra.0.0.4",
        788625,
        content.count(b'"ctrl_deps":'),
    )
    assert sum(node.name == "record_param_comms" for node in trace.nodes) == content.count(
        b'"name": "record_param_comms"'
    )
    assert data_dependencies(trace)
    with pytest.raises(InputError, match="no times"):
        read_job([tmp_path / name])


def test_an_empty_file_is_no_trace(tmp_path):
    (tmp_path / "x.et").write_bytes(io.BytesIO().getvalue())
    with pytest.raises(InputError, match="it is empty"):
        read_job([tmp_path / "x.et"])
