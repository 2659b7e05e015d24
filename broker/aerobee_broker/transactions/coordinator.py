"""Transactions: half messages wait for their decision, and their producers are asked when it does not come.

The log has the authoritative state, in RocketMQ's topics and form (half_messages.py); memory has the waiting half
messages. A decision appends the final message and the op that settles the half message in one step, so one sync covers
both before the call is answered. The next start repairs what a crash may leave:

    the final message without its op    the end of the log is torn. Found by the transaction id; the op is written
    the op without the final message    a power cut: unsynced data reaches the disk in any order. An op after a damaged
                                        range of the log counts only if its message exists

    half -> commit     final message + op
         -> rollback   op
         -> asked      the half message again, with the number of checks, + op for the one before
         -> given up   copy to TRANS_CHECK_MAX_TIME_TOPIC + op

As in RocketMQ, consumerOffset.json has the queue offsets of the first waiting half message and of the first relevant
op; a start reads both topics from there. They advance only over durable records. A half message that is too far behind
the others, or in a part of the log that is about to expire, is renewed as after a check.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec import Struct, field

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings
from aerobee_broker.config.transactions import TransactionsConfig
from aerobee_broker.errors import InvalidTransactionError, TooManyRequestsError
from aerobee_broker.limits.loop_share import Turns
from aerobee_broker.recent import Recent
from aerobee_broker.tables.consumer_offsets import OffsetTable
from aerobee_broker.tables.topics import TopicConfig, TopicTable
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_broker.transactions.half_messages import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    TRANSACTION_GROUP,
    TRANSACTION_QUEUE_ID,
    HalfMessage,
    Outcome,
    committed_message,
    due_ms,
    given_up_half,
    half_message,
    op_message,
    read_half,
    renewed_half,
    transaction_key,
)
from aerobee_broker.transactions.producers import Producers
from aerobee_broker.transactions.transaction_log import Decided, TransactionLog
from aerobee_store import (
    Appended,
    CorruptRecordError,
    InvalidMessageError,
    MessageStore,
    Record,
    RecordNotFoundError,
    StoreAccessError,
    SyncTimeoutError,
)
from aerobee_store.clock import Clock, SteadyClock
from aerobee_store.errors import StoreRefusalError
from aerobee_store.records import properties as p
from aerobee_store.records.delay_levels import DelayLevels
from aerobee_store.records.record import Message
from aerobee_store.stats import Histogram

_log = logging.getLogger(__name__)

FINISH_SECONDS_BOUNDS: Final = (5.0, 60.0, 3600.0, 43200.0, 86400.0)  # RocketMQ's
_DECIDED_MAX: Final = 65_536  # decisions that can be repeated; some 250 bytes each
_DUE_PER_STEP_MAX: Final = 64  # half messages examined before other tasks run
_BUSY_SECONDS: Final = 1.0  # delay before a producer that reads its commands too slowly is asked again
_TIMER_SECONDS_MAX: Final = 3600.0
_GRACE_HOURS: Final = 1.0  # after a start no message is given up because of its age: the clock may have been set


class TransactionTables(Protocol):
    """The part of the broker's tables used here."""

    @property
    def topics(self) -> TopicTable: ...
    @property
    def offsets(self) -> OffsetTable: ...
    def save(self) -> Awaitable[None]: ...


class Committed(NamedTuple):
    """The final message of a transaction: the queue of its topic, and where it was stored."""

    queue_id: int
    place: Appended


class HalfPlace(NamedTuple):
    """The place of a half message: its queue offset, and the physical offset after it for `wait_stored`."""

    queue_offset: int
    end: int
    physical_offset: int | None = None  # None: settled long ago


class Undecided(Struct, frozen=True):
    """An undecided transaction. Times in Unix ms."""

    record: Record
    transaction_id: str
    since_ms: int
    checks: int
    next_check_ms: int | None
    """None: a question is on its way, or no producer could be asked."""


class TopicTransactions(Struct):
    """Counters of one topic, since the start except `half`."""

    half: int = 0  # undecided now
    committed: int = 0
    rolled_back: int = 0
    given_up: int = 0
    # from half message to commit
    finish_seconds: Histogram = field(default_factory=lambda: Histogram(FINISH_SECONDS_BOUNDS))


class _Half(Struct, eq=False):
    """An undecided half message: some 450 bytes with its entries in the tables below, whatever the size of id and
    body."""

    key: bytes
    topic: str
    queue_offset: int
    physical_offset: int
    end: int
    since_ms: int
    checks: int
    sender: str | None
    due: float = 0.0  # on the monotonic clock: when the timer checks it


class _Asked(enum.Enum):
    YES = enum.auto()
    NOBODY = enum.auto()
    LATER = enum.auto()


class Transactions:
    """All transactions of a broker. Event loop only; `open`, then `run` beside everything else, then `close`."""

    name: Final = "transactions"

    def __init__(
        self,
        store: MessageStore,
        tables: TransactionTables,
        clock: Clock,
        settings: Settings,
        producers: Producers,
        timer: Timer,
    ) -> None:
        self._store = store
        self._tables = tables
        self._clock = clock
        self._steady = SteadyClock(clock)
        self._began = clock.monotonic()
        self._settings = settings
        self._producers = producers
        self._delays = timer
        self._pending: OrderedDict[bytes, _Half] = OrderedDict()  # in the order of their queue offsets
        self._decided: Recent[bytes, Decided] = Recent(_DECIDED_MAX)
        self._unasked: dict[str, dict[_Half, None]] = {}  # by topic: due, but no producer could be asked
        self._ops: deque[tuple[int, int]] = deque()  # (offset of the half message, of its op), in the order of the ops
        self._half_end = store.queue_range(HALF_TOPIC, TRANSACTION_QUEUE_ID)[1]
        self._op_end = store.queue_range(OP_TOPIC, TRANSACTION_QUEUE_ID)[1]
        self._noted: tuple[int, int, int] | None = None  # offsets to save once the log is durable up to the third
        self._unsettled: list[Message] = []  # ops that a crash has cut off
        self._unsafe: list[_Half] = []  # half messages with an op whose final message is missing
        self._timer: list[tuple[float, int, _Half]] = []
        self._timer_sequence = 0
        self._wake = asyncio.Event()
        self._has_topics = False
        self.topics: dict[str, TopicTransactions] = {}
        """The counters of each topic, by stored name, for the metrics."""
        # The distance between the oldest and newest half message is limited, which bounds what a start reads. Twice the
        # most that can wait, so that renewing, which adds as many, terminates.
        self._span_max = 2 * settings.current.transactions.pending_max
        store.retention_listeners.append(self.keep_from)

    @property
    def _config(self) -> TransactionsConfig:
        return self._settings.current.transactions

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    # --- Life -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Load the undecided half messages. Blocking."""
        log = TransactionLog(self._store, self._tables.offsets)
        ops = log.read_ops()
        settled = ops.settled
        self._ops.extend(ops.places)
        for key, decided_before in ops.decided.items():
            self._remember(key, decided_before)
        waiting: dict[bytes, HalfMessage] = {}
        for record in log.halves(settled):
            half = read_half(record)
            if half is None:
                _log.warning(
                    "invalid half message ignored queue_offset=%d: it names no topic, queue or id", record.queue_offset
                )
                continue
            key = transaction_key(half.topic, half.transaction_id)
            decided = self._decided.get(key)
            if half.prepared_queue_offset is not None and half.prepared_queue_offset in settled:
                self._settle_later(record.queue_offset, Outcome.RENEWED, half)  # RocketMQ: applies to this one too
                continue
            if decided is None and log.has_final(half):
                decided = self._decided[key] = Decided(Outcome.COMMIT, record.queue_offset, self._store.positions[0])
            if decided is not None:
                self._settle_later(record.queue_offset, decided.outcome, half)
                continue
            older = self._pending.pop(key, None)
            if older is not None:
                self._settle_later(older.queue_offset, Outcome.RENEWED, half)
                self._count(half.topic).half -= 1
            self._add(_restored(key, half, record, checks_before=older.checks if older else 0))
            waiting[key] = half
        self._unsafe = [half for half in self._pending.values() if half.queue_offset in ops.doubtful]
        self._schedule_restored(waiting)
        _log.info("transactions restored pending=%d repaired=%d", len(self._pending), len(self._unsettled))

    async def run(self) -> None:
        """Check undecided transactions, until cancelled."""
        self._repair()
        if self._pending:
            try:
                await self.create_topics()
            except OSError as error:  # a full disk: waiting transactions can still be decided
                _log.warning("transaction topics not saved cause=%s", error)
        while True:
            self._wake.clear()
            seconds = self.check_due()
            if not seconds:
                await asyncio.sleep(0)
                continue
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _schedule_restored(self, waiting: dict[bytes, HalfMessage]) -> None:
        now_ms, now = self._clock.now_ms(), self._clock.monotonic()
        for half_waiting in self._pending.values():
            seconds = self._seconds_to_check(waiting[half_waiting.key], half_waiting, now_ms)
            self._schedule(half_waiting, now + seconds)
            if half_waiting.sender is not None:
                self._producers.sent(half_waiting.topic, half_waiting.sender)

    async def close(self) -> None:
        """Save the progress, so that the next start has little to read. The store must still run.

        The offsets table must be saved afterwards.
        """
        if self.keep_from in self._store.retention_listeners:
            self._store.retention_listeners.remove(self.keep_from)
        if self._store.state != "open":
            return
        try:
            await self._note_durably()
        except SyncTimeoutError as error:
            _log.warning("transaction offsets not saved cause=%s", error)

    def wake_timer(self) -> None:
        """Check the clock again: for tests that move it."""
        self._wake.set()

    async def create_topics(self) -> None:
        """Create what half messages need; durable on return: their topics, where RocketMQ looks for them, and offsets
        within their queues. To be awaited before the first one is stored."""
        for name in (HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC):
            self._tables.topics.create_internal(TopicConfig(name=name, read_queue_count=1, write_queue_count=1))
        await self._tables.save()
        self._has_topics = True

    # --- Send and decide --------------------------------------------------------------------------------------

    async def begin(self, messages: Sequence[Message], client_id: str) -> list[HalfPlace]:
        """Append messages, prepared for their real topics, as half messages; all or none. Wait for them afterwards.

        A message that exists already, with the same unique key in the same topic, is not stored again: its client
        repeats the call because it has not seen the answer. Raises TooManyRequestsError, StoreError, OSError.
        """
        if not self._has_topics:
            await self.create_topics()
        return self._append_halves(messages, client_id)

    def _append_halves(self, messages: Sequence[Message], client_id: str) -> list[HalfPlace]:
        places: list[HalfPlace | None] = []
        fresh: dict[bytes, Message] = {}
        keys = [transaction_key(message.topic, message.properties[p.UNIQ_KEY]) for message in messages]
        for key, message in zip(keys, messages, strict=True):
            known = self._pending.get(key) or self._decided.get(key)
            places.append(None if known is None else _place_of(known))
            if known is None and key not in fresh:
                fresh[key] = half_message(message, client_id)
        if fresh:
            if len(self._pending) + len(fresh) > self._config.pending_max:
                raise TooManyRequestsError(
                    f"{len(self._pending)} transactions are undecided; the limit is "
                    f"{self._config.pending_max} (transactions.pending_max); commit or roll back some before "
                    f"beginning others"
                )
            appended = self._store.append(list(fresh.values()))
            now = self._clock.monotonic()
            for (key, message), place in zip(fresh.items(), appended, strict=True):
                half = _Half(
                    key=key,
                    topic=message.properties[p.REAL_TOPIC],
                    queue_offset=place.queue_offset,
                    physical_offset=place.physical_offset,
                    end=place.end,
                    since_ms=place.store_timestamp,
                    checks=0,
                    sender=client_id,
                )
                self._add(half)
                own = message.properties.get(p.CHECK_IMMUNITY_TIME_SECONDS)
                self._schedule(half, now + (int(own) if own else self._config.timeout_seconds))
                self._producers.sent(half.topic, client_id)
            self._half_end = appended[-1].queue_offset + 1
            self._bring_forward(2 * len(fresh))
        return [
            _place_of(self._pending[key]) if place is None else place for key, place in zip(keys, places, strict=True)
        ]

    async def end(self, topic: str, transaction_id: str, outcome: Outcome | None) -> Committed | None:
        """Commit or roll back; None leaves it undecided. On return the decision is as safe as a sent message.

        Repeating the same decision is allowed. Returns the final message, if this call has stored one.
        Raises InvalidTransactionError for a different decision, and for an unknown transaction; TopicNotFoundError if
        the topic of a message to be committed is gone; StoreError.
        """
        key = transaction_key(topic, transaction_id)
        half = self._pending.get(key)
        if half is not None and outcome is not None and half.end > self._store.positions[1]:
            await self._store.wait_stored(half.end, durable=False)  # then it can be read
            half = self._pending.get(key)
        if half is None:
            decided = self._decided.get(key)
            if decided is None:
                raise InvalidTransactionError(
                    f"transaction {transaction_id[:80]!r} of topic {topic!r} is unknown or was settled long ago; "
                    "use the topic and transaction id from the answer to its send"
                )
            if outcome not in (None, decided.outcome):
                raise InvalidTransactionError(
                    f"transaction {transaction_id[:80]!r} of topic {topic!r} is settled: {decided.outcome}; the "
                    f"outcome cannot be changed"
                )
            await self._store.wait_stored(decided.end)
            return None
        if outcome is None:
            return None
        messages = []
        queue_id = 0
        if outcome is Outcome.COMMIT:
            final, queue_id = self._final(half)
            messages.append(final)
        messages.append(op_message(half.queue_offset, outcome, topic, transaction_id, self._clock.now_ms()))
        appended = self._store.append(messages, internal=True)
        self._settled(half, outcome, appended[-1])
        await self._store.wait_stored(appended[-1].end)
        self._note_offsets()
        return Committed(queue_id, appended[0]) if outcome is Outcome.COMMIT else None

    def _final(self, half: _Half) -> tuple[Message, int]:
        """The message, and the queue of its topic, to which it comes at once or when it is due."""
        topic = self._tables.topics.require(half.topic)
        try:
            record = self._store.record_at(half.physical_offset)
        except (RecordNotFoundError, CorruptRecordError) as error:
            raise InvalidTransactionError(f"the half message is damaged: {error}; send the message again") from error
        found = read_half(record)
        assert found is not None, "it was read before, or written here"
        queue_id = found.queue_id
        if queue_id >= topic.read_queue_count:  # the number of queues of the topic was reduced in the meantime
            queue_id %= topic.read_queue_count
        message = committed_message(record, half.topic, queue_id)
        due = due_ms(message.properties, self._clock.now_ms(), DelayLevels(self._store.config.delay_levels_seconds))
        return (message if due is None else self._delays.delayed(message, due)), queue_id

    def _settled(self, half: _Half, outcome: Outcome, op: Appended) -> None:
        """The op is in the log: forget the half message, remember the decision."""
        del self._pending[half.key]
        if self._unasked:
            self._unasked.get(half.topic, {}).pop(half, None)
        self._ops.append((half.queue_offset, op.queue_offset))
        self._op_end = op.queue_offset + 1
        self._remember(half.key, Decided(outcome, half.queue_offset, op.end))
        count = self._count(half.topic)
        count.half -= 1
        if outcome is Outcome.COMMIT:
            count.committed += 1
            count.finish_seconds.observe(max(op.store_timestamp - half.since_ms, 0) / 1000)
        elif outcome is Outcome.ROLLBACK:
            count.rolled_back += 1
        else:
            count.given_up += 1

    def _remember(self, key: bytes, decided: Decided) -> None:
        self._decided[key] = decided

    def _add(self, half: _Half) -> None:
        self._pending[half.key] = half
        self._count(half.topic).half += 1

    def _count(self, topic: str) -> TopicTransactions:
        count = self.topics.get(topic)
        if count is None:
            count = self.topics[topic] = TopicTransactions()
        return count

    async def undecided(self, *, topic: str, after: int, count: int) -> tuple[list[Undecided], int | None]:
        """Undecided transactions in the order of their half messages, of one topic (empty: all): at most `count` after
        a place, and the place of the last one if there may be more."""
        halves = [half for half in self._pending.values() if half.queue_offset > after and topic in ("", half.topic)]
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        found = []
        turns = Turns()
        for half in halves[:count]:
            try:
                record = self._store.record_at(half.physical_offset)
            except (RecordNotFoundError, CorruptRecordError):
                continue  # not readable yet, or damaged
            message = read_half(record)
            assert message is not None, "it was read before, or written here"
            next_check_ms = now_ms + round((half.due - now) * 1000) if half.due > now else None
            found.append(Undecided(record, message.transaction_id, half.since_ms, half.checks, next_check_ms))
            await turns.next()
        return found, halves[count - 1].queue_offset if len(halves) > count else None

    # --- Asking -----------------------------------------------------------------------------------------------

    def producer_ready(self, client: Client) -> None:
        """A producer has sent its settings: check transactions for which no producer could be asked."""
        for topic, halves in list(self._unasked.items()):
            if self._producers.answers_for(client, topic):
                ready = list(halves)
            else:
                ready = [half for half in halves if half.sender == client.client_id]
            for half in ready:
                del halves[half]
                self._schedule(half, self._clock.monotonic())
            if not halves:
                del self._unasked[topic]

    def group_ready(self) -> None:
        """A producer of the remoting protocol has connected: only the half messages tell whether it can answer for
        them."""
        for halves in self._unasked.values():
            for half in halves:
                self._schedule(half, self._clock.monotonic())
        self._unasked.clear()

    def check_due(self) -> float:
        """Check due transactions, up to a limit; returns the seconds until the next call, 0 for at once."""
        now = self._clock.monotonic()
        for _ in range(_DUE_PER_STEP_MAX):
            if not self._timer or self._timer[0][0] > now:
                break
            due, _, half = heapq.heappop(self._timer)
            if half.due != due or self._pending.get(half.key) is not half:
                continue  # settled or postponed
            if self._unasked:
                self._unasked.get(half.topic, {}).pop(half, None)
            asked = self._check(half)
            if self._pending.get(half.key) is half:
                seconds = _BUSY_SECONDS if asked is _Asked.LATER else self._config.check_interval_seconds
                self._schedule(half, now + seconds)
                if asked is _Asked.NOBODY:
                    self._unasked.setdefault(half.topic, {})[half] = None
        self._note_offsets()
        if not self._timer:
            return _TIMER_SECONDS_MAX
        return min(max(self._timer[0][0] - now, 0.0), _TIMER_SECONDS_MAX)

    def _check(self, half: _Half) -> _Asked:
        if half.end > self._store.positions[1]:
            return _Asked.LATER  # cannot be read yet
        give_up = half.checks >= self._config.check_max or half.topic not in self._tables.topics
        client = None if give_up else self._producers.choose(half.topic, half.sender, half.checks)
        if client == "busy":
            return _Asked.LATER
        ask_by_group = None if client is not None or give_up else self._producers.ask_by_group
        # A check without a producer does not count: a quarter of an hour without producers must not lose messages.
        # Nor may a clock jump, now or before this start: for an hour producers may reconnect.
        age_hours = (min(self._clock.now_ms(), self._steady.now_ms()) - half.since_ms) / 3_600_000
        grace_hours = min(_GRACE_HOURS, self._config.age_hours_max)
        is_old = age_hours > self._config.age_hours_max
        is_old &= self._clock.monotonic() - self._began >= grace_hours * 3600
        may_wait = not give_up and not is_old
        if client is None and ask_by_group is None and may_wait:
            return _Asked.NOBODY
        try:
            record = self._store.record_at(half.physical_offset)
        except (RecordNotFoundError, CorruptRecordError) as error:
            _log.error("half message lost queue_offset=%d topic=%s cause=%s", half.queue_offset, half.topic, error)
            return self._give_up(half, None)
        except StoreAccessError:
            return _Asked.NOBODY
        if client is not None:
            asked = self._producers.ask(client, record, half.topic, _id_of(record))
        elif ask_by_group is not None and ask_by_group(record, half.topic, _id_of(record), half.checks):
            asked = True
        elif may_wait:
            asked = False
        else:
            return self._give_up(half, record)
        if not asked:
            return _Asked.NOBODY
        half.checks += 1
        self._renew(half, record)
        return _Asked.YES

    def _give_up(self, half: _Half, record: Record | None) -> _Asked:
        transaction_id = "" if record is None else _id_of(record)
        messages = [] if record is None else [given_up_half(record)]
        messages.append(
            op_message(half.queue_offset, Outcome.GIVEN_UP, half.topic, transaction_id, self._clock.now_ms())
        )
        try:
            appended = self._store.append(messages, internal=True)
        except StoreRefusalError:
            return _Asked.NOBODY
        self._store.request_flush()
        self._settled(half, Outcome.GIVEN_UP, appended[-1])
        _log.warning(
            "transaction abandoned topic=%s id=%s checks=%d moved_to=%s",
            half.topic,
            transaction_id[:80],
            half.checks,
            GIVEN_UP_TOPIC,
        )
        return _Asked.YES

    def _renew(self, half: _Half, record: Record) -> bool:
        """Store the half message again; False if it must stay where it is, with its checks counted in memory only."""
        try:
            renewed = renewed_half(record, half.checks, half.since_ms)
            op = op_message(half.queue_offset, Outcome.RENEWED, half.topic, _id_of(record), self._clock.now_ms())
            place, op_place = self._store.append([renewed, op], internal=True)
        except (StoreRefusalError, InvalidMessageError) as error:
            _log.warning("half message not renewed queue_offset=%d cause=%s", half.queue_offset, error)
            return False
        self._store.request_flush()  # no caller waits for it
        self._ops.append((half.queue_offset, op_place.queue_offset))
        self._op_end = op_place.queue_offset + 1
        half.queue_offset, half.physical_offset, half.end = place.queue_offset, place.physical_offset, place.end
        self._half_end = place.queue_offset + 1
        self._pending.move_to_end(half.key)
        return True

    def _bring_forward(self, count: int) -> None:
        """Renew up to `count` half messages that are too far behind."""
        for _ in range(count):
            first = next(iter(self._pending.values()))
            if self._half_end - first.queue_offset <= self._span_max or not self._renew_unread(first):
                return

    def _renew_unread(self, half: _Half) -> bool:
        try:
            return self._renew(half, self._store.record_at(half.physical_offset))
        except (RecordNotFoundError, CorruptRecordError):
            return False  # its check will report it

    def _seconds_to_check(self, found: HalfMessage, half: _Half, now_ms: int) -> float:
        """The delay after a restart."""
        if half.checks:
            stored_ms = self._store.store_timestamp_at(HALF_TOPIC, TRANSACTION_QUEUE_ID, half.queue_offset) or now_ms
            seconds = self._config.check_interval_seconds
        else:
            stored_ms = half.since_ms
            own = found.immunity_seconds
            seconds = self._config.timeout_seconds if own is None else min(float(own), _TIMER_SECONDS_MAX)
        return min(max(seconds - (now_ms - stored_ms) / 1000, 0.0), seconds)

    def _schedule(self, half: _Half, due: float) -> None:
        half.due = due
        self._timer_sequence += 1
        heapq.heappush(self._timer, (due, self._timer_sequence, half))
        if self._timer[0][2] is half:
            self._wake.set()
        if len(self._timer) > 2 * len(self._pending) + 1024:  # settled long before they are due
            self._timer = [(waiting.due, index, waiting) for index, waiting in enumerate(self._pending.values())]
            self._timer_sequence = len(self._timer)
            heapq.heapify(self._timer)

    # --- The log ----------------------------------------------------------------------------------------------

    async def keep_from(self, end: int) -> int:
        """The physical offset from which the log must be kept, when everything before `end` is about to be removed.

        Half messages there are renewed at the end of the log. Raises OSError, StoreError.
        """
        for half in self._before(end):
            if not self._renew_unread(half):
                break
            await asyncio.sleep(0)
        await self._note_durably()
        await self._tables.save()
        first = next(iter(self._pending.values()), None)
        return end if first is None else min(first.physical_offset, end)

    def _before(self, end: int) -> Iterator[_Half]:
        while self._pending:
            first = next(iter(self._pending.values()))
            if first.physical_offset >= end:
                return
            yield first

    async def _note_durably(self) -> None:
        self._noted = None
        self._note_offsets()
        await self._store.wait_stored(self._store.positions[0], durable=True)
        self._note_offsets()

    def _note_offsets(self) -> None:
        """Save the offsets of half messages and ops that are durable now; set the next target."""
        wrote, _, flushed, _ = self._store.positions
        if self._noted is not None:
            half_offset, op_offset, position = self._noted
            if flushed < position:
                return
            commit = self._tables.offsets.commit
            commit(HALF_TOPIC, TRANSACTION_GROUP, TRANSACTION_QUEUE_ID, half_offset)
            commit(OP_TOPIC, TRANSACTION_GROUP, TRANSACTION_QUEUE_ID, op_offset)
        first = next(iter(self._pending.values()), None)
        half_offset = self._half_end if first is None else first.queue_offset
        while self._ops and self._ops[0][0] < half_offset:
            self._ops.popleft()
        self._noted = (half_offset, self._ops[0][1] if self._ops else self._op_end, wrote)

    def _settle_later(self, queue_offset: int, outcome: Outcome, half: HalfMessage) -> None:
        self._unsettled.append(op_message(queue_offset, outcome, half.topic, half.transaction_id, self._clock.now_ms()))

    def _repair(self) -> None:
        """Write ops that a crash has cut off. Without them the next start would find the same state again, or miss
        it."""
        for half in self._unsafe:
            if self._pending.get(half.key) is half:
                self._renew_unread(half)
        self._unsafe.clear()
        if not self._unsettled:
            return
        try:
            appended = self._store.append(self._unsettled, internal=True)
        except StoreRefusalError as error:
            _log.warning("ops of settled transactions not stored cause=%s", error)
            return
        for op, place in zip(self._unsettled, appended, strict=True):
            self._ops.append((int(bytes(op.body)), place.queue_offset))
        self._op_end = appended[-1].queue_offset + 1
        self._unsettled.clear()
        self._store.request_flush()


def _place_of(known: _Half | Decided) -> HalfPlace:
    return HalfPlace(known.queue_offset, known.end, known.physical_offset if isinstance(known, _Half) else None)


def _id_of(record: Record) -> str:
    half = read_half(record)
    assert half is not None, "it was read before, or written here"
    return half.transaction_id


def _restored(key: bytes, half: HalfMessage, record: Record, *, checks_before: int) -> _Half:
    return _Half(
        key=key,
        topic=half.topic,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        end=record.physical_offset + record.size,
        since_ms=half.since_ms,
        checks=max(half.checks, checks_before),
        sender=half.sender,
    )
