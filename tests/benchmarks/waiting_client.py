"""Thousands of clients that wait for messages, using the protocol's calls without a client library."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from aerobee_proto import v2

_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]  # one connection each; otherwise gRPC shares one
_POLL_SECONDS = 20
_number = itertools.count()

Arrivals = asyncio.Queue[tuple[float, bytes]]
"""`time.perf_counter()` and the body of each message."""


class WaitingClient:
    """A simple consumer with one connection and a Telemetry stream.

    Received messages go to `arrivals` and are not acknowledged.
    """

    def __init__(self, endpoint: str, group: str, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._group = v2.Resource(name=group)
        self._metadata = (("x-mq-client-id", f"waiting@{next(_number)}"), ("x-mq-language", "PYTHON"))
        self._channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        self._stub: Any = v2.MessagingServiceStub(self._channel)
        self._telemetry: Any = None

    async def introduce(self, topic: str) -> None:
        """Open the Telemetry stream and wait for the answer to the settings."""
        settings = v2.Settings(client_type=v2.ClientType.SIMPLE_CONSUMER)
        settings.subscription.group.CopyFrom(self._group)
        settings.subscription.subscriptions.add(topic=v2.Resource(name=topic)).expression.expression = "*"
        self._telemetry = self._stub.Telemetry(metadata=self._metadata)
        await self._telemetry.write(v2.TelemetryCommand(settings=settings))
        await self._telemetry.read()

    async def receive(self, topic: str) -> None:
        """Receive messages one by one, until cancelled."""
        request = v2.ReceiveMessageRequest(group=self._group, batch_size=1)
        request.message_queue.topic.name = topic
        request.filter_expression.expression = "*"
        request.invisible_duration.FromSeconds(3600)
        request.long_polling_timeout.FromSeconds(_POLL_SECONDS)
        while True:
            call = self._stub.ReceiveMessage(request, metadata=self._metadata, timeout=_POLL_SECONDS + 20)
            try:
                async for response in call:
                    if response.HasField("message"):
                        self._arrivals.put_nowait((time.perf_counter(), response.message.body))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.CANCELLED:
                    raise
                return  # cancelling the task sometimes appears as this error

    async def close(self) -> None:
        if self._telemetry is not None:
            self._telemetry.cancel()
        await self._channel.close(None)


@contextlib.asynccontextmanager
async def waiting(endpoint: str, group: str, topics: Sequence[str], clients: int) -> AsyncIterator[Arrivals]:
    """This many clients, which share the receives of the topics; on entry all receives have been sent."""
    arrivals: Arrivals = asyncio.Queue()
    all_clients = [WaitingClient(endpoint, group, arrivals) for _ in range(clients)]
    try:
        async with asyncio.TaskGroup() as tasks:
            for first in range(0, clients, 50):
                some = range(first, min(first + 50, clients))
                await asyncio.gather(*(all_clients[i].introduce(topics[i % len(topics)]) for i in some))
            receives = [
                tasks.create_task(all_clients[number % clients].receive(topics[number % len(topics)]))
                for number in range(max(clients, len(topics)))
            ]
            try:
                yield arrivals
            finally:
                for receive in receives:
                    receive.cancel()
    finally:
        await asyncio.gather(*(client.close() for client in all_clients))
