"""Health and reflection, as every gRPC server has them, behind our way to read requests.

grpcio's services answer bytes that are no request with the name of a Python class, and log a traceback for each; and
their streams live as long as their client likes: each would hold up a stop until the drain's time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from aerobee_broker.services.rpc import ClientWentAwayError, Context, Unreadable, readable
from aerobee_proto.pool import reflection_pool

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")


def health_handler(services: Iterable[str], draining: asyncio.Event) -> grpc.GenericRpcHandler[Any, Any]:
    """Check and Watch for the broker (the empty name) and each of `services`: serving until `draining` is set, which
    also ends every Watch, once it has said so. There is no List."""
    known = frozenset(("", *services))
    status: Any = health_pb2.HealthCheckResponse

    async def check(request: Any, context: Context) -> Message:
        await _must_be_readable(request, HEALTH, context)
        if request.service not in known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service; reflection names those there are")
        answer: Message = status(status=status.NOT_SERVING if draining.is_set() else status.SERVING)
        return answer

    async def watch(request: Any, context: Context) -> None:
        await _must_be_readable(request, HEALTH, context)
        with suppress(ClientWentAwayError):
            if not draining.is_set():
                now = status.SERVING if request.service in known else status.SERVICE_UNKNOWN
                await context.write(status(status=now))
                await draining.wait()
            if request.service in known:
                await context.write(status(status=status.NOT_SERVING))

    reading = readable(health_pb2.HealthCheckRequest)
    writing = health_pb2.HealthCheckResponse.SerializeToString
    return grpc.method_handlers_generic_handler(
        HEALTH,
        {
            "Check": grpc.unary_unary_rpc_method_handler(check, reading, writing),
            "Watch": grpc.unary_stream_rpc_method_handler(watch, reading, writing),
        },
    )


def reflection_handlers(services: Iterable[str], draining: asyncio.Event) -> list[grpc.GenericRpcHandler[Any, Any]]:
    """Of `services`, health and itself, under both of its names; grpcio has v1alpha only, v1 has the same messages.

    A stream ends when its client has asked all, or `draining` is set.
    """
    servicer = ReflectionServicer((*services, HEALTH, *REFLECTION), pool=reflection_pool())

    def handler(name: str) -> grpc.GenericRpcHandler[Any, Any]:
        async def info(requests: AsyncIterator[Message | Unreadable], context: Context) -> None:
            async def readable_ones() -> AsyncIterator[Message | Unreadable]:
                async for request in _until(draining, requests):
                    await _must_be_readable(request, name, context)
                    yield request

            with suppress(ClientWentAwayError):
                async for response in servicer.ServerReflectionInfo(readable_ones(), context):
                    await context.write(response)

        method = grpc.stream_stream_rpc_method_handler(
            info,
            request_deserializer=readable(reflection_pb2.ServerReflectionRequest),
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})

    return [handler(name) for name in REFLECTION]


async def _until(
    draining: asyncio.Event, requests: AsyncIterator[Message | Unreadable]
) -> AsyncIterator[Message | Unreadable]:
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


async def _must_be_readable(request: Message | Unreadable, service: str, context: Context) -> None:
    if isinstance(request, Unreadable):
        package = service.rpartition(".")[0]
        text = f"the bytes of the request cannot be read; send a message of {package}, as its .proto file has it"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
