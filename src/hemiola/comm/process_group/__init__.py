"""`torch.distributed.init_process_group("hemiola")`: PyTorch's collectives over Hemiola's transport.

PyTorch knows it by `hemiola_backend`, the module beside this package that it calls when it is imported.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """As `hemiola_backend` has it, for installs that are older than that: they have PyTorch call this."""
    import hemiola_backend

    hemiola_backend.register()
