"""Hemiola's own TOML: known answers, refusals, and reading back what was written."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repository import DOCS, EXAMPLES

from hemiola.core.errors import FormatError, HemiolaError, InputError, TopologyError
from hemiola.core.topology import Hosts, Level, Topology
from hemiola.trace.topologies import read_topology, topology_text, write_topology
from hemiola.trace.topologies.native import read_native

CLUSTERS = EXAMPLES / "clusters"

LAB = """
[cluster]
name = "lab"
source = "by hand"

[[hosts]]
names = "n[0-2]"
gpus = 8
gpu_type = "a100"
nic = "200gbit"
fabric = "300GB/s"

[[hosts]]
names = ["odd,name"]
gpus = 4
nic = "25GB/s"
latency = "2us"
island = 2
bus = "16GB/s"

[[level]]
name = "rack"
latency = "1us"
[[level.domain]]
name = "r0"
hosts = "n[0-1]"
uplink = "400gbit"
[[level.domain]]
name = "r1"
hosts = ["n2", "odd,name"]
uplink = "unlimited"

[[level]]
name = "pod"
[[level.domain]]
name = "p"
children = "r[0-1]"
uplink = "1Tbit/s"
"""


def test_known_answer() -> None:
    lab = read_native(LAB, "lab.toml")
    assert lab.name == "lab"
    assert lab.hosts.names == ("n0", "n1", "n2", "odd,name")
    assert lab.hosts.gpus.tolist() == [8, 8, 8, 4]
    assert lab.hosts.gpu_types == ("a100", "a100", "a100", "")
    assert lab.hosts.nic_bytes_per_s.tolist() == [25e9] * 4
    assert lab.hosts.nic_latency_s == pytest.approx([5e-6, 5e-6, 5e-6, 2e-6])
    assert lab.hosts.fabric_bytes_per_s.tolist() == [300e9] * 3 + [150e9]
    assert lab.hosts.island_gpus.tolist() == [8, 8, 8, 2]
    assert lab.hosts.bus_bytes_per_s.tolist() == [12e9] * 3 + [16e9]
    rack, pod = lab.levels
    assert rack.domain_of_host.tolist() == [0, 0, 1, 1]
    assert rack.uplink_bytes_per_s.tolist() == [50e9, np.inf]
    assert rack.latency_s == pytest.approx(1e-6)
    assert pod.domain_of_host.tolist() == [0, 0, 0, 0]
    assert lab.tiers == ("host", "rack", "pod")
    assert lab.source == "topology file lab.toml; by hand; assumed: latency=5us, bus=12GB/s, fabric=150GB/s"


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("gpus = 8", "", InputError, r"\[\[hosts\]\] 1 does not say gpus"),
        ("gpus = 8", 'gpus = "8"', InputError, "gpus is '8'"),
        ("gpus = 8", "gpus = true", InputError, "gpus is True"),
        ("gpus = 8", "gpus = -8", InputError, "gpus is -8"),
        ("gpus = 8", "gpus = 99999999999999999999", InputError, "gpus is 9999"),
        ("gpus = 8", "gpus = 8\ncores = 4", InputError, "no key 'cores'"),
        ("gpus = 8", "gpus = 8\ncpus = -4", InputError, "cpus is -4"),
        ("gpus = 8", "gpus = 8\ncpus = true", InputError, "cpus is True"),
        ("gpus = 8", 'gpus = 8\nmemory = "64"', InputError, "memory: '64' has no unit"),
        ('nic = "200gbit"', 'nic = "200"', InputError, "nic: '200' has no unit"),
        ('nic = "200gbit"', "nic = 200", InputError, "nic is 200"),
        ('nic = "200gbit"', "", InputError, "does not say nic"),
        ('names = "n[0-2]"', 'names = "n[0-"', InputError, "names: the hostlist"),
        ('names = "n[0-2]"', "names = [0]", InputError, "names must hold text"),
        ('names = "n[0-2]"', 'names = "n[0-2],n1"', TopologyError, "'n1' appears twice"),
        ('hosts = "n[0-1]"', 'hosts = "n0"', TopologyError, "'n1' is in no rack"),
        ('hosts = "n[0-1]"', 'hosts = "n[0-2]"', TopologyError, "'n2' is in two racks"),
        ('hosts = "n[0-1]"', 'hosts = "n[0-1],m7"', InputError, "'m7' is no host"),
        ('hosts = "n[0-1]"', 'children = "n0"', InputError, "'n0' is no domain"),
        ('hosts = "n[0-1]"', "", InputError, "needs hosts or children"),
        ('hosts = "n[0-1]"', 'hosts = "n0"\nchildren = "n0"', InputError, "needs hosts or children"),
        ('children = "r[0-1]"', 'children = "r[0-2]"', InputError, "'r2' is no domain of the level below"),
        ('children = "r[0-1]"', 'children = "r0"', TopologyError, "'n2' is in no pod"),
        ('uplink = "400gbit"', "", InputError, "does not say uplink"),
        ('uplink = "400gbit"', 'uplink = "0gbit"', TopologyError, "uplink of 'r0' is 0"),
        ('name = "r1"', 'name = "r0"', TopologyError, "'r0' appears twice"),
        ('name = "pod"', 'name = "rack"', TopologyError, "levels are named"),
        ('name = "pod"', "", InputError, "does not say name"),
        ("[cluster]", "[clutser]", InputError, "no key 'clutser'"),
        ("[cluster]", "[cluster", FormatError, "is not TOML"),
        ('source = "by hand"', "racks = 3", InputError, "no key 'racks'"),
    ],
)
def test_refusals(old: str, new: str, error: type[HemiolaError], message: str) -> None:
    assert old in LAB
    with pytest.raises(error, match=message) as refusal:
        read_native(LAB.replace(old, new, 1), "lab.toml")
    assert refusal.value.remedy


def test_more_than_a_million_hosts_are_refused() -> None:
    group = '[[hosts]]\nnames = "{}"\ngpus = 1\nnic = "1gbit"\n'
    with pytest.raises(InputError, match="more than 1,000,000 hosts"):
        read_native(group.format("n[1-1000000]") + group.format("m"), "x")


def test_no_hosts_and_deep_nesting_are_refused() -> None:
    with pytest.raises(TopologyError, match="has no hosts"):
        read_native("", "x")
    with pytest.raises(FormatError):
        read_native("a = " + "[" * 100_000, "x")
    with pytest.raises(InputError, match="must be tables"):
        read_native("hosts = [1]", "x")
    with pytest.raises(InputError, match="hosts is 3"):
        read_native("hosts = 3", "x")


def test_only_the_name_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(LAB)
    assert read_topology(f"{path},name=other").name == "other"
    with pytest.raises(InputError, match="no option 'nic'"):
        read_topology(f"{path},nic=100gbit")


def test_text_is_what_a_person_would_write() -> None:
    text = topology_text(read_topology("leaf-spine:hosts=4,gpus_per_host=8,hosts_per_rack=2"))
    assert 'names = "n[0-3]"' in text
    assert 'nic = "100gbit"\nlatency = "5us"\nfabric = "150GB/s"\nisland = 8\nbus = "12GB/s"' in text
    assert 'name = "r1"\nhosts = "n[2-3]"\nuplink = "200gbit"' in text


def test_unwritable_paths_are_refused(tmp_path: Path) -> None:
    cluster = read_topology("flat:hosts=2,gpus_per_host=1")
    with pytest.raises(InputError, match="cannot write"):
        write_topology(cluster, tmp_path / "no" / "x.toml")
    lone = Topology("\ud800", cluster.hosts)
    with pytest.raises(InputError, match="cannot write") as caught:
        write_topology(lone, tmp_path / "x.toml")
    assert "names" in caught.value.remedy
    assert not [*tmp_path.iterdir()]


def test_a_write_that_fails_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    write_topology(read_topology("flat:hosts=2,gpus_per_host=1"), path)
    before = path.read_bytes()
    with full_disk(), pytest.raises(InputError, match="cannot write") as caught:
        write_topology(read_topology("flat:hosts=4,gpus_per_host=8"), path)
    assert caught.value.remedy
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond ten bytes."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_folder_that_is_not_there_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file") as caught:
        write_topology(read_topology("flat:hosts=2,gpus_per_host=1"), tmp_path / "no" / "x.toml")
    assert caught.value.remedy == "create the folder first, or name another path"


def test_a_name_in_gz_is_compressed_and_reads_back(tmp_path: Path) -> None:
    cluster = read_topology("flat:hosts=2,gpus_per_host=1")
    path = tmp_path / "x.toml.gz"
    write_topology(cluster, path)
    assert path.read_bytes().startswith(b"\x1f\x8b")
    assert read_topology(str(path)).hosts.names == cluster.hosts.names
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match="cannot read"):
        read_topology(str(path))


@pytest.mark.parametrize("path", sorted(CLUSTERS.glob("*.toml")), ids=lambda path: path.name)
def test_examples_read(path: Path) -> None:
    cluster = read_topology(str(path))
    assert cluster.levels
    assert "assumed" not in cluster.source


RATES = st.one_of(st.floats(1e-3, 1e15), st.sampled_from([np.inf, 12.5e9, 1e11 / 3, 150e9]))
NAMES = st.text(st.characters(codec="utf-8"), max_size=6)


@st.composite
def trees(draw: st.DrawFn) -> Topology:
    """Any topology: mixed hosts, up to three nested levels, odd names."""
    count = draw(st.integers(1, 12))
    plain = draw(st.booleans())
    names = [f"n{i}" for i in range(count)] if plain else draw(st.lists(NAMES, min_size=count, max_size=count, unique=True))  # fmt: skip

    def column(values: st.SearchStrategy[float]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype=float)

    gpus = np.array(draw(st.lists(st.integers(0, 72), min_size=count, max_size=count)))
    gpus[0] += gpus.sum() == 0
    hosts = Hosts(
        names=tuple(names),
        gpus=gpus,
        gpu_types=tuple(
            draw(st.lists(st.sampled_from(["", "a100", 'q"\\\x7f\n']), min_size=count, max_size=count))
        ),
        nic_bytes_per_s=column(RATES),
        nic_latency_s=column(st.floats(0, 1)),
        fabric_bytes_per_s=column(RATES),
        island_gpus=np.maximum(gpus, 1),
        bus_bytes_per_s=column(RATES),
    )
    levels: list[Level] = []
    place = np.arange(count)
    for number in range(draw(st.integers(0, 3))):
        width = int(place.max()) + 1
        labels = np.array(draw(st.lists(st.integers(0, width - 1), min_size=width, max_size=width)))
        place = labels[place]
        domains = int(place.max()) + 1 + draw(st.integers(0, 1))
        titles = [f"d{i}" for i in range(domains)] if plain else draw(st.lists(NAMES, min_size=domains, max_size=domains, unique=True))  # fmt: skip
        uplinks = np.array(draw(st.lists(RATES, min_size=domains, max_size=domains)))
        levels.append(Level(f"level{number}", tuple(titles), place, uplinks, draw(st.floats(0, 1))))
    return Topology(draw(NAMES), hosts, tuple(levels), draw(NAMES)).check()


@given(trees())
def test_read_back_equal(topology: Topology) -> None:
    again = read_native(topology_text(topology), "x")
    assert again == topology
    assert topology.source in again.source
    assert "assumed" not in again.source.replace(topology.source, "")


def test_the_documented_file_reads() -> None:
    page = DOCS / "reference/topologies.md"
    text = page.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    assert read_native(text, "docs").tiers == ("host", "rack", "pod")
