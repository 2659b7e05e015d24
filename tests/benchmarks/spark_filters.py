"""The bytes of a log that a query reads for a filter, by the plan of the file source, and the time to read its rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan

from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.source import PushdownReader
from tests.benchmarks.report import milliseconds, table
from tests.benchmarks.spark_data import topic, write_store

_COLUMNS = ["topic", "queueId", "queueOffset", "keys", "storeTimestamp", "body"]


def filters(directory: Path, *, size: int = 256 << 20) -> None:
    """Plan and read queries with filters, by log, by queue and as `readBy=auto` chooses; in this process, without
    Spark."""
    store = directory / "store"
    count = write_store(store, size)
    times = sorted(
        each.timestamp()
        for batch in _batches(_reader(store, "log", []))
        for each in batch.column("storeTimestamp").to_pylist()
    )
    since, until = (datetime.fromtimestamp(times[len(times) * part // 10], UTC) for part in (4, 5))
    wanted: dict[str, list[Filter]] = {
        "none": [],
        "a tenth of the time": [
            GreaterThanOrEqual(("storeTimestamp",), since),
            LessThan(("storeTimestamp",), until),
        ],
        "one key": [EqualTo(("keys",), "R0000005-77")],
        "one topic of four": [EqualTo(("topic",), topic(1))],
        "one queue of 16": [EqualTo(("topic",), topic(1)), EqualTo(("queueId",), 2)],
        "1000 offsets of each queue": [
            GreaterThanOrEqual(("queueOffset",), 1000),
            LessThan(("queueOffset",), 2000),
        ],
    }
    rows = []
    for name, conditions in wanted.items():
        cells: list[str] = []
        found = 0
        for by in ("log", "queue", "auto"):
            reader = _reader(store, by, conditions)
            plan = reader.plan()
            assert plan.bytes_planned is not None
            assert plan.log_bytes is not None
            started = time.perf_counter()
            found = sum(batch.num_rows for batch in _batches(reader))
            seconds = time.perf_counter() - started
            way = f" ({plan.way})" if by == "auto" else ""
            cells.append(f"{plan.bytes_planned / plan.log_bytes:.1%}{way}, {milliseconds(seconds)}")
        rows.append((name, f"{found:,}", *cells))
    title = f"Bytes read of a log of {size >> 20} MiB with {count:,} messages, and time"
    table(title, ("filter", "rows read by auto", "readBy=log", "queue", "auto"), rows)


def _reader(store: Path, by: str, conditions: list[Filter]) -> PushdownReader:
    options = SourceOptions.parse({"storePath": str(store), "subscribePattern": ".*", "readBy": by}, streaming=False)
    reader = PushdownReader(options, _COLUMNS)
    list(reader.pushFilters(conditions))
    return reader


def _batches(reader: PushdownReader) -> Iterator[Any]:
    for partition in reader.partitions():
        yield from reader.read(partition)
