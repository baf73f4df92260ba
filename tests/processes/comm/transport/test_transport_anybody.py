"""Messages from whoever sends first: each goes to one who takes it, none is lost, and who is awaited by name is left alone."""

from __future__ import annotations

import random
import threading
import time

import pytest
from endpoints import connected
from hypothesis import given, settings
from hypothesis import strategies as st
from other_ranks import rogue
from patience import patience

from hemiola.comm.transport import TransportOptions
from hemiola.comm.transport.endpoint import ANY
from hemiola.comm.transport.wire import FrameHeader, FrameKind
from hemiola.core.errors import InputError, TransportError

WAIT_S = 20.0


@pytest.mark.parametrize("size", [0, 3, 300_000])
@pytest.mark.parametrize("asked_first", [True, False])
def test_what_comes_first_is_taken_and_its_sender_told(size, asked_first):
    with connected(3, chunk_bytes=50_000) as (taker, _, sender):
        into = bytearray(size)
        handle = taker.receive_any(7, into) if asked_first else None
        if asked_first:
            assert handle.peer == ANY and not handle.done
        sender.send(0, 7, b"x" * size).wait(WAIT_S)
        handle = handle or taker.receive_any(7, into)
        handle.wait(WAIT_S)
        assert handle.peer == 2 and bytes(into) == b"x" * size


def test_who_is_awaited_by_name_keeps_its_messages():
    with connected(3) as (taker, one, other):
        named, buffer = bytearray(1), bytearray(1)
        by_name = taker.receive(1, 7, named)
        anybody = taker.receive_any(7, buffer)
        one.send(0, 7, b"1")
        by_name.wait(WAIT_S)
        time.sleep(0.05)
        assert not anybody.done
        other.send(0, 7, b"2")
        anybody.wait(WAIT_S)
        assert (bytes(named), bytes(buffer), anybody.peer) == (b"1", b"2", 2)


def test_other_tags_are_left_alone():
    with connected(2) as (taker, sender):
        handle = taker.receive_any(7, bytearray(1))
        sender.send(0, 8, b"8").wait(WAIT_S)
        time.sleep(0.05)
        assert not handle.done
        taker.receive(1, 8, other := bytearray(1)).wait(WAIT_S)
        sender.send(0, 7, b"7")
        handle.wait(WAIT_S)
        assert other == b"8"


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=24),
    st.randoms(use_true_random=False),
)
def test_every_message_comes_once_and_in_the_order_of_its_sender(sent, chance: random.Random):
    """(sender, size class) of each; some are awaited by their sender's name, all others by anybody's."""
    sizes = (1, 40, 5_000, 70_000)
    with connected(4, chunk_bytes=20_000) as (taker, *senders):
        by_name = [chance.random() < 0.3 for _ in sent]
        bodies = [bytes([number]) * max(sizes) for number in range(len(sent))]

        def send() -> None:
            for number, (sender, _) in enumerate(sent):
                senders[sender - 1].send(0, 5, bodies[number][: sizes[3]])

        thread = threading.Thread(target=send)
        thread.start()
        handles = []
        for number, (sender, _) in enumerate(sent):
            buffer = bytearray(sizes[3])
            ask = taker.receive(sender, 5, buffer) if by_name[number] else taker.receive_any(5, buffer)
            handles.append((ask, buffer))
        thread.join()
        # whoever is awaited by name may have been taken by anybody's before: then that name is short of one
        for sender in senders:
            for _ in sent:
                sender.send(0, 5, bytes([255]) * sizes[3])
        for handle, _ in handles:
            handle.wait(WAIT_S)
        came = [(handle.peer, buffer[0]) for handle, buffer in handles if buffer[0] != 255]
        assert len(set(came)) == len(came)
        for sender in (1, 2, 3):
            anybodys = [
                buffer[0]
                for (handle, buffer), named in zip(handles, by_name, strict=True)
                if not named and handle.peer == sender and buffer[0] != 255
            ]
            assert anybodys == sorted(anybodys)


def test_messages_that_overtake_their_elders_find_all_who_wait():
    with rogue() as (end, (sock,)):
        into = [bytearray(1), bytearray(1)]
        handles = [end.receive_any(7, buffer) for buffer in into]
        time.sleep(0.05)
        for number in (1, 0):  # as by another connection, or of another priority
            sock.sendall(FrameHeader(FrameKind.DATA, 1, 7, number, 1, 0).pack() + b"%d" % number)
            time.sleep(0.05)
        for handle in handles:
            handle.wait(patience(5))
        assert into == [b"0", b"1"]


def test_one_that_has_overtaken_what_is_awaited_by_name_is_given_to_who_takes_anybodys():
    with rogue() as (end, (sock,)):
        anybody = end.receive_any(7, first := bytearray(1))
        time.sleep(0.05)
        sock.sendall(FrameHeader(FrameKind.DATA, 1, 7, 1, 1, 0).pack() + b"1")
        time.sleep(0.05)
        by_name = end.receive(1, 7, second := bytearray(1))
        sock.sendall(FrameHeader(FrameKind.DATA, 1, 7, 0, 1, 0).pack() + b"0")
        by_name.wait(patience(5))
        anybody.wait(patience(5))
        assert (second, first) == (b"0", b"1")


def test_a_size_that_differs_fails_there_and_harms_nothing_else():
    with connected(2) as (taker, sender):
        handle = taker.receive_any(7, bytearray(3))
        sender.send(0, 7, b"four")
        with pytest.raises(TransportError, match="4 bytes as message 7, where 3 are awaited"):
            handle.wait(WAIT_S)
        sender.send(0, 7, b"good")
        taker.receive_any(7, buffer := bytearray(4)).wait(WAIT_S)
        assert buffer == b"good"


def test_a_rank_that_is_lost_may_have_been_the_one():
    with connected(3) as (taker, one, other):
        handle = taker.receive_any(7, bytearray(1))
        one._loop._links[0][0].sock.shutdown(2)  # as a cut cable does, sooner
        with pytest.raises(TransportError, match="rank 1"):
            handle.wait(WAIT_S)
        other.send(0, 7, b"x").wait(WAIT_S)
        time.sleep(0.05)
        taker.receive_any(7, buffer := bytearray(1)).wait(WAIT_S)
        assert buffer == b"x", "what has come is there"
        with pytest.raises(TransportError, match="rank 1"):
            taker.receive_any(7, bytearray(1)).wait(WAIT_S)


def test_once_all_have_left_nobody_is_waited_for():
    with connected(3) as (taker, one, other):
        handle = taker.receive_any(7, bytearray(1))
        one.close()
        time.sleep(0.05)
        assert not handle.done
        other.close()
        with pytest.raises(TransportError, match="has closed its transport"):
            handle.wait(WAIT_S)
        taker.close()
        with pytest.raises(TransportError, match="not connected"):
            taker.receive_any(7, bytearray(1))


def test_a_callback_may_ask_for_more():
    with connected(2) as (taker, sender):
        got, done = [], threading.Event()

        def again(handle, buffer) -> None:
            got.append(bytes(buffer))
            if len(got) == 50:
                done.set()
                return
            into = bytearray(2)
            taker.receive_any(7, into).add_callback(lambda handle: again(handle, into))

        into = bytearray(2)
        taker.receive_any(7, into).add_callback(lambda handle: again(handle, into))
        for number in range(50):
            sender.send(0, 7, number.to_bytes(2, "big"))
        assert done.wait(WAIT_S)
        assert got == [number.to_bytes(2, "big") for number in range(50)]


def test_a_buffer_that_cannot_be_written_is_refused():
    with connected(2) as (taker, _), pytest.raises(InputError, match="cannot be written"):
        taker.receive_any(7, b"read only")
    with connected(2, message_bytes_max=10) as (taker, _), pytest.raises(InputError, match="at most 10"):
        taker.receive_any(7, bytearray(11))
    assert TransportOptions().message_bytes_max > 10
