"""Two ranks of `hemiola run --share-input` on one store, one with many connections and one with few."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from input_samples import record_file
from patience import slowly

from hemiola.lab.store import StoreServer

SCRIPT = """
import json, os, sys, time
import torch.distributed as dist
from hemiola.cost.io import StoreModel
from hemiola.plan.io.tuner import ReadLimits
from hemiola.train.input.batches import prefetch
from hemiola.train.input.reader import RangeReader
from hemiola.train.input.samples import StoredSamples

url, seconds, out = sys.argv[1], float(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
rank = dist.get_rank()
limits = ReadLimits(in_flight=(16, 4)[rank], read_least_bytes=1 << 16, read_most_bytes=1 << 16)
reader = RangeReader(StoreModel(0.005, 1e8), limits, tuner=False)
data = StoredSamples.of_records([url], 1 << 16, lambda parts: len(parts[0]))
loader = prefetch(data, batch_size=16, reader=reader, memory="64MB")
begun, marks = time.monotonic(), []
while time.monotonic() < begun + seconds:
    for batch in loader:
        marks.append((time.monotonic() - begun, reader.counts.arrived_bytes, reader.rate_bytes_per_s))
        if marks[-1][0] > seconds:
            break
half = [mark for mark in marks if mark[0] > seconds / 2]
rate = (half[-1][1] - half[0][1]) / (half[-1][0] - half[0][0])
json.dump({"rate": rate, "bucket": min(mark[2] for mark in half)}, open(f"{out}/{rank}.json", "w"))
dist.barrier()
dist.destroy_process_group()
"""


def test_ranks_with_unequal_connections_get_equal_parts(
    server: StoreServer, folder: Path, tmp_path: Path
) -> None:
    record_file(folder / "records", 64, 1 << 16)
    server.change(latency_s=0.005, share_bytes_per_s=12e6)
    (tmp_path / "job.py").write_text(SCRIPT)
    arguments = ["run", "--nproc", "2", "--share-input", str(tmp_path / "job.py"),
                 f"{server.url}/records", str(slowly(10)), str(tmp_path)]  # fmt: skip
    script = "from hemiola.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    rates = [one["rate"] for one in found]
    assert max(one["bucket"] for one in found) < 1e9
    assert max(rates) < 1.5 * min(rates)  # 4 to 1 without
