"""Spreading parameters over servers: every element once, servers in balance, nothing overlaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.train.parameter_server.layout import JOIN_BYTES, ParcelLayout, Tensor, lay_out

TENSORS = st.lists(
    st.builds(
        Tensor, st.integers(0, 400_000), st.sampled_from([2, 4, 8]), st.sampled_from("ab"), st.booleans()
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(TENSORS, st.integers(1, 5), st.integers(100_000, 3_000_000))
def test_each_element_is_in_one_parcel_once(tensors, servers, cut_bytes):
    layout = lay_out(tensors, servers, cut_bytes)
    for number, tensor in enumerate(tensors):
        mine = [s for parcel in layout.parcels for s in parcel.stretches if s.tensor == number]
        assert [s.start for s in mine] == [0, *(s.stop for s in mine)][: len(mine)]
        assert (mine[-1].stop if mine else 0) == tensor.elements
        assert len(mine) <= 1 or not tensor.whole
    for parcel in layout.parcels:
        assert 0 <= parcel.server < servers
        assert len({tensors[s.tensor].kind for s in parcel.stretches}) == 1


@given(TENSORS, st.integers(1, 5))
def test_what_is_sent_never_overlaps(tensors, servers):
    layout = lay_out(tensors, servers)
    pieces = []
    for parcel in layout.parcels:
        pieces.append((parcel.push_offset, parcel.push_offset + parcel.push_bytes))
        pieces.append((parcel.answer_offset, parcel.answer_offset + parcel.answer_bytes))
        within = [
            (s.offset_bytes, s.offset_bytes + (s.stop - s.start) * tensors[s.tensor].element_bytes)
            for s in parcel.stretches
        ]
        assert_apart(within, parcel.size_bytes)
    assert_apart(pieces, layout.memory_bytes)


def assert_apart(pieces, size_bytes):
    ends = [0]
    for start, stop in sorted(pieces):
        assert start >= ends[-1]
        assert start % 64 == 0
        ends.append(stop)
    assert ends[-1] <= size_bytes


def loads(layout: ParcelLayout) -> list[int]:
    return [sum(p.size_bytes for p in layout.parcels if p.server == s) for s in range(layout.servers)]


@given(TENSORS, st.integers(1, 5))
def test_servers_differ_by_one_parcel_at_most(tensors, servers):
    layout = lay_out(tensors, servers)
    largest = max((parcel.size_bytes for parcel in layout.parcels), default=0)
    assert max(loads(layout)) - min(loads(layout)) <= largest


def test_a_large_tensor_is_cut_for_all_servers_and_small_neighbours_travel_together():
    small, large = Tensor(1000, 4), Tensor(1 << 20, 4)
    layout = lay_out([small, small, large, small], 2)
    assert [len(parcel.stretches) for parcel in layout.parcels] == [2, 1, 1, 1]
    assert [p.stretches[0].stop - p.stretches[0].start for p in layout.parcels[1:3]] == [1 << 19] * 2
    assert abs(loads(layout)[0] - loads(layout)[1]) <= JOIN_BYTES


def test_there_must_be_a_server():
    with pytest.raises(InputError, match="0 parameter servers"):
        lay_out([Tensor(1, 4)], 0)
