"""Topologies in and out: generators, Hemiola's own TOML, and what clusters already have.

Slurm's topology.conf, Kubernetes node labels, Lingjun's and Tiresias's CSV. Nothing here decides
how fast a job is; a topology only says what the cluster is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hemiola.trace.topologies.generate import GENERATORS
from hemiola.trace.topologies.read import FORMATS, read_topology

if TYPE_CHECKING:
    from hemiola.trace.topologies.native import topology_text, write_topology

__all__ = ["FORMATS", "GENERATORS", "read_topology", "topology_text", "write_topology"]


def __getattr__(name: str) -> Any:
    """What writes Hemiola's own format: loaded when it is asked for."""
    if name not in ("topology_text", "write_topology"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hemiola.trace.topologies import native

    return getattr(native, name)
