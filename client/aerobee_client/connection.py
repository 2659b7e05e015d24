"""One channel to one endpoint: headers, deadlines, retries, and errors that say what to do.

All calls go to the endpoint that was given, never to an address from a route: an address that is advertised wrongly
cannot hurt. One broker, or a RocketMQ proxy in front of a cluster, is all that needs.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import os
import re
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import grpc
import grpc.aio

from aerobee_client.errors import (
    ClientError,
    DeadlineError,
    InternalServerError,
    InvalidEndpointError,
    TooManyRequestsError,
    UnavailableError,
    UnsupportedError,
    rpc_error,
    status_error,
)
from aerobee_client.security import Credentials, Tls
from aerobee_proto import admin_v1, v2

if TYPE_CHECKING:
    from grpc.aio import UnaryStreamMultiCallable, UnaryUnaryMultiCallable

try:
    VERSION = version("aerobee")
except PackageNotFoundError:  # the source tree, used without being installed
    VERSION = "0"

_ENDPOINT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})")
_client_number = itertools.count()

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 130 << 20),  # what RocketMQ itself takes; a body alone may have gRPC's 4 MiB
    ("grpc.max_send_message_length", 130 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),  # a broker is back within a second; gRPC would first look after one
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 60_000),  # notices a peer that vanished without a word
]


class _Answer(Protocol):
    @property
    def status(self) -> v2.Status: ...


Metadata = tuple[tuple[str, str], ...]
AnswerT = TypeVar("AnswerT", bound=_Answer)
RequestT = TypeVar("RequestT")
ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a call is tried, and the waits between. The defaults are what RocketMQ tells its producers."""

    max_attempts: int = 3
    initial_seconds: float = 0.01
    max_seconds: float = 1.0
    multiplier: float = 2.0

    def delay_seconds(self, attempt: int) -> float:
        """The wait after attempt number `attempt` (from 1) failed."""
        return float(min(self.initial_seconds * self.multiplier ** (attempt - 1), self.max_seconds))


def parse_endpoint(endpoint: str) -> v2.Endpoints:
    """`HOST:PORT` or `[IPV6]:PORT`. InvalidEndpointError if it is neither."""
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise InvalidEndpointError(f"the endpoint {endpoint!r} is not HOST:PORT; give one such as 127.0.0.1:8081")
    host = match["v6"] or match["host"]
    try:
        six = ipaddress.ip_address(host).version == 6
        scheme = v2.AddressScheme.IPv6 if six else v2.AddressScheme.IPv4
    except ValueError:
        if match["v6"]:
            raise InvalidEndpointError(f"{host!r} in the endpoint {endpoint!r} is not an IPv6 address") from None
        scheme = v2.AddressScheme.DOMAIN_NAME
    return v2.Endpoints(scheme=scheme, addresses=[v2.Address(host=host, port=int(match["port"]))])


def new_client_id() -> str:
    """Unique among all clients of a broker, in the form of the official ones."""
    return f"{socket.gethostname()}@{os.getpid()}@{next(_client_number)}@{os.urandom(6).hex()}"


def headers(client_id: str) -> Metadata:
    """What every call of a client carries."""
    return (
        ("x-mq-client-id", client_id),
        ("x-mq-language", "PYTHON"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", VERSION),
    )


class Connection:
    """A channel and its stubs. Must be made inside of a running event loop. Plaintext unless there is `tls`."""

    def __init__(
        self,
        endpoint: str,
        *,
        request_timeout_seconds: float,
        retry: Retry,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.endpoints = parse_endpoint(endpoint)
        self.endpoint = endpoint
        self.request_timeout_seconds = request_timeout_seconds
        self.retry = retry
        self._credentials = credentials
        if tls is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(endpoint, tls.channel_credentials(), options=_CHANNEL_OPTIONS)
        self.messaging = v2.MessagingServiceStub(self._channel)
        self.admin = v2.AdminStub(self._channel)
        self.aerobee_admin = admin_v1.AdminServiceStub(self._channel)

    async def call(
        self,
        method: UnaryUnaryMultiCallable[RequestT, AnswerT],
        request: RequestT,
        metadata: Metadata,
        *,
        check: Callable[[AnswerT], ClientError | None] = lambda answer: status_error(answer.status),
    ) -> AnswerT:
        """The answer of `method`, tried again while `check`'s error says that another attempt may help.

        Raises the last error. Cancelling leaves it open whether the server did what was asked.
        """
        attempt = 1
        while True:
            error: ClientError | None
            try:
                answer = await method(request, timeout=self.request_timeout_seconds, metadata=self.signed(metadata))
                error = check(answer)
                if error is None:
                    return answer
            except grpc.RpcError as rpc:
                error = rpc_error(rpc, self.endpoint)
            if attempt >= self.retry.max_attempts or not may_help(error):
                raise error
            await asyncio.sleep(self.retry.delay_seconds(attempt))
            attempt += 1

    async def stream(
        self,
        method: UnaryStreamMultiCallable[RequestT, ItemT],
        request: RequestT,
        metadata: Metadata,
        *,
        timeout_seconds: float,
    ) -> AsyncGenerator[ItemT, None]:
        """The items of a stream, tried once."""
        call = method(request, timeout=timeout_seconds, metadata=self.signed(metadata))
        try:
            async for item in cast("AsyncIterator[ItemT]", call):
                yield item
        except grpc.RpcError as rpc:
            raise rpc_error(rpc, self.endpoint) from None
        finally:
            cast("Any", call).cancel()  # no effect on a call that is done

    def signed(self, metadata: Metadata) -> Metadata:
        """The headers of a call that is made now: `metadata`, and the signature of who has credentials."""
        return metadata if self._credentials is None else (*metadata, *self._credentials.headers())

    async def close(self) -> None:
        """Close the channel; calls under way end as cancelled."""
        await self._channel.close(None)


def may_help(error: ClientError) -> bool:
    """Whether to try once more. The caller's own fault stays one, however often it is tried."""
    if isinstance(error, UnsupportedError):
        return False
    return isinstance(error, UnavailableError | DeadlineError | TooManyRequestsError | InternalServerError)
