"""What stands on the wire: frames of a fixed header and a stretch of a message. Little-endian throughout."""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from hemiola.core.errors import TransportError

__all__ = ["HEADER_BYTES", "FrameHeader", "FrameKind", "Greeting", "accept", "introduce"]


MAGIC = b"HMLA"
VERSION = 1
"""Peers of different versions refuse each other."""

_HEADER = struct.Struct("<B3xIQQQQ")
HEADER_BYTES = _HEADER.size


class FrameKind(IntEnum):
    """What a frame is."""

    DATA = 1
    PING = 2
    BYE = 3


class FrameHeader(NamedTuple):
    """What comes before a frame's bytes.

    Attributes:
        kind: what it is; only data has the rest.
        length: bytes that follow.
        tag: of the message.
        sequence: how many messages of this tag the sender had sent this peer before.
        size_bytes: of the whole message.
        offset: where in the message the bytes belong.
    """

    kind: int
    length: int = 0
    tag: int = 0
    sequence: int = 0
    size_bytes: int = 0
    offset: int = 0

    def pack(self) -> bytes:
        """As it stands on the wire."""
        return _HEADER.pack(*self)

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview, offset: int = 0) -> FrameHeader:
        """From the wire; whether it makes sense is for the reader to say."""
        return cls(*_HEADER.unpack_from(data, offset))


# How two ranks make sure of each other before anything else is read: a mutual HMAC challenge.

_GREETING = struct.Struct("<4sHHII32s")
_PROOF_BYTES = 32
_WELCOME = b"\x01"


@dataclass(frozen=True)
class Greeting:
    """Who speaks.

    Attributes:
        rank: its number.
        ranks: how many there are.
        lane: which of the connections between the two this is.
    """

    rank: int
    ranks: int
    lane: int = 0

    def pack(self, nonce: bytes) -> bytes:
        """As it stands on the wire."""
        return _GREETING.pack(MAGIC, VERSION, self.lane, self.rank, self.ranks, nonce)


def introduce(sock: socket.socket, me: Greeting, peer: int, secret: bytes, timeout_s: float) -> None:
    """The side that connected: greet, check that it is the peer, prove oneself.

    Raises:
        TransportError: it is somebody else, of another version, or does not know the secret.
    """
    deadline = time.monotonic() + timeout_s
    mine = me.pack(os.urandom(32))
    _send(sock, mine, deadline)
    theirs = _receive(sock, _GREETING.size, deadline)
    found = _read(theirs, me.ranks)
    if found.rank != peer:
        raise TransportError(
            f"rank {found.rank} answered where rank {peer} was expected", "check the addresses"
        )
    if not hmac.compare_digest(
        _receive(sock, _PROOF_BYTES, deadline), _proof(secret, b"accept", mine, theirs)
    ):
        raise TransportError(f"rank {peer} does not know this job's secret", "give all ranks the same secret")
    _send(sock, _proof(secret, b"introduce", mine, theirs), deadline)
    if _receive(sock, 1, deadline) != _WELCOME:
        raise TransportError(f"rank {peer} refused this rank", "look at what it logged")


def accept(sock: socket.socket, rank: int, ranks: int, secret: bytes, timeout_s: float) -> Greeting:
    """The side that listens; who it is.

    Raises:
        TransportError: a stranger, another version, or another job.
    """
    deadline = time.monotonic() + timeout_s
    theirs = _receive(sock, _GREETING.size, deadline)
    found = _read(theirs, ranks)
    if found.rank == rank or found.rank >= ranks:
        raise TransportError(f"a caller says it is rank {found.rank} of {ranks}", "check the ranks' numbers")
    mine = Greeting(rank, ranks, found.lane).pack(os.urandom(32))
    _send(sock, mine + _proof(secret, b"accept", theirs, mine), deadline)
    if not hmac.compare_digest(
        _receive(sock, _PROOF_BYTES, deadline), _proof(secret, b"introduce", theirs, mine)
    ):
        raise TransportError("a caller does not know this job's secret", "give all ranks the same secret")
    _send(sock, _WELCOME, deadline)
    return found


def _read(data: bytes, ranks: int) -> Greeting:
    magic, version, lane, rank, count, _ = _GREETING.unpack(data)
    if magic != MAGIC:
        raise TransportError(
            f"the other side does not speak this protocol: it began with {magic!r}", "check the port"
        )
    if version != VERSION:
        raise TransportError(
            f"the other side speaks version {version} of the protocol, this one {VERSION}",
            "install the same version of Hemiola on all ranks",
        )
    if count != ranks:
        raise TransportError(
            f"the other side counts {count} ranks, this one {ranks}", "is it of another job?"
        )
    return Greeting(rank, count, lane)


def _proof(secret: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, role + first + second, "sha256")


def _send(sock: socket.socket, data: bytes, deadline: float) -> None:
    sock.settimeout(max(deadline - time.monotonic(), 1e-3))
    sock.sendall(data)


def _receive(sock: socket.socket, count: int, deadline: float) -> bytes:
    """Exactly so many bytes before the deadline."""
    data = b""
    while len(data) < count:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"{len(data)} of {count} bytes of the greeting came in time")
        sock.settimeout(left_s)
        more = sock.recv(count - len(data))
        if not more:
            raise TransportError("the other side hung up during the greeting", "look at what it logged")
        data += more
    return data
