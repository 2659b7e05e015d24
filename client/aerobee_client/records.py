"""Messages in bulk: records in the layout of the store, packed here, sent, read and never touched one by one.

    records = client.records
    await records.append("orders", 0, records.pack("orders", 0, messages))

    async with records.appender("orders", 0) as appender:          # several requests in flight
        for chunk in chunks:
            await appender.append(records.pack("orders", 0, chunk))

    async for frame in records.read("orders", 0, start=0):
        for body in frame.bodies():
            ...

Only Aerobee serves this (`await records.supported()`); RocketMQ's own servers answer with UnsupportedError. A batch
topic (attribute queue.type=BatchCQ) takes many messages in one record: `pack_batch`, optionally compressed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from aerobee_client.connections.closing import AsyncClosing
from aerobee_client.connections.connection import Connection, Retry, new_client_id
from aerobee_client.errors import BadRequestError, ClientError, UnsupportedError, status_error
from aerobee_client.limits.bounds import MemoryLimit
from aerobee_client.messages import packing
from aerobee_client.messages.compression import Compression, CorruptedBodyError, decompress
from aerobee_client.messages.message import Message, StoredMessage, message_of_record
from aerobee_proto import records_v1, v2
from aerobee_store.records.message_rules import ServerLimits

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from aerobee_store.records.record_batch import RecordBatch


@dataclass(frozen=True, slots=True)
class Appended:
    """Records that are stored as safely as the broker promises."""

    first_queue_offset: int
    message_count: int
    store_timestamp: int  # Unix milliseconds
    end_physical_offset: int


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """The first offset of a queue, and its next offset."""

    queue_id: int
    min_offset: int
    max_offset: int
    timestamp_offset: int | None  # for the requested time


@dataclass(frozen=True, slots=True)
class Frame:
    """Whole records of a queue, as the log holds them."""

    records: bytes
    start_offset: int
    next_offset: int
    lost_count: int  # unreadable messages: their records are damaged, or gone, also by retention during the read

    def batch(self) -> RecordBatch:
        """The records as numpy columns, with all checksums verified. CorruptRecordError if one is wrong."""
        from aerobee_store.records.record_batch import RecordBatch

        return RecordBatch.parse(self.records, base_physical_offset=None)

    def bodies(self) -> Iterator[bytes]:
        """The decompressed body of each message from `start_offset` on, including those inside the records of a batch
        topic. A body that cannot be decompressed comes as it is stored, and is logged."""
        from aerobee_store.records import inner_batch

        batch = self.batch()
        for index in range(len(batch)):
            record = batch.record(index)
            if inner_batch.is_inner_batch(record):
                yield from (
                    bytes(each.body) for each in inner_batch.unpack(record) if each.queue_offset >= self.start_offset
                )
            else:
                body = bytes(record.body)
                try:
                    body = decompress(body, record.sys_flag)
                except CorruptedBodyError as error:
                    _log.error("body is corrupted queue_offset=%d: %s", record.queue_offset, error)
                yield body

    def messages(self, topic: str, stored_group: str) -> list[StoredMessage]:
        """The messages of the frame that this group may have, as a pull consumer hands them out. `topic`: as the client
        names it.

        Raises ClientError for a record that is damaged.
        """
        from aerobee_store.errors import StoreError
        from aerobee_store.records import inner_batch
        from aerobee_store.records.message_fields import is_for

        batch = self.batch()
        if batch.end != len(self.records):
            raise ClientError(f"a record of topic {topic!r} is damaged: {batch.stop.detail}; read it again")
        found: list[StoredMessage] = []
        try:
            for index in range(len(batch)):
                record = batch.record(index)
                if inner_batch.is_inner_batch(record):
                    found += [
                        message_of_record(each, topic)
                        for each in inner_batch.unpack(record)
                        if self.start_offset <= each.queue_offset < self.next_offset
                    ]
                elif is_for(record, stored_group):
                    found.append(message_of_record(record, topic))
        except StoreError as error:
            raise ClientError(f"a record of topic {topic!r} is damaged: {error}; read it again") from error
        return found


class Records:
    """The RecordService of a broker, as `Client.records`; needs no closing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._metadata = connection.headers(new_client_id())
        self._supported: bool | None = None
        self._store_host_v6: bool | None = None
        self.limits = ServerLimits()
        """Of a message. The defaults until `supported` has asked the broker."""

    async def supported(self, *, retry: Retry | None = None) -> bool:
        """Whether the server has this service. It is asked once."""
        if self._supported is None:
            try:
                answer = await self._connection.call(
                    lambda stubs: stubs.records.QueueOffsets,
                    records_v1.QueueOffsetsRequest(),
                    self._metadata,
                    retry=retry,
                )
            except UnsupportedError:
                self._supported = False
            except BadRequestError:  # refused, but known
                self._supported = True
            else:
                self._supported = True
                self._store_host_v6 = answer.ipv6_store_host
                if answer.HasField("message_limits"):
                    told = answer.message_limits
                    self.limits = ServerLimits(
                        told.body_size_max, told.user_property_count_max, told.properties_size_max
                    )
        return self._supported

    @property
    def hosts(self) -> packing.Hosts:
        """The address sizes of records. Before `supported` has asked the broker, they follow from its endpoint's
        address."""
        six = self._connection.dials_ipv6
        return packing.Hosts(six, six if self._store_host_v6 is None else self._store_host_v6)

    # --- Packing ----------------------------------------------------------------------------------------------

    def pack(
        self,
        topic: str,
        queue_id: int,
        messages: Iterable[Message],
        *,
        compression: Compression | None = None,
        compress_above: int = 4096,
    ) -> bytes:
        """The records of messages, identical to those stored by SendMessage. `topic` is the topic of all of them.

        Raises BadRequestError if one exceeds a limit, is delayed, for a lite topic, has a priority, a key with a blank,
        or a property without a value: use `send` for those.
        """
        some = list(messages)
        for message in some:
            if message.topic != topic:
                raise BadRequestError(
                    v2.Code.ILLEGAL_TOPIC,
                    f"a message is for topic {message.topic!r}, but the appender is for {topic!r}",
                )
        return packing.pack(
            self._connection.stored_name(topic),
            queue_id,
            some,
            compression=compression,
            compress_above=compress_above,
            hosts=self.hosts,
            limits=self.limits,
        )

    def pack_batch(
        self,
        topic: str,
        queue_id: int,
        messages: Sequence[Message],
        *,
        compression: Compression | None = None,
    ) -> bytes:
        """One record that holds all messages, for a batch topic."""
        return packing.pack_batch(
            self._connection.stored_name(topic),
            queue_id,
            messages,
            compression=compression,
            hosts=self.hosts,
            limits=self.limits,
        )

    # --- Writing ----------------------------------------------------------------------------------------------

    async def append(self, topic: str, queue_id: int, records: bytes) -> Appended:
        """Store all of these records, or none, at consecutive offsets of one queue.

        Retried like a send, so records may be stored twice. Raises BadRequestError if a record is invalid.
        """
        request = _append_request(topic, queue_id, records)
        answer = await self._connection.call(lambda stubs: stubs.records.AppendRecords, request, self._metadata)
        return _appended(answer)

    def appender(self, topic: str, queue_id: int, *, in_flight_size_max: int = 16 << 20) -> Appender:
        """A stream of requests for one queue, with several in flight."""
        return Appender(self._connection, self._metadata, topic, queue_id, in_flight_size_max)

    # --- Reading ----------------------------------------------------------------------------------------------

    async def read(
        self,
        topic: str,
        queue_id: int,
        start: int,
        *,
        end: int | None = None,
        size_max: int = 0,
        frame_size_max: int = 0,
        tags: Iterable[str] = (),
        wait_seconds: float = 0.0,
        group: str = "",
    ) -> AsyncGenerator[Frame, None]:
        """The records of a queue from offset `start` up to `end` (exclusive), in frames of about a megabyte.

        Without `end`: up to the end of the queue, where it waits `wait_seconds` for more each time. `tags` are compared
        by hash, so a few others may be included. `group`: whose metrics count the messages. Raises BadRequestError with
        ILLEGAL_OFFSET if the queue does not have `start`.
        """
        request = records_v1.ReadRecordsRequest(
            topic=v2.Resource(name=topic),
            queue_id=queue_id,
            start_queue_offset=start,
            end_queue_offset=end,
            bytes_max=size_max,
            frame_bytes_max=frame_size_max,
            tags=tags,
            group=v2.Resource(name=group) if group else None,
        )
        if wait_seconds:
            request.wait.FromMilliseconds(int(wait_seconds * 1000))
        stream = self._connection.stream(
            lambda stubs: stubs.records.ReadRecords, request, self._metadata, timeout_seconds=None
        )
        async with aclosing(stream) as responses:
            async for response in responses:
                if not response.HasField("status"):
                    yield Frame(
                        response.records,
                        response.start_queue_offset,
                        response.next_queue_offset,
                        response.lost_count,
                    )
                elif (error := status_error(response.status)) is not None:
                    raise error

    async def offsets(self, topic: str, *, timestamp: int | None = None) -> list[QueueOffsets]:
        """The first and next offsets of a topic's queues; with `timestamp` (Unix milliseconds), also the offset of the
        first message stored then or later."""
        wanted = records_v1.QueueOffsetsRequest.TopicQueues(topic=v2.Resource(name=topic))
        if timestamp is not None:
            wanted.timestamp.FromMilliseconds(timestamp)
        answer = await self._connection.call(
            lambda stubs: stubs.records.QueueOffsets,
            records_v1.QueueOffsetsRequest(topics=[wanted]),
            self._metadata,
            check=lambda answer: status_error(answer.status) or status_error(answer.topics[0].status),
        )
        return [
            QueueOffsets(
                each.queue_id,
                each.min_queue_offset,
                each.max_queue_offset,
                each.timestamp_queue_offset if each.HasField("timestamp_queue_offset") else None,
            )
            for each in answer.topics[0].queues
        ]


class Appender(AsyncClosing):
    """Requests for one queue over one stream. `Records.appender` makes one; leaving the block waits for the answers."""

    def __init__(
        self,
        connection: Connection,
        metadata: tuple[tuple[str, str], ...],
        topic: str,
        queue_id: int,
        in_flight_size_max: int,
    ) -> None:
        self._connection = connection
        self._metadata = metadata
        self._topic = topic
        self._queue_id = queue_id
        self._room = MemoryLimit(in_flight_size_max, 1024)
        self._requests: asyncio.Queue[records_v1.AppendRecordsRequest | None] = asyncio.Queue()
        self._waiting: deque[tuple[int, asyncio.Future[Appended]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._ended: ClientError | None = None

    async def append(self, records: bytes) -> asyncio.Future[Appended]:
        """Return when there is space for these records in flight, with a future for the result.

        A refused request does not end the stream. When the stream breaks, all requests in flight fail with
        UnavailableError and may be stored nevertheless: nothing is retried.
        """
        await self._room.enter(len(records))
        if self._ended is not None or self._task is None:
            self._room.leave(len(records))
            raise self._ended or ClientError("use the appender with `async with`")
        outcome: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._waiting.append((len(records), outcome))
        self._requests.put_nowait(_append_request(self._topic, self._queue_id, records))
        return outcome

    async def close(self) -> None:
        """Return when all requests are answered."""
        if self._task is not None:
            self._requests.put_nowait(None)
            await self._task

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"append {self._topic} {self._queue_id}")
        return self

    async def _run(self) -> None:
        error = ClientError("the appender is closed")
        try:
            stream = self._connection.exchange(
                lambda stubs: stubs.records.StreamAppendRecords, self._sent(), self._metadata
            )
            async with aclosing(stream) as answers:
                async for answer in answers:
                    size, outcome = self._waiting.popleft()
                    self._room.leave(size)
                    refused = status_error(answer.status)
                    if outcome.done():
                        continue
                    if refused is not None:
                        outcome.set_exception(refused)
                    else:
                        outcome.set_result(_appended(answer))
        except ClientError as broken:
            error = broken
        finally:
            self._ended = error
            self._requests.put_nowait(None)  # gRPC does not wake a task that waits for the next request
            while self._waiting:
                size, outcome = self._waiting.popleft()
                self._room.leave(size)
                if not outcome.done():
                    outcome.set_exception(error)

    async def _sent(self) -> AsyncIterator[records_v1.AppendRecordsRequest]:
        while (request := await self._requests.get()) is not None:
            yield request


def _append_request(topic: str, queue_id: int, records: bytes) -> records_v1.AppendRecordsRequest:
    return records_v1.AppendRecordsRequest(topic=v2.Resource(name=topic), queue_id=queue_id, records=records)


def _appended(answer: records_v1.AppendRecordsResponse) -> Appended:
    return Appended(
        answer.first_queue_offset, answer.message_count, answer.store_timestamp_ms, answer.end_physical_offset
    )
