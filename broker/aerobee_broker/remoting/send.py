"""Sends of remoting clients: one message, a batch, half messages; with a delay by level or to a time.

Batches come as a body of their own layout, integers big-endian:

    4 size of all   4 magic 0   4 CRC 0   4 flag   4 size of the body, body   2 size of the properties, properties
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping
from time import perf_counter
from typing import Final

from msgspec import Struct

from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.messages.admission import Admission
from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.errors import RemotingError, code_of_stored
from aerobee_broker.remoting_wire.fields import answer, boolean, integer, text
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.consumer_groups import attempt_max
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import dead_letter_topic
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_broker.timer.recall_handle import RecallHandle
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_broker.transactions.coordinator import Transactions
from aerobee_store import MessageStore, SyncTimeoutError
from aerobee_store.clock import Clock
from aerobee_store.errors import ReplicaError
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import decimal
from aerobee_store.records.message_fields import DELAY_NAMES
from aerobee_store.records.message_rules import check_body, check_compression, check_delivery_time
from aerobee_store.records.record import (
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_TYPE,
    SYS_FLAG_MULTI_TAGS,
    Message,
)
from aerobee_store.records.topic_names import RETRY_PREFIX

REGION: Final = "DefaultRegion"
_KEPT_FLAGS: Final = SYS_FLAG_COMPRESSED | SYS_FLAG_COMPRESSION_TYPE | SYS_FLAG_MULTI_TAGS
_BATCH_COUNT_MAX: Final = 32_768
_BATCH_ITEM: Final = struct.Struct(">iiiii")
_I16: Final = struct.Struct(">h")
# The names of SEND_MESSAGE's fields in SEND_MESSAGE_V2.
SHORT_NAMES: Final[Mapping[str, str]] = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "brokerName": "n",
}
LONG_NAMES: Final[Mapping[str, str]] = {name: name for name in SHORT_NAMES}


class _Sent(Struct):
    """The content of a request, whatever its field names."""

    producer_group: str
    topic: str
    queue_count: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: dict[str, str]
    reconsume_times: int
    reconsume_times_max: int | None
    is_batch: bool


class SendRequests:
    """Answers SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        tables: Tables,
        admission: Admission,
        counters: BrokerCounters,
        clock: Clock,
        transactions: Transactions,
        timer: Timer,
        level_delay: LevelDelay,
    ) -> None:
        self._settings = settings
        self._store = store
        self._tables = tables
        self._admission = admission
        self._counters = counters
        self._clock = clock
        self._transactions = transactions
        self._timer = timer
        self._level_delay = level_delay

    async def send(self, request: Command, connection: Connection) -> Command:
        """SEND_MESSAGE, with the long names of its fields."""
        return await self._send(_sent(request, LONG_NAMES), request, connection)

    async def send_v2(self, request: Command, connection: Connection) -> Command:
        """SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, with the short names."""
        return await self._send(_sent(request, SHORT_NAMES), request, connection)

    async def _send(self, sent: _Sent, request: Command, connection: Connection) -> Command:
        started = perf_counter()
        check_body(len(request.body), self._settings.current.store.body_size_max)
        if not sent.is_batch:
            check_compression(bytes(request.body[:4]), sent.sys_flag)
        destination = await self._admission.destination(sent.topic, queue_count=max(sent.queue_count, 1))
        destination.check(None)
        queue_id = sent.queue_id
        if queue_id < 0:
            queue_id = destination.take_queue()
        destination.check_queue(queue_id, as_of_old_route=True)
        message = Message(
            topic=destination.topic,
            queue_id=queue_id,
            body=request.body,
            properties=self._with_own(sent.properties),
            flag=sent.flag,
            sys_flag=sent.sys_flag & _KEPT_FLAGS,
            born_timestamp=sent.born_timestamp,
            born_host=connection.peer,
            store_host=store_host(connection),
            reconsume_times=sent.reconsume_times,
        )
        if sent.is_batch:
            return await self._send_batch(message, started)
        if destination.topic.startswith(RETRY_PREFIX):
            message = await self._again_or_dead(message, sent)
        elif message.properties.get(p.TRANSACTION_MESSAGE, "").lower() == "true":
            return await self._send_half(message, sent, connection)
        stored, handle = self.delayed(message)
        [place] = self._store.append([stored])
        kind = "normal" if stored is message else "delay"
        sent_to = self._counters.stored(message.topic, [kind], [queue_id], [place.size])
        code = await self._wait(place.end, message)
        sent_to.milliseconds.observe((perf_counter() - started) * 1000)
        ids = [p.offset_message_id(message.store_host or self._store.config.store_host, place.physical_offset)]
        return self._sent(code, ids, queue_id, place.queue_offset, message, handle)

    async def _send_batch(self, whole: Message, started: float) -> Command:
        """Each message becomes a message of its own."""
        if whole.topic.startswith(RETRY_PREFIX):
            raise RemotingError(
                Answer.MESSAGE_ILLEGAL, "a retry topic does not take batches; send the messages one by one"
            )
        messages = [
            Message(
                topic=whole.topic,
                queue_id=whole.queue_id,
                body=body,
                properties=self._with_own(properties),
                flag=flag,
                sys_flag=whole.sys_flag & ~(SYS_FLAG_COMPRESSED | SYS_FLAG_COMPRESSION_TYPE),
                born_timestamp=whole.born_timestamp,
                born_host=whole.born_host,
                store_host=whole.store_host,
                reconsume_times=whole.reconsume_times,
            )
            for flag, body, properties in _split_batch(bytes(whole.body))
        ]
        if any(_delay_of(message.properties) or p.TRANSACTION_MESSAGE in message.properties for message in messages):
            raise RemotingError(
                Answer.MESSAGE_ILLEGAL, "a batch cannot contain delayed or transactional messages; send them one by one"
            )
        places = self._store.append(messages, split_batch=True)
        count = len(places)
        sizes = [place.size for place in places]
        sent_to = self._counters.stored(whole.topic, ["normal"] * count, [whole.queue_id] * count, sizes)
        code = await self._wait(places[-1].end, whole)
        sent_to.milliseconds.observe((perf_counter() - started) * 1000)
        host = whole.store_host or self._store.config.store_host
        ids = [p.offset_message_id(host, place.physical_offset) for place in places]
        return self._sent(code, ids, whole.queue_id, places[0].queue_offset, messages[0], "")

    async def _send_half(self, message: Message, sent: _Sent, connection: Connection) -> Command:
        """A transactional message: it waits for its producer's decision."""
        properties = {p.PRODUCER_GROUP: sent.producer_group, **message.properties}
        message.properties = properties
        [place] = await self._transactions.begin([message], connection.key)
        code = await self._wait(place.end, message)
        host = message.store_host or self._store.config.store_host
        ids = [p.offset_message_id(host, place.physical_offset or 0)]
        return self._sent(code, ids, message.queue_id, place.queue_offset, message, "")

    async def _wait(self, end: int, message: Message) -> Answer:
        """Wait as long as the message needs: with WAIT=false the page cache is sufficient."""
        try:
            await self._store.wait_stored(end, durable=False if message.properties.get(p.WAIT) == "false" else None)
        except (SyncTimeoutError, ReplicaError) as error:
            return code_of_stored(error)  # the message is stored, and clients count this as success
        return Answer.SUCCESS

    def _sent(
        self, code: Answer, ids: list[str], queue_id: int, queue_offset: int, message: Message, recall_handle: str
    ) -> Command:
        fields: dict[str, object] = {
            "msgId": ",".join(ids),
            "queueId": queue_id,
            "queueOffset": queue_offset,
            "transactionId": message.properties[p.UNIQ_KEY],
            "MSG_REGION": REGION,
            "TRACE_ON": True,
        }
        if recall_handle:
            fields["recallHandle"] = recall_handle
        return answer(fields, code=code)

    def _with_own(self, properties: dict[str, str]) -> dict[str, str]:
        """The properties with those that the broker adds, without those that it removes."""
        properties = {
            **properties,
            p.CLUSTER: self._settings.current.cluster,
            p.MSG_REGION: REGION,
            p.TRACE_ON: properties.get(p.TRACE_ON, "true"),
        }
        properties.pop(p.POP_CK, None)
        if not properties.get(p.UNIQ_KEY):
            properties[p.UNIQ_KEY] = secrets.token_hex(16).upper()
        return properties

    async def _again_or_dead(self, message: Message, sent: _Sent) -> Message:
        """A message that a consumer sends to its retry topic; a dead letter once it has reached the maximum number of
        attempts."""
        group = self._tables.groups.require(message.topic.removeprefix(RETRY_PREFIX))
        limit = group.retry_max_times if sent.reconsume_times_max is None else sent.reconsume_times_max
        if sent.reconsume_times < attempt_max(limit):  # its client has counted the last delivery
            return message
        return await self.dead_letter(message, group.name)

    async def dead_letter(self, message: Message, group: str) -> Message:
        """The message as a dead letter of the group, whose topic exists on return."""
        name = dead_letter_topic(group)
        await self._tables.internal_topic(name)
        properties = dict(message.properties)
        for dropped in DELAY_NAMES:
            properties.pop(dropped, None)
        message.topic, message.queue_id, message.properties = name, 0, properties
        return message

    def delayed(self, message: Message) -> tuple[Message, str]:
        """The stored form of a message, which may be delayed, and the handle to recall it.

        Raises RemotingError for an unsupported delay.
        """
        properties = message.properties
        if not (delay := _delay_of(properties)):
            return message, ""
        now_ms = self._clock.now_ms()
        if delay == p.DELAY:
            return self._level_delay.delayed(message, _number(properties, p.DELAY)), ""
        number = _number(properties, delay)
        deliver_ms = {p.TIMER_DELAY_SEC: now_ms + number * 1000, p.TIMER_DELAY_MS: now_ms + number}.get(delay, number)
        if deliver_ms <= now_ms:
            return message, ""
        check_delivery_time(deliver_ms, now_ms, self._settings.current.limits.delay_seconds_max)
        handle = RecallHandle(message.topic, self._settings.current.name, deliver_ms, properties[p.UNIQ_KEY])
        return self._timer.delayed(message, deliver_ms), handle.encode()


def store_host(connection: Connection) -> tuple[str, int] | None:
    """The broker's address in records: clients connect to it to fetch a message by its id."""
    return (connection.local.host, connection.local.port)


def _delay_of(properties: Mapping[str, str]) -> str:
    """The property that requests a delay; empty if there is none. Level 0 means none."""
    if properties.get(p.DELAY):
        return p.DELAY if _number(properties, p.DELAY) > 0 else ""
    for name in DELAY_NAMES:
        if name != p.DELAY and name in properties:
            return name
    return ""


def _number(properties: Mapping[str, str], name: str) -> int:
    value = properties[name]
    number = decimal(value.removeprefix("-"))
    if number is None:
        raise RemotingError(Answer.MESSAGE_ILLEGAL, f"the property {name} is {value[:80]!r}, which is not a number")
    return -number if value.startswith("-") else number


def _sent(request: Command, names: Mapping[str, str]) -> _Sent:
    """The content of a request whose fields have these names, in place of the long ones."""
    maximum = names["maxReconsumeTimes"]
    topic = text(request, names["topic"], "")
    if not topic:
        raise RemotingError(Answer.INVALID_PARAMETER, f"the field {names['topic']!r}, the topic, is missing")
    encoded = text(request, names["properties"], "").encode("utf-8", "replace")
    if len(encoded) > p.PROPERTIES_SIZE_MAX:
        raise RemotingError(
            Answer.MESSAGE_ILLEGAL,
            f"the properties take {len(encoded)} bytes, the limit is {p.PROPERTIES_SIZE_MAX}; move data into the body",
        )
    return _Sent(
        producer_group=text(request, names["producerGroup"]),
        topic=topic,
        queue_count=integer(request, names["defaultTopicQueueNums"], 4, bits=32),
        queue_id=integer(request, names["queueId"], bits=32),
        sys_flag=integer(request, names["sysFlag"], bits=32),
        born_timestamp=integer(request, names["bornTimestamp"]),
        flag=integer(request, names["flag"], bits=32),
        properties=p.decode_properties(encoded),
        reconsume_times=integer(request, names["reconsumeTimes"], 0, bits=32),
        reconsume_times_max=integer(request, maximum, bits=32) if request.fields.get(maximum) else None,
        is_batch=boolean(request, names["batch"]),
    )


def _split_batch(body: bytes) -> list[tuple[int, bytes, dict[str, str]]]:
    """Flag, body and properties of each message in the body of a batch. Raises RemotingError."""
    items: list[tuple[int, bytes, dict[str, str]]] = []
    at = 0
    try:
        while at < len(body):
            total, _, _, flag, body_size = _BATCH_ITEM.unpack_from(body, at)
            begin = at + _BATCH_ITEM.size
            if body_size < 0 or body_size > len(body) - begin:
                raise RemotingError(Answer.MESSAGE_ILLEGAL, f"a message of the batch claims to have {body_size} bytes")
            (properties_size,) = _I16.unpack_from(body, begin + body_size)
            end = begin + body_size + _I16.size + properties_size
            if properties_size < 0 or end > len(body) or total != end - at or len(items) >= _BATCH_COUNT_MAX:
                raise RemotingError(
                    Answer.MESSAGE_ILLEGAL, f"the lengths in message {len(items)} of the batch disagree"
                )
            check_body(body_size, body_size)  # the size of all was checked
            properties = p.decode_properties(body[end - properties_size : end])
            items.append((flag, body[begin : begin + body_size], properties))
            at = end
    except struct.error:
        raise RemotingError(Answer.MESSAGE_ILLEGAL, f"the batch ends within message {len(items)}") from None
    return items
