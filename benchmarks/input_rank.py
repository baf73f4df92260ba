"""One rank of `input.py --only fair`: URL, connections, seconds. Prints what arrived in the last half, bytes/s."""

from __future__ import annotations

import os
import random
import sys
import time
from datetime import timedelta

from hemiola.cost.io import StoreModel
from hemiola.plan.io.tuner import ReadLimits
from hemiola.train.input.reader import RangeReader
from hemiola.train.input.share import share_input
from hemiola.train.input.source import HttpSource


def main() -> None:
    url, connections, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    from torch.distributed import TCPStore

    host, port, rank = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), int(os.environ["RANK"])
    meeting = TCPStore(host, port, is_master=rank == 0, wait_for_workers=False, timeout=timedelta(seconds=60))
    limits = ReadLimits(in_flight=connections, read_least_bytes=1 << 18, read_most_bytes=1 << 18)
    reader, source = RangeReader(StoreModel(0.005, 1e8), limits, tuner=False), HttpSource(url)
    source.size()
    meeting.set(f"ready/{rank}", "1")
    meeting.wait([f"ready/{other}" for other in range(int(os.environ["WORLD_SIZE"]))])
    share_input(reader)
    chance, begun_s, half = random.Random(rank), time.monotonic(), None
    while (passed_s := time.monotonic() - begun_s) < seconds:
        while reader.backlog < 2 * connections:
            reader.submit(source, chance.randrange(source.size() - (1 << 18)), 1 << 18)
        if half is None and passed_s > seconds / 2:
            half = (time.monotonic(), reader.counts.arrived_bytes)
        time.sleep(0.01)
    assert half is not None
    print((reader.counts.arrived_bytes - half[1]) / (time.monotonic() - half[0]), flush=True)
    meeting.set(f"done/{rank}", "1")
    meeting.wait([f"done/{other}" for other in range(int(os.environ["WORLD_SIZE"]))])
    time.sleep(0.5 * (rank == 0))


if __name__ == "__main__":
    main()
