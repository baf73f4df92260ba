"""How parameters are spread over servers: small neighbours together, large tensors cut, bytes in balance. Pure.

What travels, and what a server updates at a time, is a parcel. Cuts and parcels follow the order of the parameters,
which is about that of their first use, so every server has something of every layer and none is asked for all
at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hemiola.core.errors import InputError

__all__ = ["Parcel", "ParcelLayout", "Stretch", "Tensor", "lay_out"]

CUT_BYTES = 2 << 20
JOIN_BYTES = 256 << 10
HEAD_BYTES = 64
"""Before the elements of whatever is sent, so that these lie as PyTorch lays them."""
NUMBERS = 16
"""Hyper-parameters of a group of the optimizer, at most; they and a flag per stretch follow what is pushed."""


@dataclass(frozen=True)
class Tensor:
    """A parameter.

    Attributes:
        elements: how many.
        element_bytes: of each.
        kind: parameters of different kinds (type, group of the optimizer) are not put together.
        whole: whether it must not be cut.
    """

    elements: int
    element_bytes: int
    kind: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Stretch:
    """Some elements of a parameter, and where in the parcel's elements they lie.

    Attributes:
        tensor: number of the parameter.
        start, stop: its elements, the last one not included.
        offset_bytes: within the parcel, after its head.
    """

    tensor: int
    start: int
    stop: int
    offset_bytes: int


@dataclass(frozen=True)
class Parcel:
    """What travels together.

    Attributes:
        server: where it is kept.
        stretches: of parameters of one kind, in order.
        size_bytes: of its elements.
        push_offset, answer_offset: where in a worker's memory its two messages lie, heads first.
    """

    server: int
    stretches: tuple[Stretch, ...]
    size_bytes: int
    push_offset: int
    answer_offset: int

    @property
    def push_bytes(self) -> int:
        """Of the message to its server: head, elements, hyper-parameters, flags."""
        return HEAD_BYTES + self.size_bytes + _aligned(8 * NUMBERS + len(self.stretches))

    @property
    def answer_bytes(self) -> int:
        """Of the message from its server: head and elements."""
        return HEAD_BYTES + self.size_bytes


@dataclass(frozen=True)
class ParcelLayout:
    """All parcels, by number, and the memory that a worker needs for them."""

    parcels: tuple[Parcel, ...]
    servers: int
    memory_bytes: int


def lay_out(tensors: Sequence[Tensor], servers: int, cut_bytes: int = CUT_BYTES) -> ParcelLayout:
    """Spread them. A tensor of more than `JOIN_BYTES` is cut in at least one part per server, of at most `cut_bytes`.

    Raises:
        InputError: no server.
    """
    if servers < 1:
        raise InputError(f"{servers} parameter servers", "give 1 or more")
    load = [0] * servers
    parcels: list[Parcel] = []
    memory_bytes = 0
    for group in _groups(_cuts(tensors, servers, cut_bytes), tensors):
        stretches, size_bytes = [], 0
        for number, start, stop in group:
            stretches.append(Stretch(number, start, stop, size_bytes))
            size_bytes += _aligned((stop - start) * tensors[number].element_bytes)
        server = min(range(servers), key=lambda s: (load[s], s))
        load[server] += size_bytes
        parcel = Parcel(server, tuple(stretches), size_bytes, memory_bytes, 0)
        parcel = replace(parcel, answer_offset=memory_bytes + parcel.push_bytes)
        parcels.append(parcel)
        memory_bytes = parcel.answer_offset + parcel.answer_bytes
    return ParcelLayout(tuple(parcels), servers, memory_bytes)


Cut = tuple[int, int, int]


def _cuts(tensors: Sequence[Tensor], servers: int, cut_bytes: int) -> list[Cut]:
    """Number, start and stop of every part, in order; parts begin at multiples of 64 elements."""
    found = []
    for number, tensor in enumerate(tensors):
        size_bytes = tensor.elements * tensor.element_bytes
        parts = 1
        if size_bytes > JOIN_BYTES and not tensor.whole:
            parts = -(-size_bytes // cut_bytes)
            parts = -(-parts // servers) * servers
        step = -(-tensor.elements // parts // 64) * 64 if parts > 1 else tensor.elements
        starts = range(0, tensor.elements, max(step, 1))
        found += [(number, start, min(start + step, tensor.elements)) for start in starts]
    return found


def _groups(cuts: Sequence[Cut], tensors: Sequence[Tensor]) -> list[list[Cut]]:
    """Neighbours of one kind, as many as stay within `JOIN_BYTES`."""
    found: list[list[Cut]] = []
    room, kind = -1, ""
    for number, start, stop in cuts:
        tensor = tensors[number]
        size_bytes = (stop - start) * tensor.element_bytes
        if size_bytes > room or tensor.kind != kind:
            found.append([])
            room, kind = JOIN_BYTES, tensor.kind
        found[-1].append((number, start, stop))
        room -= size_bytes
    return found


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // HEAD_BYTES) * HEAD_BYTES
