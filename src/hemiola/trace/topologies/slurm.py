"""A Slurm cluster from its configuration folder: topology.conf, slurm.conf and gres.conf.

Without topology.conf it is one switch with slurm.conf's nodes; without the other two the GPUs per host are an option.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hemiola.core.errors import FormatError, InputError
from hemiola.core.topology import Topology
from hemiola.trace.topologies.hardware import HARDWARE_OPTIONS, make_hosts
from hemiola.trace.topologies.levels import LEVEL_OPTIONS, make_levels, ratios_of
from hemiola.trace.topologies.options import TopologyOptions
from hemiola.trace.topologies.slurm_conf import read_conf
from hemiola.trace.topologies.slurm_nodes import Gpus, gpus_of, read_down, read_gres_conf, read_slurm_conf
from hemiola.trace.topologies.slurm_partitions import read_without_partition
from hemiola.trace.topologies.slurm_tree import SwitchTree, read_tree
from hemiola.trace.topologies.usable import only_usable

__all__ = ["read_slurm"]

_OPTIONS = (*HARDWARE_OPTIONS, *LEVEL_OPTIONS, "name", "unusable")
_FLAT = ("", "default", "flat", "none")
"""The plugins that read no topology.conf, by what stands after "topology/"; Slurm has called it differently."""


def read_slurm(files: Mapping[str, str], path: str, options: TopologyOptions) -> Topology:
    """The cluster that these files describe, without the nodes that slurm.conf keeps jobs from.

    The root switch is the cluster itself and becomes no level. A Slurm without a topology is one switch with all
    nodes that have GPUs.

    Args:
        files: text by file name; at least "topology.conf" or "slurm.conf".
        path: the folder, or the one file, for messages.
        options: of the hosts and levels.

    Raises:
        FormatError: a topology.yaml, which Slurm would read instead; neither of the two, or a topology.conf that
            slurm.conf wants and that is not there.
        InputError, TopologyError: a line that cannot be read, or no tree; no GPUs.
    """
    options.only(_OPTIONS)
    if "topology.yaml" in files:
        raise FormatError(
            f"{path} has a topology.yaml, which Slurm reads instead of topology.conf and Hemiola does not",
            "write down what Slurm makes of it, `scontrol show topology > topology.txt`, and give that file",
        )
    if "topology.conf" in files:
        tree = read_tree(files["topology.conf"], path if len(files) == 1 else f"{path}/topology.conf")
    else:
        tree = _one_switch(files, path, options)
    known = _known_gpus(files, path, tree.nodes, options)
    down = {} if options.keeps_unusable else _unusable(files, path)
    _refuse_outside({node: gpus for node, gpus in known.items() if node not in down}, tree, path)
    gpus, types = zip(*(known.get(node, (None, "")) for node in tree.nodes), strict=True)
    hosts = make_hosts(options, tree.nodes, gpus, types)
    ratios = ratios_of(options, len(tree.level_names))

    def uplink(level: int, switch: str, below_bytes_per_s: float) -> float:
        if (level, switch) in tree.passing:
            return below_bytes_per_s
        return tree.speeds_bytes_per_s.get(switch, below_bytes_per_s / ratios[level])

    levels = make_levels(hosts, tree.level_names, tree.labels, options, uplink)
    source = options.notes([f"Slurm {', '.join(sorted(files))} of {path}", *tree.notes])
    whole = Topology(options.values.get("name", "slurm"), hosts, levels, source).check()
    return only_usable(whole, down, path).check()


def _unusable(files: Mapping[str, str], path: str) -> dict[str, str]:
    """Why no job can use a node now, by node."""
    text, place = files.get("slurm.conf", ""), f"{path}/slurm.conf"
    return {**dict.fromkeys(read_without_partition(text, place), "in no partition"), **read_down(text, place)}


def _one_switch(files: Mapping[str, str], path: str, options: TopologyOptions) -> SwitchTree:
    """All nodes with GPUs, as Slurm sees them that is told of no switches."""
    if "slurm.conf" not in files:
        raise FormatError(
            f"{path} has neither topology.conf nor slurm.conf", "give the folder with Slurm's configuration"
        )
    lines = read_conf(files["slurm.conf"], f"{path}/slurm.conf")
    plugin = next((pairs["topologyplugin"] for _, pairs in lines if "topologyplugin" in pairs), "")
    if plugin.rpartition("/")[2].lower() not in _FLAT:
        raise FormatError(
            f"{path} has no topology.conf, and its slurm.conf says TopologyPlugin={plugin}",
            "give the folder with Slurm's whole configuration, or a file with what `scontrol show topology` prints",
        )
    known = _known_gpus(files, path, (), options)
    nodes = tuple(node for node, gpus in known.items() if gpus[0] != 0)
    if not nodes:
        raise InputError(
            f"{path} has no topology.conf, and no node of its slurm.conf has GPUs",
            "add Gres=gpu:8 to them, or give the topology as a file",
        )
    return SwitchTree(nodes, (), (), {}, notes=("one switch, as there is no topology.conf",))


def _known_gpus(
    files: Mapping[str, str], path: str, nodes: Iterable[str], options: TopologyOptions
) -> dict[str, Gpus]:
    """GPUs by node, of these and of those that the files name: slurm.conf, else gres.conf, else nothing."""
    lines = read_gres_conf(files.get("gres.conf", ""), f"{path}/gres.conf")
    every = lines.pop("", [])
    stated = read_slurm_conf(files.get("slurm.conf", ""), f"{path}/slurm.conf")
    known = {node: gpus for node, gpus in stated.items() if gpus[0] or node not in lines}
    for node in (*nodes, *lines):
        about = lines.get(node, every)
        if about and node not in known:
            known[node] = gpus_of(about, counted="gpus_per_host" not in options)
    return known


def _refuse_outside(known: Mapping[str, Gpus], tree: SwitchTree, path: str) -> None:
    inside = set(tree.nodes)
    outside = sorted(node for node, gpus in known.items() if gpus[0] != 0 and node not in inside)
    if outside:
        raise InputError(
            f"{path}: node {outside[0]!r} has GPUs but no switch",
            "add it to a switch in topology.conf, or drop its GPUs",
        )
