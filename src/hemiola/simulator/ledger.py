"""Where the idle GPU-seconds of a cluster went, integrated from instant to instant."""

from __future__ import annotations

from hemiola.sched.view import ClusterView

__all__ = ["IdleLedger"]


class IdleLedger:
    """Splits free GPUs over time by why they were free.

    Of `free` GPUs while waiting jobs want `wanted`, min(free, wanted) count as idle although
    wanted: by waiting if a waiting job would fit by number (so the policy, its placement rule or
    its timers chose not to start it), by fragmentation if none would. The rest had no demand.
    """

    __slots__ = ("down_gpu_s", "fragmentation_gpu_s", "no_demand_gpu_s", "view", "waiting_gpu_s")

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self.waiting_gpu_s = 0.0
        self.fragmentation_gpu_s = 0.0
        self.no_demand_gpu_s = 0.0
        self.down_gpu_s = 0.0

    def pass_time(self, dt_s: float, down_gpus: int) -> None:
        """Account for `dt_s` seconds in the present state."""
        view = self.view
        free = view.inventory.free
        if down_gpus:
            self.down_gpu_s += dt_s * down_gpus
        if not free:
            return
        if not view.waiting:
            self.no_demand_gpu_s += dt_s * free
            return
        wanted = view.wanted_gpus
        idle = wanted if wanted < free else free
        if min(view.sizes) <= free:
            self.waiting_gpu_s += dt_s * idle
        else:
            self.fragmentation_gpu_s += dt_s * idle
        self.no_demand_gpu_s += dt_s * (free - idle)
