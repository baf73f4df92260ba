"""A synchronous parameter server: gradients are pushed one by one, averaged, applied, and pulled for the next forward.

As TicTac (Hashemi et al., MLSys 2019, section 2) describes TensorFlow's: a parameter is pushed when its
gradient is ready; once all workers' gradients of it are there, its server updates it; each worker pulls
it before the next iteration's first use. There is no barrier over all parameters. The paper does not
say how parameters are spread over servers; here the largest go first, each to the server with the
fewest bytes. A worker holds no optimizer state.
"""

from __future__ import annotations

from dataclasses import dataclass

from hemiola.core.errors import InputError
from hemiola.core.graph import Graph
from hemiola.cost.parallelism.parallelism import Device, Parallelism, Transfer

__all__ = ["ParameterServer"]


@dataclass(frozen=True)
class ParameterServer(Parallelism):
    """Parameters live on servers.

    Attributes:
        servers: how many; server s stands with rank s % ranks, as `hemiola.synchronise` places them.
    """

    servers: int = 1

    def __post_init__(self) -> None:
        if self.servers < 1:
            raise InputError(f"{self.servers} parameter servers", "give 1 or more")

    @property
    def label(self) -> str:
        """For instance "ps:servers=2"."""
        return f"ps:servers={self.servers}"

    def optimizer_share(self, ranks: int) -> float:
        """The servers run the optimizer."""
        return 0.0 if ranks > 1 else 1.0

    def servers_of(self, graph: Graph) -> list[int]:
        """The server of each parameter."""
        load = [0.0] * self.servers
        found = [0] * len(graph.parameters)
        for i in sorted(range(len(found)), key=lambda i: (-graph.parameters[i].size_bytes, i)):
            found[i] = min(range(self.servers), key=lambda server: (load[server], server))
            load[found[i]] += graph.parameters[i].size_bytes
        return found

    def transfers(self, graph: Graph, ranks: int, device: Device = "gpu") -> tuple[Transfer, ...]:
        """A push and a pull per trained parameter, pushes in the order in which gradients become ready."""
        if ranks < 2:
            return ()
        parameters = graph.parameters
        home = self.servers_of(graph)
        order = sorted(
            (i for i, p in enumerate(parameters) if p.gradient_ready >= 0),
            key=lambda i: (parameters[i].gradient_ready, i),
        )
        found = [
            Transfer(
                parameters[i].name, "push", float(parameters[i].gradient_bytes), (i,),
                parameters[i].gradient_ready, -1, server=home[i],
            )
            for i in order
        ]  # fmt: skip
        found += [
            Transfer(
                parameters[i].name, "pull", float(parameters[i].size_bytes), (i,), parameters[i].gradient_ready,
                max(parameters[i].first_use, 0), next_iteration=True, follows=place, server=home[i],
            )
            for place, i in enumerate(order)
        ]  # fmt: skip
        return tuple(found)

    def memory_bytes(self, graph: Graph, ranks: int) -> float:
        """A worker's: parameters, gradients, activations."""
        gradients = sum(p.gradient_bytes for p in graph.parameters)
        buffers = sum(buffer.size_bytes for buffer in graph.buffers)
        optimizer = graph.optimizer_bytes if ranks < 2 else 0.0
        return graph.parameter_bytes + gradients + buffers + graph.saved_bytes + optimizer
