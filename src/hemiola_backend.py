"""What PyTorch calls when it is imported (entry point "torch.backends"), so that `init_process_group("hemiola")` needs no import.

Beside the package and with nothing of it, in a file that an editable install copies too (pyproject.toml): PyTorch ends where an
entry point does, and has to go on where Hemiola is broken, or its checkout is gone. Who asks for the backend is told then.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["register"]

_BROKEN = """init_process_group("hemiola") needs the package hemiola, which cannot be imported{}: {}
  hint: install it again (pip install hemiola; of a checkout that was moved: pip install -e .), or remove what is left of it \
(pip uninstall hemiola)"""


def register() -> None:
    """Tell PyTorch of the backend, if this PyTorch can communicate at all."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "HEMIOLA"):
        dist.Backend.register_backend("hemiola", _create, devices=["cpu"])


def _create(store: Any, rank: int, ranks: int, timeout: Any) -> Any:
    try:
        from hemiola.comm.process_group.group import create
    except Exception as problem:
        found = getattr(sys.modules.get("hemiola"), "__file__", None)  # perhaps a file of somebody's own
        where = f" from {found}" if found else ""
        raise ImportError(_BROKEN.format(where, f"{type(problem).__name__}: {problem}")) from problem
    return create(store, rank, ranks, timeout)
