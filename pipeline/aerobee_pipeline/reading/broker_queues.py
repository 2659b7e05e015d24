"""The queues of a running broker: their bounds by `RecordService.QueueOffsets`, their messages by `ReadRecords`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
import numpy as np

from aerobee_pipeline.broker_channel import Address, Broker
from aerobee_pipeline.errors import BrokerCallError, DataLossError
from aerobee_pipeline.offsets import Bounds, Queue, Range
from aerobee_pipeline.options import SourceOptions, Subscription
from aerobee_pipeline.passes import Rows, parsed
from aerobee_pipeline.reading.decode import expanded
from aerobee_proto import records_v1, v2
from aerobee_store.records.record_batch import RecordBatch

_log = logging.getLogger(__name__)

_TOPICS_A_CALL: Final = 500
# Messages of a queue whose store times are asked for, and of all queues: each is a call.
_SAMPLED_PLACES: Final = 32
_SAMPLED_MESSAGES: Final = 512


class BrokersAccess:
    """The queues of one or several brokers, by the broker's name in the option `endpoint`."""

    def __init__(self, options: SourceOptions) -> None:
        self._brokers = {broker: BrokerQueues(options, broker) for broker in options.endpoints}

    def bounds(self, subscription: Subscription) -> dict[Queue, Bounds]:
        found: dict[Queue, Bounds] = {}
        for queues in self._brokers.values():
            found.update(queues.bounds(subscription))
        return found

    def offset_at(self, queue: Queue, bounds: Bounds, timestamp_ms: int) -> int | None:
        return self._brokers[queue.broker].offset_at(queue, bounds, timestamp_ms)

    def rising(self, bounds: Mapping[Queue, Bounds]) -> set[Queue]:
        places = min(max(_SAMPLED_MESSAGES // max(len(bounds), 1), 2), _SAMPLED_PLACES)
        return {queue for queue, its in bounds.items() if self._brokers[queue.broker].times_rise(queue, its, places)}

    def size_of(self, item: Range) -> int | None:
        return None

    def read(
        self, item: Range, tags: frozenset[str] | None, *, fail_on_data_loss: bool
    ) -> Iterator[tuple[RecordBatch, Rows]]:
        return self._brokers[item.queue.broker].read(item, tags, fail_on_data_loss=fail_on_data_loss)

    def broker_name(self, queue: Queue) -> str:
        return self._brokers[queue.broker].broker_name(queue.topic)

    def report(self, group: str, offsets: Mapping[Queue, int]) -> None:
        for queue, offset in offsets.items():
            self._brokers[queue.broker].report(group, queue, offset)

    def close(self) -> None:
        """Nothing to do: channels are kept for the next task of the process."""


class BrokerQueues:
    """The queues of one broker. Connections are opened on first use, so an instance can be created anywhere.

    `broker`: its name in the option `endpoint`, "" if there is none.
    """

    def __init__(self, options: SourceOptions, broker: str = "") -> None:
        self._options = options
        self._name = broker
        self._endpoint = options.endpoints[broker]
        self._address = Address(
            self._endpoint,
            options.credentials_file,
            options.tls_ca,
            options.pull_timeout_ms,
            options.retries,
            options.retry_interval_ms,
        )
        self._opened: Broker | None = None
        self._own_name = ""

    @property
    def _broker(self) -> Broker:
        if self._opened is None:
            self._opened = Broker(self._address)
        return self._opened

    def broker_name(self, topic: str) -> str:
        """The name in the option `endpoint`, or the broker's own. `topic`: one that the account may read."""
        if not self._own_name:
            self._own_name = self._name or self._broker.name(topic)
        return self._own_name

    def bounds(self, subscription: Subscription) -> dict[Queue, Bounds]:
        """The bounds of the selected queues; a missing topic has none."""
        topics = subscription.named
        if subscription.pattern is not None:
            topics = frozenset(topic for topic in self._broker.topics() if subscription.has_topic(topic))
        found: dict[Queue, Bounds] = {}
        for names in _chunks(sorted(topics), _TOPICS_A_CALL):
            request = records_v1.QueueOffsetsRequest(
                topics=[records_v1.QueueOffsetsRequest.TopicQueues(topic=v2.Resource(name=name)) for name in names]
            )
            for name, topic in zip(names, self._broker.queue_offsets(request).topics, strict=True):
                if topic.status.code == v2.Code.TOPIC_NOT_FOUND:
                    continue
                self._broker.checked(f"topic {name!r}", topic.status)
                for queue in topic.queues:
                    if subscription.has_queue(name, queue.queue_id):
                        bounds = Bounds(queue.min_queue_offset, queue.max_queue_offset)
                        found[Queue(name, self._name, queue.queue_id)] = bounds
        return found

    def offset_at(self, queue: Queue, bounds: Bounds, timestamp_ms: int) -> int | None:
        """The first message stored at or after a time; None if there is none."""
        asked = records_v1.QueueOffsetsRequest.TopicQueues(
            topic=v2.Resource(name=queue.topic), queue_ids=[queue.queue_id]
        )
        asked.timestamp.FromMilliseconds(timestamp_ms)
        topic = self._broker.queue_offsets(records_v1.QueueOffsetsRequest(topics=[asked])).topics[0]
        self._broker.checked(str(queue), topic.status)
        at = topic.queues[0].timestamp_queue_offset
        return at if at < bounds.end else None

    def times_rise(self, queue: Queue, bounds: Bounds, places: int) -> bool:
        """Whether the store times of so many messages of a queue rise."""
        times: list[int] = []
        for offset in bounds.sample(places):
            for messages, rows in self.read(Range(queue, offset, offset + 1), None, fail_on_data_loss=False):
                times += messages.store_timestamp[rows].tolist()
        return times == sorted(times)

    def read(
        self, item: Range, tags: frozenset[str] | None, *, fail_on_data_loss: bool
    ) -> Iterator[tuple[RecordBatch, Rows]]:
        """The messages of a range. A broken stream is resumed after its last whole frame.

        Raises DataLossError, or logs a warning, for messages that the broker no longer has or cannot read.
        """
        position = item.start
        failures = 0
        while position < item.end:
            begin = position
            try:
                for frame in _ahead(self._frames(item, position, tags)):
                    if frame.HasField("status"):
                        position = self._ended(item, position, frame, fail_on_data_loss)
                        break
                    if frame.lost_count:
                        self._lose(
                            item.queue,
                            f"{frame.lost_count} messages from {frame.start_queue_offset} on cannot be read",
                            fail_on_data_loss,
                        )
                    yield from self._messages(item, frame)
                    position = frame.next_queue_offset
                    failures = 0
                else:
                    failures = self._broken(item, position, failures + (position == begin), "the stream ended early")
            except grpc.RpcError as error:
                detail = f"{error.code().name}: {error.details()}"
                failures = self._broken(item, position, failures + (position == begin), detail)

    def _broken(self, item: Range, position: int, failures: int, detail: str) -> int:
        """Return `failures` when the broker answers again. Raises BrokerCallError after too many."""
        if failures > self._options.retries:
            raise BrokerCallError(f"{self._endpoint}: {item.queue}, offset {position}: {detail}; {failures} attempts")
        self._broker.wait()
        return failures

    def report(self, group: str, queue: Queue, offset: int) -> None:
        """Commit the progress of a group in a queue to the broker."""
        self._broker.report(group, queue.topic, queue.queue_id, offset)

    def _frames(self, item: Range, position: int, tags: frozenset[str] | None) -> Any:
        request = records_v1.ReadRecordsRequest(
            topic=v2.Resource(name=item.queue.topic),
            queue_id=item.queue.queue_id,
            start_queue_offset=position,
            end_queue_offset=item.end,
            frame_bytes_max=min(self._options.pull_bytes, 4 << 20),
            tags=sorted(tags or ()),
        )
        return self._broker.records.ReadRecords(request, metadata=self._broker.metadata())

    def _ended(self, item: Range, position: int, last: records_v1.ReadRecordsResponse, fails: bool) -> int:
        """The offset to continue at after the last response of a stream."""
        if last.status.code == v2.Code.ILLEGAL_OFFSET:
            self._lose(
                item.queue,
                f"message {position} is asked for, but there are {last.min_queue_offset} to {last.max_queue_offset}",
                fails,
            )
            return min(max(last.min_queue_offset, position), item.end) if last.min_queue_offset > position else item.end
        self._broker.checked(f"{item.queue}, offset {position}", last.status)
        if last.next_queue_offset < item.end:
            self._lose(
                item.queue,
                f"it ends at {last.next_queue_offset}, but was planned to be read up to {item.end}: it was reset",
                fails,
            )
        return item.end

    def _messages(self, item: Range, frame: records_v1.ReadRecordsResponse) -> Iterator[tuple[RecordBatch, Rows]]:
        batch = parsed(frame.records, base_physical_offset=None)
        if batch.end != len(frame.records):
            raise DataLossError(
                f"{item.queue}, offset {frame.start_queue_offset}: the broker sent an invalid record at byte "
                f"{batch.stop.position}: {batch.stop.detail}"
            )
        for messages, rows in expanded(batch, np.arange(len(batch))):
            inside = (messages.queue_offset >= item.start) & (messages.queue_offset < item.end)
            yield messages, rows[inside[rows]]

    def _lose(self, queue: Queue, detail: str, fails: bool) -> None:
        lost = f"{queue} at {self._endpoint}: {detail}"
        if fails:
            raise DataLossError(f"{lost}. Set the option failOnDataLoss=false to continue with the remaining messages")
        _log.warning("%s", lost)


def _ahead(call: Any) -> Iterator[records_v1.ReadRecordsResponse]:
    """The frames of a call, each received while the one before it is decoded. The call ends with the iteration."""
    with ThreadPoolExecutor(1, "frames") as thread:
        try:
            received = thread.submit(next, call, None)
            while (frame := received.result()) is not None:
                received = thread.submit(next, call, None)
                yield frame
        finally:
            call.cancel()


def _chunks(names: list[str], size: int) -> Iterator[list[str]]:
    for begin in range(0, len(names), size):
        yield names[begin : begin + size]
