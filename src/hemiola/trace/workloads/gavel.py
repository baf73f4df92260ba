"""Gavel's traces (Narayanan et al., OSDI'20) and Shockwave's (Zheng et al., NSDI'23): TSV without header.

Three widths exist, each told by its columns:
    10  job_type, command, working_directory, num_steps_arg, needs_data_dir, total_steps, scale_factor,
        priority_weight, SLO, arrival_time
     7  the older one: job_type, command, num_steps_arg, needs_data_dir, total_steps, arrival_time,
        scale_factor
    12  Shockwave's: as 10, with mode (static, accordion, gns) before priority_weight and duration
        before arrival_time
Only Shockwave says how long a job runs. For the others it is total_steps over the steps per second
that Gavel measured on as many V100s placed together; a pair that was not measured has no duration.
"""

from __future__ import annotations

from functools import partial

from hemiola.trace.workloads.cells import Cells, read_rows, table
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source, WorkloadFormat, gavel_steps_per_s

__all__ = ["GAVEL", "GAVEL_OLD", "SHOCKWAVE"]

_TEN = (
    "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps",
    "scale_factor", "priority_weight", "SLO", "arrival_time",
)  # fmt: skip
_SEVEN = (
    "job_type",
    "command",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "arrival_time",
    "scale_factor",
)
_TWELVE = (*_TEN[:7], "mode", *_TEN[7:9], "duration", "arrival_time")
_MODE = _TWELVE.index("mode")
_MODES = ("static", "accordion", "gns")
_V100 = "durations are total_steps over Gavel's steps/s on consolidated V100s (simulation_throughputs.json)"


def _shaped(source: Source, columns: tuple[str, ...]) -> list[list[str]]:
    """Rows from the top that are as wide as `columns` and whose option for the steps is an option."""
    option = columns.index("num_steps_arg")
    rows = source.first_rows("\t")
    return [row for row in rows if len(row) == len(columns) and row[option].startswith("-")]


def _match_ten(source: Source) -> str:
    return "it has Gavel's 10 tab-separated columns" if _shaped(source, _TEN) else ""


def _match_seven(source: Source) -> str:
    return "it has Gavel's older 7 tab-separated columns" if _shaped(source, _SEVEN) else ""


def _match_twelve(source: Source) -> str:
    if any(row[_MODE] in _MODES for row in _shaped(source, _TWELVE)):
        return "it has Shockwave's 12 tab-separated columns, a mode among them"
    return ""


def _read(source: Source, ledger: ReadLedger, *, columns: tuple[str, ...]) -> None:
    number = -1
    torn: list[str] = []

    def make(cells: Cells) -> JobDraft:
        nonlocal number
        number += 1
        gpus = cells.gpus("scale_factor")
        measured = "duration" in cells.index
        return JobDraft(
            id=str(number + len(torn)),
            submit_s=cells.seconds("arrival_time"),
            gpus=gpus,
            duration_s=cells.seconds("duration") if measured else _duration_s(cells, gpus),
            model=cells.text("job_type"),
            facts=_facts(cells),
        )

    rows = table(source, ledger, columns=columns, delimiter="\t", quoted=False, torn=torn)
    read_rows(rows, ledger, make, "job_type")
    ledger.note("jobs are numbered from 0 in the order of the file, as Gavel numbers them")
    ledger.note("durations are the file's own" if "duration" in columns else _V100)
    ledger.note("priority weights and SLOs are not read")


def _facts(cells: Cells) -> dict[str, float]:
    """What peers count by: the steps, and, of Shockwave's jobs, by which scheme they change their batch."""
    steps = {"total_steps": cells.number("total_steps")}
    mode = cells.text("mode") if "mode" in cells.index else ""
    return steps | ({mode: 1.0} if mode in ("accordion", "gns") else {})


def _duration_s(cells: Cells, gpus: int) -> float:
    steps = cells.number("total_steps")
    if steps < 0:
        raise cells.bad("total_steps", "is negative", "give the number of training steps")
    known = gavel_steps_per_s()
    speed = known.get((cells.text("job_type"), gpus))
    if speed is None:
        sizes = ", ".join(str(g) for name, g in known if name == cells.text("job_type")) or "no number"
        raise cells.bad(
            "job_type",
            "was not measured on that many GPUs",
            f"{gpus} GPUs asked, Gavel measured {sizes}; leave such rows out with --skip-bad-rows",
        )
    return steps / speed


GAVEL = WorkloadFormat(
    "gavel", "Gavel's trace, 10 columns", _match_ten, partial(_read, columns=_TEN), from_first=False
)
GAVEL_OLD = WorkloadFormat(
    "gavel-old",
    "Gavel's older trace, 7 columns",
    _match_seven,
    partial(_read, columns=_SEVEN),
    from_first=False,
)
SHOCKWAVE = WorkloadFormat(
    "shockwave",
    "Shockwave's trace, 12 columns",
    _match_twelve,
    partial(_read, columns=_TWELVE),
    from_first=False,
)
