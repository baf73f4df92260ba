"""Shares of trees as equal chunks: near enough, proved right, and what RCCL's reader asks of a document is there."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedules_drawn import shapes

from hemiola.core.collective.schedule import ChunkMove, ChunkPlace, CollectiveSchedule
from hemiola.core.collective.shapes import all_pairs, ring, trees
from hemiola.core.errors import ScheduleError
from hemiola.trace.msccl import beyond_limits, equal_chunks, msccl_text, parse_msccl
from hemiola.trace.msccl.joined import repeats

CHAIN, STAR = [-1, 0, 1, 2], [-1, 0, 0, 0]


def test_thirds_become_chunks_that_move_together() -> None:
    found = equal_chunks(trees([CHAIN, STAR], [2 / 3, 1 / 3]))
    assert found.schedule.chunks == 3 and found.schedule.weights == ()
    assert found.excess == pytest.approx(0.0, abs=1e-12)
    assert {(move.source.index, move.count) for move in found.schedule.moves} == {(0, 2), (2, 1)}
    sent = trees([CHAIN, STAR]).traffic().chunks_between
    assert sent[1, 0] == 2  # up the chain, and up the star
    assert found.schedule.traffic().chunks_between[1, 0] == 3


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8), st.integers(8, 64))
def test_no_chunk_is_larger_than_said(parts: list[float], most: int) -> None:
    weights = [part / sum(parts) for part in parts]
    counts, excess = repeats(weights, most)
    chunks, trees_ = sum(counts), len(weights)
    assert min(counts) >= 1 and chunks <= most
    assert max(n / chunks / w for n, w in zip(counts, weights, strict=True)) - 1 == pytest.approx(
        excess, abs=1e-9
    )
    exact = max((1.0 / w for w in weights), default=1.0) / most - 1  # a share smaller than a chunk gets one
    assert excess <= max(trees_ / most, exact) + 1e-9


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 6))
def test_nobody_shares_out_better(parts: list[int], more: int) -> None:
    """Against all ways to share out no more chunks than that."""
    weights, most = [part / sum(parts) for part in parts], len(parts) + more
    least = min(
        max(n / sum(counts) / w for n, w in zip(counts, weights, strict=True)) - 1
        for counts in itertools.product(range(1, more + 2), repeat=len(parts))
        if sum(counts) <= most
    )
    assert repeats(weights, most)[1] == pytest.approx(least, abs=1e-9)


@given(shapes().filter(lambda schedule: schedule.root == 0))
def test_every_schedule_can_be_written_and_reads_back_equal(schedule: CollectiveSchedule) -> None:
    equal = equal_chunks(schedule)
    assert equal.excess <= 0.01
    back = parse_msccl(msccl_text(equal.schedule)).verify()
    assert back == msgspec.structs.replace(equal.schedule.ordered(), source=back.source)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (trees([CHAIN] * 65, [1 / 65] * 65), "more than 64"),
        (msgspec.structs.replace(ring([0, 1], "all-gather"), weights=(0.4, 0.6)), "follow from their number"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_equal(schedule: CollectiveSchedule, words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        equal_chunks(schedule)


def test_rccl_finds_all_that_it_asks_for() -> None:
    """It refuses a document without these (mscclGetAlgoMetaFromXmlFile), and calls a reduce-scatter so."""
    schedule = ring(list(range(200)))
    head = ElementTree.fromstring(msccl_text(schedule, bytes_min=16_000_000))
    assert {name: head.get(name) for name in ("minBytes", "maxBytes", "inplace", "outofplace", "nchannels")} == {
        "minBytes": "16000000", "maxBytes": str(1 << 35), "inplace": "1", "outofplace": "0", "nchannels": "1",
    }  # fmt: skip
    assert len(schedule.name) > 255 > len(head.get("name") or "")
    scattering = msccl_text(ring([0, 1, 2], "reduce-scatter"))
    assert 'coll="reducescatter"' in scattering
    assert parse_msccl(scattering) == parse_msccl(scattering.replace("reducescatter", "reduce_scatter"))


@pytest.mark.parametrize("letter", ["a", "й", "&", '"', "\t"])
def test_a_name_has_room_in_rccl_as_it_stands_in_the_file(letter: str) -> None:
    text = msccl_text(msgspec.structs.replace(ring([0, 1]), name=letter * 300))
    written = text.split('name="')[1].split('"')[0]
    assert 200 <= len(written.encode()) <= 255
    assert set(ElementTree.fromstring(text).get("name") or "") == {letter}


def chunks_at_once(count: int) -> CollectiveSchedule:
    pair: Any = [(0, 1, True), (1, 0, False)]
    moves = tuple(
        ChunkMove(ChunkPlace(a, "input", 0), ChunkPlace(b, "input", 0), count, adds) for a, b, adds in pair
    )
    return CollectiveSchedule(
        name="at once", collective="all-reduce", ranks=2, chunks=count, moves=moves
    ).verify()


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (ring(list(range(32))), []),  # 62 steps
        (ring(list(range(34))), ["66 steps in a thread block, where RCCL holds 64"]),
        (all_pairs(33), []),
        (all_pairs(34), ["33 peers of a gpu on a channel, where RCCL holds 32"]),
        (chunks_at_once(71), []),
        (chunks_at_once(72), ["72 chunks in a step, where RCCL holds 71"]),
    ],
    ids=lambda value: value.name if isinstance(value, CollectiveSchedule) else str(len(value)),
)
def test_limits_are_named(schedule: CollectiveSchedule, words: list[str]) -> None:
    assert beyond_limits(msccl_text(schedule)) == words
