"""Health and reflection, as every gRPC server has them: grpcio's services, behind our way to read requests.

By themselves they answer bytes that are no request with the name of a Python class, and log a traceback for each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from aerobee_broker.services.rpc import ClientWentAwayError, Context, Unreadable, readable
from aerobee_proto.pool import reflection_pool

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")


def health_handler(health: HealthServicer) -> grpc.GenericRpcHandler[Any, Any]:
    """Check and Watch. List is not implemented by grpcio's servicer."""

    async def check(request: Message | Unreadable, context: Context) -> Message:
        await _must_be_readable(request, HEALTH, context)
        answer: Message = await health.Check(request, context)
        return answer

    async def watch(request: Message | Unreadable, context: Context) -> None:
        await _must_be_readable(request, HEALTH, context)
        with suppress(ClientWentAwayError):
            await health.Watch(request, context)

    reading = readable(health_pb2.HealthCheckRequest)
    writing = health_pb2.HealthCheckResponse.SerializeToString
    return grpc.method_handlers_generic_handler(
        HEALTH,
        {
            "Check": grpc.unary_unary_rpc_method_handler(check, reading, writing),
            "Watch": grpc.unary_stream_rpc_method_handler(watch, reading, writing),
        },
    )


def reflection_handlers(services: Iterable[str]) -> list[grpc.GenericRpcHandler[Any, Any]]:
    """Of `services`, health and itself, under both of its names; grpcio has v1alpha only, v1 has the same messages."""
    servicer = ReflectionServicer((*services, HEALTH, *REFLECTION), pool=reflection_pool())

    def handler(name: str) -> grpc.GenericRpcHandler[Any, Any]:
        async def info(requests: AsyncIterator[Message | Unreadable], context: Context) -> None:
            async def readable_ones() -> AsyncIterator[Message | Unreadable]:
                async for request in requests:
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


async def _must_be_readable(request: Message | Unreadable, service: str, context: Context) -> None:
    if isinstance(request, Unreadable):
        package = service.rpartition(".")[0]
        text = f"the bytes of the request cannot be read; send a message of {package}, as its .proto file has it"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
