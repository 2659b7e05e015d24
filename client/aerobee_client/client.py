"""The entry point: a client of one broker or cluster, with the producers and consumers that it created."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypedDict, TypeVar, Unpack

from aerobee_client.admin import Admin
from aerobee_client.connections import forking
from aerobee_client.connections.closing import AsyncClosing
from aerobee_client.connections.connection import Connection, Retry
from aerobee_client.errors import ClientError, ConfigurationError
from aerobee_client.filters import Subscriptions
from aerobee_client.hooks import Hooks
from aerobee_client.producer import Producer, ProducerOptions
from aerobee_client.pull_consumer import PullConsumer, PullConsumerOptions
from aerobee_client.push_consumer import Handler, PushConsumer, PushConsumerOptions
from aerobee_client.records import Records
from aerobee_client.security import Credentials, Tls
from aerobee_client.simple_consumer import SimpleConsumer


class ConnectOptions(TypedDict, total=False):
    """The arguments of `connect` except the endpoint and the namespace, for functions that pass them on."""

    request_timeout_seconds: float
    retry_seconds: float
    credentials: Credentials | None
    tls: Tls | None
    hooks: Sequence[Hooks]


_ClosableT = TypeVar("_ClosableT", bound=AsyncClosing)


class Client(AsyncClosing):
    """A connection to one broker, or to RocketMQ proxies. Create it within a running event loop and close it.

        async with connect("127.0.0.1:8081") as client:
            await client.producer().send(Message(topic="orders", body=b"hello"))

    `connect` creates one and documents the arguments. Nothing is sent before the first call. The next call reconnects a
    broken connection.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str],
        *,
        request_timeout_seconds: float = 3.0,
        retry: Retry | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        namespace: str = "",
        hooks: Sequence[Hooks] = (),
    ) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigurationError(
                "no event loop is running; connect in a coroutine, or use aerobee_client.blocking"
            ) from None
        forking.use()
        self._connection = Connection(
            endpoint,
            request_timeout_seconds=request_timeout_seconds,
            retry=retry or Retry(),
            credentials=credentials,
            tls=tls,
            namespace=namespace,
        )
        self._hooks = tuple(hooks)
        self._closables: list[AsyncClosing] = []
        self._closed = False
        self.admin = Admin(self._connection)
        self.records = Records(self._connection)

    @property
    def endpoint(self) -> str:
        """The current endpoint, as given."""
        return self._connection.endpoint

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """A new producer; one is enough for a program. Closed with the client, if not before.

        - `linger_seconds` (0): how long the first message of a request waits for others. Without it, messages share a
          request if they are sent at the same moment, or while `max_in_flight` (4) requests of their topic are in
          flight. `request_count_max` (500) and `request_size_max` (4 MiB, in bytes) limit a request.
        - `waiting_size_max` (64 MiB, in bytes) and `waiting_count_max` (100,000) limit the buffered messages; further
          sends wait.
        - `compression` (None): "zlib" compresses bodies of more than `compress_above` (4,096) bytes.
        - `avoid_slow_endpoints` (False): with several endpoints, use the fast ones, by RocketMQ's rule.
        - `use_records` (True): requests of eight or more plain messages (no order, delay, priority, lite topic) use
          AppendRecords if the server is Aerobee, at a third of the cost on both sides. `SendResult.call` names the call
          of a message; `Producer.uses_records` tells whether the server supports it.
        - `queue_selector` chooses the queue of a message among those of its topic. Only Aerobee lets clients choose;
          elsewhere a send raises ConfigurationError.
        - `transaction_checker` answers the broker's checks of transactions, for `topics` and for topics to which this
          producer has sent transactional messages.
        """
        return self._closed_with_client(Producer(self._connection, self.records, hooks=self._hooks, **options))

    def simple_consumer(self, group: str, subscriptions: Subscriptions) -> SimpleConsumer:
        """A new consumer of `group`: of one topic, or of topics with their filters (`{"orders": "paid || refunded"}`).

        All consumers of a group must have the same subscriptions. Closed with the client, if not before.
        """
        return self._closed_with_client(SimpleConsumer(self._connection, group, subscriptions))

    def push_consumer(
        self, group: str, subscriptions: Subscriptions, handler: Handler, **options: Unpack[PushConsumerOptions]
    ) -> PushConsumer:
        """A new consumer of `group` that calls `handler` for each message. Start it with `async with` or `start`.

        - `concurrency` (16): how many handlers run at once.
        - `waiting_count_max` (1,024) and `waiting_size_max` (64 MiB, in bytes) limit messages received but not handled,
          `span_max` (100,000) the span of their offsets in a queue.
        - `drain_seconds` (30): how long `close` waits for running handlers.
        """
        return self._closed_with_client(
            PushConsumer(self._connection, group, subscriptions, handler, hooks=self._hooks, **options)
        )

    def pull_consumer(
        self, group: str, subscriptions: Subscriptions, **options: Unpack[PullConsumerOptions]
    ) -> PullConsumer:
        """A new reader of queues, which tracks its own position. Start it with `async with` or `start`.

        - `start` ("end"): where to read a queue without a committed offset: "begin", "end", or a time in Unix
          milliseconds.
        - `broadcasting` (False): this consumer reads all queues, and keeps its offsets in `offsets_file`, or in memory.
          Otherwise the consumers of the group share the queues by `allocation` (`Averagely()` by default), and
          `on_rebalance` is called with the added and the removed queues.
        - `commit_seconds` (5): how often handled offsets are committed; None: only by `commit`.
        - `waiting_count_max` (1,000), `waiting_size_max` (64 MiB, in bytes) and `span_max` (2,000 offsets of a queue)
          limit the buffered messages.
        """
        return self._closed_with_client(PullConsumer(self._connection, group, subscriptions, **options))

    async def close(self) -> None:
        """Close the producers and consumers, then the connection. Running calls are cancelled."""
        self._closed = True
        try:
            await asyncio.gather(*(closable.close() for closable in self._closables))
        finally:
            await self._connection.close()

    def _closed_with_client(self, closable: _ClosableT) -> _ClosableT:
        if self._closed:
            raise ClientError("this client is closed; make a new one with connect()")
        self._closables.append(closable)
        return closable


def connect(
    endpoint: str | Sequence[str] = "127.0.0.1:8081",
    *,
    request_timeout_seconds: float = 3.0,
    retry_seconds: float = 30.0,
    credentials: Credentials | None = None,
    tls: Tls | None = None,
    namespace: str = "",
    hooks: Sequence[Hooks] = (),
) -> Client:
    """A client of the broker at `endpoint`, to be used with `async with`.

    - `endpoint`: `HOST:PORT`, `[IPV6]:PORT`; several as a list or joined by `;`, of which another is used if one does
    not answer.
    - `request_timeout_seconds` limits each attempt of a call; long polling is added to it.
    - `retry_seconds`: how long a call is retried while no server answers or the server is busy. A restart of the broker
      takes less than the default of 30 seconds, so programs see no error. 0: one attempt.
    - `credentials` sign every call; without `tls` the connection is plaintext.
    - `namespace`: separates topics and groups of the same name.
    - `hooks` run around sends and handlers.

    Raises InvalidEndpointError for an invalid endpoint, and ConfigurationError for an unreadable TLS file or without a
    running event loop. The first call shows whether a server answers.
    """
    return Client(
        endpoint,
        request_timeout_seconds=request_timeout_seconds,
        retry=Retry(seconds=retry_seconds),
        credentials=credentials,
        tls=tls,
        namespace=namespace,
        hooks=hooks,
    )
