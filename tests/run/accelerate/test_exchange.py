"""All-reduces over real endpoints of one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1] / "transport"))

from endpoints import connected, together  # noqa: E402
from hemiola.core.errors import TransportError  # noqa: E402
from hemiola.run.accelerate.exchange import Exchange  # noqa: E402
from hemiola.run.accelerate.tables import touched_rows  # noqa: E402


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


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_rows_that_somebody_has_touched_are_added_up_or_all_others(data):
    ranks, rows = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 90))
    width, algorithm = data.draw(st.sampled_from([1, 3, 64])), data.draw(st.sampled_from(["", "ring"]))
    named = [data.draw(st.sets(st.integers(0, rows - 1))) for _ in range(ranks)]
    present = [bool(own) or data.draw(st.booleans()) for own in named]
    others = data.draw(st.booleans())
    tables = [
        torch.randn(rows, width, generator=torch.Generator().manual_seed(rank)) for rank in range(ranks)
    ]
    expected, found = sum(tables) * 0.5, []
    with connected(ranks) as ends:

        def work(end):
            touched = torch.zeros(rows, dtype=torch.bool)
            touched[sorted(named[end.rank])] = True
            table = tables[end.rank].clone()
            ticket = Exchange(end, 1 << 10).reduce_rows(
                7, "the gradient t", table, touched, present[end.rank], others, 0, algorithm, 0.5
            )
            ticket.wait(10.0)
            ticket.wait_sent()
            found.append((table, ticket.rows, ticket.values, ticket.present))

        assert together(work, ends) == [None] * ranks
    union = sorted(set().union(*named))
    wanted = sorted(set(range(rows)) - set(union)) if others else union
    for table, those, values, there in found:
        assert there == any(present)
        if len(union) > 0.9 * rows and not others:
            assert those is None
            torch.testing.assert_close(table, expected)
        else:
            assert those.tolist() == wanted
            torch.testing.assert_close(values, expected[wanted])


def test_a_rank_lost_while_rows_are_named_is_named_itself():
    with connected(2, timeout_s=2.0) as ends:
        touched = torch.ones(1000, dtype=torch.bool)
        ticket = Exchange(ends[0], 16 << 10).reduce_rows(
            1, "the gradient t", torch.ones(1000, 8), touched, True
        )
        ends[1].close()
        with pytest.raises(TransportError, match="rank 1"):
            ticket.wait(10.0)


@pytest.mark.parametrize("width", [8, 5])
def test_rows_differ_where_they_differ_from_what_was_there_before(width):
    base = torch.randn(700, width)
    after = base.clone()
    after[3, 0] += 1
    after[699, width - 1] = float("nan")
    after[40] = 0.0
    assert touched_rows(after, base).nonzero().view(-1).tolist() == [3, 40, 699]
    odd = torch.zeros(300, width, dtype=torch.bfloat16)
    odd[1, 2], odd[2, 0], odd[299, width - 1] = -1e-30, float("nan"), float("inf")
    assert touched_rows(odd).nonzero().view(-1).tolist() == [1, 2, 299]


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
