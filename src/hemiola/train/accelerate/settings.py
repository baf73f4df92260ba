"""What can be chosen about an acceleration."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from hemiola.core.errors import InputError
from hemiola.core.plan import Plan

__all__ = ["AccelerationSettings"]


@dataclass(frozen=True)
class AccelerationSettings:
    """As `hemiola.accelerate` takes them.

    Attributes:
        plan: to be followed; None to make one from the first iterations.
        min_gain: predicted, relative; below it the job stays as it is.
        reverts: whether it goes back to DDP where the plan is measured to be no faster.
        broadcast_buffers, find_unused_parameters: as DistributedDataParallel has them.
        apart: whether the optimizer updates every parameter by itself; None where PyTorch's own are known.
        carrier: of the plan's transfers: "messages" between the ranks, "collectives" of the process group, or "" for
            messages on processors and collectives on GPUs.
        interface: to reach the others by; "" for the one that leads to the master.
        rate_bytes_per_s: to send at most; None for as fast as it goes.
        timeout_s: a gradient for which a rank has stood still for so long is given up; `math.inf` for never.
        quiet: print nothing.
    """

    plan: Plan | None = None
    min_gain: float = 0.03
    reverts: bool = True
    broadcast_buffers: bool = True
    find_unused_parameters: bool = False
    apart: bool | None = None
    carrier: str = ""
    interface: str = ""
    rate_bytes_per_s: float | None = None
    timeout_s: float = 1800.0
    quiet: bool = False

    def __post_init__(self) -> None:
        if not self.min_gain >= 0:
            raise InputError(f"min_gain is {self.min_gain}", "give a share of 0 or more, such as 0.03")
        if self.carrier not in ("", "messages", "collectives"):
            raise InputError(f"there is no carrier {self.carrier!r}", 'use "messages" or "collectives"')
        if not self.timeout_s > 0:
            raise InputError(f"timeout_s is {self.timeout_s}", "give a number above 0")
        object.__setattr__(self, "timeout_s", min(self.timeout_s, threading.TIMEOUT_MAX))  # 292 years
