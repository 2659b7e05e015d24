"""The delayed messages that wait, for operators: read from the wheel, slot by slot, without changing anything."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from msgspec import Struct

from aerobee_broker.limits.loop_share import LoopShare, Steps
from aerobee_broker.messages.key_query import newest_with_key
from aerobee_broker.timer.state import TimerParts
from aerobee_store import Record
from aerobee_store.errors import TimerLogDamagedError
from aerobee_store.records import properties as p
from aerobee_store.records.message_fields import TIMER_TOPIC
from aerobee_store.records.properties import java_hash
from aerobee_store.timer.log import DELETE

_UNITS_MAX: Final = 50_000  # of one slot; of more, the latest
SECONDS_MAX: Final = 1.0
"""Of one call."""
_COPIES_MAX: Final = 64  # records with one id that are examined for a recall
_UNIT_SIZE: Final = 256  # bytes whose handling takes as long as one unit


class SlotPlace(Struct, frozen=True, order=True):
    """The place of a message in the order of the listing."""

    slot_ms: int
    due_ms: int
    physical_offset: int


class Waiting(Struct, frozen=True):
    """A message that waits, as its record in the topic of what waits, and when it is due. Unix milliseconds."""

    record: Record
    due_ms: int
    place: SlotPlace


class WaitingPage(Struct, frozen=True):
    """Some waiting messages, and the place after them; None: there are no others."""

    messages: list[Waiting]
    next: SlotPlace | None


class Listing:
    """Reads of one timer. Event loop only."""

    def __init__(self, parts: TimerParts, loop_share: LoopShare) -> None:
        self._parts = parts
        self._loop_share = loop_share

    async def page(self, *, topic: str, begin_ms: int, end_ms: int, after: SlotPlace | None, count: int) -> WaitingPage:
        """At most `count` messages after a place, in order of the slots. A message that is due in days is in the slot
        in which it is stored again. TimerLogDamagedError: the timer makes its files again; repeat the call.

        Only of this topic (empty: all), due from `begin_ms` to before `end_ms`. A call that takes too long returns what
        it has found, and where to continue.
        """
        parts = self._parts
        wheel, state = parts.files.wheel, parts.state
        found: list[Waiting] = []
        examined = False  # a call that examines nothing would be repeated without end
        until = asyncio.get_running_loop().time() + SECONDS_MAX
        steps = Steps(self._loop_share)
        slot_ms: int | None = state.slot_ms if after is None else max(state.slot_ms, after.slot_ms)
        while slot_ms is not None:
            slot_ms = wheel.next_used(slot_ms, slot_ms + parts.config.slot_count * state.precision_ms)
            if slot_ms is None:
                break
            for place in await self._places(slot_ms, topic, steps):
                if after is not None and place <= after:
                    continue
                is_late = examined and asyncio.get_running_loop().time() >= until
                if len(found) >= count or is_late:
                    return WaitingPage(found, after)
                after, examined = place, True
                record = parts.record(place.physical_offset)
                if record is None:
                    continue
                await steps.did(record.size)
                waiting = self._waiting(record, topic, place)
                if waiting is None or not begin_ms <= waiting.due_ms < end_ms or await self._is_recalled(record):
                    continue
                found.append(waiting)
            slot_ms += state.precision_ms
        return WaitingPage(found, None)

    def place_of(self, due_ms: int, physical_offset: int) -> SlotPlace:
        """The place that the timer gives a message that is due then."""
        return SlotPlace(self._parts.state.floor(due_ms - 1), due_ms - 1, physical_offset)

    async def _places(self, slot_ms: int, topic: str, steps: Steps) -> list[SlotPlace]:
        """The units of a slot that are not delivered yet, in due order."""
        state = self._parts.state
        wanted = java_hash(topic) if topic else None
        left = None if state.slot is None or state.slot_ms != slot_ms else state.slot.offsets()
        places = set()
        try:
            for number, unit in enumerate(self._parts.files.units(slot_ms)):
                if number >= _UNITS_MAX:
                    break
                is_wanted = not unit.magic & DELETE and wanted in (None, unit.topic_hash)
                if is_wanted and (left is None or unit.physical_offset in left):
                    places.add(SlotPlace(slot_ms, unit.write_time_ms + unit.delay_ms, unit.physical_offset))
                await steps.did(_UNIT_SIZE)
        except TimerLogDamagedError as error:
            if slot_ms >= state.slot_ms:  # otherwise its units were removed, because it was done meanwhile
                self._parts.note_damage(error)
                raise
        return sorted(places)

    def _waiting(self, record: Record, topic: str, place: SlotPlace) -> Waiting | None:
        values = record.properties
        due_ms = self._parts.state.due_ms(values)
        if due_ms is None or self._parts.state.has_left(record.queue_offset) or not values.get(p.REAL_TOPIC):
            return None
        return None if topic and values[p.REAL_TOPIC] != topic else Waiting(record, due_ms, place)

    async def _is_recalled(self, record: Record) -> bool:
        message_id, topic = record.unique_key or "", record.properties.get(p.REAL_TOPIC, "")
        if self._parts.state.recalls.has(topic, message_id):
            return True
        copies = newest_with_key(self._parts.store, self._loop_share, TIMER_TOPIC, message_id)
        looked = 0
        async with aclosing(copies) as records:
            async for copy in records:
                values = copy.properties
                if p.TIMER_DELETE_UNIQ_KEY in values and values.get(p.REAL_TOPIC) == topic:
                    return values.get(p.TIMER_DELIVER_MS) == record.properties.get(p.TIMER_DELIVER_MS)
                looked += 1
                if looked >= _COPIES_MAX:
                    break
        return False
