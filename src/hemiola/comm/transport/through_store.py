"""Ranks that find each other through a store, such as PyTorch's: its `set` and `get`, which waits, are all that is needed.

What they leave there is deleted once all have met, where a store can do that: others may meet there after them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hemiola.comm.transport.endpoint import Endpoint
from hemiola.comm.transport.home import own_names
from hemiola.comm.transport.options import TransportOptions

__all__ = ["Peer", "forget", "meet"]

_KEYS = "hemiola/"
_MET = (1 << 64) - 1
"""The tag of the first rank's word that all have met."""


@dataclass(frozen=True)
class Peer:
    """A rank, as it says of itself.

    Attributes:
        address: of its host, which no other host has.
        port: where it listens.
        names: what a topology may call its host.
        word: what else it wants all to know, in JSON's types.
    """

    address: str
    port: int
    names: tuple[str, ...]
    word: Any = None


def meet(
    store: Any, rank: int, ranks: int, options: TransportOptions, word: Callable[[str], Any] | None = None
) -> tuple[Endpoint, list[Peer]]:
    """Connect with all other ranks; also who they are. Rank 0 makes the job's secret and leaves it in the store meanwhile.

    Args:
        word: makes this rank's `Peer.word` from its address.

    The store's own timeout, if it has one, holds for connecting too.

    Raises:
        TransportError: a rank does not come in time.
    """
    if rank == 0:
        store.set(f"{_KEYS}secret", os.urandom(32))
    end = Endpoint(rank, ranks, bytes(store.get(f"{_KEYS}secret")), options)
    try:
        address, port = end.address
        own = [address, port, own_names(), word(address) if word else None]
        store.set(f"{_KEYS}{rank}", json.dumps(own))
        told = [json.loads(store.get(f"{_KEYS}{peer}")) for peer in range(ranks)]
        peers = [Peer(there, at, tuple(names), said) for there, at, names, said in told]
        patience = getattr(store, "timeout", None)
        limit_s = min(options.timeout_s, patience.total_seconds()) if patience else options.timeout_s
        end.connect([(peer.address, peer.port) for peer in peers], limit_s)
        if rank == 0:  # all have read it: they connect afterwards
            forget(store, [f"{_KEYS}secret", *(f"{_KEYS}{peer}" for peer in range(ranks))])
            for peer in range(1, ranks):
                end.send(peer, _MET, b"")
        else:  # before that, its next words to this store might be taken for these
            end.receive(0, _MET, bytearray(0)).wait(limit_s)
    except BaseException:
        end.close()
        raise
    return end, peers


def forget(store: Any, keys: Iterable[str]) -> None:
    """Delete these, if the store can."""
    with suppress(AttributeError, RuntimeError):
        for key in keys:
            store.delete_key(key)
