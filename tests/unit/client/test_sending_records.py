"""Whether a producer uses SendMessage or AppendRecords, which depends on the server and the messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import grpc
import pytest

from aerobee_client import (
    BadRequestError,
    BatchError,
    Client,
    ConfigurationError,
    Message,
    Queue,
    SendResult,
    connect,
)
from aerobee_proto import records_v1, v2
from aerobee_store.records.record_batch import RecordBatch
from tests.support.scripted_broker import ScriptedBroker, failure, scripted_broker

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def aerobee() -> AsyncIterator[ScriptedBroker]:
    """A server with RecordService and scripted answers."""
    async with scripted_broker(records=True) as running:
        running.queue_count = 3
        yield running


@pytest.fixture
async def client(aerobee: ScriptedBroker) -> AsyncIterator[Client]:
    """A client connected to that server."""
    async with connect(aerobee.endpoint) as connected:
        yield connected


def messages(count: int, **fields: object) -> list[Message]:
    """Plain messages with these additional fields."""
    return [
        Message(topic="orders", body=b"%d" % number, **fields)  # type: ignore[arg-type]  # fields of Message by name
        for number in range(count)
    ]


def calls(broker: ScriptedBroker) -> list[str]:
    """The names of the send requests, in order."""
    return [name for name, _ in broker.calls if name in ("SendMessage", "AppendRecords")]


def queues_of(broker: ScriptedBroker) -> list[int]:
    """The queue id of each append request."""
    return [request.queue_id for request in broker.requests("AppendRecords")]


def refused(code: v2.Code.ValueType) -> records_v1.AppendRecordsResponse:
    """The response to a request of which nothing was stored."""
    return records_v1.AppendRecordsResponse(status=v2.Status(code=code, message="as the test wants it"))


async def test_many_messages_go_as_records(aerobee: ScriptedBroker, client: Client) -> None:
    """Eight or more messages are appended as records, each request to the next queue. Results have call and queue."""
    producer = client.producer()
    results = [await producer.send_many(messages(8)) for _ in range(3)]
    assert calls(aerobee) == ["AppendRecords"] * 3
    assert sorted(queues_of(aerobee)) == [0, 1, 2]
    assert (producer.uses_records, client.producer().uses_records) == (True, None)
    assert [each.queue_offset for each in results[0]] == list(range(100, 108))
    assert {(each.call, each.queue_id) for each in results[1]} == {("AppendRecords", queues_of(aerobee)[1])}
    records = RecordBatch.parse(aerobee.requests("AppendRecords")[0].records, base_physical_offset=None, placed=False)
    assert [bytes(records.record(index).body) for index in range(8)] == [b"%d" % number for number in range(8)]
    assert [records.record(index).properties["UNIQ_KEY"] for index in range(8)] == [r.message_id for r in results[0]]


@pytest.mark.parametrize(
    "others",
    [
        {"message_group": "g"},
        {"delivery_timestamp": 1_900_000_000_000},
        {"priority": 1},
        {"keys": ("a blank",)},
        {"properties": {"empty": ""}},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_messages_that_cannot_be_records_are_sent(
    aerobee: ScriptedBroker, client: Client, others: dict[str, object]
) -> None:
    """Messages with such fields are sent with SendMessage."""
    producer = client.producer()
    results = await producer.send_many(messages(8, **others))
    assert set(calls(aerobee)) == {"SendMessage"}
    assert {(each.call, each.queue_id) for each in results} == {("SendMessage", None)}


async def test_few_messages_are_sent(aerobee: ScriptedBroker, client: Client) -> None:
    """Fewer than eight messages are sent with SendMessage, and so are all with `use_records=False`."""
    await client.producer().send_many(messages(7))
    await client.producer(use_records=False).send_many(messages(100))
    assert calls(aerobee) == ["SendMessage", "SendMessage"]


async def test_rocketmq_gets_messages() -> None:
    """A server without RecordService gets SendMessage."""
    async with scripted_broker() as rocketmq, connect(rocketmq.endpoint) as client:
        producer = client.producer()
        for _ in range(2):
            await producer.send_many(messages(50))
        assert calls(rocketmq) == ["SendMessage"] * 2
        assert producer.uses_records is False


async def test_records_that_are_refused_are_sent(aerobee: ScriptedBroker, client: Client) -> None:
    """Refused records are sent again with SendMessage. That topic gets no records for a while, other topics do."""
    aerobee.answers["AppendRecords"] = [refused(v2.Code.BAD_REQUEST)]
    producer = client.producer()
    results = await producer.send_many(messages(8))
    assert {each.call for each in results} == {"SendMessage"}
    await producer.send_many(messages(8))
    await producer.send_many([Message(topic="other", body=b"x")] * 8)
    assert calls(aerobee) == ["AppendRecords", "SendMessage", "SendMessage", "AppendRecords"]


async def test_a_repeated_attempt_takes_another_queue(aerobee: ScriptedBroker, client: Client) -> None:
    """A retry keeps the message ids and takes the next queue. Persistent failures are raised."""
    aerobee.answers["AppendRecords"] = [failure(grpc.StatusCode.UNAVAILABLE), refused(v2.Code.TOO_MANY_REQUESTS)]
    results = await client.producer().send_many(messages(8))
    assert sorted(queues_of(aerobee)) == [0, 1, 2]
    assert {each.queue_id for each in results} == {queues_of(aerobee)[-1]}
    first, *others = [
        RecordBatch.parse(request.records, base_physical_offset=None, placed=False)
        for request in aerobee.requests("AppendRecords")
    ]
    for other in others:
        assert [first.record(i).properties for i in range(8)] == [other.record(i).properties for i in range(8)]
    aerobee.answers["AppendRecords"] = [refused(v2.Code.INTERNAL_SERVER_ERROR)] * 9
    with pytest.raises(BatchError, match="8 of 8 failed"):
        await client.producer().send_many(messages(8))
    assert "SendMessage" not in calls(aerobee)  # the records may be stored


class TestQueueSelector:
    async def test_the_selector_chooses_the_queue(self, aerobee: ScriptedBroker, client: Client) -> None:
        """The selector gets all queues, for single messages too. Order within a queue is that of submission."""
        shown: list[Sequence[Queue]] = []

        def by_number(message: Message, queues: Sequence[Queue]) -> Queue:
            shown.append(queues)
            return queues[int(message.body) % len(queues)]

        producer = client.producer(queue_selector=by_number)
        results = await producer.send_many(messages(7))
        assert [each.queue_id for each in results] == [0, 1, 2, 0, 1, 2, 0]
        assert shown[0] == [Queue("orders", "one", number) for number in range(3)]
        by_queue = {request.queue_id: request.records for request in aerobee.requests("AppendRecords")}
        batch = RecordBatch.parse(by_queue[0], base_physical_offset=None, placed=False)
        assert [bytes(batch.record(index).body) for index in range(3)] == [b"0", b"3", b"6"]

    async def test_a_repeated_attempt_keeps_the_queue(self, aerobee: ScriptedBroker, client: Client) -> None:
        """A retry uses the selected queue again."""
        aerobee.answers["AppendRecords"] = [failure(grpc.StatusCode.UNAVAILABLE)]
        await client.producer(queue_selector=lambda message, queues: queues[1]).send(messages(1)[0])
        assert queues_of(aerobee) == [1, 1]

    async def test_messages_for_which_the_server_chooses_the_queue(self) -> None:
        """RocketMQ's protocol cannot name a queue, and the error says so."""
        async with scripted_broker() as rocketmq, connect(rocketmq.endpoint) as client:
            with pytest.raises(ConfigurationError, match="chooses the queue itself"):
                await client.producer(queue_selector=lambda message, queues: queues[0]).send(messages(1)[0])
            assert calls(rocketmq) == []

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"message_group": "g"}, "the message group determines"),
            ({"delivery_timestamp": 1_900_000_000_000}, "cannot be delayed"),
        ],
    )
    async def test_messages_without_a_choice_of_queue(
        self, aerobee: ScriptedBroker, client: Client, fields: dict[str, object], reason: str
    ) -> None:
        """A message group determines the queue; a delayed message is stored in another topic first."""
        with pytest.raises(BadRequestError, match=reason):
            await client.producer(queue_selector=lambda message, queues: queues[0]).send(messages(1, **fields)[0])
        assert calls(aerobee) == []

    async def test_an_unknown_queue(self, aerobee: ScriptedBroker, client: Client) -> None:
        """The selected queue must exist; no other queue is used instead."""
        producer = client.producer(queue_selector=lambda message, queues: Queue("orders", "one", 9))
        with pytest.raises(BadRequestError, match="queueId=9"):
            await producer.send(messages(1)[0])

    async def test_one_bad_record_of_some(self, aerobee: ScriptedBroker, client: Client) -> None:
        """The other records of the request are stored in the selected queue."""
        aerobee.answers["AppendRecords"] = [refused(v2.Code.BAD_REQUEST), refused(v2.Code.BAD_REQUEST)]
        with pytest.raises(BatchError, match="1 of 2 failed") as raised:
            await client.producer(queue_selector=lambda message, queues: queues[2]).send_many(messages(2))
        assert [type(outcome) for outcome in raised.value.outcomes] == [BadRequestError, SendResult]
        assert queues_of(aerobee) == [2, 2, 2]
