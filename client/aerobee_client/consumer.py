"""Receiving and acknowledging messages one request at a time."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from aerobee_client.connection import Connection
from aerobee_client.errors import BatchError, ClientError, ForbiddenError, status_error
from aerobee_client.message import ReceivedMessage, received_message
from aerobee_client.telemetry import Telemetry
from aerobee_proto import v2

_ROUTE_SECONDS = 30.0  # how long a route is used before it is asked again, as the official clients
_ROCKETMQ_WAIT_SECONDS_MIN = 5.0  # RocketMQ's server waits this long whatever was asked, and refuses shorter deadlines


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A filter over properties, such as `amount > 100 AND region = 'north'`. The server must support it."""

    expression: str


Filter = str | SqlFilter
"""What to receive of a topic: tags such as `"paid || refunded"`, `"*"` for all, or SQL over the properties."""


class SimpleConsumer:
    """Receives for a consumer group and acknowledges when told to. `Client.simple_consumer` makes one.

    Every message reaches one consumer of the group. It stays hidden from the others for the time given to `receive`,
    and comes back, to any of them, unless it is acknowledged before.
    """

    def __init__(self, connection: Connection, group: str, subscriptions: Mapping[str, Filter]) -> None:
        if not subscriptions:
            raise ValueError("subscriptions is empty; name at least one topic")
        self.group = group
        self._connection = connection
        self._filters = {topic: _filter(expression) for topic, expression in subscriptions.items()}
        entries = [v2.SubscriptionEntry(topic=v2.Resource(name=t), expression=f) for t, f in self._filters.items()]
        subscription = v2.Subscription(group=v2.Resource(name=group), subscriptions=entries)
        subscription.long_polling_timeout.FromSeconds(20)
        settings = v2.Settings(client_type=v2.ClientType.SIMPLE_CONSUMER, subscription=subscription)
        self._telemetry = Telemetry(connection, settings, group)
        self._routes: dict[str, tuple[float, list[v2.MessageQueue]]] = {}
        self._turns = itertools.count()
        self._attempt_id = str(uuid.uuid4())

    async def receive(
        self, max_count: int = 16, *, invisible_seconds: float = 30.0, wait_seconds: float = 10.0
    ) -> list[ReceivedMessage]:
        """Up to `max_count` (1 to 32) messages of one subscribed topic, each call the next topic.

        Returns as soon as there is one; empty if there was none within `wait_seconds` (0 to 20: the server limits
        it). One whose body cannot be decompressed is among them, `corrupted` and with its body as the broker has it: it
        keeps nobody from the others. Messages of a call that is cancelled come back when their `invisible_seconds` are
        over. Raises NotFoundError if the topic or, where groups must be created, the group does not exist;
        UnavailableError if the connection breaks.
        """
        await self._telemetry.ready()
        turn = next(self._turns)
        topics = list(self._filters)
        topic = topics[turn % len(topics)]
        queues = await self._readable_queues(topic)
        queue = v2.MessageQueue()
        queue.CopyFrom(queues[turn // len(topics) % len(queues)])
        queue.id = -1  # any queue of the broker
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name=self.group),
            message_queue=queue,
            filter_expression=self._filters[topic],
            batch_size=max_count,
            attempt_id=self._attempt_id,
        )
        request.invisible_duration.FromMilliseconds(int(invisible_seconds * 1000))
        request.long_polling_timeout.FromMilliseconds(int(wait_seconds * 1000))
        deadline = max(wait_seconds, _ROCKETMQ_WAIT_SECONDS_MIN) + self._connection.request_timeout_seconds
        received: list[ReceivedMessage] = []
        status: v2.Status | None = None
        try:
            method, metadata = self._connection.messaging.ReceiveMessage, self._telemetry.metadata
            async with aclosing(self._connection.stream(method, request, metadata, timeout_seconds=deadline)) as items:
                async for item in items:
                    if item.HasField("message"):
                        received.append(received_message(item.message))
                    elif item.HasField("status"):
                        status = item.status
        except ClientError:
            if not received:
                raise  # and the next call has the same attempt id: an ordered group delivers the same messages again
        self._attempt_id = str(uuid.uuid4())
        if not received and status is not None and status.code != v2.Code.MESSAGE_NOT_FOUND:
            error = status_error(status)
            if error is not None:
                self._routes.pop(topic, None)
                raise error
        return received

    async def ack(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> None:
        """Say that messages are done with; they are not delivered to the group again.

        Raises BadRequestError if the invisible time of a single message was over, BatchError if some of several
        failed: its `outcomes` are in the order of `messages`, None for those that are acknowledged.
        """
        batch = [messages] if isinstance(messages, ReceivedMessage) else list(messages)
        by_topic: dict[str, list[int]] = {}
        for index, message in enumerate(batch):
            by_topic.setdefault(message.topic, []).append(index)
        outcomes: list[ClientError | None] = [None] * len(batch)
        for topic, indices in by_topic.items():
            for index, error in zip(indices, await self._ack(topic, [batch[i] for i in indices]), strict=True):
                outcomes[index] = error
        if len(outcomes) == 1 and outcomes[0] is not None:
            raise outcomes[0]
        if any(outcomes):
            raise BatchError(outcomes)

    async def change_invisible(self, message: ReceivedMessage, invisible_seconds: float) -> ReceivedMessage:
        """Hide a delivered message for `invisible_seconds` (0 to 12 hours) from now; 0 gives it back at once.

        Returns the message with its new receipt handle; the old one is spent. Raises BadRequestError if the invisible
        time was over.
        """
        await self._telemetry.ready()
        request = v2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name=self.group),
            topic=v2.Resource(name=message.topic),
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
        )
        request.invisible_duration.FromMilliseconds(int(invisible_seconds * 1000))
        stub = self._connection.messaging
        answer = await self._connection.call(stub.ChangeInvisibleDuration, request, self._telemetry.metadata)
        return replace(message, receipt_handle=answer.receipt_handle)

    async def close(self) -> None:
        """Say goodbye to the broker. Messages not acknowledged come back when their invisible time is over."""
        await self._telemetry.close()

    async def _ack(self, topic: str, messages: list[ReceivedMessage]) -> list[ClientError | None]:
        entries = [v2.AckMessageEntry(message_id=m.message_id, receipt_handle=m.receipt_handle) for m in messages]
        request = v2.AckMessageRequest(
            group=v2.Resource(name=self.group), topic=v2.Resource(name=topic), entries=entries
        )
        try:
            await self._telemetry.ready()
            stub = self._connection.messaging
            # With entries, theirs are the outcomes; the status above them only repeats or sums up.
            answer = await self._connection.call(
                stub.AckMessage,
                request,
                self._telemetry.metadata,
                check=lambda answer: None if answer.entries else status_error(answer.status),
            )
        except ClientError as error:
            return [error] * len(messages)
        if len(answer.entries) != len(messages):
            return [ClientError(f"the broker answered {len(messages)} acknowledgements with {len(answer.entries)}")] * (
                len(messages)
            )
        return [status_error(entry.status) for entry in answer.entries]

    async def _readable_queues(self, topic: str) -> list[v2.MessageQueue]:
        """One queue of each broker to receive from."""
        known = self._routes.get(topic)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        request = v2.QueryRouteRequest(topic=v2.Resource(name=topic), endpoints=self._connection.endpoints)
        answer = await self._connection.call(self._connection.messaging.QueryRoute, request, self._telemetry.metadata)
        readable = (v2.Permission.READ, v2.Permission.READ_WRITE)
        brokers = {
            queue.broker.name: queue
            for queue in answer.message_queues
            if queue.permission in readable and queue.broker.id == 0  # 0 is the master
        }
        if not brokers:
            raise ForbiddenError(v2.Code.FORBIDDEN, f"topic {topic!r} has no readable queue; check its permission")
        queues = list(brokers.values())
        self._routes[topic] = (time.monotonic() + _ROUTE_SECONDS, queues)
        return queues


def _filter(expression: Filter) -> v2.FilterExpression:
    if isinstance(expression, SqlFilter):
        return v2.FilterExpression(type=v2.FilterType.SQL, expression=expression.expression)
    return v2.FilterExpression(type=v2.FilterType.TAG, expression=expression)
