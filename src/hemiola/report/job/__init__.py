"""The page and the table that show what one training job did: functions of a `JobTimeline`."""

from hemiola.report.job.page import write_job_report
from hemiola.report.job.table import job_table

__all__ = ["job_table", "write_job_report"]
