"""Why a job waits, in one sentence, from what a picture shows. Knows no policy."""

from __future__ import annotations

from collections.abc import Sequence

from hemiola.live.web.snapshots import DecisionNote, ViewPicture
from hemiola.core.decisions import Start, Stop
from hemiola.core.topology import Topology

__all__ = ["FreeCapacity"]


class FreeCapacity:
    """What is free in a picture, for the question whether a job would fit.

    Args:
        free: per host the free GPUs that can be used.
    """

    def __init__(self, topology: Topology, free: Sequence[int]) -> None:
        self._topology, self._free = topology, free
        self._answers: dict[tuple[int, str, str, int], str] = {}

    def why(self, seen: ViewPicture, last: DecisionNote | None, ahead: int) -> str:
        """The engine's own word, or the policy's last one about it, or what it lacks; and what its user seems not to know.

        Args:
            ahead: how many waiting jobs arrived before it.
        """
        why = self._why(seen, last, ahead)
        return f"{why}; {seen.misread}" if seen.misread else why

    def _why(self, seen: ViewPicture, last: DecisionNote | None, ahead: int) -> str:
        if seen.note:
            return seen.note
        if last is not None and isinstance(last.decision, Stop) and not last.refused:
            return f"stopped: {last.decision.reason}"
        if last is not None and isinstance(last.decision, Start) and last.refused:
            return f"its start was refused: {last.refused}"
        return (
            self._lack(seen)
            or seen.shortage
            or (
                f"it would fit, and the policy has it wait; {ahead:,} arrived before it"
                if ahead
                else "it would fit, and the policy has it wait"
            )
        )

    def _lack(self, seen: ViewPicture) -> str:
        job = seen.job
        key = job.gpus, job.gpu_type, job.required, job.hosts
        if key not in self._answers:
            self._answers[key] = self._work_out(*key)
        return self._answers[key]

    def _work_out(self, gpus: int, gpu_type: str, required: str, hosts: int) -> str:
        """What is missing, or ""."""
        names = self._topology.hosts.gpu_types
        kinds = [gpu_type] if gpu_type else list(self._topology.gpu_types)
        free = {kind: sum(n for n, k in zip(self._free, names, strict=True) if k == kind) for kind in kinds}
        most = max(free.values(), default=0)
        of_type = f" of type {gpu_type}" if gpu_type else ""
        if most < gpus:
            return f"it wants {_count(gpus)}{of_type}, and {_are_free(most)}: {gpus - most} short"
        fits = [self._fullest(kind, required, gpus, hosts) for kind in kinds if free[kind] >= gpus]
        best = max(fits)
        if best >= gpus:
            return ""
        per_host = f", {gpus // hosts} on each of {hosts} hosts" if hosts > 1 else ""
        where = f"one {required}" if required and required != "cluster" else "one host" if hosts == 1 else ""
        within = f" within {where}" if where else ""
        return (
            f"it wants {_count(gpus)}{of_type}{per_host}{within}; {_are_free(most)}, but only {best} that way"
        )

    def _fullest(self, kind: str, required: str, gpus: int, hosts: int) -> int:
        """The most such GPUs that one domain could give it."""
        each = gpus // hosts if hosts else 0
        totals: dict[int, list[int]] = {}
        for host, (free, its) in enumerate(zip(self._free, self._topology.hosts.gpu_types, strict=True)):
            if its == kind and free:
                totals.setdefault(self._domain(host, required, hosts), []).append(free)
        if not hosts:
            return max((sum(found) for found in totals.values()), default=0)
        able = [sorted((min(free, each) for free in found), reverse=True) for found in totals.values()]
        return max((sum(found[:hosts]) for found in able), default=0)

    def _domain(self, host: int, required: str, hosts: int) -> int:
        tier = 0 if hosts == 1 else self._topology.tier_index(required or "cluster")
        if tier == 0:
            return host
        levels = self._topology.levels
        return int(levels[tier - 1].domain_of_host[host]) if tier <= len(levels) else 0


def _count(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def _are_free(gpus: int) -> str:
    return {0: "none is free", 1: "1 is free"}.get(gpus, f"{gpus} are free")
