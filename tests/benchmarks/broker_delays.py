"""Millions of delayed messages: send rate, memory, lateness of those due meanwhile, and the time to start with all of
them.

Most wait for hours and days, evenly distributed. A few are due while the others are still being sent, and a few more
when all wait. Lateness is what a consumer sees: from the requested time to its receive.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from aerobee_client import Message, ReceivedMessage, connect
from aerobee_proto import v2
from tests.benchmarks import loop
from tests.benchmarks.processes import Server, broker_on
from tests.benchmarks.report import mebibytes, milliseconds, percentile, rate, table

BODY_SIZE = 100
_REQUEST = 200  # messages
_IN_FLIGHT = 4
_FAR, _NEAR = "far", "near"  # topics
_METADATA = (("x-mq-client-id", "bench@1@0@0"), ("x-mq-language", "PYTHON"))
_FAR_SECONDS = (3600.0, 20 * 86_400.0)  # ahead


def run(directory: Path, pending: int = 1_000_000, near: int = 1000, near_seconds: float = 8.0) -> None:
    """Print all figures of one store, in sync flush mode."""
    rows: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory(dir=directory) as store:
        with broker_on(Path(store), "sync") as running:
            before = running.memory()
            loop.run(_fill(running, pending, near, near_seconds, rows))
            rows.append(("memory that the broker has more than before", mebibytes(running.memory() - before)))
            rows.append(("resident memory of the broker", mebibytes(running.resident())))
            loop.run(_wait(running, near, near_seconds, rows))
        for how in ("an orderly stop", "kill -9"):
            started = time.perf_counter()
            with broker_on(Path(store), "sync") as running:
                seconds = time.perf_counter() - started
                count = running.metric("rocketmq_timing_messages")
                rows.append((f"start to ready with all of them, after {how}", f"{seconds:.2f} s"))
                assert count >= pending, f"{count} of {pending} wait"
                if how == "an orderly stop":
                    running.kill()
    table(
        f"{pending} delayed messages of {BODY_SIZE} bytes, sync flush, {_REQUEST} a request", ("what", "figure"), rows
    )


async def _fill(running: Server, pending: int, near: int, near_seconds: float, rows: list[tuple[object, ...]]) -> None:
    """Send all far messages, and near ones meanwhile."""
    async with (
        connect(running.endpoint, request_timeout_seconds=60) as client,
        grpc.aio.insecure_channel(running.endpoint) as channel,
    ):
        send: Any = v2.MessagingServiceStub(channel).SendMessage  # our client would be slower than the broker
        producer = client.producer()
        left = iter(range(0, pending, _REQUEST))
        sending = True
        lateness: list[float] = []
        due_count = 0

        async def send_far() -> None:
            request = _far_request()
            for first in left:
                count = min(_REQUEST, pending - first)
                del request.messages[count:]
                for number, message in enumerate(request.messages, start=first):
                    message.system_properties.message_id = f"0102FC0000000{number:021d}"
                    due = time.time() + random.uniform(*_FAR_SECONDS)
                    message.system_properties.delivery_timestamp.seconds = int(due)
                    message.system_properties.delivery_timestamp.nanos = int(due % 1 * 1000) * 1_000_000
                response = await send(request, metadata=_METADATA)
                assert response.status.code == v2.Code.OK, response.status

        async def send_near() -> None:
            nonlocal due_count
            while sending:
                await producer.send(_message(_NEAR, random.uniform(0.5, 2.0)))
                due_count += 1
                await asyncio.sleep(near_seconds / near)

        async def receive_near() -> None:
            consumer = client.simple_consumer("punctual", _NEAR)
            while sending or len(lateness) < due_count:
                received = await consumer.receive(32, invisible_seconds=600, wait_seconds=2)
                lateness.extend(_lateness(received))
                if received:
                    await consumer.ack(received)

        cpu, started = running.cpu_seconds(), time.perf_counter()
        others = [asyncio.create_task(send_near()), asyncio.create_task(receive_near())]
        await asyncio.gather(*(send_far() for _ in range(_IN_FLIGHT)))
        sent = time.perf_counter() - started
        rows.append(("sent", rate(pending, sent)))
        async with asyncio.timeout(300):
            await asyncio.to_thread(running.wait_for, "rocketmq_timer_enqueue_total", pending)
        enqueued = time.perf_counter() - started
        rows.append(("on the wheel", f"{rate(pending, enqueued)}, {enqueued - sent:.1f} s after the last was sent"))
        rows.append(
            ("processor time each, until on the wheel", f"{(running.cpu_seconds() - cpu) / pending * 1e6:.0f} us")
        )
        sending = False
        await asyncio.gather(*others)
        rows.append(_late_row("due while all this was going on", lateness))


async def _wait(running: Server, near: int, near_seconds: float, rows: list[tuple[object, ...]]) -> None:
    """Send only near messages while the far ones wait."""
    lateness: list[float] = []
    async with connect(running.endpoint, request_timeout_seconds=60) as client:
        producer, consumer = client.producer(), client.simple_consumer("punctual", _NEAR)
        messages = [_message(_NEAR, 1 + random.uniform(0.0, near_seconds)) for _ in range(near)]
        await producer.send_many(messages)
        async with asyncio.timeout(near_seconds + 60):
            while len(lateness) < near:
                received = await consumer.receive(32, invisible_seconds=600, wait_seconds=10)
                lateness.extend(_lateness(received))
                if received:
                    await consumer.ack(received)
    rows.append(_late_row(f"due while all wait, {near / near_seconds:.0f} a second", lateness))


def _far_request() -> v2.SendMessageRequest:
    message = v2.Message(topic=v2.Resource(name=_FAR), body=bytes(BODY_SIZE))
    message.system_properties.message_type = v2.MessageType.DELAY
    message.system_properties.body_encoding = v2.Encoding.IDENTITY
    message.system_properties.born_host = "127.0.0.1"
    message.system_properties.born_timestamp.GetCurrentTime()
    return v2.SendMessageRequest(messages=[message] * _REQUEST)


def _message(topic: str, seconds: float) -> Message:
    """A message that is due in `seconds`."""
    due_ms = time.time_ns() // 1_000_000 + round(seconds * 1000)
    return Message(topic=topic, body=bytes(BODY_SIZE), delivery_timestamp=due_ms)


def _lateness(received: Sequence[ReceivedMessage]) -> list[float]:
    """The lateness of each message in seconds; none may be early."""
    now = time.time()
    late = [now - (message.delivery_timestamp or 0) / 1000 for message in received]
    assert all(seconds > -0.001 for seconds in late), f"a message came early: {min(late)} s"
    return late


def _late_row(name: str, lateness: Sequence[float]) -> tuple[str, str]:
    figures = [percentile(lateness, 0.5), percentile(lateness, 0.99), max(lateness)]
    p50, p99, longest = map(milliseconds, figures)
    return f"lateness of {len(lateness)} {name}", f"p50 {p50}, p99 {p99}, longest {longest}; none early"
