"""The cluster as the labels of Ray's nodes say: `ray start --node-name=n1 --labels="rack=r0,pod=p0"`."""

from __future__ import annotations

from collections.abc import Mapping

from hemiola.core.errors import InputError
from hemiola.core.topology import Topology
from hemiola.live.engines.ray.client import Ray
from hemiola.live.engines.ray.kv_store import TYPE
from hemiola.live.engines.ray.wire import RayNodeRow, read_answer
from hemiola.trace.topologies.levels import HARDWARE_OPTIONS, LEVEL_OPTIONS, make_hosts, make_levels
from hemiola.trace.topologies.options import TopologyOptions

__all__ = ["ray_topology"]

LEVELS = ("rack", "block", "pod", "zone")
"""Labels that are looked for, narrow to wide."""


def ray_topology(ray: Ray, options: Mapping[str, str] | None = None) -> Topology:
    """Nodes with GPUs, by the labels that all of them have.

    Args:
        options: of hosts and levels (`nic=200gbit`, `oversubscription=4`); `labels=rack+pod` names the labels.

    Raises:
        EngineError: Ray does not answer.
        InputError: there is no node with GPUs, or one lacks a label that others have.
    """
    given = TopologyOptions(options or {}, f"ray:{ray.address}")
    given.only((*HARDWARE_OPTIONS, *LEVEL_OPTIONS, "labels", "name"))
    nodes = sorted((node for node in read_answer(ray.ask("look", [])).nodes if node.gpus), key=_name)
    if not nodes:
        raise InputError(f"no node of the Ray at {ray.address} has GPUs", "ray start --num-gpus=8 ...")
    keys = given.words("labels") or [key for key in LEVELS if any(key in node.labels for node in nodes)]
    for node in nodes:
        if missing := [key for key in keys if not node.labels.get(key)]:
            raise InputError(
                f"the node {_name(node)} has no label {missing[0]!r}", "give it one: ray start --labels=..."
            )
    types = [node.labels.get(TYPE, "") for node in nodes]
    hosts = make_hosts(given, [_name(node) for node in nodes], [node.gpus for node in nodes], types)
    levels = make_levels(hosts, keys, [[node.labels[key] for node in nodes] for key in keys], given)
    facts = [f"the nodes of the Ray at {ray.address}" + (f" by {', '.join(keys)}" if keys else "")]
    return Topology(given.values.get("name", "ray"), hosts, levels, given.notes(facts)).check()


def _name(node: RayNodeRow) -> str:
    return node.names[0]
