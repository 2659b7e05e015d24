"""The waiting messages of RocketMQ's delay levels, for operators, and both kinds of delayed messages in one order."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from typing import Final

from aerobee_broker.limits.loop_share import LoopShare, Steps
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_broker.timer.listing import SECONDS_MAX, Listing, SlotPlace, Waiting, WaitingPage
from aerobee_store import MessageStore
from aerobee_store.records import properties as p
from aerobee_store.records.delay_levels import SCHEDULE_TOPIC

_BATCH: Final = 64


class AllWaiting:
    """The messages of the timer and of the levels, by delivery time. Event loop only."""

    def __init__(self, store: MessageStore, timer: Listing, levels: LevelDelay, loop_share: LoopShare) -> None:
        self._store = store
        self._timer = timer
        self._levels = levels
        self._loop_share = loop_share

    async def page(self, *, topic: str, begin_ms: int, end_ms: int, after: SlotPlace | None, count: int) -> WaitingPage:
        """As `Listing.page`."""
        timed = await self._timer.page(topic=topic, begin_ms=begin_ms, end_ms=end_ms, after=after, count=count)
        levelled = await self._level_page(topic, begin_ms, end_ms, after, count)
        # What is behind the end of one page may come before what the other page has behind it.
        known = min((page.next for page in (timed, levelled) if page.next is not None), default=None)
        messages = sorted((*timed.messages, *levelled.messages), key=lambda waiting: waiting.place)
        if known is not None:
            messages = [waiting for waiting in messages if waiting.place <= known]
        if len(messages) > count:
            return WaitingPage(messages[:count], messages[count - 1].place)
        return WaitingPage(messages, known)

    async def _level_page(
        self, topic: str, begin_ms: int, end_ms: int, after: SlotPlace | None, count: int
    ) -> WaitingPage:
        from_ms = begin_ms if after is None else max(begin_ms, after.slot_ms)
        queues = [self._of_queue(queue_id, from_ms) for queue_id in self._store.queue_ids(SCHEDULE_TOPIC)]
        found: list[Waiting] = []
        last = after
        until = asyncio.get_running_loop().time() + SECONDS_MAX
        steps = Steps(self._loop_share)
        for waiting in heapq.merge(*queues, key=lambda waiting: waiting.place):
            if waiting.due_ms >= end_ms:
                break
            if after is not None and waiting.place <= after:
                continue
            is_late = last is not after and asyncio.get_running_loop().time() >= until
            if len(found) >= count or is_late:
                return WaitingPage(found, last)
            last = waiting.place
            await steps.did(waiting.record.size)
            real_topic = waiting.record.properties.get(p.REAL_TOPIC)
            if real_topic and topic in ("", real_topic) and waiting.due_ms >= begin_ms:
                found.append(waiting)
        return WaitingPage(found, None)

    def _of_queue(self, queue_id: int, from_ms: int) -> Iterator[Waiting]:
        """The messages of one level that are due at a time or later, and a few before them. After the clock went back,
        a message stored later may be due earlier; it then comes where its queue has it."""
        level = queue_id + 1
        place = SlotPlace(0, 0, 0)
        offset = self._levels.first_due(level, from_ms)
        while True:
            result = self._store.read(SCHEDULE_TOPIC, queue_id, offset, max_count=_BATCH)
            for record in result.records:
                due_ms = self._levels.due_ms(record, level)
                own = self._timer.place_of(due_ms, record.physical_offset)
                place = own if own > place else SlotPlace(place.slot_ms, place.due_ms, record.physical_offset)
                yield Waiting(record, due_ms, place)
            if result.next_offset <= offset:
                return
            offset = result.next_offset
