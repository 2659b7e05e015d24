"""Sending messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from aerobee_client.connection import Connection
from aerobee_client.errors import BatchError, ClientError, status_error
from aerobee_client.message import Message, SendResult, to_wire
from aerobee_client.telemetry import Telemetry
from aerobee_proto import v2

# One request carries messages of one topic: as many as these allow, and at least one.
_REQUEST_COUNT_MAX = 256
_REQUEST_SIZE_MAX = 4 << 20
_REQUESTS_AT_ONCE_MAX = 16


class Producer:
    """Sends messages. Safe to share between tasks; `Client.producer` makes one.

    A send that failed in a way that may pass (no connection, no answer, a failure of the server) is tried again under
    the same message id, three times in all. So a message may be stored twice, which is what consumers of RocketMQ
    have to expect.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        settings = v2.Settings(client_type=v2.ClientType.PRODUCER, publishing=v2.Publishing(validate_message_type=True))
        self._telemetry = Telemetry(connection, settings)

    async def send(self, message: Message) -> SendResult:
        """Return once the broker has stored the message as safely as it promises.

        Raises NotFoundError if there is no such topic, BadRequestError if the message breaks a limit, and
        UnavailableError, DeadlineError or InternalServerError after the last attempt. After the last two, and after
        cancelling, the message may be stored nevertheless.
        """
        outcome = (await self._send([to_wire(message)]))[0]
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome

    async def send_many(self, messages: Sequence[Message]) -> list[SendResult]:
        """Send messages in few requests; the results have the order of `messages`.

        Messages of one topic are stored in the order given, unless an attempt had to be repeated. Raises BatchError if
        some failed: its `outcomes` tell which, with a SendResult for those that are stored.
        """
        outcomes: list[SendResult | ClientError] = [ClientError("not sent")] * len(messages)
        wire = [to_wire(message) for message in messages]
        by_topic: dict[str, list[int]] = {}
        for index, message in enumerate(messages):
            by_topic.setdefault(message.topic, []).append(index)
        gate = asyncio.Semaphore(_REQUESTS_AT_ONCE_MAX)

        async def send_topic(indices: list[int]) -> None:
            async with gate:
                for chunk in _chunks(indices, wire):
                    for index, outcome in zip(chunk, await self._send([wire[i] for i in chunk]), strict=True):
                        outcomes[index] = outcome

        async with asyncio.TaskGroup() as tasks:
            for indices in by_topic.values():
                tasks.create_task(send_topic(indices))
        results = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
        if len(results) < len(outcomes):
            raise BatchError(outcomes)
        return results

    async def close(self) -> None:
        """Say goodbye to the broker."""
        await self._telemetry.close()

    async def _send(self, wire: list[v2.Message]) -> list[SendResult | ClientError]:
        """One outcome a message. A request that failed as a whole is tried again, single messages of it are not."""
        try:
            await self._telemetry.ready()
            answer = await self._connection.call(
                self._connection.messaging.SendMessage,
                v2.SendMessageRequest(messages=wire),
                self._telemetry.metadata,
                check=_request_error,
            )
        except ClientError as error:
            return [error] * len(wire)
        entries = list(answer.entries)
        if len(entries) == 1:  # RocketMQ's own server answers a batch with one entry for all
            entries *= len(wire)
        if len(entries) != len(wire):
            return [ClientError(f"the broker answered {len(wire)} messages with {len(entries)} results")] * len(wire)
        return [_outcome(message, entry) for message, entry in zip(wire, entries, strict=True)]


def _request_error(answer: v2.SendMessageResponse) -> ClientError | None:
    """Why the whole request failed; None if its entries have the outcomes."""
    return None if answer.status.code == v2.Code.MULTIPLE_RESULTS else status_error(answer.status)


def _outcome(message: v2.Message, entry: v2.SendResultEntry) -> SendResult | ClientError:
    error = status_error(entry.status)
    if error is not None:
        return error
    return SendResult(message.system_properties.message_id, entry.offset, entry.recall_handle)


def _chunks(indices: list[int], wire: list[v2.Message]) -> Iterator[list[int]]:
    chunk: list[int] = []
    size = 0
    for index in indices:
        message_size = wire[index].ByteSize()
        if chunk and (len(chunk) == _REQUEST_COUNT_MAX or size + message_size > _REQUEST_SIZE_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(index)
        size += message_size
    if chunk:
        yield chunk
