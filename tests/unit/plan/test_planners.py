"""Every planner by name: its plan is proved, its verbs know it; and what one refuses, chained or from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_graphs import device, flat, layers

from hemiola.cli.plan import plan as plan_verb
from hemiola.cli.plan import planners as planners_verb
from hemiola.cli.predict import predict as predict_verb
from hemiola.core.errors import GraphError, InputError, PlanError
from hemiola.core.graph import Graph
from hemiola.core.plan import Piece, Plan
from hemiola.core.topology import Topology
from hemiola.plan.advice import make_plan
from hemiola.plan.auto import Auto
from hemiola.plan.baselines import Ddp, FifoOrder, FirstUse
from hemiola.plan.bytescheduler import ByteScheduler
from hemiola.plan.caramel import Caramel
from hemiola.plan.p3 import P3
from hemiola.plan.planner import Planner, planned
from hemiola.plan.planners import PLANNERS, planners_from_text
from hemiola.plan.problem import PlanProblem
from hemiola.plan.tictac import Tac, Tic
from hemiola.trace.graph_json import write_graph
from hemiola.trace.struct_json import read_plan, write_hardware

NAMES = (*PLANNERS, "tictac")
CHAINS = (
    "caramel,tac",
    "first-use,tic",
    "ddp,first-use,tac",
    "p3:elements=700,tac",
    "caramel:widen=yes,p3",
    "tac,auto",
)


def problem(sizes: list[int] | None = None, ranks: int = 2, rate: float = 70e6) -> PlanProblem:
    sizes = sizes or [4000, 400_000, 40, 80_000]
    graph, seconds = layers(sizes, [0.01] * len(sizes), [0.02] * len(sizes), 0.001)
    return PlanProblem(graph, device("cpu"), flat(ranks, rate=rate), ranks, seconds=seconds)


def order(plan: Plan) -> list[str]:
    """Parameters, the most urgent first."""
    by_urgency = sorted(plan.transfers, key=lambda transfer: transfer.priority)
    return [piece.parameter for transfer in by_urgency for piece in transfer.pieces]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_plan_is_proved(name: str, ranks: int) -> None:
    it = problem(ranks=ranks)
    advice = make_plan(it, planners_from_text(name))
    advice.plan.verify(it.graph)
    assert advice.planners == (planners_from_text(name)[0].name,)
    assert advice.steps[0] == ("buckets of 25 MiB (DDP)", advice.before.iteration_s)
    assert len(advice.steps) > 1
    assert advice.after.iteration_s >= advice.bound_s * (1 - 1e-9)


@pytest.mark.parametrize("texts", CHAINS)
def test_every_chain_is_proved(texts: str) -> None:
    it, chosen = problem(), planners_from_text(texts)
    names = ", ".join(planner.name for planner in chosen)
    plan = make_plan(it, chosen).plan.verify(it.graph)
    assert plan == msgspec.structs.replace(planned(it, *chosen), name=names)


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.integers(1, 5000).map(lambda n: 4 * n), min_size=1, max_size=5),
    st.lists(
        st.sampled_from(["first-use", "tic", "tac", "p3:elements=900", "caramel", "auto"]),
        min_size=1,
        max_size=3,
    ),
)
def test_planners_follow_one_another_in_any_order(sizes: list[int], names: list[str]) -> None:
    it = problem(sizes)
    planned(it, *planners_from_text(names)).verify(it.graph)


@pytest.mark.parametrize("name", NAMES)
def test_a_planner_is_a_frozen_value(name: str) -> None:
    (one,), (other,) = planners_from_text(name), planners_from_text(name)
    assert one == other and hash(one) == hash(other) and one.source
    with pytest.raises((FrozenInstanceError, TypeError)):
        one.anything = 1  # type: ignore[attr-defined]
    assert (
        len(
            [
                method
                for method in vars(Planner)
                if not method.startswith("_") and callable(getattr(Planner, method))
            ]
        )
        <= 3
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_improve_returns_is_the_last_pass(name: str) -> None:
    it, (planner,) = problem(), planners_from_text(name)
    *_, (_, last) = planner.passes(it.graph, it.topology, it, it.apart())
    assert last == planner.improve(it.graph, it.topology, it, it.apart())


# What each does, by hand.


def test_parameters_and_commas() -> None:
    found = planners_from_text(["bytescheduler:partition_bytes=100,partitions=2,tictac", "p3:elements=9"])
    assert found == (ByteScheduler(100, 2), Tac(), P3(9))
    assert planners_from_text("caramel:widen=yes, auto") == (Caramel(widen=True), Auto())


def test_fifo_goes_by_gradients_and_first_use_by_forward() -> None:
    it = problem([400, 800, 1200])
    backward = [f"layer.{i}.weight" for i in (2, 1, 0)]
    last = planned(it, FifoOrder())
    assert (order(last), last.update) == (backward, "together")
    first = planned(it, FifoOrder(), FirstUse())
    assert (order(first), first.update) == (backward[::-1], "on-arrival")
    assert planned(it, FirstUse()) == it.apart()


def test_ddp_begins_anew() -> None:
    it = problem()
    assert planned(it, P3(100), Ddp()) == it.usual()


def test_slices_keep_what_others_chose() -> None:
    """P3 takes a bucket apart; a table's rows stay whole, in their place."""
    it = problem([400, 800])
    from_buckets = planned(it, Ddp(), P3(150))
    assert from_buckets.transfers == planned(it, P3(150)).transfers
    assert [(t.name, t.pieces) for t in from_buckets.transfers] == [
        ("layer.0.weight [0]", (Piece("layer.0.weight", 0, 100),)),
        ("layer.1.weight [0]", (Piece("layer.1.weight", 0, 150),)),
        ("layer.1.weight [1]", (Piece("layer.1.weight", 150, 200),)),
    ]
    table = msgspec.structs.replace(it.graph.parameters[1], shape=(10, 20), touched=0.5)
    graph = replace(it.graph, parameters=(it.graph.parameters[0], table))
    rows = replace(it, graph=graph)
    found = P3(60).improve(graph, rows.topology, rows, rows.apart(by_rows=True)).verify(graph)
    assert [(t.name, t.part) for t in found.transfers] == [
        ("layer.0.weight [0]", "all"), ("layer.0.weight [1]", "all"), ("layer.1.weight (rows)", "rows"),
    ]  # fmt: skip


def test_bytescheduler_counts_bytes_and_writes_its_credit_down() -> None:
    found = planned(problem([4000]), ByteScheduler(partition_bytes=1600, partitions=3))
    assert [piece.stop - piece.start for t in found.transfers for piece in t.pieces] == [400, 400, 200]
    assert found.chunk_bytes == 4800


def apart_layers(sizes: list[int], forward: list[float]) -> PlanProblem:
    """Layers that wait for nothing but their own parameter."""
    graph, seconds = layers(sizes, forward, [0.01] * len(sizes))
    operations, count = graph.operations, len(graph.operations)
    alone = replace(
        operations, dep_start=np.zeros(count + 1, dtype=np.int64), dep=np.zeros(0, dtype=np.int64)
    )
    return PlanProblem(replace(graph, operations=alone), device("cpu"), flat(2, rate=1e6), 2, seconds=seconds)


def test_tac_sends_by_johnsons_rule_where_layers_wait_for_their_own_alone() -> None:
    """(transfer, compute) about (3, 6), (5, 2), (1, 2), (6, 6), (7, 5) s: Johnson's example (1954) goes 2, 0, 3, 4, 1."""
    it = apart_layers([size * 1_000_000 for size in (3, 5, 1, 6, 7)], [6.0, 2.0, 2.0, 6.0, 5.0])
    found = planned(it, Tac())
    assert order(found) == [f"layer.{i}.weight" for i in (2, 0, 3, 4, 1)]
    assert found.update == "on-arrival"
    assert planned(it, FirstUse()) == it.apart() != found


def test_tic_gives_equals_one_rank_and_goes_by_how_many_a_layer_waits_for() -> None:
    chain = planned(problem([400, 800, 1200]), Tic())
    assert order(chain) == [f"layer.{i}.weight" for i in range(3)]
    assert {t.priority for t in planned(apart_layers([4, 8, 12], [1.0] * 3), Tic()).transfers} == {0}


def test_tac_orders_what_goes_together_as_one() -> None:
    it = problem([400, 800, 1200])
    buckets = planned(it, Ddp(), FirstUse())
    found = planned(it, Ddp(), FirstUse(), Tac())
    assert [t.pieces for t in found.transfers] == [t.pieces for t in buckets.transfers]


def test_what_no_forward_reads_goes_last() -> None:
    it = problem([400, 800, 1200])
    first, *others = it.graph.parameters
    it = replace(
        it, graph=replace(it.graph, parameters=(msgspec.structs.replace(first, first_use=-1), *others))
    )
    assert order(planned(it, Tac())) == [f"layer.{i}.weight" for i in (1, 2, 0)]


@pytest.mark.parametrize("planner", [Tic(), Tac()])
def test_tictac_says_what_it_cannot_order(planner: Planner) -> None:
    it = problem([400, 800])
    with pytest.raises(PlanError, match="waits for all transfers before") as caught:
        planned(it, Ddp(), planner)
    assert "first-use,tac" in caught.value.remedy
    unread = tuple(msgspec.structs.replace(p, first_use=-1) for p in it.graph.parameters)
    it = replace(it, graph=replace(it.graph, parameters=unread))
    with pytest.raises(GraphError, match="TicTac has nothing to order") as graph_error:
        planned(it, planner)
    assert "capture" in graph_error.value.remedy


def test_caramel_orders_operations_if_asked_to() -> None:
    it = problem([400, 800])
    assert planned(it, Caramel()).operation_order == ()
    widened = planned(it, Caramel(widen=True))
    assert sorted(widened.operation_order) == list(range(len(it.graph.operations)))
    twice = planned(it, Caramel(widen=True), Caramel(widen=True), Tac())
    assert twice.verify(it.graph).operation_order == widened.operation_order


def test_auto_is_never_predicted_to_be_slower_than_what_it_is_given() -> None:
    it = problem([4000] * 6, rate=1e6)
    for before in (Ddp(), Tac(), P3(100)):
        given_s = it.predict(planned(it, before)).iteration_s
        assert it.predict(planned(it, before, Auto())).iteration_s <= given_s * 1.003


# From outside, and what is wrong.

OUTSIDE = '''
from __future__ import annotations
from dataclasses import dataclass
import msgspec
from hemiola.plan.planner import Planner

@dataclass(frozen=True)
class Backwards(Planner):
    """The other way round."""
    shift: int = 0
    def improve(self, graph, topology, cost, plan):
        turned = tuple(msgspec.structs.replace(t, priority=self.shift - t.priority) for t in plan.transfers)
        return msgspec.structs.replace(plan, name="backwards", transfers=turned)

READY = Backwards(shift=7)

class Loses(Planner):
    def improve(self, graph, topology, cost, plan):
        return msgspec.structs.replace(plan, transfers=plan.transfers[1:])

class Forgets(Planner):
    def improve(self, graph, topology, cost, plan):
        return None
'''


@pytest.fixture()
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "someones_planner.py").write_text(OUTSIDE)
    yield f"{tmp_path}/someones_planner.py"


@pytest.mark.parametrize(
    ("text", "priorities"), [("Backwards,shift=2", [2, 1]), ("READY", [7, 6]), ("READY,shift=9", [9, 8])]
)
def test_one_from_a_file_plans_like_any_other(outside: str, text: str, priorities: list[int]) -> None:
    it = problem([400, 800])
    plan = make_plan(it, planners_from_text(f"first-use,{outside}:{text}")).plan
    assert [t.priority for t in plan.transfers] == priorities
    assert plan.name == "first-use, Backwards"


def test_one_from_a_module(outside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(outside).parent))
    assert type(planners_from_text("someones_planner:Backwards")[0]).__name__ == "Backwards"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{0}:Loses", "the planner Loses: 'layer.0.weight' has 100 elements, of which 0 are reduced"),
        ("{0}:Forgets", "the planner Forgets made no plan but None"),
        ("{0}:Nothing", "has no 'Nothing'"),
        ("{0}:OUTSIDE", "has no 'OUTSIDE'"),
        ("{0}:msgspec", "has no method improve(graph, topology, cost, plan)"),
        ("/nowhere/mine.py:Mine", "there is no file '/nowhere/mine.py'"),
        ("p3:elements=0", "slices of 0 elements"),
        ("bytescheduler:partitions=0", "partitions=0"),
        ("p3:size=3", "no parameter is called 'size'"),
        ("tacc", "no planner is called 'tacc'"),
        ("tac,p4", "no planner is called 'p4'"),
        (",", "no planner is named"),
    ],
)
def test_whatever_is_wrong_is_named(outside: str, text: str, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(problem([400, 800]), planners_from_text(text.format(outside)))
    assert said in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "meant"), [("tacc", "tac"), ("byteschedular", "bytescheduler"), ("Caramel", "caramel")]
)
def test_a_near_miss_is_guessed(text: str, meant: str) -> None:
    with pytest.raises(PlanError) as caught:
        planners_from_text(text)
    assert f"did you mean {meant!r}?" in caught.value.remedy
    assert all(name in caught.value.remedy for name in PLANNERS)


# The verbs.


@dataclass(frozen=True)
class Asked:
    """A graph's file, and what else the verbs are asked."""

    graph: Path
    rest: dict[str, object]


@pytest.fixture()
def asked(tmp_path: Path) -> Asked:
    graph, _ = layers([2_000_000] * 3, [0] * 3, [0] * 3)
    flop = np.where(graph.operations.phase == 0, 1e7, np.where(graph.operations.phase == 1, 2e7, 0.0))
    write_graph(replace(graph, operations=replace(graph.operations, flop=flop)), tmp_path / "g.json")
    write_hardware(msgspec.structs.replace(device(), peak_flop_per_s={"float32": 1e9}), tmp_path / "h.json")
    rest = {
        "hardware": str(tmp_path / "h.json"),
        "topology": "flat:hosts=2,gpus_per_host=1,nic=500mbit",
        "ranks": 2,
    }
    return Asked(tmp_path / "g.json", rest)


@pytest.mark.parametrize("name", [*NAMES, "caramel,tac"])
def test_both_verbs_take_each_by_name(
    asked: Asked, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_verb(asked.graph, **asked.rest, planner=(name,), output=tmp_path / "p.json", json=True)  # type: ignore[arg-type]
    said = json.loads(capsys.readouterr().out)
    assert said["planners"] == [planner.name for planner in planners_from_text(name)]
    assert (said["schema"], len(said["steps"]) >= 2) == ("hemiola.advice/1", True)
    predict_verb(asked.graph, **asked.rest, planner=(name,), json=True)  # type: ignore[arg-type]
    found = json.loads(capsys.readouterr().out)
    assert found["iteration_s"] == pytest.approx(said["after_s"])
    assert found["strategy"] == f"plan:{read_plan(tmp_path / 'p.json').name}"


def test_predict_refuses_a_plan_that_has_no_room(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "p.json"
    plan_verb(asked.graph, **asked.rest, planner=("tac",), output=made)  # type: ignore[arg-type]
    predict_verb(asked.graph, **asked.rest, plan=made, json=True)  # type: ignore[arg-type]
    for other, said in (
        ({"ranks": 1}, f"the plan in {made} is for 2 ranks, not for 1"),
        ({"topology": "flat:hosts=1,gpus_per_host=1,nic=500mbit"}, "is for 2 ranks, and '.*' has 1 GPUs"),
        ({"placement": "2,0"}, r"\(2, 0\) puts 2 ranks on host 'n0', which has 1 GPUs"),
    ):
        with pytest.raises(PlanError, match=said):
            predict_verb(asked.graph, **asked.rest | other, plan=made)  # type: ignore[arg-type]


def test_the_table_shows_each_beside_ddp_and_the_bound(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_verb(asked.graph, **asked.rest, planner=("fifo", "p3,tac"))  # type: ignore[arg-type]
    out = capsys.readouterr().out
    rows = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")]
    assert rows == ["buckets of 25 MiB (DDP)", "fifo", "p3", "tac"]
    assert "no order of the same work takes less than" in out


def test_planners_stand_alone_in_predict(asked: Asked) -> None:
    for other in ({"parallelism": "fsdp"}, {"library": "nccl"}, {"plan": Path("p.json")}):
        (name,) = other
        with pytest.raises(InputError, match=f"--{name} .* beside --planner tac"):
            predict_verb(asked.graph, **asked.rest, planner=("tac",), **other)  # type: ignore[arg-type]


def test_the_list_names_all_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    planners_verb()
    out = capsys.readouterr().out
    assert all(name in out for name in PLANNERS)
    assert "elements=50000" in out and "MLSys 2019" in " ".join(out.split())


def test_the_seam_is_one_method() -> None:
    class Same(Planner):
        def improve(self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan) -> Plan:
            return plan

    it = problem()
    assert make_plan(it, (Same(),)).plan == it.apart()
    assert make_plan(it, (Same(),)).steps[1][0] == "Same"
