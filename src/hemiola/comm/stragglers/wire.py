"""What ranks and the first rank tell each other, in messages of one size."""

from __future__ import annotations

import struct

from hemiola.comm.stragglers.coordinator import CatchUp, Given, Order, PartialGroup, TensorMismatch

__all__ = ["GIVEN_BYTES", "decode", "decode_given", "encode", "encode_given", "order_bytes"]

_GIVEN = struct.Struct("<QBIQ")
_ORDER = struct.Struct("<BQQBIQQIQ")
_PART, _CATCH_UP, _REFUSAL = range(3)
GIVEN_BYTES = _GIVEN.size


def encode_given(given: Given) -> bytes:
    """As a rank says that it is ready."""
    return _GIVEN.pack(given.elements, given.element_bytes, given.kind, given.place)


def decode_given(data: bytes | bytearray) -> Given:
    """The other way."""
    return Given(*_GIVEN.unpack(data))


def order_bytes(ranks: int) -> int:
    """Of every order."""
    return _ORDER.size + -(-ranks // 8)


def encode(order: Order, ranks: int) -> bytes:
    """As the first rank sends it."""
    given = Given(0, 1, 0, 0) if isinstance(order, TensorMismatch) else order.given
    what, first, last, rank, active, epoch = _PART, 0, 0, 0, 0, 0
    match order:
        case PartialGroup():
            first, last, epoch = order.first, order.last, order.epoch
            active = sum(1 << one for one in order.active)
        case CatchUp():
            what, last, rank, epoch = _CATCH_UP, order.last, order.rank, order.epoch
        case TensorMismatch():
            what, rank = _REFUSAL, order.rank
    head = _ORDER.pack(
        what, order.number, given.elements, given.element_bytes, given.kind, first, last, rank, epoch
    )
    return head + active.to_bytes(order_bytes(ranks) - _ORDER.size, "little")


def decode(data: bytes | bytearray) -> Order:
    """The other way."""
    what, number, elements, element_bytes, kind, first, last, rank, epoch = _ORDER.unpack_from(data)
    given = Given(elements, element_bytes, kind, 0)
    if what == _REFUSAL:
        return TensorMismatch(number, rank)
    if what == _CATCH_UP:
        return CatchUp(number, given, rank, last, epoch)
    active = int.from_bytes(data[_ORDER.size :], "little")
    ranks = frozenset(one for one in range(active.bit_length()) if active >> one & 1)
    return PartialGroup(number, given, first, last, ranks, epoch)
