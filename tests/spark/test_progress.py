"""The lag of queries by queue, the start of a micro-batch, and the send rate of a task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from prometheus_client import CollectorRegistry

from aerobee_pipeline.offsets import Position, Queue
from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.progress import LagListener, lag_of
from aerobee_pipeline.source import StreamReader
from aerobee_pipeline.worker_start import retry_worker_start
from aerobee_pipeline.writing.sink import Pace
from tests.spark.cluster import wait_for
from tests.spark.stores import orders, write
from tests.spark.test_file_stream import caught_up

A, B = Queue("orders", "a", 0), Queue("orders", "a", 1)


def report(end: Any, latest: Any) -> str:
    return json.dumps({"sources": [{"endOffset": end, "latestOffset": latest}]})


def test_lag_of_a_report() -> None:
    """The latest offsets minus the ends; other sources, and reports without offsets, have no lag."""
    end, latest = Position({A: 5, B: 7}).to_json(), Position({A: 25, B: 7}).to_json()
    assert lag_of(report(end, latest)) == {A: 20, B: 0}
    assert lag_of(report(json.dumps(end), json.dumps(latest))) == {A: 20, B: 0}
    assert lag_of(report(latest, end)) == {A: 0, B: 0}
    assert lag_of(report(None, latest)) == lag_of(report({"topic": {"0": 3}}, {"topic": {"0": 3}})) == {}
    assert lag_of(report(7, "text")) == {}


def test_a_stream_reports_its_progress_to_a_listener(spark: Any, tmp_path: Path, checkpoint: str) -> None:
    """Lags reach the callback and the gauge, and are removed when the query ends."""
    write(tmp_path / "store", orders(100))
    registry = CollectorRegistry()
    seen: list[int] = []
    listener = LagListener(lambda query, lag: seen.append(sum(lag.values())), registry=registry)
    spark.streams.addListener(listener)
    try:
        stream = spark.readStream.format("aerobee").options(storePath=str(tmp_path / "store"), subscribe="orders")
        frame = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="40").load()
        writer = frame.writeStream.format("noop").queryName("lagging").option("checkpointLocation", checkpoint)
        query = retry_worker_start(lambda: caught_up(writer))
        try:
            wait_for(lambda: seen[-1:] == [0], "a report without lag")
            assert set(seen) >= {60, 20, 0}
            assert set(listener.lags()) == {"lagging"}
            labels = {"query": "lagging", "topic": "orders", "broker": "", "queue": "1"}
            assert registry.get_sample_value("aerobee_pipeline_lag_messages", labels) == 0
        finally:
            query.stop()
        wait_for(lambda: listener.lags() == {}, "an end of the query")
        wait_for(lambda: registry.get_sample_value("aerobee_pipeline_lag_messages", labels) is None, "no more gauge")
    finally:
        spark.streams.removeListener(listener)


def test_a_micro_batch_waits_for_enough_messages(tmp_path: Path) -> None:
    """With minOffsetsPerTrigger, fewer messages wait, but at most maxTriggerDelay."""
    write(tmp_path / "store", orders(10))

    def reader(**more: str) -> StreamReader:
        given = {"storepath": str(tmp_path / "store"), "subscribe": "orders", "startingoffsets": "earliest", **more}
        return StreamReader(SourceOptions.parse(given, streaming=True), ["body"])

    waiting = reader(minoffsetspertrigger="30")
    first = waiting.latestOffset(waiting.initialOffset())
    assert Position.from_json(first).next == {Queue("orders", "", 0): 5, Queue("orders", "", 1): 5}
    write(tmp_path / "store", orders(29, first=10))
    assert waiting.latestOffset(first) == first
    at_once = reader(minoffsetspertrigger="30", maxtriggerdelay="0ms")
    assert at_once.latestOffset(first) != first
    at_the_end = reader(minoffsetspertrigger="30")
    at_the_end.latestOffset(at_the_end.initialOffset())
    at_the_end.prepareForTriggerAvailableNow()
    assert at_the_end.latestOffset(first) != first
    write(tmp_path / "store", orders(1, first=39))
    assert waiting.latestOffset(first) != first
    for each in (waiting, at_once, at_the_end):
        each.stop()


def test_replay_keeps_its_rate() -> None:
    """One second's rows are sent at once, then the task pauses until more may be sent; without a rate no row waits."""
    now = 100.0
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += seconds

    batch = pa.RecordBatch.from_pydict({"body": list(range(25))})
    pace = Pace(10, clock=lambda: now, sleep=sleep)
    assert [part.num_rows for part in pace.parts(batch)] == [10, 10, 5]
    assert [part.num_rows for part in pace.parts(batch)] == [10, 10, 5]
    assert pauses == [1, 1, 0.5, 1, 1]
    assert [part.num_rows for part in Pace(None, clock=lambda: now, sleep=sleep).parts(batch)] == [25]
    assert len(pauses) == 5
