"""What hosts have beside GPUs, and what jobs take of it: processors, memory and bandwidth. Absent means that nobody counts
it."""

from __future__ import annotations

import math

import msgspec

from hemiola.core.roles import Roles

__all__ = ["ResourceRequest", "Resources"]


class Resources(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Of one host.

    Attributes:
        cpus, memory_bytes: None where they are not counted: there is enough for anybody.
        bandwidth_bytes_per_s: of its link that jobs can reserve; what they really send is the contention law's affair.
    """

    cpus: float | None = None
    memory_bytes: float | None = None
    bandwidth_bytes_per_s: float | None = None


class ResourceRequest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a job takes of its hosts beside GPUs; 0 for what nobody says. Of several kinds of one thing the most counts.

    Attributes:
        cpus, memory_bytes: in all, parted equally unless it has to be otherwise.
        cpus_per_host, memory_per_host_bytes: of each of its hosts at least.
        cpus_per_gpu, memory_per_gpu_bytes: for each GPU that it has there.
        whole: all processors of its hosts, which it shares with nobody.
        all_memory: all memory of its hosts.
        bandwidth_per_host_bytes_per_s: of each of its hosts' links, if it runs on several.
        roles: of a job of workers and parameter servers, what each of these takes beyond that.
    """

    cpus: float = 0.0
    cpus_per_host: float = 0.0
    cpus_per_gpu: float = 0.0
    memory_bytes: float = 0.0
    memory_per_host_bytes: float = 0.0
    memory_per_gpu_bytes: float = 0.0
    whole: bool = False
    all_memory: bool = False
    bandwidth_per_host_bytes_per_s: float = 0.0
    roles: Roles | None = None

    def flaw(self) -> str:
        """What is wrong with it, in words; "" if nothing is."""
        for name in self.__struct_fields__:
            if name != "roles" and not 0 <= getattr(self, name) < math.inf:
                return f"it takes {getattr(self, name)} of {name}"
        return ""
