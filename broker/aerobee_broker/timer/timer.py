"""Messages that are delivered later: RocketMQ's timer, in its topic and its files.

A delayed message is stored in the timer topic first, and is as safe there as any other. From there on

    enqueue   follow the timer topic: a unit in the timer log for each message, hung on the wheel's slot for its time
    roll      what is further ahead than the window is hung on a nearer slot, and stored in the timer topic once more
              when that is due: its record is never older than the window, whatever the log's retention
    dequeue   a slot when its time has come: its units are loaded, and each message is appended to its real topic in
              the millisecond in which it is due
    recall    a message that takes another one back goes the same way to the same slot

One task does all of this. What an earlier process left in the timer topic, and what was stored there again, is hung on
its slots before anything more is delivered: a request that takes a message back may be among it. Of all other requests
it is known at once, so enqueue and dequeue take turns while more is sent than can be hung: nothing is late for that.

Once and not twice. A slot is done when its time is over and all of it is in the log; the checkpoint says so after the
log is durable. After a crash everything from the first slot that is not done is due again. What had been delivered of
it is in the log: each message that leaves the timer topic carries the queue offset that it had there (TIMER_ORIGIN),
and opening looks for these marks behind the place that the checkpoint names.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from aerobee_broker.errors import BrokerError
from aerobee_broker.timer.config import TimerConfig
from aerobee_broker.timer.recalls import Recalls
from aerobee_broker.timer.slot import Due, LoadedSlot
from aerobee_broker.timer.stats import TimerStats, increment
from aerobee_store import (
    Appended,
    CorruptRecordError,
    InvalidMessageError,
    MessageStore,
    Record,
    RecordNotFoundError,
    StoreFullError,
    SyncTimeoutError,
)
from aerobee_store.clock import Clock
from aerobee_store.disk.file_system import File
from aerobee_store.log.marked_records import marked_records
from aerobee_store.records import properties as p
from aerobee_store.records.properties import java_hash
from aerobee_store.records.record import Message
from aerobee_store.timer.checkpoint import TimerCheckpoint
from aerobee_store.timer.files import TIMER_QUEUE_ID, TIMER_TOPIC, TimerFiles
from aerobee_store.timer.log import DEFAULT, DELETE, ROLL, TimerUnit

_log = logging.getLogger(__name__)

TIMER_ORIGIN: Final = "__AEROBEE_TIMER"
"""On what left the timer topic: the queue offset that it had there. Behind a blank, if it left before the time of its
slot: that time."""

_MARK: Final = f"{TIMER_ORIGIN}\x01".encode()
_ENQUEUE_BATCH: Final = 256  # messages read between two turns of the event loop
_DELIVER_BATCH: Final = 64
_DELIVER_BATCH_SIZE: Final = 4 << 20
_LOAD_BATCH: Final = 4096  # units
_RETRY_SECONDS: Final = 0.5
_IDLE_SAVE_ROUNDS: Final = 30  # flushes without anything new until the time alone is saved
_DELAY_MIN, _DELAY_MAX = -(1 << 31), (1 << 31) - 1
_FOREIGN_PRECISION_MS: Final = 1000  # the coarsest that RocketMQ rounds with


class MessageNotPendingError(BrokerError):
    """No such message waits for its time: it was delivered, recalled, or never sent."""


class Timer:
    """All delayed messages of a broker. Event loop only, but for `open`; `open`, then `run` beside everything else,
    then `close`."""

    name: Final = "timer"

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        config: TimerConfig,
        *,
        topics: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`topics`: the stored names of all; the timer log knows their hashes only, and metrics want names."""
        self._store = store
        self._topics = topics
        self._clock = clock
        self._config = config
        self._precision_ms = config.precision_ms
        # A record has to be stored again well before the log forgets it.
        retention_ms = round(store.config.retention_hours * 3_600_000)
        window_ms = min(config.roll_window_slots * config.precision_ms, retention_ms // 2)
        self._window_ms = max(window_ms - window_ms % config.precision_ms, 2 * config.precision_ms)
        self._files = TimerFiles(
            store.file_system,
            store.config.directory,
            precision_ms=config.precision_ms,
            slot_count=config.slot_count,
            log_file_size=config.log_file_size,
        )
        self.stats = TimerStats()
        self._queue_offset = 0  # next message of the timer topic
        self._hang_first = 0  # nothing is delivered before the timer topic is on the wheel up to here
        self._read_time_ms = 0  # the slot that is being read; all before it is done
        self._begin = 0  # what this slot and later ones have delivered lies in the log behind here
        self._slot: LoadedSlot | None = None
        self._recalls = Recalls()
        self._done: set[int] = set()  # queue offsets of what left the timer topic before the crash
        # Of what was stored again before the time of its slot, for the log had to go -> that time.
        self._moved: dict[int, int] = {}
        self._moved_begin = 0  # these copies lie in the log behind here
        self._recovered_until_ms = 0  # slots up to here may have been read before
        self._delivered_until_ms = 0  # by the clock, which may have gone back since
        self._skip_before = (0, 0)  # (queue offset, slot time): done, although the timer topic is read again
        self._moved_before = 0  # physical offset; pending messages in front of it were stored again
        self._changed = False
        self._unsynced: dict[File, None] = {}  # kept here, so that a flush that was cancelled leaves them to the next
        self._idle_rounds = 0
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopped.set()
        self._full_logged = False
        store.arrival_listeners.append(self._arrived)
        store.retention_listeners.append(self.keep_from)

    # --- Life -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find out what is pending. Blocking. Raises StoreError, OSError."""
        store = self._store
        found = self._files.open()
        checkpoint = found.checkpoint
        begin, end = store.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)
        now_slot = self._floor(self._clock.now_ms())
        log_end = store.positions[0]
        self._read_time_ms, self._begin = now_slot, log_end
        if checkpoint is not None:
            self._read_time_ms = self._floor(checkpoint.read_time_ms)
            if self._read_time_ms > now_slot + 60_000:
                _log.warning(
                    "the clock went back, messages delivered since then may be delivered again ms=%d", now_slot
                )
                self._read_time_ms = now_slot
            # Where RocketMQ wrote the file last, nothing was marked since.
            self._begin = log_end if checkpoint.begin is None else min(checkpoint.begin, log_end)
        elif begin < end:
            self._begin = 0  # nothing is known
        if found.complete and checkpoint is not None:
            self._queue_offset = min(max(checkpoint.queue_offset, begin), end)
        else:
            self._queue_offset = begin
            self._begin = 0 if begin < end else log_end  # also the marks of what was rolled, which no slot tells
            if checkpoint is not None:
                self._skip_before = (checkpoint.queue_offset, self._read_time_ms)
        self._recovered_until_ms = max(store.recovery.last_timestamp, self._read_time_ms)
        if begin < end:
            for record in marked_records(store, _MARK, self._begin):
                self._mark_done(record)
        self._moved_begin = self._begin
        self._count_pending()
        if self._files.used:
            checkpoint = self._written(clean=False)
            self._files.save(list(self._unsynced), checkpoint)
            self._unsynced.clear()
        self._wake.set()
        _log.info(
            "timer restored pending=%d unread=%d delivered=%d",
            sum(self.stats.pending.values()),
            end - self._queue_offset,
            len(self._done),
        )

    async def run(self) -> None:
        """Enqueue, dequeue, flush; until closed or cancelled. Raises StoreError, OSError: the store is dead then."""
        self._stopped.clear()
        try:
            async with asyncio.TaskGroup() as tasks:
                flushing = tasks.create_task(self._run_flush(), name="timer-flush")
                await self._run_timer()
                flushing.cancel()
        finally:
            self._stopped.set()

    async def close(self) -> None:
        """Stop delivering and save everything, so that the next start has nothing to find out. The store must still
        run; what is sent from now on is read by the next start."""
        self._closing.set()
        self._wake.set()
        await self._stopped.wait()
        for listeners, own in (
            (self._store.arrival_listeners, self._arrived),
            (self._store.retention_listeners, self.keep_from),
        ):
            if own in listeners:
                listeners.remove(own)  # type: ignore[arg-type]  # each has its own type of listener
        if self._store.state == "open" and self._files.used:
            await self._flush(clean=True)
        self._files.close()

    def wake(self) -> None:
        """Look at the clock again: for tests that move it."""
        self._wake.set()

    @property
    def next_look_ms(self) -> int | None:
        """When there is something to do next, if nothing arrives; None: nothing is pending. In the past: now."""
        if self._slot is None:
            return self._read_time_ms if self._files.used else None
        due = self._slot.next_due_ms
        return self._read_time_ms + self._precision_ms if due is None else due

    @property
    def enqueue_lag(self) -> int:
        """Messages of the timer topic that are not on the wheel yet."""
        return max(0, self._store.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[1] - self._queue_offset)

    @property
    def enqueue_latency_ms(self) -> int:
        """How long the oldest of them has waited."""
        stored = self._store.store_timestamp_at(TIMER_TOPIC, TIMER_QUEUE_ID, self._queue_offset)
        return 0 if stored is None else max(0, self._clock.now_ms() - stored)

    @property
    def dequeue_lag(self) -> int:
        """Messages of the slot that is being read that should have been delivered by now."""
        return len(self._slot) if self._slot is not None and self.dequeue_latency_ms else 0

    @property
    def dequeue_latency_ms(self) -> int:
        """How late the next message is."""
        if self._slot is None:
            return 0
        due = self._slot.next_due_ms
        return 0 if due is None else max(0, self._clock.now_ms() - due)

    def pending_within(self, bounds_seconds: Sequence[int]) -> list[int]:
        """How many messages on the wheel are due up to the first bound, counted from now, then from each bound to the
        next. Requests to take one back count as one less; what is far ahead counts where it is stored again."""
        now_slot = self._floor(self._clock.now_ms())
        bounds = [now_slot + seconds * 1000 for seconds in bounds_seconds]
        return self._files.wheel.pending([min(self._read_time_ms, now_slot), *bounds])

    # --- Sending and taking back ------------------------------------------------------------------------------

    def delayed(self, message: Message, deliver_ms: int) -> Message:
        """What is stored for a message that is to be delivered then, which must lie ahead."""
        self.stats.note_delay(message.topic, (deliver_ms - self._clock.now_ms()) / 1000)
        return replace(
            message,
            topic=TIMER_TOPIC,
            queue_id=TIMER_QUEUE_ID,
            properties={
                **message.properties,
                p.TIMER_DELIVER_MS: str(deliver_ms),
                p.TIMER_OUT_MS: str(self._floor(deliver_ms - 1)),
                p.REAL_TOPIC: message.topic,
                p.REAL_QUEUE_ID: str(message.queue_id),
            },
        )

    async def recall(self, topic: str, message_id: str, deliver_ms: int) -> None:
        """Take a pending message back: it is never delivered when this returns. All of this id and time, if it was
        sent more than once.

        Raises MessageNotPendingError if there is none, any more; StoreError.
        """
        now_ms = self._clock.now_ms()
        if self._recalls.has_exactly(topic, message_id):
            raise MessageNotPendingError(f"message {message_id!r} was recalled already")
        if deliver_ms <= max(now_ms, self._delivered_until_ms, self._read_time_ms):
            raise MessageNotPendingError(f"message {message_id!r} is due already, and cannot be recalled any more")
        found = False
        for record in self._store.query(TIMER_TOPIC, message_id, max_count=1024):
            values = record.properties
            if record.unique_key != message_id or values.get(p.REAL_TOPIC) != topic:
                continue
            if values.get(p.TIMER_DELIVER_MS) != str(deliver_ms):
                continue
            if p.TIMER_DELETE_UNIQ_KEY in values:
                raise MessageNotPendingError(f"message {message_id!r} was recalled already")
            found = found or record.queue_offset not in self._done
        if not found:
            raise MessageNotPendingError(f"no message {message_id!r} waits to be delivered to topic {topic!r}")
        properties = {
            p.UNIQ_KEY: message_id,
            p.TIMER_DELETE_UNIQ_KEY: topic + message_id,
            p.TIMER_DELIVER_MS: str(deliver_ms),
            p.TIMER_OUT_MS: str(self._floor(deliver_ms - 1)),
            p.REAL_TOPIC: topic,
            p.REAL_QUEUE_ID: "0",
        }
        request = Message(TIMER_TOPIC, TIMER_QUEUE_ID, b"0", properties, born_timestamp=now_ms)
        [place] = self._store.append([request], essential=True)
        # In the same step: from here on it is not delivered, even if the request is not enqueued in time.
        self._recalls.add(topic, message_id, max(self._floor(deliver_ms - 1), self._read_time_ms))
        await self._store.wait_stored(place.end)

    # --- Enqueue ----------------------------------------------------------------------------------------------

    def _arrived(self, topic: str, queue_id: int, end: int) -> None:
        if topic == TIMER_TOPIC:
            self._wake.set()

    async def _run_timer(self) -> None:
        self._hang_first = self._store.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[1]
        while not self._closing.is_set():
            self._wake.clear()
            await self._enqueue()
            seconds = await self._advance()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()

    async def _enqueue(self) -> None:
        """Hang what has arrived in the timer topic on the wheel: all of it, or until something is due. Then it is to be
        called again, and `_wake` is set."""
        while not self._closing.is_set():
            result = self._store.read(TIMER_TOPIC, TIMER_QUEUE_ID, self._queue_offset, max_count=_ENQUEUE_BATCH)
            if result.next_offset <= self._queue_offset:
                break
            now_ms = self._clock.now_ms()
            for record in result.records:
                self._enqueue_record(record, now_ms)
            self.stats.lost += result.lost
            self._queue_offset = result.next_offset
            self._changed = True
            await asyncio.sleep(0)
            next_ms = self.next_look_ms
            if self._queue_offset >= self._hang_first and next_ms is not None and next_ms <= self._clock.now_ms():
                self._wake.set()
                break

    def _enqueue_record(self, record: Record, now_ms: int) -> None:
        values = record.properties
        topic = values.get(p.REAL_TOPIC)
        due_ms = self._due_ms(values)
        if record.queue_offset in self._done or record.queue_offset in self._moved:
            return
        if topic is None or due_ms is None or _integer(values.get(p.REAL_QUEUE_ID)) is None:
            _log.error("message of topic=%s offset=%d has no destination", TIMER_TOPIC, record.queue_offset)
            self.stats.lost += 1
            return
        slot_ms = self._floor(due_ms - 1)
        if record.queue_offset < self._skip_before[0] and slot_ms < self._skip_before[1]:
            return
        magic = DEFAULT
        if p.TIMER_DELETE_UNIQ_KEY in values:
            magic |= DELETE
        write_ms = self._floor(now_ms)
        delay = due_ms - 1 - write_ms
        ahead = slot_ms - write_ms
        if ahead >= self._window_ms:
            magic |= ROLL
            # What is little further than the window is rolled in its middle, so that the last part is not too short.
            nearer = ahead - self._window_ms < self._window_ms // 3
            slot_ms = self._floor(write_ms + (self._window_ms // 2 if nearer else self._window_ms))
        # A wheel that stood still for long must go round to where it was before it can hold what is far ahead.
        furthest = self._read_time_ms + (self._config.slot_count - 2) * self._precision_ms
        if slot_ms > furthest:
            magic |= ROLL
            slot_ms = furthest
        slot_ms = max(slot_ms, self._read_time_ms)
        if magic & ROLL or slot_ms != self._floor(due_ms - 1):
            delay = slot_ms - write_ms
        unit_ms, unit_write_ms = write_ms + delay, write_ms
        if not _DELAY_MIN <= delay <= _DELAY_MAX:
            # The clock jumped by weeks. A unit's time is its write time and its delay: its slot must be that of both.
            unit_write_ms = self._floor(unit_ms - min(max(delay, _DELAY_MIN), _DELAY_MAX))
            if unit_ms - unit_write_ms > _DELAY_MAX:
                unit_write_ms += self._precision_ms
        self._files.add(
            slot_ms,
            TimerUnit(
                previous=-1,
                magic=magic,
                write_time_ms=unit_write_ms,
                delay_ms=unit_ms - unit_write_ms,
                physical_offset=record.physical_offset,
                message_size=record.size,
                topic_hash=java_hash(topic),
            ),
        )
        roll = bool(magic & ROLL)
        is_loaded = self._slot is not None and slot_ms == self._read_time_ms
        if magic & DELETE and not (is_loaded and not roll):
            self._recalls.remove(topic, values.get(p.UNIQ_KEY, ""))  # the slot has it now
        elif magic & DELETE:
            self._recalls.note(values, slot_ms)
            return
        if is_loaded:
            assert self._slot is not None
            self._slot.add(Due(slot_ms if roll else due_ms, record.physical_offset, write_ms, roll))
        if not magic & DELETE:
            increment(self.stats.pending, topic)
            if p.TIMER_ROLL_TIMES not in values:
                increment(self.stats.enqueued, topic)

    def _due_ms(self, values: dict[str, str]) -> int | None:
        """When a message of the timer topic is to be delivered."""
        out_ms, deliver_ms = _integer(values.get(p.TIMER_OUT_MS)), _integer(values.get(p.TIMER_DELIVER_MS))
        if out_ms is None:
            return deliver_ms
        if deliver_ms is not None and out_ms < deliver_ms <= out_ms + _FOREIGN_PRECISION_MS:
            return deliver_ms
        # RocketMQ was told a delay: it delivers when the step is over that it has rounded down to.
        return out_ms + self._precision_ms

    # --- Dequeue ----------------------------------------------------------------------------------------------

    async def _advance(self) -> float | None:
        """Deliver all that is due. Returns the seconds until the next look, None for when something arrives."""
        while not self._closing.is_set():
            now_ms = self._clock.now_ms()
            if self._slot is None:
                if self._read_time_ms > now_ms:
                    return (self._read_time_ms - now_ms) / 1000
                now_slot = self._floor(now_ms)
                used_ms = self._files.wheel.next_used(self._read_time_ms, now_slot + self._precision_ms)
                if used_ms is None and not self._files.used:
                    self._step_to(now_slot)
                    return None
                self._step_to(now_slot if used_ms is None else used_ms)
                await self._load()
            assert self._slot is not None
            await self._deliver_due(now_ms)
            if self._closing.is_set():
                break
            if self._wake.is_set():
                self._wake.clear()
                await self._enqueue()
            now_ms = self._clock.now_ms()
            slot_end = self._read_time_ms + self._precision_ms
            next_ms = self._slot.next_due_ms
            if next_ms is None and now_ms >= slot_end:
                self._slot = None
                self._step_to(slot_end)
                continue
            if next_ms is None or next_ms > now_ms:
                return ((slot_end if next_ms is None else next_ms) - now_ms) / 1000
        return None

    def _step_to(self, time_ms: int) -> None:
        if time_ms <= self._read_time_ms:
            return
        self._read_time_ms = time_ms
        if time_ms > self._recovered_until_ms:
            self._begin = self._store.positions[0]
            self._done.clear()
        if self._moved:
            self._moved = {offset: slot_ms for offset, slot_ms in self._moved.items() if slot_ms >= time_ms}
            self._begin = min(self._begin, self._moved_begin)  # their marks have to be found until then
        self._recalls.forget_before(time_ms)

    async def _load(self) -> None:
        """Read the chain of the slot whose time has come."""
        slot = LoadedSlot()
        due, offsets, write_times, rolls = (array("q") for _ in range(4))
        for count, unit in enumerate(self._files.units(self._read_time_ms)):
            if count % _LOAD_BATCH == _LOAD_BATCH - 1:
                await asyncio.sleep(0)
            if unit.magic & DELETE and not unit.magic & ROLL:
                record = self._record(unit.physical_offset)
                if record is not None:
                    self._recalls.note(record.properties, self._read_time_ms)
                continue
            due_ms = unit.write_time_ms + unit.delay_ms + 1
            if unit.magic & ROLL:
                due_ms = self._read_time_ms
            elif (due_ms - 1) % self._precision_ms == 0:
                # RocketMQ's unit, or one that came too late for its slot: only the message itself knows.
                record = self._record(unit.physical_offset)
                exact = None if record is None else self._due_ms(record.properties)
                due_ms = self._read_time_ms if exact is None else exact
            due.append(due_ms)
            offsets.append(unit.physical_offset)
            write_times.append(unit.write_time_ms)
            rolls.append(bool(unit.magic & ROLL))
        if due:
            slot.fill(due, offsets, write_times, rolls)
            self._changed = True
        self._slot = slot

    async def _deliver_due(self, now_ms: int) -> None:
        """One batch of what is due."""
        assert self._slot is not None
        self._delivered_until_ms = max(self._delivered_until_ms, now_ms)
        messages: list[Message] = []
        size = taken = 0
        for entry in self._slot.take(now_ms):
            taken += 1
            message = self._restored(entry, now_ms)
            if message is not None:
                messages.append(message)
                size += len(message.body)
            if taken >= _DELIVER_BATCH or size >= _DELIVER_BATCH_SIZE:
                break
        if messages:
            self._changed = True
            await self._append(messages)
        elif taken:
            await asyncio.sleep(0)

    def _restored(self, entry: Due, now_ms: int) -> Message | None:
        """What is appended for a unit that is due: the message for its topic, or once more for the timer topic."""
        record = self._record(entry.physical_offset)
        if record is None:
            if entry.physical_offset >= self._moved_before:
                self.stats.lost += 1
                _log.error("delayed message lost physical_offset=%d", entry.physical_offset)
            return None
        values = dict(record.properties)
        topic, queue_id = values.get(p.REAL_TOPIC), _integer(values.get(p.REAL_QUEUE_ID))
        if record.topic != TIMER_TOPIC or topic is None or queue_id is None:
            self.stats.lost += 1
            _log.error("no message of the timer topic physical_offset=%d", entry.physical_offset)
            return None
        is_request = p.TIMER_DELETE_UNIQ_KEY in values
        if record.queue_offset in self._moved:
            return None
        if not is_request:
            increment(self.stats.pending, topic, -1)
        if record.queue_offset in self._done:
            return None
        if entry.roll:
            self.stats.rolled += 1
            return self._rolled(record, entry.write_time_ms, now_ms, str(record.queue_offset))
        if self._recalls.has(topic, values.get(p.UNIQ_KEY, "")):
            self.stats.recalled += 1
            return None
        increment(self.stats.dequeued, topic)
        self.stats.lateness_seconds.observe(max(0, now_ms - entry.due_ms) / 1000)
        for name in (p.REAL_TOPIC, p.REAL_QUEUE_ID, TIMER_ORIGIN):
            values.pop(name, None)
        values[p.TIMER_ENQUEUE_MS] = str(entry.write_time_ms)
        values[p.TIMER_DEQUEUE_MS] = str(now_ms)
        values[TIMER_ORIGIN] = str(record.queue_offset)
        return _copy(record, topic, queue_id, values)

    def _rolled(self, record: Record, write_time_ms: int, now_ms: int, origin: str) -> Message:
        values = dict(record.properties)
        values[p.TIMER_ROLL_TIMES] = str((_integer(values.get(p.TIMER_ROLL_TIMES)) or 0) + 1)
        values[p.TIMER_ENQUEUE_MS] = str(write_time_ms)
        values[p.TIMER_DEQUEUE_MS] = str(now_ms)
        values[TIMER_ORIGIN] = origin
        return _copy(record, TIMER_TOPIC, TIMER_QUEUE_ID, values)

    async def _append(self, messages: list[Message]) -> None:
        """Store messages; try until it works."""
        while True:
            try:
                appended = self._store.append(messages, essential=True)
                self._note_stored_again(messages, appended)
                break
            except StoreFullError as error:
                if not self._full_logged:
                    _log.error("delayed messages wait because the disk is full cause=%s", error)
                    self._full_logged = True
                if self._closing.is_set():
                    return  # the slot is not done: the next start delivers them
                await asyncio.sleep(_RETRY_SECONDS)
            except InvalidMessageError as error:
                # One of them can never be stored, as after the limit for bodies was lowered. The others can.
                if len(messages) == 1:
                    self.stats.lost += 1
                    _log.error("delayed message cannot be stored topic=%s cause=%s", messages[0].topic, error)
                    return
                for message in messages:
                    await self._append([message])
                return
        self._full_logged = False
        while True:
            try:
                await self._store.wait_stored(appended[-1].end)
                return
            except SyncTimeoutError:
                continue  # it is in the log: appending it again would deliver it twice

    def _note_stored_again(self, messages: Sequence[Message], appended: Sequence[Appended]) -> None:
        """Of these some may take back what goes to the same slot, and nobody remembers that but the timer topic."""
        for message, place in zip(messages, appended, strict=True):
            if message.topic == TIMER_TOPIC:
                self._hang_first = place.queue_offset + 1

    def _record(self, physical_offset: int) -> Record | None:
        try:
            return self._store.record_at(physical_offset)
        except (RecordNotFoundError, CorruptRecordError):
            return None

    # --- What was taken back, what is done --------------------------------------------------------------------

    def _mark_done(self, record: Record) -> None:
        text, blank, slot = record.properties.get(TIMER_ORIGIN, "").partition(" ")
        origin, slot_ms = _integer(text), _integer(slot)
        if origin is None or p.TIMER_DEQUEUE_MS not in record.properties:
            return
        if blank and slot_ms is not None and slot_ms >= self._read_time_ms:
            self._moved[origin] = slot_ms
        else:
            self._done.add(origin)

    def _count_pending(self) -> None:
        """How many messages wait for which topic, from the hashes in the timer log."""
        counts: dict[int, int] = {}
        twice = [
            record.physical_offset
            for offset in self._moved
            for record in self._store.read(TIMER_TOPIC, TIMER_QUEUE_ID, offset, max_count=1).records
        ]
        for _, units in self._files.log.scan():
            times = units["write_time"] + units["delay"]
            waiting = times - times % self._precision_ms >= self._read_time_ms
            if twice:
                waiting &= ~np.isin(units["physical_offset"], twice)
            kinds = units["magic"]
            hashes, numbers = np.unique(units["topic_hash"][waiting & (kinds & DELETE == 0)], return_counts=True)
            for value, number in zip(hashes.tolist(), numbers.tolist(), strict=True):
                counts[value] = counts.get(value, 0) + number
        names = {java_hash(topic): topic for topic in self._topics()}
        for value, number in counts.items():
            if value in names:
                self.stats.pending[names[value]] = number

    # --- Retention --------------------------------------------------------------------------------------------

    async def keep_from(self, physical_offset: int) -> int:
        """Before the log in front of `physical_offset` goes: what is pending there is stored again.

        Usually there is nothing, for the window is shorter than the retention; but a full disk shortens that.
        """
        if physical_offset <= self._moved_before:
            return physical_offset
        found: list[tuple[int, int]] = []  # physical offset, time of the slot
        for _, units in self._files.log.scan():
            times = units["write_time"] + units["delay"]
            times = times - times % self._precision_ms
            offsets = units["physical_offset"]
            waiting = (times >= self._read_time_ms) & (offsets < physical_offset) & (offsets >= self._moved_before)
            found += zip(offsets[waiting].tolist(), times[waiting].tolist(), strict=True)
            if len(units) and int(offsets[-1]) >= physical_offset:
                break
        unread = self._store.read(TIMER_TOPIC, TIMER_QUEUE_ID, self._queue_offset, max_count=1)
        if unread.records and unread.records[0].physical_offset < physical_offset:
            return unread.records[0].physical_offset  # it has to be enqueued first
        if self._slot is not None:  # of the slot that is being read, what it still has
            left = self._slot.offsets()
            found = [item for item in found if item[1] > self._read_time_ms or item[0] in left]
        now_ms = self._clock.now_ms()
        if found and not self._moved:
            self._moved_begin = self._store.positions[0]
        for first in range(0, len(found), _DELIVER_BATCH):
            messages = []
            for offset, slot_ms in found[first : first + _DELIVER_BATCH]:
                record = self._record(offset)
                if record is None or record.queue_offset in self._done or record.queue_offset in self._moved:
                    continue
                origin = f"{record.queue_offset} {slot_ms}"
                messages.append(self._rolled(record, self._floor(now_ms), now_ms, origin))
                self._moved[record.queue_offset] = slot_ms
                if p.TIMER_DELETE_UNIQ_KEY not in record.properties:
                    increment(self.stats.pending, record.properties.get(p.REAL_TOPIC, ""), -1)
            if messages:
                self._begin = min(self._begin, self._moved_begin)
                appended = self._store.append(messages, essential=True)
                self._note_stored_again(messages, appended)
                await self._store.wait_stored(appended[-1].end, durable=True)
        self._moved_before = physical_offset
        return physical_offset

    # --- Flush ------------------------------------------------------------------------------------------------

    async def _run_flush(self) -> None:
        while True:
            await asyncio.sleep(self._config.flush_interval_seconds)
            self._idle_rounds += 1
            if self._files.used and (self._changed or self._idle_rounds >= _IDLE_SAVE_ROUNDS):
                self._idle_rounds = 0
                await self._flush(clean=False)

    async def _flush(self, *, clean: bool) -> None:
        self._changed = False
        checkpoint = self._written(clean=clean)
        end = self._store.positions[0]
        # With async flush, too: a slot is not done before what it delivered is durable.
        while True:
            try:
                await self._store.wait_stored(end, durable=True)
                break
            except SyncTimeoutError:
                continue
        await self._store.in_disk_thread(self._files.save, list(self._unsynced), checkpoint)
        self._unsynced.clear()

    def _written(self, *, clean: bool) -> TimerCheckpoint:
        """Move everything to the page cache; what can be said once that is synced."""
        self._unsynced.update(dict.fromkeys(self._files.write(self._read_time_ms)))
        return self._files.next_checkpoint(
            self._read_time_ms, self._queue_offset, self._begin, self._clock.now_ms(), clean=clean
        )

    def _floor(self, time_ms: int) -> int:
        return time_ms - time_ms % self._precision_ms


def _copy(record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> Message:
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 18 else None
