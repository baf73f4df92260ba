"""The terminal's table: all there, in 80 columns as in 150."""

from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import pytest
from report_build import comparison
from rich.console import Console

from hemiola.report.table import table
from hemiola.report.words import COLUMNS, cell, semantics_card


def drawn(found, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table(found))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 150])
def test_every_figure_fits(width):
    text = drawn(comparison(seeds=(0, 1)), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert all(column.short in text for column in COLUMNS)
    assert "…" not in text
    figures = text.split("Rules that shaped")[0]
    assert figures.count("srtf ") == (1 if width >= 132 else 2)
    assert "arrivals are exponential" in text
    assert "30 s after a pre-emption" in text


def test_long_names_fold_and_lose_nothing():
    name = "dally:timer=break-even,history=1000"
    found = comparison(policies=("fifo", name))
    text = drawn(found, 80)
    assert max(len(line) for line in text.splitlines()) <= 80
    folded = "".join(line.split("  ")[0].strip() for line in text.splitlines())
    assert name in folded.replace(" ", "")


def test_interrupted_runs_are_marked():
    text = drawn(comparison(stop_s=9000.0), 80)
    assert text.count("(interrupted)") == 6
    assert "6 of 25 jobs had" in text
    assert "INTERRUPTED" in text


def test_differences_show_their_uncertainty():
    assert "±" in drawn(comparison(seeds=(0, 1)), 80)
    assert "±" not in drawn(comparison(), 80)


def test_a_comparison_that_was_cut_marks_what_its_means_are_over():
    found = comparison(seeds=(0, 1), policies=("fifo", "sjf"))
    cut = msgspec.structs.replace(found.runs[1], interrupted=True)
    text = drawn(replace(found, runs=(found.runs[0], cut, found.runs[2])), 150)
    assert "means over 1 seed," in text and "! of 2 seeds all policies have run 1" in text
    assert "(interrupted)" not in text, "what was cut is in no mean"
    assert "fifo, seed 1: INTERRUPTED" in text and "only they count" not in text


def test_a_run_that_was_cut_counts_only_where_no_seed_is_whole():
    found = comparison(seeds=(0, 1), policies=("fifo", "sjf"))
    cut = [msgspec.structs.replace(run, interrupted=True) for run in found.runs]
    text = drawn(replace(found, runs=(*found.runs[:3], cut[3])), 150)
    assert "means over 1 seed," in text and "(interrupted)" not in text
    assert "! of 2 seeds all policies have run 1, and means are over these (fifo: 2; sjf: 1)" in text
    text = drawn(replace(found, runs=(found.runs[0], cut[2])), 150)
    assert "sjf (interrupted)" in text and "and only they count" in text


def test_markup_in_names_is_text():
    found = comparison(policies=("fifo",))
    runs = tuple(msgspec.structs.replace(run, policy="[b]fifo[/b]") for run in found.runs)
    found = replace(found, runs=runs, baseline="[b]fifo[/b]", workload_name="[red]x[/red]")
    assert "[red]x[/red]" in drawn(found, 80)
    assert "vs [b]fifo[/b]" in " ".join(drawn(found, 200).split())


def test_card_tells_shared_and_own_rules():
    card = dict(semantics_card(comparison(policies=("fifo", "sjf"))))
    assert card == {"order": {"fifo": "fifo", "sjf": "sjf"}, "restore": {"": "30 s after a pre-emption"}}


def test_card_lists_what_differs_between_seeds():
    found = comparison(seeds=(0, 1), policies=("fifo", "sjf"))
    runs = tuple(msgspec.structs.replace(run, semantics={"seed": str(run.seed)}) for run in found.runs)
    assert semantics_card(replace(found, runs=runs)) == [("seed", {"": "0, 1"})]


def test_cells_have_units():
    assert [cell(5400.0, "duration"), cell(0.25, "share"), cell(1.5, "number"), cell(1234, "count"), cell(None, "share")] == [
        "1.50 h", "25.0%", "1.50", "1,234", "–",
    ]  # fmt: skip
