"""One ReceiveMessage, for simple and push consumers."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing

from aerobee_client.connections.connection import Connection
from aerobee_client.connections.routes import Routes
from aerobee_client.connections.telemetry import Telemetry
from aerobee_client.errors import ClientError, status_error
from aerobee_client.messages.message import ReceivedMessage, received_message
from aerobee_proto import v2

_ROCKETMQ_WAIT_SECONDS_MIN = 5.0  # RocketMQ's server always waits this long, and refuses shorter deadlines


def new_attempt_id() -> str:
    """The identity of a receive: an ordered group answers a repeated receive with the same messages."""
    return str(uuid.uuid4())


class Receiving:
    """The receives of one consumer from one broker; `endpoint` is noted in the messages."""

    def __init__(self, connection: Connection, telemetry: Telemetry, routes: Routes, endpoint: str = "") -> None:
        self._connection = connection
        self._telemetry = telemetry
        self._routes = routes
        self._endpoint = endpoint

    async def receive(self, request: v2.ReceiveMessageRequest) -> list[tuple[float, ReceivedMessage]]:
        """The messages of a receive, each with the loop time of its arrival; retried as any call.

        A broken attempt is repeated with its attempt id, unless messages arrived before.
        """
        await self._telemetry.ready()
        wait_seconds = request.long_polling_timeout.ToMilliseconds() / 1000
        deadline = max(wait_seconds, _ROCKETMQ_WAIT_SECONDS_MIN) + self._connection.request_timeout_seconds
        loop = asyncio.get_running_loop()
        topic = request.message_queue.topic.name

        async def attempt(number: int) -> list[tuple[float, ReceivedMessage]]:
            received: list[tuple[float, ReceivedMessage]] = []
            status: v2.Status | None = None
            try:
                stream = self._connection.stream(
                    lambda stubs: stubs.messaging.ReceiveMessage,
                    request,
                    self._telemetry.metadata,
                    timeout_seconds=deadline,
                )
                async with aclosing(stream) as items:
                    async for item in items:
                        if item.HasField("message"):
                            received.append((loop.time(), received_message(item.message, self._endpoint)))
                        elif item.HasField("status"):
                            status = item.status
            except ClientError:
                if not received:
                    raise
            if not received and status is not None and status.code != v2.Code.MESSAGE_NOT_FOUND:
                error = status_error(status)
                if error is not None:
                    self._routes.forget(topic)
                    raise error
            return received

        return await self._connection.retrying(attempt)
