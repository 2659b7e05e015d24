"""Items 42 to 63: settings, and the Telemetry stream that carries them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc.aio import EOF  # type: ignore[attr-defined]  # the stubs lack it

from aerobee_client.testing import BrokerProcess
from aerobee_proto import admin_v1, v2
from tests.conformance.raw_client import (
    BUSY_MACHINE_FACTOR,
    RawClient,
    connected,
    consumer_settings,
    duration,
    producer_settings,
    resource,
)
from tests.support.port_forwarder import PortForwarder

Code = v2.Code
Kind = v2.ClientType


async def test_042_answered_at_once(client: RawClient, topic: str) -> None:
    """The first settings of every kind of client are answered with status OK within 100 ms."""
    for settings in (producer_settings(topic), consumer_settings("g", topic)):
        async with client.other().telemetry() as stream:
            await stream.write(**settings)
            answer = await stream.read(0.1 * BUSY_MACHINE_FACTOR)
            assert answer.status.code == Code.OK
            assert answer.WhichOneof("command") == "settings"


async def test_043_headers_first(client: RawClient) -> None:
    """Rust's client writes nothing before it gets the response's headers."""
    async with client.telemetry() as stream:
        await asyncio.wait_for(stream.call.initial_metadata(), 60)


async def test_044_producer(client: RawClient, topic: str) -> None:
    """Attempts, exponential backoff, maximum body size, type validation, and its topics."""
    async with client.telemetry() as stream:
        told = await stream.told(**producer_settings(topic, f"{topic}-b"))
    assert told.backoff_policy.max_attempts >= 1
    backoff = told.backoff_policy.exponential_backoff
    assert 0 < backoff.initial.ToMilliseconds() <= backoff.max.ToMilliseconds()
    assert backoff.multiplier >= 1
    assert told.publishing.max_body_size == 4 << 20
    assert told.publishing.validate_message_type
    assert [each.name for each in told.publishing.topics] == [topic, f"{topic}-b"]


async def test_045_push_consumer(client: RawClient, topic: str, group: str) -> None:
    """Retries, order, batch size and the broker's polling time; its group and subscriptions."""
    settings = consumer_settings(group, topic)
    settings["subscription"].long_polling_timeout.CopyFrom(duration(7))
    async with client.telemetry() as stream:
        told = await stream.told(**settings)
    assert told.backoff_policy.max_attempts == 17
    assert len(told.backoff_policy.customized_backoff.next) > 0
    assert told.subscription.HasField("fifo")
    assert told.subscription.receive_batch_size == 32
    assert told.subscription.long_polling_timeout.ToSeconds() == 20
    assert told.subscription.group == resource(group)
    assert told.subscription.subscriptions == settings["subscription"].subscriptions


@pytest.mark.parametrize(("language", "strategy"), [("PYTHON", "customized_backoff"), ("HTTP", "exponential_backoff")])
async def test_046_backoff_by_language(client: RawClient, group: str, language: str, strategy: str) -> None:
    """Python's client supports only lists, Node.js's (its header says HTTP) only exponential delays."""
    async with client.other(language).telemetry() as stream:
        told = await stream.told(**consumer_settings(group))
    assert told.backoff_policy.WhichOneof("strategy") == strategy
    if language == "PYTHON":
        assert [delay.nanos for delay in told.backoff_policy.customized_backoff.next] == [0] * len(
            told.backoff_policy.customized_backoff.next
        )
    else:
        assert told.backoff_policy.exponential_backoff.initial.ToMilliseconds() >= 1000


async def test_047_simple_consumer(client: RawClient, topic: str, group: str) -> None:
    """It keeps its subscriptions and its own polling time, and gets a backoff policy."""
    settings = consumer_settings(group, topic, kind=Kind.SIMPLE_CONSUMER)
    settings["subscription"].long_polling_timeout.CopyFrom(duration(7))
    async with client.telemetry() as stream:
        told = await stream.told(**settings)
    assert told.subscription.subscriptions == settings["subscription"].subscriptions
    assert told.subscription.long_polling_timeout.ToSeconds() == 7
    assert told.backoff_policy.max_attempts >= 1
    assert told.backoff_policy.WhichOneof("strategy")


@pytest.mark.parametrize("kind", [Kind.LITE_PUSH_CONSUMER, Kind.LITE_SIMPLE_CONSUMER], ids=Kind.Name)
async def test_048_lite_consumer(client: RawClient, topic: str, group: str, kind: v2.ClientType.ValueType) -> None:
    """The number of subscriptions allowed: Java's and Python's clients start with zero."""
    async with client.telemetry() as stream:
        told = await stream.told(**consumer_settings(group, topic, kind=kind))
    assert told.subscription.lite_subscription_quota > 0
    assert told.subscription.max_lite_topic_size > 0


async def test_049_echo(client: RawClient, topic: str, group: str) -> None:
    """A client's own settings are returned unchanged."""
    own: dict[str, Any] = {
        "access_point": v2.Endpoints(
            scheme=v2.AddressScheme.DOMAIN_NAME, addresses=[v2.Address(host="mq.example", port=80)]
        ),
        "request_timeout": duration(4.5),
        "user_agent": v2.UA(language=v2.Language.RUST, version="1.2", platform="plan9", hostname="somewhere"),
    }
    for settings in (producer_settings(topic, **own), consumer_settings(group, topic, **own)):
        async with client.other().telemetry() as stream:
            told = await stream.told(**settings)
        for name in ("client_type", *own):
            assert getattr(told, name) == settings[name], name
        assert told.HasField("metric"), "C++ and C# would ask again and again"


async def test_050_settings_again(client: RawClient, topic: str) -> None:
    """Clients resend them every few minutes on the same stream, each time expecting an answer."""
    async with client.telemetry() as stream:
        for number in range(3):
            told = await stream.told(**producer_settings(f"{topic}-{number}"))
            assert [each.name for each in told.publishing.topics] == [f"{topic}-{number}"]


async def test_051_producer_without_topics(client: RawClient) -> None:
    """Several producers learn their topics only on the first send."""
    async with client.telemetry() as stream:
        told = await stream.told(**producer_settings())
    assert told.publishing.max_body_size == 4 << 20


async def test_052_neither_producer_nor_consumer(client: RawClient) -> None:
    """gRPC's INVALID_ARGUMENT."""
    async with client.telemetry() as stream:
        assert await stream.failure(client_type=Kind.PRODUCER) == ([], grpc.StatusCode.INVALID_ARGUMENT)


@pytest.mark.parametrize(
    "settings",
    [
        producer_settings("not a topic"),
        producer_settings("TBW102"),
        consumer_settings("not a group"),
        consumer_settings("g", "not a topic"),
        consumer_settings("", "topic"),
    ],
    ids=["topic", "system topic", "group", "subscription", "no group"],
)
async def test_053_illegal_names(client: RawClient, settings: dict[str, Any]) -> None:
    """gRPC's INVALID_ARGUMENT."""
    async with client.telemetry() as stream:
        assert await stream.failure(**settings) == ([], grpc.StatusCode.INVALID_ARGUMENT)


@pytest.mark.parametrize("metadata", [(), (("x-mq-client-id", " "),)])
async def test_054_no_client_id(client: RawClient, metadata: tuple[tuple[str, str], ...]) -> None:
    """CLIENT_ID_REQUIRED once, then the stream ends."""
    stream = client.stub.Telemetry(metadata=metadata, timeout=10)
    assert [answer.status.code async for answer in stream] == [Code.CLIENT_ID_REQUIRED]
    assert await stream.code() == grpc.StatusCode.OK


async def test_055_half_close(client: RawClient, topic: str) -> None:
    """The client has finished sending: the stream ends with OK."""
    async with client.telemetry() as stream:
        await stream.told(**producer_settings(topic))
        await stream.call.done_writing()
        assert await stream.read() is EOF
        assert await stream.call.code() == grpc.StatusCode.OK


async def test_056_client_that_never_reads(broker: BrokerProcess, client: RawClient, topic: str) -> None:
    """It keeps writing; its other calls and other clients' calls are answered meanwhile."""
    async with connected(broker.endpoint) as deaf, deaf.telemetry() as stream:
        agent = v2.UA(hostname="h" * 30_000)
        async with asyncio.timeout(60):
            for _ in range(500):  # 15 MB of answers, far more than the connection can buffer
                await stream.write(**producer_settings(topic, user_agent=agent))
            assert await deaf.heartbeat(kind=Kind.PRODUCER) == Code.OK
            assert (await client.route(topic)).status.code == Code.OK
            async with client.telemetry() as other:
                await other.told(**producer_settings(topic))


async def test_057_second_stream(client: RawClient, topic: str) -> None:
    """The broker uses a client's newest stream; the older one ends."""
    async with client.telemetry() as first:
        await first.told(**producer_settings(topic))
        async with client.telemetry() as second:
            await second.told(**producer_settings(topic))
            assert await first.read() is EOF
            await second.told(**producer_settings(topic))


def _sockets(pid: int) -> int:
    count = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += os.readlink(path).startswith("socket:")
        except FileNotFoundError:
            continue  # the stream was closed meanwhile
    return count


async def test_058_abrupt_disconnect(own_broker: BrokerProcess, topic: str) -> None:
    """The network breaks under twenty streams: their connections are freed, and the clients can reconnect."""
    before = _sockets(own_broker.pid)
    own_connection = (("grpc.use_local_subchannel_pool", 1),)
    port = await asyncio.to_thread(PortForwarder, own_broker.endpoint)
    channels = [grpc.aio.insecure_channel(port.endpoint, options=own_connection) for _ in range(20)]
    try:
        streams = [RawClient(channel, f"broken@{n}@0@a").telemetry() for n, channel in enumerate(channels)]
        for stream in streams:
            await stream.told(**producer_settings(topic))
        assert _sockets(own_broker.pid) >= before + 20
        await asyncio.to_thread(port.reset)
        for stream in streams:
            with pytest.raises(grpc.aio.AioRpcError):
                assert await stream.read() is not EOF
    finally:
        for channel in channels:
            await channel.close(None)
        await asyncio.to_thread(port.stop)
    deadline = time.monotonic() + 60
    while _sockets(own_broker.pid) > before:
        assert time.monotonic() < deadline, "connections of clients that are gone stay"
        await asyncio.sleep(0.05)
    async with connected(own_broker.endpoint) as again:
        again.metadata = (("x-mq-client-id", "broken@0@0@a"),)
        async with again.telemetry() as stream:
            await stream.told(**producer_settings(topic))


@pytest.mark.parametrize(
    ("properties", "legal"),
    [
        ({"a.b-c_d9": "x" * 256, "n" * 64: ""}, True),
        ({f"name{n}": "v" for n in range(32)}, True),
        ({f"name{n}": "v" for n in range(33)}, False),
        ({"1a": "v"}, False),
        ({"n" * 65: "v"}, False),
        ({"name": "x" * 257}, False),
        ({f"name{n}": "x" * 250 for n in range(20)}, False),
    ],
    ids=["longest", "most", "too many", "digit first", "long name", "long value", "too large"],
)
async def test_059_client_properties(client: RawClient, topic: str, properties: dict[str, str], legal: bool) -> None:
    """Properties within the limits are returned; beyond them INVALID_CLIENT_PROPERTIES ends the stream."""
    settings = producer_settings(topic, client_properties=properties)
    async with client.telemetry() as stream:
        if legal:
            assert dict((await stream.told(**settings)).client_properties) == properties
        else:
            codes, status = await stream.failure(**settings)
            assert codes == [Code.INVALID_CLIENT_PROPERTIES]
            assert status == grpc.StatusCode.INVALID_ARGUMENT


async def test_060_answer_in_the_wrong_field(client: RawClient, topic: str) -> None:
    """Node.js's client answers a command with the command itself; that does not end its stream."""
    async with client.telemetry() as stream:
        await stream.told(**producer_settings(topic))
        status = v2.Status(code=Code.NOT_IMPLEMENTED, message="not implemented")
        wrong = v2.TelemetryCommand(status=status, verify_message_command=v2.VerifyMessageCommand(nonce="1"))
        await stream.call.write(wrong)
        await stream.call.write(v2.TelemetryCommand(status=status))
        await stream.told(**producer_settings(topic))


async def test_061_reconnect(client: RawClient, topic: str, group: str) -> None:
    """An operator can make a client reopen its stream: the old one ends, and the new one gets settings."""
    async with client.telemetry() as stream:
        await stream.told(**consumer_settings(group, topic))
        request = admin_v1.ReconnectClientRequest(client_id=client.client_id)
        assert (await client.admin.ReconnectClient(request)).status.code == Code.OK
        assert (await stream.read()).reconnect_endpoints_command.nonce
        async with client.telemetry() as again:
            await again.told(**consumer_settings(group, topic))
            assert await stream.read() is EOF
    request.client_id = "nobody"
    assert (await client.admin.ReconnectClient(request)).status.code == Code.NOT_FOUND


async def _asked(client: RawClient, method: str, request: Any) -> asyncio.Task[Any]:
    """A call of the Admin service that waits for the client's answer to the broker."""
    admin: Any = v2.AdminStub(client.channel)
    return asyncio.ensure_future(getattr(admin, method)(request, timeout=5 * BUSY_MACHINE_FACTOR))


async def test_062_print_stacks(client: RawClient, topic: str, group: str) -> None:
    """The command has a nonce; an answer or refusal with that nonce is returned to the caller.

    After 5 s without an answer the call fails.
    """
    async with client.telemetry() as stream:
        await stream.told(**consumer_settings(group, topic))
        request = v2.PrintThreadStackTraceRequest(client_id=client.client_id, group=resource(group))
        asked = await _asked(client, "PrintThreadStackTrace", request)
        nonce = (await stream.read()).print_thread_stack_trace_command.nonce
        assert nonce
        for wrong in ("", nonce + "0"):  # another caller's
            stacks = v2.ThreadStackTrace(nonce=wrong, thread_stack_trace="wrong")
            await stream.call.write(v2.TelemetryCommand(thread_stack_trace=stacks))
        stacks = v2.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: waiting")
        await stream.call.write(v2.TelemetryCommand(status=v2.Status(code=Code.OK), thread_stack_trace=stacks))
        answer = await asked
        assert (answer.status.code, answer.thread_stack_trace) == (Code.OK, "main: waiting")
        asked = await _asked(client, "PrintThreadStackTrace", request)
        stacks = v2.ThreadStackTrace(nonce=(await stream.read()).print_thread_stack_trace_command.nonce)
        status = v2.Status(code=Code.NOT_IMPLEMENTED, message="no stacks here")
        await stream.call.write(v2.TelemetryCommand(status=status, thread_stack_trace=stacks))
        assert (await asked).status == status
        asked = await _asked(client, "PrintThreadStackTrace", request)
        began = asyncio.get_running_loop().time()
        assert (await stream.read()).print_thread_stack_trace_command.nonce
        assert (await asked).status.code == Code.PROXY_TIMEOUT  # this client never answers
        assert 4 < asyncio.get_running_loop().time() - began < 5 * BUSY_MACHINE_FACTOR
    request.client_id = "nobody"
    assert (await (await _asked(client, "PrintThreadStackTrace", request))).status.code == Code.NOT_FOUND


async def test_063_changed_group(client: RawClient, topic: str, group: str) -> None:
    """An operator's change reaches the client with its next settings."""
    await client.create_group(group, max_attempts=5)
    async with client.telemetry() as stream:
        told = await stream.told(**consumer_settings(group, topic))
        assert (told.backoff_policy.max_attempts, told.subscription.fifo) == (5, False)
        change = admin_v1.UpdateGroupRequest(name=group, max_attempts=9, fifo=True)
        assert (await client.admin.UpdateGroup(change)).status.code == Code.OK
        told = await stream.told(**consumer_settings(group, topic))
        assert (told.backoff_policy.max_attempts, told.subscription.fifo) == (9, True)
