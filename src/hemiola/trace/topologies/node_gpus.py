"""Which GPUs of a Kubernetes node a job can have: of whole ones how many, and why not the others.

Facts: the labels of GPU feature discovery and the resources of NVIDIA's device plugin (k8s-device-plugin, README);
taints and conditions of Kubernetes nodes. A GPU that is shared by time or by MPS is offered several times and is one;
a MIG slice is offered once and is none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hemiola.core.errors import InputError
from hemiola.trace.topologies.options import whole

__all__ = ["GPU", "Gpus", "Metadata", "KubernetesNode", "gpu_type", "gpus_of", "others_of", "unusable"]

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
    kind: str = "KubernetesNode"
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
