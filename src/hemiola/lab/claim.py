"""What comes before a lab is built: whether that can be, and a record of what is going to be."""

from __future__ import annotations

import os
import sys
from ipaddress import IPv4Network

from hemiola.core.errors import InputError, LabError
from hemiola.lab import addresses, namespaces
from hemiola.lab.spec import LabSpec
from hemiola.lab.state import Owner, LabState, load_all, locked, save

__all__ = ["check_rights", "claim"]


def check_rights() -> None:
    """Refuse at once what could only fail later.

    Raises:
        LabError: not Linux, or not root.
        InputError: pyroute2 is not installed.
    """
    if not sys.platform.startswith("linux"):
        raise LabError(
            f"a lab on {sys.platform}", "labs need Linux: run this in a virtual machine with Linux"
        )
    if os.geteuid() != 0:
        raise LabError(
            f"a lab needs root, and this is user {os.geteuid()}",
            "run it with sudo, or as root in a container",
        )
    try:
        import pyroute2  # noqa: F401
    except ImportError as error:
        raise InputError(
            "labs need pyroute2, which is not installed", "pip install 'hemiola[lab]'"
        ) from error


def claim(spec: LabSpec, id_: str) -> LabState:
    """Write down a lab that is going to be, so that whatever happens can be cleared up.

    Args:
        spec: what is wanted.
        id_: by which the lab is told from earlier ones of its name.

    Raises:
        LabError: the name is taken, or there is a namespace of that name which no lab made.
    """
    with locked():
        others = load_all()
        for other in others:
            if other.spec.name == spec.name:
                raise LabError(
                    f"the lab {spec.name!r} stands already",
                    f"hemiola lab down --name {spec.name}, or another name",
                )
        subnet = addresses.free_subnet(
            [*namespaces.apart(addresses.in_use), *(IPv4Network(o.subnet) for o in others)]
        )
        wanted = LabState(id=id_, spec=spec, owner=Owner.me(), built=False, subnet=str(subnet))
        for name in wanted.namespaces:
            if namespaces.path_of(name).exists():
                raise LabError(
                    f"there is a namespace {name!r} that no lab made", "choose another name for the lab"
                )
        save(wanted)
        return wanted
