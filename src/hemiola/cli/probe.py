"""`hemiola probe`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hemiola.cli.launching import hosts_of, output_of, passed_on
from hemiola.cli.output import terminal, writable

if TYPE_CHECKING:
    from hemiola.core.topology import Topology
    from hemiola.comm.probe.meeting import Probed

__all__ = ["probe"]

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
        from hemiola.comm.probe.meeting import probe as one_rank

        found = one_rank(seconds, interface)
    if found is not None:
        _show(found, output)


def _on(
    hosts: str, seconds: float, interface: str, remote_shell: str, python: str, master_addr: str
) -> Probed | None:
    """Start a rank on each host."""
    import msgspec

    from hemiola.train.launch import REMOTE_SHELL, LaunchSpec, launch
    from hemiola.comm.probe.meeting import Probed

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


def _show(found: Probed, output: Path | None) -> None:
    from hemiola.report.network.figures import network_figures
    from hemiola.report.network.table import NetworkTable
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
            f"all-reduce of {size_bytes / 1e6:g} MB: {found.chosen.strategy.name}, {found.chosen.seconds:.3g} s predicted"
            f"{gain} (at least {found.bounds.seconds:.3g} s)"
        )
    return lines
