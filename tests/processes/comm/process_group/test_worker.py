"""A collective that is stopped ends at once, and leaves the connections as they were."""

from __future__ import annotations

import threading
import time
import weakref
from functools import partial

import pytest
import torch
from endpoints import connected
from patience import patience

from hemiola.comm.process_group.collectives import Channel
from hemiola.comm.process_group.group import TransportGroup
from hemiola.comm.process_group.worker import CollectiveWorker, Pending
from hemiola.core.errors import TransportError

LOST = TransportError("rank 2 is gone", "look there")


def test_who_waits_is_told_and_what_is_being_sent_goes_on_whole():
    with connected(2, rate_bytes_per_s=2e6) as ends:
        channels = [Channel(end, end.rank, 2, 0, 60.0) for end in ends]
        data = torch.arange(1_000_000)
        channels[0].send(1, data)
        threading.Timer(0.05, channels[0].stop, (LOST,)).start()
        begun_s = time.monotonic()
        with pytest.raises(TransportError, match="rank 2 is gone"):
            channels[0].finish()
        assert time.monotonic() - begun_s < 3.0, "8 MB at 2 MB/s take longer"
        came = torch.zeros_like(data)
        channels[1].wait(channels[1].receive(0, came))
        assert torch.equal(came, data)
        with pytest.raises(TransportError, match="rank 2 is gone"):
            channels[0].send(1, data)


def test_what_is_under_way_and_what_follows_ends_with_the_problem():
    with connected(2) as ends:
        worker = CollectiveWorker(ends[0])
        waiting = [Pending("a collective", 10.0) for _ in range(3)]
        begun = threading.Event()

        def wait(channel: Channel) -> None:
            begun.set()
            channel.wait(channel.receive(1, torch.empty(5)))

        for number, pending in enumerate(waiting[:2]):
            worker.do(wait, Channel(ends[0], 0, 2, 2 * number, 10.0), pending, [])
        assert begun.wait(patience(10))
        worker.stop(LOST)
        worker.do(wait, Channel(ends[0], 0, 2, 4, 10.0), waiting[2], [])
        for pending in waiting:
            with pytest.raises(TransportError, match="rank 2 is gone"):
                pending.wait()
        worker.leave(10.0)


def test_what_is_called_after_it_was_left_fails():
    worker = CollectiveWorker(None)
    worker.leave(10.0)
    pending = Pending("a collective", 10.0, in_time=True)
    worker.do(lambda channel: None, Channel(None, 0, 1, 0, 10.0), pending, [])
    with pytest.raises(TransportError, match="the process group was closed"):
        pending.wait()
    with pytest.raises(Exception, match="the process group was closed"):
        pending.get_future().wait()


def test_who_leaves_ends_first_what_it_sends_however_long_that_takes(monkeypatch):
    with connected(2) as ends:
        monkeypatch.setattr(ends[0], "close", partial(ends[0].close, 0.1))
        group = TransportGroup(ends[0], 0, 2, 10.0)
        data, came = torch.arange(4_000_000), torch.zeros(4_000_000, dtype=torch.int64)
        go_on = threading.Event()
        ends[1].call(go_on.wait)  # it reads nothing
        group.send([data], 1, 0)
        threading.Timer(0.5, go_on.set).start()
        group.shutdown()
        TransportGroup(ends[1], 1, 2, 10.0).recv([came], 0, 0).wait()
        assert torch.equal(came, data)


def test_what_was_carried_out_is_held_no_longer():
    worker = CollectiveWorker(None)
    tensor, pending = torch.ones(5), Pending("a collective", 10.0)
    worker.do(lambda channel: None, Channel(None, 0, 1, 0, 10.0), pending, [tensor])
    pending.wait()
    held = weakref.ref(tensor)
    del tensor, pending
    until_s = time.monotonic() + patience(10)
    while held() is not None:  # the thread may not have come to its end yet
        assert time.monotonic() < until_s
        time.sleep(0.001)
    worker.leave(10.0)
