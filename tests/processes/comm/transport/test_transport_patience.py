"""Who is slow, or stops with all others, is not lost; who is stopped alone still is, in the time stated."""

from __future__ import annotations

import signal
import socket
import subprocess
import time

import pytest
from endpoints import connected
from other_ranks import hear, rogue, tell, with_processes
from patience import patience, slowly

from hemiola.comm.transport.wire import HEADER_BYTES, FrameHeader, FrameKind
from hemiola.core.errors import TransportError

TIMEOUT_S = 2.0
STOPPED_S = 4.0


def frame(content: bytes, tag: int, sequence: int = 0) -> bytes:
    return FrameHeader(FrameKind.DATA, len(content), tag, sequence, len(content), 0).pack() + content


def pings(sock: socket.socket, until_s: float) -> int:
    """How many come until then; nothing else may."""
    came = b""
    sock.settimeout(0.05)
    while time.monotonic() < until_s:
        try:
            came += sock.recv(10_000)
        except TimeoutError:
            continue
    starts = range(0, len(came), HEADER_BYTES)
    assert all(FrameHeader.unpack(memoryview(came), start).kind == FrameKind.PING for start in starts)
    return len(starts)


def test_who_reads_no_more_for_now_still_says_that_it_lives():
    timeout_s = slowly(2.0)
    with rogue(timeout_s=timeout_s, unexpected_bytes_max=1000) as (end, (sock,)):
        sock.sendall(frame(bytes(2000), 1) + frame(b"more", 2))
        time.sleep(0.1)
        assert pings(sock, time.monotonic() + 0.85 * timeout_s) >= 1
        end.receive(1, 1, bytearray(2000)).wait(patience(5))
        end.receive(1, 2, buffer := bytearray(4)).wait(patience(5))
        assert buffer == b"more"


def test_what_a_rank_sent_before_it_closed_is_there_for_a_receiver_that_comes_later():
    with connected(timeout_s=slowly(2.0), unexpected_bytes_max=1000) as (sender, receiver):
        last = [sender.send(1, 1, bytes(2000)), sender.send(1, 2, b"last")]
        for handle in last:
            handle.wait(patience(5))
        sender.close(0.1)
        time.sleep(1.5)
        receiver.receive(0, 1, bytearray(2000)).wait(patience(5))
        receiver.receive(0, 2, buffer := bytearray(4)).wait(patience(5))
        assert buffer == b"last"
        with pytest.raises(TransportError, match="rank 0 has closed its transport"):
            receiver.receive(0, 3, bytearray(1)).wait(patience(5))


def test_a_message_half_written_where_the_peer_hung_up_first_fails_with_the_peer():
    with rogue(connections=2, chunk_bytes=20_000_000) as (end, lanes):
        handle = end.send(1, 1, bytes(20_000_000))
        time.sleep(0.2)
        assert not handle.done
        for sock in lanes:  # the chunk is on one of them
            sock.sendall(FrameHeader(FrameKind.BYE).pack())
            time.sleep(0.2)
            sock.close()
            time.sleep(0.2)
        with pytest.raises(TransportError, match="rank 1 has closed its transport"):
            handle.wait(patience(5))


def asked(peer: subprocess.Popen[str]) -> str:
    """How many messages it has got, or what went wrong."""
    tell(peer, "")
    return hear(peer)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1000, 100_000_000])
def test_ranks_that_are_stopped_together_go_on_and_one_stopped_alone_is_lost(size):
    timeout_s = slowly(TIMEOUT_S)
    with with_processes(size, timeout_s=timeout_s) as peers:
        time.sleep(1.0)
        peers[1].send_signal(signal.SIGSTOP)
        time.sleep(0.3 if size else 0.0)  # what is on its way finds no room there
        peers[0].send_signal(signal.SIGSTOP)
        time.sleep(2 * timeout_s)
        for peer in peers:
            peer.send_signal(signal.SIGCONT)
        before = [asked(peer) for peer in peers]
        time.sleep(2 * timeout_s)  # to be found out, if it were so
        after = [asked(peer) for peer in peers]
        assert all(said.isdecimal() for said in before + after), before + after
        assert size == 0 or all(int(now) > int(then) for now, then in zip(after, before, strict=True))

        peers[1].send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        while asked(peers[0]).isdecimal():
            time.sleep(0.02)
            assert time.monotonic() < stopped_s + patience(2 * TIMEOUT_S)
        assert f"nothing was heard of rank 1 for {timeout_s:g} s" in asked(peers[0])
        assert time.monotonic() > stopped_s + 0.3 * timeout_s
