"""Calls an application function for messages, with limited concurrency, and acknowledges each when it returns."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypedDict

from aerobee_client.connections.closing import AsyncClosing
from aerobee_client.connections.connection import Connection
from aerobee_client.connections.repeating import PAUSE_SECONDS, every
from aerobee_client.connections.routes import broker_endpoints
from aerobee_client.consuming.broker_sessions import BrokerSessions
from aerobee_client.consuming.receiving import new_attempt_id
from aerobee_client.errors import BadRequestError, ClientError, TooManyRequestsError
from aerobee_client.filters import Subscriptions, wire_filters, wire_subscription
from aerobee_client.hooks import Hooks, after_handle
from aerobee_client.limits.flow import FlowControl
from aerobee_client.messages.message import ReceivedMessage, received_message
from aerobee_proto import v2

_log = logging.getLogger(__name__)

ASSIGNMENT_SECONDS = 5.0  # interval of asking the broker for the queues, as in the official clients
_BUSY_SECONDS = 0.02  # after a receive that the broker refused as too many
_BATCH_COUNT = 32  # RocketMQ's limit of one answer
_WAIT_SECONDS = 20.0
_ATTEMPTS_MAX = 17  # RocketMQ's default for consumers; used if a server sends none

Handler = Callable[[ReceivedMessage], Awaitable[object] | object]
"""Handles a message. Returning means success; `False` or an exception means that it must be delivered again."""


class RetryLater(Exception):  # part of normal operation, so not an Error
    """Raised by a handler to get the message again after `delay_seconds` instead of the group's backoff."""

    def __init__(self, delay_seconds: float) -> None:
        super().__init__(f"again in {delay_seconds:g} s")
        self.delay_seconds = delay_seconds


class PushConsumerOptions(TypedDict, total=False):
    """The options of `Client.push_consumer`, which documents them, for functions that pass them on."""

    concurrency: int
    waiting_count_max: int
    waiting_size_max: int
    span_max: int
    drain_seconds: float


class PushConsumer(AsyncClosing):
    """Calls a handler for the messages of a consumer group. `Client.push_consumer` makes one.

        async def bill(message: ReceivedMessage) -> None: ...

        async with client.push_consumer("billing", "orders", bill):
            await stop.wait()

    A coroutine function runs in the event loop, a plain function in a thread. Messages stay invisible to the rest of
    the group while the handler runs, as long as this process lives. If a handler fails, the message is redelivered
    after the group's back-off; after the last attempt it becomes a dead letter.

    In a group that is ordered (`aerobee group create NAME --fifo`), messages of one message group are handled one after
    the other: a failed one is retried here, and later ones wait.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        subscriptions: Subscriptions,
        handler: Handler,
        *,
        concurrency: int = 16,
        waiting_count_max: int = 1024,
        waiting_size_max: int = 64 << 20,
        span_max: int = 100_000,
        drain_seconds: float = 30.0,
        hooks: Sequence[Hooks] = (),
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; give at least 1")
        if not callable(handler):
            raise TypeError(f"the handler is {handler!r}; give a function that takes a message")
        self._filters = wire_filters(subscriptions)
        self.group = group
        self._connection = connection
        self._handler = handler
        self._concurrency = concurrency
        self._drain_seconds = drain_seconds
        self._hooks = hooks
        settings = v2.Settings(
            client_type=v2.ClientType.PUSH_CONSUMER, subscription=wire_subscription(group, self._filters)
        )
        self._sessions = BrokerSessions(connection, settings, group, self._obey)
        self._telemetry = self._sessions.default.telemetry
        self._flow = FlowControl(waiting_count_max, waiting_size_max, span_max)
        self._threads: ThreadPoolExecutor | None = None
        self._coroutine = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004  # not whether it can be called, but how
        )
        self._ready: asyncio.Queue[_Sequence] = asyncio.Queue()
        self._sequences: dict[object, _Sequence] = {}
        self._running: asyncio.Task[None] | None = None
        self._receivers: dict[tuple[str, str, int, str], asyncio.Task[None]] = {}
        self._draining = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._busy = 0

    @property
    def ordered(self) -> bool:
        """Whether the broker says that the group is ordered; known once the consumer has started."""
        return self._telemetry.settings.subscription.fifo

    async def start(self) -> None:
        """Begin. Errors as for a call; later ones are logged and retried."""
        if self._draining.is_set():
            raise ClientError("this consumer is closed; make a new one")
        if self._running is not None:
            raise ClientError("this consumer is already started")
        await self._telemetry.ready()
        assignments = [await self._assignment(topic) for topic in self._filters]
        self._running = asyncio.create_task(self._run(), name=f"push consumer {self.group}")
        for topic, queues in zip(self._filters, assignments, strict=True):
            self._receive_from(topic, queues)

    async def wait(self) -> None:
        """Return when the consumer is closed. Raises an error that ended it, which only a bug causes."""
        if self._running is None:
            raise ClientError("this consumer was not started; use it with `async with`, or call start()")
        closing = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait((closing, self._running), return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
        if self._running.done() and not self._running.cancelled():
            self._running.result()

    async def close(self) -> None:
        """Stop receiving, let running handlers finish and acknowledge, and unregister.

        Handlers have `drain_seconds`. Unhandled messages go to other consumers of the group about a second later.
        """
        if self._draining.is_set():
            return
        self._draining.set()
        receivers = list(self._receivers.values())
        for task in receivers:
            task.cancel()
        await asyncio.gather(*receivers, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                await self._idle.wait()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        await self._sessions.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    # --- Receiving --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """The workers, and the refresh of the assignment."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._concurrency):
                tasks.create_task(self._work(), name=f"handler {number} of {self.group}")
            await every(ASSIGNMENT_SECONDS, self._refresh)

    async def _refresh(self) -> None:
        for topic in self._filters:
            try:
                self._receive_from(topic, await self._assignment(topic))
            except ClientError as error:
                _log.warning("assignment refresh failed topic=%s error=%s", topic, error)
        self._sessions.keep({endpoint for *_, endpoint in self._receivers})

    async def _assignment(self, topic: str) -> list[v2.MessageQueue]:
        """The queues to receive from; of masters only."""
        request = v2.QueryAssignmentRequest(
            topic=v2.Resource(name=topic),
            group=v2.Resource(name=self.group),
            endpoints=self._connection.peer.endpoints,
        )
        answer = await self._connection.call(
            lambda stubs: stubs.messaging.QueryAssignment, request, self._telemetry.metadata
        )
        return [each.message_queue for each in answer.assignments if each.message_queue.broker.id == 0]

    def _receive_from(self, topic: str, queues: Sequence[v2.MessageQueue]) -> None:
        """Start and end receivers, so that each of `queues` has one."""
        if self._draining.is_set():
            return
        endpoints = broker_endpoints(queues)
        wanted = {(topic, queue.broker.name, queue.id, endpoints[queue.broker.name]): queue for queue in queues}
        for key in [
            key for key, task in self._receivers.items() if key[0] == topic and (key not in wanted or task.done())
        ]:
            self._receivers.pop(key).cancel()
        for key, queue in wanted.items():
            if key not in self._receivers:
                name = f"receive {topic} {queue.broker.name} {queue.id}"
                self._receivers[key] = asyncio.create_task(self._receive(topic, queue, key[-1]), name=name)

    async def _receive(self, topic: str, queue: v2.MessageQueue, endpoint: str) -> None:
        """Receive from one assignment without end."""
        subscription = self._telemetry.settings.subscription
        batch = subscription.receive_batch_size or _BATCH_COUNT
        wait = subscription.long_polling_timeout.ToMilliseconds() / 1000 or _WAIT_SECONDS
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name=self.group),
            message_queue=queue,
            filter_expression=self._filters[topic],
            auto_renew=True,
            attempt_id=new_attempt_id(),
        )
        request.long_polling_timeout.FromMilliseconds(int(wait * 1000))
        while True:
            request.batch_size = min(batch, await self._flow.wait_free())
            try:
                received = await self._sessions.at(endpoint).receiving.receive(request)
            except ClientError as error:
                busy = isinstance(error, TooManyRequestsError)
                _log.log(logging.DEBUG if busy else logging.WARNING, "receive failed topic=%s error=%s", topic, error)
                await asyncio.sleep(_BUSY_SECONDS if busy else PAUSE_SECONDS)
                continue
            request.attempt_id = new_attempt_id()
            for _, message in received:
                self._accept(message)

    def _accept(self, message: ReceivedMessage) -> None:
        """Put a message into its sequence: those of an ordered group that must follow one another share one."""
        self._flow.add(_place(message), message.queue_offset, len(message.body))
        self._busy += 1
        self._idle.clear()
        if not self.ordered:
            self._ready.put_nowait(_Sequence(deque([message])))
            return
        key = (message.topic, message.message_group or _place(message))
        sequence = self._sequences.get(key)
        if sequence is None:
            sequence = self._sequences[key] = _Sequence(deque(), key)
            self._ready.put_nowait(sequence)
        sequence.messages.append(message)

    # --- Handling ---------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """One worker: takes a sequence, works on its first message, and leaves the rest to any free worker."""
        while True:
            sequence = await self._ready.get()
            message = sequence.messages.popleft()
            try:
                if not self._draining.is_set():
                    await (self._in_order(message) if self.ordered else self._once(message))
            finally:
                self._flow.remove(_place(message), message.queue_offset, len(message.body))
                self._busy -= 1
                if not self._busy:
                    self._idle.set()
                if sequence.messages:
                    self._ready.put_nowait(sequence)
                elif sequence.key is not None:
                    self._sequences.pop(sequence.key, None)

    async def _once(self, message: ReceivedMessage) -> None:
        """Handle a message, then acknowledge it or return it for a later delivery."""
        error = await self._handled(message)
        if error is None:
            await self._acknowledge(message)
            return
        delay = error.delay_seconds if isinstance(error, RetryLater) else self._delay_seconds(message.delivery_attempt)
        try:
            await self._sessions.of(message).acknowledgement.change_invisible(message, delay)
        except ClientError as failed:  # it is redelivered anyway when it is not renewed
            _log.warning(
                "message not returned to the broker topic=%s id=%s: %s", message.topic, message.message_id, failed
            )

    async def _in_order(self, message: ReceivedMessage) -> None:
        """Handle a message until it succeeds or its attempts are used up; later messages of its sequence wait."""
        attempts_max = self._telemetry.settings.backoff_policy.max_attempts or _ATTEMPTS_MAX
        attempt = message.delivery_attempt
        while (error := await self._handled(message)) is not None:
            if attempt >= attempts_max:
                _log.error("message becomes a dead letter topic=%s id=%s", message.topic, message.message_id)
                try:
                    await self._sessions.of(message).acknowledgement.give_up(message, attempts_max)
                except ClientError as failed:
                    _log.warning("dead letter refused topic=%s id=%s: %s", message.topic, message.message_id, failed)
                return
            delay = error.delay_seconds if isinstance(error, RetryLater) else self._delay_seconds(attempt)
            attempt += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._draining.wait()
            if self._draining.is_set():
                return
        await self._acknowledge(message)

    async def _acknowledge(self, message: ReceivedMessage) -> None:
        if error := await self._sessions.of(message).acknowledgement.ack_one(message):
            level = logging.WARNING if isinstance(error, BadRequestError) else logging.ERROR
            _log.log(
                level,
                "handled message not acknowledged, it is delivered again topic=%s id=%s: %s",
                *(message.topic, message.message_id, error),
            )

    async def _handled(self, message: ReceivedMessage) -> Exception | None:
        """None if the handler succeeded; otherwise the error."""
        error: Exception | None = None
        try:
            for hook in self._hooks:
                hook.before_handle(message)
            if message.corrupted:
                raise ClientError("its body cannot be decompressed")
            if await self._call(message) is False:
                error = ClientError("the handler returned False")
        except RetryLater as later:
            error = later
        except Exception as raised:  # whatever the handler raises is logged
            _log.exception(
                "the handler failed topic=%s id=%s attempt=%d",
                *(message.topic, message.message_id, message.delivery_attempt),
            )
            error = raised
        after_handle(self._hooks, message, error)
        return error

    async def _call(self, message: ReceivedMessage) -> object:
        if self._coroutine:
            result: Any = self._handler(message)
            return await result
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix=f"handler-{self.group}")
        result = await asyncio.get_running_loop().run_in_executor(self._threads, self._handler, message)
        return await result if inspect.isawaitable(result) else result

    def _delay_seconds(self, attempt: int) -> float:
        """The delay before the next delivery, after attempt number `attempt` failed."""
        policy = self._telemetry.settings.backoff_policy
        if policy.HasField("customized_backoff") and (delays := policy.customized_backoff.next):
            return delays[min(attempt, len(delays)) - 1].ToMilliseconds() / 1000
        if policy.HasField("exponential_backoff"):
            rule = policy.exponential_backoff
            longest = rule.max.ToMilliseconds() / 1000
            return min(rule.initial.ToMilliseconds() / 1000 * rule.multiplier ** min(attempt - 1, 64), longest)
        return 1.0

    async def _obey(self, command: v2.TelemetryCommand) -> v2.TelemetryCommand | None:
        """Handle a message for the broker's verification; nothing is acknowledged."""
        if not command.HasField("verify_message_command"):
            return None
        verify = command.verify_message_command
        if self.ordered:
            status = v2.Status(code=v2.Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED, message="the group is ordered")
        elif (error := await self._handled(received_message(verify.message))) is None:
            status = v2.Status(code=v2.Code.OK)
        else:
            status = v2.Status(code=v2.Code.FAILED_TO_CONSUME_MESSAGE, message=f"{type(error).__name__}: {error}")
        return v2.TelemetryCommand(status=status, verify_message_result=v2.VerifyMessageResult(nonce=verify.nonce))


def _place(message: ReceivedMessage) -> tuple[str, str, int]:
    """The queue of a message."""
    return message.topic, message.endpoint, message.queue_id


class _Sequence:
    """Messages that are handled one after the other."""

    def __init__(self, messages: deque[ReceivedMessage], key: object = None) -> None:
        self.messages = messages
        self.key = key
