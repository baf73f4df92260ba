"""Pollux's workloads (Qiao et al., OSDI'21): name, time [s], application, num_replicas, batch_size.

Source: github.com/petuum/adaptdl, branch osdi21-artifact, simulator/workloads*. The file does not say
how long a job runs: the simulator follows recorded training runs. For the combinations of application,
GPUs and batch size of the published workloads the result of that is shipped; others are refused.
"""

from __future__ import annotations

from hemiola.trace.workloads.cells import Cells, read_rows, table
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source, WorkloadFormat, pollux_durations_s

__all__ = ["POLLUX"]

_COLUMNS = frozenset({"name", "time", "application", "num_replicas", "batch_size"})


def _match(source: Source) -> str:
    if source.columns >= _COLUMNS:
        return "its header has name, time, application, num_replicas and batch_size"
    return ""


def _read(source: Source, ledger: ReadLedger) -> None:
    def make(cells: Cells) -> JobDraft:
        gpus = cells.gpus("num_replicas")
        return JobDraft(
            id=cells.text("name"),
            submit_s=cells.seconds("time"),
            gpus=gpus,
            duration_s=_duration_s(cells, gpus),
            model=cells.text("application"),
            facts={"batch_size": cells.number("batch_size")},
        )

    read_rows(table(source, ledger), ledger, make, "name")
    ledger.note(
        "durations are those of the OSDI'21 simulator on the fewest hosts of 4 T4 GPUs, without restarts"
    )


def _duration_s(cells: Cells, gpus: int) -> float:
    application, batch = cells.text("application"), cells.number("batch_size")
    known = pollux_durations_s()
    duration_s = known.get((application, gpus, int(batch)))
    if duration_s is None:
        pairs = [f"{g} GPUs x {b}" for name, g, b in known if name == application]
        raise cells.bad(
            "batch_size",
            "has no known duration with that application and number of GPUs",
            f"known for {application!r}: {', '.join(pairs) or 'nothing'}; or write durations in the native format",
        )
    return duration_s


POLLUX = WorkloadFormat("pollux", "Pollux's (AdaptDL's) workload", _match, _read, from_first=False)
