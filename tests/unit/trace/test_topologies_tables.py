"""Lingjun's and Tiresias's CSV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hemiola.core.errors import HemiolaError, InputError, RowError
from hemiola.core.topology import Topology
from hemiola.trace.topologies import read_topology
from hemiola.trace.topologies.options import TopologyOptions
from hemiola.trace.topologies.tables import read_lingjun, read_tiresias

LINGJUN = "ip,DSW,PSW,ASW\nh0,G6,P10,S1\nh1,G6,P12,S1\nh2,G6,P10,S1\n\nh3,G6,P10,S2\n"
TIRESIAS = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n4,8,2,64,256"


def lingjun(text: str, **options: str) -> Topology:
    return read_lingjun(text, "topo.csv", TopologyOptions(options, "topo.csv"))


def tiresias(text: str, **options: str) -> Topology:
    return read_tiresias(text, "c.csv", TopologyOptions(options, "c.csv"))


def test_lingjun_racks_are_pairs() -> None:
    cluster = lingjun(LINGJUN, gpus_per_host="4", nic="400gbit", oversubscription="2")
    rack, pod = cluster.levels
    assert rack.domains == ("P10/S1", "P12/S1", "P10/S2")
    assert rack.domain_of_host.tolist() == [0, 1, 0, 2]
    assert rack.uplink_bytes_per_s.tolist() == [50e9, 25e9, 25e9]
    assert (pod.domains, pod.uplink_bytes_per_s.tolist()) == (("P10", "P12"), [75e9, 25e9])
    assert cluster.tiers == ("host", "rack", "pod", "cluster")
    assert "Crux" not in cluster.source


def test_lingjun_defaults_are_said() -> None:
    cluster = lingjun(LINGJUN)
    assert (cluster.gpus, cluster.gpu_types, cluster.hosts.nic_bytes_per_s[0]) == (32, ("a100",), 100e9)
    assert "Crux (SIGCOMM 2024, figure 18" in cluster.source
    assert "gpus_per_host=8" in cluster.source
    assert "nic=800gbit" in cluster.source


def test_several_cores_are_a_level() -> None:
    assert lingjun(LINGJUN + "h4,G7,P10,S1\n").tiers == ("host", "rack", "pod", "core", "cluster")


def test_tiresias() -> None:
    cluster = tiresias(TIRESIAS, nic="10gbit", oversubscription="4")
    assert (len(cluster.hosts), cluster.gpus, cluster.name) == (32, 64, "tiresias-4x8x2")
    assert np.array_equal(cluster.levels[0].domain_of_host, np.arange(32) // 8)
    assert (cluster.levels[0].uplink_bytes_per_s == 8 * 1.25e9 / 4).all()


@pytest.mark.parametrize(
    ("read", "text", "error", "message"),
    [
        (lingjun, "ip,DSW,PSW,ASW\n", InputError, "has no rows"),
        (lingjun, "", InputError, "topo.csv"),
        (lingjun, LINGJUN + "h4,G6,,S1\n", RowError, "topo.csv:7: column 'PSW'"),
        (lingjun, LINGJUN + "h4\n", RowError, "topo.csv:7: column 'DSW'"),
        (lingjun, LINGJUN + "h0,G6,P12,S1\n", HemiolaError, "'h0' appears twice"),
        (tiresias, TIRESIAS + "\n1,1,1,1,1", RowError, "second cluster"),
        (tiresias, TIRESIAS.replace("4,8", "0,8"), RowError, "c.csv:2: column 'num_switch'"),
        (tiresias, TIRESIAS.replace("4,8", "x,8"), RowError, "'x' is not a whole number"),
        (tiresias, TIRESIAS.replace("4,8", "999999999,999999999"), InputError, "hosts"),
        (tiresias, "num_switch\n1", InputError, "c.csv"),
    ],
)
def test_refusals(read: object, text: str, error: type[HemiolaError], message: str) -> None:
    assert callable(read)
    with pytest.raises(error, match=message) as refusal:
        read(text)
    assert refusal.value.remedy


@pytest.mark.shared_data
def test_the_real_lingjun_cluster(shared: Path) -> None:
    cluster = read_topology(f"{shared}/data/traces/lingjun/topo.csv,gpus_per_host=8,nic=400gbit")
    rack, pod = cluster.levels
    assert (len(cluster.hosts), len(rack.domains), len(pod.domains)) == (847, 119, 3)
    assert sorted(np.bincount(pod.domain_of_host).tolist()) == [179, 306, 362]
    assert np.bincount(rack.domain_of_host).max() == 8


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "hosts", "gpus"), [("n32g8s4", 32, 256), ("n64g8s4", 64, 512), ("n4g4", 4, 16)]
)
def test_the_slices_clusters(shared: Path, name: str, hosts: int, gpus: int) -> None:
    cluster = read_topology(f"{shared}/data/golden/bench_slices/{name}.csv")
    assert (len(cluster.hosts), cluster.gpus) == (hosts, gpus)
