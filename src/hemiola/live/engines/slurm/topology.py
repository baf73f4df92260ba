"""The network of a Slurm: from its configuration where that is at hand, else as `scontrol` shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hemiola.core.errors import InputError
from hemiola.core.hostlist import compress
from hemiola.core.topology import Topology
from hemiola.live.engines.slurm.client import Slurm, settings_of
from hemiola.trace.topologies.options import TopologyOptions
from hemiola.trace.topologies.read import read_topology
from hemiola.trace.topologies.slurm import read_slurm

__all__ = ["slurm_topology"]

_NODE = re.compile(r"NodeName=([\w.-]{1,255})\s.*?\sGres=(\S{1,1024})\s")
_NO_GPUS = "(null)"


def slurm_topology(slurm: Slurm, options: Mapping[str, str] | None = None) -> Topology:
    """The cluster as Slurm knows it.

    From topology.conf, gres.conf and slurm.conf beside each other; from `scontrol` where they are not on this host, or
    a topology.yaml stands in their place. A Slurm without a topology is one switch with all nodes that have GPUs.

    Raises:
        EngineError: Slurm does not answer.
        InputError, TopologyError: what it says is no tree, or no node has GPUs.
    """
    folder = _folder(slurm)
    if folder is not None and _is_file(folder / "topology.conf") and not _is_file(folder / "topology.yaml"):
        return read_topology(str(folder), options, keep_unusable=True)  # nodes that are down may come back
    nodes = _NODE.findall(slurm.ask("scontrol", "-o", "show", "node"))
    with_gpus = [name for name, gres in nodes if gres != _NO_GPUS]
    if not with_gpus:
        raise InputError(
            "no node of this Slurm has GPUs (Gres=gpu:...)",
            "configure them in slurm.conf and gres.conf, or give the topology as a file: --topology FILE",
        )
    files = {
        "topology.conf": slurm.ask("scontrol", "show", "topology").strip()
        or f"SwitchName=cluster Nodes={compress(with_gpus)}",
        "slurm.conf": "\n".join(f"NodeName={name} Gres={gres}" for name, gres in nodes),
    }
    return read_slurm(files, "scontrol", TopologyOptions(options or {}, "scontrol"))


def _folder(slurm: Slurm) -> Path | None:
    """With its slurm.conf, as Slurm says."""
    conf = settings_of(slurm.ask("scontrol", "show", "config")).get("SLURM_CONF")
    return Path(conf).parent if conf else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
