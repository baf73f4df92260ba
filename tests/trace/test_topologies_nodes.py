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
from hemiola.trace.topologies.options import Options

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
    return read_nodes(text, "nodes.json", Options(options, "nodes.json"), kueue)


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
        read_nodes(text, "x", Options({"labels": RACK, "kueue": "k"}, "x"), KUEUE_YAML)
