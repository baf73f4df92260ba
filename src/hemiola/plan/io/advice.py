"""What a measured store means for loaders, in the words of each. Sources: their documentation, as of 2026."""

from __future__ import annotations

import math
from typing import NamedTuple

from hemiola.cost.io import StoreModel

__all__ = ["LoaderAdvice", "loader_advice"]

CRT_GBIT_PER_CONNECTION = 0.4
"""aws-c-s3 opens max(10, target / 0.4 Gbit/s) connections."""


class LoaderAdvice(NamedTuple):
    """One loader, and what to set.

    Attributes:
        loader: its name.
        setting: as it is written there.
        why: in a sentence.
    """

    loader: str
    setting: str
    why: str


def loader_advice(store: StoreModel, sample_bytes: float | None = None) -> tuple[LoaderAdvice, ...]:
    """How to reach the store's share with each loader.

    Args:
        store: with its share known.
        sample_bytes: what one sample reads, where known: loaders of one request per sample read so much at once.
    """
    read = store.read_bytes()
    flights = store.knee(read)
    sample = sample_bytes or read
    each = store.knee(sample)
    workers = min(each, 16)
    factor = max(2, math.ceil(each / workers))
    gbit = store.share_bytes_per_s * 8 / 1e9
    crt = max(10, math.ceil(gbit / CRT_GBIT_PER_CONNECTION))
    part = max(5, round(max(read, 5 * 2**20) / 2**20))
    return (
        LoaderAdvice(
            "hemiola",
            "hemiola.prefetch(loader)",
            f"finds {flights} requests of {_kib(read)} by itself, and follows when the store changes",
        ),
        LoaderAdvice(
            "PyTorch DataLoader",
            f"num_workers={workers}, prefetch_factor={factor}",
            f"a worker reads one sample at a time: {each} requests of {_kib(sample)} fill the share"
            + ("" if each <= workers else f"; {workers} workers reach {100 * workers / each:.0f} % of it"),
        ),
        LoaderAdvice(
            "s3torchconnector",
            f"S3ClientConfig(throughput_target_gbps={max(0.1, gbit):.1f}, part_size={part} * 1024 * 1024)",
            f"{crt} connections in each process (10 at least), parts of 5 MiB at least; it reads nothing from results",
        ),
        LoaderAdvice(
            "obstore",
            f"{flights} x get_range of {read} bytes at once",
            "concurrency is the caller's: start so many from threads, or with asyncio.gather",
        ),
        LoaderAdvice(
            "MosaicML Streaming",
            f"num_workers={workers}, predownload={max(8, math.ceil(2 * flights * read / sample))}",
            "a shard is one request, and each worker downloads one at a time: "
            f"shards of {_kib(read)} or more, {flights} workers in all",
        ),
        LoaderAdvice(
            "WebDataset",
            f"num_workers={min(flights, 16)}",
            f"a worker streams one shard at {min(store.stream_bytes_per_s, store.share_bytes_per_s) / 1e6:.0f} MB/s: "
            f"{math.ceil(store.share_bytes_per_s / store.stream_bytes_per_s - 1e-9)} fill the share",
        ),
    )


def _kib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:g} MiB" if size_bytes >= 2**20 else f"{size_bytes / 1024:.0f} KiB"
