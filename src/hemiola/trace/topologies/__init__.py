"""Topologies in and out: generators, Hemiola's own TOML, and what clusters already have.

Slurm's topology.conf, Kubernetes node labels, Lingjun's and Tiresias's CSV. Nothing here decides
how fast a job is; a topology only says what the cluster is.
"""

from __future__ import annotations

from hemiola.trace.topologies.generate import GENERATORS
from hemiola.trace.topologies.native import topology_text, write_topology
from hemiola.trace.topologies.read import FORMATS, read_topology

__all__ = ["FORMATS", "GENERATORS", "read_topology", "topology_text", "write_topology"]
