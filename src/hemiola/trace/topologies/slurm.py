"""A Slurm cluster from its configuration folder: topology.conf, slurm.conf and gres.conf.

Without topology.conf it is one switch with slurm.conf's nodes; without the other two the GPUs per host are an option.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hemiola.core.errors import FormatError, HemiolaError, InputError, TopologyError
from hemiola.core.hostlist import expand
from hemiola.core.topology import Topology
from hemiola.core.units import parse_rate
from hemiola.trace.topologies.levels import (
    HARDWARE_OPTIONS,
    LEVEL_OPTIONS,
    make_hosts,
    make_levels,
    only_usable,
    ratios_of,
)
from hemiola.trace.topologies.options import TopologyOptions, whole

__all__ = [
    "Gpus",
    "gpus_of",
    "read_conf",
    "read_down",
    "read_gres_conf",
    "read_slurm",
    "read_slurm_conf",
    "read_without_partition",
]

# Slurm's topology.conf: a tree of switches (topology/tree) or blocks (topology/block).

LEVEL_NAMES = ("rack", "pod", "core")

_KEYS = ("switchname", "switches", "nodes", "linkspeed", "blockname")
_SHOWN = ("level", "blockindex", "blocksize")


@dataclass(frozen=True)
class Switch:
    """One line of topology.conf; `speed_bytes_per_s` is None where its LinkSpeed says nothing."""

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    speed_bytes_per_s: float | None = None


@dataclass(frozen=True)
class SwitchTree:
    """Nodes, and for each the switch above it at every level, narrow to wide.

    A switch that hangs directly below a much higher one passes through the levels between: it
    stands there under its own name, listed in `passing` as (level, name).
    """

    nodes: tuple[str, ...]
    level_names: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    speeds_bytes_per_s: dict[str, float]
    passing: frozenset[tuple[int, str]] = frozenset()
    notes: tuple[str, ...] = ()


def read_tree(text: str, path: str) -> SwitchTree:
    """The tree that a topology.conf describes.

    Raises:
        InputError: a line that cannot be read.
        TopologyError: no tree: a switch or node below two others, a cycle, several roots.
    """
    switches: dict[str, Switch] = {}
    lines = [*read_conf(text, path)]
    for where, pairs in lines:
        for switch in () if pairs.keys() & {"blocksizes", "aggregatedblock"} else _switches(pairs, where):
            if switch.name in switches:
                raise TopologyError(f"{where}: switch {switch.name!r} appears twice", "keep one line of it")
            switches[switch.name] = switch
    if any("blockname" in pairs for _, pairs in lines):
        return _blocks(switches, path)
    ignored = sum(_speed(pairs.get("linkspeed", "1gbit")) is None for _, pairs in lines)
    notes = (f"{ignored} LinkSpeed without a unit left aside",) if ignored else ()
    return _tree(switches, path, notes)


def _switches(pairs: dict[str, str], where: str) -> list[Switch]:
    """The switches or blocks of one line: one, or several with a hostlist for a name."""
    if "level" in pairs and pairs.get("switches"):
        pairs = {key: value for key, value in pairs.items() if key != "nodes"}
    unknown = next((key for key in pairs if key not in (*_KEYS, *_SHOWN)), None)
    name = pairs.get("switchname") or pairs.get("blockname")
    if unknown is not None or not name or ("switchname" in pairs and "blockname" in pairs):
        raise InputError(
            f"{where}: cannot read {unknown or 'this line'!r}",
            "write SwitchName=leaf0 Nodes=n[0-7] or SwitchName=spine Switches=leaf[0-3]",
        )
    try:
        nodes, below = tuple(expand(pairs.get("nodes", ""))), tuple(expand(pairs.get("switches", "")))
        speed = _speed(pairs.get("linkspeed", ""))
        switches = [Switch(one, nodes, below, speed) for one in expand(name)]
    except HemiolaError as error:
        raise InputError(f"{where}: {error.what}", error.remedy) from error
    if bool(nodes) == bool(below):
        raise InputError(
            f"{where}: switch {name!r} needs nodes or switches below it, one of the two",
            "write Nodes=n[0-7], or Switches=leaf[0-3]",
        )
    return switches


def _speed(text: str) -> float | None:
    return parse_rate(text) if re.search(r"[A-Za-z]", text) else None


def _blocks(switches: dict[str, Switch], path: str) -> SwitchTree:
    if any(switch.switches for switch in switches.values()):
        raise InputError(f"{path} mixes blocks and switches", "keep the lines of one plugin")
    nodes, above = _leaves(switches, path)
    labels = (tuple(above[node] for node in nodes),)
    return SwitchTree(nodes, ("block",), labels, _speeds(switches), notes=("BlockSizes left aside",))


def _tree(switches: dict[str, Switch], path: str, notes: tuple[str, ...]) -> SwitchTree:
    nodes, leaf = _leaves(switches, path)
    chains = _chains(switches, dict.fromkeys(leaf.values()), path)
    root = _root(chains, path)
    height: dict[str, int] = {}
    for chain in chains.values():
        for number, name in enumerate(chain):
            height[name] = max(height.get(name, 0), number)
    labels: list[tuple[str, ...]] = []
    passing: set[tuple[int, str]] = set()
    for level in range(height[root]):
        at = {name: [s for s in chain if height[s] <= level][-1] for name, chain in chains.items()}
        passing |= {(level, name) for name in at.values() if height[name] < level}
        labels.append(tuple(at[leaf[node]] for node in nodes))
    names = (*LEVEL_NAMES, *(f"level{i}" for i in range(len(LEVEL_NAMES) + 1, len(labels) + 1)))
    notes += tuple(f"{name} has no {names[level]} above it" for level, name in sorted(passing))
    return SwitchTree(
        nodes, names[: len(labels)], tuple(labels), _speeds(switches), frozenset(passing), notes
    )


def _speeds(switches: dict[str, Switch]) -> dict[str, float]:
    return {s.name: s.speed_bytes_per_s for s in switches.values() if s.speed_bytes_per_s is not None}


def _parents(switches: dict[str, Switch], path: str) -> dict[str, str]:
    parent: dict[str, str] = {}
    for switch in switches.values():
        for child in switch.switches:
            if child not in switches:
                raise TopologyError(f"{path}: switch {switch.name!r} is above {child!r}, which no line describes", f"add SwitchName={child}")  # fmt: skip
            if child in parent:
                raise TopologyError(f"{path}: switch {child!r} is below {parent[child]!r} and {switch.name!r}", "describe parallel switches as one")  # fmt: skip
            parent[child] = switch.name
    return parent


def _leaves(switches: dict[str, Switch], path: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """All nodes in order, and each one's switch."""
    above: dict[str, str] = {}
    for switch in switches.values():
        for node in switch.nodes:
            if node in above:
                raise TopologyError(f"{path}: node {node!r} is below {above[node]!r} and {switch.name!r}", "describe parallel switches as one")  # fmt: skip
            above[node] = switch.name
    if not above:
        raise TopologyError(f"{path} has no nodes", "add SwitchName=leaf0 Nodes=n[0-7]")
    return tuple(above), above


def _chains(switches: dict[str, Switch], leaves: Iterable[str], path: str) -> dict[str, list[str]]:
    """Each leaf switch with all switches above it."""
    parent = _parents(switches, path)
    chains = {name: [name] for name in leaves}
    for chain in chains.values():
        while chain[-1] in parent and len(chain) <= len(switches):
            chain.append(parent[chain[-1]])
    astray = set(switches).difference(*chains.values())
    astray.update(chain[-1] for chain in chains.values() if chain[-1] in parent)
    if astray:
        raise TopologyError(f"{path}: switch {min(astray)!r} is above itself", "remove the cycle")
    return chains


def _root(chains: dict[str, list[str]], path: str) -> str:
    roots = list(dict.fromkeys(chain[-1] for chain in chains.values()))
    if len(roots) > 1:
        raise TopologyError(
            f"{path}: no switch is above both {roots[0]!r} and {roots[1]!r}, so Slurm runs no job across them",
            f"add SwitchName=top Switches={','.join(roots[:4])}{',...' if len(roots) > 4 else ''}, "
            "or read each part as a file of its own",
        )
    return roots[0]


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


# How many GPUs of which type a Slurm node has: slurm.conf's `Gres=`, or gres.conf.
#
# And which nodes no job can use, by `State=` and `DownNodes=`.
#
# Facts: slurm.conf(5), gres.conf(5). slurm.conf decides where both speak of a node, so what is wrong with the
# lines of gres.conf about a node counts only where it is silent. Generic resources other than `gpu` are left aside.

# Lines of Slurm's configuration files: `Key=value Key="value"`, comments, continued lines.

_PAIR = re.compile(r'(\w+)\s*=\s*("[^"]*"|\S+)')
_BETWEEN = " \t,"
_NEEDED = ("nodename", "name", "switchname", "blockname")


def read_conf(text: str, path: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Lines of a Slurm file as (place, lower-case keys with values); comments left out.

    A line that is not made of pairs has the one key "", with its text.

    Raises:
        InputError: a line of a node, a resource or a switch that is not made of pairs; an Include.
    """
    held, first = "", 0
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        line = line.split("#", 1)[0].rstrip()
        first = first if held else number
        if line.endswith("\\"):
            held += line[:-1]  # without a space, as Slurm joins them: a list of nodes may go on
            continue
        line, held = (held + line).strip(), ""
        if line and _PAIR.sub("", line).strip(_BETWEEN):
            _refuse_needed(line, f"{path}:{first}")
            yield f"{path}:{first}", {"": line}
        elif line:
            yield f"{path}:{first}", {key.lower(): value.strip('"') for key, value in _PAIR.findall(line)}


def _refuse_needed(line: str, where: str) -> None:
    word = re.split(r"[\s=]", line, maxsplit=1)[0].lower()
    if word == "include":
        raise InputError(
            f"{where}: cannot read {line!r}: other files are not looked into",
            "put the lines of the included file in its place",
        )
    if word in _NEEDED:
        raise InputError(
            f"{where}: cannot read {line!r}", "write Key=value pairs only, such as NodeName=n[0-7] Gres=gpu:8"
        )


Gpus = tuple[int | None, str]
"""Number of GPUs and their type; None and "" where it is not said."""
Line = tuple[str, Gpus]
"""Where in gres.conf a line stands, and the GPUs that it adds to a node."""

_GRES = re.compile(r"gpu(?::(?P<type>[^:(]+))??(?::(?P<count>[0-9]+))?(?:\(.*\))?$")


_DOWN = frozenset({
    "BLOCKED", "DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "MAINT",
    "NOT_RESPONDING", "NO_RESPOND",
})  # fmt: skip
_UP = frozenset({
    "ALLOCATED", "BUSY", "CLOUD", "COMPLETING", "EXTERNAL", "IDLE", "MIXED", "PLANNED", "POWERED_DOWN", "POWERING_DOWN",
    "POWERING_UP", "POWER_DOWN", "POWER_UP", "RESERVED", "RESUME", "UNKNOWN",
})  # fmt: skip
"""Slurm's words for nodes that run jobs; those that save power are started for one."""


def read_down(text: str, path: str) -> dict[str, str]:
    """The state of every node that slurm.conf keeps jobs from; `DownNodes=` goes before `State=`, wherever it stands.

    Raises:
        InputError: a line or a hostlist that cannot be read, or a state that Slurm does not have.
    """
    states: dict[str, str] = {}
    lines = [*read_conf(text, path)]
    default = ""
    for where, pairs in lines:
        if "nodename" not in pairs:
            continue
        if pairs["nodename"].upper() == "DEFAULT":
            default = pairs.get("state", default)
            continue
        down = _down(pairs.get("state", default), where)
        states.update(dict.fromkeys(_nodes(pairs["nodename"], where), down))
    for where, pairs in lines:
        if "downnodes" in pairs:
            down = _down(pairs.get("state", "DOWN"), where)
            states.update(dict.fromkeys(_nodes(pairs["downnodes"], where), down))
    return {node: down for node, down in states.items() if down}


def _down(state: str, where: str) -> str:
    """The word of a state such as `IDLE+DRAIN` that keeps jobs from a node; "" if none does."""
    words = [word.rstrip("*~#!%$@^-").upper() for word in state.split("+") if word]
    unknown = next((word for word in words if word not in _DOWN | _UP), None)
    if unknown is not None:
        raise InputError(
            f"{where}: State={state}: Slurm has no state {unknown!r}", "write DOWN, DRAIN, FUTURE or UNKNOWN"
        )
    return next((word for word in words if word in _DOWN), "")


def read_slurm_conf(text: str, path: str) -> dict[str, Gpus]:
    """GPUs of every node that slurm.conf names; `NodeName=DEFAULT` holds for the lines after it.

    Raises:
        InputError: a line, a hostlist or a Gres that cannot be read; two GPU types in one node.
    """
    found: dict[str, Gpus] = {}
    default = ""
    for where, pairs in read_conf(text, path):
        if "nodename" not in pairs:
            continue
        if pairs["nodename"].upper() == "DEFAULT":
            default = pairs.get("gres", default)
            continue
        gpus = _gres(pairs.get("gres", default), where)
        found.update(dict.fromkeys(_nodes(pairs["nodename"], where), gpus))
    return found


def read_gres_conf(text: str, path: str) -> dict[str, list[Line]]:
    """Lines about GPUs by node from gres.conf; those without NodeName stand under "" and hold for every node.

    Raises:
        InputError: a line, a hostlist or a count that cannot be read.
    """
    found: dict[str, list[Line]] = {}
    for where, pairs in read_conf(text, path):
        if pairs.get("name", "").lower() != "gpu":
            continue
        line = (where, (_count(pairs, where), pairs.get("type", "")))
        for node in _nodes(pairs["nodename"], where) if "nodename" in pairs else [""]:
            found.setdefault(node, []).append(line)
    return found


def gpus_of(lines: Iterable[Line], counted: bool) -> Gpus:
    """GPUs of a node that these lines of gres.conf are about.

    Args:
        lines: at least one.
        counted: whether they have to say how many GPUs there are.

    Raises:
        InputError: two GPU types in one node, or no number where there has to be one.
    """
    total: Gpus = (0, "")
    for where, gpus in lines:
        if counted and gpus[0] is None:
            remedy = "add Count=8, or Gres=gpu:8 to slurm.conf, or gpus_per_host=8"
            raise InputError(f"{where}: how many GPUs is not said", remedy)
        total = _sum(total, gpus, where)
    return total


def _nodes(hostlist: str, where: str) -> list[str]:
    try:
        return expand(hostlist)
    except HemiolaError as error:
        raise InputError(f"{where}: {error.what}", error.remedy) from error


def _gres(text: str, where: str) -> Gpus:
    """GPUs of `gpu:a100:8(S:0-1),shard:16`."""
    total: Gpus = (0, "")
    for item in re.split(r",(?![^(]*\))", text):
        if not re.match(r"gpu(:|\(|$)", item):
            continue
        match = _GRES.match(item)
        if match is None:
            raise InputError(f"{where}: cannot read Gres={item}", "write Gres=gpu:a100:8")
        total = _sum(total, (whole(match["count"] or "1"), match["type"] or ""), where)
    return total


def _count(pairs: dict[str, str], where: str) -> int | None:
    if "count" in pairs:
        try:
            return whole(pairs["count"])
        except HemiolaError as error:
            raise InputError(f"{where}: Count: {error.what}", error.remedy) from error
    files = pairs.get("file", pairs.get("files"))
    if files is not None:
        return len(_nodes(files, where))
    if "multiplefiles" not in pairs and pairs.get("autodetect", "off").lower() != "off":
        return None
    return 1  # so many have the files of one MultipleFiles= as well


def _sum(one: Gpus, other: Gpus, where: str) -> Gpus:
    if one[0] != 0 and other[0] != 0 and one[1] != other[1]:
        raise InputError(
            f"{where}: a node with GPUs of two types, {one[1]!r} and {other[1]!r}",
            "a host has one type here: describe it as two hosts",
        )
    count = None if one[0] is None or other[0] is None else one[0] + other[0]
    return count, other[1] or one[1]


# Which nodes of a slurm.conf no partition gives to jobs.

_Line = tuple[str, dict[str, str]]
_RUNS_JOBS = ("UP", "DRAIN")
"""A partition in DRAIN takes no new jobs, and runs those that wait in it."""


def read_without_partition(text: str, path: str) -> set[str]:
    """The nodes that are in no partition, or only in such as are DOWN or INACTIVE.

    Raises:
        InputError: a line about nodes, or a hostlist, that cannot be read.
    """
    lines = [*read_conf(text, path)]
    named = any(pairs.get("partitionname", "DEFAULT").upper() != "DEFAULT" for _, pairs in lines)
    unread = any(re.match(r"(?i)(partitionname|nodeset)\b", pairs.get("", "")) for _, pairs in lines)
    if unread or not named:
        return set()
    nodes = _features(lines)
    return set(nodes).difference(*_members(lines, nodes))


def _features(lines: Sequence[_Line]) -> dict[str, list[str]]:
    """Of every node."""
    found: dict[str, list[str]] = {}
    default = ""
    for where, pairs in lines:
        if "nodename" in pairs:
            text = pairs.get("feature", pairs.get("features", default))
            if pairs["nodename"].upper() == "DEFAULT":
                default = text
                continue
            found.update(dict.fromkeys(_names(pairs["nodename"], where), text.split(",")))
    return found


def _members(lines: Sequence[_Line], nodes: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The nodes of each partition that runs jobs."""
    sets = {pairs["nodeset"]: _of_set(pairs, nodes, where) for where, pairs in lines if "nodeset" in pairs}
    members: list[list[str]] = []
    default: dict[str, str] = {}
    for where, pairs in lines:
        if "partitionname" not in pairs:
            continue
        full = {**default, **pairs}
        if pairs["partitionname"].upper() == "DEFAULT":
            default = full
        elif full.get("state", "UP").upper() in _RUNS_JOBS:
            named = full.get("nodes", "")
            found = nodes if named.upper() == "ALL" else _names(named, where)
            members.append([node for name in found for node in sets.get(name, [name])])
    return members


def _of_set(pairs: Mapping[str, str], nodes: Mapping[str, Sequence[str]], where: str) -> list[str]:
    """The nodes that a set names, and those with the one feature that it names."""
    wanted = pairs.get("feature", "")
    alike = [node for node, features in nodes.items() if wanted and wanted in features]
    return [*_names(pairs.get("nodes", ""), where), *alike]


def _names(hostlist: str, where: str) -> list[str]:
    try:
        return expand(hostlist)
    except HemiolaError as error:
        raise InputError(f"{where}: {error.what}", error.remedy) from error
