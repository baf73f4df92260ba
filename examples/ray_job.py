"""A job for Hemiola on Ray: one actor for each rank, where Hemiola has put it. It goes on where it was stopped.

    ray job submit --metadata-json '{"hemiola": "gpus=16 hosts=2 runtime=10min"}' --working-dir examples \
        -- hemiola hold --grace 1min -- python ray_job.py /shared/ray_job.steps
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

STEPS = 50


@ray.remote(num_cpus=1, num_gpus=1)
class Rank:
    """One GPU's part of the work."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def where(self) -> str:
        return f"rank {self.rank}: GPU {ray.get_gpu_ids()} of {ray.get_runtime_context().get_node_id()[:8]}"

    def step(self) -> None:
        time.sleep(0.1)  # forward, backward, all-reduce


def main(checkpoint: Path) -> None:
    ray.init(namespace="hemiola", log_to_driver=False)
    group = ray.util.get_placement_group(os.environ["HEMIOLA_PLACEMENT_GROUP"])
    ranks = [
        Rank.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank)).remote(rank)  # type: ignore[attr-defined]
        for rank in range(group.bundle_count)
    ]
    print("\n".join(ray.get([rank.where.remote() for rank in ranks])))
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print(f"begins at step {done} on {os.environ['HEMIOLA_NODES']}")
    while done < STEPS:
        ray.get([rank.step.remote() for rank in ranks])
        done += 1
        saved = checkpoint.with_suffix(".new")  # a signal may come at any moment
        saved.write_text(str(done))
        saved.replace(checkpoint)
    print(f"finished after step {done}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
