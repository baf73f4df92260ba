"""One way in: a workload file is recognised by what it holds and read by that format's reader."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from hemiola.core.errors import FormatError, InputError
from hemiola.core.job import Workload
from hemiola.trace.workloads.datacentre import ACME, HELIOS
from hemiola.trace.workloads.gavel import GAVEL, GAVEL_OLD, SHOCKWAVE
from hemiola.trace.workloads.ledger import ReadLedger
from hemiola.trace.workloads.native import NATIVE_CSV, NATIVE_JSON
from hemiola.trace.workloads.pai import PAI_JOBS, PAI_SIMULATOR, PAI_TASKS
from hemiola.trace.workloads.philly import PHILLY_CSV, PHILLY_JSON
from hemiola.trace.workloads.pollux import POLLUX
from hemiola.trace.workloads.slurm import SLURM
from hemiola.trace.workloads.source import Source, WorkloadFormat, load
from hemiola.trace.workloads.swf import SWF
from hemiola.trace.workloads.tiresias import MURI, TIRESIAS

__all__ = ["FORMATS", "read_workload"]

FORMATS: tuple[WorkloadFormat, ...] = (
    NATIVE_CSV, NATIVE_JSON, SLURM, SWF, PHILLY_JSON, PHILLY_CSV, HELIOS, ACME, PAI_TASKS, PAI_JOBS,
    PAI_SIMULATOR, GAVEL, GAVEL_OLD, SHOCKWAVE, POLLUX, MURI, TIRESIAS,
)  # fmt: skip
"""Every format that is read, in the order in which errors list them."""


def read_workload(
    path: str | Path, *, format: str | None = None, skip_bad_rows: bool = False, limit: int | None = None
) -> Workload:
    """The jobs of a workload file, in order of arrival, times in seconds from the first arrival.

    Args:
        path: a file, plain or gzip; what it is named does not matter.
        format: the name of one of `FORMATS`; None recognises it from the content.
        skip_bad_rows: leave rows out that cannot be used, and count them by reason in `skipped`.
        limit: keep only the first so many jobs by arrival.

    Raises:
        FormatError: the format is unknown or ambiguous, or units are mixed.
        RowError: a row cannot be used; names file, line, column and value.
        InputError: the file cannot be read, or holds no job.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}", "give 1 or more, or leave it out")
    source = load(path, skip_bad_rows=skip_bad_rows, forced=format is not None)
    found, why = _recognise(source) if format is None else _insist(source, format)
    ledger = ReadLedger(source.path, skip_bad_rows=skip_bad_rows)
    if source.undecodable:
        ledger.leave_out("(text) is not UTF-8", len(source.undecodable))
    found.read(source, ledger)
    return ledger.workload(
        name=source.name, format=found.name, why=why, limit=limit, from_first=found.from_first
    )


def _recognise(source: Source) -> tuple[WorkloadFormat, str]:
    matches = [(found, why) for found in FORMATS if (why := found.match(source))]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise FormatError(
            f"{source.path} could be {' or '.join(f'{found.name} ({why})' for found, why in matches)}",
            f"say which: {' or '.join(f'{found.name}:{source.path}' for found, _ in matches)}",
        )
    first = source.head.lstrip().split("\n", 1)[0][:80]
    raise FormatError(
        f"{source.path} is in no known format; it begins {first!r}",
        f"known are {_names()}; write other jobs as a table with the columns id, submit_s, gpus, duration_s",
    )


def _insist(source: Source, name: str) -> tuple[WorkloadFormat, str]:
    found = next((found for found in FORMATS if found.name == name), None)
    if found is None:
        close = get_close_matches(name, [found.name for found in FORMATS], n=1)
        raise FormatError(
            f"{name!r} is no known format", f"did you mean {close[0]}?" if close else f"known are {_names()}"
        )
    why = found.match(source)
    if not why:
        others = [other.name for other in FORMATS if other.match(source)]
        raise FormatError(
            f"{source.path} is not {name} ({found.about})",
            f"it looks like {' or '.join(others)}" if others else f"known are {_names()}",
        )
    return found, f"named so, and {why}"


def _names() -> str:
    return ", ".join(found.name for found in FORMATS)
