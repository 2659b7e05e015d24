"""The facade of all deliveries.

All calls work alike: find the queues, change the state and append the journal's record in one synchronous step, wait
for that record, then answer. Because the step has no await, memory and journal always agree. A snapshot is
written in the same way, one piece of the state in a step.

    subscriptions.py   which queues there are, and their state (queue_delivery.py)
    queue_sets.py      the queues of a receive: those of a topic; lite.py: those of a client's lite subscriptions
    receive_plan.py    the decisions of a receive, without I/O
    consuming/receiving.py       selects the messages of a receive
    visibility.py      the timer: when messages become visible again
    auto_renewals.py   clients that keep messages while they live
    dead_letters.py    messages that are no longer delivered; exhausted.py: the task that moves them there
    history.py         the journal: events, snapshots, replay
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from aerobee_broker.config import Settings
from aerobee_broker.delivery.journal.event_log import (
    EventKind,
    Removed,
    encode_acknowledged,
    encode_changed,
    encode_removed,
)
from aerobee_broker.delivery.journal.history import History
from aerobee_broker.delivery.receive.auto_renewals import AutoRenewals
from aerobee_broker.delivery.receive.dead_letters import DeadLetters
from aerobee_broker.delivery.receive.exhausted import ExhaustedMessages
from aerobee_broker.delivery.receive.lite import LiteConsumers, LiteQueueSet, lite_topics_of
from aerobee_broker.delivery.receive.long_polling import SHORT_POLLING_SECONDS, LongPolling
from aerobee_broker.delivery.receive.queue_sets import QueueSet, TopicQueueSet
from aerobee_broker.delivery.receive.receive_plan import ReceivePlan, ReceiveRequest, Step, decide, plan_of
from aerobee_broker.delivery.receive.selection import (
    DeliveredMessage,
    Look,
    Received,
    Receiving,
    ReceivingParts,
    handle_of,
)
from aerobee_broker.delivery.receive.visibility import Visibility
from aerobee_broker.delivery.rocketmq_pop import Flights, RocketMQFlights
from aerobee_broker.delivery.state import receipt_handle
from aerobee_broker.delivery.state.events import Changed, new_nonce
from aerobee_broker.delivery.state.message_group_order import MessageGroupOrder
from aerobee_broker.delivery.state.queue_delivery import QueueDelivery, acknowledged
from aerobee_broker.delivery.state.queue_key import QueueKey
from aerobee_broker.delivery.state.stats import DeliveryStats
from aerobee_broker.delivery.state.subscriptions import DeliveryTables, Queue, QueueStatus, Subscriptions
from aerobee_broker.errors import BrokerError, InvalidReceiptHandleError
from aerobee_broker.limits.byte_budget import Share
from aerobee_broker.limits.loop_share import LoopShare, in_turns, step_started
from aerobee_broker.recent import Recent
from aerobee_broker.tables.topics import light_topic_name, pop_retry_topics
from aerobee_store import MessageStore, SyncTimeoutError
from aerobee_store.clock import Clock, SteadyClock, every
from aerobee_store.errors import StoreRefusalError
from aerobee_store.records.topic_names import LIGHT_PREFIX, RETRY_PREFIX

_log = logging.getLogger(__name__)

_RECENT_COUNT_MAX: Final = 65_536  # acknowledged handles that are still answered with OK; about 10 MB at most
_MEMORY_WAIT_SECONDS: Final = (
    2.0  # how long a receive that does not wait for messages waits for the memory of their bytes
)
_LITE_EXPIRY_SECONDS: Final = 60.0  # between checks; the precision of expiry is a minute
_DELETED_PER_STEP_MAX: Final = 512  # topics deleted in one step of the event loop, and recorded in one save


class Deliveries:
    """All deliveries of a broker. Event loop only; `open`, then `run` beside everything else, then `close`."""

    name: Final = "deliveries"

    def __init__(
        self,
        store: MessageStore,
        tables: DeliveryTables,
        clock: Clock,
        settings: Settings,
        *,
        connected: Container[str] | None = None,
    ) -> None:
        """`connected` has the ids of living clients; without it every id counts as alive."""
        self._store = store
        self._tables = tables
        clock = SteadyClock(clock)  # a message must not stay invisible because the system clock was set back
        self._clock = clock
        self._settings = settings
        config = settings.current.delivery
        self.long_polling = LongPolling(
            waiting_per_group_max=config.waiting_per_group_max,
            waiting_max=config.waiting_max,
            seconds_max=math.inf if config.long_polling else SHORT_POLLING_SECONDS,
        )
        self.loop_share = LoopShare()
        """The share of the event loop for all long searches, here and elsewhere."""
        self.stats = DeliveryStats()
        self._run_number = secrets.randbits(32)
        self._subscriptions = Subscriptions(store, tables, settings)
        self._auto_renewals = AutoRenewals(clock, settings, connected)
        self._visibility = Visibility(clock, self.stats, self)
        self._dead_letters = DeadLetters(store, tables, self.stats)
        self._history = History(store, tables, clock, settings, self._subscriptions, self.stats)
        self._receiving = Receiving(
            ReceivingParts(
                store=store,
                clock=clock,
                settings=settings,
                subscriptions=self._subscriptions,
                visibility=self._visibility,
                auto_renewals=self._auto_renewals,
                dead_letters=self._dead_letters,
                history=self._history,
                stats=self.stats,
                run_number=self._run_number,
            )
        )
        self._exhausted = ExhaustedMessages(
            self._dead_letters, self._subscriptions, self._history, clock, self.stats, self
        )
        self.lite = LiteConsumers(store, settings, self._subscriptions, self._history, self.long_polling)
        self._rocketmq_flights = RocketMQFlights(store, tables)
        self._rocketmq_unfinished: Flights | None = None  # None: there is nothing to take over
        # Where acknowledged messages were, by nonce and offset.
        self._recent: Recent[tuple[int, int], Queue] = Recent(_RECENT_COUNT_MAX)
        store.arrival_listeners.append(self.long_polling.arrived)
        store.arrival_listeners.append(self.lite.arrived)
        store.retention_listeners.append(self._history.keep_from)

    # --- Life -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Replay the journal over the committed offsets. Blocking. Raises JournalFormatError."""
        count = self._history.replay()
        self._rocketmq_unfinished = self._rocketmq_flights.unfinished()
        now_ms = self._clock.now_ms()
        latest_ms = now_ms + int(self._settings.current.delivery.invisible_seconds_max * 1000)
        queues = list(self._subscriptions)
        for queue in queues:
            queue.delivery.limit_invisible(latest_ms)
            if queue.delivery.cut(self._subscriptions.end_of(queue)):
                _log.warning(
                    "delivery position was beyond the end of its queue and is moved back to the end key=%s offset=%d",
                    queue.key,
                    queue.delivery.cursor,
                )
            self.stats.expired += queue.delivery.expire(now_ms)
            self._subscriptions.note_commit(queue, force=True)
            self._visibility.schedule(queue)
            self._subscriptions.note_busy(queue)
            self._exhausted.note(queue)
        self._auto_renewals.restore(queues)
        _log.info("deliveries restored events=%d queues=%d", count, len(queues))

    async def adopt(self) -> None:
        """Take over what consumers of RocketMQ had in flight. Call before the broker serves. StoreError, OSError."""
        now_ms, count = self._clock.now_ms(), 0
        for key, times in (self._rocketmq_unfinished or {}).items():
            self._history.begin([key], is_limited=False)
            queue = self._subscriptions.queue(key.topic, key.group, key.queue_id)
            assert queue is not None, "it has a position now"
            low = self._store.queue_range(key.topic, key.queue_id)[0]
            # Offsets from the cursor on are delivered as new messages.
            known = {offset: until_ms for offset, until_ms in times.items() if low <= offset < queue.delivery.cursor}
            if known:
                count += len(known)
                self._history.adopt(queue, known, now_ms)
                self._visibility.schedule(queue)
                self._subscriptions.note_busy(queue)
        if count:
            await self._history.wait_stored(replicas=False)
            _log.info("messages in flight at RocketMQ taken over count=%d", count)
        self._rocketmq_unfinished = None
        if self._rocketmq_flights.note_read():
            if count:
                await self._history.try_snapshot()  # the table may then say that they are unfinished
            await self._tables.save()

    async def run(self) -> None:
        """Make messages visible when their time is over, and write snapshots, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._visibility.run(), name="delivery-timer")
            tasks.create_task(self._history.run(), name="delivery-snapshots")
            tasks.create_task(every(_LITE_EXPIRY_SECONDS, self._try_lite_expiry), name="lite-topic-expiry")
            tasks.create_task(self._exhausted.run(), name="dead-letters")

    async def close(self) -> None:
        """Write a last snapshot, so that the next start has little to replay. The store must still run.

        The offsets table must be saved afterwards.
        """
        self.long_polling.drain()
        for listener in (self.long_polling.arrived, self.lite.arrived):
            if listener in self._store.arrival_listeners:
                self._store.arrival_listeners.remove(listener)
        if self._store.state == "open" and self._history.is_new_since_snapshot:
            await self._history.try_snapshot()
        if self._rocketmq_unfinished is None:
            self._rocketmq_flights.note_read()

    def wake_timer(self) -> None:
        """Check the clock again: for tests that move it."""
        self._visibility.wake_timer()

    # --- Receive ----------------------------------------------------------------------------------------------

    async def receive(self, request: ReceiveRequest, memory: Share | None = None) -> list[DeliveredMessage]:
        """The messages of a request, as soon as there are any; empty when the wait is over.

        A caller that cannot hand over a message must pass it to `give_back`; cancelling does so by itself. Nothing is
        read while `memory` is used up; returned messages are counted in it.

        Raises TopicNotFoundError, GroupNotFoundError, TooManyRequestsError, StoreError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_seconds
        look_until = loop.time() + request.look_seconds
        has_waited = has_given_back = False
        queue_set: QueueSet | None = None
        place: tuple[bool, int | None] | None = None
        while True:
            if memory is not None and not memory.has_free():
                await memory.wait_free(max(0.0, deadline - loop.time()) + _MEMORY_WAIT_SECONDS)
            topic = self._tables.topics.require(request.topic)
            plan = plan_of(request, topic, self._tables.groups.require(request.group))
            if has_waited and request.invisible_ms is None and not self._auto_renewals.is_connected(request.client_id):
                return []  # terminated while it was woken; nobody would release its messages
            if queue_set is None or place != (plan.is_lite, plan.queue_id):
                queue_set, place = self._queue_set(request, plan), (plan.is_lite, plan.queue_id)
            if queue_set.begin(topic):
                await self._history.wait_logged()
                continue
            if not has_given_back and plan.attempt is not None:
                has_given_back = True
                self._give_back_attempt(request, plan)
            step = Step.WAIT
            if plan.consume_enabled:
                started = step_started()
                received, step = self._look(request, plan, queue_set, is_last=loop.time() >= look_until)
            match step:
                case Step.ANSWER:
                    await self._before_answer(request.group, received, memory)
                    return received.messages
                case Step.CREATE_DEAD_LETTER_TOPIC:
                    await self._dead_letters.create_topic(request.group)
                case Step.LOOK_AGAIN:
                    await self.loop_share.pause(started, until=look_until)
                case Step.ANSWER_EMPTY:
                    return []  # the look woke another receive
                case Step.WAIT:
                    if not await queue_set.wait(deadline - loop.time(), again=has_waited):
                        return []
                    has_waited = True

    def _look(
        self, request: ReceiveRequest, plan: ReceivePlan, queue_set: QueueSet, *, is_last: bool
    ) -> tuple[Received, Step]:
        """Examine the queues once, and wake another receive if messages are left. Changes queues and journal."""
        queues = queue_set.queues(plan.attempt)
        look = Look(
            request,
            plan,
            count=request.count,
            bytes_max=self._settings.current.delivery.receive_bytes_max,
            attempt_max=self._dead_letters.attempt_max(request.topic, request.group),
            is_last=is_last,
        )
        received = self._receiving.take(queues, look)
        more = queue_set.looked(queues) or received.more
        if more or len(received.messages) >= request.count:
            queue_set.wake_next()
        step = decide(
            found=bool(received.messages),
            needs_dead_letter_topic=received.needs_dead_letter_topic,
            more=more,
            is_last=is_last,
        )
        return received, step

    async def _before_answer(self, group: str, received: Received, memory: Share | None) -> None:
        """Return when the messages may be sent. If that fails or is cancelled, they are ready again."""
        if memory is not None:
            memory.take_now(sum(message.record.size for message in received.messages))
        try:
            await self._history.wait_logged()
            if received.needs_dead_letter_topic:
                await self._dead_letters.create_topic(group)
        except BaseException:
            self._visibility.give_back(received.parts)
            raise

    def _give_back_attempt(self, request: ReceiveRequest, plan: ReceivePlan) -> None:
        attempt, client_id = plan.attempt, request.client_id
        if plan.gives_back and attempt is not None and self._auto_renewals.knows(client_id, attempt):
            parts = self._auto_renewals.of_attempt(client_id, request.topic, request.group, attempt)
            self._visibility.give_back(parts)

    def _queue_set(self, request: ReceiveRequest, plan: ReceivePlan) -> QueueSet:
        names = request.topic, request.group, request.client_id
        if plan.is_lite:
            return LiteQueueSet(self.lite, self._subscriptions, self.long_polling, *names)
        retry_topics = () if plan.order is MessageGroupOrder else self._retry_topics(request.topic, request.group)
        return TopicQueueSet(self._subscriptions, self._history, self.long_polling, *names, plan.queue_id, retry_topics)

    def _retry_topics(self, topic: str, group: str) -> list[str]:
        """The topics with messages of `topic` that RocketMQ wants its POP consumers of the group to receive again."""
        groups = self._tables.groups  # the retry topic of a group of RocketMQ 4 may have the same name
        return [
            name
            for name in pop_retry_topics(topic, group)
            if name in self._tables.topics and name.removeprefix(RETRY_PREFIX) not in groups
        ]

    def give_back(self, topic: str, group: str, handles: Iterable[str]) -> None:
        """Return messages that did not reach the client: they are ready again at once. Those of other states stay.

        The delivery counts as an attempt, except for a group that consumes in order, which gets the same attempt again.
        """
        parts: dict[tuple[Queue, int], list[int]] = {}
        for text in handles:
            handle = receipt_handle.decode(text)
            queue = self._queue_of(topic, group, handle)
            if queue is not None:
                parts.setdefault((queue, handle.nonce), []).append(handle.queue_offset)
        self._visibility.give_back((queue, offsets, nonce) for (queue, nonce), offsets in parts.items())

    # --- Acknowledge, change, forward -------------------------------------------------------------------------

    async def acknowledge(self, topic: str, group: str, handles: Sequence[str]) -> list[BrokerError | None]:
        """Finish the messages of these handles; for each None or its InvalidReceiptHandleError.

        Acknowledging is idempotent: a repeated handle is valid. A handle from an earlier process is not remembered; it
        is valid if the message is finished, by any consumer.

        On return, all acknowledgements are as safe as a sent message. Raises StoreError.
        """
        now_ms = self._clock.now_ms()
        results: list[BrokerError | None] = []
        found: dict[Queue, list[tuple[int, int]]] = {}
        for text in handles:
            try:
                queue, handle = self._find(topic, group, text, now_ms)
                if self._recent.get((handle.nonce, handle.queue_offset)) is not queue and not (
                    # It may have been acknowledged with this very handle before the broker was restarted.
                    handle.run != self._run_number and queue.delivery.is_finished(handle.queue_offset)
                ):
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
            self._history.append(EventKind.ACKNOWLEDGED, events, now_ms)  # if this fails, nothing has changed
            for queue, entries in found.items():
                self._finish(queue, entries)
        if None in results:
            await self._history.wait_stored()
        return results

    async def change_invisible(self, topic: str, group: str, handle: str, invisible_ms: int) -> str:
        """Make the message invisible for this long from now; 0 makes it ready at once. Returns its new handle.

        Raises InvalidReceiptHandleError, StoreError.
        """
        now_ms = self._clock.now_ms()
        queue, old = self._find(topic, group, handle, now_ms)
        nonce = new_nonce()
        event: Changed = queue.delivery.change_invisible(old.queue_offset, old.nonce, now_ms + invisible_ms, nonce)
        self._history.append(EventKind.CHANGED, [encode_changed(queue.encoded_key, event)], now_ms)
        self._visibility.expire(queue, now_ms)
        self._visibility.schedule(queue)
        await self._history.wait_logged()
        return handle_of(queue, old.queue_offset, nonce, self._run_number)

    async def forward_to_dead_letter_queue(self, topic: str, group: str, handle: str) -> None:
        """Copy the message to the group's dead letters and finish it. InvalidReceiptHandleError, StoreError."""
        queue, found = self._find(topic, group, handle, self._clock.now_ms())
        queue.delivery.check(found.queue_offset, found.nonce)
        if not self._dead_letters.has_topic(group):
            await self._dead_letters.create_topic(group)
        now_ms = self._clock.now_ms()
        queue, found = self._find(topic, group, handle, now_ms)  # again: it may have changed in the meantime
        queue.delivery.check(found.queue_offset, found.nonce)
        record = self._subscriptions.read_one(queue, found.queue_offset)
        if record is None:
            self.stats.lost += 1
        else:
            self._dead_letters.append(record, queue)
        event = acknowledged((found.queue_offset,))
        self._history.append(EventKind.ACKNOWLEDGED, [encode_acknowledged(queue.encoded_key, event)], now_ms)
        self._finish(queue, [(found.queue_offset, found.nonce)])
        await self._history.wait_stored()  # the copy precedes it

    def _find(self, topic: str, group: str, text: str, now_ms: int) -> tuple[Queue, receipt_handle.ReceiptHandle]:
        handle = receipt_handle.decode(text)
        queue = self._queue_of(topic, group, handle)
        if queue is None:
            raise InvalidReceiptHandleError(
                f"the receipt handle does not belong to group {group!r} and topic {topic!r}; use the names of the "
                f"receive"
            )
        self._visibility.expire(queue, now_ms)
        return queue, handle

    def _queue_of(self, topic: str, group: str, handle: receipt_handle.ReceiptHandle) -> Queue | None:
        """The queue of a handle; None if it is not of this topic and group."""
        names = [topic]  # POP clients of RocketMQ name a retry topic itself
        if handle.part.startswith("%"):
            names = [*pop_retry_topics(topic, group), topic]
        elif handle.part:
            names = [light_topic_name(topic, handle.part)]
        found = (self._subscriptions.queue(name, group, handle.queue_id) for name in names)
        queue = next((queue for queue in found if queue is not None and queue.part == handle.part), None)
        return queue if queue is not None and queue.owner == handle.owner else None

    def _finish(self, queue: Queue, entries: Sequence[tuple[int, int]]) -> None:
        """`entries` are (offset, nonce); an entry may occur twice."""
        for offset, nonce in set(entries):
            queue.delivery.acknowledge(offset, nonce)
            self._recent[nonce, offset] = queue
        self.stats.acknowledged += len(entries)
        self._subscriptions.note_commit(queue)
        order = queue.delivery.order
        if isinstance(order, MessageGroupOrder) and (
            order.has_open() or queue.delivery.cursor < self._subscriptions.end_of(queue)
        ):
            self._wake_receive(queue)  # messages that waited for the last one of their message group

    # --- Clients, topics, groups ------------------------------------------------------------------------------

    def client_gone(self, client_id: str) -> None:
        """The client terminated or was silent for too long: its waits end, and its messages soon become visible to
        others."""
        for queue in self._auto_renewals.gone(client_id):
            self._visibility.schedule(queue)
        self.lite.client_gone(client_id)
        self.long_polling.end_client(client_id)

    def _wake_receive(self, queue: Queue) -> None:
        if queue.lite_topic:
            self.lite.wake(queue)
        else:
            for topic in {queue.topic, queue.key.topic}:
                self.long_polling.wake(topic, queue.key.group, queue.key.queue_id)

    def became_visible(self, queue: Queue) -> None:
        """For Visibility: a waiting receive looks at the queue, and exhausted messages become dead letters."""
        self._wake_receive(queue)
        self._exhausted.note(queue)

    def drop_absent_clients(self) -> float | None:
        """Release the messages of clients that did not reconnect after a restart; returns the seconds until the next
        check."""
        absent, seconds = self._auto_renewals.absent()
        for client_id in absent:
            self.client_gone(client_id)
        return seconds

    def committed_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """The offset of the next message to consume; None if the group has no position in the queue."""
        queue = self._subscriptions.queue(topic, group, queue_id)
        if queue is not None:
            return queue.delivery.commit_offset
        return self._tables.offsets.get(topic, group, queue_id)

    def start_of(self, topic: str, group: str, queue_id: int) -> int:
        """Where the group continues in the queue, or begins if it has no position there."""
        committed = self.committed_offset(topic, group, queue_id)
        return self._subscriptions.start_of(QueueKey(group, topic, queue_id)) if committed is None else committed

    async def reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Move the group to these offsets (queue id -> queue offset), forwards or back; durable on return.

        In queues from which it has received, messages in flight are dropped: their handles become invalid, and those
        from the offset on are delivered again with attempt 1. Offsets are limited to the queue's range. Raises
        TableSpaceError, StoreError, OSError.
        """
        self._tables.offsets.require_space(topic, group, offsets)
        resets = []
        committed: dict[int, int | None] = {}  # before, where only the table has the offset
        for queue_id, wanted in offsets.items():
            low, high = self._store.queue_range(topic, queue_id)
            offset = min(max(wanted, 0), high)
            queue = self._subscriptions.queue(topic, group, queue_id)
            if queue is None:
                # A start replays the journal over the table; queues in the journal have state.
                committed[queue_id] = self._tables.offsets.get(topic, group, queue_id)
                self._tables.offsets.commit(topic, group, queue_id, offset, force=True)
            else:
                resets.append((queue, max(offset, low)))
        if resets:
            self._history.reset(resets)
            for queue, _ in resets:
                self._wake_receive(queue)
            await self._history.wait_stored()
        if not committed:
            return
        try:
            await self._tables.save()
        except OSError:
            for queue_id, before in committed.items():
                self._tables.offsets.put_back(topic, group, queue_id, before)
            raise

    async def delete_topic(self, topic: str) -> None:
        """Delete the messages of a topic and of its lite topics, and all positions in them.

        Durable on return. After a StoreError some are deleted, and the others can be deleted again.
        """
        retry_topics = [name for group in self._tables.groups for name in self._retry_topics(topic, group.name)]
        await self._delete([*lite_topics_of(self._store, topic), *retry_topics, topic])

    async def purge_topic(self, topic: str) -> None:
        """Delete the messages of a topic without lite topics, and move its groups behind them; durable on return.

        Messages that arrive meanwhile may be deleted too, but none that arrives after the return.
        """
        ends = self._store.next_offsets(topic)
        groups = {*self._tables.offsets.groups_of(topic), *self._subscriptions.groups_of(topic)}
        retry_topics = [name for group in self._tables.groups for name in self._retry_topics(topic, group.name)]
        # Groups first: after a crash in between, a group would otherwise wait for offsets that are gone.
        for group in groups:
            positions = {
                each.queue_id: each.commit_offset
                async for each in in_turns(self.statuses(group))
                if each.topic == topic
            }
            moved = {queue_id: ends.get(queue_id, offset) for queue_id, offset in positions.items()}
            await self.reset(topic, group, moved)
        await self._store.delete_topics([topic, *retry_topics])
        for name in retry_topics:
            self._forget(Removed("", name))
        if retry_topics:
            await self._history.wait_stored()

    async def expire_lite_topics(self) -> int:
        """Delete expired lite topics; returns their number. Raises StoreError."""
        names = await self.lite.expired(self._tables.topics, self._clock.now_ms())
        await self._delete(names, replicas=False)
        return len(names)

    async def _delete(self, names: Sequence[str], *, replicas: bool = True) -> None:
        for first in range(0, len(names), _DELETED_PER_STEP_MAX):
            some = names[first : first + _DELETED_PER_STEP_MAX]
            self._forget(*(Removed("", name) for name in some))
            await self._store.delete_topics(some)  # in the same step, so that no message arrives in between
        if names:
            await self._history.wait_stored(replicas=replicas)

    async def _try_lite_expiry(self) -> None:
        try:
            await self.expire_lite_topics()
        except (StoreRefusalError, SyncTimeoutError) as error:
            _log.warning("lite topics not expired, retried later cause=%s", error)

    async def delete_group(self, group: str) -> None:
        """Delete the state and the offsets of a group; durable in the journal on return."""
        await self._remove(Removed(group, ""))

    async def delete_subscription(self, topic: str, group: str) -> None:
        """Delete the group's state and offsets of the topic; durable in the journal on return."""
        await self._remove(Removed(group, topic))

    async def _remove(self, event: Removed) -> None:
        self._forget(event)
        await self._history.wait_stored()

    def _forget(self, *events: Removed) -> None:
        self._history.append(EventKind.REMOVED, [encode_removed(event) for event in events], self._clock.now_ms())
        for event in events:
            self._forget_one(event)

    def _forget_one(self, event: Removed) -> None:
        self._subscriptions.drop(event.topic, event.group)
        for topic, group in list(self.stats.expired_of):
            if event.topic in ("", topic) and event.group in ("", group):
                del self.stats.expired_of[topic, group]
        self.lite.drop(event.topic, event.group)
        if event.topic and event.group:
            self._tables.offsets.remove(event.topic, event.group)
        elif event.topic:
            self._tables.offsets.remove_topic(event.topic)
        else:
            self._tables.offsets.remove_group(event.group)
        if event.topic.startswith(LIGHT_PREFIX):
            return  # receives wait in the parent topic's lists
        self.long_polling.end_waits(event.topic or None, event.group or None)
        if event.topic:
            self.long_polling.end_waits(light_topic_name(event.topic, ""), event.group or None)

    @property
    def expiry_late_ms(self) -> int:
        """For how long the next message whose invisible time is over has not been made visible."""
        return self._visibility.late_ms

    def queue_delivery(self, topic: str, group: str, queue_id: int) -> QueueDelivery | None:
        """The delivery state of a queue, read-only; None if the group has not received since the start."""
        queue = self._subscriptions.queue(topic, group, queue_id)
        return None if queue is None else queue.delivery

    def handle_of(self, topic: str, group: str, queue_id: int, offset: int, until_ms: int) -> str | None:
        """The receipt handle of a delivery in flight, found by the data of a POP client of RocketMQ: it stays invisible
        until `until_ms` or a little less. None if there is none, or only a later delivery."""
        queue = self._subscriptions.queue(topic, group, queue_id)
        entry = None if queue is None else queue.delivery.in_flight.get(offset)
        if queue is None or entry is None or entry.invisible_until_ms > until_ms:
            return None
        return handle_of(queue, offset, entry.nonce, self._run_number)

    def next_of(self, topic: str, group: str, queue_id: int) -> tuple[int, bool]:
        """The offset of the first message of a queue that the group has not seen, and whether one is ready again."""
        delivery = self.queue_delivery(topic, group, queue_id)
        return self.read_offset(topic, group, queue_id) or 0, delivery is not None and bool(delivery.ready)

    def read_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """The offset after the messages of a queue that the group has seen; None if it has no position there. Of a
        group that pulls, the offset that it has committed."""
        delivery = self.queue_delivery(topic, group, queue_id)
        return self.committed_offset(topic, group, queue_id) if delivery is None else delivery.cursor

    def statuses(self, group: str) -> Iterator[QueueStatus]:
        """Every queue in which the group has a position. There may be tens of thousands, and each takes some
        microseconds: other tasks may run between two of them."""
        return self._subscriptions.statuses(group)
