"""Kubernetes nodes as `kubectl get nodes -o json` prints them, placed by their labels.

Label families, each narrow to wide:
- Kueue and KAI (documentation of both): cloud.provider.com/topology-rack, .../topology-block;
- Topograph 1.x: fabric.topograph.run/tier-0, tier-1, ...;
- Topograph 0.2 and later: network.topology.nvidia.com/leaf, spine, core;
- Topograph 0.1: network.topology.nvidia.com/block, spine, datacenter.
Kueue does not ask labels to be unique: rack-1 of block-1 is not rack-1 of block-2. NVLink domains
wider than a host (accelerator labels) are left aside. Which GPUs a node has is `node_gpus`' business.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hemiola.core.errors import DAMAGED, FormatError, InputError
from hemiola.core.topology import Topology
from hemiola.trace.topologies.levels import (
    HARDWARE_OPTIONS,
    LEVEL_OPTIONS,
    make_hosts,
    make_levels,
    only_usable,
)
from hemiola.trace.topologies.options import TopologyOptions, whole

__all__ = ["read_nodes"]


# Which GPUs of a Kubernetes node a job can have: of whole ones how many, and why not the others.

GPU = "nvidia.com/gpu"
_SHARED = f"{GPU}.shared"
_OTHERS = re.compile(
    r"(?!nvidia\.com/gpu).+/(?:mig-.+|gpu|gaudi|tpu|npu|neuron\w*|i915|xe|dcu|mlu)$", re.IGNORECASE
)
"""Resources that are accelerators and no whole GPUs of NVIDIA."""
_KEEP_AWAY = ("NoSchedule", "NoExecute")


class Metadata(msgspec.Struct):
    """Of a node."""

    name: str
    labels: dict[str, str] = {}


class Taint(msgspec.Struct):
    """Of a node: keeps jobs away that do not tolerate it."""

    key: str = ""
    effect: str = ""


class Spec(msgspec.Struct):
    """Of a node."""

    unschedulable: bool = False
    taints: list[Taint] = []


class Condition(msgspec.Struct):
    """Of a node."""

    type: str = ""
    status: str = ""


class Status(msgspec.Struct):
    """Of a node."""

    capacity: dict[str, Any] = {}
    allocatable: dict[str, Any] = {}
    conditions: list[Condition] = []


class KubernetesNode(msgspec.Struct):
    """What is read of a Kubernetes Node."""

    metadata: Metadata
    kind: str = "Node"
    spec: Spec = msgspec.field(default_factory=Spec)
    status: Status = msgspec.field(default_factory=Status)


@dataclass(frozen=True)
class Gpus:
    """A node's.

    Attributes:
        there: whole GPUs; None where nothing is said.
        usable: of them, those that jobs are given; None as well.
        offered: as how many they are on offer to jobs.
        slices: MIG slices in the place of whole GPUs.
    """

    there: int | None = 0
    usable: int | None = 0
    offered: int = 0
    slices: int = 0


def unusable(node: KubernetesNode, tolerated: Collection[str]) -> str:
    """Why Kubernetes puts no new job on a node, in a word or two; "" if it does.

    Args:
        tolerated: keys of taints that jobs tolerate, beside those of GPUs.
    """
    if node.spec.unschedulable:
        return "cordoned"
    if any(each.type == "Ready" and each.status != "True" for each in node.status.conditions):
        return "not ready"
    for taint in node.spec.taints:
        own = taint.key.startswith("nvidia.com/")  # keeps others away; who asks for GPUs tolerates it
        if taint.effect in _KEEP_AWAY and not own and taint.key not in tolerated:
            return f"tainted {taint.key}"
    return ""


def gpu_type(node: KubernetesNode) -> str:
    """The product; "" where it is not said."""
    return _label(node, "product").removesuffix("-SHARED")


def others_of(node: KubernetesNode) -> list[str]:
    """Accelerators on offer that are no GPUs here: other vendors', and MIG slices beside whole GPUs."""
    amounts = node.status.capacity
    return [name for name in amounts if _OTHERS.match(name) and str(amounts[name]) != "0"]


def gpus_of(node: KubernetesNode, path: str) -> Gpus:
    """The GPUs of a node.

    By capacity and what of it is allocatable, else by the label of GPU feature discovery.

    Raises:
        InputError: a number that is none, or shared GPUs of which nothing says how many there are.
    """
    capacity, allocatable = node.status.capacity, node.status.allocatable
    if GPU not in capacity and _SHARED not in capacity:
        return _labelled(node, path)
    plain, shared = _amount(node, capacity, GPU, path), _amount(node, capacity, _SHARED, path)
    if "-MIG-" in _label(node, "product"):
        return Gpus(slices=plain + shared)
    given = allocatable or capacity
    free, free_shared = _amount(node, given, GPU, path), _amount(node, given, _SHARED, path)
    if not shared and _is_shared(node):
        plain, shared, free, free_shared = 0, plain, 0, free
    by = _replicas(node, plain, shared, path) if shared else 1
    there = plain + shared // by
    return Gpus(there, min(there, free + free_shared // by), plain + shared)


def _labelled(node: KubernetesNode, path: str) -> Gpus:
    """What the label says where no GPU is on offer; nothing can be said of a node without capacity and label."""
    if f"{GPU}.count" not in node.metadata.labels:
        return Gpus() if node.status.capacity else Gpus(None, None)
    if "-MIG-" in _label(node, "product"):
        return Gpus(slices=_amount(node, node.metadata.labels, f"{GPU}.count", path))
    there = _amount(node, node.metadata.labels, f"{GPU}.count", path)
    return Gpus(there, 0 if node.status.allocatable else there, there)


def _is_shared(node: KubernetesNode) -> bool:
    """By its labels, or by more GPUs on offer than there are."""
    count, offered = _label(node, "count"), str(node.status.capacity.get(GPU, "0"))
    beyond = count.isdecimal() and offered.isdecimal() and 0 < int(count) < int(offered)
    sharing = _label(node, "sharing-strategy") not in ("", "none")
    return sharing or beyond or _label(node, "product").endswith("-SHARED")


def _replicas(node: KubernetesNode, plain: int, shared: int, path: str) -> int:
    """How often each shared GPU is on offer: by the number of GPUs, else by the label that says it."""
    if f"{GPU}.count" in node.metadata.labels:
        there = _amount(node, node.metadata.labels, f"{GPU}.count", path) - plain
        if there > 0 and shared % there == 0:
            return shared // there
    by = _amount(node, node.metadata.labels, f"{GPU}.replicas", path)
    if by < 1:
        raise InputError(
            f"{path}: node {node.metadata.name!r} shares its GPUs, and does not say how many there are",
            f"add the labels {GPU}.count and {GPU}.replicas, as GPU feature discovery does",
        )
    return by


def _label(node: KubernetesNode, name: str) -> str:
    return node.metadata.labels.get(f"{GPU}.{name}", "")


def _amount(node: KubernetesNode, amounts: Mapping[str, Any], name: str, path: str) -> int:
    """A whole number; 0 where there is none."""
    try:
        return whole(str(amounts.get(name, "0")))
    except InputError as error:
        raise InputError(
            f"{path}: node {node.metadata.name!r}: {name}: {error.what}", error.remedy
        ) from error


FAMILIES: dict[str, tuple[str, ...]] = {
    "Kueue": ("cloud.provider.com/topology-rack", "cloud.provider.com/topology-block"),
    "Topograph 1": tuple(f"fabric.topograph.run/tier-{i}" for i in range(8)),
    "Topograph 0.2": tuple(f"network.topology.nvidia.com/{n}" for n in ("leaf", "spine", "core")),
    "Topograph 0.1": tuple(f"network.topology.nvidia.com/{n}" for n in ("block", "spine", "datacenter")),
}

_OPTIONS = (*HARDWARE_OPTIONS, *LEVEL_OPTIONS, "name", "labels", "kueue", "unusable", "tolerate")
_REMEDY = "tolerate=KEY counts nodes whose taint jobs tolerate, unusable=keep all nodes with whole GPUs"
_Read = tuple[KubernetesNode, Gpus]
_HOSTNAME = "kubernetes.io/hostname"
_ASIDE = re.compile(r"^\s*#.*|last-applied-configuration:\s+(?:[|>][-+]?\s+|')?\{.*", re.MULTILINE)
"""In YAML: comments, and kubectl's note of the object as it was applied, in which each label stands once more."""


class NodeList(msgspec.Struct):
    """What `kubectl get nodes -o json` prints."""

    items: list[KubernetesNode]
    kind: str = "List"


def read_nodes(text: str, path: str, options: TopologyOptions, kueue: str | None = None) -> Topology:
    """The cluster of these nodes: of whole GPUs that jobs are given.

    Nodes without GPUs and without labels are left out, and so are those that take no jobs.

    Args:
        text: a List of Nodes, as JSON.
        path: for messages.
        options: of hosts and levels; `labels=narrow+wide` names the labels to use, `tolerate=key` taints that jobs
            tolerate.
        kueue: text of a Kueue or KAI `Topology` object, whose levels say which labels to use.

    Raises:
        FormatError: no such list, no known labels, or labels of two families.
        InputError: a node that lacks a label.
    """
    options.only(_OPTIONS)
    nodes = _decoded(text, path)
    keys = _keys(options, kueue, nodes, path)
    keep = options.keeps_unusable
    read = [(node, gpus_of(node, path)) for node in nodes]
    why = {} if keep else _why(nodes, options.words("tolerate"))
    told = _told([(node, gpus) for node, gpus in read if node.metadata.name not in why], keep)
    placed, lost = _placed(read, keys, why, path)
    if lost:
        told.append(
            f"cluster: {_some(lost, 'host')} without a label left out: no job can use {'it' if lost == 1 else 'them'} now"
        )
    if not placed:
        seen = f": {'; '.join(told)}" if told else ""
        raise InputError(f"{path} has no node with GPUs or labels{seen}", "look at the list's items")
    hosts = make_hosts(
        options,
        [node.metadata.name for node, _ in placed],
        [gpus.there if keep else gpus.usable for _, gpus in placed],
        [gpu_type(node) for node, _ in placed],
    )
    labels = [[node.metadata.labels[key] for node, _ in placed] for key in keys]
    levels = make_levels(hosts, _level_names(keys), labels, options)
    facts = [f"Kubernetes nodes {path} by {', '.join(keys)}"]
    if aside := len(nodes) - len(placed) - lost:
        facts.append(f"{aside} nodes without GPUs and labels left out")
    whole = Topology(options.values.get("name", "kubernetes"), hosts, levels, options.notes(facts))
    return only_usable(whole, why, path, told, remedy=_REMEDY).check()


def _placed(
    read: Sequence[_Read], keys: Sequence[str], why: Mapping[str, str], path: str
) -> tuple[list[_Read], int]:
    """The nodes with GPUs or labels, and how many others lack a label that they need not have: they take no jobs."""
    placed, lost = [], 0
    for node, gpus in read:
        if not gpus.there and not any(key in node.metadata.labels for key in keys):
            continue
        if node.metadata.name in why and _missing(node, keys):
            lost += 1
            continue
        _refuse_unplaced(node, keys, path)
        placed.append((node, gpus))
    return placed, lost


def _why(nodes: Iterable[KubernetesNode], tolerated: Sequence[str]) -> dict[str, str]:
    """Why no job can use a node now, by the node's name; those that are in use are left out."""
    found = {node.metadata.name: unusable(node, tolerated) for node in nodes}
    return {name: why for name, why in found.items() if why}


def _told(read: Sequence[_Read], keep: bool) -> list[str]:
    """What is on offer, or there, on nodes that take jobs, and is not counted; in words."""
    told = []
    shared = [gpus for _, gpus in read if gpus.offered > (gpus.there or 0)]
    if shared:
        offered, there = sum(gpus.offered for gpus in shared), sum(gpus.there or 0 for gpus in shared)
        told.append(
            f"cluster: GPUs of {_some(len(shared), 'host')} are shared: {offered:,} on offer are {there:,}"
        )
    short = [(gpus.there or 0) - (gpus.usable or 0) for _, gpus in read]
    if sum(short) and not keep:
        on = _some(sum(missing > 0 for missing in short), "host")
        told.append(f"cluster: {_some(sum(short), 'GPU')} of {on} left out: not allocatable")
    sliced = [gpus.slices for _, gpus in read if gpus.slices]
    if sliced:
        on = _some(len(sliced), "host")
        told.append(f"cluster: {_some(sum(sliced), 'MIG slice')} of {on} left out: they are no whole GPUs")
    others = Counter(name for node, _ in read for name in others_of(node))
    told += [
        f"cluster: {name} of {_some(count, 'host')} left out: only whole GPUs of nvidia.com/gpu count"
        for name, count in others.items()
    ]
    return told


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _decoded(text: str, path: str) -> list[KubernetesNode]:
    try:
        nodes = msgspec.json.decode(text, type=NodeList).items
    except DAMAGED as error:
        raise FormatError(f"{path} is no list of nodes: {error}", "use kubectl get nodes -o json") from error
    stranger = next((node for node in nodes if node.kind != "Node"), None)
    if stranger is not None:
        raise FormatError(f"{path} lists a {stranger.kind}, not a Node", "use kubectl get nodes -o json")
    return nodes


def _keys(
    options: TopologyOptions, kueue: str | None, nodes: Sequence[KubernetesNode], path: str
) -> list[str]:
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


def _family(nodes: Iterable[KubernetesNode], path: str) -> list[str]:
    present = {key for node in nodes for key in node.metadata.labels}
    found = {name: [k for k in keys if k in present] for name, keys in FAMILIES.items() if keys[0] in present}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise FormatError(f"{path} has labels of {' and of '.join(found)}", "choose with labels=narrow+wide")
    raise FormatError(
        f"{path} has no topology labels that are known", "name them with labels=narrow+wide, or with kueue="
    )


def _missing(node: KubernetesNode, keys: Sequence[str]) -> str:
    """The first of these labels that the node lacks; "" if it has all."""
    return next((key for key in keys if not node.metadata.labels.get(key)), "")


def _refuse_unplaced(node: KubernetesNode, keys: Sequence[str], path: str) -> None:
    if missing := _missing(node, keys):
        raise InputError(
            f"{path}: node {node.metadata.name!r} has no label {missing}",
            "label the node, or leave it out of the list",
        )


def _level_names(keys: Sequence[str]) -> list[str]:
    """Short names: "rack" for cloud.provider.com/topology-rack."""
    short = [key.rpartition("/")[2].removeprefix("topology-") for key in keys]
    return short if len(set(short)) == len(short) else list(keys)
