"""One hostile and one well-behaved client: the broker's memory and the latter's answer times are bounded.

AEROBEE_HOSTILE_ROUNDS (default 1) is the number of repetitions per attack; `make test-hostile` runs more.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from aerobee_broker.services.requests import entries_max_of
from aerobee_client import Message, connect
from aerobee_client.testing import BrokerProcess, run_broker
from aerobee_proto import admin_v1, records_v1, v2
from aerobee_proto.pool import POOL
from tests.support.full_requests import at_the_limit, plausible, repeated_fields
from tests.support.hostile_clients import cpu_seconds, metric, resident, works

pytestmark = pytest.mark.timeout(3600)

ROUNDS = int(os.environ.get("AEROBEE_HOSTILE_ROUNDS", "1"))
MESSAGING = "/apache.rocketmq.v2.MessagingService"
METADATA = (("x-mq-client-id", "hostile@1@0@abc"), ("x-mq-language", "JAVA"))
Code = v2.Code
assert admin_v1.AdminServiceStub is not None  # importing the stubs adds their services to the descriptor pool
assert records_v1.RecordServiceStub is not None


def own_channel(broker: BrokerProcess) -> Any:
    """A channel with its own connection."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    return grpc.aio.insecure_channel(broker.endpoint, options=options)


class Memory:
    """The broker's peak memory since a moment, and its memory at that moment. Bytes."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.before = self.most = resident(broker)

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, resident(self._broker))
            await asyncio.sleep(0.01)

    @property
    def growth(self) -> int:
        return self.most - self.before


@asynccontextmanager
async def watched(broker: BrokerProcess) -> AsyncIterator[Memory]:
    memory = Memory(broker)
    watching = asyncio.create_task(memory.watch())
    try:
        yield memory
    finally:
        memory.most = max(memory.most, resident(broker))
        watching.cancel()


async def test_unauthenticated_requests_are_not_read(tmp_path: Path) -> None:
    """Connections without credentials send as much as they can: the answer comes before their bytes are read."""
    accounts = tmp_path / "accounts.toml"
    accounts.write_text('[accounts.shop]\nsecret_key = "of the shop"\n')
    request = v2.SendMessageRequest(messages=[v2.Message(body=bytes(15 << 20))]).SerializeToString()

    async def sender(broker: BrokerProcess) -> int:
        async with own_channel(broker) as channel:
            call = channel.unary_unary(
                f"{MESSAGING}/SendMessage", response_deserializer=v2.SendMessageResponse.FromString
            )
            return int((await call(request, metadata=METADATA, timeout=60)).status.code)

    async def conversation(broker: BrokerProcess, path: str, answer_type: Any) -> int:
        async with own_channel(broker) as channel:
            call = channel.stream_stream(path, response_deserializer=answer_type.FromString)
            answers = call(iter([request]), metadata=METADATA, timeout=60)
            return int((await anext(aiter(answers))).status.code)

    telemetry = f"{MESSAGING}/Telemetry", v2.TelemetryCommand
    append = "/aerobee.v1.RecordService/StreamAppendRecords", records_v1.AppendRecordsResponse
    with run_broker(tmp_path, ("--dev", "--accounts", str(accounts))) as broker:
        async with watched(broker) as memory:
            codes = await asyncio.gather(
                *(sender(broker) for _ in range(12 * ROUNDS)),
                *(conversation(broker, *called) for called in (telemetry, append) for _ in range(4 * ROUNDS)),
            )
    assert set(codes) == {Code.UNAUTHORIZED}
    assert memory.growth < 40 << 20, f"{memory.growth >> 20} MiB"


MANY = [
    pytest.param("AckMessage", v2.AckMessageRequest(), b"\x1a\x00" * 500_000, id="acknowledgements"),
    pytest.param("SendMessage", v2.SendMessageRequest(), b"\x0a\x00" * 500_000, id="messages"),
    pytest.param(
        "QueryRoute",
        v2.QueryRouteRequest(topic=v2.Resource(name="returns")),
        b"\x12\x02\x12\x00" * 250_000,
        id="addresses",
    ),
]


@pytest.mark.parametrize(("method", "request_", "entries"), MANY)
async def test_a_small_request_with_many_entries_is_refused_cheaply(
    broker: BrokerProcess, method: str, request_: Any, entries: bytes
) -> None:
    """A megabyte of entries is refused without spending time and memory on each."""
    before = cpu_seconds(broker)
    async with watched(broker) as memory, own_channel(broker) as channel:
        call = channel.unary_unary(f"{MESSAGING}/{method}", response_deserializer=v2.AckMessageResponse.FromString)
        for _ in range(3 * ROUNDS):
            answer = await call(request_.SerializeToString() + entries, metadata=METADATA, timeout=30)
            assert answer.status.code == Code.PAYLOAD_TOO_LARGE, answer
    assert cpu_seconds(broker) - before < 1.0 * ROUNDS  # for all three; unbounded, each cost a second or more
    assert memory.growth < 100 << 20, f"{memory.growth >> 20} MiB"
    await works(broker)


async def test_unread_answers_use_bounded_memory(tmp_path: Path) -> None:
    """Clients receive the largest messages for many groups and read nothing: one answer holds a few megabytes.

    Other clients receive meanwhile.
    """
    groups = 12 * ROUNDS
    with run_broker(tmp_path) as broker:
        async with connect(broker.endpoint) as client, AsyncExitStack() as channels:
            for group in [f"unread{number}" for number in range(groups)]:
                await client.admin.create_group(group)
            producer = client.producer()
            for _ in range(40):
                await producer.send(Message(topic="large", body=os.urandom(4 << 20)))
            async with watched(broker) as memory:
                for number in range(groups):
                    channel = await channels.enter_async_context(own_channel(broker))
                    request = v2.ReceiveMessageRequest(
                        group=v2.Resource(name=f"unread{number}"),
                        message_queue=v2.MessageQueue(topic=v2.Resource(name="large")),
                        filter_expression=v2.FilterExpression(expression="*"),
                        batch_size=32,
                        invisible_duration=v2.Duration(seconds=600),
                    )
                    call = channel.unary_stream(f"{MESSAGING}/ReceiveMessage")
                    channels.callback(call(request.SerializeToString(), metadata=METADATA).cancel)
                    await asyncio.sleep(0.1)
                await asyncio.sleep(0.5)
            assert memory.growth < (120 + 20 * groups) << 20, f"{memory.growth >> 20} MiB"
            await works(broker)


SERVICES = (
    "apache.rocketmq.v2.MessagingService",
    "apache.rocketmq.v2.Admin",
    "aerobee.v1.AdminService",
    "aerobee.v1.RecordService",
)
BUSY_SECONDS_MAX = 0.5  # CPU time of the broker in one event-loop step, independent of machine load
P99_SECONDS_MAX = 0.5  # of the well-behaved client's sends; checked in the long form, on an idle machine


def attacks() -> Iterator[tuple[str, Any, bytes]]:
    """Every method, once plain and once with each of its repeated fields at its limit."""
    for service in SERVICES:
        for method in POOL.FindServiceByName(service).methods:
            yield service, method, plausible(method.input_type).SerializeToString()
            for path in repeated_fields(method.input_type):
                request = at_the_limit(method.input_type, path, entries_max_of(path[-1]))
                yield service, method, request.SerializeToString()


async def test_every_call_at_its_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four connections repeat each call at its limits while a well-behaved client sends.

    Its sends are answered, the broker's memory stays bounded, and no step blocks the event loop for long. CPU time is
    measured, because other processes may use the machine.
    """
    waits: list[float] = []
    over = asyncio.Event()

    async def well_behaved(broker: BrokerProcess) -> None:
        async with connect(broker.endpoint) as client:
            producer = client.producer()
            while not over.is_set():
                started = time.monotonic()
                await producer.send(Message(topic="steady", body=b"x" * 256))
                waits.append(time.monotonic() - started)
                await asyncio.sleep(0.005)

    async def hostile(broker: BrokerProcess, number: int) -> None:
        metadata = (("x-mq-client-id", f"hostile-{number}"), ("x-mq-language", "JAVA"))
        async with own_channel(broker) as channel:
            for service, method, request in attacks():
                path = f"/{service}/{method.name}"
                for _ in range(2 * ROUNDS):
                    if method.client_streaming:
                        conversation = channel.stream_stream(path)(iter([request] * 8), metadata=metadata, timeout=3)
                        with suppress(grpc.aio.AioRpcError):  # its deadline, or an error in the request
                            async for _ in conversation:
                                pass
                    elif method.server_streaming:
                        stream = channel.unary_stream(path)(request, metadata=metadata, timeout=3)
                        with suppress(grpc.aio.AioRpcError):  # its deadline
                            async for _ in stream:
                                pass
                    else:
                        assert await channel.unary_unary(path)(request, metadata=metadata, timeout=30)

    with run_broker(tmp_path) as broker:
        await works(broker)
        async with watched(broker) as memory, asyncio.TaskGroup() as tasks:
            steady = tasks.create_task(well_behaved(broker))
            async with asyncio.TaskGroup() as attackers:
                for number in range(4):
                    attackers.create_task(hostile(broker, number))
            over.set()
            await steady
        await works(broker)
        busy = await asyncio.to_thread(metric, broker, "aerobee_event_loop_busy_seconds_max")
        slow = [line for line in broker.log_text().splitlines() if "event loop blocked" in line]
        assert broker.stop() == 0
        assert "Traceback" not in broker.log_text(), broker.log_text()[-6000:]
    waits.sort()
    p99 = waits[int(len(waits) * 0.99)]
    with capsys.disabled():
        print(
            f"\nhostile: {len(waits)} sends beside it, p50 {waits[len(waits) // 2] * 1000:.0f} ms, "
            f"p99 {p99 * 1000:.0f} ms, longest {waits[-1] * 1000:.0f} ms, memory +{memory.growth >> 20} MiB, "
            f"{len(slow)} warnings of the event loop, busy for {busy * 1000:.0f} ms at the most"
        )
        for line in slow[:10]:
            print(line)
    assert len(waits) > 10
    assert busy < BUSY_SECONDS_MAX
    if ROUNDS > 1:
        assert p99 < P99_SECONDS_MAX
    assert memory.growth < 200 << 20, f"{memory.growth >> 20} MiB"
