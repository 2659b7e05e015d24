"""Hostile input: what a stranger can send to each port, drawn from the grammar of its protocol.

An `Attack` is what some connections send, whether they read, and how long they stay. `NAMED` has the attacks that once
did harm, at the size that showed it. `drawn` makes others: every field at its limits and past them, every element
repeated, and each of them cut, slow or unread. `tests/integration/test_hostile_input.py` runs both and judges the
broker.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from aerobee_broker.front import frames
from aerobee_broker.front.frames import Setting
from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.frame import Command, encode, encode_binary
from aerobee_broker.remoting_wire.signature import PeerKey
from aerobee_broker.replication.frames import ReplicaHandshake
from aerobee_client import Credentials
from aerobee_proto import admin_v1, v2
from tests.support.hostile_messages import METHODS, drawn_request, varint
from tests.support.http2_attacker import begin_of_tls, block, headers, message
from tests.support.tls_records import RECORD_SIZE_MAX

MESSAGING: Final = "/apache.rocketmq.v2.MessagingService"
ADMINISTRATION: Final = "/aerobee.v1.AdminService"
SEND: Final = block(f"{MESSAGING}/SendMessage")
SEND_GZIP: Final = block(f"{MESSAGING}/SendMessage", (b"grpc-encoding", b"gzip"))
RECEIVE: Final = block(f"{MESSAGING}/ReceiveMessage")
QUERY: Final = block("/apache.rocketmq.v2.Admin/QueryMessage")
HEALTH: Final = block("/grpc.health.v1.Health/Check")
REFLECTION: Final = block("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
GREETING: Final = frames.PREFACE + frames.settings({})
STORED_TOPIC: Final = "large"
STORED_KEY: Final = "key"
"""A topic that has messages with this key, enough for the largest answer to a query."""
ATTACKER: Final = "attacker"
ATTACKER_SECRET: Final = "that of the attacker"
_WRITE: Final = 1 << 16
Target = Literal["broker", "remoting", "namesrv", "replicas", "metrics"]
"""A port: that of gRPC and remoting, of remoting alone, of `aerobee namesrv`, of replicas, of metrics."""


@dataclass(frozen=True)
class Records:
    """How a connection uses TLS. All connections send their records at once, when all have made them."""

    size: int = RECORD_SIZE_MAX
    """Of the data of one record, in bytes."""
    between: Literal["key updates", "empty records", "warnings"] = "empty records"
    between_count: int = 0
    """So many of these before each record."""
    handshake_write: int = 1 << 16
    """Bytes of a write of the handshake."""
    handshake_cut: int | None = None
    """The bytes of the handshake after which the connection sends no more."""
    write_size: int = 0
    """Bytes of a write behind the handshake; 0: all."""
    lacking: int = 0
    """Bytes of the end that are not sent."""
    has_certificate: bool = False
    """Whether it has a certificate of the cluster."""


@dataclass(frozen=True)
class Attack:
    """What `connections` connections send: `sent(number)` yields the writes of one."""

    name: str
    connections: int
    sent: Callable[[int], Iterable[bytes]]
    reads: bool = False
    tls: bool = False
    """Whether the connections use TLS."""
    records: Records | None = None
    """Of connections that encrypt their records themselves, and read nothing."""
    stays_seconds: float = 1.0
    """How long the connections stay after their last byte."""
    pause_seconds: float = 0.0
    """Between two writes."""
    target: Target = "broker"
    has_accounts: bool = False
    """Whether the broker has accounts."""
    is_signed: bool = False
    """Whether the attacker signs: with an account that may use all topics and groups, and is no administrator; to name
    servers and ports for replicas with the secret of the cluster."""
    charged: tuple[str, int] | None = None
    """A kind of the ledger, and the least bytes of it that the attack must be charged at its peak."""

    def __str__(self) -> str:
        return self.name


def split(data: bytes, size: int = _WRITE) -> Iterator[bytes]:
    """The data in writes of this size."""
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


# --- Elements of HTTP/2 and gRPC ----------------------------------------------------------------------------


def unread_settings() -> bytes:
    """The greeting of a client whose streams have no window: no answer with a body can leave."""
    return frames.PREFACE + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0})


def settings_of(entries: int, key: int = Setting.INITIAL_WINDOW_SIZE) -> bytes:
    """One SETTINGS frame with this many entries, each of which changes the value."""
    payload = b"".join(struct.pack(">HI", key, 65_535 + n % 2) for n in range(entries))
    return frames.frame(frames.SETTINGS, 0, 0, payload)


def stored_field(name: bytes, value: bytes) -> bytes:
    """A literal that enters the decoder's table (RFC 7541, section 6.2.1)."""
    return b"\x40" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    return _integer(len(text), 0x7F, 0) + text


def huffman_string(size: int, byte: int = 0xFF) -> bytes:
    """A string marked as Huffman-coded, of any bytes."""
    return _integer(size, 0x7F, 0x80) + bytes((byte,)) * size


def _integer(number: int, mask: int, flags: int) -> bytes:
    if number < mask:
        return bytes((flags | number,))
    found = bytearray((flags | mask,))
    number -= mask
    while number >= 128:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def open_calls(count: int, of_call: bytes, *, first: int = 1, ended: bool = False) -> bytes:
    """HEADERS of so many calls."""
    return b"".join(headers(first + 2 * n, of_call, ended=ended) for n in range(count))


def prefixed(request: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message with its prefix."""
    return bytes((compressed,)) + len(request).to_bytes(4, "big") + request


def data(stream_id: int, payload: bytes, *, ended: bool = False, frame_size: int = frames.FRAME_SIZE_DEFAULT) -> bytes:
    """Bytes of a request in DATA frames of a size."""
    count = range(0, len(payload), frame_size)
    parts = [frames.frame(frames.DATA, 0, stream_id, payload[at : at + frame_size]) for at in count]
    if ended:
        parts.append(frames.frame(frames.DATA, frames.END_STREAM, stream_id, b""))
    return b"".join(parts)


# --- Elements of remoting -----------------------------------------------------------------------------------


def heartbeat(groups: int, number: int = 0) -> bytes:
    """A heartbeat of a producer in so many groups of its own."""
    found = [{"groupName": f"group-{number}-{n}"} for n in range(groups)]
    return encode(_request(Request.HEART_BEAT, {}, _json({"clientID": f"c{number}", "producerDataSet": found})))


def heartbeat_of_consumer(group: str, client_id: str) -> bytes:
    """A heartbeat of a consumer, which joins the group."""
    return encode(
        _request(Request.HEART_BEAT, {}, _json({"clientID": client_id, "consumerDataSet": [{"groupName": group}]}))
    )


def put_value(number: int, size: int) -> bytes:
    """A value of a name server."""
    fields = {"namespace": "n", "key": f"k{number}", "value": "v" * size}
    return encode(_request(Request.PUT_KV_CONFIG, fields))


def registration(body: bytes, number: int = 0) -> bytes:
    """A registration of a broker with this body."""
    fields = {
        "brokerName": f"stranger{number}",
        "brokerAddr": f"10.0.0.{number}:10911",
        "clusterName": "c",
        "haServerAddr": "",
        "brokerId": "0",
        "compressed": "true" if body[:1] == b"x" else "false",
    }
    return encode(_request(Request.REGISTER_BROKER, fields, body))


def query_by_key(opaque: int = 0) -> bytes:
    """A query whose answer is as large as answers get."""
    fields = {
        **{"topic": STORED_TOPIC, "key": STORED_KEY, "maxNum": "64"},
        **{"beginTimestamp": "0", "endTimestamp": str(1 << 62)},
    }
    return encode(Command(Request.QUERY_MESSAGE, opaque=opaque, fields=fields))


def _request(code: int, fields: dict[str, str], body: bytes = b"") -> Command:
    return Command(code, fields=fields, body=body)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# --- JSON ---------------------------------------------------------------------------------------------------

_JSON_SHAPES: Final[dict[str, tuple[bytes, bytes, bytes]]] = {
    "empty lists": (b"[", b"[],", b"0]"),
    "empty objects": (b"[", b"{},", b"0]"),
    "numbers": (b"[", b"1,", b"0]"),
    "short strings": (b"[", b'"",', b"0]"),
    "escapes": (b'"', b"\\u0041", b'"'),
    "surrogates": (b'"', b"\\ud83d\\ude00", b'"'),
    "bare keys": (b"{", b"1:1,", b"0:0}"),
    "members": (b"{", b'"a":0,', b'"b":0}'),
    "depth": (b"", b"[", b""),
    "object keys": (b"{", b"{1:1}:1,", b"0:0}"),
    "white space": (b"", b" ", b"0"),
}


def json_of(shape: str, size: int) -> bytes:
    """About this many bytes of JSON of one shape."""
    begin, repeated, end = _JSON_SHAPES[shape]
    return begin + repeated * (size // len(repeated)) + end


# --- Attacks that once did harm -----------------------------------------------------------------------------


def _gzip_sends(number: int) -> Iterator[bytes]:
    """Long polls fill what requests may take; then each send is a thousand times its size."""
    wait = v2.ReceiveMessageRequest(group=v2.Resource(name="nobody"), long_polling_timeout=v2.Duration(seconds=20))
    wait.message_queue.topic.name = "nothing"
    wait.invisible_duration.FromSeconds(30)
    padded = wait.SerializeToString() + b"\x9a\x3f" + varint(100_000) + bytes(100_000)  # an unknown field
    yield GREETING
    for n in range(257):
        yield headers(1 + 2 * n, RECEIVE) + message(1 + 2 * n, padded)
    request = v2.SendMessageRequest(messages=[v2.Message(topic=v2.Resource(name="t"), body=bytes(15 << 20))])
    packed = prefixed(gzip.compress(request.SerializeToString()), compressed=True)
    for n in range(257, 257 + 60):
        yield headers(1 + 2 * n, SEND_GZIP) + data(1 + 2 * n, packed, ended=True)


def _unread_queries(_: int) -> Iterator[bytes]:
    request = v2.ListMessageRequest(topic=v2.Resource(name=STORED_TOPIC), message_key=STORED_KEY)
    yield unread_settings()
    for n in range(120):
        yield headers(1 + 2 * n, QUERY) + message(1 + 2 * n, request.SerializeToString())


def _unread_remoting_queries(_: int) -> Iterator[bytes]:
    yield b"".join(query_by_key(n) for n in range(60))


def _partial_frame(_: int) -> Iterator[bytes]:
    yield struct.pack(">iI", (16 << 20) - 4, 100)
    yield from split(bytes(15 << 20), 1 << 20)


def _header_bomb(_: int) -> Iterator[bytes]:
    """A field of empty values fills the table; 64 blocks of indexes name it 31 times each."""
    yield GREETING + headers(1, SEND + stored_field(b"x-bin", b"," * 4_059))
    for n in range(1, 65):
        other = bytes((0x80 + 15 + n % 47, 0x80 + 15 + n // 47))  # static fields, so that no two blocks are equal
        yield headers(1 + 2 * n, b"\x83\x86\x84" + other + b"\xbe" * 31)


def _tiny_data(_: int) -> Iterator[bytes]:
    yield GREETING + headers(1, SEND)
    yield from split(data(1, prefixed(bytes(4 << 20))[:-1], frame_size=2))


def _open_calls(_: int) -> Iterator[bytes]:
    yield GREETING + frames.settings({Setting.INITIAL_WINDOW_SIZE: 65_535})
    yield from split(headers(1, SEND) + open_calls(9_900, SEND, first=3))


def _calls_with_deadlines(_: int) -> Iterator[bytes]:
    of_call = block("/grpc.health.v1.Health/Watch", (b"grpc-timeout", b"3S"))
    yield GREETING
    yield from split(b"".join(headers(n, of_call) + message(n, b"") for n in range(1, 2 * 9_500, 2)))


def _waiting_receives(number: int) -> Iterator[bytes]:
    """Of groups of their own, so that all wait."""
    of_call = block(f"{MESSAGING}/ReceiveMessage", (b"x-mq-client-id", b"waits"), (b"grpc-timeout", b"30S"))
    yield GREETING
    for group in range(9):
        wait = v2.ReceiveMessageRequest(
            group=v2.Resource(name=f"group-{number}-{group}"), long_polling_timeout=v2.Duration(seconds=20)
        )
        wait.message_queue.topic.name = "returns"
        wait.invisible_duration.FromSeconds(30)
        request = wait.SerializeToString()
        first = 1 + 2_000 * group
        yield b"".join(headers(n, of_call) + message(n, request) for n in range(first, first + 2_000, 2))


def _waiting_pulls(_: int) -> Iterator[bytes]:
    fields = {
        **{"consumerGroup": "auditing", "topic": STORED_TOPIC, "queueId": "0", "maxMsgNums": "32", "sysFlag": "6"},
        **{"commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "1"},
        "expressionType": "TAG",
    }
    # Only pulls at the end of the queue wait, and how many messages it has is not known.
    for offset in range(1, 6):
        yield encode(Command(Request.PULL_MESSAGE, fields=fields | {"queueOffset": str(offset)})) * 8_000


def _long_filters(number: int) -> Iterator[bytes]:
    """Each pull has another SQL expression of the greatest length, which takes longest to compile."""
    fields = {
        **{"consumerGroup": "auditing", "topic": STORED_TOPIC, "queueId": "0", "maxMsgNums": "32", "sysFlag": "4"},
        **{"commitOffset": "0", "queueOffset": "0", "subVersion": "1", "expressionType": "SQL92"},
    }
    texts = ",".join(["''"] * 1_340)
    yield b"".join(
        encode(Command(Request.PULL_MESSAGE, fields=fields | {"subscription": f"a{number}b{n} in ({texts})"}))
        for n in range(200)
    )


def _new_topics(number: int) -> Iterator[bytes]:
    """Each message makes a topic of its own."""
    of_call = block(f"{MESSAGING}/SendMessage", (b"x-mq-client-id", b"topics"))
    yield GREETING
    for n in range(1_000):
        one = v2.Message(topic=v2.Resource(name=f"new-{number}-{n}"), body=b"x")
        one.system_properties.message_id = f"{number:016}{n:016}"
        yield headers(1 + 2 * n, of_call) + message(
            1 + 2 * n, v2.SendMessageRequest(messages=[one]).SerializeToString()
        )


def _filled_tables(number: int) -> Iterator[bytes]:
    """Topics with all their queues, groups, a position of each group in each queue, offsets of invented queues, light
    queues."""
    topics = [{"topicName": f"t-{number}-{n}", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6} for n in range(100)]
    yield encode(_request(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, _json({"topicConfigList": topics})))
    popped = {
        **{"queueId": "-1", "maxMsgNums": "1", "invisibleTime": "60000", "pollTime": "0", "bornTime": "4000000000000"},
        **{"initMode": "0", "expType": "TAG", "exp": "*", "order": "false"},
    }
    for group in range(90):
        names = {"consumerGroup": f"g-{number}-{group}"}
        pops = (
            Command(Request.POP_MESSAGE, fields=popped | names | {"topic": f"t-{number}-{n}"})
            for n in range(len(topics))
        )
        yield b"".join(map(encode, pops))
    place = {"consumerGroup": "auditing", "topic": "returns", "commitOffset": "1"}
    for first in range(0, 20_000, 1_000):
        commits = (place | {"queueId": f"{n}"} for n in range(first, first + 1_000))
        yield b"".join(encode(Command(Request.UPDATE_CONSUMER_OFFSET, fields=fields)) for fields in commits)
    for n in range(4_000):
        fields = _sent_fields(f"{'n' * 110}-{number}-{n // 8}", n % 8)
        queues = ",".join(f"%LMQ%{number}-{n}-{light}" for light in range(4))
        yield encode(Command(Request.SEND_MESSAGE_V2, fields=fields, body=b"x"))
        fields = _sent_fields(STORED_TOPIC, 0) | {"i": f"INNER_MULTI_DISPATCH\x01{queues}\x02"}
        yield encode(Command(Request.SEND_MESSAGE_V2, fields=fields, body=b"x"))


_READ_QUEUES: Final = 1_000
_READ_TOPICS: Final = 15


def _read_positions(number: int) -> Iterator[bytes]:
    """One group has a position in as many queues as fit, which are read: over remoting, and over gRPC."""
    if number:
        yield from _positions_over_grpc()
        return
    topics = [
        {"topicName": f"t-{n}", "readQueueNums": _READ_QUEUES, "writeQueueNums": _READ_QUEUES, "perm": 6}
        for n in range(_READ_TOPICS)
    ]
    yield encode(_request(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, _json({"topicConfigList": topics})))
    popped = {
        **{"consumerGroup": "reads", "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "60000", "pollTime": "0"},
        **{"bornTime": "4000000000000", "initMode": "0", "expType": "TAG", "exp": "*", "order": "false"},
    }
    for n in range(_READ_TOPICS):
        yield encode(Command(Request.POP_MESSAGE, fields=popped | {"topic": f"t-{n}"}))
    fields = {"consumerGroup": "reads", "group": "reads", "isOrder": "false"}
    for code in (Request.GET_CONSUME_STATS, Request.GET_BROKER_CONSUME_STATS, Request.GET_ALL_CONSUMER_OFFSET):
        yield encode(Command(code, fields=fields)) * 4


def _positions_over_grpc() -> Iterator[bytes]:
    yield GREETING
    group = v2.Resource(name="reads")
    requests: tuple[tuple[str, Message], ...] = (
        ("/apache.rocketmq.v2.Admin/DescribeGroupAccumulation", v2.DescribeGroupAccumulationRequest(group=group)),
        ("/apache.rocketmq.v2.Admin/QueryTimeSpan", v2.QueryTimeSpanRequest(group=group)),
        (f"{ADMINISTRATION}/DescribeGroup", admin_v1.DescribeGroupRequest(name="reads")),
        (
            f"{ADMINISTRATION}/ListGroupStatus",
            admin_v1.ListGroupStatusRequest(order=admin_v1.GroupOrder.GROUP_ORDER_LAG),
        ),
    )
    for stream in range(1, 2 * 60, 2):
        path, request = requests[stream // 2 % len(requests)]
        yield headers(stream, block(path)) + message(stream, request.SerializeToString())


def _sent_fields(topic: str, queue_id: int) -> dict[str, str]:
    """The fields of SEND_MESSAGE_V2; a new topic gets 8 queues."""
    return {
        **{"a": "PG", "b": topic, "c": "TBW102", "d": "8", "e": f"{queue_id}", "f": "0", "g": "0", "h": "0", "i": ""},
        **{"j": "0", "k": "false", "m": "false"},
    }


def _batch_acknowledgement(_: int) -> Iterator[bytes]:
    """Bits without number, of which none is set."""
    entry = {"t": STORED_TOPIC, "c": "auditing", "r": "0", "so": 0, "q": 0, "pt": 1, "it": 1}
    zeros = base64.b64encode(bytes(4_096)).decode()
    body = _json({"acks": [entry | {"b": zeros}] * 700})
    for _ in range(3):
        yield encode(_request(Request.BATCH_ACK_MESSAGE, {}, body))


def _popped(_: int) -> Iterator[bytes]:
    """Messages, pops of all of them in few writes, and acknowledgements with a bit for each."""
    sent = _sent_fields("popped", 0) | {"d": "4"}
    yield encode(Command(Request.SEND_MESSAGE_V2, fields=sent, body=b"x"))  # makes the topic
    for _ in range(20):
        yield encode(Command(Request.SEND_MESSAGE_V2, fields=sent, body=b"x", flag=2)) * 500
    yield heartbeat_of_consumer("auditing", "c")
    popped = {
        **{"consumerGroup": "auditing", "topic": "popped", "queueId": "0", "maxMsgNums": "32", "bornTime": "0"},
        **{"invisibleTime": "600000", "pollTime": "0", "initMode": "0", "exp": "*", "expType": "TAG"},
    }
    for _ in range(4):
        yield encode(Command(Request.POP_MESSAGE, fields=popped)) * 80
    bits = base64.b64encode(b"\xff" * 1_250).decode()
    entry = {"t": "popped", "c": "auditing", "r": "0", "so": 0, "q": 0, "pt": 1 << 50, "it": 1, "b": bits}
    for _ in range(3):
        yield encode(_request(Request.BATCH_ACK_MESSAGE, {}, _json({"acks": [entry]})))


def _long_filters_of_grpc(number: int) -> Iterator[bytes]:
    """The same in receives, of which most wait until earlier ones give their memory back."""
    texts = ",".join(["''"] * 1_340)
    padding = b"\x9a\x3f" + varint(100_000) + bytes(100_000)  # an unknown field
    of_call = block(f"{MESSAGING}/ReceiveMessage", (b"x-mq-client-id", b"filters"), (b"grpc-timeout", b"30S"))
    yield GREETING
    for n in range(400):
        wait = v2.ReceiveMessageRequest(group=v2.Resource(name="auditing"), long_polling_timeout=v2.Duration(seconds=2))
        wait.message_queue.topic.name = STORED_TOPIC
        wait.invisible_duration.FromSeconds(30)
        wait.filter_expression.type = v2.FilterType.SQL
        wait.filter_expression.expression = f"a{number}b{n} in ({texts})"
        yield headers(1 + 2 * n, of_call) + message(1 + 2 * n, wait.SerializeToString() + padding)


def _large_gzip(number: int) -> Iterator[bytes]:
    """Sends of the greatest size in hexadecimal digits, which take longest to decompress."""
    body = random.Random(number).randbytes((16 << 20) // 2 - 4_096).hex().encode()
    request = v2.SendMessageRequest(messages=[v2.Message(topic=v2.Resource(name="t"), body=body)])
    packed = prefixed(gzip.compress(request.SerializeToString(), 1), compressed=True)
    of_call = block(f"{MESSAGING}/SendMessage", (b"grpc-encoding", b"gzip"), (b"x-mq-client-id", b"gzip"))
    yield GREETING
    for n in range(6):
        yield headers(1 + 2 * n, of_call)
        yield from split(data(1 + 2 * n, packed, ended=True))


def _remembered_heads(_: int) -> Iterator[bytes]:
    """A table of many small fields, and heads that consist of their indexes."""
    table = b"".join(stored_field(b"%c" % (97 + n % 26), b"%c" % (97 + n // 26)) for n in range(120))
    yield GREETING + headers(1, HEALTH + table, ended=True)
    for n in range(1, 65):
        indexes = b"".join(_integer(62 + (n + k) % 120, 0x7F, 0x80) for k in range(110))
        yield headers(1 + 2 * n, b"\x83\x86\x84" + bytes((0x80 + 15 + n % 47,)) + indexes, ended=True)


def _remembered_resets(_: int) -> Iterator[bytes]:
    yield GREETING
    yield b"".join(headers(n, SEND) + frames.rst_stream(n, frames.ErrorCode.CANCEL) for n in range(1, 2 * 1_990, 2))


def _nothing(_: int) -> Iterator[bytes]:
    return iter(())


def _greeting(_: int) -> Iterator[bytes]:
    yield GREETING


def _many_acknowledgements(_: int) -> Iterator[bytes]:
    yield GREETING + frames.frame(frames.SETTINGS, frames.ACK, 0, b"") * 20_000


def _acknowledgements(_: int) -> Iterator[bytes]:
    yield GREETING + frames.frame(frames.SETTINGS, frames.ACK, 0, b"") * 1_000


def _read_queries(_: int) -> Iterator[bytes]:
    """Answers of 32 MiB, with a window for all of them."""
    request = v2.ListMessageRequest(topic=v2.Resource(name=STORED_TOPIC), message_key=STORED_KEY)
    yield frames.PREFACE + frames.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 30}) + frames.window_update(0, 1 << 30)
    for n in range(8):
        yield headers(1 + 2 * n, QUERY) + message(1 + 2 * n, request.SerializeToString())


def _begun_remoting(_: int) -> Iterator[bytes]:
    yield struct.pack(">i", 100)


def _unread_log(_: int) -> Iterator[bytes]:
    """The first report of a replica whose log is empty: it gets the whole log."""
    yield struct.pack(">q", 0)


def _long_head(_: int) -> Iterator[bytes]:
    """A request with a hundred headers as long as the standard library takes them."""
    yield b"GET /metrics HTTP/1.1\r\n"
    for n in range(99):
        yield b"x%d: " % n + b"a" * 65_000 + b"\r\n"


def _unread_scrapes(_: int) -> Iterator[bytes]:
    yield b"GET /metrics HTTP/1.1\r\n\r\n"


def _half_tls(_: int) -> Iterator[bytes]:
    yield begin_of_tls()[:-1]


def _values(number: int) -> Iterator[bytes]:
    for n in range(number * 150, number * 150 + 150):
        yield put_value(n, 230_000)


def _small_values(number: int) -> Iterator[bytes]:
    for n in range(number * 1000, number * 1000 + 1000):
        yield put_value(n, 1)


def _groups(number: int) -> Iterator[bytes]:
    yield heartbeat(1000, number)


def _members(number: int) -> Iterator[bytes]:
    """Consumers of the same groups: all of them are told of each one that joins or leaves."""
    yield b"".join(heartbeat_of_consumer(f"g{group}", f"c{number}") for group in range(10))


def _settings_and_calls(_: int) -> Iterator[bytes]:
    yield GREETING
    yield from split(open_calls(9_501, SEND))
    yield settings_of(10_900)


def _many_settings(_: int) -> Iterator[bytes]:
    yield GREETING
    yield from split(open_calls(100, SEND))
    yield settings_of(2_600) * 25


def _huffman(_: int) -> Iterator[bytes]:
    yield GREETING
    text = b"\x00" + _string(b"x") + _integer(60_000, 0x7F, 0x80) + b"\xff\x9f" * 30_000
    plain = b"\x00" + _string(b"x") + huffman_string(60_000, 0x00)
    for n in range(8):
        yield headers(1 + 2 * n, SEND + (text if n % 2 else plain))


def _table_churn(_: int) -> Iterator[bytes]:
    yield GREETING
    churn = b"".join(stored_field(b"%c" % (97 + n % 26), b"") for n in range(3_000))
    for n in range(30):
        yield headers(1 + 2 * n, SEND + churn)


def _pipelined_health(_: int) -> Iterator[bytes]:
    yield GREETING
    first = b"".join(
        stored_field(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/grpc.health.v1.Health/Check"),
            (b"content-type", b"application/grpc"),
        )
    )
    later = b"\xc1\xc0\xbf\xbe"
    empty = prefixed(b"")
    calls = [headers(1, first) + frames.frame(frames.DATA, frames.END_STREAM, 1, empty)]
    calls += [
        headers(n, later) + frames.frame(frames.DATA, frames.END_STREAM, n, empty) for n in range(3, 2 * 60_000, 2)
    ]
    yield b"".join(calls)


def _tiny_frames(_: int) -> Iterator[bytes]:
    one = encode_binary(Command(Request.GET_KV_CONFIG, flag=2))
    yield one * 200_000


def _json_heartbeat(shape: str) -> Callable[[int], Iterator[bytes]]:
    def sent(_: int) -> Iterator[bytes]:
        yield encode(_request(Request.HEART_BEAT, {}, json_of(shape, 16_000_000)))

    return sent


def _json_zlib(shape: str, size: int) -> Callable[[int], Iterator[bytes]]:
    def sent(number: int) -> Iterator[bytes]:
        text = json_of(shape, size)
        body = struct.pack(">i", len(text)) + text + struct.pack(">i", 0)
        yield registration(zlib.compress(body, 9), number)

    return sent


def _zlib_topics(number: int) -> Iterator[bytes]:
    version = _json({"counter": 1, "timestamp": 1, "stateVersion": 0})
    one = b"%06d 1 1 6 SINGLE_TAG"
    topics = b"".join(struct.pack(">i", len(text)) + text for text in (one % n for n in range(300_000)))
    body = struct.pack(">i", len(version)) + version + struct.pack(">i", 300_000) + topics
    yield registration(zlib.compress(body, 9), number)


def _subscriptions(number: int) -> Iterator[bytes]:
    """Expressions of megabytes, which stay while the connection does."""
    data = {
        "topic": "t",
        "subString": "a" * 1_900_000,
        "expressionType": "TAG",
        "subVersion": 1,
        "more": "b" * 1_900_000,
    }
    for n in range(2):
        group = {"groupName": f"g-{number}-{n}", "subscriptionDataSet": [data]}
        body = _json({"clientID": f"c{number}", "consumerDataSet": [group]})
        yield encode(_request(Request.HEART_BEAT, {}, body))


def _routes(number: int) -> Iterator[bytes]:
    version = _json({"counter": 1, "timestamp": 1, "stateVersion": 0})
    for n in range(2):
        name = b"%06d-%02d-%d 1 1 6 SINGLE_TAG"
        topics = b"".join(
            struct.pack(">i", len(text)) + text for text in (name % (topic, number, n) for topic in range(40_000))
        )
        body = struct.pack(">i", len(version)) + version + struct.pack(">i", 40_000) + topics + struct.pack(">i", 0)
        yield registration(zlib.compress(body, 1), number * 2 + n)


def _unread_settings(number: int) -> Iterator[bytes]:
    """Settings that are answered with settings, on streams without a window."""
    subscription = v2.Subscription(group=v2.Resource(name="g"))
    for n in range(1_500):
        entry = subscription.subscriptions.add(topic=v2.Resource(name=f"{n:0120}"))
        entry.expression.expression = "*"
    settings = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER, subscription=subscription)
    command = prefixed(v2.TelemetryCommand(settings=settings).SerializeToString())
    yield unread_settings()
    for n in range(10):
        of_call = block(f"{MESSAGING}/Telemetry", (b"x-mq-client-id", b"unread-%d-%d" % (number, n)))
        yield headers(1 + 2 * n, of_call) + data(1 + 2 * n, command * 4)


def _listed_subscriptions(_: int) -> Iterator[bytes]:
    """The most subscriptions of a client, and each call that compares those of a group."""
    settings = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER)
    settings.subscription.group.name = "listed"
    for n in range(4_096):
        settings.subscription.subscriptions.add(topic=v2.Resource(name=f"t{n}")).expression.expression = "*"
    group = v2.Resource(name="listed")
    asked: tuple[tuple[str, Message], ...] = (
        ("apache.rocketmq.v2.Admin/ListSubscription", v2.ListSubscriptionRequest()),
        ("apache.rocketmq.v2.Admin/ListSubscription", v2.ListSubscriptionRequest(group=group)),
        ("apache.rocketmq.v2.Admin/DescribeSubscription", v2.DescribeSubscriptionRequest()),
        ("apache.rocketmq.v2.Admin/ListConsumerConnection", v2.ListConsumerConnectionRequest(group=group)),
        ("aerobee.v1.AdminService/ListGroupStatus", admin_v1.ListGroupStatusRequest(page_size=1_000)),
        ("aerobee.v1.AdminService/ListConnections", admin_v1.ListConnectionsRequest(topic="t4095")),
        ("aerobee.v1.AdminService/DescribeGroup", admin_v1.DescribeGroupRequest(name="listed")),
        ("aerobee.v1.AdminService/DescribeTopic", admin_v1.DescribeTopicRequest(name=STORED_TOPIC)),
    )
    yield GREETING
    command = prefixed(v2.TelemetryCommand(settings=settings).SerializeToString())
    for n in range(8):
        of_call = block(f"{MESSAGING}/Telemetry", (b"x-mq-client-id", b"listed-%d" % n))
        yield headers(1 + 2 * n, of_call) + data(1 + 2 * n, command)
    for n, (path, request) in enumerate(asked * 4, 8):
        yield headers(1 + 2 * n, block(f"/{path}")) + message(1 + 2 * n, request.SerializeToString())


def _listed_tables(number: int) -> Iterator[bytes]:
    """Many topics and groups, and the calls that look at all of them, in each order."""
    yield GREETING
    stream = itertools.count(1, 2)
    begin = block(f"{ADMINISTRATION}/CreateTopic"), block(f"{ADMINISTRATION}/CreateGroup")
    for n in range(2_000):
        topic = admin_v1.CreateTopicRequest(topic=admin_v1.Topic(name=f"t-{number}-{n}", read_queue_count=4))
        group = admin_v1.CreateGroupRequest(group=admin_v1.Group(name=f"g-{number}-{n}"))
        yield headers(at := next(stream), begin[0]) + message(at, topic.SerializeToString())
        yield headers(at := next(stream), begin[1]) + message(at, group.SerializeToString())
    ordered: list[tuple[str, Message]] = []
    for topic_order in admin_v1.TopicOrder.values():
        ordered.append(("ListTopicStatus", admin_v1.ListTopicStatusRequest(order=topic_order, page_size=1_000)))
    for group_order in admin_v1.GroupOrder.values():
        ordered.append(("ListGroupStatus", admin_v1.ListGroupStatusRequest(order=group_order, page_size=1_000)))
    for name, listing in ordered * 10:
        yield headers(at := next(stream), block(f"{ADMINISTRATION}/{name}")) + message(at, listing.SerializeToString())
    for name in ("ListTopics", "ListGroups", "ListConnections", "ListDeadLetterQueues", "ListTraffic", "GetProblems"):
        yield headers(at := next(stream), block(f"{ADMINISTRATION}/{name}")) + message(at, b"")


def _read_tables(number: int) -> Iterator[bytes]:
    """Many topics and groups by one request each, and requests for whole tables."""
    names = [f"{number}-{n}" for n in range(1_250)]
    topics = [{"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for name in names]
    yield encode(_request(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, _json({"topicConfigList": topics})))
    groups = [{"groupName": name} for name in names]
    yield encode(_request(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST, {}, _json({"groupConfigList": groups})))
    asked = (
        *(Request.GET_ALL_TOPIC_CONFIG, Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG),
        *(Request.GET_ALL_CONSUMER_OFFSET, Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
    )
    for code in asked * 2:
        yield encode(_request(code, {}))


def _together(number: int) -> Iterator[bytes]:
    """All that makes the broker keep something, at the same time."""
    kinds = (
        *(_partial_frame, _gzip_sends, _unread_queries, _open_calls, _waiting_receives, _waiting_pulls),
        *(_subscriptions, _routes, _client_ids, _remembered_heads, _unread_settings),
    )
    yield from kinds[number % len(kinds)](number)


def _empty_messages(_: int) -> Iterator[bytes]:
    yield GREETING + headers(1, REFLECTION)
    yield from split(data(1, prefixed(b"") * 835_380), 1 << 18)


def _client_ids(number: int) -> Iterator[bytes]:
    yield GREETING
    path = b"".join(
        stored_field(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"{MESSAGING}/Heartbeat".encode()),
            (b"content-type", b"application/grpc"),
        )
    )
    yield headers(1, path, ended=True)
    for begin in range(3, 2 * 4_000, 200):
        yield b"".join(
            headers(n, b"\xc1\xc0\xbf\xbe" + b"\x00" + _string(b"x-mq-client-id") + _string(b"%d-%d" % (number, n)))
            + message(n, b"")
            for n in range(begin, begin + 200, 2)
        )


_KNOWN_NAMES: Final = (STORED_TOPIC, "returns", "auditing", STORED_KEY, ATTACKER, "*", "a = 1 and b in ('x')", "")


def _calls(dice: random.Random, method: MethodDescriptor, stream: int, more: bytes) -> bytes:
    """Calls of a method with some drawn requests, which together have up to `_SENT_MAX` bytes."""
    fields = [(b"x-mq-client-id", b"drawn-%d" % dice.randrange(3))]
    if dice.random() < 0.3:
        fields.append((b"grpc-timeout", dice.choice((b"1n", b"100m", b"3S", b"99999999H"))))
    is_packed = dice.random() < 0.1
    if is_packed:
        fields.append((b"grpc-encoding", b"gzip"))
    of_call = block(f"/{method.containing_service.full_name}/{method.name}", *fields) + more
    requests = [drawn_request(dice, method.input_type, _KNOWN_NAMES) for _ in range(dice.choice((1, 2, 5)))]
    written = [prefixed(gzip.compress(one, 1) if is_packed else one, compressed=is_packed) for one in requests]
    messages = dice.choice((1, 3, 200)) if method.client_streaming else 1
    frame_size = dice.choice((16_384, 16_384, 100))

    def call(number: int) -> bytes:
        body = b"".join(written[(number + n) % len(written)] for n in range(messages))[:_SENT_MAX]
        ended = dice.random() < 0.9
        return headers(stream + number, of_call) + data(stream + number, body, ended=ended, frame_size=frame_size)

    return _repeated(dice, call, 2) or call(0)


def _every_method(number: int) -> Iterator[bytes]:
    """Few calls of each, with drawn requests that are the same ones each time."""
    dice = random.Random(number)
    yield GREETING
    for index, method in enumerate(METHODS):
        of_call = block(f"/{method.containing_service.full_name}/{method.name}", (b"x-mq-client-id", b"drawn"))
        for n in range(3):
            stream = 1 + 2 * (3 * index + n)
            request = prefixed(drawn_request(dice, method.input_type, _KNOWN_NAMES))
            yield headers(stream, of_call) + data(stream, request, ended=True)


NAMED: Final[tuple[Attack, ...]] = (
    Attack("gzip sends beside long polls", 1, _gzip_sends, stays_seconds=6),
    Attack("gzip sends over many connections", 8, _gzip_sends, stays_seconds=6),
    Attack("queries whose answers have no window", 1, _unread_queries, stays_seconds=4),
    Attack("queries without window over many connections", 12, _unread_queries, stays_seconds=4),
    Attack("remoting queries that are not read", 2, _unread_remoting_queries, stays_seconds=4),
    Attack("parts of the largest frame", 24, _partial_frame),
    Attack("a header of commas", 20, _header_bomb),
    Attack("a request in frames of two bytes", 4, _tiny_data),
    Attack("open calls", 24, _open_calls, stays_seconds=2),
    Attack("calls with deadlines", 8, _calls_with_deadlines, reads=True, stays_seconds=4),
    Attack("receives that wait", 4, _waiting_receives, reads=True, stays_seconds=2),
    Attack("pulls that wait", 4, _waiting_pulls, reads=True, stays_seconds=2),
    Attack("heads that are remembered", 400, _remembered_heads, stays_seconds=2),
    Attack("resets that are remembered", 100, _remembered_resets, stays_seconds=2),
    Attack("subscriptions of megabytes", 40, _subscriptions, reads=True, stays_seconds=2),
    Attack("routes of many brokers", 10, _routes, reads=True, stays_seconds=2),
    Attack("settings whose answers are not read", 16, _unread_settings, stays_seconds=3),
    Attack("pulls with long SQL filters", 2, _long_filters, reads=True, stays_seconds=3),
    Attack("receives with long SQL filters", 2, _long_filters_of_grpc, reads=True, stays_seconds=6),
    Attack("a batch of acknowledgements without bits", 1, _batch_acknowledgement, reads=True, stays_seconds=3),
    Attack("messages popped and acknowledged", 1, _popped, reads=True, stays_seconds=5, pause_seconds=0.1),
    Attack("messages to new topics", 4, _new_topics, reads=True, stays_seconds=20),
    Attack("topics, groups and positions", 4, _filled_tables, reads=True, stays_seconds=40),
    Attack("positions that are read", 4, _read_positions, reads=True, stays_seconds=10, pause_seconds=0.3),
    Attack("large gzip sends", 4, _large_gzip, reads=True, stays_seconds=6),
    Attack("subscriptions that are listed", 2, _listed_subscriptions, reads=True, stays_seconds=8),
    Attack("topics and groups that are listed", 4, _listed_tables, reads=True, stays_seconds=20),
    Attack("tables that are read", 8, _read_tables, reads=True, stays_seconds=20, pause_seconds=0.3),
    Attack("all kinds together", 44, _together, stays_seconds=5),
    Attack("connections that send nothing", 3_000, _nothing, stays_seconds=2, charged=("connections", 2 << 20)),
    Attack("connections that only greet", 3_000, _greeting, stays_seconds=2, charged=("connections", 12 << 20)),
    Attack(
        "TLS connections that only greet",
        1_500,
        _greeting,
        stays_seconds=6,
        tls=True,
        charged=("connections", 20 << 20),
    ),
    Attack("records of a byte in TLS", 1, _many_acknowledgements, stays_seconds=2, records=Records(1)),
    Attack("records of a byte over many TLS connections", 50, _acknowledgements, stays_seconds=2, records=Records(1)),
    Attack("updates of TLS keys", 20, _greeting, stays_seconds=2, records=Records(8, "key updates", 600)),
    Attack("queries in TLS that are read", 40, _read_queries, True, True, stays_seconds=4),
    Attack("connections that begin a frame", 3_000, _begun_remoting, stays_seconds=2, charged=("connections", 9 << 20)),
    Attack(
        "replicas that do not read", 80, _unread_log, stays_seconds=4, target="replicas", charged=("unsent", 20 << 20)
    ),
    Attack("long heads of HTTP requests", 32, _long_head, stays_seconds=2, target="metrics"),
    Attack("metrics that are not read", 32, _unread_scrapes, stays_seconds=3, target="metrics"),
    Attack("halves of TLS handshakes", 1_500, _half_tls, stays_seconds=2),
    Attack("values of a name server", 4, _values, reads=True, stays_seconds=2, charged=("values", 4 << 20)),
    Attack("producer groups", 100, _groups, reads=True),
    Attack("consumers that join and leave", 1_000, _members, reads=True),
    Attack("settings of many open calls", 1, _settings_and_calls),
    Attack("many settings", 4, _many_settings),
    Attack("long Huffman strings", 2, _huffman),
    Attack("changes of the header table", 2, _table_churn),
    Attack("pipelined calls", 1, _pipelined_health, reads=True),
    Attack("pipelined calls that are not read", 1, _pipelined_health),
    Attack("tiny remoting frames", 1, _tiny_frames, reads=True),
    Attack("empty messages on a stream", 1, _empty_messages, stays_seconds=4),
    Attack("invented client ids", 20, _client_ids, reads=True, stays_seconds=2),
    *(Attack(f"a heartbeat of {shape}", 1, _json_heartbeat(shape), reads=True) for shape in _JSON_SHAPES),
    *(
        Attack(
            f"a compressed registration of {shape} to a {target}", 1, _json_zlib(shape, 8 << 20), True, target=target
        )
        for shape in ("empty lists", "bare keys")
        for target in ("broker", "namesrv")
    ),
    Attack("the largest compressed registration", 1, _json_zlib("empty objects", 60 << 20), True, target="namesrv"),
    Attack("every gRPC method", 2, _every_method, reads=True, stays_seconds=4),
    Attack("a registration of many topics", 4, _zlib_topics, True, target="namesrv"),
    Attack("many values of a name server", 4, _small_values, True, stays_seconds=2, target="namesrv"),
)


# --- Drawn from the grammar ---------------------------------------------------------------------------------

_COUNTS: Final = (1, 2, 31, 128, 129, 1_000, 2_001, 10_001, 60_000)
_SIZES: Final = (0, 1, 5, 8, 255, 256, 4_096, 16_384, 16_385, 65_535, 262_144, 262_145, 1 << 20)
_SENT_MAX: Final = 4 << 20  # bytes of one connection
_TLS_TARGETS: Final[tuple[Target, ...]] = ("broker", "remoting", "namesrv", "replicas")


def drawn(seed: int) -> Attack:
    """An attack of elements at random, the same one for a seed."""
    dice = random.Random(seed)
    kind, target = dice.choice(_DRAWN)
    is_signed = target != "metrics" and random.Random(f"signed {seed}").random() < 0.3
    whole = kind(dice, is_signed)
    manner = dice.choice(("whole", "whole", "cut", "slow", "bytes"))
    if manner == "cut":
        whole = whole[: dice.randrange(len(whole) + 1)]
    write = {"slow": max(1, len(whole) // 20), "bytes": dice.choice((1, 7, 9, 10)) if len(whole) < 20_000 else 997}
    writes = list(split(whole, write.get(manner, dice.choice((1_000, 1 << 16, 1 << 22)))))
    return Attack(
        f"drawn {seed}",
        dice.choice((1, 1, 4, 16)),
        lambda _: writes,
        reads=dice.random() < 0.5,
        stays_seconds=dice.choice((0.0, 0.3, 1.0)),
        pause_seconds=0.02 if manner == "slow" else 0.0,
        target=target,
        has_accounts=dice.random() < 0.25 or is_signed,
        is_signed=is_signed,
    )


def drawn_in_tls(seed: int) -> Attack:
    """The same in TLS; four seeds in succession attack one port each."""
    dice = random.Random(f"TLS {seed}")
    target = _TLS_TARGETS[seed % len(_TLS_TARGETS)]
    kind = _drawn_remoting
    if target == "broker" and dice.random() < 0.7:
        kind = _drawn_http2
    elif target == "replicas":
        kind = _drawn_replication
    is_signed = kind is _drawn_remoting and target != "broker" and dice.random() < 0.4
    size, between_count = dice.choice((1, 2, 7, 100, 1_000, 16_384)), dice.choice((0, 0, 0, 1, 6, 31, 33))
    whole = kind(dice, is_signed)
    whole = whole[: 1 << 20 if size >= 1_000 else 20_000 if not between_count else 20 * size]
    records = Records(
        size,
        dice.choice(("key updates", "empty records", "warnings")),
        between_count,
        handshake_write=dice.choice((1, 7, 100, 1 << 16)),
        handshake_cut=dice.randrange(2_000) if dice.random() < 0.25 else None,
        write_size=dice.choice((0, 0, 997, 1 if len(whole) <= 1_000 else 16_389)),
        lacking=dice.choice((0, 0, 1, 16, 30)),
        has_certificate=target != "broker" and dice.random() < 0.8,
    )
    return Attack(
        f"drawn in TLS {seed}",
        dice.choice((1, 4, 16)),
        lambda _: (whole,),
        stays_seconds=dice.choice((0.0, 0.3, 1.0)),
        target=target,
        is_signed=is_signed,
        records=records,
    )


def _repeated(dice: random.Random, element: Callable[[int], bytes], step: int = 1) -> bytes:
    parts: list[bytes] = []
    size = 0
    for n in range(dice.choice(_COUNTS)):
        part = element(n * step)
        size += len(part)
        if size > _SENT_MAX:
            break
        parts.append(part)
    return b"".join(parts)


def _drawn_http2(dice: random.Random, is_signed: bool) -> bytes:
    first = {Setting.INITIAL_WINDOW_SIZE: dice.choice((0, 1, 65_535, (1 << 31) - 1))} if dice.random() < 0.5 else {}
    parts = [frames.PREFACE + frames.settings(first)]
    stream = 1
    for _ in range(dice.randrange(1, 6)):
        parts.append(_drawn_frames(dice, stream, is_signed))
        stream += 2 * 60_001
    return b"".join(parts)


def _drawn_frames(dice: random.Random, stream: int, is_signed: bool) -> bytes:
    of_call = dice.choice((SEND, SEND_GZIP, RECEIVE, QUERY, HEALTH, REFLECTION, b"", b"\xff" * 20))
    if is_signed:
        of_call += _signature()
    more = _drawn_fields(dice)
    size = dice.choice(_SIZES)
    payload = dice.choice((bytes(size), dice.randbytes(min(size, 4_096)), _drawn_message(dice)))
    frame_size = dice.choice((1, 2, 100, 16_384, 262_144))
    key = dice.choice((1, 2, 3, 4, 5, 6, 99))
    match dice.randrange(10):
        case 0:
            return _repeated(dice, lambda n: headers(stream + n, of_call + more), 2)
        case 1:
            return _repeated(dice, lambda n: headers(stream + n, of_call + more, ended=True), 2)
        case 2:
            return _repeated(dice, lambda n: headers(stream + n, of_call) + message(stream + n, payload), 2)
        case 3:
            return headers(stream, of_call) + data(stream, payload[:100_000], frame_size=frame_size)
        case 4:
            entries = dice.choice((1, 100, 2_700, 10_900))
            return _repeated(dice, lambda _: settings_of(entries, key))
        case 5:
            kind, flags, length = dice.randrange(12), dice.randrange(256), dice.choice((0, 4, 5, 8, 9, 100))
            number = dice.choice((0, stream, 2, 1 << 30))
            return _repeated(dice, lambda _: frames.frame(kind, flags, number, dice.randbytes(length)))
        case 6:
            opened = open_calls(dice.choice((1, 100, 5_000)), of_call, first=stream)
            return opened + _repeated(dice, lambda n: frames.rst_stream(stream + n, frames.ErrorCode.CANCEL), 2)
        case 7:
            return headers(stream, REFLECTION) + data(stream, prefixed(payload[:1_000]) * 5_000)
        case 8:
            opened = open_calls(dice.choice((1, 100, 5_000)), RECEIVE, first=stream)
            return opened + _repeated(dice, lambda n: frames.window_update(stream + n, 1), 2)
        case _:
            begin = frames.frame(frames.HEADERS, 0, stream, of_call)
            return begin + _repeated(dice, lambda _: frames.frame(frames.CONTINUATION, 0, stream, more[:1_000]))


def _signature() -> bytes:
    """The headers that sign a call."""
    fields = Credentials(ATTACKER, ATTACKER_SECRET).headers()
    return b"".join(b"\x00" + _string(name.encode()) + _string(value.encode()) for name, value in fields)


def _drawn_fields(dice: random.Random) -> bytes:
    name, size = dice.choice((b"x", b"x-bin", b"te", b"content-length", b"grpc-timeout")), dice.choice(_SIZES[:9])
    value = dice.choice((b",", b"a", b"9", b"\0", b"=")) * size
    match dice.randrange(6):
        case 0:
            return b""
        case 1:
            return stored_field(name, value) + b"\xbe" * dice.choice((0, 31, 1_000))
        case 2:
            return b"".join(stored_field(b"%c" % (97 + n % 26), b"") for n in range(dice.choice((10, 1_000))))
        case 3:
            return b"\x00" + _string(name) + huffman_string(size, dice.choice((0, 0xFF, 0x1C)))
        case 4:
            return b"\x20" * dice.choice((1, 9, 1_000))
        case _:
            return b"\x00" + _string(name) + _string(value)


def _drawn_message(dice: random.Random) -> bytes:
    entry = dice.choice((b"\x0a\x00", b"\x12\x00", b"\x1a\x00", b"\x0a\x02\x12\x00"))
    request: Any = entry * dice.choice((0, 1, 1_025, 200_000))
    if dice.random() < 0.3:
        return prefixed(gzip.compress(request + bytes(dice.choice((0, 1 << 20, 17 << 20)))), compressed=True)
    return prefixed(request)


def _drawn_calls(dice: random.Random, is_signed: bool) -> bytes:
    """Calls of gRPC methods; those of clients as often as all those of operators."""
    ours = [method for method in METHODS if "rocketmq" in method.containing_service.full_name]
    first = {Setting.INITIAL_WINDOW_SIZE: dice.choice((0, 1, 65_535, (1 << 31) - 1))} if dice.random() < 0.5 else {}
    parts = [frames.PREFACE + frames.settings(first)]
    for n in range(dice.randrange(1, 6)):
        method = dice.choice(ours if dice.random() < 0.5 else METHODS)
        parts.append(_calls(dice, method, 1 + 2 * 60_001 * n, _signature() if is_signed else b""))
    return b"".join(parts)


def _drawn_remoting(dice: random.Random, is_signed: bool) -> bytes:
    code = dice.choice([*Request, -1, 32_768])
    shape, size = dice.choice([*_JSON_SHAPES]), dice.choice((0, 10, 100_000, 4_000_000))
    text = json_of(shape, size)
    packed = zlib.compress(struct.pack(">i", len(text)) + text)
    body = dice.choice((b"", text, packed, dice.randbytes(100), bytes(dice.choice(_SIZES))))
    value = dice.choice(("", "0", "-1", "true", "9" * 19, "x" * 1_000, STORED_TOPIC))
    names = (
        "topic",
        "group",
        "clientID",
        "namespace",
        "key",
        "value",
        "brokerName",
        "brokerAddr",
        "maxNum",
        "compressed",
    )
    fields = {name: value for name in names if dice.random() < 0.7}
    flag = dice.choice((0, 0, 0, 1, 2, 3))
    command = Command(code, fields=fields, body=body, flag=flag)
    if is_signed:
        PeerKey(ATTACKER, ATTACKER_SECRET.encode()).sign(command)  # clients sign as brokers do
    one = encode(command)
    if dice.random() < 0.2:  # lengths that do not fit
        one = struct.pack(">i", dice.choice((-1, 0, 3, 4, len(one), (16 << 20) - 4, 1 << 30))) + one[4:]
    return _repeated(dice, lambda _: one)


def _drawn_replication(dice: random.Random, is_signed: bool) -> bytes:
    """Handshakes, proofs and reports of replicas. `is_signed`: what follows the proof of the secret."""
    begin = dice.choice(
        (b"", b"AEROAUTH", b"AEROAUTH" + bytes(32), b"AEROAUTH" + bytes(64), struct.pack(">ihhq", 1, 0, 0, 2), bytes(8))
    )
    offset = dice.choice((0, 1, -1, 1 << 32, 1 << 40, (1 << 63) - 1))
    report = dice.choice((struct.pack(">q", offset), struct.pack(">iq", dice.choice((1, 2, 3)), offset)))
    if is_signed:
        begin = ReplicaHandshake(dice.choice((0, 1, 7, (1 << 31) - 1)), is_learner=dice.random() < 0.3).encode()
        begin = begin[: dice.choice((0, len(begin), len(begin) - 1))]
    return begin + _repeated(dice, lambda _: report)


def _drawn_http1(dice: random.Random, _: bool) -> bytes:
    """Requests of a browser."""
    line = dice.choice((b"GET /metrics", b"GET /healthz", b"POST /metrics", b"GET /" + b"a" * 70_000, b"\0" * 100, b""))
    name, value = dice.choice((b"x", b"content-length", b"transfer-encoding")), dice.choice((b"1", b"-1", b"chunked"))
    fields = _repeated(dice, lambda n: name + b": " + value + b"\r\n")
    one = line + b" HTTP/1.1\r\n" + fields[: dice.choice((0, 100, 4 << 20))] + dice.choice((b"\r\n", b""))
    return _repeated(dice, lambda _: one) or one


_DRAWN: Final[tuple[tuple[Callable[[random.Random, bool], bytes], Target], ...]] = (
    (_drawn_http2, "broker"),
    (_drawn_http2, "broker"),
    (_drawn_calls, "broker"),
    (_drawn_calls, "broker"),
    (_drawn_calls, "broker"),
    (_drawn_remoting, "broker"),
    (_drawn_remoting, "broker"),
    (_drawn_remoting, "namesrv"),
    (_drawn_replication, "replicas"),
    (_drawn_http1, "metrics"),
)
"""What is drawn, and the port to which it is sent."""
