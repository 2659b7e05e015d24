"""OFFSET_MOVED_EVENT: a message for each offset of a consumer that a pull corrected, for tools that watch consumers.

Its body is JSON: the group, the queue, the offset that was requested, and the one that the broker answered with. Its
tag and its key are the group.
"""

from __future__ import annotations

import logging
from typing import Final

from aerobee_broker.config import Settings
from aerobee_broker.tables.table_files import Tables
from aerobee_store import Message, MessageStore, StoreError
from aerobee_store.clock import Clock
from aerobee_store.records import properties as p
from aerobee_store.tables import java_json
from aerobee_store.tables.java_json import Bean

TOPIC: Final = "OFFSET_MOVED_EVENT"
_PER_SECOND_MAX: Final = 100  # so that consumers with wrong offsets cannot fill disk and log

_log = logging.getLogger(__name__)


class OffsetEvents:
    """Stores the events."""

    def __init__(self, settings: Settings, store: MessageStore, tables: Tables, clock: Clock) -> None:
        self._settings = settings
        self._store = store
        self._tables = tables
        self._clock = clock
        self._second = 0
        self._count = 0

    async def moved(self, group: str, topic: str, queue_id: int, requested: int, corrected: int) -> None:
        """Store the event, unless there are too many or the store takes no messages. The pull is answered anyway."""
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        if self._count > _PER_SECOND_MAX:
            if self._count == _PER_SECOND_MAX + 1:
                _log.warning("more than %d corrected offsets in a second; no events are stored", _PER_SECOND_MAX)
            return
        _log.warning(
            "offset corrected topic=%s queue=%d group=%s requested=%d corrected=%d",
            *(topic, queue_id, group, requested, corrected),
        )
        config = self._settings.current
        event = Bean(
            consumerGroup=group,
            messageQueue=Bean(brokerName=config.name, queueId=queue_id, topic=topic),
            offsetNew=corrected,
            offsetRequest=requested,
        )
        message = Message(
            topic=TOPIC,
            queue_id=0,
            body=java_json.dumps(event, pretty=False),
            properties={p.KEYS: group, p.TAGS: group},
            born_timestamp=self._clock.now_ms(),
            born_host=config.store.store_host,
        )
        try:
            await self._tables.internal_topic(TOPIC)
            self._store.append([message])
        except (StoreError, OSError) as error:
            _log.warning("event of a corrected offset not stored cause=%s", error)
            self._count = _PER_SECOND_MAX + 1  # no more in this second
