"""The same from Python: how three policies bear a rising load.

PYTHONPATH=examples python examples/compare.py
"""

from shortest_gpu_first import ShortestGpuFirst

import hemiola
from hemiola.core.metrics import summary

CLUSTER = "leaf-spine:hosts=16,gpus_per_host=8,hosts_per_rack=4,nic=100gbit,oversubscription=8"
JOBS = "generated:jobs=150,load={},mix=lingjun,duration_mean=1h"


def main() -> None:
    """Print a line per load and policy."""
    cluster = hemiola.read_topology(CLUSTER)
    library = hemiola.load_library()
    policies: list[hemiola.Policy | str] = ["fifo-backfill", "srtf", ShortestGpuFirst(patience=20.0)]
    print(f"{'load':4} {'policy':20} {'mean JCT':>9} {'exposed communication':>22}")
    for load in (0.5, 1, 2):
        jobs = hemiola.generate(JOBS.format(load), seed=1, gpus=cluster.gpus)
        workload = hemiola.assign(jobs, library, mix="lingjun-like", seed=1)
        for run in hemiola.simulate(workload, cluster, policies).runs:
            figures = summary(run, cluster)
            jct_h = (figures.jct_mean_s or 0.0) / 3600
            exposed = figures.exposed_communication_fraction or 0.0
            print(f"{load:<4} {run.policy:20} {jct_h:7.2f} h {exposed:22.1%}")


if __name__ == "__main__":
    main()
