"""RecallMessage: cancels a delayed message before it is due."""

from __future__ import annotations

from typing import Final

from aerobee_broker.clients.naming import topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.messages.admission import ACCEPTED_TYPES
from aerobee_broker.messages.message_mapping import DELAY
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.timer.recall_handle import InvalidRecallHandleError, RecallHandle
from aerobee_broker.timer.wheel_timer import MessageNotPendingError, Timer
from aerobee_proto import v2

_OK: Final = v2.Status(code=v2.Code.OK, message="OK")


class RecallProcessor:
    """Answers RecallMessage."""

    def __init__(self, tables: Tables, timer: Timer) -> None:
        self._tables = tables
        self._timer = timer

    async def recall(self, request: v2.RecallMessageRequest, client: Client) -> v2.RecallMessageResponse:
        """After an OK answer the message is never delivered."""
        topic = self._tables.topics.require(topic_name(request.topic, client))
        if DELAY not in ACCEPTED_TYPES[topic.message_type]:
            raise InvalidRequestError(
                v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic.name!r} does not take delayed messages; only delayed messages can be recalled",
            )
        try:
            handle = RecallHandle.decode(request.recall_handle)
        except InvalidRecallHandleError as error:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, str(error)) from None
        if handle.topic != topic.name:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST,
                f"the recall handle belongs to topic {handle.topic[:127]!r}, not {topic.name!r}; name that topic",
            )
        try:
            await self._timer.recall(topic.name, handle.message_id, handle.deliver_ms)
        except MessageNotPendingError as error:
            # Not MESSAGE_NOT_FOUND, which official clients take for an empty receive and report as success.
            raise InvalidRequestError(v2.Code.BAD_REQUEST, str(error)) from None
        return v2.RecallMessageResponse(status=_OK, message_id=handle.message_id)
