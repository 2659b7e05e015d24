"""`spark.readStream.format("aerobee")` on the files of a store that is still being written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from aerobee_pipeline.worker_start import retry_worker_start
from tests.spark.stores import orders, write


def stream(spark: Any, store: Path, **options: Any) -> Any:
    reader = spark.readStream.format("aerobee").option("storePath", str(store)).option("subscribe", "orders")
    return reader.options(**options).load().select("topic", "queueId", "queueOffset")


def run(frame: Any, checkpoint: str, rows: list[tuple[Any, ...]], fail_at: int | None = None) -> list[int]:
    """Process all available data; return the sizes of the micro-batches."""
    sizes: list[int] = []
    writer = frame.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)

    def take(batch: Any, number: int) -> None:
        found = [tuple(row) for row in batch.collect()]
        sizes.append(len(found))
        if number == fail_at:
            raise RuntimeError("the test stops here")
        rows.extend(found)

    def finish() -> None:
        query = writer.start()
        try:
            assert query.awaitTermination(240)
        finally:
            query.stop()

    writer = writer.foreachBatch(take)
    retry_worker_start(finish)
    return sizes


def caught_up(writer: Any) -> Any:
    """Start a continuous query; return once it has read all stored messages."""
    query = writer.start()
    try:
        query.processAllAvailable()
    except BaseException:
        query.stop()
        raise
    return query


def test_a_stream_with_limits_restarts_and_new_queues(spark: Any, tmp_path: Path, checkpoint: str) -> None:
    """Micro-batches keep the limit; a failed one is repeated unchanged; a new queue starts at its first message."""
    store = tmp_path / "store"
    write(store, orders(500))
    rows: list[tuple[Any, ...]] = []
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "200"}
    with pytest.raises(Exception, match="the test stops here"):
        run(stream(spark, store, **options), checkpoint, rows, fail_at=1)
    assert len(rows) == 200
    write(store, orders(90, queues=3, first=500))
    sizes = run(stream(spark, store, **{**options, "maxOffsetsPerTrigger": "1000"}), checkpoint, rows)
    assert sizes == [200, 190], "the failed batch again, then the rest with the new limit"
    assert len(rows) == len(set(rows)) == 590
    assert {queue for _, queue, _ in rows} == {0, 1, 2}
    assert run(stream(spark, store, **options), checkpoint, rows) == []


def test_latest_keeps_its_offsets_over_a_failure(spark: Any, tmp_path: Path, checkpoint: str) -> None:
    """A query from the latest offsets whose first batch with rows fails loses none of them."""
    store = tmp_path / "store"
    write(store, orders(100))
    rows: list[tuple[Any, ...]] = []
    run(stream(spark, store), checkpoint, rows)
    assert rows == []
    write(store, orders(50, first=100))
    with pytest.raises(Exception, match="the test stops here"):
        run(stream(spark, store), checkpoint, rows, fail_at=1)
    write(store, orders(30, first=150))
    run(stream(spark, store), checkpoint, rows)
    assert sorted(number for _, queue, number in rows if queue == 0) == list(range(50, 90))
    assert len(rows) == 80


def test_a_trimmed_queue(spark: Any, tmp_path: Path, checkpoint: str) -> None:
    """Messages removed by retention before they were read cause an error or a gap."""
    store = tmp_path / "store"
    write(store, orders(300))
    rows: list[tuple[Any, ...]] = []
    run(stream(spark, store, startingOffsets="earliest"), checkpoint, rows)
    write(store, orders(1200, first=300))
    for segment in sorted((store / "commitlog").iterdir())[:3]:
        segment.unlink()
    with pytest.raises(Exception, match=r"topic 'orders', queue 0: messages 150 to \d+ are gone"):
        run(stream(spark, store), checkpoint, rows)
    run(stream(spark, store, failOnDataLoss="false"), checkpoint, rows)
    assert len(rows) == len(set(rows)) < 1500
    assert {number for _, queue, number in rows if queue == 1} > set(range(700, 750))


def test_a_resumed_stream_reports_a_restored_backup(spark: Any, tmp_path: Path, checkpoint: str) -> None:
    """A query that read 300 messages resumes on a store with 100 of them, to which 100 others were added."""
    store = tmp_path / "store"
    write(store, orders(100))
    shutil.copytree(store, tmp_path / "backup")
    write(store, orders(200, first=100))
    rows: list[tuple[Any, ...]] = []
    run(stream(spark, store, startingOffsets="earliest"), checkpoint, rows)
    assert len(rows) == 300
    shutil.rmtree(store)
    shutil.copytree(tmp_path / "backup", store)
    write(store, orders(100, first=1000))
    with pytest.raises(Exception, match=r"topic 'orders', queue 0: it ends at 100, before offset 150.*50 offsets"):
        run(stream(spark, store), checkpoint, rows)
    run(stream(spark, store, failOnDataLoss="false"), checkpoint, rows)
    assert len(rows) == 300
    write(store, orders(20, first=2000))
    run(stream(spark, store), checkpoint, rows)
    assert len(rows) == 320, "the query goes on with new messages"


def test_a_resumed_stream_reports_a_deleted_topic(spark: Any, tmp_path: Path, checkpoint: str) -> None:
    """It is an error, and without failOnDataLoss a topic created again is read from its first message."""
    store = tmp_path / "store"
    write(store, orders(60))
    rows: list[tuple[Any, ...]] = []
    run(stream(spark, store, startingOffsets="earliest"), checkpoint, rows)
    shutil.rmtree(store / "consumequeue" / "orders")
    with pytest.raises(Exception, match=r"topic 'orders', queue 0: the queue is gone; its messages from 30 on"):
        run(stream(spark, store), checkpoint, rows)
    run(stream(spark, store, failOnDataLoss="false"), checkpoint, rows)
    assert len(rows) == 60


def test_an_idle_source_creates_no_batches(spark: Any, tmp_path: Path, checkpoint: str) -> None:
    """Offsets are compared as text, so equal offsets must be equal text."""
    store = tmp_path / "store"
    write(store, orders(20))
    seen: list[int] = []
    writer = (
        stream(spark, store, startingOffsets="earliest")
        .writeStream.foreachBatch(lambda batch, number: seen.append(batch.count()))
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="100 milliseconds")
    )
    query = retry_worker_start(lambda: caught_up(writer))
    try:
        first = query.lastProgress["batchId"]
        query.awaitTermination(3)
        assert query.lastProgress["batchId"] <= first + 1
        assert sum(seen) == 20
    finally:
        query.stop()
