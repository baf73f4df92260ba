"""`hemiola predict`: what a captured iteration takes on some hardware and network, why, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hemiola.cli.arguments import placement_of
from hemiola.cli.output import writable

if TYPE_CHECKING:
    from hemiola.cost.job_profile import Fit
    from hemiola.cost.prediction import Prediction
    from hemiola.cost.strategies import Strategy
    from hemiola.cost.whatif import Question, WhatIf

__all__ = ["predict"]

Switch = Parameter(negative="")
Names = Annotated[tuple[str, ...], Parameter(name="--other", consume_multiple=True, negative="")]


def predict(
    graph: Path,
    /,
    *,
    hardware: str,
    topology: str,
    ranks: int,
    strategy: str = "",
    plan: Path | None = None,
    placement: str = "",
    cores: float | None = None,
    what_if: Annotated[bool, Switch] = False,
    other: Names = (),
    json: Annotated[bool, Switch] = False,
    report: Path | None = None,
    timeline: Path | None = None,
    profile: Path | None = None,
) -> None:
    """Predict what a training iteration takes on some hardware and network, and where the time goes.

    Parameters
    ----------
    graph
        What "hemiola capture -o" wrote.
    hardware
        What "hemiola calibrate" wrote, or the name of a GPU that is known: "h100".
    topology
        A topology's file, or a spec: "flat:hosts=8,gpus_per_host=8,nic=100gbit".
    ranks
        How many; they fill the hosts in order.
    strategy
        How they exchange: ddp (unless told otherwise), "ddp:bucket=10MiB", fsdp, "fsdp:reshard=no", "ps:servers=2", none.
    plan
        Exchange by a plan instead: a file of "hemiola plan", made for this graph.
    placement
        Ranks of each host in order, such as 4,4, instead of full hosts.
    cores
        Processor cores that all ranks share, where the hosts are really one machine (a lab).
    what_if
        Also predict with other networks, placements, buckets and hardware.
    other
        Hardware to compare with under --what-if.
    json
        Print everything as JSON.
    report
        Write a page with the predicted timeline there (HTML).
    timeline
        Write the predicted timeline there, for "hemiola inspect".
    profile
        Write a job profile there, for the "profiles" of a scenario of "hemiola simulate".
    """
    from hemiola.core.errors import InputError

    if plan is not None and strategy:
        raise InputError(f"--strategy {strategy} beside --plan {plan}", "give one of them")
    for path in (report, timeline, profile):
        if path is not None:
            writable(path)
    question = _question(graph, hardware, topology, ranks, _strategy(strategy, plan), placement, cores)
    answer = question.answer()
    changes = _changes(question, answer, other) if what_if or other else ()
    fit = _fit(question) if profile is not None else None
    if json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(_as_json(answer, changes, fit)), indent=2).decode())
    else:
        from rich.console import Console

        from hemiola.report.job.predicted import print_prediction

        print_prediction(Console(highlight=False), answer, changes, fit)
    _write(answer, changes, fit, report, timeline, profile)


def _question(
    graph: Path,
    hardware: str,
    topology: str,
    ranks: int,
    strategy: Strategy,
    placement: str,
    cores: float | None,
) -> Question:
    from hemiola.cost.hardware_files import load_hardware
    from hemiola.cost.prediction import Options
    from hemiola.cost.whatif import Question
    from hemiola.trace.graph_json import read_graph
    from hemiola.trace.topologies import read_topology

    return Question(
        read_graph(graph), load_hardware(hardware), read_topology(topology), ranks, strategy,
        placement=placement_of(placement), options=Options(cores=cores),
    )  # fmt: skip


def _strategy(text: str, plan: Path | None) -> Strategy:
    from hemiola.cost.strategies import Planned, parse_strategy
    from hemiola.trace.plan_json import read_plan

    return parse_strategy(text or "ddp") if plan is None else Planned(read_plan(plan))


def _changes(question: Question, answer: Prediction, other: tuple[str, ...]) -> tuple[WhatIf, ...]:
    from hemiola.cost.hardware_files import load_hardware
    from hemiola.cost.whatif import what_ifs

    return what_ifs(question, answer, [load_hardware(name) for name in other])


def _fit(question: Question) -> Fit:
    from hemiola.cost.job_profile import fit_profile

    return fit_profile(
        question.graph, question.hardware, question.topology, question.strategy, options=question.options
    )


def _as_json(answer: Prediction, changes: tuple[WhatIf, ...], fit: Fit | None) -> dict[str, Any]:
    from dataclasses import fields

    found = {f.name: getattr(answer, f.name) for f in fields(answer) if not f.name.startswith("_")}
    found = {"schema": "hemiola.prediction/1", **found, "exposed_s": answer.exposed_s}
    if changes:
        found["what_if"] = changes
    if fit is not None:
        found["profile"] = {"profile": fit.profile, "times": fit.times}
    return found


def _write(
    answer: Prediction, changes: tuple[WhatIf, ...], fit: Fit | None,
    report: Path | None, timeline: Path | None, profile: Path | None,
) -> None:  # fmt: skip
    import sys

    if report is not None:
        from hemiola.report.job import write_job_report
        from hemiola.report.job.charts_predicted import what_if_chart

        more = [what_if_chart(answer, changes)] if changes else []
        write_job_report(answer.timeline(), report, title=f"{answer.name}, predicted", more=more)
    if timeline is not None:
        from hemiola.trace.jobs.timeline_json import write_timeline

        write_timeline(answer.timeline(), timeline)
    if profile is not None and fit is not None:
        from hemiola.cost.job_profile import profile_file
        from hemiola.trace.atomic import replacing

        with replacing(profile) as stream:
            stream.write(profile_file(fit))
    for path in (report, timeline, profile):
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)
