"""`hemiola calibrate`: this machine, measured, as a hardware file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from hemiola.cli.output import terminal, writable

if TYPE_CHECKING:
    from rich.table import Table

    from hemiola.core.hardware import CollectiveCost, Hardware

__all__ = ["calibrate"]

Switch = Parameter(negative="")


def calibrate(
    *graphs: Path,
    output: Annotated[Path, Parameter(name=("--output", "-o"))],
    device: Literal["cpu", "cuda"] = "cpu",
    threads: int = 1,
    rounds: int = 8,
    budget: str = "4min",
    ranks: int = 0,
    links: Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative="")] = (),
    name: str = "",
    quick: Annotated[bool, Switch] = False,
) -> None:
    """Measure this machine: what operations, memory, the framework and links take. For "hemiola predict".

    Parameters
    ----------
    graphs
        Files of "hemiola capture": every operation of theirs is measured too.
    output
        Write the hardware file there.
    device
        What to measure.
    threads
        With so many threads a rank computes, on a CPU.
    rounds
        Replay each graph so many times.
    budget
        Time for all; when it is used up, the larger built-in networks are left out.
    ranks
        Measure gloo between so many processes of this machine as well.
    links
        Add what "python -m hemiola.profiler.calibrate.links --output FILE" found, run on each host.
    name
        What to call the hardware; the processor's name unless given.
    quick
        Only the smallest built-in networks: seconds, for a first look.
    """
    import msgspec

    from hemiola.core.errors import InputError
    from hemiola.core.units import format_duration, parse_duration
    from hemiola.profiler.calibrate import calibrate as measure
    from hemiola.profiler.calibrate import calibrate_links
    from hemiola.profiler.calibrate.links import read_links
    from hemiola.trace.graph_json import read_graph
    from hemiola.trace.struct_json import as_text, write_hardware

    writable(output)
    if ranks < 0 or ranks == 1:
        raise InputError(f"--ranks {ranks}: one rank has no links", "give 2 or more, or leave it out")
    console = terminal(stderr=True)
    told = _Told(console)
    given = [read_graph(path) for path in graphs]
    between = tuple(collective for path in links for collective in read_links(path))
    failed: InputError | None = None
    try:
        hardware = measure(
            given, device=device, threads=threads, rounds=rounds, budget_s=parse_duration(budget),
            name=as_text(name), small=quick, progress=told.progress,
        )  # fmt: skip
        if ranks:
            told.progress(f"gloo between {ranks} processes", 0, 1)
            try:
                between += calibrate_links(ranks)
            except InputError as error:  # told when all else, which took minutes, is written
                failed = error
    except KeyboardInterrupt:
        console.print(f"interrupted after {told.done}; {output} was not written", highlight=False)
        raise SystemExit(130) from None
    hardware = msgspec.structs.replace(hardware, collectives=between)
    write_hardware(hardware, output)
    terminal().print(_table(hardware))
    for line in _notes(hardware):
        console.print(line, style="dim", highlight=False)
    console.print(f"wrote {output} after {format_duration(told.seconds())}", style="dim", highlight=False)
    if failed is not None:
        raise InputError(
            f"{output} is without the links between {ranks} processes: {failed.what}", failed.remedy
        ) from failed


class _Told:
    """Lines about progress, and what was done so far."""

    def __init__(self, console: object) -> None:
        import time

        self._console = console
        self._clock = time.monotonic
        self._start = time.monotonic()
        self.done = "0 steps"

    def seconds(self) -> float:
        return self._clock() - self._start

    def progress(self, what: str, done: int, steps: int) -> None:
        from rich.console import Console

        if steps > 1:
            self.done = f"{done} of {steps} networks and graphs"
        count = f"{done + 1}/{steps} " if done < steps and steps > 1 else ""
        if done < steps and isinstance(self._console, Console):
            self._console.print(
                f"{self.seconds():6.1f} s  {count}{what}", style="dim", highlight=False, soft_wrap=True
            )


def _table(hardware: Hardware) -> Table:
    """What was found, in the units in which people think of it."""
    from rich.table import Table

    from hemiola.core.units import format_duration

    table = Table("", "", title=hardware.name, show_header=False)
    for dtype, rate in hardware.peak_flop_per_s.items():
        table.add_row(f"peak {dtype}", f"{rate / 1e9:,.0f} GFLOP/s")
    table.add_row("memory", f"{hardware.memory_bytes_per_s / 1e9:.1f} GB/s")
    disturbed = sum(measurement.disturbed for measurement in hardware.measured.values())
    table.add_row(
        "operations measured", f"{len(hardware.measured):,} ({disturbed:,} disturbed by other load)"
    )
    for phase, cost in hardware.phases.items():
        table.add_row(
            f"overhead, {phase}",
            f"{format_duration(cost.operation_s)} per operation, {format_duration(cost.view_s)} per view, factor {cost.factor:.2f}",
        )
    if hardware.exchange is not None:
        each = hardware.exchange
        table.add_row(
            "DistributedDataParallel",
            f"{format_duration(each.parameter_s)} per parameter, {format_duration(each.bucket_s)} per bucket, "
            f"{each.copy_s_per_byte * 1e9:.2f} ns per byte",
        )
    for collective in hardware.collectives:
        table.add_row(
            f"{collective.backend} {collective.collective}, {collective.ranks} ranks", _link(collective)
        )
    table.add_row("spread of iterations", f"{100 * hardware.noise:.1f} %")
    return table


def _link(collective: CollectiveCost) -> str:
    from hemiola.core.units import format_duration, format_rate

    return (
        f"{format_duration(collective.alpha_s)} per step, {format_rate(collective.bytes_per_s)}, "
        f"{collective.cpu_s_per_byte * 1e9:.2f} ns of processor per byte, ±{100 * collective.spread:.0f} %"
    )


def _notes(hardware: Hardware) -> list[str]:
    """What the reader should know of how it was measured."""
    told = [
        f"{field}: {hardware.sources[field]}"
        for field in ("left out", "not replayed")
        if field in hardware.sources
    ]
    if hardware.noise > 0.1:
        told.append(
            "iterations differed by more than 10 %: other load disturbed; calibrate again on a quiet machine"
        )
    return told
