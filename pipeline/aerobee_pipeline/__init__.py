"""Topics and stores as Spark DataFrames: the data source `aerobee`, and jobs on the stores of one or many brokers.

    from aerobee_pipeline import local_session

    spark = local_session()
    frame = spark.read.format("aerobee").option("storePath", "/var/lib/aerobee").option("subscribe", "orders").load()

docs/pipeline.md has the options, the columns and the guarantees. Importing this package does not import Spark.
"""

from aerobee_pipeline.errors import (
    DataLossError,
    OptionError,
    PipelineError,
    RecordDecodeError,
    SparkMissingError,
)
from aerobee_pipeline.session import from_kafka_view, kafka_view, local_session, register

__all__ = [
    "DataLossError",
    "OptionError",
    "PipelineError",
    "RecordDecodeError",
    "SparkMissingError",
    "from_kafka_view",
    "kafka_view",
    "local_session",
    "register",
]
