"""A worker's communication: sends and fetches parcels, in this process or on behalf of another one.

Knows no PyTorch, no scheme and no parameter, only stretches of memory. Run as a process of its own
(`main`) it shares that memory with the process that computes and takes its wishes from a socket; it goes
when that process goes.
"""

from __future__ import annotations

import mmap
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable

from hemiola.comm.transport import Endpoint, Handle
from hemiola.core.errors import HemiolaError, TransportError
from hemiola.train.parameter_server.children import Child, greet, settle
from hemiola.train.parameter_server.layout import ParcelLayout
from hemiola.train.parameter_server.messages import TROUBLE_BYTES, ServerMessage, Tag, WorkerNote

__all__ = ["Courier", "RemoteCourier", "main"]


class Courier:
    """Carries parcels between a piece of memory and the servers.

    Its memory may be changed where a parcel's push lies while none is under way, and where its answer
    lies while none was asked for.
    """

    def __init__(self, end: Endpoint, layout: ParcelLayout, memory: memoryview, workers: int) -> None:
        self._end, self._layout, self._memory, self._workers = end, layout, memory, workers
        self._events: queue.SimpleQueue[WorkerNote] = queue.SimpleQueue()
        self._leaving = False
        for server in range(layout.servers):
            trouble = bytearray(TROUBLE_BYTES)
            handle = end.receive(workers + server, Tag.TROUBLE, trouble)
            handle.add_callback(self._troubled(trouble))

    def _troubled(self, text: bytearray) -> Callable[[Handle], None]:
        def tell(handle: Handle) -> None:
            if not self._leaving:
                said = text.rstrip(b"\0").decode(errors="replace")
                lost = f"a parameter server is lost: {handle.problem.what}" if handle.problem else ""
                self._events.put(WorkerNote(ServerMessage.TROUBLE, text=lost or said))

        return tell

    def tell(self, note: WorkerNote) -> None:
        """Carry out a wish; what comes of it is an event."""
        if note.kind is ServerMessage.LEAVE:
            self._leaving = True
            for server in range(self._layout.servers):
                self._end.send(self._workers + server, Tag.NOTES, note.pack())
            return
        parcel = self._layout.parcels[note.parcel]
        peer, tag = self._workers + parcel.server, Tag.PARCELS + note.parcel
        if note.own >= 0:
            data = self._memory[parcel.answer_offset : parcel.answer_offset + parcel.answer_bytes]
            landed = WorkerNote(ServerMessage.LANDED, note.parcel)
            self._end.receive(peer, tag, data).add_callback(lambda handle: self._ended(handle, landed))
        if note.kind is ServerMessage.PULL:
            self._end.send(peer, Tag.NOTES, note.pack())
            return
        data = self._memory[parcel.push_offset : parcel.push_offset + parcel.push_bytes]
        handle = self._end.send(peer, tag, data, note.priority)
        if note.meeting:
            sent = WorkerNote(ServerMessage.SENT, note.parcel)
            handle.add_callback(lambda handle: self._ended(handle, sent))

    def _ended(self, handle: Handle, done: WorkerNote) -> None:
        if handle.problem is None:
            self._events.put(done)  # else the server's trouble is told once, where it is waited for

    def next(self, block: bool) -> WorkerNote | None:
        """What has happened since; None if nothing has, and it is not to be waited for.

        Raises:
            TransportError: whatever keeps this job from going on.
        """
        try:
            note = self._events.get(block)
        except queue.Empty:
            return None
        if note.kind is ServerMessage.TROUBLE:
            raise TransportError(note.text, "look at what that rank and its servers logged")
        return note

    def close(self) -> None:
        """Send what is left, and go."""
        self._end.close()

    def abort(self) -> None:
        """Go at once."""
        self._end.close(0.0)


class RemoteCourier:
    """The same, carried out by a process of its own."""

    def __init__(self, child: Child, control: socket.socket, rank: int) -> None:
        self._child, self._control, self._rank = child, control, rank

    def tell(self, note: WorkerNote) -> None:
        """Have a wish carried out."""
        try:
            self._control.sendall(note.pack())
        except OSError as problem:
            raise self._gone() from problem

    def next(self, block: bool) -> WorkerNote | None:
        """What has happened, as `Courier.next`."""
        try:
            data = self._control.recv(
                WorkerNote.SIZE_BYTES + TROUBLE_BYTES, 0 if block else socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            return None
        except OSError as problem:
            raise self._gone() from problem
        if not data:
            raise self._gone()
        note = WorkerNote.unpack(data)
        if note.kind is ServerMessage.TROUBLE:
            raise TransportError(note.text, "look at what that rank and its servers logged")
        return note

    def _gone(self) -> TransportError:
        return TransportError(
            f"the communication process of rank {self._rank} is gone ({self._child.ending()})",
            "was it killed, or out of memory?",
        )

    def close(self) -> None:
        """Let it send what is left, and wait for its end."""
        self._control.shutdown(socket.SHUT_WR)
        self._child.wait(10.0)
        self._control.close()

    def abort(self) -> None:
        """End it."""
        self._control.close()
        self._child.kill()


def main() -> None:
    """The communication process: its configuration comes over standard input."""
    config, end = greet()
    if end is None:
        return
    memory = mmap.mmap(config["memory"], config["layout"].memory_bytes)
    control = socket.socket(fileno=config["control"])
    courier = Courier(end, config["layout"], memoryview(memory), config["ranks"])
    threading.Thread(target=_tell_all, args=(courier, control), daemon=True).start()
    settle()
    left = False
    try:
        while data := control.recv(WorkerNote.SIZE_BYTES):
            note = WorkerNote.unpack(data)
            left |= note.kind is ServerMessage.LEAVE
            courier.tell(note)
    except (OSError, HemiolaError) as problem:
        print(f"hemiola: a communication process ends: {problem}", file=sys.stderr, flush=True)
    if left:
        courier.close()
    os._exit(0 if left else 1)  # who has not said goodbye is missed by the servers at once


def _tell_all(courier: Courier, control: socket.socket) -> None:
    """Pass events on; the transport's thread must never wait for the process that computes."""
    try:
        while True:
            try:
                note = courier.next(block=True)
            except TransportError as problem:
                note = WorkerNote(ServerMessage.TROUBLE, text=problem.what)
            assert note is not None
            control.sendall(note.pack())
            if note.kind is ServerMessage.TROUBLE:
                return
    except OSError:
        return
