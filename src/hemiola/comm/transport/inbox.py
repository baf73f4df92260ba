"""Which message goes where: brings together what comes with who waits for it, in either order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection

from hemiola.comm.transport.messages import Handle, Incoming
from hemiola.comm.transport.wire import FrameHeader
from hemiola.core.errors import HemiolaError, TransportError

__all__ = ["Anybody", "Inbox"]


class Inbox:
    """What one peer sends. Messages of one tag are handed out in the order in which they were sent.

    Attributes:
        unexpected: called, on the transport's thread, for the tag of which a message that nobody awaits has begun to come,
            or has had to let one go first that now has.
    """

    def __init__(self, peer: int, message_bytes_max: int) -> None:
        self._peer = peer
        self._most = message_bytes_max
        self._lock = threading.Lock()
        self._known: dict[tuple[int, int], Incoming] = {}
        self._asked: dict[int, int] = {}
        self._problem: HemiolaError | None = None
        self._unasked = 0
        """Messages that have begun to come, and that nobody awaits."""
        self.unexpected_bytes = 0
        self.unexpected: Callable[[Inbox, int], None] = lambda inbox, tag: None

    def ask(self, tag: int, into: memoryview) -> Handle:
        """Wait for the next message of this tag; its bytes go into the buffer, which has to be of its size."""
        with self._lock:
            sequence = self._asked.get(tag, 0)
            self._asked[tag] = sequence + 1
            handle = Handle(self._peer, tag, into.nbytes)
            message = self._known.get((tag, sequence))
            if message is not None:
                ended, problem = self._hand_over(sequence, message, handle, into)
            else:
                ended, problem = self._problem is not None, self._problem
                if not ended:
                    self._known[tag, sequence] = Incoming(handle, into)
        if ended:
            handle.finish(problem)
        return handle

    def hand_out(self, handle: Handle, into: memoryview) -> bool:
        """To somebody who takes anybody's: the next message of its tag, if it has begun to come; whether it has."""
        with self._lock:
            sequence = self._asked.get(handle.tag, 0)
            message = self._known.get((handle.tag, sequence))
            if message is None:
                return False
            self._asked[handle.tag] = sequence + 1
            handle.peer = self._peer
            ended, problem = self._hand_over(sequence, message, handle, into)
        if ended:
            handle.finish(problem)
        return True

    def _hand_over(
        self, sequence: int, message: Incoming, handle: Handle, into: memoryview
    ) -> tuple[bool, HemiolaError | None]:
        """Somebody asks for what has begun to come: it goes on into the buffer. Of another size it goes nowhere.

        Returns:
            Whether that is all, and what went wrong.
        """
        assert message.data is not None
        self._unasked -= 1
        self.unexpected_bytes -= message.size_bytes
        message.handle = handle
        if message.whole:
            del self._known[handle.tag, sequence]
        if message.size_bytes != into.nbytes:
            return True, self._mismatch(handle.tag, message.size_bytes, into.nbytes)
        into[:] = message.data
        message.data = into
        return message.whole or self._problem is not None, None if message.whole else self._problem

    def place(self, header: FrameHeader) -> memoryview:
        """Where a frame's bytes go.

        Raises:
            TransportError: the peer sends what cannot be: too large, beyond its end, or not what is awaited.
        """
        if header.size_bytes > self._most or header.offset + header.length > header.size_bytes:
            raise TransportError(
                f"rank {self._peer} sends bytes {header.offset} to {header.offset + header.length} of a message of "
                f"{header.size_bytes}, at most {self._most} are allowed",
                "raise message_bytes_max on all ranks, or look for what damages the connection",
            )
        problem = None
        with self._lock:
            key = (header.tag, header.sequence)
            message = self._known.get(key)
            if is_unexpected := message is None:
                message = self._known[key] = Incoming()
            if message.size_bytes < 0:
                problem = self._begin(message, header)
                if self._unasked and not is_unexpected:
                    is_unexpected = (header.tag, self._asked[header.tag]) in self._known
            elif message.size_bytes != header.size_bytes:
                raise TransportError(
                    f"rank {self._peer} changed the size of message {header.tag}", "report this"
                )
            assert message.data is not None
            place = message.data[header.offset : header.offset + header.length]
        if problem is not None:
            assert message.handle is not None
            message.handle.finish(problem)
        if is_unexpected:
            self.unexpected(self, header.tag)
        return place

    def _begin(self, message: Incoming, header: FrameHeader) -> TransportError | None:
        """Where it goes; of another size than is awaited, nowhere, and why."""
        problem = None
        if message.data is None:
            message.data = memoryview(bytearray(header.size_bytes))
            self._unasked += 1
            self.unexpected_bytes += header.size_bytes
        elif message.data.nbytes != header.size_bytes:
            problem = self._mismatch(header.tag, header.size_bytes, message.data.nbytes)
            message.data = memoryview(bytearray(header.size_bytes))
        message.size_bytes = header.size_bytes
        return problem

    def arrived(self, header: FrameHeader, place: memoryview) -> None:
        """All bytes of a frame have been read into their place; copied on if it has been asked for meanwhile."""
        with self._lock:
            message = self._known[header.tag, header.sequence]
            assert message.data is not None
            if message.data.obj is not place.obj:
                message.data[header.offset : header.offset + header.length] = place
            message.got_bytes += header.length
            message.whole = message.got_bytes == message.size_bytes
            if not message.whole or message.handle is None:
                return
            del self._known[header.tag, header.sequence]
        message.handle.finish()

    def fail(self, problem: HemiolaError) -> None:
        """Nothing comes from this peer any more."""
        with self._lock:
            self._problem = problem
            waiting = [m.handle for m in self._known.values() if m.handle is not None]
            self._known = {k: m for k, m in self._known.items() if m.whole}
        for handle in waiting:
            handle.finish(problem)

    def _mismatch(self, tag: int, came: int, wanted: int) -> TransportError:
        return TransportError(
            f"rank {self._peer} sends {came} bytes as message {tag}, where {wanted} are awaited",
            "send and receive the same size",
        )


# Who waits for a message from whichever rank sends it first. Lives on the transport's thread, where
# messages come.


class Anybody:
    """Of one endpoint. A message that somebody awaits from its very sender is not given to who takes anybody's."""

    def __init__(self, inboxes: Collection[Inbox]) -> None:
        self._inboxes = inboxes
        self._waiting: dict[int, deque[tuple[Handle, memoryview]]] = {}
        self._problem: HemiolaError | None = None
        for inbox in inboxes:
            inbox.unexpected = self._came

    def ask(self, handle: Handle, into: memoryview) -> None:
        """Give it what lies here already, or else what comes first."""
        if any(inbox.hand_out(handle, into) for inbox in self._inboxes):
            return
        if self._problem is not None:
            handle.finish(self._problem)
        else:
            self._waiting.setdefault(handle.tag, deque()).append((handle, into))

    def _came(self, inbox: Inbox, tag: int) -> None:
        """A message that nobody awaits has begun to come, and with it the turn of those that had overtaken it."""
        waiting = self._waiting.get(tag)
        while waiting and inbox.hand_out(*waiting[0]):
            waiting.popleft()
            if not waiting:
                del self._waiting[tag]

    def fail(self, problem: HemiolaError) -> None:
        """A rank is lost: it may have been the one that was waited for."""
        self._problem = problem
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for handle, _ in queue:
                handle.finish(problem)
