"""A policy of one's own: nothing in Hemiola is edited, nothing is registered.

PYTHONPATH=examples hemiola simulate examples/jobs.csv \
    --cluster leaf-spine:hosts=8,gpus_per_host=4,hosts_per_rack=4,oversubscription=4 \
    --policy fifo shortest_gpu_first:ShortestGpuFirst,patience=6
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hemiola import ClusterView, Policy, Start, find
from hemiola.sched.job_state import JobState
from hemiola.sched.placement import Rule, TierAware


@dataclass(frozen=True)
class ShortestGpuFirst(Policy):
    """Least GPU-time first; whoever waited `patience` times its run time goes before all others.

    Args:
        placement: which free GPUs a job gets.
        patience: waiting time over run time.
    """

    placement: Rule = TierAware()
    patience: float = 10.0
    name = "shortest-gpu-first"
    source = "an example"

    def decide(self, view: ClusterView) -> Iterator[Start]:
        def key(job: JobState) -> tuple[bool, float]:
            return job.waited_s(view.now) < self.patience * job.work_s, job.gpus * job.work_s

        for job in sorted(view.waiting.values(), key=key):
            placement = find(view.inventory, job, self.placement)
            if placement is not None:
                yield Start(job.id, placement, "least GPU-time of those that fit")
