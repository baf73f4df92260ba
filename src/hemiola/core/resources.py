"""What hosts have beside GPUs, and what jobs take of it: processors, memory and bandwidth. Absent means that nobody counts
it. Also what workers and parameter servers take, each for itself."""

from __future__ import annotations

import math

import msgspec

__all__ = ["ResourceRequest", "Resources", "Roles"]


class Resources(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Of one host.

    Attributes:
        cpus, memory_bytes: None where they are not counted: there is enough for anybody.
        bandwidth_bytes_per_s: of its link that jobs can reserve; what they really send is the contention law's affair.
    """

    cpus: float | None = None
    memory_bytes: float | None = None
    bandwidth_bytes_per_s: float | None = None


class Roles(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Data parallelism with parameter servers, as PD-ORS and Optimus have it.

    Every worker computes an equal part of the batch and exchanges an equal part of the parameters, both ways, with each of
    the servers at once: an iteration on W workers and S servers takes tau F / W + 2 g / (S b) (cluster-level model of
    PD-ORS, section 3; specification 1.1). b is `inside` if all of them are on one host, else `across` for all: the slowest
    pair decides. What they send across hosts is reserved on the hosts' links, so nobody slows them.

    Attributes:
        workers_per_server: gamma; a job of W workers has ceil(W / gamma) servers.
        batch_samples: F, samples of one iteration of the whole job.
        sample_s: tau, seconds in which one worker computes one sample.
        parameter_bytes: g.
        inside_bytes_per_s, across_bytes_per_s: b between one worker and one server.
        gpus_per_worker: GPUs of one worker.
        worker_cpus, worker_memory_bytes: of one worker.
        server_cpus, server_memory_bytes: of one server, which has no GPU.
    """

    workers_per_server: int
    batch_samples: int
    sample_s: float
    parameter_bytes: float
    inside_bytes_per_s: float
    across_bytes_per_s: float
    gpus_per_worker: int = 1
    worker_cpus: float = 0.0
    worker_memory_bytes: float = 0.0
    server_cpus: float = 0.0
    server_memory_bytes: float = 0.0

    def workers(self, gpus: int) -> int:
        """Workers on so many GPUs."""
        return gpus // self.gpus_per_worker

    def servers(self, gpus: int) -> int:
        """Servers of a job on so many GPUs: ceil(W / gamma), the cover form of constraint (5)."""
        return -(-self.workers(gpus) // self.workers_per_server)

    def compute_s(self, gpus: int) -> float:
        """Of one iteration."""
        return self.sample_s * self.batch_samples / self.workers(gpus)

    def iteration_s(self, gpus: int, *, inside: bool) -> float:
        """One iteration on so many GPUs and as many servers as they need."""
        rate = self.inside_bytes_per_s if inside else self.across_bytes_per_s
        return self.compute_s(gpus) + 2 * self.parameter_bytes / (self.servers(gpus) * rate)

    def flaw(self, gpus: int) -> str:
        """What is wrong with it for a job on so many GPUs, in words; "" if nothing is."""
        for name in ("workers_per_server", "batch_samples", "gpus_per_worker"):
            if getattr(self, name) < 1:
                return f"its roles have {name} {getattr(self, name)}, less than 1"
        for name in ("sample_s", "inside_bytes_per_s", "across_bytes_per_s"):
            if not 0 < getattr(self, name) < math.inf:
                return f"its roles have {name} {getattr(self, name)}, not above 0"
        for name in self.__struct_fields__:
            if not 0 <= getattr(self, name) < math.inf:
                return f"its roles have {name} {getattr(self, name)}"
        if gpus % self.gpus_per_worker:
            return f"it wants {gpus} GPUs, and a worker has {self.gpus_per_worker}"
        return ""


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
