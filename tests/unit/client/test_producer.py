"""Producer behaviour before, between and after requests, against a server with scripted answers."""

from __future__ import annotations

import asyncio
import zlib

import grpc
import pytest

from aerobee_client import (
    BadRequestError,
    Client,
    ClientError,
    ConfigurationError,
    Hooks,
    Message,
    SendResult,
    connect,
)
from aerobee_client.limits.bounds import MemoryLimit
from aerobee_client.messages.checks import check
from aerobee_client.messages.compression import SYS_FLAGS, Compression, CorruptedBodyError, compress, decompress
from aerobee_client.sending.latency import LatencyAvoidance, avoid_seconds
from aerobee_proto import v2
from aerobee_store.records.message_rules import ServerLimits
from tests.support.scripted_broker import OK, ScriptedBroker, failure, scripted_broker

pytestmark = pytest.mark.timeout(300)


def message(body: bytes = b"x", topic: str = "orders", **fields: object) -> Message:
    """A message to `topic`."""
    return Message(topic=topic, body=body, **fields)  # type: ignore[arg-type]  # fields of Message by name


class TestGathering:
    async def test_messages_gather_while_requests_are_under_way(self, broker: ScriptedBroker, client: Client) -> None:
        """With the maximum of requests in flight, further messages are gathered and sent as one request."""
        producer = client.producer(max_in_flight=2)
        broker.hold("SendMessage")
        for number in range(2):
            await producer.submit(message(b"%d" % number))
            await broker.called("SendMessage", number + 1)
        later = [await producer.submit(message(b"later")) for _ in range(10)]
        await asyncio.sleep(0.05)
        assert [len(request.messages) for request in broker.requests("SendMessage")] == [1, 1]
        broker.release("SendMessage")
        await asyncio.gather(*later)
        assert [len(request.messages) for request in broker.requests("SendMessage")] == [1, 1, 10]

    async def test_a_full_request_does_not_linger(self, broker: ScriptedBroker, client: Client) -> None:
        """A message waits for the linger time, but a full request is sent immediately."""
        producer = client.producer(linger_seconds=60, request_count_max=3)
        full = [await producer.submit(message(b"%d" % number)) for number in range(3)]
        await asyncio.gather(*full)
        alone = await producer.submit(message(b"alone"))
        await asyncio.sleep(0.05)
        assert not alone.done()
        await producer.flush()
        assert isinstance(alone.result(), SendResult)
        assert [len(request.messages) for request in broker.requests("SendMessage")] == [3, 1]

    async def test_memory_is_bounded(self, broker: ScriptedBroker, client: Client) -> None:
        """With the maximum of messages buffered, `submit` waits until some were sent."""
        producer = client.producer(waiting_count_max=2)
        broker.hold("SendMessage")
        for _ in range(2):
            await producer.submit(message())
        third = asyncio.create_task(producer.submit(message(b"third")))
        await asyncio.sleep(0.05)
        assert not third.done()
        broker.release("SendMessage")
        await (await third)

    async def test_a_message_cancelled_before_its_request_is_not_sent(
        self, broker: ScriptedBroker, client: Client
    ) -> None:
        """A message that is cancelled before its request is not sent."""
        producer = client.producer(linger_seconds=60)
        given_up, kept = await producer.submit(message(b"given up")), await producer.submit(message(b"kept"))
        given_up.cancel()
        await producer.flush()
        assert isinstance(await kept, SendResult)
        assert [each.body for request in broker.requests("SendMessage") for each in request.messages] == [b"kept"]

    async def test_ordered_messages_wait_for_each_other(self, broker: ScriptedBroker, client: Client) -> None:
        """RocketMQ orders single messages only: one message per group is in flight, and groups run in parallel."""
        producer = client.producer()
        broker.hold("SendMessage")
        sends = [
            await producer.submit(message(b"%s%d" % (group.encode(), number), message_group=group))
            for number in range(3)
            for group in ("a", "b")
        ]
        await broker.called("SendMessage", 2)
        await asyncio.sleep(0.05)
        assert sorted(r.messages[0].body for r in broker.requests("SendMessage")) == [b"a0", b"b0"]
        broker.release("SendMessage")
        await asyncio.gather(*sends)
        sent = [request.messages[0].body for request in broker.requests("SendMessage")]
        assert [body for body in sent if body.startswith(b"a")] == [b"a0", b"a1", b"a2"]
        assert [body for body in sent if body.startswith(b"b")] == [b"b0", b"b1", b"b2"]

    async def test_a_retried_message_is_not_overtaken(self, broker: ScriptedBroker, client: Client) -> None:
        """A message stays ahead of the next one of its group while it is retried."""
        broker.answers["SendMessage"] = [failure(grpc.StatusCode.UNAVAILABLE)]
        producer = client.producer()
        sends = [await producer.submit(message(b"%d" % number, message_group="g")) for number in range(2)]
        await asyncio.gather(*sends)
        assert [request.messages[0].body for request in broker.requests("SendMessage")] == [b"0", b"0", b"1"]

    async def test_closing_sends_submitted_messages(self, broker: ScriptedBroker, client: Client) -> None:
        """Closing sends buffered messages, one-way ones too. The failure of a one-way message is not raised."""
        async with client.producer(linger_seconds=60) as producer:
            await producer.send_one_way(message(b"one way"))
            broker.answers["SendMessage"] = [
                v2.SendMessageResponse(status=v2.Status(code=v2.Code.TOPIC_NOT_FOUND, message="none"))
            ]
        assert len(broker.requests("SendMessage")) == 1
        with pytest.raises(ClientError, match="closed"):
            await producer.send(message())


async def test_space_is_given_in_order() -> None:
    """Small items do not overtake a large item at the head of the queue. A cancelled item leaves the queue."""
    room = MemoryLimit(10, 5)
    await room.enter(6)
    large, small, last = (asyncio.create_task(room.enter(size)) for size in (8, 1, 1))
    await asyncio.sleep(0)
    assert room.count == 1
    large.cancel()
    await asyncio.gather(small, last)
    assert (room.size, room.count) == (8, 3)
    for size in (6, 1, 1):
        room.leave(size)
    await room.enter(99)  # larger than the limit: admitted alone


class TestBeforeSending:
    @pytest.mark.parametrize(
        ("bad", "code"),
        [
            (message(topic="no such name"), v2.Code.ILLEGAL_TOPIC),
            (message(topic="t" * 128), v2.Code.ILLEGAL_TOPIC),
            (message(b""), v2.Code.MESSAGE_BODY_EMPTY),
            (message(bytes((4 << 20) + 1)), v2.Code.MESSAGE_BODY_TOO_LARGE),
            (message(tag="a|b"), v2.Code.ILLEGAL_MESSAGE_TAG),
            (message(tag=" "), v2.Code.ILLEGAL_MESSAGE_TAG),
            (message(keys=("a\x85b",)), v2.Code.ILLEGAL_MESSAGE_KEY),
            (message(message_group="g" * 64), v2.Code.ILLEGAL_MESSAGE_GROUP),
            (message(message_group="ü" * 32), v2.Code.ILLEGAL_MESSAGE_GROUP),
            (message(message_group="g", priority=1), v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
            (message(properties={"": "x"}), v2.Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
            (message(properties={"a": "\n"}), v2.Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
            (message(properties={str(n): "" for n in range(129)}), v2.Code.MESSAGE_PROPERTIES_TOO_LARGE),
            (message(properties={"a": "x" * 16_384}), v2.Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ],
    )
    async def test_invalid_messages_are_refused(
        self, broker: ScriptedBroker, client: Client, bad: Message, code: v2.Code.ValueType
    ) -> None:
        """Invalid messages are refused with the server's code, without a request."""
        with pytest.raises(BadRequestError) as raised:
            await client.producer().send(bad)
        assert raised.value.code == code
        assert broker.requests("SendMessage") == []

    def test_messages_at_the_limits_are_accepted(self) -> None:
        """Messages at each limit are accepted."""
        check(message(bytes(4 << 20), topic="t" * 127), ServerLimits())
        check(message(message_group="g" * 63), ServerLimits())
        check(message(properties={"a": "x" * 16_383}), ServerLimits())
        check(message(properties={str(n): "" for n in range(128)}, tag=""), ServerLimits())

    async def test_hooks_run_around_a_send(self, broker: ScriptedBroker) -> None:
        """Hooks may change the message and get its outcome. They run in reverse order after the send."""
        heard: list[object] = []

        class Named(Hooks):
            def __init__(self, name: str) -> None:
                self.name = name

            def before_send(self, message: Message) -> Message:
                heard.append(f"before {self.name}")
                return Message(topic=message.topic, body=message.body + self.name.encode())

            def after_send(self, message: Message, outcome: SendResult | ClientError) -> None:
                heard.append((self.name, message.body, type(outcome)))

        async with connect(broker.endpoint, hooks=[Named("a"), Named("b")]) as client:
            await client.producer().send(message())
        assert broker.requests("SendMessage")[0].messages[0].body == b"xab"
        assert heard == ["before a", "before b", ("b", b"xab", SendResult), ("a", b"xab", SendResult)]

    async def test_large_bodies_are_compressed(self, broker: ScriptedBroker, client: Client) -> None:
        """Bodies above the size limit are compressed if that makes them smaller."""
        producer = client.producer(compression="zlib")
        incompressible = zlib.compress(bytes(range(256)) * 300, 9)
        assert len(incompressible) < 4096
        for body in (b"long " * 1000, b"short", b"".join(zlib.compress(b"%d" % n, 0) for n in range(3))):
            await producer.send(message(body))
        sent = [request.messages[0] for request in broker.requests("SendMessage")]
        assert [each.system_properties.body_encoding for each in sent] == [
            v2.Encoding.GZIP,
            v2.Encoding.IDENTITY,
            v2.Encoding.IDENTITY,
        ]
        assert zlib.decompress(sent[0].body) == b"long " * 1000

    async def test_compression_that_the_protocol_cannot_name(self, client: Client) -> None:
        """LZ4 and Zstandard exist only in stored messages. The error names the compression to use."""
        with pytest.raises(ConfigurationError, match="compression='zlib'"):
            client.producer(compression="zstd")


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_bodies_survive_compression(kind: Compression) -> None:
    """A compressed body is restored. Truncated or damaged bodies and decompression bombs are errors."""
    body = b"long " * 10_000
    compressed = compress(body, kind)
    assert len(compressed) < len(body)
    assert decompress(compressed, SYS_FLAGS[kind]) == body
    assert decompress(body, 0) == body
    for bad in (compressed[: len(compressed) // 2], b"no such thing"):
        with pytest.raises(CorruptedBodyError):
            decompress(bad, SYS_FLAGS[kind])
    with pytest.raises(CorruptedBodyError, match="grows beyond"):
        decompress(compress(bytes((64 << 20) + 1), kind), SYS_FLAGS[kind])


class TestTransactions:
    async def test_a_transaction_is_committed_or_rolled_back(self, broker: ScriptedBroker, client: Client) -> None:
        """Leaving the block commits each of its messages; an exception rolls each back."""
        producer = client.producer(transaction_checker=lambda message: "unknown")
        async with producer.transaction() as transaction:
            await transaction.send(message())
            await transaction.send(message())

        async def fails() -> None:
            async with producer.transaction() as failing:
                await failing.send(message())
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fails()
        with pytest.raises(ClientError, match="ended"):
            await transaction.send(message())
        commit, rollback = v2.TransactionResolution.COMMIT, v2.TransactionResolution.ROLLBACK
        assert [request.resolution for request in broker.requests("EndTransaction")] == [commit, commit, rollback]
        sent = broker.requests("SendMessage")[0].messages[0].system_properties
        assert sent.message_type == v2.MessageType.TRANSACTION
        first = broker.requests("EndTransaction")[0]
        assert (first.message_id, first.transaction_id) == (sent.message_id, sent.message_id)
        assert first.source == v2.TransactionSource.SOURCE_CLIENT

    async def test_without_a_checker_there_is_no_transaction(self, client: Client) -> None:
        """A transaction needs a checker, because the broker could not ask for its outcome otherwise."""
        with pytest.raises(ConfigurationError, match="transaction_checker"):
            client.producer().transaction()

    @pytest.mark.parametrize("coroutine", [True, False])
    async def test_the_broker_asks_the_checker(
        self, broker: ScriptedBroker, client: Client, coroutine: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The checker's answer is sent as a server check."""

        async def slow(found: object) -> str:
            await asyncio.sleep(0)
            return "commit"

        def quick(found: object) -> str:
            return "commit"

        producer = client.producer(topics=["orders"], transaction_checker=slow if coroutine else quick)  # type: ignore[arg-type]
        await producer.send(message())
        assert [each.name for each in broker.requests("Telemetry")[0].settings.publishing.topics] == ["orders"]
        orphan = v2.Message(topic=v2.Resource(name="orders"), system_properties=v2.SystemProperties(message_id="m"))
        command = v2.RecoverOrphanedTransactionCommand(message=orphan, transaction_id="t")
        broker.command(v2.TelemetryCommand(recover_orphaned_transaction_command=command))
        await broker.called("EndTransaction", 1)
        (end,) = broker.requests("EndTransaction")
        assert (end.message_id, end.transaction_id, end.resolution) == ("m", "t", v2.TransactionResolution.COMMIT)
        assert end.source == v2.TransactionSource.SOURCE_SERVER_CHECK


async def test_a_delayed_message_is_recalled(broker: ScriptedBroker, client: Client) -> None:
    """The recall request has the handle of the send."""
    broker.answers["RecallMessage"] = [v2.RecallMessageResponse(status=OK, message_id="m")]
    assert await client.producer().recall("orders", "handle") == "m"
    assert broker.requests("RecallMessage")[0].recall_handle == "handle"


class TestLatencyAvoidance:
    @pytest.mark.parametrize(
        ("latency", "avoided"),
        [(0.01, 0), (0.05, 0), (0.1, 0), (0.55, 30), (1, 60), (2, 120), (3, 180), (14.9, 180), (15, 600)],
    )
    def test_rocketmqs_table(self, latency: float, avoided: float) -> None:
        """The avoidance time of each latency class is RocketMQ's."""
        assert avoid_seconds(latency) == avoided

    def test_the_slow_one_is_avoided_for_a_while(self) -> None:
        """A slow endpoint is avoided for a time. If all are avoided, the one whose time ends first is used."""
        now = 0.0
        avoidance = LatencyAvoidance(lambda: now)
        assert {avoidance.choose(["a", "b"]) for _ in range(4)} == {"a", "b"}
        assert avoidance.choose(["a", "b"], last="a") == "b"
        avoidance.record("a", 1.5)
        assert {avoidance.choose(["a", "b"]) for _ in range(4)} == {"b"}
        avoidance.record("b", 0.0, failed=True)
        assert {avoidance.choose(["a", "b"]) for _ in range(4)} == {"a"}
        now = 61.0
        assert avoidance.available("a")
        assert not avoidance.available("b")

    async def test_a_failed_endpoint_is_left_alone(self, broker: ScriptedBroker) -> None:
        """After a failed send, the retry and later sends use the other endpoint."""
        async with scripted_broker() as bad, connect([bad.endpoint, broker.endpoint]) as client:
            bad.answers["SendMessage"] = [failure(grpc.StatusCode.UNAVAILABLE)] * 9
            producer = client.producer(avoid_slow_endpoints=True)
            for _ in range(6):
                await producer.send(message())
            assert len(bad.requests("SendMessage")) == 1
            assert len(broker.requests("SendMessage")) == 6
