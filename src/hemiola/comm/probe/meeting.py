"""One rank of a probe: meets the others as a training job does, measures, and tells what was found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec

from hemiola.comm.probe.measure import Prober
from hemiola.comm.probe.result import Affinity, Homes, measured_topology, own_affinity
from hemiola.comm.transport import TransportOptions
from hemiola.comm.transport.endpoint import meet
from hemiola.comm.transport.home import home_interface, missing_variables, store_is_kept
from hemiola.core.errors import InputError, TransportError
from hemiola.trace.topologies.native import topology_text

__all__ = ["Probed", "probe"]


class Probed(msgspec.Struct, frozen=True):
    """What the first rank found.

    Attributes:
        topology: as its file is written.
        affinities: of the hosts, by name.
    """

    topology: str
    affinities: dict[str, Affinity]


def probe(seconds_most: float, interface: str = "", timeout_s: float = 60.0) -> Probed | None:
    """Measure with all ranks of the job that the environment describes; what was found, at the first of them.

    Args:
        seconds_most: no further pass begins after so long.
        interface: to use; else as `home_interface` chooses.

    Raises:
        InputError: the environment describes no job.
        TransportError: a rank does not come, or is lost.
    """
    if missing := missing_variables():
        raise InputError(
            f"{', '.join(missing)} not set",
            "name the hosts: hemiola probe --hosts 'n[0-3]', or start it with torchrun",
        )
    try:
        from torch.distributed import PrefixStore, TCPStore
    except ImportError as problem:
        raise InputError("PyTorch is not installed", "pip install 'hemiola[torch]'") from problem
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if ranks < 2:
        raise InputError("a probe of one rank", "name two hosts or more")
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    options = TransportOptions(interface=interface or home_interface(), timeout_s=timeout_s)
    with _together(*where, timeout_s):
        # torchrun keeps one already, from one start of the ranks to the next
        keeps = rank == 0 and not store_is_kept()
        begun = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"probe/{begun}", TCPStore(*where, ranks, keeps, timedelta(seconds=timeout_s)))
        end, peers = meet(store, rank, ranks, options, _word)
    with end, _together(*where, timeout_s):
        homes = Homes.of(peers)
        if len(homes.names) < 2:
            raise InputError(
                f"all {ranks} ranks are on {peers[0].address}", "start ranks on two hosts or more"
            )
        prober = Prober(end, homes.firsts, timeout_s) if rank in homes.firsts else None
        found = prober.measure(seconds_most) if prober else None
        store.set(f"done {rank}", b"")
        store.wait([f"done {peer}" for peer in range(ranks)])
    if found is None or rank:
        return None
    gpus, words = zip(*(peers[first].word for first in homes.firsts), strict=True)
    affinities = {
        name: msgspec.convert(word, Affinity) for name, word in zip(homes.names, words, strict=True)
    }
    return Probed(topology_text(measured_topology(found, homes, gpus=gpus)), affinities)


def _word(address: str) -> list[Any]:
    """What a rank says of its host: how many GPUs it sees there, and of the interface with its address."""
    from torch.cuda import device_count

    return [device_count(), msgspec.to_builtins(own_affinity(address))]


@contextmanager
def _together(address: str, port: int, timeout_s: float) -> Iterator[None]:
    """What the store says of ranks that do not come, in our words."""
    try:
        yield
    except RuntimeError as problem:
        raise TransportError(
            f"the ranks did not meet at {address}:{port} within {timeout_s:g} s: {str(problem).splitlines()[0]}",
            "are all of them running, and is the port free on the first one's host?",
        ) from None
