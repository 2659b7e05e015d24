"""The Telemetry stream of one producer or consumer: settings in both directions, commands of the broker, heartbeats,
termination.

RocketMQ's own server refuses receives of a client before it has its settings, so a client opens its stream and waits
for the answer before its first call. Later calls do not depend on the stream. When it ends, it is reopened at the
current endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from types import FrameType
from typing import Any

import grpc

from aerobee_client.connections.connection import VERSION, Connection, Peer, new_client_id
from aerobee_client.connections.repeating import every
from aerobee_client.errors import ClientError, DeadlineError, status_error
from aerobee_proto import v2

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0  # as the official clients; a broker removes a silent client after 120 s
REOPEN_SECONDS = 1.0
RESYNC_SECONDS = 300.0  # interval of repeated settings, as in the official clients
_REPLIES_MAX = 64  # limit of queued answers; commands beyond it stay unanswered
_COMMANDS_AT_ONCE_MAX = 64
_STACK_DEPTH = 20

CommandHandler = Callable[[v2.TelemetryCommand], Coroutine[Any, Any, v2.TelemetryCommand | None]]
"""Handles a command of the broker; the result is sent back. None: nothing to send."""

_Replies = asyncio.Queue[v2.TelemetryCommand | None]


class Telemetry:
    """`settings` has the client's requested settings until the broker answers, then the broker's.

    `on_command` runs for each command of the broker, in a task of its own.
    """

    def __init__(
        self,
        connection: Connection,
        settings: v2.Settings,
        group: str | None = None,
        on_command: CommandHandler | None = None,
    ) -> None:
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
        self.metadata = connection.headers(self.client_id)
        self.settings = settings
        self._asked = settings
        self._group = v2.Resource(name=group) if group is not None else None
        self._on_command = on_command
        self._connection = connection
        self._stream: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._answered: asyncio.Future[None] | None = None
        self._replies: _Replies | None = None  # of the open stream
        self._commands: set[asyncio.Task[None]] = set()
        self._reopen = asyncio.Event()
        self._close = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._close.is_set()

    async def ready(self) -> None:
        """Return once the broker has answered the settings. The first call opens the stream.

        Retried like a call. Raises UnavailableError if no server answers, DeadlineError if a server does not answer the
        settings, and ServerError if the broker refuses them. The next call tries again.
        """
        if self._close.is_set():
            raise ClientError("this producer or consumer is closed; make a new one")
        if self._answered is not None and self._answered.done() and self._answered.exception() is None:
            return
        await self._connection.retrying(self._open)

    def resync(self) -> None:
        """Send the settings again, because they have changed. No effect before the stream is open, or while it is
        not read: the next stream begins with them anyway."""
        self._reply(v2.TelemetryCommand(settings=self._asked))

    async def close(self) -> None:
        """Unregister and end the stream. Errors of the broker are ignored."""
        if self._close.is_set():
            return
        self._close.set()
        tasks = [task for task in (self._stream, self._heartbeat, *self._commands) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Last, so that no later settings or heartbeat register the client again.
        if self._answered is not None and self._answered.done() and self._answered.exception() is None:
            request = v2.NotifyClientTerminationRequest(group=self._group)
            stub = self._connection.peer.stubs.messaging
            with contextlib.suppress(grpc.RpcError):
                await stub.NotifyClientTermination(
                    request, timeout=1.0, metadata=self._connection.signed(self.metadata)
                )

    async def _open(self, attempt: int) -> None:
        """One attempt to exchange the settings, shared by all waiters."""
        answered = self._answered
        if answered is None or (answered.done() and answered.exception() is not None):
            # No await in between, so only one of several callers opens the stream. A failed task is replaced.
            answered = self._answered = asyncio.get_running_loop().create_future()
            self._stream = asyncio.create_task(self._follow(answered), name=f"telemetry {self.client_id}")
            self._heartbeat = self._heartbeat or asyncio.create_task(self._beat(), name=f"heartbeat {self.client_id}")
        try:
            async with asyncio.timeout(self._connection.request_timeout_seconds):
                await asyncio.shield(answered)
        except TimeoutError:
            raise DeadlineError(
                f"{self._connection.endpoint} did not answer the client's settings in time; is it a RocketMQ 5 gRPC "
                f"endpoint?"
            ) from None

    async def _follow(self, answered: asyncio.Future[None]) -> None:
        """Keep a stream open. Before the first answer an error is final and is raised in `ready`."""
        while True:
            error: ClientError
            try:
                await self._one_stream(answered)
                error = ClientError(f"{self._connection.endpoint} ended the Telemetry stream")
            except ClientError as ended:
                error = ended
            if not answered.done():
                answered.set_exception(error)
                answered.exception()  # retrieved here, because the waiters may have been cancelled
                return
            _log.info("telemetry stream ended client_id=%s error=%s", self.client_id, error)
            if not self._reopen.is_set():
                await asyncio.sleep(REOPEN_SECONDS)

    async def _one_stream(self, answered: asyncio.Future[None]) -> None:
        self._reopen.clear()
        peer = self._connection.peer
        self._asked.access_point.CopyFrom(peer.endpoints)
        replies = self._replies = asyncio.Queue()
        requests = self._requests(peer, replies)
        exchange = self._connection.exchange(lambda stubs: stubs.messaging.Telemetry, requests, self.metadata)
        async with _ended(replies), aclosing(exchange) as commands:
            async for command in commands:
                if command.HasField("status") and (error := status_error(command.status)) is not None:
                    raise error
                if command.HasField("settings"):
                    self.settings = command.settings
                    if not answered.done():
                        answered.set_result(None)
                elif command.HasField("reconnect_endpoints_command"):
                    self._reopen.set()
                    return
                elif len(self._commands) < _COMMANDS_AT_ONCE_MAX:
                    task = asyncio.create_task(self._obey(command))
                    self._commands.add(task)
                    task.add_done_callback(self._commands.discard)

    async def _requests(self, peer: Peer, replies: _Replies) -> AsyncIterator[v2.TelemetryCommand]:
        """Yields the settings at once and then every few minutes, and answers to commands. Ends when the client closes
        or uses another endpoint."""
        yield v2.TelemetryCommand(settings=self._asked)
        while not self._close.is_set() and self._connection.peer is peer:
            try:
                command = await asyncio.wait_for(replies.get(), RESYNC_SECONDS)
            except TimeoutError:
                command = v2.TelemetryCommand(settings=self._asked)
            if command is None:
                return
            yield command

    def _reply(self, command: v2.TelemetryCommand) -> None:
        """Send on the open stream; dropped without one, or if the broker does not read."""
        if self._replies is not None and self._replies.qsize() < _REPLIES_MAX:
            self._replies.put_nowait(command)

    async def _obey(self, command: v2.TelemetryCommand) -> None:
        reply: v2.TelemetryCommand | None = None
        try:
            if command.HasField("print_thread_stack_trace_command"):
                trace = v2.ThreadStackTrace(
                    nonce=command.print_thread_stack_trace_command.nonce, thread_stack_trace=stacks()
                )
                reply = v2.TelemetryCommand(status=v2.Status(code=v2.Code.OK), thread_stack_trace=trace)
            elif self._on_command is not None:
                reply = await self._on_command(command)
        except ClientError as error:
            _log.warning("a command of the broker failed client_id=%s error=%s", self.client_id, error)
            return
        if reply is not None:
            self._reply(reply)

    async def _beat(self) -> None:
        request = v2.HeartbeatRequest(group=self._group, client_type=self._asked.client_type)

        async def beat() -> None:
            peer = self._connection.peer
            timeout = self._connection.request_timeout_seconds
            metadata = self._connection.signed(self.metadata)
            try:
                answer = await peer.stubs.messaging.Heartbeat(request, timeout=timeout, metadata=metadata)
            except grpc.RpcError as rpc:
                raise self._connection.failed(peer, rpc) from rpc
            if (error := status_error(answer.status)) is not None:
                raise error

        await every(HEARTBEAT_SECONDS, beat, f"heartbeat failed client_id={self.client_id}", logging.INFO)


@asynccontextmanager
async def _ended(replies: _Replies) -> AsyncIterator[None]:
    """Wake the waiter for the next reply when the stream ends, because gRPC does not."""
    try:
        yield
    finally:
        replies.put_nowait(None)


def stacks() -> str:
    """The stacks of the loop's tasks and of the process's threads, as text."""
    lines = []
    for task in asyncio.all_tasks():
        lines += [f"Task {task.get_name()}", *map(_place, task.get_stack(limit=_STACK_DEPTH))]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, top in sys._current_frames().items():
        frames: list[FrameType] = []
        frame: FrameType | None = top
        while frame is not None and len(frames) < _STACK_DEPTH:
            frames.append(frame)
            frame = frame.f_back
        lines += [f"Thread {names.get(ident, ident)}", *map(_place, reversed(frames))]
    return "\n".join(lines)


def _place(frame: FrameType) -> str:
    return f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
