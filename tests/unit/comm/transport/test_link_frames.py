"""Frames as they are read: however the connection cuts them up, every message comes whole."""

from __future__ import annotations

import socket
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.comm.transport.inbox import Inbox
from hemiola.comm.transport.link import Connection
from hemiola.comm.transport.options import TransportOptions
from hemiola.comm.transport.wire import HEADER_BYTES, FrameHeader, FrameKind

SIZES = st.one_of(st.integers(0, 200), st.sampled_from([4096 - HEADER_BYTES, 4096, 5000, 20_000]))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(SIZES, min_size=1, max_size=6), st.integers(150, 6000))
def test_messages_come_whole_however_they_are_cut(data, sizes, chunk):
    contents = [
        bytes((number * 7 + place) % 251 for place in range(size)) for number, size in enumerate(sizes)
    ]
    stream = b"".join(_frames(number, content, chunk) for number, content in enumerate(contents))
    cuts = [*sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8))), len(stream)]
    late = data.draw(st.sets(st.sampled_from(range(len(sizes)))))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        inbox = Inbox(1, 1 << 20)
        link = Connection(ours, 1, inbox, TransportOptions())
        into = [bytearray(size) for size in sizes]
        handles = {n: inbox.ask(n, memoryview(into[n])) for n in range(len(sizes)) if n not in late}
        for before, cut in pairwise([0, *cuts]):
            theirs.sendall(stream[before:cut])
            for _ in range(200):  # each call reads a few parts: others want their turn
                link.read()
        for number in late:
            handles[number] = inbox.ask(number, memoryview(into[number]))
        assert all(handle.done and handle.problem is None for handle in handles.values())
    assert into == contents
    assert inbox.unexpected_bytes == 0


def _frames(tag: int, content: bytes, chunk: int) -> bytes:
    parts = [content[at : at + chunk] for at in range(0, len(content), chunk)] or [b""]
    heads = [
        FrameHeader(FrameKind.DATA, len(part), tag, 0, len(content), at * chunk).pack()
        for at, part in enumerate(parts)
    ]
    ping = FrameHeader(FrameKind.PING).pack()
    return b"".join(head + part + ping for head, part in zip(heads, parts, strict=True))
