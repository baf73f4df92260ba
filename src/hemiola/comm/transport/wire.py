"""What stands on the wire: frames of a fixed header and a stretch of a message. Little-endian throughout."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

__all__ = ["HEADER_BYTES", "MAGIC", "VERSION", "FrameHeader", "FrameKind"]

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
