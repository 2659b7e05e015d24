"""Who gets which message: the state of every (group, topic, queue), what moves it, and what makes it durable.

A receive, an acknowledgement and the like go the same way: find the queues, decide and change state in one synchronous
step together with appending the journal's record, then wait for that record, then answer. As there is no await inside
the step, memory and journal never tell different stories, and a snapshot of everything is consistent by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from aerobee_broker.consumer_groups import GroupTable
from aerobee_broker.consumer_offsets import OffsetTable
from aerobee_broker.delivery import receipt_handle
from aerobee_broker.delivery.config import DeliveryConfig
from aerobee_broker.delivery.events import Changed, Delivered, State
from aerobee_broker.delivery.filters import EVERYTHING, MessageFilter
from aerobee_broker.delivery.journal import (
    JOURNAL_GROUP,
    JOURNAL_QUEUE_ID,
    JOURNAL_TOPIC,
    VERSION,
    VERSION_WITH_PASSED,
    EventKind,
    Journal,
    JournalEntry,
    QueueKey,
    Removed,
    encode_acknowledged,
    encode_changed,
    encode_delivered,
    encode_removed,
    encode_state,
    highest_offset,
)
from aerobee_broker.delivery.queue_delivery import QueueDelivery, acknowledged
from aerobee_broker.errors import (
    BrokerError,
    GroupReceivesError,
    InvalidReceiptHandleError,
    TooManyRequestsError,
)
from aerobee_broker.long_polling import LongPolling
from aerobee_broker.topics import TopicConfig, TopicTable, dead_letter_topic
from aerobee_store import InvalidMessageError, MessageStore, Record, StoreFullError, SyncTimeoutError
from aerobee_store import properties as p
from aerobee_store.clock import Clock
from aerobee_store.record import SYS_FLAG_TRANSACTION, Message

_log = logging.getLogger(__name__)

_RECENT_COUNT_MAX: Final = 65_536  # acknowledged handles that are still answered with OK; about 10 MB at most
_SEEN_PER_STEP_MAX: Final = 256  # messages of one queue that an orderly group looks at before others get their turn
_UNRECORDED_MAX: Final = 128  # messages that were seen and not delivered, before the journal is told of them
_LEARNT_PER_STEP_MAX: Final = 256  # messages whose message group is read after a restart, as above
_TIMER_SECONDS_MAX: Final = 3600.0
_ATTEMPTS_PER_CLIENT_MAX: Final = 64  # answers of which a client may say that they were lost; it repeats its latest


class DeliveryTables(Protocol):
    """What of the broker's tables is used here."""

    @property
    def topics(self) -> TopicTable: ...
    @property
    def groups(self) -> GroupTable: ...
    @property
    def offsets(self) -> OffsetTable: ...
    def save_topics(self) -> Awaitable[None]: ...
    def save(self) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class DeliveredMessage:
    """One message on its way to a client. `attempt` is 1 for the first delivery."""

    record: Record
    receipt_handle: str
    attempt: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How far a group is with one queue. Offsets are queue offsets; the others count messages."""

    topic: str
    queue_id: int
    commit_offset: int
    max_offset: int
    lag: int  # not finished
    in_flight: int
    ready: int  # can be received now


@dataclass(slots=True)
class DeliveryStats:
    """Since the start."""

    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    expired: int = 0
    dead_letters: int = 0
    lost: int = 0  # skipped, for the log does not have them any more
    snapshots: int = 0


class _Queue:
    """One (group, topic, queue) and what belongs to it beside its state."""

    __slots__ = ("delivery", "dropped", "encoded_key", "key", "saved_commit_offset", "scheduled_ms")

    def __init__(self, key: QueueKey, commit_offset: int) -> None:
        self.key = key
        self.encoded_key = key.encode()
        self.delivery = QueueDelivery(commit_offset)
        self.saved_commit_offset = -1
        self.scheduled_ms: int | None = None  # when the timer looks at it
        self.dropped = False  # topic or group was deleted


@dataclass(slots=True)
class _Subscription:
    """One (topic, group)."""

    queues: dict[int, _Queue] = field(default_factory=dict)
    next_queue: int = 0  # where the next receive begins to look, so that no queue starves


@dataclass(slots=True)
class _Taken:
    """What one look at the queues brought."""

    messages: list[DeliveredMessage] = field(default_factory=list)
    parts: list[tuple[_Queue, list[int], int]] = field(default_factory=list)  # queue, offsets, nonce
    needs_dead_letter_topic: bool = False
    more: bool = False  # stopped before the end: look again


@dataclass(slots=True)
class _Reading:
    """What is about to be delivered from one queue."""

    cursor: int
    records: list[Record] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)  # lost, filtered out, or dead letters


class Deliveries:
    """All deliveries of a broker. Event loop only; `open`, then `run` beside everything else, then `close`."""

    name: Final = "deliveries"

    def __init__(
        self,
        store: MessageStore,
        tables: DeliveryTables,
        clock: Clock,
        config: DeliveryConfig,
        *,
        connected: Callable[[str], bool] | None = None,
    ) -> None:
        """`connected` says whether a client id is known to be alive; without it all are taken for it."""
        self._store = store
        self._tables = tables
        self._clock = clock
        self._config = config
        self._connected = connected or (lambda client_id: True)
        self.long_polling = LongPolling(
            waiting_per_line_max=config.waiting_per_line_max, waiting_max=config.waiting_max
        )
        self.stats = DeliveryStats()
        self._journal = Journal(store, store.config.body_size_max)
        self._subscriptions: dict[str, dict[str, _Subscription]] = {}  # group -> topic
        self._of_client: dict[str, set[_Queue]] = {}  # where a client may have auto-renewed messages
        # Of each client the attempts (their nonces) that brought something, latest last.
        self._attempts: dict[str, OrderedDict[int, None]] = {}
        self._returning: set[str] = set()  # clients from before the restart
        self._returning_until = 0.0  # of the monotonic clock
        self._recent: OrderedDict[tuple[int, int], _Queue] = OrderedDict()  # (nonce, offset) of acknowledged messages
        self._timer: list[tuple[int, int, _Queue]] = []
        self._timer_sequence = 0
        self._timer_wake = asyncio.Event()
        self._snapshot_wake = asyncio.Event()
        self._events_at_snapshot = 0
        store.arrival_listeners.append(self.long_polling.arrived)
        store.retention_listeners.append(self.keep_from)

    # --- Life -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Replay the journal over the committed offsets. Blocking. Raises JournalFormatError."""
        start = self._tables.offsets.get(JOURNAL_TOPIC, JOURNAL_GROUP, JOURNAL_QUEUE_ID)
        ends: dict[QueueKey, int] = {}
        count = ignored = 0
        for entry in self._journal.replay(start):
            count += 1
            if not self._replay(entry, ends):
                ignored += 1
        if ignored:  # usually of a topic that was deleted later
            _log.warning("journal events ignored count=%d cause=%r", ignored, "the log does not have their messages")
        self._events_at_snapshot = -count  # they count for the next one: a replay stays bounded over restarts
        now_ms = self._clock.now_ms()
        for queue in self._all_queues():
            end = self._store.queue_range(queue.key.topic, queue.key.queue_id)[1]
            if queue.delivery.cut(end):
                _log.warning("delivery goes back to the end of its queue key=%s offset=%d", queue.key, end)
            self.stats.expired += queue.delivery.expire(now_ms)
            for flight in queue.delivery.in_flight.values():
                if flight.client_id is not None:
                    self._of_client.setdefault(flight.client_id, set()).add(queue)
                    attempts = self._attempts.setdefault(flight.client_id, OrderedDict())
                    attempts[flight.nonce ^ queue.key.queue_id] = None  # all: which is the latest is not known
            self._note_commit(queue, force=True)
            self._schedule(queue)
        self._returning = set(self._of_client)
        self._returning_until = self._clock.monotonic() + self._config.client_return_seconds
        _log.info("deliveries restored events=%d queues=%d", count, sum(1 for _ in self._all_queues()))

    async def run(self) -> None:
        """Make messages visible when their time is over, and write snapshots; until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_timer(), name="delivery-timer")
            tasks.create_task(self._run_snapshots(), name="delivery-snapshots")

    async def close(self) -> None:
        """Write a last snapshot, so that the next start has next to nothing to replay. The store must still run.

        The offsets table has to be saved after this.
        """
        self.long_polling.drain()
        if self.long_polling.arrived in self._store.arrival_listeners:
            self._store.arrival_listeners.remove(self.long_polling.arrived)
        if self._store.state == "open" and self._journal.event_count != self._events_at_snapshot:
            await self._try_snapshot()

    def wake_timer(self) -> None:
        """Look at the clock again: for tests that move it."""
        self._timer_wake.set()

    # --- Receive ----------------------------------------------------------------------------------------------

    async def receive(
        self,
        topic: str,
        group: str,
        *,
        client_id: str,
        count: int,
        invisible_ms: int | None,
        wait_seconds: float,
        wanted: MessageFilter = EVERYTHING,
        attempt_id: str = "",
        queue_id: int | None = None,
    ) -> list[DeliveredMessage]:
        """At most `count` messages of any queue of the topic, as soon as there is one; empty when the wait is over.

        `invisible_ms` None: invisible for as long as the client lives (auto-renew). What is not `wanted` is finished
        for the group. Whoever cannot hand a message over gives it to `give_back`; cancelling does so by itself.

        `attempt_id`: a client that repeats it has not seen the answer before. As it lives, what it was given there
        would stay invisible for hours; so that is ready again first. Only for auto-renew, and also after a restart.

        To a group that consumes in order nothing of a message group is delivered while something of it is in flight.
        A repeated attempt gets what is still in flight of its answer, as the same delivery, with and without
        auto-renew. `queue_id` is for such groups only: nothing of other queues.
        Raises TopicNotFoundError, GroupNotFoundError, TooManyRequestsError, StoreError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        again = False
        attempt = None
        while True:
            topic_config = self._tables.topics.require(topic)
            group_config = self._tables.groups.require(group)
            orderly = group_config.consume_orderly
            if again and invisible_ms is None and not self._connected(client_id):
                return []  # said goodbye while it was woken; nobody would release what it got now
            subscription = self._subscriptions.get(group, {}).get(topic)
            if subscription is None or len(subscription.queues) < topic_config.read_queue_count:
                self._subscribe(topic_config, group)
                await self._store.wait_stored(self._journal.end, durable=False)
                continue
            if attempt is None and attempt_id and (orderly or invisible_ms is None):
                attempt = _attempt_nonce(client_id, group, topic, attempt_id)
                if not orderly and attempt in self._attempts.get(client_id, ()):
                    self._give_back_attempt(client_id, topic, group, attempt)
            place = queue_id if orderly else None
            if group_config.consume_enabled:
                taken = self._take(
                    topic,
                    group,
                    subscription,
                    client_id=client_id,
                    count=count,
                    invisible_ms=invisible_ms,
                    wanted=wanted,
                    attempt_max=max(group_config.retry_max_times + 1, 1),
                    attempt=attempt,
                    orderly=orderly,
                    queue_id=place,
                )
                if taken.more or len(taken.messages) >= count:
                    self.long_polling.wake(topic, group, place)
                if taken.messages:
                    try:
                        await self._store.wait_stored(self._journal.end, durable=False)
                        if taken.needs_dead_letter_topic:
                            await self._create_dead_letter_topic(group)
                    except BaseException:
                        self._give_back(taken.parts)
                        raise
                    return taken.messages
                if taken.needs_dead_letter_topic:
                    await self._create_dead_letter_topic(group)
                    continue
                if taken.more:
                    await asyncio.sleep(0)
                    continue
            seconds = deadline - loop.time()
            if not await self.long_polling.wait(topic, group, client_id, seconds, queue_id=place, again=again):
                return []
            again = True

    def give_back(self, topic: str, group: str, messages: Iterable[DeliveredMessage]) -> None:
        """These did not reach the client: they are ready again at once.

        Their delivery counts, but for a group that consumes in order: to it the next one is the same once more.
        """
        subscription = self._subscriptions.get(group, {}).get(topic)
        if subscription is None:
            return
        parts: dict[tuple[int, int], list[int]] = {}
        for message in messages:
            handle = receipt_handle.decode(message.receipt_handle)
            parts.setdefault((handle.queue_id, handle.nonce), []).append(handle.queue_offset)
        self._give_back(
            (subscription.queues[queue_id], offsets, nonce)
            for (queue_id, nonce), offsets in parts.items()
            if queue_id in subscription.queues
        )

    def _give_back(self, parts: Iterable[tuple[_Queue, list[int], int]]) -> None:
        now_ms = self._clock.now_ms()
        for queue, offsets, nonce in parts:
            if queue.delivery.lanes is None:
                queue.delivery.release(offsets, nonce, now_ms)
                self._expire(queue, now_ms)
            elif queue.delivery.withdraw(offsets, nonce):
                self._wake(queue)

    def _give_back_attempt(self, client_id: str, topic: str, group: str, attempt: int) -> None:
        parts = []
        for queue in self._of_client.get(client_id, ()):
            if (queue.key.topic, queue.key.group) == (topic, group) and not queue.dropped:
                nonce = attempt ^ queue.key.queue_id
                flights = queue.delivery.in_flight.items()
                if offsets := [offset for offset, flight in flights if flight.nonce == nonce]:
                    parts.append((queue, offsets, nonce))
        self._give_back(parts)

    def _remember_attempt(self, client_id: str, attempt: int) -> None:
        attempts = self._attempts.setdefault(client_id, OrderedDict())
        attempts[attempt] = None
        attempts.move_to_end(attempt)
        if len(attempts) > _ATTEMPTS_PER_CLIENT_MAX:
            attempts.popitem(last=False)

    def _take(
        self,
        topic: str,
        group: str,
        subscription: _Subscription,
        *,
        client_id: str,
        count: int,
        invisible_ms: int | None,
        wanted: MessageFilter,
        attempt_max: int,
        attempt: int | None,
        orderly: bool,
        queue_id: int | None,
    ) -> _Taken:
        """Deliver what is there now: first what was delivered before, then new messages."""
        room = self._config.in_flight_per_group_max - self._in_flight_count(group)
        if room <= 0:
            raise TooManyRequestsError(
                f"consumer group {group!r} has {self._config.in_flight_per_group_max} messages in flight, the limit "
                "(delivery.in_flight_per_group_max); acknowledge some before receiving more"
            )
        count = min(count, room)
        queues = list(subscription.queues.values())
        start = subscription.next_queue % max(len(queues), 1)
        subscription.next_queue = start + 1
        queues = queues[start:] + queues[:start]
        now_ms = self._clock.now_ms()
        taken = _Taken()
        readings: dict[_Queue, _Reading] = {}
        if topic == dead_letter_topic(group):
            attempt_max = 1 << 30  # there is no place behind the dead letters
        if queue_id is not None:
            queues = [queue for queue in queues if queue.key.queue_id == queue_id]
        if orderly:
            until_ms, owner = self._invisible_until(now_ms, invisible_ms, client_id)
            if attempt is None or not self._repeat(queues, taken, attempt, count, until_ms, owner, now_ms):
                for queue in queues:
                    if count > 0 and (reading := self._read_in_order(queue, taken, count, wanted, attempt_max, now_ms)):
                        readings[queue] = reading
                        count -= len(reading.records)
                self._deliver(readings, taken, until_ms, owner, now_ms, attempt)
            return taken
        for queue in queues:
            self._expire(queue, now_ms)
            if queue.delivery.lanes is not None:  # the group was orderly
                queue.delivery.forget_order()
            if queue.delivery.ready and count > 0:
                reading = readings[queue] = _Reading(queue.delivery.cursor)
                taken.needs_dead_letter_topic |= self._read_ready(queue, reading, count, wanted, attempt_max)
                count -= len(reading.records)
                if reading.finished and len(queue.delivery.ready) > len(reading.records) + len(reading.finished):
                    taken.more = True
        for queue in queues:
            if count <= 0:
                break
            if queue.delivery.cursor < self._store.queue_range(topic, queue.key.queue_id)[1]:
                reading = readings.setdefault(queue, _Reading(queue.delivery.cursor))
                before = len(reading.records)
                taken.more |= self._read_new(queue, reading, count, wanted)
                count -= len(reading.records) - before
        if readings:
            until_ms, owner = self._invisible_until(now_ms, invisible_ms, client_id)
            self._deliver(readings, taken, until_ms, owner, now_ms, attempt)
        return taken

    def _invisible_until(self, now_ms: int, invisible_ms: int | None, client_id: str) -> tuple[int, str | None]:
        if invisible_ms is not None:
            return now_ms + invisible_ms, None
        return now_ms + int(self._config.auto_renew_seconds_max * 1000), client_id

    def _repeat(
        self,
        queues: Sequence[_Queue],
        taken: _Taken,
        attempt: int,
        count: int,
        until_ms: int,
        owner: str | None,
        now_ms: int,
    ) -> bool:
        """Deliver what is in flight of this attempt's answer as the same delivery again; False if nothing is."""
        events, finished_events, passes_over = [], [], False
        for queue in queues:
            self._expire(queue, now_ms)
            queue.delivery.keep_order()
            nonce = attempt ^ queue.key.queue_id
            if count <= 0 or not queue.delivery.is_in_flight_under(nonce):
                continue
            records = []
            for offset in queue.delivery.in_flight_under(nonce)[:count]:
                record = self._read_one(queue, offset)
                if record is None:
                    self.stats.lost += 1
                    finished_events.append(encode_acknowledged(queue.encoded_key, queue.delivery.finish([offset])))
                else:
                    records.append(record)
            if not records:
                continue
            offsets = [record.queue_offset for record in records]
            event = queue.delivery.repeat(offsets, nonce=nonce, invisible_until_ms=until_ms, client_id=owner)
            events.append(encode_delivered(queue.encoded_key, event))
            passes_over |= event.passes_over
            self._make_messages(queue, records, event, taken.messages)
            self._note_delivered(queue, offsets, nonce, owner, attempt, taken)
            count -= len(records)
        self._record(finished_events, events, passes_over, taken, now_ms)
        return bool(events)

    def _read_in_order(
        self,
        queue: _Queue,
        taken: _Taken,
        count: int,
        wanted: MessageFilter,
        attempt_max: int,
        now_ms: int,
    ) -> _Reading | None:
        """Read up to `count` messages that no other of their message group keeps waiting; None: not yet possible."""
        delivery = queue.delivery
        self._expire(queue, now_ms)
        delivery.keep_order()
        assert delivery.lanes is not None, "keep_order has made them"
        for offset in list(islice(delivery.lanes.unknown, _LEARNT_PER_STEP_MAX)):
            record = self._read_one(queue, offset)
            delivery.learn(offset, "" if record is None else _message_group(record))
        if delivery.lanes.unknown:
            taken.more = True
            return None
        seen: dict[int, Record] = {}
        taken.more |= self._see(queue, count, wanted, seen)
        reading = _Reading(delivery.cursor)
        taken.needs_dead_letter_topic |= self._read_ready(queue, reading, count, wanted, attempt_max, seen)
        taken.more |= bool(reading.finished)  # the next one of that message group may follow
        return reading

    def _see(self, queue: _Queue, count: int, wanted: MessageFilter, seen: dict[int, Record]) -> bool:
        """See new messages until `count` may be delivered, or too many wait; True if only this step was too short.

        What is passed over here waits in `delivery.ready` and is not looked at again before it may be delivered.
        """
        delivery = queue.delivery
        budget = size = _SEEN_PER_STEP_MAX
        for turn in range(wanted.reads_per_step):
            missing = count - len(delivery.take_ready(count))
            room = self._config.fifo_waiting_max - len(delivery.ready)
            if missing <= 0 or room <= 0:
                return False
            # As many as are missing first; when these had to wait there may be a long row of them.
            size = missing if turn == 0 else 4 * size
            size = min(size, budget, room)
            result = wanted.read(self._store, queue.key.topic, queue.key.queue_id, delivery.cursor, size)
            if result.next_offset <= delivery.cursor:
                return False
            self.stats.lost += result.lost
            if result.status == "offset-too-small":
                self.stats.lost += result.next_offset - delivery.cursor
            budget -= len(result.records) if wanted.condition is None else result.next_offset - delivery.cursor
            seen.update((record.queue_offset, record) for record in result.records)
            delivery.see(
                [(record.queue_offset, _message_group(record)) for record in result.records], result.next_offset
            )
            if result.next_offset >= result.max_offset:
                return False
            if budget <= 0:
                break
        return len(delivery.take_ready(count)) < count

    def _read_ready(
        self,
        queue: _Queue,
        reading: _Reading,
        count: int,
        wanted: MessageFilter,
        attempt_max: int,
        seen: Mapping[int, Record] | None = None,
    ) -> bool:
        """Read up to `count` messages that are ready; True if some wait for a dead-letter topic that is not there.

        `seen`: some that have been read already.
        """
        delivery = queue.delivery
        has_dead_letter_topic = dead_letter_topic(queue.key.group) in self._tables.topics
        waits = False
        stuck: set[str] = set()  # message groups whose first waits for that topic
        for offset in delivery.take_ready(count):
            if stuck and delivery.lanes is not None and delivery.lanes.message_group_of(offset) in stuck:
                continue
            record = seen.get(offset) if seen else None
            if record is None:
                record = self._read_one(queue, offset)
            if record is None:
                self.stats.lost += 1
                reading.finished.append(offset)
            elif not wanted.passes(record):
                reading.finished.append(offset)
            elif delivery.ready[offset] < attempt_max:
                reading.records.append(record)
            elif has_dead_letter_topic:
                self._append_dead_letter(record, queue.key.group)
                reading.finished.append(offset)
            else:
                waits = True
                if delivery.lanes is not None:
                    stuck.add(delivery.lanes.message_group_of(offset))
        return waits

    def _read_new(self, queue: _Queue, reading: _Reading, count: int, wanted: MessageFilter) -> bool:
        """Read up to `count` messages that were never delivered; True if there may be more of them."""
        for _ in range(wanted.reads_per_step):
            result = wanted.read(self._store, queue.key.topic, queue.key.queue_id, reading.cursor, count)
            if result.next_offset <= reading.cursor:
                return False
            self.stats.lost += result.lost
            if result.status == "offset-too-small":
                self.stats.lost += result.next_offset - reading.cursor
            reading.records.extend(result.records)
            reading.cursor = result.next_offset
            count -= len(result.records)
            if result.next_offset >= result.max_offset:
                return False
            if count <= 0:
                return True
        return True

    def _read_one(self, queue: _Queue, offset: int) -> Record | None:
        """The message at a queue offset; None if the log has lost it."""
        records = self._store.read(queue.key.topic, queue.key.queue_id, offset, max_count=1).records
        return records[0] if records and records[0].queue_offset == offset else None

    def _deliver(
        self,
        readings: dict[_Queue, _Reading],
        taken: _Taken,
        until_ms: int,
        owner: str | None,
        now_ms: int,
        attempt: int | None,
    ) -> None:
        """Change the state of the queues, write it into the journal, make the receipt handles."""
        events = []
        finished_events = []
        passes_over = False
        for queue, reading in readings.items():
            delivery = queue.delivery
            if reading.finished:
                event = delivery.finish(reading.finished)
                finished_events.append(encode_acknowledged(queue.encoded_key, event))
            if reading.records:
                nonce = _new_nonce() if attempt is None else attempt ^ queue.key.queue_id
                offsets = [record.queue_offset for record in reading.records]
                passes_over |= delivery.unrecorded_count > 0
                delivered = delivery.deliver(
                    offsets, reading.cursor, nonce=nonce, invisible_until_ms=until_ms, client_id=owner
                )
                events.append(encode_delivered(queue.encoded_key, delivered))
                self._make_messages(queue, reading.records, delivered, taken.messages)
                self._note_delivered(queue, offsets, nonce, owner, attempt, taken)
            elif delivery.unrecorded_count >= _UNRECORDED_MAX:
                events.append(encode_delivered(queue.encoded_key, delivery.record_seen()))
                passes_over = True
            else:
                delivery.skip(reading.cursor)
            self._note_commit(queue)
        self._record(finished_events, events, passes_over, taken, now_ms)

    def _note_delivered(
        self, queue: _Queue, offsets: list[int], nonce: int, owner: str | None, attempt: int | None, taken: _Taken
    ) -> None:
        taken.parts.append((queue, offsets, nonce))
        self._schedule(queue)
        if owner is not None:
            self._of_client.setdefault(owner, set()).add(queue)
            if attempt is not None:
                self._remember_attempt(owner, attempt)

    def _record(
        self, finished: list[bytes], delivered: list[bytes], passes_over: bool, taken: _Taken, now_ms: int
    ) -> None:
        """Write what was delivered into the journal, or give it back."""
        try:
            if finished:
                self._append(EventKind.ACKNOWLEDGED, finished, now_ms)
            if delivered:
                version = VERSION_WITH_PASSED if passes_over else VERSION
                self._append(EventKind.DELIVERED, delivered, now_ms, version=version)
        except BaseException:
            self._give_back(taken.parts)
            raise

    def _make_messages(
        self, queue: _Queue, records: Sequence[Record], event: Delivered, messages: list[DeliveredMessage]
    ) -> None:
        queue_id, nonce = queue.key.queue_id, event.nonce
        index = 0
        for run in event.runs:
            if not run.attempt:
                continue  # passed over
            for record in records[index : index + run.size]:
                handle = receipt_handle.encode(queue_id, record.queue_offset, nonce)
                messages.append(DeliveredMessage(record, handle, run.attempt))
            index += run.size
            if run.attempt > 1:
                self.stats.redelivered += run.size
        self.stats.delivered += index

    # --- Acknowledge, change, forward -------------------------------------------------------------------------

    async def acknowledge(self, topic: str, group: str, handles: Sequence[str]) -> list[BrokerError | None]:
        """Finish the messages of these handles; for each None, or the InvalidReceiptHandleError that stands for it.

        When this returns, all that was acknowledged is as safe as a sent message. Raises StoreError.
        """
        now_ms = self._clock.now_ms()
        results: list[BrokerError | None] = []
        found: dict[_Queue, list[tuple[int, int]]] = {}
        for text in handles:
            try:
                queue, handle = self._find(topic, group, text, now_ms)
                if self._recent.get((handle.nonce, handle.queue_offset)) is not queue:
                    queue.delivery.check(handle.queue_offset, handle.nonce)
                    found.setdefault(queue, []).append((handle.queue_offset, handle.nonce))
                results.append(None)
            except InvalidReceiptHandleError as error:
                results.append(error)
        if found:
            events = [
                encode_acknowledged(queue.encoded_key, acknowledged(offset for offset, _ in entries))
                for queue, entries in found.items()
            ]
            self._append(EventKind.ACKNOWLEDGED, events, now_ms)  # if this fails, nothing has changed
            for queue, entries in found.items():
                self._finish(queue, entries)
        if None in results:
            await self._store.wait_stored(self._journal.end)
        return results

    async def change_invisible(self, topic: str, group: str, handle: str, invisible_ms: int) -> str:
        """The message is invisible for that long from now on; 0 makes it ready at once. Returns its new handle.

        Raises InvalidReceiptHandleError, StoreError.
        """
        now_ms = self._clock.now_ms()
        queue, old = self._find(topic, group, handle, now_ms)
        nonce = _new_nonce()
        event: Changed = queue.delivery.change_invisible(old.queue_offset, old.nonce, now_ms + invisible_ms, nonce)
        self._append(EventKind.CHANGED, [encode_changed(queue.encoded_key, event)], now_ms)
        self._expire(queue, now_ms)
        self._schedule(queue)
        await self._store.wait_stored(self._journal.end, durable=False)
        return receipt_handle.encode(old.queue_id, old.queue_offset, nonce)

    async def forward_to_dead_letter_queue(self, topic: str, group: str, handle: str) -> None:
        """Copy the message to the group's dead letters and finish it. InvalidReceiptHandleError, StoreError."""
        queue, found = self._find(topic, group, handle, self._clock.now_ms())
        queue.delivery.check(found.queue_offset, found.nonce)
        if dead_letter_topic(group) not in self._tables.topics:
            await self._create_dead_letter_topic(group)
        now_ms = self._clock.now_ms()
        queue, found = self._find(topic, group, handle, now_ms)  # again: it may have changed meanwhile
        queue.delivery.check(found.queue_offset, found.nonce)
        record = self._read_one(queue, found.queue_offset)
        if record is None:
            self.stats.lost += 1
        else:
            self._append_dead_letter(record, group)
        event = acknowledged((found.queue_offset,))
        self._append(EventKind.ACKNOWLEDGED, [encode_acknowledged(queue.encoded_key, event)], now_ms)
        self._finish(queue, [(found.queue_offset, found.nonce)])
        await self._store.wait_stored(self._journal.end)  # the copy lies before it

    def _find(self, topic: str, group: str, text: str, now_ms: int) -> tuple[_Queue, receipt_handle.ReceiptHandle]:
        handle = receipt_handle.decode(text)
        subscription = self._subscriptions.get(group, {}).get(topic)
        queue = subscription.queues.get(handle.queue_id) if subscription is not None else None
        if queue is None:
            raise InvalidReceiptHandleError(
                f"the receipt handle is not of group {group!r} and topic {topic!r}; name those of the receive"
            )
        self._expire(queue, now_ms)
        return queue, handle

    def _finish(self, queue: _Queue, entries: Sequence[tuple[int, int]]) -> None:
        """`entries` are (offset, nonce); one may be in it twice."""
        for offset, nonce in set(entries):
            queue.delivery.acknowledge(offset, nonce)
            self._recent[nonce, offset] = queue
        while len(self._recent) > _RECENT_COUNT_MAX:
            self._recent.popitem(last=False)
        self.stats.acknowledged += len(entries)
        self._note_commit(queue)
        lanes = queue.delivery.lanes
        if lanes is not None:
            end = self._store.queue_range(queue.key.topic, queue.key.queue_id)[1]
            if lanes.has_open() or queue.delivery.cursor < end:
                self._wake(queue)  # what waited for the last of its message group

    def _append_dead_letter(self, record: Record, group: str) -> None:
        """The record that finishes the message must be appended in the same step: it then follows in the log."""
        origin_id = record.unique_key or p.offset_message_id(record.store_host, record.physical_offset)
        properties = {
            **record.properties,
            p.DLQ_ORIGIN_TOPIC: record.topic,
            p.DLQ_ORIGIN_MESSAGE_ID: origin_id,
        }
        message = Message(
            topic=dead_letter_topic(group),
            queue_id=0,
            body=record.body,
            properties=properties,
            flag=record.flag,
            sys_flag=record.sys_flag & ~SYS_FLAG_TRANSACTION,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            reconsume_times=record.reconsume_times,
        )
        try:
            self._store.append([message], essential=True)
        except InvalidMessageError:
            # Properties that were at their limit already: better a dead letter without its origin than none.
            message.raw_properties = record.raw_properties
            self._store.append([message], essential=True)
        self._store.request_flush()  # with sync flush nobody can read it before, and nobody may be waiting for it
        self.stats.dead_letters += 1

    async def _create_dead_letter_topic(self, group: str) -> None:
        self._tables.topics.create_internal(TopicConfig.of_type(dead_letter_topic(group), queue_count=1))
        await self._tables.save_topics()

    # --- Clients, topics, groups ------------------------------------------------------------------------------

    def client_gone(self, client_id: str) -> None:
        """The client ended, or was silent for too long: its waits end, and its messages are soon visible to others."""
        until_ms = self._clock.now_ms() + int(self._config.client_gone_seconds * 1000)
        self._returning.discard(client_id)
        self._attempts.pop(client_id, None)
        for queue in self._of_client.pop(client_id, ()):
            queue.delivery.release_client(client_id, until_ms)
            self._schedule(queue)
        self.long_polling.end_client(client_id)

    def set_offset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Where a group that pulls goes on in a queue, also backwards; durable once the offsets table is saved.

        A start replays the journal over that table. All groups and queues that the journal speaks of are in memory, and
        those are refused, so no replay ever contradicts what was set here. Raises GroupReceivesError.
        """
        subscription = self._subscriptions.get(group, {}).get(topic)
        if subscription is not None and queue_id in subscription.queues:
            raise GroupReceivesError(topic, group)
        self._tables.offsets.commit(topic, group, queue_id, offset, force=True)

    async def delete_topic(self, topic: str) -> None:
        """Forget everything about a topic, and its offsets; durable in the journal when this returns."""
        await self._remove(Removed("", topic))

    async def delete_group(self, group: str) -> None:
        """Forget everything about a group, and its offsets; durable in the journal when this returns."""
        await self._remove(Removed(group, ""))

    async def _remove(self, event: Removed) -> None:
        self._append(EventKind.REMOVED, [encode_removed(event)], self._clock.now_ms())
        self._drop(event)
        if event.topic:
            self._tables.offsets.remove_topic(event.topic)
        else:
            self._tables.offsets.remove_group(event.group)
        self.long_polling.end_line(event.topic or None, event.group or None)
        await self._store.wait_stored(self._journal.end)

    def _drop(self, event: Removed) -> None:
        for group, topics in list(self._subscriptions.items()):
            if event.group not in ("", group):
                continue
            for topic in [topic for topic in topics if event.topic in ("", topic)]:
                for queue in topics.pop(topic).queues.values():
                    queue.dropped = True
            if not topics:
                del self._subscriptions[group]

    def status(self, group: str) -> list[QueueStatus]:
        """Every queue that the group has a position in."""
        statuses = []
        for topic, subscription in sorted(self._subscriptions.get(group, {}).items()):
            for queue_id, queue in sorted(subscription.queues.items()):
                delivery = queue.delivery
                high = self._store.queue_range(topic, queue_id)[1]
                statuses.append(
                    QueueStatus(
                        topic=topic,
                        queue_id=queue_id,
                        commit_offset=delivery.commit_offset,
                        max_offset=high,
                        lag=max(high - delivery.commit_offset, 0),
                        in_flight=len(delivery.in_flight),
                        ready=len(delivery.ready) + max(high - delivery.cursor, 0),
                    )
                )
        known = {(status.topic, status.queue_id) for status in statuses}
        for topic in self._tables.offsets.topics_of(group):
            for queue_id, offset in self._tables.offsets.queues(topic, group).items():
                if (topic, queue_id) not in known:  # not received from since the start
                    high = self._store.queue_range(topic, queue_id)[1]
                    lag = max(high - offset, 0)
                    statuses.append(QueueStatus(topic, queue_id, offset, high, lag, 0, lag))
        return statuses

    # --- Queues -----------------------------------------------------------------------------------------------

    def _subscribe(self, topic: TopicConfig, group: str) -> None:
        """Give the group a position in every readable queue of the topic.

        It is in the journal, so that a group that begins at the end does not begin at a later end after a crash.
        """
        subscription = self._subscriptions.setdefault(group, {}).setdefault(topic.name, _Subscription())
        created = [
            self._create_queue(QueueKey(group, topic.name, queue_id))
            for queue_id in range(topic.read_queue_count)
            if queue_id not in subscription.queues
        ]
        states = [encode_state(queue.encoded_key, state) for queue in created for state in queue.delivery.states()]
        self._append(EventKind.STATE, states, self._clock.now_ms())
        for queue in created:
            subscription.queues[queue.key.queue_id] = queue
            self._note_commit(queue, force=True)

    def _create_queue(self, key: QueueKey) -> _Queue:
        """A queue that this process has not seen: where its group goes on, or begins."""
        low, high = self._store.queue_range(key.topic, key.queue_id)
        commit_offset = self._tables.offsets.get(key.topic, key.group, key.queue_id)
        if commit_offset is None:
            policy = self._config.initial_position
            earliest = policy == "earliest" or (policy == "auto" and low == 0)
            commit_offset = low if earliest else high
        elif commit_offset > high:
            # The log lost its tail (a power cut with async flush); new messages come at these offsets again.
            _log.warning("committed offset is behind the end of its queue key=%s offset=%d", key, commit_offset)
            commit_offset = high
        return _Queue(key, commit_offset)

    def _all_queues(self) -> Iterable[_Queue]:
        for topics in self._subscriptions.values():
            for subscription in topics.values():
                yield from subscription.queues.values()

    def _in_flight_count(self, group: str) -> int:
        return sum(
            len(queue.delivery.in_flight)
            for subscription in self._subscriptions.get(group, {}).values()
            for queue in subscription.queues.values()
        )

    def _note_commit(self, queue: _Queue, *, force: bool = False) -> None:
        commit_offset = queue.delivery.commit_offset
        if commit_offset != queue.saved_commit_offset:
            key = queue.key
            self._tables.offsets.commit(key.topic, key.group, key.queue_id, commit_offset, force=force)
            queue.saved_commit_offset = commit_offset

    # --- Time -------------------------------------------------------------------------------------------------

    def _expire(self, queue: _Queue, now_ms: int) -> None:
        next_ms = queue.delivery.next_expiry_ms
        if next_ms is not None and next_ms <= now_ms:
            count = queue.delivery.expire(now_ms)
            if count:
                self.stats.expired += count
                self._wake(queue)

    def _wake(self, queue: _Queue) -> None:
        self.long_polling.wake(queue.key.topic, queue.key.group, queue.key.queue_id)

    def _schedule(self, queue: _Queue) -> None:
        """See to it that the timer looks at the queue in time."""
        next_ms = queue.delivery.next_expiry_ms
        if next_ms is None or (queue.scheduled_ms is not None and queue.scheduled_ms <= next_ms):
            return
        queue.scheduled_ms = next_ms
        self._timer_sequence += 1
        heapq.heappush(self._timer, (next_ms, self._timer_sequence, queue))
        if self._timer[0][2] is queue:
            self._timer_wake.set()

    def expire_due(self) -> float:
        """Make visible whatever is due; returns in how many seconds to come again."""
        now_ms = self._clock.now_ms()
        while self._timer and self._timer[0][0] <= now_ms:
            due_ms, _, queue = heapq.heappop(self._timer)
            if queue.dropped or queue.scheduled_ms != due_ms:
                continue  # it was scheduled earlier since
            queue.scheduled_ms = None
            self._expire(queue, now_ms)
            self._schedule(queue)
        seconds = (self._timer[0][0] - now_ms) / 1000 if self._timer else _TIMER_SECONDS_MAX
        if self._returning:
            left = self._returning_until - self._clock.monotonic()
            if left > 0:
                seconds = min(seconds, left)
            else:
                absent = [client_id for client_id in self._returning if not self._connected(client_id)]
                self._returning.clear()
                for client_id in absent:
                    self.client_gone(client_id)
                return 0.0
        return min(max(seconds, 0.0), _TIMER_SECONDS_MAX)

    async def _run_timer(self) -> None:
        while True:
            self._timer_wake.clear()
            seconds = self.expire_due()
            try:
                async with asyncio.timeout(seconds):
                    await self._timer_wake.wait()
            except TimeoutError:
                pass

    # --- Journal ----------------------------------------------------------------------------------------------

    def _append(self, kind: EventKind, events: Sequence[bytes], now_ms: int, *, version: int = VERSION) -> None:
        self._journal.append(kind, events, now_ms, version=version)
        if self._journal.event_count - self._events_at_snapshot >= self._config.snapshot_event_count:
            self._snapshot_wake.set()

    async def snapshot(self) -> None:
        """Write everything into the journal; once that is durable, a replay begins there."""
        position = self._journal.next_queue_offset
        events = [
            encode_state(queue.encoded_key, state)
            for queue in self._all_queues()
            if not queue.delivery.is_trivial
            for state in queue.delivery.states(self._journal.state_entry_count_max)
        ]
        for queue in self._all_queues():
            self._note_commit(queue)
        if events:
            self._journal.append(EventKind.STATE, events, self._clock.now_ms())
        self._events_at_snapshot = self._journal.event_count
        self.stats.snapshots += 1
        await self._store.wait_stored(self._journal.end, durable=True)
        self._tables.offsets.commit(JOURNAL_TOPIC, JOURNAL_GROUP, JOURNAL_QUEUE_ID, position)

    async def keep_from(self, end: int) -> int:
        """From which physical offset the log must be kept, when all before `end` is about to go.

        What a replay would need of that is written anew: everything into the journal, and then the committed offsets,
        which are all there is of queues without anything in flight, into their file. Raises OSError, StoreError.
        """
        begin = self._replay_begin()
        if begin is not None and begin < end:
            await self._try_snapshot()
            begin = self._replay_begin()
        await self._tables.save()  # with a position that is at least as late as `begin`
        return end if begin is None else min(begin, end)

    def _replay_begin(self) -> int | None:
        """The physical offset of the first record that a replay would read; None if there is none."""
        low, high = self._store.queue_range(JOURNAL_TOPIC, JOURNAL_QUEUE_ID)
        start = self._tables.offsets.get(JOURNAL_TOPIC, JOURNAL_GROUP, JOURNAL_QUEUE_ID) or 0
        for queue_offset in range(max(start, low), high):
            found = self._store.physical_offset_at(JOURNAL_TOPIC, JOURNAL_QUEUE_ID, queue_offset)
            if found is not None:  # damaged ones have no place in the log
                return found
        return None

    async def _run_snapshots(self) -> None:
        while True:
            await self._snapshot_wake.wait()
            self._snapshot_wake.clear()
            await self._try_snapshot()
            await self._tables.save()  # the replay begins at the snapshot only where the table says so

    async def _try_snapshot(self) -> None:
        """Without one, the next start has more to replay, and nothing else is worse."""
        try:
            await self.snapshot()
        except (StoreFullError, SyncTimeoutError) as error:
            _log.warning("no snapshot of deliveries cause=%s", error)

    def _replay(self, entry: JournalEntry, ends: dict[QueueKey, int]) -> bool:
        """Apply one event; False if it speaks of messages that the log does not have."""
        if isinstance(entry.event, Removed):
            self._drop(entry.event)
            return True
        key, event = entry.key, entry.event
        assert key is not None, "only Removed has no queue"
        end = ends.get(key)
        if end is None:
            end = ends[key] = self._store.queue_range(key.topic, key.queue_id)[1]
        if highest_offset(event) > end:
            return False
        subscription = self._subscriptions.setdefault(key.group, {}).setdefault(key.topic, _Subscription())
        queue = subscription.queues.get(key.queue_id)
        if queue is None:
            commit_offset = self._tables.offsets.get(key.topic, key.group, key.queue_id)
            if commit_offset is None:
                # Nothing is known of what is before the oldest event: that it was delivered is the safe guess only
                # where the event itself says so.
                match event:
                    case State():
                        commit_offset = event.commit_offset
                    case Delivered():
                        commit_offset = event.begin
                    case _:
                        commit_offset = 0
            queue = subscription.queues[key.queue_id] = _Queue(key, min(commit_offset, end))
        queue.delivery.apply(event)
        return True


def _message_group(record: Record) -> str:
    """What orders a message; "" without one."""
    return record.properties.get(p.SHARDING_KEY, "")


def _new_nonce() -> int:
    return secrets.randbits(64) or 1


def _attempt_nonce(client_id: str, group: str, topic: str, attempt_id: str) -> int:
    """The nonce of queue 0 for what this attempt brings; of the others it is this, exclusive or their queue id.

    Made from the attempt, and not random, so that the journal tells what it brought without a field for it. Queue
    ids have at most 32 bits: with the lowest of the others set, no nonce is 0.
    """
    text = "\0".join((client_id, group, topic, attempt_id)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) | 1 << 32
