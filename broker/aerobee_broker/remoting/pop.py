"""POP: consumers of RocketMQ 5 that speak the older protocol receive, as gRPC consumers do, with the same deliveries.

200050  POP_MESSAGE                     receive messages, which become invisible; held while there are none
200051  ACK_MESSAGE                     acknowledge a message
200052  PEEK_MESSAGE                    read messages that the group has not received yet, without a delivery
200053  CHANGE_MESSAGE_INVISIBLETIME    change when a message is redelivered; clients use it for failed messages
200054  NOTIFICATION                    whether a message is available; held until there is one
200151  BATCH_ACK_MESSAGE               acknowledge many messages, as bits relative to an offset

A message's property POP_CK has the text that the client returns as `extraInfo`, with fields separated by spaces:

    ckOffset popTime invisibleTime reviveQid retryFlag brokerName queueId queueOffset HANDLE

The last field, the receipt handle, is an addition of Aerobee. A client that changes the invisible time twice builds the
second extraInfo itself, without a handle; the message is then found by the other fields. Messages of a batch
acknowledgement are found by the time of the POP.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.delivery.receive.receive_plan import ReceiveRequest
from aerobee_broker.delivery.receive.selection import DeliveredMessage
from aerobee_broker.errors import InvalidReceiptHandleError
from aerobee_broker.limits.loop_share import Turns, in_turns
from aerobee_broker.recent import Recent
from aerobee_broker.remoting.clients import Subscription
from aerobee_broker.remoting.pull import filter_of_subscription
from aerobee_broker.remoting.shown_records import shown_bytes, shown_properties
from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, body_object, integer, integer_member, member, objects, text
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import pop_retry_topics
from aerobee_store import MessageStore, Record
from aerobee_store.clock import Clock
from aerobee_store.records import record
from aerobee_store.records.decimals import decimal

_COUNT_MAX: Final = 32  # RocketMQ's
_HELD_SECONDS_MAX: Final = 120.0
_MEMORY_WAIT_SECONDS: Final = 2.0
_POP_CK: Final = "POP_CK"
_EXTRA_INFO_FIELDS: Final = 8
_REVIVE_QUEUE: Final = 0
_BATCH_ENTRIES_MAX: Final = 10_000
_ENCODE_SECONDS: Final = 0.00005  # of a popped message, on a busy machine
_HANDLES_AT_ONCE: Final = 1_000  # acknowledged in one step of the event loop, which takes some ten milliseconds
_BITS_SIZE_MAX: Final = 4096  # bytes
_CHANGED_MAX: Final = 100_000

_Changed = tuple[str, str, int, int, int]
"""Topic, group, queue, offset, and the time of the change."""


class PopRequests:
    """Answers these requests. The service's table names each handler."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        tables: Tables,
        deliveries: Deliveries,
        counters: BrokerCounters,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._tables = tables
        self._deliveries = deliveries
        self._counters = counters
        self._clock = clock
        self._changed: Recent[_Changed, str] = Recent(_CHANGED_MAX)
        self._waits = itertools.count()

    async def pop(self, request: Command, connection: Connection) -> Command:
        group, topic = text(request, "consumerGroup"), text(request, "topic")
        count = self._count(request)
        invisible_ms = self._invisible_ms(request)
        wait_seconds = self._wait_seconds(request)
        queue_id, _ = self._queues(request, topic)
        (await self._tables.group_in_use(group, [topic])).check_may_consume()
        await connection.writable(wait_seconds + _MEMORY_WAIT_SECONDS)
        wanted = ReceiveRequest(
            topic=topic,
            group=group,
            client_id=connection.key,
            count=self._settings.current.delivery.receive_count(count),
            invisible_ms=invisible_ms,
            wait_seconds=wait_seconds,
            wanted=await filter_of_subscription(
                Subscription(topic, text(request, "exp", "*"), text(request, "expType", "TAG"), 0),
                self._deliveries.loop_share,
            ),
            attempt_id=text(request, "attemptId", ""),
            queue_id=queue_id,
        )
        messages = await self._deliveries.receive(wanted)
        give_back = partial(self._deliveries.give_back, topic, group, [message.receipt_handle for message in messages])
        try:
            if messages:  # many pops that have waited for the same thing would encode theirs in the same step
                await connection.turns.next(_ENCODE_SECONDS * len(messages))
            answered = self._popped(topic, group, messages, invisible_ms)
        except BaseException:
            give_back()
            raise
        answered.if_lost = give_back
        return answered

    async def peek(self, request: Command, connection: Connection) -> Command:
        """The next messages of one queue, or of all, without any change of state."""
        group, topic = text(request, "consumerGroup"), text(request, "topic")
        count = self._count(request)
        _, queue_ids = self._queues(request, topic)
        self._tables.groups.require(group)
        await connection.writable(_MEMORY_WAIT_SECONDS)
        found: list[Record] = []
        rest = 0
        for queue_id in queue_ids:
            low, high = self._store.queue_range(topic, queue_id)
            begin = min(max(self._deliveries.next_of(topic, group, queue_id)[0], low), high)
            taken: Sequence[Record] = ()
            if begin < high and len(found) < count:
                taken = self._store.read(topic, queue_id, begin, max_count=count - len(found)).records
                found += taken
            rest += high - begin - len(taken)
        offsets = [(0, stored.queue_id, stored.queue_offset) for stored in found]
        fields = _pop_fields(offsets, pop_time=0, invisible_ms=0, rest=rest)
        if not found:
            return answer(fields, code=Answer.PULL_NOT_FOUND, remark="the group has seen every message")
        answered = answer(fields, remark="FOUND")
        answered.body = b"".join(shown_bytes(self._store, stored) for stored in found)
        return answered

    async def notification(self, request: Command, connection: Connection) -> Command:
        """Whether a POP would return messages; answered by bornTime + pollTime at the latest."""
        group, topic = text(request, "consumerGroup"), text(request, "topic")
        loop = asyncio.get_running_loop()
        until = loop.time() + self._wait_seconds(request)
        queue_id, queue_ids = self._queues(request, topic)
        self._tables.groups.require(group)
        line = f"{group} notification {next(self._waits)}"  # no group has a blank in its name
        has_message, again = self._has_message(topic, group, queue_ids), False
        while not has_message and (seconds := until - loop.time()) > 0:
            polling = self._deliveries.long_polling
            if not await polling.wait(topic, line, connection.key, seconds, queue_id=queue_id, again=again):
                break
            again = True
            has_message = self._has_message(topic, group, queue_ids)
        return answer({"hasMsg": has_message, "pollingFull": False})

    def _has_message(self, topic: str, group: str, queue_ids: Sequence[int]) -> bool:
        for queue_id in queue_ids:
            offset, is_ready = self._deliveries.next_of(topic, group, queue_id)
            if is_ready or offset < self._store.queue_range(topic, queue_id)[1]:
                return True
        return False

    def _wait_seconds(self, request: Command) -> float:
        born, poll_ms = integer(request, "bornTime"), integer(request, "pollTime")
        wait_ms = min(max(born + poll_ms - self._clock.now_ms(), 0), max(poll_ms, 0))
        return min(wait_ms / 1000, _HELD_SECONDS_MAX)

    def _count(self, request: Command) -> int:
        count = integer(request, "maxMsgNums", bits=32)
        if not 1 <= count <= _COUNT_MAX:
            raise RemotingError(Answer.INVALID_PARAMETER, f"maxMsgNums is {count}; give 1 to {_COUNT_MAX}")
        return count

    def _queues(self, request: Command, topic: str) -> tuple[int | None, Sequence[int]]:
        """The requested queue id, None for all; and the queue ids to read."""
        found = self._tables.topics.require(topic)
        queue_id = integer(request, "queueId", bits=32)
        if queue_id == -1:
            found.check_readable()
            return None, range(found.read_queue_count)
        found.check_read_queue(queue_id)
        return queue_id, (queue_id,)

    def _invisible_ms(self, request: Command) -> int:
        invisible_ms, config = integer(request, "invisibleTime"), self._settings.current.delivery
        if not 1 <= invisible_ms <= config.invisible_seconds_max * 1000:
            raise RemotingError(
                Answer.INVALID_PARAMETER,
                f"invisibleTime is {invisible_ms} ms; give 1 to {config.invisible_seconds_max * 1000:.0f} "
                f"(delivery.invisible_seconds_max)",
            )
        return invisible_ms

    def _popped(self, topic: str, group: str, messages: list[DeliveredMessage], invisible_ms: int) -> Command:
        pop_time = self._clock.now_ms()
        places = [
            (_retry_flag(message.record, topic, group), message.record.queue_id, message.record.queue_offset)
            for message in messages
        ]
        fields = _pop_fields(places, pop_time=pop_time, invisible_ms=invisible_ms, rest=0)
        if not messages:
            return answer(fields, code=Answer.POLLING_TIMEOUT, remark="no message came within pollTime")
        found = answer(fields, remark="FOUND")
        encoded = [self._encoded(message, topic, group, pop_time, invisible_ms) for message in messages]
        records = [message.record for message in messages]
        received = self._counters.delivered(topic, group, records, list(map(len, encoded)))
        for stored in records:
            received.milliseconds.observe(max(0, pop_time - stored.store_timestamp))
        found.body = b"".join(encoded)
        return found

    def _encoded(self, message: DeliveredMessage, topic: str, group: str, pop_time: int, invisible_ms: int) -> bytes:
        """The record with the property that clients need for the acknowledgement."""
        stored = message.record
        info = (
            f"{stored.queue_offset} {pop_time} {invisible_ms} {_REVIVE_QUEUE} "
            f"{_retry_flag(stored, topic, group)} {self._settings.current.name} "
            f"{stored.queue_id} {stored.queue_offset} {message.receipt_handle}"
        )
        copy = stored.to_message(topic, stored.queue_id, {**shown_properties(stored.properties), _POP_CK: info})
        copy.reconsume_times = message.attempt - 1
        return record.encode(
            copy,
            queue_offset=stored.queue_offset,
            physical_offset=stored.physical_offset,
            store_timestamp=stored.store_timestamp,
            store_host=stored.store_host,
            property_crc=False,
        )

    async def acknowledge(self, request: Command, _: Connection) -> Command:
        """Acknowledging is idempotent. Code 208: the message is visible again, or delivered to another consumer."""
        topic, group, handle = self._handle(request)
        [error] = await self._deliveries.acknowledge(topic, group, [handle])
        if error is not None:
            raise RemotingError(Answer.NO_MESSAGE, str(error))
        self._counters.received_by(topic, group).acknowledged += 1
        return answer()

    async def acknowledge_batch(self, request: Command, _: Connection) -> Command:
        """Messages that cannot be acknowledged are skipped, as in RocketMQ. Code 208 if there is none to
        acknowledge."""
        by_group: dict[tuple[str, str], list[str]] = {}
        count = 0
        turns = Turns()
        for entry in objects(body_object(request), "acks", count_max=_BATCH_ENTRIES_MAX):
            await turns.next()
            topic, group = _either(entry, "t", "topic"), _either(entry, "c", "consumerGroup")
            self._tables.topics.require(topic)
            self._tables.groups.require(group)
            if (retry := _either(entry, "r", "retry")) in ("1", "2"):
                topic = pop_retry_topics(topic, group)[int(retry) - 1]
            queue_id = _number(entry, "q", "queueId")
            until_ms = _number(entry, "pt", "popTime") + _number(entry, "it", "invisibleTime")
            begin = _number(entry, "so", "startOffset")
            async for bit in in_turns(_bits(_either(entry, "b", "bitSet"))):
                count += 1
                if count > _BATCH_ENTRIES_MAX:
                    raise RemotingError(
                        Answer.INVALID_PARAMETER, f"more than {_BATCH_ENTRIES_MAX} acknowledgements; send fewer at once"
                    )
                handle = self._deliveries.handle_of(topic, group, queue_id, begin + bit, until_ms)
                if handle is not None:
                    by_group.setdefault((topic, group), []).append(handle)
        if not count:
            raise RemotingError(Answer.NO_MESSAGE, "the request acknowledges nothing; set bits in b")
        for (topic, group), handles in by_group.items():
            for begin in range(0, len(handles), _HANDLES_AT_ONCE):
                await turns.next()
                errors = await self._deliveries.acknowledge(topic, group, handles[begin : begin + _HANDLES_AT_ONCE])
                self._counters.received_by(topic, group).acknowledged += errors.count(None)
        return answer()

    async def change_invisible(self, request: Command, _: Connection) -> Command:
        invisible_ms = self._invisible_ms(request)
        topic, group, handle = self._handle(request)
        try:
            new = await self._deliveries.change_invisible(topic, group, handle, invisible_ms)
        except InvalidReceiptHandleError as error:
            raise RemotingError(Answer.NO_MESSAGE, str(error)) from None
        now_ms = self._clock.now_ms()
        queue_id, offset = integer(request, "queueId", bits=32), integer(request, "offset")
        self._changed[topic, group, queue_id, offset, now_ms] = new
        self._counters.received_by(topic, group).changed += 1
        return answer({"popTime": now_ms, "invisibleTime": invisible_ms, "reviveQid": _REVIVE_QUEUE})

    def _handle(self, request: Command) -> tuple[str, str, str]:
        """Topic, group and receipt handle."""
        topic, group = text(request, "topic"), text(request, "consumerGroup")
        self._tables.topics.require(topic)
        self._tables.groups.require(group)
        parts = text(request, "extraInfo").split(" ")
        if len(parts) > _EXTRA_INFO_FIELDS:
            return topic, group, parts[_EXTRA_INFO_FIELDS]
        if len(parts) < _EXTRA_INFO_FIELDS or (popped_ms := decimal(parts[1])) is None:
            raise RemotingError(
                Answer.INVALID_PARAMETER,
                f"extraInfo has {len(parts)} fields; return the text of the message's property {_POP_CK}",
            )
        place = (topic, group, integer(request, "queueId", bits=32), integer(request, "offset"), popped_ms)
        handle = self._changed.get(place)
        if handle is None:
            raise RemotingError(Answer.NO_MESSAGE, "the message of this extraInfo is not in flight")
        return topic, group, handle


def _retry_flag(stored: Record, topic: str, group: str) -> int:
    """0: a message of the topic itself; otherwise the naming version of the retry topic."""
    names = pop_retry_topics(topic, group)
    return 1 + names.index(stored.topic) if stored.topic in names else 0


def _pop_fields(
    places: Sequence[tuple[int, int, int]], *, pop_time: int, invisible_ms: int, rest: int
) -> dict[str, object]:
    """The fields of an answer with these messages, each given by retry flag, queue id and queue offset."""
    offsets: dict[tuple[int, int], list[int]] = {}
    for retry, queue_id, offset in places:
        offsets.setdefault((retry, queue_id), []).append(offset)
    return {
        "popTime": pop_time,
        "invisibleTime": invisible_ms,
        "reviveQid": _REVIVE_QUEUE,
        "restNum": rest,
        "startOffsetInfo": ";".join(f"{retry} {queue_id} {min(found)}" for (retry, queue_id), found in offsets.items()),
        "msgOffsetInfo": ";".join(
            f"{retry} {queue_id} {','.join(map(str, sorted(found)))}" for (retry, queue_id), found in offsets.items()
        ),
        "orderCountInfo": "",
    }


def _either(entry: Mapping[str, object], short: str, long: str) -> str:
    """A text member with its short or its long name."""
    return member(entry, short) or member(entry, long)


def _number(entry: Mapping[str, object], short: str, long: str) -> int:
    return integer_member(entry, short if short in entry else long)


def _bits(encoded: str) -> Iterator[int]:
    """The bits that are set in RocketMQ's form of a BitSet, base64 of little-endian bytes. RemotingError."""
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        data = None
    if data is None or len(data) > _BITS_SIZE_MAX:
        raise RemotingError(
            Answer.INVALID_PARAMETER, f"b is not base64 of at most {_BITS_SIZE_MAX} bytes; encode the bits so"
        )
    for index, byte in enumerate(data):
        if byte:
            yield from (index * 8 + bit for bit in range(8) if byte >> bit & 1)
