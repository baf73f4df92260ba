"""Kubernetes nodes by the labels that Kueue, KAI and Topograph go by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hemiola.core.errors import FormatError, HemiolaError, InputError
from hemiola.core.topology import Topology
from hemiola.trace.topologies import read_topology
from hemiola.trace.topologies.nodes import read_nodes
from hemiola.trace.topologies.options import TopologyOptions

BLOCK, RACK = "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack"
KUEUE = [("node-1", "block-1", "rack-1"), ("node-2", "block-1", "rack-2"), ("node-3", "block-2", "rack-1"), ("node-4", "block-2", "rack-3")]  # fmt: skip


def node(name: str, labels: dict[str, str], gpus: str | None = "8") -> dict[str, Any]:
    capacity = {"cpu": "64"} | ({"nvidia.com/gpu": gpus} if gpus else {})
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"capacity": capacity}}


def kueue_nodes() -> list[dict[str, Any]]:
    """The example of Kueue's documentation: rack-1 is in both blocks."""
    return [
        node(name, {BLOCK: block, RACK: rack, "kubernetes.io/hostname": name}) for name, block, rack in KUEUE
    ]


def read(items: list[dict[str, Any]], kueue: str | None = None, **options: str) -> Topology:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    return read_nodes(text, "nodes.json", TopologyOptions(options, "nodes.json"), kueue)


def test_kueues_example() -> None:
    cluster = read(kueue_nodes())
    rack, block = cluster.levels
    assert cluster.tiers == ("host", "rack", "block", "cluster")
    assert rack.domains == ("block-1/rack-1", "block-1/rack-2", "block-2/rack-1", "block-2/rack-3")
    assert block.domains == ("block-1", "block-2")
    assert block.domain_of_host.tolist() == [0, 0, 1, 1]
    assert cluster.gpus == 32
    assert f"by {RACK}, {BLOCK}" in cluster.source


@pytest.mark.parametrize(
    ("prefix", "keys", "levels"),
    [
        ("network.topology.nvidia.com/", ("leaf", "spine", "core"), ("leaf", "spine", "core")),
        ("network.topology.nvidia.com/", ("block", "spine", "datacenter"), ("block", "spine", "datacenter")),
        ("network.topology.nvidia.com/", ("leaf", "accelerator"), ("leaf",)),
        ("fabric.topograph.run/", ("tier-0", "tier-1"), ("tier-0", "tier-1")),
    ],
)
def test_topographs_labels(prefix: str, keys: tuple[str, ...], levels: tuple[str, ...]) -> None:
    items = [node(f"n{i}", {prefix + key: f"s{i // 2**j}" for j, key in enumerate(keys)}) for i in range(8)]
    assert tuple(level.name for level in read(items).levels) == levels


def test_gpus_and_types() -> None:
    items = kueue_nodes()
    items[0]["metadata"]["labels"]["nvidia.com/gpu.product"] = "NVIDIA-A100-SXM4-80GB"
    del items[1]["status"]["capacity"]["nvidia.com/gpu"]
    items[1]["metadata"]["labels"]["nvidia.com/gpu.count"] = "4"
    del items[2]["status"]
    cluster = read(items, gpus_per_host="2", gpu_type="h100")
    assert cluster.hosts.gpus.tolist() == [8, 4, 2, 8]
    assert cluster.hosts.gpu_types == ("NVIDIA-A100-SXM4-80GB", "h100", "h100", "h100")


def test_nodes_of_no_use_are_left_out() -> None:
    cluster = read([*kueue_nodes(), node("control-plane", {}, gpus=None)])
    assert "control-plane" not in cluster.hosts.names
    assert "1 nodes without GPUs and labels left out" in cluster.source


def changed(number: int, *, status: Any = None, spec: Any = None, **labels: str) -> list[dict[str, Any]]:
    """Kueue's nodes, of which one says more."""
    items = kueue_nodes()
    items[number]["status"] |= status or {}
    items[number]["spec"] = spec or {}
    items[number]["metadata"]["labels"] |= {f"nvidia.com/gpu.{key}": value for key, value in labels.items()}
    return items


def ready(status: str) -> dict[str, Any]:
    return {
        "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": status}]
    }


def taint(key: str, effect: str = "NoSchedule") -> dict[str, Any]:
    return {
        "taints": [
            {"key": "other", "effect": "PreferNoSchedule"},
            {"key": key, "value": "x", "effect": effect},
        ]
    }


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (changed(2, spec={"unschedulable": True}), "cordoned"),
        (changed(2, status=ready("False")), "not ready"),
        (changed(2, status=ready("Unknown")), "not ready"),
        (changed(2, spec=taint("repair")), "tainted repair"),
        (changed(2, spec=taint("node.kubernetes.io/unreachable", "NoExecute")), "tainted node.kubernetes.io/unreachable"),
    ],
)  # fmt: skip
def test_nodes_that_take_no_jobs_are_left_out(items: list[dict[str, Any]], why: str) -> None:
    cluster = read(items, oversubscription="1+2")
    assert cluster.hosts.names == ("node-1", "node-2", "node-4") and cluster.gpus == 24
    told = f"cluster: 1 of 4 hosts with 8 GPUs left out: 1 {why}"
    assert cluster.left_out == (told,) and told in cluster.source
    rack, block = cluster.levels
    assert rack.domains == ("block-1/rack-1", "block-1/rack-2", "block-2/rack-3")
    assert block.uplink_bytes_per_s.tolist() == [12.5e9] * 2, "a block's uplink is as wide as before"
    whole = read(items, unusable="keep")
    assert (whole.gpus, whole.left_out) == (32, ())


@pytest.mark.parametrize(
    "items",
    [
        changed(2, status=ready("True")),
        changed(2, spec=taint("nvidia.com/gpu")),
        changed(2, spec=taint("pool", "PreferNoSchedule")),
        changed(2, status={"allocatable": {}}, spec={"unschedulable": False}),
        changed(2, status={"allocatable": {"nvidia.com/gpu": "8"}}, count="8", replicas="1", product="H100"),
        changed(2, **{"count": "8", "replicas": "8", "sharing-strategy": "none"}),
    ],
)  # fmt: skip
def test_nodes_that_take_jobs_count_whole(items: list[dict[str, Any]]) -> None:
    cluster = read(items)
    assert cluster.gpus == 32 and cluster.left_out == ()


def test_taints_that_jobs_tolerate_are_named() -> None:
    assert read(changed(2, spec=taint("pool")), tolerate="team+pool").gpus == 32
    items = [item | {"spec": taint("pool")} for item in kueue_nodes()]
    with pytest.raises(InputError, match=r"leaves no GPU that a job can use: .* 4 tainted pool") as refusal:
        read(items)
    assert "tolerate=KEY" in refusal.value.remedy and read(items, tolerate="pool").gpus == 32


def test_a_node_that_takes_no_jobs_needs_no_label() -> None:
    items = changed(2, spec={"unschedulable": True})
    del items[2]["metadata"]["labels"][RACK]
    cluster = read(items)
    assert cluster.left_out == ("cluster: 1 host without a label left out: no job can use it now",)


def test_gpus_that_are_not_allocatable_are_left_out() -> None:
    items = changed(2, status={"allocatable": {"cpu": "64", "nvidia.com/gpu": "5"}})
    items[0]["status"]["allocatable"] = {"cpu": "64"}
    cluster = read(items)
    assert cluster.hosts.gpus.tolist() == [0, 8, 5, 8]
    assert cluster.left_out == ("cluster: 11 GPUs of 2 hosts left out: not allocatable",)
    assert read(items, unusable="keep").gpus == 32


TIME = {"sharing-strategy": "time-slicing", "product": "NVIDIA-A100-SXM4-80GB-SHARED"}
OFFER = {"nvidia.com/gpu": "32"}


@pytest.mark.parametrize(
    ("capacity", "allocatable", "labels", "there", "usable"),
    [
        (OFFER, OFFER, TIME | {"count": "8", "replicas": "4"}, 8, 8),
        (OFFER, {}, TIME | {"count": "8"}, 8, 8),
        (OFFER, {}, TIME | {"replicas": "4"}, 8, 8),
        (OFFER, {}, {"replicas": "4", "product": "H100-SHARED"}, 8, 8),
        (OFFER, {}, {"count": "8"}, 8, 8),
        (OFFER, {"nvidia.com/gpu": "23"}, TIME | {"count": "8", "replicas": "4"}, 8, 5),
        (OFFER, {}, {"sharing-strategy": "mps", "count": "8", "replicas": "4"}, 8, 8),
        ({"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "32"}, {}, {"replicas": "4"}, 8, 8),
        ({"nvidia.com/gpu.shared": "8"}, {}, {"count": "2", "sharing-strategy": "mps"}, 2, 2),
        ({"nvidia.com/gpu": "4", "nvidia.com/gpu.shared": "16"}, {}, {"count": "8", "replicas": "4"}, 8, 8),
    ],
)  # fmt: skip
def test_a_gpu_that_is_shared_is_one(
    capacity: dict[str, str], allocatable: dict[str, str], labels: dict[str, str], there: int, usable: int
) -> None:
    cluster = read(changed(0, status={"capacity": capacity, "allocatable": allocatable}, **labels))
    assert cluster.hosts.gpus.tolist() == [usable, 8, 8, 8]
    assert not any("SHARED" in kind for kind in cluster.gpu_types)
    offered = sum(map(int, capacity.values()))
    assert cluster.left_out[0] == f"cluster: GPUs of 1 host are shared: {offered} on offer are {there}"


def test_mig_slices_and_others_accelerators_are_no_gpus() -> None:
    items = changed(0, product="NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", count="14")
    items[0]["status"]["capacity"]["nvidia.com/gpu"] = "14"
    items[1]["status"]["capacity"] |= {"nvidia.com/gpu": "6", "nvidia.com/mig-3g.40gb": "4"}
    items[2]["status"]["capacity"] = {"cpu": "64", "amd.com/gpu": "8", "rdma/hca": "1"}
    cluster = read(items)
    assert cluster.hosts.gpus.tolist() == [0, 6, 0, 8]
    assert cluster.left_out == (
        "cluster: 14 MIG slices of 1 host left out: they are no whole GPUs",
        "cluster: nvidia.com/mig-3g.40gb of 1 host left out: only whole GPUs of nvidia.com/gpu count",
        "cluster: amd.com/gpu of 1 host left out: only whole GPUs of nvidia.com/gpu count",
    )


def test_a_cluster_of_others_accelerators_is_refused_by_name() -> None:
    items = [item | {"status": {"capacity": {"amd.com/gpu": "8"}}} for item in kueue_nodes()]
    with pytest.raises(InputError, match=r"leaves no GPU .*amd\.com/gpu of 4 hosts"):
        read(items)
    with pytest.raises(InputError, match=r"no node with GPUs or labels: .*amd\.com/gpu of 4 hosts"):
        read(items, labels="none.of/these")


def test_shared_gpus_that_nobody_counts_are_refused() -> None:
    with pytest.raises(InputError, match="'node-1' shares its GPUs, and does not say how many") as refusal:
        read(changed(0, **{"sharing-strategy": "mps"}))
    assert "nvidia.com/gpu.replicas" in refusal.value.remedy


def test_labels_and_levels_can_be_named() -> None:
    cluster = read(kueue_nodes(), labels=BLOCK, levels="hall", oversubscription="2")
    (hall,) = cluster.levels
    assert (hall.name, hall.domains) == ("hall", ("block-1", "block-2"))
    assert hall.uplink_bytes_per_s.tolist() == [12.5e9] * 2


KUEUE_YAML = f"""
apiVersion: kueue.x-k8s.io/v1beta1
kind: Topology
metadata:
  name: default
spec:
  levels:
  - nodeLabel: "{BLOCK}"
  - nodeLabel: {RACK}
  - nodeLabel: 'kubernetes.io/hostname'
"""


def test_a_kueue_topology_says_the_levels(tmp_path: Path) -> None:
    spec = {"kind": "Topology", "spec": {"levels": [{"nodeLabel": BLOCK}, {"nodeLabel": RACK}]}}
    note = "kubectl.kubernetes.io/last-applied-configuration"
    as_json = json.dumps(spec | {"metadata": {"annotations": {note: json.dumps(spec) + "\n"}}})
    noted = f"name: default\n  annotations:\n    {note}: |\n      {json.dumps(spec)}\n"
    got = KUEUE_YAML.replace("name: default\n", noted).replace("spec:", f"# - nodeLabel: {RACK}\nspec:")
    for text in (KUEUE_YAML, got, as_json):
        (tmp_path / "kueue.yaml").write_text(text)
        (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": kueue_nodes()}))
        cluster = read_topology(f"{tmp_path}/nodes.json,kueue={tmp_path}/kueue.yaml")
        assert cluster == read(kueue_nodes())


@pytest.mark.parametrize(
    "text", ["", "kind: Topology", KUEUE_YAML.replace("Topology", "Cohort"), KUEUE_YAML * 2]
)
def test_other_kueue_files_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "kueue.yaml").write_text(text)
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": kueue_nodes()}))
    with pytest.raises(FormatError, match="Topolog"):
        read_topology(f"{tmp_path}/nodes.json,kueue={tmp_path}/kueue.yaml")


def broken(**changes: Any) -> list[dict[str, Any]]:
    items = kueue_nodes()
    items[2] |= changes
    return items


@pytest.mark.parametrize(
    ("items", "options", "error", "message"),
    [
        (broken(kind="Pod"), {}, FormatError, "lists a Pod"),
        (broken(metadata=3), {}, FormatError, "no list of nodes"),
        (broken(metadata={"name": "x", "labels": {BLOCK: "b"}}), {}, InputError, f"'x' has no label {RACK}"),
        (broken(metadata={"name": "x"}), {}, InputError, f"'x' has no label {RACK}"),
        (broken(status={"capacity": {"nvidia.com/gpu": "many"}}), {}, InputError, "'node-3': nvidia.com/gpu: 'many'"),
        (broken(status={}), {}, InputError, "how many GPUs host 'node-3' has"),
        ([], {"labels": BLOCK}, InputError, "no node with GPUs or labels"),
        ([node("a", {})], {}, FormatError, "no topology labels that are known"),
        ([node("a", {RACK: "1", "network.topology.nvidia.com/leaf": "2"})], {}, FormatError, "labels of Kueue and of Topograph"),
        (kueue_nodes(), {"gpus_per_host": "8"}, InputError, "gives every host's GPUs itself"),
        (kueue_nodes(), {"rack": "8"}, InputError, "no option 'rack'"),
        (kueue_nodes(), {"labels": "a+b"}, InputError, "has no label a"),
    ],
)  # fmt: skip
def test_refusals(items: Any, options: dict[str, str], error: type[HemiolaError], message: str) -> None:
    with pytest.raises(error, match=message):
        read(items, **options)


def test_labels_and_kueue_exclude_each_other() -> None:
    text = json.dumps({"items": kueue_nodes()})
    with pytest.raises(InputError, match="both labels and kueue"):
        read_nodes(text, "x", TopologyOptions({"labels": RACK, "kueue": "k"}, "x"), KUEUE_YAML)
