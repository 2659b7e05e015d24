"""A wire-protocol server with scripted answers, for failures that a healthy broker never shows."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from aerobee_proto import records_v1, v2
from aerobee_store.records.record_batch import RecordBatch

OK = v2.Status(code=v2.Code.OK, message="OK")

Answer = Any  # a response, an exception of `failure`, or for ReceiveMessage a list of both


def failure(code: grpc.StatusCode) -> Exception:
    """An answer that ends the call with a gRPC status."""
    return _FailureError(code)


class _FailureError(Exception):
    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__(code.name)
        self.code = code


class ScriptedBroker(v2.MessagingServiceServicer):
    """Each call takes the next of `answers[method]`; without one it succeeds.

    `calls` has every request, `metadata` its headers.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = defaultdict(list)
        self.calls: list[tuple[str, Any]] = []
        self.metadata: dict[str, str] = {}
        self.endpoint = ""
        self.queue_count = 1
        self._streams_end = asyncio.Event()
        self._call = asyncio.Event()
        self._held: dict[str, asyncio.Event] = {}
        self._commands: asyncio.Queue[v2.TelemetryCommand] = asyncio.Queue()

    def requests(self, method: str) -> list[Any]:
        """The requests to one method, in order."""
        return [request for name, request in self.calls if name == method]

    def end_streams(self) -> None:
        """End every open Telemetry stream."""
        self._streams_end.set()
        self._streams_end = asyncio.Event()

    def hold(self, method: str) -> None:
        """Answer no call to a method before `release`."""
        self._held[method] = asyncio.Event()

    def release(self, method: str) -> None:
        """Answer waiting calls, and all later ones."""
        self._held.pop(method).set()

    def command(self, command: v2.TelemetryCommand) -> None:
        """Send a command on an open Telemetry stream."""
        self._commands.put_nowait(command)

    async def called(self, method: str, times: int) -> None:
        """Return once `method` was called `times` times."""
        while len(self.requests(method)) < times:
            self._call.clear()
            await self._call.wait()

    async def _answer(self, method: str, request: Any, context: Any, otherwise: Callable[[], Answer]) -> Answer:
        self.calls.append((method, request))
        self._call.set()
        self.metadata = {str(key): str(value) for key, value in context.invocation_metadata()}
        if held := self._held.get(method):
            await held.wait()
        answer = self.answers[method].pop(0) if self.answers[method] else otherwise()
        if isinstance(answer, _FailureError):
            await context.abort(answer.code, "as the test wants it")
        return answer

    async def Telemetry(self, request_iterator: Any, context: Any) -> AsyncIterator[v2.TelemetryCommand]:
        commands = aiter(request_iterator)
        command = await anext(commands)
        ended = self._streams_end
        yield await self._answer(
            "Telemetry", command, context, lambda: v2.TelemetryCommand(status=OK, settings=command.settings)
        )
        ending = asyncio.create_task(ended.wait())
        sending = asyncio.create_task(self._commands.get())
        reading = asyncio.create_task(anext(commands, None))
        try:
            while not ended.is_set():
                await asyncio.wait((ending, sending, reading), return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    yield sending.result()
                    sending = asyncio.create_task(self._commands.get())
                if reading.done():
                    if reading.result() is None:
                        return
                    self.calls.append(("Telemetry reply", reading.result()))
                    self._call.set()
                    reading = asyncio.create_task(anext(commands, None))
        finally:
            for task in (ending, sending, reading):
                task.cancel()

    async def QueryRoute(self, request: Any, context: Any) -> Answer:
        queues = [
            v2.MessageQueue(
                topic=request.topic, permission=v2.Permission.READ_WRITE, broker=v2.Broker(name="one", id=0), id=number
            )
            for number in range(self.queue_count)
        ]
        return await self._answer(
            "QueryRoute", request, context, lambda: v2.QueryRouteResponse(status=OK, message_queues=queues)
        )

    async def SendMessage(self, request: Any, context: Any) -> Answer:
        entries = [
            v2.SendResultEntry(
                status=OK,
                message_id=message.system_properties.message_id,
                transaction_id=message.system_properties.message_id,
                offset=offset,
            )
            for offset, message in enumerate(request.messages)
        ]
        return await self._answer(
            "SendMessage", request, context, lambda: v2.SendMessageResponse(status=OK, entries=entries)
        )

    async def AppendRecords(self, request: Any, context: Any) -> Answer:
        """A call of RecordService, which `scripted_broker(records=True)` offers."""
        count = self.records_in(request.records)
        answer = records_v1.AppendRecordsResponse(status=OK, first_queue_offset=100, message_count=count)
        return await self._answer("AppendRecords", request, context, lambda: answer)

    async def QueueOffsets(self, request: Any, context: Any) -> Answer:
        """A call of RecordService, as above."""
        answer = records_v1.QueueOffsetsResponse(status=OK)
        return await self._answer("QueueOffsets", request, context, lambda: answer)

    @staticmethod
    def records_in(records: bytes) -> int:
        """The number of records."""
        return len(RecordBatch.parse(records, base_physical_offset=None, placed=False))

    async def ReceiveMessage(self, request: Any, context: Any) -> AsyncIterator[Answer]:
        nothing = v2.Status(code=v2.Code.MESSAGE_NOT_FOUND)
        items = await self._answer(
            "ReceiveMessage", request, context, lambda: [v2.ReceiveMessageResponse(status=nothing)]
        )
        for item in items:
            if isinstance(item, _FailureError):
                await context.abort(item.code, "as the test wants it")
            yield item

    async def AckMessage(self, request: Any, context: Any) -> Answer:
        entries = [v2.AckMessageResultEntry(message_id=entry.message_id, status=OK) for entry in request.entries]
        return await self._answer(
            "AckMessage", request, context, lambda: v2.AckMessageResponse(status=OK, entries=entries)
        )

    async def ChangeInvisibleDuration(self, request: Any, context: Any) -> Answer:
        answer = v2.ChangeInvisibleDurationResponse(status=OK, receipt_handle="second")
        return await self._answer("ChangeInvisibleDuration", request, context, lambda: answer)

    async def EndTransaction(self, request: Any, context: Any) -> Answer:
        return await self._answer("EndTransaction", request, context, lambda: v2.EndTransactionResponse(status=OK))

    async def RecallMessage(self, request: Any, context: Any) -> Answer:
        return await self._answer("RecallMessage", request, context, lambda: v2.RecallMessageResponse(status=OK))

    async def NotifyClientTermination(self, request: Any, context: Any) -> Answer:
        answer = v2.NotifyClientTerminationResponse(status=OK)
        return await self._answer("NotifyClientTermination", request, context, lambda: answer)


def new_scripted_broker() -> ScriptedBroker:
    """A ScriptedBroker that no server runs yet."""
    return ScriptedBroker()  # type: ignore[abstract]  # the calls that it lacks answer UNIMPLEMENTED, which is right


def _record_service(broker: ScriptedBroker) -> grpc.GenericRpcHandler[Any, Any]:
    """A handler for two calls of RecordService."""
    handlers = {
        "AppendRecords": grpc.unary_unary_rpc_method_handler(
            broker.AppendRecords,
            records_v1.AppendRecordsRequest.FromString,
            records_v1.AppendRecordsResponse.SerializeToString,
        ),
        "QueueOffsets": grpc.unary_unary_rpc_method_handler(
            broker.QueueOffsets,
            records_v1.QueueOffsetsRequest.FromString,
            records_v1.QueueOffsetsResponse.SerializeToString,
        ),
    }
    return grpc.method_handlers_generic_handler("aerobee.v1.RecordService", handlers)


@asynccontextmanager
async def scripted_broker(*, records: bool = False) -> AsyncIterator[ScriptedBroker]:
    """A ScriptedBroker that listens on `endpoint`; with `records` it also has Aerobee's RecordService."""
    broker = new_scripted_broker()
    server = grpc.aio.server()
    v2.add_MessagingServiceServicer_to_server(broker, server)
    if records:
        server.add_generic_rpc_handlers([_record_service(broker)])
    broker.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield broker
    finally:
        await server.stop(None)
