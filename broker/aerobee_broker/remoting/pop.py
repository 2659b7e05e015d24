"""POP: consumers of RocketMQ 5 that speak the older protocol receive, as gRPC consumers do, with the same deliveries.

200050  POP_MESSAGE                     messages that are invisible for a while; held until there is one
200051  ACK_MESSAGE                     one is done
200053  CHANGE_MESSAGE_INVISIBLETIME    one comes again after another time; clients say so of what failed

A message carries in its property POP_CK what the client sends back as `extraInfo`, fields with blanks between them:

    ckOffset popTime invisibleTime reviveQid retryFlag brokerName queueId queueOffset HANDLE

The last one is ours, the receipt handle. A client that changes the invisible time twice makes the second extraInfo
itself, without a handle; it is found by what it has then.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from aerobee_broker.config import Settings
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.delivery.receive_plan import ReceiveRequest
from aerobee_broker.delivery.receiving import DeliveredMessage
from aerobee_broker.errors import InvalidReceiptHandleError
from aerobee_broker.metrics.counters import BrokerCounters
from aerobee_broker.remoting.clients import Subscription
from aerobee_broker.remoting.codes import Answer
from aerobee_broker.remoting.connection import Connection
from aerobee_broker.remoting.errors import RemotingError
from aerobee_broker.remoting.fields import answer, integer, text
from aerobee_broker.remoting.frame import Command
from aerobee_broker.remoting.pull import filter_of_subscription
from aerobee_broker.tables.tables import Tables
from aerobee_store.clock import Clock
from aerobee_store.records import record
from aerobee_store.records.record import Message

_COUNT_MAX: Final = 32  # RocketMQ's
_HELD_SECONDS_MAX: Final = 120.0
_MEMORY_WAIT_SECONDS: Final = 2.0
_POP_CK: Final = "POP_CK"
_EXTRA_INFO_FIELDS: Final = 8
_REVIVE_QUEUE: Final = 0
_CHANGED_MAX: Final = 100_000

_Changed = tuple[str, str, int, int, int]
"""Topic, group, queue, offset, and the time of the change."""


class PopRequests:
    """Answers them. `handlers` of the service name each."""

    def __init__(
        self, settings: Settings, tables: Tables, deliveries: Deliveries, counters: BrokerCounters, clock: Clock
    ) -> None:
        self._settings = settings
        self._tables = tables
        self._deliveries = deliveries
        self._counters = counters
        self._clock = clock
        self._changed: OrderedDict[_Changed, str] = OrderedDict()

    async def pop(self, request: Command, connection: Connection) -> Command:
        group, topic = text(request, "consumerGroup"), text(request, "topic")
        count = integer(request, "maxMsgNums", bits=32)
        if not 1 <= count <= _COUNT_MAX:
            raise RemotingError(Answer.INVALID_PARAMETER, f"maxMsgNums is {count}; give 1 to {_COUNT_MAX}")
        invisible_ms = self._invisible_ms(request)
        born, poll_ms = integer(request, "bornTime"), integer(request, "pollTime")
        wait_ms = min(max(born + poll_ms - self._clock.now_ms(), 0), max(poll_ms, 0))
        found = self._tables.topics.require(topic)
        if not found.readable or not found.read_queue_count:
            raise RemotingError(Answer.NO_PERMISSION, f"topic {topic!r} has no readable queue")
        queue_id = integer(request, "queueId", bits=32)
        if not -1 <= queue_id < found.read_queue_count:
            raise RemotingError(
                Answer.INVALID_PARAMETER,
                f"queueId is {queue_id}; topic {topic!r} has {found.read_queue_count} read queues",
            )
        if group not in self._tables.groups:
            await self._tables.group_in_use(group, [topic])
        if not self._tables.groups.require(group).consume_enabled:
            raise RemotingError(Answer.NO_PERMISSION, f"consumer group {group!r} may not consume")
        wait_seconds = min(wait_ms / 1000, _HELD_SECONDS_MAX)
        await connection.writable(wait_seconds + _MEMORY_WAIT_SECONDS)
        wanted = ReceiveRequest(
            topic=topic,
            group=group,
            client_id=connection.key,
            count=min(count, self._settings.current.delivery.receive_count_max),
            invisible_ms=invisible_ms,
            wait_seconds=wait_seconds,
            wanted=filter_of_subscription(
                Subscription(topic, text(request, "exp", "*"), text(request, "expType", "TAG"), 0)
            ),
            attempt_id=text(request, "attemptId", ""),
            queue_id=queue_id if queue_id >= 0 else None,
        )
        messages = await self._deliveries.receive(wanted)
        if not connection.is_open:
            self._deliveries.give_back(topic, group, messages)
        return self._popped(messages, invisible_ms)

    def _invisible_ms(self, request: Command) -> int:
        invisible_ms, config = integer(request, "invisibleTime"), self._settings.current.delivery
        if not 1 <= invisible_ms <= config.invisible_seconds_max * 1000:
            raise RemotingError(
                Answer.INVALID_PARAMETER,
                f"invisibleTime is {invisible_ms} ms; give 1 to {config.invisible_seconds_max * 1000:.0f} "
                f"(delivery.invisible_seconds_max)",
            )
        return invisible_ms

    def _popped(self, messages: list[DeliveredMessage], invisible_ms: int) -> Command:
        pop_time = self._clock.now_ms()
        offsets: dict[int, list[int]] = {}
        for message in messages:
            offsets.setdefault(message.record.queue_id, []).append(message.record.queue_offset)
        fields: dict[str, object] = {
            "popTime": pop_time,
            "invisibleTime": invisible_ms,
            "reviveQid": _REVIVE_QUEUE,
            "restNum": 0,
            "startOffsetInfo": ";".join(f"0 {queue_id} {min(found)}" for queue_id, found in offsets.items()),
            "msgOffsetInfo": ";".join(
                f"0 {queue_id} {','.join(map(str, sorted(found)))}" for queue_id, found in offsets.items()
            ),
            "orderCountInfo": "",
        }
        if not messages:
            return answer(fields, code=Answer.POLLING_TIMEOUT, remark="no message came within pollTime")
        found = answer(fields, remark="FOUND")
        found.body = b"".join(self._encoded(message, pop_time, invisible_ms) for message in messages)
        return found

    def _encoded(self, message: DeliveredMessage, pop_time: int, invisible_ms: int) -> bytes:
        """The record with the property that its acknowledgement needs."""
        stored = message.record
        info = (
            f"{stored.queue_offset} {pop_time} {invisible_ms} {_REVIVE_QUEUE} 0 {self._settings.current.name} "
            f"{stored.queue_id} {stored.queue_offset} {message.receipt_handle}"
        )
        return record.encode(
            Message(
                stored.topic,
                stored.queue_id,
                stored.body,
                {**stored.properties, _POP_CK: info},
                flag=stored.flag,
                sys_flag=stored.sys_flag,
                born_timestamp=stored.born_timestamp,
                born_host=stored.born_host,
                store_host=stored.store_host,
                reconsume_times=message.attempt - 1,
                prepared_transaction_offset=stored.prepared_transaction_offset,
            ),
            queue_offset=stored.queue_offset,
            physical_offset=stored.physical_offset,
            store_timestamp=stored.store_timestamp,
            store_host=stored.store_host,
            property_crc=False,
        )

    async def acknowledge(self, request: Command, _: Connection) -> Command:
        """Acknowledging is idempotent. 208 for a message that is visible again, or another consumer's."""
        topic, group, handle = self._handle(request)
        [error] = await self._deliveries.acknowledge(topic, group, [handle])
        if error is not None:
            raise RemotingError(Answer.NO_MESSAGE, str(error))
        self._counters.received_by(topic, group).acknowledged += 1
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
        while len(self._changed) > _CHANGED_MAX:
            self._changed.popitem(last=False)
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
        if len(parts) < _EXTRA_INFO_FIELDS or not parts[1].isascii() or not parts[1].isdigit():
            raise RemotingError(
                Answer.INVALID_PARAMETER,
                f"extraInfo has {len(parts)} fields; send back what the message has in its property {_POP_CK}",
            )
        place = (topic, group, integer(request, "queueId", bits=32), integer(request, "offset"), int(parts[1][:19]))
        handle = self._changed.get(place)
        if handle is None:
            raise RemotingError(Answer.NO_MESSAGE, "the message of this extraInfo is not in flight")
        return topic, group, handle
