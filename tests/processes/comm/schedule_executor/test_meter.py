"""The highest rate that was kept up, against all stretches; and what a kernel counts."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from endpoints import connected
from hypothesis import given
from hypothesis import strategies as st
from patience import patience

from hemiola.comm.schedule_executor.flow import HALF_S, Meter, steadiest
from hemiola.comm.transport import Endpoint

STEPS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100)), max_size=16)


@given(STEPS, st.integers(1, 60))
def test_a_rate_is_the_lower_one_of_two_neighbouring_stretches(
    steps: list[tuple[int, int]], half: int
) -> None:
    at_s = list(itertools.accumulate((step for step, _ in steps), initial=0))
    came = list(itertools.accumulate((more for _, more in steps), initial=0))

    def begun(last: int) -> int | None:
        """Where the shortest stretch begins that ends there and is long enough."""
        return max((one for one in range(last) if at_s[last] - at_s[one] >= half), default=None)

    wanted = 0.0
    for last in range(len(at_s)):
        middle = begun(last)
        first = begun(middle) if middle is not None else None
        if middle is not None and first is not None:
            rates = [(came[b] - came[a]) / (at_s[b] - at_s[a]) for a, b in ((first, middle), (middle, last))]
            wanted = max(wanted, min(rates))
    assert steadiest(at_s, came, half) == pytest.approx(wanted)


def test_a_burst_does_not_hide_what_a_link_takes() -> None:
    """A switch lets 3 MB pass at once after a pause, and then 1 MB each ms."""
    at_s = [step * 1e-3 for step in range(41)]
    came = [0.0] * 11 + [3e6 + 1e6 * step for step in range(1, 31)]
    assert steadiest(at_s, came, 8e-3) == pytest.approx(1e9)


def _on_its_thread(end: Endpoint, action) -> object:
    found: list[object] = []
    there = threading.Event()
    end.call(lambda: (found.append(action()), there.set()))
    assert there.wait(patience(10))
    return found[0]


def test_a_rank_counts_what_came_from_all_others() -> None:
    size = 1 << 20
    with connected(3) as ends:
        meter = Meter(ends[0])
        begun = _on_its_thread(ends[0], meter.begin)
        before = time.monotonic()
        _send_to_first(ends, size)
        while time.monotonic() - before < 2.5 * HALF_S:
            _on_its_thread(ends[0], meter.look)
            _send_to_first(ends, size)
        seconds = time.monotonic() - before
        found = _on_its_thread(ends[0], lambda: meter.end(begun))
        assert found.seconds >= seconds
        assert found.highest_bytes_per_s > 0


def test_what_ends_soon_tells_no_rate() -> None:
    with connected(3) as ends:
        meter = Meter(ends[0])
        begun = _on_its_thread(ends[0], meter.begin)
        assert _on_its_thread(ends[0], lambda: meter.end(begun)).highest_bytes_per_s == 0


def _send_to_first(ends: list[Endpoint], size: int) -> None:
    coming = [ends[0].receive(peer, 5, bytearray(size)) for peer in (1, 2)]
    for peer in (1, 2):
        ends[peer].send(0, 5, bytes(size))
    for handle in coming:
        handle.wait(patience(10))
