"""Enqueue: follows the timer topic and adds each message to the wheel's slot for its time."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from msgspec import Struct

from aerobee_broker.timer.slot import Due
from aerobee_broker.timer.state import TimerParts
from aerobee_broker.timer.stats import increment
from aerobee_store import Record
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import decimal
from aerobee_store.records.message_fields import TIMER_QUEUE_ID, TIMER_TOPIC
from aerobee_store.records.properties import java_hash
from aerobee_store.timer.log import DEFAULT, DELETE, ROLL, TimerUnit

_log = logging.getLogger(__name__)

_ENQUEUE_BATCH: Final = 256  # messages read between two iterations of the event loop
_DELAY_MIN, _DELAY_MAX = -(1 << 31), (1 << 31) - 1


class Place(Struct, frozen=True):
    """The place of a message on the wheel. `roll`: it is stored again when that slot's time comes."""

    slot_ms: int
    write_ms: int
    delay_ms: int
    roll: bool


class Enqueue:
    """The part of the timer that moves messages from the timer topic to the wheel. Event loop only."""

    def __init__(self, parts: TimerParts) -> None:
        self._parts = parts
        self._state = parts.state

    @property
    def lag(self) -> int:
        """Messages of the timer topic that are not on the wheel yet."""
        return max(0, self._parts.store.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[1] - self._state.enqueued)

    @property
    def latency_ms(self) -> int:
        """How long the oldest of these messages has waited."""
        stored = self._parts.store.store_timestamp_at(TIMER_TOPIC, TIMER_QUEUE_ID, self._state.enqueued)
        return 0 if stored is None else max(0, self._parts.clock.now_ms() - stored)

    async def run(self) -> None:
        """Add new messages of the timer topic to the wheel: all of them, or until one is due. Then it must be called
        again, and `wake` is set."""
        parts, state = self._parts, self._state
        while not parts.closing.is_set():
            result = parts.store.read(TIMER_TOPIC, TIMER_QUEUE_ID, state.enqueued, max_count=_ENQUEUE_BATCH)
            if result.next_offset <= state.enqueued:
                break
            now_ms = parts.clock.now_ms()
            for record in result.records:
                self._add(record, now_ms)
            state.stats.lost += result.lost
            state.enqueued = result.next_offset
            state.changed = True
            await asyncio.sleep(0)
            next_ms = parts.next_look_ms
            if state.enqueued >= state.enqueue_first and next_ms is not None and next_ms <= parts.clock.now_ms():
                parts.wake.set()
                break

    def _add(self, record: Record, now_ms: int) -> None:
        state, values = self._state, record.properties
        topic = values.get(p.REAL_TOPIC)
        due_ms = state.due_ms(values)
        if state.has_left(record.queue_offset) or state.has_left_by_rocketmq(record):
            return
        if topic is None or due_ms is None or decimal(values.get(p.REAL_QUEUE_ID)) is None:
            _log.error("message without destination dropped topic=%s offset=%d", TIMER_TOPIC, record.queue_offset)
            state.stats.lost += 1
            return
        before_offset, before_ms = state.enqueued_before_crash
        if record.queue_offset < before_offset and state.floor(due_ms - 1) < before_ms:
            return
        place = self._place(due_ms, now_ms)
        is_request = p.TIMER_DELETE_UNIQ_KEY in values
        self._parts.files.add(place.slot_ms, self._unit(record, topic, place, is_request=is_request))
        is_loaded = state.slot is not None and place.slot_ms == state.slot_ms
        if is_request and not (is_loaded and not place.roll):
            state.recalls.remove(topic, values.get(p.UNIQ_KEY, ""))  # the slot has it now
        elif is_request:
            state.recalls.note(values, place.slot_ms)
            return
        if is_loaded:
            assert state.slot is not None
            at_ms = place.slot_ms if place.roll else due_ms
            state.slot.add(Due(at_ms, record.physical_offset, place.write_ms, place.roll))
        if not is_request:
            increment(state.stats.pending, topic)
            if p.TIMER_ROLL_TIMES not in values:
                increment(state.stats.enqueued, topic)

    def _place(self, due_ms: int, now_ms: int) -> Place:
        """The slot of the time, or a nearer one where the message is stored again on the way."""
        state = self._state
        wanted_ms = slot_ms = state.floor(due_ms - 1)
        write_ms = state.floor(now_ms)
        roll = False
        ahead = slot_ms - write_ms
        if ahead >= state.window_ms:
            roll = True
            # A message slightly beyond the window is rolled in its middle, so that the last part is not too short.
            nearer = ahead - state.window_ms < state.window_ms // 3
            slot_ms = state.floor(write_ms + (state.window_ms // 2 if nearer else state.window_ms))
        # After a long stop the wheel must catch up before it can hold messages far ahead.
        furthest = state.slot_ms + (self._parts.config.slot_count - 2) * state.precision_ms
        if slot_ms > furthest:
            roll = True
            slot_ms = furthest
        slot_ms = max(slot_ms, state.slot_ms)
        is_exact = not roll and slot_ms == wanted_ms
        return Place(slot_ms, write_ms, (due_ms - 1 if is_exact else slot_ms) - write_ms, roll)

    def _unit(self, record: Record, topic: str, place: Place, *, is_request: bool) -> TimerUnit:
        write_ms, unit_ms = place.write_ms, place.write_ms + place.delay_ms
        if not _DELAY_MIN <= place.delay_ms <= _DELAY_MAX:
            # The clock jumped by weeks. A unit's time is its write time plus its delay: its slot must match both.
            write_ms = self._state.floor(unit_ms - min(max(place.delay_ms, _DELAY_MIN), _DELAY_MAX))
            if unit_ms - write_ms > _DELAY_MAX:
                write_ms += self._state.precision_ms
        return TimerUnit(
            previous=-1,
            magic=DEFAULT | (DELETE if is_request else 0) | (ROLL if place.roll else 0),
            write_time_ms=write_ms,
            delay_ms=unit_ms - write_ms,
            physical_offset=record.physical_offset,
            message_size=record.size,
            topic_hash=java_hash(topic),
        )
