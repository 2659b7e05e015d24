"""Dequeue: loads each slot when its time has come, and appends its messages when they are due.

A message goes to its real topic, or again to the timer topic if it is further ahead than the wheel's window.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from typing import Final

from aerobee_broker.timer.background import BackgroundAppends
from aerobee_broker.timer.enqueue import Enqueue
from aerobee_broker.timer.relocation import stored_again
from aerobee_broker.timer.slot import Due, LoadedSlot
from aerobee_broker.timer.state import TIMER_ORIGIN, TimerParts
from aerobee_broker.timer.stats import increment
from aerobee_store import Record
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import decimal
from aerobee_store.records.message_fields import TIMER_TOPIC
from aerobee_store.records.record import Message
from aerobee_store.timer.log import DELETE, ROLL, TimerUnit

_log = logging.getLogger(__name__)

DELIVER_BATCH: Final = 64
_DELIVER_BATCH_SIZE: Final = 4 << 20
_LOAD_BATCH: Final = 4096  # units


class Dequeue:
    """The part of the timer that moves messages from the wheel to the log. Event loop only."""

    def __init__(self, parts: TimerParts, enqueue: Enqueue) -> None:
        self._parts = parts
        self._state = parts.state
        self._enqueue = enqueue
        self._appends = BackgroundAppends(parts.store, parts.append, self._note_lost, closing=parts.closing)

    @property
    def lag(self) -> int:
        """Overdue messages of the slot being read."""
        return len(self._state.slot) if self._state.slot is not None and self.latency_ms else 0

    @property
    def latency_ms(self) -> int:
        """How late the next message is."""
        due = None if self._state.slot is None else self._state.slot.next_due_ms
        return 0 if due is None else max(0, self._parts.clock.now_ms() - due)

    async def run(self) -> float | None:
        """Deliver all due messages. Returns the seconds until the next check, None to wait for an arrival."""
        parts, state = self._parts, self._state
        while not parts.closing.is_set():
            now_ms = parts.clock.now_ms()
            if state.slot is None:
                if state.slot_ms > now_ms:
                    return (state.slot_ms - now_ms) / 1000
                if not self._step_to_next_slot(now_ms):
                    return None
                state.slot = await self._load()
            await self._deliver_due(now_ms)
            if parts.closing.is_set():
                break
            if parts.wake.is_set():
                parts.wake.clear()
                await self._enqueue.run()
            now_ms = parts.clock.now_ms()
            slot_end = state.slot_ms + state.precision_ms
            next_ms = state.slot.next_due_ms
            if next_ms is None and now_ms >= slot_end:
                state.slot = None
                state.step_to(slot_end, parts.store.positions[0])
                continue
            if next_ms is None or next_ms > now_ms:
                return ((slot_end if next_ms is None else next_ms) - now_ms) / 1000
        return None

    def _step_to_next_slot(self, now_ms: int) -> bool:
        """Advance to the next non-empty slot, at most the current one; False if the wheel is empty."""
        parts, state = self._parts, self._state
        now_slot = state.floor(now_ms)
        used_ms = parts.files.wheel.next_used(state.slot_ms, now_slot + state.precision_ms)
        state.step_to(now_slot if used_ms is None else used_ms, parts.store.positions[0])
        return used_ms is not None or parts.files.used

    async def _load(self) -> LoadedSlot:
        """Read the chain of the slot whose time has come."""
        state = self._state
        slot = LoadedSlot()
        due, offsets, write_times, rolls = (array("q") for _ in range(4))
        for count, unit in enumerate(self._parts.files.units(state.slot_ms)):
            if count % _LOAD_BATCH == _LOAD_BATCH - 1:
                await asyncio.sleep(0)
            if unit.magic & DELETE and not unit.magic & ROLL:
                record = self._parts.record(unit.physical_offset)
                if record is not None:
                    state.recalls.note(record.properties, state.slot_ms)
                continue
            due.append(self._due_ms(unit))
            offsets.append(unit.physical_offset)
            write_times.append(unit.write_time_ms)
            rolls.append(bool(unit.magic & ROLL))
        if due:
            slot.fill(due, offsets, write_times, rolls)
            state.changed = True
        return slot

    def _note_lost(self) -> None:
        self._state.stats.lost += 1

    def _due_ms(self, unit: TimerUnit) -> int:
        state = self._state
        if unit.magic & ROLL:
            return state.slot_ms
        due_ms = unit.write_time_ms + unit.delay_ms + 1
        if (due_ms - 1) % state.precision_ms:
            return due_ms
        # RocketMQ's unit, or one that was too late for its slot: only the message has the time.
        record = self._parts.record(unit.physical_offset)
        exact = None if record is None else state.due_ms(record.properties)
        return state.slot_ms if exact is None else exact

    async def _deliver_due(self, now_ms: int) -> None:
        """Deliver one batch of due messages."""
        state = self._state
        assert state.slot is not None, "loaded before"
        state.delivered_until_ms = max(state.delivered_until_ms, now_ms)
        messages: list[Message] = []
        size = taken = 0
        for entry in state.slot.take(now_ms):
            taken += 1
            message = self._leaving(entry, now_ms)
            if message is not None:
                messages.append(message)
                size += len(message.body)
            if taken >= DELIVER_BATCH or size >= _DELIVER_BATCH_SIZE:
                break
        if messages:
            state.changed = True
            await self._appends.append(messages)
        elif taken:
            await asyncio.sleep(0)

    def _leaving(self, entry: Due, now_ms: int) -> Message | None:
        """The message to append for a due unit; None if it was delivered before, recalled, or lost."""
        state = self._state
        record = self._parts.record(entry.physical_offset)
        if record is None:
            if entry.physical_offset >= state.relocated_before:
                state.stats.lost += 1
                _log.error("delayed message lost physical_offset=%d", entry.physical_offset)
            return None
        values = record.properties
        topic, queue_id = values.get(p.REAL_TOPIC), decimal(values.get(p.REAL_QUEUE_ID))
        if record.topic != TIMER_TOPIC or topic is None or queue_id is None:
            state.stats.lost += 1
            _log.error("timer entry names no message of the timer topic physical_offset=%d", entry.physical_offset)
            return None
        if record.queue_offset in state.relocated:
            return None
        if p.TIMER_DELETE_UNIQ_KEY not in values:
            increment(state.stats.pending, topic, -1)
        if record.queue_offset in state.done:
            return None
        if entry.roll:
            state.stats.rolled += 1
            return stored_again(record, entry.write_time_ms, now_ms, str(record.queue_offset))
        if state.recalls.has(topic, values.get(p.UNIQ_KEY, "")):
            state.stats.recalled += 1
            return None
        increment(state.stats.dequeued, topic)
        state.stats.lateness_seconds.observe(max(0, now_ms - entry.due_ms) / 1000)
        return _delivered(record, topic, queue_id, entry.write_time_ms, now_ms)


def _delivered(record: Record, topic: str, queue_id: int, write_time_ms: int, now_ms: int) -> Message:
    values = dict(record.properties)
    for name in (p.REAL_TOPIC, p.REAL_QUEUE_ID):
        values.pop(name, None)
    values.pop(TIMER_ORIGIN, None)  # of an earlier copy; the new one goes to the end
    values[p.TIMER_ENQUEUE_MS] = str(write_time_ms)
    values[p.TIMER_DEQUEUE_MS] = str(now_ms)
    values[TIMER_ORIGIN] = str(record.queue_offset)
    return record.to_message(topic, queue_id, values)
