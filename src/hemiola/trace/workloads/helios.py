"""SenseTime's Helios traces, `cluster_log.csv` (Hu et al., SC'21).

Source: github.com/S-Lab-System-Group/HeliosData. Columns: job_id, user, vc, [jobname,] gpu_num,
cpu_num, node_num, state, submit_time, start_time, end_time, duration [s], queue [s].
"""

from __future__ import annotations

from hemiola.trace.workloads import datacentre
from hemiola.trace.workloads.cells import read_rows, table
from hemiola.trace.workloads.format import WorkloadFormat
from hemiola.trace.workloads.ledger import ReadLedger
from hemiola.trace.workloads.source import Source

__all__ = ["HELIOS"]


def _match(source: Source) -> str:
    if source.columns >= datacentre.COLUMNS | {"vc"}:
        return "its header has job_id, vc, gpu_num, node_num and the times of an accounting log"
    return ""


def _read(source: Source, ledger: ReadLedger) -> None:
    read_rows(table(source, ledger), ledger, lambda cells: datacentre.draft(cells, ledger), "job_id")
    ledger.note("jobs that failed, timed out or were cancelled while running are kept")


HELIOS = WorkloadFormat("helios", "SenseTime Helios cluster_log.csv", _match, _read)
