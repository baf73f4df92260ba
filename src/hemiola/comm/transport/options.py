"""What can be chosen about a transport."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hemiola.core.errors import InputError

__all__ = ["TIMEOUT_MOST_S", "TransportOptions"]

CHUNK_S = 1.4e-3
AGEING_MOST_S = 1e9
"""With more, urgency no longer tells when a message was given."""
TIMEOUT_MOST_S = 1e6
"""Eleven days: sockets and selectors wait for so many milliseconds as 31 bits hold."""
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class TransportOptions:
    """How an endpoint talks to its peers; the same on all of them but for `interface`.

    Attributes:
        interface: network interface ("eth0") or address to listen and connect from; "" for any.
        chunk_bytes: at most so much of a message goes on its way before the next choice of the most urgent one; 0 for
            what takes 1.4 ms at the rate (16 to 256 KiB), 256 KiB without a rate.
        unsent_bytes: at most about so much lies in a socket unsent (`TCP_NOTSENT_LOWAT`): what is chosen there can
            no longer be overtaken; 0 for half a chunk.
        rate_bytes_per_s: of all connections together, divided among those that send at the time; a little below the
            link's own keeps the queues on the way empty (`SO_MAX_PACING_RATE`). None for as fast as it goes.
        ageing_s: a message that has waited so long is as urgent as a new one of the next lower priority number; at most 1e9.
        connections: per peer; more than one where one does not fill the link.
        dscp: in the IP header of everything sent (0 to 63).
        socket_priority: `SO_PRIORITY`, for queues of the kernel that know it; above 6 needs a privilege.
        congestion: TCP congestion control ("bbr"); "" for the system's.
        timeout_s: a peer of whom nothing is heard for so long is given up; also for connecting; at most 1e6.
        message_bytes_max: larger messages are refused on both sides, before anything is allocated.
        unexpected_bytes_max: so much that nobody has asked for yet is kept per peer; then its sender has to wait.
    """

    interface: str = ""
    chunk_bytes: int = 0
    unsent_bytes: int = 0
    rate_bytes_per_s: float | None = None
    ageing_s: float = 10.0
    connections: int = 1
    dscp: int = 0
    socket_priority: int = 0
    congestion: str = ""
    timeout_s: float = 30.0
    message_bytes_max: int = 16 * GIB
    unexpected_bytes_max: int = 64 * MIB

    def __post_init__(self) -> None:
        for field in ("chunk_bytes", "unsent_bytes"):
            if getattr(self, field) < 0:
                raise InputError(
                    f"{field} is {getattr(self, field)}", "give a number above 0, or 0 to leave it open"
                )
        for field in ("ageing_s", "connections", "timeout_s", "message_bytes_max"):
            if not getattr(self, field) > 0:
                raise InputError(f"{field} is {getattr(self, field)}", "give a number above 0")
        for field, most in (("ageing_s", AGEING_MOST_S), ("timeout_s", TIMEOUT_MOST_S)):
            if getattr(self, field) > most:
                raise InputError(f"{field} is {getattr(self, field)}", f"give at most {most:g} s")
        if self.rate_bytes_per_s is not None and not self.rate_bytes_per_s > 0:
            raise InputError(f"rate_bytes_per_s is {self.rate_bytes_per_s}", "give a rate above 0, or None")
        if self.rate_bytes_per_s == math.inf:
            object.__setattr__(self, "rate_bytes_per_s", None)
        if not 0 <= self.dscp < 64:
            raise InputError(f"dscp is {self.dscp}", "give a number from 0 to 63")

    @property
    def chunk(self) -> int:
        """Bytes of a chunk, chosen where that was left open."""
        if self.chunk_bytes:
            return self.chunk_bytes
        wanted = 256 * KIB if self.rate_bytes_per_s is None else int(self.rate_bytes_per_s * CHUNK_S)
        return min(max(wanted, 16 * KIB), 256 * KIB)

    @property
    def unsent(self) -> int:
        """Bytes that may lie in a socket unsent, chosen where that was left open."""
        return self.unsent_bytes or self.chunk // 2
