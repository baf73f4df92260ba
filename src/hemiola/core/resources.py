"""What hosts have beside GPUs, and what jobs take of it: processors and memory. Absent means that nobody counts it."""

from __future__ import annotations

import msgspec

__all__ = ["ResourceRequest", "Resources"]


class Resources(msgspec.Struct, frozen=True, gc=False):
    """Of one host.

    Attributes:
        cpus, memory_bytes: None where they are not counted: there is enough for anybody.
    """

    cpus: float | None = None
    memory_bytes: float | None = None


class ResourceRequest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a job takes of its hosts beside GPUs; 0 for what nobody says. Of several kinds of one thing the most counts.

    Attributes:
        cpus, memory_bytes: in all, parted equally unless it has to be otherwise.
        cpus_per_host, memory_per_host_bytes: of each of its hosts at least.
        cpus_per_gpu, memory_per_gpu_bytes: for each GPU that it has there.
        whole: all processors of its hosts, which it shares with nobody.
        all_memory: all memory of its hosts.
    """

    cpus: float = 0.0
    cpus_per_host: float = 0.0
    cpus_per_gpu: float = 0.0
    memory_bytes: float = 0.0
    memory_per_host_bytes: float = 0.0
    memory_per_gpu_bytes: float = 0.0
    whole: bool = False
    all_memory: bool = False
