"""Batches read ahead: a DataLoader's own batches, bit for bit, whose bytes come from a reader that tunes itself.

The DataLoader stays what it is: its sampler gives the order, its workers decode and collate, with its seeds. Only
the bytes of samples are there before a sample is asked for: this process walks ahead in the sampler's order, as far
as the memory allows, and passes the bytes along with the indices.

What looks ahead must not change what is drawn. Generators are put back to where the plain loader would have them
when an epoch is broken off; the next epoch's first batches are read before this one ends, by a guess of their order
that is compared with the order when it comes.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from hemiola.core.errors import InputError
from hemiola.core.units import format_bytes, parse_size
from hemiola.cost.io import StoreModel
from hemiola.plan.io.tuner import ReadLimits, worker_share
from hemiola.train.input.probe import measure_stream
from hemiola.train.input.reader import PendingRange, RangeReader
from hemiola.train.input.samples import RangeRequests
from hemiola.train.input.share import share_input
from hemiola.train.input.source import StoreChangedError

__all__ = ["PrefetchLoader", "prefetch"]

SCHEMA = "hemiola.prefetch/1"
DRAW_AT_FIRST = (
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    DistributedSampler,
)
"""Samplers that draw from the global generator, if at all, when their first entry is asked for."""
AHEAD_BATCHES = 4
PINNED_MOST = 1000
"""Objects whose versions a state holds."""


def prefetch(
    data: Any,
    *,
    memory: str | float = "256MB",
    store: StoreModel | None = None,
    reader: RangeReader | None = None,
    restore_rng: bool = True,
    verify_md5: bool = False,
    **loader: Any,
) -> PrefetchLoader:
    """Read a loader's samples ahead, with as many requests at once as the store wants.

        loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=4, generator=generator)
        for batch in hemiola.prefetch(loader):
            ...

    Args:
        data: a DataLoader, or a data set; its data set has `requests` and `decode`, as `StoredSamples` does.
        memory: what batches that are read ahead may take together.
        store: what "hemiola io probe" found; a few requests find it unless given.
        reader: one to share among loaders.
        restore_rng: let a resumed epoch begin with the global generators as they were when the state was taken.
        verify_md5: compare whole objects with their ETag where that is an MD5 (plain objects of S3).
        loader: arguments of the DataLoader, where a data set is given.

    Raises:
        InputError: a data set that does not say its ranges, or a budget below one batch.
    """
    if not isinstance(data, DataLoader):
        data = DataLoader(data, **loader)
    elif loader:
        raise InputError(
            f"{', '.join(sorted(loader))} beside a DataLoader", "give them to the DataLoader itself"
        )
    if isinstance(data.dataset, IterableDataset):
        raise InputError(
            "an iterable data set reads for itself, in an order that nobody else knows",
            "open its shards as hemiola.train.input.RemoteFile(url, reader), which reads them ahead",
        )
    if not isinstance(data.dataset, RangeRequests):
        raise InputError(
            f"the data set {type(data.dataset).__name__} does not say which bytes its samples need",
            "give it requests(index) and decode(index, parts), or make it by hemiola.train.input.StoredSamples",
        )
    memory_bytes = parse_size(memory) if isinstance(memory, str) else float(memory)
    return PrefetchLoader(data, memory_bytes, store, reader, restore_rng, verify_md5)


@dataclass(frozen=True)
class _Fetched:
    """An index with the bytes of its ranges; index None is a place that a resumed epoch leaves out."""

    index: int | None
    parts: tuple[Any, ...] = ()
    rng: bytes | None = None


class _Decoding:
    """The data set as workers see it: indices come with their bytes."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, fetched: _Fetched) -> Any:
        if fetched.rng is not None:
            _set_rng(fetched.rng)
        if fetched.index is None:
            return fetched
        return self._dataset.decode(fetched.index, [memoryview(part) for part in fetched.parts])


class _Collating:
    """The loader's own collation, and beside it where the worker's generators are then."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> tuple[Any, bytes | None]:
        first = samples[0] if isinstance(samples, list) and samples else samples
        if isinstance(first, _Fetched):
            return first, None
        batch = self._collate(samples)
        return batch, _get_rng() if get_worker_info() is not None else None


@dataclass
class _Ahead:
    """A batch whose bytes are on their way."""

    indices: Any
    pieces: list[PendingRange]
    cuts: list[list[tuple[int, int, int]]]
    size_bytes: int
    drawn: list[Any]

    def cancel(self) -> None:
        for piece in self.pieces:
            piece.cancel()

    def ready(self) -> bool:
        return all(piece.ready() for piece in self.pieces)

    def fetched(self, rng: bytes | None, *, copy: bool) -> Any:
        """The indices with their bytes, as soon as these are there."""
        whole = [piece.wait() for piece in self.pieces]
        parts = [
            tuple(bytes(whole[p][a:b]) if copy else whole[p][a:b] for p, a, b in cuts) for cuts in self.cuts
        ]
        if not isinstance(self.indices, list):
            return _Fetched(self.indices, parts[0], rng)
        return [
            _Fetched(index, part, rng if i == 0 else None)
            for i, (index, part) in enumerate(zip(self.indices, parts, strict=True))
        ]


class _Order:
    """The loader's sampler, walked ahead of what the loader asks for."""

    def __init__(self, loader: PrefetchLoader, sampler: Any) -> None:
        self._loader, self._sampler = loader, sampler
        self._guessed: deque[_Ahead] = deque()
        self.skip = 0
        self.resumed_rng: bytes | None = None

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        loader, skip, rng = self._loader, self.skip, self.resumed_rng
        self.skip, self.resumed_rng = 0, None
        known = iter(self._sampler)
        if rng is not None and not skip:  # nothing was drawn by the time of the state
            _set_rng(rng)
            rng = None
        for _ in range(skip):
            next(known)
        workers = loader.num_workers
        for _ in range(skip % workers if workers else 0):  # so that batches go to the workers they went to
            yield [_Fetched(None)] if loader.batched else _Fetched(None)
        yield from self._walk(known, skip, rng)

    def _walk(self, known: Iterator[Any], at: int, rng: bytes | None) -> Iterator[Any]:
        loader, waiting, more = self._loader, deque[_Ahead](), True
        worker_rng = dict(loader.resumed_workers)
        try:
            while True:
                pulled = 0
                while more and self._room(waiting) and not (pulled > 1 and waiting[0].ready()):
                    pulled += 1  # two for each that is taken, where somebody would wait for more
                    ahead = self._pull(known, first=not waiting and at == 0)
                    more = ahead is not None
                    if ahead is not None:
                        waiting.append(ahead)
                if not more:
                    self._guess(waiting)
                if not waiting:
                    return
                ahead = waiting.popleft()
                if rng is not None:
                    _set_rng(rng)
                    rng = None
                state = worker_rng.pop(at % loader.num_workers, None) if loader.num_workers else None
                result = ahead.fetched(state, copy=loader.num_workers > 0)
                loader.drawn = ahead.drawn
                at += 1
                yield result
        finally:
            for ahead in waiting:
                ahead.cancel()

    def _room(self, waiting: deque[_Ahead]) -> bool:
        """Whether another batch may be asked for: one always, and then as far as the memory and the need go."""
        if not waiting:
            return True
        used = sum(ahead.size_bytes for ahead in waiting)
        reader = self._loader.reader
        batch = max(ahead.size_bytes for ahead in waiting)
        wanted = max(AHEAD_BATCHES * batch, 3 * reader.in_flight * reader.read_bytes)
        return used + batch <= min(self._loader.memory_bytes, wanted)

    def _pull(self, known: Iterator[Any], *, first: bool) -> _Ahead | None:
        watched = not first and not self._loader.draws_at_first
        before = _get_rng() if watched else b""
        try:
            indices = next(known)
        except StopIteration:
            return None
        finally:
            if watched and _get_rng() != before:
                raise InputError(
                    f"the sampler {type(self._sampler).__name__} draws from the global generator for each batch: reading "
                    "ahead would change what else is drawn",
                    "give it a generator of its own",
                )
        return self._matching(indices) or self._ask(indices)

    def _matching(self, indices: Any) -> _Ahead | None:
        """The guess of this batch, if it was right; a wrong one ends all guesses."""
        if not self._guessed:
            return None
        guess = self._guessed.popleft()
        if guess.indices == indices:
            guess.drawn = self._loader.states()
            return guess
        for other in (guess, *self._guessed):
            other.cancel()
        self._guessed.clear()
        return None

    def _ask(self, indices: Any) -> _Ahead:
        loader = self._loader
        listed = indices if isinstance(indices, list) else [indices]
        ranges: list[tuple[Any, int, int]] = []
        cuts: list[list[tuple[int, int, int]]] = []
        for index in listed:
            cuts.append([])
            for source, offset, length in loader.dataset.requests(index):
                last = ranges[-1] if ranges else None
                if (
                    last
                    and last[0] is source
                    and last[1] + last[2] == offset
                    and last[2] + length <= loader.reader.read_bytes
                ):
                    ranges[-1] = (source, last[1], last[2] + length)  # neighbours are one request
                    cuts[-1].append((len(ranges) - 1, last[2], last[2] + length))
                else:
                    ranges.append((source, offset, length))
                    cuts[-1].append((len(ranges) - 1, 0, length))
        size_bytes = sum(length for _, _, length in ranges)
        if size_bytes > loader.memory_bytes:
            raise InputError(
                f"a batch of {format_bytes(size_bytes)} does not fit the memory budget of "
                f"{format_bytes(loader.memory_bytes)}",
                "give prefetch() more memory, or the loader smaller batches",
            )
        for source, _, _ in ranges:
            loader.pin(source)
        return _Ahead(indices, loader.reader.submit_all(ranges), cuts, size_bytes, loader.states())

    def _guess(self, waiting: deque[_Ahead]) -> None:
        """Read the next epoch's first batches while this one's last are on their way."""
        if self._guessed or not self._loader.guesses or not waiting:
            return
        for indices in self._loader.next_order(self._sampler, AHEAD_BATCHES):
            used = sum(ahead.size_bytes for ahead in (*waiting, *self._guessed))
            if used + max(ahead.size_bytes for ahead in waiting) > self._loader.memory_bytes:
                break
            self._guessed.append(self._ask(indices))


class PrefetchLoader:
    """A DataLoader whose samples are read ahead; made by `prefetch`.

    Attributes:
        reader: what reads: its `tuner.setting` says how, its `counts` how it went.
        batch_sampler, sampler: the loader's, for `set_epoch`.
        dataset: the loader's.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        memory_bytes: float,
        store: StoreModel | None,
        reader: RangeReader | None,
        restore_rng: bool,
        verify_md5: bool = False,
    ) -> None:
        self.dataset: Any = loader.dataset
        self.sampler, self.batch_sampler = loader.sampler, loader.batch_sampler
        self.num_workers, self.memory_bytes = loader.num_workers, memory_bytes
        self.batched = loader.batch_sampler is not None
        self._generator, self._restore_rng = loader.generator, restore_rng
        sampler = loader.batch_sampler if self.batched else loader.sampler
        inner = getattr(sampler, "sampler", sampler) if isinstance(sampler, BatchSampler) else sampler
        self._inner = inner
        self.draws_at_first = isinstance(inner, DRAW_AT_FIRST)
        self._generators = [
            g for g in {id(g): g for g in (loader.generator, getattr(inner, "generator", None))}.values() if g
        ]
        self.reader = reader or self._make_reader(store, verify_md5)
        self._versions: dict[str, str] = {}
        self._order = _Order(self, sampler)
        self._loader = self._rebuilt(loader)
        self.epoch, self.used = 0, 0
        self.drawn: list[Any] = []
        self._begun: dict[str, Any] | None = None
        self._resume: dict[str, Any] | None = None
        self.resumed_workers: dict[int, bytes] = {}
        self._worker_rng: dict[int, bytes] = {}
        self._running: _Batches | None = None
        self._shares = False

    def _make_reader(self, store: StoreModel | None, verify_md5: bool) -> RangeReader:
        if store is None and len(self.dataset):
            source, _, _ = next(iter(self.dataset.requests(0)))
            store = measure_stream(source)
        ranks, rank = (int(os.environ.get(name, "0")) for name in ("LOCAL_WORLD_SIZE", "LOCAL_RANK"))
        most = worker_share(ReadLimits.in_flight, max(1, ranks), rank)  # ranks of a host divide its requests
        limits = ReadLimits(memory_bytes=max(self.memory_bytes, 2.0**16), in_flight=most)
        return RangeReader(store, limits, verify_md5=verify_md5)

    def _rebuilt(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """The same loader, whose indices come with bytes."""
        how: dict[str, Any] = {
            "num_workers": loader.num_workers,
            "collate_fn": _Collating(loader.collate_fn),
            "pin_memory": loader.pin_memory,
            "timeout": loader.timeout,
            "worker_init_fn": loader.worker_init_fn,
            "generator": loader.generator,
        }
        if loader.num_workers:
            how["multiprocessing_context"] = loader.multiprocessing_context
            how["prefetch_factor"] = loader.prefetch_factor
            how["persistent_workers"] = loader.persistent_workers
        if self.batched:
            how["batch_sampler"] = self._order
        else:
            how.update(batch_size=None, sampler=self._order)
        return DataLoader(_Decoding(self.dataset), **how)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> _Batches:
        if self._running is not None and not self._running.ended:
            self._running.abandon()
            if self.drawn:
                self._put_back(self.drawn)
        if not self._shares:
            self._shares = True
            share_input(self.reader)
        resume, self._resume = self._resume, None
        if resume is not None:
            self._replay(resume)
        else:
            self.used, self.resumed_workers, self._worker_rng = 0, {}, {}
            self._begun = {"torch": torch.random.get_rng_state(), "generators": self.states()}
        self._running = _Batches(self, iter(self._loader))
        if resume is not None and self._restore_rng and self.num_workers:
            _set_rng(resume["rng"])
        return self._running

    def _replay(self, state: dict[str, Any]) -> None:
        """Put the generators to where the epoch began, and leave out what was used."""
        self._begun = state["begun"]
        self._put_back(state["begun"]["generators"])
        torch.random.set_rng_state(state["begun"]["torch"])
        self._order.skip = self.used = state["used"]
        self.resumed_workers = dict(state["workers"])
        self._worker_rng = dict(state["workers"])
        if self._restore_rng and not self.num_workers:
            self._order.resumed_rng = state["rng"]

    def set_epoch(self, epoch: int) -> None:
        """As `DistributedSampler.set_epoch`, for the sampler that has one."""
        for sampler in (self.batch_sampler, self.sampler):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
                return

    def states(self) -> list[Any]:
        """Where the loader's own generators are."""
        return [generator.get_state() for generator in self._generators]

    def _put_back(self, states: Sequence[Any]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    @property
    def guesses(self) -> bool:
        """Whether the order of the next epoch can be told in this one."""
        inner = self._inner
        if isinstance(inner, SequentialSampler | DistributedSampler):
            return True
        return isinstance(inner, RandomSampler | WeightedRandomSampler | SubsetRandomSampler) and (
            inner.generator is not None
        )

    def next_order(self, sampler: Any, batches: int) -> list[Any]:
        """The first batches of the next epoch, if nothing else is drawn by then; nothing is changed by asking."""
        states, inner = self.states(), self._inner
        epoch = getattr(inner, "epoch", None)
        try:
            if isinstance(inner, DistributedSampler):
                inner.set_epoch(inner.epoch + 1)
            if self._generator is not None:
                torch.empty((), dtype=torch.int64).random_(generator=self._generator)  # the workers' seed
            walk = iter(sampler)
            return [indices for _, indices in zip(range(batches), walk, strict=False)]
        finally:
            self._put_back(states)
            if isinstance(inner, DistributedSampler) and epoch is not None:
                inner.set_epoch(epoch)

    def pin(self, source: Any) -> None:
        """Remember the version of an object that is read; one that a resumed state knows must be the same."""
        if source.url not in self._versions and len(self._versions) < PINNED_MOST:
            self._versions[source.url] = source.version()
        elif self._versions.get(source.url, source.version()) != source.version():
            raise StoreChangedError(source.url)

    def delivered(self, rng: bytes | None) -> None:
        """A batch is in the hands of the training loop."""
        if rng is not None:
            self._worker_rng[self.used % self.num_workers] = rng
        self.used += 1

    def ended(self) -> None:
        """All batches of an epoch were used."""
        self.epoch += 1
        self.used, self._begun = 0, None

    def state_dict(self) -> dict[str, Any]:
        """Which batches the training loop has used, for a checkpoint: take it between steps, save it with the model.

        Batches that were read or decoded ahead do not count. It holds tensors and bytes: `torch.save` takes it.
        """
        return {
            "schema": SCHEMA,
            "samples": len(self.dataset),
            "epoch": self.epoch,
            "used": self.used,
            "num_workers": self.num_workers,
            "begun": self._begun
            if self._begun is not None
            else {"torch": torch.random.get_rng_state(), "generators": self.states()},
            "between": self._begun is None,
            "rng": _get_rng(),
            "workers": dict(self._worker_rng),
            "versions": dict(self._versions),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken: the next `for batch in loader` begins with the first batch that was not used.

        Raises:
            InputError: the state of another data set, or of other workers.
            StoreChangedError: an object is not the one that was read then.
        """
        if state.get("schema") != SCHEMA:
            raise InputError(f"a state of schema {state.get('schema')!r}", "give what state_dict() returned")
        for name, own in (("samples", len(self.dataset)), ("num_workers", self.num_workers)):
            if state[name] != own:
                raise InputError(
                    f"the state was taken with {name} {state[name]}, this loader has {own}",
                    "make the loader with what it was taken with: batches would not be the same",
                )
        self._versions = dict(state["versions"])
        self.epoch, self.used = state["epoch"], state["used"]
        if state["between"]:
            self._put_back(state["begun"]["generators"])
            if self._restore_rng:
                _set_rng(state["rng"])
        else:
            self._resume = state

    def close(self) -> None:
        """End the reader's threads."""
        self.reader.close()


class _Batches:
    """One epoch's iterator."""

    def __init__(self, owner: PrefetchLoader, batches: Any) -> None:
        self._owner, self._batches = owner, batches
        self.ended = False

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        while True:
            try:
                batch, rng = next(self._batches)
            except StopIteration:
                self.ended = True
                self._owner.ended()
                raise
            if not isinstance(batch, _Fetched):
                self._owner.delivered(rng)
                return batch

    def abandon(self) -> None:
        """Another epoch begins before this one ended."""
        self.ended = True
        self._batches = iter(())


def _get_rng() -> bytes:
    """Where this process's global generators are: PyTorch's, Python's, and NumPy's where it is in use."""
    numpy = sys.modules.get("numpy")
    return pickle.dumps(
        (
            torch.random.get_rng_state().numpy().tobytes(),
            random.getstate(),
            numpy.random.get_state() if numpy is not None else None,
        )
    )


def _set_rng(state: bytes) -> None:
    own, python, numeric = pickle.loads(state)
    torch.random.set_rng_state(torch.frombuffer(bytearray(own), dtype=torch.uint8))
    random.setstate(python)
    if numeric is not None:
        import numpy

        numpy.random.set_state(numeric)
