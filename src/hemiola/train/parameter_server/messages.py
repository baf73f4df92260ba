"""What workers, their communication processes and servers say to each other, apart from elements. Fixed sizes."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from hemiola.comm.transport import Address, TransportOptions
from hemiola.comm.transport.home import home_interface
from hemiola.core.errors import InputError
from hemiola.plan.shares import Shares

__all__ = ["ANSWER_HEAD", "PUSH_HEAD", "TROUBLE_BYTES", "Places", "ServerMessage", "Tag", "WorkerNote"]


PUSH_HEAD = struct.Struct("<qqq")
"""The pull that goes with a push: own, floor, priority, as in a note; own is below 0 where nothing is asked."""
ANSWER_HEAD = struct.Struct("<qq")
"""How many updates it holds: of the worker's own, of everybody's."""
TROUBLE_BYTES = 1024
_NOTE = struct.Struct("<B7xqqqq")


class Tag(IntEnum):
    """Messages of the transport; parcel n has the tag PARCELS + n, both ways."""

    NOTES = 1
    TROUBLE = 2
    PARCELS = 16


class ServerMessage(IntEnum):
    """What a note is about."""

    PUSH = 1
    PULL = 2
    LEAVE = 3
    SENT = 4
    LANDED = 5
    TROUBLE = 6


@dataclass(frozen=True, slots=True)
class WorkerNote:
    """A worker's wish, or what became of it.

    Attributes:
        parcel: its number.
        own, floor, meeting: of a pull, as in `schemes.PullRequest`. Of a push: own is below 0 if it asks for no answer,
            meeting is above 0 if it is to be told when it has been sent.
        priority: the lowest goes first.
        text: of trouble only.
    """

    kind: ServerMessage
    parcel: int = 0
    own: int = 0
    floor: int = 0
    meeting: int = 0
    priority: int = 0
    text: str = ""

    SIZE_BYTES = _NOTE.size

    def pack(self) -> bytes:
        """As it is sent."""
        where = self.parcel << 32 | self.priority
        head = _NOTE.pack(self.kind, where, self.own, self.floor, self.meeting)
        return head + self.text.encode()[:TROUBLE_BYTES]

    @classmethod
    def unpack(cls, data: bytes | bytearray) -> WorkerNote:
        """From what was sent."""
        kind, where, own, floor, meeting = _NOTE.unpack(data[: _NOTE.size])
        text = bytes(data[_NOTE.size :]).decode(errors="replace")
        return cls(ServerMessage(kind), where >> 32, own, floor, meeting, where & 0xFFFFFFFF, text)


# Which endpoint is whose, where it listens, and which cores and rates it may use. Endpoints: ranks first,
# then servers.


class Places:
    """One rank's view.

    Attributes:
        rank, ranks: its number, of how many.
        servers: how many there are.
        hosted: those that run on this rank.
        worker_options, server_options: of the transport, of its two kinds of endpoints here; their rates are below.
        worker_paces, server_paces: bytes per second to each endpoint of another rank to which that kind sends
            parcels; empty for as fast as it goes.
        compute_cores, communication_cores, server_cores: of each side; empty where the system decides.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        servers: int | None,
        options: TransportOptions | None,
        shares: Shares | None,
    ) -> None:
        """Divide things up.

        Raises:
            InputError: no server, or more cores than there are.
        """
        self.rank, self.ranks = rank, ranks
        self.servers = ranks if servers is None else servers
        if self.servers < 1:
            raise InputError(f"{self.servers} parameter servers", "give 1 or more")
        self.hosted = [server for server in range(self.servers) if server % ranks == rank]
        options = options or TransportOptions()
        if not options.interface:
            options = replace(options, interface=home_interface())
        self.worker_options = self.server_options = options
        self.compute_cores: set[int] = set()
        self.communication_cores: set[int] = set()
        self.server_cores: set[int] = set()
        if shares is not None:
            self._share(shares)
        away = [ranks + server for server in range(self.servers) if server not in self.hosted]
        self.worker_options, self.worker_paces = _paced(self.worker_options, away)
        others = [other for other in range(ranks) if other != rank]
        self.server_options, self.server_paces = _paced(self.server_options, others)

    @property
    def count(self) -> int:
        """Of endpoints."""
        return self.ranks + self.servers

    def in_order(self, addresses: Sequence[Sequence[Address]]) -> list[Address]:
        """Everybody's by endpoint, from each rank's list: its own, then those of the servers that it hosts."""
        left = [list(found[1:]) for found in addresses]
        return [found[0] for found in addresses] + [left[s % self.ranks].pop(0) for s in range(self.servers)]

    def _share(self, shares: Shares) -> None:
        """Give each side what is its own."""
        here = sorted(os.sched_getaffinity(0))
        wanted = (shares.compute_cores, shares.communication_cores, shares.server_cores)
        if sum(wanted) > len(here):
            raise InputError(
                f"{sum(wanted)} cores are shared out and this process may use {len(here)}",
                "plan the shares for the cores that os.sched_getaffinity(0) names",
            )
        found = []
        for count in wanted:
            found.append(set(here[:count]))
            here = here[count:]
        self.compute_cores, self.communication_cores, self.server_cores = found
        self.server_cores = self.server_cores or self.communication_cores
        self.worker_options = replace(self.worker_options, rate_bytes_per_s=shares.push_bytes_per_s)
        count = max(len(self.hosted), 1)
        pull = None if shares.pull_bytes_per_s is None else shares.pull_bytes_per_s / count
        self.server_options = replace(self.server_options, rate_bytes_per_s=pull)


def _paced(options: TransportOptions, peers: Sequence[int]) -> tuple[TransportOptions, dict[int, float]]:
    """The rate as these peers' alone: what stays on this host takes nothing of it."""
    rate = options.rate_bytes_per_s
    paces = {} if rate is None else {peer: rate / len(peers) for peer in peers}
    return replace(options, rate_bytes_per_s=None, chunk_bytes=options.chunk), paces
