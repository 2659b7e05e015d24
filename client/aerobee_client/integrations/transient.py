"""AMQP's transient queues: lists in the memory of a process, which it fills from the topics of exchanges."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Final, Protocol

from kombu.utils.json import loads
from kombu.utils.uuid import uuid

from aerobee_client.allocation import Queue
from aerobee_client.blocking import BlockingClient
from aerobee_client.client import Client
from aerobee_client.connections.repeating import PAUSE_SECONDS
from aerobee_client.errors import ClientError
from aerobee_client.messages.message import ReceivedMessage, StoredMessage

_log = logging.getLogger(__name__)
_ABANDONED_COUNT_MAX: Final = 1000  # queues that are kept for a connection to come; the oldest go first

Waiting = tuple[dict[str, Any], StoredMessage]
"""A message of a transient queue, and how the broker stored it."""
Positions = dict[Queue, int]


def decoded(stored: StoredMessage | ReceivedMessage) -> dict[str, Any] | None:
    """A message as kombu sent it; None, with a warning, for one of another sender."""
    try:
        message = loads(stored.body)
        if isinstance(message["properties"]["delivery_info"]["routing_key"], str):
            return dict(message)
    except (ValueError, KeyError, TypeError):
        pass
    _log.warning("not a message of kombu topic=%s id=%s", stored.topic, stored.message_id)
    return None


class Member(Protocol):
    """A connection that uses transient queues."""

    def arrived(self) -> None:
        """A message arrived."""

    def bound_queues(self, exchange: str, routing_key: str) -> set[str]:
        """The queues that this connection bound to an exchange with a matching key."""


class _Queue:
    """One list, its connections, and how long it waits for the next connection: with none of them it is not kept."""

    def __init__(self, keep_seconds: float | None) -> None:
        self.keep_seconds = keep_seconds
        self.messages: deque[Waiting] = deque()
        self.members: set[Member] = set()
        self.count_max = 0
        self.until = 0.0  # monotonic, when there is no connection


class _Reader:
    """Reads the topic of one exchange: on from `positions`, or from its end."""

    def __init__(self, topic: str, client: Client, spread: Callable[[StoredMessage], None]) -> None:
        self._topic, self._spread = topic, spread
        self._consumer = client.pull_consumer(topic, topic, start="end", broadcasting=True, commit_seconds=None)
        self._task: asyncio.Task[None] | None = None

    async def start(self, positions: Positions) -> None:
        """Fix the position, so that what is sent from now on arrives."""
        await self._consumer.start()
        known = {**await self._consumer.end_offsets(self._consumer.assignment()), **positions}
        for queue, offset in known.items():
            await self._consumer.seek(queue, offset)
        self._task = asyncio.create_task(self._run(), name=f"read {self._topic}")

    async def _run(self) -> None:
        while True:
            try:
                messages = await self._consumer.getmany()
            except ClientError as error:
                _log.warning("reading failed topic=%s error=%s", self._topic, error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            for message in messages:
                self._spread(message)

    async def close(self) -> Positions:
        """Stop reading; returns where."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        positions = {queue: await self._consumer.position(queue) for queue in self._consumer.assignment()}
        await self._consumer.close()
        return positions


class TransientQueues:
    """The transient queues of all connections of a process to one broker. As with AMQP, a queue that one connection
    declares gets messages from then on, and another connection may take them: Celery declares the queue of its results
    with the connection that sends a task, and takes them with another one.

    One client reads each exchange once, from the first queue on until the last connection ends. All methods may be
    called in any thread.
    """

    def __init__(self) -> None:
        self._reading = threading.Lock()  # to start and end readers
        self._changing = threading.Lock()  # for everything in memory
        self._client: BlockingClient | None = None
        self._readers: dict[str, _Reader] = {}
        self._positions: dict[str, Positions] = {}  # of readers that ended while a queue was kept
        self._members: set[Member] = set()
        self._queues: dict[str, _Queue] = {}

    # --- Connections ----------------------------------------------------------------------------------------------

    def join(self, member: Member) -> None:
        """A connection begins."""
        with self._changing:
            self._members.add(member)

    def leave(self, member: Member) -> bool:
        """A connection ends, and with it the queues that only it used. One from which nothing was taken is kept for
        its time, if it is not exclusive. Whether something is left."""
        with self._reading:
            with self._changing:
                self._members.discard(member)
                self._leave_queues(member)
                last = not self._members
            if last:
                self._stop_reading()
            return not last or bool(self._queues)

    def _leave_queues(self, member: Member) -> None:
        now = time.monotonic()
        for name, queue in list(self._queues.items()):
            if member in queue.members:
                queue.members.discard(member)
                queue.until = now + (queue.keep_seconds or 0.0)
            if not queue.members and now >= queue.until:
                del self._queues[name]
        abandoned = sorted((queue.until, name) for name, queue in self._queues.items() if not queue.members)
        for _, name in abandoned[: max(0, len(abandoned) - _ABANDONED_COUNT_MAX)]:
            del self._queues[name]

    def _stop_reading(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        for exchange, reader in self._readers.items():
            with suppress(ClientError):
                self._positions[exchange] = client.run(reader.close())
        if not self._queues:
            self._positions.clear()
        self._readers.clear()
        client.close()

    def read(self, exchange: str, topic: str, connect: Callable[[], BlockingClient]) -> None:
        """Read an exchange, whose topic exists, from now on, with a client of its own. Errors as for a call."""
        with self._reading:
            if exchange in self._readers:
                return
            if self._client is None:
                self._client = connect()
            client = self._client

            async def start() -> _Reader:
                reader = _Reader(topic, client.asynchronous, lambda stored: self._spread(exchange, stored))
                try:
                    await reader.start(self._positions.get(exchange, {}))
                except BaseException:
                    await reader.close()
                    raise
                return reader

            self._readers[exchange] = client.run(start())
            self._positions.pop(exchange, None)

    # --- Queues ---------------------------------------------------------------------------------------------------

    def __contains__(self, queue: str) -> bool:
        return queue in self._queues

    def declare(self, name: str, member: Member, *, count_max: int, keep_seconds: float | None) -> None:
        """A connection uses a queue. It holds `count_max` messages. Without a connection it is kept for
        `keep_seconds`; None: it ends with its last connection."""
        with self._changing:
            queue = self._queues.setdefault(name, _Queue(keep_seconds))
            queue.members.add(member)
            queue.count_max = count_max

    def consume(self, name: str) -> None:
        """A connection takes the messages of a queue: the queue ends with its last connection."""
        with self._changing:
            if (queue := self._queues.get(name)) is not None:
                queue.keep_seconds = None

    def delete(self, name: str) -> bool:
        """Forget a queue; whether there was one."""
        with self._changing:
            return self._queues.pop(name, None) is not None

    def size(self, name: str) -> int:
        """How many messages wait."""
        queue = self._queues.get(name)
        return 0 if queue is None else len(queue.messages)

    def purge(self, name: str) -> int:
        """Drop all messages; returns how many."""
        with self._changing:
            queue = self._queues.get(name)
            if queue is None:
                return 0
            count = len(queue.messages)
            queue.messages.clear()
            return count

    def take(self, name: str, priority: Callable[[dict[str, Any]], int] | None) -> Waiting | None:
        """The next message, or the first of the highest priority; None if there is none."""
        with self._changing:
            queue = self._queues.get(name)
            if queue is None or not queue.messages:
                return None
            messages, index = queue.messages, 0
            if priority is not None:
                index = max(range(len(messages)), key=lambda each: (priority(messages[each][0]), -each))
            found = messages[index]
            del messages[index]
            return found

    def _spread(self, exchange: str, stored: StoredMessage) -> None:
        """Give a message to the queues that it is for. Runs in the client's thread."""
        message = decoded(stored)
        if message is None:
            return
        key = message["properties"]["delivery_info"]["routing_key"]
        with self._changing:
            members = list(self._members)
        names = {key} if exchange == "" else set().union(*(each.bound_queues(exchange, key) for each in members))
        with self._changing:
            for name in names & self._queues.keys():
                self._keep(name, self._queues[name], message, stored)
        for member in members:
            member.arrived()

    @staticmethod
    def _keep(name: str, queue: _Queue, message: dict[str, Any], stored: StoredMessage) -> None:
        copy = {**message, "properties": {**message["properties"], "delivery_tag": uuid()}}
        queue.messages.append((copy, stored))
        if len(queue.messages) > queue.count_max:
            queue.messages.popleft()
            _log.warning("dropped the oldest message queue=%s transient_count_max=%d", name, queue.count_max)


_by_broker: dict[Hashable, TransientQueues] = {}
_joining = threading.Lock()


def join(broker: Hashable, member: Member) -> TransientQueues:
    """The transient queues at a broker; `leave` ends their use."""
    with _joining:
        queues = _by_broker.setdefault(broker, TransientQueues())
        queues.join(member)
        return queues


def leave(broker: Hashable, member: Member) -> None:
    """A connection ends."""
    with _joining:
        queues = _by_broker.get(broker)
        if queues is not None and not queues.leave(member):
            del _by_broker[broker]
