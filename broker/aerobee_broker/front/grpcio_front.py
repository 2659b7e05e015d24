"""The methods behind grpcio's server: the second front, to check the first against."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import grpc

from aerobee_broker.front.calls import (
    Admission,
    BidirectionalStream,
    CallAbortedError,
    ClientWentAwayError,
    Metadata,
    Method,
    Methods,
    ServerStream,
    Unary,
)

_GrpcioContext = grpc.aio.ServicerContext[Any, Any]
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcioServer:
    """grpcio's server with a table of methods, which may be filled until `start`."""

    def __init__(self, methods: Methods, options: Sequence[tuple[str, int]]) -> None:
        self._methods = methods
        self.server = grpc.aio.server(options=options)

    async def start(self) -> None:
        """Serve from now on."""
        self.server.add_generic_rpc_handlers((GrpcioHandler(self._methods),))
        await self.server.start()

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls, let those that run end for so long, and end what is left."""
        await self.server.stop(grace_seconds or None)


class GrpcioHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in its stub only
    """Serves a table of methods."""

    def __init__(self, methods: Methods) -> None:
        self._handlers = {path: _handler(method) for path, method in methods.items()}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """What answers a call; None for a method that is not in the table."""
        return self._handlers.get(details.method)


class GrpcioContext:
    """A `Context` over grpcio's."""

    __slots__ = ("_context", "caller")

    def __init__(self, context: _GrpcioContext) -> None:
        self._context = context
        self.caller: Any = None

    def metadata(self) -> Metadata:
        return self._context.invocation_metadata() or ()  # type: ignore[return-value]  # pairs, by another name

    def peer_address(self) -> tuple[str, int]:
        return peer_address(self._context.peer())

    def connection(self) -> str:
        return self._context.peer()

    def is_secure(self) -> bool:
        return self._context.auth_context().get("transport_security_type") == [b"ssl"]

    def time_remaining(self) -> float | None:
        return self._context.time_remaining()

    async def send_initial_metadata(self, metadata: Metadata = ()) -> None:
        await self._context.send_initial_metadata(tuple(metadata))

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._context.set_trailing_metadata(tuple(metadata))

    async def write(self, response: bytes) -> None:
        try:
            await self._context.write(response)
        except grpc.aio.InternalError:
            raise ClientWentAwayError from None


def _handler(method: Method) -> grpc.RpcMethodHandler[Any, Any]:
    match method:
        case Unary(call, admission):

            async def unary(_: AsyncIterator[bytes], context: _GrpcioContext) -> bytes:
                own = GrpcioContext(context)
                try:
                    request, refusal = await _read(admission, context, own)
                    return await call(request, own) if refusal is None else refusal
                except CallAbortedError as error:
                    await context.abort(_CODES[error.code], error.details)
                    raise AssertionError("abort raises") from None

            return grpc.stream_unary_rpc_method_handler(unary)
        case ServerStream(call_stream, admission):

            async def stream(_: AsyncIterator[bytes], context: _GrpcioContext) -> None:
                own = GrpcioContext(context)
                try:
                    request, refusal = await _read(admission, context, own)
                    if refusal is None:
                        await call_stream(request, own)
                    else:
                        with suppress(ClientWentAwayError):
                            await own.write(refusal)
                except CallAbortedError as error:
                    await context.abort(_CODES[error.code], error.details)

            return grpc.stream_stream_rpc_method_handler(stream)
        case BidirectionalStream(call_both, admission):

            async def both(requests: AsyncIterator[bytes], context: _GrpcioContext) -> None:
                own = GrpcioContext(context)
                try:
                    refusal = None if admission is None else admission.refusal(own)
                    if refusal is None:
                        await call_both(requests, own)
                    else:
                        with suppress(ClientWentAwayError):
                            await own.write(refusal)
                except CallAbortedError as error:
                    await context.abort(_CODES[error.code], error.details)

            return grpc.stream_stream_rpc_method_handler(both)


async def _read(admission: Admission | None, context: _GrpcioContext, own: GrpcioContext) -> tuple[bytes, bytes | None]:
    """The request, and the answer to one that is refused.

    For grpcio every method has a stream of requests, of which the first is taken: on the wire that is the same, and
    only so the request is not read before the call is judged. It does not tell the size of a request before it has it.
    """
    if admission is not None:
        refusal = admission.refusal(own)
        if refusal is None:
            refusal = await admission.room(own)
        if refusal is not None:
            return b"", refusal
    request = await context.read()
    if not isinstance(request, bytes):  # the mark of the end
        request = b""
    if admission is not None and len(request) > admission.request_size_max:
        return b"", admission.too_large(len(request))
    return request, None


def peer_address(peer: str) -> tuple[str, int]:
    """IP address and port of gRPC's text for a connection: `ipv4:127.0.0.1:50000`, `ipv6:%5B::1%5D:50000`."""
    scheme, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]").partition("%")[0]
    if scheme not in ("ipv4", "ipv6") or not port.isdigit():
        return "127.0.0.1", 1  # a Unix socket
    ip = ipaddress.ip_address(host)
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return str(ip), int(port)
