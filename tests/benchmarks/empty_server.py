"""A grpc.aio server that only parses requests of producers and consumers and builds the broker's replies.

It is the baseline for the cost of gRPC and the client. Receives get a full batch at once, except from the topic
`relay`: there a receive waits for the next send and gets that message, the minimum that an idle broker could do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from zlib import crc32

import grpc
import grpc.aio
import uvloop

from aerobee_proto import v2

_OK = v2.Status(code=v2.Code.OK, message="OK")
RELAY = "relay"
_BODY = bytes(256)
_CHECKSUM = f"{crc32(_BODY):X}"


class EmptyService(v2.MessagingServiceServicer):
    """Stores nothing."""

    def __init__(self) -> None:
        self._relayed: asyncio.Queue[v2.Message] = asyncio.Queue()

    async def SendMessage(self, request: v2.SendMessageRequest, context: Any) -> v2.SendMessageResponse:
        response = v2.SendMessageResponse(status=_OK)
        for message in request.messages:
            message_id = message.system_properties.message_id
            response.entries.add(status=_OK, message_id=message_id, transaction_id=message_id, offset=1)
            if message.topic.name == RELAY:
                self._relayed.put_nowait(message)
        return response

    async def ReceiveMessage(self, request: v2.ReceiveMessageRequest, context: Any) -> None:  # type: ignore[override]  # writes
        topic = request.message_queue.topic
        if topic.name == RELAY:
            messages = [await self._relayed.get()]
        else:
            messages = [_message(topic, number) for number in range(request.batch_size)]
        await context.write(v2.ReceiveMessageResponse(status=_OK))
        for message in messages:
            await context.write(v2.ReceiveMessageResponse(message=message))
        now = v2.ReceiveMessageResponse()
        now.delivery_timestamp.GetCurrentTime()
        await context.write(now)

    async def AckMessage(self, request: v2.AckMessageRequest, context: Any) -> v2.AckMessageResponse:
        response = v2.AckMessageResponse(status=_OK)
        for entry in request.entries:
            response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=_OK)
        return response

    async def QueryRoute(self, request: v2.QueryRouteRequest, context: Any) -> v2.QueryRouteResponse:
        queue = v2.MessageQueue(
            topic=request.topic,
            permission=v2.Permission.READ_WRITE,
            broker=v2.Broker(name="empty", endpoints=request.endpoints),
            accept_message_types=[v2.MessageType.NORMAL],
        )
        return v2.QueryRouteResponse(status=_OK, message_queues=[queue])

    async def Heartbeat(self, request: v2.HeartbeatRequest, context: Any) -> v2.HeartbeatResponse:
        return v2.HeartbeatResponse(status=_OK)

    async def NotifyClientTermination(
        self, request: v2.NotifyClientTerminationRequest, context: Any
    ) -> v2.NotifyClientTerminationResponse:
        return v2.NotifyClientTerminationResponse(status=_OK)

    async def Telemetry(
        self, requests: AsyncIterator[v2.TelemetryCommand], context: Any
    ) -> AsyncIterator[v2.TelemetryCommand]:
        async for command in requests:
            settings = command.settings
            settings.backoff_policy.max_attempts = 3
            settings.backoff_policy.exponential_backoff.initial.FromMilliseconds(10)
            settings.backoff_policy.exponential_backoff.max.FromSeconds(1)
            settings.backoff_policy.exponential_backoff.multiplier = 2
            if command.settings.HasField("publishing"):
                settings.publishing.max_body_size = 4 << 20
            yield v2.TelemetryCommand(status=_OK, settings=settings)


def _message(topic: v2.Resource, number: int) -> v2.Message:
    message = v2.Message(topic=topic, body=_BODY)
    system = message.system_properties
    system.message_id = f"0102FC0000000{number:021d}"
    system.message_type = v2.MessageType.NORMAL
    system.body_digest.type = v2.DigestType.CRC32
    system.body_digest.checksum = _CHECKSUM
    system.body_encoding = v2.Encoding.IDENTITY
    system.receipt_handle = f"{number:064d}"
    system.born_host = system.store_host = "127.0.0.1:10911"
    system.delivery_attempt = 1
    system.born_timestamp.GetCurrentTime()
    system.store_timestamp.GetCurrentTime()
    return message


async def main() -> None:
    limits = ("grpc.server.max_pending_requests", "grpc.server.max_pending_requests_hard_limit")
    server = grpc.aio.server(options=[(name, 100_000) for name in limits])  # the same limits as the broker
    v2.add_MessagingServiceServicer_to_server(EmptyService(), server)  # type: ignore[abstract]  # what clients need
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"ready grpc=127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
