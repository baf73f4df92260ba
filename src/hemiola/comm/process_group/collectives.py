"""Collectives as messages between pairs of ranks. All ranks call the same ones in the same order.

Large all-reduces and reduce-scatters go around a ring in chunks: while one is added up, the next is on its way
(Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 4). Small all-reduces go by `doubling`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hemiola.core.errors import HemiolaError
from hemiola.comm.process_group.memory import view
from hemiola.comm.transport import Endpoint, Handle

__all__ = [
    "Channel", "all_gather", "all_reduce", "all_to_all", "broadcast", "broadcast_directly", "gather", "reduce_scatter",
    "scatter",
]  # fmt: skip

DIRECT_BYTES = 64 << 10
"""All-reduces and broadcasts up to this size wait for no thread of their own."""
CHUNK_BYTES = 1 << 20
HALF_BYTES = 128 << 10
"""Half a part of a ring is no smaller: while one half is joined, the other keeps the link busy."""
AHEAD = 4
"""So many pieces may be on their way to a rank before it has joined them."""
Join = Callable[[Tensor, Tensor], object]
Ended = Callable[[BaseException | None], None]


@dataclass
class Channel:
    """One collective's messages.

    Attributes:
        end: the rank's end of the transport; None for a single rank.
        rank, ranks: within the group.
        tag: of its messages; the next one is for those on the way back, which come in an order of their own.
        timeout_s: so long it may wait for one of them.
    """

    end: Endpoint | None
    rank: int
    ranks: int
    tag: int
    timeout_s: float
    sent: list[Handle] = field(default_factory=list)
    _awaited: Handle | None = None
    _problem: HemiolaError | None = None

    @property
    def others(self) -> list[int]:
        """All ranks but this one, the next first."""
        return [(self.rank + step) % self.ranks for step in range(1, self.ranks)]

    def send(self, peer: int, tensor: Tensor, back: bool = False) -> None:
        """Begin to send; it must not change until `finish`."""
        self.send_bytes(peer, view(tensor), back)

    def send_bytes(self, peer: int, data: memoryview, back: bool = False) -> None:
        """The same for a stretch of memory."""
        self.sent.append(self._going_on().send(peer, self.tag + back, data))

    def receive(self, peer: int, into: Tensor, back: bool = False) -> Handle:
        """Begin to receive."""
        return self.receive_bytes(peer, view(into), back)

    def receive_bytes(self, peer: int, into: memoryview, back: bool = False) -> Handle:
        """The same for a stretch of memory."""
        return self._going_on().receive(peer, self.tag + back, into)

    def wait(self, handle: Handle) -> None:
        """Until it has ended, or this channel is stopped; from one thread at a time."""
        if handle.done:
            handle.wait()
            return
        awaited = self._awaited = Handle(handle.peer, handle.tag, handle.size_bytes)
        handle.add_callback(lambda ended: awaited.finish(ended.problem))
        self._going_on()  # only now: who stops it looks at what is awaited last
        awaited.wait(self.timeout_s)

    def finish(self) -> None:
        """Until everything has been sent."""
        for handle in self.sent:
            self.wait(handle)

    def stop(self, problem: HemiolaError) -> None:
        """Nobody waits any more: who does is told why. Messages stay with the transport, which may be writing them."""
        self._problem = problem
        if self._awaited is not None:
            self._awaited.finish(problem)

    def _going_on(self) -> Endpoint:
        if self._problem is not None:
            raise self._problem
        assert self.end is not None
        return self.end


def all_reduce(channel: Channel, flat: Tensor, join: Join) -> None:
    """Join everybody's tensor into everybody's."""
    parts = _parts(flat, channel.ranks)
    rank, ranks = channel.rank, channel.ranks
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    gathered = [parts[(rank - step) % ranks] for step in range(ranks - 1)]
    reduced = [parts[(rank - step - 1) % ranks] for step in range(ranks - 1)]
    arriving = _Arriving(channel, left, [piece for part in reduced for piece in _pieces(part)])
    returning = [
        (step, piece, channel.receive(left, piece, back=True))
        for step, part in enumerate(gathered)
        for piece in _pieces(part)
    ]
    for piece in _pieces(parts[rank]):
        channel.send(right, piece)
    last = len(_pieces(reduced[-1]))
    for number, (own, theirs) in enumerate(arriving):
        join(own, theirs)
        channel.send(right, own, back=number >= len(arriving.pieces) - last)  # the last part is complete
    for step, piece, handle in returning:
        channel.wait(handle)
        if step < ranks - 2:
            channel.send(right, piece, back=True)


def reduce_scatter(channel: Channel, parts: Sequence[Tensor], join: Join) -> Tensor:
    """Join everybody's parts; this rank's own is returned, in its place."""
    rank, ranks = channel.rank, channel.ranks
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    order = [parts[(rank - step - 2) % ranks] for step in range(ranks - 1)]
    last = len(_pieces(parts[rank]))  # of the pieces, this rank's own
    arriving = _Arriving(channel, left, [piece for part in order for piece in _pieces(part)])
    for piece in _pieces(parts[(rank - 1) % ranks]):
        channel.send(right, piece)
    for number, (own, theirs) in enumerate(arriving):
        join(own, theirs)
        if number < len(arriving.pieces) - last:
            channel.send(right, own)
    return parts[rank]


def all_gather(channel: Channel, parts: Sequence[Tensor], own: Tensor) -> None:
    """Everybody's tensor, at everybody's."""
    handles = [channel.receive(peer, parts[peer]) for peer in reversed(channel.others)]
    for peer in channel.others:
        channel.send(peer, own)
    parts[channel.rank].copy_(own)
    for handle in handles:
        channel.wait(handle)


def broadcast(channel: Channel, flat: Tensor, root: int) -> None:
    """The root's tensor, to everybody: down a binomial tree, in chunks."""
    rank, ranks = channel.rank, channel.ranks
    place = (rank - root) % ranks
    bit = 1
    while bit < ranks and not place & bit:
        bit <<= 1
    parent = (place - bit + root) % ranks if place else -1
    children = []
    bit >>= 1
    while bit:
        if place + bit < ranks:
            children.append((place + bit + root) % ranks)
        bit >>= 1
    coming = [channel.receive(parent, piece) for piece in _pieces(flat)] if place else []
    for number, piece in enumerate(_pieces(flat)):
        if place:
            channel.wait(coming[number])
        for child in children:
            channel.send(child, piece)


def gather(channel: Channel, parts: Sequence[Tensor], own: Tensor, root: int) -> None:
    """Everybody's tensor, at the root."""
    if channel.rank != root:
        channel.send(root, own)
        return
    handles = [channel.receive(peer, parts[peer]) for peer in channel.others]
    parts[root].copy_(own)
    for handle in handles:
        channel.wait(handle)


def scatter(channel: Channel, parts: Sequence[Tensor], own: Tensor, root: int) -> None:
    """One of the root's tensors to everybody."""
    if channel.rank == root:
        for peer in channel.others:
            channel.send(peer, parts[peer])
        own.copy_(parts[root])
    else:
        channel.wait(channel.receive(root, own))


def all_to_all(channel: Channel, into: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """One tensor from everybody to everybody."""
    handles = [channel.receive(peer, into[peer]) for peer in reversed(channel.others)]
    for peer in channel.others:
        channel.send(peer, given[peer])
    into[channel.rank].copy_(given[channel.rank])
    for handle in handles:
        channel.wait(handle)


def broadcast_directly(channel: Channel, flat: Tensor, root: int, ended: Ended) -> None:
    """The root's tensor from the root to everybody; returns at once."""
    if channel.rank == root:
        for peer in channel.others:
            channel.send(peer, flat)
        _after(channel.sent, lambda: None, ended)
    else:
        _after([channel.receive(root, flat)], lambda: None, ended)


def _after(handles: Sequence[Handle], action: Callable[[], None], ended: Ended) -> None:
    """Once all have ended, on the transport's thread: the action, if all went well, and then the end."""
    left = len(handles)
    lock = threading.Lock()

    def one(handle: Handle) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        problem: BaseException | None = next((h.problem for h in handles if h.problem is not None), None)
        if problem is None:
            try:
                action()
            except Exception as raised:
                problem = raised
        ended(problem)

    for handle in handles:
        handle.add_callback(one)


class _Arriving:
    """What comes from the left, piece by piece: one's own and the other's. Few buffers serve all, so that they stay in the cache."""

    def __init__(self, channel: Channel, left: int, pieces: list[Tensor]) -> None:
        self.pieces = pieces
        self._channel, self._left = channel, left
        most = max(piece.numel() for piece in pieces)
        self._rooms = [pieces[0].new_empty(most) for _ in range(min(AHEAD, len(pieces)))]
        self._asked: deque[tuple[Tensor, Tensor, Handle]] = deque()
        self._next = 0
        while self._next < len(self._rooms):
            self._ask()

    def _ask(self) -> None:
        own = self.pieces[self._next]
        room = self._rooms[self._next % len(self._rooms)][: own.numel()]
        self._asked.append((own, room, self._channel.receive(self._left, room)))
        self._next += 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while self._asked:
            own, room, handle = self._asked.popleft()
            self._channel.wait(handle)
            yield own, room
            if self._next < len(self.pieces):
                self._ask()


def _parts(flat: Tensor, ranks: int) -> list[Tensor]:
    """As many parts as ranks, as equal as can be."""
    return list(torch.tensor_split(flat, ranks))


def _pieces(part: Tensor) -> list[Tensor]:
    """In chunks; at least one, so that every part is one message at least, and two where that is worth it."""
    if not part.numel():
        return [part]
    size = part.element_size()
    half = max(HALF_BYTES // size, -(-part.numel() // 2))
    return list(part.split(max(1, min(CHUNK_BYTES // size, half))))
