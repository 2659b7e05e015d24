"""Gathers messages that are sent at the same time into few requests.

A buffer holds messages of one topic in order. A request takes as many messages of the buffer as count and bytes allow.
While the maximum number of requests of a buffer is in flight, its messages gather: the slower the broker, the larger
the requests; with a fast one no message waits. `linger_seconds` lets the first message of a request wait for others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from aerobee_client.allocation import Queue
from aerobee_client.errors import ClientError
from aerobee_client.limits.bounds import MemoryLimit
from aerobee_client.messages.message import Outgoing, SendResult

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PendingSend:
    """A message to be sent, and its future result."""

    outgoing: Outgoing
    size: int  # bytes on the wire
    queue: Queue | None  # the queue chosen by a selector; all messages of a buffer have the same
    outcome: asyncio.Future[SendResult]
    finished: Callable[[PendingSend, SendResult | ClientError], None]

    def finish(self, outcome: SendResult | ClientError) -> None:
        """Set the result, if the caller still waits."""
        self.finished(self, outcome)
        if self.outcome.done():
            return
        if isinstance(outcome, ClientError):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


Send = Callable[[Sequence[PendingSend]], Awaitable[list[SendResult | ClientError]]]
"""Sends one request and returns one outcome per entry; raises only when cancelled."""


@dataclass(slots=True, eq=False)
class Buffer:
    """Messages of one topic in order, and their requests in flight."""

    in_flight_max: int
    count_max: int  # messages per request
    entries: deque[PendingSend] = field(default_factory=deque)
    in_flight: int = 0
    timer: asyncio.Handle | None = None


class Gathering:
    """The buffers of one producer. `send` is called for each request, in a task of its own."""

    def __init__(self, send: Send, memory: MemoryLimit, *, size_max: int, linger_seconds: float) -> None:
        self._send = send
        self._memory = memory
        self._size_max = size_max
        self._linger_seconds = linger_seconds
        self._buffers: dict[object, Buffer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def put(self, key: object, entry: PendingSend, *, in_flight_max: int, count_max: int) -> None:
        """Add `entry` to the buffer `key` once there is space for it."""
        await self._memory.enter(entry.size)
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = Buffer(in_flight_max, count_max)
        buffer.entries.append(entry)
        self._idle.clear()
        full = self._linger_seconds > 0 and len(buffer.entries) >= buffer.count_max
        if buffer.timer is None or full:
            loop = asyncio.get_running_loop()
            if buffer.timer is not None:
                buffer.timer.cancel()
            # Send at the end of this loop iteration, so that other sends of the iteration join.
            wait = 0.0 if full else self._linger_seconds
            buffer.timer = (
                loop.call_later(wait, self._go, key, buffer) if wait else loop.call_soon(self._go, key, buffer)
            )

    async def flush(self) -> None:
        """Return when no message is waiting or in flight; lingering messages are sent at once."""
        for key, buffer in list(self._buffers.items()):
            if buffer.timer is not None:
                buffer.timer.cancel()
                self._go(key, buffer)
        await self._idle.wait()

    async def close(self) -> None:
        """Cancel requests in flight; their messages may be stored nevertheless."""
        for buffer in self._buffers.values():
            if buffer.timer is not None:
                buffer.timer.cancel()
            for entry in buffer.entries:
                entry.finish(ClientError("the producer was closed before the message was sent"))
                self._memory.leave(entry.size)
            buffer.entries.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _go(self, key: object, buffer: Buffer) -> None:
        buffer.timer = None
        while buffer.entries and buffer.in_flight < buffer.in_flight_max:
            request = self._next_request(buffer)
            if request:
                buffer.in_flight += 1
                task = asyncio.create_task(self._one_request(key, buffer, request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if not buffer.entries and not buffer.in_flight:
            self._buffers.pop(key, None)
        if not self._buffers:
            self._idle.set()

    def _next_request(self, buffer: Buffer) -> list[PendingSend]:
        """The first messages of the buffer, without cancelled ones."""
        request: list[PendingSend] = []
        size = 0
        while buffer.entries and len(request) < buffer.count_max:
            entry = buffer.entries[0]
            if request and size + entry.size > self._size_max:
                break
            buffer.entries.popleft()
            if entry.outcome.cancelled():
                self._memory.leave(entry.size)
                continue
            request.append(entry)
            size += entry.size
        return request

    async def _one_request(self, key: object, buffer: Buffer, request: list[PendingSend]) -> None:
        outcomes: Sequence[SendResult | ClientError] = ()
        lost = ClientError("the producer was closed during the send; the message may be stored")
        try:
            outcomes = await self._send(request)
        except Exception as error:  # no caller gets it otherwise
            _log.exception("a send failed unexpectedly")
            lost = ClientError(f"the send failed: {type(error).__name__}: {error}; the message may be stored")
        finally:
            for index, entry in enumerate(request):
                entry.finish(outcomes[index] if index < len(outcomes) else lost)
                self._memory.leave(entry.size)
            buffer.in_flight -= 1
            if buffer.timer is None:
                self._go(key, buffer)
