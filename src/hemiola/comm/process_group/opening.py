"""How the ranks of a process group meet, and with which options."""

from __future__ import annotations

import os
import secrets
from datetime import timedelta
from typing import Any

from hemiola.core.units import parse_rate
from hemiola.comm.process_group.group import TransportGroup
from hemiola.comm.transport import TransportOptions
from hemiola.comm.transport.home import home_interface
from hemiola.comm.transport.through_store import meet

__all__ = ["create", "transport_options"]


def create(store: Any, rank: int, ranks: int, timeout: timedelta) -> TransportGroup:
    """Meet the other ranks through PyTorch's store. The job's secret is made by rank 0 and lies in the store until they have.

    With HEMIOLA_STRATEGY at rank 0, large collectives go by strategies that fit the network: "auto" measures it, and has
    shares follow it once it changes, "follow" has them do so from the beginning, a file is a topology or a strategy,
    nothing or "usual" is a ring. With HEMIOLA_STRAGGLERS, large all-reduces begin without ranks that are late, and end
    with what these give ("relay"), or leave that to the next one ("carry-over").
    """
    timeout_s = timeout.total_seconds()
    if ranks == 1:
        return TransportGroup(None, 0, 1, timeout_s)
    options = transport_options(timeout_s, store=store)
    wanted = [os.environ.get(name, "") for name in ("HEMIOLA_STRATEGY", "HEMIOLA_STRAGGLERS")]
    end, peers = meet(store, rank, ranks, options, lambda address: [*wanted, secrets.token_hex(8)])
    strategy, late, name = peers[0].word
    strategy = "" if strategy == "usual" else strategy
    if not strategy and late in ("", "wait"):
        return TransportGroup(end, rank, ranks, timeout_s)
    from torch.distributed import PrefixStore

    from hemiola.comm.process_group.fitting import fitting

    own = PrefixStore(f"hemiola/{name}", store)  # another group may have left something there
    try:
        fitted = fitting(strategy, late, own, end, peers, timeout_s, options)
    except BaseException:
        end.close(0.0)  # others may wait for this rank's word, and it still says that it lives
        raise
    return TransportGroup(end, rank, ranks, timeout_s, fitted)


def transport_options(
    timeout_s: float,
    interface: str = "",
    rate_bytes_per_s: float | None = None,
    chunk_bytes: int = 0,
    store: Any = None,
) -> TransportOptions:
    """As given, else as the environment says: HEMIOLA_INTERFACE, HEMIOLA_RATE; else where the master is reached from."""
    rate = os.environ.get("HEMIOLA_RATE", "")
    if rate and rate_bytes_per_s is None:
        rate_bytes_per_s = parse_rate(rate)
    return TransportOptions(
        interface=interface or home_interface(store),
        timeout_s=min(0.9 * timeout_s, 300.0),  # before a collective's own, so that the silent rank is named
        rate_bytes_per_s=rate_bytes_per_s,
        chunk_bytes=chunk_bytes,
        unexpected_bytes_max=4 << 30,
    )
