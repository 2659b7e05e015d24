"""Serves the methods with grpcio's server: the second front, used to check the first."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import grpc

from aerobee_broker.front.methods import (
    Admission,
    BidirectionalStream,
    CallAbortedError,
    CallBidirectionalStream,
    CallServerStream,
    CallUnary,
    ClientWentAwayError,
    Metadata,
    Methods,
    ServerStream,
    Unary,
)
from aerobee_store.records.decimals import decimal

_GrpcioContext = grpc.aio.ServicerContext[Any, Any]
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)
_FAREWELL_SECONDS: Final = 1.0
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcioServer:
    """grpcio's server with a table of methods, which may be filled until `start`."""

    def __init__(
        self, methods: Methods, options: Sequence[tuple[str, int]], *, has_client_certificates: bool = False
    ) -> None:
        self._methods = methods
        self._has_client_certificates = has_client_certificates
        self.server = grpc.aio.server(options=options)

    async def start(self) -> None:
        """Start serving."""
        handler = GrpcioHandler(self._methods, has_client_certificates=self._has_client_certificates)
        self.server.add_generic_rpc_handlers((handler,))
        await self.server.start()

    @property
    def connection_count(self) -> None:
        """None: grpcio does not tell."""

    def hang_up(self, connection: str) -> None:
        """Shut the socket of this connection down after a second, in which its calls are answered: grpcio itself ends
        no single connection. Calls that run longer end with it."""
        asyncio.get_running_loop().call_later(_FAREWELL_SECONDS, _shut_down, peer_address(connection))

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more calls, let running calls end for this time, then end the rest."""
        await self.server.stop(grace_seconds or None)


def _shut_down(peer: tuple[str, int]) -> None:
    """Shut down this process's socket that is connected with an address; the server sees that as the client's end."""
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:  # closed since
            continue
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as found, suppress(OSError):
            if found.family in _FAMILIES and _plain_address(found.getpeername()) == peer:
                found.shutdown(socket.SHUT_RDWR)


class GrpcioHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in its stub only
    """Serves a table of methods."""

    def __init__(self, methods: Methods, *, has_client_certificates: bool = False) -> None:
        self._methods = methods
        self._has_client_certificates = has_client_certificates

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call; None for a method that is not in the table.

        grpcio calls this when it has the headers of a call, and reads the request afterwards, so calls are admitted by
        their headers here. A call that is refused, or has to wait for the byte budget, gets a handler for a stream of
        requests, which decides before it reads one; on the wire this makes no difference. For all other calls grpcio
        reads the single request, which costs less than a stream.

        grpcio knows a client's certificate only when it calls the handler. Where clients have certificates, all calls
        are judged there, before their request is read.
        """
        method = self._methods.get(details.method)
        if method is None:
            return None
        own = GrpcioContext(details.invocation_metadata or ())  # pairs, under another type
        admission = method.admission
        is_judged_later = self._has_client_certificates
        refusal = None if admission is None or is_judged_later else admission.refusal(own)
        match method:
            case _ if refusal is not None:
                return grpc.stream_unary_rpc_method_handler(partial(_refuse, refusal))
            case BidirectionalStream(call_both):
                return grpc.stream_stream_rpc_method_handler(partial(_both, call_both, admission, own))
            case Unary(call):
                if admission is None or (not is_judged_later and admission.admits_at_once()):
                    return grpc.unary_unary_rpc_method_handler(partial(_unary, call, admission, own))
                return grpc.stream_unary_rpc_method_handler(partial(_unary_when_there_is_room, call, admission, own))
            case ServerStream(call_stream):
                if admission is None or (not is_judged_later and admission.admits_at_once()):
                    return grpc.unary_stream_rpc_method_handler(partial(_stream, call_stream, admission, own))
                return grpc.stream_stream_rpc_method_handler(
                    partial(_stream_when_there_is_room, call_stream, admission, own)
                )


class GrpcioContext:
    """A `Context` on top of grpcio's. Before `bind` it has only the headers."""

    __slots__ = ("_context", "_is_bound", "_metadata", "caller")

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._context: _GrpcioContext = None  # type: ignore[assignment]  # bound before a handler is called
        self._is_bound = False
        self.caller: Any = None

    def bind(self, context: _GrpcioContext) -> None:
        """Make this the context of the given call."""
        self._context = context
        self._is_bound = True

    def metadata(self) -> Metadata:
        return self._metadata

    def peer_address(self) -> tuple[str, int]:
        return peer_address(self._context.peer())

    def connection(self) -> str:
        return self._context.peer()

    def is_secure(self) -> bool:
        return self._context.auth_context().get("transport_security_type") == [b"ssl"]

    def certificate_subject(self) -> str | None:
        if not self._is_bound:
            return None
        for subject in self._context.auth_context().get("x509_subject", ()):
            return subject.decode()
        return None

    def note_account(self) -> None:
        """The memory that a connection of grpcio holds is not known."""

    def request_taken(self) -> None:
        """grpcio has the bytes of requests, which nobody counts before."""

    def time_remaining(self) -> float | None:
        return self._context.time_remaining()

    def if_lost(self, lost: Callable[[], None]) -> None:
        """grpcio's writes wait for the client's window, and after a handler has returned it reports nothing."""

    async def send_initial_metadata(self, metadata: Metadata = ()) -> None:
        await self._context.send_initial_metadata(tuple(metadata))

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._context.set_trailing_metadata(tuple(metadata))

    async def write(self, response: bytes) -> None:
        try:
            await self._context.write(response)
        except grpc.aio.InternalError:
            raise ClientWentAwayError from None

    async def write_all(self, responses: Sequence[bytes]) -> None:
        for response in responses:
            await self.write(response)


async def _refuse(refusal: bytes, _: AsyncIterator[bytes], context: _GrpcioContext) -> bytes:
    return refusal


async def _unary(
    call: CallUnary, admission: Admission | None, own: GrpcioContext, request: bytes, context: _GrpcioContext
) -> bytes:
    if admission is not None and len(request) > admission.request_size_max:
        return admission.too_large(len(request))
    own.bind(context)
    try:
        return await call(request, own)
    except CallAbortedError as error:
        await context.abort(_CODES[error.code], error.details)
        raise AssertionError("abort raises") from None


async def _unary_when_there_is_room(
    call: CallUnary, admission: Admission, own: GrpcioContext, _: AsyncIterator[bytes], context: _GrpcioContext
) -> bytes:
    own.bind(context)
    refusal = admission.refusal(own) or await admission.wait_admitted(own)
    return await _unary(call, admission, own, await _read(context), context) if refusal is None else refusal


async def _stream(
    call: CallServerStream, admission: Admission | None, own: GrpcioContext, request: bytes, context: _GrpcioContext
) -> None:
    own.bind(context)
    try:
        if admission is not None and len(request) > admission.request_size_max:
            with suppress(ClientWentAwayError):
                await own.write(admission.too_large(len(request)))
        else:
            await call(request, own)
    except CallAbortedError as error:
        await context.abort(_CODES[error.code], error.details)


async def _stream_when_there_is_room(
    call: CallServerStream, admission: Admission, own: GrpcioContext, _: AsyncIterator[bytes], context: _GrpcioContext
) -> None:
    own.bind(context)
    refusal = admission.refusal(own) or await admission.wait_admitted(own)
    if refusal is None:
        await _stream(call, admission, own, await _read(context), context)
    else:
        with suppress(ClientWentAwayError):
            await own.write(refusal)


async def _both(
    call: CallBidirectionalStream,
    admission: Admission | None,
    own: GrpcioContext,
    requests: AsyncIterator[bytes],
    context: _GrpcioContext,
) -> None:
    own.bind(context)
    refusal = None if admission is None else admission.refusal(own)
    if refusal is not None:
        with suppress(ClientWentAwayError):
            await own.write(refusal)
        return
    try:
        await call(requests, own)
    except CallAbortedError as error:
        await context.abort(_CODES[error.code], error.details)


async def _read(context: _GrpcioContext) -> bytes:
    """The request of a method with a single request."""
    request = await context.read()
    return request if isinstance(request, bytes) else b""  # marks the end


def peer_address(peer: str) -> tuple[str, int]:
    """IP address and port from gRPC's text for a connection: `ipv4:127.0.0.1:50000`, `ipv6:%5B::1%5D:50000`."""
    scheme, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = decimal(port)
    if scheme not in ("ipv4", "ipv6") or number is None:
        return "127.0.0.1", 1  # a Unix socket
    return _plain_address((host, number))


def _plain_address(address: tuple[str, int, *tuple[int, ...]]) -> tuple[str, int]:
    """IP address and port, without the scope, and as IPv4's where the address is mapped."""
    ip = ipaddress.ip_address(address[0].partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return str(ip), address[1]
