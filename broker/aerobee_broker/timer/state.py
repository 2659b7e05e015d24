"""The state of the timer: the positions of its parts, and the messages it must remember until a slot is done.

    timer topic   ----------------+--------------+-----------> queue offsets
                     enqueued      enqueue_first   end
    wheel         ----------------+--------------------------> Unix milliseconds, slot by slot
                     done          slot_ms (being read)
    log           -------+------------------------+----------> physical offsets
                          marks_begin               end

Messages delivered from the slot being read, and messages relocated from later ones, have a mark in the log
(TIMER_ORIGIN). After a crash, opening searches for these marks after `marks_begin`. RocketMQ's copies have none; topic,
id and time tell of which message they are. They matter when the whole timer topic is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct, field

from aerobee_broker.config.timer import TimerConfig
from aerobee_broker.timer.recalls import Recalls
from aerobee_broker.timer.slot import LoadedSlot
from aerobee_broker.timer.stats import TimerStats
from aerobee_store import CorruptRecordError, MessageStore, Record, RecordNotFoundError
from aerobee_store.clock import Clock
from aerobee_store.errors import TimerLogDamagedError
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import decimal
from aerobee_store.records.message_fields import TIMER_TOPIC
from aerobee_store.records.record import Message
from aerobee_store.timer.files import TimerFiles

TIMER_ORIGIN: Final = "__AEROBEE_TIMER"
"""Property of messages that left the timer topic: their queue offset there; followed by a blank and the time of the
slot, if they left before that time."""

_DELIVERED: Final = 1 << 31  # more often than a message can be stored again
_NOBODY: Final = ("", "", "", False)
_FOREIGN_PRECISION_MS: Final = 1000  # the coarsest step with which RocketMQ rounds


Name = tuple[str, str, str, bool]
"""Names a message for somebody who does not know its queue offset: topic, id, time, and whether it is a recall."""


class Marks(Struct):
    """What the log says of messages that left the timer topic; their queue offsets there."""

    done: set[int] = field(default_factory=set)
    relocated: dict[int, int] = field(default_factory=dict)  # those that left early -> the time of their slot
    by_rocketmq: dict[Name, int] = field(default_factory=dict)  # -> how often the last copy was stored again
    latest_ms: int = 0  # when the last copy was stored

    def note(self, record: Record) -> None:
        """Note the message of which a record with TIMER_DEQUEUE_MS, somewhere in its properties, is a copy."""
        if p.TIMER_DEQUEUE_MS not in record.properties:
            return
        self.latest_ms = max(self.latest_ms, record.store_timestamp)
        if TIMER_ORIGIN not in record.properties:
            copied = _roll_count(record) if record.topic == TIMER_TOPIC else _DELIVERED
            if (name := _name(record)) is not None:
                self.by_rocketmq[name] = max(copied, self.by_rocketmq.get(name, 0))
            return
        text, blank, slot = record.properties[TIMER_ORIGIN].partition(" ")
        origin, slot_ms = decimal(text), decimal(slot)
        if origin is None:
            return
        if blank and slot_ms is not None:
            self.relocated[origin] = slot_ms
        else:
            self.done.add(origin)


def _name(record: Record) -> Name | None:
    values = record.properties
    message_id, time_ms = values.get(p.UNIQ_KEY), values.get(p.TIMER_OUT_MS)
    if message_id is None or time_ms is None:
        return None
    return values.get(p.REAL_TOPIC, record.topic), message_id, time_ms, p.TIMER_DELETE_UNIQ_KEY in values


def _roll_count(record: Record) -> int:
    return decimal(record.properties.get(p.TIMER_ROLL_TIMES)) or 0


class TimerState(Struct):
    """Event loop only. `check` has the invariants that hold between two steps of the loop."""

    precision_ms: int
    window_ms: int  # a message due later is stored again on the way
    enqueued: int = 0  # queue offset: the next message of the timer topic to enqueue
    enqueue_first: int = 0  # queue offset: no further slot is read before the messages up to here are enqueued
    slot_ms: int = 0  # the slot that is being read; all before it are done
    marks_begin: int = 0  # physical offset: marks of this slot and of later ones are after it
    recovered_until_ms: int = 0  # slots up to here may have been read by an earlier process
    delivered_until_ms: int = 0  # by the clock, which may have been set back since
    # Units before this queue offset whose slots are before this time are done, although the topic is read again.
    enqueued_before_crash: tuple[int, int] = (0, 0)
    slot: LoadedSlot | None = None  # the slot of `slot_ms`, once its time has come
    done: set[int] = field(default_factory=set)  # queue offsets of messages that left the timer topic before the crash
    # Queue offsets of messages stored again before the time of their slot because of retention -> that time.
    relocated: dict[int, int] = field(default_factory=dict)
    by_rocketmq: dict[Name, int] = field(default_factory=dict)  # messages that it took from the timer topic
    relocated_before: int = 0  # physical offset: pending messages before it were relocated
    relocation_begin: int = 0  # physical offset: the copies of `relocated` are after it
    recalls: Recalls = field(default_factory=Recalls)
    stats: TimerStats = field(default_factory=TimerStats)
    damage: str = ""  # why wheel and log must be made again before anything else
    changed: bool = False  # since the last flush

    def floor(self, time_ms: int) -> int:
        """The slot of a time."""
        return time_ms - time_ms % self.precision_ms

    def step_to(self, time_ms: int, log_end: int) -> None:
        """Advance: all slots before `time_ms` are done, and their deliveries are before `log_end`."""
        if time_ms <= self.slot_ms:
            return
        assert self.slot is None, "the slot that is being read is not done"
        self.slot_ms = time_ms
        if time_ms > self.recovered_until_ms:
            self.marks_begin = log_end
            self.done.clear()
            self.by_rocketmq.clear()
        if self.relocated:
            self.relocated = {offset: slot_ms for offset, slot_ms in self.relocated.items() if slot_ms >= time_ms}
            self.marks_begin = min(self.marks_begin, self.relocation_begin)  # searched up to here
        self.recalls.forget_before(time_ms)

    def forget_progress(self) -> None:
        """Forget all that is read again from the timer topic and its marks."""
        self.slot = None
        self.damage = ""
        self.done.clear()
        self.relocated.clear()
        self.by_rocketmq.clear()
        self.relocated_before = self.delivered_until_ms = 0
        self.stats.pending.clear()

    def take_marks(self, marks: Marks) -> None:
        """Know what left the timer topic before; `slot_ms` is known."""
        self.relocated = {offset: slot_ms for offset, slot_ms in marks.relocated.items() if slot_ms >= self.slot_ms}
        marks.done.update(marks.relocated.keys() - self.relocated.keys())
        self.done = marks.done
        self.by_rocketmq = marks.by_rocketmq
        # After an orderly stop the opening of the store has read no record, and knows no time of the last one.
        self.recovered_until_ms = max(self.recovered_until_ms, marks.latest_ms)

    def note_relocated(self, queue_offset: int, slot_ms: int) -> None:
        """Record that this message is now pending under another queue offset."""
        self.relocated[queue_offset] = slot_ms
        self.marks_begin = min(self.marks_begin, self.relocation_begin)

    def has_left(self, queue_offset: int) -> bool:
        """Whether a message of the timer topic was delivered or stored again."""
        return queue_offset in self.done or queue_offset in self.relocated

    def has_left_by_rocketmq(self, record: Record) -> bool:
        """Whether RocketMQ delivered this message of the timer topic, or stored it again."""
        return bool(self.by_rocketmq) and _roll_count(record) < self.by_rocketmq.get(_name(record) or _NOBODY, 0)

    def due_ms(self, values: dict[str, str]) -> int | None:
        """The delivery time of a message of the timer topic with these properties."""
        out_ms, deliver_ms = decimal(values.get(p.TIMER_OUT_MS)), decimal(values.get(p.TIMER_DELIVER_MS))
        if out_ms is None:
            return deliver_ms
        if deliver_ms is not None and out_ms < deliver_ms <= out_ms + _FOREIGN_PRECISION_MS:
            return deliver_ms
        # RocketMQ delivers a message with a relative delay at the end of the step to which the delay was rounded down.
        return out_ms + self.precision_ms

    def check(self, *, topic_end: int, log_end: int) -> None:
        """The invariants, for tests. `topic_end`: the end of the timer topic. The AssertionError names the violated
        one."""
        broken = [name for name, holds in self._invariants(topic_end, log_end) if not holds]
        assert not broken, f"the timer's state is wrong: {'; '.join(broken)}: {self}"

    def _invariants(self, topic_end: int, log_end: int) -> list[tuple[str, bool]]:
        return [
            ("the slot being read begins at a multiple of the precision", self.slot_ms % self.precision_ms == 0),
            ("the window is two or more whole slots", _is_whole(self.window_ms, self.precision_ms, 2)),
            ("enqueued messages are in the timer topic", 0 <= self.enqueued <= topic_end),
            ("marks are looked for within the log", 0 <= self.marks_begin <= log_end),
            ("relocated copies lie within the log", 0 <= self.relocation_begin <= log_end),
            ("the log before the relocated messages is within it", 0 <= self.relocated_before <= log_end),
            (
                "the marks of relocated copies are found",
                not self.relocated or self.marks_begin <= self.relocation_begin,
            ),
            ("relocated messages are of slots that are not done", self._is_not_done(self.relocated.values())),
            ("a message is done or relocated, not both", self.done.isdisjoint(self.relocated)),
            ("only recovered slots have done messages", not self.done or self.slot_ms <= self.recovered_until_ms),
            ("the slots done before a crash are done", self.enqueued_before_crash[1] <= self.slot_ms),
            ("recalls are of slots that are not done", self._is_not_done(self.recalls.slots())),
            ("the remaining units of a slot are in due order", self.slot is None or self.slot.is_sorted()),
        ]

    def _is_not_done(self, slots: Iterable[int]) -> bool:
        return min(slots, default=self.slot_ms) >= self.slot_ms


class TimerParts(Struct, frozen=True):
    """The shared objects of the timer's parts."""

    store: MessageStore
    clock: Clock
    config: TimerConfig
    files: TimerFiles
    state: TimerState
    wake: asyncio.Event  # check the topic and the clock again
    closing: asyncio.Event  # end as soon as possible

    @property
    def next_look_ms(self) -> int | None:
        """The time of the next work if nothing arrives; None: nothing is pending. In the past: now."""
        slot, slot_ms = self.state.slot, self.state.slot_ms
        if slot is None:
            return slot_ms if self.files.used else None
        due = slot.next_due_ms
        return slot_ms + self.state.precision_ms if due is None else due

    def record(self, physical_offset: int) -> Record | None:
        """A message of the timer topic; None if the log has lost it."""
        try:
            return self.store.record_at(physical_offset)
        except (RecordNotFoundError, CorruptRecordError):
            return None

    def note_damage(self, error: TimerLogDamagedError) -> None:
        """Let the timer make wheel and log again, from the messages in the commit log."""
        self.state.damage = str(error)
        self.wake.set()

    def append(self, messages: Sequence[Message]) -> int:
        """Store messages that leave the timer topic or are stored in it again; returns the end of the last one.

        Raises StoreFullError, InvalidMessageError and StoreError.
        """
        appended = self.store.append(messages, internal=True)
        for message, place in zip(messages, appended, strict=True):
            if message.topic == TIMER_TOPIC:
                # It may recall a message of the same slot, which only the timer topic records.
                self.state.enqueue_first = place.queue_offset + 1
        return appended[-1].end


def _is_whole(value: int, step: int, count_min: int) -> bool:
    return value % step == 0 and value >= count_min * step
