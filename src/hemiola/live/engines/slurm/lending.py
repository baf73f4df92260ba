"""Nodes go from one partition to another while Slurm runs: a loan, between training and inference for example.

`hemiola serve` needs no word of it: nodes that leave its partition get nothing new, those that come back are used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hemiola.core.errors import EngineError, InputError
from hemiola.core.hostlist import compress, expand
from hemiola.live.engines.slurm.client import Slurm

__all__ = ["Lent", "lend"]

_NAME = re.compile(r"PartitionName=([\w.-]{1,255})\s")
_NODES = re.compile(r"(?:^|\s)Nodes=([\w.,\[\]-]*|\(null\))(?:\s|$)")
_IDS = re.compile(r"\d+([_+]\d+)?")
"""Of jobs, of elements of an array ("12_3"), of parts of a heterogeneous job ("12+0")."""


@dataclass(frozen=True)
class Lent:
    """What has become of it.

    Attributes:
        hosts: that were lent, by name.
        requeued: jobs that were sent back into their queue.
        stay: jobs of the giver that still run there: they may not be requeued, or nobody asked for it.
    """

    hosts: tuple[str, ...]
    requeued: tuple[str, ...]
    stay: tuple[str, ...]


def lend(slurm: Slurm, nodes: str, *, giver: str, taker: str, now: bool = False) -> Lent:
    """Take nodes out of one partition and put them into another; all of them or none.

    Args:
        nodes: a hostlist.
        now: send the giver's jobs that run there back into the queue; if not they go on to their ends.

    Raises:
        InputError: a node that the giver has not, or a partition that is none.
        EngineError: Slurm refuses or does not answer; it is as before then, or the message says how it stands.
    """
    wanted = list(dict.fromkeys(expand(nodes)))  # each once
    if not wanted or giver == taker:
        raise InputError(
            f"nothing can be lent: {nodes!r} from {giver!r} to {taker!r}", "name nodes and two partitions"
        )
    partitions = _partitions(slurm)
    for name in (giver, taker):
        if name not in partitions:
            raise InputError(f"there is no partition {name!r}", f"there are {', '.join(partitions)}")
    has, gets = partitions[giver], partitions[taker]
    if strange := [name for name in wanted if name not in has]:
        raise InputError(
            f"the partition {giver!r} has no node {strange[0]!r}", f"its nodes are {compress(has)}"
        )
    _set(slurm, giver, [name for name in has if name not in wanted])
    try:
        _set(slurm, taker, [*gets, *(name for name in wanted if name not in gets)])
    except EngineError:
        _set(slurm, giver, has)
        raise
    there = _jobs_on(slurm, giver, wanted)
    if now:  # of a heterogeneous job the whole, by its leader
        slurm.tell([f"requeue {job}" for job in dict.fromkeys(job.partition("+")[0] for job in there)])
    stay = _jobs_on(slurm, giver, wanted) if now else there
    return Lent(tuple(wanted), tuple(job for job in there if job not in stay), tuple(stay))


def _partitions(slurm: Slurm) -> dict[str, list[str]]:
    """The nodes of each."""
    found = {}
    for line in slurm.ask("scontrol", "-o", "show", "partition").splitlines():
        name, nodes = _NAME.match(line), _NODES.search(line)
        if name is None or nodes is None:
            raise EngineError(f"scontrol printed {line[:200]!r} of a partition", "please report its version")
        found[name[1]] = [] if nodes[1] == "(null)" else expand(nodes[1])
    return found


def _set(slurm: Slurm, partition: str, hosts: list[str]) -> None:
    if complaint := slurm.tell([f"update PartitionName={partition} Nodes={compress(sorted(hosts))}"]).strip():
        raise EngineError(
            f"Slurm does not change the partition {partition!r}: {complaint.splitlines()[0]}",
            "use it as an operator of Slurm",
        )


def _jobs_on(slurm: Slurm, partition: str, hosts: list[str]) -> list[str]:
    text = slurm.table("squeue", "-r", "-t", "RUNNING", "-p", partition, "-w", compress(hosts), "-o", "%i")
    return [job for job in text.split() if _IDS.fullmatch(job)]
