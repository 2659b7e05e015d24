"""gRPC methods from plain coroutines: identify the client, read, call, count, and turn errors into a Status.

Application errors travel in the response; the status of gRPC itself stays OK, as RocketMQ's clients expect. Handlers
are made from the descriptors, so that no method of a service can be forgotten: each must have its own coroutine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from time import perf_counter
from typing import Any, Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.clients.permissions import check_permission
from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.errors import InvalidRequestError, TooManyRequestsError
from aerobee_broker.front.methods import (
    BidirectionalStream,
    CallBidirectionalStream,
    ClientWentAwayError,
    Context,
    Method,
    ServerStream,
    Unary,
)
from aerobee_broker.processors.statuses import status_of
from aerobee_broker.services.requests import RequestLimits
from aerobee_proto import v2
from aerobee_proto.pool import POOL

Identify = Callable[[Context], Client]
UnaryCall = Callable[[Any, Client], Awaitable[Message | bytes]]
"""Answers with a message, or with the encoded bytes of a message whose status is OK."""
StreamCall = Callable[[Any, Client, Context], AsyncGenerator[Any, None]]
"""Yields messages, or encoded messages without a status, or a list of these with some 64 KiB together: where message
objects and single writes would cost too much."""
ReadRequest = Callable[[bytes, Callable[[bytes], Any]], Any]
"""Parses a request; the second argument parses with protobuf."""

_OK: Final = v2.Code.OK


MEMORY_WAIT_SECONDS: Final = 5.0  # how long a request waits for the memory of its bytes
_TAKE_SECONDS: Final = 30.0  # the time for a client to read a large answer; after that, unread messages are returned
_ANSWER_SIZES: Final = dict.fromkeys(("QueryMessage", "QueryRecords", "DescribeMessage", "BrowseMessages"), 12 << 20)
"""Bytes of memory that the largest answer takes while it is made: records, messages and their encoding. A call takes
them before it begins."""
_LARGE_SIZE: Final = 64 << 10
MEMORY_OF_REQUEST: Final = 2  # times its bytes: a request as an object, and its messages as records
_MEMORY_OF_WAITING: Final = 3  # the same of one that waits for messages: measured 2.4 with unknown fields
_NOBODY: Final[Sequence[str]] = ()


def service_methods(
    service: str,
    identify: Identify,
    counters: BrokerCounters,
    limits: RequestLimits,
    *,
    unary: Mapping[str, UnaryCall],
    streams: Mapping[str, StreamCall] | None = None,
    conversations: Mapping[str, CallBidirectionalStream] | None = None,
    readers: Mapping[str, ReadRequest] | None = None,
) -> dict[str, Method]:
    """All methods of the service with this full name, by path. `readers`: custom parsers of methods with large
    requests."""
    readers = readers or {}
    found: dict[str, Method] = {}
    streams = streams or {}
    conversations = conversations or {}
    for method in POOL.FindServiceByName(service).methods:
        name = method.name
        admission = MethodAdmission(service, method, identify, counters, limits, readers.get(name))
        if method.client_streaming:
            found[name] = BidirectionalStream(conversations[name], admission)
        elif method.server_streaming:
            found[name] = ServerStream(_stream(admission, streams[name]), admission)
        else:
            found[name] = Unary(_unary(admission, unary[name]), admission)
    known = {method.name for method in POOL.FindServiceByName(service).methods}
    assert found.keys() == known
    assert {*unary, *streams, *conversations} == known
    return {f"/{service}/{name}": method for name, method in found.items()}


class MethodAdmission:
    """Admits calls of one method by their headers and the bytes in flight: see `front.calls.Admission`."""

    def __init__(
        self,
        service: str,
        method: MethodDescriptor,
        identify: Identify,
        counters: BrokerCounters,
        limits: RequestLimits,
        read: ReadRequest | None,
    ) -> None:
        self.service = service
        self.name: str = method.name
        self.reader = limits.reader(method.name, GetMessageClass(method.input_type))
        self.request_size_max = self.reader.size_max
        self.response_type = GetMessageClass(method.output_type)
        self.has_status = "status" in method.output_type.fields_by_name
        self.counters = counters
        self.running = counters.running(service, self.name)
        self.budget = limits.in_progress
        self.answers = limits.answers
        self.answer_size = _ANSWER_SIZES.get(method.name, 0)
        self._identify = identify
        self._read = read

    def refusal(self, context: Context) -> bytes | None:
        try:
            self.caller(context)
        except Exception as error:
            return self._refused(error)
        return None

    async def wait_admitted(self, context: Context) -> bytes | None:
        owners = owners_of(self.caller(context), context)
        if self.budget.has_free(1, owners):
            return None
        try:
            await self.budget.wait_free(owners, seconds=MEMORY_WAIT_SECONDS)
        except TooManyRequestsError as error:
            return self._refused(error)
        return None

    def too_large(self, size: int) -> bytes:
        return self._refused(self.reader.too_large(size))

    def admits_at_once(self) -> bool:
        return self.budget.has_free_for_all()

    def caller(self, context: Context) -> Client:
        """The client of a call, by its headers alone. Raises like `identify`."""
        if context.caller is None:
            context.caller = self._identify(context)
            if context.caller.account is not None:
                context.note_account()
        client: Client = context.caller
        return client

    def introduced(self, context: Context) -> Client:
        """The client of a call, with its address and language. Raises like `identify`."""
        client = self.caller(context)
        if client.connection != context.connection():
            introduce(client, context)
        return client

    def read(self, data: bytes, client: Client) -> Any:
        """Parse the request and check the permission. Raises like RequestReader and `check_permission`."""
        if self._read is None or len(data) > self.request_size_max:
            request: Any = self.reader.read(data)
        else:
            request = self._read(data, self.reader.read)
        if client.account is not None:
            check_permission(self.service, self.name, request, client, client.account)
        return request

    def response(self, status: v2.Status) -> Message:
        """A response with only a status."""
        # ChangeLogLevel alone has a remark instead of a status.
        return self.response_type(status=status) if self.has_status else self.response_type(remark=status.message)

    def _refused(self, error: Exception) -> bytes:
        status = status_of(error, self.name)
        self.counters.answered(self.service, self.name, code_name(status.code)).observe(0)
        return self.response(status).SerializeToString()


def _unary(method: MethodAdmission, call: UnaryCall) -> Callable[[bytes, Context], Coroutine[Any, Any, bytes]]:
    counters, running, budget = method.counters, method.running, method.budget
    answers, answer_size = method.answers, method.answer_size
    succeeded = counters.answered(method.service, method.name, "OK")

    async def handle(data: bytes, context: Context) -> bytes:
        started = perf_counter()
        running.count += 1
        size = of_answer = 0
        owners = _NOBODY
        try:
            client = method.introduced(context)
            owners = owners_of(client, context)
            wanted = MEMORY_OF_REQUEST * len(data)
            if not budget.try_take(wanted, owners):
                await budget.take(wanted, owners, seconds=MEMORY_WAIT_SECONDS)
            size = wanted
            context.request_taken()
            request = method.read(data, client)
            del data
            if answer_size:
                await answers.take(answer_size, owners, seconds=MEMORY_WAIT_SECONDS)
                of_answer = answer_size
            response = await call(request, client)
        except Exception as error:
            status = status_of(error, method.name)
            response = method.response(status)
            code = status.code
        else:
            told = method.has_status and not isinstance(response, bytes)
            code = response.status.code if told else _OK  # type: ignore[union-attr]  # of every such one
        finally:
            running.count -= 1
            if size:
                budget.give(size, owners)
            if of_answer:
                answers.give(of_answer, owners)
        elapsed = (perf_counter() - started) * 1000
        if code == _OK:
            succeeded.observe(elapsed)
        else:
            counters.answered(method.service, method.name, code_name(code)).observe(elapsed)
        return response if isinstance(response, bytes) else response.SerializeToString()

    return handle


def _stream(method: MethodAdmission, call: StreamCall) -> Callable[[bytes, Context], Coroutine[Any, Any, None]]:
    counters, running, budget = method.counters, method.running, method.budget

    async def handle(data: bytes, context: Context) -> None:
        started = perf_counter()
        code = _OK
        running.count += 1
        size = 0
        owners = _NOBODY
        try:
            client = method.introduced(context)
            owners = owners_of(client, context)
            wanted = _MEMORY_OF_WAITING * len(data)
            if not budget.try_take(wanted, owners):
                await budget.take(wanted, owners, seconds=MEMORY_WAIT_SECONDS)
            size = wanted
            context.request_taken()
            request = method.read(data, client)
            del data
            # Closed at once when the client disconnects, so that unwritten messages are returned.
            async with aclosing(call(request, client, context)) as responses:
                async for response in responses:
                    if isinstance(response, list):
                        answers = response
                    elif isinstance(response, bytes):
                        answers = [response]
                    else:
                        if response.HasField("status"):
                            code = response.status.code
                        answers = [response.SerializeToString()]
                    if sum(map(len, answers)) < _LARGE_SIZE:
                        await context.write_all(answers)
                    else:
                        await _taken(context, answers)
        except ClientWentAwayError:
            pass  # while it was written to, before this call was cancelled
        except Exception as error:
            status = status_of(error, method.name)
            code = status.code
            with suppress(ClientWentAwayError):
                await context.write(method.response(status).SerializeToString())
        finally:
            running.count -= 1
            if size:
                budget.give(size, owners)
        elapsed = (perf_counter() - started) * 1000
        counters.answered(method.service, method.name, code_name(code)).observe(elapsed)

    return handle


async def _taken(context: Context, answers: Sequence[bytes]) -> None:
    """Write; ClientWentAwayError if the client does not read in time, as if it had disconnected."""
    try:
        async with asyncio.timeout(_TAKE_SECONDS):
            await context.write_all(answers)
    except TimeoutError:
        raise ClientWentAwayError from None


def owners_of(client: Client, context: Context) -> Sequence[str]:
    """The owners of a call's bytes: its connection, and the account that signed it."""
    if client.account is None:
        return (context.connection(),)
    return context.connection(), f"account {client.account.access_key}"


def code_name(code: int) -> str:
    try:
        return v2.Code.Name(v2.Code.ValueType(code))
    except ValueError:
        return str(code)


# --- Identity of callers ------------------------------------------------------------------------------------


class ClientIdentity:
    """Identifies the client of a call by its headers, and with `accounts` its account.

    With accounts, the id of a client is `access key/client id`, so no account can take another's client id. Raises
    InvalidRequestError without `x-mq-client-id`, and UnauthorizedError for wrong credentials.
    """

    def __init__(self, clients: ClientRegistry, accounts: Accounts | None) -> None:
        self._clients = clients
        self._accounts = accounts

    def __call__(self, context: Context) -> Client:
        headers = dict(context.metadata())
        client_id = headers.get("x-mq-client-id")
        if not isinstance(client_id, str) or not client_id.strip() or len(client_id) > 1024:
            raise InvalidRequestError(
                v2.Code.CLIENT_ID_REQUIRED, "the header x-mq-client-id is missing, blank or longer than 1024 characters"
            )
        if self._accounts is None:
            client = self._clients.seen(client_id)
        else:  # before any state is kept for a caller
            account = self._accounts.of_call(
                headers.get("authorization"), headers.get("x-mq-date-time"), context.certificate_subject()
            )
            client = self._clients.seen(f"{account.access_key}/{client_id}")
            client.account = account
        namespace = headers.get("x-mq-namespace")
        client.namespace = namespace if isinstance(namespace, str) else ""
        return client


def introduce(client: Client, context: Context) -> None:
    """Take the fixed properties of the client from the call: connection, address, language, version."""
    client.connection = context.connection()
    client.peer = context.peer_address()
    client.secure = context.is_secure()
    for key, value in context.metadata():
        text = value if isinstance(value, str) else ""
        if key == "x-mq-language":
            client.language = text[:32]
        elif key == "x-mq-client-version":
            client.version = text[:32]


class AnonymousIdentity:
    """The caller of a service without client ids; with `accounts`, it needs an account. UnauthorizedError."""

    def __init__(self, accounts: Accounts | None) -> None:
        self._accounts = accounts

    def __call__(self, context: Context) -> Client:
        client = Client("")
        headers = dict(context.metadata())
        if self._accounts is not None:
            client.account = self._accounts.of_call(
                headers.get("authorization"), headers.get("x-mq-date-time"), context.certificate_subject()
            )
        namespace = headers.get("x-mq-namespace")
        client.namespace = namespace if isinstance(namespace, str) else ""
        return client
