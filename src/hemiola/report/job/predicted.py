"""A prediction as text for the terminal: headline, parts, demand, transfers, critical path, what-ifs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hemiola.core.units import format_bytes, format_duration
from hemiola.cost.job_profile import Fit
from hemiola.cost.prediction import Prediction
from hemiola.cost.whatif import WhatIf

__all__ = ["print_prediction"]

ROWS = 12
"""So many transfers, and steps of the critical path, are shown: the longest."""


def print_prediction(
    console: Console, answer: Prediction, changes: Sequence[WhatIf] = (), fit: Fit | None = None
) -> None:
    """Everything an engineer asks of a prediction, in reading order.

    Args:
        console: without markup, which names may look like.
        changes: what-ifs to lay beside it.
        fit: of the job profile that was made of it.
    """
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


def _headline(answer: Prediction) -> Text:
    interval = (
        f" ({answer.confidence:.0%}: {format_duration(answer.low_s)} to {format_duration(answer.high_s)})"
        if answer.high_s > answer.low_s
        else ""
    )
    where = f"{_many(answer.ranks, 'rank')} on {_many(answer.hosts, 'host')} of {answer.topology}, {answer.hardware}, {answer.strategy}"
    rate = f", {answer.samples_per_s:,.1f} samples/s" if answer.samples_per_s else ""
    whole = f"{answer.name}: {format_duration(answer.iteration_s)} per iteration"
    return Text.assemble((whole, "bold"), f"{interval}{rate}\n{where}")


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _parts(answer: Prediction) -> Table:
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
    rows = sorted(answer.transfers, key=lambda t: -t.exposed_s)[:ROWS]
    shown = [t for t in answer.transfers if t in rows]
    left = len(answer.transfers) - len(shown)
    table = Table("transfer", "how", "size", "ready", "starts", "ends", "exposed")
    for column in table.columns[2:]:
        column.justify = "right"
    for t in shown:
        times = (_signed(seconds) for seconds in (t.ready_s, t.start_s, t.end_s, t.exposed_s))
        table.add_row(t.name, f"{t.collective}, {t.algorithm}", format_bytes(t.size_bytes), *times)
    if left:
        table.caption = f"and {left} more that are exposed less"
    return table


def _signed(seconds: float) -> str:
    """Of what began in the iteration before, how long before this one."""
    return f"-{format_duration(-seconds)}" if seconds < -1e-9 else format_duration(max(seconds, 0.0))


def _path(answer: Prediction) -> Table:
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


def _what_ifs(answer: Prediction, changes: Sequence[WhatIf]) -> Table:
    table = Table("what if", "iteration", "change", "exposed")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("as asked", format_duration(answer.iteration_s), "", format_duration(answer.exposed_s))
    for c in changes:
        table.add_row(
            c.change, format_duration(c.iteration_s), f"{c.relative - 1:+.1%}", format_duration(c.exposed_s)
        )
    return table
