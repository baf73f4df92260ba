"""Takes a Slurm lab away, whatever is left of it. Safe to repeat, and from several processes at once."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from hemiola.core.errors import LabError
from hemiola.lab.slurm import daemons
from hemiola.lab.slurm.daemons import CONTROLLER_PROGRAM, JOB, STEP, Role
from hemiola.lab.slurm.record import Record, forget, forget_claim, read

__all__ = ["clear_up", "tear_down"]

JOBS_END_S = 4.0
"""How long jobs have to end when they are cancelled: KillWait, and Slurm's own work. One that a restarted
controller lost is not cancelled, and takes all of it."""

ASK_S = 3.0
LOOK_AGAIN_S = 0.05


def tear_down(record: Record) -> None:
    """End the jobs, the daemons and all they left; then remove the network and the files.

    Nothing more happens where they are another lab's by now, for its jobs look like those of this one: somebody
    else has taken this one down.

    The order matters: jobs end through Slurm while it lives. Then nodes go before the controller, for
    steps without one wait for it, and munged goes last.
    """
    if _is_anothers(record):
        return
    kinds = {role.kind for role in daemons.find(record).values()}
    if {"slurmctld", STEP} <= kinds:
        _cancel_jobs(record)
    for ended in ({"slurmrestd", "slurmd"}, {STEP, JOB}, CONTROLLER_PROGRAM, {"munged"}):
        if _is_anothers(record):
            return
        daemons.end(record, _of(ended), grace_s=0.0)
    if record.lab:
        from hemiola.lab.slurm import network  # needs pyroute2

        network.tear_down(record)
    forget(record)


def clear_up(base: str, id_: str) -> None:
    """Take away the Slurm lab in this folder if it is still the one of this id."""
    record = read(Path(base))
    if record is None:
        forget_claim(Path(base))
    elif record.id == id_:
        tear_down(record)


def _is_anothers(record: Record) -> bool:
    present = read(record.folder)
    return present is not None and present.id != record.id


def _cancel_jobs(record: Record) -> None:
    """Cancel every job and wait until none runs, if the controller takes part."""
    try:
        for state in ("PENDING", "SUSPENDED", "RUNNING"):  # or the next would start where one ends
            daemons.ask(record, ["scancel", f"--state={state}"], limit_s=ASK_S)
    except LabError:
        return  # it does not answer: its processes are ended all the same
    end_s = time.monotonic() + JOBS_END_S
    while daemons.find(record, _of({JOB})) and time.monotonic() < end_s:
        time.sleep(LOOK_AGAIN_S)


def _of(kinds: Collection[str]) -> daemons.Wanted:
    def wanted(role: Role) -> bool:
        return role.kind in kinds

    return wanted
