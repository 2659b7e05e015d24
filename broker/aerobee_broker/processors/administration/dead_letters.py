"""The dead letters of groups: list, show, resend, delete.

Resending stores a dead letter again in its original topic, with its id. The property RESENT_FROM names the dead letter
and shows later which ones were resent. Nothing else is recorded, so the record cannot disagree with the log. The
property ONLY_GROUP hides the message from all other groups of the topic. If the operator names a topic, every group of
that topic gets the message.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import BrokerError, InvalidRequestError
from aerobee_broker.limits.loop_share import READ_COUNT, STEP_SIZE, LoopShare, Steps
from aerobee_broker.messages.admission import Admission, Destination
from aerobee_broker.messages.key_query import find_by_message_id, newest_with_key
from aerobee_broker.messages.message_mapping import RESENT_FROM, timestamp_ms, to_wire_message
from aerobee_broker.messages.validation import refusal
from aerobee_broker.processors.administration.wire import (
    OK,
    clear_body,
    common_status,
    may_read_bodies,
    page_count,
    page_of,
    resource,
    timestamp,
)
from aerobee_broker.processors.statuses import status_of
from aerobee_broker.tables.deleted_letters import DeletedLetters
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import dead_letter_topic
from aerobee_broker.timer.level_delay import LEVEL_ORIGIN
from aerobee_broker.timer.state import TIMER_ORIGIN
from aerobee_proto import admin_v1, v2
from aerobee_store import InvalidMessageError, MessageStore, Record
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import decimal
from aerobee_store.records.message_fields import (
    EMPTY_PROPERTIES,
    EXACT_KEYS,
    ONLY_GROUP,
    keys_of,
    properties_of,
    user_properties_of,
)
from aerobee_store.records.message_rules import BrokenRuleError, check_message
from aerobee_store.records.record import SYS_FLAG_COMPRESSED, SYS_FLAG_COMPRESSION_TYPE
from aerobee_store.records.topic_names import DEAD_LETTER_PREFIX

DEAD_LETTER_QUEUE_ID: Final = 0  # there is one queue, as in RocketMQ
_PAGE_COUNT: Final = 100
_PAGE_SIZE_MAX: Final = 16 << 20  # bytes of records in one answer
_RESEND_COUNT_MAX: Final = 1000
_COPIES_MAX: Final = 64
_RESEND_SIZE: Final = 4 << 10  # bytes whose handling takes as long as one resend
_TIME_MAX: Final = (1 << 63) - 1
# Properties of the earlier deliveries, of Aerobee and of RocketMQ.
_ENDED: Final = (
    *(p.DLQ_ORIGIN_TOPIC, p.DLQ_ORIGIN_MESSAGE_ID, p.REAL_TOPIC, p.REAL_QUEUE_ID, p.CRC32, p.DELAY),
    *(TIMER_ORIGIN, LEVEL_ORIGIN, ONLY_GROUP),
    *(p.TIMER_DELIVER_MS, p.TIMER_DELAY_MS, p.TIMER_DELAY_SEC, p.TIMER_OUT_MS, p.TIMER_ENQUEUE_MS),
    *(p.TIMER_DEQUEUE_MS, p.TIMER_ROLL_TIMES, p.TRANSACTION_MESSAGE),
    *("RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "POP_CK", "1ST_POP_TIME"),
    *("MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET"),
)


class DeadLetterAdministration:
    """One method per RPC."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: MessageStore,
        tables: Tables,
        admission: Admission,
        counters: BrokerCounters,
        deliveries: Deliveries,
        deleted: DeletedLetters,
    ) -> None:
        self._settings = settings
        self._deliveries = deliveries
        self._deleted = deleted
        self._store = store
        self._admission = admission
        self._loop_share = deliveries.loop_share
        self._tables = tables
        self._counters = counters

    async def list_queues(
        self, request: admin_v1.ListDeadLetterQueuesRequest, _: Client
    ) -> admin_v1.ListDeadLetterQueuesResponse:
        names = sorted(
            topic.name.removeprefix(DEAD_LETTER_PREFIX)
            for topic in self._tables.topics
            if topic.name.startswith(DEAD_LETTER_PREFIX) and self._count(topic.name)
        )
        page, token = page_of(names, request.page_size, request.page_token)
        queues = []
        for group in page:
            topic = dead_letter_topic(group)
            low, high = self._store.queue_range(topic, DEAD_LETTER_QUEUE_ID)
            queue = admin_v1.DeadLetterQueue(group=group, count=self._count(topic))
            for place, stored in (
                (queue.oldest_timestamp, self._store.store_timestamp_at(topic, DEAD_LETTER_QUEUE_ID, low)),
                (queue.newest_timestamp, self._store.store_timestamp_at(topic, DEAD_LETTER_QUEUE_ID, high - 1)),
            ):
                if stored is not None:
                    place.CopyFrom(timestamp(stored))
            queues.append(queue)
        return admin_v1.ListDeadLetterQueuesResponse(status=OK, queues=queues, next_page_token=token)

    async def list_letters(
        self, request: admin_v1.ListDeadLettersRequest, client: Client
    ) -> admin_v1.ListDeadLettersResponse:
        topic = self._topic(request.group)
        begin = timestamp_ms(request.begin_timestamp) if request.HasField("begin_timestamp") else 0
        end = timestamp_ms(request.end_timestamp) if request.HasField("end_timestamp") else _TIME_MAX
        if begin > end:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, "begin_timestamp is after end_timestamp; swap them")
        if request.message_id:
            found = await find_by_message_id(self._store, self._loop_share, topic, request.message_id)
            found = [
                record
                for record in found
                if begin <= record.store_timestamp <= end and not self._deleted.has(request.group, record.queue_offset)
            ]
            token = ""
        else:
            found, token = await self._page(
                topic, begin, end, page_count(request.page_size, default=_PAGE_COUNT), request
            )
        include_bodies = request.include_bodies and may_read_bodies(client, topic)
        letters = []
        steps = Steps(self._loop_share)
        for record in found:
            letters.append(await self._to_wire(record, include_body=include_bodies))
            await steps.did(record.size)
        return admin_v1.ListDeadLettersResponse(status=OK, dead_letters=letters, next_page_token=token)

    async def _page(
        self, topic: str, begin: int, end: int, count: int, request: admin_v1.ListDeadLettersRequest
    ) -> tuple[list[Record], str]:
        low, high = self._store.queue_range(topic, DEAD_LETTER_QUEUE_ID)
        position = low
        if request.page_token:
            begins = decimal(request.page_token)
            if begins is None:
                raise InvalidRequestError(
                    v2.Code.BAD_REQUEST, f"page_token {request.page_token[:80]!r} is invalid; start without one"
                )
            position = max(low, begins)
        elif begin and high > low:
            position = max(low, self._store.offset_by_time(topic, DEAD_LETTER_QUEUE_ID, begin))
        found: list[Record] = []
        size = 0
        steps = Steps(self._loop_share)
        while position < high and len(found) < count and size < _PAGE_SIZE_MAX:
            result = self._store.read(
                topic,
                DEAD_LETTER_QUEUE_ID,
                position,
                max_count=min(count - len(found), READ_COUNT),
                max_bytes=min(_PAGE_SIZE_MAX - size, STEP_SIZE),
            )
            await steps.did(STEP_SIZE)
            for record in result.records:
                if record.store_timestamp > end:
                    return found, ""
                if record.store_timestamp >= begin and not self._deleted.has(request.group, record.queue_offset):
                    found.append(record)
                    size += record.size
            if result.next_offset <= position:
                break
            position = result.next_offset
        return found, str(position) if position < high else ""

    async def resend(self, request: admin_v1.ResendDeadLettersRequest, _: Client) -> admin_v1.ResendDeadLettersResponse:
        """Resend each one separately, in the given order; all are durable on return. Raises StoreError."""
        topic = self._topic(request.group)
        if len(request.offsets) > _RESEND_COUNT_MAX:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST,
                f"{len(request.offsets)} offsets in one request; resend at most {_RESEND_COUNT_MAX} at a time",
            )
        results = []
        end = 0
        steps = Steps(self._loop_share)
        for offset in request.offsets:
            result = admin_v1.ResendDeadLettersResponse.Result(offset=offset)
            try:
                end = max(end, await self._resend(topic, offset, request, result))
                result.status.CopyFrom(OK)
            except (BrokerError, InvalidMessageError) as error:
                result.status.CopyFrom(status_of(error, "ResendDeadLetters"))
            results.append(result)
            await steps.did(_RESEND_SIZE)
        if end:
            await self._store.wait_stored(end)
        status = common_status([result.status for result in results], "resent")
        return admin_v1.ResendDeadLettersResponse(status=status, results=results)

    async def _resend(
        self,
        topic: str,
        offset: int,
        request: admin_v1.ResendDeadLettersRequest,
        result: admin_v1.ResendDeadLettersResponse.Result,
    ) -> int:
        """Resend one dead letter; returns the physical offset after the new record."""
        record = self._letter(topic, request.group, offset)
        target_name = request.topic or origin_topic(record)
        if not target_name:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST, f"dead letter {offset} does not record its topic; name a topic to send it to"
            )
        target = self._target(target_name)
        if not request.again and (before := await self._find_resent(record, target.topic)) is not None:
            raise InvalidRequestError(
                v2.Code.PRECONDITION_FAILED,
                f"dead letter {offset} was already resent, to queue {before.queue_id}, offset "
                f"{before.queue_offset}; to resend it once more, set `again` (--again)",
            )
        queue_id = target.queue_for(record.properties.get(p.SHARDING_KEY, ""))
        properties = {name: value for name, value in record.properties.items() if name not in _ENDED}
        properties[RESENT_FROM] = _letter_name(record)
        if not request.topic:
            properties[ONLY_GROUP] = topic.removeprefix(DEAD_LETTER_PREFIX)
        if request.HasField("edit"):
            self._edit(properties, request.edit)
        message = record.to_new_message(target.topic, queue_id, properties)
        message.reconsume_times = 0
        if request.edit.HasField("body"):
            message.body = request.edit.body
            message.sys_flag &= ~(SYS_FLAG_COMPRESSED | SYS_FLAG_COMPRESSION_TYPE)
        [place] = self._store.append([message])
        self._counters.stored(target.topic, ["normal"], [queue_id], [place.size])
        result.message_id = record.unique_key or ""
        result.topic, result.queue_id, result.queue_offset = target.topic, queue_id, place.queue_offset
        return place.end

    def _edit(self, properties: dict[str, str], edit: admin_v1.DeadLetterEdit) -> None:
        """Change the properties. InvalidRequestError for what a producer may not send."""
        tag = edit.tag if edit.HasField("tag") else properties.get(p.TAGS)
        keys = list(edit.keys.values) if edit.HasField("keys") else keys_of(properties)
        user = user_properties_of(properties)
        for name in (*user, *edit.delete_properties):
            properties.pop(name, None)
            if name not in user:
                raise InvalidRequestError(v2.Code.BAD_REQUEST, f"the message has no property {name[:80]!r} to delete")
        user = {name: value for name, value in user.items() if name not in edit.delete_properties}
        user.update(edit.set_properties)
        try:
            check_message(
                body_size=len(edit.body) if edit.HasField("body") else 1,
                body_size_max=self._settings.current.store.body_size_max,
                user_properties=user,
                tag=tag,
                keys=keys,
                message_id=None,
                message_group=None,
                trace_context=None,
                lite_topic=None,
                priority=None,
                limits=self._settings.current.limits,
            )
        except BrokenRuleError as broken:
            raise refusal(broken) from None
        for name in (p.TAGS, p.KEYS, EXACT_KEYS, EMPTY_PROPERTIES):
            properties.pop(name, None)
        fields = properties_of(message_id="", tag=tag, keys=keys, user_properties=user)
        del fields[p.UNIQ_KEY]
        properties.update(fields)

    async def delete(self, request: admin_v1.DeleteDeadLettersRequest, _: Client) -> admin_v1.DeleteDeadLettersResponse:
        topic = self._topic(request.group)
        chosen = bool(request.offsets) + request.HasField("before_timestamp") + request.all
        if chosen != 1:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, "give either offsets, before_timestamp or all")
        if len(request.offsets) > _RESEND_COUNT_MAX:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST,
                f"{len(request.offsets)} offsets in one request; delete at most {_RESEND_COUNT_MAX} at a time",
            )
        low, high = self._store.queue_range(topic, DEAD_LETTER_QUEUE_ID)
        if request.all:
            count = self._count(topic)
            if not request.dry_run and high > low:
                await self._deliveries.purge_topic(topic)
            return admin_v1.DeleteDeadLettersResponse(status=OK, deleted_count=count)
        if request.offsets:
            for offset in request.offsets:
                self._letter(topic, request.group, offset)  # each must be there
            ranges = [(offset, offset + 1) for offset in set(request.offsets)]
        else:
            before_ms = timestamp_ms(request.before_timestamp)
            ranges = [(low, self._store.offset_by_time(topic, DEAD_LETTER_QUEUE_ID, before_ms))] if high > low else []
        count = sum(end - first - self._deleted.count(request.group, first, end) for first, end in ranges)
        if not request.dry_run and count:
            await self._deleted.add(request.group, ranges, low)
            await self._deleted.forget(lambda group: dead_letter_topic(group) in self._tables.topics)
        return admin_v1.DeleteDeadLettersResponse(status=OK, deleted_count=count)

    def _letter(self, topic: str, group: str, offset: int) -> Record:
        found = self._store.read(topic, DEAD_LETTER_QUEUE_ID, offset, max_count=1).records if offset >= 0 else []
        if not found or found[0].queue_offset != offset or self._deleted.has(group, offset):
            raise InvalidRequestError(
                v2.Code.MESSAGE_NOT_FOUND,
                f"group {group!r} has no dead letter {offset}; it expired or never existed",
            )
        return found[0]

    def _target(self, name: str) -> Destination:
        if name.startswith(DEAD_LETTER_PREFIX):
            raise InvalidRequestError(
                v2.Code.FORBIDDEN, f"topic {name!r} is for dead letters; name another topic to send to"
            )
        target = self._admission.existing(name)
        target.check(None)
        return target

    def _topic(self, group: str) -> str:
        """The topic of a group's dead letters. Raises GroupNotFoundError if neither exists."""
        topic = dead_letter_topic(group)
        if topic not in self._tables.topics:
            self._tables.groups.require(group)
        return topic

    def _count(self, topic: str) -> int:
        """How many an operator sees."""
        low, high = self._store.queue_range(topic, DEAD_LETTER_QUEUE_ID)
        return max(high - low, 0) - self._deleted.count(topic.removeprefix(DEAD_LETTER_PREFIX), low, high)

    async def _to_wire(self, record: Record, *, include_body: bool) -> admin_v1.DeadLetter:
        message = to_wire_message(record, resource(record.topic))
        if not include_body:
            clear_body(message)
        origin = origin_topic(record)
        letter = admin_v1.DeadLetter(
            offset=record.queue_offset,
            message=message,
            origin_topic=origin,
            origin_message_id=record.properties.get(p.DLQ_ORIGIN_MESSAGE_ID, ""),
            body_size=len(record.body),
        )
        if origin and (resent := await self._find_resent(record, origin)) is not None:
            letter.resent_timestamp.CopyFrom(timestamp(resent.store_timestamp))
        return letter

    async def _find_resent(self, letter: Record, topic: str) -> Record | None:
        return await find_resent(self._store, self._loop_share, letter, topic)


def origin_topic(record: Record) -> str:
    """The original topic of a dead letter. RocketMQ 4 stores it only in the property of its retries."""
    return record.properties.get(p.DLQ_ORIGIN_TOPIC) or record.properties.get("RETRY_TOPIC") or ""


async def find_resent(store: MessageStore, loop_share: LoopShare, letter: Record, topic: str) -> Record | None:
    """The latest resent copy of this dead letter in `topic`, if the log still has one."""
    if not letter.unique_key:
        return None
    name = _letter_name(letter)
    looked = 0
    copies = newest_with_key(store, loop_share, topic, letter.unique_key, begin=letter.store_timestamp)
    async with aclosing(copies) as records:
        async for record in records:
            if record.properties.get(RESENT_FROM) == name:
                return record
            looked += 1
            if looked >= _COPIES_MAX:
                break
    return None


def _letter_name(letter: Record) -> str:
    return f"{letter.topic} {letter.queue_offset}"
