"""How near the tuner comes to the best static setting, how soon, and what follows when a store changes.

    python benchmarks/input.py [--quick] [--only settle,change,loaders,peers,fair] [-o input.json]

A range server of the lab (`hemiola.lab.store`) in a process of its own gives L, b and C. Grid and tuner use the same
reader, process and store, by turns. Mostly it waits. The tables of docs/results/input.md are its output.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from hemiola.cost.io import StoreModel
from hemiola.lab.store import StoreServer, serve
from hemiola.plan.io.tuner import ReadLimits
from hemiola.train.input.probe import measure_stream
from hemiola.train.input.reader import RangeReader
from hemiola.train.input.source import ByteSource, HttpSource

MBIT = 1e6 / 8
PROFILES = [
    StoreModel(0.001, 200e6, 800 * MBIT), StoreModel(0.005, 50e6, 400 * MBIT), StoreModel(0.02, 20e6, 400 * MBIT),
    StoreModel(0.05, 10e6, 300 * MBIT), StoreModel(0.1, 5e6, 200 * MBIT), StoreModel(0.001, 100e6, 200 * MBIT),
    StoreModel(0.02, 5e6, 50 * MBIT), StoreModel(0.15, 4e6, 100 * MBIT),
]  # fmt: skip
SIZES = (2**16, 2**18, 2**20, 2**21, 2**22)
FLIGHTS = (1, 2, 4, 8, 16, 32)
QUICK_SIZES, QUICK_FLIGHTS = (2**18, 2**20, 2**21), (2, 4, 8, 16)


class Pull:
    """Keeps a reader busy with ranges at random places, and says what arrives."""

    def __init__(self, source: ByteSource, reader: RangeReader) -> None:
        self.source, self.reader = source, reader
        self._chance = random.Random(1)

    def run(self, seconds: float) -> float:
        """Bytes per second that arrived in so long."""
        begun_s, before = time.monotonic(), self.reader.counts.arrived_bytes
        while (now_s := time.monotonic()) < begun_s + seconds:
            self.fill()
            time.sleep(0.01)
        return (self.reader.counts.arrived_bytes - before) / (now_s - begun_s)

    def fill(self) -> None:
        size = self.reader.read_bytes
        while self.reader.backlog < self.reader.in_flight + 4:
            self.reader.submit(self.source, self._chance.randrange(self.source.size() - size), size)


def static(source: ByteSource, size: int, flights: int, seconds: float, model: StoreModel) -> float:
    """What a fixed setting gives."""
    limits = ReadLimits(memory_bytes=1e12, in_flight=flights, read_least_bytes=size, read_most_bytes=size)
    reader = RangeReader(StoreModel(0.01, 1e8), limits, tuner=False)
    pull = Pull(source, reader)
    pull.run(1.2 * model.loaded_s(size, flights))
    rate = pull.run(seconds)
    reader.close()
    return rate


def settle(server: StoreServer, source: ByteSource, model: StoreModel, quick: bool) -> dict:
    """Tuner for 5 s from nothing, then 2 s that count; then the grid."""
    set_store(server, model)
    begun_s = time.monotonic()
    found = measure_stream(source)
    reader = RangeReader(found, ReadLimits(memory_bytes=256e6))
    pull = Pull(source, reader)
    pull.run(max(0.1, 5 - (time.monotonic() - begun_s)))
    tuned = pull.run(3)
    setting = reader.tuner.setting
    reader.close()
    grid = {
        (size, flights): static(source, size, flights, 0.8 if quick else 1.5, model)
        for size in (QUICK_SIZES if quick else SIZES)
        for flights in (QUICK_FLIGHTS if quick else FLIGHTS)
    }
    (size, flights), best = max(grid.items(), key=lambda cell: cell[1])
    return {
        "L_ms": 1e3 * model.latency_s, "b": model.stream_bytes_per_s / 1e6, "C": model.share_bytes_per_s / 1e6,
        "found_L_ms": 1e3 * found.latency_s, "found_b": found.stream_bytes_per_s / 1e6,
        "read": setting.read_bytes, "in_flight": setting.in_flight, "knee": model.knee(setting.read_bytes),
        "tuned": tuned / 1e6, "best": best / 1e6, "best_read": size, "best_in_flight": flights,
        "of_best": tuned / best, "worst": min(grid.values()) / 1e6,
    }  # fmt: skip


CHANGES = {
    "C / 4": lambda m: replace(m, share_bytes_per_s=m.share_bytes_per_s / 4),
    "C x 4": lambda m: replace(m, share_bytes_per_s=m.share_bytes_per_s * 4),
    "b / 4": lambda m: replace(m, stream_bytes_per_s=m.stream_bytes_per_s / 4),
    "L x 10": lambda m: replace(m, latency_s=m.latency_s * 10),
    "503 on 20 %": lambda m: m,
}


def change(server: StoreServer, source: ByteSource, model: StoreModel, name: str) -> dict:
    """The tuner settles, the store changes, and after 15 s three seconds count, against what the model allows."""
    set_store(server, model)
    reader = RangeReader(measure_stream(source), ReadLimits(memory_bytes=256e6))
    pull = Pull(source, reader)
    pull.run(6)
    before = reader.tuner.setting
    after = CHANGES[name](model)
    set_store(server, after)
    failing = 0.2 if name.startswith("503") else 0.0
    server.change(failing=failing)
    pull.run(15)
    rate = pull.run(4)
    server.change(failing=0.0)
    setting = reader.tuner.setting
    reader.close()
    best = static(source, setting.read_bytes, min(64, 2 * after.knee(setting.read_bytes)), 2.0, after)
    return {"change": name, "before": before[:2], "after": setting[:2], "rate": rate / 1e6, "best": best / 1e6,
            "of_best": rate / best}  # fmt: skip


def set_store(server: StoreServer, model: StoreModel) -> None:
    server.change(
        latency_s=model.latency_s, stream_bytes_per_s=model.stream_bytes_per_s,
        share_bytes_per_s=model.share_bytes_per_s,
    )  # fmt: skip


def loaders(server: StoreServer, folder: Path, model: StoreModel, sample_bytes: int) -> dict:
    """MB/s of samples: prefetch() after 5 s, the plain DataLoader, it with four workers, and obstore.

    obstore in workers that were forked after its first use hangs: its threads are gone."""
    from torch.utils.data import DataLoader

    import hemiola
    from hemiola.train.input import StoredSamples

    set_store(server, model)
    data = StoredSamples.of_records([f"{server.url}/data"], sample_bytes, lambda parts: len(parts[0]))
    peer = ObstoreSamples(server.url, 2**26 // sample_bytes, sample_bytes)
    how = {"batch_size": 8, "shuffle": True}
    found = {
        "plain": loaded(DataLoader(data, **how), 0.5, 2),
        "workers_4": loaded(DataLoader(data, num_workers=4, persistent_workers=True, **how), 1.5, 3),
        "obstore": loaded(DataLoader(peer, **how), 0.5, 2),
    }
    ahead = hemiola.prefetch(data, generator=torch_generator(), **how)
    found["prefetch"] = loaded(ahead, 5, 3)
    ahead.close()
    rates = {name: round(batches * sample_bytes / 1e6, 2) for name, batches in found.items()}
    return {"L_ms": 1e3 * model.latency_s, "b": model.stream_bytes_per_s / 1e6, "C": model.share_bytes_per_s / 1e6,
            "sample": sample_bytes, **rates}  # fmt: skip


def torch_generator():
    import torch

    return torch.Generator().manual_seed(0)


def loaded(loader, warm_s: float, seconds: float) -> float:
    """Samples per second after so long, over as many epochs as it takes."""

    def endless():
        while True:
            yield from loader

    batches, begun_s, count = endless(), time.monotonic(), 0
    for batch in batches:
        passed_s = time.monotonic() - begun_s
        if passed_s < warm_s:
            continue
        if count == 0:
            from_s = time.monotonic()
            count = 1  # this one was read before
            samples = 0
            continue
        samples += len(batch)
        if passed_s > warm_s + seconds:
            break
    return samples / (time.monotonic() - from_s)


class ObstoreSamples:
    """The same samples, read by obstore one after the other."""

    def __init__(self, url: str, samples: int, sample_bytes: int) -> None:
        self._url, self._samples, self._bytes = url, samples, sample_bytes
        self._store = None

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> int:
        import obstore
        from obstore.store import HTTPStore

        if self._store is None:
            self._store = HTTPStore.from_url(self._url, client_options={"allow_http": True})
        at = index * self._bytes
        return len(obstore.get_range(self._store, "data", start=at, length=self._bytes))


def peers(server: StoreServer, folder: Path, model: StoreModel, object_bytes: int) -> dict:
    """MB/s of each loader's defaults on the same objects, each in a process of its own; the ceiling is C."""
    import tarfile

    set_store(server, model)
    count = 2**25 // object_bytes
    bucket = folder / "data-of-peers" / "data"
    shutil.rmtree(bucket, ignore_errors=True)
    bucket.mkdir(parents=True)
    for i in range(count):
        (bucket / f"object-{i}").write_bytes(os.urandom(object_bytes))
    for shard in range(4):
        with tarfile.open(bucket / f"shard-{shard}.tar", "w") as archive:
            for i in range(shard, count, 4):
                archive.add(bucket / f"object-{i}", f"{i}.bin")
    rates = {}
    for peer in ("s3torchconnector", "obstore", "prefetch", "webdataset", "prefetch_tar"):
        command = [sys.executable, str(Path(__file__).with_name("input_peer.py")), peer,
                   f"{server.url}/data-of-peers", str(count), "9"]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            rates[peer] = round(float(done.stdout), 2)
        except (subprocess.SubprocessError, ValueError) as error:
            rates[peer] = f"failed: {(getattr(error, 'stderr', '') or str(error))[-200:]}"
    return {"L_ms": 1e3 * model.latency_s, "b": model.stream_bytes_per_s / 1e6, "C": model.share_bytes_per_s / 1e6,
            "object": object_bytes, **rates}  # fmt: skip


def fair(lab, url: str, connections: tuple[int, ...], weights: tuple[int, ...], shared: bool) -> dict:
    """What ranks on hosts of their own get of the store's link, after 5 s of 10."""
    env = {
        "MASTER_ADDR": lab.addresses["h1"], "MASTER_PORT": "29777", "WORLD_SIZE": str(len(connections)),
        "OMP_NUM_THREADS": "1", "HEMIOLA_SHARE_INPUT": "1" if shared else "",
    }  # fmt: skip
    script = str(Path(__file__).with_name("input_rank.py"))
    ranks = [
        lab.start(f"h{rank + 1}", [sys.executable, script, url, str(count), "10"], stdout=subprocess.PIPE, text=True,
                  env={**env, "RANK": str(rank), "HEMIOLA_INPUT_WEIGHT": str(weights[rank])})
        for rank, count in enumerate(connections)
    ]  # fmt: skip
    rates = [float(process.communicate()[0]) / 1e6 for process in ranks]
    each = [rate / weight for rate, weight in zip(rates, weights, strict=True)]
    return {"connections": connections, "weights": weights, "shared": shared, "MB_per_s": [round(r, 2) for r in rates],
            "ratio": max(each) / min(each), "of_link": sum(rates) / (400 * MBIT / 1e6 * 1448 / 1514)}  # fmt: skip


FAIR = [((16, 4), (1, 1)), ((32, 2), (1, 1)), ((2, 2, 20), (1, 1, 1)), ((4, 8, 8), (2, 1, 1))]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--only", default="settle,change,loaders")
    arguments.add_argument("-o", "--output", type=Path)
    given = arguments.parse_args()
    found: dict = {name: [] for name in given.only.split(",")}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").write_bytes(os.urandom(2**26))
        with serve(folder) as server:
            source = HttpSource(f"{server.url}/data")
            source.size()
            for name in found:
                for row in rows(name, server, source, Path(folder), given.quick):
                    found[name].append(row)
                    print(name, json.dumps(row), flush=True)
    if given.output:
        given.output.write_text(json.dumps(found, indent=1))


def rows(name: str, server: StoreServer, source: ByteSource, folder: Path, quick: bool):
    match name:
        case "settle":
            for model in PROFILES:
                yield settle(server, source, model, quick)
        case "change":
            for change_name in CHANGES:
                yield change(server, source, PROFILES[2], change_name)
        case "loaders":
            for model in PROFILES[:5]:
                for sample in (2**17, 2**20):
                    yield loaders(server, folder, model, sample)
        case "peers":
            for model in PROFILES[1:5]:
                for object_bytes in (100_000, 2**20):
                    yield peers(server, folder, model, object_bytes)
        case "fair":
            from hemiola.lab import Lab

            with (
                Lab(hosts=4, rate="unlimited", host_rates={"h0": "400mbit"}) as lab,
                lab.store("h0", folder, latency_s=0.005) as store,
            ):
                for connections, weights in FAIR:
                    for shared in (False, True):
                        yield fair(lab, f"{store.url}/data", connections, weights, shared)
        case _:
            sys.exit(f"there is no part {name!r}")


if __name__ == "__main__":
    main()
