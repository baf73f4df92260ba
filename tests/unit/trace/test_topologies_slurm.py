"""Slurm's topology.conf with slurm.conf and gres.conf (topology.conf(5), gres.conf(5))."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import FormatError, HemiolaError, InputError, TopologyError
from hemiola.core.topology import Topology
from hemiola.trace.topologies import read_topology
from hemiola.trace.topologies.options import TopologyOptions
from hemiola.trace.topologies.slurm import (
    read_down,
    read_gres_conf,
    read_slurm,
    read_slurm_conf,
    read_without_partition,
)

GBIT = 1.25e8
TWO = "SwitchName=a Nodes=n[0-1]\nSwitchName=b Nodes=n[2-3]\nSwitchName=top Switches=a,b\n"


def read(topology_conf: str, given: str = "gpus_per_host=8", **files: str) -> Topology:
    options = dict(pair.split("=") for pair in given.split(",") if pair)
    texts = {"topology.conf": topology_conf, **{f"{name}.conf": text for name, text in files.items()}}
    return read_slurm(texts, "conf", TopologyOptions(options, "conf"))


def test_two_levels_of_switches() -> None:
    cluster = read(TWO)
    (rack,) = cluster.levels
    assert (rack.name, rack.domains) == ("rack", ("a", "b"))
    assert rack.domain_of_host.tolist() == [0, 0, 1, 1]
    assert rack.uplink_bytes_per_s.tolist() == [200 * GBIT] * 2
    assert cluster.tiers == ("host", "rack", "cluster")


def test_one_switch_is_a_flat_cluster() -> None:
    assert read("SwitchName=only Nodes=n[0-3]").levels == ()


def test_syntax() -> None:
    conf = """
    # comment
    switchname=LEAF0 NODES=n[0-1] LinkSpeed=400gbit  # bigger
    SwitchName=leaf1 \\
        Nodes=n[2-3] LinkSpeed=40
    SwitchName=pod0 Switches=LEAF0,leaf1 LinkSpeed=1Tbit/s
    SwitchName=pod1 Switches=leaf2
    SwitchName=leaf2 Nodes="n4"
    SwitchName=core Switches=pod[0-1]
    """
    cluster = read(conf, "gpus_per_host=8,nic=100gbit,oversubscription=2+4,levels=leaf+spine")
    leaf, spine = cluster.levels
    assert (leaf.name, spine.name) == ("leaf", "spine")
    assert leaf.domains == ("LEAF0", "leaf1", "leaf2")
    assert leaf.uplink_bytes_per_s.tolist() == [400 * GBIT, 100 * GBIT, 50 * GBIT]
    assert spine.uplink_bytes_per_s.tolist() == [1000 * GBIT, 50 * GBIT / 4]
    assert "1 LinkSpeed without a unit left aside" in cluster.source


def test_a_leaf_below_the_root_passes_through_the_pods() -> None:
    conf = TWO.replace("top", "pod0") + "SwitchName=far Nodes=n[4-5]\nSwitchName=root Switches=pod0,far\n"
    cluster = read(conf, "gpus_per_host=8,oversubscription=4+2")
    rack, pod = cluster.levels
    assert pod.domains == ("pod0", "far")
    assert rack.uplink_bytes_per_s.tolist() == [50 * GBIT] * 3
    assert pod.uplink_bytes_per_s.tolist() == [50 * GBIT, 50 * GBIT], (
        "what passes through is not divided again"
    )
    assert "far has no pod above it" in cluster.source


def test_deep_trees_have_numbered_levels() -> None:
    chain = "".join(f"SwitchName=s{i} Switches=s{i - 1}\n" for i in range(1, 6))
    assert read("SwitchName=s0 Nodes=n0\n" + chain).tiers == (
        "host",
        "rack",
        "pod",
        "core",
        "level4",
        "level5",
    )


def test_blocks() -> None:
    cluster = read("BlockName=b1 Nodes=n[0-1]\nBlockName=b2 Nodes=n[2-3]\nBlockSizes=2,4\n")
    assert cluster.tiers == ("host", "block", "cluster")
    assert cluster.levels[0].domains == ("b1", "b2")


def test_what_scontrol_shows_of_a_tree() -> None:
    shown = (
        "SwitchName=root Level=1 LinkSpeed=0 Nodes=n[0-3] Switches=s[1-2] \n"
        "SwitchName=s1 Level=0 LinkSpeed=0 Nodes=n[0-1] \nSwitchName=s2 Level=0 LinkSpeed=0 Nodes=n[2-3] \n"
    )  # as 26.05 printed it
    written = "SwitchName=root Switches=s[1-2]\nSwitchName=s1 Nodes=n[0-1]\nSwitchName=s2 Nodes=n[2-3]\n"
    assert read(shown).levels == read(written).levels


def test_what_scontrol_shows_of_blocks() -> None:
    cluster = read(
        "BlockName=b1 BlockIndex=0 Nodes=n[0-1] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[2-3] BlockSize=2\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[0-3] BlockSize=4\n"
    )  # as 26.05 printed it
    assert cluster.levels[0].domains == ("b1", "b2") and cluster.gpus == 32


@pytest.mark.parametrize(
    ("conf", "error", "message"),
    [
        (
            "SwitchName=a Nodes=n0\nSwitchName=b Nodes=n1",
            TopologyError,
            "no switch is above both 'a' and 'b'",
        ),
        (
            "SwitchName=a Nodes=n0\nSwitchName=b Nodes=n0\nSwitchName=t Switches=a,b",
            TopologyError,
            "'n0' is below",
        ),
        (TWO + "SwitchName=top2 Switches=a", TopologyError, "'a' is below 'top' and 'top2'"),
        (TWO + "SwitchName=a Nodes=n9", TopologyError, "'a' appears twice"),
        (TWO.replace("a,b", "a,b,c"), TopologyError, "above 'c', which no line describes"),
        (TWO + "SwitchName=x Switches=y\nSwitchName=y Switches=x", TopologyError, "above itself"),
        (
            TWO + "SwitchName=more Switches=top,less\nSwitchName=less Switches=more",
            TopologyError,
            "above itself",
        ),
        ("SwitchName=a Switches=a", TopologyError, "no nodes"),
        ("", TopologyError, "no nodes"),
        ("SwitchName=a", InputError, "conf:1: switch 'a' needs nodes or switches"),
        ("SwitchName=a Nodes=n0 Switches=b", InputError, "one of the two"),
        ("SwitchName=a Nodes=n[0-", InputError, "conf:1: the hostlist"),
        ("SwitchName=a Nodes=n0 Speed=4", InputError, "conf:1: cannot read 'speed'"),
        ("SwitchName=a Nodes=n0 LinkSpeed=4furlong", InputError, "conf:1: '4furlong'"),
        ("BlockName=a Nodes=n0\nSwitchName=b Switches=a", InputError, "mixes blocks and switches"),
        ("hello", InputError, "conf:1: cannot read"),
    ],
)
def test_refusals(conf: str, error: type[HemiolaError], message: str) -> None:
    with pytest.raises(error, match=message) as refusal:
        read(conf)
    assert refusal.value.remedy


def test_too_many_ratios_and_names_are_refused() -> None:
    with pytest.raises(InputError, match="1 levels, but oversubscription has 2"):
        read(TWO, "gpus_per_host=8,oversubscription=4+2")
    with pytest.raises(InputError, match="1 levels, but levels names 2"):
        read(TWO, "gpus_per_host=8,levels=a+b")


def test_gpus_from_slurm_conf() -> None:
    conf = """
    ClusterName=x
    NodeName=DEFAULT Gres=gpu:a100:8
    NodeName=n[0-1] CPUs=64
    NodeName=n2 Gres=gpu:v100:4(S:0-1),shard:16
    NodeName=n3 Gres=gpu:2
    NodeName=login Gres=""
    """
    cluster = read(TWO, "", slurm=conf)
    assert cluster.hosts.gpus.tolist() == [8, 8, 4, 2]
    assert cluster.hosts.gpu_types == ("a100", "a100", "v100", "")
    assert "gpus_per_host" not in cluster.source


def test_gpus_from_gres_conf() -> None:
    conf = """
    NodeName=n[0-1] Name=gpu Type=a100 File=/dev/nvidia[0-3] Cores=0-31
    NodeName=n[0-1] Name=gpu Type=a100 File=/dev/nvidia[4-7] Cores=32-63
    NodeName=n2 Name=gpu Count=2
    NodeName=n3 Name=gpu
    NodeName=n3 Name=shard Count=99
    """
    cluster = read(TWO, "", gres=conf)
    assert cluster.hosts.gpus.tolist() == [8, 8, 2, 1]
    assert cluster.hosts.gpu_types == ("a100", "a100", "", "")


def test_gres_for_every_node_and_slurm_conf_decides() -> None:
    both = read(TWO, "", gres="Name=gpu Type=t4 Count=4", slurm="NodeName=n3 Gres=gpu:t4:2")
    assert both.hosts.gpus.tolist() == [4, 4, 4, 2]


@pytest.mark.parametrize(
    ("gres", "problem"),
    [
        ("Name=gpu AutoDetect=nvml", "gres.conf:1: how many GPUs is not said"),
        ("NodeName=n[0-3] Name=gpu AutoDetect=nvml", "gres.conf:1: how many GPUs is not said"),
        ("Name=gpu Type=a100 Count=8\nName=gpu Type=v100 Count=4", "gres.conf:2: a node with GPUs of two"),
    ],
)
def test_what_gres_conf_leaves_open_matters_where_slurm_conf_is_silent(gres: str, problem: str) -> None:
    stated = read(TWO, "", gres=gres, slurm="NodeName=n[0-3] Gres=gpu:a100:8")
    assert stated.hosts.gpus.tolist() == [8] * 4
    assert stated.gpu_types == ("a100",)
    with pytest.raises(InputError, match=problem):
        read(TWO, "", gres=gres, slurm="NodeName=n[0-2] Gres=gpu:a100:8")


def test_an_option_fills_what_slurm_detects_itself() -> None:
    found = read(TWO, "gpus_per_host=4", gres="NodeName=n0 Name=gpu Type=t4 AutoDetect=nvml")
    assert found.hosts.gpus.tolist() == [4] * 4
    assert found.hosts.gpu_types == ("t4", "", "", "")


def test_several_files_of_one_gpu() -> None:
    mig = "NodeName=n0 Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22]\n"
    conf = mig * 3 + "NodeName=n[1-3] Name=gpu AutoDetect=off Files=/dev/nvidia[0-3]"
    assert read(TWO, "", gres=conf).hosts.gpus.tolist() == [3, 4, 4, 4]


def test_options_fill_only_what_is_open() -> None:
    assert read(TWO, "gpus_per_host=4", gres="NodeName=n0 Name=gpu Count=8").hosts.gpus.tolist() == [
        8,
        4,
        4,
        4,
    ]
    assert read(TWO, "gpu_type=a100", gres="Name=gpu Count=8").gpu_types == ("a100",)
    with pytest.raises(InputError, match="gives every host's GPUs itself"):
        read(TWO, "gpus_per_host=4", gres="Name=gpu Count=8")
    with pytest.raises(InputError, match="how many GPUs host 'n1' has"):
        read(TWO, "", gres="NodeName=n0 Name=gpu Count=8")


@pytest.mark.parametrize(
    ("gres", "slurm", "message"),
    [
        (
            "NodeName=n0 Name=gpu Type=a Count=1\nNodeName=n0 Name=gpu Type=b Count=1",
            "",
            "two types, 'a' and 'b'",
        ),
        ("", "NodeName=n0 Gres=gpu:a:1,gpu:b:1", "two types"),
        ("", "NodeName=n0 Gres=gpu:a:b:c", "cannot read Gres"),
        ("", "NodeName=n[0-", "slurm.conf:1: the hostlist"),
        ("NodeName=n0 Name=gpu Count=x", "", "Count: 'x'"),
        ("", "NodeName=elsewhere Gres=gpu:8", "'elsewhere' has GPUs but no switch"),
    ],
)
def test_refused_gpus(gres: str, slurm: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(TWO, "gpus_per_host=8", gres=gres, slurm=slurm)


@pytest.mark.parametrize(
    ("gres", "slurm", "topology", "place"),
    [
        (
            "",
            "ClusterName=x\nNodeName=n[0-3] Gres=gpu:8 oops",
            TWO,
            "slurm.conf:2: cannot read 'NodeName=n[0-3] Gres",
        ),
        ("", "nodename n[0-3] Gres=gpu:8", TWO, "slurm.conf:1: cannot read 'nodename n[0-3]"),
        ("", "NodeName=n0, n1 \\\n  Gres=gpu:8", TWO, "slurm.conf:1: cannot read 'NodeName=n0, n1 "),
        ("", "Port=1\n\nInclude nodes.conf", TWO, "slurm.conf:3: cannot read 'Include nodes.conf'"),
        ("Name=gpu Count 8", "", TWO, "gres.conf:1: cannot read 'Name=gpu Count 8'"),
        ('NodeName=n0 Name=gpu Type="a b', "", TWO, "gres.conf:1: cannot read 'NodeName=n0"),
        ("include more.conf", "", TWO, "gres.conf:1: cannot read 'include more.conf'"),
        ("", "", TWO + "SwitchName c Nodes=n9", "topology.conf:4: cannot read 'SwitchName c Nodes=n9'"),
        ("", "", "INCLUDE leaves.conf\n" + TWO, "topology.conf:1: cannot read 'INCLUDE leaves.conf'"),
    ],
)
def test_lines_that_matter_are_not_dropped_unread(gres: str, slurm: str, topology: str, place: str) -> None:
    with pytest.raises(InputError) as refusal:
        read(topology, gres=gres, slurm=slurm)
    assert refusal.value.what.startswith(f"conf/{place}")
    wanted = "included file" if "nclude" in place.lower() else "Key=value"
    assert wanted in refusal.value.remedy


def test_lines_of_other_things_may_be_anything() -> None:
    conf = "JobCompLoc some where\nPartitionName=a Nodes=ALL odd\nNodeSet x\nNodeName=n[0-3] Gres=gpu:2"
    assert read(TWO, "", slurm=conf).hosts.gpus.tolist() == [2] * 4


def test_tabs_stand_between_pairs_too() -> None:
    conf = "NodeName=n[0-3]\tCPUs=64\t\tGres=gpu:a100:8\t# new"
    assert read(TWO.replace(" ", "\t"), "", slurm=conf).hosts.gpus.tolist() == [8] * 4


def test_a_line_that_is_continued_at_the_end_of_the_file_counts() -> None:
    assert read(TWO, "", slurm="NodeName=n[0-3] \\\n Gres=gpu:8 \\").hosts.gpus.tolist() == [8] * 4
    assert read(TWO.rstrip() + " \\", "gpus_per_host=1").hosts.names == ("n0", "n1", "n2", "n3")


def test_a_list_of_nodes_goes_on_in_the_next_line() -> None:
    """As Slurm joins lines: without a space."""
    assert read(TWO, "", slurm="NodeName=n0,\\\nn[1-3] Gres=gpu:8").hosts.gpus.tolist() == [8] * 4
    assert read("SwitchName=a Nodes=n[0-1],\\\nn[2-3]\n").hosts.names == ("n0", "n1", "n2", "n3")


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu", (1, "")),
        ("gpu:8", (8, "")),
        ("gpu:a100", (1, "a100")),
        ("gpu:a100:8", (8, "a100")),
        ("gpu:a100:4(S:0,1),gpu:a100:4(S:2,3)", (8, "a100")),
        ("gpu:nvidia_a100-sxm4-80gb:8,mps:800", (8, "nvidia_a100-sxm4-80gb")),
        ("gpumem:8", (0, "")),
    ],
)
def test_gres_text(gres: str, gpus: tuple[int, str]) -> None:
    assert read_slurm_conf(f"NodeName=n0 Gres={gres}", "x") == {"n0": gpus}


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text(TWO)
    (tmp_path / "slurm.conf").write_text("NodeName=n[0-3] Gres=gpu:h100:8")
    cluster = read_topology(f"{tmp_path},nic=400gbit")
    assert (cluster.gpus, cluster.gpu_types) == (32, ("h100",))
    assert cluster.source.startswith("Slurm slurm.conf, topology.conf of")
    (tmp_path / "topology.yaml").write_text("---")
    with pytest.raises(FormatError, match=r"topology\.yaml, which Slurm reads instead"):
        read_topology(str(tmp_path))


def test_a_slurm_without_a_topology_is_one_switch(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(
        "TopologyPlugin=topology/flat\nNodeName=login\nNodeName=n[0-1] Gres=gpu:h100:8\nNodeName=n2 CPUs=64\n"
    )
    (tmp_path / "gres.conf").write_text("NodeName=n2 Name=gpu Type=h100 Count=4")
    cluster = read_topology(f"slurm:{tmp_path},nic=400gbit")
    assert cluster.hosts.names == ("n0", "n1", "n2") and cluster.tiers == ("host", "cluster")
    assert cluster.hosts.gpus.tolist() == [8, 8, 4]
    assert cluster.hosts.nic_bytes_per_s.tolist() == [400 * GBIT] * 3
    assert "one switch, as there is no topology.conf" in cluster.source


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"gres.conf": "Name=gpu Count=8"}, "conf has neither topology.conf nor slurm.conf"),
        (
            {"slurm.conf": "TopologyPlugin=topology/tree\nNodeName=n0 Gres=gpu:8"},
            "no topology.conf, and its slurm.conf says TopologyPlugin=topology/tree",
        ),
        ({"slurm.conf": "NodeName=n[0-3] CPUs=64"}, "no node of its slurm.conf has GPUs"),
    ],
)
def test_too_little_for_one_switch(files: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        read_slurm(files, "conf", TopologyOptions({}, "conf"))
    assert refusal.value.remedy


STATES = """
GresTypes=gpu
NodeName=DEFAULT State=UNKNOWN CPUs=64 Gres=gpu:h100:8
NodeName=gpu[001-016]
NodeName=gpu[017-032] State=DOWN Reason="rma 2024, see ticket"
NodeName=gpu[033-064] State=FUTURE
NodeName=login1 Gres=""
NodeSet=ns1 Nodes=gpu[001-008]
PartitionName=short Nodes=gpu[001-008] MaxTime=01:00:00
PartitionName=long Nodes=gpu[009-032]
DownNodes=gpu017 State=DOWN
"""


def read_conf_alone(text: str, **options: str) -> Topology:
    return read_slurm({"slurm.conf": text}, "conf", TopologyOptions(options, "conf"))


def test_nodes_that_are_down_or_do_not_exist_yet_are_left_out() -> None:
    cluster = read_conf_alone(STATES)
    assert (len(cluster.hosts), cluster.gpus, cluster.hosts.names[-1]) == (16, 128, "gpu016")
    told = "cluster: 48 of 64 hosts with 384 GPUs left out: 32 FUTURE, 16 DOWN"
    assert cluster.left_out == (told,) and told in cluster.source
    whole = read_conf_alone(STATES, unusable="keep")
    assert (whole.gpus, whole.left_out) == (512, ())


@pytest.mark.parametrize(
    ("state", "up"),
    [
        *((state, False) for state in ("DOWN", "down", "DRAIN", "FAIL", "FAILING", "FUTURE", "IDLE+DRAIN", "DOWN*")),
        *((state, True) for state in ("UNKNOWN", "CLOUD", "IDLE", "IDLE~", "POWERED_DOWN", "MIXED+CLOUD")),
    ],
)  # fmt: skip
def test_states_of_nodes(state: str, up: bool) -> None:
    conf = f"NodeName=DEFAULT Gres=gpu:8\nNodeName=a\nNodeName=b State={state}\n"
    assert read_conf_alone(conf).hosts.names == (("a", "b") if up else ("a",))
    default = f"NodeName=DEFAULT Gres=gpu:8 State={state}\nNodeName=b\nNodeName=a State=UNKNOWN\n"
    assert read_conf_alone(default).hosts.names == (("b", "a") if up else ("a",))


def test_down_nodes_go_before_what_their_own_line_says() -> None:
    conf = "DownNodes=n[1-2,4],m0 Reason=power\nDownNodes=n5 State=DRAIN\nNodeName=n[0-5],m[0-1] Gres=gpu:h100:8(S:0-1)\n"
    cluster = read_conf_alone(conf)
    assert cluster.hosts.names == ("n0", "n3", "m1")
    assert cluster.left_out == ("cluster: 5 of 8 hosts with 40 GPUs left out: 4 DOWN, 1 DRAIN",)


def test_a_switch_keeps_its_uplink_when_hosts_below_it_are_down() -> None:
    conf = "NodeName=n[0-3] Gres=gpu:8\nNodeName=spare Gres=gpu:8 State=FUTURE\nDownNodes=n[1-3]"
    cluster = read(TWO, "nic=100gbit,oversubscription=2", slurm=conf)
    (rack,) = cluster.levels
    assert (cluster.hosts.names, rack.domains, rack.domain_of_host.tolist()) == (("n0",), ("a",), [0])
    assert rack.uplink_bytes_per_s.tolist() == [100 * GBIT]
    assert "3 of 4 hosts with 24 GPUs left out: 3 DOWN" in cluster.source


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("PartitionName=a Nodes=n[0-1]", ("n0", "n1")),
        ("PartitionName=a Nodes=n0\nPartitionName=b Nodes=n[1-2] State=DOWN", ("n0",)),
        ("PartitionName=a Nodes=n0\nPartitionName=b Nodes=n1 State=DRAIN", ("n0", "n1")),
        ("PartitionName=DEFAULT State=INACTIVE\nPartitionName=a Nodes=ALL\nPartitionName=b Nodes=n2 State=UP", ("n2",)),
        ("PartitionName=a Nodes=ALL MaxTime=60", ("n0", "n1", "n2", "n3")),
        ("NodeSet=s Nodes=n0 Feature=fast\nPartitionName=a Nodes=s,n2", ("n0", "n2", "n3")),
        ("PartitionName=DEFAULT MaxTime=60", ("n0", "n1", "n2", "n3")),
        ("PartitionName=a Nodes=n0 odd", ("n0", "n1", "n2", "n3")),
    ],
)  # fmt: skip
def test_nodes_that_no_partition_gives_to_jobs_are_left_out(lines: str, names: tuple[str, ...]) -> None:
    conf = f"NodeName=n[0-2] Gres=gpu:8\nNodeName=n3 Gres=gpu:8 Feature=big,fast\n{lines}"
    cluster = read_conf_alone(conf)
    assert cluster.hosts.names == names
    gone = 4 - len(names)
    assert cluster.left_out == (
        (f"cluster: {gone} of 4 hosts with {8 * gone} GPUs left out: {gone} in no partition",) if gone else ()
    )


@pytest.mark.parametrize(
    ("conf", "options", "message"),
    [
        ("NodeName=n0 Gres=gpu:8 State=DOWN", {}, "conf leaves no GPU that a job can use: .* 1 DOWN"),
        ("NodeName=n0 Gres=gpu:8 State=BROKEN", {}, "slurm.conf:1: State=BROKEN: Slurm has no state 'BROKEN'"),
        ("NodeName=n0 Gres=gpu:8\nDownNodes=n[0-", {}, "slurm.conf:2: the hostlist"),
        ("NodeName=n0 Gres=gpu:8", {"unusable": "drop"}, "unusable is 'drop'"),
    ],
)  # fmt: skip
def test_states_that_cannot_be_used_are_refused(conf: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        read_conf_alone(conf, **options)
    assert refusal.value.remedy


@given(st.text(alphabet='NodeNameGrs=gpu:[0-9],() \n\\#"', max_size=60))
def test_any_text_raises_nothing_else(text: str) -> None:
    for reader in (read_slurm_conf, read_gres_conf, read_down, read_without_partition):
        try:
            reader("NodeName=n0 Name=gpu Gres=" + text, "x")
        except HemiolaError as error:
            assert error.remedy


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_a_written_tree_reads_back(leaf_sizes: list[int], data: st.DataObject) -> None:
    """Random three-level trees: every node lands below its own leaf and pod."""
    pods = data.draw(st.lists(st.integers(0, 2), min_size=len(leaf_sizes), max_size=len(leaf_sizes)))
    lines, expected, node = [], [], 0
    for leaf, (size, pod) in enumerate(zip(leaf_sizes, pods, strict=True)):
        lines.append(f"SwitchName=l{leaf} Nodes=n[{node}-{node + size}]")
        expected += [(f"l{leaf}", f"p{pod}")] * (size + 1)
        node += size + 1
    for pod in set(pods):
        lines.append(
            f"SwitchName=p{pod} Switches={','.join(f'l{i}' for i, p in enumerate(pods) if p == pod)}"
        )
    lines.append(f"SwitchName=root Switches={','.join(f'p{pod}' for pod in set(pods))}")
    levels = read("\n".join(data.draw(st.permutations(lines)))).levels
    found = read("\n".join(lines))
    assert len(levels) == 2
    pairs = [tuple(level.domains[level.domain_of_host[i]] for level in found.levels) for i in range(node)]
    assert pairs == expected
