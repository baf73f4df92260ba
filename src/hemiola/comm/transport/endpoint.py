"""A rank's end of the transport: tagged messages to and from every other rank, the most urgent first.

Usable by itself:

    endpoint = Endpoint(rank, ranks, secret, TransportOptions())
    addresses = ...                       # everybody's `endpoint.address`, by whatever way
    endpoint.connect(addresses)
    handle = endpoint.send(1, tag=7, data=b"...", priority=0)
    endpoint.receive(1, tag=7, into=buffer).wait()

Messages of one tag between two ranks arrive in the order in which they were sent; different tags overtake
each other by priority. Every failure of a peer reaches everyone who waits for it, within `timeout_s`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from hemiola.comm.transport.home import home_address, own_names
from hemiola.comm.transport.inbox import Inbox
from hemiola.comm.transport.link import Connection, Outbox, prepare
from hemiola.comm.transport.loop import Loop
from hemiola.comm.transport.messages import Handle, Outgoing
from hemiola.comm.transport.options import TIMEOUT_MOST_S, TransportOptions
from hemiola.comm.transport.wire import Greeting, accept, introduce
from hemiola.core.errors import HemiolaError, InputError, TransportError
from hemiola.core.hostlist import is_loopback

__all__ = ["Address", "Endpoint", "Peer", "forget", "meet"]


Address = tuple[str, int]
Bytes = bytes | bytearray | memoryview
_log = logging.getLogger("hemiola.transport")

ANY = -1
"""The peer of a handle that takes anybody's message, until one has come."""
_RATE_BYTES_PER_S = 125e6
"""Taken for a message with a deadline where no rate is given: 1 Gbit/s."""


class Endpoint:
    """One rank's side; for use from any thread.

    Attributes:
        rank, ranks: its number, of how many.
        address: where it listens until everybody is connected.
    """

    def __init__(self, rank: int, ranks: int, secret: bytes, options: TransportOptions | None = None) -> None:
        """Listen for the others.

        Args:
            secret: what only this job's ranks know, the same for all; not empty.

        Raises:
            InputError: a rank that cannot be, no secret, an interface that is not there.
        """
        if not 0 <= rank < ranks:
            raise InputError(f"rank {rank} of {ranks}", "give a rank from 0 to ranks - 1")
        if not secret:
            raise InputError("the job's secret is empty", "give all ranks the same random bytes")
        self.rank, self.ranks = rank, ranks
        self._secret = secret
        self._options = options or TransportOptions()
        self._home = home_address(self._options.interface)
        self._listener = _listen(self._home, ranks * self._options.connections + 16)
        self.address: Address = self._listener.getsockname()[:2]
        self._outbox = Outbox(self._options.ageing_s)
        others = [peer for peer in range(ranks) if peer != rank]
        self._inboxes = {peer: Inbox(peer, self._options.message_bytes_max) for peer in others}
        self._loop: Loop | None = None
        self._closed = False

    def connect(self, addresses: Sequence[Address], timeout_s: float | None = None) -> None:
        """Connect with everybody; returns once all are there.

        Args:
            addresses: everybody's, by rank; one's own is not used.
            timeout_s: until then, at most 1e6; the options' unless given.

        Raises:
            TransportError: somebody does not come in time, or is not who it should be; names all who are missing.
            InputError: too long a timeout, an option that this system does not allow.
        """
        if len(addresses) != self.ranks:
            raise InputError(f"{len(addresses)} addresses for {self.ranks} ranks", "give one for each rank")
        limit_s = self._options.timeout_s if timeout_s is None else timeout_s
        if limit_s > TIMEOUT_MOST_S:
            raise InputError(f"timeout_s is {limit_s}", f"give at most {TIMEOUT_MOST_S:g} s")
        deadline = time.monotonic() + limit_s
        guests = _Guests(
            self._listener, self.rank, self.ranks, self._secret, self._options, deadline, limit_s
        )
        guests.start()
        socks: dict[tuple[int, int], socket.socket] = {}
        try:
            for peer in range(self.rank):
                for lane in range(self._options.connections):
                    socks[peer, lane] = self._call(peer, lane, addresses[peer], deadline, limit_s)
            socks |= guests.all_here()
            for sock in socks.values():
                prepare(sock, self._options)
        except BaseException:
            for sock in (*socks.values(), *guests.found.values()):
                sock.close()
            raise
        finally:
            guests.close()
            self._listener.close()
        links = [
            Connection(sock, peer, self._inboxes[peer], self._options)
            for (peer, _), sock in sorted(socks.items())
        ]
        self._loop = Loop(links, self._outbox, self._inboxes, self._options)
        self._loop.start()

    def _call(self, peer: int, lane: int, address: Address, deadline: float, limit_s: float) -> socket.socket:
        """Connect to a rank of lower number, trying again while it is not there yet."""
        while True:
            left_s = deadline - time.monotonic()
            try:
                sock = socket.create_connection(
                    address, timeout=max(left_s, 1e-3), source_address=(self._home, 0) if self._home else None
                )
                try:
                    introduce(
                        sock, Greeting(self.rank, self.ranks, lane), peer, self._secret, max(left_s, 1e-3)
                    )
                except BaseException:
                    sock.close()
                    raise
                return sock
            except ConnectionRefusedError as problem:
                if left_s < 0.05:
                    raise self._unreachable(peer, address, limit_s, problem) from problem
                time.sleep(0.02)
            except OSError as problem:
                raise self._unreachable(peer, address, limit_s, problem) from problem

    def _unreachable(self, peer: int, address: Address, limit_s: float, problem: OSError) -> TransportError:
        return TransportError(
            f"rank {self.rank} cannot reach rank {peer} at {address[0]}:{address[1]} within "
            f"{limit_s:g} s: {problem}",
            "is that rank running? If it is on another host, set HEMIOLA_INTERFACE there: a loopback address is for one host"
            if is_loopback(address[0])
            else "is that rank running, and is the port open between the hosts?",
        )

    def send(
        self, peer: int, tag: int, data: Bytes, priority: int = 0, deadline_s: float | None = None
    ) -> Outgoing:
        """Send a message; its bytes must not change until the handle is done (all handed to the kernel).

        Args:
            tag: which message this is, from 0 to 2**64 - 1.
            data: anything with a contiguous buffer.
            priority: the lowest goes first, and pauses others on their way.
            deadline_s: from now; it goes before all others from when on it would come too late otherwise.

        Raises:
            InputError: no such peer, or larger than allowed.
        """
        view = memoryview(data).cast("B")
        loop = self._checked(peer, tag, view.nbytes)
        now = time.monotonic()
        urgent_s = math.inf
        if deadline_s is not None:
            urgent_s = now + deadline_s - view.nbytes / (self._options.rate_bytes_per_s or _RATE_BYTES_PER_S)
        message = self._outbox.add(peer, tag, view, priority, now, urgent_s)
        if peer in loop.lost:
            self._outbox.fail(peer, loop.lost[peer])
        else:
            loop.wake()
        return message

    def receive(self, peer: int, tag: int, into: Bytes) -> Handle:
        """Wait for the next message of this tag; done once all its bytes are in the buffer.

        Raises:
            InputError: no such peer, larger than allowed, or a buffer that cannot be written.
        """
        view = _writable(into)
        loop = self._checked(peer, tag, view.nbytes)
        handle = self._inboxes[peer].ask(tag, view)
        loop.wake_if_paused(peer)
        return handle

    def receive_any(self, tag: int, into: Bytes) -> Handle:
        """Wait for the next message of this tag that nobody awaits from its sender, whoever that is.

        The handle's `peer` is the sender once it is done. It fails when any rank is lost, and when all have left.

        Raises:
            InputError: larger than allowed, or a buffer that cannot be written.
        """
        view = _writable(into)
        loop = self._connected(tag, view.nbytes)
        handle = Handle(ANY, tag, view.nbytes)
        loop.call(lambda: loop.anybody.ask(handle, view))
        return handle

    def call(self, action: Callable[[], None]) -> None:
        """Have this done on the transport's thread, which callbacks run on too; it must not wait for anything.

        Raises:
            TransportError: not connected.
        """
        if self._loop is None:
            raise TransportError("this endpoint is not connected", "call connect first")
        self._loop.call(action)

    def watch(self, told: Callable[[HemiolaError], None]) -> None:
        """Have this called, on the transport's thread, for every peer that is lost without having said goodbye.

        Raises:
            TransportError: not connected.
        """
        loop = self._loop
        if loop is None:
            raise TransportError("this endpoint is not connected", "call connect first")
        loop.call(lambda: _watched(loop, told))

    def received_bytes(self) -> int:
        """What has come to this rank, as the kernel counts it; for use on the transport's thread (`call`)."""
        return self._loop.received_bytes() if self._loop is not None else 0

    def pace(self, rates_bytes_per_s: Mapping[int, float]) -> None:
        """From now on, send no faster to each of these peers, and to all others as fast as the options allow; for use on the
        transport's thread (`call`).

        Args:
            rates_bytes_per_s: by peer, above 0.
        """
        if self._loop is not None:
            self._loop.pace(rates_bytes_per_s)

    def tune(self, chunk_bytes: int) -> None:
        """From now on, choose the most urgent message anew after so many bytes.

        Raises:
            InputError: not above 0.
        """
        if chunk_bytes < 1:
            raise InputError(f"chunk_bytes is {chunk_bytes}", "give a number above 0")
        if self._loop is not None:
            self._loop.tune(chunk_bytes)

    def _checked(self, peer: int, tag: int, size_bytes: int) -> Loop:
        if peer not in self._inboxes:
            raise InputError(
                f"rank {peer} is no peer of rank {self.rank} of {self.ranks}", "name another rank"
            )
        return self._connected(tag, size_bytes)

    def _connected(self, tag: int, size_bytes: int) -> Loop:
        if not 0 <= tag < 1 << 64:
            raise InputError(f"tag {tag}", "give a number from 0 to 2**64 - 1")
        if size_bytes > self._options.message_bytes_max:
            raise InputError(
                f"a message of {size_bytes} bytes; at most {self._options.message_bytes_max} are allowed",
                "raise message_bytes_max on all ranks, or send it in parts",
            )
        if self._loop is None or self._closed:
            raise TransportError("this endpoint is not connected", "call connect first, and close last")
        return self._loop

    @property
    def lost(self) -> dict[int, str]:
        """The peers that are gone, and why."""
        return {peer: str(problem) for peer, problem in self._loop.lost.items()} if self._loop else {}

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is left, tell the others, and hang up; what is still awaited fails."""
        if self._closed:
            return
        self._closed = True
        self._listener.close()
        if self._loop is not None:
            self._loop.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


def _writable(into: Bytes) -> memoryview:
    view = memoryview(into).cast("B")
    if view.readonly:
        raise InputError(
            "the buffer to receive into cannot be written", "give a bytearray or a tensor's memory"
        )
    return view


def _watched(loop: Loop, told: Callable[[HemiolaError], None]) -> None:
    loop.watchers.append(told)
    for problem in list(loop.lost.values()):
        told(problem)


class _Guests(threading.Thread):
    """Takes the calls of ranks of higher number; strangers are turned away and hold nobody up."""

    def __init__(
        self, listener: socket.socket, rank: int, ranks: int, secret: bytes, options: TransportOptions, deadline: float,
        timeout_s: float,
    ) -> None:  # fmt: skip
        super().__init__(name="hemiola-guests", daemon=True)
        self._listener, self._rank, self._ranks, self._secret = listener, rank, ranks, secret
        listener.settimeout(0.1)
        self._is_loopback = is_loopback(listener.getsockname()[0])
        self._deadline = deadline
        self._wanted = {(p, lane) for p in range(rank + 1, ranks) for lane in range(options.connections)}
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._open = True
        self.found: dict[tuple[int, int], socket.socket] = {}

    def run(self) -> None:
        while self._open and self._wanted - self.found.keys():
            try:
                sock, address = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # closed, or there are no handles for the moment
                time.sleep(0.05)
                continue
            threading.Thread(target=self._greet, args=(sock, address), daemon=True).start()

    def _greet(self, sock: socket.socket, address: Address) -> None:
        left_s = max(self._deadline - time.monotonic(), 1e-3)
        try:
            guest = accept(sock, self._rank, self._ranks, self._secret, left_s)
        except (TransportError, OSError) as problem:
            _log.warning("rank %d turned a caller from %s away: %s", self._rank, address[0], problem)
            sock.close()
            return
        with self._changed:
            key = (guest.rank, guest.lane)
            if key not in self._wanted or key in self.found or not self._open:
                _log.warning(
                    "rank %d was called by rank %d twice, or by one that should not", self._rank, guest.rank
                )
                sock.close()
                return
            self.found[key] = sock
            self._changed.notify_all()

    def all_here(self) -> dict[tuple[int, int], socket.socket]:
        """The connections, once all are there."""
        with self._changed:
            whole = self._changed.wait_for(
                lambda: self.found.keys() >= self._wanted, max(self._deadline - time.monotonic(), 0)
            )
            missing = sorted({peer for peer, _ in self._wanted - self.found.keys()})
        if not whole:
            ranks = ", ".join(map(str, missing))
            raise TransportError(
                f"rank {self._rank} was not called by rank {ranks} within {self._timeout_s:g} s",
                "are they running? If they are on other hosts, set HEMIOLA_INTERFACE here: a loopback address is for one host"
                if self._is_loopback
                else "are they running, and can they reach this host?",
            )
        return self.found

    def close(self) -> None:
        """Take no more calls."""
        with self._changed:
            self._open = False


def _listen(home: str, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in home else socket.AF_INET
    try:
        return socket.create_server((home, 0), family=family, backlog=backlog)
    except OSError as problem:
        raise InputError(
            f"cannot listen at {home!r}: {problem}", "name an interface of this host"
        ) from problem


# Ranks that find each other through a store, such as PyTorch's: its `set` and `get`, which waits, are all
# that is needed.

_KEYS = "hemiola/"
_MET = (1 << 64) - 1
"""The tag of the first rank's word that all have met."""


@dataclass(frozen=True)
class Peer:
    """A rank, as it says of itself.

    Attributes:
        address: of its host, which no other host has.
        port: where it listens.
        names: what a topology may call its host.
        word: what else it wants all to know, in JSON's types.
    """

    address: str
    port: int
    names: tuple[str, ...]
    word: Any = None


def meet(
    store: Any, rank: int, ranks: int, options: TransportOptions, word: Callable[[str], Any] | None = None
) -> tuple[Endpoint, list[Peer]]:
    """Connect with all other ranks; also who they are. Rank 0 makes the job's secret and leaves it in the store meanwhile.

    Args:
        word: makes this rank's `Peer.word` from its address.

    The store's own timeout, if it has one, holds for connecting too.

    Raises:
        TransportError: a rank does not come in time.
    """
    if rank == 0:
        store.set(f"{_KEYS}secret", os.urandom(32))
    end = Endpoint(rank, ranks, bytes(store.get(f"{_KEYS}secret")), options)
    try:
        address, port = end.address
        own = [address, port, own_names(), word(address) if word else None]
        store.set(f"{_KEYS}{rank}", json.dumps(own))
        told = [json.loads(store.get(f"{_KEYS}{peer}")) for peer in range(ranks)]
        peers = [Peer(there, at, tuple(names), said) for there, at, names, said in told]
        patience = getattr(store, "timeout", None)
        limit_s = min(options.timeout_s, patience.total_seconds()) if patience else options.timeout_s
        end.connect([(peer.address, peer.port) for peer in peers], limit_s)
        if rank == 0:  # all have read it: they connect afterwards
            forget(store, [f"{_KEYS}secret", *(f"{_KEYS}{peer}" for peer in range(ranks))])
            for peer in range(1, ranks):
                end.send(peer, _MET, b"")
        else:  # before that, its next words to this store might be taken for these
            end.receive(0, _MET, bytearray(0)).wait(limit_s)
    except BaseException:
        end.close()
        raise
    return end, peers


def forget(store: Any, keys: Iterable[str]) -> None:
    """Delete these, if the store can."""
    with suppress(AttributeError, RuntimeError):
        for key in keys:
            store.delete_key(key)
