"""Ranks that share: what they write into the run's store, and what they keep to; time is an argument."""

from __future__ import annotations

import math

import pytest
from input_samples import MemorySource

from hemiola.core.errors import InputError
from hemiola.cost.io import StoreModel
from hemiola.train.input.reader import RangeReader
from hemiola.train.input.share import InputShare


class Board:
    """A key-value store, as ranks meet at."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


class Reading(RangeReader):
    """A reader that says it was given so much in each second, and is hungry."""

    def second(self, bytes_: float, connections: int) -> None:
        self.counts.arrived_bytes += int(bytes_)
        self.flights_s += connections
        self.hungry_s += 1


def ranks(board: Board, count: int) -> list[tuple[Reading, InputShare]]:
    readers = [Reading(StoreModel(0.01, 1e7)) for _ in range(count)]
    return [(reader, InputShare(reader, board, rank, count)) for rank, reader in enumerate(readers)]


def test_unequal_ranks_get_a_rate_and_the_victim_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board()
    both = ranks(board, 2)
    for now in range(6):
        for (reader, share), (amount, connections) in zip(both, ((47e6, 32), (3e6, 2)), strict=True):
            reader.second(min(amount, reader.rate_bytes_per_s), connections)
            share.step(float(now))
    assert both[0][0].rate_bytes_per_s == pytest.approx(25.5e6, rel=0.05)
    assert "rank 1 gets 3.0 MB/s" in capsys.readouterr().err or both[0][1].verdict.jain > 0.9


def test_rates_are_lifted_when_rank_0_says_nothing_more() -> None:
    board = Board()
    both = ranks(board, 2)
    for now in range(4):
        for (reader, share), amount in zip(both, (40e6, 10e6), strict=True):
            reader.second(amount, 4)
            share.step(float(now))
    assert both[1][0].rate_bytes_per_s < math.inf
    for now in range(4, 20):
        both[1][1].step(float(now))
    assert both[1][0].rate_bytes_per_s == math.inf


def test_a_weight_has_to_be_above_nothing() -> None:
    with pytest.raises(InputError, match="weight of 0"):
        InputShare(RangeReader(), Board(), 0, 2, weight=0.0)


def test_a_reader_counts_flights_and_hunger() -> None:
    reader = RangeReader(StoreModel(0.01, 1e7))
    source = MemorySource(bytes(1000), plan={0: 0.05})
    reader.submit(source, 0, 1000).wait()
    assert 0.03 < reader.flights_s < 5.0
    reader.close()
