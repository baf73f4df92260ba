"""`hemiola counters`: on each host, tell the scheduler what its network cards carry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["counters", "hold"]


Cards = Annotated[tuple[str, ...], Parameter(name="--card", consume_multiple=True, negative="")]


def counters(*, reports: Path, host: str = "", card: Cards = (), every: str = "5s") -> None:
    """Report what this host's network cards send and receive, until interrupted: a service of each host.

    Parameters
    ----------
    reports
        The folder that "hemiola serve --reports" reads.
    host
        This host's name in the topology; $SLURMD_NODENAME or the short host name unless given.
    card
        Network cards to count; those of hardware unless given, or all but the loopback where there is none.
    every
        How often: 5s, 1min.
    """
    import os
    import socket

    from hemiola.core.errors import InputError
    from hemiola.core.units import parse_duration
    from hemiola.live.nic_counters import cards, host_reports
    from hemiola.trace.reports import HostReport, check_reports, write_report

    every_s = parse_duration(every)
    if not 0.1 <= every_s <= 3600:
        raise InputError(f"--every {every}", "give 0.1 s to 1 h")
    check_reports(reports)
    name = host or os.environ.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0]
    try:
        HostReport(host=name, time_s=0.0, sent_bytes_per_s=0.0, received_bytes_per_s=0.0)
    except ValueError as problem:
        raise InputError(
            f"no report can be of a host {name!r}", "say what the topology calls this one: --host NAME"
        ) from problem
    counted = cards(card)
    print(f"reporting {', '.join(counted)} of {name} to {reports} every {every}", flush=True)
    said = ""
    for report in host_reports(name, counted, every_s):
        try:
            write_report(reports, report)
        except InputError as problem:
            if problem.what != said:
                print(f"hemiola counters: {problem.what}", flush=True)
            said = problem.what


# `hemiola hold`: a Ray job waits for the place that Hemiola gives it.


def hold(*command: str, grace: str = "30s", when_silent: str = "") -> None:
    """Within a Ray job: wait until Hemiola has placed it, then run a command there.

    ray job submit --metadata-json '{"hemiola": "gpus=16 hosts=2"}' -- hemiola hold -- python train.py

    Parameters
    ----------
    command
        What to run. It finds its placement group's name in HEMIOLA_PLACEMENT_GROUP.
    grace
        When its place is taken away, the command gets SIGTERM, and SIGKILL so much later.
    when_silent
        Let Ray place the job if Hemiola has said nothing for so long: 60s, 5min. Never unless given.
    """
    import os

    from hemiola.core.errors import InputError
    from hemiola.core.units import parse_duration
    from hemiola.live.engines.ray.hold import Hold, job_around, main_exit

    if not command:
        raise InputError("there is no command to run", "write it at the end: hemiola hold -- python train.py")
    address, job, wish = job_around(os.environ)
    silent_s = parse_duration(when_silent) if when_silent else None
    held = Hold(address, job, wish, command, grace_s=parse_duration(grace), silent_s=silent_s)
    main_exit(held.run())
