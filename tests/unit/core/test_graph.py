"""A graph refuses what cannot be, naming the operation or parameter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from hemiola.core.errors import GraphError
from hemiola.core.graph import KINDS, Graph, Operations, Parameter, Signature


def chain(count: int = 3) -> Graph:
    """Operations one after the other, each on the one before, and one parameter."""
    integers = np.zeros(count, dtype=np.int64)
    operations = Operations(
        name=tuple(f"aten.op{i}.default" for i in range(count)),
        kind=np.full(count, KINDS.index("elementwise"), dtype=np.int8),
        phase=np.zeros(count, dtype=np.int8),
        micro_step=np.zeros(count, dtype=np.int16),
        flop=np.arange(count, dtype=np.float64),
        read_bytes=np.ones(count),
        written_bytes=np.ones(count),
        module=integers,
        forward=np.full(count, -1, dtype=np.int64),
        signature=integers,
        dep_start=np.array([0, *range(count)], dtype=np.int64),
        dep=np.arange(count - 1, dtype=np.int64),
    )
    parameter = Parameter(name="w", module="", shape=(2, 3), dtype="float32", size_bytes=24, first_use=0)
    return Graph("chain", operations, signatures=(Signature("aten.op.default"),), parameters=(parameter,))


def test_what_a_graph_knows() -> None:
    graph = chain().check()
    assert len(graph.operations) == 3
    assert graph.flop == 0 + 1 + 2
    assert graph.parameter_bytes == 24
    assert [graph.operations.dependencies(i).tolist() for i in range(3)] == [[], [0], [1]]


def test_an_empty_graph_is_one() -> None:
    empty = chain(0)
    operations = replace(
        empty.operations, dep_start=np.zeros(1, dtype=np.int64), dep=np.empty(0, dtype=np.int64)
    )
    assert replace(empty, operations=operations, parameters=()).check().flop == 0


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("kind", [0, 99, 0], r"operation 1 \(aten.op1.default\): kind is 99"),
        ("phase", [0, 0, 3], "operation 2 .*: phase is 3"),
        ("module", [0, 1, 0], "module is 1, not in 0..0"),
        ("signature", [0, 0, -1], "signature is -1"),
        ("forward", [-1, -1, 3], "forward is 3"),
        ("forward", [-2, -1, -1], "forward is -2"),
        ("micro_step", [0, -1, 0], "micro_step is -1"),
        ("kind", [0, 0], "kind has 2 entries for 3 operations"),
        ("flop", [0.0, np.nan, 0.0], "flop: operation 1"),
        ("read_bytes", [0.0, 0.0, -1.0], "read_bytes: operation 2"),
        ("written_bytes", [np.inf, 0.0, 0.0], "written_bytes: operation 0"),
        ("flop", [1.0], "flop: 1 entries"),
        ("dep", [0, 2], r"operation 2 \(aten.op2.default\) waits for 2"),
        ("dep", [0, -1], "waits for -1"),
        ("dep", [0], "offsets do not fit"),
        ("dep_start", [0, 0, 1], "offsets do not fit"),
        ("dep_start", [0, 2, 1, 2], "offsets do not fit"),
        ("dep_start", [1, 1, 1, 2], "offsets do not fit"),
    ],
)
def test_impossible_columns_are_named(column: str, values: list[Any], said: str) -> None:
    graph = chain()
    kind = getattr(graph.operations, column).dtype
    operations = replace(graph.operations, **{column: np.array(values, dtype=kind)})
    with pytest.raises(GraphError, match=said):
        replace(graph, operations=operations).check()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size_bytes": -1}, "'w' has a negative size"),
        ({"gradient_bytes": -1}, "'w' has a negative size"),
        ({"first_use": 3}, "'w': first_use is 3"),
        ({"gradient_ready": -2}, "'w': gradient_ready is -2"),
        ({"updated": 17}, "'w': updated is 17"),
        ({"aliases": ("w",)}, "'w' appears twice"),
    ],
)
def test_impossible_parameters_are_named(changes: dict[str, Any], said: str) -> None:
    graph = chain()
    parameter = msgspec.structs.replace(graph.parameters[0], **changes)
    with pytest.raises(GraphError, match=said):
        replace(graph, parameters=(parameter,)).check()


def test_blocks_are_modules() -> None:
    with pytest.raises(GraphError, match=r"the block 'layers\.0' is no module"):
        replace(chain(), blocks=("layers.0",)).check()
