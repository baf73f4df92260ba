"""`hemiola plan`: in which order a job's gradients should go, what goes together, and what that gains; `planners`: by whom."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hemiola.cli.output import placement_of, terminal, writable

if TYPE_CHECKING:
    from rich.console import Console

    from hemiola.plan.advice import Advice

__all__ = ["PlannerTexts", "plan", "planners"]

Switch = Parameter(negative="")
PlannerTexts = Annotated[tuple[str, ...], Parameter(name="--planner", consume_multiple=True, negative="")]


def plan(
    graph: Path,
    /,
    *,
    topology: str,
    ranks: int,
    hardware: str = "h100",
    planner: PlannerTexts = (),
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    placement: str = "",
    cores: float | None = None,
    page: Path | None = None,
    json: Annotated[bool, Switch] = False,
) -> None:
    """Plan in which order a job's gradients are exchanged, what goes together and how, and say what that gains.

    Parameters
    ----------
    graph
        What "hemiola capture -o" wrote.
    topology
        A topology's file, or a spec: "flat:hosts=8,gpus_per_host=8,nic=100gbit".
    ranks
        How many; they fill the hosts in order.
    hardware
        What "hemiola calibrate" wrote, or the name of a GPU that is known.
    planner
        Who plans, in order, each on what the one before made: tac, "p3:elements=20000", first-use,tac, or your own as
        package.module:NAME or FILE.py:NAME. See "hemiola planners". Default: auto, what is predicted to be best.
    output
        Write the plan there, for "hemiola predict --plan" and "hemiola run --plan".
    placement
        Ranks of each host in order, such as 4,4, instead of full hosts.
    cores
        Processor cores that all ranks share, where the hosts are really one machine (a lab).
    page
        Write a page there with the predicted iteration before and after (HTML).
    json
        Print everything as JSON.
    """
    from hemiola.cost.operations import load_hardware
    from hemiola.cost.prediction import PredictionOptions
    from hemiola.plan.advice import make_plan
    from hemiola.plan.planners import planners_from_text
    from hemiola.plan.problem import PlanProblem
    from hemiola.trace.graph_json import read_graph
    from hemiola.trace.struct_json import write_plan
    from hemiola.trace.topologies import read_topology

    chosen = planners_from_text(planner or "auto")
    writable(output, page)
    problem = PlanProblem(
        read_graph(graph), load_hardware(hardware), read_topology(topology), ranks,
        placement=placement_of(placement), options=PredictionOptions(cores=cores),
    )  # fmt: skip
    advice = make_plan(problem, chosen)
    if output is not None:
        write_plan(advice.plan, output)
    if page is not None:
        from hemiola.report.job.planned import write_plan_page

        write_plan_page(advice, page)
    if json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(_as_json(advice)), indent=2).decode())
    else:
        _print(terminal(highlight=False), advice)
    for path in (output, page):
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)


def planners() -> None:
    """List the planners with their parameters and sources."""
    from hemiola.plan.planners import PLANNERS
    from hemiola.report.words import listed

    terminal().print(listed("planner", PLANNERS))


def _as_json(advice: Advice) -> dict[str, Any]:
    return {
        "schema": "hemiola.advice/1",
        "before_s": advice.before.iteration_s,
        "after_s": advice.after.iteration_s,
        "bound_s": advice.bound_s,
        "gain": advice.gain,
        "planners": advice.planners,
        "steps": [{"pass": what, "iteration_s": seconds} for what, seconds in advice.steps],
        "plan": advice.plan,
        "notes": advice.after.notes,
    }


def _print(console: Console, advice: Advice) -> None:
    from rich.table import Table
    from rich.text import Text

    from hemiola.core.units import format_duration

    before, after = advice.before, advice.after
    console.print(
        Text.assemble(
            (
                f"{after.name}: {format_duration(after.iteration_s)} per iteration instead of "
                f"{format_duration(before.iteration_s)}",
                "bold",
            ),
            f" ({1 + advice.gain:.2f} times as fast)",
        ),
        soft_wrap=True,
    )
    console.print(
        f"{after.ranks} rank{'s' * (after.ranks != 1)} on {after.topology}, {after.hardware}; no order of the same work "
        f"takes less than {format_duration(advice.bound_s)}",
        soft_wrap=True,
    )
    table = Table("step", "iteration")
    table.columns[1].justify = "right"
    for what, seconds in advice.steps:
        table.add_row(what, format_duration(seconds))
    console.print(table)
    for change in advice.plan.changes:
        console.print(f"- {change}", soft_wrap=True)
    for note in after.notes:
        console.print(f"note: {note}", style="dim", soft_wrap=True)
