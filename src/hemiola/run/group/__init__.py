"""`torch.distributed.init_process_group("hemiola")`: PyTorch's collectives over Hemiola's transport.

PyTorch calls `register` when it is imported (entry point "torch.backends"), so nothing else has to be imported.
"""

from __future__ import annotations

from typing import Any

__all__ = ["register"]


def register() -> None:
    """Tell PyTorch of the backend, if this PyTorch can communicate at all."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "HEMIOLA"):
        dist.Backend.register_backend("hemiola", _create, devices=["cpu"])


def _create(store: Any, rank: int, ranks: int, timeout: Any) -> Any:
    from hemiola.run.group.opening import create

    return create(store, rank, ranks, timeout)
