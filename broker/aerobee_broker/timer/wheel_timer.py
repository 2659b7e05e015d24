"""Delayed messages: RocketMQ's timer, in its topic and its files.

A delayed message is first stored in the timer topic, as durably as any message. The steps after that are:

    enqueue   follow the timer topic: a unit in the timer log for each message, linked to the wheel's slot for its time
    roll      a message beyond the window is linked to a nearer slot, and stored in the timer topic again when that is
              due: its record is never older than the window, whatever the log's retention
    dequeue   a slot when its time has come: its units are loaded, and each message is appended to its real topic in
              the millisecond in which it is due
    recall    a message that recalls another one takes the same way to the same slot

One task does all of this. Messages that an earlier process left in the timer topic, and messages stored there again,
are linked to their slots before any further delivery, because a recall may be among them. Recalls by this process are
known at once, so enqueue and dequeue alternate while messages arrive faster than they are enqueued, and no delivery is
late.

Each message is delivered once. A slot is done when its time is over and all its messages are in the log; the checkpoint
records this after the log is durable. After a crash, all slots from the first one that is not done are due again.
Messages already delivered from them are in the log: each message that leaves the timer topic has its queue offset there
as a property (TIMER_ORIGIN). Opening searches for these marks after the position in the checkpoint.

If the clock goes back by more than a minute, slots that are done come again. The wheel is then made again from the
timer topic and all marks in the log, at a start as in a running broker. So it is if units of the log are damaged. In a
running broker the search goes in slices beside all other work; only deliveries of delayed messages wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aerobee_broker.config.timer import TimerConfig
from aerobee_broker.errors import BrokerError
from aerobee_broker.limits.loop_share import LoopShare
from aerobee_broker.messages.key_query import newest_with_key
from aerobee_broker.tables.topics import TopicConfig
from aerobee_broker.timer.background import wait_on_own_disk
from aerobee_broker.timer.dequeue import Dequeue
from aerobee_broker.timer.enqueue import Enqueue
from aerobee_broker.timer.listing import Listing
from aerobee_broker.timer.relocation import Relocation
from aerobee_broker.timer.state import Marks, TimerParts, TimerState
from aerobee_broker.timer.stats import TimerStats
from aerobee_store import MessageStore
from aerobee_store.clock import Clock, every
from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import File
from aerobee_store.errors import TimerLogDamagedError
from aerobee_store.records import properties as p
from aerobee_store.records.message_fields import TIMER_QUEUE_ID, TIMER_TOPIC
from aerobee_store.records.properties import java_hash
from aerobee_store.records.record import Message
from aerobee_store.timer.checkpoint import TimerCheckpoint
from aerobee_store.timer.files import TimerFiles, TimerRecovery
from aerobee_store.timer.log import DELETE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = deferred("numpy")


_log = logging.getLogger(__name__)

_MARK: Final = f"{p.TIMER_DEQUEUE_MS}\x01".encode()  # all that left the timer topic, by RocketMQ too
_COPIES_MAX: Final = 1024  # messages with one id that a recall examines, one after the other
_IDLE_SAVE_ROUNDS: Final = 30  # flushes without changes until only the time is saved
_BACK_MAX_MS: Final = 60_000  # a clock that goes back by less only delays deliveries


class MessageNotPendingError(BrokerError):
    """No such message is pending: it was delivered, recalled, or never sent."""


class Timer:
    """All delayed messages of a broker. Event loop only, except `open`. Call `open`, then `run` beside the other
    services, then `close`."""

    name: Final = "timer"

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        config: TimerConfig,
        *,
        topics: Iterable[TopicConfig] = (),
        loop_share: LoopShare | None = None,
    ) -> None:
        """`topics`: all topics at the start, because the timer log has only their hashes and metrics need names.

        `loop_share`: for the search of a message to recall; by default a separate one.
        """
        self._store = store
        self._loop_share = loop_share or LoopShare()
        self._topics = topics
        self._clock = clock
        self._config = config
        # A record must be stored again well before retention removes it.
        retention_ms = round(store.config.retention_hours * 3_600_000)
        window_ms = min(config.roll_window_slots * config.precision_ms, retention_ms // 2)
        self._files = TimerFiles(
            store.file_system,
            store.config.directory,
            precision_ms=config.precision_ms,
            slot_count=config.slot_count,
            log_file_size=config.log_file_size,
        )
        self._state = TimerState(
            precision_ms=config.precision_ms,
            window_ms=max(window_ms - window_ms % config.precision_ms, 2 * config.precision_ms),
        )
        self._wake = asyncio.Event()
        self._parts = TimerParts(store, clock, config, self._files, self._state, self._wake, asyncio.Event())
        self._enqueue = Enqueue(self._parts)
        self._dequeue = Dequeue(self._parts, self._enqueue)
        self._relocation = Relocation(self._parts)
        self.listing = Listing(self._parts, self._loop_share)
        self._unsynced: dict[File, None] = {}  # kept here, so that the next flush completes a cancelled one
        self._saving = asyncio.Lock()  # held while the files are saved or made again, or messages are relocated
        self._is_searching = False  # for marks, to make the files again
        self._idle_rounds = 0
        self.saved: TimerCheckpoint | None = None
        """The checkpoint on disk, for replicas of RocketMQ; None: no message was ever delayed."""
        self._stopped = asyncio.Event()
        self._stopped.set()
        store.arrival_listeners.append(self._arrived)
        store.retention_listeners.append(self.keep_from)

    # --- Life -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find the pending messages. Blocking. Raises StoreError and OSError."""
        found = self._files.open()
        read_time_ms = 0 if found.checkpoint is None else found.checkpoint.read_time_ms
        if self._went_back(max(read_time_ms, self._store.recovery.last_timestamp)):
            found = self._forget_files(found.checkpoint, "the clock went back")
        try:
            self._find_pending(found)
        except TimerLogDamagedError as error:
            self._state.forget_progress()
            self._find_pending(self._forget_files(found.checkpoint, str(error)))
        if self._files.used or found.checkpoint is not None:  # one on disk may be of units that are gone
            checkpoint = self._written(clean=False)
            self._files.save(list(self._unsynced), checkpoint)
            self._note_saved(checkpoint)

    def _find_pending(self, found: TimerRecovery) -> None:
        self._restore_positions(found)
        marks = Marks()
        begin, end = self._store.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)
        if begin < end:
            for record in self._store.records_containing(_MARK, self._state.marks_begin):
                marks.note(record)
        self._restore_marks(marks)

    def _restore_positions(self, found: TimerRecovery) -> None:
        """How far everything was, by the checkpoint."""
        store, state = self._store, self._state
        checkpoint = found.checkpoint
        begin, end = store.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)
        now_slot = state.floor(self._clock.now_ms())
        log_end = store.positions[0]
        state.slot_ms, state.marks_begin = now_slot, log_end
        if checkpoint is not None:
            state.slot_ms = state.floor(checkpoint.read_time_ms)
            if self._went_back(state.slot_ms):
                state.slot_ms = now_slot
            # Nothing was marked after RocketMQ wrote the file.
            state.marks_begin = log_end if checkpoint.begin is None else min(checkpoint.begin, log_end)
        elif begin < end:
            state.marks_begin = 0  # no state is known
        if found.complete and checkpoint is not None:
            state.enqueued = min(max(checkpoint.queue_offset, begin), end)
        else:
            state.enqueued = begin
            # Includes marks of messages that were stored again on the way, which are in no slot.
            state.marks_begin = 0 if begin < end else log_end
            if checkpoint is not None:
                state.enqueued_before_crash = (checkpoint.queue_offset, state.slot_ms)
        state.recovered_until_ms = max(store.recovery.last_timestamp, state.slot_ms)

    def _restore_marks(self, marks: Marks) -> None:
        """What left the timer topic since, by the marks in the log."""
        state = self._state
        state.take_marks(marks)
        state.relocation_begin = state.marks_begin
        self._count_pending()
        self._wake.set()
        _log.info(
            "timer restored pending=%d unread=%d delivered=%d",
            sum(self.stats.pending.values()),
            self.enqueue_lag,
            len(state.done),
        )

    async def run(self) -> None:
        """Enqueue, dequeue and flush, until closed or cancelled. Raises StoreError and OSError: the store has then
        failed."""
        self._stopped.clear()
        try:
            async with asyncio.TaskGroup() as tasks:
                flushing = tasks.create_task(
                    every(self._config.flush_interval_seconds, self._flush_if_used), name="timer-flush"
                )
                await self._run_timer()
                flushing.cancel()
        finally:
            self._stopped.set()

    async def close(self) -> None:
        """Stop delivering and save everything, so that the next start needs no search. The store must still run; later
        sends are read by the next start."""
        self._parts.closing.set()
        self._wake.set()
        await self._stopped.wait()
        for listeners, own in (
            (self._store.arrival_listeners, self._arrived),
            (self._store.retention_listeners, self.keep_from),
        ):
            if own in listeners:
                listeners.remove(own)  # type: ignore[arg-type]  # each has its own type of listener
        if self._store.state == "open" and self._files.used:
            await self._flush(clean=not self._state.damage)
        self._files.close()

    def wake(self) -> None:
        """Check the clock again: for tests that move it."""
        self._wake.set()

    @property
    def stats(self) -> TimerStats:
        """The timer's counters."""
        return self._state.stats

    @property
    def next_look_ms(self) -> int | None:
        """The time of the next work if nothing arrives; None: nothing is pending. In the past: now."""
        return self._parts.next_look_ms

    @property
    def enqueue_lag(self) -> int:
        """Messages of the timer topic that are not on the wheel yet."""
        return self._enqueue.lag

    @property
    def enqueue_latency_ms(self) -> int:
        """How long the oldest of these messages has waited."""
        return self._enqueue.latency_ms

    @property
    def dequeue_lag(self) -> int:
        """Overdue messages of the slot being read."""
        return self._dequeue.lag

    @property
    def dequeue_latency_ms(self) -> int:
        """How late the next message is."""
        return self._dequeue.latency_ms

    def pending_within(self, bounds_seconds: Sequence[int]) -> list[int]:
        """The number of messages on the wheel that are due up to the first bound, counted from now, then from each
        bound to the next. A recall counts as -1; messages far ahead count where they are stored again."""
        now_slot = self._state.floor(self._clock.now_ms())
        bounds = [now_slot + seconds * 1000 for seconds in bounds_seconds]
        return self._files.wheel.pending([min(self._state.slot_ms, now_slot), *bounds])

    # --- Sending and recalling --------------------------------------------------------------------------------

    def delayed(self, message: Message, deliver_ms: int) -> Message:
        """The stored form of a message for delivery at this time, which must be in the future."""
        self.stats.delays_of(message.topic).observe((deliver_ms - self._clock.now_ms()) / 1000)
        return replace(
            message,
            topic=TIMER_TOPIC,
            queue_id=TIMER_QUEUE_ID,
            properties={
                **message.properties,
                p.TIMER_DELIVER_MS: str(deliver_ms),
                p.TIMER_OUT_MS: str(self._state.floor(deliver_ms - 1)),
                p.REAL_TOPIC: message.topic,
                p.REAL_QUEUE_ID: str(message.queue_id),
            },
        )

    def delayed_many(self, topic: str, deliver_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """TIMER_OUT_MS of messages for a topic that are to be delivered then; in the past means at once."""
        ahead = deliver_ms - self._clock.now_ms()
        self.stats.delays_of(topic).observe_many(ahead[ahead > 0] / 1000)
        before = deliver_ms - 1
        return np.asarray(np.maximum(before - before % self._config.precision_ms, 0), np.int64)

    async def recall(self, topic: str, message_id: str, deliver_ms: int) -> None:
        """Recall a pending message: on return it will never be delivered. Applies to all copies with this id and time.

        Raises StoreError, and MessageNotPendingError if no such message is pending.
        """
        self._check_not_over(topic, message_id, deliver_ms)
        found = False
        looked = 0
        async with aclosing(newest_with_key(self._store, self._loop_share, TIMER_TOPIC, message_id)) as records:
            async for record in records:
                values = record.properties
                is_of_it = record.unique_key == message_id and values.get(p.REAL_TOPIC) == topic
                if is_of_it and values.get(p.TIMER_DELIVER_MS) == str(deliver_ms):
                    if p.TIMER_DELETE_UNIQ_KEY in values:
                        raise MessageNotPendingError(f"message {message_id!r} is already recalled")
                    found = found or record.queue_offset not in self._state.done
                looked += 1
                if looked >= _COPIES_MAX:
                    break
        if not found or await self._was_delivered(topic, message_id, deliver_ms):
            raise MessageNotPendingError(f"no delayed message {message_id!r} is waiting for topic {topic!r}")
        now_ms = self._check_not_over(topic, message_id, deliver_ms)  # the search may have taken a while
        properties = {
            p.UNIQ_KEY: message_id,
            p.TIMER_DELETE_UNIQ_KEY: topic + message_id,
            p.TIMER_DELIVER_MS: str(deliver_ms),
            p.TIMER_OUT_MS: str(self._state.floor(deliver_ms - 1)),
            p.REAL_TOPIC: topic,
            p.REAL_QUEUE_ID: "0",
        }
        request = Message(TIMER_TOPIC, TIMER_QUEUE_ID, b"0", properties, born_timestamp=now_ms)
        [place] = self._store.append([request], internal=True)
        # In the same step: it will not be delivered from now on, even if the recall is not enqueued in time.
        self._state.recalls.add(topic, message_id, max(self._state.floor(deliver_ms - 1), self._state.slot_ms))
        await self._store.wait_stored(place.end)

    async def _was_delivered(self, topic: str, message_id: str, deliver_ms: int) -> bool:
        """Whether the message is in its topic, although it is not due: the clock went back since then. What was stored
        at its time or later is in the future, so the index has nothing of that time otherwise."""
        found = newest_with_key(self._store, self._loop_share, topic, message_id, begin=deliver_ms)
        async with aclosing(found) as records:
            async for record in records:
                values = record.properties
                is_of_it = record.unique_key == message_id and values.get(p.TIMER_DELIVER_MS) == str(deliver_ms)
                if is_of_it and p.TIMER_DEQUEUE_MS in values:
                    return True
        return False

    def _check_not_over(self, topic: str, message_id: str, deliver_ms: int) -> int:
        """The delivery time. Raises MessageNotPendingError if the message was recalled or is due."""
        now_ms = self._clock.now_ms()
        if self._state.recalls.has_exactly(topic, message_id):
            raise MessageNotPendingError(f"message {message_id!r} is already recalled")
        if deliver_ms <= max(now_ms, self._state.delivered_until_ms, self._state.slot_ms):
            raise MessageNotPendingError(f"message {message_id!r} is due and can no longer be recalled")
        return now_ms

    # --- The task ---------------------------------------------------------------------------------------------

    def _arrived(self, topic: str, queue_id: int, end: int) -> None:
        if topic == TIMER_TOPIC:
            self._wake.set()

    async def _run_timer(self) -> None:
        self._state.enqueue_first = self._store.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[1]
        while not self._parts.closing.is_set():
            self._wake.clear()
            if self._went_back(self._state.slot_ms):
                await self._make_again("the clock went back")
            if self._state.damage:
                await self._make_again(self._state.damage)
            try:
                await self._enqueue.run()
                seconds = await self._dequeue.run()
            except TimerLogDamagedError as error:
                self._parts.note_damage(error)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()

    def _went_back(self, reached_ms: int) -> bool:
        """Whether the clock is behind a time that it had reached."""
        return reached_ms > self._clock.now_ms() + _BACK_MAX_MS

    def _forget_files(self, checkpoint: TimerCheckpoint | None, cause: str) -> TimerRecovery:
        """Units are missing, or slots come again with units of delivered messages: only topic and marks are right."""
        _log.warning("rebuilding the timer files topic=%s cause=%s", TIMER_TOPIC, cause)
        self._files.clear()
        return TimerRecovery(checkpoint, complete=False)

    async def _make_again(self, cause: str) -> None:
        """Make wheel and log again, as a start would. Nothing has changed if the timer is closed meanwhile."""
        async with self._saving:
            self._is_searching = True
            try:
                marks = await self._search_marks()
            finally:
                self._is_searching = False
            if marks is None:
                return
            state = self._state
            found = self._forget_files(self._written(clean=False), cause)
            self._unsynced.clear()
            state.forget_progress()
            self._restore_positions(found)
            self._restore_marks(marks)
            state.enqueue_first = self._store.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[1]
            await self._save(clean=False)  # the checkpoint on disk is of units that are gone

    async def _search_marks(self) -> Marks | None:
        """All marks in the log: nothing leaves the timer topic meanwhile. None if the timer is to be closed."""
        marks = Marks()
        end = self._store.positions[0]
        await wait_on_own_disk(self._store, end, durable=False)
        async with aclosing(self._store.search(_MARK, end)) as slices:
            async for records in slices:
                if self._parts.closing.is_set():
                    return None
                for record in records:
                    marks.note(record)
        return marks

    async def keep_from(self, physical_offset: int) -> int:
        """Before the log below `physical_offset` is removed: store its pending messages again."""
        if self._is_searching:
            return 0  # nothing may be removed: it is not known what is pending
        async with self._saving:
            try:
                return await self._relocation.keep_from(physical_offset)
            except TimerLogDamagedError as error:
                self._parts.note_damage(error)
                raise

    def check(self) -> None:
        """The invariants, for tests. The AssertionError names the violated one."""
        topic_end = self._store.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[1]
        self._state.check(topic_end=topic_end, log_end=self._store.positions[0])

    def _count_pending(self) -> None:
        """The number of pending messages by topic, from the hashes in the timer log."""
        counts: dict[int, int] = {}
        twice = [
            record.physical_offset
            for offset in self._state.relocated
            for record in self._store.read(TIMER_TOPIC, TIMER_QUEUE_ID, offset, max_count=1).records
        ]
        for _, units in self._files.log.scan():
            times = units["write_time"] + units["delay"]
            waiting = times - times % self._state.precision_ms >= self._state.slot_ms
            if twice:
                waiting &= ~np.isin(units["physical_offset"], twice)
            kinds = units["magic"]
            hashes, numbers = np.unique(units["topic_hash"][waiting & (kinds & DELETE == 0)], return_counts=True)
            for value, number in zip(hashes.tolist(), numbers.tolist(), strict=True):
                counts[value] = counts.get(value, 0) + number
        names = {java_hash(topic.name): topic.name for topic in self._topics}
        for value, number in counts.items():
            if value in names:
                self.stats.pending[names[value]] = number

    # --- Flush ------------------------------------------------------------------------------------------------

    async def _flush_if_used(self) -> None:
        self._idle_rounds += 1
        if self._files.used and (self._state.changed or self._idle_rounds >= _IDLE_SAVE_ROUNDS):
            self._idle_rounds = 0
            await self._flush(clean=False)

    async def _flush(self, *, clean: bool) -> None:
        async with self._saving:
            await self._save(clean=clean)

    async def _save(self, *, clean: bool) -> None:
        self._state.changed = False
        checkpoint = self._written(clean=clean)
        end = self._store.positions[0]
        # Also with async flush: a slot is done only when its deliveries are durable.
        await wait_on_own_disk(self._store, end, durable=True)
        await self._store.in_disk_thread(self._files.save, list(self._unsynced), checkpoint)
        self._note_saved(checkpoint)

    def _note_saved(self, checkpoint: TimerCheckpoint) -> None:
        self.saved = checkpoint
        self._unsynced.clear()
        self._files.drop_finished(checkpoint)

    def _written(self, *, clean: bool) -> TimerCheckpoint:
        """Write everything to the page cache; returns the checkpoint that is valid once this is synced."""
        self._unsynced.update(dict.fromkeys(self._files.write()))
        return self._files.next_checkpoint(
            self._state.slot_ms, self._state.enqueued, self._state.marks_begin, self._clock.now_ms(), clean=clean
        )
