"""How many GPUs of which type a Slurm node has: slurm.conf's `Gres=`, or gres.conf.

And which nodes no job can use, by `State=` and `DownNodes=`.

Facts: slurm.conf(5), gres.conf(5). slurm.conf decides where both speak of a node, so what is wrong with the
lines of gres.conf about a node counts only where it is silent. Generic resources other than `gpu` are left aside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hemiola.core.errors import HemiolaError, InputError
from hemiola.core.hostlist import expand
from hemiola.trace.topologies.options import whole

__all__ = [
    "Gpus",
    "gpus_of",
    "read_conf",
    "read_down",
    "read_gres_conf",
    "read_slurm_conf",
    "read_without_partition",
]


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
