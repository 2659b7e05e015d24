"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: the outcomes of received messages."""

from __future__ import annotations

from typing import Final

from aerobee_broker.clients.naming import group_name, topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.processors.receive import duration_ms
from aerobee_proto import v2

_OK: Final = v2.Status(code=v2.Code.OK, message="OK")
_MULTIPLE: Final = v2.Status(code=v2.Code.MULTIPLE_RESULTS, message="the entries have different results")


class AcknowledgeProcessor:
    """Push consumers repeat these calls forever unless the answer is OK or INVALID_RECEIPT_HANDLE."""

    def __init__(self, settings: Settings, deliveries: Deliveries, counters: BrokerCounters) -> None:
        self._settings = settings
        self._deliveries = deliveries
        self._counters = counters

    async def acknowledge(self, request: v2.AckMessageRequest, client: Client) -> v2.AckMessageResponse:
        """One result per entry, in order; the common status is theirs if all are equal."""
        topic = topic_name(request.topic, client)
        group = group_name(request.group, client)
        entries = request.entries
        if not entries:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, "the request has no entries; name a message to acknowledge")
        errors = await self._deliveries.acknowledge(topic, group, [entry.receipt_handle for entry in entries])
        response = v2.AckMessageResponse()
        failures = 0
        for entry, error in zip(entries, errors, strict=True):
            status = _OK
            if error is not None:
                status = v2.Status(code=v2.Code.INVALID_RECEIPT_HANDLE, message=str(error))
                failures += 1
            response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
        if failures < len(errors):  # so topic and group exist
            self._counters.received_by(topic, group).acknowledged += len(errors) - failures
        response.status.CopyFrom(response.entries[0].status if failures in (0, len(errors)) else _MULTIPLE)
        return response

    async def change_invisible(
        self, request: v2.ChangeInvisibleDurationRequest, client: Client
    ) -> v2.ChangeInvisibleDurationResponse:
        """One official client retries with durations of 0 or a few milliseconds."""
        topic = topic_name(request.topic, client)
        group = group_name(request.group, client)
        milliseconds = duration_ms(request.invisible_duration)
        longest = self._settings.current.delivery.invisible_seconds_max
        if not 0 <= milliseconds <= longest * 1000:
            raise InvalidRequestError(
                v2.Code.ILLEGAL_INVISIBLE_TIME,
                f"the invisible duration of {milliseconds} ms is outside 0..{longest * 1000:.0f} ms "
                "(delivery.invisible_seconds_max)",
            )
        handle = await self._deliveries.change_invisible(topic, group, request.receipt_handle, milliseconds)
        self._counters.received_by(topic, group).changed += 1
        return v2.ChangeInvisibleDurationResponse(status=_OK, receipt_handle=handle)

    async def forward(
        self, request: v2.ForwardMessageToDeadLetterQueueRequest, client: Client
    ) -> v2.ForwardMessageToDeadLetterQueueResponse:
        """Move a message that the consumer cannot process to the dead letters."""
        topic = topic_name(request.topic, client)
        group = group_name(request.group, client)
        await self._deliveries.forward_to_dead_letter_queue(topic, group, request.receipt_handle)
        return v2.ForwardMessageToDeadLetterQueueResponse(status=_OK)
