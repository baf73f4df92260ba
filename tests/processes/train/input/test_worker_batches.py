"""prefetch() on loaders with worker processes: bit-equal to the plain loader, and resumed exactly."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from input_samples import record_file
from torch.utils.data import DataLoader

import hemiola
from hemiola.cost.io import StoreModel
from hemiola.train.input import StoredSamples

STORE = StoreModel(0.001, 1e9)


def decode(parts: list[memoryview]) -> torch.Tensor:
    number = np.frombuffer(parts[0], dtype=np.uint32)[0]
    return torch.tensor([float(number), random.random(), float(torch.rand(()))], dtype=torch.float64)


def loader(path: str, workers: int, *, seed: int = 5, persistent: bool = False) -> DataLoader:
    data = StoredSamples.of_records([path], 256, decode)
    return DataLoader(
        data, batch_size=4, shuffle=True, num_workers=workers,  # type: ignore[arg-type]
        generator=torch.Generator().manual_seed(seed), persistent_workers=persistent,
    )  # fmt: skip


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_draw_what_they_draw_without_it(tmp_path, persistent: bool) -> None:
    path = str(record_file(tmp_path / "records", 26, 256))
    plain = loader(path, 2, persistent=persistent)
    ahead = hemiola.prefetch(loader(path, 2, persistent=persistent), store=STORE)
    for _ in range(2):
        expected, got = list(plain), list(ahead)
        assert len(expected) == len(got) == 7
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("used", [1, 3])
def test_a_resumed_epoch_goes_on_bit_by_bit(tmp_path, used: int) -> None:
    path = str(record_file(tmp_path / "records", 26, 256))
    first = hemiola.prefetch(loader(path, 2), store=STORE)
    batches = iter(first)
    for _ in range(used):
        next(batches)
    state = first.state_dict()
    rest = list(batches)
    again = hemiola.prefetch(loader(path, 2, seed=99), store=STORE)
    again.load_state_dict(state)
    resumed = list(again)
    assert len(rest) == len(resumed) == 7 - used
    assert all(torch.equal(a, b) for a, b in zip(rest, resumed, strict=True))
