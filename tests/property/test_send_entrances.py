"""One message over every entrance: what is stored, and the code of the refusal, are the same.

The entrances are the ways by which a client's message gets into the log: SendMessage with one message (parsed, and of a
known layout), with a few and with many; half and delayed messages; AppendRecords; the remoting protocol's single sends
and batches; the client's pool. They differ in `_expected` only, each with its reason.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import struct
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import aerobee_client
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_client.errors import BadRequestError, BatchError
from aerobee_proto import admin_v1, records_v1, v2
from aerobee_store import StoreConfig
from aerobee_store.deferred import load_deferred
from aerobee_store.records import message_fields, record
from aerobee_store.records import properties as p
from aerobee_store.records.message_fields import properties_of
from aerobee_store.records.record import Draft, Message, Record
from tests.support import seeds
from tests.support.in_process_broker import METADATA, InProcessBroker
from tests.support.remoting_client import RemotingClient, remoting_broker, send_fields

BORN_MS: Final = 1_700_000_000_000
PAST_MS: Final = 1_700_000_001_000
FUTURE_SECONDS: Final = 600
BODY_SIZE_MAX: Final = 8192  # of a tiny store
OK: Final = "OK"
USUAL_ID: Final = "01AB"
# What an entrance adds of its own: no field of the message.
_ADDED: Final = frozenset(
    {p.CLUSTER, p.MSG_REGION, p.TRACE_ON, p.TRANSACTION_MESSAGE, p.PRODUCER_GROUP, p.REAL_TOPIC, p.REAL_QUEUE_ID}
    | {p.TIMER_DELIVER_MS, p.TIMER_OUT_MS, p.TIMER_ENQUEUE_MS, p.TIMER_ROLL_TIMES, p.BORN_HOST, p.CRC32}
    | {
        message_fields.EMPTY_PROPERTIES,
        p.TIMER_DELETE_UNIQ_KEY,
        p.TRANSACTION_ID,
        "__AEROBEE_SENDER",
        "__AEROBEE_SINCE",
    }
)


@dataclass(frozen=True)
class Drawn:
    """A message that some client wants to send."""

    body: bytes = b"body"
    message_id: str = USUAL_ID
    tag: str = ""
    keys: tuple[str, ...] = ()
    trace_context: str = ""
    message_group: str | None = None
    user: dict[str, str] = field(default_factory=dict)
    gzip: bool = False

    def wire(self, topic: str, **system: Any) -> v2.Message:
        made = v2.Message(topic=v2.Resource(name=topic), body=self.body, user_properties=self.user)
        fields = made.system_properties
        fields.message_id, fields.born_timestamp.seconds = self.message_id, BORN_MS // 1000
        if self.tag:
            fields.tag = self.tag
        fields.keys.extend(self.keys)
        if self.trace_context:
            fields.trace_context = self.trace_context
        if self.message_group is not None:
            fields.message_group = self.message_group
        if self.gzip:
            fields.body_encoding = v2.Encoding.GZIP
        fields.MergeFrom(v2.SystemProperties(**system))
        return made

    def properties(self) -> dict[str, str]:
        return properties_of(
            message_id=self.message_id,
            tag=self.tag,
            keys=self.keys,
            trace_context=self.trace_context,
            message_group=self.message_group,
            user_properties=self.user,
        )

    def raw_properties(self) -> bytes:
        """As a client could write them into a record, whatever they are."""
        return "".join(f"{name}\x01{value}\x02" for name, value in self.properties().items()).encode()

    def sys_flag(self) -> int:
        return 0x301 if self.gzip else 0


Stored = tuple[bytes, tuple[tuple[str, str], ...], int, int]
"""Body, properties in order of their names, compression, born timestamp."""


@dataclass(frozen=True)
class Outcome:
    code: str
    stored: tuple[Stored, ...] = ()


class Entrances:
    """A broker in a thread of its own, and every way into it."""

    def __init__(self, broker: InProcessBroker, remoting: RemotingClient, client: aerobee_client.Client, log: Path):
        self.broker = broker
        self._remoting = remoting
        self._records: Any = records_v1.RecordServiceStub(broker.channel)
        self._client = client
        self._log = log
        self._position = 0
        self._numbers = itertools.count()

    async def create_topics(self) -> None:
        kinds = {"orders": v2.MessageType.NORMAL, "fifo": v2.MessageType.FIFO}
        kinds |= {"halves": v2.MessageType.TRANSACTION, "later": v2.MessageType.DELAY}
        for name, kind in kinds.items():
            topic = admin_v1.Topic(name=name, read_queue_count=1, write_queue_count=1, accept_message_types=[kind])
            request = admin_v1.CreateTopicRequest(topic=topic)
            answer = await self.broker.administration.CreateTopic(request, metadata=METADATA, timeout=60)
            assert answer.status.code == v2.Code.OK, answer.status

    async def outcome(self, way: str, drawn: Drawn) -> Outcome:
        self._new_records()
        code = await WAYS[way](self, drawn)
        found = [each for each in self._new_records() if each.unique_key is not None]
        return Outcome(code, tuple(sorted({_normal(each) for each in found})) if code == OK else ())

    def _new_records(self) -> list[Record]:
        """The records behind the position of the last look."""
        found = []
        while True:
            name = self._position // SEGMENT_SIZE * SEGMENT_SIZE
            path = self._log / f"{name:020}"
            data = path.read_bytes() if path.exists() else b""
            header = record.peek(data, self._position - name, physical_offset=self._position) if data else None
            if isinstance(header, record.RecordHeader):
                found.append(record.read(data, header))
                self._position += header.size
            elif header is not None and header.reason is record.StopReason.BLANK:
                self._position = name + SEGMENT_SIZE
            else:
                return found

    # --- The entrances ----------------------------------------------------------------------------------------

    async def _send(self, messages: list[v2.Message]) -> str:
        request = v2.SendMessageRequest(messages=messages)
        answer = await self.broker.messaging.SendMessage(request, metadata=METADATA, timeout=60)
        return v2.Code.Name(answer.status.code)

    async def single(self, drawn: Drawn) -> str:
        return await self._send([drawn.wire(_topic(drawn))])

    async def known_layout(self, drawn: Drawn) -> str:
        """The third one is stored by the template, if the content allows it."""
        codes = {await self.single(drawn) for _ in range(3)}
        (code,) = codes
        return code

    async def few(self, drawn: Drawn) -> str:
        return await self._send([drawn.wire(_topic(drawn))] * 7)

    async def packed(self, drawn: Drawn) -> str:
        return await self._send([drawn.wire(_topic(drawn))] * 8)

    async def many(self, drawn: Drawn) -> str:
        return await self._send([drawn.wire(_topic(drawn))] * 40)

    async def mixed(self, drawn: Drawn) -> str:
        """With messages of other sizes between."""
        group = None if drawn.message_group is None else "g"
        others = [replace(SIMPLE, body=b"b" * size, message_group=group) for size in range(1, 9)]
        wires = [each.wire(_topic(drawn)) for each in others]
        code = await self._send([*wires, drawn.wire(_topic(drawn))])
        return code

    async def half(self, drawn: Drawn) -> str:
        """With an id of its own: a half message with the id of another one is that one, sent again."""
        if drawn.message_id == USUAL_ID:
            drawn = replace(drawn, message_id=f"{USUAL_ID}{next(self._numbers)}")
        return await self._send([drawn.wire("halves", message_type=v2.MessageType.TRANSACTION)])

    async def due(self, drawn: Drawn) -> str:
        return await self._send([drawn.wire("later", delivery_timestamp={"seconds": PAST_MS // 1000})])

    async def delayed(self, drawn: Drawn) -> str:
        seconds = int(time.time()) + FUTURE_SECONDS
        return await self._send([drawn.wire("later", delivery_timestamp={"seconds": seconds})])

    async def append_records(self, drawn: Drawn) -> str:
        message = Message(_topic(drawn), 0, drawn.body, raw_properties=drawn.raw_properties(), born_timestamp=BORN_MS)
        message.sys_flag = drawn.sys_flag()
        try:
            made = Draft(message, store_host=record.NO_HOST, property_crc=True).encode_unplaced()
        except ValueError:
            return "no record"
        request = records_v1.AppendRecordsRequest(topic=v2.Resource(name=_topic(drawn)), records=made)
        answer = await self._records.AppendRecords(request, metadata=METADATA, timeout=60)
        return v2.Code.Name(answer.status.code)

    async def remoting_v1(self, drawn: Drawn) -> str:
        fields = {"producerGroup": "PG", "topic": _topic(drawn), "defaultTopic": "TBW102", "defaultTopicQueueNums": 4}
        fields |= {"queueId": 0, "sysFlag": drawn.sys_flag(), "bornTimestamp": BORN_MS, "flag": 0, "reconsumeTimes": 0}
        fields |= {"properties": drawn.raw_properties().decode(), "unitMode": False, "batch": False}
        return await self._remote(Request.SEND_MESSAGE, fields, drawn.body)

    async def remoting_v2(self, drawn: Drawn) -> str:
        fields = send_fields(_topic(drawn), properties=drawn.raw_properties().decode(), f=drawn.sys_flag(), g=BORN_MS)
        return await self._remote(Request.SEND_MESSAGE_V2, fields, drawn.body)

    async def remoting_batch(self, drawn: Drawn) -> str:
        raw = drawn.raw_properties()
        head = struct.pack(">iiiii", 22 + len(drawn.body) + len(raw), 0, 0, 0, len(drawn.body))
        body = (head + drawn.body + struct.pack(">h", len(raw)) + raw) * 2
        if len(body) > BODY_SIZE_MAX >= len(drawn.body):
            body = body[: len(body) // 2]
        return await self._remote(Request.SEND_BATCH_MESSAGE, send_fields(_topic(drawn), g=BORN_MS, m=True), body)

    async def _remote(self, code: int, fields: dict[str, object], body: bytes) -> str:
        answer = await self._remoting.call(code, fields, body)
        return OK if answer.code == Answer.SUCCESS else Answer(answer.code).name

    async def pool(self, drawn: Drawn) -> str:
        """Eight messages of our client, which go as records if they can. A producer whose records were refused sends
        messages for a while, so each gets a new one."""
        message = aerobee_client.Message(
            topic=_topic(drawn),
            body=drawn.body,
            tag=drawn.tag or None,
            keys=drawn.keys,
            properties=drawn.user,
            message_group=drawn.message_group,
            trace_context=drawn.trace_context or None,
            message_id=drawn.message_id,
        )
        try:
            async with self._client.producer() as producer:
                await producer.send_many([message] * 8)
        except BatchError as error:
            refused = next(each for each in error.outcomes if isinstance(each, BadRequestError))
            return next(name for name, number in v2.Code.items() if number == refused.code)
        return OK


WAYS: Final[dict[str, Callable[[Entrances, Drawn], Awaitable[str]]]] = {
    "single": Entrances.single,
    "known layout": Entrances.known_layout,
    "few": Entrances.few,
    "packed": Entrances.packed,
    "many": Entrances.many,
    "mixed": Entrances.mixed,
    "half": Entrances.half,
    "due": Entrances.due,
    "delayed": Entrances.delayed,
    "AppendRecords": Entrances.append_records,
    "remoting V1": Entrances.remoting_v1,
    "remoting V2": Entrances.remoting_v2,
    "remoting batch": Entrances.remoting_batch,
    "pool": Entrances.pool,
}
SIMPLE: Final = Drawn()
SEGMENT_SIZE: Final = 1 << 20


def _topic(drawn: Drawn) -> str:
    return "orders" if drawn.message_group is None else "fifo"


def _normal(found: Record) -> Stored:
    kept = {name: value for name, value in found.properties.items() if name not in _ADDED}
    if kept[p.UNIQ_KEY].startswith(USUAL_ID):
        kept[p.UNIQ_KEY] = USUAL_ID
    return found.body, tuple(sorted(kept.items())), found.sys_flag & 0x701, found.born_timestamp


def _without_time(outcome: Outcome) -> Outcome:
    return replace(outcome, stored=tuple(sorted({(*stored[:3], 0) for stored in outcome.stored})))


def _expected(way: str, drawn: Drawn, reference: Outcome) -> Outcome | None:
    """The outcome at an entrance, if SendMessage with this message alone has the outcome `reference`; None: any."""
    texts = "".join((*drawn.user, *drawn.user.values(), drawn.tag, *drawn.keys, drawn.trace_context))
    texts += drawn.message_id + (drawn.message_group or "")
    controls = any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in texts)
    if way in ("half", "due", "delayed") and drawn.message_group is not None:
        return None  # another type of message, which the topics do not take
    if way == "half" and reference.code == OK and drawn.message_id != USUAL_ID:
        return None
    if way.startswith("remoting"):
        # Of the rules, RocketMQ's brokers check the body's; its clients check the others themselves. Names and values
        # of properties are what the separators make of them.
        if reference.code.startswith("MESSAGE_BODY"):
            return Outcome(Answer.MESSAGE_ILLEGAL.name)
        if way == "remoting batch" and drawn.gzip:
            return None  # a batch has no compressed messages
        if way == "remoting batch" and BODY_SIZE_MAX - 1000 < len(drawn.body) <= BODY_SIZE_MAX:
            return None  # the limit is that of the whole batch
        if reference.code == "MESSAGE_CORRUPTED":
            return Outcome(Answer.MESSAGE_ILLEGAL.name)
        return reference if reference.code == OK else None
    if way == "AppendRecords":
        if not all(drawn.user.values()) or message_fields.EXACT_KEYS in drawn.properties() or not drawn.message_id:
            return None  # a record cannot hold them; one without an id has that of its place
        if drawn.message_group == "" or p.TAGS in drawn.user:
            return None  # a record has no empty values, and in it such a property is the tag
        if controls:
            return None  # checked in the whole property string, with one code
        if any(name.startswith(p.TRANSIENT_PREFIX) for name in drawn.user):  # cannot be taken out of a record
            return Outcome("ILLEGAL_MESSAGE_PROPERTY_KEY") if reference.code == OK else None
    if way == "pool" and drawn.gzip:
        return None  # it encodes bodies itself
    return reference


@pytest.fixture(scope="module")
def entrances(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, Drawn], Outcome]]:
    """What sends a message over an entrance."""
    load_deferred()  # not in the other thread, while hypothesis looks for numpy
    directory = tmp_path_factory.mktemp("entrances")
    loop = asyncio.new_event_loop()
    ready: asyncio.Future[Entrances] = loop.create_future()
    stop = asyncio.Event()

    async def serve() -> None:
        store = replace(StoreConfig.tiny(directory), segment_size=SEGMENT_SIZE)
        async with (
            remoting_broker(directory, store=store) as (broker, remoting),
            aerobee_client.connect(broker.endpoint) as client,
        ):
            made = Entrances(broker, remoting, client, directory / "commitlog")
            await made.create_topics()
            ready.set_result(made)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()

    async def wait() -> Entrances:
        return await ready

    made = asyncio.run_coroutine_threadsafe(wait(), loop).result(60)

    def outcome(way: str, drawn: Drawn) -> Outcome:
        return asyncio.run_coroutine_threadsafe(made.outcome(way, drawn), loop).result(60)

    yield outcome
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)
    loop.close()


COMPRESSED = zlib.compress(b"body" * 9)
TEXT = st.text(st.sampled_from("ab |,\u00e9\u3000\u00a0\x01\x02\n\x7f\x85"), max_size=4)
NAMES = st.sampled_from(["a", "b c", "\u00e9", "", "TAGS", "WAIT", "__RMQ.TRANSIENT.x", "TIMER_DELAY_MS", "a\x01", "|"])
BODIES = st.sampled_from(
    [
        *(COMPRESSED, COMPRESSED[:1], gzip.compress(b"body"), b"", b"b", b"body", b"\x00" * 40),
        *(b"x" * BODY_SIZE_MAX, b"x" * (BODY_SIZE_MAX + 1)),
    ]
)
DRAWN = st.builds(
    Drawn,
    body=st.just(b"body") | BODIES,
    message_id=st.just("01AB") | TEXT | st.just("i" * 8193),
    tag=st.just("") | TEXT,
    keys=st.lists(TEXT, max_size=2).map(tuple),
    trace_context=st.just("") | TEXT,
    message_group=st.none() | st.just("g") | TEXT | st.just("g" * 64),
    user=st.dictionaries(NAMES, TEXT | st.just("v"), max_size=2),
    gzip=st.booleans(),
)


@settings(max_examples=2000 if seeds.FRESH else 60)
@example(Drawn(tag="t", keys=("k", "l"), trace_context="x", user={"a": "b"}))
@example(Drawn(tag="t", keys=("k",), trace_context="x", message_group="g", user={"a": "b"}))
@example(Drawn(user={"__RMQ.TRANSIENT.x": "v"}))
@example(Drawn(body=b""))
@example(Drawn(body=b"not compressed", gzip=True))
@example(Drawn(body=COMPRESSED, gzip=True))
@example(Drawn(message_id="i" * 8193))
@example(Drawn(message_group="g" * 64, gzip=True))
@example(Drawn(tag="\u3000"))
@example(Drawn(keys=("a", "")))
@example(Drawn(keys=("", "")))
@example(Drawn(user={"b": "1", "a": "2"}))
@given(DRAWN)
def test_every_entrance_agrees(entrances: Callable[[str, Drawn], Outcome], drawn: Drawn) -> None:
    reference = entrances("single", drawn)
    for way in WAYS:
        expected = _expected(way, drawn, reference)
        if expected is None:
            continue
        found = entrances(way, drawn)
        if way == "mixed":  # the other messages are stored, too
            found = replace(found, stored=tuple(each for each in found.stored if each in reference.stored))
        if way == "pool":
            found, expected = _without_time(found), _without_time(expected)
        assert (way, found) == (way, expected)
