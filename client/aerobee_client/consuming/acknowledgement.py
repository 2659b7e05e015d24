"""The outcomes of received messages: acknowledge, delay, or dead-letter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from aerobee_client.connections.connection import Connection, Retry
from aerobee_client.connections.telemetry import Telemetry
from aerobee_client.errors import ClientError, status_error
from aerobee_client.messages.message import ReceivedMessage
from aerobee_proto import v2

_REQUEST_COUNT_MAX = 256


class Acknowledgement:
    """The calls of one consumer of `group`."""

    def __init__(self, connection: Connection, telemetry: Telemetry, group: str) -> None:
        self._connection = connection
        self._telemetry = telemetry
        self._group = v2.Resource(name=group)
        self._waiting: list[tuple[ReceivedMessage, asyncio.Future[ClientError | None]]] = []
        self._gathering: asyncio.Task[None] | None = None

    async def ack(self, messages: Sequence[ReceivedMessage]) -> list[ClientError | None]:
        """One outcome per message: None, or the error."""
        by_topic: dict[str, list[int]] = {}
        for index, message in enumerate(messages):
            by_topic.setdefault(message.topic, []).append(index)
        requests = [
            indices[start : start + _REQUEST_COUNT_MAX]
            for indices in by_topic.values()
            for start in range(0, len(indices), _REQUEST_COUNT_MAX)
        ]
        answers = await asyncio.gather(*(self._ack([messages[i] for i in indices]) for indices in requests))
        outcomes: list[ClientError | None] = [None] * len(messages)
        for indices, answer in zip(requests, answers, strict=True):
            for index, error in zip(indices, answer, strict=True):
                outcomes[index] = error
        return outcomes

    async def ack_one(self, message: ReceivedMessage) -> ClientError | None:
        """Like `ack`, in one request together with messages acknowledged while the last request was in flight."""
        outcome: asyncio.Future[ClientError | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, outcome))
        if self._gathering is None or self._gathering.done():
            self._gathering = asyncio.create_task(self._ack_waiting(), name="acknowledge")
        return await outcome

    async def change_invisible(
        self, message: ReceivedMessage, invisible_seconds: float, *, retry: Retry | None = None
    ) -> ReceivedMessage:
        """Hide a delivered message for this duration from now; return it with its new receipt handle."""
        await self._telemetry.ready()
        request = v2.ChangeInvisibleDurationRequest(
            group=self._group,
            topic=v2.Resource(name=message.topic),
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
        )
        request.invisible_duration.FromMilliseconds(int(invisible_seconds * 1000))
        answer = await self._connection.call(
            lambda stubs: stubs.messaging.ChangeInvisibleDuration, request, self._telemetry.metadata, retry=retry
        )
        return replace(message, receipt_handle=answer.receipt_handle)

    async def give_up(self, message: ReceivedMessage, attempts_max: int) -> None:
        """Move a delivered message to the dead letters of the group."""
        await self._telemetry.ready()
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            group=self._group,
            topic=v2.Resource(name=message.topic),
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
            delivery_attempt=message.delivery_attempt,
            max_delivery_attempts=attempts_max,
        )
        await self._connection.call(
            lambda stubs: stubs.messaging.ForwardMessageToDeadLetterQueue, request, self._telemetry.metadata
        )

    async def _ack_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                outcomes = await self.ack([message for message, _ in batch])
            except BaseException:
                for _, outcome in batch:
                    outcome.cancel()
                raise
            for (_, outcome), error in zip(batch, outcomes, strict=True):
                if not outcome.done():
                    outcome.set_result(error)

    async def _ack(self, messages: Sequence[ReceivedMessage]) -> list[ClientError | None]:
        entries = [v2.AckMessageEntry(message_id=m.message_id, receipt_handle=m.receipt_handle) for m in messages]
        request = v2.AckMessageRequest(group=self._group, topic=v2.Resource(name=messages[0].topic), entries=entries)
        try:
            await self._telemetry.ready()
            # Entries have the outcomes; the status above them only repeats or summarises them.
            answer = await self._connection.call(
                lambda stubs: stubs.messaging.AckMessage,
                request,
                self._telemetry.metadata,
                check=lambda answer: None if answer.entries else status_error(answer.status),
            )
        except ClientError as error:
            return [error] * len(messages)
        if len(answer.entries) != len(messages):
            text = f"the broker answered {len(messages)} acknowledgements with {len(answer.entries)}"
            return [ClientError(text)] * len(messages)
        return [status_error(entry.status) for entry in answer.entries]
