"""What goes wrong reaches everyone who waits, within the time stated, and strangers reach nobody."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from endpoints import SECRET, connected, together
from other_ranks import HERE, SOURCE, rogue, with_process
from patience import patience, slowly

from hemiola.comm.transport import Endpoint, TransportOptions
from hemiola.comm.transport.wire import HEADER_BYTES, FrameHeader, FrameKind, Greeting
from hemiola.core.errors import InputError, TransportError


def test_a_killed_rank_is_known_to_everyone_who_waits_for_it_and_to_nobody_else():
    with with_process() as (ends, peer):
        waiting = [end.receive(2, 1, bytearray(10)) for end in ends]
        between = ends[1].receive(0, 5, buffer := bytearray(3))
        peer.send_signal(signal.SIGKILL)
        for handle in waiting:
            with pytest.raises(TransportError, match="rank 2 is gone"):
                handle.wait(patience(10))
        with pytest.raises(TransportError, match="rank 2 is gone"):
            ends[0].send(2, 1, b"late").wait(patience(10))
        assert set(ends[0].lost) == {2}
        ends[0].send(1, 5, b"yes")
        between.wait(patience(10))
        assert buffer == b"yes"


def test_a_killed_rank_ends_a_transfer_on_its_way():
    with with_process() as (ends, peer):
        handle = ends[0].send(2, 1, bytes(200_000_000))  # nobody receives it: it cannot end
        time.sleep(0.1)
        peer.send_signal(signal.SIGKILL)
        with pytest.raises(TransportError, match="rank 2 is gone"):
            handle.wait(patience(10))


def test_a_stopped_rank_is_given_up_after_the_timeout_and_not_before():
    timeout_s = slowly(1.5)
    with with_process(timeout_s=timeout_s) as (ends, peer):
        handle = ends[0].receive(2, 1, bytearray(10))
        peer.send_signal(signal.SIGSTOP)
        time.sleep(timeout_s / 2)
        assert not handle.done
        with pytest.raises(TransportError, match=f"nothing was heard of rank 2 for {timeout_s:g} s"):
            handle.wait(patience(10))
        peer.send_signal(signal.SIGCONT)


def test_who_says_nothing_for_long_but_lives_is_kept():
    timeout_s = slowly(0.4)
    with connected(timeout_s=timeout_s) as (a, b):
        time.sleep(4 * timeout_s)
        handle = b.receive(0, 1, buffer := bytearray(5))
        a.send(1, 1, b"still")
        handle.wait(patience(5))
        assert buffer == b"still"


def test_a_rank_that_closes_says_so():
    with connected() as (a, b):
        handle = b.receive(0, 1, bytearray(10))
        a.close()
        with pytest.raises(TransportError, match="rank 0 has closed its transport"):
            handle.wait(patience(5))


def test_closing_sends_what_is_left_first():
    with connected(connections=2) as (a, b):
        into = bytearray(5_000_000)
        handle = b.receive(0, 1, into)
        a.send(1, 1, bytes(range(250)) * 20_000)
        a.close()
        handle.wait(patience(5))
        assert bytes(into) == bytes(range(250)) * 20_000


FORKED = """
import multiprocessing
from hemiola.comm.transport import Endpoint, TransportOptions

def sends(pipe):
    end = Endpoint(1, 2, b"for tests only", TransportOptions(interface="127.0.0.1", rate_bytes_per_s=4e6))
    pipe.send(end.address)
    end.connect([pipe.recv(), end.address])
    end.send(0, 1, bytes(1_000_000))

here, there = multiprocessing.Pipe()
process = multiprocessing.get_context("fork").Process(target=sends, args=(there,))
process.start()
end = Endpoint(0, 2, b"for tests only", TransportOptions(interface="127.0.0.1", timeout_s=10.0))
here.send(end.address)
end.connect([end.address, here.recv()])
end.receive(1, 1, bytearray(1_000_000)).wait()
"""


def test_a_forked_process_that_ends_sends_first_what_is_left():
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        env=os.environ | {"PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_what_nobody_receives_for_the_timeout_is_an_error_that_says_how_much():
    with connected(timeout_s=slowly(0.6), unexpected_bytes_max=1000) as (a, b):
        for tag in range(4):
            a.send(1, tag, bytes(2000))
        with pytest.raises(TransportError, match=r"sent \d+ bytes that nobody asked for"):
            b.receive(0, 99, bytearray(1)).wait(patience(10))


def test_a_rank_that_does_not_come_is_named():
    ends = [
        Endpoint(rank, 3, SECRET, TransportOptions(interface=HERE, timeout_s=slowly(0.5)))
        for rank in range(3)
    ]
    ends[2].close()
    raised = together(lambda end: end.connect([e.address for e in ends]), ends[:2])
    assert all(isinstance(problem, TransportError) for problem in raised)
    assert "not called by rank 2" in str(raised[0])
    assert "HEMIOLA_INTERFACE here" in str(raised[0])


def test_an_address_where_nobody_is_says_so():
    low, high = (
        Endpoint(rank, 2, SECRET, TransportOptions(interface=HERE, timeout_s=0.4)) for rank in (0, 1)
    )
    address = low.address
    low.close()
    with pytest.raises(
        TransportError, match=rf"rank 1 cannot reach rank 0 at {HERE}:{address[1]} within 0\.4 s"
    ) as caught:
        high.connect([address, high.address])
    assert "HEMIOLA_INTERFACE there" in caught.value.remedy


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100,
        b"",
        b"HMLA",
        struct.pack("<4sHHII32s", b"HMLA", 99, 0, 1, 2, b"n" * 32),
    ],
    ids=["another protocol", "nothing", "half a greeting", "another version"],
)
def test_strangers_hold_nobody_up(noise, caplog):
    ends = [Endpoint(rank, 2, SECRET, TransportOptions(interface=HERE, timeout_s=600.0)) for rank in (0, 1)]
    with socket.create_connection(ends[0].address) as stranger:
        stranger.sendall(noise)
        start = time.monotonic()
        assert together(lambda end: end.connect([e.address for e in ends]), ends) == [None, None]
        assert time.monotonic() - start < patience(4.0)
    handle = ends[1].receive(0, 1, buffer := bytearray(2))
    ends[0].send(1, 1, b"ok")
    handle.wait(patience(5))
    assert buffer == b"ok"
    together(lambda end: end.close(), ends)


def test_a_wrong_secret_is_refused_on_both_sides():
    ends = [
        Endpoint(rank, 2, secret, TransportOptions(interface=HERE, timeout_s=slowly(1.0)))
        for rank, secret in enumerate((SECRET, b"guessed"))
    ]
    raised = together(lambda end: end.connect([e.address for e in ends]), ends)
    assert "rank 0 does not know this job's secret" in str(raised[1])
    assert "not called by rank 1" in str(raised[0])


def test_a_caller_that_cannot_prove_itself_is_not_let_in():
    """A stranger that can greet, and repeats what it is told, but does not know the secret."""
    end = Endpoint(0, 2, SECRET, TransportOptions(interface=HERE, timeout_s=slowly(1.0)))
    raised: list[BaseException | None] = []
    waiting = threading.Thread(
        target=lambda: raised.extend(together(lambda e: e.connect([end.address, (HERE, 1)]), [end]))
    )
    waiting.start()
    with socket.create_connection(end.address) as sock:
        sock.sendall(Greeting(1, 2).pack(b"n" * 32))
        answer = b""
        while len(answer) < 80:
            answer += sock.recv(100)
        sock.sendall(answer[-32:])
        assert sock.recv(1) == b""  # hung up
    waiting.join()
    assert "not called by rank 1" in str(raised[0])


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (FrameHeader(FrameKind.DATA, 100, 1, 0, 50, 0), "bytes 0 to 100 of a message of 50"),
        (FrameHeader(FrameKind.DATA, 100, 1, 0, 1 << 60, 0), "at most 1000000 are allowed"),
        (FrameHeader(FrameKind.DATA, 100, 1, 0, 1000, (1 << 64) - 50), "of a message of 1000"),
        (FrameHeader(77), "frame of unknown kind 77"),
    ],
)
def test_what_makes_no_sense_ends_the_connection_before_anything_is_allocated(frame, said):
    with rogue(message_bytes_max=1_000_000) as (end, lanes):
        handle = end.receive(1, 1, bytearray(1))
        lanes[0].sendall(frame.pack())
        with pytest.raises(TransportError, match=said):
            handle.wait(patience(5))


def test_a_connection_cut_in_the_middle_of_a_frame_fails_the_message():
    with rogue() as (end, lanes):
        handle = end.receive(1, 1, bytearray(1000))
        lanes[0].sendall(FrameHeader(FrameKind.DATA, 1000, 1, 0, 1000, 0).pack() + bytes(500))
        lanes[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        lanes[0].close()  # with a reset
        with pytest.raises(TransportError, match="rank 1 is gone"):
            handle.wait(patience(5))


def test_an_interface_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(InputError, match=r"'nope0'") as raised:
        Endpoint(0, 2, SECRET, TransportOptions(interface="nope0"))
    assert "lo" in raised.value.remedy
    with Endpoint(0, 2, SECRET, TransportOptions(interface="lo")) as end:
        assert end.address[0] == HERE


def test_ranks_and_secrets_that_cannot_be():
    with pytest.raises(InputError, match="rank 2 of 2"):
        Endpoint(2, 2, SECRET)
    with pytest.raises(InputError, match="secret is empty"):
        Endpoint(0, 2, b"")
    with Endpoint(0, 2, SECRET) as end, pytest.raises(InputError, match="1 addresses for 2 ranks"):
        end.connect([end.address])


def test_headers_come_back_equal():
    header = FrameHeader(FrameKind.DATA, 2**32 - 1, 2**64 - 1, 3, 2**63, 5)
    assert len(header.pack()) == HEADER_BYTES
    assert FrameHeader.unpack(header.pack()) == header
