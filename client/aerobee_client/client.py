"""The way in: a client of one endpoint, and the producers and consumers that it made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from aerobee_client.admin import Admin
from aerobee_client.connection import Connection, Retry
from aerobee_client.consumer import Filter, SimpleConsumer
from aerobee_client.producer import Producer
from aerobee_client.security import Credentials, Tls


class Client:
    """A connection to one broker, or to a RocketMQ proxy. Make one inside of a running event loop and close it.

        async with connect("127.0.0.1:8081") as client:
            await client.producer().send(Message(topic="orders", body=b"hello"))

    Nothing is sent before the first call. `request_timeout_seconds` bounds each attempt of a call; long polling comes
    on top. A connection that breaks is made again by the next call. `credentials` sign every call; without `tls` the
    connection is plaintext.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        request_timeout_seconds: float = 3.0,
        retry: Retry | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._connection = Connection(
            endpoint,
            request_timeout_seconds=request_timeout_seconds,
            retry=retry or Retry(),
            credentials=credentials,
            tls=tls,
        )
        self._closables: list[Producer | SimpleConsumer] = []
        self.admin = Admin(self._connection)

    @property
    def endpoint(self) -> str:
        """As it was given."""
        return self._connection.endpoint

    def producer(self) -> Producer:
        """A new producer; one is enough for a program. Closed with the client, if not before."""
        producer = Producer(self._connection)
        self._closables.append(producer)
        return producer

    def simple_consumer(self, group: str, subscriptions: str | Mapping[str, Filter]) -> SimpleConsumer:
        """A new consumer of `group`: of one topic, or of topics with their filters (`{"orders": "paid || refunded"}`).

        All consumers of a group must have the same subscriptions. Closed with the client, if not before.
        """
        if isinstance(subscriptions, str):
            subscriptions = {subscriptions: "*"}
        consumer = SimpleConsumer(self._connection, group, subscriptions)
        self._closables.append(consumer)
        return consumer

    async def close(self) -> None:
        """Close the producers and consumers, then the connection. Calls under way end as cancelled."""
        await asyncio.gather(*(closable.close() for closable in self._closables))
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def connect(
    endpoint: str = "127.0.0.1:8081",
    *,
    request_timeout_seconds: float = 3.0,
    credentials: Credentials | None = None,
    tls: Tls | None = None,
) -> Client:
    """A client of the broker at `endpoint` (`HOST:PORT`), to be used with `async with`.

    InvalidEndpointError if that is no endpoint, ConfigurationError for a TLS file that cannot be read. Whether somebody
    answers there shows with the first call.
    """
    return Client(endpoint, request_timeout_seconds=request_timeout_seconds, credentials=credentials, tls=tls)
