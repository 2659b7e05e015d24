"""The blocking producers and consumers: what `make map` makes of the asynchronous ones, and the calls that differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from aerobee_client.blocking.wrappers import ProducerCalls, PullConsumerCalls, PushConsumerCalls, SimpleConsumerCalls
from aerobee_client.messages.message import Message, SendResult


class BlockingProducer(ProducerCalls):
    """Sends messages, as `Producer` does. `BlockingClient.producer` makes one."""

    def submit(self, message: Message) -> Future[SendResult]:
        """Start a send, and return when there is space in memory for the message; the future has the result."""

        async def submit() -> asyncio.Future[SendResult]:
            return await self.asynchronous.submit(message)

        return self._loop_thread.start(self._loop_thread.run(submit()))

    @contextmanager
    def transaction(self) -> Iterator[Callable[[Message], SendResult]]:
        """A transaction that is committed at the end of the block, and rolled back if the block raises. Yields the
        function that sends a message within it."""
        with self._loop_thread.entered(self.asynchronous.transaction()) as transaction:
            yield lambda message: self._loop_thread.run(transaction.send(message))


class BlockingSimpleConsumer(SimpleConsumerCalls):
    """Receives and acknowledges messages, as `SimpleConsumer` does. `BlockingClient.simple_consumer` makes one."""


class BlockingPushConsumer(PushConsumerCalls):
    """Calls a handler for messages, as `PushConsumer` does. `BlockingClient.push_consumer` makes one."""

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Return when the consumer is closed; TimeoutError after the timeout. Raises an error that ended it, which only
        a bug causes."""
        self._loop_thread.run(self.asynchronous.wait(), timeout_seconds)


class BlockingPullConsumer(PullConsumerCalls):
    """Reads queues and keeps its position, as `PullConsumer` does. `BlockingClient.pull_consumer` makes one."""
