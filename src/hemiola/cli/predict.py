"""`hemiola predict`: what a captured iteration takes on some hardware and network, why, and what would help."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hemiola.cli.output import placement_of, terminal, writable
from hemiola.cli.plan import PlannerTexts

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hemiola.cost.collective.price import Fitting
    from hemiola.cost.io import InputForecast, StoreModel
    from hemiola.cost.job_profile import Fit
    from hemiola.cost.parallelism import Parallelism
    from hemiola.cost.prediction import Prediction, PredictionOptions
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
    parallelism: str = "",
    plan: Path | None = None,
    planner: PlannerTexts = (),
    library: str = "",
    schedules: str = "",
    placement: str = "",
    cores: float | None = None,
    store: Path | None = None,
    input: str = "",
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
    parallelism
        How they exchange: ddp (unless told otherwise), "ddp:bucket=10MiB", fsdp, "fsdp:reshard=no", "ps:servers=2", none.
    plan
        Exchange by a plan instead: a file of "hemiola plan", made for this graph.
    planner
        Exchange by the plan that these planners make, as "hemiola plan --planner" does.
    library
        The collective library: gloo, nccl or hemiola; PyTorch's choice for the hardware unless given.
    schedules
        With --library hemiola: collectives above 64 KB by schedules, as under HEMIOLA_STRATEGY: auto for those that fit
        this topology, or the file of one, which is used for its collective.
    placement
        Ranks of each host in order, such as 4,4, instead of full hosts.
    cores
        Processor cores that all ranks share, where the hosts are really one machine (a lab).
    store
        Where input comes from: what "hemiola io probe -o" wrote; all ranks share it. With --input.
    input
        What each rank reads in an iteration: 8MB.
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
    from hemiola.cost.io import forecast_input

    if planner:
        _alone(planner, parallelism=parallelism, plan=plan, library=library, schedules=schedules)
    if plan is not None and parallelism:
        raise InputError(f"--parallelism {parallelism} beside --plan {plan}", "give one of them")
    if plan is not None and library:
        raise InputError(
            f"--library {library} beside --plan {plan}",
            "a plan goes over Hemiola's own transport: leave it out",
        )
    if schedules and profile is not None:
        raise InputError(
            f"--schedules {schedules} beside --profile {profile}, which says what a ring sends",
            "make the profile without --schedules",
        )
    writable(report, timeline, profile)
    reads = _store(store, input)
    options = _options(library, schedules, cores)
    question = _question(
        graph, hardware, topology, ranks, _parallelism(parallelism, plan), placement, options
    )
    if planner:
        question = _by_planners(question, planner)
    elif plan is not None:
        _admit(question, plan)
    answer = question.answer()
    changes = _changes(question, answer, other) if what_if or other else ()
    fit = _fit(question) if profile is not None else None
    forecast = forecast_input(answer.iteration_s, *reads, ranks) if reads else None
    _write(answer, changes, fit, report, timeline, profile)
    if json:
        import msgspec

        told = _as_json(answer, changes, fit) | ({"input": forecast._asdict()} if forecast else {})
        print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
    else:
        from hemiola.report.job.table import print_prediction

        console = terminal(highlight=False)
        print_prediction(console, answer, changes, fit)
        if schedules:
            console.print(_schedule_table(answer))
        if forecast is not None:
            _print_input(console, forecast)
    for path in (report, timeline, profile):
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)


def _store(store: Path | None, text: str) -> tuple[float, StoreModel] | None:
    """Bytes that a rank reads in an iteration, and where from."""
    import msgspec

    from hemiola.core.errors import DAMAGED, FormatError, InputError
    from hemiola.core.units import parse_size
    from hemiola.cost.io import StoreProbe

    if store is None and not text:
        return None
    if store is None or not text:
        raise InputError(
            "--input and --store go together", "give what a rank reads, and what hemiola io probe wrote"
        )
    size_bytes = parse_size(text)
    try:
        return size_bytes, msgspec.json.decode(store.read_bytes(), type=StoreProbe).model()
    except OSError as error:
        raise InputError(f"{store}: {error.strerror}", "hemiola io probe URL -o writes one") from error
    except DAMAGED as error:
        raise FormatError(
            f"{store} is no probe of a store: {error}", "hemiola io probe URL -o writes one"
        ) from error


def _print_input(console: Console, forecast: InputForecast) -> None:
    from hemiola.core.units import format_duration

    console.print(
        f"input: {forecast.sentence}; an iteration with it takes {format_duration(forecast.iteration_s)} "
        f"({forecast.share_bytes_per_s / 1e6:.1f} MB/s for each rank)",
        soft_wrap=True,
    )


def _alone(planner: tuple[str, ...], **others: object) -> None:
    """Planners decide all of how ranks exchange, over Hemiola's own transport."""
    from hemiola.core.errors import InputError

    if beside := next((name for name, value in others.items() if value), None):
        raise InputError(
            f"--{beside} {others[beside]} beside --planner {' '.join(planner)}",
            "a planner says how ranks exchange, over Hemiola's own transport: give one of them",
        )


def _admit(question: Question, file: Path) -> None:
    """Refuse a plan that is not for this graph, or not for so many ranks there."""
    from hemiola.core.errors import PlanError
    from hemiola.cost.parallelism import Planned

    assert isinstance(question.parallelism, Planned)
    plan, ranks = question.parallelism.plan, question.ranks
    if plan.ranks != ranks:
        raise PlanError(
            f"the plan in {file} is for {plan.ranks} ranks, not for {ranks}",
            f"predict --ranks {plan.ranks}, or plan anew: hemiola plan --ranks {ranks}",
        )
    plan.verify(question.graph, question.topology, question.placement)


def _by_planners(question: Question, planner: tuple[str, ...]) -> Question:
    """The same by the plan that these make."""
    from dataclasses import replace

    from hemiola.cost.parallelism import Planned
    from hemiola.plan.advice import make_plan
    from hemiola.plan.planners import planners_from_text
    from hemiola.plan.problem import PlanProblem

    problem = PlanProblem(
        question.graph, question.hardware, question.topology, question.ranks,
        placement=question.placement, options=question.options,
    )  # fmt: skip
    return replace(question, parallelism=Planned(make_plan(problem, planners_from_text(planner)).plan))


def _question(
    graph: Path,
    hardware: str,
    topology: str,
    ranks: int,
    parallelism: Parallelism,
    placement: str,
    options: PredictionOptions,
) -> Question:
    from hemiola.cost.operations import load_hardware
    from hemiola.cost.whatif import Question
    from hemiola.trace.graph_json import read_graph
    from hemiola.trace.topologies import read_topology

    return Question(
        read_graph(graph), load_hardware(hardware), read_topology(topology), ranks, parallelism,
        placement=placement_of(placement), options=options,
    )  # fmt: skip


def _options(library: str, schedules: str, cores: float | None) -> PredictionOptions:
    from hemiola.core.errors import InputError
    from hemiola.cost.collective.library import GLOO, GROUP, NCCL
    from hemiola.cost.prediction import PredictionOptions

    known = {one.name: one for one in (GLOO, NCCL, GROUP)}
    if library not in ("", *known):
        raise InputError(f"there is no library {library!r}", f"give one of {', '.join(known)}")
    fitting = _fitting(schedules) if schedules else None
    return PredictionOptions(cores=cores, library=known.get(library), schedules=fitting)


def _fitting(text: str) -> Fitting:
    from hemiola.core.errors import InputError
    from hemiola.cost.collective.price import given_schedule
    from hemiola.plan.collective.planner import fitted_to
    from hemiola.report.network.inspection import read_any_schedule

    if text == "auto":
        return fitted_to
    if not Path(text).is_file():
        raise InputError(
            f"--schedules {text}: there is no such file", "give auto, or a schedule's file (JSON or XML)"
        )
    return given_schedule(read_any_schedule(Path(text)).verify())


def _schedule_table(answer: Prediction) -> Table:
    """How collectives go, beside the usual way."""
    from rich.table import Table

    from hemiola.core.units import format_bytes, format_duration

    table = Table("collective", "size", "count", "by", "alone", "usually by", "alone")
    for number in (1, 2, 4, 6):
        table.columns[number].justify = "right"
    for use in answer.schedules:
        table.add_row(
            use.collective, format_bytes(use.size_bytes), str(use.count), use.schedule or "the usual way",
            format_duration(use.seconds), use.usual, format_duration(use.usual_s),
        )  # fmt: skip
    return table


def _parallelism(text: str, plan: Path | None) -> Parallelism:
    from hemiola.cost.parallelism import Planned, parse_parallelism
    from hemiola.trace.struct_json import read_plan

    return parse_parallelism(text or "ddp") if plan is None else Planned(read_plan(plan))


def _changes(question: Question, answer: Prediction, other: tuple[str, ...]) -> tuple[WhatIf, ...]:
    from hemiola.cost.operations import load_hardware
    from hemiola.cost.whatif import what_ifs

    return what_ifs(question, answer, [load_hardware(name) for name in other])


def _fit(question: Question) -> Fit:
    from hemiola.cost.job_profile import fit_profile

    return fit_profile(
        question.graph, question.hardware, question.topology, question.parallelism, options=question.options
    )


def _as_json(answer: Prediction, changes: tuple[WhatIf, ...], fit: Fit | None) -> dict[str, Any]:
    from dataclasses import fields

    named = {"parallelism": "strategy", "schedules": "strategies"}  # as files of schema 1 have them
    own = [f.name for f in fields(answer) if not f.name.startswith("_")]
    found = {named.get(name, name): getattr(answer, name) for name in own}
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
    if report is not None:
        from hemiola.report.job import write_job_report
        from hemiola.report.job.charts import what_if_chart

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
