"""Data sets whose samples are ranges of objects: what is read, apart from what is made of it.

Reading can then run ahead in many requests, while decoding stays where the loader has it, with the loader's own
order and randomness. A data set of your own needs no base class from here: `requests(index)` and
`decode(index, parts)` beside `__getitem__` are enough.
"""

from __future__ import annotations

import json
import struct
import tarfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader, RawIOBase
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Protocol, runtime_checkable

from hemiola.core.errors import InputError
from hemiola.train.input.reader import PendingRange, RangeReader
from hemiola.train.input.source import ByteSource, open_source

__all__ = ["RangeRequests", "RemoteFile", "StoredSamples", "read_whole"]

Request = tuple[ByteSource, int, int]
"""Source, offset and length."""
Decode = Callable[[list[memoryview]], Any]

INDEXING_THREADS = 16


@runtime_checkable
class RangeRequests(Protocol):
    """What `prefetch` asks of a data set."""

    def __len__(self) -> int: ...

    def requests(self, index: int) -> Sequence[Request]:
        """The ranges that a sample needs."""

    def decode(self, index: int, parts: list[memoryview]) -> Any:
        """The sample, from the bytes of its ranges, in their order."""


class StoredSamples:
    """A map-style data set of ranges; without `prefetch` it reads them one after the other.

    Args:
        samples: the ranges of each sample.
        decode: makes a sample of its ranges' bytes, in their order. The bytes may not be changed.
    """

    def __init__(self, samples: Sequence[Sequence[Request]], decode: Decode) -> None:
        self._samples, self._decode = samples, decode

    def __len__(self) -> int:
        return len(self._samples)

    def requests(self, index: int) -> Sequence[Request]:
        """The ranges that a sample needs."""
        return self._samples[index]

    def decode(self, index: int, parts: list[memoryview]) -> Any:
        """The sample, from the bytes of its ranges."""
        return self._decode(parts)

    def __getitem__(self, index: int) -> Any:
        return self.decode(index, [read_whole(*request) for request in self.requests(index)])

    @classmethod
    def of_objects(cls, urls: Iterable[str], decode: Decode) -> StoredSamples:
        """One sample per object; sizes and versions are asked for now, several at a time."""
        sources = [open_source(url) for url in urls]
        with ThreadPoolExecutor(INDEXING_THREADS) as pool:
            sizes = list(pool.map(lambda source: source.size(), sources))
        return cls([((source, 0, size),) for source, size in zip(sources, sizes, strict=True)], decode)

    @classmethod
    def of_records(cls, urls: Iterable[str], record_bytes: int, decode: Decode) -> StoredSamples:
        """Objects that are records of one length, one after the other."""
        samples: list[Sequence[Request]] = []
        for source in map(open_source, urls):
            if source.size() % record_bytes:
                raise InputError(
                    f"{source.url} has {source.size()} bytes, no multiple of {record_bytes}",
                    "give the length of its records",
                )
            samples += [((source, at, record_bytes),) for at in range(0, source.size(), record_bytes)]
        return cls(samples, decode)

    @classmethod
    def of_tar(cls, urls: Iterable[str], decode: Callable[[dict[str, memoryview]], Any]) -> StoredSamples:
        """WebDataset shards: files of one name up to its first dot are one sample, by the rest of the name.

        Args:
            urls: of uncompressed tar files; their headers are read now.
            decode: from {"jpg": bytes, "cls": bytes, ...}.
        """
        sources = [open_source(url) for url in urls]
        with ThreadPoolExecutor(INDEXING_THREADS) as pool:
            indexed = list(pool.map(_tar_samples, sources))
        found = [sample for shard in indexed for sample in shard]
        return _Named([requests for requests, _ in found], [names for _, names in found], decode)

    @classmethod
    def of_mds(cls, folder: str) -> StoredSamples:
        """MosaicML shards (MDS, uncompressed): a folder with index.json; samples are {column: value}.

        Columns of encodings bytes, str, int, float64 and json are decoded; others stay bytes.
        """
        index_source = open_source(f"{folder.rstrip('/')}/index.json")
        index = json.loads(bytes(read_whole(index_source, 0, index_source.size())))
        shards = [
            (open_source(f"{folder.rstrip('/')}/{s['raw_data']['basename']}"), s) for s in index["shards"]
        ]
        if any(shard.get("format") != "mds" or shard.get("compression") for _, shard in shards):
            raise InputError(f"{folder} has shards that are not plain MDS", "write them without compression")
        with ThreadPoolExecutor(INDEXING_THREADS) as pool:
            spans = list(pool.map(lambda pair: _mds_spans(pair[0], pair[1]["samples"]), shards))
        samples: list[Sequence[Request]] = [(request,) for shard in spans for request in shard]
        return cls(samples, _MdsDecode(shards[0][1] if shards else {}))


class _Named(StoredSamples):
    def __init__(
        self, samples: Sequence[Sequence[Request]], names: Sequence[tuple[str, ...]], decode: Any
    ) -> None:
        super().__init__(samples, decode)
        self._names = names

    def decode(self, index: int, parts: list[memoryview]) -> Any:
        return self._decode(dict(zip(self._names[index], parts, strict=True)))  # type: ignore[arg-type]


def read_whole(source: ByteSource, offset: int, length: int) -> memoryview:
    """A range, read here and now."""
    data = bytearray(length)
    if length:
        source.read(offset, memoryview(data), lambda count: None)
    return memoryview(data).toreadonly()


def _tar_samples(source: ByteSource) -> list[tuple[list[Request], tuple[str, ...]]]:
    found: dict[str, list[tuple[str, Request]]] = {}
    with tarfile.open(fileobj=RemoteFile(source), mode="r:") as archive:
        for member in archive:
            if member.isreg():
                path = PurePosixPath(member.name)
                stem, _, ending = path.name.partition(".")
                request = (source, member.offset_data, member.size)
                found.setdefault(str(path.with_name(stem)), []).append((ending, request))
    return [([r for _, r in parts], tuple(name for name, _ in parts)) for parts in found.values()]


def _mds_spans(source: ByteSource, samples: int) -> list[Request]:
    """Where samples lie: the shard begins with their number and their offsets, 32 bits each."""
    head = read_whole(source, 0, 4 * (samples + 2))
    count, *offsets = struct.unpack(f"<{samples + 2}I", head)
    if count != samples:
        raise InputError(
            f"{source.url} has {count} samples where its index says {samples}", "write the index anew"
        )
    return [(source, a, b - a) for a, b in pairwise(offsets)]


class _MdsDecode:
    """One sample's bytes: the sizes of its columns of any size, then all columns."""

    def __init__(self, shard: dict[str, Any]) -> None:
        self._columns = list(
            zip(
                shard.get("column_names", ()),
                shard.get("column_encodings", ()),
                shard.get("column_sizes", ()),
                strict=True,
            )
        )

    def __call__(self, parts: list[memoryview]) -> dict[str, Any]:
        data = parts[0]
        free = [name for name, _, size in self._columns if not size]
        sizes = dict(zip(free, struct.unpack_from(f"<{len(free)}I", data), strict=True))
        at, sample = 4 * len(free), {}
        for name, encoding, size in self._columns:
            length = size or sizes[name]
            sample[name] = _mds_value(encoding, data[at : at + length])
            at += length
        return sample


def _mds_value(encoding: str, data: memoryview) -> Any:
    match encoding:
        case "str":
            return str(data, "utf-8")
        case "int":
            return struct.unpack("<q", data)[0]
        case "float64":
            return struct.unpack("<d", data)[0]
        case "json":
            return json.loads(bytes(data))
    return bytes(data)


class _Raw(RawIOBase):
    """A source as a file: blocks are read ahead where it is read in order."""

    def __init__(self, source: ByteSource, reader: RangeReader | None, ahead: int) -> None:
        self._source, self._reader, self._ahead = source, reader, ahead
        self._at = 0
        self._pieces: dict[int, PendingRange] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._source.size())[whence]
        return self._at

    def readinto(self, into: Any) -> int:
        view = memoryview(into).cast("B")
        count = min(len(view), self._source.size() - self._at)
        if count <= 0:
            return 0
        if self._reader is None:
            self._source.read(self._at, view[:count], lambda n: None)
        else:
            data = self._block(self._at)
            count = min(count, len(data))
            view[:count] = data[:count]
        self._at += count
        return count

    def _block(self, at: int) -> memoryview:
        """From here to the end of the block that holds it; further blocks are asked for."""
        assert self._reader is not None
        size = max(1 << 16, self._reader.read_bytes)
        begin = next((b for b, p in self._pieces.items() if b <= at < b + p.length), None)
        if begin is None:
            for piece in self._pieces.values():
                piece.cancel()
            self._pieces = {at: self._ask(at, size)}
            begin = at
        for passed in [b for b in self._pieces if b < begin]:
            del self._pieces[passed]
        last = max(self._pieces)
        end = last + self._pieces[last].length
        while len(self._pieces) <= max(self._ahead, self._reader.in_flight) and end < self._source.size():
            self._pieces[end] = self._ask(end, size)
            end += self._pieces[end].length
        return self._pieces[begin].wait()[at - begin :]

    def _ask(self, at: int, size: int) -> PendingRange:
        assert self._reader is not None
        return self._reader.submit(self._source, at, min(size, self._source.size() - at))


class RemoteFile(BufferedReader):
    """A source as a seekable binary file: for tarfile, pyarrow, h5py, webdataset and whatever else takes one.

    Args:
        source: a source, or its URL.
        reader: reads blocks ahead, several at once, as long as the file is read in order; None: reads what is asked for.
        ahead: blocks, at least; as many as the reader has requests in flight.
    """

    def __init__(self, source: ByteSource | str, reader: RangeReader | None = None, ahead: int = 2) -> None:
        opened = open_source(source) if isinstance(source, str) else source
        super().__init__(_Raw(opened, reader, ahead), buffer_size=4096 if reader is None else 1 << 16)
