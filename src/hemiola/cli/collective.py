"""`hemiola collective`: how a collective should go on a network, for Hemiola's process group and for NCCL."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from hemiola.cli.output import (
    folder_writable,
    hosts_of,
    output_of,
    passed_on,
    placement_of,
    terminal,
    writable,
)

if TYPE_CHECKING:
    from rich.console import Console

    from hemiola.comm.probe.measure import Probed
    from hemiola.core.collective.schedule import CollectiveSchedule
    from hemiola.core.topology import Topology
    from hemiola.plan.collective.nccl_files import NcclAdvice
    from hemiola.plan.collective.synthesis import Synthesis
    from hemiola.trace.msccl.joined import Equal


__all__ = ["collective", "probe"]


Kind = Literal["all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce"]
SHOWN = 6
"""Candidates that are printed."""
SCHEDULES = ("strategy.xml", "strategy.json")
"""What the folder for NCCL has where a ring is not as good."""


def collective(
    topology: str,
    /,
    *,
    size: str = "64MB",
    collective: Kind = "all-reduce",
    ranks: int = 0,
    placement: str = "",
    root: int = 0,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    nccl: Path | None = None,
) -> None:
    """Find how a collective goes fastest on a network: hemiola collective network.toml -o strategy.json.

    Rings, trees and others are priced on the topology's links; the ring stays unless something is over a tenth faster.
    HEMIOLA_STRATEGY=strategy.json has Hemiola's process group go by it, "hemiola inspect" draws it. With --nccl, a
    folder gets what users of NCCL need instead: the order of ranks, settings of its tuner plugin, MSCCL's XML,
    and instructions.

    Parameters
    ----------
    topology
        A topology's file, such as "hemiola probe" writes, or a spec: "flat:hosts=8,gpus_per_host=8,nic=100gbit".
    size
        Of the whole data.
    collective
        What to find a schedule for.
    ranks
        How many; they fill the hosts in order. As many as there are GPUs unless given.
    placement
        Ranks of each host in order, such as 4,4, instead of full hosts.
    root
        Of a broadcast or a reduce.
    output
        Write the schedule there: Hemiola's JSON, or MSCCL's XML where the name ends in .xml.
    nccl
        Write the files for NCCL into this folder, for an all-reduce; ranks are numbered in the order they suggest.
    """

    from hemiola.core.errors import InputError
    from hemiola.core.units import parse_size
    from hemiola.cost.places import place_ranks
    from hemiola.plan.collective.planner import usual_seconds
    from hemiola.plan.collective.synthesis import synthesise
    from hemiola.trace.topologies import read_topology

    if output is not None:
        writable(output)
    if nccl is not None:
        from hemiola.plan.collective.nccl_files import NAMES, advise_nccl

        if collective != "all-reduce":
            raise InputError(
                f"--nccl with --collective {collective}", "NCCL has a choice for all-reduces only"
            )
        if output is not None and output.resolve() in [
            nccl.resolve() / name for name in ("", *NAMES, *SCHEDULES)
        ]:
            raise InputError(
                f"--nccl {nccl} and --output {output} would write the same file", "name another path"
            )
        folder_writable(nccl)
    size_bytes = parse_size(size)
    network = read_topology(topology)
    per_host = placement_of(placement)
    count = ranks or (sum(per_host) if per_host else network.gpus)
    found: Synthesis | None = None
    usual_s = 0.0
    equal: Equal | None = None
    advice: NcclAdvice | None = None
    if nccl is None or output is not None:
        place = place_ranks(network, count, per_host)
        if not 0 <= root < count:
            raise InputError(f"--root {root} of {count} ranks", f"give 0 to {count - 1}")
        paces = output is None or output.suffix.lower() != ".xml"
        found = synthesise(place, size_bytes, collective, root=root, paces=paces)
        usual_s = usual_seconds(found, place, range(count))
    if nccl is not None:
        advice = advise_nccl(network, count, size_bytes, placement=per_host)
    if found is not None and output is not None:
        equal = _write(found.chosen.schedule, output)
    if advice is not None and nccl is not None:
        _write_nccl(advice, nccl)
    console = terminal(highlight=False)
    if found is not None:
        _show(console, found, usual_s)
    if equal is not None:
        _show_equal(console, equal)
    if output is not None:
        print(f"wrote {output}", file=sys.stderr)
    if advice is not None:
        _show_nccl(console, advice)
        files = len(advice.files()) + bool(advice.xml)
        print(f"wrote {files} files into {nccl}; README.txt says how to use them", file=sys.stderr)


def _show(console: Console, found: Synthesis, usual_s: float) -> None:
    from rich.table import Table

    from hemiola.core.units import format_bytes, format_duration

    chosen = found.chosen
    times = usual_s / chosen.seconds if chosen.seconds else 1.0
    gain = f", {times:.2f} times as fast as the usual way" if round(times, 2) > 1 else ""
    console.print(
        f"{chosen.schedule.collective} of {format_bytes(found.size_bytes)} among {chosen.schedule.ranks} ranks: "
        f"{chosen.schedule.name}, {format_duration(chosen.seconds)} predicted{gain}",
        soft_wrap=True,
    )
    console.print(
        f"no schedule takes less than {format_duration(found.bounds.seconds)} by bandwidth", soft_wrap=True
    )
    table = Table("schedule", "pieces", "time")
    table.columns[2].justify = "right"
    for one in found.candidates[:SHOWN]:
        pieces = format_bytes(one.schedule.chunk_bytes) if one.schedule.chunk_bytes else "usual"
        table.add_row(one.schedule.name, pieces, format_duration(one.seconds))
    console.print(table)


def _show_equal(console: Console, equal: Equal) -> None:
    """What there is to say of MSCCL's XML."""
    from hemiola.trace.msccl import beyond_limits, msccl_text

    if equal.excess:
        console.print(
            f"its shares as {equal.schedule.chunks} equal chunks: a link carries at most {equal.excess:.1%} more"
        )
    for words in beyond_limits(msccl_text(equal.schedule)):
        print(f"warning: {words}", file=sys.stderr)


def _write(chosen: CollectiveSchedule, path: Path) -> Equal | None:
    """Write it; as what, if MSCCL's XML needed equal chunks."""
    from hemiola.trace.msccl import equal_chunks, write_msccl
    from hemiola.trace.struct_json import write_schedule

    if path.suffix.lower() != ".xml":
        write_schedule(chosen, path)
        return None
    equal = equal_chunks(chosen)
    write_msccl(equal.schedule, path)
    return equal


def _show_nccl(console: Console, advice: NcclAdvice) -> None:
    from rich.table import Table

    from hemiola.core.units import format_bytes, format_duration

    order = advice.order
    names = ", ".join(name for name, _ in advice.hosts[:16]) + (", ..." if len(advice.hosts) > 16 else "")
    console.print(f"for {advice.place.ranks} ranks of NCCL, order hosts so: {names}", soft_wrap=True)
    table = Table(f"order; all-reduce of {format_bytes(order.size_bytes)}", "as NCCL may choose", "at best")
    for name, (usual, best) in {"this one": (order.usual, order.best), **order.others}.items():
        table.add_row(name, *(f"{format_duration(one.seconds)} {one}" for one in (usual, best)))
    console.print(table)
    chosen = advice.found.chosen
    loss = f", {advice.rounding_loss:.1%} of it by rounding to equal chunks" if advice.equal.excess else ""
    said = (
        f"by strategy.xml, {chosen.schedule.name}" if advice.xml else "by any schedule no faster than a ring"
    )
    console.print(
        f"{said}: {format_duration(advice.equal_s)}{loss}; "
        f"no schedule takes less than {format_duration(advice.found.bounds.seconds)}",
        soft_wrap=True,
    )
    console.print("predicted; none of it was run on GPUs", style="dim")
    for words in advice.beyond:
        print(f"warning: strategy.xml has {words}", file=sys.stderr)


def _write_nccl(advice: NcclAdvice, folder: Path) -> None:
    from hemiola.core.errors import InputError
    from hemiola.trace.atomic import replacing
    from hemiola.trace.struct_json import write_schedule

    try:
        folder.mkdir(exist_ok=True)
        if not advice.xml and _is_written(folder):  # RCCL takes every file of a folder, an earlier one, too
            for name in SCHEDULES:
                (folder / name).unlink(missing_ok=True)
    except OSError as problem:
        raise InputError(
            f"cannot write into the folder {folder}: {problem.strerror}", "name another one"
        ) from problem
    for name, text in advice.files().items():
        with replacing(folder / name) as stream:
            stream.write(text.encode())
    if advice.xml:
        write_schedule(advice.found.chosen.schedule, folder / "strategy.json")


def _is_written(folder: Path) -> bool:
    """Whether an earlier call has, so that schedules there are its."""
    try:
        text = (folder / "nccl.env").read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return False
    return any(
        f"hemiola {verb} --nccl" in text for verb in ("collective", "strategy")
    )  # its name, and its earlier one


# `hemiola probe`.

SHOWN_BYTES = (1e6, 16e6, 64e6)
"""All-reduces that are predicted."""


def probe(
    *,
    hosts: str = "",
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    seconds: float = 8.0,
    interface: str = "",
    remote_shell: str = "",
    python: str = "",
    master_addr: Annotated[str, Parameter(name=["--master-addr", "--master_addr"])] = "",
) -> None:
    """Measure the links between hosts: hemiola probe --hosts "n[0-3]" -o network.toml.

    Pairs of hosts send to each other in turns, and then all to one: what each can send and receive, which of them
    share a narrower uplink, and how long a message takes. Nothing else should use the network meanwhile. The file is
    a topology that every verb takes, with the interval of every rate; "hemiola inspect" draws it, and
    HEMIOLA_STRATEGY=FILE lets a job's collectives fit it.

    Parameters
    ----------
    hosts
        Measure between these, the first of which decides: "n[0-3]", "a,b". Without it, be one rank of a job that
        was started otherwise: torchrun --nnodes ... $(which hemiola) probe, or hemiola lab run hemiola probe.
    output
        Write the topology there (TOML).
    seconds
        Begin no further pass after so long; one pass takes about 1 s with 4 hosts and 2 s with 8.
    interface
        Network interface or address to measure; the one on the way to the first host unless given.
    remote_shell
        How to run a command on a host, instead of ssh: "kubectl exec -i {host} -- sh -c {command}".
    python
        The Python of every host; the one that runs this unless given.
    master_addr
        The address of the first host, where the others do not know it by its name.
    """
    from hemiola.core.errors import InputError

    if hosts or os.environ.get("RANK", "") in ("", "0"):  # of a job's ranks, the first one writes
        writable(output)
    if not seconds > 0:
        raise InputError(f"--seconds {seconds:g}", "give a number above 0")
    if hosts:
        found = _on(hosts, seconds, interface, remote_shell, python or sys.executable, master_addr)
    else:
        from hemiola.comm.probe.measure import probe as one_rank

        found = one_rank(seconds, interface)
    if found is not None:
        _show_probe(found, output)


def _on(
    hosts: str, seconds: float, interface: str, remote_shell: str, python: str, master_addr: str
) -> Probed | None:
    """Start a rank on each host."""
    import msgspec

    from hemiola.comm.probe.measure import Probed
    from hemiola.train.launch import REMOTE_SHELL, LaunchSpec, launch

    job = LaunchSpec(
        command=(python, "-P", "-m", "hemiola.comm.probe", str(seconds), *([interface] if interface else [])),
        hosts=hosts_of(hosts, fewest=2),
        ranks_per_host="1",
        master_address=master_addr,
        environment=passed_on(),
        remote_shell=remote_shell or REMOTE_SHELL,
        python=python,
    )
    outcome = launch(job, output_of, lambda _: None)
    if outcome.status or not outcome.report:
        raise SystemExit(outcome.status or 1)
    return msgspec.json.decode(outcome.report, type=Probed)


def _show_probe(found: Probed, output: Path | None) -> None:
    from hemiola.report.network.figures import network_figures
    from hemiola.report.network.words import NetworkTable
    from hemiola.trace.atomic import replacing
    from hemiola.trace.topologies.native import read_native

    if output is not None:
        with replacing(output) as stream:
            stream.write(found.topology.encode())
    topology = read_native(found.topology, "the measurement")
    console = terminal(highlight=False)
    console.print(NetworkTable(network_figures(topology)))
    alike = {str(one) for one in found.affinities.values()}
    for name, one in list(found.affinities.items())[: 1 if len(alike) == 1 else None]:
        console.print(f"{'every host' if len(alike) == 1 else name}: {one}", soft_wrap=True)
    for line in _predicted(topology):
        console.print(line, soft_wrap=True)
    if output is not None:
        console.print(
            f"written: {output}; HEMIOLA_STRATEGY={output} lets collectives fit it",
            soft_wrap=True,
        )


def _predicted(topology: Topology) -> list[str]:
    """What fits, and what it gains."""
    from hemiola.cost.places import place_ranks
    from hemiola.plan.collective.synthesis import synthesise

    place = place_ranks(topology, topology.gpus)
    lines = []
    for size_bytes in SHOWN_BYTES:
        found = synthesise(place, size_bytes)
        gain = f", {found.gain + 1:.2f} times as fast as the ring" if found.chosen is not found.usual else ""
        lines.append(
            f"all-reduce of {size_bytes / 1e6:g} MB: {found.chosen.schedule.name}, {found.chosen.seconds:.3g} s predicted"
            f"{gain} (at least {found.bounds.seconds:.3g} s)"
        )
    return lines
