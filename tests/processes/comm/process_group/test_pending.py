"""Who waits for a future of a collective that does not end is told, and nothing that comes later changes that."""

from __future__ import annotations

import os
import select
import signal
import threading
import time

import pytest
import torch
from patience import patience

from hemiola.comm.process_group.worker import Deadlines, Pending
from hemiola.core.errors import TransportError


def test_futures_end_in_time_however_long_others_have():
    ended: list[float] = []
    all_ended = threading.Semaphore(0)
    patient = Pending("a collective", 1000.0)
    waiting = [Pending("a collective", timeout_s) for timeout_s in (0.2, 0.05, 0.1)]
    for pending in (patient, *waiting):

        def done(future: torch.futures.Future, timeout_s: float = pending.timeout_s) -> None:
            ended.append(timeout_s)
            all_ended.release()

        pending.get_future().add_done_callback(done)
    assert all(all_ended.acquire(timeout=patience(20)) for _ in waiting)
    assert sorted(ended) == [0.05, 0.1, 0.2]
    for pending in (patient, *waiting):
        pending.end([torch.ones(1)])
    assert patient.wait()
    for pending in waiting:
        with pytest.raises(TransportError, match=f"was not complete within {pending.timeout_s} s"):
            pending.wait()
        with pytest.raises(Exception, match=f"was not complete within {pending.timeout_s} s"):
            pending.get_future().wait()


def test_time_in_which_all_is_stopped_does_not_count():
    hears, tells = os.pipe()
    if not (process := os.fork()):

        class Waiting:
            def expire(self) -> None:
                os.write(tells, b"over")

        Deadlines().set(Waiting(), 2.0)
        os.write(tells, b"set")
        time.sleep(60)
        os._exit(1)
    try:
        assert os.read(hears, 10) == b"set"
        os.kill(process, signal.SIGSTOP)
        time.sleep(2.2)
        os.kill(process, signal.SIGCONT)
        assert not select.select([hears], [], [], 0.3)[0]
        assert os.read(hears, 10) == b"over"
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_what_ends_in_time_has_its_result():
    pending = Pending("a collective", 0.2)
    future = pending.get_future()
    pending.end([torch.ones(1)])
    assert future.wait() == [torch.ones(1)] and pending.wait()
