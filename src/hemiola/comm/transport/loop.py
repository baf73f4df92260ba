"""The thread that moves bytes: reads what comes, and writes the most urgent chunk that a connection can take.

A connection is asked anew before every chunk whether it can take one. With `TCP_NOTSENT_LOWAT` it can as long
as little lies in it unsent, so the choice is made as late as it can be.
"""

from __future__ import annotations

import atexit
import logging
import math
import multiprocessing.util
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from hemiola.comm.transport.inbox import Anybody, Inbox
from hemiola.comm.transport.link import Connection, Outbox
from hemiola.comm.transport.messages import Outgoing
from hemiola.comm.transport.options import TransportOptions
from hemiola.comm.transport.wire import FrameKind
from hemiola.core.errors import HemiolaError, TransportError

__all__ = ["Loop"]

_log = logging.getLogger("hemiola.transport")

_SMALL_BYTES = 16 << 10
_LAST_S = 1.0
"""At most so long a process that ends waits for what it has still to send: if it has failed, others are to know soon."""
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_loops: weakref.WeakSet[Loop] = weakref.WeakSet()
"""Of this process, for who is forked off, and for its end."""


class Loop:
    """All connections of one endpoint."""

    def __init__(
        self, links: list[Connection], outbox: Outbox, inboxes: dict[int, Inbox], options: TransportOptions
    ) -> None:
        self._options, self._outbox, self._inboxes = options, outbox, inboxes
        self._links: dict[int, list[Connection]] = {}
        """Of peers that are there."""
        for link in links:
            self._links.setdefault(link.peer, []).append(link)
        self._active: dict[Connection, Outgoing] = {}
        self.lost: dict[int, HemiolaError] = {}
        self.anybody = Anybody(inboxes.values())
        self._paces: Mapping[int, float] = {}
        self._was_paced = False
        self._sending: frozenset[int] = frozenset()
        self.watchers: list[Callable[[HemiolaError], None]] = []
        """Told, on the thread, of every peer that is lost without a goodbye."""
        self._selector = selectors.DefaultSelector()
        self._interest: dict[Connection, int] = {}
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._bell_guard = threading.Lock()
        self._rung = False  # stays True once the thread has ended: there is no bell any more
        self._calls: deque[Callable[[], None]] = deque()
        self._busy = False
        """Whether bytes wait for every peer, and all are read: soon something happens, and calls are looked at."""
        self._over = False
        self._closing: float | None = None
        self._looked_s = time.monotonic()
        self._parting: set[Connection] = set()
        self._paused_s: dict[int, float] = {}
        self._selector.register(self._bell, READ, None)
        for link in links:
            self._selector.register(link.sock, READ, link)
            self._interest[link] = READ
        self._pace()
        self._thread = threading.Thread(target=self._run, name="hemiola-transport", daemon=True)
        _loops.add(self)

    def start(self) -> None:
        """Begin to move bytes."""
        self._thread.start()
        if multiprocessing.parent_process() is not None:  # a forked one ends without `atexit`
            multiprocessing.util.Finalize(None, _send_last, exitpriority=0)

    def wake(self) -> None:
        """There is something to send, or to read again."""
        if self._rung or threading.get_ident() == self._thread.ident:
            return  # what is added on this very thread is seen before it waits again
        with self._bell_guard:
            if not self._rung:
                self._rung = True
                os.eventfd_write(self._bell, 1)

    def call(self, action: Callable[[], None]) -> None:
        """Have this done on the transport's thread, soon; here and now once that has ended."""
        with self._bell_guard:
            over = self._over
            if not over:
                self._calls.append(action)
        if over:
            action()
        elif not self._busy:
            self.wake()

    def wake_if_paused(self, peer: int) -> None:
        """Somebody has asked for what lies here: there may be room again."""
        if peer in self._paused_s:
            self.wake()

    def received_bytes(self) -> int:
        """What has come from all peers that are there; on the thread alone."""
        return sum(link.received_bytes for links in self._links.values() for link in links)

    def tune(self, chunk_bytes: int) -> None:
        """Send in chunks of this size."""
        for links in list(self._links.values()):
            for link in links:
                link.tune(chunk_bytes)

    def pace(self, rates_bytes_per_s: Mapping[int, float]) -> None:
        """Send no faster to these peers, and to all others as fast as it goes; on the thread alone."""
        if rates_bytes_per_s != self._paces:
            self._paces, self._was_paced = dict(rates_bytes_per_s), True
            self._pace()

    def close(self, timeout_s: float) -> None:
        """Send what is left, say goodbye, end the thread."""
        self._closing = time.monotonic() + timeout_s
        self.wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s + 5.0)

    def is_sending(self) -> bool:
        """Whether anything has been given to it that the kernel does not have yet."""
        if self._over:
            return False
        return any(
            self._outbox.waiting(peer) or any(link.writing for link in links)
            for peer, links in list(self._links.items())
        )

    def abandon(self) -> None:
        """In a process that was forked off, where no thread of this runs: its copies of the connections would keep them open
        after the end of whose they are.
        """
        if self._over:
            return
        self._rung = self._over = True
        for link in self._interest:
            link.sock.close()
        self._selector.close()
        os.close(self._bell)

    def _run(self) -> None:
        try:
            while not self._ended():
                self._turn()
        finally:
            problem = TransportError("the transport of this rank was closed", "open a new one")
            for peer in list(self._links):
                self._lose(peer, problem)
            self._selector.close()
            with self._bell_guard:
                self._rung = self._over = True
                os.close(self._bell)
            self._do_calls()

    def _turn(self) -> None:
        self._watch()
        events = self._selector.select(0 if self._calls else self._beat_s())
        for key, mask in events:
            link = key.data
            if link is None:
                os.eventfd_read(self._bell)
                self._rung = False  # only now: who found it rung is served in this very turn
                continue
            if mask & WRITE:
                link.blocked = False
            if mask & READ and link.peer not in self.lost:
                self._guarded(link, link.read)
        self._do_calls()
        self._write()
        self._keep_alive()

    def _do_calls(self) -> None:
        while self._calls:
            action = self._calls.popleft()
            try:
                action()
            except Exception:
                _log.exception("something to be done on the transport's thread failed")

    def _beat_s(self) -> float:
        """How long to sleep if nothing happens: not for long where calls ring no bell."""
        return min(self._options.timeout_s / 4, 0.05 if self._closing is not None or self._busy else 1e9)

    def _watch(self) -> None:
        """Which connections are to be read, and which have to say when they can take more."""
        busy = bool(self._links)
        for peer, links in self._links.items():
            waiting = self._outbox.waiting(peer)
            full = self._is_full(peer)
            if full != (peer in self._paused_s):
                self._pause(peer, full)
                if full and not self._is_full(peer):  # taken before the pause was seen: nobody will ring
                    full = False
                    self._pause(peer, full)
            busy = busy and waiting and not full
            for link in links:
                more = (waiting or link.writing) and link not in self._parting
                wanted = (0 if full else READ) | (WRITE if more else 0)
                if wanted != self._interest[link]:
                    self._interest[link] = wanted
                    if wanted:
                        self._modify(link, wanted)
                    else:
                        self._selector.unregister(link.sock)
        self._busy = busy  # before the calls are looked at: who found it busy is served by this very turn

    def _is_full(self, peer: int) -> bool:
        return self._inboxes[peer].unexpected_bytes > self._options.unexpected_bytes_max

    def _pause(self, peer: int, full: bool) -> None:
        """Too much lies here that nobody has asked for, or no longer so."""
        if full:
            self._paused_s[peer] = time.monotonic()
            return
        del self._paused_s[peer]
        for link in self._links[peer]:
            link.heard_s = time.monotonic()

    def _modify(self, link: Connection, wanted: int) -> None:
        try:
            self._selector.modify(link.sock, wanted, link)
        except KeyError:
            self._selector.register(link.sock, wanted, link)

    def _write(self) -> None:
        """One chunk for each connection that can take one, the most urgent first."""
        self._share()
        took: set[Connection] = set()
        for links in list(self._links.values()):
            for link in list(links):
                if link.writing and not link.blocked:
                    self._go_on(link)
                    took.add(link)
        while True:
            message = self._outbox.next(lambda peer: self._free(peer, took) is not None, time.monotonic())
            if message is None:
                return
            free = self._free(message.peer, took)
            assert free is not None
            self._begin(message, free)
            took.add(free)

    def _begin(self, message: Outgoing, link: Connection) -> None:
        """Send the next chunk of a message there."""
        message.started_s = message.started_s or time.monotonic()
        length = link.begin(message)
        if link.rate_bytes_per_s < math.inf:
            link.draining_s = max(link.draining_s, time.monotonic()) + length / link.rate_bytes_per_s
        message.sent_bytes += length
        if message.sent_bytes == message.size_bytes:
            self._outbox.remove(message)
        self._active[link] = message
        message.chunks += 1
        self._go_on(link)
        if length > _SMALL_BYTES:
            link.blocked = True  # until the kernel says that little of it is left unsent

    def _free(self, peer: int, took: set[Connection]) -> Connection | None:
        """A connection to this peer that can take a chunk."""
        for link in self._links.get(peer, ()):
            if not (link.writing or link.blocked or link in took):
                return link
        return None

    def _go_on(self, link: Connection) -> None:
        if not self._guarded(link, link.write) or link.writing:
            return
        message = self._active.pop(link, None)
        if message is None:
            return
        message.chunks -= 1
        if not message.chunks and message.sent_bytes == message.size_bytes:
            message.finish()

    def _guarded(self, link: Connection, action: Callable[[], object]) -> bool:
        """Whether the action went well; if not, the peer is lost."""
        try:
            action()
        except TransportError as problem:
            self._lose(link.peer, problem)
            return False
        except OSError as problem:
            if link.left or link in self._parting:
                self._hang_up(link)
            else:
                words = f"rank {link.peer} is gone: {problem}"
                self._lose(link.peer, TransportError(words, "look at what that rank logged"))
            return False
        return True

    def _keep_alive(self) -> None:
        """Say something where nothing was said for a while, and give up whoever says nothing."""
        now, timeout_s = time.monotonic(), self._options.timeout_s
        if now < self._looked_s + timeout_s / 16:
            return
        self._discount(now)
        self._looked_s = now
        for peer, links in list(self._links.items()):
            paused_s = self._paused_s.get(peer)
            if paused_s is not None and now - paused_s > timeout_s:
                self._lose(peer, self._unwanted(peer))
            elif paused_s is None and now - min(link.heard_s for link in links) > timeout_s:
                words = f"nothing was heard of rank {peer} for {timeout_s:g} s"
                self._lose(peer, TransportError(words, "is it stopped, or the network cut?"))
            else:
                for link in list(links):
                    quiet = now - link.spoke_s > timeout_s / 4
                    if quiet and not (link.writing or link in self._parting):
                        self._ping(link)

    def _discount(self, now: float) -> None:
        """Silence counts while this thread itself runs: looks that are far apart, as where all was stopped, count as one beat."""
        beat_s = self._options.timeout_s / 4
        if now < self._looked_s + 2 * beat_s:
            return
        stopped_s = now - self._looked_s - beat_s
        for links in self._links.values():
            for link in links:
                link.heard_s = min(now, link.heard_s + stopped_s)
        self._paused_s = {peer: min(now, since_s + stopped_s) for peer, since_s in self._paused_s.items()}

    def _ping(self, link: Connection) -> None:
        link.say(FrameKind.PING)
        if link.peer not in self._paused_s:
            self._guarded(link, link.write)
            return
        try:
            link.write()
        except OSError:  # it is gone: what it said before is still to be read, and says how
            link.take_back()

    def _unwanted(self, peer: int) -> TransportError:
        return TransportError(
            f"rank {peer} has sent {self._inboxes[peer].unexpected_bytes} bytes that nobody asked for within "
            f"{self._options.timeout_s:g} s",
            "receive in the order of sending, or raise unexpected_bytes_max",
        )

    def _hang_up(self, link: Connection) -> None:
        """The peer has said goodbye here; once on all its connections, it is gone."""
        links = self._links.get(link.peer, [])
        if link not in links:
            return
        if len(links) == 1:
            words = f"rank {link.peer} has closed its transport"
            self._lose(link.peer, TransportError(words, "look at what that rank logged"), broke=False)
            return
        links.remove(link)
        self._close(link)

    def _lose(self, peer: int, problem: HemiolaError, broke: bool = True) -> None:
        links = self._links.pop(peer, [])
        if not links:
            return
        self.lost[peer] = problem
        for link in [link for link in self._active if link.peer == peer]:  # those that hung up before, too
            self._active.pop(link).finish(problem)
        for link in links:
            self._close(link)
        self._outbox.fail(peer, problem)
        self._inboxes[peer].fail(problem)
        if broke or not self._links:
            self.anybody.fail(problem)
        self._pace()
        if broke and self._closing is None:
            for told in self.watchers:
                told(problem)

    def _close(self, link: Connection) -> None:
        """Also where another process has a copy of the connection."""
        if self._interest.pop(link):
            self._selector.unregister(link.sock)
        with suppress(OSError):  # the peer may have hung up already
            link.sock.shutdown(socket.SHUT_RDWR)
        link.sock.close()

    def _share(self) -> None:
        """Note to whom bytes go, those too that the kernel still has at their pace: the rate is theirs, however many others there are."""
        if self._options.rate_bytes_per_s is None:
            return
        now = time.monotonic()
        sending = frozenset(
            peer
            for peer, links in self._links.items()
            if self._outbox.waiting(peer) or any(link.writing or link.draining_s > now for link in links)
        )
        if sending and sending != self._sending:
            self._sending = sending
            self._pace()

    def _pace(self) -> None:
        """Share the rate among the connections that have something to send; each peer's is never above its own."""
        whole = self._options.rate_bytes_per_s
        if whole is None and not self._was_paced:
            return
        ones = self._links if whole is None else self._sending or self._links
        paced = {peer: links for peer, links in self._links.items() if peer in ones}
        count = sum(len(links) for links in paced.values())
        for peer, links in paced.items():
            each = math.inf if whole is None else whole / count
            for link in links:
                link.pace(min(each, self._paces.get(peer, math.inf) / len(links)))

    def _ended(self) -> bool:
        """Whether all that was to be sent has been, everybody knows that this rank leaves, and has hung up."""
        if self._closing is None:
            return False
        for peer, links in list(self._links.items()):
            for link in list(links):
                if not (self._outbox.waiting(peer) or link.writing or link in self._parting):
                    link.say(FrameKind.BYE)
                    if self._guarded(link, link.write) and not link.writing:
                        self._parting.add(link)
                        with suppress(OSError):  # the peer may have hung up already
                            link.sock.shutdown(socket.SHUT_WR)
        return not self._links or time.monotonic() > self._closing


def _abandon_all() -> None:
    for loop in list(_loops):
        loop.abandon()


@atexit.register
def _send_last() -> None:
    """As this process ends, wait for what it has still to send: who has all that it needs has waited for no more.

    There is no goodbye: a process that ends so may have failed.
    """
    deadline = time.monotonic() + _LAST_S
    while any(loop.is_sending() for loop in list(_loops)) and time.monotonic() < deadline:
        time.sleep(1e-3)


os.register_at_fork(after_in_child=_abandon_all)
