"""Kubernetes nodes as `kubectl get nodes -o json` prints them, placed by their labels.

Label families, each narrow to wide:
- Kueue and KAI (documentation of both): cloud.provider.com/topology-rack, .../topology-block;
- Topograph 1.x: fabric.topograph.run/tier-0, tier-1, ...;
- Topograph 0.2 and later: network.topology.nvidia.com/leaf, spine, core;
- Topograph 0.1: network.topology.nvidia.com/block, spine, datacenter.
Kueue does not ask labels to be unique: rack-1 of block-1 is not rack-1 of block-2. NVLink domains
wider than a host (accelerator labels) are left aside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from hemiola.core.errors import DAMAGED, FormatError, InputError
from hemiola.core.topology import Topology
from hemiola.trace.topologies.hardware import HARDWARE_OPTIONS, make_hosts
from hemiola.trace.topologies.levels import LEVEL_OPTIONS, make_levels
from hemiola.trace.topologies.options import Options, whole

__all__ = ["FAMILIES", "Node", "read_nodes"]

FAMILIES: dict[str, tuple[str, ...]] = {
    "Kueue": ("cloud.provider.com/topology-rack", "cloud.provider.com/topology-block"),
    "Topograph 1": tuple(f"fabric.topograph.run/tier-{i}" for i in range(8)),
    "Topograph 0.2": tuple(f"network.topology.nvidia.com/{n}" for n in ("leaf", "spine", "core")),
    "Topograph 0.1": tuple(f"network.topology.nvidia.com/{n}" for n in ("block", "spine", "datacenter")),
}

_OPTIONS = (*HARDWARE_OPTIONS, *LEVEL_OPTIONS, "name", "labels", "kueue")
_HOSTNAME = "kubernetes.io/hostname"
_GPU = "nvidia.com/gpu"
_ASIDE = re.compile(r"^\s*#.*|last-applied-configuration:\s+(?:[|>][-+]?\s+|')?\{.*", re.MULTILINE)
"""In YAML: comments, and kubectl's note of the object as it was applied, in which each label stands once more."""


class Metadata(msgspec.Struct):
    """Of a node."""

    name: str
    labels: dict[str, str] = {}


class Status(msgspec.Struct):
    """Of a node."""

    capacity: dict[str, Any] = {}


class Node(msgspec.Struct):
    """What is read of a Kubernetes Node."""

    metadata: Metadata
    kind: str = "Node"
    status: Status = msgspec.field(default_factory=Status)


class NodeList(msgspec.Struct):
    """What `kubectl get nodes -o json` prints."""

    items: list[Node]
    kind: str = "List"


def read_nodes(text: str, path: str, options: Options, kueue: str | None = None) -> Topology:
    """The cluster of these nodes; nodes without GPUs and without labels are left out.

    Args:
        text: a List of Nodes, as JSON.
        path: for messages.
        options: of hosts and levels; `labels=narrow+wide` names the labels to use.
        kueue: text of a Kueue or KAI `Topology` object, whose levels say which labels to use.

    Raises:
        FormatError: no such list, no known labels, or labels of two families.
        InputError: a node that lacks a label.
    """
    options.only(_OPTIONS)
    nodes = _decoded(text, path)
    keys = _keys(options, kueue, nodes, path)
    placed = [node for node in nodes if _gpus(node, path) or any(k in node.metadata.labels for k in keys)]
    if not placed:
        raise InputError(f"{path} has no node with GPUs or labels", "look at the list's items")
    for node in placed:
        _refuse_unplaced(node, keys, path)
    hosts = make_hosts(
        options,
        [node.metadata.name for node in placed],
        [_gpus(node, path) for node in placed],
        [node.metadata.labels.get(f"{_GPU}.product", "") for node in placed],
    )
    labels = [[node.metadata.labels[key] for node in placed] for key in keys]
    levels = make_levels(hosts, _level_names(keys), labels, options)
    facts = [f"Kubernetes nodes {path} by {', '.join(keys)}"]
    if len(placed) < len(nodes):
        facts.append(f"{len(nodes) - len(placed)} nodes without GPUs and labels left out")
    return Topology(options.values.get("name", "kubernetes"), hosts, levels, options.notes(facts)).check()


def _decoded(text: str, path: str) -> list[Node]:
    try:
        nodes = msgspec.json.decode(text, type=NodeList).items
    except DAMAGED as error:
        raise FormatError(f"{path} is no list of nodes: {error}", "use kubectl get nodes -o json") from error
    stranger = next((node for node in nodes if node.kind != "Node"), None)
    if stranger is not None:
        raise FormatError(f"{path} lists a {stranger.kind}, not a Node", "use kubectl get nodes -o json")
    return nodes


def _keys(options: Options, kueue: str | None, nodes: Sequence[Node], path: str) -> list[str]:
    """The labels to go by, narrow to wide."""
    if kueue is not None and "labels" in options:
        raise InputError(f"{path}: both labels and kueue say the levels", "give one of the two")
    if kueue is not None:
        return _kueue_keys(kueue, options.values["kueue"])
    return options.words("labels") or _family(nodes, path)


def _kueue_keys(text: str, path: str) -> list[str]:
    """The node labels of a `Topology` object, which lists them wide to narrow; the host is no level."""
    text = _ASIDE.sub("", text)
    found = re.findall(r"""["']?nodeLabel["']?\s*:\s*["']?([\w./-]+)""", text)
    if not found or not re.search(r"""["']?kind["']?\s*:\s*["']?Topology\b""", text):
        raise FormatError(f"{path} is no Kueue Topology", "give one with spec.levels of nodeLabel")
    if len(set(found)) < len(found):
        raise FormatError(f"{path} has several Topologies", "give a file with one")
    return [key for key in reversed(found) if key != _HOSTNAME]


def _family(nodes: Iterable[Node], path: str) -> list[str]:
    present = {key for node in nodes for key in node.metadata.labels}
    found = {name: [k for k in keys if k in present] for name, keys in FAMILIES.items() if keys[0] in present}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise FormatError(f"{path} has labels of {' and of '.join(found)}", "choose with labels=narrow+wide")
    raise FormatError(
        f"{path} has no topology labels that are known", "name them with labels=narrow+wide, or with kueue="
    )


def _refuse_unplaced(node: Node, keys: Sequence[str], path: str) -> None:
    missing = next((key for key in keys if not node.metadata.labels.get(key)), None)
    if missing is not None:
        raise InputError(
            f"{path}: node {node.metadata.name!r} has no label {missing}",
            "label the node, or leave it out of the list",
        )


def _gpus(node: Node, path: str) -> int | None:
    """GPUs by capacity, else by the label of GPU feature discovery; None where nothing is said."""
    stated = node.status.capacity.get(_GPU, node.metadata.labels.get(f"{_GPU}.count"))
    if stated is None:
        return 0 if node.status.capacity else None
    try:
        return whole(str(stated))
    except InputError as error:
        raise InputError(
            f"{path}: node {node.metadata.name!r}: {_GPU}: {error.what}", error.remedy
        ) from error


def _level_names(keys: Sequence[str]) -> list[str]:
    """Short names: "rack" for cloud.provider.com/topology-rack."""
    short = [key.rpartition("/")[2].removeprefix("topology-") for key in keys]
    return short if len(set(short)) == len(short) else list(keys)
