"""Receives and acknowledges messages, one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aerobee_client.connections.closing import AsyncClosing
from aerobee_client.connections.connection import Connection, Retry
from aerobee_client.connections.routes import DEFAULT, READABLE, broker_endpoints
from aerobee_client.consuming.broker_sessions import BrokerSessions
from aerobee_client.consuming.receiving import new_attempt_id
from aerobee_client.errors import BatchError, ClientError
from aerobee_client.filters import Subscriptions, wire_filters, wire_subscription
from aerobee_client.messages.message import ReceivedMessage
from aerobee_proto import v2

_log = logging.getLogger(__name__)
_ONE_ATTEMPT = Retry(seconds=0)
_Source = tuple[str, str]  # a topic, and the address of a broker


class SimpleConsumer(AsyncClosing):
    """Receives for a consumer group and acknowledges on request. `Client.simple_consumer` makes one.

    Each message goes to one consumer of the group. It stays hidden from the others for the time given to `receive`, and
    is delivered again, to any of them, unless it is acknowledged before. Not for concurrent receives by two tasks.
    """

    def __init__(self, connection: Connection, group: str, subscriptions: Subscriptions) -> None:
        self._filters = wire_filters(subscriptions)
        self.group = group
        settings = v2.Settings(
            client_type=v2.ClientType.SIMPLE_CONSUMER, subscription=wire_subscription(group, self._filters)
        )
        self._sessions = BrokerSessions(connection, settings, group)
        self._telemetry, self._routes = self._sessions.default.telemetry, self._sessions.default.routes
        self._turns = itertools.count()
        self._attempt_ids: dict[_Source, str] = {}
        self._polls: dict[_Source, asyncio.Task[list[tuple[float, ReceivedMessage]]]] = {}
        self._waiting: deque[tuple[float, ReceivedMessage]] = deque()  # end of their invisible time, in loop time

    async def receive(
        self, max_count: int = 16, *, invisible_seconds: float = 30.0, wait_seconds: float = 10.0
    ) -> list[ReceivedMessage]:
        """Up to `max_count` messages of the subscribed topics, all of which are polled at once, on all of their
        brokers. One answer of a broker has at most 32 (`delivery.receive_count_max` of Aerobee's configuration).

        Returns as soon as there is a message; empty if there was none within `wait_seconds` (0 to 20, limited by the
        server). Messages of other topics that arrive at the same time are kept for the next call, while they are hidden
        from others. Messages whose bodies cannot be decompressed are included, `corrupted` and with the stored body.
        Messages of a cancelled call are delivered again when their `invisible_seconds` are over. A broker that does not
        answer is retried, as in every call. Raises NotFoundError if a topic or, without automatic creation, the group
        does not exist; UnavailableError if a connection breaks while the broker has the request.
        """
        if max_count < 1:
            raise ValueError(f"max_count is {max_count}; give at least 1")
        await self._telemetry.ready()
        loop = asyncio.get_running_loop()
        sources = [(topic, endpoint) for topic in self._filters for endpoint in await self._endpoints(topic)]
        self._sessions.keep({endpoint for _, endpoint in (*sources, *self._polls)})
        first = next(self._turns) % len(sources)
        until = loop.time() + wait_seconds
        new = []
        for source in sources[first:] + sources[:first]:
            if source not in self._polls:
                poll = self._poll(source, max_count, invisible_seconds, wait_seconds)
                self._polls[source] = asyncio.create_task(poll, name=f"receive {' '.join(source)}")
                new.append(source)
        try:
            while not (received := self._taken(max_count)):
                # Polls of earlier calls may wait longer than this call; its own end by themselves.
                own = [self._polls[source] for source in new if source in self._polls]
                if (not own and loop.time() >= until) or not self._polls:
                    return []
                timeout = None if own else until - loop.time()
                done, _ = await asyncio.wait(self._polls.values(), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                await self._collect(done)
        except BaseException:
            await self._stop_polls()
            raise
        return received

    async def ack(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages; they are not delivered to the group again.

        Raises BadRequestError if the invisible time of a single message is over, and BatchError if some of several
        failed: its `outcomes` are in the order of `messages`, None for acknowledged ones.
        """
        batch = [messages] if isinstance(messages, ReceivedMessage) else list(messages)
        outcomes = await self._acked(batch)
        if len(outcomes) == 1 and outcomes[0] is not None:
            raise outcomes[0]
        if any(outcomes):
            raise BatchError(outcomes)

    async def change_invisible(self, message: ReceivedMessage, invisible_seconds: float) -> ReceivedMessage:
        """Hide a delivered message for `invisible_seconds` (0 to 12 hours) from now; 0 returns it at once.

        Returns the message with its new receipt handle; the old one becomes invalid. Raises BadRequestError if the
        invisible time is over.
        """
        return await self._sessions.of(message).acknowledgement.change_invisible(message, invisible_seconds)

    async def nack(self, message: ReceivedMessage, delay_seconds: float = 0.0) -> None:
        """Return a message to the group, which receives it again after `delay_seconds`, with the next attempt
        number."""
        await self._sessions.of(message).acknowledgement.change_invisible(message, delay_seconds)

    @asynccontextmanager
    async def keep_invisible(
        self, message: ReceivedMessage, invisible_seconds: float = 30.0
    ) -> AsyncIterator[ReceivedMessage]:
        """Keep a message invisible while the block runs, then acknowledge it; if the block raises, return it to the
        group.

            for message in await consumer.receive():
                async with consumer.keep_invisible(message):
                    await takes_minutes(message.body)

        The time is renewed every third of `invisible_seconds`, so after the death of the process the message stays
        invisible for at most that long. A failed renewal is logged, and the next one follows.
        """
        held = message
        over = asyncio.Event()

        async def renew() -> None:
            nonlocal held
            while not over.is_set():
                try:
                    hide = self._sessions.of(held).acknowledgement.change_invisible
                    held = await hide(held, invisible_seconds, retry=_ONE_ATTEMPT)
                except ClientError as error:
                    _log.warning("renewal failed topic=%s id=%s error=%s", message.topic, message.message_id, error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(invisible_seconds / 3):
                        await over.wait()

        renewal = asyncio.create_task(renew(), name=f"keep invisible {message.message_id}")
        try:
            yield message
        except BaseException:
            await _ended(renewal, over)
            with contextlib.suppress(ClientError):
                await self.nack(held)
            raise
        await _ended(renewal, over)
        await self.ack(held)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Messages without end, each acknowledged when the next one is requested:

            async for message in consumer:
                print(message.body)

        If `break` or an error ends the loop, the current message is not acknowledged and will be redelivered.
        """
        while True:
            for message in await self.receive():
                yield message
                await self.ack(message)

    async def close(self) -> None:
        """Return received messages that were not handed out, and unregister from the broker.

        Messages handed out but not acknowledged are delivered again when their invisible time is over.
        """
        await self._stop_polls()
        waiting = [message for _, message in self._waiting]
        self._waiting.clear()
        if waiting and not self._telemetry.closed:
            backs = (
                self._sessions.of(each).acknowledgement.change_invisible(each, 0, retry=_ONE_ATTEMPT)
                for each in waiting
            )
            await asyncio.gather(*backs, return_exceptions=True)
        await self._sessions.close()

    def _taken(self, max_count: int) -> list[ReceivedMessage]:
        """Buffered messages whose invisible time is not over."""
        now = asyncio.get_running_loop().time()
        taken: list[ReceivedMessage] = []
        while self._waiting and len(taken) < max_count:
            until, message = self._waiting.popleft()
            if now < until:
                taken.append(message)
        return taken

    async def _collect(self, done: set[asyncio.Task[list[tuple[float, ReceivedMessage]]]]) -> None:
        """Collect the results of these polls. An error is raised unless another poll brought messages."""
        errors = []
        for source in [source for source, poll in self._polls.items() if poll in done]:
            poll = self._polls.pop(source)
            if error := poll.exception():
                errors.append(error)
            else:
                self._waiting.extend(poll.result())
        if errors and not self._waiting:
            raise errors[0]

    async def _stop_polls(self) -> None:
        polls = list(self._polls.values())
        self._polls.clear()
        await _cancelled(*polls)

    async def _endpoints(self, topic: str) -> list[str]:
        """Where to receive a topic. A route is asked for in the poll, whose errors are collected."""
        if len(set(broker_endpoints(self._routes.known(topic)).values())) < 2:
            return [DEFAULT]
        if not self._routes.is_fresh(topic):
            with contextlib.suppress(ClientError):
                await self._routes.queues(topic)
        return sorted(set(broker_endpoints(_readable(self._routes.known(topic))).values())) or [DEFAULT]

    async def _acked(self, batch: list[ReceivedMessage]) -> list[ClientError | None]:
        """One outcome per message; those of one broker in as few requests as possible."""
        by_endpoint: dict[str, list[int]] = {}
        for index, message in enumerate(batch):
            by_endpoint.setdefault(message.endpoint, []).append(index)
        answers = await asyncio.gather(
            *(
                self._sessions.at(endpoint).acknowledgement.ack([batch[index] for index in indices])
                for endpoint, indices in by_endpoint.items()
            )
        )
        outcomes: list[ClientError | None] = [None] * len(batch)
        for indices, answer in zip(by_endpoint.values(), answers, strict=True):
            for index, error in zip(indices, answer, strict=True):
                outcomes[index] = error
        return outcomes

    async def _poll(
        self, source: _Source, max_count: int, invisible_seconds: float, wait_seconds: float
    ) -> list[tuple[float, ReceivedMessage]]:
        """One receive of one topic from one broker."""
        topic, endpoint = source
        readable = await self._routes.readable(topic)
        found = broker_endpoints(readable)
        brokers = {each.broker.name: each for each in readable if endpoint in (DEFAULT, found[each.broker.name])}
        if not brokers:
            return []  # it is gone
        wire = list(brokers.values())[next(self._turns) % len(brokers)]
        session = self._sessions.at(found[wire.broker.name])
        queue = v2.MessageQueue()
        queue.CopyFrom(wire)
        queue.id = -1  # any queue of the broker
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name=self.group),
            message_queue=queue,
            filter_expression=self._filters[topic],
            batch_size=max_count,
            attempt_id=self._attempt_ids.setdefault(source, new_attempt_id()),
        )
        request.invisible_duration.FromMilliseconds(int(invisible_seconds * 1000))
        request.long_polling_timeout.FromMilliseconds(int(wait_seconds * 1000))
        received = await session.receiving.receive(request)
        self._attempt_ids.pop(source, None)
        return [(arrived + invisible_seconds, message) for arrived, message in received]


def _readable(queues: Sequence[v2.MessageQueue]) -> list[v2.MessageQueue]:
    return [queue for queue in queues if queue.permission in READABLE]


async def _ended(renewal: asyncio.Task[None], over: asyncio.Event) -> None:
    """End a renewal. One in flight is not cancelled: the broker may have made its new receipt handle already."""
    over.set()
    await renewal


async def _cancelled(*tasks: asyncio.Task[object]) -> None:
    """Cancel tasks and ignore their results."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
