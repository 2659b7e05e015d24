"""CONSUMER_SEND_MESSAGE_BACK: a consumer returns a message for a later delivery.

The message is copied to the group's retry topic after a delay that grows with each attempt; after the last attempt, to
its dead letters.
"""

from __future__ import annotations

from typing import Final

from aerobee_broker.messages.admission import Admission
from aerobee_broker.remoting.send import SendRequests, store_host
from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, integer, text
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.consumer_groups import attempt_max
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import retry_topic
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_store import CorruptRecordError, MessageStore, RecordNotFoundError
from aerobee_store.records import properties as p
from aerobee_store.records.message_fields import DELAY_NAMES

_FIRST_LEVEL: Final = 3  # 10 seconds, one level more with each attempt


class RetryRequests:
    """Answers CONSUMER_SEND_MESSAGE_BACK."""

    def __init__(
        self,
        store: MessageStore,
        tables: Tables,
        admission: Admission,
        send: SendRequests,
        level_delay: LevelDelay,
    ) -> None:
        self._store = store
        self._tables = tables
        self._admission = admission
        self._send = send
        self._level_delay = level_delay

    async def send_back(self, request: Command, connection: Connection) -> Command:
        group = self._tables.groups.require(text(request, "group"))
        offset, level = integer(request, "offset"), integer(request, "delayLevel", bits=32)
        limit = group.retry_max_times
        if request.fields.get("maxReconsumeTimes"):
            limit = integer(request, "maxReconsumeTimes", bits=32)
        try:
            record = self._store.record_at(offset)
        except (RecordNotFoundError, CorruptRecordError) as error:
            raise RemotingError(Answer.SYSTEM_ERROR, f"the message to send back cannot be read: {error}") from None
        queue_count = group.retry_queue_count
        if queue_count == 0:
            return answer()  # such a group allows no retries
        properties = dict(record.properties)
        properties.setdefault(p.RETRY_TOPIC, record.topic)
        properties.setdefault(p.ORIGIN_MESSAGE_ID, p.offset_message_id(record.store_host, record.physical_offset))
        for name in (p.WAIT, p.TIMER_OUT_MS, *DELAY_NAMES):
            properties.pop(name, None)
        topic = await self._tables.internal_topic(retry_topic(group.name), queue_count=queue_count)
        destination = await self._admission.destination(topic.name)
        destination.check(None)
        message = record.to_message(topic.name, offset % destination.queue_count, properties)
        message.store_host = store_host(connection)
        message.reconsume_times += 1
        message.prepared_transaction_offset = 0
        if level < 0 or message.reconsume_times >= attempt_max(limit):
            properties[p.DLQ_ORIGIN_TOPIC] = properties[p.RETRY_TOPIC]
            properties[p.DLQ_ORIGIN_MESSAGE_ID] = record.unique_key or properties[p.ORIGIN_MESSAGE_ID]
            message = await self._send.dead_letter(message, group.name)
        else:
            message = self._level_delay.delayed(message, level or _FIRST_LEVEL + record.reconsume_times)
        [place] = self._store.append([message], internal=True)
        await self._store.wait_stored(place.end)
        return answer()
