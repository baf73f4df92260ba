"""Collectives as messages between pairs of ranks. All ranks call the same ones in the same order.

Large all-reduces and reduce-scatters go around a ring in chunks: while one is added up, the next is on its way
(Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 4). Small all-reduces go by `doubling`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hemiola.comm.process_group.memory import view, writing
from hemiola.comm.transport import Endpoint, Handle
from hemiola.core.errors import HemiolaError, InputError

__all__ = [
    "Channel",
    "Doubling",
    "all_gather",
    "all_reduce",
    "broadcast",
    "broadcast_directly",
    "check_each",
    "check_rows",
    "check_whole",
    "exchanged",
    "gather",
    "gathered",
    "put_back",
    "reduce_scatter",
    "rows",
    "scatter",
    "scattered",
]


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


# Small all-reduces by recursive doubling (Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 4.3).


class _Room:
    """Rows of memory for one exchange: this rank's tensor; then by round what comes, and the next sum.

    Whoever calls, the next one may be in another mode, and the transport's thread is in none.
    """

    def __init__(self, like: Tensor, rounds: int) -> None:
        with torch.inference_mode(False):
            room, size = like.new_empty((2 * rounds + 1, like.numel())), like.nbytes
            self.rows, whole = room.unbind(), view(room)
        self.bytes = [whole[row * size : (row + 1) * size] for row in range(len(self.rows))]
        self.kind = like.dtype, like.numel()


class Doubling:
    """One rank's side.

    Attributes:
        guardian: to whom this rank leaves its tensor, for want of a partner; None for most.
        ward: the rank that leaves its tensor to this one.
        peers: whose messages this rank awaits, round by round.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        """Of one rank of so many."""
        power = 1 << ranks.bit_length() - 1
        self.guardian = rank - power if rank >= power else None
        self.ward = rank + power if rank < ranks - power else None
        self.peers = [rank ^ 1 << bit for bit in range(power.bit_length() - 1)]
        if self.guardian is not None:
            self.peers = [self.guardian]
        elif self.ward is not None:
            self.peers.insert(0, self.ward)
        self._spare: deque[_Room] = deque(maxlen=2)

    def all_reduce(self, channel: Channel, flat: Tensor, join: Join, ended: Ended) -> None:
        """Join everybody's tensor into everybody's; returns at once.

        Args:
            join: adds its second argument to its first, in place.
            ended: called with what went wrong or None, mostly on the transport's thread.
        """
        _Exchange(self, channel, flat, join, ended).begin()

    def room(self, like: Tensor) -> _Room:
        """For one exchange."""
        with suppress(IndexError):
            if (spare := self._spare.popleft()).kind == (like.dtype, like.numel()):
                return spare
        return _Room(like, len(self.peers))

    def give_back(self, room: _Room) -> None:
        """Nobody uses it any more."""
        self._spare.append(room)


class _Exchange:
    """One all-reduce. Its rounds follow one another: no two threads are ever in it at once."""

    def __init__(self, side: Doubling, channel: Channel, flat: Tensor, join: Join, ended: Ended) -> None:
        self._side, self._channel, self._flat, self._join, self._ended = side, channel, flat, join, ended
        self._room = room = side.room(flat)
        self._sum = 0
        """The row of the sum so far: what is being sent must not change, so that each has its own."""
        self._round = 0
        room.rows[0].copy_(flat)
        self._coming = [
            channel.receive_bytes(peer, room.bytes[2 * number + 1]) for number, peer in enumerate(side.peers)
        ]

    def begin(self) -> None:
        """Send what can be sent; the rest follows what comes."""
        if self._side.guardian is not None:
            self._channel.send_bytes(self._side.guardian, self._room.bytes[0])
        self._next()

    def _next(self) -> None:
        """Swap with the next one, unless that one only gives."""
        peer = self._side.peers[self._round]
        if peer != self._side.ward and peer != self._side.guardian:
            self._channel.send_bytes(peer, self._room.bytes[self._sum])
        self._coming[self._round].add_callback(self._came)

    def _came(self, handle: Handle) -> None:
        if handle.problem is not None:
            self._end(handle.problem)
            return
        try:
            self._take(handle.peer, 2 * self._round + 1)
            self._round += 1
            if self._round < len(self._coming):
                self._next()
                return
            if self._side.ward is not None:
                self._channel.send_bytes(self._side.ward, self._room.bytes[self._sum])
            with writing(self._flat):
                self._flat.copy_(self._room.rows[self._sum])
        except Exception as problem:  # the transport was closed, or these cannot be joined
            self._end(problem)
        else:
            self._end(None)

    def _take(self, peer: int, came: int) -> None:
        """What came: the result, or the other part of the next sum."""
        rows = self._room.rows
        if peer > self._channel.rank:
            rows[came + 1].copy_(rows[self._sum])
            self._join(rows[came + 1], rows[came])
            self._sum = came + 1
            return
        if peer != self._side.guardian:
            self._join(rows[came], rows[self._sum])
        self._sum = came

    def _end(self, problem: BaseException | None) -> None:
        if problem is None and all(handle.done for handle in self._channel.sent):
            self._side.give_back(self._room)
        self._ended(problem)


# Parts of tensors, one for each rank; a group of one rank has them already.


def check_each(tensors: Sequence[Tensor], ranks: int) -> None:
    """Raises an InputError unless there is a tensor for each rank."""
    if len(tensors) != ranks:
        raise InputError(f"a list of {len(tensors)} tensors for {ranks} ranks", "give one for each rank")


def check_whole(whole: Tensor, part: Tensor, ranks: int) -> None:
    """Raises an InputError unless the tensor has as many elements as so many of the part."""
    if whole.numel() != ranks * part.numel():
        raise InputError(
            f"a tensor of {whole.numel()} elements for parts of {part.numel()} of {ranks} ranks",
            f"give one of {ranks * part.numel()} elements",
        )


def check_rows(tensor: Tensor, sizes: Sequence[int], ranks: int) -> None:
    """Raises an InputError unless the tensor's rows have parts of these sizes, or equal ones, for each rank."""
    count = len(tensor)
    if sizes and (len(sizes) != ranks or sum(sizes) != count):
        raise InputError(
            f"parts of {', '.join(map(str, sizes))} rows of a tensor of {count} for {ranks} ranks",
            "give a size for each rank, and all rows to somebody",
        )
    if not sizes and count % ranks:
        raise InputError(
            f"a tensor of {count} rows for {ranks} ranks",
            "give as many rows to each, or the sizes of the parts",
        )


def put_back(result: Tensor, tensor: Tensor) -> None:
    """Into a tensor with gaps; one without has it already."""
    if result.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(result.view(tensor.shape))


def gathered(channel: Channel, parts: list[Tensor], own: Tensor) -> None:
    """Everybody's tensor into these."""
    if channel.ranks > 1:
        all_gather(channel, parts, own)
    else:
        parts[0].copy_(own.view(parts[0].shape))


def scattered(channel: Channel, parts: list[Tensor], join: Join) -> Tensor:
    """This rank's part of what everybody's parts join to."""
    return reduce_scatter(channel, parts, join) if channel.ranks > 1 else parts[0]


def exchanged(channel: Channel, into: list[Tensor], given: list[Tensor]) -> None:
    """A part for every rank, and one of every rank."""
    if channel.ranks > 1:
        all_to_all(channel, into, given)
    else:
        into[0].copy_(given[0])


def rows(tensor: Tensor, sizes: Sequence[int], ranks: int) -> list[Tensor]:
    """The parts of a tensor for every rank, by their sizes or equal ones."""
    return list(tensor.split(list(sizes)) if sizes else tensor.chunk(ranks))
