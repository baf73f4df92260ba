"""A whole Slurm on one machine: controller, nodes with GPUs, racks, and if wanted a shaped network.

    from hemiola.lab.slurm import SlurmLab

    with SlurmLab(nodes=8, gpus=8, racks=2) as slurm:
        print(slurm.run(["sinfo"]))

Needs Linux and Debian's packages (`hemiola.lab.slurm.config.PACKAGES`). Without a network of its own
it needs neither root nor pyroute2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hemiola.lab.slurm.cluster import SlurmLab, attach
    from hemiola.lab.slurm.spec import SlurmSpec

__all__ = ["SlurmLab", "SlurmSpec", "attach"]

_HOMES = {"SlurmLab": "cluster", "attach": "cluster", "SlurmSpec": "spec"}


def __getattr__(name: str) -> Any:
    """Import late: the guardian's small process shares this package and needs little of it."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'hemiola.lab.slurm' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hemiola.lab.slurm.{_HOMES[name]}"), name)
