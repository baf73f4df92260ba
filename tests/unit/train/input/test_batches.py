"""Batches of prefetch() against the plain DataLoader of the same seed: order, randomness, resuming, breaking off."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from input_samples import MemorySource
from torch.utils.data import DataLoader, DistributedSampler, Sampler, SequentialSampler, WeightedRandomSampler

import hemiola
from hemiola.core.errors import InputError
from hemiola.cost.io import StoreModel
from hemiola.train.input import StoredSamples
from hemiola.train.input.source import StoreChangedError

STORE = StoreModel(0.001, 1e9)
RECORDS, RECORD = 37, 64
DATA = np.repeat(np.arange(RECORDS, dtype=np.uint32), RECORD // 4).tobytes()


def decode(parts: list[memoryview]) -> torch.Tensor:
    """The number of a record, and draws from all three generators, as augmentation makes them."""
    number = np.frombuffer(parts[0], dtype=np.uint32)[0]
    return torch.tensor(
        [float(number), random.random(), np.random.rand(), float(torch.rand(()))], dtype=torch.float64
    )


def samples(source: MemorySource | None = None) -> StoredSamples:
    source = source or MemorySource(DATA)
    return StoredSamples([((source, i * RECORD, RECORD),) for i in range(RECORDS)], decode)


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seeded() -> None:
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)


HOWS: dict[str, Any] = {
    "in order": lambda: {"batch_size": 5},
    "shuffled by the global generator": lambda: {"batch_size": 5, "shuffle": True},
    "shuffled by its own": lambda: {"batch_size": 4, "shuffle": True, "generator": generator()},
    "drop last": lambda: {"batch_size": 5, "shuffle": True, "drop_last": True, "generator": generator()},
    "weighted": lambda: {
        "batch_size": 6, "sampler": WeightedRandomSampler(torch.arange(1.0, RECORDS + 1), 50, generator=generator()),
    },
    "ranks": lambda: {"batch_size": 3, "sampler": DistributedSampler(range(RECORDS), 2, 1, seed=4)},  # type: ignore[arg-type]
    "single": lambda: {"batch_size": None, "shuffle": True, "generator": generator()},
}  # fmt: skip


def epochs(loader: Any, count: int, steps: int = 0) -> list[list[torch.Tensor]]:
    """Epochs' batches; the training loop draws, too."""
    found = []
    for epoch in range(count):
        if hasattr(getattr(loader, "sampler", None), "set_epoch"):
            loader.sampler.set_epoch(epoch)
        batches = []
        for batch in loader:
            batches.append(batch)
            torch.rand(3)
            if steps and len(batches) == steps:
                break
        found.append(batches)
    return found


def same(left: list[list[torch.Tensor]], right: list[list[torch.Tensor]]) -> bool:
    return [len(a) for a in left] == [len(b) for b in right] and all(
        torch.equal(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True)
    )


@pytest.mark.parametrize("how", HOWS)
def test_bit_equal_to_the_plain_loader_over_epochs(how: str) -> None:
    seeded()
    plain = epochs(DataLoader(samples(), **HOWS[how]()), 3)  # type: ignore[arg-type]
    seeded()
    loader = hemiola.prefetch(DataLoader(samples(), **HOWS[how]()), store=STORE)  # type: ignore[arg-type]
    assert same(plain, epochs(loader, 3))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("steps", [1, 3, 7])
def test_an_epoch_that_is_broken_off_leaves_the_next_as_it_would_be(how: str, steps: int) -> None:
    seeded()
    plain = epochs(DataLoader(samples(), **HOWS[how]()), 3, steps)  # type: ignore[arg-type]
    seeded()
    loader = hemiola.prefetch(DataLoader(samples(), **HOWS[how]()), store=STORE)  # type: ignore[arg-type]
    assert same(plain, epochs(loader, 3, steps))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("used", [0, 1, 4])
def test_resuming_goes_on_after_what_was_used(how: str, used: int) -> None:
    seeded()
    loader = hemiola.prefetch(DataLoader(samples(), **HOWS[how]()), store=STORE)  # type: ignore[arg-type]
    first, rest, state = iter(loader), [], None
    for _ in range(used):
        next(first)
        torch.rand(3)
    state = loader.state_dict()
    rest = list(first)
    after = list(loader)
    torch.manual_seed(99)
    again = hemiola.prefetch(DataLoader(samples(), **HOWS[how]()), store=STORE)  # type: ignore[arg-type]
    again.load_state_dict(state)
    assert same([rest], [list(again)])
    if HOWS[how]().get("generator") is not None:
        assert [b[..., 0].tolist() for b in after] == [b[..., 0].tolist() for b in again]


def test_a_state_between_epochs_begins_the_next() -> None:
    seeded()
    loader = hemiola.prefetch(samples(), store=STORE, batch_size=5, shuffle=True, generator=generator())
    list(loader)
    state, second = loader.state_dict(), list(loader)
    again = hemiola.prefetch(samples(), store=STORE, batch_size=5, shuffle=True, generator=generator(77))
    again.load_state_dict(state)
    assert again.epoch == 1 and same([second], [list(again)])


def test_the_next_epochs_reads_begin_before_this_one_ends() -> None:
    source = MemorySource(DATA)
    loader = hemiola.prefetch(samples(source), store=STORE, batch_size=5, shuffle=True, generator=generator())
    first = list(loader)
    assert len(first) == 8 and len(source.reads) > RECORDS  # some are of the next epoch by now
    early = len(source.reads)
    second = list(loader)
    asked = {offset for offset, _ in source.reads[RECORDS:early]}
    assert asked <= {int(n) * RECORD for batch in second[:4] for n in batch[:, 0]}


def test_a_wrong_guess_does_no_harm() -> None:
    def run(made: Any) -> list[list[float]]:
        own = generator()
        loader = made(DataLoader(samples(), batch_size=5, shuffle=True, generator=own))  # type: ignore[arg-type]
        list(loader)
        own.manual_seed(123)
        return [b[:, 0].tolist() for b in loader]

    assert run(lambda plain: plain) == run(lambda plain: hemiola.prefetch(plain, store=STORE))


class Drawing(Sampler[int]):
    """Draws from the global generator for every entry."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(20):
            yield int(torch.randint(RECORDS, ()))

    def __len__(self) -> int:
        return 20


def test_a_sampler_whose_draws_would_move_is_refused() -> None:
    loader = hemiola.prefetch(samples(), store=STORE, batch_size=2, sampler=Drawing())
    with pytest.raises(InputError, match="draws from the global generator"):
        list(loader)


def test_neighbours_are_one_request() -> None:
    source = MemorySource(DATA)
    loader = hemiola.prefetch(
        samples(source), store=STORE, batch_size=10, sampler=SequentialSampler(range(RECORDS))
    )  # type: ignore[arg-type]
    assert [len(b) for b in loader] == [10, 10, 10, 7]
    assert max(length for _, length in source.reads) == 10 * RECORD


def test_a_batch_above_the_budget_is_refused() -> None:
    big = MemorySource(bytes(400_000))
    data = StoredSamples([((big, 0, 200_000),)] * 4, lambda parts: len(parts[0]))
    with pytest.raises(InputError, match=r"a batch of 400.00 kB does not fit"):
        list(hemiola.prefetch(data, memory="100KB", store=STORE, batch_size=2))


def test_memory_stays_below_the_budget() -> None:
    source = MemorySource(bytes(1_000_000))
    data = StoredSamples([((source, 0, 50_000),)] * 40, lambda parts: torch.zeros(1))
    loader = hemiola.prefetch(data, memory="300KB", store=STORE, batch_size=2)
    first = iter(loader)
    next(first)
    ahead = len(source.reads) + loader.reader.backlog + loader.reader.active - 2
    assert 50_000 * ahead <= 300_000


def test_a_changed_object_is_named_when_a_state_is_loaded() -> None:
    source = MemorySource(DATA, url="memory://a")
    loader = hemiola.prefetch(samples(source), store=STORE, batch_size=5)
    next(iter(loader))
    state = loader.state_dict()
    source.version = lambda: "2"  # type: ignore[method-assign]
    again = hemiola.prefetch(samples(source), store=STORE, batch_size=5)
    again.load_state_dict(state)
    with pytest.raises(StoreChangedError, match="memory://a has changed"):
        next(iter(again))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (list(range(4)), "does not say which bytes"),
        (torch.utils.data.ChainDataset([]), "an iterable data set reads for itself"),
    ],
)
def test_data_sets_that_cannot_be_read_ahead_are_refused(data: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        hemiola.prefetch(data, store=STORE)


def test_other_states_are_refused() -> None:
    loader = hemiola.prefetch(samples(), store=STORE, batch_size=5)
    with pytest.raises(InputError, match="schema"):
        loader.load_state_dict({})
    with pytest.raises(InputError, match="samples 3"):
        loader.load_state_dict({**loader.state_dict(), "samples": 3})
