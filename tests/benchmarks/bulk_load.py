"""The load of RecordService's benchmarks: prepared requests, and a client that parses nothing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import numpy as np

from aerobee_proto import records_v1, v2
from aerobee_store.records import inner_batch
from aerobee_store.records.record import Draft, Message

STREAM_APPEND = "/aerobee.v1.RecordService/StreamAppendRecords"
READ = "/aerobee.v1.RecordService/ReadRecords"
SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
FRAME_SIZE = 1 << 20
BODY_SIZE = 256
_METADATA = (("x-mq-client-id", "bench@1@0@0"), ("x-mq-language", "PYTHON"))
_OPTIONS = (("grpc.max_receive_message_length", 130 << 20), ("grpc.max_send_message_length", -1))
_HOST = ("0.0.0.0", 0)


def plain_requests(count: int, messages: int, topic: str = "bench") -> list[bytes]:
    """Requests with `messages` records of 256-byte bodies each, with id and tag as from SDKs."""
    found = []
    for number in range(count):
        body = os.urandom(BODY_SIZE)
        records = [
            Draft(
                Message(topic, 0, body, {"UNIQ_KEY": f"0102FC00{number:08X}AB00B130{each:08X}", "TAGS": "tag"}),
                store_host=_HOST,
                property_crc=True,
            ).encode_unplaced()
            for each in range(messages)
        ]
        found.append(_request(topic, records))
    return found


def batch_requests(count: int, messages: int, topic: str = "batches") -> list[bytes]:
    """Requests with one record each, which holds `messages` messages of 256 bytes."""
    found = []
    for _ in range(count):
        body = inner_batch.body_of([(os.urandom(BODY_SIZE), b"")] * messages)
        message = inner_batch.message_of(topic, 0, body, messages)
        found.append(_request(topic, [Draft(message, store_host=_HOST, property_crc=True).encode_unplaced()]))
    return found


def _request(topic: str, records: Sequence[bytes]) -> bytes:
    sizes = np.array([len(record) for record in records], "<u4").tobytes()
    request = records_v1.AppendRecordsRequest(
        topic=v2.Resource(name=topic), records=b"".join(records), record_sizes=sizes
    )
    return request.SerializeToString()


def send_requests(count: int, messages: int) -> list[bytes]:
    """SendMessage requests with `messages` messages each, with the fields that official SDKs set."""
    found = []
    for number in range(count):
        request = v2.SendMessageRequest()
        for each in range(messages):
            message = request.messages.add(topic=v2.Resource(name="bench"), body=os.urandom(BODY_SIZE))
            system = message.system_properties
            system.message_id = f"0102FC00{number:08X}AB00B130{each:08X}"
            system.tag = "tag"
            system.keys.append(f"key{each}")
            system.message_type = v2.MessageType.NORMAL
            system.body_encoding = v2.Encoding.IDENTITY
            system.born_host = "127.0.0.1"
            system.born_timestamp.GetCurrentTime()
        found.append(request.SerializeToString())
    return found


@dataclass(slots=True)
class Run:
    """The result of a load."""

    requests: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    bytes: int = 0


def channel(endpoint: str, authority: bytes = b"") -> grpc.aio.Channel:
    """A channel to the server; with TLS if the authority of its certificate is given."""
    if authority:
        return grpc.aio.secure_channel(endpoint, grpc.ssl_channel_credentials(authority), options=_OPTIONS)
    return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)


async def append(
    endpoint: str, requests: Sequence[bytes], in_flight: int, seconds: float, *, authority: bytes = b""
) -> Run:
    """Send the requests in turn on one stream, with `in_flight` unanswered at a time."""
    run = Run()
    async with channel(endpoint, authority) as connected:
        method: Any = connected.stream_stream
        call = method(STREAM_APPEND)(metadata=_METADATA)
        sent: asyncio.Queue[float] = asyncio.Queue(in_flight)
        started = time.perf_counter()

        async def write() -> None:
            number = 0
            while time.perf_counter() - started < seconds:
                await sent.put(time.perf_counter())
                await call.write(requests[number % len(requests)])
                number += 1
            await call.done_writing()

        writing = asyncio.create_task(write())
        while isinstance(answer := await call.read(), bytes):  # otherwise the end marker
            if not run.requests:
                status = records_v1.AppendRecordsResponse.FromString(answer).status
                assert status.code == v2.Code.OK, status
            run.requests += 1
            run.latencies.append(time.perf_counter() - sent.get_nowait())
        run.seconds = time.perf_counter() - started
        await writing
    return run


async def send(endpoint: str, requests: Sequence[bytes], in_flight: int, seconds: float) -> Run:
    """Send the requests in turn, `in_flight` at a time."""
    run = Run()
    async with channel(endpoint) as connected:
        method: Any = connected.unary_unary
        call = method(SEND)
        started = time.perf_counter()

        async def worker(first: int) -> None:
            number = first
            while (begun := time.perf_counter()) - started < seconds:
                answer = await call(requests[number % len(requests)], metadata=_METADATA)
                if not run.requests:
                    assert v2.SendMessageResponse.FromString(answer).status.code == v2.Code.OK
                run.requests += 1
                run.latencies.append(time.perf_counter() - begun)
                number += in_flight

        await asyncio.gather(*(worker(first) for first in range(in_flight)))
        run.seconds = time.perf_counter() - started
    return run


async def read(endpoint: str, size: int, topic: str = "bench", *, authority: bytes = b"") -> Run:
    """Read `size` bytes of records from the start of the topic's first queue."""
    run = Run()
    request = records_v1.ReadRecordsRequest(
        topic=v2.Resource(name=topic), bytes_max=size, frame_bytes_max=FRAME_SIZE
    ).SerializeToString()
    async with channel(endpoint, authority) as connected:
        started = time.perf_counter()
        method: Any = connected.unary_stream
        async for frame in method(READ)(request, metadata=_METADATA):
            run.requests += 1
            run.bytes += len(frame)
        run.seconds = time.perf_counter() - started
    return run
