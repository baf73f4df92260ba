"""The same from Python: what slower uplinks would do to three policies.

PYTHONPATH=examples python examples/compare.py
"""

import hemiola
from hemiola.analysis.cluster_metrics import summary
from shortest_gpu_first import ShortestGpuFirst

RACKS = "leaf-spine:hosts=16,gpus_per_host=8,hosts_per_rack=3,nic=100gbit,oversubscription={}"
JOBS = "generated:jobs=150,load=2,mix=lingjun,duration_mean=1h"


def main() -> None:
    """Print a line per network and policy."""
    recorded = hemiola.read_topology(RACKS.format(1))
    jobs = hemiola.generate(JOBS, seed=1, gpus=recorded.gpus)
    workload = hemiola.assign(jobs, hemiola.load_library(), mix="lingjun-like", seed=1)
    policies: list[hemiola.Policy | str] = ["fifo-backfill", "dally", ShortestGpuFirst(patience=20.0)]
    print(f"{'uplinks':8} {'policy':20} {'mean JCT':>9} {'exposed communication':>22}")
    for oversubscription in (1, 4, 16):
        cluster = hemiola.read_topology(RACKS.format(oversubscription))
        comparison = hemiola.simulate(workload, cluster, policies, recorded_on=recorded)
        for run in comparison.runs:
            figures = summary(run, cluster)
            jct_h = (figures.jct_mean_s or 0.0) / 3600
            exposed = figures.exposed_communication_fraction or 0.0
            print(f"1:{oversubscription:<6} {run.policy:20} {jct_h:7.2f} h {exposed:22.1%}")


if __name__ == "__main__":
    main()
