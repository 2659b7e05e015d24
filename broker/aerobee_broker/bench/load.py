"""Generates load with the public client: producers and consumers that run as fast as they can."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from aerobee_broker.bench.histogram import Histogram
from aerobee_client import Client, ClientError, Message, SendResult
from aerobee_client.records import Appended

Api = Literal["v2", "records", "batch"]
Direction = Literal["send", "receive"]
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Load:
    """One benchmark: `batch` messages per request, `in_flight` concurrent requests, bodies of `size` bytes."""

    topic: str
    api: Api
    size: int
    batch: int
    in_flight: int
    seconds: float


@dataclass(slots=True)
class Measured:
    """The result of a benchmark. `latency` is the time of a request, from sending it to its answer or its messages."""

    messages: int = 0
    seconds: float = 0.0
    errors: int = 0
    first_error: str = ""
    latency: Histogram = field(default_factory=Histogram)
    fsyncs: int | None = None
    cpu_seconds: float | None = None
    memory_bytes: int | None = None

    def failed(self, count: int, error: BaseException) -> None:
        """Count messages, or a consumer's requests, that failed with `error`."""
        self.errors += count
        self.first_error = self.first_error or str(error)

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds if self.seconds else 0.0


async def run(
    client: Client, direction: Direction, load: Load, broker_pid: int | None, progress: Callable[[Measured], None]
) -> Measured:
    """Run `load` against a broker for its duration. `progress` is called every half second."""
    measured = Measured()
    work = {
        ("send", "v2"): _send,
        ("send", "records"): _append,
        ("send", "batch"): _append,
        ("receive", "v2"): _receive,
        ("receive", "records"): _read,
        ("receive", "batch"): _read,
    }[direction, load.api]
    blocks = _blocks(client, load) if direction == "send" and load.api != "v2" else []
    status = _Status(client, broker_pid)
    before = await status.look()
    began = time.perf_counter()

    async def report() -> None:
        while True:
            await asyncio.sleep(0.5)
            measured.seconds = time.perf_counter() - began
            progress(measured)

    reporting = asyncio.create_task(report())
    try:
        await work(client, load, measured, began + load.seconds, blocks)
    finally:
        reporting.cancel()
    measured.seconds = time.perf_counter() - began
    after = await status.look()
    if before[0] is not None and after[0] is not None:
        measured.fsyncs = after[0] - before[0]
    if before[1] is not None and after[1] is not None:
        measured.cpu_seconds = after[1] - before[1]
    measured.memory_bytes = after[2]
    return measured


async def prepare(client: Client, load: Load) -> None:
    """Create the topic. Only Aerobee brokers can do this; on others the topic must exist."""
    attributes = {"queue.type": "BatchCQ"} if load.api == "batch" else None
    await client.admin.create_topic(load.topic, queue_count=4, attributes=attributes)


async def fill(client: Client, load: Load, count: int) -> None:
    """Store messages for a later receive, in large requests."""
    if load.api != "v2":
        pack = client.records.pack_batch if load.api == "batch" else client.records.pack
        block = pack(load.topic, 0, [_message(load)] * 500)
        async with client.records.appender(load.topic, 0) as appender:
            for _ in range(-(-count // 500)):
                await appender.append(block)
        return
    producer = client.producer()
    for _ in range(-(-count // 5000)):
        await producer.send_many([_message(load)] * 5000)
    await producer.close()


def _message(load: Load) -> Message:
    return Message(topic=load.topic, body=bytes(range(256)) * (load.size // 256) + bytes(range(load.size % 256)))


async def _send(client: Client, load: Load, measured: Measured, end: float, blocks: list[bytes]) -> None:
    producer = client.producer(max_in_flight=load.in_flight, request_count_max=load.batch, use_records=False)
    message = _message(load)

    async def one_sender() -> None:
        while (began := time.perf_counter()) < end:
            sent = [await producer.submit(message) for _ in range(load.batch)]
            _count(measured, await asyncio.gather(*sent, return_exceptions=True), began)

    await asyncio.gather(*(one_sender() for _ in range(load.in_flight)))
    await producer.close()


def _blocks(client: Client, load: Load) -> list[bytes]:
    """One request's records for each queue, packed before the measurement because packing is the client's work."""
    pack = client.records.pack_batch if load.api == "batch" else client.records.pack
    return [pack(load.topic, queue_id, [_message(load)] * load.batch) for queue_id in range(4)]


async def _append(client: Client, load: Load, measured: Measured, end: float, blocks: list[bytes]) -> None:
    """Append the same records repeatedly."""
    gate = asyncio.Semaphore(load.in_flight)

    def answered(began: float) -> Callable[[asyncio.Future[Appended]], None]:
        def note(outcome: asyncio.Future[Appended]) -> None:
            gate.release()
            if (error := outcome.exception()) is not None:
                measured.failed(load.batch, error)
                return
            measured.messages += outcome.result().message_count
            measured.latency.add(time.perf_counter() - began)

        return note

    async def one_queue(queue_id: int) -> None:
        async with client.records.appender(load.topic, queue_id, in_flight_size_max=256 << 20) as appender:
            while time.perf_counter() < end:
                await gate.acquire()
                outcome = await appender.append(blocks[queue_id])
                outcome.add_done_callback(answered(time.perf_counter()))

    await asyncio.gather(*(one_queue(queue_id) for queue_id in range(min(4, load.in_flight))))


async def _receive(client: Client, load: Load, measured: Measured, end: float, blocks: list[bytes]) -> None:
    async def one_consumer() -> None:
        consumer = client.simple_consumer("aerobee-bench", load.topic)
        while (began := time.perf_counter()) < end:
            try:
                messages = await consumer.receive(32, wait_seconds=1)
                if not messages:
                    break  # all stored messages have been received
                await consumer.ack(messages)
            except ClientError as error:
                measured.failed(1, error)
                continue
            measured.messages += len(messages)
            measured.latency.add(time.perf_counter() - began)
        await consumer.close()

    await asyncio.gather(*(one_consumer() for _ in range(load.in_flight)))


async def _read(client: Client, load: Load, measured: Measured, end: float, blocks: list[bytes]) -> None:
    """Read queue 0 from its beginning, repeatedly. Frames are counted but not decoded."""
    while time.perf_counter() < end:
        began = time.perf_counter()
        async for frame in client.records.read(load.topic, 0, 0):
            now = time.perf_counter()
            measured.messages += frame.next_offset - frame.start_offset
            measured.latency.add(now - began)
            began = now
            if now >= end:
                break


def _count(measured: Measured, outcomes: list[SendResult | BaseException], began: float) -> None:
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            measured.failed(1, outcome)
        else:
            measured.messages += 1
    measured.latency.add(time.perf_counter() - began)


class _Status:
    """The broker's syncs, processor time in seconds and memory in bytes; None where unknown."""

    def __init__(self, client: Client, pid: int | None) -> None:
        self._client = client
        self._pid = pid

    async def look(self) -> tuple[int | None, float | None, int | None]:
        fsyncs = await _or_none(self._fsyncs())
        if self._pid is None:
            return fsyncs, None, None
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(") ")[2].split()
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        return fsyncs, (int(fields[11]) + int(fields[12])) / _TICKS, pages * _PAGE

    async def _fsyncs(self) -> int:
        return (await self._client.admin.store_status()).fsync_count


async def _or_none(work: Awaitable[int]) -> int | None:
    try:
        return await work
    except ClientError:
        return None
