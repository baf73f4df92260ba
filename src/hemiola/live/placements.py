"""What the hosts' numbers in a placement mean: each run has a topology of its own, and hosts come and go between two."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from hemiola.live.journal import RunRecord
from hemiola.core.decisions import Placement
from hemiola.core.topology import Topology
from hemiola.trace.topologies.native import read_native

__all__ = ["Topologies", "fits", "is_same_place", "renumbered"]


def fits(placement: Placement, topology: Topology) -> bool:
    """Whether all of these GPUs are there."""
    gpus = topology.hosts.gpus
    return all(
        host < len(gpus) and mask.bit_length() <= gpus[host]
        for host, mask in zip(placement.hosts, placement.masks, strict=True)
    )


def renumbered(placement: Placement | None, before: Topology, now: Topology) -> Placement | None:
    """The same GPUs of the same hosts by another topology's numbers; None where it does not have them all."""
    if placement is None or not fits(placement, before):
        return None
    numbers = {name: host for host, name in enumerate(now.hosts.names)}
    names = [before.hosts.names[host] for host in placement.hosts]
    if not numbers.keys() >= set(names):
        return None
    found = Placement(tuple(numbers[name] for name in names), placement.masks)
    return found if fits(found, now) else None


def is_same_place(one: Placement | None, other: Placement | None) -> bool:
    """Whether they have as many GPUs of the same hosts: engines tell neither which GPUs, nor the order of ranks."""
    return _counts(one) == _counts(other)


def _counts(placement: Placement | None) -> dict[int, int]:
    if placement is None:
        return {}
    counts = (mask.bit_count() for mask in placement.masks)
    return dict(zip(placement.hosts, counts, strict=True))


class Topologies:
    """Of a journal's runs, each read once.

    Args:
        where: what to call the journal in an error.
    """

    def __init__(self, runs: Sequence[RunRecord], where: str) -> None:
        self._runs, self._where = runs, where
        self._began_s = [run.began_s for run in runs]
        self._read: dict[str, Topology] = {}

    def at(self, ended_s: float | None = None) -> Topology | None:
        """What the placement of a job goes by that ended then, or has not ended; None where no run was."""
        index = len(self._runs) if ended_s is None else bisect_right(self._began_s, ended_s)
        if not index:
            return None
        text = self._runs[index - 1].opening.topology
        if text not in self._read:
            self._read[text] = read_native(text, self._where)
        return self._read[text]
