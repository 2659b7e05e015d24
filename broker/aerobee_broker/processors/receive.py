"""ReceiveMessage: conversion between the wire and Deliveries.receive."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Final

from aerobee_broker.clients.naming import group_name, subscribed_topics, topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.delivery.receive.long_polling import poll_seconds
from aerobee_broker.delivery.receive.receive_plan import ReceiveRequest
from aerobee_broker.delivery.receive.selection import DeliveredMessage
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.filters.message_filter import filter_in_turn
from aerobee_broker.limits.byte_budget import Share
from aerobee_broker.messages.message_mapping import to_wire_message
from aerobee_broker.messages.wire_fields import varint
from aerobee_broker.tables.table_files import Tables
from aerobee_proto import v2
from aerobee_store.clock import Clock

_REQUEST_TIMEOUT_SECONDS: Final = 3.0  # the default of the official clients
_FOUND: Final = v2.ReceiveMessageResponse(status=v2.Status(code=v2.Code.OK, message="OK"))
_MESSAGE_TAG: Final = bytes((v2.ReceiveMessageResponse.MESSAGE_FIELD_NUMBER << 3 | 2,))
_RESPONSES_SIZE_MAX: Final = 48 << 10  # bytes of records that are encoded before any of them is written
_NOTHING: Final = v2.ReceiveMessageResponse(
    status=v2.Status(code=v2.Code.MESSAGE_NOT_FOUND, message="no message came within the polling time")
)


class ReceiveProcessor:
    """Answers ReceiveMessage: a status, the messages, the delivery time."""

    def __init__(
        self, settings: Settings, tables: Tables, deliveries: Deliveries, counters: BrokerCounters, clock: Clock
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._tables = tables
        self._deliveries = deliveries
        self._clock = clock

    async def process(
        self,
        request: v2.ReceiveMessageRequest,
        client: Client,
        remaining_seconds: float | None,
        memory: Share | None = None,
        if_lost: Callable[[Callable[[], None]], None] | None = None,
    ) -> AsyncGenerator[v2.ReceiveMessageResponse | list[bytes], None]:
        """The stream of responses; those with messages encoded, several at once. A client takes all of an
        answer or nothing, so closing it early gives all messages back.

        `memory` counts the bytes of the messages until they are sent. `if_lost` takes what to call if the client turns
        out later not to have received the answer: see `front.methods.Context`.

        The queue in the request is ignored, because some official clients always name the same one, and any consumer of
        a group may get any message. Push consumers of orderly groups are an exception. They send one receive for each
        assigned queue, and get only messages of that queue. An application blocked by one message therefore does not
        buffer messages of other queues. Raises errors that `processors.statuses` maps to status codes.
        """
        resource = request.message_queue.topic
        topic = topic_name(resource, client)
        group = group_name(request.group, client)
        topic_config = self._tables.topics.get(topic) or await self._tables.topic_in_use(topic)
        topic_config.check_readable()
        if group not in self._tables.groups:
            await self._tables.group_in_use(group, [topic, *subscribed_topics(client)])
        wanted = await self._wanted(request, client, topic, group, remaining_seconds)
        messages = await self._deliveries.receive(wanted, memory)
        handles = [message.receipt_handle for message in messages]
        if messages and if_lost is not None:
            if_lost(partial(self._deliveries.give_back, topic, group, handles))
        taken = 0
        is_taken = False
        try:
            yield _FOUND if messages else _NOTHING
            while taken < len(messages):
                responses, record_size = self._responses(messages, taken, resource)
                self._count(topic, group, messages[taken : taken + len(responses)], responses)
                yield responses
                taken += len(responses)
                if memory is not None:
                    memory.give(record_size)
            now = v2.Timestamp()
            now.FromMilliseconds(self._clock.now_ms())
            yield v2.ReceiveMessageResponse(delivery_timestamp=now)
            is_taken = True
        finally:
            if not is_taken:
                self._deliveries.give_back(topic, group, handles)

    def _responses(
        self, messages: Sequence[DeliveredMessage], first: int, topic: v2.Resource
    ) -> tuple[list[bytes], int]:
        """The encoded responses for some of the messages, from `first` on, and the size of their records."""
        responses: list[bytes] = []
        size = record_size = 0
        for number in range(first, len(messages)):
            message = messages[number]
            record = message.record
            if responses and size + record.size > _RESPONSES_SIZE_MAX:
                break
            wire = to_wire_message(
                record, topic, receipt_handle=message.receipt_handle, delivery_attempt=message.attempt
            ).SerializeToString()
            # The field that holds it, without a message object around it: that would copy it twice.
            responses.append(b"".join((_MESSAGE_TAG, varint(len(wire)), wire)))
            size += len(wire)
            record_size += record.size
        return responses, record_size

    def _count(self, topic: str, group: str, messages: Sequence[DeliveredMessage], responses: Sequence[bytes]) -> None:
        records = [message.record for message in messages]
        received = self._counters.delivered(topic, group, records, list(map(len, responses)))
        now_ms = self._clock.now_ms()
        for record in records:
            received.milliseconds.observe(max(0, now_ms - record.store_timestamp))

    async def _wanted(
        self,
        request: v2.ReceiveMessageRequest,
        client: Client,
        topic: str,
        group: str,
        remaining_seconds: float | None,
    ) -> ReceiveRequest:
        """The request within the limits of the broker."""
        config, expression = self._settings.current.delivery, request.filter_expression

        wanted = await filter_in_turn(
            expression.expression, self._deliveries.loop_share, is_sql=expression.type == v2.FilterType.SQL
        )
        asked = duration_ms(request.long_polling_timeout) / 1000 if request.HasField("long_polling_timeout") else None
        reserve = config.poll_reserve_seconds if asked is not None else self._reserve_seconds(client)

        def seconds(requested: float | None) -> float:
            return poll_seconds(requested, remaining_seconds, reserve=reserve, longest=config.poll_seconds_max)

        return ReceiveRequest(
            topic=topic,
            group=group,
            client_id=client.client_id,
            count=config.receive_count(request.batch_size),
            invisible_ms=None if request.auto_renew else self._invisible_ms(request),
            wait_seconds=seconds(asked),
            look_seconds=seconds(None),
            wanted=wanted,
            attempt_id=request.attempt_id,
            queue_id=request.message_queue.id if request.auto_renew and request.message_queue.id >= 0 else None,
        )

    def _reserve_seconds(self, client: Client) -> float:
        """The reserve before the deadline for clients before 5.0.5, which send no polling time: half of their request
        timeout, as in RocketMQ."""
        timeout_ms = 0
        settings = client.settings
        if settings is not None:
            timeout_ms = duration_ms(settings.request_timeout)
        half = timeout_ms / 2000 if timeout_ms > 0 else _REQUEST_TIMEOUT_SECONDS / 2
        return max(self._settings.current.delivery.poll_reserve_seconds, half)

    def _invisible_ms(self, request: v2.ReceiveMessageRequest) -> int:
        milliseconds = duration_ms(request.invisible_duration)
        shortest, longest = (
            self._settings.current.delivery.invisible_seconds_min,
            self._settings.current.delivery.invisible_seconds_max,
        )
        if not request.HasField("invisible_duration") or not shortest * 1000 <= milliseconds <= longest * 1000:
            raise InvalidRequestError(
                v2.Code.ILLEGAL_INVISIBLE_TIME,
                f"the invisible duration of {milliseconds} ms is outside "
                f"{shortest * 1000:.0f}..{longest * 1000:.0f} ms "
                "(delivery.invisible_seconds_min, delivery.invisible_seconds_max)",
            )
        return milliseconds


def duration_ms(duration: v2.Duration) -> int:
    """Whole milliseconds; positive values become at least 1, negative ones stay negative."""
    microseconds = duration.seconds * 1_000_000 + duration.nanos // 1000
    return -(-microseconds // 1000) if microseconds > 0 else microseconds // 1000
