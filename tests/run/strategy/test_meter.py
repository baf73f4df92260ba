"""The highest rate of a stretch, against all stretches; and what a kernel counts."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoints import connected
from hemiola.run.strategy.meter import Meter, highest
from hemiola.run.transport import Endpoint


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100)), max_size=12), st.integers(1, 100))
def test_the_highest_rate_is_that_of_the_shortest_stretch_that_is_enough(
    steps: list[tuple[int, int]], size: int
) -> None:
    at_s = list(itertools.accumulate((step for step, _ in steps), initial=0))
    came = list(itertools.accumulate((more for _, more in steps), initial=0))
    window = 20
    wanted = 0.0
    for last in range(len(at_s)):
        enough = [
            first
            for first in range(last)
            if at_s[last] - at_s[first] >= window and came[last] - came[first] >= size
        ]
        if enough:
            first = max(enough)
            wanted = max(wanted, (came[last] - came[first]) / (at_s[last] - at_s[first]))
    assert highest(at_s, came, window, size) == pytest.approx(wanted)


def _on_its_thread(end: Endpoint, action) -> object:
    found: list[object] = []
    there = threading.Event()
    end.call(lambda: (found.append(action()), there.set()))
    assert there.wait(10)
    return found[0]


def test_a_rank_counts_what_came_from_all_others() -> None:
    size = 3 << 20
    with connected(3) as ends:
        meter = Meter(ends[0])
        begun = _on_its_thread(ends[0], meter.begin)
        coming = [ends[0].receive(peer, 5, bytearray(size)) for peer in (1, 2)]
        for peer in (1, 2):
            ends[peer].send(0, 5, bytes(size))
        for handle in coming:
            handle.wait(10)
        found = _on_its_thread(ends[0], lambda: meter.end(begun, 2 * size))
        assert 2 * size <= found.size_bytes < 2.1 * size
        assert found.seconds > 0
        again = _on_its_thread(ends[0], meter.begin)
        assert _on_its_thread(ends[0], lambda: meter.end(again, 1)).size_bytes == 0
