"""All-reduces over real endpoints of one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1] / "transport"))

from endpoints import connected, together  # noqa: E402
from hemiola.core.errors import TransportError  # noqa: E402
from hemiola.run.accelerate.exchange import Exchange  # noqa: E402


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("algorithm", ["", "ring", "halving-doubling", "direct"])
def test_many_at_once_in_any_order_add_up_with_the_same_bits_everywhere(ranks, algorithm):
    sizes = [0, 1, 3, 50, 4096, 5001, 70_000]
    source = torch.Generator().manual_seed(ranks)
    given = [[torch.randn(size, generator=source) for size in sizes] for _ in range(ranks)]
    found = [[tensor.clone() for tensor in own] for own in given]
    with connected(ranks) as ends:

        def work(end):
            exchange = Exchange(end, 16 << 10)
            order = range(len(sizes)) if end.rank % 2 else reversed(range(len(sizes)))
            tickets = [
                exchange.all_reduce(number, f"tensor {number}", found[end.rank][number], number, algorithm)
                for number in order
            ]
            for ticket in tickets:
                ticket.wait(10.0)
                ticket.wait_sent()
                assert ticket.done and ticket.sent

        assert together(work, ends) == [None] * ranks
    for number, rows in enumerate(zip(*given, strict=True)):
        for rank in range(ranks):
            assert torch.equal(found[rank][number], found[0][number])
        torch.testing.assert_close(found[0][number], sum(rows), rtol=1e-5, atol=1e-6)
        if ranks == 2:
            assert torch.equal(found[0][number], rows[0] + rows[1])


def test_a_lost_rank_ends_the_transfer_with_its_name():
    with connected(2, timeout_s=2.0) as ends:
        exchange = Exchange(ends[0], 16 << 10)
        ticket = exchange.all_reduce(1, "the gradient w", torch.ones(100_000))
        ends[1].close()
        with pytest.raises(TransportError, match="rank 1"):
            ticket.wait(10.0)
        late = exchange.all_reduce(2, "the gradient v", torch.ones(10))
        with pytest.raises(TransportError, match="rank 1"):
            late.wait(10.0)


def test_what_is_not_reduced_in_time_says_what_it_was():
    with connected(2) as ends:
        ticket = Exchange(ends[0], 16 << 10).all_reduce(1, "the gradient w", torch.ones(10))
        with pytest.raises(TransportError, match="the gradient w was not reduced within"):
            ticket.wait(0.05)
