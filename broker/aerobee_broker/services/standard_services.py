"""The standard services health and reflection, with their own request parsing.

grpcio's services answer invalid requests with the name of a Python class and log a traceback for each; and their
streams would delay a stop until the end of the drain time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.front.methods import (
    BidirectionalStream,
    CallAbortedError,
    ClientWentAwayError,
    Context,
    Method,
    ServerStream,
    StatusCode,
    Unary,
)
from aerobee_broker.limits.wakes import Gate
from aerobee_broker.services.requests import RequestReader
from aerobee_proto.pool import reflection_pool

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")


def health_methods(services: Iterable[str], leaving: Gate) -> dict[str, Method]:
    """Check and Watch for the broker (the empty name) and each of `services`: serving until `leaving` is set, which
    ends every Watch after a last status. List is not supported."""
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
        return answer(status.NOT_SERVING if leaving.is_set() else status.SERVING)

    async def watch(data: bytes, context: Context) -> None:
        request: Any = _read(watch_reader, data)
        with suppress(ClientWentAwayError):
            if not leaving.is_set():
                await context.write(answer(status.SERVING if request.service in known else status.SERVICE_UNKNOWN))
                await leaving.wait()
            if request.service in known:
                await context.write(answer(status.NOT_SERVING))

    return {f"/{HEALTH}/Check": Unary(check), f"/{HEALTH}/Watch": ServerStream(watch)}


def reflection_methods(services: Iterable[str], draining: Gate) -> dict[str, Method]:
    """Reflection of `services`, health and itself, under both of its names; grpcio has only v1alpha, v1 has the same
    messages.

    A stream ends when its client has finished, or `draining` is set.
    """
    reflection = _Reflection((*services, HEALTH, *REFLECTION))
    reader = RequestReader("ServerReflectionInfo", reflection_pb2.ServerReflectionRequest)

    async def info(requests: AsyncIterator[bytes], context: Context) -> None:
        with suppress(ClientWentAwayError):
            async for data in _until(draining, requests):
                await context.write(reflection.answer(_read(reader, data)).SerializeToString())

    return {f"/{name}/ServerReflectionInfo": BidirectionalStream(info) for name in REFLECTION}


class _Reflection:
    """Answers queries about the files that define the services (grpc/reflection/v1/reflection.proto).

    Not grpcio's servicer, which would import grpcio's server.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = sorted(services)

    def answer(self, request: Any) -> Any:
        """The ServerReflectionResponse to a request."""
        kind = request.WhichOneof("message_request")
        response = reflection_pb2.ServerReflectionResponse(original_request=request)
        try:
            if kind == "list_services":
                for name in self._services:
                    response.list_services_response.service.add(name=name)
            elif kind == "all_extension_numbers_of_type":
                name = request.all_extension_numbers_of_type
                numbers = response.all_extension_numbers_response
                numbers.base_type_name = name
                message = reflection_pool().FindMessageTypeByName(name)
                found = reflection_pool().FindAllExtensions(message)
                numbers.extension_number.extend(sorted(extension.number for extension in found))
            elif file := self._file(kind, request):
                response.file_descriptor_response.file_descriptor_proto.extend(_with_imports(file))
            else:
                self._fail(response, StatusCode.INVALID_ARGUMENT, "the request asks for nothing that is known")
        except KeyError:
            response.ClearField(response.WhichOneof("message_response") or "error_response")
            self._fail(response, StatusCode.NOT_FOUND, "there is no such name; list the services first")
        return response

    def _file(self, kind: str | None, request: Any) -> Any:
        """The file that the request names; None if it names none. KeyError if it does not exist."""
        pool: Any = reflection_pool()
        match kind:
            case "file_by_filename":
                return pool.FindFileByName(request.file_by_filename)
            case "file_containing_symbol":
                return pool.FindFileContainingSymbol(request.file_containing_symbol)
            case "file_containing_extension":
                asked = request.file_containing_extension
                message = pool.FindMessageTypeByName(asked.containing_type)
                return pool.FindExtensionByNumber(message, asked.extension_number).file
        return None

    def _fail(self, response: Any, code: StatusCode, text: str) -> None:
        response.error_response.error_code = code
        response.error_response.error_message = text


def _with_imports(file: Any) -> list[bytes]:
    """The descriptors of a file and its imports, each once, the file first."""
    found: dict[str, Any] = {}
    waiting = [file]
    while waiting:
        next_file = waiting.pop()
        if next_file.name not in found:
            found[next_file.name] = next_file
            waiting.extend(next_file.dependencies)
    return [each.serialized_pb for each in found.values()]


async def _until(draining: Gate, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The requests that arrive before `draining` is set."""
    drained = asyncio.ensure_future(draining.wait())
    try:
        while not drained.done():
            following = asyncio.ensure_future(anext(requests, None))
            try:
                await asyncio.wait((following, drained), return_when=asyncio.FIRST_COMPLETED)
            finally:
                following.cancel()  # does nothing to a finished task
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
