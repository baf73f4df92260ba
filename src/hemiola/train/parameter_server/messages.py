"""What workers, their communication processes and servers say to each other, apart from elements. Fixed sizes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

__all__ = ["ANSWER_HEAD", "PUSH_HEAD", "TROUBLE_BYTES", "ServerMessage", "WorkerNote", "Tag"]

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
        own, floor, meeting: of a pull, as in `schemes.Request`. Of a push: own is below 0 if it asks for no answer,
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
