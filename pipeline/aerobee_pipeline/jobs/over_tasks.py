"""Work of one task each: its items go to workers, small rows come back to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ItemT = TypeVar("ItemT")


NEW_FILES: Final = pa.schema([("path", pa.string()), ("day", pa.string()), ("rows", pa.int64()), ("size", pa.int64())])
"""The rows of tasks that write files."""


def over_tasks(
    spark: SparkSession, items: Sequence[ItemT], work: Callable[[ItemT], Iterable[tuple[Any, ...]]], schema: pa.Schema
) -> list[tuple[Any, ...]]:
    """The rows that `work` gives for each item, which is a task of its own."""
    from pyspark.sql.pandas.types import from_arrow_schema

    planned = list(items)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = list(work(planned[number]))
                values = [[row[place] for row in rows] for place in range(len(schema))]
                arrays = [pa.array(each, field.type) for each, field in zip(values, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    if not planned:
        return []
    frame = spark.range(0, len(planned), 1, len(planned)).mapInArrow(run, from_arrow_schema(schema))
    return [tuple(row) for row in frame.collect()]
