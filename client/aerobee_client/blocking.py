"""The client for programs without an event loop: the same calls, which return when they are done.

    from aerobee_client import Message, blocking

    with blocking.connect("127.0.0.1:8081") as client:
        client.producer().send(Message(topic="orders", body=b"hello"))
        with client.simple_consumer("billing", "orders") as consumer:
            for message in consumer:
                print(message.body)

One thread runs an event loop for a client. All objects may be used by several threads at once. Calls without a method
here are available as coroutines: `client.run(client.asynchronous.admin.create_topic("orders"))`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from aerobee_client import client as asynchronous_client
from aerobee_client import producer as producing
from aerobee_client.allocation import Allocation, Queue
from aerobee_client.client import Client
from aerobee_client.errors import ClientError
from aerobee_client.filters import Subscriptions
from aerobee_client.hooks import Hooks
from aerobee_client.messages.compression import COMPRESS_ABOVE, Compression
from aerobee_client.messages.message import Message, ReceivedMessage, SendResult, StoredMessage
from aerobee_client.producer import Producer
from aerobee_client.pull_consumer import PullConsumer, Start
from aerobee_client.push_consumer import Handler, PushConsumer
from aerobee_client.security import Credentials, Tls
from aerobee_client.sending.request import QueueSelector
from aerobee_client.simple_consumer import SimpleConsumer
from aerobee_client.transaction import TransactionChecker

ResultT = TypeVar("ResultT")


class BlockingClient:
    """A `Client` in a thread of its own. `connect` makes one; `asynchronous` is the client itself."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aerobee client", daemon=True)
        self._thread.start()
        try:
            self.asynchronous = self.run(_made(make))
        except BaseException:
            self._stop()
            raise

    def run(self, work: Awaitable[ResultT], timeout_seconds: float | None = None) -> ResultT:
        """Run a coroutine of this client and return its result. On timeout, raises TimeoutError and cancels the
        coroutine."""
        future = self.start(work)
        try:
            return future.result(timeout_seconds)
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Call a plain function of this client in its thread and return the result."""

        async def called() -> ResultT:
            return function(*arguments)

        return self.run(called())

    def start(self, work: Awaitable[ResultT]) -> Future[ResultT]:
        """Start a coroutine of this client. ClientError if the client is closed."""
        if self._loop.is_closed():
            if inspect.iscoroutine(work):
                work.close()
            raise ClientError("this client is closed; make a new one with connect()")
        return asyncio.run_coroutine_threadsafe(_awaited(work), self._loop)

    def producer(
        self,
        *,
        topics: Iterable[str] = (),
        linger_seconds: float = 0.0,
        request_count_max: int = producing.REQUEST_COUNT_MAX,
        request_size_max: int = producing.REQUEST_SIZE_MAX,
        max_in_flight: int = 4,
        waiting_size_max: int = producing.WAITING_SIZE_MAX,
        waiting_count_max: int = producing.WAITING_COUNT_MAX,
        compression: Compression | None = None,
        compress_above: int = COMPRESS_ABOVE,
        avoid_slow_endpoints: bool = False,
        use_records: bool = True,
        queue_selector: QueueSelector | None = None,
        transaction_checker: TransactionChecker | None = None,
    ) -> BlockingProducer:
        """Like `Client.producer`."""

        async def make() -> Producer:
            return self.asynchronous.producer(
                topics=topics,
                linger_seconds=linger_seconds,
                request_count_max=request_count_max,
                request_size_max=request_size_max,
                max_in_flight=max_in_flight,
                waiting_size_max=waiting_size_max,
                waiting_count_max=waiting_count_max,
                compression=compression,
                compress_above=compress_above,
                avoid_slow_endpoints=avoid_slow_endpoints,
                use_records=use_records,
                queue_selector=queue_selector,
                transaction_checker=transaction_checker,
            )

        return BlockingProducer(self, self.run(make()))

    def simple_consumer(self, group: str, subscriptions: Subscriptions) -> BlockingSimpleConsumer:
        """Like `Client.simple_consumer`."""

        return BlockingSimpleConsumer(self, self.call(self.asynchronous.simple_consumer, group, subscriptions))

    def push_consumer(
        self,
        group: str,
        subscriptions: Subscriptions,
        handler: Handler,
        *,
        concurrency: int = 16,
        waiting_count_max: int = 1024,
        waiting_size_max: int = 64 << 20,
        span_max: int = 100_000,
        drain_seconds: float = 30.0,
    ) -> BlockingPushConsumer:
        """Like `Client.push_consumer`; plain functions run in threads."""

        async def make() -> PushConsumer:
            return self.asynchronous.push_consumer(
                group,
                subscriptions,
                handler,
                concurrency=concurrency,
                waiting_count_max=waiting_count_max,
                waiting_size_max=waiting_size_max,
                span_max=span_max,
                drain_seconds=drain_seconds,
            )

        return BlockingPushConsumer(self, self.run(make()))

    def pull_consumer(
        self,
        group: str,
        subscriptions: Subscriptions,
        *,
        start: Start = "end",
        broadcasting: bool = False,
        offsets_file: Path | None = None,
        allocation: Allocation | None = None,
        commit_seconds: float | None = 5.0,
        waiting_count_max: int = 1000,
        waiting_size_max: int = 64 << 20,
        span_max: int = 2000,
        on_rebalance: Callable[[frozenset[Queue], frozenset[Queue]], None] | None = None,
    ) -> BlockingPullConsumer:
        """Like `Client.pull_consumer`."""

        async def make() -> PullConsumer:
            return self.asynchronous.pull_consumer(
                group,
                subscriptions,
                start=start,
                broadcasting=broadcasting,
                offsets_file=offsets_file,
                allocation=allocation,
                commit_seconds=commit_seconds,
                waiting_count_max=waiting_count_max,
                waiting_size_max=waiting_size_max,
                span_max=span_max,
                on_rebalance=on_rebalance,
            )

        return BlockingPullConsumer(self, self.run(make()))

    def close(self) -> None:
        """Close everything the client made, and end its thread."""
        if self._thread.is_alive():
            try:
                self.run(self.asynchronous.close())
            finally:
                self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Face:
    """A wrapper of an object with a beginning and an end."""

    def __init__(self, client: BlockingClient, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._client = client
        self._close = close

    def close(self) -> None:
        """As the wrapped object's."""
        self._client.run(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class BlockingProducer(_Face):
    """Like `Producer`."""

    def __init__(self, client: BlockingClient, producer: Producer) -> None:
        super().__init__(client, producer.close)
        self._producer = producer

    def send(self, message: Message) -> SendResult:
        """Like `Producer.send`."""
        return self._client.run(self._producer.send(message))

    def send_many(self, messages: Sequence[Message]) -> list[SendResult]:
        """Like `Producer.send_many`."""
        return self._client.run(self._producer.send_many(messages))

    def submit(self, message: Message) -> Future[SendResult]:
        """Start a send, and return when there is space in memory for the message; the future has the result."""

        async def submit() -> asyncio.Future[SendResult]:
            return await self._producer.submit(message)

        return self._client.start(self._client.run(submit()))

    def send_one_way(self, message: Message) -> None:
        """Like `Producer.send_one_way`."""
        self._client.run(self._producer.send_one_way(message))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Like `Producer.recall`."""
        return self._client.run(self._producer.recall(topic, recall_handle))

    def flush(self) -> None:
        """Like `Producer.flush`."""
        self._client.run(self._producer.flush())

    @contextmanager
    def transaction(self) -> Iterator[Callable[[Message], SendResult]]:
        """Like `Producer.transaction`; yields the function that sends a message within it."""
        transaction = self._producer.transaction()
        try:
            yield lambda message: self._client.run(transaction.send(message))
        except Exception:
            self._client.run(transaction.rollback())
            raise
        self._client.run(transaction.commit())


class BlockingSimpleConsumer(_Face):
    """Like `SimpleConsumer`."""

    def __init__(self, client: BlockingClient, consumer: SimpleConsumer) -> None:
        super().__init__(client, consumer.close)
        self._consumer = consumer

    def receive(
        self, max_count: int = 16, *, invisible_seconds: float = 30.0, wait_seconds: float = 10.0
    ) -> list[ReceivedMessage]:
        """Like `SimpleConsumer.receive`."""
        work = self._consumer.receive(max_count, invisible_seconds=invisible_seconds, wait_seconds=wait_seconds)
        return self._client.run(work)

    def ack(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> None:
        """Like `SimpleConsumer.ack`."""
        self._client.run(self._consumer.ack(messages))

    def nack(self, message: ReceivedMessage, delay_seconds: float = 0.0) -> None:
        """Like `SimpleConsumer.nack`."""
        self._client.run(self._consumer.nack(message, delay_seconds))

    def change_invisible(self, message: ReceivedMessage, invisible_seconds: float) -> ReceivedMessage:
        """Like `SimpleConsumer.change_invisible`."""
        return self._client.run(self._consumer.change_invisible(message, invisible_seconds))

    @contextmanager
    def keep_invisible(self, message: ReceivedMessage, invisible_seconds: float = 30.0) -> Iterator[ReceivedMessage]:
        """Like `SimpleConsumer.keep_invisible`; the client's thread renews the time."""
        kept = self._consumer.keep_invisible(message, invisible_seconds)
        self._client.run(kept.__aenter__())
        try:
            yield message
        except BaseException as error:
            self._client.run(kept.__aexit__(type(error), error, error.__traceback__))
            raise
        self._client.run(kept.__aexit__(None, None, None))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages without end, each acknowledged when the next one is requested."""
        while True:
            for message in self.receive():
                yield message
                self.ack(message)


class BlockingPushConsumer(_Face):
    """Like `PushConsumer`."""

    def __init__(self, client: BlockingClient, consumer: PushConsumer) -> None:
        super().__init__(client, consumer.close)
        self._consumer = consumer

    def start(self) -> None:
        """Like `PushConsumer.start`."""
        self._client.run(self._consumer.start())

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Return when the consumer is closed; TimeoutError after the timeout."""
        self._client.run(self._consumer.wait(), timeout_seconds)

    def __enter__(self) -> Self:
        self.start()
        return self


class BlockingPullConsumer(_Face):
    """Like `PullConsumer`; other methods are available through `client.run` and `asynchronous`."""

    def __init__(self, client: BlockingClient, consumer: PullConsumer) -> None:
        super().__init__(client, consumer.close)
        self.asynchronous = consumer

    def __enter__(self) -> Self:
        self._client.run(self.asynchronous.start())
        return self

    def getmany(self, *, max_count: int = 500, wait_seconds: float = 10.0) -> list[StoredMessage]:
        """Like `PullConsumer.getmany`."""
        return self._client.run(self.asynchronous.getmany(max_count=max_count, wait_seconds=wait_seconds))

    def getone(self) -> StoredMessage:
        """Like `PullConsumer.getone`."""
        return self._client.run(self.asynchronous.getone())

    def __iter__(self) -> Iterator[StoredMessage]:
        while True:
            yield self.getone()

    def assignment(self) -> frozenset[Queue]:
        """Like `PullConsumer.assignment`."""
        return self.asynchronous.assignment()

    def assign(self, queues: Iterable[Queue]) -> None:
        """Like `PullConsumer.assign`."""
        self._client.run(self.asynchronous.assign(queues))

    def seek(self, queue: Queue, offset: int) -> None:
        """Like `PullConsumer.seek`."""
        self._client.run(self.asynchronous.seek(queue, offset))

    def seek_to_beginning(self, *queues: Queue) -> None:
        """Like `PullConsumer.seek_to_beginning`."""
        self._client.run(self.asynchronous.seek_to_beginning(*queues))

    def seek_to_end(self, *queues: Queue) -> None:
        """Like `PullConsumer.seek_to_end`."""
        self._client.run(self.asynchronous.seek_to_end(*queues))

    def seek_to_time(self, timestamp: int, *queues: Queue) -> None:
        """Like `PullConsumer.seek_to_time`."""
        self._client.run(self.asynchronous.seek_to_time(timestamp, *queues))

    def pause(self, *queues: Queue) -> None:
        """Like `PullConsumer.pause`."""
        self._client.call(self.asynchronous.pause, *queues)

    def resume(self, *queues: Queue) -> None:
        """Like `PullConsumer.resume`."""
        self._client.call(self.asynchronous.resume, *queues)

    def position(self, queue: Queue) -> int:
        """Like `PullConsumer.position`."""
        return self._client.run(self.asynchronous.position(queue))

    def committed(self, queue: Queue) -> int | None:
        """Like `PullConsumer.committed`."""
        return self._client.run(self.asynchronous.committed(queue))

    def commit(self, offsets: Mapping[Queue, int] | None = None) -> None:
        """Like `PullConsumer.commit`."""
        self._client.run(self.asynchronous.commit(offsets))


def connect(
    endpoint: str | Sequence[str] = "127.0.0.1:8081",
    *,
    request_timeout_seconds: float = 3.0,
    retry_seconds: float = 30.0,
    credentials: Credentials | None = None,
    tls: Tls | None = None,
    namespace: str = "",
    hooks: Sequence[Hooks] = (),
) -> BlockingClient:
    """A client of the broker at `endpoint`, for `with`. Arguments and errors as `aerobee_client.connect`."""
    return BlockingClient(
        lambda: asynchronous_client.connect(
            endpoint,
            request_timeout_seconds=request_timeout_seconds,
            retry_seconds=retry_seconds,
            credentials=credentials,
            tls=tls,
            namespace=namespace,
            hooks=hooks,
        )
    )


async def _made(make: Callable[[], Client]) -> Client:
    return make()


async def _awaited(work: Awaitable[ResultT]) -> ResultT:
    return await work
