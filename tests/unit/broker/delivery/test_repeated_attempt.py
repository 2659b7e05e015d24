"""A push consumer that repeats the attempt id of a receive has not seen its answer."""

from __future__ import annotations

from aerobee_broker.delivery.receive.receive_plan import ReceiveRequest
from aerobee_broker.delivery.receive.selection import DeliveredMessage
from tests.support.delivery_harness import GROUP, TOPIC, Harness, bodies


async def receive(
    harness: Harness, attempt_id: str, *, client_id: str = "client", group: str = GROUP, invisible_ms: int | None = None
) -> list[DeliveredMessage]:
    harness.connected.add(client_id)
    request = ReceiveRequest(
        topic=TOPIC,
        group=group,
        client_id=client_id,
        count=32,
        invisible_ms=invisible_ms,
        wait_seconds=0,
        attempt_id=attempt_id,
    )
    return await harness.deliveries.receive(request)


async def test_the_same_attempt_gets_the_messages_again(harness: Harness) -> None:
    """The messages of the lost answer are redelivered from every queue as the next attempt."""
    await harness.send("a", "b")
    await harness.send("c", queue_id=1)
    assert bodies(await receive(harness, "one")) == ["a", "b", "c"]
    again = await receive(harness, "one")
    assert bodies(again) == ["a", "b", "c"]
    assert [message.attempt for message in again] == [2, 2, 2]
    assert await harness.acknowledge(*again) == [True, True, True]
    assert await receive(harness, "one") == []


async def test_another_attempt_client_or_group_gets_nothing(harness: Harness) -> None:
    """Messages are given back only to the same attempt of the same client and group."""
    await harness.send("a")
    await harness.send("b", queue_id=1)
    first = await receive(harness, "one")
    assert await receive(harness, "two") == []
    assert await receive(harness, "one", client_id="another") == []
    assert bodies(await receive(harness, "one", group="audit")) == ["a", "b"]
    assert await harness.acknowledge(*first) == [True, True]


async def test_only_the_repeated_attempt_is_returned(harness: Harness) -> None:
    """Messages of earlier attempts are still being processed and stay in flight."""
    await harness.send("a")
    worked_on = await receive(harness, "one")
    await harness.send("b")
    await receive(harness, "two")
    assert bodies(await receive(harness, "two")) == ["b"]
    assert await harness.acknowledge(*worked_on) == [True]


async def test_an_acknowledged_or_changed_message_is_not_redelivered(harness: Harness) -> None:
    """A client that acknowledged or changed a message has seen the answer."""
    await harness.send("a", "b", "c")
    messages = await receive(harness, "one")
    await harness.acknowledge(messages[0])
    await harness.deliveries.change_invisible(TOPIC, GROUP, messages[1].receipt_handle, 60_000)
    assert bodies(await receive(harness, "one")) == [messages[2].record.body.decode()]


async def test_a_repeated_attempt_is_known_after_a_crash(harness: Harness) -> None:
    """The attempt id survives a crash, so its messages are redelivered. Messages of other attempts stay invisible."""
    await harness.send("a")
    worked_on = await receive(harness, "one")
    await harness.send("b")
    await harness.send("c", queue_id=1)
    await receive(harness, "two")
    following = await harness.crash()
    again = await receive(following, "two")
    assert [message.attempt for message in again] == [2, 2]
    assert bodies(again) == ["b", "c"]
    assert await following.acknowledge(*worked_on, *again) == [True, True, True]


async def test_with_its_own_invisible_time_nothing_is_returned(harness: Harness) -> None:
    """A receive with its own invisible time, as of a simple consumer, gives nothing back before that time ends."""
    await harness.send("a")
    assert bodies(await receive(harness, "one", invisible_ms=30_000)) == ["a"]
    assert await receive(harness, "one", invisible_ms=30_000) == []
