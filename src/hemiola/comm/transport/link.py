"""One connection to a peer: writes chunks, reads frames, and knows when it last heard of the other side."""

from __future__ import annotations

import heapq
import itertools
import math
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hemiola.comm.transport.inbox import Inbox
from hemiola.comm.transport.messages import Outgoing
from hemiola.comm.transport.options import TransportOptions
from hemiola.comm.transport.wire import HEADER_BYTES, FrameHeader, FrameKind
from hemiola.core.errors import HemiolaError, InputError, TransportError

__all__ = ["Connection", "Outbox", "prepare"]


_TCP_NOTSENT_LOWAT = 25
_SO_MAX_PACING_RATE = 47
_PACE = struct.Struct("@L")
"""Bytes/s as the kernel takes them (Linux 4.20; an int ends at 2 GiB/s); all ones for no limit."""
_UNPACED = (1 << 8 * _PACE.size) - 1
_RECEIVED_AT = 128
"""Where `tcpi_bytes_received` lies in the kernel's struct tcp_info (Linux 4.1, include/uapi/linux/tcp.h)."""
_READS = 8
"""Frames' parts read at a time before others get their turn."""
_UNREAD_BYTES = 4096
"""Read at a time where a frame may begin: a small message comes with its header, and often alone."""
_NOWHERE = memoryview(b"")


def prepare(sock: socket.socket, options: TransportOptions) -> None:
    """Set a connected socket up as the options ask.

    Raises:
        InputError: this system, or this user's rights, do not allow one of them.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, options.unsent)
    if options.dscp:
        six = sock.family == socket.AF_INET6
        level, name = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if six else (socket.IPPROTO_IP, socket.IP_TOS)
        sock.setsockopt(level, name, options.dscp << 2)
    if options.socket_priority:
        with _told("socket_priority", options.socket_priority, "above 6 needs CAP_NET_ADMIN"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, options.socket_priority)
    if options.congestion:
        with _told("congestion", options.congestion, "see sysctl net.ipv4.tcp_available_congestion_control"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, options.congestion.encode())


@contextmanager
def _told(name: str, value: object, remedy: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise InputError(f"{name} {value!r} is refused: {problem.strerror}", remedy) from problem


class Connection:
    """One of the connections to a peer.

    Attributes:
        peer: its rank.
        blocked: whether the socket took no more the last time.
        writing: whether a frame has been begun and not been finished.
        heard_s: when something last came.
        left: whether the peer has said goodbye.
        rate_bytes_per_s: at most; infinity for as fast as it goes.
        draining_s: until when what was handed to the kernel goes out at that rate.
    """

    def __init__(self, sock: socket.socket, peer: int, inbox: Inbox, options: TransportOptions) -> None:
        self.sock, self.peer, self.inbox = sock, peer, inbox
        self.blocked = False
        self.left = False
        self.rate_bytes_per_s = math.inf
        self.draining_s = 0.0
        self.heard_s = self.spoke_s = time.monotonic()
        self._chunk = options.chunk
        self._parts: list[memoryview] = []
        self._unread = memoryview(bytearray(_UNREAD_BYTES))
        self._unread_bytes = 0
        self._header: FrameHeader | None = None
        self._place = self._rest = _NOWHERE

    @property
    def writing(self) -> bool:
        """Whether a frame has been begun and not been finished."""
        return bool(self._parts)

    @property
    def received_bytes(self) -> int:
        """What has come, whether it has been read or not; 0 once the connection is closed."""
        try:
            told = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
        except OSError:
            return 0
        return int.from_bytes(told[_RECEIVED_AT:], sys.byteorder)

    def pace(self, rate_bytes_per_s: float) -> None:
        """Send no faster than that; infinity for as fast as it goes."""
        self.rate_bytes_per_s = rate_bytes_per_s
        rate = max(1, int(min(rate_bytes_per_s, _UNPACED)))
        with suppress(OSError):  # closed meanwhile
            self.sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, _PACE.pack(rate))

    def tune(self, chunk_bytes: int) -> None:
        """Send in chunks of this size, with half a chunk unsent at most."""
        self._chunk = chunk_bytes
        with suppress(OSError):  # closed meanwhile
            self.sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, max(1, chunk_bytes // 2))

    def begin(self, message: Outgoing) -> int:
        """Begin the next chunk of a message; how many bytes it has."""
        offset = message.sent_bytes
        length = min(self._chunk, message.size_bytes - offset)
        header = FrameHeader(
            FrameKind.DATA, length, message.tag, message.sequence, message.size_bytes, offset
        )
        self._parts = [memoryview(header.pack())]
        if length:
            self._parts.append(message.data[offset : offset + length])
        return length

    def say(self, kind: FrameKind) -> None:
        """A frame without bytes; only between chunks."""
        self._parts = [memoryview(FrameHeader(kind).pack())]

    def take_back(self) -> None:
        """Do not write on what was begun: nobody is there to read it."""
        self._parts = []

    def write(self) -> bool:
        """Write on; whether the frame is finished.

        Raises:
            OSError: the connection is broken.
        """
        try:
            sent = self.sock.sendmsg(self._parts)
        except (BlockingIOError, InterruptedError):
            self.blocked = True
            return False
        self.spoke_s = time.monotonic()
        while self._parts and sent >= self._parts[0].nbytes:
            sent -= self._parts.pop(0).nbytes
        if self._parts:
            self._parts[0] = self._parts[0][sent:]
            self.blocked = True
        return not self._parts

    def read(self) -> None:
        """Read what has come.

        Raises:
            OSError: the connection is broken.
            TransportError: what comes makes no sense.
        """
        for _ in range(_READS):
            into = self._rest if self._rest.nbytes else self._unread[self._unread_bytes :]
            try:
                count = self._receive(into)
            except (BlockingIOError, InterruptedError):
                return
            if self._rest.nbytes:
                self._rest = self._rest[count:]
                if not self._rest.nbytes:
                    self._end_frame()
            else:
                self._unread_bytes += count
                self._begin_frames()
            if count < into.nbytes:
                return  # there is no more yet

    def _receive(self, into: memoryview) -> int:
        count = self.sock.recv_into(into)
        if not count:
            raise ConnectionResetError("the connection was closed")
        self.heard_s = time.monotonic()
        return count

    def _begin_frames(self) -> None:
        """Of what was read, all frames that have begun; of the last one the rest is read into its place."""
        unread, start, end = self._unread, 0, self._unread_bytes
        while end - start >= HEADER_BYTES:
            header = FrameHeader.unpack(unread, start)
            start += HEADER_BYTES
            self._begin_frame(header)
            here = min(self._rest.nbytes, end - start)
            if here:
                self._rest[:here] = unread[start : start + here]
                self._rest = self._rest[here:]
                start += here
                if not self._rest.nbytes:
                    self._end_frame()
        self._unread_bytes = end - start
        if start < end:
            unread[: end - start] = bytes(unread[start:end])

    def _begin_frame(self, header: FrameHeader) -> None:
        if header.kind == FrameKind.BYE:
            self.left = True
        elif header.kind == FrameKind.DATA:
            self._header, self._place = header, self.inbox.place(header)
            self._rest = self._place
            if not header.length:
                self._end_frame()
        elif header.kind != FrameKind.PING:
            raise TransportError(
                f"rank {self.peer} sends a frame of unknown kind {header.kind}",
                "look for what damages the connection",
            )

    def _end_frame(self) -> None:
        assert self._header is not None
        header, self._header = self._header, None
        place, self._place = self._place, _NOWHERE
        self._rest = _NOWHERE  # the memory is its owner's alone from now on
        self.inbox.arrived(header, place)


# Which message goes next: the most urgent that its connection can take, chosen anew for every chunk.


class Outbox:
    """All messages of one endpoint that are not sent yet; any thread may add."""

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._lock = threading.Lock()
        self._heaps: dict[int, list[Outgoing]] = {}
        self._deadlines: dict[int, list[tuple[float, int, Outgoing]]] = {}
        self._sequences: dict[tuple[int, int], int] = {}
        self._order = itertools.count()

    def add(
        self, peer: int, tag: int, data: memoryview, priority: int, now_s: float, urgent_s: float
    ) -> Outgoing:
        """One more.

        Args:
            urgent_s: from when on it goes before all others; infinity for never.
        """
        with self._lock:
            sequence = self._sequences.get((peer, tag), 0)
            self._sequences[peer, tag] = sequence + 1
            order = next(self._order)
            message = Outgoing(peer, tag, sequence, data, now_s + priority * self._ageing_s, urgent_s, order)
            heapq.heappush(self._heaps.setdefault(peer, []), message)
            if urgent_s < float("inf"):
                heapq.heappush(self._deadlines.setdefault(peer, []), (urgent_s, order, message))
        return message

    def next(self, can_take: Callable[[int], bool], now_s: float) -> Outgoing | None:
        """The message whose chunk is to go now, among those to peers that can take one; it stays in the box."""
        with self._lock:
            best: Outgoing | None = None
            best_urgent = (float("inf"), 0)
            for peer, heap in self._heaps.items():
                if not heap or not can_take(peer):
                    continue
                urgent = self._urgent(peer, now_s)
                if urgent is not None and (urgent.urgent_s, urgent.order) < best_urgent:
                    best, best_urgent = urgent, (urgent.urgent_s, urgent.order)
                elif best_urgent[0] == float("inf") and (best is None or heap[0] < best):
                    best = heap[0]
            return best

    def _urgent(self, peer: int, now_s: float) -> Outgoing | None:
        deadlines = self._deadlines.get(peer)
        while (
            deadlines
            and deadlines[0][2].sent_bytes >= deadlines[0][2].size_bytes
            and deadlines[0][2].started_s
        ):
            heapq.heappop(deadlines)
        return deadlines[0][2] if deadlines and deadlines[0][0] <= now_s else None

    def remove(self, message: Outgoing) -> None:
        """All of it has been handed over."""
        with self._lock:
            heap = self._heaps[message.peer]
            if heap and heap[0] is message:
                heapq.heappop(heap)
            elif message in heap:
                heap.remove(message)
                heapq.heapify(heap)

    def waiting(self, peer: int) -> bool:
        """Whether anything is left for this peer."""
        return bool(self._heaps.get(peer))

    def fail(self, peer: int, problem: HemiolaError) -> None:
        """Nothing goes to this peer any more."""
        with self._lock:
            lost = self._heaps.pop(peer, [])
            self._deadlines.pop(peer, None)
        for message in lost:
            message.finish(problem)
