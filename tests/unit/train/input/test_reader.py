"""The reader on objects in memory: order, retries, what it verifies and what it counts."""

from __future__ import annotations

import hashlib

import pytest
from input_samples import MemorySource, busy

from hemiola.core.errors import StoreError
from hemiola.cost.io import StoreModel
from hemiola.plan.io.tuner import ReadLimits
from hemiola.train.input.reader import RangeReader, ReadPatience

STORE = StoreModel(0.001, 1e8)
QUICK = ReadPatience(in_all_s=5.0, first_s=0.001, most_s=0.01)
DATA = bytes(range(256)) * 1024


def reader(**given) -> RangeReader:
    limits = ReadLimits(in_flight=4, read_least_bytes=1 << 16, read_most_bytes=1 << 16)
    return RangeReader(STORE, limits, tuner=False, patience=QUICK, **given)


def test_large_ranges_are_several_reads_and_come_back_whole() -> None:
    source, made = MemorySource(DATA), reader()
    assert bytes(made.submit(source, 10, 200_000).wait()) == DATA[10:200_010]
    assert len(source.reads) == 3 and made.counts.arrived_bytes == 200_000
    made.close()


def test_what_fails_is_tried_again() -> None:
    source, made = MemorySource(DATA, plan={0: busy(), 1: busy()}), reader()
    assert bytes(made.submit(source, 0, 100).wait()) == DATA[:100]
    assert (made.counts.failures, made.counts.retries, made.counts.requests) == (2, 2, 1)
    made.close()


def test_what_cannot_be_read_is_the_callers_error() -> None:
    source, made = MemorySource(DATA, plan={0: StoreError("gone", "look")}), reader()
    with pytest.raises(StoreError, match="gone"):
        made.submit(source, 0, 100).wait()
    assert bytes(made.submit(source, 0, 100).wait()) == DATA[:100]
    made.close()


@pytest.mark.parametrize("damaged", [False, True])
def test_whole_objects_are_compared_with_their_md5(damaged: bool) -> None:
    source = MemorySource(DATA)
    told = hashlib.md5(DATA[:-1] + b"?" if damaged else DATA).hexdigest()
    source.version = lambda: f'"{told}"'  # type: ignore[method-assign]
    made = reader(verify_md5=True)
    piece = made.submit(source, 0, len(DATA))
    if damaged:
        with pytest.raises(StoreError, match="the store says"):
            piece.wait()
    else:
        assert bytes(piece.wait()) == DATA
    assert len(made.submit(source, 5, 100).wait()) == 100  # a part says nothing of the whole
    made.close()


def test_nothing_is_read_for_what_was_cancelled() -> None:
    source, made = MemorySource(DATA, plan={0: 0.1}), reader()
    made.limits = ReadLimits(in_flight=1, read_least_bytes=1 << 16, read_most_bytes=1 << 16)
    first, second, third = (made.submit(source, at, 100) for at in (0, 1000, 2000))
    second.cancel()
    assert bytes(first.wait()) == DATA[:100] and bytes(third.wait()) == DATA[2000:2100]
    assert (1000, 100) not in source.reads
    made.close()
