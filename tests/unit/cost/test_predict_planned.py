"""Iterations by a plan, worked out by hand: priority, pre-emption, and forward that starts before all has arrived."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tiny_graphs import device, flat, layers, updated_apart

from hemiola.core.hardware import CollectiveCost, ExchangeCost
from hemiola.core.plan import Piece, Plan, PlannedTransfer
from hemiola.cost.collective.library import Algorithm, Library, Variant
from hemiola.cost.parallelism import parse_parallelism
from hemiola.cost.prediction import PredictionOptions, predict

RING = Algorithm("ring", lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n, lambda m, n: 2 * (n - 1) / n)
FREE = Library(
    "free",
    1 << 30,
    {"all-reduce": (Variant(RING, 0.0, 0.0, 0.0),)},
    "no latency, any number",
    preemptive=True,
)
GRAPH, SECONDS = layers([1_000_000, 2_000_000], [0.25, 0.25], [0.5, 0.5])
"""Two layers; at 1 MB/s and two ranks their gradients take one and two seconds."""


def plan(priorities=(0, 1), update="on-arrival", pieces=1):
    transfers = []
    for layer, count in enumerate((250_000, 500_000)):
        step = count // pieces
        for part in range(pieces):
            piece = Piece(f"layer.{layer}.weight", part * step, (part + 1) * step)
            transfers.append(
                PlannedTransfer(
                    name=f"{layer}.{part}", pieces=(piece,), priority=priorities[layer] * pieces + part
                )
            )
    return Plan(name="p", graph="layers", ranks=2, update=update, chunk_bytes=1, transfers=tuple(transfers))


def by(algorithms, graph, ranks):
    """Every layer's gradient by one of these."""
    pieces = [Piece(p.name, 0, p.shape[0]) for p in graph.parameters]
    transfers = tuple(
        PlannedTransfer(name=piece.parameter, pieces=(piece,), priority=number, algorithm=algorithm)
        for number, (piece, algorithm) in enumerate(zip(pieces, algorithms, strict=True))
    )
    return Plan(
        name="p", graph="layers", ranks=ranks, update="on-arrival", chunk_bytes=1, transfers=transfers
    )


def run(made, graph=GRAPH, seconds=SECONDS, **options):
    return predict(
        graph,
        device(),
        flat(2),
        2,
        plan=made,
        options=PredictionOptions(library=FREE, **options),
        seconds=seconds,
    )


def test_what_is_used_first_overtakes_and_forward_starts_with_it():
    """Layer 1 is ready at x and sends for 0.5 s, until layer 0 is ready and pauses it: done at x + 1.5, when forward
    begins. Layer 1 goes on until x + 3, computes until 3.25, and is ready again at x + 3.75."""
    found = run(plan())
    assert found.iteration_s == pytest.approx(3.75)
    assert found.exposed_s == pytest.approx(3.75 - 1.5)
    first, second = sorted(found.transfers, key=lambda t: t.name)
    assert (first.end_s - first.start_s, second.end_s - second.start_s) == pytest.approx((1.0, 3.0))


def test_without_crossing_the_end_all_has_to_arrive_first():
    """3 s on the wire from x, then forward (0.5 s) and layer 1's backward (0.5 s)."""
    assert run(plan(update="together")).iteration_s == pytest.approx(4.0)


def test_the_wrong_priority_holds_forward_up():
    """Layer 1 goes first: both are there at x + 3 only, but layer 1's is there at x + 2."""
    assert run(plan((1, 0))).iteration_s == pytest.approx(4.0)


def test_equals_go_as_they_become_ready():
    """Layer 1 is ready first: as if it were more urgent. Sharing the link, both would be under way until x + 2.5."""
    assert run(plan((0, 0))).iteration_s == pytest.approx(4.0)


def test_pieces_change_nothing_where_nothing_waits_for_one():
    assert run(plan(pieces=4)).iteration_s == pytest.approx(3.75)


def test_updating_on_arrival_takes_the_optimizers_time_by_bytes():
    """0.3 s of the optimizer: 0.1 s before layer 0 computes, 0.2 s before layer 1 does; in pieces too."""
    graph, seconds = layers([1_000_000, 2_000_000], [0.25, 0.25], [0.5, 0.5], 0.3)
    for pieces in (1, 2):
        found = run(plan(pieces=pieces), graph, seconds)
        assert found.iteration_s == pytest.approx(
            3.75 + 0.2
        )  # layer 0's update is done while layer 1 is under way
        assert found.breakdown.optimizer_s == pytest.approx(0.3)


def test_without_overlap_everything_comes_one_after_the_other():
    assert run(plan(), overlap=False).iteration_s == pytest.approx(4.5)


def test_what_is_ready_after_the_first_update_is_waited_for_all_the_same():
    """Layer 1's update comes before layer 0's backward: it waits for 2 s from 1 on, and layer 0's from 3.5 to 4.5."""
    order = (0, 1, 2, 4, 3, 5)
    made = msgspec.structs.replace(plan(update="together"), operation_order=order)
    found = run(made, updated_apart(GRAPH), np.array([*SECONDS[:4], 0.0, 0.0]))
    assert found.iteration_s == pytest.approx(4.5)
    assert found.exposed_s == pytest.approx(3.0)


def test_all_ranks_executed_apart_agree_with_one_for_all():
    assert run(plan(), symmetric=False).iteration_s == pytest.approx(3.75)


def test_the_transport_itself_sends_no_faster_than_it_can():
    """Hemiola's own library, measured at half the link's rate: 6 s on the wire between x and the end of layer 1."""
    slow = CollectiveCost(
        backend="hemiola", collective="all-reduce", ranks=2, hosts=("a", "b"), alpha_s=1e-9, bytes_per_s=5e5
    )
    found = predict(GRAPH, device(collectives=(slow,)), flat(2), 2, plan=plan(), seconds=SECONDS)
    assert found.iteration_s == pytest.approx(6.75, rel=1e-3)


def test_transfers_by_several_algorithms_go_through_one_sender():
    """Of a tensor each of 4 ranks sends 1.5 times as much, whatever leaves its host: 300.03 MB at 1 GB/s."""
    measured = CollectiveCost(
        backend="hemiola", collective="all-reduce", ranks=4, hosts=tuple("aabb"), alpha_s=1e-9, bytes_per_s=1e9,
    )  # fmt: skip
    graph, seconds = layers([20_000, 100_000_000, 100_000_000], [1e-3] * 3, [1e-3] * 3)
    algorithms = ("direct", "halving-doubling", "halving-doubling")
    found = predict(
        graph, device(collectives=(measured,)), flat(2, 2, rate=1.25e9), 4, plan=by(algorithms, graph, 4),
        seconds=seconds,
    )  # fmt: skip
    assert found.bound_s == pytest.approx(0.30003)
    assert found.iteration_s >= found.bound_s * (1 - 1e-9)


def test_halving_and_doubling_goes_directly_on_other_than_powers_of_two():
    """As `hemiola.accelerate` then does it."""
    one, other = (
        predict(GRAPH, device(), flat(6), 6, plan=by((name,) * 2, GRAPH, 6), seconds=SECONDS)
        for name in ("direct", "halving-doubling")
    )
    assert other.iteration_s == one.iteration_s
    assert {transfer.algorithm for transfer in other.transfers} == {"direct"}


def test_a_parameters_hook_runs_once_in_however_many_pieces_it_goes():
    hooks = ExchangeCost(parameter_s=0.1, bucket_s=0.0, copy_s_per_byte=0.0)
    for pieces in (1, 4):
        found = predict(
            GRAPH, device(exchange=hooks), flat(2), 2, plan=plan(pieces=pieces), options=PredictionOptions(library=FREE),
            seconds=SECONDS,
        )  # fmt: skip
        assert found.breakdown.overhead_s == pytest.approx(2 * 0.1)


def test_ddp_is_not_changed_by_there_being_plans():
    options = PredictionOptions(library=FREE)
    found = predict(
        GRAPH, device(), flat(2), 2, parse_parallelism("ddp:bucket=1B"), options=options, seconds=SECONDS
    )
    assert found.iteration_s == pytest.approx(4.0)


def test_a_library_that_cannot_pause_shares_its_links_instead():
    """Layer 1 alone for 0.5 s, then both at half the rate: layer 0 is there at x + 2.5, layer 1 at x + 3."""
    fair = PredictionOptions(
        library=Library("fair", 1 << 30, FREE.variants, "no latency, any number at once")
    )
    found = predict(GRAPH, device(), flat(2), 2, plan=plan(), options=fair, seconds=SECONDS)
    assert found.iteration_s == pytest.approx(3.0 + 0.25 + 0.5)
    assert max(t.end_s - t.start_s for t in found.transfers) == pytest.approx(3.0)
