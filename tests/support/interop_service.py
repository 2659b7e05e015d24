"""`grpc.testing.TestService`, called by gRPC's interoperability clients, as a method table for any front."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from aerobee_broker.front.methods import (
    BidirectionalStream,
    CallAbortedError,
    Context,
    Methods,
    ServerStream,
    StatusCode,
    Unary,
)

_Field = descriptor_pb2.FieldDescriptorProto
_INT, _BYTES, _TEXT, _MESSAGE = _Field.TYPE_INT32, _Field.TYPE_BYTES, _Field.TYPE_STRING, _Field.TYPE_MESSAGE
# The parts of grpc-proto's messages.proto that the cases need. Enums are numbers here.
_MESSAGES: Final[dict[str, list[tuple[str, int, Any]]]] = {
    "Payload": [("type", 1, _INT), ("body", 2, _BYTES)],
    "EchoStatus": [("code", 1, _INT), ("message", 2, _TEXT)],
    "SimpleRequest": [("response_size", 2, _INT), ("payload", 3, "Payload"), ("response_status", 7, "EchoStatus")],
    "SimpleResponse": [("payload", 1, "Payload")],
    "StreamingInputCallRequest": [("payload", 1, "Payload")],
    "StreamingInputCallResponse": [("aggregated_payload_size", 1, _INT)],
    "ResponseParameters": [("size", 1, _INT), ("interval_us", 2, _INT)],
    "StreamingOutputCallRequest": [
        ("response_parameters", 2, "*ResponseParameters"),
        ("payload", 3, "Payload"),
        ("response_status", 7, "EchoStatus"),
    ],
}
_ECHO: Final = ("x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin")


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="interop.proto", package="grpc.testing", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL)
            if isinstance(kind, str):
                added.type, added.type_name = _MESSAGE, f".grpc.testing.{kind.removeprefix('*')}"
                if kind.startswith("*"):
                    added.label = _Field.LABEL_REPEATED
            else:
                added.type = kind
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"grpc.testing.{name}")) for name in _MESSAGES}


_CLASSES: Final = _classes()


async def _echo_metadata(context: Context) -> None:
    metadata = dict(context.metadata())
    if _ECHO[1] in metadata:
        context.set_trailing_metadata([(_ECHO[1], metadata[_ECHO[1]])])
    if _ECHO[0] in metadata:
        await context.send_initial_metadata([(_ECHO[0], metadata[_ECHO[0]])])


def _raise_status(request: Any) -> None:
    if request.response_status.code:
        raise CallAbortedError(StatusCode(request.response_status.code), request.response_status.message)


def _payload(size: int) -> Any:
    return _CLASSES["Payload"](body=bytes(size))


async def _empty(request: bytes, context: Context) -> bytes:
    return b""


async def _unary(data: bytes, context: Context) -> bytes:
    request = _CLASSES["SimpleRequest"].FromString(data)
    await _echo_metadata(context)
    _raise_status(request)
    response: bytes = _CLASSES["SimpleResponse"](payload=_payload(request.response_size)).SerializeToString()
    return response


async def _respond(request: Any, context: Context) -> None:
    for parameters in request.response_parameters:
        if parameters.interval_us:
            await asyncio.sleep(parameters.interval_us / 1e6)
        await context.write(_CLASSES["SimpleResponse"](payload=_payload(parameters.size)).SerializeToString())


async def _streaming_output(data: bytes, context: Context) -> None:
    await _respond(_CLASSES["StreamingOutputCallRequest"].FromString(data), context)


async def _streaming_input(requests: AsyncIterator[bytes], context: Context) -> None:
    size = 0
    async for data in requests:
        size += len(_CLASSES["StreamingInputCallRequest"].FromString(data).payload.body)
    await context.write(_CLASSES["StreamingInputCallResponse"](aggregated_payload_size=size).SerializeToString())


async def _full_duplex(requests: AsyncIterator[bytes], context: Context) -> None:
    await _echo_metadata(context)
    async for data in requests:
        request = _CLASSES["StreamingOutputCallRequest"].FromString(data)
        _raise_status(request)
        await _respond(request, context)


def methods() -> Methods:
    """The service. UnimplementedCall and UnimplementedService are missing, as their cases require."""
    service = "/grpc.testing.TestService"
    return {
        f"{service}/EmptyCall": Unary(_empty),
        f"{service}/UnaryCall": Unary(_unary),
        f"{service}/StreamingOutputCall": ServerStream(_streaming_output),
        f"{service}/StreamingInputCall": BidirectionalStream(_streaming_input),
        f"{service}/FullDuplexCall": BidirectionalStream(_full_duplex),
    }
