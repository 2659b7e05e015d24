"""A worker of Spark lives as long as its query: no reader, plan or sink may leave a file or connection open."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo

from aerobee_client.testing import run_broker
from aerobee_pipeline.options import SinkOptions, SourceOptions
from aerobee_pipeline.source import BatchReader, PushdownReader, StreamReader
from aerobee_pipeline.writing import sink
from tests.spark.stores import orders, write
from tests.spark.test_broker_source import send

ROUNDS = 200
COLUMNS = ["queueId", "queueOffset", "body", "brokerName"]


def opened() -> int:
    """The descriptors and the mapped files of this process."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("/commitlog/")
    return len(os.listdir("/proc/self/fd")) + maps


def rows_of(reader: Any, partitions: list[Any]) -> int:
    return sum(batch.num_rows for partition in partitions for batch in reader.read(partition))


def nothing_stays_open(work: Callable[[], None]) -> None:
    """After a few rounds there are as many descriptors as after all."""
    for _ in range(5):
        work()
    before = opened()
    for _ in range(ROUNDS):
        work()
    assert opened() <= before + 2, "a descriptor for each round"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("open") / "store"
    write(directory, orders(300))
    return directory


def micro_batches(given: dict[str, str], expected: int) -> None:
    """A query that goes on for ten micro-batches with the same reader, and tasks in workers with new ones."""
    options = SourceOptions.parse({**given, "startingOffsets": "earliest"}, streaming=True)
    reader = StreamReader(options, COLUMNS)

    def batch() -> None:
        start = reader.initialOffset()
        end = reader.latestOffset(start)
        partitions = reader.partitions(start, end)
        assert rows_of(StreamReader(options, COLUMNS), partitions) == expected

    nothing_stays_open(batch)
    reader.stop()


def test_micro_batches_and_batches_of_files(store: Path) -> None:
    """Streams of queues; batches by log, by queue and by index."""
    micro_batches({"storePath": str(store), "subscribe": "orders"}, 300)
    for by in ("log", "queue", "auto"):
        options = SourceOptions.parse({"storePath": str(store), "subscribe": "orders", "readBy": by}, streaming=False)

        def batch(options: SourceOptions = options) -> None:
            reader = BatchReader(options, COLUMNS)
            assert rows_of(reader, reader.partitions()) == 300

        nothing_stays_open(batch)
    options = SourceOptions.parse({"storePath": str(store), "subscribe": "orders"}, streaming=False)

    def by_key() -> None:
        reader = PushdownReader(options, [*COLUMNS, "keys"])
        list(reader.pushFilters([EqualTo(("keys",), "key44 all")]))
        assert rows_of(reader, reader.partitions()) >= 1

    nothing_stays_open(by_key)


def test_micro_batches_and_tasks_of_the_sink_at_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection for a process, whatever number of readers and tasks it had."""
    context = SimpleNamespace(partitionId=lambda: 0)  # Spark sets it in workers
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    with run_broker(tmp_path) as broker:
        send(broker, "open", 50)
        micro_batches({"endpoint": broker.endpoint, "subscribe": "open"}, 50)
        writer = sink.BatchSink(SinkOptions.parse({"endpoint": broker.endpoint, "topic": "stored"}), "job")

        def store_row() -> None:
            stored = writer.write(iter([pa.RecordBatch.from_pydict({"body": pa.array([b"x"])})]))
            assert (stored.rows, stored.refused) == (1, None)

        nothing_stays_open(store_row)
