"""Items 190 to 200: features that few clients use."""

from __future__ import annotations

import asyncio
from typing import Any

from aerobee_proto import v2
from tests.conformance.raw_client import RawClient, message, resource, timestamp

Code = v2.Code
Action = v2.LiteSubscriptionAction
Policy = v2.OffsetOption.Policy


def queue_of(topic: str) -> v2.MessageQueue:
    return v2.MessageQueue(topic=resource(topic), id=0)


async def test_190_pull(client: RawClient, topic: str, group: str) -> None:
    """Status, messages, next offset.

    At the end there are none; beyond it the answer is ILLEGAL_OFFSET with a valid offset, even with a polling time.
    """
    await client.create_topic(topic)
    await client.sent(message(topic, "a"), message(topic, "b"), message(topic, "c"))
    for offset, kinds, code, next_offset in (
        (1, ["status", "message", "message", "next_offset"], Code.OK, 3),
        (3, ["status", "next_offset"], Code.MESSAGE_NOT_FOUND, 3),
        (4, ["status", "next_offset"], Code.ILLEGAL_OFFSET, 3),
        ((1 << 63) - 1, ["status", "next_offset"], Code.ILLEGAL_OFFSET, 3),
        (-1, ["status", "next_offset"], Code.ILLEGAL_OFFSET, 0),
        (-(1 << 63), ["status", "next_offset"], Code.ILLEGAL_OFFSET, 0),
    ):
        request = v2.PullMessageRequest(
            group=resource(group), message_queue=queue_of(topic), offset=offset, batch_size=32
        )
        request.long_polling_timeout.FromSeconds(15 if code == Code.ILLEGAL_OFFSET else 0)
        call = client.stub.PullMessage(request, metadata=client.metadata, timeout=20)
        responses = [response async for response in call]
        assert [response.WhichOneof("content") for response in responses] == kinds
        assert (responses[0].status.code, responses[-1].next_offset) == (code, next_offset)
        assert [each.message.body for each in responses[1:-1]] == [b"b", b"c"][: len(responses) - 2]
        for number, each in enumerate(responses[1:-1], offset):
            system = each.message.system_properties
            assert (each.message.topic.name, system.queue_id, system.queue_offset) == (topic, 0, number)
            assert not system.HasField("receipt_handle"), "it is not acknowledged"


async def test_191_query_offset(client: RawClient, topic: str, group: str) -> None:
    """Both ends, and the first message stored at or after a time, which is required."""
    await client.create_topic(topic)
    policies = v2.QueryOffsetPolicy

    async def asked(policy: v2.QueryOffsetPolicy.ValueType, ms: int | None = None) -> tuple[int, int]:
        time = None if ms is None else timestamp(ms)
        request = v2.QueryOffsetRequest(message_queue=queue_of(topic), query_offset_policy=policy, timestamp=time)
        answer = await client.call("QueryOffset", request)
        return answer.status.code, answer.offset

    for policy, ms in ((policies.BEGINNING, None), (policies.END, None), (policies.TIMESTAMP, 5)):
        assert await asked(policy, ms) == (Code.OK, 0)
    for body in "abc":
        await client.sent(message(topic, body))
        await asyncio.sleep(0.01)
    received = await client.receive(topic, group, wait=5)
    first, second, third = (each.system_properties.store_timestamp.ToMilliseconds() for each in received.messages)
    assert [await asked(policy) for policy in (policies.BEGINNING, policies.END)] == [(Code.OK, 0), (Code.OK, 3)]
    times = {-5: 0, 0: 0, first: 0, second: 1, second + 1: 2, third: 2, third + 1: 3, third + 3_600_000: 3}
    assert {ms: await asked(policies.TIMESTAMP, ms) for ms in times} == {ms: (Code.OK, n) for ms, n in times.items()}
    assert (await asked(policies.TIMESTAMP))[0] == Code.BAD_REQUEST
    assert (await asked(7))[0] == Code.BAD_REQUEST  # type: ignore[arg-type]  # a policy that nobody knows


async def test_192_offsets(client: RawClient, topic: str, group: str) -> None:
    """There is none before the first commit, then the committed one of this group and queue, within the queue."""
    await client.create_topic(topic, queues=2)
    await client.send(message(topic, "a"), message(topic, "b"))  # together, and so both in queue 0
    asked = v2.GetOffsetRequest(group=resource(group), message_queue=queue_of(topic))
    assert (await client.call("GetOffset", asked)).status.code == Code.OFFSET_NOT_FOUND
    for offset, code in ((2, Code.OK), (0, Code.OK), (1, Code.OK), (-1, Code.ILLEGAL_OFFSET), (3, Code.ILLEGAL_OFFSET)):
        request = v2.UpdateOffsetRequest(group=resource(group), message_queue=queue_of(topic), offset=offset)
        assert (await client.call("UpdateOffset", request)).status.code == code
    answer = await client.call("GetOffset", asked)
    assert (answer.status.code, answer.offset) == (Code.OK, 1)
    asked.message_queue.id = 1
    assert (await client.call("GetOffset", asked)).status.code == Code.OFFSET_NOT_FOUND
    asked.message_queue.id, asked.group.name = 0, f"{group}-2"
    assert (await client.call("GetOffset", asked)).status.code == Code.OFFSET_NOT_FOUND


async def synced(
    client: RawClient,
    topic: str,
    group: str,
    *names: str,
    action: v2.LiteSubscriptionAction.ValueType = Action.PARTIAL_ADD,
    **fields: Any,
) -> int:
    """SyncLiteSubscription; returns the code of the answer."""
    request = v2.SyncLiteSubscriptionRequest(
        action=action, topic=resource(topic), group=resource(group), lite_topic_set=names, **fields
    )
    return int((await client.call("SyncLiteSubscription", request)).status.code)


def lite(topic: str, name: str, body: str) -> v2.Message:
    return message(topic, body, message_type=v2.MessageType.LITE, lite_topic=name)


async def test_193_lite_subscription(client: RawClient, topic: str, group: str) -> None:
    """A subscribed lite topic is delivered with its name, others are not.

    Acknowledgements work with the lite topic and without; a subscription wakes a waiting receive.
    """
    await client.create_topic(topic, v2.MessageType.LITE, queues=4)
    waiting = asyncio.ensure_future(client.receive(topic, group, wait=20))
    await client.sent(lite(topic, "a", "1"), lite(topic, "b", "2"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert await synced(client, topic, group, "a") == Code.OK
    first = (await asyncio.wait_for(waiting, 60)).one
    assert (first.body, first.system_properties.lite_topic) == (b"1", "a")
    assert first.system_properties.message_type == v2.MessageType.LITE
    assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND
    waiting = asyncio.ensure_future(client.receive(topic, group, wait=20))
    await client.sent(lite(topic, "b", "3"), lite(topic, "a", "4"))
    second = (await asyncio.wait_for(waiting, 60)).one
    assert second.body == b"4"
    request = v2.AckMessageRequest(group=resource(group), topic=resource(topic))
    request.entries.add(receipt_handle=first.system_properties.receipt_handle, lite_topic="a")
    request.entries.add(receipt_handle=second.system_properties.receipt_handle)
    assert (await client.call("AckMessage", request)).status.code == Code.OK


async def test_194_complete_subscription(client: RawClient, topic: str, group: str) -> None:
    """The set replaces the previous one, even if empty; versions below the latest are outdated."""
    await client.create_topic(topic, v2.MessageType.LITE)
    complete = Action.COMPLETE_ADD
    assert await synced(client, topic, group, "a", "b", action=complete, version=5) == Code.OK
    assert await synced(client, topic, group, "b", "c", action=complete, version=7) == Code.OK
    assert await synced(client, topic, group, "a", action=complete, version=6) == Code.OK
    await client.sent(*(lite(topic, name, name) for name in "abc"))
    assert sorted(each.body for each in await client.receive_all(topic, group, 2)) == [b"b", b"c"]
    assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND
    assert await synced(client, topic, group, action=complete, version=7) == Code.OK
    await client.sent(*(lite(topic, name, name) for name in "abc"))
    assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND


async def test_195_end_of_a_lite_subscription(client: RawClient, topic: str, group: str) -> None:
    """It ends by name, by removing all, or by termination; a new subscription continues at the group's position."""
    await client.create_topic(topic, v2.MessageType.LITE)
    for end in ("partial", "complete", "goodbye"):
        assert await synced(client, topic, group, "a", "b") == Code.OK
        await client.sent(lite(topic, "a", end), lite(topic, "b", end))
        assert len(await client.receive_all(topic, group, 2, wait=5, invisible=600.0)) == 2
        if end == "partial":
            assert await synced(client, topic, group, "a", action=Action.PARTIAL_REMOVE) == Code.OK
        elif end == "complete":
            assert await synced(client, topic, group, action=Action.COMPLETE_REMOVE) == Code.OK
        else:
            assert await client.goodbye(group) == Code.OK
        await client.sent(lite(topic, "a", f"after {end}"))
        assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND
        assert await synced(client, topic, group, "a") == Code.OK
        assert (await client.receive(topic, group, wait=5, invisible=600.0)).bodies == [f"after {end}"]


async def test_196_limits_of_lite_topics(client: RawClient, topic: str, group: str) -> None:
    """Names, and the number per client; a refused call has no effect."""
    await client.create_topic(topic, v2.MessageType.LITE)
    for name in ("", " ", "a b", "ä", "a%b", "n" * 65):
        assert await synced(client, topic, group, "good", name) == Code.ILLEGAL_LITE_TOPIC
    assert await synced(client, topic, group, "n" * 64, "A-z_9") == Code.OK
    assert await synced(client, topic, group, *(f"l{n}" for n in range(1199))) == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert await synced(client, topic, group, *(f"l{n}" for n in range(1198))) == Code.OK
    assert await synced(client, topic, group, "more") == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    await client.sent(lite(topic, "good", "g"), lite(topic, "n" * 64, "n"))
    assert (await client.receive(topic, group, wait=5)).bodies == ["n"]
    await client.create_topic(f"{topic}-normal")
    assert await synced(client, f"{topic}-normal", group, "a") == Code.ILLEGAL_TOPIC


async def test_197_where_a_lite_subscription_begins(client: RawClient, topic: str, group: str) -> None:
    """At either end, an offset, a distance from the end, or a time; by default at the group's position."""
    await client.create_topic(topic, v2.MessageType.LITE)
    await client.sent(*(lite(topic, "a", f"{n}") for n in range(5)))
    everyone = client.other()
    assert await synced(everyone, topic, f"{group}-all", "a") == Code.OK
    all_of_it = await everyone.receive_all(topic, f"{group}-all", 5)
    times = [each.system_properties.store_timestamp.ToMilliseconds() for each in all_of_it]
    assert [each.body for each in all_of_it] == [b"0", b"1", b"2", b"3", b"4"]
    third = times.index(times[3])  # several may have the same millisecond
    options: list[tuple[dict[str, Any], int]] = [
        ({"policy": Policy.MIN}, 0),
        ({"policy": Policy.MAX}, 5),
        ({"policy": Policy.LAST}, 0),
        ({"offset": 2}, 2),
        ({"offset": 99}, 5),
        ({"tail_n": 2}, 3),
        ({"tail_n": 99}, 0),
        ({"timestamp": times[3]}, third),
        ({"timestamp": times[4] + 3_600_000}, 5),
    ]
    for number, (option, begin) in enumerate(options):
        consumer, own = client.other(), f"{group}-{number}"
        offset_option = v2.OffsetOption(**option)
        assert await synced(consumer, topic, own, "a", offset_option=offset_option) == Code.OK
        found = [each.body.decode() for each in await consumer.receive_all(topic, own, 5 - begin, wait=5)]
        assert found == [f"{n}" for n in range(begin, 5)], option
        assert (await consumer.receive(topic, own)).code == Code.MESSAGE_NOT_FOUND


async def test_198_two_lite_consumers(client: RawClient, topic: str, group: str) -> None:
    """Two consumers of one group with different sets each get their own; a shared topic's message goes to one."""
    await client.create_topic(topic, v2.MessageType.LITE)
    other = client.other()
    assert await synced(client, topic, group, "a", "both") == Code.OK
    assert await synced(other, topic, group, "b", "both") == Code.OK
    await client.sent(*(lite(topic, name, f"{name}{n}") for n in range(3) for name in ("a", "b", "both")))
    mine = [each.body.decode() for each in await client.receive_all(topic, group, 6, wait=1)]
    others = [each.body.decode() for each in await other.receive_all(topic, group, 6, wait=1)]
    assert {body[0] for body in mine if body[:4] != "both"} == {"a"}
    assert {body[0] for body in others if body[:4] != "both"} == {"b"}
    assert sorted(mine + others) == sorted(f"{name}{n}" for n in range(3) for name in ("a", "b", "both"))


async def test_199_priority(client: RawClient, topic: str, group: str) -> None:
    """The highest priority of all queues comes first, within one answer and across answers; equal ones by age.

    A redelivered message comes before all of lower priority.
    """
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
    """A lite topic named with a handle does not change the result."""
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
