"""A data source that does nothing: its rows are ready in memory, as Arrow batches, and rows written to it are dropped.

What it takes is what Spark itself takes. No Python source, stream or sink can be faster, whatever it reads and however
it decodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from aerobee_pipeline.reading.decode import Decoder
from aerobee_pipeline.reading.schema import default_columns, spark_ddl
from aerobee_pipeline.reading.splits import plan_log, read_split, store_files
from aerobee_pipeline.source import coalesced

_BATCHES: dict[tuple[str, tuple[str, ...]], list[pa.RecordBatch]] = {}
"""By store and columns: each worker makes them once, in the warm-up run."""


def ready_batches(store: str, columns: list[str]) -> list[pa.RecordBatch]:
    """A few batches of this store, as the source `aerobee` makes them."""
    found = _BATCHES.get((store, tuple(columns)))
    if found is None:
        decoder = Decoder(columns)
        split = plan_log("", store_files(Path(store)), 32 << 20, fail_on_data_loss=True)[0]
        found = list(coalesced(decoder.decode(batch) for batch in read_split(split, fail_on_data_loss=True)))
        _BATCHES[store, tuple(columns)] = found
    return found


class ReadySource(DataSource):
    """Options: `store`, the total number of `rows`, and `tasks` of each query or micro-batch; of a stream also
    `rowsPerTrigger`. The sink needs none."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return spark_ddl(default_columns(properties=False, system=False))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options, schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(self.options, schema.names)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer()


class _Reading:
    def __init__(self, options: Mapping[str, str], columns: list[str]) -> None:
        self._store = options["store"]
        self._columns = columns
        self._rows = int(options["rows"])
        self._tasks = int(options["tasks"])
        self._rows_per_trigger = int(options.get("rowsPerTrigger", "1"))

    def _shares(self, rows: int) -> list[InputPartition]:
        return [InputPartition(rows // self._tasks + (task < rows % self._tasks)) for task in range(self._tasks)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        left = partition.value
        for batch in cycle(ready_batches(self._store, self._columns)):
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return


class _Reader(_Reading, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return self._shares(self._rows)


class _StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows_per_trigger)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        rows_max = self._rows if isinstance(limit, ReadAllAvailable) else self._rows_per_trigger
        return {"rows": min(start["rows"] + rows_max, self._rows)}

    def prepareForTriggerAvailableNow(self) -> None:
        """The end is fixed from the start."""

    def reportLatestOffset(self) -> dict[str, int]:
        return {"rows": self._rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self._shares(end["rows"] - start["rows"])


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
