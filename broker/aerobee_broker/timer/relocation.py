"""Relocation: stores pending messages in the timer topic again before retention removes their part of the log.

Usually there are none, because the wheel's window is shorter than the retention; but a full disk shortens that.
"""

from __future__ import annotations

from typing import Final

from aerobee_broker.timer.background import wait_on_own_disk
from aerobee_broker.timer.state import TIMER_ORIGIN, TimerParts
from aerobee_broker.timer.stats import increment
from aerobee_store import Record
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import decimal
from aerobee_store.records.message_fields import TIMER_QUEUE_ID, TIMER_TOPIC
from aerobee_store.records.record import Message

_BATCH: Final = 64  # messages between two waits for the disk


class Relocation:
    """The timer's listener of retention. Event loop only."""

    def __init__(self, parts: TimerParts) -> None:
        self._parts = parts
        self._state = parts.state

    async def keep_from(self, physical_offset: int) -> int:
        """A listener for `MessageStore.retention_listeners`: returns up to where the log may be removed. StoreError."""
        parts, state = self._parts, self._state
        if physical_offset <= state.relocated_before:
            return physical_offset
        found = self._pending_before(physical_offset)
        unread = parts.store.read(TIMER_TOPIC, TIMER_QUEUE_ID, state.enqueued, max_count=1)
        if unread.records and unread.records[0].physical_offset < physical_offset:
            return unread.records[0].physical_offset  # it must be enqueued first
        if found and not state.relocated:
            state.relocation_begin = parts.store.positions[0]
        for first in range(0, len(found), _BATCH):
            end = self._relocate(found[first : first + _BATCH])
            if end is not None:
                await wait_on_own_disk(parts.store, end, durable=True)
        state.relocated_before = physical_offset
        return physical_offset

    def _pending_before(self, physical_offset: int) -> list[tuple[int, int]]:
        """(physical offset, time of the slot) of the units on the wheel that were not relocated before."""
        state = self._state
        found: list[tuple[int, int]] = []
        for _, units in self._parts.files.log.scan():
            times = units["write_time"] + units["delay"]
            times = times - times % state.precision_ms
            offsets = units["physical_offset"]
            waiting = (times >= state.slot_ms) & (offsets < physical_offset) & (offsets >= state.relocated_before)
            found += zip(offsets[waiting].tolist(), times[waiting].tolist(), strict=True)
            if len(units) and int(offsets[-1]) >= physical_offset:
                break
        if state.slot is not None:  # the rest of the slot being read
            left = state.slot.offsets()
            found = [item for item in found if item[1] > state.slot_ms or item[0] in left]
        return found

    def _relocate(self, units: list[tuple[int, int]]) -> int | None:
        """Append copies; returns the end of the last one. Nothing is relocated if that fails."""
        parts, state = self._parts, self._state
        now_ms = parts.clock.now_ms()
        records: dict[int, tuple[Record, int]] = {}  # queue offset -> the message and its slot
        for offset, slot_ms in units:
            record = parts.record(offset)
            if record is not None and not state.has_left(record.queue_offset):
                records.setdefault(record.queue_offset, (record, slot_ms))
        if not records:
            return None
        end = parts.append(
            [
                stored_again(record, state.floor(now_ms), now_ms, f"{record.queue_offset} {slot_ms}")
                for record, slot_ms in records.values()
            ]
        )
        for queue_offset, (record, slot_ms) in records.items():
            state.note_relocated(queue_offset, slot_ms)
            if p.TIMER_DELETE_UNIQ_KEY not in record.properties:
                increment(state.stats.pending, record.properties.get(p.REAL_TOPIC, ""), -1)
        return end


def stored_again(record: Record, write_time_ms: int, now_ms: int, origin: str) -> Message:
    """A copy for the timer topic. `origin` as in TIMER_ORIGIN."""
    values = dict(record.properties)
    values[p.TIMER_ROLL_TIMES] = str((decimal(values.get(p.TIMER_ROLL_TIMES)) or 0) + 1)
    values[p.TIMER_ENQUEUE_MS] = str(write_time_ms)
    values[p.TIMER_DEQUEUE_MS] = str(now_ms)
    values[TIMER_ORIGIN] = origin
    return record.to_message(TIMER_TOPIC, TIMER_QUEUE_ID, values)
