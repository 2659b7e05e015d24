"""apache.rocketmq.v2.MessagingService: the calls of RocketMQ clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from aerobee_broker.clients.accounts import Account
from aerobee_broker.clients.permissions import check_again
from aerobee_broker.clients.registry import Client, TelemetryStream
from aerobee_broker.errors import BrokerError
from aerobee_broker.front.methods import (
    CallAbortedError,
    ClientWentAwayError,
    Context,
    Method,
    StatusCode,
)
from aerobee_broker.limits.byte_budget import Share
from aerobee_broker.limits.loop_share import LoopShare, step_started
from aerobee_broker.parts import BrokerParts
from aerobee_broker.processors.acknowledge import AcknowledgeProcessor
from aerobee_broker.processors.heartbeat import HeartbeatProcessor
from aerobee_broker.processors.lite import LiteProcessor
from aerobee_broker.processors.pull import PullProcessor
from aerobee_broker.processors.recall import RecallProcessor
from aerobee_broker.processors.receive import ReceiveProcessor
from aerobee_broker.processors.route import RouteProcessor
from aerobee_broker.processors.sending.send import SendProcessor
from aerobee_broker.processors.sending.send_known import Parse, SendReader, place_of_one
from aerobee_broker.processors.statuses import status_of
from aerobee_broker.processors.telemetry import TelemetryProcessor
from aerobee_broker.processors.transaction import TransactionProcessor
from aerobee_broker.services.requests import RequestLimits
from aerobee_broker.services.rpc import (
    MEMORY_WAIT_SECONDS,
    ClientIdentity,
    introduce,
    owners_of,
    service_methods,
)
from aerobee_proto import v2
from aerobee_store.deferred import deferred

if TYPE_CHECKING:
    from aerobee_broker.processors.sending import send_alike
    from aerobee_broker.processors.sending.send_alike import AnySendRequest
else:
    send_alike = deferred("aerobee_broker.processors.sending.send_alike")


SERVICE: Final = "apache.rocketmq.v2.MessagingService"
_SECONDS_OF_COMMAND: Final = 0.00005  # of processor that a command takes, ...
_SECONDS_OF_BYTE: Final = 20e-9  # ... and each of its bytes: settings may name thousands of topics
_MEMORY_OF_COMMAND: Final = 5  # times its bytes: settings as an object, with their answer


class MessagingProcessors(Struct, frozen=True, kw_only=True):
    """The processors, one for each family of requests."""

    route: RouteProcessor
    heartbeat: HeartbeatProcessor
    telemetry: TelemetryProcessor
    send: SendProcessor
    receive: ReceiveProcessor
    pull: PullProcessor
    lite: LiteProcessor
    recall: RecallProcessor
    acknowledge: AcknowledgeProcessor
    transaction: TransactionProcessor


class MessagingService:
    """One line per method."""

    def __init__(self, parts: BrokerParts, limits: RequestLimits, processors: MessagingProcessors) -> None:
        self._clients = parts.clients
        self._counters = parts.counters
        self._limits = limits
        self._loop_share = LoopShare()  # for requests in Telemetry streams
        self._answers = parts.ledger.answers
        self._read_command = limits.reader("Telemetry", v2.TelemetryCommand).read
        self._accounts = parts.accounts
        self._identify = ClientIdentity(parts.clients, parts.accounts)
        self._processors = processors
        self._send_reader = SendReader()

    def methods(self) -> dict[str, Method]:
        return service_methods(
            SERVICE,
            self._identify,
            self._counters,
            self._limits,
            unary={
                "QueryRoute": self._processors.route.query_route,
                "QueryAssignment": self._processors.route.query_assignment,
                "Heartbeat": self._heartbeat,
                "NotifyClientTermination": self._terminate,
                "SendMessage": self._processors.send.answer,
                "RecallMessage": self._processors.recall.recall,
                "EndTransaction": self._processors.transaction.end,
                "AckMessage": self._processors.acknowledge.acknowledge,
                "ChangeInvisibleDuration": self._processors.acknowledge.change_invisible,
                "ForwardMessageToDeadLetterQueue": self._processors.acknowledge.forward,
                "QueryOffset": self._processors.pull.query_offset,
                "GetOffset": self._processors.pull.get_offset,
                "UpdateOffset": self._processors.pull.update_offset,
                "SyncLiteSubscription": self._processors.lite.sync,
            },
            streams={
                "ReceiveMessage": self._receive,
                "PullMessage": self._pull,
            },
            readers={"SendMessage": self._read_send},
            conversations={"Telemetry": self._telemetry},
        )

    def _read_send(self, data: bytes, parse: Parse) -> AnySendRequest:
        place = place_of_one(data)
        if place is None:
            return send_alike.read_many(data, self._send_reader, parse)
        return self._send_reader.read(data, (place,), parse)

    async def _heartbeat(self, request: v2.HeartbeatRequest, client: Client) -> v2.HeartbeatResponse:
        return self._processors.heartbeat.heartbeat(request, client)

    async def _terminate(
        self, request: v2.NotifyClientTerminationRequest, client: Client
    ) -> v2.NotifyClientTerminationResponse:
        return self._processors.heartbeat.terminate(request, client)

    async def _receive(
        self, request: v2.ReceiveMessageRequest, client: Client, context: Context
    ) -> AsyncGenerator[v2.ReceiveMessageResponse | list[bytes], None]:
        """Count the memory that messages take until they are sent."""
        memory = Share(self._answers, owners_of(client, context))
        try:
            remaining = context.time_remaining()
            responses = self._processors.receive.process(request, client, remaining, memory, context.if_lost)
            async with aclosing(responses):
                async for response in responses:
                    yield response
        finally:
            memory.close()

    async def _pull(
        self, request: v2.PullMessageRequest, client: Client, context: Context
    ) -> AsyncGenerator[v2.PullMessageResponse, None]:
        """Count the memory that the messages take until they are sent."""
        memory = Share(self._answers, owners_of(client, context))
        try:
            responses = self._processors.pull.pull(request, client, context.time_remaining(), memory)
            async with aclosing(responses):
                async for response in responses:
                    yield response
        finally:
            memory.close()

    async def _telemetry(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """One Telemetry stream: a task reads the client's commands, this one writes the broker's.

        The two must not wait for each other, because one official client stops reading permanently.
        """
        await context.send_initial_metadata()  # Rust's client waits for headers before it uses the stream
        try:
            client = self._identify(context)
        except BrokerError as error:
            await context.write(v2.TelemetryCommand(status=status_of(error, "Telemetry")).SerializeToString())
            return
        introduce(client, context)
        account = client.account
        stream = self._clients.open_stream(client)
        held = Share(self._limits.in_progress, owners_of(client, context))
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(
                self._read_telemetry(requests, client, account, stream, held), name="telemetry-reader"
            )
            try:
                while (command := await stream.next()) is not None:
                    await context.write(command)
                    del command  # megabytes, perhaps, which would stay while nothing is to be sent
            except ClientWentAwayError:
                return
            finally:
                reading.cancel()
                self._clients.close_stream(client, stream)
        if stream.failure is not None:
            raise CallAbortedError(StatusCode.INVALID_ARGUMENT, stream.failure)

    async def _read_telemetry(
        self,
        requests: AsyncIterator[bytes],
        client: Client,
        account: Account | None,
        stream: TelemetryStream,
        held: Share,
    ) -> None:
        try:
            async for data in requests:
                await held.take(_MEMORY_OF_COMMAND * len(data), MEMORY_WAIT_SECONDS)
                prepaid = _SECONDS_OF_COMMAND + _SECONDS_OF_BYTE * len(data)
                await self._loop_share.prepay(prepaid)
                started = step_started()
                command: Any = self._read_command(data)
                client = self._clients.seen(client.client_id)  # a new object, if the client was removed in the meantime
                if client.stream is None:
                    client.stream = stream
                client.account = account
                check_again(self._accounts, SERVICE, "Telemetry", command, client)
                if (reply := self._processors.telemetry.process(command, client)) is not None:
                    stream.write(reply)
                    self._clients.introduced(client)
                del data, command, reply  # they would stay until the next command, which may never come
                held.close()
                await self._loop_share.pause(started, prepaid=prepaid)
        except BrokerError as error:
            status = status_of(error, "Telemetry")
            if status.code == v2.Code.INVALID_CLIENT_PROPERTIES:
                stream.write(v2.TelemetryCommand(status=status))  # has no gRPC status of its own
            stream.failure = f"{v2.Code.Name(status.code)}: {status.message}"
        finally:
            held.close()
            stream.close()
