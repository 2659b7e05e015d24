"""The lag of streaming queries in each queue, from their progress reports.

    listener = LagListener(registry=prometheus_client.REGISTRY)
    spark.streams.addListener(listener)
    ...
    listener.lags()["my query"]

Spark's Kafka source reports this as the metric `offsetsBehindLatest`, which a Python source cannot have.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge
from pyspark.sql.streaming.listener import StreamingQueryListener

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.offsets import Position, Queue

Lag = dict[Queue, int]
"""Messages of a queue that a query has not read yet."""


def lag_of(progress: Any) -> Lag:
    """The lag of every queue of a progress report: from `query.lastProgress` or a listener's event.

    Sources of other formats are left out, as are micro-batches that ended before the source knew its queues.
    """
    report = json.loads(progress if isinstance(progress, str) else progress.json)
    found: Lag = {}
    for source in report["sources"]:
        end, latest = _position(source.get("endOffset")), _position(source.get("latestOffset"))
        if end is not None and latest is not None:
            for queue, last in latest.next.items():
                found[queue] = found.get(queue, 0) + max(last - end.next.get(queue, last), 0)
    return found


class LagListener(StreamingQueryListener):
    """Keeps the lag of every running query by its name, or by its id if it has none.

    `on_lag` is called after each micro-batch. `registry`: where to register the gauge `aerobee_pipeline_lag_messages`
    with the labels query, topic, broker and queue.
    """

    def __init__(
        self,
        on_lag: Callable[[str, Mapping[Queue, int]], None] | None = None,
        *,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._on_lag = on_lag
        self._lags: dict[str, Lag] = {}
        self._names: dict[str, str] = {}
        self._mutex = threading.Lock()
        self._gauge = None
        if registry is not None:
            self._gauge = Gauge(
                "aerobee_pipeline_lag_messages",
                "Messages that a streaming query has not read yet.",
                ("query", "topic", "broker", "queue"),
                registry=registry,
            )

    def lags(self) -> dict[str, Lag]:
        """The last known lag of each running query."""
        with self._mutex:
            return {name: dict(lag) for name, lag in self._lags.items()}

    def onQueryStarted(self, event: Any) -> None:
        with self._mutex:
            self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        self.take(progress.name or str(progress.id), lag_of(progress))

    def onQueryIdle(self, event: Any) -> None:
        """The last report is still valid."""

    def onQueryTerminated(self, event: Any) -> None:
        with self._mutex:
            name = self._names.pop(str(event.id), str(event.id))
            lag = self._lags.pop(name, {})
        if self._gauge is not None:
            for queue in lag:
                self._gauge.remove(name, *_labels(queue))

    def take(self, query: str, lag: Lag) -> None:
        """Record a query's lag, and report it."""
        with self._mutex:
            self._lags[query] = lag
        if self._gauge is not None:
            for queue, count in lag.items():
                self._gauge.labels(query, *_labels(queue)).set(count)
        if self._on_lag is not None:
            self._on_lag(query, lag)


def _labels(queue: Queue) -> tuple[str, str, str]:
    return queue.topic, queue.broker, str(queue.queue_id)


def _position(text: Any) -> Position | None:
    """The offset of an Aerobee source; None for other formats, and without an offset."""
    try:
        content = json.loads(text) if isinstance(text, str) else text
        return Position.from_json(content) if isinstance(content, dict) and "q" in content else None
    except (ValueError, OptionError):
        return None
