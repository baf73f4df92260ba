"""The network of a Slurm lab: a lab of namespaces, and one cable from there to this machine.

    this machine: slurmctld, sbatch ...        namespace NAME-switch        namespaces NAME-h0, ...
    hmlXXXXXXXXXX (.254) ═══════════════ slurm ── bridge core ── racks ... ══ eth0 of h0, slurmd

So the controller and the clients share this machine's network, as a login node does, and reach every
node; the nodes reach them by the address .254. The cable is not shaped; what nodes send each other never
passes it. It is the only device that the machine itself gets.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from hemiola.core.errors import LabError
from hemiola.lab import network, state
from hemiola.lab.lab import Lab
from hemiola.lab.slurm.record import Record, save

__all__ = ["build", "tear_down"]

PORT = "slurm"
"""The cable's end in the switch's namespace."""


def build(record: Record) -> Record:
    """Make the lab of namespaces and the cable; return the record with the addresses.

    Raises:
        LabError: no root, no such kernel, or a lab of that name stands.
    """
    spec = record.spec
    assert spec.rate is not None
    lab = Lab(spec.node_count, spec.rate, racks=spec.lab_racks, uplink=spec.uplink, name=spec.lab_name)
    begun = msgspec.structs.replace(record, lab=True)
    save(begun)
    try:
        lab.up(stays=True, id_=record.id)  # so that it is known as ours, however far this comes
    except LabError:
        save(record)  # it has cleared up itself, or the lab of that name is someone else's
        raise
    made = state.load(spec.lab_name)
    built = msgspec.structs.replace(begun, subnet=made.subnet)
    save(built)
    _lay_cable(built, made)
    return built


def tear_down(record: Record) -> None:
    """Remove the cable and the lab of namespaces; nothing happens where there is none any more, or another's."""
    if not record.lab:
        return
    from pyroute2 import IPRoute

    with IPRoute() as ip:
        for index in ip.link_lookup(ifname=record.cable):
            ip.link("del", index=index)
    for made in state.load_all():
        if made.id == record.id:
            network.tear_down(made)


def _lay_cable(record: Record, made: state.LabState) -> None:
    from pyroute2 import IPRoute

    handle = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        network.entered(made.switch, lambda ip: _plug_in(ip, record.cable, handle))
    finally:
        os.close(handle)
    with IPRoute() as ip:
        index = ip.link_lookup(ifname=record.cable)[0]
        bits = int(made.subnet.rpartition("/")[2])
        ip.addr("add", index=index, address=record.controller_address, prefixlen=bits)
        ip.link("set", index=index, state="up")


def _plug_in(ip: Any, cable: str, machine: int) -> None:
    """Make the cable in the switch's namespace, with its far end in the machine's."""
    ip.link("add", ifname=PORT, kind="veth", peer={"ifname": cable, "net_ns_fd": machine})
    port, core = (ip.link_lookup(ifname=name)[0] for name in (PORT, network.CORE))
    ip.link("set", index=port, master=core, state="up")
