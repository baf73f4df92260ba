"""Messages arrive whole, in order within a tag, whoever is first, over one connection or several."""

from __future__ import annotations

import hashlib
import math
import socket
import sys
import threading
import time

import pytest
from endpoints import SECRET, connected, together
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import patience

from hemiola.comm.transport import Endpoint, TransportOptions
from hemiola.comm.transport.inbox import Inbox
from hemiola.comm.transport.messages import Handle
from hemiola.comm.transport.wire import FrameHeader, FrameKind
from hemiola.core.errors import InputError, TransportError

WAIT_S = 20.0


def content(size: int, seed: int) -> bytes:
    return hashlib.shake_128(f"{size} {seed}".encode()).digest(size)


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("asked_first", [True, False])
def test_messages_arrive_as_they_were_sent(connections, asked_first):
    sizes = [0, 1, 40, 65_536, 262_143, 262_145, 3_000_000]
    with connected(connections=connections) as (a, b):
        into = [bytearray(size) for size in sizes]

        def ask():
            return [b.receive(0, 9, buffer) for buffer in into]

        awaited = ask() if asked_first else None
        sent = [a.send(1, 9, content(size, n)) for n, size in enumerate(sizes)]
        if awaited is None:
            for handle in sent:
                handle.wait(WAIT_S)
            awaited = ask()
        for handle in (*sent, *awaited):
            handle.wait(WAIT_S)
        assert [bytes(buffer) for buffer in into] == [content(size, n) for n, size in enumerate(sizes)]


messages = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 100_000), st.integers(-3, 3), st.booleans()),
    min_size=1,
    max_size=20,
)


@settings(max_examples=15, deadline=None)
@given(messages, st.integers(1, 2))
def test_any_mixture_arrives_whole_and_in_order_within_its_tag(mixture, connections):
    """(tag, size, priority, asked for only later) of each message, both ways at once."""
    with connected(connections=connections, chunk_bytes=10_000) as ends:
        into = {(me, n): bytearray(size) for me in (0, 1) for n, (_, size, _, _) in enumerate(mixture)}
        handles = []
        for later in (False, True):
            for me in (0, 1):
                for n, (tag, _, _, _) in enumerate(mixture):
                    of_tag = [x for x in mixture if x[0] == tag]
                    if any(x[3] for x in of_tag) == later:  # a tag's messages are asked for in their order
                        handles.append(ends[me].receive(1 - me, tag, into[me, n]))
            if not later:
                for me in (0, 1):
                    for n, (tag, size, priority, _) in enumerate(mixture):
                        handles.append(ends[me].send(1 - me, tag, content(size, n), priority))
        for handle in handles:
            handle.wait(WAIT_S)
        for (_, n), buffer in into.items():
            assert bytes(buffer) == content(mixture[n][1], n)


def test_four_ranks_exchange_all_to_all():
    with connected(4) as ends:
        into = {(a, b): bytearray(50_000) for a in range(4) for b in range(4) if a != b}
        handles = [ends[b].receive(a, 0, into[a, b]) for a, b in into]
        handles += [ends[a].send(b, 0, content(50_000, 10 * a + b)) for a, b in into]
        for handle in handles:
            handle.wait(WAIT_S)
        assert all(bytes(buffer) == content(50_000, 10 * a + b) for (a, b), buffer in into.items())


def test_what_is_more_urgent_overtakes_and_what_was_paused_goes_on():
    """At 4 MB/s the first message takes half a second; the urgent one comes long before its end."""
    with connected(rate_bytes_per_s=4e6) as (a, b):
        bulk, urgent = bytearray(2_000_000), bytearray(1000)
        ended: list[str] = []
        for name, tag, buffer in (("bulk", 1, bulk), ("urgent", 2, urgent)):
            b.receive(0, tag, buffer).add_callback(lambda handle, name=name: ended.append(name))
        first = a.send(1, 1, content(2_000_000, 1), priority=5)
        time.sleep(0.05)
        second = a.send(1, 2, content(1000, 2), priority=0)
        second.wait(WAIT_S)
        assert not first.done
        first.wait(WAIT_S)
        while len(ended) < 2:
            time.sleep(0.01)
        assert ended == ["urgent", "bulk"]
        assert bytes(bulk) == content(2_000_000, 1)


def test_a_message_that_has_waited_long_enough_is_no_longer_overtaken():
    """Ageing 50 ms per number: after 0.2 s a message of priority 2 is as urgent as a new one of 0, and goes first."""
    with connected(rate_bytes_per_s=2e6, ageing_s=0.05) as (a, b):
        old, new = bytearray(600_000), bytearray(600_000)
        ended: list[int] = []
        for tag, buffer in ((1, old), (2, new)):
            b.receive(0, tag, buffer).add_callback(lambda handle: ended.append(handle.tag))
        first = a.send(1, 1, content(600_000, 1), priority=2)
        time.sleep(0.2)
        second = a.send(1, 2, content(600_000, 2), priority=0)
        for handle in (first, second):
            handle.wait(WAIT_S)
        while len(ended) < 2:
            time.sleep(0.01)
        assert ended == [1, 2]


def test_a_deadline_goes_before_priority_when_it_is_near():
    with connected(rate_bytes_per_s=2e6) as (a, b):
        into = {tag: bytearray(200_000) for tag in (1, 2, 3)}
        ended: list[int] = []
        for tag, buffer in into.items():
            b.receive(0, tag, buffer).add_callback(lambda handle: ended.append(handle.tag))
        sent = [
            a.send(1, 1, content(200_000, 1), priority=0),
            a.send(1, 2, content(200_000, 2), priority=0),
            a.send(1, 3, content(200_000, 3), priority=9, deadline_s=0.05),
        ]
        for handle in sent:
            handle.wait(WAIT_S)
        while len(ended) < 3:
            time.sleep(0.01)
        assert ended[0] == 3


def test_pacing_holds_the_rate():
    with connected(rate_bytes_per_s=5e6) as (a, b):
        buffer = bytearray(2_000_000)
        start = time.monotonic()
        handle = b.receive(0, 0, buffer)
        a.send(1, 0, content(2_000_000, 0))
        handle.wait(WAIT_S)
        assert time.monotonic() - start > 0.25  # 0.4 s at the rate; what a socket takes at once goes unpaced


@pytest.mark.parametrize(("field", "most"), [("ageing_s", 1e9), ("timeout_s", 1e6)])
def test_times_have_an_end_and_the_longest_ones_work(field, most):
    for longer in (math.inf, 2 * most):
        with pytest.raises(InputError, match=f"{field} is .*\n.*give at most"):
            TransportOptions(**{field: longer})
    with connected(**{field: most}) as (a, b):
        handle = b.receive(0, 0, bytearray(3))
        a.send(1, 0, b"abc")
        handle.wait(WAIT_S)


def test_connecting_takes_no_longer_than_the_longest_time():
    with Endpoint(0, 1, SECRET) as end, pytest.raises(InputError, match="give at most"):
        end.connect([end.address], math.inf)


def test_no_rate_and_an_endless_one_are_one():
    assert TransportOptions(rate_bytes_per_s=math.inf) == TransportOptions()
    with connected(rate_bytes_per_s=math.inf) as (a, b):
        handle = b.receive(0, 0, bytearray(3))
        a.send(1, 0, b"abc")
        handle.wait(WAIT_S)


def test_what_the_system_refuses_is_named():
    options = TransportOptions(interface="127.0.0.1", congestion="nosuch", timeout_s=10.0)
    ends = [Endpoint(rank, 2, SECRET, options) for rank in range(2)]
    raised = together(lambda end: end.connect([other.address for other in ends]), ends)
    assert all(isinstance(problem, InputError | TransportError) for problem in raised)
    assert any("congestion 'nosuch' is refused" in str(problem) for problem in raised)


def test_calls_are_not_late_where_no_peer_reads():
    with connected(timeout_s=40.0, unexpected_bytes_max=1000) as (a, b):
        a.send(1, 1, bytes(50_000_000))  # b does not ask for it
        time.sleep(0.3)
        done = threading.Event()
        a.call(done.set)
        assert done.wait(patience(5.0))
        b.receive(0, 1, bytearray(50_000_000)).wait(WAIT_S)


def test_messages_to_many_together_keep_the_rate():
    """Each by itself is small enough for the kernel to take at once."""
    with connected(4, rate_bytes_per_s=6e6) as ends:
        handles = [ends[1 + n % 3].receive(0, n, bytearray(16384)) for n in range(240)]
        begun_s = time.monotonic()
        for n in range(240):
            ends[0].send(1 + n % 3, n, bytes(16384)).wait(WAIT_S)
        for handle in handles:
            handle.wait(WAIT_S)
        assert time.monotonic() - begun_s > 0.45  # 0.66 s at the rate; what sockets take at once goes unpaced


def test_the_rate_is_theirs_to_whom_bytes_go():
    """Of four ranks a ring sends to one; a rate divided among all three others would be a third of what was said."""
    with connected(4, rate_bytes_per_s=6e6) as ends:

        def caps() -> dict[int, int]:
            links = dict(ends[0]._loop._links)
            told = {peer: of[0].sock.getsockopt(socket.SOL_SOCKET, 47, 8) for peer, of in links.items()}
            return {peer: int.from_bytes(cap, sys.byteorder) for peer, cap in told.items()}

        def send(*peers: int) -> list[Handle]:
            for peer in peers:
                ends[peer].receive(0, 0, bytearray(1_000_000))
            return [ends[0].send(peer, 0, content(1_000_000, peer)) for peer in peers]

        assert caps() == dict.fromkeys((1, 2, 3), 2_000_000)
        for peers, each in (
            ((1,), 6_000_000),
            ((2, 3), 3_000_000),
            ((1,), 6_000_000),
            ((1, 2, 3), 2_000_000),
        ):
            handles = send(*peers)
            while not any(handle.done for handle in handles):
                if {cap for peer, cap in caps().items() if peer in peers} == {each}:
                    break
            else:
                pytest.fail(f"to {peers}: {caps()}")
            for handle in handles:
                handle.wait(WAIT_S)


def test_more_than_may_lie_around_holds_its_sender_up_and_is_lost_nowhere():
    with connected(unexpected_bytes_max=300_000) as (a, b):
        sent = [a.send(1, tag, content(2_000_000, tag)) for tag in range(8)]
        time.sleep(0.2)
        assert not all(handle.done for handle in sent)
        into = [bytearray(2_000_000) for _ in range(8)]
        awaited = [b.receive(0, tag, buffer) for tag, buffer in enumerate(into)]
        for handle in (*sent, *awaited):
            handle.wait(WAIT_S)
        assert [bytes(buffer) for buffer in into] == [content(2_000_000, tag) for tag in range(8)]


def test_callbacks_and_waiting_in_many_threads():
    with connected() as (a, b):
        got: list[bytes] = []
        lock = threading.Lock()

        def ask(tag: int) -> None:
            buffer = bytearray(1000)
            b.receive(0, tag, buffer).wait(WAIT_S)
            with lock:
                got.append(bytes(buffer))

        threads = [threading.Thread(target=ask, args=(tag,)) for tag in range(20)]
        for thread in threads:
            thread.start()
        for tag in range(20):
            a.send(1, tag, content(1000, tag))
        for thread in threads:
            thread.join()
        assert sorted(got) == sorted(content(1000, tag) for tag in range(20))


def test_what_cannot_be_is_refused_with_the_value():
    with connected() as (a, _):
        with pytest.raises(InputError, match="rank 5 is no peer"):
            a.send(5, 0, b"")
        with pytest.raises(InputError, match="rank 0 is no peer"):
            a.receive(0, 0, bytearray(1))
        with pytest.raises(InputError, match="tag -1"):
            a.send(1, -1, b"")
        with pytest.raises(InputError, match="cannot be written"):
            a.receive(1, 0, b"fixed")
        with pytest.raises(TransportError, match=r"did not end within 0\.05 s"):
            a.receive(1, 0, bytearray(1)).wait(0.05)
    with pytest.raises(TransportError, match="not connected"):
        a.send(1, 0, b"")
    for wrong in (
        {"chunk_bytes": -1},
        {"connections": 0},
        {"rate_bytes_per_s": 0.0},
        {"dscp": 64},
        {"timeout_s": 0},
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            TransportOptions(**wrong)
    with (
        connected(message_bytes_max=1000) as (a, _),
        pytest.raises(InputError, match="1001 bytes; at most 1000"),
    ):
        a.send(1, 0, bytes(1001))


def test_sizes_that_differ_fail_on_the_receiver_and_leave_the_rest_alone():
    with connected() as (a, b):
        early = b.receive(0, 1, bytearray(5))
        for tag in (1, 2):
            a.send(1, tag, b"four")
        with pytest.raises(TransportError, match="sends 4 bytes as message 1, where 5 are awaited"):
            early.wait(WAIT_S)
        time.sleep(0.05)
        with pytest.raises(TransportError, match="sends 4 bytes as message 2, where 3 are awaited"):
            b.receive(0, 2, bytearray(3)).wait(WAIT_S)
        buffer = bytearray(4)
        handle = b.receive(0, 1, buffer)
        a.send(1, 1, b"next")
        handle.wait(WAIT_S)
        assert buffer == b"next"


def test_a_callback_of_a_receive_that_failed_may_receive_again():
    with connected() as (a, b):
        again, buffer = threading.Event(), bytearray(4)

        def receive_again(handle: Handle) -> None:
            b.receive(0, 1, buffer).add_callback(lambda handle: again.set())

        b.receive(0, 1, bytearray(5)).add_callback(receive_again)
        a.send(1, 1, b"four")
        a.send(1, 1, b"next")
        assert again.wait(WAIT_S)
        assert buffer == b"next"


def test_no_message_is_forgotten_however_fast_they_follow():
    """Four threads that each send as soon as the answer is there: every wake-up counts."""
    with connected() as (a, b):

        def ping(tag: int) -> None:
            for _ in range(400):
                there = b.receive(0, tag, into := bytearray(1))
                a.send(1, tag, b"p")
                there.wait(WAIT_S)
                back = a.receive(1, tag, into)
                b.send(0, tag, b"q")
                back.wait(WAIT_S)

        threads = [threading.Thread(target=ping, args=(tag,)) for tag in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_an_empty_message_that_is_asked_for_while_it_is_being_read_arrives_once():
    inbox, header = Inbox(1, 100), FrameHeader(FrameKind.DATA, 0, 7, 0, 0, 0)
    place = inbox.place(header)
    handle = inbox.ask(7, memoryview(bytearray()))
    assert not handle.done
    inbox.arrived(header, place)
    handle.wait(0)


def test_what_is_called_while_bytes_wait_is_done_soon_and_in_order():
    """No bell is rung for a thread that is about to look, on a busy link or just after it fell silent."""
    rate = 4e6
    with connected(rate_bytes_per_s=rate) as (a, b):
        done: list[int] = []
        for turn in range(20):
            size = 1_000_000 if turn == 0 else 20_000  # longer than all calls, then over between two of them
            awaited = b.receive(0, turn, bytearray(size))
            bulk = a.send(1, turn, bytes(size))
            for number in range(10):
                came = threading.Event()
                a.call(lambda n=turn * 10 + number, came=came: (done.append(n), came.set()))
                assert came.wait(patience(1.0))
            if turn:
                bulk.wait(WAIT_S)
                awaited.wait(WAIT_S)
        assert done == list(range(200))


def test_calls_from_many_threads_are_all_done():
    with connected() as (a, b):
        done: list[int] = []
        sizes = [bytes(30_000)] * 50

        def ask(first: int) -> None:
            for number in range(first, first + 200):
                a.call(lambda n=number: done.append(n))

        threads = [threading.Thread(target=ask, args=(200 * place,)) for place in range(4)]
        awaited = [b.receive(0, 1, bytearray(30_000)) for _ in sizes]
        sent = [a.send(1, 1, data) for data in sizes]
        for thread in threads:
            thread.start()
        for handle in (*sent, *awaited):
            handle.wait(WAIT_S)
        for thread in threads:
            thread.join()
        last = threading.Event()
        a.call(last.set)
        assert last.wait(patience(5.0))
        assert sorted(done) == list(range(800))


@pytest.mark.parametrize("size", [100, 100_000], ids=["with its header", "on its own"])
def test_what_has_come_is_its_owners_alone(size):
    with connected() as (a, b):
        handle = b.receive(0, 1, into := bytearray(size))
        a.send(1, 1, bytes(size))
        handle.wait(WAIT_S)
        until_s = time.monotonic() + patience(WAIT_S)
        while not _grows(into):  # who has read it may not have let go of it yet
            assert time.monotonic() < until_s
            time.sleep(0.001)


def _grows(buffer: bytearray) -> bool:
    try:
        buffer.append(0)
    except BufferError:
        return False
    return True
