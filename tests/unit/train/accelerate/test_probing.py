"""What acceleration measures of the links, over real endpoints of one process."""

from __future__ import annotations

import os
from statistics import median

import pytest

torch = pytest.importorskip("torch")

from endpoints import connected, together

from hemiola.train.accelerate import probe as probing
from hemiola.train.accelerate.exchange import GradientExchange


@pytest.fixture
def one_core():
    usual = os.sched_getaffinity(0)
    threads = torch.get_num_threads()
    os.sched_setaffinity(0, {min(usual)})
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    os.sched_setaffinity(0, usual)


def test_random_numbers_of_the_training_are_left_alone(monkeypatch):
    monkeypatch.setattr(probing, "_LONG_S", 0.01)
    monkeypatch.setattr(probing, "_BESIDE", 1)
    before, found = torch.get_rng_state(), []
    torch.set_default_dtype(torch.float64)
    try:
        with connected(2) as ends:

            def work(end):
                found.append(probing.probe(GradientExchange(end, 64 << 10), 2, 10.0, threads=1))

            assert together(work, ends) == [None] * 2
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    for links in found:
        assert links.bytes_per_s > 0 and links.step_s > 0 and links.cpu_s_per_byte > 0
        steps = [links.cost("hemiola", 2, sending=share).alpha_s for share in (0.0, 0.5, 1.0)]
        assert steps[0] == links.step_s and steps[2] == max(links.step_s, links.busy_step_s) > 0
        assert steps[1] == pytest.approx((steps[0] + steps[2]) / 2)
    assert probing.slowest(found).bytes_per_s == min(links.bytes_per_s for links in found)


def test_on_one_core_computing_loses_what_all_transports_take(one_core):
    """Two ranks compute there, and each is so much slower while both transports are busy on the same core."""
    size_bytes, rounds, found = 32 << 20, 7, []
    with connected(2) as ends:

        def work(end):
            own = probing._Probing(GradientExchange(end, 512 << 10), 2, 10.0)
            shares = []
            for number in range(rounds + 1):  # by turns: others may be busy on this core
                alone_s = own.reduce(probing._nothing(size_bytes), probing._FIRST + 1)[0]
                lost_s = own.beside(probing._nothing(size_bytes))[0]
                shares += [lost_s / alone_s] * bool(number)  # the first ones find no memory yet
            found.append(median(shares))

        assert together(work, ends) == [None] * 2
    for share in found:  # alone, both transports have the core to themselves
        assert 0.15 < share < 4.0
