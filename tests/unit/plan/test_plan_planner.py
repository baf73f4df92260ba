"""The planner's passes by hand, its choices, and the verb."""

from __future__ import annotations

import json
import math
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_graphs import device, flat, layers

from hemiola.cli.plan import plan as plan_verb
from hemiola.core.errors import GraphError, InputError
from hemiola.core.graph import KINDS, Graph, Operations, Parameter, Signature
from hemiola.core.hardware import CollectiveCost, Hardware
from hemiola.core.plan import ALGORITHMS, FEW, SMALL_BYTES, Piece, PlannedTransfer
from hemiola.cost.parallelism import Planned
from hemiola.cost.prediction import predict
from hemiola.plan.advice import make_plan
from hemiola.plan.caramel import batched, split, widened, with_primitives
from hemiola.plan.problem import PlanProblem
from hemiola.trace.graph_json import write_graph
from hemiola.trace.struct_json import read_plan, write_hardware

MB = 1_000_000


def late_gradients(micro_steps: int = 1) -> tuple[Graph, np.ndarray]:
    """Two layers whose backward computes the gradients of inputs first, and those of weights only then.

    0, 1 forward; 2 input gradient of layer 1; 3 of layer 0; 4 weight gradient of layer 0; 5 of layer 1. So in each
    micro-step.
    """
    each = [[], [0], [1], [2], [2], [1]]
    deps = [[6 * step + d for d in own] for step in range(micro_steps) for own in each]
    count = len(deps)
    operations = Operations(
        name=("mm",) * count, kind=np.full(count, KINDS.index("matmul"), dtype=np.int8),
        phase=np.array([0, 0, 1, 1, 1, 1] * micro_steps, dtype=np.int8),
        micro_step=np.repeat(np.arange(micro_steps, dtype=np.int16), 6),
        flop=np.ones(count), read_bytes=np.ones(count), written_bytes=np.ones(count), module=np.zeros(count, dtype=np.int64),
        forward=np.array([f + 6 * step if f >= 0 else f for step in range(micro_steps) for f in (-1, -1, 1, 0, 0, 1)]),
        signature=np.zeros(count, dtype=np.int64), dep_start=np.cumsum([0, *(len(d) for d in deps)]),
        dep=np.array([d for each in deps for d in each], dtype=np.int64),
    )  # fmt: skip
    parameters = tuple(
        Parameter(
            name=f"{i}.weight", module="", shape=(MB // 4,), dtype="float32", size_bytes=MB, gradient_bytes=MB,
            first_use=i, gradient_ready=count - 6 + ready,
        )
        for i, ready in enumerate((4, 5))
    )  # fmt: skip
    graph = Graph(name="late", operations=operations, parameters=parameters, signatures=(Signature("mm"),))
    return graph.check(), np.array([0.5, 0.5, 1.0, 1.0, 1.0, 1.0] * micro_steps)


def test_widening_brings_gradients_forward():
    graph, seconds = late_gradients()
    order = widened(graph, seconds)
    assert order == (0, 1, 5, 2, 4, 3)  # layer 1's gradient needs nothing else; then layer 0's
    early = graph.reordered(order)
    assert [p.gradient_ready for p in early.parameters] == [4, 2]
    assert early.operations.forward.tolist() == [-1, -1, 1, 1, 0, 0]
    assert (
        early.reordered(np.argsort(order).tolist()).operations.dep.tolist() == graph.operations.dep.tolist()
    )


def test_widening_leaves_the_forwards_of_micro_steps_where_they_are():
    """Only the last one's backward leads to gradients that are sent."""
    assert widened(*late_gradients(micro_steps=2)) == (*range(8), 11, 8, 10, 9)


def test_a_widened_iteration_is_predicted_shorter():
    """1 MB at 1 MB/s each. As it stands gradients are ready at 3 and 4 s after forward; widened at 1 and 3."""
    graph, seconds = late_gradients()
    problem = PlanProblem(graph, device(), flat(2, rate=1e6), 2)
    usual = problem.apart()
    wide = msgspec.structs.replace(usual, operation_order=widened(graph, seconds))
    first, second = (
        predict(graph, device(), flat(2, rate=1e6), 2, plan=p, seconds=seconds) for p in (usual, wide)
    )
    assert second.iteration_s < first.iteration_s - 0.2
    assert second.iteration_s >= first.bound_s


def test_an_order_against_the_dependencies_is_refused():
    graph, _ = late_gradients()
    with pytest.raises(GraphError, match="waits for"):
        graph.reordered((1, 0, 2, 3, 4, 5))
    with pytest.raises(GraphError, match="an order of 2 for 6"):
        graph.reordered((0, 1))


def test_batches_and_pieces_by_hand():
    graph, _ = layers([400, 800, 1200, 4000], [1] * 4, [1] * 4)
    problem = PlanProblem(graph, device(), flat(2), 2)
    together = batched(problem, problem.apart(), 1300)
    assert [[p.parameter for p in t.pieces] for t in together.transfers] == [
        ["layer.0.weight", "layer.1.weight"], ["layer.2.weight"], ["layer.3.weight"],
    ]  # fmt: skip
    assert together.transfers[0].name == "layer.0.weight and 1 more"
    pieces = split(problem, together, 1500).transfers
    assert [(p.pieces[-1].start, p.pieces[-1].stop) for p in pieces] == [
        (0, 200), (0, 300), (0, 333), (333, 666), (666, 1000),
    ]  # fmt: skip


def hardware() -> Hardware:
    """Computes 1 GFLOP/s, so that the tiny graphs' times are what their FLOP say."""
    return replace_peak(device())


def replace_peak(one: Hardware) -> Hardware:
    return msgspec.structs.replace(one, peak_flop_per_s={"float32": 1e9})


def heavy(sizes: list[int]) -> Graph:
    """Layers that take 10 ms forward and 20 ms backward on that hardware."""
    graph, _ = layers(sizes, [0] * len(sizes), [0] * len(sizes))
    flop = np.where(graph.operations.phase == 0, 1e7, np.where(graph.operations.phase == 1, 2e7, 0.0))
    return replace(graph, operations=replace(graph.operations, flop=flop))


def test_where_communication_matters_the_plan_gains_and_stays_above_the_bound():
    graph = heavy([2 * MB] * 8)  # 16 MB, 240 ms of computing
    advice = make_plan(PlanProblem(graph, hardware(), flat(2, rate=70e6), 2))
    assert advice.gain > 0.15
    assert advice.bound_s <= advice.after.iteration_s < advice.before.iteration_s
    assert advice.plan.verify(graph).changes
    assert advice.steps[0][1] == advice.before.iteration_s
    assert advice.steps[-1][1] == pytest.approx(advice.after.iteration_s)


def test_many_small_gradients_go_together():
    """Each transfer costs 2 ms of the only core, per step; 60 of them as much as all the computing."""
    graph = heavy([4000] * 60)
    costly = CollectiveCost(
        backend="hemiola", collective="all-reduce", ranks=2, hosts=("a", "b"), alpha_s=1e-4, bytes_per_s=1e9,
        cpu_s_per_step=2e-3,
    )  # fmt: skip
    one_core = replace_peak(device("cpu", cores=1, collectives=(costly,)))
    advice = make_plan(PlanProblem(graph, one_core, flat(2, rate=125e6), 2))
    assert len(advice.plan.transfers) < 30
    assert any("go together" in change for change in advice.plan.changes)


@pytest.mark.parametrize(("gpus", "named"), [(8, {"ring", "halving-doubling"}), (1, {""})])
def test_a_plan_names_the_algorithms_that_were_priced(gpus, named):
    """What names none goes directly: 8 ranks of a host then send 8 times 8 / 16 of a tensor, twice; a ring sends 15 / 8."""
    problem = PlanProblem(heavy([2 * MB] * 8), hardware(), flat(2, gpus, rate=70e6), 2 * gpus)
    plan = make_plan(problem).plan
    algorithms = {transfer.algorithm for transfer in plan.transfers}
    assert algorithms <= named
    assert any("ring" in change or "halving" in change for change in plan.changes) == (algorithms != {""})
    for transfer in plan.transfers:
        size = transfer.size_bytes(problem.by_name)
        executed, priced = problem.cost(size, transfer.algorithm or "direct"), problem.cost(size)
        assert executed.seconds(problem.place) == pytest.approx(priced.seconds(problem.place))


@pytest.mark.parametrize(("gpus", "named"), [(4, [False, True]), (5, [True, True])])
def test_small_transfers_of_few_ranks_name_no_algorithm(gpus, named):
    """8 ranks send them to everybody at once, in one step; of 10 ranks nothing goes so."""
    problem = PlanProblem(
        heavy([SMALL_BYTES, SMALL_BYTES + 4]), hardware(), flat(2, gpus, rate=1e3), 2 * gpus
    )
    plan = with_primitives(problem, problem.apart())
    assert [bool(transfer.algorithm) for transfer in plan.transfers] == named


def test_those_are_the_ones_that_the_executor_sends_so():
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'hemiola[torch]'")
    from hemiola.train.accelerate import exchange

    assert (SMALL_BYTES, FEW) == (exchange.SMALL_BYTES, exchange.FEW)


def test_one_rank_has_nothing_to_gain():
    advice = make_plan(PlanProblem(heavy([MB] * 3), hardware(), flat(1), 1))
    assert advice.gain == pytest.approx(0.0)


def test_the_verb_writes_a_plan_that_predict_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from hemiola.cli.predict import predict as predict_verb

    graph, chip, out = tmp_path / "g.json", tmp_path / "h.json", tmp_path / "p.json"
    write_graph(heavy([2 * MB] * 8), graph)
    write_hardware(hardware(), chip)
    asked = {"hardware": str(chip), "topology": "flat:hosts=2,gpus_per_host=1,nic=500mbit", "ranks": 2}
    plan_verb(graph, **asked, output=out, json=True)
    said = json.loads(capsys.readouterr().out)
    assert said["before_s"] > said["after_s"] >= said["bound_s"]
    assert said["gain"] == pytest.approx(said["before_s"] / said["after_s"] - 1)
    assert len(read_plan(out).transfers) == len(said["plan"]["transfers"])
    predict_verb(graph, **asked, plan=out, json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["iteration_s"] == pytest.approx(said["after_s"])
    assert found["strategy"] == "plan:accelerated"
    plan_verb(graph, **asked)
    assert "times as fast" in capsys.readouterr().out
    with pytest.raises(InputError, match="no folder"):
        plan_verb(graph, **asked, output=Path("/nowhere/p.json"))


def test_a_plan_is_written_whoever_reads(tmp_path: Path, unread: TextIO):
    graph, chip, out = tmp_path / "g.json", tmp_path / "h.json", tmp_path / "p.json"
    write_graph(heavy([MB] * 3), graph)
    write_hardware(hardware(), chip)
    with redirect_stdout(unread), pytest.raises(SystemExit):
        plan_verb(
            graph, hardware=str(chip), topology="flat:hosts=2,gpus_per_host=1,nic=1gbit", ranks=2, output=out
        )
    assert len(read_plan(out).transfers)


def sending(
    bytes_per_s: float = 1e9, cpu_s_per_byte: float = 0.0, cpu_s_per_step: float = 0.0
) -> CollectiveCost:
    """Two ranks' all-reduces over the transport, at no latency to speak of."""
    return CollectiveCost(
        backend="hemiola", collective="all-reduce", ranks=2, hosts=("a", "b"), alpha_s=1e-9, bytes_per_s=bytes_per_s,
        cpu_s_per_byte=cpu_s_per_byte, cpu_s_per_step=cpu_s_per_step,
    )  # fmt: skip


def test_what_is_ready_last_and_used_first_bounds_every_order_of_transfers():
    """3 s of layer 0 go between the end of backward and the next forward, beside 4 s of computing; the
    processor alone and the link alone would be done in 4."""
    graph, seconds = layers([300, 100], [1.0, 1.0], [1.0, 1.0])
    collective = sending()
    problem = PlanProblem(
        graph, device(collectives=(collective,)), flat(2, rate=100 * 1514 / 1448), 2, seconds=seconds
    )
    found = problem.predict(problem.apart())
    assert found.bound_s == pytest.approx(4.0)
    assert found.transfer_bound_s == pytest.approx(7.0)
    assert found.iteration_s == pytest.approx(7.0)


def test_what_sending_takes_from_computing_is_lost_around_the_window():
    """As before, on one core of which each byte takes 5 ms: the 100 bytes of layer 1 take 0.5 s from the 4 s of computing,
    while layer 0's, which go when nothing is computed, take nothing."""
    graph, seconds = layers([300, 100], [1.0, 1.0], [1.0, 1.0])
    collective = sending(cpu_s_per_byte=5e-3)
    one_core = device("cpu", cores=1, collectives=(collective,))
    problem = PlanProblem(graph, one_core, flat(2, rate=100 * 1514 / 1448), 2, seconds=seconds)
    found = problem.predict(problem.apart())
    assert found.transfer_bound_s == pytest.approx(7.5)
    assert found.iteration_s == pytest.approx(7.5)


def test_a_rank_that_sends_slower_than_its_link_bounds_every_order():
    graph, seconds = layers([300, 100], [0.1, 0.1], [0.1, 0.1])
    collective = sending(50.0)
    problem = PlanProblem(
        graph, device(collectives=(collective,)), flat(2, rate=100 * 1514 / 1448), 2, seconds=seconds
    )
    found = problem.predict(problem.apart())
    assert found.bound_s == pytest.approx(8.0)
    assert found.transfer_bound_s == pytest.approx(
        0.2 + 8.0
    )  # nothing is sent while layer 1 goes forward and backward
    assert found.iteration_s >= found.transfer_bound_s * (1 - 1e-9)


def test_a_rank_sends_once_what_loads_several_links():
    """Directly among 2 hosts of 2, of 400 bytes 800 leave a host while each rank sends 600: 12 s at 50 bytes/s."""
    graph, seconds = layers([300, 100], [0.1, 0.1], [0.1, 0.1])
    links = flat(2, 2, rate=1e4, fabric=1e4)
    problem = PlanProblem(graph, device(collectives=(sending(50.0),)), links, 4, seconds=seconds)
    plan = problem.apart()
    directly = tuple(msgspec.structs.replace(t, algorithm="direct") for t in plan.transfers)
    found = problem.predict(msgspec.structs.replace(plan, transfers=directly))
    assert found.bound_s == pytest.approx(12.0)
    assert found.transfer_bound_s == pytest.approx(0.2 + 12.0)
    assert found.iteration_s == pytest.approx(0.2 + 12.0)


@settings(max_examples=120)
@given(
    st.lists(st.tuples(st.integers(4, 900), st.floats(0.01, 3), st.floats(0.01, 3)), min_size=1, max_size=6),
    st.floats(20, 2000),
    st.sampled_from([0.0, 1e-4, 3e-3]),
    st.sampled_from([0.0, 0.3, 4.0]),
    st.sampled_from([30.0, 1e9]),
    st.sampled_from([0.5, 1, 2]),
    st.sampled_from([1, 2]),
    st.data(),
)
def test_no_order_of_transfers_beats_its_bound(
    chain, rate, cpu_s_per_byte, cpu_s_per_step, own_rate, cores, gpus, data
):
    graph, seconds = layers(*(list(column) for column in zip(*chain, strict=True)), 0.2)
    collective = sending(own_rate, cpu_s_per_byte, cpu_s_per_step)
    machine = device("cpu", cores=cores, collectives=(collective,))
    problem = PlanProblem(graph, machine, flat(2, gpus, rate=rate, fabric=100.0), 2 * gpus, seconds=seconds)
    plan = problem.apart()
    count = len(plan.transfers)
    urgency = data.draw(st.lists(st.integers(0, count), min_size=count, max_size=count))
    by = data.draw(st.lists(st.sampled_from(ALGORITHMS), min_size=count, max_size=count))
    transfers = tuple(
        msgspec.structs.replace(t, priority=p, algorithm=algorithm)
        for t, p, algorithm in zip(plan.transfers, urgency, by, strict=True)
    )
    for one in (msgspec.structs.replace(plan, transfers=transfers), problem.usual()):
        found = problem.predict(one)
        assert found.iteration_s >= found.transfer_bound_s * (1 - 1e-9) >= found.bound_s * (1 - 2e-9)


def test_what_goes_whole_and_together_stays_in_its_buffer():
    """300 and 100 bytes in a buffer are copied into it and stay; of a part, copies go both ways and lie beside."""
    graph, seconds = layers([300, 100], [1.0, 1.0], [1.0, 1.0])
    problem = PlanProblem(graph, device(collectives=(sending(),)), flat(2, rate=100), 2, seconds=seconds)
    whole = [Piece(parameter.name, 0, math.prod(parameter.shape)) for parameter in graph.parameters]
    half = Piece(whole[0].parameter, 0, whole[0].stop // 3)
    rest = Piece(whole[0].parameter, half.stop, whole[0].stop)

    def planned(*transfers: tuple[Piece, ...]) -> Planned:
        named = tuple(PlannedTransfer(name=str(n), pieces=pieces) for n, pieces in enumerate(transfers))
        return Planned(msgspec.structs.replace(problem.apart(), transfers=named))

    alone, together = planned((whole[0],), (whole[1],)), planned(tuple(whole))
    parts = planned((half, whole[1]), (rest,))
    least = alone.memory_bytes(graph, 2)
    assert [parallelism.memory_bytes(graph, 2) - least for parallelism in (together, parts)] == [400, 200]
    copied = [
        [(t.pack_bytes, t.unpack_bytes) for t in s.transfers(graph, 2)] for s in (alone, together, parts)
    ]
    assert sorted(map(sorted, copied)) == sorted(
        map(sorted, [[(0, 0), (0, 0)], [(400, 0)], [(200, 100), (0, 0)]])
    )
