"""A plan's page: both iterations on one axis, to scale; steps, bound and changes in words; whole and safe."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from pages import Elements
from tiny_graphs import device, flat, layers

from hemiola.cli.plan import plan as plan_verb
from hemiola.core.graph import Graph
from hemiola.core.hardware import Hardware
from hemiola.core.units import format_duration
from hemiola.plan.advice import Advice, make_plan
from hemiola.plan.problem import PlanProblem
from hemiola.report.job.planned import GUTTER, ROWS, Block, _lanes, _nice, _rows, _wrapped, render_plan
from hemiola.trace.graph_json import write_graph
from hemiola.trace.struct_json import write_hardware

MB = 1_000_000
EVIL = "</svg><script>alert(1)</script>"


def hardware() -> Hardware:
    """Computes 1 GFLOP/s, so that times are what the FLOP say."""
    return msgspec.structs.replace(device(), peak_flop_per_s={"float32": 1e9})


def graph(name: str = "layers") -> Graph:
    """Eight layers of 2 MB that take 10 ms forward and 20 ms backward."""
    found, _ = layers([2 * MB] * 8, [0] * 8, [0] * 8)
    flop = np.where(found.operations.phase == 0, 1e7, np.where(found.operations.phase == 1, 2e7, 0.0))
    return replace(found, name=name, operations=replace(found.operations, flop=flop))


@pytest.fixture(scope="module")
def advice() -> Advice:
    return make_plan(PlanProblem(graph(), hardware(), flat(2, rate=70e6), 2))


def picture(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(re.search(r"<svg.*?</svg>", page, re.S)[0])


def boxes(page: str, color: str) -> list[tuple[float, float, float]]:
    """(x, y, width) of every box of a colour."""
    return [
        (float(box.get("x")), float(box.get("y")), float(box.get("width")))
        for box in picture(page).iter("rect")
        if box.get("fill") == f"var({color})"
    ]


def test_the_boxes_are_to_scale(advice: Advice) -> None:
    page = render_plan(advice)
    lines = [
        float(line.get("x1")) for line in picture(page).iter("line") if line.get("stroke") == "var(--ink)"
    ]
    ends = dict(zip(("before", "after"), lines, strict=True))
    scale = (ends["before"] - GUTTER) / advice.before.iteration_s
    assert (ends["after"] - GUTTER) / scale == pytest.approx(advice.after.iteration_s, rel=1e-3)
    dashed = next(line for line in picture(page).iter("line") if line.get("stroke-dasharray"))
    assert (float(dashed.get("x1")) - GUTTER) / scale == pytest.approx(advice.bound_s, rel=1e-3)
    computing, waiting = boxes(page, "--compute"), boxes(page, "--wire")
    top = min(y for _, y, _ in computing)
    for first, prediction in ((True, advice.before), (False, advice.after)):
        drawn_s = sum(width for _, y, width in computing if (y == top) is first) / scale
        assert drawn_s == pytest.approx(0.24, rel=0.02)  # 8 layers of 10 and 20 ms
        waited_s = sum(width for _, y, width in waiting if (y == top) is first) / scale
        assert waited_s == pytest.approx(prediction.exposed_s, rel=0.03)


def test_what_the_iteration_hands_over_is_drawn_at_both_ends(advice: Advice) -> None:
    _, before = _lanes(advice.before.timeline(), advice.before.iteration_s)
    assert len(before) == len({block.name for block in before})
    _, sent = _lanes(advice.after.timeline(), advice.after.iteration_s)
    assert all(0 <= block.start_s < block.end_s <= advice.after.iteration_s for block in sent)
    twice = [block for block in sent if sum(block.name == other.name for other in sent) == 2]
    assert {block.start_s for block in twice if block.end_s < advice.after.iteration_s} == {0.0}
    assert {block.end_s for block in twice if block.start_s > 0.0} == {advice.after.iteration_s}
    assert twice


def test_a_block_that_began_before_continues_at_the_end() -> None:
    def wrapped(start_s: float, end_s: float) -> list[tuple[float, float]]:
        return [(b.start_s, b.end_s) for b in _wrapped(Block("b", "communication", start_s, end_s), 10.0)]

    assert wrapped(2, 5) == [(2, 5)]
    assert wrapped(-3, 2) == [(0, 2), (7, 10)]
    assert wrapped(-3, -1) == [(7, 9)]
    assert wrapped(0, 10) == [(0, 10)]


def test_blocks_that_meet_lie_in_rows_of_their_own() -> None:
    blocks = [Block(str(i), "communication", i, i + 2.5) for i in range(6)]
    assert [[block.name for block in row] for row in _rows(blocks)] == [["0", "3"], ["1", "4"], ["2", "5"]]
    assert len(_rows([Block("b", "communication", 0, 1)] * 20)) == ROWS


def test_ticks_are_round() -> None:
    assert [_nice(step) for step in (0.1, 0.11, 1, 3, 20, 21, 60)] == [0.1, 0.2, 1, 5, 20, 50, 100]


def test_the_page_says_steps_bound_and_changes(advice: Advice) -> None:
    page = render_plan(advice)
    for what, seconds in advice.steps:
        assert re.search(
            rf"<th>{re.escape(what.replace(chr(39), '&#x27;'))}</th><td>{format_duration(seconds)}</td>", page
        )
    assert f"no order takes less: {format_duration(advice.bound_s)}" in page
    assert all(change.replace("'", "&#x27;") in page for change in advice.plan.changes)
    assert all(note.replace("'", "&#x27;") in page for note in advice.after.notes)


def test_no_step_is_drawn_wider_than_its_column(advice: Advice) -> None:
    (first, seconds), *others = advice.steps
    page = render_plan(replace(advice, steps=((first, seconds), ("slower", 1.25 * seconds), *others)))
    widths = [float(width) for width in re.findall(r'<i style="width:([\d.]+)%', page)]
    assert widths[:2] == [80.0, 100.0]
    assert max(widths) == 100.0
    assert "<td>+25.0 %</td>" in page


def test_the_page_is_whole_and_names_stay_text() -> None:
    page = render_plan(make_plan(PlanProblem(graph(EVIL), hardware(), flat(2, rate=70e6), 2)))
    elements = Elements()
    elements.feed(page.replace("<!doctype html>", ""))
    assert not elements.open
    assert "script" not in elements.seen
    assert "://" not in re.sub(r'xmlns="[^"]*"', "", page)


def test_one_rank_has_a_page_too() -> None:
    page = render_plan(make_plan(PlanProblem(graph(), hardware(), flat(1), 1)))
    assert boxes(page, "--compute")
    assert not boxes(page, "--communication")


def test_the_verb_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_graph(graph(), tmp_path / "g.json")
    write_hardware(hardware(), tmp_path / "h.json")
    plan_verb(
        tmp_path / "g.json", hardware=str(tmp_path / "h.json"), topology="flat:hosts=2,gpus_per_host=1,nic=500mbit", ranks=2,
        page=tmp_path / "p.html",
    )  # fmt: skip
    assert f"wrote {tmp_path / 'p.html'}" in capsys.readouterr().err
    assert "by the plan" in (tmp_path / "p.html").read_text(encoding="utf-8")
