"""Sending messages, on a real store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_broker.config import BrokerConfig, Settings, TopicsConfig
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.errors import IllegalTopicError, InvalidRequestError, TopicNotFoundError
from aerobee_broker.limits import loop_share
from aerobee_broker.messages import message_mapping
from aerobee_broker.messages.admission import Admission
from aerobee_broker.processors.sending import send
from aerobee_broker.processors.sending.send import SendProcessor
from aerobee_broker.processors.sending.send_alike import AnySendRequest, SendAlike
from aerobee_broker.processors.sending.send_known import KnownMessage, SendKnown, SendReader
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import Permission, TopicConfig, TopicMessageType
from aerobee_broker.timer.recall_handle import RecallHandle
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_broker.transactions.coordinator import Transactions
from aerobee_broker.transactions.producers import Producers
from aerobee_proto import v2
from aerobee_store import MessageStore, Record
from aerobee_store.records.properties import CRC32, INNER_MULTI_QUEUE_OFFSET, jump_hash
from aerobee_store.testing import ManualClock
from tests.support.in_process_broker import message
from tests.support.saved_tables import saved
from tests.support.wire_messages import read


class Sender:
    """A send processor with its dependencies, and access to the stored messages."""

    def __init__(self, store: MessageStore, tables: Tables, config: BrokerConfig) -> None:
        self.store = store
        self.tables = tables
        self.client = Client("test")
        self.counters = BrokerCounters()
        self._reader = SendReader()
        timer = Timer(store, store.clock, config.timer)
        producers = Producers(ClientRegistry(store.clock))
        self.transactions = Transactions(store, tables, store.clock, Settings(config), producers, timer)
        self._processor = SendProcessor(
            Settings(config),
            store,
            Admission(Settings(config), tables),
            self.counters,
            store.clock,
            self.transactions,
            timer,
        )

    async def send(self, *messages: v2.Message) -> v2.SendMessageResponse:
        async with asyncio.timeout(60):
            return await self._processor.process(v2.SendMessageRequest(messages=messages), self.client)

    async def send_many(
        self, *messages: v2.Message, kind: type = v2.SendMessageRequest
    ) -> v2.SendMessageResponse | bytes:
        """Send as the service does; `kind` is the expected form of the request."""
        request = self.read(messages)
        assert isinstance(request, kind)
        return await self.answer(request)

    async def answer(self, request: AnySendRequest) -> v2.SendMessageResponse | bytes:
        async with asyncio.timeout(60):
            return await self._processor.answer(request, self.client)

    def read(self, messages: Sequence[v2.Message]) -> AnySendRequest:
        data = v2.SendMessageRequest(messages=messages).SerializeToString()
        return read(data, self._reader)

    async def send_alone(self, message: v2.Message, *, kind: type | None = SendKnown) -> v2.SendResultEntry:
        """Send one message as the service does; `kind` is the expected form of the request."""
        request = self.read([message])
        assert kind is None or isinstance(request, kind)
        answer = await self.answer(request)
        assert isinstance(answer, bytes)
        (entry,) = v2.SendMessageResponse.FromString(answer).entries
        return entry

    async def refused(self, *messages: v2.Message) -> int:
        """The code of the refusal, after which nothing may be stored."""
        before = self.store.positions[0]
        with pytest.raises(InvalidRequestError) as caught:
            await self.send(*messages)
        assert self.store.positions[0] == before
        return caught.value.code

    def stored(self, topic: str) -> list[Record]:
        records = []
        for queue_id in self.store.queues().get(topic, []):
            records += self.store.read(topic, queue_id, 0).records
        return records


@pytest.fixture
async def sender(tmp_path: Path) -> AsyncIterator[Sender]:
    config = BrokerConfig.tiny(tmp_path, topics=TopicsConfig(auto_create=False))
    clock = ManualClock()
    with MessageStore.open(config.store, clock=clock) as store:
        running = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        tables = Tables.load(Settings(config), clock, store.file_system, store.in_disk_thread)
        for topic in (
            TopicConfig.of_type("orders", queue_count=4),
            TopicConfig.of_type("shop%orders", queue_count=1),
            TopicConfig.of_type("ordered", TopicMessageType.FIFO, queue_count=8),
            TopicConfig.of_type("mixed", TopicMessageType.MIXED, queue_count=1),
            TopicConfig.of_type("light", TopicMessageType.LITE, queue_count=1),
            TopicConfig(name="read-only", permission=Permission.READ),
        ):
            saved(tables.topics).create(topic)
        yield Sender(store, tables, config)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("count", [4, 9])
async def test_a_batch(sender: Sender, count: int) -> None:
    """Each message has an entry, in order, and all share a queue. The next request uses the next queue."""
    for queue_id in (0, 1):
        response = await sender.send(*(message(message_id=str(number)) for number in range(count)))
        assert [entry.message_id for entry in response.entries] == [str(number) for number in range(count)]
        assert [entry.transaction_id for entry in response.entries] == [str(number) for number in range(count)]
        assert [entry.offset for entry in response.entries] == list(range(count))
        assert {entry.status.code for entry in response.entries} == {v2.Code.OK}
        stored = sender.stored("orders")[queue_id * count :]
        assert [record.queue_id for record in stored] == [queue_id] * count
        assert [record.unique_key for record in stored] == [str(number) for number in range(count)]


@pytest.mark.parametrize(
    ("group", "buckets"),
    [
        ("order-1", (3, 3, 3)),
        ("order-2", (2, 2, 11)),
        ("group-A", (2, 2, 12)),
        ("message-group-0", (1, 1, 1)),
    ],
)
def test_queues_of_message_groups_equal_rocketmqs(group: str, buckets: tuple[int, ...]) -> None:
    """Known values for 4, 8 and 16 queues, so that a topic moved from RocketMQ keeps its order."""
    assert tuple(jump_hash(group, count) for count in (4, 8, 16)) == buckets


async def test_a_delayed_message_waits_in_the_timer_topic(sender: Sender) -> None:
    """The record has its real topic, and the answer a recall handle. Fractions of a millisecond are rounded up."""
    delayed = message("mixed", message_id="a b", delivery_timestamp=v2.Timestamp(seconds=1_700_000_060, nanos=1))
    (entry,) = (await sender.send(delayed)).entries
    handle = RecallHandle("mixed", "aerobee", 1_700_000_060_001, "a b")
    assert entry.recall_handle == handle.encode()
    assert RecallHandle.decode(entry.recall_handle) == handle
    assert sender.stored("mixed") == []
    (stored,) = sender.stored("rmq_sys_wheel_timer")
    expected = {
        "UNIQ_KEY": "a b",
        "REAL_TOPIC": "mixed",
        "REAL_QID": "0",
        "TIMER_DELIVER_MS": "1700000060001",
        "TIMER_OUT_MS": "1700000060000",
    }
    assert {name: value for name, value in stored.properties.items() if name != "__CRC32#"} == expected
    assert sender.counters.sent[("mixed", "delay")].messages == 1


def test_recall_handle_is_rocketmqs() -> None:
    """The handle equals the specification's example."""
    handle = RecallHandle("topicD", "broker-0", 1735787046001, "01AABBCCDDEEFF1234012345670000000A")
    text = "djEgdG9waWNEIGJyb2tlci0wIDE3MzU3ODcwNDYwMDEgMDFBQUJCQ0NEREVFRkYxMjM0MDEyMzQ1NjcwMDAwMDAwQQ=="
    assert handle.encode() == text
    assert RecallHandle.decode(text) == handle


@pytest.mark.parametrize("kind", ["in order", "known"])
async def test_a_large_batch_takes_many_steps_of_the_event_loop(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Other tasks run between the messages, and all messages are stored together at the end."""
    monkeypatch.setattr(loop_share, "_TURN_SECONDS", -1.0)
    calls: list[str] = []

    def counted(name: str, module: ModuleType | type) -> None:
        original = getattr(module, name)

        def call(*arguments: Any) -> Any:
            calls.append(name)
            return original(*arguments)

        monkeypatch.setattr(module, name, call)

    if kind == "in order":
        counted("check_message", send)
        counted("to_store_message", send)
    else:
        counted("templated", KnownMessage)
    count = 10
    sent = [message("ordered", message_id=str(n), message_group="g") for n in range(count)]
    sending: Coroutine[Any, Any, object] = sender.send(*sent)
    if kind == "known":
        await sending
        for _ in range(2):
            await sender.send_many(*sent, kind=object)
        calls.clear()
        sending = sender.send_many(*sent, kind=SendKnown)
    before = sender.store.stats.messages_appended
    task = asyncio.create_task(sending)
    per_turn: list[int] = []
    stored = set()
    while not task.done():
        calls.clear()
        await asyncio.sleep(0)
        per_turn.append(len(calls))
        stored.add(sender.store.stats.messages_appended)
    await task
    assert sum(per_turn) == (2 * count if kind == "in order" else count)
    assert max(per_turn) <= 2  # one message is checked, and then the next one
    assert stored == {before, before + count}


async def test_a_topic_may_change_while_a_batch_is_prepared(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the topic changes, all messages are prepared again."""
    monkeypatch.setattr(loop_share, "_TURN_SECONDS", -1.0)
    prepared: list[int] = []
    to_store_message = message_mapping.to_store_message

    def call(*arguments: Any) -> Any:
        prepared.append(arguments[2])
        if len(prepared) == 3:
            saved(sender.tables.topics).delete("ordered")
            saved(sender.tables.topics).create(TopicConfig.of_type("ordered", TopicMessageType.FIFO, queue_count=1))
        return to_store_message(*arguments)

    monkeypatch.setattr(send, "to_store_message", call)
    await sender.send(*(message("ordered", message_id=str(n), message_group="order-1") for n in range(5)))
    assert prepared == [3] * 5 + [0] * 5
    assert [record.queue_id for record in sender.stored("ordered")] == [0] * 5


async def test_the_keys_of_a_request_have_a_bound(sender: Sender) -> None:
    """All keys enter the index in one step of the event loop, so their number is limited."""
    keys = [f"{number:x}" for number in range(2048)]
    most = [message("ordered", message_id=str(n), message_group="g", keys=keys) for n in range(8)]
    assert (await sender.send(*most)).status.code == v2.Code.OK
    one_more = message("ordered", message_id="8", message_group="g", keys=["k"])
    assert await sender.refused(*most, one_more) == v2.Code.PAYLOAD_TOO_LARGE


async def test_a_batch_of_lite_messages_is_in_its_lite_topics(sender: Sender) -> None:
    """Each record has its offset in the light queue, although it was encoded before the append."""
    await sender.send(*(message("light", message_id=str(number), lite_topic="a") for number in range(3)))
    offsets = [record.properties[INNER_MULTI_QUEUE_OFFSET] for record in sender.stored("light")]
    assert offsets == ["0", "1", "2"]


async def test_topics_are_created_and_deleted(sender: Sender) -> None:
    """Cached data of a topic is dropped when the topic changes."""
    await sender.send(message())
    saved(sender.tables.topics).delete("orders")
    with pytest.raises(TopicNotFoundError):
        await sender.send(message())
    saved(sender.tables.topics).create(TopicConfig.of_type("orders", TopicMessageType.FIFO, queue_count=1))
    assert await sender.refused(message()) == v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    for name in ("TBW102", "rmq_sys_AEROBEE_DELIVERY", "a/b", ""):
        with pytest.raises(IllegalTopicError):
            await sender.send(message(name))


async def test_sent_messages_are_counted(sender: Sender) -> None:
    """Messages and record bytes are counted by topic and type; refused messages are not."""
    await sender.send(message(), message())
    await sender.send(message("ordered", message_group="g"))
    await sender.refused(message(tag=" "))
    sizes = [record.size for record in sender.stored("orders")]
    counted = {key: (count.messages, count.bytes) for key, count in sender.counters.sent.items()}
    assert counted[("orders", "normal")] == (2, sum(sizes))
    assert counted[("ordered", "fifo")][0] == 1


class TestSendOfMany:
    """Requests with many messages, as the service parses them."""

    async def test_messages_of_known_layouts(self, sender: Sender) -> None:
        """Each has its entry and its offset; those without a group are in one queue."""
        for topic, group in (("orders", ""), ("ordered", "g")):
            made = [message(topic, message_id=f"id{number}", body=b"b" * number) for number in range(10, 30)]
            for number, each in enumerate(made):
                if group:
                    each.system_properties.message_group = f"{group}{number % 3}"
            await sender.send_many(*made)
            before = len(sender.stored(topic))
            answer = await sender.send_many(*made, kind=SendKnown)
            assert isinstance(answer, bytes), "not read by protobuf"
            entries = v2.SendMessageResponse.FromString(answer).entries
            assert [entry.message_id for entry in entries] == [each.system_properties.message_id for each in made]
            records = sender.stored(topic)
            assert len(records) == 2 * before
            twice = Counter((record.unique_key, record.properties.get("__SHARDINGKEY")) for record in records)
            assert set(twice.values()) == {2}
            places = {(record.unique_key, record.queue_offset): record.queue_id for record in records}
            queues = [places[entry.message_id, entry.offset] for entry in entries]
            if group:
                assert queues == [jump_hash(f"g{number % 3}", 8) for number in range(20)]
            else:
                assert len(set(queues)) == 1

    async def test_known_layouts_of_several_topics(self, sender: Sender) -> None:
        """They must be read by protobuf: the permission is checked for one topic otherwise."""
        made = [message("orders" if n < 9 else "mixed", message_id=f"id{n}", body=b"b" * (n + 1)) for n in range(10)]
        for each in made * 2:
            await sender.send_alone(each, kind=None)
        assert [type(sender.read(each)) for each in (made[:1], made[-1:])] == [SendKnown, SendKnown]
        before = sender.store.positions[0]
        with pytest.raises(InvalidRequestError) as caught:
            await sender.send_many(*made, kind=v2.SendMessageRequest)
        assert caught.value.code == v2.Code.MESSAGE_CORRUPTED
        assert sender.store.positions[0] == before

    async def test_the_topic_changes_while_known_messages_are_prepared(
        self, sender: Sender, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are prepared again, for the queues that the topic has now."""
        monkeypatch.setattr(loop_share, "_TURN_SECONDS", -1.0)
        made = [message("ordered", message_id=f"id{n}", message_group="order-1") for n in range(10)]
        await sender.send_many(*made)
        request = sender.read(made)
        assert isinstance(request, SendKnown)
        templated = KnownMessage.templated

        def call(known: KnownMessage, *arguments: Any) -> Any:
            if known is request.messages[5]:
                saved(sender.tables.topics).delete("ordered")
                saved(sender.tables.topics).create(TopicConfig.of_type("ordered", TopicMessageType.FIFO, queue_count=1))
            return templated(known, *arguments)

        monkeypatch.setattr(KnownMessage, "templated", call)
        await sender.answer(request)
        assert Counter(record.queue_id for record in sender.stored("ordered")) == {3: 10, 0: 10}

    async def test_one_known_message_that_breaks_a_rule_refuses_all(self, sender: Sender) -> None:
        made = [message("orders", message_id=f"id{n}", body=b"b" * (n + 1)) for n in range(10)]
        await sender.send_many(*made)
        made[7].body = bytes(8193)
        before = sender.store.positions[0]
        with pytest.raises(InvalidRequestError) as caught:
            await sender.send_many(*made, kind=SendKnown)
        assert caught.value.code == v2.Code.MESSAGE_BODY_TOO_LARGE
        assert sender.store.positions[0] == before

    async def test_messages_of_one_shape(self, sender: Sender) -> None:
        """The messages are stored as one batch, with the records of single sends."""
        made = [message("orders", message_id=f"id{number}") for number in range(100, 140)]
        for each in made:
            await sender.send(each)
        one_by_one = [_content(record) for record in sender.stored("orders")]
        answer = await sender.send_many(*made, kind=SendAlike)
        assert isinstance(answer, bytes), "stored as one batch"
        entries = v2.SendMessageResponse.FromString(answer).entries
        queue_id = Counter(record.queue_id for record in sender.stored("orders")).most_common(1)[0][0]
        stored = sender.store.read("orders", queue_id, entries[0].offset, max_count=100).records
        assert [entry.message_id for entry in entries] == [each.system_properties.message_id for each in made]
        assert [entry.offset for entry in entries] == [record.queue_offset for record in stored]
        assert sorted(map(_content, stored)) == sorted(one_by_one)

    @pytest.mark.parametrize(
        ("field", "code"), [("message_id", v2.Code.ILLEGAL_MESSAGE_ID), ("tag", v2.Code.ILLEGAL_MESSAGE_TAG)]
    )
    async def test_refusals_of_one_shape_equal_those_of_single_messages(
        self, sender: Sender, field: str, code: int
    ) -> None:
        made = [message("orders", message_id=f"id{number}", tag="tag") for number in range(100, 140)]
        setattr(made[7].system_properties, field, "a\x02b" if field == "tag" else "id\x02\x02\x02")
        before = sender.store.positions[0]
        with pytest.raises(InvalidRequestError) as caught:
            await sender.send_many(*made, kind=SendAlike)
        assert caught.value.code == code
        assert sender.store.positions[0] == before

    @pytest.mark.parametrize(
        ("topic", "code"), [("read-only", v2.Code.FORBIDDEN), ("ordered", v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)]
    )
    async def test_refusals_equal_those_of_single_messages(self, sender: Sender, topic: str, code: int) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            await sender.send_many(*(message(topic, message_id=f"id{number}") for number in range(10)))
        assert caught.value.code == code
        assert not sender.stored(topic)

    async def test_an_unknown_topic(self, sender: Sender) -> None:
        with pytest.raises(TopicNotFoundError):
            await sender.send_many(*(message("nowhere", message_id=f"id{number}") for number in range(10)))


class TestSendOfAKnownLayout:
    """Messages that have the layout of an earlier one."""

    @pytest.fixture(autouse=True)
    async def _known(self, sender: Sender) -> None:
        """The first two: one is read by protobuf, and one makes the template."""
        await sender.send_alone(message(message_id="id8", keys=["k8"], tag="tag"), kind=v2.SendMessageRequest)
        await sender.send_alone(message(message_id="id9", keys=["k9"], tag="tag"))

    async def test_stored_counted_and_found_as_others(self, sender: Sender) -> None:
        made = [message(message_id=f"id{number}", keys=[f"k{number}"], tag="tag") for number in range(8)]
        entries = [await sender.send_alone(each) for each in made]
        by_layout = [repr(_content(record)) for record in sender.stored("orders") if str(record.unique_key) < "id8"]
        for each in made:
            await sender.send(each)
        assert [(entry.message_id, entry.offset) for entry in entries] == [(f"id{n}", (n + 2) // 4) for n in range(8)]
        counted = sender.counters.sent["orders", "normal"]
        records = sender.stored("orders")
        assert (counted.messages, counted.bytes) == (18, sum(record.size for record in records))
        assert sum(each.messages for each in sender.counters.sent_to_queues.values()) == 18
        contents = [repr(_content(record)) for record in records if str(record.unique_key) < "id8"]
        assert sorted(contents) == sorted(2 * by_layout)
        tagged = [sender.store.read("orders", queue, 0, tags=frozenset({"tag"})).records for queue in range(4)]
        assert sum(map(len, tagged)) == 18
        for number in range(8):
            for key in (f"id{number}", f"k{number}"):
                found = sender.store.query("orders", key, max_count=10)
                assert [record.unique_key for record in found] == [f"id{number}"] * 2

    async def test_messages_of_a_group_stay_in_its_queue(self, sender: Sender) -> None:
        """The same queue as for any other send, in the order of the sends, counted as FIFO."""
        for number in range(40):
            made = message("ordered", message_id=f"id{number:02}", message_group=f"g{number % 8}")
            if number < 9:
                await sender.send(made)
            await sender.send_alone(made, kind=SendKnown if number else v2.SendMessageRequest)
        queues: dict[str, set[int]] = {}
        for record in sender.stored("ordered"):
            queues.setdefault(record.properties["__SHARDINGKEY"], set()).add(record.queue_id)
        assert queues == {f"g{n}": {jump_hash(f"g{n}", 8)} for n in range(8)}
        ids = [record.unique_key for record in sender.stored("ordered") if record.properties["__SHARDINGKEY"] == "g3"]
        assert ids == ["id03", "id03", "id11", "id19", "id27", "id35"]
        assert sender.counters.sent["ordered", "fifo"].messages == 49

    async def test_a_topic_that_takes_no_groups(self, sender: Sender) -> None:
        for number in range(3):
            with pytest.raises(InvalidRequestError) as caught:
                await sender.send_alone(message(message_id=f"id{number}", message_group="g"), kind=None)
            assert caught.value.code == v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE

    async def test_durable_before_the_answer(self, sender: Sender) -> None:
        await sender.send_alone(message(message_id="id1", keys=["k1"], tag="tag"))
        wrote, _, flushed, _ = sender.store.positions
        assert flushed == wrote

    async def test_a_topic_of_another_type_now(self, sender: Sender) -> None:
        saved(sender.tables.topics).update(TopicConfig.of_type("orders", TopicMessageType.FIFO, queue_count=1))
        for _ in range(2):
            with pytest.raises(InvalidRequestError) as caught:
                await sender.send_alone(message(message_id="id1", keys=["k1"], tag="tag"))
            assert caught.value.code == v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE

    async def test_a_topic_with_fewer_queues_now(self, sender: Sender) -> None:
        saved(sender.tables.topics).update(TopicConfig.of_type("orders", queue_count=1))
        for number in range(4):
            await sender.send_alone(message(message_id=f"id{number}", keys=[f"k{number}"], tag="tag"))
        assert [record.queue_id for record in sender.stored("orders")] == [0] * 5 + [1]

    async def test_a_topic_that_is_gone(self, sender: Sender) -> None:
        saved(sender.tables.topics).delete("orders")
        with pytest.raises(TopicNotFoundError):
            await sender.send_alone(message(message_id="id1", keys=["k1"], tag="tag"))

    @pytest.mark.parametrize(
        ("body", "code"), [(b"", v2.Code.MESSAGE_BODY_EMPTY), (bytes(5 << 20), v2.Code.MESSAGE_BODY_TOO_LARGE)]
    )
    async def test_refusals_are_those_of_others(self, sender: Sender, body: bytes, code: int) -> None:
        before = sender.store.positions[0]
        with pytest.raises(InvalidRequestError) as caught:
            await sender.send_alone(message(body=body, message_id="id1", keys=["k1"], tag="tag"), kind=None)
        assert caught.value.code == code
        assert sender.store.positions[0] == before

    async def test_a_client_of_another_namespace(self, sender: Sender) -> None:
        """One layout, two topics: the namespace is the client's."""
        sender.client.namespace = "shop"
        for number in (1, 2):
            await sender.send_alone(message(message_id=f"id{number}", keys=[f"k{number}"], tag="tag"))
        sender.client.namespace = ""
        await sender.send_alone(message(message_id="id3", keys=["k3"], tag="tag"))
        assert [record.unique_key for record in sender.stored("shop%orders")] == ["id1", "id2"]
        assert sorted(str(record.unique_key) for record in sender.stored("orders")) == ["id3", "id8", "id9"]


def _content(record: Record) -> tuple[str, bytes, list[tuple[str, str]], int]:
    properties = [pair for pair in sorted(record.properties.items()) if pair[0] != CRC32]
    return record.topic, bytes(record.body), properties, record.sys_flag
