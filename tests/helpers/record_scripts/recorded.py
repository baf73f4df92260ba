"""The jobs of `train.py`, without and then with `hemiola.record` around them, on clocks set apart.

recorded.py FOLDER: leaves ddp.json, fsdp.json and digests.json there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import train
from hemiola.profiler.trace import record


def both_ways(kind: str, folder: Path) -> list[str]:
    """Digests of the parameters after training without, with, and again without recording."""
    sys.argv[1:] = ["--model", kind, "--iterations", "12"]
    arguments = train.parsed()
    plain = train.train(arguments)
    skew_s = train.SKEW_S * dist.get_rank()
    with record(folder / f"{kind}.json", mode="full", clock_skew_s=skew_s) as recorder:
        recorded = train.train(arguments)
        with recorder.span("evaluation", "compute"):
            time.sleep(0.3)  # long enough for the keeper to ask for the time
    return [plain, recorded, train.train(arguments)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[1])
    dist.init_process_group("gloo")
    digests = {kind: both_ways(kind, target) for kind in ("ddp", "fsdp")}
    if dist.get_rank() == 0:
        (target / "digests.json").write_text(json.dumps(digests))
    dist.barrier()
    dist.destroy_process_group()
