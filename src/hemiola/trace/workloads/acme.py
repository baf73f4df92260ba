"""Shanghai AI Lab's Acme traces, `trace_seren.csv` and `trace_kalos.csv` (Hu et al., NSDI'24).

Source: github.com/InternLM/AcmeTrace. Columns: job_id, user, node_num, gpu_num, cpu_num,
[mem_per_pod_GB, shared_mem_per_pod,] type, state, submit_time, start_time, end_time,
[fail_time, stop_time,] duration [s], queue [s], gpu_time [GPU s]. In Kalos's published example
rows `duration` counts from submission, whatever the schema says.
"""

from __future__ import annotations

from hemiola.trace.workloads import datacentre
from hemiola.trace.workloads.cells import Cells, read_rows, table
from hemiola.trace.workloads.format import WorkloadFormat
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source

__all__ = ["ACME"]


def _match(source: Source) -> str:
    if source.columns >= datacentre.COLUMNS | {"type", "gpu_time"}:
        return "its header has job_id, type, gpu_num, gpu_time and the times of an accounting log"
    return ""


def _read(source: Source, ledger: ReadLedger) -> None:
    def make(cells: Cells) -> JobDraft | str:
        draft = datacentre.draft(cells, ledger)
        if isinstance(draft, JobDraft):
            expected = cells.seconds("duration") * draft.gpus
            if abs(cells.number("gpu_time") - expected) > max(1e-6 * expected, draft.gpus):
                raise cells.bad("gpu_time", "is not duration * gpu_num", f"expected {expected:g}")
            draft.model = cells.text("type")
        return draft

    read_rows(table(source, ledger), ledger, make, "job_id")
    ledger.note("model is the trace's workload type (Pretrain, SFT, Evaluation, ...)")
    ledger.note("jobs that failed, timed out or were cancelled while running are kept")


ACME = WorkloadFormat("acme", "Shanghai AI Lab Acme trace_seren.csv, trace_kalos.csv", _match, _read)
