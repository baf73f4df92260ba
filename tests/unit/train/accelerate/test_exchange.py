"""All-reduces over real endpoints of one process."""

from __future__ import annotations

import gc
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from endpoints import connected, together
from patience import patience, slowly

from hemiola.comm.transport.messages import Gate
from hemiola.core.errors import TransportError
from hemiola.train.accelerate import exchange as exchanges
from hemiola.train.accelerate.embeddings import touched_rows
from hemiola.train.accelerate.exchange import (
    ElementRange,
    GradientExchange,
    MessageStep,
)
from hemiola.train.accelerate.settings import AccelerationSettings
from hemiola.train.accelerate.sparse_rows import TransferInFlight


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("algorithm", ["", "ring", "halving-doubling", "direct"])
def test_many_at_once_in_any_order_add_up_with_the_same_bits_everywhere(ranks, algorithm):
    sizes = [0, 1, 3, 50, 4096, 5001, 70_000]
    source = torch.Generator().manual_seed(ranks)
    given = [[torch.randn(size, generator=source) for size in sizes] for _ in range(ranks)]
    found = [[tensor.clone() for tensor in own] for own in given]
    with connected(ranks) as ends:

        def work(end):
            exchange = GradientExchange(end, 16 << 10)
            order = range(len(sizes)) if end.rank % 2 else reversed(range(len(sizes)))
            tickets = [
                exchange.all_reduce(number, f"tensor {number}", found[end.rank][number], number, algorithm)
                for number in order
            ]
            for ticket in tickets:
                ticket.wait(patience(10.0))
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
@settings(max_examples=25, deadline=None)
def test_rows_that_somebody_has_named_or_touched_are_added_up_or_all_others(data):
    ranks, rows = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 90))
    width, algorithm = data.draw(st.sampled_from([1, 3, 64])), data.draw(st.sampled_from(["", "ring"]))
    kind = data.draw(st.sampled_from(["others", "named before", "named at the end"]))
    sets = st.sets(st.integers(0, rows - 1))
    named, touched = ([data.draw(sets) for _ in range(ranks)] for _ in range(2))
    present = [bool(own) or data.draw(st.booleans()) for own in touched]
    tables = [
        torch.randn(rows, width, generator=torch.Generator().manual_seed(rank)) for rank in range(ranks)
    ]
    expected, found = sum(tables) * 0.5, []

    def bits(own):
        told = torch.zeros(rows, dtype=torch.bool)
        told[sorted(own)] = True
        return told

    with connected(ranks) as ends:

        def work(end):
            table, exchange = tables[end.rank].clone(), GradientExchange(end, 1 << 10)
            names = None if kind == "named at the end" else exchange.name_rows(7, [bits(named[end.rank])])[0]
            is_others = kind == "others"
            ticket = exchange.reduce_rows(7, "the gradient t", table, names, 0, algorithm, 0.5, is_others)
            if not is_others:
                exchange.end_rows(7, [ticket], [bits(touched[end.rank])], [present[end.rank]])
            ticket.wait(patience(10.0))
            ticket.wait_sent()
            found.append((table, ticket))

        assert together(work, ends) == [None] * ranks
    before, after = set().union(*named), set().union(*touched)
    wanted = {"named before": before, "named at the end": after, "others": set(range(rows)) - before}[kind]
    for table, ticket in found:
        assert ticket.present == (any(present) and kind != "others")
        if len(wanted) > 0.9 * rows and kind != "others":
            assert ticket.whole
            torch.testing.assert_close(table, expected)
            continue
        later = after - before if kind == "named before" else set()
        assert [those.tolist() for those, _ in ticket.parts] == [
            sorted(part) for part in (wanted, later) if part
        ]
        for those, values in ticket.parts:
            torch.testing.assert_close(values, expected[those])


def test_rows_of_several_tables_are_told_at_once():
    sizes, found = (40, 0, 9), [None, None]
    with connected(2) as ends:

        def work(end):
            exchange, rank = GradientExchange(end, 1 << 10), end.rank
            tables = [torch.full((rows, 4), 1.0 + rank) for rows in sizes]
            named = [torch.zeros(rows, dtype=torch.bool) for rows in sizes]
            named[0][3 + rank] = named[2][rank] = True
            names = exchange.name_rows(0, named)
            tickets = [
                exchange.reduce_rows(n, f"t{n}", table, own)
                for n, (table, own) in enumerate(zip(tables, names, strict=True))
            ]
            named[2][8] = True
            exchange.end_rows(0, tickets, named, [True, False, rank == 1])
            for ticket in tickets:
                ticket.wait(patience(10.0))
            found[rank] = [
                ([(rows.tolist(), values.unique().tolist()) for rows, values in t.parts], t.present)
                for t in tickets
            ]

        together(work, ends)
    assert found[0] == found[1] == [
        ([([3, 4], [3.0])], True), ([], False), ([([0, 1], [3.0]), ([8], [3.0])], True),
    ]  # fmt: skip


@pytest.mark.parametrize("before", [True, False])
def test_a_rank_lost_while_rows_are_named_is_named_itself(before):
    with connected(2, timeout_s=slowly(2.0)) as ends:
        exchange, touched = GradientExchange(ends[0], 16 << 10), torch.ones(1000, dtype=torch.bool)
        (names,) = exchange.name_rows(1, [touched]) if before else (None,)
        ticket = exchange.reduce_rows(1, "the gradient t", torch.ones(1000, 8), names)
        exchange.end_rows(1, [ticket], [touched], [True])
        ends[1].close()
        with pytest.raises(TransportError, match="rank 1"):
            ticket.wait(patience(10.0))


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
    with connected(2, timeout_s=slowly(2.0)) as ends:
        exchange = GradientExchange(ends[0], 16 << 10)
        ticket = exchange.all_reduce(1, "the gradient w", torch.ones(100_000))
        ends[1].close()
        with pytest.raises(TransportError, match="rank 1"):
            ticket.wait(patience(10.0))
        late = exchange.all_reduce(2, "the gradient v", torch.ones(10))
        with pytest.raises(TransportError, match="rank 1"):
            late.wait(patience(10.0))


def test_of_all_the_numbers_of_rows_that_are_sent_few_schedules_are_kept():
    before = sum(type(one) is MessageStep for one in gc.get_objects())
    with connected(2) as ends:
        both = [GradientExchange(end, 1 << 20) for end in ends]

        def work(end):
            for rows in range(600):
                ticket = both[end.rank].all_reduce(0, "the gradient t", torch.ones(rows), algorithm="ring")
                ticket.wait(patience(10.0))

        assert together(work, ends) == [None] * 2
        assert sum(type(one) is MessageStep for one in gc.get_objects()) - before < 600


def test_however_many_steps_have_come_they_follow_one_another(monkeypatch):
    step = MessageStep((), (ElementRange(1, 0, 4),), False)
    monkeypatch.setattr(exchanges, "_steps", lambda *_: (step,) * 1000)
    with connected(2) as ends:
        flat, exchange = torch.zeros(4), GradientExchange(ends[0], 1 << 20)
        for number in range(1000):
            ends[1].send(0, exchange._tag(0) + number, bytes(16))
        ends[1].send(0, 0, b"last")
        ends[0].receive(1, 0, bytearray(4)).wait(patience(10.0))
        exchange.all_reduce(0, "the gradient w", flat, algorithm="ring").wait(patience(10.0))


def test_who_never_gives_up_waits_as_well():
    ticket = TransferInFlight("the gradient w", 1)
    ticket.end_lane(None)
    assert ticket.soon(AccelerationSettings(timeout_s=math.inf).timeout_s)


def test_what_is_done_can_be_waited_for_at_once(monkeypatch):
    ticket, opened = TransferInFlight("the gradient w", 1), Gate.open

    def opens(gate: Gate) -> None:
        if ticket.done:
            ticket.wait(0.0)  # as another thread may, that has seen it
        opened(gate)

    monkeypatch.setattr(Gate, "open", opens)
    ticket.end_lane(None)
    assert ticket.done


def test_what_is_not_reduced_in_time_says_what_it_was():
    with connected(2) as ends:
        ticket = GradientExchange(ends[0], 16 << 10).all_reduce(1, "the gradient w", torch.ones(10))
        with pytest.raises(TransportError, match="the gradient w was not reduced within"):
            ticket.wait(0.05)
