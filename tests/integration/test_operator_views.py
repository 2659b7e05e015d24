"""What operators see of a broker in few calls: topics and groups with their figures, messages, history, problems."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import Client, connect
from aerobee_proto import admin_v1, v2
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.conformance.raw_client import RawClient, message
from tests.support.in_process_broker import in_process_broker

Code = v2.Code
TOPIC, GROUP = "orders", "billing"


@dataclass(frozen=True, slots=True)
class Harness:
    """A broker with a clock that the test moves, a client of the protocol, and the Python client."""

    raw: RawClient
    client: Client
    clock: TravellingClock

    async def ok(self, method: str, request: Any) -> Any:
        """The answer to a call that must succeed."""
        answer = await getattr(self.raw.admin, method)(request, timeout=20)
        assert answer.status.code == Code.OK, answer.status
        return answer

    async def refused(self, method: str, request: Any) -> tuple[int, str]:
        """Code and text of a call that must fail."""
        status = (await getattr(self.raw.admin, method)(request, timeout=20)).status
        assert status.code != Code.OK
        return status.code, status.message

    async def send(self, topic: str, *bodies: str, **fields: Any) -> None:
        await self.raw.sent(*(message(topic, body, **fields) for body in bodies))


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    """A harness with the topic `orders` (one queue) and the group `billing`, which allows one delivery attempt."""
    clock = TravellingClock()
    async with (
        in_process_broker(tmp_path / "store", clock=clock, dev=False) as broker,
        connect(broker.endpoint) as client,
    ):
        raw = RawClient(broker.channel)
        await raw.create_topic(TOPIC, v2.MessageType.NORMAL, v2.MessageType.DELAY, v2.MessageType.TRANSACTION)
        await raw.create_group(GROUP, max_attempts=1)
        yield Harness(raw, client, clock)


class TestTopics:
    async def test_figures_of_a_topic(self, harness: Harness) -> None:
        """Messages, bytes, rates, and when the last message was stored."""
        await harness.send(TOPIC, *(f"body {number}" for number in range(5)))
        stored = [each.store_timestamp async for each in harness.client.admin.query(TOPIC, begin=0)]
        [topic] = [each async for each in harness.client.admin.topic_status()]
        assert (topic.topic.name, topic.message_count, topic.bytes_estimated) == (TOPIC, 5, False)
        assert topic.last_store_timestamp.ToMilliseconds() == max(stored)
        assert 5 * 100 < topic.bytes < 5 * 1000
        assert topic.messages_in_rate > 0
        assert topic.bytes_in_rate == pytest.approx(topic.messages_in_rate * topic.bytes / 5)
        assert topic.group_count == 0
        await harness.raw.receive(TOPIC, GROUP)
        [topic] = [each async for each in harness.client.admin.topic_status(search="DER")]
        assert topic.group_count == 1
        assert topic.messages_out_rate > 0

    async def test_sorted_by_the_broker(self, harness: Harness) -> None:
        """Each order puts the topic with more of it first, and topics that are equal by name."""
        for name in ("a-few", "b-many", "c-none"):
            await harness.raw.create_topic(name, v2.MessageType.NORMAL)
        await harness.send("a-few", "x" * 5000)
        await harness.send("b-many", "1", "2", "3")
        orders: dict[Any, list[str]] = {
            "name": ["orders", "c-none", "b-many", "a-few"],
            "messages": ["b-many", "a-few", "c-none", "orders"],
            "bytes": ["a-few", "b-many", "c-none", "orders"],
            "in_rate": ["b-many", "a-few", "c-none", "orders"],
            "last_stored": ["b-many", "a-few", "c-none", "orders"],
            "out_rate": ["a-few", "b-many", "c-none", "orders"],
        }
        for order, names in orders.items():
            if order == "last_stored":
                await harness.clock.advance(1)
                await harness.send("b-many", "4")
            found = [each.topic.name async for each in harness.client.admin.topic_status(order=order, descending=True)]
            assert found == names, order

    async def test_pages_and_their_number(self, harness: Harness) -> None:
        """Pages follow each other without gap or double, and each tells how many topics the search found."""
        for number in range(7):
            await harness.raw.create_topic(f"t{number}", v2.MessageType.NORMAL)
        names, token = [], ""
        while True:
            request = admin_v1.ListTopicStatusRequest(search="T", page_size=3, page_token=token)
            page = await harness.ok("ListTopicStatus", request)
            assert page.total_count == 7
            names += [topic.topic.name for topic in page.topics]
            if not (token := page.next_page_token):
                break
        assert names == [f"t{number}" for number in range(7)]
        assert [each.topic.name async for each in harness.client.admin.topic_status(search="t", max_count=2)] == [
            "t0",
            "t1",
        ]

    async def test_bytes_of_a_long_queue_are_estimated(self, harness: Harness) -> None:
        """Beyond 1024 messages a sample stands for all, and says so; it is close if sizes repeat."""
        await harness.send(TOPIC, *("short" if number % 2 else "x" * 1000 for number in range(600)))
        [exact] = [each async for each in harness.client.admin.topic_status()]
        await harness.send(TOPIC, *("short" if number % 2 else "x" * 1000 for number in range(600)))
        [estimated] = [each async for each in harness.client.admin.topic_status()]
        assert (exact.bytes_estimated, estimated.bytes_estimated) == (False, True)
        assert estimated.bytes == pytest.approx(2 * exact.bytes, rel=0.05)

    @pytest.mark.parametrize(
        ("fields", "text"),
        [({"search": "x" * 256}, "256 characters"), ({"page_token": "-1"}, "is invalid"), ({"order": 99}, "unknown")],
    )
    async def test_bad_requests(self, harness: Harness, fields: dict[str, Any], text: str) -> None:
        """Each is refused with its cause, for topics and for groups."""
        for method, kind in (
            ("ListTopicStatus", admin_v1.ListTopicStatusRequest),
            ("ListGroupStatus", admin_v1.ListGroupStatusRequest),
        ):
            code, said = await harness.refused(method, kind(**fields))
            assert (code, text in said) == (Code.BAD_REQUEST, True), said


class TestGroups:
    async def test_figures_of_a_group(self, harness: Harness) -> None:
        """Backlog in its parts, the age of the oldest message, clients, topics and dead letters."""
        await harness.send(TOPIC, "0", "1", "2")
        await harness.clock.advance(5)
        received = await harness.raw.receive(TOPIC, GROUP, count=1, wait=5)
        [group] = [each async for each in harness.client.admin.group_status()]
        assert (group.group.name, group.lag, group.inflight, group.ready) == (GROUP, 3, 1, 2)
        assert group.oldest_timestamp.ToMilliseconds() <= harness.clock.now_ms() - 5000
        assert (group.client_count, group.topic_count, group.dead_letter_count) == (0, 1, 0)
        assert group.messages_out_rate > 0
        await harness.raw.acknowledge(TOPIC, GROUP, received.one)
        [group] = [each async for each in harness.client.admin.group_status(topic=TOPIC)]
        assert (group.lag, group.inflight) == (2, 0)
        assert group.acknowledged_rate > 0

    async def test_only_the_readers_of_a_topic(self, harness: Harness) -> None:
        """`topic` leaves out groups without a position in it, and an unknown topic is an error."""
        assert [each async for each in harness.client.admin.group_status(topic=TOPIC)] == []
        code, _ = await harness.refused("ListGroupStatus", admin_v1.ListGroupStatusRequest(topic="absent"))
        assert code == Code.TOPIC_NOT_FOUND

    async def test_sorted_by_the_broker(self, harness: Harness) -> None:
        """By lag and by age; a group without a backlog is the youngest."""
        await harness.raw.create_topic("other", v2.MessageType.NORMAL)
        for name in ("late", "much", "none"):
            await harness.raw.create_group(name)
        await harness.send(TOPIC, "old")
        await harness.raw.receive(TOPIC, "late", count=1, wait=5, invisible=600)
        await harness.clock.advance(60)
        await harness.send("other", "1", "2")
        await harness.raw.receive("other", "much", count=2, wait=5, invisible=600)
        lag = [each.group.name async for each in harness.client.admin.group_status(order="lag", descending=True)]
        age = [each.group.name async for each in harness.client.admin.group_status(order="age", descending=True)]
        assert lag == ["much", "late", "billing", "none"]
        assert age == ["late", "much", "billing", "none"]
