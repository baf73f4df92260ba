"""What jobs and nodes of a Slurm have beside GPUs: processors and memory, as the state machine counts them.

Slurm has the last word: what is counted here is the least that a job can need, and the most that a node can have left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hemiola.core.events import Event, ResourcesOffered, ResourcesRequested
from hemiola.core.job import Batch
from hemiola.core.resources import ResourceRequest, Resources
from hemiola.live.engines.slurm.snapshot import HOLDS, SlurmSnapshot
from hemiola.live.engines.slurm.tracked_job import SlurmTrackedJob
from hemiola.live.engines.slurm.wire import SlurmJobRow, SlurmNodeRow, SlurmRules

__all__ = ["SlurmResources", "claim_of"]


def claim_of(row: SlurmJobRow, job: Batch, rules: SlurmRules) -> ResourceRequest:
    """What a job takes of its nodes, or wants of them: Slurm's defaults for GPUs are those of jobs that ask for nothing."""
    cpus, memory_bytes = row.tres
    if row.state in HOLDS:
        return ResourceRequest(cpus=cpus, memory_bytes=memory_bytes)
    per_host = 1 / max(1, row.hosts) if job.is_elastic else 0.0
    memory_per_gpu = row.memory_per_gpu_bytes or (0.0 if row.asks_memory else rules.memory_per_gpu_bytes)
    memory_bytes = memory_bytes if row.asks_memory else 0.0
    return ResourceRequest(
        cpus=0.0 if per_host else cpus,
        cpus_per_host=max(row.cpus_per_host, cpus * per_host),
        cpus_per_gpu=row.cpus_per_gpu or (rules.cpus_per_gpu if row.cpus_per_host <= 1 else 0),
        memory_bytes=0.0 if per_host else memory_bytes,
        memory_per_host_bytes=memory_bytes * per_host,
        memory_per_gpu_bytes=memory_per_gpu,
        whole=row.exclusive,
        all_memory=rules.counts_memory and not (row.asks_memory or memory_per_gpu),
    )


class SlurmResources:
    """Tells the state machine of it: of jobs when it changes, of nodes whenever they were asked for.

    Args:
        hosts: numbers of the topology's, by name.
    """

    def __init__(self, hosts: Mapping[str, int]) -> None:
        self._hosts = hosts
        self._told: dict[int, ResourcesOffered] = {}

    def events(self, look: SlurmSnapshot, jobs: Iterable[SlurmTrackedJob], now_s: float) -> list[Event]:
        """What has changed; nothing where Slurm does not say what its nodes have."""
        nodes = [node for node in look.fresh_nodes if node.cpus is not None or node.memory_bytes is not None]
        if not (nodes or self._told):
            return []
        jobs = [known for known in jobs if not known.refused]
        claims = [self._claimed(known, look.rules, now_s) for known in jobs]
        taken = _taken(jobs) if nodes else {}
        hosts = [
            self._furnished(self._hosts[node.name], node, look.rules, taken, now_s)
            for node in nodes
            if node.name in self._hosts
        ]
        return [event for event in (*hosts, *claims) if event is not None]

    def _claimed(self, known: SlurmTrackedJob, rules: SlurmRules, now_s: float) -> Event | None:
        claim = claim_of(known.row, known.job, rules)
        if claim == known.claim:
            return None
        known.claim = claim
        return ResourcesRequested(now_s, known.job.id, claim)

    def _furnished(
        self,
        host: int,
        node: SlurmNodeRow,
        rules: SlurmRules,
        taken: Mapping[int, tuple[float, float]],
        now_s: float,
    ) -> Event | None:
        """Ours is what is left, and what jobs have there that the state machine counts itself."""
        total = Resources(node.cpus, node.memory_bytes)
        cpus, memory_bytes = taken.get(host, (0.0, 0.0))
        ours = Resources(
            _rest(node.cpus, node.cpus_taken, cpus, rules, counts=rules.counts_cpus),
            _rest(
                node.memory_bytes, node.memory_taken_bytes, memory_bytes, rules, counts=rules.counts_memory
            ),
        )
        before = self._told.get(host)
        if before is not None and (before.ours, before.total) == (ours, total):
            return None
        self._told[host] = event = ResourcesOffered(now_s, host, ours, total)
        return event


def _rest(
    total: float | None, taken: float, by_ours: float, rules: SlurmRules, *, counts: bool
) -> float | None:
    """What others do not have of it."""
    if total is None or not counts:
        return None
    return float(total if rules.preempts else round(total - taken + by_ours, 3))


def _taken(jobs: Iterable[SlurmTrackedJob]) -> dict[int, tuple[float, float]]:
    """By host, what jobs have where they run; parted as the state machine does."""
    taken: dict[int, tuple[float, float]] = {}
    for known in jobs:
        if known.row.state in HOLDS and known.ran and known.wanted is not None and known.claim is not None:
            hosts = known.wanted.hosts
            for host in hosts:
                cpus, memory_bytes = taken.get(host, (0.0, 0.0))
                taken[host] = (
                    cpus + known.claim.cpus / len(hosts),
                    memory_bytes + known.claim.memory_bytes / len(hosts),
                )
    return taken
