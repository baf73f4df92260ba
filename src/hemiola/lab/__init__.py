"""Several hosts on one machine: network namespaces joined by shaped links.

    from hemiola.lab import Lab

    with Lab(hosts=4, rate="1gbit", host_rates={"h3": "250mbit"}) as lab:
        outcome = lab.run(["python", "train.py"])

Needs Linux, root and `pip install 'hemiola[lab]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hemiola._moved import renamed

if TYPE_CHECKING:
    from hemiola.lab.lab import Lab, attach
    from hemiola.lab.settings import LabSettings
    from hemiola.lab.spec import LabSpec
    from hemiola.lab.watch import CommandOutcome

__all__ = ["CommandOutcome", "Lab", "LabSettings", "LabSpec", "attach"]

_HOMES = {
    "Lab": "lab",
    "attach": "lab",
    "LabSpec": "spec",
    "CommandOutcome": "watch",
    "LabSettings": "settings",
}


def __getattr__(name: str) -> Any:
    """Import late: the guardian's small process shares this package and needs none of it."""
    import importlib

    if name not in _HOMES:
        return renamed(__name__)(name)
    return getattr(importlib.import_module(f"hemiola.lab.{_HOMES[name]}"), name)
