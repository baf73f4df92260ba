"""Who waits for a future of a collective that does not end is told, and nothing that comes later changes that."""

from __future__ import annotations

import threading

import pytest
import torch

from hemiola.core.errors import TransportError
from hemiola.run.group.pending import Pending


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
    assert all(all_ended.acquire(timeout=20) for _ in waiting)
    assert sorted(ended) == [0.05, 0.1, 0.2]
    for pending in (patient, *waiting):
        pending.end([torch.ones(1)])
    assert patient.wait()
    for pending in waiting:
        with pytest.raises(TransportError, match=f"was not complete within {pending.timeout_s} s"):
            pending.wait()
        with pytest.raises(Exception, match=f"was not complete within {pending.timeout_s} s"):
            pending.get_future().wait()


def test_what_ends_in_time_has_its_result():
    pending = Pending("a collective", 0.2)
    future = pending.get_future()
    pending.end([torch.ones(1)])
    assert future.wait() == [torch.ones(1)] and pending.wait()
