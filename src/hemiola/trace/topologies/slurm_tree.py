"""Slurm's topology.conf: a tree of switches (topology/tree) or blocks (topology/block).

What `scontrol show topology` prints is read, too: it is the same with the levels counted, and nodes beside switches.

Facts: topology.conf(5). `LinkSpeed` has arbitrary units there and Slurm ignores it; here a speed
with a unit ("400gbit") is a switch's uplink and a bare number is left aside. How many GPUs a node
has is `slurm_nodes`' business.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hemiola.core.errors import HemiolaError, InputError, TopologyError
from hemiola.core.hostlist import expand
from hemiola.core.units import parse_rate
from hemiola.trace.topologies.slurm_conf import read_conf

__all__ = ["LEVEL_NAMES", "Switch", "SwitchTree", "read_tree"]

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
    return SwitchTree(nodes, names[: len(labels)], tuple(labels), _speeds(switches), frozenset(passing), notes)


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
