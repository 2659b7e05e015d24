"""What queries read of stores, by the readers themselves: no Spark job runs here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.source import BatchReader
from tests.spark.stores import orders, write
from tests.support import golden

PLACE = ["topic", "queueId", "queueOffset"]


def reader(store: Path, *, columns: list[str] = PLACE, **options: str) -> BatchReader:
    """The batch reader of a store."""
    given = {"storePath": str(store), **({} if "subscribe" in options else {"subscribePattern": ".*"}), **options}
    return BatchReader(SourceOptions.parse(given, streaming=False), columns)


def rows(reading: BatchReader) -> Iterator[tuple[Any, ...]]:
    """All rows of a reader's partitions."""
    for partition in reading.partitions():
        for batch in reading.read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@pytest.mark.parametrize("name", sorted(path.name for path in golden.CASES_DIRECTORY.iterdir() if path.is_dir()))
def test_every_topic_has_the_rows_of_the_log(name: str, tmp_path: Path) -> None:
    """`auto` gives each topic of every golden store the rows that the log has, whatever else is selected."""
    store = golden.load(name, tmp_path).store
    if not (store / "commitlog").is_dir():
        pytest.skip("a store without a log")
    every = Counter(rows(reader(store, readBy="log", failOnDataLoss="false")))
    for topic in sorted({row[0] for row in every}):
        if topic.startswith("%LMQ%"):
            continue
        expected = {row: count for row, count in every.items() if row[0] == topic}
        found = Counter(rows(reader(store, subscribe=topic, failOnDataLoss="false")))
        assert found == expected, topic


def test_a_store_that_crashed_is_read_from_its_log(tmp_path: Path) -> None:
    """The queues of one topic end early; a query for it alone still has all of its messages."""
    store = tmp_path / "store"
    write(store, orders(600, topics=("orders", "a", "b", "c"), queues=1))
    (store / "abort").touch()
    queue = store / "consumequeue" / "orders" / "0"
    last = max(queue.iterdir())
    last.write_bytes(bytes(last.stat().st_size))
    assert len(set(rows(reader(store, subscribe="orders")))) == 150


def test_messages_behind_the_queues_are_read(tmp_path: Path) -> None:
    """A store that was closed, or is in use, whose queues end before its log."""
    store = tmp_path / "store"
    write(store, orders(600, topics=("orders", "a", "b", "c"), queues=1))
    (store / "abort").unlink(missing_ok=True)
    for topic in ("orders", "a", "b", "c"):
        last = max((store / "consumequeue" / topic / "0").iterdir())
        last.write_bytes(last.read_bytes()[: 20 * 40] + bytes(last.stat().st_size - 20 * 40))
    assert len(set(rows(reader(store, subscribe="orders")))) == 150


def test_a_time_after_all_messages_of_an_empty_queue(tmp_path: Path) -> None:
    """A queue that never had a message has none before the time either: it is no reason to fail."""
    store = tmp_path / "store"
    write(store, orders(60, queues=3))
    (first, *others) = sorted((store / "consumequeue" / "orders" / "2").iterdir())
    assert not others
    first.write_bytes(bytes(first.stat().st_size))
    found = list(rows(reader(store, subscribe="orders", readBy="queue", startingTimestamp="1000")))
    assert {row[1] for row in found} == {0, 1}
