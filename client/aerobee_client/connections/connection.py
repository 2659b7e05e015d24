"""The channels to the endpoints of a client: headers, deadlines, retries, and errors that name the next step.

Calls go to the given endpoints, so a wrongly advertised address of a single broker does no harm. `at` connects to one
broker of a route that names several (routes.py). One endpoint is in use at a time. When it does not answer, the next
one is used for all calls.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import grpc
import grpc.aio

from aerobee_client.connections.endpoints import parse_endpoint, split_endpoints
from aerobee_client.errors import (
    BadRequestError,
    ClientError,
    DeadlineError,
    InternalServerError,
    TooManyRequestsError,
    UnavailableError,
    UnsupportedError,
    rpc_error,
    status_error,
)
from aerobee_client.security import Credentials, Tls
from aerobee_proto import admin_v1, records_v1, v2

if TYPE_CHECKING:
    from grpc.aio import StreamStreamMultiCallable, UnaryStreamMultiCallable, UnaryUnaryMultiCallable

_log = logging.getLogger(__name__)

try:
    VERSION = version("aerobee")
except PackageNotFoundError:  # the source tree, used without installation
    VERSION = "0"

_client_number = itertools.count()

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 130 << 20),  # RocketMQ's own limit; a body alone may have gRPC's 4 MiB
    ("grpc.max_send_message_length", 130 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),  # a broker is back within a second; gRPC would first retry after one
    ("grpc.min_reconnect_backoff_ms", 5000),  # despite its name the time for one attempt, handshakes included
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 60_000),  # detects a peer that vanished
]


class _Answer(Protocol):
    @property
    def status(self) -> v2.Status: ...


Metadata = tuple[tuple[str, str], ...]
AnswerT = TypeVar("AnswerT", bound=_Answer)
RequestT = TypeVar("RequestT")
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Retry:
    """How long a call is retried, and the delays between its attempts, in seconds.

    No connection, no answer, or a busy server: retried until `seconds` have passed since the first attempt. A server
    failure: at most `max_attempts` attempts within the same time. 0 seconds: one attempt.
    """

    seconds: float = 30.0
    max_attempts: int = 3  # RocketMQ gives its producers these delays and this number
    initial_seconds: float = 0.01
    max_seconds: float = 1.0
    multiplier: float = 2.0

    def delay_seconds(self, attempt: int) -> float:
        """The delay after attempt number `attempt` (from 1) failed."""
        return float(min(self.initial_seconds * self.multiplier ** min(attempt - 1, 64), self.max_seconds))

    def gives_up(self, error: ClientError, attempt: int, seconds: float) -> bool:
        """Whether `error`, after `attempt` attempts and `seconds`, is final."""
        if not may_help(error) or seconds >= self.seconds:
            return True
        return isinstance(error, InternalServerError) and attempt >= self.max_attempts


class Stubs:
    """The services of one endpoint."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.messaging = v2.MessagingServiceStub(channel)
        self.admin = v2.AdminStub(channel)
        self.aerobee_admin = admin_v1.AdminServiceStub(channel)
        self.records = records_v1.RecordServiceStub(channel)


@dataclass(frozen=True, slots=True)
class Peer:
    """One endpoint and the channel to it."""

    endpoint: str
    endpoints: v2.Endpoints  # the same, for the wire
    channel: grpc.aio.Channel
    stubs: Stubs


def new_client_id() -> str:
    """Unique among all clients of a broker, in the form of the official SDKs."""
    return f"{socket.gethostname()}@{os.getpid()}@{next(_client_number)}@{os.urandom(6).hex()}"


def headers(client_id: str, namespace: str = "") -> Metadata:
    """The headers of every call of a client."""
    common = (
        ("x-mq-client-id", client_id),
        ("x-mq-language", "PYTHON"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", VERSION),
    )
    return (*common, ("x-mq-namespace", namespace)) if namespace else common


class Connection:
    """Channels and stubs. Must be made within a running event loop. Plaintext unless there is `tls`."""

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        request_timeout_seconds: float,
        retry: Retry,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        namespace: str = "",
    ) -> None:
        names = split_endpoints(endpoints)
        self.request_timeout_seconds = request_timeout_seconds
        self.retry = retry
        self.namespace = namespace
        self._credentials = credentials
        self._tls = tls
        self.peers = [_dial(name, tls) for name in names]
        self._others: dict[str, Connection] = {}
        self._current = 0
        self._aerobee: bool | None = None
        self._outage = False  # whether the missing server was logged
        self._switched = False  # whether the change to another endpoint was logged since the last answer
        self._closed = False

    @property
    def peer(self) -> Peer:
        """The current endpoint."""
        return self.peers[self._current]

    @property
    def endpoint(self) -> str:
        """The current endpoint, as given."""
        return self.peer.endpoint

    def at(self, endpoint: str) -> Connection:
        """A connection to this endpoint alone, with the same options; closed with this one. Raises
        InvalidEndpointError."""
        found = self._others.get(endpoint)
        if found is None:
            found = self._others[endpoint] = Connection(
                endpoint,
                request_timeout_seconds=self.request_timeout_seconds,
                retry=self.retry,
                credentials=self._credentials,
                tls=self._tls,
                namespace=self.namespace,
            )
        return found

    @property
    def dials_ipv6(self) -> bool:
        """Whether the current endpoint is an IPv6 address; False for a host name."""
        return self.peer.endpoints.scheme == v2.AddressScheme.IPv6

    def stored_name(self, name: str) -> str:
        """The name under which the broker stores a topic or group of this client's namespace."""
        return f"{self.namespace}%{name}" if self.namespace else name

    def headers(self, client_id: str) -> Metadata:
        """The headers of every call of the client `client_id`, without the signature."""
        return headers(client_id, self.namespace)

    async def is_aerobee(self) -> bool:
        """Whether the server is Aerobee. It is asked once."""
        if self._aerobee is None:
            metadata = self.headers(new_client_id())
            try:
                await self.call(
                    lambda stubs: stubs.aerobee_admin.GetBrokerStatus, admin_v1.GetBrokerStatusRequest(), metadata
                )
            except UnsupportedError:
                self._aerobee = False
            except BadRequestError:  # refused, but known
                self._aerobee = True
            else:
                self._aerobee = True
        return self._aerobee

    async def call(
        self,
        select: Callable[[Stubs], UnaryUnaryMultiCallable[RequestT, AnswerT]],
        request: RequestT,
        metadata: Metadata,
        *,
        check: Callable[[AnswerT], ClientError | None] = lambda answer: status_error(answer.status),
        timeout_seconds: float | None = None,
        retry: Retry | None = None,
        choose: Callable[[int], Peer] | None = None,
        renew: Callable[[int], RequestT] | None = None,
    ) -> AnswerT:
        """Call the method that `select` names, and retry while the error from `check` allows it. Return the answer.

        `timeout_seconds` limits one attempt. `choose` gives the peer for attempt number n, from 1; by default the
        current one, and after a failure the next. `renew` gives the request for attempt number n, from 2. Raises the
        last error. After a cancellation, the server may or may not have executed the request.
        """
        first = self._current  # a failed attempt moves it

        async def attempt(number: int) -> AnswerT:
            self._check_open()
            peer = choose(number) if choose else self.peers[(first + number - 1) % len(self.peers)]
            try:
                answer = await select(peer.stubs)(
                    renew(number) if renew is not None and number > 1 else request,
                    timeout=timeout_seconds or self.request_timeout_seconds,
                    metadata=self.signed(metadata),
                )
            except grpc.RpcError as rpc:
                raise self.failed(peer, rpc) from None
            self._outage = self._switched = False
            if error := check(answer):
                raise error
            if number > 1 and choose is None:
                self._current = self.peers.index(peer)
            return answer

        return await self.retrying(attempt, retry)

    async def retrying(self, attempt: Callable[[int], Awaitable[ResultT]], retry: Retry | None = None) -> ResultT:
        """The result of `attempt`, which gets its number from 1, repeated while its ClientError allows it."""
        retry = retry or self.retry
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in itertools.count(1):
            try:
                return await attempt(number)
            except ClientError as error:
                rounds = -(-number // len(self.peers))
                delay = 0.0 if number % len(self.peers) else retry.delay_seconds(rounds)
                if retry.gives_up(error, rounds, loop.time() - began + delay):
                    raise
                if isinstance(error, UnavailableError) and not self._outage:
                    self._outage = True
                    _log.warning("%s; retrying for up to %g s", error, retry.seconds)
            await asyncio.sleep(delay)
        raise AssertionError("the loop above has no end")

    def stream(
        self,
        select: Callable[[Stubs], UnaryStreamMultiCallable[RequestT, ItemT]],
        request: RequestT,
        metadata: Metadata,
        *,
        timeout_seconds: float | None,
    ) -> AsyncGenerator[ItemT, None]:
        """The items of a stream, without retries."""
        return self._items(
            lambda stubs: select(stubs)(request, timeout=timeout_seconds, metadata=self.signed(metadata))
        )

    def exchange(
        self,
        select: Callable[[Stubs], StreamStreamMultiCallable[RequestT, ItemT]],
        requests: AsyncIterator[RequestT],
        metadata: Metadata,
    ) -> AsyncGenerator[ItemT, None]:
        """The answers to a stream of requests, without retries and without a deadline."""
        return self._items(lambda stubs: select(stubs)(cast("Any", requests), metadata=self.signed(metadata)))

    async def _items(self, begin: Callable[[Stubs], object]) -> AsyncGenerator[Any, None]:
        self._check_open()
        peer = self.peer
        call = begin(peer.stubs)
        try:
            async for item in cast("AsyncIterator[Any]", call):
                yield item
        except grpc.RpcError as rpc:
            raise self.failed(peer, rpc) from None
        finally:
            cast("Any", call).cancel()  # no effect on a finished call

    def failed(self, peer: Peer, rpc: grpc.RpcError) -> ClientError:
        """The error for an unanswered call to `peer`. If the peer is unreachable, the next endpoint is used from now
        on."""
        error = rpc_error(rpc, peer.endpoint)
        if isinstance(error, UnavailableError) and len(self.peers) > 1 and peer is self.peer:
            self._current = (self._current + 1) % len(self.peers)
            level = logging.DEBUG if self._switched else logging.WARNING
            _log.log(level, "%s; continuing with %s", error, self.endpoint)
            self._switched = True
        return error

    def signed(self, metadata: Metadata) -> Metadata:
        """The headers of a call made now: `metadata`, and the signature if there are credentials."""
        return metadata if self._credentials is None else (*metadata, *self._credentials.headers())

    async def close(self) -> None:
        """Close the channels; running calls are cancelled."""
        self._closed = True
        await asyncio.gather(
            *(peer.channel.close(None) for peer in self.peers), *(other.close() for other in self._others.values())
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ClientError("this client is closed; make a new one with connect()")


def may_help(error: ClientError) -> bool:
    """Whether a retry may help. An error of the caller is never retried."""
    if isinstance(error, UnsupportedError):
        return False
    return isinstance(error, UnavailableError | DeadlineError | TooManyRequestsError | InternalServerError)


def _dial(endpoint: str, tls: Tls | None) -> Peer:
    """A channel, which connects with its first call."""
    parsed = parse_endpoint(endpoint)
    if tls is None:
        channel = grpc.aio.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
    else:
        channel = grpc.aio.secure_channel(endpoint, tls.channel_credentials(), options=_CHANNEL_OPTIONS)
    return Peer(endpoint, parsed, channel, Stubs(channel))
