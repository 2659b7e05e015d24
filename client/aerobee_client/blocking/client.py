"""A client in a thread of its own, and the blocking producers and consumers that it makes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar, Unpack

from aerobee_client import client as asynchronous_client
from aerobee_client.blocking.faces import (
    BlockingProducer,
    BlockingPullConsumer,
    BlockingPushConsumer,
    BlockingSimpleConsumer,
)
from aerobee_client.blocking.loop_thread import LoopThread
from aerobee_client.blocking.wrappers import BlockingAdmin
from aerobee_client.client import Client, ConnectOptions
from aerobee_client.filters import Subscriptions
from aerobee_client.producer import ProducerOptions
from aerobee_client.pull_consumer import PullConsumerOptions
from aerobee_client.push_consumer import Handler, PushConsumerOptions

ResultT = TypeVar("ResultT")


class BlockingClient:
    """A `Client` in a thread of its own. `connect` makes one; `asynchronous` is the client itself."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._loop_thread = LoopThread()
        try:
            self.asynchronous = self._loop_thread.call(make)
        except BaseException:
            self._loop_thread.stop()
            raise
        self.admin = BlockingAdmin(self._loop_thread, self.asynchronous.admin)

    def run(self, work: Awaitable[ResultT], timeout_seconds: float | None = None) -> ResultT:
        """Run a coroutine of this client and return its result. On timeout, raises TimeoutError and cancels the
        coroutine."""
        return self._loop_thread.run(work, timeout_seconds)

    def start(self, work: Awaitable[ResultT]) -> Future[ResultT]:
        """Start a coroutine of this client. ClientError if the client is closed."""
        return self._loop_thread.start(work)

    def producer(self, **options: Unpack[ProducerOptions]) -> BlockingProducer:
        """A new producer, with the options of `Client.producer`."""
        made = self._loop_thread.call(lambda: self.asynchronous.producer(**options))
        return BlockingProducer(self._loop_thread, made)

    def simple_consumer(self, group: str, subscriptions: Subscriptions) -> BlockingSimpleConsumer:
        """A new consumer, as of `Client.simple_consumer`."""
        made = self._loop_thread.call(lambda: self.asynchronous.simple_consumer(group, subscriptions))
        return BlockingSimpleConsumer(self._loop_thread, made)

    def push_consumer(
        self, group: str, subscriptions: Subscriptions, handler: Handler, **options: Unpack[PushConsumerOptions]
    ) -> BlockingPushConsumer:
        """A new consumer, with the options of `Client.push_consumer`; plain functions run in threads."""
        made = self._loop_thread.call(lambda: self.asynchronous.push_consumer(group, subscriptions, handler, **options))
        return BlockingPushConsumer(self._loop_thread, made)

    def pull_consumer(
        self, group: str, subscriptions: Subscriptions, **options: Unpack[PullConsumerOptions]
    ) -> BlockingPullConsumer:
        """A new reader of queues, with the options of `Client.pull_consumer`."""
        made = self._loop_thread.call(lambda: self.asynchronous.pull_consumer(group, subscriptions, **options))
        return BlockingPullConsumer(self._loop_thread, made)

    def close(self) -> None:
        """Close everything the client made, and end its thread."""
        if self._loop_thread.is_alive():
            try:
                self._loop_thread.run(self.asynchronous.close())
            finally:
                self._loop_thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def connect(
    endpoint: str | Sequence[str] = "127.0.0.1:8081", *, namespace: str = "", **options: Unpack[ConnectOptions]
) -> BlockingClient:
    """A client of the broker at `endpoint`, for `with`. Arguments and errors as `aerobee_client.connect`."""
    return BlockingClient(lambda: asynchronous_client.connect(endpoint, namespace=namespace, **options))
