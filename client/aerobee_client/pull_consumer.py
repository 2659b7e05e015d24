"""Reads queues from offsets that the reader controls: in order, repeatedly, from a time, or by broadcasting."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Literal, Self, TypedDict

from aerobee_client.allocation import Allocation, Averagely, Queue
from aerobee_client.connections import repeating
from aerobee_client.connections.closing import AsyncClosing
from aerobee_client.connections.connection import Connection
from aerobee_client.connections.routes import DEFAULT, Routes, broker_endpoints, queue_of
from aerobee_client.connections.telemetry import Telemetry
from aerobee_client.errors import (
    ClientError,
    NotFoundError,
    UnsupportedError,
    status_error,
)
from aerobee_client.filters import Subscriptions, wire_filters, wire_subscription
from aerobee_client.limits.flow import FlowControl
from aerobee_client.messages.message import StoredMessage, stored_message
from aerobee_client.records import Records
from aerobee_proto import admin_v1, v2
from aerobee_store.records.tag_expression import tags_of

_log = logging.getLogger(__name__)

Start = Literal["begin", "end"] | int
"""Where to read a queue without a committed offset: its beginning, its end, or a time (Unix ms)."""

REBALANCE_SECONDS = 10.0
_WAIT_SECONDS = 20.0
_BATCH_COUNT = 32
_TAG_COUNT_MAX = 1000  # of ReadRecords
_FRAME_SIZE = 256 << 10  # bytes of records that are decoded in one step of the event loop

PullCall = Literal["PullMessage", "ReadRecords"]
"""The call of RocketMQ's protocol, or that of Aerobee's RecordService."""


class _Reading:
    """One assigned queue. Offsets are queue offsets."""

    def __init__(self, queue: Queue, wire: v2.MessageQueue) -> None:
        self.queue = queue
        self.wire = wire
        self.position: int | None = None  # of the next message to return; None until it is known
        self.handled: int | None = None  # after the last handled message
        self.saved: int | None = None  # the last committed offset
        self.fetched = 0  # the next offset to fetch
        self.waiting: deque[StoredMessage] = deque()
        self.paused = asyncio.Event()
        self.running = asyncio.Event()
        self.running.set()
        self.task: asyncio.Task[None] | None = None


class PullConsumerOptions(TypedDict, total=False):
    """The options of `Client.pull_consumer`, which documents them, for functions that pass them on."""

    start: Start
    broadcasting: bool
    offsets_file: Path | None
    allocation: Allocation | None
    commit_seconds: float | None
    waiting_count_max: int
    waiting_size_max: int
    span_max: int
    on_rebalance: Callable[[frozenset[Queue], frozenset[Queue]], None] | None


class PullConsumer(AsyncClosing):
    """Reads queues of topics and keeps track of its position in each. `Client.pull_consumer` makes one.

        async with client.pull_consumer("audit", "orders") as consumer:
            async for message in consumer:
                print(message.queue_id, message.queue_offset, message.body)

    The consumers of a group share the queues, by the strategy of allocation, and the committed offsets are kept by the
    broker; with `broadcasting` each of them reads all queues and keeps its own offsets. `assign` selects queues
    explicitly instead. There are no attempts and no invisible times.

    A message from iteration counts as handled when the next one is requested. Handled offsets are committed every
    `commit_seconds` and at the end, or by `commit`. Only Aerobee serves these calls.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        subscriptions: Subscriptions,
        *,
        start: Start = "end",
        broadcasting: bool = False,
        offsets_file: Path | None = None,
        allocation: Allocation | None = None,
        commit_seconds: float | None = 5.0,
        waiting_count_max: int = 1000,
        waiting_size_max: int = 64 << 20,
        span_max: int = 2000,
        on_rebalance: Callable[[frozenset[Queue], frozenset[Queue]], None] | None = None,
    ) -> None:
        if offsets_file is not None and not broadcasting:
            raise ValueError("offsets_file needs broadcasting=True; otherwise the broker keeps the offsets")
        if start not in ("begin", "end") and not isinstance(start, int):
            raise ValueError(f"start is {start!r}; give 'begin', 'end' or a time in Unix milliseconds")
        self._filters = wire_filters(subscriptions)
        self.group = group
        self._connection = connection
        self._start = start
        self._broadcasting = broadcasting
        self._offsets_file = offsets_file
        self._own_offsets: dict[Queue, int] = {}
        self._allocation = allocation or Averagely()
        self._commit_seconds = commit_seconds
        self._on_rebalance = on_rebalance
        settings = v2.Settings(
            client_type=v2.ClientType.PULL_CONSUMER, subscription=wire_subscription(group, self._filters)
        )
        self._telemetry = Telemetry(connection, settings, group)
        self._routes = Routes(connection, self._telemetry.metadata)
        self._records = Records(connection)
        self.call: PullCall = "PullMessage"
        """The call of the last fetch. A backlog is fetched by ReadRecords, if the server supports it and the filter
        consists of tags."""
        self._flow = FlowControl(waiting_count_max, waiting_size_max, span_max)
        self._readings: dict[Queue, _Reading] = {}
        self._by_hand = False
        self._arrived = asyncio.Event()
        self._at_hand: dict[Queue, int] = {}  # returned by iteration, and the next one not requested yet
        self._failure: ClientError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._turn = 0

    # --- Life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to read. Errors as for a call."""
        if self._telemetry.closed:
            raise ClientError("this consumer is closed; make a new one")
        if self._tasks:
            raise ClientError("this consumer is already started")
        await self._telemetry.ready()
        self._own_offsets = _load(self._offsets_file)
        if not self._by_hand:
            await self._rebalance()
        self._tasks.append(asyncio.create_task(self._keep_balance(), name=f"rebalance {self.group}"))
        if self._commit_seconds is not None:
            self._tasks.append(asyncio.create_task(self._keep_committing(self._commit_seconds), name="commit"))

    async def close(self) -> None:
        """Commit handled offsets, if the consumer commits automatically, and unregister."""
        if self._telemetry.closed:
            return
        tasks = [*self._tasks, *(each.task for each in self._readings.values() if each.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._commit_seconds is not None and self._tasks:
            try:
                await self._commit_handled()
            except ClientError as error:
                _log.warning("the last offsets were not committed group=%s error=%s", self.group, error)
        for reading in self._readings.values():
            self._drop_waiting(reading)
        await self._telemetry.close()
        self._arrived.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    # --- Messages ---------------------------------------------------------------------------------------------

    async def getmany(self, *, max_count: int = 500, wait_seconds: float = 10.0) -> list[StoredMessage]:
        """Up to `max_count` messages of the queues in turn; empty if none arrived within `wait_seconds`.

        They count as handled with the next `getmany`, or `commit`. Raises the error that ended reading: NotFoundError
        if a topic is gone, UnsupportedError if the server lacks these calls. ClientError before `start`.
        """
        if max_count < 1:
            raise ValueError(f"max_count is {max_count}; give at least 1")
        if not self._tasks and not self._readings and not self._telemetry.closed:
            raise ClientError("this consumer was not started; use it with `async with`, or call start()")
        self._handled()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                while not any(self._ready()):
                    if self._failure is not None:
                        failure, self._failure = self._failure, None
                        raise failure
                    if self._telemetry.closed:
                        return []
                    self._arrived.clear()
                    await self._arrived.wait()
        taken: list[StoredMessage] = []
        ready = list(self._ready())
        self._turn += 1
        for index in range(len(ready)):
            reading = ready[(index + self._turn) % len(ready)]
            while reading.waiting and len(taken) < max_count:
                message = reading.waiting.popleft()
                self._flow.remove(reading.queue, message.queue_offset, len(message.body))
                reading.position = self._at_hand[reading.queue] = message.queue_offset + 1
                taken.append(message)
        return taken

    async def getone(self) -> StoredMessage:
        """The next message, however long it takes. ClientError if the consumer is closed."""
        while not (messages := await self.getmany(max_count=1, wait_seconds=3600)):
            if self._telemetry.closed:
                raise ClientError("this consumer is closed; make a new one")
        return messages[0]

    async def __aiter__(self) -> AsyncIterator[StoredMessage]:
        while not self._telemetry.closed:
            for message in await self.getmany(max_count=1, wait_seconds=3600):
                yield message

    # --- Places -----------------------------------------------------------------------------------------------

    def assignment(self) -> frozenset[Queue]:
        """The queues assigned to this consumer now."""
        return frozenset(self._readings)

    async def queues(self, topic: str) -> list[Queue]:
        """All queues of a topic."""
        await self._telemetry.ready()
        return sorted(queue_of(wire) for wire in await self._readable(topic))

    async def assign(self, queues: Iterable[Queue]) -> None:
        """Read exactly these queues from now on, whatever others of the group read. ValueError for a topic that is not
        subscribed."""
        wanted = set(queues)
        if unknown := sorted({queue.topic for queue in wanted} - set(self._filters)):
            raise ValueError(f"topic {unknown[0]!r} is not among the subscriptions of this consumer")
        self._by_hand = True
        await self._telemetry.ready()
        await self._use(wanted)

    async def seek(self, queue: Queue, offset: int) -> None:
        """Continue at `offset`, or at the nearest one that the queue has; buffered messages are dropped."""
        if offset < 0:
            raise ValueError(f"offset is {offset}; give 0 or more, or use seek_to_end")
        self._seek(self._reading(queue), offset)

    async def seek_to_beginning(self, *queues: Queue) -> None:
        """Read the given queues, or all assigned ones, from their beginning."""
        for queue, offset in (await self.beginning_offsets(queues or self.assignment())).items():
            self._seek(self._reading(queue), offset)

    async def seek_to_end(self, *queues: Queue) -> None:
        """Read only messages stored from now on."""
        for queue, offset in (await self.end_offsets(queues or self.assignment())).items():
            self._seek(self._reading(queue), offset)

    async def seek_to_time(self, timestamp: int, *queues: Queue) -> None:
        """Read messages stored at `timestamp` (Unix milliseconds) or later."""
        for queue in queues or self.assignment():
            self._seek(self._reading(queue), await self.offset_for_time(queue, timestamp))

    async def seek_to_committed(self, *queues: Queue) -> None:
        """Continue at the committed offset; at `start` where there is none."""
        for queue in queues or self.assignment():
            reading = self._reading(queue)
            self._seek(reading, await self._first_offset(reading))

    def pause(self, *queues: Queue) -> None:
        """Return no messages of these queues, or of any, until `resume`, and fetch no more."""
        for queue in queues or self.assignment():
            reading = self._reading(queue)
            reading.paused.set()
            reading.running.clear()

    def resume(self, *queues: Queue) -> None:
        """Resume paused queues; all by default."""
        for queue in queues or self.assignment():
            reading = self._reading(queue)
            reading.paused.clear()
            reading.running.set()
        self._arrived.set()

    def paused(self) -> frozenset[Queue]:
        """The paused queues."""
        return frozenset(queue for queue, reading in self._readings.items() if reading.paused.is_set())

    async def position(self, queue: Queue) -> int:
        """The offset of the next message to be returned."""
        reading = self._reading(queue)
        if reading.position is None:
            self._seek(reading, await self._first_offset(reading))
        assert reading.position is not None, "seeking sets it"
        return reading.position

    async def committed(self, queue: Queue) -> int | None:
        """The committed offset of the group, or with broadcasting of this consumer; None if there is none."""
        if self._broadcasting:
            return self._own_offsets.get(queue)
        await self._telemetry.ready()
        request = v2.GetOffsetRequest(group=v2.Resource(name=self.group), message_queue=await self._wire(queue))
        try:
            answer = await self._connection.call(
                lambda stubs: stubs.messaging.GetOffset, request, self._telemetry.metadata
            )
        except NotFoundError as error:
            if error.code == v2.Code.OFFSET_NOT_FOUND:
                return None
            raise
        return answer.offset

    async def commit(self, offsets: Mapping[Queue, int] | None = None) -> None:
        """Commit `offsets` as the positions of the group; by default the end of all messages returned so far."""
        if offsets is None:
            self._handled()
            await self._commit_handled()
            return
        await self._commit(dict(offsets))

    async def beginning_offsets(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """The offset of the first message of each queue."""
        return {queue: await self._query(queue, v2.QueryOffsetPolicy.BEGINNING) for queue in queues}

    async def end_offsets(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """The next offset of each queue."""
        return {queue: await self._query(queue, v2.QueryOffsetPolicy.END) for queue in queues}

    async def offset_for_time(self, queue: Queue, timestamp: int) -> int:
        """The offset of the first message stored at `timestamp` (Unix milliseconds) or later; the end if there is
        none."""
        return await self._query(queue, v2.QueryOffsetPolicy.TIMESTAMP, timestamp)

    # --- Reading ----------------------------------------------------------------------------------------------

    def _ready(self) -> list[_Reading]:
        return [each for each in self._readings.values() if each.waiting and not each.paused.is_set()]

    def _handled(self) -> None:
        """Count messages returned before as handled."""
        for queue, offset in self._at_hand.items():
            if reading := self._readings.get(queue):
                reading.handled = offset
        self._at_hand.clear()

    async def _fetch(self, reading: _Reading) -> None:
        """Fetch one queue without end."""
        while True:
            try:
                if reading.position is None:
                    first = await self._first_offset(reading)
                    self._begin(reading, first)
                    # Also committed for queues without a committed offset: a queue without messages now continues from
                    # here later.
                    reading.handled = first
                await reading.running.wait()
                free_count = await self._flow.wait_free(reading.queue)
                pulled = await self._pull(reading, min(free_count, _BATCH_COUNT))
                if pulled == _BATCH_COUNT and await self._records.supported():
                    await self._read(reading)
            except (NotFoundError, UnsupportedError) as error:
                self._failure = error
                self._arrived.set()
                await asyncio.sleep(repeating.PAUSE_SECONDS)
            except ClientError as error:
                _log.warning("reading failed queue=%s error=%s", reading.queue, error)
                await asyncio.sleep(repeating.PAUSE_SECONDS)

    async def _read(self, reading: _Reading) -> None:
        """Many messages of a backlog by one ReadRecords.

        Between two of them there is a PullMessage, for which the broker looks at the group, and which waits for new
        messages at the end.
        """
        free_count = self._flow.free_count(reading.queue)
        topic = reading.queue.topic
        tags = _tags(self._filters[topic])
        if not free_count or tags is None:
            return
        self.call = "ReadRecords"
        frames = self._records.read(
            topic,
            reading.queue.queue_id,
            reading.fetched,
            end=reading.fetched + free_count,
            frame_size_max=_FRAME_SIZE,
            tags=tags,
            group=self.group,
        )
        group = self._connection.stored_name(self.group)
        async with aclosing(frames):
            async for frame in frames:
                if frame.lost_count:
                    _log.warning(
                        "%d messages from offset %d on cannot be read, continuing at %d queue=%s",
                        *(frame.lost_count, frame.start_offset, frame.next_offset, reading.queue),
                    )
                messages = frame.messages(topic, group)
                # The broker compares hashes of tags.
                self._take(reading, [each for each in messages if not tags or each.tag in tags], frame.next_offset)
                if not self._flow.free_count(reading.queue):
                    return

    async def _pull(self, reading: _Reading, count: int) -> int:
        """One PullMessage; returns the number of messages."""
        self.call = "PullMessage"
        request = v2.PullMessageRequest(
            group=v2.Resource(name=self.group),
            message_queue=reading.wire,
            offset=reading.fetched,
            batch_size=count,
            filter_expression=self._filters[reading.queue.topic],
        )
        request.long_polling_timeout.FromMilliseconds(int(_WAIT_SECONDS * 1000))
        fetched: list[StoredMessage] = []
        status: v2.Status | None = None
        next_offset = reading.fetched
        stream = self._connection.stream(
            lambda stubs: stubs.messaging.PullMessage,
            request,
            self._telemetry.metadata,
            timeout_seconds=_WAIT_SECONDS + self._connection.request_timeout_seconds,
        )
        async with aclosing(stream) as items:
            async for item in items:
                if item.HasField("message"):
                    fetched.append(stored_message(item.message))
                elif item.HasField("next_offset"):
                    next_offset = item.next_offset
                elif item.HasField("status"):
                    status = item.status
        if status is not None and status.code == v2.Code.ILLEGAL_OFFSET:
            _log.warning(
                "the queue does not have offset %d, continuing at %d queue=%s",
                *(reading.fetched, next_offset, reading.queue),
            )
            self._begin(reading, next_offset)
            return 0
        error = status_error(status) if status is not None and status.code != v2.Code.MESSAGE_NOT_FOUND else None
        if error is not None:
            raise error
        self._take(reading, fetched, next_offset)
        return len(fetched)

    def _take(self, reading: _Reading, messages: list[StoredMessage], next_offset: int) -> None:
        """What a fetch has brought of all messages before `next_offset`."""
        reading.fetched = next_offset
        for message in messages:
            self._flow.add(reading.queue, message.queue_offset, len(message.body))
        reading.waiting.extend(messages)
        if messages:
            self._arrived.set()
        elif not reading.waiting:  # a filter skipped all messages up to here
            reading.position = next_offset

    async def _first_offset(self, reading: _Reading) -> int:
        committed = await self.committed(reading.queue)
        if committed is not None:
            return committed
        if isinstance(self._start, int):
            return await self.offset_for_time(reading.queue, self._start)
        policy = v2.QueryOffsetPolicy.BEGINNING if self._start == "begin" else v2.QueryOffsetPolicy.END
        return await self._query(reading.queue, policy)

    def _begin(self, reading: _Reading, offset: int) -> None:
        self._drop_waiting(reading)
        reading.position = reading.fetched = offset

    def _seek(self, reading: _Reading, offset: int) -> None:
        """Fetch from `offset`; a running fetch is dropped."""
        self._at_hand.pop(reading.queue, None)
        reading.handled = None
        self._begin(reading, offset)
        self._restart(reading)

    def _restart(self, reading: _Reading) -> None:
        if reading.task is not None:
            reading.task.cancel()
        reading.task = asyncio.create_task(self._fetch(reading), name=f"pull {reading.queue}")

    def _drop_waiting(self, reading: _Reading) -> None:
        for message in reading.waiting:
            self._flow.remove(reading.queue, message.queue_offset, len(message.body))
        reading.waiting.clear()

    def _reading(self, queue: Queue) -> _Reading:
        reading = self._readings.get(queue)
        if reading is None:
            raise ClientError(f"{queue} is not assigned to this consumer; see assignment()")
        return reading

    # --- Allocation of queues ---------------------------------------------------------------------------------

    async def _keep_balance(self) -> None:
        await repeating.every(REBALANCE_SECONDS, self._rebalance_if_automatic, f"rebalancing failed group={self.group}")

    async def _rebalance_if_automatic(self) -> None:
        if not self._by_hand:
            await self._rebalance()

    async def _rebalance(self) -> None:
        wanted: set[Queue] = set()
        consumers = [] if self._broadcasting else await self._consumers()
        for topic in self._filters:
            queues = await self.queues(topic)
            if not self._broadcasting:
                queues = self._allocation.allocate(self._telemetry.client_id, queues, consumers)
            wanted.update(queues)
        if not self._by_hand:
            await self._use(wanted)

    async def _consumers(self) -> list[str]:
        """The connected pull consumers of the group, including this one, in order."""
        found = {self._telemetry.client_id}
        request = admin_v1.ListConnectionsRequest(group=self.group)
        while True:
            answer = await self._connection.call(
                lambda stubs: stubs.aerobee_admin.ListConnections, request, self._telemetry.metadata
            )
            found.update(
                each.client_id for each in answer.connections if each.client_type == v2.ClientType.PULL_CONSUMER
            )
            if not answer.next_page_token:
                return sorted(found)
            request.page_token = answer.next_page_token

    async def _use(self, wanted: set[Queue]) -> None:
        """Release queues that others read now, and begin with new ones."""
        added, removed = wanted - set(self._readings), set(self._readings) - wanted
        if self._commit_seconds is not None and removed:
            await self._commit_handled()
        for queue in removed:
            reading = self._readings.pop(queue)
            if reading.task is not None:
                reading.task.cancel()
            self._drop_waiting(reading)
            self._at_hand.pop(queue, None)
        for queue in sorted(added):
            self._readings[queue] = _Reading(queue, await self._wire(queue))
        if (added or removed) and self._on_rebalance is not None:
            self._on_rebalance(frozenset(added), frozenset(removed))
        for queue in added:
            if (reading := self._readings[queue]).task is None:
                self._restart(reading)

    # --- Offsets ----------------------------------------------------------------------------------------------

    async def _keep_committing(self, seconds: float) -> None:
        await repeating.every(seconds, self._commit_handled, f"committing failed group={self.group}")

    async def _commit_handled(self) -> None:
        new = {
            queue: reading.handled
            for queue, reading in self._readings.items()
            if reading.handled is not None and reading.handled != reading.saved
        }
        if new:
            await self._commit(new)

    async def _commit(self, offsets: dict[Queue, int]) -> None:
        if self._broadcasting:
            self._own_offsets.update(offsets)
            if self._offsets_file is not None:
                await asyncio.to_thread(_save, self._offsets_file, dict(self._own_offsets))
        else:
            await asyncio.gather(*(self._commit_one(queue, offset) for queue, offset in offsets.items()))
        for queue, offset in offsets.items():
            if reading := self._readings.get(queue):
                reading.saved = offset

    async def _commit_one(self, queue: Queue, offset: int) -> None:
        request = v2.UpdateOffsetRequest(
            group=v2.Resource(name=self.group), message_queue=await self._wire(queue), offset=offset
        )
        await self._connection.call(lambda stubs: stubs.messaging.UpdateOffset, request, self._telemetry.metadata)

    async def _query(self, queue: Queue, policy: v2.QueryOffsetPolicy.ValueType, timestamp: int | None = None) -> int:
        await self._telemetry.ready()
        request = v2.QueryOffsetRequest(message_queue=await self._wire(queue), query_offset_policy=policy)
        if timestamp is not None:
            request.timestamp.FromMilliseconds(timestamp)
        answer = await self._connection.call(
            lambda stubs: stubs.messaging.QueryOffset, request, self._telemetry.metadata
        )
        return answer.offset

    async def _readable(self, topic: str) -> list[v2.MessageQueue]:
        """The queues of the broker that is in use: that of the endpoint."""
        readable = await self._routes.readable(topic)
        endpoints = broker_endpoints(readable)
        here = (DEFAULT, self._connection.endpoint)
        # A broker lists itself first, so it is the first one if its address has another form.
        home = next((name for name, endpoint in endpoints.items() if endpoint in here), readable[0].broker.name)
        return [wire for wire in readable if endpoints[wire.broker.name] == DEFAULT or wire.broker.name == home]

    async def _wire(self, queue: Queue) -> v2.MessageQueue:
        if reading := self._readings.get(queue):
            return reading.wire
        for wire in await self._readable(queue.topic):
            if queue_of(wire) == queue:
                return wire
        raise NotFoundError(v2.Code.NOT_FOUND, f"{queue} does not exist; see queues({queue.topic!r})")


def _tags(expression: v2.FilterExpression) -> list[str] | None:
    """The tags that a filter names, none for all messages; None for a filter that ReadRecords cannot apply."""
    if expression.type == v2.FilterType.SQL:
        return None
    tags = sorted(tags_of(expression.expression))
    return tags if len(tags) <= _TAG_COUNT_MAX else None


def _load(file: Path | None) -> dict[Queue, int]:
    """The offsets in a file; none if it does not exist. ClientError if its content is invalid."""
    if file is None or not file.exists():
        return {}
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        return {Queue(str(topic), str(broker), int(queue_id)): int(offset) for topic, broker, queue_id, offset in rows}
    except (OSError, ValueError, TypeError) as error:
        raise ClientError(f"the offsets in {file} cannot be read: {error}; repair or remove the file") from None


def _save(file: Path, offsets: Mapping[Queue, int]) -> None:
    rows = [[queue.topic, queue.broker, queue.queue_id, offset] for queue, offset in sorted(offsets.items())]
    new = file.with_name(f"{file.name}.new")
    try:
        with new.open("w", encoding="utf-8") as stream:
            json.dump(rows, stream)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    except OSError as error:
        raise ClientError(f"the offsets cannot be written to {file}: {error.strerror}; check the path") from None
