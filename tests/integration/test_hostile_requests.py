"""Administration requests with random values and with invalid bytes: each is answered, and the broker keeps working.

test_bad_input.py does the same for the calls of clients. AEROBEE_INPUT_SEED repeats the requests of a run,
AEROBEE_INPUT_COUNT is the number of requests per method.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from aerobee_client import Message, connect
from aerobee_client.testing import BrokerProcess
from aerobee_proto import admin_v1, v2
from aerobee_proto.pool import POOL
from tests.support import seeds
from tests.support.hostile_clients import INSIDE, readable, resident, works
from tests.support.random_requests import RandomRequests

pytestmark = pytest.mark.timeout(3600)

SEED = seeds.seed("AEROBEE_INPUT_SEED")
COUNT = int(os.environ.get("AEROBEE_INPUT_COUNT", "10"))
GROWTH_MAX = 32 << 20  # bytes; includes the topics and groups that were created
SERVICES = ("apache.rocketmq.v2.Admin", "aerobee.v1.AdminService", "aerobee.v1.RecordService")
NAMES = ("orders", "billing", "auditing", "invoices", "store.retention_hours", "delivery.receive_count_max", "INFO")
METADATA = (("x-mq-client-id", "hostile@1@0@abc"), ("x-mq-language", "JAVA"))
Code = v2.Code


async def answered(channel: Any, service: str, method: Any, request: bytes) -> list[Any]:
    """All messages of the answer, which must arrive in time."""
    kind = GetMessageClass(method.output_type)
    path = f"/{service}/{method.name}"
    async with asyncio.timeout(60):
        if method.server_streaming:
            call = channel.unary_stream(path, response_deserializer=kind.FromString)(request, metadata=METADATA)
            return [response async for response in call]
        return [await channel.unary_unary(path, response_deserializer=kind.FromString)(request, metadata=METADATA)]


@pytest.mark.parametrize("service", SERVICES)
async def test_random_requests(broker: BrokerProcess, service: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each answer is OK or a client error with a readable text, and memory does not grow with the requests."""
    with capsys.disabled():
        print(f"\nhostile: {service} AEROBEE_INPUT_SEED={SEED}", flush=True)
    requests = RandomRequests(SEED, NAMES, ())
    methods = [method for method in POOL.FindServiceByName(service).methods if not method.client_streaming]
    sizes = []
    async with grpc.aio.insecure_channel(broker.endpoint) as channel:
        for number in range(COUNT):
            for method in methods:
                request = requests.make(method.input_type)
                what = f"{method.name} of seed {SEED}:\n{request}"
                try:
                    responses = await answered(channel, service, method, request.SerializeToString())
                except (grpc.aio.AioRpcError, TimeoutError) as error:
                    raise AssertionError(f"{what} ended with {error!r}") from error
                assert responses, what
                for response in responses:
                    if "status" in response.DESCRIPTOR.fields_by_name and response.HasField("status"):
                        readable(response.status, what)
            if number >= COUNT // 2:
                sizes.append(resident(broker))
    await works(broker, "spared", "spared")
    with capsys.disabled():
        print(f"hostile: {service} resident MiB: {sizes[0] >> 20} -> {sizes[-1] >> 20}", flush=True)
    assert sizes[-1] - sizes[0] < GROWTH_MAX * max(1, COUNT // 100)


@pytest.mark.parametrize("service", SERVICES)
async def test_bytes_that_are_not_a_request(broker: BrokerProcess, service: str) -> None:
    """Each method reports that it cannot parse them."""
    dice = random.Random(SEED)
    async with grpc.aio.insecure_channel(broker.endpoint) as channel:
        for method in POOL.FindServiceByName(service).methods:
            if method.client_streaming:
                continue
            for garbage in (b"\xff\xff\xff", b"\x0a\x7f", b"\x0f", dice.randbytes(50)):
                for response in await answered(channel, service, method, garbage):
                    if "status" not in response.DESCRIPTOR.fields_by_name:
                        assert INSIDE.search(str(response)) is None, response
                    elif response.HasField("status"):
                        readable(response.status, method.name)
                        if garbage != b"\x0a\x7f" and garbage[0] in (0xFF, 0x0F):
                            assert "cannot be parsed" in response.status.message, (method.name, response)
    await works(broker, "spared", "spared")


async def test_times_beyond_the_calendar(broker: BrokerProcess) -> None:
    """A time outside Timestamp's range is clamped: a search from there finds nothing, or everything."""
    async with connect(broker.endpoint) as client:
        await client.admin.create_topic("dated")
        await client.admin.create_group("dated")
        await client.producer().send(Message(topic="dated", body=b"x"))
    late, early = v2.Timestamp(seconds=1 << 60), v2.Timestamp(seconds=-(1 << 60), nanos=-1)
    async with grpc.aio.insecure_channel(broker.endpoint) as channel:
        query: Any = v2.AdminStub(channel)
        administration: Any = admin_v1.AdminServiceStub(channel)
        for begin, end, count in ((early, late, 1), (late, late, 0), (early, early, 0)):
            request = v2.ListMessageRequest(topic=v2.Resource(name="dated"), begin_timestamp=begin, end_timestamp=end)
            found = await query.QueryMessage(request, timeout=10)
            assert (found.status.code, len(found.messages)) == (Code.OK, count)
            letters = admin_v1.ListDeadLettersRequest(group="dated", begin_timestamp=begin, end_timestamp=end)
            readable((await administration.ListDeadLetters(letters, timeout=10)).status)
            reset = admin_v1.ResetOffsetsRequest(group="dated", topic="dated", timestamp=begin)
            assert (await administration.ResetOffsets(reset, timeout=10)).status.code == Code.OK
