"""Small all-reduces by recursive doubling (Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 4.3).

In each round a rank swaps what it has with one that has as much: log2 of the ranks rounds, and as many messages
from each. Of a pair the lower rank's sum always comes first, so that all ranks have the same bits. Ranks beyond
a power of two give theirs to another before, and get the result from it after.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import torch
from torch import Tensor

from hemiola.comm.process_group.collectives import Channel, Ended, Join
from hemiola.comm.process_group.memory import view, writing
from hemiola.comm.transport import Handle

__all__ = ["Doubling"]


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
