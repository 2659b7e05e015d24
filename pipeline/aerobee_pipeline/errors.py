"""The pipeline's errors. Each names the cause, the place (topic, queue, offset, file, option) and the next step."""

from __future__ import annotations


class PipelineError(Exception):
    """The root. Spark workers send errors as text, so an error carries everything in its message."""


class OptionError(PipelineError):
    """An option of the source, the sink or a job is missing, unknown or has an invalid value."""


class DataLossError(PipelineError):
    """Messages that a query selects are gone, or a part of a log cannot be read."""


class RecordDecodeError(PipelineError):
    """A stored record that cannot become a row, such as a body that cannot be decompressed."""


class RowError(PipelineError):
    """A row that cannot become a message."""


class BrokerCallError(PipelineError):
    """A broker refused a call, or did not answer it after all attempts."""


class SparkMissingError(PipelineError):
    """PySpark, a Java runtime, or another package that the pipeline needs is not installed."""
