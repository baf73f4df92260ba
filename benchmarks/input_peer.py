"""One loader of `input.py --only peers`, with its defaults: PEER ENDPOINT OBJECTS SECONDS. Prints MB/s of samples."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator


def main() -> None:
    warnings.simplefilter("ignore")
    peer, endpoint, count, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
    }  # fmt: skip
    print(rate(PEERS[peer](endpoint, count), seconds))


def rate(samples: Callable[[], Iterable[int]], seconds: float) -> float:
    """Bytes per second of samples after a third of the time, over as many epochs as it takes."""

    def endless() -> Iterator[int]:
        while True:
            yield from samples()

    begun_s, counted, from_s = time.monotonic(), 0, 0.0
    for size in endless():
        now_s = time.monotonic()
        if from_s == 0.0 and now_s - begun_s > seconds / 3:
            from_s = now_s
        elif from_s:
            counted += size
        if now_s - begun_s > seconds:
            return counted / (now_s - from_s) / 1e6
    raise AssertionError


def uris(count: int) -> list[str]:
    return [f"s3://data/object-{i}" for i in range(count)]


def s3torchconnector(endpoint: str, count: int) -> Callable[[], Iterable[int]]:
    from s3torchconnector import S3ClientConfig, S3MapDataset
    from torch.utils.data import DataLoader

    data = S3MapDataset.from_objects(
        uris(count), region="us-east-1", endpoint=endpoint, transform=lambda one: len(one.read()),
        s3client_config=S3ClientConfig(force_path_style=True),
    )  # fmt: skip
    return lambda: (int(size) for size in DataLoader(data, batch_size=None, shuffle=True))


def obstore(endpoint: str, count: int) -> Callable[[], Iterable[int]]:
    import obstore as peer
    from obstore.store import from_url

    store = from_url("s3://data", client_options={"allow_http": True})
    return lambda: (len(peer.get(store, f"object-{i}").bytes()) for i in range(count))


def webdataset(endpoint: str, count: int) -> Callable[[], Iterable[int]]:
    import webdataset as peer

    shards = [f"{endpoint}/data/shard-{i}.tar" for i in range(4)]
    return lambda: (len(s["bin"]) for s in peer.WebDataset(shards, shardshuffle=False))


def prefetch(endpoint: str, count: int) -> Callable[[], Iterable[int]]:
    import hemiola
    from hemiola.train.input import StoredSamples

    data = StoredSamples.of_objects(uris(count), lambda parts: len(parts[0]))
    loader = hemiola.prefetch(data, batch_size=None, shuffle=True)
    return lambda: (int(size) for size in loader)


def prefetch_tar(endpoint: str, count: int) -> Callable[[], Iterable[int]]:
    import hemiola
    from hemiola.train.input import StoredSamples

    shards = [f"{endpoint}/data/shard-{i}.tar" for i in range(4)]
    data = StoredSamples.of_tar(shards, lambda parts: len(parts["bin"]))
    loader = hemiola.prefetch(data, batch_size=None)
    return lambda: (int(size) for size in loader)


PEERS = {f.__name__: f for f in (s3torchconnector, obstore, webdataset, prefetch, prefetch_tar)}

if __name__ == "__main__":
    main()
