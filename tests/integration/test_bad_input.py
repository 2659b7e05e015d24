"""Invalid input to a real broker: it names the mistake and keeps working.

AEROBEE_INPUT_SEED repeats the random requests of a run; AEROBEE_INPUT_COUNT is the number of requests per method.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from aerobee_client import Message, blocking, connect
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2
from aerobee_proto.pool import POOL
from tests.support import seeds
from tests.support.hostile_clients import INSIDE, readable, resident, works
from tests.support.random_requests import RandomRequests

pytestmark = pytest.mark.timeout(300)

SEED = seeds.seed("AEROBEE_INPUT_SEED")
COUNT = int(os.environ.get("AEROBEE_INPUT_COUNT", "25"))  # random requests per method
METADATA = (("x-mq-client-id", "bad@1@0@abc"), ("x-mq-language", "JAVA"))
SERVICE = "apache.rocketmq.v2.MessagingService"
# 20 rounds of all requests here grow a broker by less; 5 MB bodies and fragmentation make its memory vary.
GROWTH_MAX = 24 << 20
NAMES = ("orders", "billing", "auditing", "line")
Code = v2.Code


@pytest.fixture(scope="module")
def broker_arguments() -> Sequence[str]:
    """A broker without automatic creation."""
    return ()


@pytest.fixture(scope="module", autouse=True)
def created(broker: BrokerProcess) -> None:
    """The topics and groups of all tests."""
    with blocking.connect(broker.endpoint) as client:
        for topic in ("orders", "returns", "abandoned"):
            client.admin.create_topic(topic)
        for group in ("billing", "auditing"):
            client.admin.create_group(group)


@pytest.fixture
async def channel(channel: Any, broker: BrokerProcess) -> AsyncIterator[Any]:
    """A connection for one test; after the test, the broker must still work."""
    yield channel
    await works(broker)


def message(topic: str = "orders", body: bytes = b"hello", **system: Any) -> v2.Message:
    system = {"message_id": "01AB", **system}
    return v2.Message(topic=v2.Resource(name=topic), body=body, system_properties=v2.SystemProperties(**system))


def send(*messages: v2.Message) -> v2.SendMessageRequest:
    return v2.SendMessageRequest(messages=messages)


def with_properties(properties: dict[str, str], **system: Any) -> v2.SendMessageRequest:
    made = message(**system)
    made.user_properties.update(properties)
    return send(made)


def receive(
    topic: str = "orders", group: str = "billing", seconds: int | None = 30, **fields: Any
) -> v2.ReceiveMessageRequest:
    request = v2.ReceiveMessageRequest(group=v2.Resource(name=group), **fields)
    request.message_queue.topic.name = topic
    if seconds is not None:
        request.invisible_duration.seconds = seconds
    return request


def ack(*handles: str, topic: str = "orders", group: str = "billing") -> v2.AckMessageRequest:
    entries = [v2.AckMessageEntry(message_id="01AB", receipt_handle=handle) for handle in handles]
    return v2.AckMessageRequest(group=v2.Resource(name=group), topic=v2.Resource(name=topic), entries=entries)


def change(handle: str = "x", seconds: int = 1, nanos: int = 0) -> v2.ChangeInvisibleDurationRequest:
    duration = v2.Duration(seconds=seconds, nanos=nanos)
    return v2.ChangeInvisibleDurationRequest(
        group=v2.Resource(name="billing"),
        topic=v2.Resource(name="orders"),
        receipt_handle=handle,
        invisible_duration=duration,
    )


def route(host: str, port: int) -> v2.QueryRouteRequest:
    request = v2.QueryRouteRequest(topic=v2.Resource(name="orders"))
    request.endpoints.addresses.add(host=host, port=port)
    return request


def recovery(seconds: int) -> v2.SendMessageRequest:
    return send(
        message(
            message_type=v2.MessageType.TRANSACTION,
            orphaned_transaction_recovery_duration=v2.Duration(seconds=seconds),
        )
    )


TOPICS = {"empty": "", "blank": "  ", "space": "a b", "slash": "../a", "letters": "größe", "long": "x" * 128}
SYSTEM_TOPICS = ("TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_AEROBEE_DELIVERY")
ABSURD_SECONDS = (-1, -(1 << 60), 13 * 3600, 1 << 62)

# Name, method, request, code, and the part of the message that says what to do.
CASES: list[tuple[str, str, Any, int, str]] = [
    *((f"send-topic-{n}", "SendMessage", send(message(t)), Code.ILLEGAL_TOPIC, "topic") for n, t in TOPICS.items()),
    *((f"send-{t}", "SendMessage", send(message(t)), Code.ILLEGAL_TOPIC, "another name") for t in SYSTEM_TOPICS),
    *((f"receive-topic-{n}", "ReceiveMessage", receive(t), Code.ILLEGAL_TOPIC, "topic") for n, t in TOPICS.items()),
    *((f"receive-{t}", "ReceiveMessage", receive(t), Code.ILLEGAL_TOPIC, "another name") for t in SYSTEM_TOPICS),
    *(
        (f"receive-group-{n}", "ReceiveMessage", receive(group=g), Code.ILLEGAL_CONSUMER_GROUP, "group")
        for n, g in {**TOPICS, "reserved": "CID_RMQ_SYS_x", "long": "g" * 121}.items()
    ),
    ("send-no-topic", "SendMessage", send(message("ghost")), Code.TOPIC_NOT_FOUND, "aerobee topic create ghost"),
    ("receive-no-topic", "ReceiveMessage", receive("ghost"), Code.TOPIC_NOT_FOUND, "aerobee topic create ghost"),
    (
        "receive-no-group",
        "ReceiveMessage",
        receive(group="ghost"),
        Code.CONSUMER_GROUP_NOT_FOUND,
        "aerobee group create ghost",
    ),
    ("send-nothing", "SendMessage", send(), Code.MESSAGE_CORRUPTED, "no message"),
    ("send-two-topics", "SendMessage", send(message(), message("returns")), Code.MESSAGE_CORRUPTED, "one by one"),
    ("body-empty", "SendMessage", send(message(body=b"")), Code.MESSAGE_BODY_EMPTY, "at least one byte"),
    (
        "body-5-MB",
        "SendMessage",
        send(message(body=b"x" * 5_000_000)),
        Code.MESSAGE_BODY_TOO_LARGE,
        "split or compress",
    ),
    (
        "digest",
        "SendMessage",
        send(message(body_digest=v2.Digest(type=v2.DigestType.MD5, checksum="00"))),
        Code.MESSAGE_CORRUPTED,
        "send it again",
    ),
    (
        "properties-129",
        "SendMessage",
        with_properties({f"p{n}": "v" for n in range(129)}),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
        "the limit is 128",
    ),
    (
        "properties-16385-bytes",
        "SendMessage",
        with_properties({"p": "v" * 16_000, "q": "ü" * 191, "r": ""}),  # 1 + 16,000 + 1 + 382 + 1 bytes
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
        "the limit is 16384",
    ),
    *(
        (f"property-{n!r}", "SendMessage", with_properties({n: v}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "property")
        for n, v in (("a\x01", "v"), ("a", "\x02v"), ("a\x85", "v"), ("a", "v\0"), ("", "v"))
    ),
    *(
        (f"property-{n}", "SendMessage", with_properties({n: "v"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "choose another")
        for n in ("KEYS", "TAGS", "DELAY", "UNIQ_KEY", "__CRC32#", "REAL_TOPIC", "PGROUP", "TIMER_DELIVER_MS")
    ),
    *(
        (f"tag-{tag!r}", "SendMessage", send(message(tag=tag)), Code.ILLEGAL_MESSAGE_TAG, "choose another")
        for tag in (" ", "a|b", "a\nb", "\x7f")
    ),
    *(
        (f"key-{key!r}", "SendMessage", send(message(keys=["fine", key])), Code.ILLEGAL_MESSAGE_KEY, "choose another")
        for key in (" ", "\t", "a\x01")
    ),
    *(
        (f"group-{n}", "SendMessage", send(message(message_group=g)), Code.ILLEGAL_MESSAGE_GROUP, "choose another")
        for n, g in {"blank": " ", "empty": "", "64": "g" * 64, "32-wide": "ü" * 32, "control": "a\0"}.items()
    ),
    *(
        (f"id-{i!r}"[:20], "SendMessage", send(message(message_id=i)), Code.ILLEGAL_MESSAGE_ID, "message id")
        for i in ("", "  ", "a\nb", "i" * 9000)
    ),
    *(
        (
            f"delivery-{s}",
            "SendMessage",
            send(message(delivery_timestamp=v2.Timestamp(seconds=s))),
            Code.ILLEGAL_DELIVERY_TIME,
            "the limit",
        )
        for s in (-1, -(1 << 40), 1 << 40, 1 << 62)
    ),
    *(
        (f"lite-{n}", "SendMessage", send(message(lite_topic=t)), Code.ILLEGAL_LITE_TOPIC, "lite topic")
        for n, t in {"65": "l" * 65, "percent": "a%b"}.items()
    ),
    ("priority", "SendMessage", send(message(priority=-1)), Code.BAD_REQUEST, "priority"),
    ("trace", "SendMessage", send(message(trace_context="\x02")), Code.BAD_REQUEST, "trace_context"),
    (
        "trace-8193",
        "SendMessage",
        send(message(trace_context="x" * 8193)),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
        "more than 8192 bytes",
    ),
    ("host", "SendMessage", send(message(born_host="\x02")), Code.BAD_REQUEST, "host"),
    *((f"recovery-{s}", "SendMessage", recovery(s), Code.BAD_REQUEST, "0..3600 s") for s in (3601, -1, 1 << 62)),
    (
        "type",
        "SendMessage",
        send(message(message_group="line", message_type=v2.MessageType.FIFO)),
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        "topic of its type",
    ),
    *(
        (f"invisible-{s}", "ReceiveMessage", receive(seconds=s), Code.ILLEGAL_INVISIBLE_TIME, "is outside")
        for s in (None, 0, *ABSURD_SECONDS)
    ),
    ("tags", "ReceiveMessage", receive(filter_expression=v2.FilterExpression(expression=" || ")), 40010, "`*` for all"),
    *(
        (
            name,
            "ReceiveMessage",
            receive(filter_expression=v2.FilterExpression(expression=text, type=v2.FilterType.SQL)),
            40010,
            told,
        )
        for name, text, told in (
            ("sql-empty", "", "it is empty"),
            ("sql-half", "a > ", "column 5: found the end"),
            ("sql-deep", "(" * 4000, "column 4001: found the end"),
            ("sql-long", "a" * (64 << 10), "the limit is 4096"),
        )
    ),
    ("ack-nothing", "AckMessage", ack(), Code.BAD_REQUEST, "name a message"),
    *(
        (
            f"ack-{n}",
            "AckMessage",
            ack(handle),
            Code.INVALID_RECEIPT_HANDLE,
            "use the handle of the received message",
        )
        for n, handle in {"garbage": "garbage", "empty": "", "wide": "日本", "huge": "A" * 1_000_000}.items()
    ),
    ("ack-no-topic", "AckMessage", ack("x", topic=""), Code.ILLEGAL_TOPIC, "enter a name"),
    ("ack-no-group", "AckMessage", ack("x", group=""), Code.ILLEGAL_CONSUMER_GROUP, "enter a name"),
    (
        "change-garbage",
        "ChangeInvisibleDuration",
        change(),
        Code.INVALID_RECEIPT_HANDLE,
        "use the handle of the received message",
    ),
    *(
        (f"change-{s}", "ChangeInvisibleDuration", change(seconds=s), Code.ILLEGAL_INVISIBLE_TIME, "is outside 0..")
        for s in ABSURD_SECONDS
    ),
    (
        "forward-garbage",
        "ForwardMessageToDeadLetterQueue",
        v2.ForwardMessageToDeadLetterQueueRequest(
            group=v2.Resource(name="billing"), topic=v2.Resource(name="orders"), receipt_handle="garbage"
        ),
        Code.INVALID_RECEIPT_HANDLE,
        "use the handle of the received message",
    ),
    *(
        (f"route-{h!r}-{p}", "QueryRoute", route(h, p), Code.ILLEGAL_ACCESS_POINT, "give host and port")
        for h, p in (("", 1), ("a", 0), ("a", 65_536), ("a", -1), ("a\nb", 1))
    ),
    (
        "terminate-group",
        "NotifyClientTermination",
        v2.NotifyClientTerminationRequest(group=v2.Resource(name="a b")),
        Code.ILLEGAL_CONSUMER_GROUP,
        "contains an invalid character",
    ),
    (
        "heartbeat-group",
        "Heartbeat",
        v2.HeartbeatRequest(client_type=v2.ClientType.PUSH_CONSUMER),
        Code.ILLEGAL_CONSUMER_GROUP,
        "enter a name",
    ),
]


@pytest.mark.parametrize(("method", "request_", "code", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
async def test_a_broken_rule_is_named(channel: Any, method: str, request_: Any, code: int, words: str) -> None:
    """The protocol's code, and a message that tells the user what to do."""
    status = (await call(channel, method, request_))[0]
    assert (status.code, Code.Name(status.code)) == (code, Code.Name(v2.Code.ValueType(code))), status.message
    assert words in status.message
    readable(status)


@pytest.mark.parametrize("count", [0, -1, -(1 << 31), (1 << 31) - 1])
@pytest.mark.parametrize("seconds", [0, -(1 << 60), 1 << 62])
async def test_batch_sizes_and_polling_times_are_clamped(channel: Any, count: int, seconds: int) -> None:
    """Out-of-range values are clamped: at least one message, at most 32, and an answer before the call's deadline."""
    await call(channel, "SendMessage", send(*(message(message_id=f"m{n}") for n in range(40))))
    polling = v2.Duration(seconds=seconds)
    responses = await answers(channel, "ReceiveMessage", receive(batch_size=count, long_polling_timeout=polling))
    assert responses[0].status.code == Code.OK
    assert sum(response.HasField("message") for response in responses) == (32 if count > 1 else 1)
    handles = [r.message.system_properties.receipt_handle for r in responses if r.HasField("message")]
    assert (await call(channel, "AckMessage", ack(*handles)))[0].code == Code.OK


async def test_foreign_handles_change_nothing(channel: Any) -> None:
    """A handle of another group or topic, or with one digit changed, is refused; the right one still works.

    Digits 42 to 49 are not changed. They name the broker run that made the handle, and handles stay valid after a
    restart.
    """
    await call(channel, "SendMessage", send(message()))
    responses = await answers(channel, "ReceiveMessage", receive(batch_size=1))
    handle = responses[1].message.system_properties.receipt_handle
    digits = [n for n in range(len(handle)) if not 42 <= n < 50]
    broken = [handle[:n] + ("1" if handle[n] == "0" else "0") + handle[n + 1 :] for n in digits]
    tries = [ack(handle, group="auditing"), ack(handle, topic="returns"), ack(handle + "0"), ack(handle[:-1])]
    for request in (*tries, *(ack(each) for each in broken)):
        (status,) = await call(channel, "AckMessage", request)
        assert status.code == Code.INVALID_RECEIPT_HANDLE, request
        readable(status)
    assert (await call(channel, "AckMessage", ack(handle)))[0].code == Code.OK


async def test_missing_fields(channel: Any) -> None:
    """Each field of a complete request is left out in turn, at every depth: a code, never an internal error."""
    await call(channel, "SendMessage", send(message()))
    complete = [
        ("SendMessage", with_properties({"a": "b"}, tag="t", keys=["k"], message_type=v2.MessageType.NORMAL)),
        ("ReceiveMessage", receive(batch_size=1, filter_expression=v2.FilterExpression(expression="*"))),
        ("AckMessage", ack("x")),
        ("ChangeInvisibleDuration", change()),
        ("QueryRoute", route("127.0.0.1", 8081)),
    ]
    for method, request in complete:
        for path in paths(request):
            lacking = type(request)()
            lacking.CopyFrom(request)
            inner: Any = lacking
            for step in path[:-1]:
                inner = getattr(inner, step) if isinstance(step, str) else inner[step]
            inner.ClearField(path[-1])
            for status in await call(channel, method, lacking):
                readable(status)


async def test_random_requests(channel: Any, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """Random values in any field get an answer in time, and its code is never an internal error."""
    with capsys.disabled():
        print(f"\nbad input: AEROBEE_INPUT_SEED={SEED}", flush=True)
    await call(channel, "SendMessage", send(*(message(message_id=f"r{n}") for n in range(20))))
    received = await answers(channel, "ReceiveMessage", receive(batch_size=20))
    handles = [r.message.system_properties.receipt_handle for r in received if r.HasField("message")]
    requests = RandomRequests(SEED, NAMES, handles)
    methods = [method for method in POOL.FindServiceByName(SERVICE).methods if not method.client_streaming]
    for _ in range(COUNT):
        made = [(method.name, requests.make(method.input_type)) for method in methods]
        outcomes = await asyncio.gather(*(call(channel, *each, seconds=5) for each in made), return_exceptions=True)
        for (name, request), outcome in zip(made, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise AssertionError(f"{name} of seed {SEED} ended with {outcome!r}:\n{request}") from outcome
            for status in outcome:
                readable(status, f"{name} of seed {SEED}:\n{request}")
    for _ in range(COUNT):
        await converse(channel, requests.make(v2.TelemetryCommand.DESCRIPTOR))


async def converse(channel: Any, command: Any) -> None:
    """Send a command on a new stream: an answer, none, or the end with INVALID_ARGUMENT."""
    stream = v2.MessagingServiceStub(channel).Telemetry(metadata=METADATA, timeout=10)
    try:
        await stream.write(command)
        await stream.done_writing()
        async for answer in stream:
            readable(answer.status)
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, (error.details(), command)  # noqa: PT017
        assert INSIDE.search(error.details() or "") is None, error.details()  # noqa: PT017


async def test_bytes_that_are_not_a_request(channel: Any) -> None:
    """Each method reports that it cannot parse the bytes, and what to do; Telemetry does so by ending its stream."""
    dice = random.Random(SEED)
    valid = send(message(tag="t")).SerializeToString()
    for method in POOL.FindServiceByName(SERVICE).methods:
        kind = GetMessageClass(method.output_type)
        for garbage in (b"\xff\xff\xff", b"\x0a\x7f", valid[:-1] + b"\xff", dice.randbytes(200), b"\x0a\x02\x0a\xff"):
            if method.client_streaming:
                stream = channel.stream_stream(f"/{SERVICE}/{method.name}", response_deserializer=kind.FromString)
                stream = stream(iter([garbage]), metadata=METADATA, timeout=60)
            else:
                stream = channel.unary_stream(f"/{SERVICE}/{method.name}", response_deserializer=kind.FromString)
                stream = stream(garbage, metadata=METADATA, timeout=60)
            status, failure = v2.Status(), None
            try:
                async for response in stream:
                    if response.HasField("status"):
                        status = response.status
                        readable(status, method.name)
            except grpc.aio.AioRpcError as error:
                failure = error
            if failure is not None:
                assert method.client_streaming, (method.name, failure)
                assert failure.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert INSIDE.search(failure.details() or "") is None, failure.details()
            if garbage == b"\xff\xff\xff":
                said = status.message if failure is None else failure.details() or ""
                assert "cannot be parsed; send a message of apache.rocketmq.v2" in said, (method.name, said)
                assert failure is not None or status.code == Code.BAD_REQUEST


async def test_a_method_that_does_not_exist(channel: Any) -> None:
    """The status is UNIMPLEMENTED for any unknown service or method."""
    for path in (f"/{SERVICE}/Nonsense", "/nonsense/Nonsense", "/x", "//", f"/{SERVICE}/" + "y" * 4000):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(path)(b"", timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "metadata",
    [
        (("x-mq-client-id", "a" * 1500),),
        (("x-mq-client-id", ""),),
        (("x-mq-client-id-bin", b"\xff\xfe"),),
        (*METADATA, ("x-mq-namespace", "a b/../c")),
        (*METADATA, ("x-mq-namespace", "n" * 3000)),
        (*METADATA, ("x-mq-language", "\x7e" * 2000), ("x-mq-client-version", "%s%n")),
        (*METADATA, ("x-mq-client-id", "twice")),
        (*METADATA, *((f"x-header-{n}", "v" * 20) for n in range(50))),
        (*METADATA, ("x-padding", "p" * 100_000)),
        (*METADATA, ("authorization", "MQv2-HMAC-SHA1 " + "=" * 3000)),
    ],
    ids=[
        "long-id",
        "empty-id",
        "binary-id",
        "namespace",
        "long-namespace",
        "language",
        "twice",
        "many",
        "huge",
        "auth",
    ],
)
async def test_odd_metadata(channel: Any, metadata: Any) -> None:
    """The answer has a code, or gRPC itself refuses metadata that is too large."""
    stub: Any = v2.MessagingServiceStub(channel)
    try:
        response = await stub.QueryRoute(
            v2.QueryRouteRequest(topic=v2.Resource(name="orders")), metadata=metadata, timeout=5
        )
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error.details()  # noqa: PT017
    else:
        readable(response.status)


# --- Connections --------------------------------------------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(32) + bytes.fromhex("20") + bytes(150)
GARBAGE = {
    "nothing": b"",
    "zeros": bytes(5000),
    "ones": b"\xff" * 5000,
    "tls": TLS_HELLO,
    "http1": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999\r\n\r\n",
    "http1-get": b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    "long-line": b"GET /" + b"a" * 200_000,
    "many-headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 2000 + b"\r\n",
    "half-preface": PREFACE[:10],
    "huge-frame": PREFACE + SETTINGS + b"\xff\xff\xff\x01\x04\0\0\0\x01" + b"\x80" * 1000,
    "bad-headers": PREFACE + SETTINGS + b"\0\0\x05\x01\x05\0\0\0\x01" + b"\xff\xff\xff\xff\x7f",
    "window": PREFACE + SETTINGS + b"\0\0\x04\x08\0\0\0\0\0\x7f\xff\xff\xff",
}


@pytest.mark.parametrize("port", ["grpc", "http"])
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_on_a_port(broker: BrokerProcess, port: str, garbage: bytes) -> None:
    """A client of another protocol is disconnected or gets an error; other clients are served."""
    reader, writer = await asyncio.open_connection(*address(broker, port))
    with suppress(OSError):  # it may close the connection before everything is written
        writer.write(garbage)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(100_000), 60)
        assert INSIDE.search(answer.decode(errors="replace")) is None, answer
    writer.close()
    await works(broker)


async def test_half_open_and_idle_connections(broker: BrokerProcess) -> None:
    """300 connections send nothing, half a greeting or only a greeting, then disappear."""
    with ExitStack() as connections:
        for number in range(300):
            port = "http" if number % 10 == 9 else "grpc"
            connection = connections.enter_context(socket.create_connection(address(broker, port), timeout=60))
            connection.sendall((b"", PREFACE[: number % 24], PREFACE + SETTINGS)[number % 3] if port == "grpc" else b"")
            if number % 2:  # closing sends a reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await works(broker)
    await works(broker)


async def test_abandoned_calls_keep_no_message(broker: BrokerProcess) -> None:
    """Clients disconnect during polls and Telemetry; a connected client gets the message at its first attempt."""
    for round_ in range(3):
        await abandon(broker, 50, f"gone-{round_}")
    async with connect(broker.endpoint) as client:
        consumer = client.simple_consumer("billing", "abandoned")
        waiting = asyncio.ensure_future(consumer.receive(wait_seconds=15))
        await asyncio.sleep(0.3)
        sent = await client.producer().send(Message(topic="abandoned", body=b"for the living"))
        async with asyncio.timeout(60):
            (received,) = await waiting
        assert (received.message_id, received.delivery_attempt) == (sent.message_id, 1)
        await consumer.ack(received)


async def abandon(broker: BrokerProcess, count: int, name: str) -> None:
    """Open long polls and Telemetry streams with settings, then cut their connection."""
    async with grpc.aio.insecure_channel(broker.endpoint, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: Any = v2.MessagingServiceStub(channel)
        calls = []
        for number in range(count):
            metadata = (("x-mq-client-id", f"{name}@{number}"), ("x-mq-language", "JAVA"))
            poll = receive("abandoned", auto_renew=True, long_polling_timeout=v2.Duration(seconds=20))
            calls.append(stub.ReceiveMessage(poll, metadata=metadata, timeout=25))
            stream = stub.Telemetry(metadata=metadata)
            settings = v2.Settings(subscription=v2.Subscription(group=v2.Resource(name="billing")))
            await stream.write(v2.TelemetryCommand(settings=settings))
            calls.append(stream)
        await asyncio.wait_for(calls[-1].read(), 60)
    # Leaving the block closes the channel: every call ends without NotifyClientTermination.


async def test_memory_does_not_grow(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """After the first rounds of all requests above, resident memory stays within a small bound."""
    sizes = []
    for round_ in range(12):
        async with grpc.aio.insecure_channel(broker.endpoint) as channel:
            requests = RandomRequests(SEED + round_, NAMES, ())
            large = send(message(body=b"x" * 5_000_000))
            assert (await call(channel, "SendMessage", large))[0].code == Code.MESSAGE_BODY_TOO_LARGE
            for _ in range(10):
                made = [requests.make(v2.SendMessageRequest.DESCRIPTOR) for _ in range(10)]
                await asyncio.gather(*(call(channel, "SendMessage", each) for each in made))
        for garbage in GARBAGE.values():
            _, writer = await asyncio.open_connection(*address(broker, "grpc"))
            writer.write(garbage)
            writer.close()
        await abandon(broker, 20, f"round-{round_}")
        await works(broker)
        sizes.append(resident(broker))
    with capsys.disabled():
        print(f"\nbad input: resident MiB after each round: {[size >> 20 for size in sizes]}", flush=True)
    assert sizes[-1] - min(sizes[3], sizes[4]) < GROWTH_MAX, [size >> 20 for size in sizes]


# --- Shared -------------------------------------------------------------------------------------------------


async def call(channel: Any, method: str, request: Any, seconds: float = 10.0) -> list[v2.Status]:
    """The statuses in an answer: the overall one first, then those of single entries."""
    statuses: list[v2.Status] = []
    for response in await answers(channel, method, request, seconds):
        if "status" in response.DESCRIPTOR.fields_by_name and (response.HasField("status") or not statuses):
            statuses.append(response.status)
    return statuses


async def answers(channel: Any, method: str, request: Any, seconds: float = 10.0) -> list[Any]:
    """All messages of the answer, which must arrive in time."""
    made = getattr(v2.MessagingServiceStub(channel), method)(request, metadata=METADATA, timeout=seconds)
    started = time.monotonic()
    responses = [each async for each in made] if isinstance(made, grpc.aio.UnaryStreamCall) else [await made]
    assert time.monotonic() - started < seconds
    return responses


def paths(request: Any) -> Iterator[list[Any]]:
    """The path to each field that is set."""
    for field, value in request.ListFields():
        yield [field.name]
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            for index, each in enumerate(value):
                yield from ([field.name, index, *path] for path in paths(each))
        else:
            yield from ([field.name, *path] for path in paths(value))


def address(broker: BrokerProcess, port: str) -> tuple[str, int]:
    host, _, number = (broker.endpoint if port == "grpc" else broker.metrics).rpartition(":")
    return host, int(number)
