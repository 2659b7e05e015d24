"""Messages with one of RocketMQ's fixed delays, from clients of RocketMQ 4 and from stores that RocketMQ wrote.

Queue n of SCHEDULE_TOPIC_XXXX has the messages of level n + 1, in the order in which they are due.
`config/delayOffset.json` has the progress in each queue. Clients of RocketMQ 5 name a time instead, which the timer
handles.

If the clock goes back, or a level becomes shorter, a message waits for the delay of its level from the time at which
that is noticed, not for the time at which it was due by the old clock. RocketMQ delivers it at once.

The file is saved right after a delivery. After a crash in between, and on a promoted replica, which has a copy of the
file that is seconds old, the log knows better: a delivered message has a mark (LEVEL_ORIGIN), and what is due but not
delivered as far as the file says is looked for in the index by its id. RocketMQ delivers it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final

from aerobee_broker.limits.loop_share import LoopShare
from aerobee_broker.messages.key_query import newest_with_key
from aerobee_broker.tables.data_version import DataVersion
from aerobee_broker.tables.json_fields import INT64_MAX, JsonFields, checked_integer
from aerobee_broker.timer.background import BackgroundAppends
from aerobee_store import MessageStore, Record
from aerobee_store.clock import Clock
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import INT32_MAX, decimal
from aerobee_store.records.delay_levels import SCHEDULE_TOPIC, DelayLevels
from aerobee_store.records.record import Message
from aerobee_store.tables.java_json import Bean, IntegerMap
from aerobee_store.tables.json_table import JsonTable

_log = logging.getLogger(__name__)

LEVEL_ORIGIN: Final = "__AEROBEE_LEVEL"
"""Property of messages that left SCHEDULE_TOPIC_XXXX: their queue there, a blank, and their queue offset."""

_BATCH: Final = 64
_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
_OTHER_DELAYS: Final = (p.TIMER_DELIVER_MS, p.TIMER_DELAY_SEC)
"""Properties that request a delay otherwise; a message with a level has none of them."""


class LevelDelay:
    """Delivers the waiting messages of SCHEDULE_TOPIC_XXXX. Event loop only, except for `open`."""

    name: Final = "level-delay"

    def __init__(self, store: MessageStore, clock: Clock, loop_share: LoopShare) -> None:
        self._store = store
        self._loop_share = loop_share
        self._clock = clock
        self._levels = DelayLevels(store.config.delay_levels_seconds)
        path = store.config.directory / "config" / "delayOffset.json"
        self._table = JsonTable(store.file_system, path, stats=store.stats)
        self._version = DataVersion()
        self._extra: dict[str, object] = {}
        self._offsets: dict[int, int] = {}  # by level
        # by level: messages before this offset are due at this time at the latest, because the clock went back
        self._latest: dict[int, tuple[int, int]] = {}
        self._known: set[int] = set()  # the queues of which nothing after the offset was delivered before the start
        self._wake = asyncio.Event()
        # The file records next that they are delivered, and it is durable at once.
        self._appends = BackgroundAppends(store, self._append, self._note_lost, durable=True)
        self.delivered = 0  # since the start
        self.lost = 0  # the log does not have them, or they are invalid
        self.looked_ms = -1  # all messages due at this time are in the log
        store.arrival_listeners.append(self._arrived)

    def open(self) -> None:
        """Read delayOffset.json. Blocking. Raises TableFormatError, UnreadableTableError, OSError."""
        self._store.file_system.make_directory(self._table.path.parent)
        value = self._table.load()
        if value is None:
            return
        fields = JsonFields("delayOffset.json", value)
        self._version = DataVersion.from_json("delayOffset.json.dataVersion", fields.mapping("dataVersion"))
        for level, offset in fields.mapping("offsetTable").items():
            name = f"delayOffset.json.offsetTable.{level}"
            number = checked_integer(name, decimal(level), 0, 1 << 16)
            self._offsets[number] = checked_integer(name, offset, 0, INT64_MAX)
        self._extra = dict(fields.rest())

    def delayed(self, message: Message, level: int) -> Message:
        """The stored form of a message with the delay of a level, from 1; a level above the last counts as the last."""
        level = min(level, self._levels.count)
        properties = {name: value for name, value in message.properties.items() if name not in _OTHER_DELAYS}
        return replace(
            message,
            topic=SCHEDULE_TOPIC,
            queue_id=level - 1,
            properties={
                **properties,
                p.DELAY: str(level),
                p.REAL_TOPIC: message.topic,
                p.REAL_QUEUE_ID: str(message.queue_id),
            },
        )

    async def run(self) -> None:
        """Deliver due messages, until cancelled. Raises StoreError, OSError: the store has then failed."""
        while True:
            self._wake.clear()
            now_ms = self._clock.now_ms()
            next_ms: int | None = None
            for queue_id in self._store.queue_ids(SCHEDULE_TOPIC):
                due_ms = await self._deliver(queue_id)
                if due_ms is not None:
                    next_ms = due_ms if next_ms is None else min(next_ms, due_ms)
            self.looked_ms = now_ms
            seconds = None if next_ms is None else max(0, next_ms - self._clock.now_ms()) / 1000
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()

    def wake(self) -> None:
        """Check the clock again: for tests that move it."""
        self._wake.set()

    def progress(self) -> dict[int, tuple[int, int]]:
        """The next message to deliver, and the end of the queue, of each level that was ever used."""
        found = {}
        for queue_id in self._store.queue_ids(SCHEDULE_TOPIC):
            begin, end = self._store.queue_range(SCHEDULE_TOPIC, queue_id)
            found[queue_id + 1] = min(max(self._offsets.get(queue_id + 1, 0), begin), end), end
        return found

    def waiting_by_level(self) -> dict[int, int]:
        """Messages that are not delivered yet, of each level that was ever used."""
        return {level: end - delivered for level, (delivered, end) in self.progress().items()}

    @property
    def waiting(self) -> int:
        """Messages that are not delivered yet."""
        return sum(self.waiting_by_level().values())

    def _arrived(self, topic: str, queue_id: int, end: int) -> None:
        if topic == SCHEDULE_TOPIC:
            self._wake.set()

    async def _deliver(self, queue_id: int) -> int | None:
        """Deliver the due messages of one queue; returns when the next one is due, or None if there is none."""
        level = queue_id + 1
        while True:
            begin, end = self._store.queue_range(SCHEDULE_TOPIC, queue_id)
            offset = min(max(self._offsets.get(level, 0), begin), end)
            if offset == end:
                return None
            result = self._store.read(SCHEDULE_TOPIC, queue_id, offset, max_count=_BATCH)
            now_ms = self._clock.now_ms()
            messages: list[Message] = []
            next_offset, due_ms = result.next_offset, None
            for record in result.records:
                due_ms = self._due_ms(record, level, now_ms)
                if due_ms > now_ms:
                    next_offset = record.queue_offset
                    break
                message = _restored(record)
                if message is not None and queue_id not in self._known:
                    if await self._was_delivered(message):
                        continue
                    self._known.add(queue_id)  # messages are delivered in the order of their queue
                if message is None:
                    self.lost += 1
                    _log.error(
                        "message without destination dropped topic=%s offset=%d", SCHEDULE_TOPIC, record.queue_offset
                    )
                else:
                    messages.append(message)
            self.lost += result.lost
            if messages:
                await self._appends.append(messages)
            if next_offset > offset:
                self._offsets[level] = next_offset
                self._version = self._version.next(now_ms)
                await self._store.in_disk_thread(self._table.save, self.snapshot())
            if due_ms is not None and due_ms > now_ms:
                return due_ms

    async def _was_delivered(self, message: Message) -> bool:
        """Whether the log has this message, as it is to be delivered."""
        message_id = message.properties.get(p.UNIQ_KEY)
        if message_id is None:  # not one of RocketMQ's clients; it is delivered again
            return False
        async with aclosing(newest_with_key(self._store, self._loop_share, message.topic, message_id)) as records:
            async for record in records:
                if record.properties.get(LEVEL_ORIGIN) == message.properties[LEVEL_ORIGIN]:
                    return True
        return False

    def due_ms(self, record: Record, level: int) -> int:
        """When a message of this level is delivered, as far as is known."""
        due_ms = self._stored_due_ms(record, level)
        end, latest_ms = self._latest.get(level, (0, 0))
        return min(due_ms, latest_ms) if record.queue_offset < end else due_ms

    def first_due(self, level: int, due_ms: int) -> int:
        """An offset in the queue of the level: no message before it still waits and is due then or later."""
        begin, end = self.progress().get(level, (0, 0))
        if level in self._latest:  # the order of delivery times is another than that of storing
            return begin
        found = self._store.offset_by_time(SCHEDULE_TOPIC, level - 1, due_ms - self._levels.delay_ms(level))
        return min(max(found, begin), end)

    def _stored_due_ms(self, record: Record, level: int) -> int:
        own_level = decimal(record.properties.get(p.DELAY))
        return self._levels.delivery_time(level if own_level is None else own_level, record.store_timestamp)

    def _due_ms(self, record: Record, level: int, now_ms: int) -> int:
        due_ms = self._stored_due_ms(record, level)
        longest_ms = self._levels.delay_ms(level)
        end, latest_ms = self._latest.get(level, (0, 0))
        if due_ms > now_ms + longest_ms and (record.queue_offset >= end or latest_ms > now_ms + longest_ms):
            end, latest_ms = self._store.queue_range(SCHEDULE_TOPIC, level - 1)[1], now_ms + longest_ms
            self._latest[level] = end, latest_ms
        return min(due_ms, latest_ms) if record.queue_offset < end else due_ms

    def _append(self, messages: Sequence[Message]) -> int:
        end = self._store.append(messages, internal=True)[-1].end
        self.delivered += len(messages)
        return end

    def _note_lost(self) -> None:
        self.lost += 1

    def snapshot(self) -> Bean:
        """The current content of delayOffset.json."""
        return Bean(
            self._extra,
            dataVersion=self._version.to_json(),
            offsetTable=IntegerMap.of(dict(sorted(self._offsets.items()))),
        )


def _restored(record: Record) -> Message | None:
    values = dict(record.properties)
    topic, queue_id = values.get(p.REAL_TOPIC), decimal(values.get(p.REAL_QUEUE_ID), INT32_MAX)
    if not topic or topic == _HALF_TOPIC or queue_id is None:
        return None
    for name in _OTHER_DELAYS:  # the level stays: consumers may ask for it
        values.pop(name, None)
    values[p.WAIT] = "false"
    values[LEVEL_ORIGIN] = f"{record.queue_id} {record.queue_offset}"
    message = record.to_message(topic, queue_id, values)
    message.prepared_transaction_offset = 0
    return message
