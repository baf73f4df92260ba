"""Many simulations at once: in this process, in a pool of them, or on a Ray cluster; with the same results."""

from __future__ import annotations

from hemiola.core.errors import InputError
from hemiola.simulator.sweep.local import Adaptive, Here, ProcessPool, cores
from hemiola.simulator.sweep.sweep import Swept, sweep
from hemiola.simulator.sweep.tasks import Executor

__all__ = ["Adaptive", "Executor", "Here", "ProcessPool", "Swept", "executor_for", "sweep"]


def executor_for(*, ray: str = "", workers: int | None = None) -> Executor:
    """Where to run, as the command line says it.

    Args:
        ray: a Ray cluster's address.
        workers: processes here; as many as cores, where it pays, unless given.

    Raises:
        InputError: both, or no workers.
    """
    if ray:
        from hemiola.simulator.sweep.on_ray import OnRay

        if workers is not None:
            raise InputError(
                "--ray and --workers exclude each other", "Ray has as many workers as its nodes have"
            )
        return OnRay(ray)
    if workers is None:
        return Adaptive(ProcessPool(cores())) if cores() > 1 else Here()
    if workers < 1:
        raise InputError(f"workers is {workers}", "give 1 or more")
    return ProcessPool(workers) if workers > 1 else Here()
