"""The Telemetry stream of one producer or consumer: settings both ways, heartbeats, and a goodbye.

RocketMQ's own server refuses receives of a client whose settings it has not seen, so a client opens its stream and
waits for the answer before its first call. Afterwards nothing depends on the stream: it is opened again when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc

from aerobee_client.connection import VERSION, Connection, headers, new_client_id
from aerobee_client.errors import ClientError, DeadlineError, rpc_error, status_error
from aerobee_proto import v2

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0  # as the official clients; a broker forgets a client after 120
REOPEN_SECONDS = 1.0


class Telemetry:
    """`settings` is what the client asks for until the broker answered, and what the broker said from then on."""

    def __init__(self, connection: Connection, settings: v2.Settings, group: str | None = None) -> None:
        settings.access_point.CopyFrom(connection.endpoints)
        settings.request_timeout.FromMilliseconds(int(connection.request_timeout_seconds * 1000))
        settings.user_agent.CopyFrom(
            v2.UA(
                language=v2.Language.PYTHON,
                version=VERSION,
                platform=platform.platform(),
                hostname=socket.gethostname(),
            )
        )
        self.client_id = new_client_id()
        self.metadata = headers(self.client_id)
        self.settings = settings
        self._asked = settings
        self._group = v2.Resource(name=group) if group is not None else None
        self._connection = connection
        self._stream: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._answered: asyncio.Future[None] | None = None
        self._close = asyncio.Event()

    async def ready(self) -> None:
        """Return once the broker has answered the settings. The first call opens the stream.

        Raises UnavailableError if nobody answers, DeadlineError after the request time-out, ServerError if the broker
        refuses the settings. The next call tries again.
        """
        if self._close.is_set():
            raise ClientError("this producer or consumer is closed; make a new one")
        if self._answered is None or (self._answered.done() and self._answered.exception() is not None):
            # Without an await in between, so that of several callers one opens the stream. A task that failed is over.
            self._answered = asyncio.get_running_loop().create_future()
            self._stream = asyncio.create_task(self._follow(self._answered), name=f"telemetry {self.client_id}")
            self._heartbeat = self._heartbeat or asyncio.create_task(self._beat(), name=f"heartbeat {self.client_id}")
        if self._answered.done():
            return
        try:
            async with asyncio.timeout(self._connection.request_timeout_seconds):
                await asyncio.shield(self._answered)
        except TimeoutError:
            raise DeadlineError(
                f"{self._connection.endpoint} did not answer the client's settings in time; is it RocketMQ 5 gRPC?"
            ) from None

    async def close(self) -> None:
        """Say goodbye and end the stream. Never raises because of the broker."""
        if self._close.is_set():
            return
        self._close.set()
        if self._answered is not None and self._answered.done() and self._answered.exception() is None:
            request = v2.NotifyClientTerminationRequest(group=self._group)
            stub = self._connection.messaging
            with contextlib.suppress(grpc.RpcError):
                await stub.NotifyClientTermination(
                    request, timeout=1.0, metadata=self._connection.signed(self.metadata)
                )
        tasks = [task for task in (self._stream, self._heartbeat) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, answered: asyncio.Future[None]) -> None:
        """Keep a stream open. Before the first answer an error is final and goes to those who wait in `ready`."""
        while True:
            error: ClientError
            try:
                await self._one_stream(answered)
                error = ClientError(f"{self._connection.endpoint} ended the Telemetry stream")
            except grpc.RpcError as rpc:
                error = rpc_error(rpc, self._connection.endpoint)
            except ClientError as refused:
                error = refused
            if not answered.done():
                answered.set_exception(error)
                answered.exception()  # seen: those who wait may have been cancelled
                return
            _log.info("telemetry stream ended client_id=%s error=%s", self.client_id, error)
            await asyncio.sleep(REOPEN_SECONDS)

    async def _one_stream(self, answered: asyncio.Future[None]) -> None:
        async def requests() -> AsyncIterator[v2.TelemetryCommand]:
            yield v2.TelemetryCommand(settings=self._asked)
            await self._close.wait()

        call = self._connection.messaging.Telemetry(requests(), metadata=self._connection.signed(self.metadata))
        try:
            async for command in cast("AsyncIterator[v2.TelemetryCommand]", call):
                if command.HasField("status") and (error := status_error(command.status)) is not None:
                    raise error
                if command.HasField("settings"):  # other commands need a listener, which this client does not have
                    self.settings = command.settings
                    if not answered.done():
                        answered.set_result(None)
        finally:
            cast("Any", call).cancel()

    async def _beat(self) -> None:
        request = v2.HeartbeatRequest(group=self._group, client_type=self._asked.client_type)
        stub = self._connection.messaging
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                timeout = self._connection.request_timeout_seconds
                answer = await stub.Heartbeat(request, timeout=timeout, metadata=self._connection.signed(self.metadata))
            except grpc.RpcError as rpc:
                _log.info("heartbeat failed client_id=%s error=%s", self.client_id, rpc_error(rpc, "broker"))
            else:
                if (error := status_error(answer.status)) is not None:
                    _log.info("heartbeat refused client_id=%s error=%s", self.client_id, error)
