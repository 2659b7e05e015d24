"""Health and reflection, as every gRPC server has them, behind our way to read requests.

grpcio's services answer bytes that are no request with the name of a Python class, and log a traceback for each; and
their streams live as long as their client likes: each would hold up a stop until the drain's time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.front.calls import (
    BidirectionalStream,
    CallAbortedError,
    ClientWentAwayError,
    Context,
    Method,
    ServerStream,
    StatusCode,
    Unary,
)
from aerobee_broker.services.requests import RequestReader
from aerobee_proto.pool import reflection_pool

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")


def health_methods(services: Iterable[str], draining: asyncio.Event) -> dict[str, Method]:
    """Check and Watch for the broker (the empty name) and each of `services`: serving until `draining` is set, which
    also ends every Watch, once it has said so. There is no List."""
    known = frozenset(("", *services))
    status: Any = health_pb2.HealthCheckResponse
    check_reader, watch_reader = (RequestReader(name, health_pb2.HealthCheckRequest) for name in ("Check", "Watch"))

    def answer(serving: int) -> bytes:
        message: Message = status(status=serving)
        return message.SerializeToString()

    async def check(data: bytes, context: Context) -> bytes:
        request: Any = _read(check_reader, data)
        if request.service not in known:
            raise CallAbortedError(StatusCode.NOT_FOUND, "unknown service; server reflection lists the services")
        return answer(status.NOT_SERVING if draining.is_set() else status.SERVING)

    async def watch(data: bytes, context: Context) -> None:
        request: Any = _read(watch_reader, data)
        with suppress(ClientWentAwayError):
            if not draining.is_set():
                await context.write(answer(status.SERVING if request.service in known else status.SERVICE_UNKNOWN))
                await draining.wait()
            if request.service in known:
                await context.write(answer(status.NOT_SERVING))

    return {f"/{HEALTH}/Check": Unary(check), f"/{HEALTH}/Watch": ServerStream(watch)}


def reflection_methods(services: Iterable[str], draining: asyncio.Event) -> dict[str, Method]:
    """Of `services`, health and itself, under both of its names; grpcio has v1alpha only, v1 has the same messages.

    A stream ends when its client has asked all, or `draining` is set.
    """
    servicer = ReflectionServicer((*services, HEALTH, *REFLECTION), pool=reflection_pool())
    reader = RequestReader("ServerReflectionInfo", reflection_pb2.ServerReflectionRequest)

    def method() -> Method:
        async def info(requests: AsyncIterator[bytes], context: Context) -> None:
            async def read_ones() -> AsyncIterator[Message]:
                async for data in _until(draining, requests):
                    yield _read(reader, data)

            with suppress(ClientWentAwayError):
                async for response in servicer.ServerReflectionInfo(read_ones(), context):
                    await context.write(response.SerializeToString())

        return BidirectionalStream(info)

    return {f"/{name}/ServerReflectionInfo": method() for name in REFLECTION}


async def _until(draining: asyncio.Event, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The requests that come before `draining` is set."""
    drained = asyncio.ensure_future(draining.wait())
    try:
        while not drained.done():
            following = asyncio.ensure_future(anext(requests, None))
            try:
                await asyncio.wait((following, drained), return_when=asyncio.FIRST_COMPLETED)
            finally:
                following.cancel()  # does nothing to one that is done
            if not following.done() or (request := following.result()) is None:
                return
            yield request
    finally:
        drained.cancel()


def _read(reader: RequestReader, data: bytes) -> Message:
    try:
        return reader.read(data)
    except InvalidRequestError as error:
        raise CallAbortedError(StatusCode.INVALID_ARGUMENT, str(error)) from None
