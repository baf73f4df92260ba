"""Times on a CUDA device, where there is one."""

from __future__ import annotations

import time

import pytest
import torch

from hemiola.profiler.trace.collectives import DeviceClock

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_an_event_lies_between_the_host_times_around_it() -> None:
    clock = DeviceClock(time.perf_counter_ns)
    for _ in range(5):
        torch.cuda.synchronize()
        before = time.perf_counter_ns()
        event = clock.stream_now()
        torch.cuda.synchronize()
        after = time.perf_counter_ns()
        assert clock.is_known(event)
        assert before - 200_000 <= clock.resolve(event) <= after + 200_000


def test_what_the_device_has_not_done_is_not_known() -> None:
    clock = DeviceClock(time.perf_counter_ns)
    torch.cuda.synchronize()
    matrix = torch.randn(4096, 4096, device="cuda")
    for _ in range(200):
        matrix = matrix @ matrix * 1e-4
    event = clock.stream_now()
    known = clock.is_known(event)
    torch.cuda.synchronize()
    assert not known
    assert clock.is_known(event)
