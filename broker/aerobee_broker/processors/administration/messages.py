"""One message: sent by an operator, and its history.

A timeline is assembled from these sources only:

    the record                     born, stored; times of the timer and of the transaction, in its properties
    the timer's and half topics    delayed, recalled, prepared, rolled back: found by the message id
    the delivery state             the present state for each group
    the groups' dead letters       dead-lettered: found by the message id
    the delivery journal           each delivery, change and acknowledgement with its time: read from the message's
                                   store time on, at most JOURNAL_READ_MAX events, only on request
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final, NamedTuple

from aerobee_broker.clients.registry import Client
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.delivery.journal.event_log import JOURNAL_QUEUE_ID, JOURNAL_TOPIC, decode
from aerobee_broker.delivery.receive.lite import LITE_QUEUE_ID
from aerobee_broker.delivery.state.events import Acknowledged, Changed, Delivered, Reset
from aerobee_broker.errors import InvalidRequestError, JournalFormatError
from aerobee_broker.limits.loop_share import READ_COUNT, STEP_SIZE, Steps
from aerobee_broker.messages.key_query import ANSWER_SIZE_MAX, find_by_key, find_by_message_id
from aerobee_broker.messages.message_mapping import TRANSACTION, to_wire_message
from aerobee_broker.processors.administration.dead_letters import find_resent
from aerobee_broker.processors.administration.wire import OK, clear_body, may_read_bodies, resource, timestamp
from aerobee_broker.processors.sending.send import SendProcessor
from aerobee_broker.tables.consumer_groups import is_system_group
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import dead_letter_topic, light_topic_name
from aerobee_broker.transactions.half_messages import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, Outcome, read_op
from aerobee_proto import admin_v1, v2
from aerobee_store import MessageStore, Record
from aerobee_store.clock import Clock
from aerobee_store.queues.multi_dispatch import NAME_SEPARATOR
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import decimal
from aerobee_store.records.message_fields import LAST_MS, LITE_TOPIC, TIMER_TOPIC
from aerobee_store.records.record import TransactionType

JOURNAL_READ_MAX: Final = 100_000  # messages of the journal, each with one or more events
_COPIES_MAX: Final = 16  # timelines per answer, and records examined for each of their parts
_OPS_READ_MAX: Final = 10_000

_Kind = admin_v1.TimelineEvent.Kind
_State = admin_v1.GroupMessageState.State


class _Place(NamedTuple):
    """A message in a queue."""

    topic: str
    queue_id: int
    offset: int


class MessageAdministration:
    """One method per RPC."""

    def __init__(
        self, *, store: MessageStore, tables: Tables, deliveries: Deliveries, send: SendProcessor, clock: Clock
    ) -> None:
        self._store = store
        self._tables = tables
        self._deliveries = deliveries
        self._send = send
        self._clock = clock

    # --- Sending ----------------------------------------------------------------------------------------------

    async def send(self, request: v2.AdminSendMessageRequest, client: Client) -> v2.AdminSendMessageResponse:
        """Admin.AdminSendMessage: sends like a producer. An id is generated unless one is given.

        ext_info is ignored.
        """
        system = v2.SystemProperties()
        system.CopyFrom(request.system_properties)
        if system.message_type == TRANSACTION:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST,
                "this call cannot begin a transaction, without a producer to end it; use a producer",
            )
        if request.HasField("tag"):
            system.tag = request.tag
        if request.HasField("key"):
            system.keys.append(request.key)
        if not system.message_id:
            system.message_id = f"01{uuid.uuid4().hex.upper()}"  # the id length of producers
        if not system.HasField("born_timestamp"):
            system.born_timestamp.CopyFrom(timestamp(self._clock.now_ms()))
        message = v2.Message(
            topic=request.topic, user_properties=request.user_properties, system_properties=system, body=request.body
        )
        await self._send.process(v2.SendMessageRequest(messages=[message]), client)
        return v2.AdminSendMessageResponse(status=OK, message_id=system.message_id)

    # --- Timelines --------------------------------------------------------------------------------------------

    async def describe(
        self, request: admin_v1.DescribeMessageRequest, client: Client
    ) -> admin_v1.DescribeMessageResponse:
        topic = self._tables.topics.require(request.topic).name
        if request.group:
            self._tables.groups.require(request.group)
        timelines = []
        for record in await self._records(request, topic):
            if record.topic == topic:
                timelines.append(await self._timeline(record, request))
            else:
                timelines.append(await self._not_yet(record, topic, request.group))
        if not timelines:
            what = f"message {request.message_id[:200]!r}" if request.message_id else "message there"
            raise InvalidRequestError(
                v2.Code.MESSAGE_NOT_FOUND,
                f"no {what} in topic {topic!r}; it never existed or has expired",
            )
        if not may_read_bodies(client, topic):
            for timeline in timelines:
                clear_body(timeline.message)
        return admin_v1.DescribeMessageResponse(status=OK, timelines=timelines)

    async def _records(self, request: admin_v1.DescribeMessageRequest, topic: str) -> list[Record]:
        """Records in the topic; otherwise records in the topic where the message waits, or where it was stored last."""
        if request.HasField("queue_id") and request.HasField("queue_offset"):
            found = self._store.read(topic, request.queue_id, request.queue_offset, max_count=1).records
            return [record for record in found if record.queue_offset == request.queue_offset]
        if not request.message_id.strip():
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST, "the request names no message; give message_id, or queue_id and queue_offset"
            )
        if found := await find_by_message_id(self._store, self._deliveries.loop_share, topic, request.message_id):
            return found[-_COPIES_MAX:]
        for system_topic in (TIMER_TOPIC, HALF_TOPIC):
            if found := await self._waiting(system_topic, topic, request.message_id):
                return found[-1:]  # earlier copies were stored again on the way
        return []

    async def _with_key(self, topic: str, key: str, *, count_max: int = _COPIES_MAX) -> list[Record]:
        """The newest messages with the key, oldest first."""
        return await find_by_key(
            self._store, self._deliveries.loop_share, topic, key, count_max=count_max, size_max=ANSWER_SIZE_MAX
        )

    async def _waiting(self, system_topic: str, topic: str, message_id: str) -> list[Record]:
        return [
            record
            for record in await self._with_key(system_topic, message_id)
            if record.unique_key == message_id
            and record.properties.get(p.REAL_TOPIC) == topic
            and p.TIMER_DELETE_UNIQ_KEY not in record.properties
        ]

    async def _timeline(self, record: Record, request: admin_v1.DescribeMessageRequest) -> admin_v1.MessageTimeline:
        timeline = admin_v1.MessageTimeline(
            message=to_wire_message(record, resource(record.topic)),
            physical_offset=record.physical_offset,
            size=record.size,
        )
        events = [*await self._before(record), _event(_Kind.STORED, record.store_timestamp, detail=_place(record))]
        place = _delivered_place(record)
        groups = self._groups(place.topic, request.group)
        for group in groups:
            state = self._state(place, group)
            dead = await self._dead_letter(record, group)
            if dead is not None:
                if state.state == _State.FINISHED:
                    state.state = _State.DEAD_LETTER
                detail = f"{dead.topic}, offset {dead.queue_offset}"
                events.append(_event(_Kind.DEAD_LETTER, dead.store_timestamp, group, detail=detail))
                resent = await find_resent(self._store, self._deliveries.loop_share, dead, record.topic)
                if resent is not None:
                    events.append(_event(_Kind.RESENT, resent.store_timestamp, group, detail=_place(resent)))
            timeline.groups.append(state)
        if request.history:
            found, timeline.history_complete = await self._history(record, place, set(groups))
            events += found
        known = {event.group for event in events if event.kind in (_Kind.FINISHED, _Kind.DEAD_LETTER)}
        events += [
            admin_v1.TimelineEvent(kind=_Kind.FINISHED, group=state.group)
            for state in timeline.groups
            if state.state == _State.FINISHED and state.group not in known
        ]
        timeline.events.extend(_in_order(events))
        return timeline

    def _groups(self, topic: str, wanted: str) -> list[str]:
        names = [wanted] if wanted else sorted(self._tables.offsets.groups_of(topic))
        return [name for name in names if not is_system_group(name)]

    async def _before(self, record: Record) -> list[admin_v1.TimelineEvent]:
        """The events before the message was in its topic."""
        events = [_event(_Kind.BORN, record.born_timestamp, detail=f"on {record.born_host[0]}")]
        message_id, properties = record.unique_key, record.properties
        if not message_id:
            return events
        if p.TIMER_DELIVER_MS in properties or p.TIMER_OUT_MS in properties:
            for waited in (await self._waiting(TIMER_TOPIC, record.topic, message_id))[:1]:
                events.append(self._delayed(waited))
        if record.transaction_type is TransactionType.COMMIT:
            for half in (await self._waiting(HALF_TOPIC, record.topic, message_id))[:1]:
                events.append(_event(_Kind.PREPARED, half.store_timestamp))
            events.append(_event(_Kind.COMMITTED, record.store_timestamp))
        return events

    def _delayed(self, waiting: Record) -> admin_v1.TimelineEvent:
        event = _event(_Kind.DELAYED, waiting.store_timestamp)
        due_ms = decimal(waiting.properties.get(p.TIMER_DELIVER_MS), LAST_MS)
        if due_ms is not None:
            event.until.CopyFrom(timestamp(due_ms))
        return event

    async def _not_yet(self, record: Record, topic: str, wanted: str) -> admin_v1.MessageTimeline:
        """Events of a message that is not in its topic, and may never be."""
        timeline = admin_v1.MessageTimeline(
            message=to_wire_message(record, resource(topic)), physical_offset=record.physical_offset, size=record.size
        )
        events = [_event(_Kind.BORN, record.born_timestamp, detail=f"on {record.born_host[0]}")]
        over = False
        if record.topic == TIMER_TOPIC:
            events.append(self._delayed(record))
            if recall := await self._recall(record, topic):
                events.append(_event(_Kind.RECALLED, recall.store_timestamp))
                over = True
        else:
            events.append(_event(_Kind.PREPARED, record.store_timestamp))
            if decision := await self._decision(record, topic):
                events.append(decision)
                over = True
        if not over:
            timeline.groups.extend(
                admin_v1.GroupMessageState(group=name, state=_State.NOT_YET) for name in self._groups(topic, wanted)
            )
        timeline.events.extend(_in_order(events))
        return timeline

    async def _recall(self, record: Record, topic: str) -> Record | None:
        for found in await self._with_key(TIMER_TOPIC, record.unique_key or ""):
            values = found.properties
            if p.TIMER_DELETE_UNIQ_KEY in values and values.get(p.REAL_TOPIC) == topic:
                return found
        return None

    async def _decision(self, half: Record, topic: str) -> admin_v1.TimelineEvent | None:
        """The outcome of a transaction without a message in its topic; None if it is open or the outcome is no longer
        known."""
        for given_up in await self._with_key(GIVEN_UP_TOPIC, half.unique_key or "", count_max=1):
            return _event(_Kind.GIVEN_UP, given_up.store_timestamp)
        low, high = self._store.queue_range(OP_TOPIC, 0)
        position = max(low, self._store.offset_by_time(OP_TOPIC, 0, half.store_timestamp))
        end = min(high, position + _OPS_READ_MAX)
        steps = Steps(self._deliveries.loop_share)
        while position < end:
            result = self._store.read(
                OP_TOPIC, 0, position, max_count=min(READ_COUNT, end - position), max_bytes=STEP_SIZE
            )
            await steps.did(STEP_SIZE)
            for record in result.records:
                op = read_op(record)
                if op is not None and half.queue_offset in op.queue_offsets and op.outcome is Outcome.ROLLBACK:
                    return _event(_Kind.ROLLED_BACK, record.store_timestamp)
            if result.next_offset <= position:
                break
            position = result.next_offset
        return None

    # --- Groups -----------------------------------------------------------------------------------------------

    def _state(self, place: _Place, group: str) -> admin_v1.GroupMessageState:
        wire = admin_v1.GroupMessageState(group=group)
        offset = place.offset
        delivery = self._deliveries.queue_delivery(place.topic, group, place.queue_id)
        if delivery is None:
            committed = self._tables.offsets.get(place.topic, group, place.queue_id)
            if committed is not None:
                wire.state = _State.FINISHED if offset < committed else _State.WAITING
        elif (flight := delivery.in_flight.get(offset)) is not None:
            wire.state, wire.attempts = _State.IN_FLIGHT, flight.attempt
            wire.invisible_until.CopyFrom(timestamp(flight.invisible_until_ms))
            wire.client_id = flight.client_id or ""
        elif (deliveries := delivery.deliveries_of_waiting(offset)) is not None:
            # In an ordered group, a message that waits for its message group has been read but not delivered.
            wire.state, wire.attempts = (_State.READY, deliveries) if deliveries else (_State.WAITING, 0)
        else:
            wire.state = _State.FINISHED if offset < delivery.cursor else _State.WAITING
        return wire

    async def _dead_letter(self, record: Record, group: str) -> Record | None:
        """The copy among the group's dead letters. Two messages with the same id in a topic cannot be distinguished
        there."""
        if not record.unique_key:
            return None
        for found in await self._with_key(dead_letter_topic(group), record.unique_key):
            if found.properties.get(p.DLQ_ORIGIN_TOPIC, record.topic) == record.topic:
                return found
        return None

    # --- History ----------------------------------------------------------------------------------------------

    async def _history(
        self, record: Record, place: _Place, groups: set[str]
    ) -> tuple[list[admin_v1.TimelineEvent], bool]:
        """The journal's events about the message, and whether the journal was read completely."""
        # A delivery is answered when its event is in the log, but the event can be read only once it is on disk.
        await self._store.wait_stored(self._store.positions[0], durable=True)
        low, high = self._store.queue_range(JOURNAL_TOPIC, JOURNAL_QUEUE_ID)
        if low == high:
            return [], True
        begin = max(low, self._store.offset_by_time(JOURNAL_TOPIC, JOURNAL_QUEUE_ID, record.store_timestamp))
        oldest = self._store.store_timestamp_at(JOURNAL_TOPIC, JOURNAL_QUEUE_ID, low)
        complete = low == 0 or (oldest is not None and oldest <= record.store_timestamp)
        position, end = begin, min(high, begin + JOURNAL_READ_MAX)
        mark = place.topic.encode()
        events: list[admin_v1.TimelineEvent] = []
        steps = Steps(self._deliveries.loop_share)
        while position < end:
            count = min(READ_COUNT, end - position)
            result = self._store.read(JOURNAL_TOPIC, JOURNAL_QUEUE_ID, position, max_count=count, max_bytes=STEP_SIZE)
            complete = complete and not result.lost
            for written in result.records:
                if mark not in written.body:
                    continue
                try:
                    events += self._journal_events(written, place, groups)
                except JournalFormatError:
                    complete = False
            if result.next_offset <= position:
                break
            position = result.next_offset
            await steps.did(STEP_SIZE)
        return events, complete and position >= high

    def _journal_events(self, written: Record, place: _Place, groups: set[str]) -> Iterator[admin_v1.TimelineEvent]:
        offset, at = place.offset, written.store_timestamp
        for entry in decode(written.body, written.queue_offset):
            key = entry.key
            if key is None or (key.topic, key.queue_id) != (place.topic, place.queue_id) or key.group not in groups:
                continue
            match entry.event:
                case Delivered() as event:
                    runs = [run for run in event.runs if run.offset <= offset < run.offset + run.size]
                    if runs and runs[0].attempt:
                        found = _event(_Kind.DELIVERED, at, key.group, attempt=runs[0].attempt)
                        found.until.CopyFrom(timestamp(event.invisible_until_ms))
                        found.client_id = event.client_id or ""
                        yield found
                    elif not runs and event.begin <= offset < event.cursor:
                        yield _event(_Kind.FINISHED, at, key.group, detail="left out by the filter of the group")
                case Acknowledged() as event:
                    if any(first <= offset < last for first, last in event.ranges):
                        yield _event(_Kind.FINISHED, at, key.group)
                case Changed() as event if event.offset == offset:
                    found = _event(_Kind.CHANGED, at, key.group, attempt=event.attempt)
                    found.until.CopyFrom(timestamp(event.invisible_until_ms))
                    yield found
                case Reset() as event:
                    what = "it is finished" if offset < event.offset else "its deliveries are counted from 1 again"
                    yield _event(_Kind.RESET, at, key.group, detail=f"to offset {event.offset}: {what}")
                case _:
                    pass  # a snapshot repeats earlier events


def _delivered_place(record: Record) -> _Place:
    """The queue from which groups get the message: for a lite topic, the light queue."""
    lite_topic = record.properties.get(LITE_TOPIC)
    if lite_topic:
        light = light_topic_name(record.topic, lite_topic)
        names = record.properties.get(p.INNER_MULTI_DISPATCH, "").split(NAME_SEPARATOR)
        offsets = record.properties.get(p.INNER_MULTI_QUEUE_OFFSET, "").split(NAME_SEPARATOR)
        for name, offset in zip(names, offsets, strict=False):
            if name == light and (number := decimal(offset)) is not None:
                return _Place(light, LITE_QUEUE_ID, number)
    return _Place(record.topic, record.queue_id, record.queue_offset)


def _event(
    kind: admin_v1.TimelineEvent.Kind.ValueType, at_ms: int, group: str = "", *, attempt: int = 0, detail: str = ""
) -> admin_v1.TimelineEvent:
    return admin_v1.TimelineEvent(kind=kind, timestamp=timestamp(at_ms), group=group, attempt=attempt, detail=detail)


def _place(record: Record) -> str:
    return f"queue {record.queue_id}, offset {record.queue_offset}"


def _in_order(events: list[admin_v1.TimelineEvent]) -> list[admin_v1.TimelineEvent]:
    """Sorted by time. Events of one millisecond keep their order; events without a time come last."""

    def key(event: admin_v1.TimelineEvent) -> tuple[bool, int]:
        has_time = event.HasField("timestamp")
        return not has_time, event.timestamp.ToMilliseconds() if has_time else 0

    return sorted(events, key=key)
