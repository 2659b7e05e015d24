"""RocketMQ's protocol without a client library: the stubs, and the fields that nearly every request has."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc

from aerobee_proto import admin_v1, v2

Metadata = tuple[tuple[str, str], ...]
CALL_SECONDS = 20.0  # the default deadline of calls; a test machine may be very busy
BUSY_MACHINE_FACTOR = 20.0  # tests accept this multiple of a time in the checklist
_numbers = itertools.count(1)


def resource(name: str, namespace: str = "") -> v2.Resource:
    return v2.Resource(name=name, resource_namespace=namespace)


def duration(seconds: float) -> v2.Duration:
    made = v2.Duration()
    made.FromMilliseconds(round(seconds * 1000))
    return made


def timestamp(milliseconds: int) -> v2.Timestamp:
    made = v2.Timestamp()
    made.FromMilliseconds(milliseconds)
    return made


def message(
    topic: str,
    body: bytes | str = b"hello",
    *,
    message_type: v2.MessageType.ValueType = v2.MessageType.NORMAL,
    properties: dict[str, str] | None = None,
    message_id: str | None = None,
    namespace: str = "",
    **system: Any,
) -> v2.Message:
    """A message as a producer sends it, with its own id; `system` are fields of SystemProperties."""
    return v2.Message(
        topic=resource(topic, namespace),
        body=body.encode() if isinstance(body, str) else body,
        user_properties=properties or {},
        system_properties=v2.SystemProperties(
            message_id=f"01{next(_numbers):032X}" if message_id is None else message_id,
            message_type=message_type,
            **system,
        ),
    )


def ordered(topic: str, body: str, message_group: str = "g") -> v2.Message:
    """A FIFO message."""
    return message(topic, body, message_type=v2.MessageType.FIFO, message_group=message_group)


@dataclass(frozen=True, slots=True)
class Received:
    """The responses of one ReceiveMessage, in the order of arrival."""

    responses: Sequence[v2.ReceiveMessageResponse]
    messages: Sequence[v2.Message] = field(default_factory=list)

    @property
    def kinds(self) -> list[str | None]:
        return [response.WhichOneof("content") for response in self.responses]

    @property
    def code(self) -> int:
        assert self.responses, "a stream without any response"
        assert self.kinds[0] == "status", self.kinds
        return self.responses[0].status.code

    @property
    def bodies(self) -> list[str]:
        return [each.body.decode() for each in self.messages]

    @property
    def attempts(self) -> dict[str, int]:
        return {each.body.decode(): each.system_properties.delivery_attempt for each in self.messages}

    @property
    def one(self) -> v2.Message:
        assert len(self.messages) == 1, f"{len(self.messages)} messages, status {self.responses[0].status}"
        return self.messages[0]


class RawClient:
    """One client id on a channel. Methods return whole responses without checking them."""

    def __init__(self, channel: grpc.aio.Channel, client_id: str | None = None, language: str = "JAVA") -> None:
        self.channel = channel
        self.client_id = client_id or f"conformance@{os.getpid()}@{next(_numbers)}@abc"
        self.metadata: Metadata = (
            ("x-mq-client-id", self.client_id),
            ("x-mq-language", language),
            ("x-mq-client-version", "5.2.1"),
        )
        self.stub: Any = v2.MessagingServiceStub(channel)  # the stub's asyncio type exists only in stub files
        self.admin: Any = admin_v1.AdminServiceStub(channel)

    def other(self, language: str = "JAVA") -> RawClient:
        """Another client on the same channel."""
        return RawClient(self.channel, language=language)

    async def call(self, method: str, request: Any) -> Any:
        """A unary call with this client's headers."""
        return await getattr(self.stub, method)(request, metadata=self.metadata, timeout=CALL_SECONDS)

    # --- Administration ---------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *types: v2.MessageType.ValueType,
        queues: int = 1,
        permission: v2.Permission.ValueType = v2.Permission.READ_WRITE,
    ) -> str:
        """Create a topic; by default with one queue and of type NORMAL."""
        wanted = admin_v1.Topic(name=name, read_queue_count=queues, permission=permission, accept_message_types=types)
        created = await self.admin.CreateTopic(admin_v1.CreateTopicRequest(topic=wanted), timeout=CALL_SECONDS)
        assert created.status.code == v2.Code.OK, created.status
        return name

    async def create_group(self, name: str, **fields: Any) -> str:
        """Create a group with these fields of admin_v1.Group."""
        wanted = admin_v1.Group(name=name, **fields)
        created = await self.admin.CreateGroup(admin_v1.CreateGroupRequest(group=wanted), timeout=CALL_SECONDS)
        assert created.status.code == v2.Code.OK, created.status
        return name

    # --- Sending ----------------------------------------------------------------------------------------------

    async def send(self, *messages: v2.Message) -> v2.SendMessageResponse:
        response: v2.SendMessageResponse = await self.call("SendMessage", v2.SendMessageRequest(messages=messages))
        return response

    async def sent(self, *messages: v2.Message) -> list[v2.SendResultEntry]:
        """The results of sending each message in its own call; AssertionError unless all are OK."""
        entries: list[v2.SendResultEntry] = []
        for each in messages:
            response = await self.send(each)
            assert response.status.code == v2.Code.OK, response.status
            entries += response.entries
        return entries

    async def end_transaction(
        self,
        topic: str,
        entry: v2.SendResultEntry,
        resolution: v2.TransactionResolution.ValueType,
        *,
        source: v2.TransactionSource.ValueType = v2.TransactionSource.SOURCE_CLIENT,
    ) -> int:
        """The code of the answer."""
        request = v2.EndTransactionRequest(
            topic=resource(topic),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=resolution,
            source=source,
        )
        return int((await self.call("EndTransaction", request)).status.code)

    async def recall(self, topic: str, handle: str) -> v2.RecallMessageResponse:
        request = v2.RecallMessageRequest(topic=resource(topic), recall_handle=handle)
        response: v2.RecallMessageResponse = await self.call("RecallMessage", request)
        return response

    # --- Receiving --------------------------------------------------------------------------------------------

    def receiving(
        self,
        topic: str,
        group: str,
        *,
        count: int = 32,
        invisible: float | None = 60.0,
        auto_renew: bool = False,
        wait: float | None = 0.0,
        expression: str = "*",
        filter_type: v2.FilterType.ValueType = v2.FilterType.TAG,
        queue_id: int = 0,
        attempt_id: str | None = None,
        timeout: float = CALL_SECONDS,
    ) -> Any:
        """The call itself. `invisible` and `wait` None leave their fields unset; all durations in seconds."""
        request = v2.ReceiveMessageRequest(
            group=resource(group),
            message_queue=v2.MessageQueue(topic=resource(topic), id=queue_id),
            filter_expression=v2.FilterExpression(type=filter_type, expression=expression),
            batch_size=count,
            auto_renew=auto_renew,
            attempt_id=attempt_id,
        )
        if invisible is not None and not auto_renew:
            request.invisible_duration.CopyFrom(duration(invisible))
        if wait is not None:
            request.long_polling_timeout.CopyFrom(duration(wait))
        return self.stub.ReceiveMessage(request, metadata=self.metadata, timeout=timeout)

    async def receive(self, topic: str, group: str, **options: Any) -> Received:
        """All responses of one ReceiveMessage; `options` are those of `receiving`."""
        responses = [response async for response in self.receiving(topic, group, **options)]
        return Received(responses, [each.message for each in responses if each.HasField("message")])

    async def receive_all(self, topic: str, group: str, total: int, **options: Any) -> list[v2.Message]:
        """Receive until there are `total` messages, or no more arrive."""
        options = {"wait": 5.0, **options}
        messages: list[v2.Message] = []
        while len(messages) < total:
            received = await self.receive(topic, group, **options)
            if not received.messages:
                break
            messages += received.messages
        return messages

    async def acknowledge(self, topic: str, group: str, *handles: v2.Message | str) -> v2.AckMessageResponse:
        """Acknowledge messages, or handles with invented message ids."""
        request = v2.AckMessageRequest(group=resource(group), topic=resource(topic))
        for number, each in enumerate(handles):
            if isinstance(each, str):
                request.entries.add(message_id=f"m{number}", receipt_handle=each)
            else:
                system = each.system_properties
                request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        response: v2.AckMessageResponse = await self.call("AckMessage", request)
        return response

    async def change(
        self, topic: str, group: str, handle: str, seconds: float, **fields: Any
    ) -> v2.ChangeInvisibleDurationResponse:
        request = v2.ChangeInvisibleDurationRequest(
            group=resource(group),
            topic=resource(topic),
            receipt_handle=handle,
            invisible_duration=duration(seconds),
            **fields,
        )
        response: v2.ChangeInvisibleDurationResponse = await self.call("ChangeInvisibleDuration", request)
        return response

    async def forward(self, topic: str, group: str, handle: str, message_id: str = "m") -> int:
        """ForwardMessageToDeadLetterQueue; returns the code of the answer."""
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            group=resource(group),
            topic=resource(topic),
            receipt_handle=handle,
            message_id=message_id,
            delivery_attempt=1,
            max_delivery_attempts=17,
        )
        return int((await self.call("ForwardMessageToDeadLetterQueue", request)).status.code)

    # --- Clients ----------------------------------------------------------------------------------------------

    async def route(self, topic: str, *addresses: tuple[str, int], namespace: str = "") -> v2.QueryRouteResponse:
        endpoints = v2.Endpoints(addresses=[v2.Address(host=host, port=port) for host, port in addresses])
        request = v2.QueryRouteRequest(topic=resource(topic, namespace), endpoints=endpoints)
        response: v2.QueryRouteResponse = await self.call("QueryRoute", request)
        return response

    async def assignment(self, topic: str, group: str, *addresses: tuple[str, int]) -> v2.QueryAssignmentResponse:
        endpoints = v2.Endpoints(addresses=[v2.Address(host=host, port=port) for host, port in addresses])
        request = v2.QueryAssignmentRequest(topic=resource(topic), group=resource(group), endpoints=endpoints)
        response: v2.QueryAssignmentResponse = await self.call("QueryAssignment", request)
        return response

    async def heartbeat(
        self, group: str | None = None, kind: v2.ClientType.ValueType = v2.ClientType.PUSH_CONSUMER
    ) -> int:
        request = v2.HeartbeatRequest(client_type=kind)
        if group is not None:
            request.group.CopyFrom(resource(group))
        return int((await self.call("Heartbeat", request)).status.code)

    async def goodbye(self, group: str | None = None) -> int:
        """NotifyClientTermination; returns the code of the answer."""
        request = v2.NotifyClientTerminationRequest()
        if group is not None:
            request.group.CopyFrom(resource(group))
        return int((await self.call("NotifyClientTermination", request)).status.code)

    def telemetry(self) -> Telemetry:
        """`async with client.telemetry() as stream`: one Telemetry call, cancelled at the end if it is still open."""
        return Telemetry(self.stub.Telemetry(metadata=self.metadata, timeout=60))


class Telemetry:
    """One Telemetry call."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._reading: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call.cancel()
        if self._reading is not None:
            await asyncio.wait({self._reading})
            self._reading.cancelled() or self._reading.exception()  # its result is not needed

    async def write(self, **settings: Any) -> None:
        """Send settings with these fields."""
        await self.call.write(v2.TelemetryCommand(settings=v2.Settings(**settings)))

    async def read(self, seconds: float = CALL_SECONDS) -> Any:
        """The next command, or `grpc.aio.EOF`. After a TimeoutError the stream can still be read."""
        if self._reading is None:  # cancelling a read would cancel the call
            self._reading = asyncio.ensure_future(self.call.read())
        done, _ = await asyncio.wait({self._reading}, timeout=seconds)
        if not done:
            raise TimeoutError
        reading, self._reading = self._reading, None
        return reading.result()

    async def told(self, **settings: Any) -> v2.Settings:
        """The settings in the answer to these; AssertionError unless the status is OK."""
        await self.write(**settings)
        answer = await self.read()
        assert answer.status.code == v2.Code.OK, answer
        answered: v2.Settings = answer.settings
        return answered

    async def failure(self, **settings: Any) -> tuple[list[int], grpc.StatusCode]:
        """For settings that end the stream: the codes in the stream, and gRPC's status."""
        await self.write(**settings)
        codes: list[int] = []
        try:
            async with asyncio.timeout(CALL_SECONDS):
                async for answer in self.call:
                    codes.append(answer.status.code)
        except grpc.aio.AioRpcError as error:
            name = (error.details() or "").partition(":")[0]
            assert name in v2.Code.keys(), "the text names the protocol's code"  # noqa: SIM118 - an enum is no mapping
            return codes, error.code()
        return codes, grpc.StatusCode.OK


def producer_settings(*topics: str, **fields: Any) -> dict[str, Any]:
    """Fields of Settings as a producer sends them."""
    return {
        "client_type": v2.ClientType.PRODUCER,
        "publishing": v2.Publishing(topics=[resource(topic) for topic in topics]),
        **fields,
    }


def consumer_settings(
    group: str, *topics: str, kind: v2.ClientType.ValueType = v2.ClientType.PUSH_CONSUMER, **fields: Any
) -> dict[str, Any]:
    """Fields of Settings as a consumer sends them."""
    subscription = v2.Subscription(group=resource(group))
    for topic in topics:
        subscription.subscriptions.add(
            topic=resource(topic), expression=v2.FilterExpression(type=v2.FilterType.TAG, expression="*")
        )
    return {"client_type": kind, "subscription": subscription, **fields}


@asynccontextmanager
async def connected(endpoint: str, language: str = "JAVA") -> AsyncIterator[RawClient]:
    """A client on its own channel."""
    async with grpc.aio.insecure_channel(endpoint) as channel:
        yield RawClient(channel, language=language)
