"""Which nodes of a slurm.conf no partition gives to jobs.

Facts: slurm.conf(5). Nothing is said of a file that names no partition, or one in a line that cannot be read. What
partitions limit otherwise (MaxTime, MaxNodes, groups) is left aside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hemiola.core.errors import HemiolaError, InputError
from hemiola.core.hostlist import expand
from hemiola.trace.topologies.slurm_conf import read_conf

__all__ = ["read_without_partition"]

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
