"""Messages of an answer that its client did not receive are available to others at once, whatever their invisible
time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hpack import Encoder

from aerobee_broker.config import Address, ListenConfig
from aerobee_broker.front import frames
from aerobee_broker.front.frames import ErrorCode, Setting
from aerobee_broker.front.grpc_wire import message_prefix
from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.frame import FLAG_ONE_WAY, Command, encode
from aerobee_proto import admin_v1, v2
from tests.support.front_under_test import FRONT
from tests.support.http2_client import HEADERS, data, parse, request
from tests.support.in_process_broker import METADATA, InProcessBroker, in_process_broker, message
from tests.support.remoting_client import RemotingClient, records, remoting_broker, send

GROUP = "billing"
TOPIC = "orders"
FIRST_STREAM = 1
_LOOPBACK = Address("127.0.0.1", 0)


@asynccontextmanager
async def broker_of(front: Any, directory: Path, *, count: int = 1, **group: Any) -> AsyncIterator[InProcessBroker]:
    """A broker with this front, and `count` messages for the group."""
    if FRONT not in (None, front):
        pytest.skip("make test-front chooses the front")
    listen = ListenConfig(grpc=_LOOPBACK, metrics=_LOOPBACK, front=front, drain_seconds=0.5)
    async with in_process_broker(directory, listen=listen) as broker:
        await send_all(broker, count, **group)
        yield broker


async def send_all(broker: InProcessBroker, count: int, **system: Any) -> None:
    for number in range(count):
        sent = v2.SendMessageRequest(messages=[message(TOPIC, b"%d" % number, f"{number}", **system)])
        assert (await broker.messaging.SendMessage(sent, metadata=METADATA)).status.code == v2.Code.OK


def receive_request() -> v2.ReceiveMessageRequest:
    wanted = v2.ReceiveMessageRequest(batch_size=32)
    wanted.group.name = GROUP
    wanted.message_queue.topic.name = TOPIC
    wanted.filter_expression.expression = "*"
    wanted.invisible_duration.seconds = 3600
    wanted.long_polling_timeout.seconds = 15
    return wanted


async def received(broker: InProcessBroker) -> list[tuple[str, int]]:
    """Body and attempt of the messages that another client receives; it waits for them."""
    answers = broker.messaging.ReceiveMessage(receive_request(), metadata=METADATA, timeout=60)
    return [
        (each.message.body.decode(), each.message.system_properties.delivery_attempt)
        async for each in answers
        if each.HasField("message")
    ]


class WireClient:
    """A gRPC client that sends frames as told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._received = b""

    @classmethod
    async def receiving(
        cls, broker: InProcessBroker, *, window: int = frames.WINDOW_DEFAULT, deadline: str = "60S"
    ) -> WireClient:
        """A client that has sent ReceiveMessage and reads `window` bytes of the answer."""
        host, _, port = broker.endpoint.rpartition(":")
        client = cls(*await asyncio.open_connection(host, int(port)))
        body = receive_request().SerializeToString()
        path = b"/apache.rocketmq.v2.MessagingService/ReceiveMessage"
        headers = tuple((name, path if name == b":path" else value) for name, value in HEADERS)
        others = tuple((name.encode(), str(value).encode()) for name, value in METADATA)
        client.write(
            frames.PREFACE
            + frames.settings({Setting.INITIAL_WINDOW_SIZE: window})
            + request(
                FIRST_STREAM, headers=(*headers, (b"grpc-timeout", deadline.encode()), *others), encoder=Encoder()
            )
            + data(FIRST_STREAM, message_prefix(len(body)) + body, ended=True)
        )
        return client

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def reset(self, code: ErrorCode) -> None:
        self.write(frames.rst_stream(FIRST_STREAM, code))

    async def read_answer(self, *, whole: bool) -> list[bytes]:
        """Read until the answer has begun, or to its end. Returns the payloads of its data."""
        async with asyncio.timeout(60):
            while True:
                self._received += await self._reader.read(1 << 16)
                found = [each for each in parse(self._received) if each.stream_id == FIRST_STREAM]
                is_ended = any(each.flags & frames.END_STREAM for each in found if each.kind != frames.RST_STREAM)
                if is_ended or (not whole and found):
                    return [each.payload for each in found if each.kind == frames.DATA]

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@pytest.mark.parametrize("front", ["native", "grpcio"])
@pytest.mark.parametrize("end", ["reset", "closed connection", "deadline"])
async def test_an_answer_that_is_not_read(tmp_path: Path, front: str, end: str) -> None:
    """The client's window admits the status only, so the messages wait in the broker."""
    async with broker_of(front, tmp_path, count=3) as broker:
        client = await WireClient.receiving(broker, window=20, deadline="3S" if end == "deadline" else "60S")
        await client.read_answer(whole=False)
        if end == "reset":
            client.reset(ErrorCode.CANCEL)
        elif end == "closed connection":
            await client.close()
        assert sorted(await received(broker)) == [("0", 2), ("1", 2), ("2", 2)]
        await client.close()


async def test_a_reset_of_a_stream_just_answered(tmp_path: Path) -> None:
    """Its deadline passed while the answer was on its way. What has been acknowledged stays so."""
    async with broker_of("native", tmp_path, count=2) as broker:
        client = await WireClient.receiving(broker)
        payloads = b"".join(await client.read_answer(whole=True))
        first, _ = (each.message for each in _messages(payloads))
        entry = v2.AckMessageEntry(receipt_handle=first.system_properties.receipt_handle)
        acknowledged = v2.AckMessageRequest(entries=[entry])
        acknowledged.group.name, acknowledged.topic.name = GROUP, TOPIC
        assert (await broker.messaging.AckMessage(acknowledged, metadata=METADATA)).status.code == v2.Code.OK
        client.reset(ErrorCode.CANCEL)
        [(body, attempt)] = await received(broker)
        assert body != first.body.decode()
        assert attempt == 2
        await client.close()


async def test_a_reset_of_an_ordered_receive(tmp_path: Path) -> None:
    """The messages arrive again in order, as the same attempt."""
    async with broker_of("native", tmp_path, count=0) as broker:
        topic = admin_v1.Topic(
            name=TOPIC, read_queue_count=1, write_queue_count=1, accept_message_types=[v2.MessageType.FIFO]
        )
        await broker.administration.CreateTopic(admin_v1.CreateTopicRequest(topic=topic), metadata=METADATA)
        group = admin_v1.Group(name=GROUP, fifo=True)
        await broker.administration.CreateGroup(admin_v1.CreateGroupRequest(group=group), metadata=METADATA)
        await send_all(broker, 3, message_type=v2.MessageType.FIFO, message_group="one")
        client = await WireClient.receiving(broker)
        await client.read_answer(whole=True)
        client.reset(ErrorCode.CANCEL)
        assert await received(broker) == [("0", 1), ("1", 1), ("2", 1)]
        await client.close()


@pytest.mark.parametrize("end", ["nothing", "NO_ERROR", "closed connection"])
async def test_an_answer_that_was_read(tmp_path: Path, end: str) -> None:
    """Its messages stay with the client. Some clients send NO_ERROR when they have read an answer."""
    async with broker_of("native", tmp_path) as broker:
        client = await WireClient.receiving(broker)
        await client.read_answer(whole=True)
        if end == "NO_ERROR":
            client.reset(ErrorCode.NO_ERROR)
        elif end == "closed connection":
            await client.close()
        await send_all(broker, 1)
        assert await received(broker) == [("0", 1)], "only the new message"
        await client.close()


# --- POP ----------------------------------------------------------------------------------------------------


def pop_fields(**others: Any) -> dict[str, str]:
    fields = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 3_600_000,
        "pollTime": 20_000,
        "bornTime": time.time_ns() // 1_000_000,
        "initMode": 0,
        "exp": "*",
        "expType": "TAG",
        "order": "false",
        **others,
    }
    return {name: str(value) for name, value in fields.items()}


async def popped(client: RemotingClient) -> list[tuple[bytes, int]]:
    """First bytes and attempt of the messages that a POP of another client returns; it waits for them."""
    answered = await client.call(Request.POP_MESSAGE, pop_fields())
    return [(found.body[:5], found.reconsume_times + 1) for found in records(answered.body)]


async def test_a_pop_whose_connection_is_closed_while_it_waits(tmp_path: Path) -> None:
    """The message that it would have got goes to another client."""
    async with remoting_broker(tmp_path) as (broker, client):
        await send(client, TOPIC, b"first")
        assert await popped(client) == [(b"first", 1)]
        gone = await RemotingClient.connect(broker.remoting)
        waiting = gone.begin(Request.POP_MESSAGE, pop_fields())
        await broker.waiting(1)
        await gone.close()
        await asyncio.gather(waiting, return_exceptions=True)
        await send(client, TOPIC, b"next")
        assert await popped(client) == [(b"next", 1)]


async def test_a_pop_that_wants_no_answer(tmp_path: Path) -> None:
    """It is an error of the client."""
    async with remoting_broker(tmp_path) as (_, client):
        await send(client, TOPIC, b"zero")
        assert await popped(client) == [(b"zero", 1)]
        await send(client, TOPIC, b"first")
        client.write(encode(Command(Request.POP_MESSAGE, opaque=1, flag=FLAG_ONE_WAY, fields=pop_fields())))
        assert await popped(client) == [(b"first", 2)]


def _messages(payload: bytes) -> list[v2.ReceiveMessageResponse]:
    """Those of an answer."""
    found = []
    while payload:
        end = 5 + int.from_bytes(payload[1:5], "big")
        found.append(v2.ReceiveMessageResponse.FromString(payload[5:end]))
        payload = payload[end:]
    return [each for each in found if each.HasField("message")]
