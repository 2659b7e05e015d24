"""Jobs on the stores of one or many brokers. Each returns a `JobResult`: a small table, facts, an exit status."""

from aerobee_pipeline.jobs.audit import audit
from aerobee_pipeline.jobs.export import export, replay
from aerobee_pipeline.jobs.housekeeping import Housekeeping
from aerobee_pipeline.jobs.rebuild import rebuild
from aerobee_pipeline.jobs.result import JobResult
from aerobee_pipeline.jobs.statistics import lag, statistics
from aerobee_pipeline.jobs.topic_table import TableOptions, keep_table, sample

__all__ = [
    "Housekeeping",
    "JobResult",
    "TableOptions",
    "audit",
    "export",
    "keep_table",
    "lag",
    "rebuild",
    "replay",
    "sample",
    "statistics",
]
