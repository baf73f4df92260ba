"""Graphs as files: nothing is lost, and what is no graph is refused in words."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import GraphError, HemiolaError, InputError
from hemiola.core.graph import KINDS, PHASES, Buffer, Graph, Operations, Parameter, Signature
from hemiola.trace.graph_json import read_graph, write_graph

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
) | st.fixed_dictionaries({"shape": st.lists(st.integers(0, 9), max_size=3), "dtype": st.just("float32")})
SIGNATURES = st.builds(
    Signature,
    st.text(max_size=8),
    st.lists(VALUES, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=3), VALUES, max_size=2),
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph that passes its own check."""
    count = draw(st.integers(0, 6))
    signatures = draw(st.lists(SIGNATURES, min_size=1, max_size=3))
    column = lambda low, high: draw(st.lists(st.integers(low, high), min_size=count, max_size=count))  # noqa: E731
    amounts = lambda: draw(st.lists(st.floats(0, 1e18), min_size=count, max_size=count))  # noqa: E731
    waits = [sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(count)]
    operations = Operations(
        name=tuple(draw(st.sampled_from(["aten.mm.default", "aten.t.default"])) for _ in range(count)),
        kind=np.array(column(0, len(KINDS) - 1), dtype=np.int8),
        phase=np.array(column(0, len(PHASES) - 1), dtype=np.int8),
        micro_step=np.array(column(0, 300), dtype=np.int16),
        flop=np.array(amounts(), dtype=np.float64),
        read_bytes=np.array(amounts(), dtype=np.float64),
        written_bytes=np.array(amounts(), dtype=np.float64),
        module=np.array(column(0, 1), dtype=np.int64),
        forward=np.array(column(-1, count - 1), dtype=np.int64),
        signature=np.array(column(0, len(signatures) - 1), dtype=np.int64),
        dep_start=np.cumsum([0, *map(len, waits)], dtype=np.int64),
        dep=np.array([row for rows in waits for row in rows], dtype=np.int64),
    )
    rows = st.integers(-1, count - 1)
    parameters = tuple(
        Parameter(
            name=f"{i}", aliases=draw(st.sampled_from([(), (f"{i}'",)])), module="layer", shape=(3, 2), dtype="bfloat16",
            size_bytes=12, gradient_bytes=draw(st.sampled_from([0, 12])), trainable=draw(st.booleans()),
            first_use=draw(rows), gradient_ready=draw(rows), updated=draw(rows),
        )
        for i in range(draw(st.integers(0, 3)))
    )  # fmt: skip
    return Graph(
        name=draw(st.text(max_size=5)),
        operations=operations,
        modules=("", "layer"),
        blocks=draw(st.sampled_from([(), ("layer",)])),
        signatures=tuple(signatures),
        parameters=parameters,
        buffers=(Buffer(name="mean", module="layer", shape=(), dtype="float32", size_bytes=4),),
        samples=draw(st.integers(0, 99)),
        saved_bytes=draw(st.floats(0, 1e15)),
        optimizer_bytes=draw(st.floats(0, 1e15)),
        source=draw(st.text(max_size=5)),
    )


def same(one: Graph, other: Graph) -> bool:
    columns = [field.name for field in fields(Operations) if field.name != "name"]
    pairs = [(getattr(one.operations, name), getattr(other.operations, name)) for name in columns]
    return (
        all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)
        and one.operations.name == other.operations.name
        and all(
            repr(getattr(one, field.name)) == repr(getattr(other, field.name))
            for field in fields(Graph)
            if field.name != "operations"
        )
    )


@given(graph=graphs())
def test_nothing_is_lost(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("graphs")
    for name in ("job.graph.json", "job.graph.json.gz"):
        write_graph(graph, folder / name)
        assert same(read_graph(folder / name), graph)


SAMPLE = Graph(
    "sample",
    Operations(
        name=("aten.masked_fill.Scalar", "aten.mm.default"),
        kind=np.array([6, 0], dtype=np.int8),
        phase=np.array([0, 1], dtype=np.int8),
        micro_step=np.zeros(2, dtype=np.int16),
        flop=np.array([0.0, 64.0]),
        read_bytes=np.array([8.0, 16.0]),
        written_bytes=np.array([8.0, 4.0]),
        module=np.zeros(2, dtype=np.int64),
        forward=np.array([-1, 0]),
        signature=np.array([0, 1]),
        dep_start=np.array([0, 0, 1]),
        dep=np.array([0]),
    ),
    signatures=(
        Signature("aten.masked_fill.Scalar", ({"shape": [2], "dtype": "float32", "stride": [1]}, -math.inf)),
        Signature("aten.mm.default", (1.5, [math.inf, math.nan]), {"dtype": "torch.float32"}),
    ),
    parameters=(Parameter(name="w", module="", shape=(2,), dtype="float32", size_bytes=8),),
)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "job.graph.json"
    write_graph(SAMPLE, path)
    return path


def test_what_json_has_no_word_for(written: Path) -> None:
    assert same(read_graph(written), SAMPLE)
    json.loads(written.read_text(encoding="utf-8"), parse_constant=pytest.fail)  # strict JSON: no bare NaN


def test_the_file_says_what_it_is(written: Path) -> None:
    content = json.loads(written.read_text(encoding="utf-8"))
    assert content["schema"] == "hemiola.graph/1"
    assert content["operations"]["names"] == ["aten.masked_fill.Scalar", "aten.mm.default"]
    assert content["kinds"] == list(KINDS)


def damaged(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda c: c.update(schema="hemiola.graph/2"),
            "'hemiola.graph/2'; this Hemiola reads 'hemiola.graph/1'",
        ),
        (lambda c: c.update(schema="hemiola.comparison/1"), "its schema is 'hemiola.comparison/1'"),
        (lambda c: c.pop("schema"), "its schema is ''"),
        (lambda c: c.pop("operations"), "missing required field `operations`"),
        (lambda c: c.update(surprise=1), "unknown field `surprise`"),
        (lambda c: c["parameters"][0].update(trained=True), "unknown field `trained`"),
        (lambda c: c["signatures"][0].update(shape=[1]), "unknown field `shape`"),
        (lambda c: c["operations"].pop("dep"), "missing required field `dep`"),
        (
            lambda c: c["operations"].update(flop=["much", 1]),
            r"Expected `float`, got `str` - at `\$.operations.flop",
        ),
        (lambda c: c["operations"].update(name=[0, 9]), "out of range"),
        (lambda c: c["operations"].update(name=[0, -1]), "negative"),
        (lambda c: c["operations"].update(kind=[0]), "kind has 1 entries for 2 operations"),
        (lambda c: c["operations"].update(kind=[0, 300]), "300"),
        (lambda c: c["operations"].update(dep=[1]), "waits for 1"),
        (lambda c: c["operations"].update(dep=[10**30]), "damaged"),
        (lambda c: c.update(kinds=["matmul"]), "list of kinds"),
        (lambda c: c["parameters"][0].update(first_use=7), "'w': first_use is 7"),
        (lambda c: c["signatures"][0].update(arguments=[{"float": "big"}]), "big"),
        (lambda c: c["signatures"][0].update(arguments=[{"float": []}]), "damaged"),
        (lambda c: c.update(blocks=["nowhere"]), "nowhere"),
    ],
)
def test_damage_is_named(written: Path, change: Callable[[dict[str, Any]], Any], said: str) -> None:
    damaged(written, change)
    with pytest.raises(InputError, match=said) as refused:
        read_graph(written)
    assert str(written) in refused.value.what
    assert refused.value.remedy


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"id,submit_s\n1,2\n", b'{"a":' * 5000]
)
def test_what_is_no_graph_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is not a file of schema 'hemiola.graph/1'"):
        read_graph(path)


def test_a_truncated_file_is_refused(written: Path) -> None:
    content = written.read_bytes()
    for end in range(0, len(content) - 2, 7):
        written.write_bytes(content[:end])
        with pytest.raises(InputError):
            read_graph(written)
    packed = written.with_suffix(".gz")
    packed.write_bytes(gzip.compress(content)[:-20])
    with pytest.raises(InputError, match="cannot read"):
        read_graph(packed)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*nowhere\.json"):
        read_graph(tmp_path / "nowhere.json")


@given(place=st.integers(0), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_harmless(
    place: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("graphs") / "job.graph.json"
    write_graph(SAMPLE, path)
    content = bytearray(path.read_bytes())
    content[place % len(content)] = byte
    path.write_bytes(content)
    try:
        read_graph(path).check()
    except HemiolaError as error:
        assert isinstance(error, InputError)


def test_what_is_no_graph_is_not_written(tmp_path: Path) -> None:
    from dataclasses import replace

    with pytest.raises(GraphError):
        write_graph(replace(SAMPLE, blocks=("nowhere",)), tmp_path / "bad.json")
    assert not (tmp_path / "bad.json").exists()
