"""Training on parameter servers, with computation and communication as processes of their own (SaSP).

    model, optimizer = synchronise(model, optimizer, "ssp", bound=2)

After SaSP (Xia, HKUST 2019, first called Chukonu), of which only the abstract is public: a scheduler inside
one job that treats its computation and its communication processes apart, over several synchronisation
schemes. What is chosen here, and why, stands in `docs/guides/parameter-server.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hemiola.train.parameter_server.optimizer import Synchronised
    from hemiola.train.parameter_server.start import synchronise

__all__ = ["Synchronised", "synchronise"]


def __getattr__(name: str) -> Any:
    """Late, because the communication processes import this package and need no PyTorch."""
    if name == "synchronise":
        from hemiola.train.parameter_server.start import synchronise

        return synchronise
    if name == "Synchronised":
        from hemiola.train.parameter_server.optimizer import Synchronised

        return Synchronised
    raise AttributeError(f"module 'hemiola.train.parameter_server' has no attribute {name!r}")
