"""Items 190 to 200: what hardly a client uses."""

from __future__ import annotations

from aerobee_proto import v2
from tests.conformance.raw_client import RawClient, message, resource, timestamp

Code = v2.Code


def queue_of(topic: str) -> v2.MessageQueue:
    return v2.MessageQueue(topic=resource(topic), id=0)


async def test_190_pull(client: RawClient, topic: str, group: str) -> None:
    """Status, messages, next offset; behind the end nothing, and behind that ILLEGAL_OFFSET with one that is there."""
    await client.create_topic(topic)
    await client.sent(message(topic, "a"), message(topic, "b"), message(topic, "c"))
    for offset, kinds, code, next_offset in (
        (1, ["status", "message", "message", "next_offset"], Code.OK, 3),
        (3, ["status", "next_offset"], Code.MESSAGE_NOT_FOUND, 3),
        (4, ["status", "next_offset"], Code.ILLEGAL_OFFSET, 3),
        (-1, ["status", "next_offset"], Code.ILLEGAL_OFFSET, 0),
    ):
        request = v2.PullMessageRequest(
            group=resource(group), message_queue=queue_of(topic), offset=offset, batch_size=32
        )
        request.long_polling_timeout.FromMilliseconds(0)
        call = client.stub.PullMessage(request, metadata=client.metadata, timeout=20)
        responses = [response async for response in call]
        assert [response.WhichOneof("content") for response in responses] == kinds
        assert (responses[0].status.code, responses[-1].next_offset) == (code, next_offset)
        assert [each.message.body for each in responses[1:-1]] == [b"b", b"c"][: len(responses) - 2]


async def test_191_query_offset(client: RawClient, topic: str, group: str) -> None:
    """Both ends, and the first message of a time, which has to be said."""
    await client.create_topic(topic)
    await client.sent(message(topic, "a"), message(topic, "b"))
    first = (await client.receive(topic, group, count=1, wait=5)).one.system_properties.store_timestamp
    policies = v2.QueryOffsetPolicy
    for policy, time, expected in (
        (policies.BEGINNING, None, 0),
        (policies.END, None, 2),
        (policies.TIMESTAMP, first, 0),
        (policies.TIMESTAMP, timestamp(first.ToMilliseconds() + 3_600_000), 2),
    ):
        request = v2.QueryOffsetRequest(message_queue=queue_of(topic), query_offset_policy=policy, timestamp=time)
        answer = await client.call("QueryOffset", request)
        assert (answer.status.code, answer.offset) == (Code.OK, expected)
    request = v2.QueryOffsetRequest(message_queue=queue_of(topic), query_offset_policy=policies.TIMESTAMP)
    assert (await client.call("QueryOffset", request)).status.code == Code.BAD_REQUEST


async def test_192_offsets(client: RawClient, topic: str, group: str) -> None:
    """None before the first; then what was committed; none below 0."""
    await client.create_topic(topic)
    await client.sent(message(topic, "a"), message(topic, "b"))
    asked = v2.GetOffsetRequest(group=resource(group), message_queue=queue_of(topic))
    assert (await client.call("GetOffset", asked)).status.code == Code.OFFSET_NOT_FOUND
    for offset, code in ((2, Code.OK), (1, Code.OK), (-1, Code.ILLEGAL_OFFSET)):
        request = v2.UpdateOffsetRequest(group=resource(group), message_queue=queue_of(topic), offset=offset)
        assert (await client.call("UpdateOffset", request)).status.code == code
    answer = await client.call("GetOffset", asked)
    assert (answer.status.code, answer.offset) == (Code.OK, 1)


async def test_199_priority(client: RawClient, topic: str, group: str) -> None:
    """The highest of all queues first, within one answer and from one to the next; equal ones by age; one that comes
    back before all that are lower."""
    await client.create_topic(topic, v2.MessageType.PRIORITY, queues=3)
    for number, priority in enumerate((0, 5, 1, 5, 3, 9)):
        body = f"{priority}{'abcdef'[number]}"
        await client.sent(message(topic, body, message_type=v2.MessageType.PRIORITY, priority=priority))
    first = (await client.receive(topic, group, count=1, wait=5)).one
    assert (first.body, first.system_properties.priority) == (b"9f", 9)
    assert (await client.receive(topic, group, count=2)).bodies == ["5b", "5d"]
    changed = await client.change(topic, group, first.system_properties.receipt_handle, 0)
    assert changed.status.code == Code.OK
    again = await client.receive(topic, group)
    assert again.bodies == ["9f", "3e", "1c", "0a"]
    assert again.attempts == {"9f": 2, "3e": 1, "1c": 1, "0a": 1}


async def test_200_lite_topic_in_an_acknowledgement(client: RawClient, topic: str, group: str) -> None:
    """A lite topic named with a handle changes nothing about what becomes of the message."""
    await client.sent(message(topic))
    received = (await client.receive(topic, group, wait=5)).one
    handle = received.system_properties.receipt_handle
    changed = await client.change(topic, group, handle, 30, lite_topic="lite")
    assert changed.status.code == Code.OK
    request = v2.AckMessageRequest(group=resource(group), topic=resource(topic))
    request.entries.add(message_id="m", receipt_handle=changed.receipt_handle, lite_topic="lite")
    response = await client.call("AckMessage", request)
    assert response.status.code == Code.OK
    assert response.entries[0].status.code == Code.OK
    assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND
