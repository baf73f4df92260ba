"""`hemiola predict`: what a captured iteration takes on some hardware and network, why, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hemiola.cli.output import writable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hemiola.core.hardware import Hardware
    from hemiola.cost.job_profile import Fit
    from hemiola.cost.prediction import Prediction
    from hemiola.cost.whatif import Question, WhatIf

__all__ = ["predict"]

Switch = Parameter(negative="")
Names = Annotated[tuple[str, ...], Parameter(name="--other", consume_multiple=True, negative="")]
ROWS = 12


def predict(
    graph: Path,
    /,
    *,
    hardware: str,
    topology: str,
    ranks: int,
    strategy: str = "ddp",
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
        How they exchange: ddp, "ddp:bucket=10MiB", fsdp, "fsdp:reshard=no", "ps:servers=2", none.
    plan
        Reserved: plans of transfers come with a later version, and until then every file is refused.
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

    if plan is not None:
        raise InputError(
            f"plans of transfers cannot be made or predicted yet, so {plan} is not read: they come with a later version",
            "leave --plan out",
        )
    for path in (report, timeline, profile):
        if path is not None:
            writable(path)
    question = _question(graph, hardware, topology, ranks, strategy, placement, cores)
    answer = question.answer()
    changes = _changes(question, answer, other) if what_if or other else ()
    fit = _fit(question) if profile is not None else None
    if json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(_as_json(answer, changes, fit)), indent=2).decode())
    else:
        from rich.console import Console

        _print(Console(highlight=False), answer, changes, fit)
    _write(answer, fit, report, timeline, profile)


def _question(
    graph: Path, hardware: str, topology: str, ranks: int, strategy: str, placement: str, cores: float | None
) -> Question:
    from hemiola.cost.prediction import Options
    from hemiola.cost.strategies import parse_strategy
    from hemiola.cost.whatif import Question
    from hemiola.trace.graph_json import read_graph
    from hemiola.trace.topologies import read_topology

    return Question(
        read_graph(graph), _hardware(hardware), read_topology(topology), ranks, parse_strategy(strategy),
        placement=_placement(placement), options=Options(cores=cores),
    )  # fmt: skip


def _hardware(name: str) -> Hardware:
    from hemiola.cost.hardware_files import load_hardware

    return load_hardware(name)


def _placement(text: str) -> tuple[int, ...] | None:
    from hemiola.core.errors import InputError

    if not text:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"the placement {text!r}", "write the ranks of each host in order, such as 4,4,2")
    return tuple(int(part) for part in parts)


def _changes(question: Question, answer: Prediction, other: tuple[str, ...]) -> tuple[WhatIf, ...]:
    from hemiola.cost.whatif import what_ifs

    return what_ifs(question, answer, [_hardware(name) for name in other])


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


def _print(console: Console, answer: Prediction, changes: tuple[WhatIf, ...], fit: Fit | None) -> None:
    console.print(_headline(answer), soft_wrap=True)
    console.print(_parts(answer))
    console.print(_demand(answer), soft_wrap=True)
    if answer.transfers:
        console.print(_transfers(answer))
    console.print(_path(answer))
    if changes:
        console.print(_what_ifs(answer, changes))
    if fit is not None:
        console.print(
            f"profile: the simulator's law repeats these predictions on {len(fit.times)} placements with a mean "
            f"error of {fit.mean_error:.1%}, at most {fit.largest_error:.1%}", soft_wrap=True,
        )  # fmt: skip
    for note in answer.notes:
        console.print(f"note: {note}", style="dim", soft_wrap=True)


def _headline(answer: Prediction) -> str:
    from hemiola.core.units import format_duration

    interval = (
        f" ({answer.confidence:.0%}: {format_duration(answer.low_s)} to {format_duration(answer.high_s)})"
        if answer.high_s > answer.low_s
        else ""
    )
    where = f"{_many(answer.ranks, 'rank')} on {_many(answer.hosts, 'host')} of {answer.topology}, {answer.hardware}, {answer.strategy}"
    rate = f", {answer.samples_per_s:,.1f} samples/s" if answer.samples_per_s else ""
    return f"[bold]{answer.name}: {format_duration(answer.iteration_s)} per iteration[/bold]{interval}{rate}\n{where}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _parts(answer: Prediction) -> Table:
    import msgspec
    from rich.table import Table

    from hemiola.core.units import format_duration

    table = Table("part", "time", "share")
    for column in table.columns[1:]:
        column.justify = "right"
    words = {
        "exposed_s": "exposed communication", "overhead_s": "copies and overhead", "server_s": "waiting for the server's update"
    }  # fmt: skip
    for field, seconds in msgspec.structs.asdict(answer.breakdown).items():
        if field == "server_s" and not seconds:
            continue
        word = words.get(field, field.removesuffix("_s"))
        table.add_row(word, format_duration(seconds), f"{seconds / answer.iteration_s:.1%}")
    return table


def _demand(answer: Prediction) -> str:
    from hemiola.core.units import format_bytes, format_duration

    lines = [
        f"each rank: {answer.flop_per_s / 1e12:.3g} TFLOP/s, {format_bytes(answer.memory_bytes)} of memory"
    ]
    if answer.links:
        busiest = answer.links[0]
        hidden_s = max(0.0, answer.communication_s - answer.exposed_s)
        lines.append(
            f"busiest link: {busiest.name}, {format_bytes(busiest.bytes)} per iteration and direction, busy {busiest.busy:.0%}"
        )
        lines.append(
            f"communication: {format_duration(answer.communication_s)}, of which {format_duration(hidden_s)} hidden"
        )
    lines.append(f"no order of the same work takes less than {format_duration(answer.bound_s)}")
    if answer.straggling_s:
        lines.append(f"waiting for the slowest rank: {format_duration(answer.straggling_s)} of it")
    return "\n".join(lines)


def _transfers(answer: Prediction) -> Table:
    from rich.table import Table

    from hemiola.core.units import format_bytes, format_duration

    rows = sorted(answer.transfers, key=lambda t: -t.exposed_s)[:ROWS]
    shown = [t for t in answer.transfers if t in rows]
    left = len(answer.transfers) - len(shown)
    table = Table("transfer", "how", "size", "ready", "starts", "ends", "exposed")
    for column in table.columns[2:]:
        column.justify = "right"
    for t in shown:
        times = (format_duration(max(s, 0.0)) for s in (t.ready_s, t.start_s, t.end_s, t.exposed_s))
        table.add_row(t.name, f"{t.collective}, {t.algorithm}", format_bytes(t.size_bytes), *times)
    if left:
        table.caption = f"and {left} more that are exposed less"
    return table


def _path(answer: Prediction) -> Table:
    from rich.table import Table

    from hemiola.core.units import format_duration

    table = Table("critical path", "kind", "time")
    table.columns[2].justify = "right"
    longest = sorted(answer.critical_path, key=lambda s: s.start_s - s.end_s)[:ROWS]
    for step in answer.critical_path:
        if step in longest:
            table.add_row(step.name, step.kind, format_duration(step.end_s - step.start_s))
    left = len(answer.critical_path) - len(longest)
    if left > 0:
        table.caption = f"and {left} shorter steps"
    return table


def _what_ifs(answer: Prediction, changes: tuple[WhatIf, ...]) -> Table:
    from rich.table import Table

    from hemiola.core.units import format_duration

    table = Table("what if", "iteration", "change", "exposed")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("as asked", format_duration(answer.iteration_s), "", format_duration(answer.exposed_s))
    for c in changes:
        table.add_row(
            c.change, format_duration(c.iteration_s), f"{c.relative - 1:+.1%}", format_duration(c.exposed_s)
        )
    return table


def _write(
    answer: Prediction, fit: Fit | None, report: Path | None, timeline: Path | None, profile: Path | None
) -> None:
    import sys

    if report is not None:
        from hemiola.report.job import write_job_report

        write_job_report(answer.timeline(), report, title=f"{answer.name}, predicted")
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
