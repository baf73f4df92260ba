"""What a Slurm lab is: nodes, GPUs, racks, partitions. Knows nothing of processes and files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from hemiola.core.errors import LabError
from hemiola.lab.spec import MAX_HOSTS, LabSpec

__all__ = ["OTHER_PARTITION", "SlurmSpec"]

OTHER_PARTITION = "other"
"""The partition beside the managed one: the same nodes, and nothing is held."""

MAX_GPUS = 64
CPUS_MIN = 16

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,24}")
_PARTITION = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_TYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_SETTING = re.compile(r"[A-Za-z]+")


class SlurmSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A Slurm lab's description.

    Attributes:
        name: lower-case letters, digits and "-".
        node_count: how many; they are named h0, h1, ... as the hosts of every lab.
        gpus: per node; they are stand-ins (/dev/null), which Slurm counts and hands out.
        gpu_types: of the racks' GPUs, in turn; none: Slurm knows no types.
        racks: leaf switches with equal shares of the nodes, under one spine.
        rate: what each node can send and receive, such as "1gbit"; None: no network of its own.
        uplink: what each rack can exchange with the others, each direction; None with one rack.
        partition: the one that Hemiola manages, and the default.
        hold: jobs of that partition are held at submission, until an operator releases them.
        settings: lines of slurm.conf that replace, or add to, the lab's own.
        rest: slurmrestd runs beside the controller.
    """

    name: str
    node_count: int
    gpus: int
    racks: int
    rate: str | None
    uplink: str | None
    partition: str
    hold: bool
    settings: dict[str, str]
    gpu_types: tuple[str, ...] = ()
    rest: bool = False

    @classmethod
    def of(
        cls,
        *,
        name: str,
        nodes: int,
        gpus: int,
        racks: int,
        rate: str | None,
        uplink: str | None,
        partition: str,
        hold: bool,
        settings: Mapping[str, str],
        gpu_types: Sequence[str] = (),
        rest: bool = False,
    ) -> SlurmSpec:
        """Check what a person wrote.

        Raises:
            LabError: naming the value that cannot be.
            UnitError: a rate without a unit.
        """
        _check_names(name, partition, settings)
        _check_counts(nodes, gpus, racks)
        _check_types(gpu_types, gpus, racks)
        if rate is None and uplink is not None:
            raise LabError(
                f"an uplink of {uplink!r} without rate", "give the nodes' rate too: --rate 800mbit"
            )
        spec = cls(
            name=name,
            node_count=nodes,
            gpus=gpus,
            racks=racks,
            rate=rate,
            uplink=uplink,
            partition=partition,
            hold=hold,
            settings=dict(settings),
            gpu_types=tuple(gpu_types),
            rest=rest,
        )
        if rate is not None:
            LabSpec.of(
                name=spec.lab_name, hosts=nodes, rate=rate, host_rates={}, racks=spec.lab_racks, uplink=uplink
            )
        return spec

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes' names: h0, h1, ..."""
        return tuple(f"h{i}" for i in range(self.node_count))

    @property
    def cpus(self) -> int:
        """What each node claims to have, whatever the machine has: jobs wait for GPUs, not for CPUs."""
        return max(CPUS_MIN, 2 * self.gpus)

    @property
    def lab_name(self) -> str:
        """The name of the lab of namespaces below this one, if it has a network."""
        return f"slurm-{self.name}"

    @property
    def lab_racks(self) -> int | None:
        """The racks as a lab of namespaces wants them said: none rather than one."""
        return self.racks if self.racks > 1 else None

    def rack(self, index: int) -> tuple[str, ...]:
        """The nodes of a rack."""
        each = self.node_count // self.racks
        return self.nodes[index * each : (index + 1) * each]

    def gres(self, node: str) -> str:
        """The node's GPUs in Slurm's words; "" for none."""
        if not self.gpus:
            return ""
        kind = self.gpu_type(node)
        return f"gpu:{kind}:{self.gpus}" if kind else f"gpu:{self.gpus}"

    def gpu_type(self, node: str) -> str:
        """Of the node's GPUs; "" where Slurm knows no types."""
        each = self.node_count // self.racks
        return self.gpu_types[self.nodes.index(node) // each % len(self.gpu_types)] if self.gpu_types else ""


def _check_names(name: str, partition: str, settings: Mapping[str, str]) -> None:
    if not _NAME.fullmatch(name):
        raise LabError(
            f"the name {name!r} does not suit a Slurm lab",
            "use up to 25 lower-case letters, digits and '-', beginning with a letter or digit",
        )
    if not _PARTITION.fullmatch(partition) or partition in (OTHER_PARTITION, "default"):
        raise LabError(
            f"the partition's name {partition!r}",
            f"use lower-case letters, digits, '-' and '_'; {OTHER_PARTITION!r} and 'default' are taken",
        )
    for key, value in settings.items():
        if not _SETTING.fullmatch(key) or "\n" in value:
            raise LabError(
                f"the setting {key!r} = {value!r}", "give one parameter of slurm.conf, on one line"
            )


def _check_counts(nodes: int, gpus: int, racks: int) -> None:
    if not 1 <= nodes <= MAX_HOSTS:
        raise LabError(f"a Slurm of {nodes} nodes", f"give from 1 to {MAX_HOSTS} nodes")
    if not 0 <= gpus <= MAX_GPUS:
        raise LabError(f"{gpus} GPUs per node", f"give from 0 to {MAX_GPUS}")
    if not 1 <= racks <= nodes:
        raise LabError(f"{racks} racks for {nodes} nodes", "give at least one rack, and one node per rack")
    if nodes % racks:
        raise LabError(f"{nodes} nodes do not divide into {racks} racks", "give each rack as many nodes")


def _check_types(gpu_types: Sequence[str], gpus: int, racks: int) -> None:
    for kind in gpu_types:
        if not _TYPE.fullmatch(kind):
            raise LabError(f"the GPU type {kind!r}", "use lower-case letters, digits and '_': h100")
    if len(gpu_types) > racks or (gpu_types and not gpus):
        raise LabError(
            f"{len(gpu_types)} type{'s' * (len(gpu_types) != 1)} of GPUs for {racks} rack{'s' * (racks != 1)} "
            f"with {gpus} GPUs per node",
            "the racks take the types in turn: give no more types than racks",
        )
