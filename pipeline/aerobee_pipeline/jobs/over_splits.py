"""Work on the logs of stores, one task per range, for audit and rebuild.

Each range is a row in its own partition, processed by `mapInArrow`: as fast as the data source, with any result
columns. Only small rows are shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.reading.splits import LogSplit, load_deleted_topics, plan_log, store_files
from aerobee_store.errors import StoreError
from aerobee_store.queues.topic_removal import DeletedTopics
from aerobee_store.tools.store_files import ReadOnlyDisk, StoreFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Stores = Mapping[str, Path]
"""The directories of stores, by the names of their brokers."""


def checked_stores(stores: Mapping[str, str | Path] | str | Path) -> dict[str, Path]:
    """The stores of a job: one directory, or several by broker."""
    if isinstance(stores, str | Path):
        return {"": Path(stores)}
    if not stores:
        raise OptionError("name at least one store")
    return {name: Path(path) for name, path in stores.items()}


def log_splits(stores: Stores, split_bytes: int) -> list[LogSplit]:
    """The ranges of all logs. Segments that are missing are a finding of audits, so they do not stop a plan."""
    splits: list[LogSplit] = []
    for broker, directory in stores.items():
        with closing(store_files(directory)) as files:
            splits += plan_log(broker, files, split_bytes, fail_on_data_loss=False)
    return splits


def over_splits(
    spark: SparkSession,
    splits: Sequence[LogSplit],
    work: Callable[[LogSplit], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """The rows that `work` yields for each range. `schema` is a DDL string; batches must have exactly its columns."""
    planned = list(splits)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(planned[number])

    return spark.range(0, len(planned), 1, max(len(planned), 1)).mapInArrow(run, schema)


@lru_cache(maxsize=8)
def files_of(directory: str, job: str) -> StoreFiles:
    """The files of a store, listed once for a job in each worker."""
    return StoreFiles.find(Path(directory))


@lru_cache(maxsize=8)
def deleted_topics(directory: str, job: str) -> DeletedTopics:
    """The deleted topics of a store, whose earlier records do not count. Read once per job."""
    try:
        return load_deleted_topics(Path(directory))
    except StoreError:
        return DeletedTopics(ReadOnlyDisk(), Path(directory))
