"""Appends records over one stream of `AppendRecords` requests, and waits for every answer.

Requests are stored in order. After a broken connection, unanswered requests are sent again in that order; their records
may then be stored twice, with the same ids.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from queue import SimpleQueue

import grpc

from aerobee_pipeline.broker_channel import BUSY_CODES, Broker, pause_seconds
from aerobee_pipeline.errors import BrokerCallError
from aerobee_pipeline.writing.encode import Chunk
from aerobee_proto import records_v1, v2


class RecordAppender:
    """At most `in_flight_max` requests are in flight. `retries`: in addition to waits for a restarting broker."""

    def __init__(self, broker: Broker, *, in_flight_max: int, retries: int, retry_interval_ms: int) -> None:
        self._broker = broker
        self._in_flight_max = in_flight_max
        self._retries = retries
        self._retry_interval_ms = retry_interval_ms
        self._pending: deque[records_v1.AppendRecordsRequest] = deque()
        self._requests: SimpleQueue[records_v1.AppendRecordsRequest | None] | None = None
        self._answers: Iterator[records_v1.AppendRecordsResponse] = iter(())
        self._failures = 0
        self.message_count = 0

    def append(self, topic: str, queue_id: int, chunk: Chunk, *, ordered: bool = False) -> None:
        """Send a request; return when another one may be sent. Raises BrokerCallError for a refused request.

        `ordered`: wait until no other request for this queue is in flight, so that none overtakes a retried one.
        """
        while ordered and any(item.queue_id == queue_id and item.topic.name == topic for item in self._pending):
            self._take()
        request = records_v1.AppendRecordsRequest(
            topic=v2.Resource(name=topic), queue_id=queue_id, records=chunk.records, record_sizes=chunk.sizes
        )
        self._pending.append(request)
        if self._requests is None:
            self._connect()
        else:
            self._requests.put(request)
        while len(self._pending) >= self._in_flight_max:
            self._take()

    def finish(self) -> None:
        """Return when every request has its answer."""
        while self._pending:
            self._take()
        if self._requests is not None:
            self._requests.put(None)
            self._requests = None

    def close(self) -> None:
        """End the stream, with requests in flight or not."""
        if self._requests is not None:
            self._requests.put(None)
            self._requests = None

    def _connect(self) -> None:
        """Open a new stream and send all unanswered requests again."""
        requests: SimpleQueue[records_v1.AppendRecordsRequest | None] = SimpleQueue()
        for request in self._pending:
            requests.put(request)
        self._requests = requests
        self._answers = iter(
            self._broker.records.StreamAppendRecords(iter(requests.get, None), metadata=self._broker.metadata())
        )

    def _take(self) -> None:
        """Take one answer. A request that an overloaded broker refused is sent again after all others."""
        try:
            answer = next(self._answers, None)
        except grpc.RpcError as error:
            self._broken(f"{error.code().name}: {error.details()}", error.code() is grpc.StatusCode.UNAVAILABLE)
            return
        if answer is None:
            self._broken("the broker ended the stream", True)
            return
        request = self._pending.popleft()
        code = answer.status.code
        if code == v2.Code.OK:
            self._failures = 0
            self.message_count += answer.message_count
        elif code in BUSY_CODES and self._failures < self._retries:
            self._failures += 1
            time.sleep(pause_seconds(self._retry_interval_ms, self._failures))
            self._pending.append(request)
            assert self._requests is not None
            self._requests.put(request)
        else:
            record = f", record {answer.bad_record_index}" if answer.HasField("bad_record_index") else ""
            raise BrokerCallError(
                f"topic {request.topic.name!r}, queue {request.queue_id}{record}: {v2.Code.Name(code)}: "
                f"{answer.status.message}"
            )

    def _broken(self, detail: str, may_pass: bool) -> None:
        self.close()
        self._failures += 1
        if not may_pass or self._failures > max(self._retries, 1):
            raise BrokerCallError(f"append of {len(self._pending)} requests: {detail}; {self._failures} attempts")
        self._broker.wait()
        self._connect()
