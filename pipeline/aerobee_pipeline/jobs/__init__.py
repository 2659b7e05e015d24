"""Jobs on the stores of one or many brokers. Each returns a `JobResult`: a small table, facts, an exit status."""

from aerobee_pipeline.jobs.audit import audit
from aerobee_pipeline.jobs.export import export, replay
from aerobee_pipeline.jobs.rebuild import rebuild
from aerobee_pipeline.jobs.result import JobResult
from aerobee_pipeline.jobs.statistics import lag, statistics
from aerobee_pipeline.jobs.topic_table import keep_table

__all__ = ["JobResult", "audit", "export", "keep_table", "lag", "rebuild", "replay", "statistics"]
