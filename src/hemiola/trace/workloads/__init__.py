"""Workload files of many clusters and simulators, read into `core.job.Workload`.

Each format is a value in a file of its own that recognises its content and reads it. Knows nothing
of policies, topologies or simulation.
"""

from hemiola.trace.workloads.native import write_workload
from hemiola.trace.workloads.read import FORMATS, read_workload
from hemiola.trace.workloads.source import WorkloadFormat

__all__ = ["FORMATS", "WorkloadFormat", "read_workload", "write_workload"]
