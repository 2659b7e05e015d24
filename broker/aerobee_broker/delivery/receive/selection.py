"""Selects the messages of a receive: from which queues, in which order, and the handling of lost messages.

Reading changes only the position from which a filter or an order continues; `_deliver` then changes the state of all
queues together with the journal, in the same step of the loop.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from aerobee_broker.config import Settings
from aerobee_broker.delivery.journal.event_log import (
    VERSION,
    VERSION_WITH_PASSED,
    EventKind,
    encode_acknowledged,
    encode_delivered,
)
from aerobee_broker.delivery.journal.history import History
from aerobee_broker.delivery.receive.auto_renewals import AutoRenewals
from aerobee_broker.delivery.receive.dead_letters import DeadLetters
from aerobee_broker.delivery.receive.receive_plan import ReceivePlan, ReceiveRequest
from aerobee_broker.delivery.receive.visibility import Visibility
from aerobee_broker.delivery.state import receipt_handle
from aerobee_broker.delivery.state.events import Delivered, new_nonce
from aerobee_broker.delivery.state.message_group_order import MessageGroupOrder
from aerobee_broker.delivery.state.priorities import Priorities, rank
from aerobee_broker.delivery.state.stats import DeliveryStats
from aerobee_broker.delivery.state.subscriptions import Queue, Subscriptions
from aerobee_broker.errors import TooManyRequestsError
from aerobee_broker.filters.message_filter import READ_BYTES_MAX, MessageFilter
from aerobee_store import MessageStore, Record
from aerobee_store.clock import Clock

_SEEN_PER_STEP_MAX: Final = 256  # messages of one queue that an orderly group examines before other tasks run
_SEEN_BYTES_MAX: Final = 8 << 20  # bytes of examined messages that are kept for the same receive
_UNRECORDED_MAX: Final = 128  # messages read but not delivered, before an event records them
# messages skipped by a filter, before an event records them: after a crash they are examined again
_PASSED_MAX: Final = 4096
_LEARNT_PER_STEP_MAX: Final = 256  # messages whose message group is read after a restart, per step


class DeliveredMessage(Struct, frozen=True):
    """One message for a client. `attempt` is 1 for the first delivery."""

    record: Record
    receipt_handle: str
    attempt: int


class Look(Struct, frozen=True):
    """One examination of the queues for a request, with its current limits."""

    request: ReceiveRequest
    plan: ReceivePlan
    count: int  # the request's, or fewer
    bytes_max: int  # bytes of records; the first one may be larger
    attempt_max: int  # deliveries before a message becomes a dead letter
    is_last: bool = False  # there is no time for another one: the best message read so far is taken


class Received(Struct):
    """The result of one examination of the queues."""

    messages: list[DeliveredMessage] = field(default_factory=list)
    parts: list[tuple[Queue, list[int], int]] = field(default_factory=list)  # queue, offsets, nonce
    needs_dead_letter_topic: bool = False
    more: bool = False  # stopped before the end: look again
    bytes_left: int = 0  # of records; below 0 by less than one of them
    vain_reads_left: int = 0  # of new messages, all of which the filter skips


class _Reading(Struct):
    """The messages to be delivered from one queue."""

    cursor: int
    records: list[Record] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)  # lost, filtered out, or dead letters


class ReceivingParts(Struct, frozen=True, kw_only=True):
    """The parts that taking messages reads and changes."""

    store: MessageStore
    clock: Clock
    settings: Settings
    subscriptions: Subscriptions
    visibility: Visibility
    auto_renewals: AutoRenewals
    dead_letters: DeadLetters
    history: History
    stats: DeliveryStats
    run_number: int  # identifies this process in receipt handles


class Receiving:
    """Takes messages from queues. Event loop only."""

    def __init__(self, parts: ReceivingParts) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._settings = parts.settings
        self._subscriptions = parts.subscriptions
        self._visibility = parts.visibility
        self._auto_renewals = parts.auto_renewals
        self._dead_letters = parts.dead_letters
        self._history = parts.history
        self._stats = parts.stats
        self._run = parts.run_number

    def take(self, queues: Sequence[Queue], look: Look) -> Received:
        """Deliver the messages available now: redeliveries first, then new messages, in the order of `queues`."""
        look.request.wanted.announce(self._store, look.request.topic, look.request.group)
        in_flight_max = self._settings.current.delivery.in_flight_per_group_max
        available = in_flight_max - self._subscriptions.in_flight_count(look.request.group)
        if available <= 0:
            raise TooManyRequestsError(
                f"consumer group {look.request.group!r} has {in_flight_max} messages in flight, the "
                "limit (delivery.in_flight_per_group_max); acknowledge some before receiving more"
            )
        if look.count > available:
            look = replace(look, count=available)
        if look.plan.order is MessageGroupOrder:
            return self._take_in_order(queues, look)
        if look.plan.order is Priorities:
            return self._take_by_priority(queues, look)
        return self._take_any(queues, look)

    def _take_any(self, queues: Sequence[Queue], look: Look) -> Received:
        now_ms = self._clock.now_ms()
        received = Received(bytes_left=look.bytes_max, vain_reads_left=look.request.wanted.reads_per_step)
        readings: dict[Queue, _Reading] = {}
        count = look.count
        for queue in queues:
            self._visibility.expire(queue, now_ms)
            if queue.delivery.order is not None:  # the group was orderly
                queue.delivery.forget_order()
            queue.delivery.make_ready(max(count, 0))
            if queue.delivery.ready and count > 0:
                reading = readings[queue] = _Reading(queue.delivery.cursor)
                offsets = queue.delivery.take_ready(count)
                received.needs_dead_letter_topic |= self._read_ready(queue, reading, offsets, look, received)
                count -= len(reading.records)
                if reading.finished and queue.delivery.waiting_count > len(reading.records) + len(reading.finished):
                    received.more = True
        for queue in queues:
            if count <= 0 or received.bytes_left <= 0:
                break
            if queue.delivery.cursor < self._subscriptions.end_of(queue):
                if not received.vain_reads_left:
                    received.more = True
                    break
                reading = readings.setdefault(queue, _Reading(queue.delivery.cursor))
                before = len(reading.records)
                received.more |= self._read_new(queue, reading, count, look.request.wanted, received)
                count -= len(reading.records) - before
        if readings:
            self._deliver(readings, received, look, now_ms)
        return received

    def _take_in_order(self, queues: Sequence[Queue], look: Look) -> Received:
        now_ms = self._clock.now_ms()
        received = Received(bytes_left=look.bytes_max)
        readings: dict[Queue, _Reading] = {}
        if look.plan.attempt is None or not self._repeat(queues, received, look.plan.attempt, look, now_ms):
            count = look.count
            for queue in queues:
                if count > 0 and (reading := self._read_in_order(queue, received, count, look, now_ms)):
                    readings[queue] = reading
                    count -= len(reading.records)
            self._deliver(readings, received, look, now_ms)
        return received

    def _take_by_priority(self, queues: Sequence[Queue], look: Look) -> Received:
        """All queues are read ahead as far as allowed, then the first messages of all of them are delivered."""
        now_ms = self._clock.now_ms()
        received = Received(bytes_left=look.bytes_max)
        seen: dict[Queue, dict[int, Record]] = {}
        for queue in queues:
            self._visibility.expire(queue, now_ms)
            if not self._learn(queue, queue.delivery.keep_order(Priorities)):
                received.more = True
                continue
            seen[queue] = {}
            received.more |= self._see_ahead(queue, look.request.wanted, seen[queue])
        readings = {queue: _Reading(queue.delivery.cursor) for queue in seen}
        if not received.more or look.is_last:
            for queue, offsets in self._highest(seen, look.count, received).items():
                received.needs_dead_letter_topic |= self._read_ready(
                    queue, readings[queue], offsets, look, received, seen[queue]
                )
                received.more |= bool(readings[queue].finished)
        self._deliver(readings, received, look, now_ms)
        received.messages.sort(key=_urgency)
        return received

    def _highest(
        self, seen: Mapping[Queue, dict[int, Record]], count: int, received: Received
    ) -> dict[Queue, list[int]]:
        """The offsets, ascending, of the `count` messages of all queues with the highest priority, then the oldest.

        Fewer if they have too many bytes. Adds messages to `seen` that it has to read for that.
        """
        queues = list(seen)
        left = received.bytes_left
        heads: list[
            tuple[int, int, int, int, Iterator[int]]
        ] = []  # rank, place in the log, offset, queue, the next ones
        found: dict[Queue, list[int]] = {}

        def push(number: int, following: Iterator[int]) -> None:
            offset = next(following, None)
            if offset is not None:
                queue = queues[number]
                order = queue.delivery.keep_order(Priorities)
                place = self._store.physical_offset_at(queue.key.topic, queue.key.queue_id, offset) or 0
                heapq.heappush(heads, (order.rank_of(offset), place, offset, number, following))

        for number, queue in enumerate(queues):
            push(number, iter(queue.delivery.take_ready(count)))
        for _ in range(count):
            if not heads:
                break
            _, _, offset, number, following = heapq.heappop(heads)
            found.setdefault(queues[number], []).append(offset)
            record = seen[queues[number]].get(offset) or self._subscriptions.read_one(queues[number], offset)
            if record is not None:
                seen[queues[number]][offset] = record
                left -= record.size
            if left <= 0:
                break
            push(number, following)
        return {queue: sorted(offsets) for queue, offsets in found.items()}

    def _invisible_until(self, look: Look, now_ms: int) -> tuple[int, str | None]:
        if look.request.invisible_ms is not None:
            return now_ms + look.request.invisible_ms, None
        return now_ms + int(self._settings.current.delivery.auto_renew_seconds_max * 1000), look.request.client_id

    def _repeat(self, queues: Sequence[Queue], received: Received, attempt: int, look: Look, now_ms: int) -> bool:
        """Deliver the messages in flight from this attempt's answer again as the same delivery; False if there are
        none."""
        events, finished_events, passes_over = [], [], False
        count = look.count
        until_ms, owner = self._invisible_until(look, now_ms)
        for queue in queues:
            self._visibility.expire(queue, now_ms)
            queue.delivery.keep_order(MessageGroupOrder)
            nonce = attempt ^ queue.key.queue_id
            if count <= 0 or not queue.delivery.is_in_flight_under(nonce):
                continue
            records = []
            for offset in queue.delivery.in_flight_under(nonce)[:count]:
                record = self._subscriptions.read_one(queue, offset)
                if record is None:
                    self._stats.lost += 1
                    finished_events.append(encode_acknowledged(queue.encoded_key, queue.delivery.finish([offset])))
                else:
                    records.append(record)
            if not records:
                continue
            offsets = [record.queue_offset for record in records]
            event = queue.delivery.repeat(offsets, nonce=nonce, invisible_until_ms=until_ms, client_id=owner)
            events.append(encode_delivered(queue.encoded_key, event))
            passes_over |= event.passes_over
            self._make_messages(queue, records, event, received.messages)
            self._note_delivered(queue, offsets, nonce, look, received)
            count -= len(records)
        self._record(finished_events, events, passes_over, received, now_ms)
        return bool(events)

    def _read_in_order(self, queue: Queue, received: Received, count: int, look: Look, now_ms: int) -> _Reading | None:
        """Read up to `count` messages that do not wait for another of their message group; None: not yet possible."""
        delivery = queue.delivery
        self._visibility.expire(queue, now_ms)
        order = delivery.keep_order(MessageGroupOrder)
        is_all_known = self._learn(queue, order)
        if order.unknown:
            received.more = True
            return None
        seen: dict[int, Record] = {}
        # Unread messages follow all known ones of their message group, and precede new messages.
        received.more |= not is_all_known or self._see(queue, count, look.request.wanted, seen)
        reading = _Reading(delivery.cursor)
        offsets = delivery.take_ready(count)
        received.needs_dead_letter_topic |= self._read_ready(queue, reading, offsets, look, received, seen)
        received.more |= bool(reading.finished)  # the next one of that message group may follow
        return reading

    def _learn(self, queue: Queue, order: MessageGroupOrder | Priorities) -> bool:
        """Read the labels of some messages from before the order; True if all are known."""
        delivery = queue.delivery
        unknown = sorted(islice(order.unknown, _LEARNT_PER_STEP_MAX))
        for offset, label in self._labels_of(queue, unknown, order):
            delivery.learn(offset, label)
        if not order.unknown:
            ready_max = self._settings.current.delivery.fifo_waiting_max
            unread = list(islice(delivery.unread, _LEARNT_PER_STEP_MAX - len(unknown)))
            for offset, label in self._labels_of(queue, unread, order):
                delivery.learn_unread(offset, label, ready_max=ready_max)
        return delivery.is_order_known

    def _labels_of(
        self, queue: Queue, offsets: Sequence[int], order: MessageGroupOrder | Priorities
    ) -> Iterator[tuple[int, str]]:
        """(offset, label) of messages, ascending; adjacent ones are read together. "" for a message lost from the
        log."""
        labels: dict[int, str] = {}
        for index, offset in enumerate(offsets):
            if offset not in labels:
                count = 1
                while index + count < len(offsets) and offsets[index + count] == offset + count:
                    count += 1
                result = self._store.read(queue.key.topic, queue.key.queue_id, offset, max_count=count)
                for record in result.records:
                    labels[record.queue_offset] = record.properties.get(order.LABEL_PROPERTY, "")
            yield offset, labels.get(offset, "")

    def _see(self, queue: Queue, count: int, wanted: MessageFilter, seen: dict[int, Record]) -> bool:
        """Read new messages until `count` may be delivered; True if only this step was too short.

        Messages passed over here wait, in `delivery.ready` or paged out, and are not read again before they may be
        delivered.
        """
        delivery = queue.delivery
        budget = size = _SEEN_PER_STEP_MAX
        for turn in range(wanted.reads_per_step):
            missing = count - len(delivery.take_ready(count))
            if missing <= 0:
                return False
            # First read only the missing number; if these have to wait, a long run of waiting ones may follow.
            size = missing if turn == 0 else 4 * size
            size = min(size, budget)
            looked = self._see_next(queue, MessageGroupOrder, size, wanted, seen)
            if looked is None:
                return False
            budget -= looked
            if budget <= 0:
                break
        return len(delivery.take_ready(count)) < count

    def _see_ahead(self, queue: Queue, wanted: MessageFilter, seen: dict[int, Record]) -> bool:
        """Read new messages up to the limit of waiting ones, to find the first to deliver; True if there are more."""
        budget = _SEEN_PER_STEP_MAX
        for _ in range(wanted.reads_per_step):
            available = self._settings.current.delivery.priority_waiting_max - len(queue.delivery.ready)
            if available <= 0:
                return False
            looked = self._see_next(queue, Priorities, min(budget, available), wanted, seen)
            if looked is None:
                return False
            budget -= looked
            if budget <= 0:
                break
        return True

    def _see_next(
        self,
        queue: Queue,
        order: type[MessageGroupOrder | Priorities],
        size: int,
        wanted: MessageFilter,
        seen: dict[int, Record],
    ) -> int | None:
        """Read up to `size` messages from the cursor on; returns the number read, None at the end of the queue."""
        delivery = queue.delivery
        before = delivery.cursor
        result = wanted.read(self._store, queue.key.topic, queue.key.queue_id, before, size, queue.key.group)
        if result.next_offset <= before:
            return None
        self._stats.lost += result.lost
        if result.status == "offset-too-small":
            self._stats.lost += result.next_offset - before
        # others are read again when they are delivered
        if sum(record.size for record in seen.values()) < _SEEN_BYTES_MAX:
            seen.update((record.queue_offset, record) for record in result.records)
        label = order.LABEL_PROPERTY
        delivery.see(
            [(record.queue_offset, record.properties.get(label, "")) for record in result.records],
            result.next_offset,
            ready_max=self._settings.current.delivery.fifo_waiting_max,
        )
        if result.next_offset >= result.max_offset:
            return None
        return len(result.records) if wanted.condition is None else result.next_offset - before

    def _read_ready(
        self,
        queue: Queue,
        reading: _Reading,
        offsets: Sequence[int],
        look: Look,
        received: Received,
        seen: Mapping[int, Record] | None = None,
    ) -> bool:
        """Read these ready messages; True if some wait for a dead-letter topic that does not exist.

        `seen`: messages that have been read already.
        """
        delivery = queue.delivery
        has_dead_letter_topic = self._dead_letters.has_topic(queue.key.group)
        waits = False
        stuck: set[str] = set()  # message groups whose first message waits for that topic
        order = delivery.order if isinstance(delivery.order, MessageGroupOrder) else None
        for offset in offsets:
            if received.bytes_left <= 0:
                received.more = True
                break
            if stuck and order is not None and order.message_group_of(offset) in stuck:
                continue
            record = seen.get(offset) if seen else None
            if record is None:
                record = self._subscriptions.read_one(queue, offset)
            if record is None:
                self._stats.lost += 1
                reading.finished.append(offset)
            elif not look.request.wanted.passes(record, queue.key.group):
                reading.finished.append(offset)
            elif delivery.ready[offset] < look.attempt_max:
                reading.records.append(record)
                received.bytes_left -= record.size
            elif has_dead_letter_topic:
                self._dead_letters.append(record, queue)
                received.bytes_left -= record.size
                reading.finished.append(offset)
            else:
                waits = True
                if order is not None:
                    stuck.add(order.message_group_of(offset))
        return waits

    def _read_new(self, queue: Queue, reading: _Reading, count: int, wanted: MessageFilter, received: Received) -> bool:
        """Read up to `count` messages that were never delivered; True if there may be more."""
        while received.vain_reads_left:
            key, left = queue.key, min(received.bytes_left, READ_BYTES_MAX)
            offset = reading.cursor
            result = wanted.read(self._store, key.topic, key.queue_id, offset, count, key.group, max_bytes=left)
            if result.next_offset <= reading.cursor:
                return False
            self._stats.lost += result.lost
            if result.status == "offset-too-small":
                self._stats.lost += result.next_offset - reading.cursor
            reading.records.extend(result.records)
            reading.cursor = result.next_offset
            count -= len(result.records)
            received.vain_reads_left -= not result.records
            received.bytes_left -= sum(record.size for record in result.records)
            if result.next_offset >= result.max_offset:
                return False
            if count <= 0 or received.bytes_left <= 0:
                return True
        return True

    def _deliver(self, readings: dict[Queue, _Reading], received: Received, look: Look, now_ms: int) -> None:
        """Change the state of the queues, write it to the journal, make the receipt handles."""
        until_ms, owner = self._invisible_until(look, now_ms)
        events = []
        finished_events = []
        passes_over = False
        for queue, reading in readings.items():
            delivery = queue.delivery
            if reading.finished:
                event = delivery.finish(reading.finished)
                finished_events.append(encode_acknowledged(queue.encoded_key, event))
            if reading.records:
                nonce = new_nonce() if look.plan.attempt is None else look.plan.attempt ^ queue.key.queue_id
                offsets = [record.queue_offset for record in reading.records]
                passes_over |= delivery.unrecorded_count > 0
                delivered = delivery.deliver(
                    offsets, reading.cursor, nonce=nonce, invisible_until_ms=until_ms, client_id=owner
                )
                events.append(encode_delivered(queue.encoded_key, delivered))
                self._make_messages(queue, reading.records, delivered, received.messages)
                self._note_delivered(queue, offsets, nonce, look, received)
            else:
                delivery.skip(reading.cursor)
                if delivery.unrecorded_count >= _UNRECORDED_MAX or delivery.unrecorded_span >= _PASSED_MAX:
                    passed = delivery.record_seen()
                    events.append(encode_delivered(queue.encoded_key, passed))
                    passes_over |= passed.passes_over
            self._subscriptions.note_commit(queue)
        self._record(finished_events, events, passes_over, received, now_ms)

    def _note_delivered(self, queue: Queue, offsets: list[int], nonce: int, look: Look, received: Received) -> None:
        received.parts.append((queue, offsets, nonce))
        self._subscriptions.note_busy(queue)
        self._visibility.schedule(queue)
        if look.request.invisible_ms is None:
            self._auto_renewals.note(look.request.client_id, queue, look.plan.attempt)

    def _record(
        self, finished: list[bytes], delivered: list[bytes], passes_over: bool, received: Received, now_ms: int
    ) -> None:
        """Write the delivery to the journal, or undo it."""
        try:
            if finished:
                self._history.append(EventKind.ACKNOWLEDGED, finished, now_ms)
            if delivered:
                version = VERSION_WITH_PASSED if passes_over else VERSION
                self._history.append(EventKind.DELIVERED, delivered, now_ms, version=version)
        except BaseException:
            self._visibility.give_back(received.parts)
            raise

    def _make_messages(
        self, queue: Queue, records: Sequence[Record], event: Delivered, messages: list[DeliveredMessage]
    ) -> None:
        nonce = event.nonce
        index = 0
        for run in event.runs:
            if not run.attempt:
                continue  # skipped
            for record in records[index : index + run.size]:
                handle = handle_of(queue, record.queue_offset, nonce, self._run)
                earlier = record.reconsume_times if queue.retry_version else 0
                messages.append(DeliveredMessage(record, handle, run.attempt + earlier))
            index += run.size
            if run.attempt > 1:
                self._stats.redelivered += run.size
        self._stats.delivered += index


def handle_of(queue: Queue, offset: int, nonce: int, run: int) -> str:
    """The receipt handle of a delivery."""
    return receipt_handle.encode(queue.key.queue_id, offset, nonce, run, queue.owner, queue.part)


def _urgency(message: DeliveredMessage) -> tuple[int, int]:
    record = message.record
    return rank(record.properties.get(Priorities.LABEL_PROPERTY, "")), record.physical_offset
