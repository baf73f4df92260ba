"""The common type of what a job did: it proves itself, and a builder makes it row by row."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hemiola.core.errors import InputError
from hemiola.core.job_timeline import Iterations, Rank, Spans, TimelineBuilder, TransferLog


@pytest.fixture
def builder():
    made = TimelineBuilder("a job")
    rank = made.rank(3, host="h")
    transfer = made.transfer(rank, "b", "all-reduce", 8.0, 0.0, 1.0, 2.0, group=(3, 5))
    made.span(rank, "main", "f", "compute", 0.0, 1.0)
    made.span(rank, "net", "b", "communication", 1.0, 2.0, transfer=transfer, attributes={"x": 1})
    made.span(rank, "main", "g", "compute", 2.0, 3.0)
    made.depend(0, 1)
    made.iteration(rank, 0, 0.0, 3.0)
    return made


def test_names_lanes_and_groups_stand_once(builder):
    timeline = builder.build(facts={"k": 1}, source="s")
    assert timeline.lanes == ("main", "net")
    assert timeline.names == ("b", "all-reduce", "f", "g")
    assert timeline.groups == ((3, 5),)
    assert timeline.spans.name.tolist() == [2, 0, 3]
    assert timeline.spans.kind.dtype == np.int8
    assert timeline.attributes == ({}, {"x": 1}, {})
    assert math.isnan(timeline.transfers.needed_s[0])
    assert len(builder) == 3


def test_a_rank_is_named_once_and_told_more_later():
    made = TimelineBuilder("")
    assert [made.rank(7), made.rank(2), made.rank(7, host="h")] == [0, 1, 0]
    assert made.build().ranks == (Rank(7, "h"), Rank(2))


def test_no_attributes_at_all_are_empty():
    made = TimelineBuilder("")
    made.span(made.rank(0), "l", "n", "other", 0.0, 0.0)
    assert made.build().attributes == ()


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="'comute' is no kind"):
        TimelineBuilder("").span(0, "l", "n", "comute", 0.0, 1.0)


def test_tables_from_rows():
    spans = Spans.from_rows([(0, 1, 2, 1, 0.5, 1.5, -1, -1, -1)])
    assert (spans.lane[0], spans.end_s[0], len(spans)) == (1, 1.5, 1)
    assert [len(table.empty()) for table in (Spans, TransferLog, Iterations)] == [0, 0, 0]
    assert TransferLog.empty().size_bytes.dtype == np.float64
    with pytest.raises(InputError, match="has not 4 entries"):
        Iterations.from_rows([(1, 2)])


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        ("spans", "rank", 1, "spans row 1: rank is 1, of 1"),
        ("spans", "kind", 6, "kind is 6"),
        ("spans", "lane", -1, "lane is -1"),
        ("spans", "transfer", 4, "transfer is 4"),
        ("spans", "end_s", 0.5, "spans row 1: start_s is 1.0 and end_s 0.5"),
        ("spans", "start_s", math.nan, "start_s is nan"),
    ],
)
def test_impossible_spans_are_named(builder, table, column, value, said):
    timeline = builder.build()
    changed = getattr(timeline.spans, column).copy()
    changed[1] = value
    with pytest.raises(InputError, match=said):
        replace(timeline, spans=replace(timeline.spans, **{column: changed})).check()


def test_other_impossible_timelines_are_named(builder):
    timeline = builder.build()
    sent = timeline.transfers
    for change, said in (
        ({"names": ("a", "a", "b", "c")}, "names hold 'a' twice"),
        ({"ranks": (Rank(0, clock_error_s=-1.0),)}, "clock offset"),
        ({"origin_unix_s": math.inf}, "origin"),
        ({"dependencies": np.array([[0, 9]])}, "dependencies row 1: span is 9"),
        ({"dependencies": np.array([[1, 1]])}, "depends on itself"),
        ({"dependencies": np.array([1])}, "shape"),
        ({"attributes": ({},)}, "1 attributes for 3 spans"),
        ({"transfers": replace(sent, last_byte_s=np.array([math.inf]))}, "last_byte_s inf"),
        ({"transfers": replace(sent, size_bytes=np.array([-1.0]))}, "size_bytes"),
        ({"transfers": replace(sent, needed_s=np.array([0.0, 1.0]))}, "needed_s has shape"),
    ):
        with pytest.raises(InputError, match=said):
            replace(timeline, **change).check()


def test_a_transfer_belongs_to_the_rank_of_its_span(builder):
    other = builder.rank(9)
    builder.span(other, "net", "b", "communication", 0.0, 1.0, transfer=0)
    with pytest.raises(InputError, match="row 3: its transfer belongs to another rank"):
        builder.build()


def test_differences_are_told(builder):
    timeline = builder.build()
    assert timeline.difference(builder.build()) == ""
    assert timeline.difference(builder.build(source="x")) == "source: '' against 'x'"
    moved = replace(timeline, spans=replace(timeline.spans, end_s=timeline.spans.end_s + 1))
    assert timeline.difference(moved).startswith("spans.end_s")
    twice = replace(timeline, dependencies=np.array([[0, 1], [0, 1]]))
    assert timeline.difference(twice) == ""  # what depends on what is a set
