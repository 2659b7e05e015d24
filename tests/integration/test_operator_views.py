"""What operators see of a broker in few calls: topics and groups with their figures, messages, history, problems."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.processors.administration import browse
from aerobee_client import Client, Message, NotFoundError, connect
from aerobee_proto import admin_v1, v2
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.conformance.raw_client import RawClient, message, timestamp
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
        producer = harness.client.producer()
        messages = [Message(topic=TOPIC, body=b"short" if number % 2 else b"x" * 1000) for number in range(600)]
        await producer.send_many(messages)
        [exact] = [each async for each in harness.client.admin.topic_status()]
        await producer.send_many(messages)
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


class TestBrowsing:
    """BrowseMessages against the messages that were sent."""

    async def pages(self, harness: Harness, **fields: Any) -> list[list[str]]:
        """The bodies of each page."""
        pages, token = [], ""
        while True:
            request = admin_v1.BrowseMessagesRequest(topic="many", include_bodies=True, page_token=token, **fields)
            page = await harness.ok("BrowseMessages", request)
            pages.append([each.message.body.decode() for each in page.messages])
            if not (token := page.next_page_token):
                return pages

    @pytest.fixture
    async def bodies(self, harness: Harness) -> list[str]:
        """Bodies of a topic with three queues, in the order of storing."""
        await harness.client.admin.create_topic("many", queue_count=3)
        bodies = [f"body {number}" for number in range(40)]
        for number, body in enumerate(bodies):
            tag = "even" if number % 2 == 0 else "odd"
            await harness.send("many", body, tag=tag, properties={"number": str(number)})
        return bodies

    @pytest.mark.parametrize("page_size", [1, 7, 1000])
    async def test_all_messages_in_both_directions(self, harness: Harness, bodies: list[str], page_size: int) -> None:
        """Pages of any size have every message once, in order of storing."""
        newest = await self.pages(harness, page_size=page_size)
        oldest = await self.pages(harness, page_size=page_size, oldest_first=True)
        assert list(itertools.chain(*newest)) == bodies[::-1]
        assert list(itertools.chain(*oldest)) == bodies
        assert max(map(len, newest)) == min(page_size, 40)

    @pytest.mark.parametrize("oldest_first", [False, True])
    async def test_filters(self, harness: Harness, bodies: list[str], oldest_first: bool) -> None:
        """By tag, by an SQL expression, and by a text in the body or a property, upper and lower case alike."""
        expected: dict[str, tuple[dict[str, Any], list[str]]] = {
            "tag": ({"filter": v2.FilterExpression(type=v2.FilterType.TAG, expression="even")}, bodies[::2]),
            "sql": ({"filter": v2.FilterExpression(type=v2.FilterType.SQL, expression="number >= 35")}, bodies[35:]),
            "text": ({"text": "BODY 1"}, [body for body in bodies if "body 1" in body]),
            "both": (
                {"text": "3", "filter": v2.FilterExpression(type=v2.FilterType.TAG, expression="odd")},
                [body for number, body in enumerate(bodies) if "3" in body and number % 2],
            ),
            "none": ({"text": "no such text"}, []),
        }
        for name, (fields, found) in expected.items():
            for page_size in (3, 100):
                pages = await self.pages(harness, page_size=page_size, oldest_first=oldest_first, **fields)
                assert list(itertools.chain(*pages)) == (found if oldest_first else found[::-1]), name

    async def test_ranges(self, harness: Harness, bodies: list[str]) -> None:
        """Queues, offsets and times narrow the search; the end is exclusive."""
        everything = await harness.ok(
            "BrowseMessages", admin_v1.BrowseMessagesRequest(topic="many", include_bodies=True, oldest_first=True)
        )
        places = [each.message.system_properties for each in everything.messages]
        one = [body for body, place in zip(bodies, places, strict=True) if place.queue_id == 1]
        assert list(itertools.chain(*await self.pages(harness, queue_ids=[1], oldest_first=True))) == one
        found = await self.pages(harness, queue_ids=[1], begin_offset=2, end_offset=4, oldest_first=True)
        assert list(itertools.chain(*found)) == one[2:4]
        await harness.clock.advance(60)
        since = harness.clock.now_ms()
        await harness.send("many", "late")
        request = {"begin_timestamp": timestamp(since)}
        assert await self.pages(harness, **request) == [["late"]]
        request = {"end_timestamp": timestamp(since)}
        assert list(itertools.chain(*await self.pages(harness, **request))) == bodies[::-1]

    async def test_large_messages_make_short_pages(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        """A page has a bounded size, and messages of very different sizes come in order, once each."""
        for name, size in (("ANSWER_SIZE_MAX", 16 << 10), ("_BLOCK_SIZE", 4 << 10), ("_HELD_SIZE_MAX", 8 << 10)):
            monkeypatch.setattr(browse, name, size)
        await harness.client.admin.create_topic("many", queue_count=2)
        bodies = [str(number) * (6 << 10 if number % 2 == 0 else 10) for number in range(9)]
        for body in bodies:
            await harness.send("many", body)
        pages = await self.pages(harness)
        assert list(itertools.chain(*pages)) == bodies[::-1]
        assert len(pages) > 1
        assert list(itertools.chain(*await self.pages(harness, oldest_first=True))) == bodies
        [cut] = (
            await harness.ok(
                "BrowseMessages",
                admin_v1.BrowseMessagesRequest(topic="many", include_bodies=True, page_size=1, body_size_max=4),
            )
        ).messages
        assert (cut.message.body, cut.body_cut, cut.body_size) == (bodies[-1][:4].encode(), True, len(bodies[-1]))

    @pytest.mark.parametrize("oldest_first", [False, True])
    async def test_blocks_are_given_up_and_read_again(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch, oldest_first: bool
    ) -> None:
        """When the blocks of many queues take too much memory, no message is lost or comes twice."""
        monkeypatch.setattr(browse, "_BLOCK_SIZE", 10 << 10)
        monkeypatch.setattr(browse, "_HELD_SIZE_MAX", 6 << 10)
        await harness.client.admin.create_topic("many", queue_count=3)
        bodies = [f"{number} {'x' * 2000}" for number in range(30)]
        for body in bodies:
            await harness.send("many", body)
        pages = await self.pages(harness, oldest_first=oldest_first)
        assert list(itertools.chain(*pages)) == (bodies if oldest_first else bodies[::-1])

    async def test_without_bodies(self, harness: Harness, bodies: list[str]) -> None:
        """Without `include_bodies` only their sizes come."""
        page = await harness.ok("BrowseMessages", admin_v1.BrowseMessagesRequest(topic="many", page_size=1))
        [found] = page.messages
        assert (found.message.body, found.body_size, page.bodies_hidden) == (b"", len(bodies[-1]), False)
        assert found.offset_message_id
        assert await self.places(harness, found) == found.physical_offset

    async def places(self, harness: Harness, found: admin_v1.BrowsedMessage) -> int:
        """The physical offset of the message, by its position in the queue."""
        system = found.message.system_properties
        [timeline] = await harness.client.admin.message_timelines(
            "many", queue_id=system.queue_id, queue_offset=system.queue_offset
        )
        return timeline.physical_offset

    async def test_a_compressed_body_is_searched(self, harness: Harness) -> None:
        """The text is looked for in what the producer sent, not in its compressed form."""
        body = b"a needle " + b"hay " * 2000
        await harness.client.producer().send(Message(topic=TOPIC, body=body))
        found = [each async for each in harness.client.admin.browse(TOPIC, text="NEEDLE")]
        assert [each.body for each in found] == [body]

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"page_token": "1-2"}, "is invalid"),
            ({"page_token": "1--2"}, "is invalid"),
            ({"text": "x" * 256}, "256 bytes"),
            ({"body_size_max": -1}, "negative"),
        ],
    )
    async def test_bad_requests(self, harness: Harness, fields: dict[str, Any], text: str) -> None:
        """Each is refused with its cause."""
        code, said = await harness.refused("BrowseMessages", admin_v1.BrowseMessagesRequest(topic=TOPIC, **fields))
        assert (code, text in said) == (Code.BAD_REQUEST, True), said

    async def test_an_unknown_topic_and_a_wrong_filter(self, harness: Harness) -> None:
        """Their codes are those of the protocol."""
        code, _ = await harness.refused("BrowseMessages", admin_v1.BrowseMessagesRequest(topic="absent"))
        assert code == Code.TOPIC_NOT_FOUND
        wrong = v2.FilterExpression(type=v2.FilterType.SQL, expression="a >")
        code, _ = await harness.refused("BrowseMessages", admin_v1.BrowseMessagesRequest(topic=TOPIC, filter=wrong))
        assert code == Code.ILLEGAL_FILTER_EXPRESSION


class TestTailing:
    async def test_messages_as_they_come(self, harness: Harness) -> None:
        """The last messages first, then each new one; no group and no offset remains."""
        await harness.send(TOPIC, "0", "1", "2")
        tail = harness.client.admin.tail(TOPIC, last_count=2)
        found: list[str] = []
        async with asyncio.timeout(60), aclosing(tail) as news:
            async for each in news:
                found += [message.body.decode() for message in each.messages]
                if len(found) in (2, 3):
                    await harness.send(TOPIC, f"new {len(found)}")
                if len(found) >= 4:
                    break
        assert found == ["1", "2", "new 2", "new 3"]
        assert not (await harness.ok("DescribeTopic", admin_v1.DescribeTopicRequest(name=TOPIC))).groups
        assert [each.group.name async for each in harness.client.admin.group_status()] == [GROUP]

    async def test_what_is_too_much_is_dropped_and_counted(self, harness: Harness) -> None:
        """Of a burst the newest messages come, and the number of the others."""
        found: list[int] = []
        dropped = 0
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.timeout(60), aclosing(harness.client.admin.tail(TOPIC, rate_max=5)) as news:
            async for each in news:
                if not found and not each.messages:
                    await harness.send(TOPIC, *(str(number) for number in range(100)))
                found += [int(message.body) for message in each.messages]
                dropped += each.dropped
                if found and found[-1] == 99:
                    break
        assert len(found) + dropped == 100
        assert found == sorted(found)
        assert 1 <= len(found) <= 5 + 5 * (loop.time() - begun)

    async def test_filtered(self, harness: Harness) -> None:
        """Only messages with the tag come; the others are not counted as dropped."""
        async with asyncio.timeout(60), aclosing(harness.client.admin.tail(TOPIC, tags="b")) as news:
            async for each in news:
                assert each.dropped == 0
                if each.messages:
                    assert [message.body for message in each.messages] == [b"2"]
                    break
                await harness.send(TOPIC, "1", tag="a")
                await harness.send(TOPIC, "2", tag="b")

    async def test_a_deleted_topic_ends_it(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        """The tail ends at once, not with the next sign of life, with an error that names the topic."""
        monkeypatch.setattr("aerobee_broker.processors.administration.tail._SILENCE_SECONDS", 3600.0)

        async def watch() -> None:
            async with asyncio.timeout(60), aclosing(harness.client.admin.tail(TOPIC)) as news:
                async for _ in news:
                    await harness.client.admin.delete_topic(TOPIC)

        with pytest.raises(NotFoundError, match="orders"):
            await watch()

    async def test_too_many(self, harness: Harness) -> None:
        """One more than 64 is refused; when one ends, there is room again."""
        request = admin_v1.TailMessagesRequest(topic=TOPIC)
        calls = [harness.raw.admin.TailMessages(request, timeout=60) for _ in range(64)]
        for call in calls:
            assert (await call.read()).status.code == Code.OK
        refused = await harness.raw.admin.TailMessages(request, timeout=60).read()
        assert (refused.status.code, "64 tails" in refused.status.message) == (Code.TOO_MANY_REQUESTS, True)
        for call in calls:
            call.cancel()
        async with asyncio.timeout(60):
            while (await harness.raw.admin.TailMessages(request, timeout=60).read()).status.code != Code.OK:
                pass  # the broker learns of a cancelled call a moment later

    @pytest.mark.parametrize("fields", [{"rate_max": 1001}, {"last_count": 101}, {"rate_max": -1}])
    async def test_bad_requests(self, harness: Harness, fields: dict[str, Any]) -> None:
        """A limit that is too high is refused, not lowered."""
        request = admin_v1.TailMessagesRequest(topic=TOPIC, **fields)
        answer = await harness.raw.admin.TailMessages(request, timeout=60).read()
        assert answer.status.code == Code.BAD_REQUEST


class TestWatching:
    async def test_history_of_broker_topic_and_group(self, harness: Harness) -> None:
        """Points follow each other; rates add up to what was sent, received and acknowledged."""
        await harness.send(TOPIC, "0", "1", "2")
        received = await harness.raw.receive(TOPIC, GROUP, count=2, wait=5)
        await harness.raw.acknowledge(TOPIC, GROUP, *received.messages)
        async with asyncio.timeout(60):
            while True:
                broker = await harness.client.admin.history()
                figures = {series.name: list(series.values) for series in broker.series}
                if sum(figures["messages_in"]) and sum(figures["acknowledged"]):
                    break
                await asyncio.sleep(0.05)
        assert len(broker.times) == len(figures["messages_in"])
        assert list(broker.times) == sorted(set(broker.times))
        assert broker.step.ToSeconds() == 1
        assert figures["memory_bytes"][-1] > 1 << 20
        assert figures["disk_used_bytes"][-1] > 0
        topic = await harness.client.admin.history(topic=TOPIC)
        assert sum(next(series.values for series in topic.series if series.name == "messages_in")) > 0
        group = await harness.client.admin.history("second", group=GROUP, count=1)
        assert [len(series.values) for series in group.series] == [1] * 4
        assert (await harness.client.admin.history("minute")).step.ToSeconds() == 60

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"topic": "absent"}, Code.TOPIC_NOT_FOUND),
            ({"group": "absent"}, Code.CONSUMER_GROUP_NOT_FOUND),
            ({"topic": TOPIC, "group": GROUP}, Code.BAD_REQUEST),
            ({"count": -1}, Code.BAD_REQUEST),
            ({"step": 9}, Code.BAD_REQUEST),
        ],
    )
    async def test_bad_requests(self, harness: Harness, fields: dict[str, Any], code: int) -> None:
        """Each is refused with the code of its cause."""
        assert (await harness.refused("GetHistory", admin_v1.GetHistoryRequest(**fields)))[0] == code

    async def test_problems(self, harness: Harness) -> None:
        """A dead letter is a problem at the next look, with its group and its next step."""
        assert await harness.client.admin.problems() == []
        await harness.send(TOPIC, "bad")
        await harness.raw.receive(TOPIC, GROUP, invisible=10, wait=5)
        await harness.clock.advance(11)
        async with asyncio.timeout(60):
            while not (problems := await harness.client.admin.problems()):
                await harness.raw.receive(TOPIC, GROUP, wait=0)
                await harness.clock.advance(1)
        assert [(problem.name, problem.group) for problem in problems] == [("AerobeeDeadLetters", GROUP)]
        assert "aerobee dlq list" in problems[0].next_step
        assert problems[0].runbook == "operating.md#aerobeedeadletters"
        answer = await harness.ok("GetProblems", admin_v1.GetProblemsRequest())
        assert "AerobeeDiskFull" in answer.judged


class TestWaiting:
    async def delayed(self, harness: Harness, body: str, seconds: float, topic: str = TOPIC) -> None:
        due = timestamp(harness.clock.now_ms() + round(seconds * 1000))
        await harness.raw.sent(message(topic, body, message_type=v2.MessageType.DELAY, delivery_timestamp=due))

    async def listed(self, harness: Harness, count: int, **options: Any) -> list[admin_v1.DelayedMessage]:
        """The delayed messages, once there are as many: the timer follows its topic a moment later."""
        async with asyncio.timeout(60):
            while True:
                found = [each async for each in harness.client.admin.delayed_messages(bodies=True, **options)]
                if len(found) == count:
                    return found

    async def test_delayed_messages_in_order_of_their_time(self, harness: Harness) -> None:
        """Soon ones first, also in pages of one; of a topic or a time; delivered ones are gone."""
        await harness.raw.create_topic("other", v2.MessageType.DELAY)
        for body, seconds in (("60", 60), ("5", 5), ("60.5", 60.5), ("3600", 3600)):
            await self.delayed(harness, body, seconds)
        await self.delayed(harness, "other", 30, "other")
        found = await self.listed(harness, 5)
        assert [each.message.body for each in found] == [b"5", b"other", b"60", b"60.5", b"3600"]
        assert found[1].message.topic.name == "other"
        assert next(each.message.body for each in await self.listed(harness, 4, topic=TOPIC)) == b"5"
        since = harness.clock.now_ms() + 50_000
        assert next(each.message.body for each in await self.listed(harness, 3, begin=since)) == b"60"
        assert [each.message.body for each in await self.listed(harness, 2, end=since)][1] == b"other"
        paged, token = [], ""
        while True:
            request = admin_v1.ListDelayedMessagesRequest(page_size=1, page_token=token)
            page = await harness.ok("ListDelayedMessages", request)
            assert page.total_count == 5
            paged += [each.due_timestamp.ToMilliseconds() for each in page.messages]
            if not (token := page.next_page_token):
                break
        assert paged == [each.due_timestamp.ToMilliseconds() for each in found]
        await harness.clock.advance(10)
        assert next(each.message.body for each in await self.listed(harness, 4)) == b"other"

    async def test_recalled_messages_are_never_delivered(self, harness: Harness) -> None:
        """An operator takes a message back; it leaves the list, and a second recall is refused."""
        await self.delayed(harness, "1", 3600)
        await self.delayed(harness, "2", 3600)
        first, second = await self.listed(harness, 2)
        [done, wrong] = await harness.client.admin.recall_delayed([first.recall_handle, "nonsense"])
        assert (done.status.code, wrong.status.code) == (Code.OK, Code.BAD_REQUEST)
        assert [each.message.body for each in await self.listed(harness, 1)] == [second.message.body]
        [again] = await harness.client.admin.recall_delayed([first.recall_handle])
        assert again.status.code == Code.MESSAGE_NOT_FOUND
        await harness.clock.advance(3601)
        received = await harness.raw.receive(TOPIC, GROUP, wait=10)
        assert received.bodies == [second.message.body.decode()]

    async def test_open_transactions(self, harness: Harness) -> None:
        """The list has each undecided one; decisions settle them, and a second decision is refused."""
        sent = await harness.raw.sent(
            *(message(TOPIC, str(number), message_type=v2.MessageType.TRANSACTION) for number in range(3))
        )
        found = [each async for each in harness.client.admin.transactions(bodies=True)]
        assert [each.message.body for each in found] == [b"0", b"1", b"2"]
        assert [each.transaction_id for each in found] == [each.transaction_id for each in sent]
        assert found[0].message.topic.name == TOPIC
        assert found[0].check_count == 0
        assert found[0].next_check_timestamp.ToMilliseconds() > harness.clock.now_ms()
        page = await harness.ok("ListTransactions", admin_v1.ListTransactionsRequest(page_size=2))
        assert (page.total_count, len(page.transactions)) == (3, 2)
        request = admin_v1.ListTransactionsRequest(page_size=2, page_token=page.next_page_token)
        assert [each.transaction_id for each in (await harness.ok("ListTransactions", request)).transactions] == [
            found[2].transaction_id
        ]
        admin = harness.client.admin
        [done] = await admin.decide_transactions(TOPIC, [found[0].transaction_id], commit=True)
        results = await admin.decide_transactions(TOPIC, [found[1].transaction_id, "nonsense"], commit=False)
        assert done.status.code == Code.OK
        assert [each.status.code for each in results] == [Code.OK, Code.INVALID_TRANSACTION_ID]
        [other] = await admin.decide_transactions(TOPIC, [found[0].transaction_id], commit=False)
        assert other.status.code == Code.INVALID_TRANSACTION_ID
        assert (await harness.raw.receive(TOPIC, GROUP, wait=10)).bodies == ["0"]
        assert [each.message.body async for each in admin.transactions(TOPIC, bodies=True)] == [b"2"]

    async def test_bad_requests(self, harness: Harness) -> None:
        """Each is refused with the code of its cause."""
        requests: list[tuple[str, Any, int]] = [
            ("ListDelayedMessages", admin_v1.ListDelayedMessagesRequest(page_token="1-2"), Code.BAD_REQUEST),
            ("ListDelayedMessages", admin_v1.ListDelayedMessagesRequest(topic="absent"), Code.TOPIC_NOT_FOUND),
            ("ListTransactions", admin_v1.ListTransactionsRequest(page_token="x"), Code.BAD_REQUEST),
            ("DecideTransactions", admin_v1.DecideTransactionsRequest(topic=TOPIC), Code.BAD_REQUEST),
            (
                "RecallDelayedMessages",
                admin_v1.RecallDelayedMessagesRequest(recall_handles=["x"] * 1001),
                Code.BAD_REQUEST,
            ),
        ]
        for method, request, code in requests:
            assert (await harness.refused(method, request))[0] == code, method


class TestRemoving:
    async def dead(self, harness: Harness, *bodies: str, **fields: Any) -> None:
        """Dead letters of the group, in this order."""
        for body in bodies:
            await harness.send(TOPIC, body, **fields)
            received = await harness.raw.receive(TOPIC, GROUP, count=1, wait=10)
            handle = received.one.system_properties.receipt_handle
            assert await harness.raw.forward(TOPIC, GROUP, handle) == Code.OK

    async def left(self, harness: Harness) -> list[bytes]:
        return [each.message.body async for each in harness.client.admin.dead_letters(GROUP, bodies=True)]

    async def test_chosen_dead_letters_are_deleted(self, harness: Harness) -> None:
        """Neither listed, counted nor sent again; the others stay; a dry run only counts."""
        admin = harness.client.admin
        await self.dead(harness, "0", "1", "2", "3")
        assert await admin.delete_dead_letters(GROUP, [1, 3], dry_run=True) == 2
        assert await admin.delete_dead_letters(GROUP, [1, 3]) == 2
        assert await self.left(harness) == [b"0", b"2"]
        [queue] = [each async for each in admin.dead_letter_queues()]
        [group] = [each async for each in admin.group_status()]
        assert (queue.count, group.dead_letter_count) == (2, 2)
        [gone, there] = await admin.resend_dead_letters(GROUP, [1, 2])
        assert (gone.status.code, there.status.code) == (Code.MESSAGE_NOT_FOUND, Code.OK)
        with pytest.raises(NotFoundError):
            await admin.delete_dead_letters(GROUP, [1])

    async def test_all_dead_letters_before_a_time_and_all(self, harness: Harness) -> None:
        """The end is exclusive. After all are gone, new ones are seen, with offsets that go on."""
        admin = harness.client.admin
        await self.dead(harness, "old")
        await harness.clock.advance(60)
        since = harness.clock.now_ms()
        await self.dead(harness, "new")
        assert await admin.delete_dead_letters(GROUP, before=since) == 1
        assert await self.left(harness) == [b"new"]
        assert await admin.delete_dead_letters(GROUP, before=since) == 0
        assert await admin.delete_dead_letters(GROUP, everything=True) == 1
        assert await self.left(harness) == []
        assert [each async for each in admin.dead_letter_queues()] == []
        await self.dead(harness, "newest")
        [letter] = [each async for each in admin.dead_letters(GROUP, bodies=True)]
        assert (letter.offset, letter.message.body) == (2, b"newest")

    async def test_an_edited_dead_letter(self, harness: Harness) -> None:
        """Body, tag, keys and properties are replaced; what is not named stays."""
        await self.dead(harness, "wrong", tag="a", keys=["k"], properties={"one": "1", "two": "2"})
        edit = admin_v1.DeadLetterEdit(
            body=b"right",
            tag="b",
            keys=admin_v1.StringList(values=["x", "y z"]),
            set_properties={"two": "3", "four": ""},
            delete_properties=["one"],
        )
        [result] = await harness.client.admin.resend_dead_letters(GROUP, [0], edit=edit)
        assert result.status.code == Code.OK, result.status
        found = (await harness.raw.receive(TOPIC, GROUP, wait=10)).one
        assert found.body == b"right"
        assert (found.system_properties.tag, list(found.system_properties.keys)) == ("b", ["x", "y z"])
        assert dict(found.user_properties) == {"two": "3", "four": ""}
        for wrong in (
            admin_v1.DeadLetterEdit(set_properties={"__AEROBEE_KEYS": "1"}),
            admin_v1.DeadLetterEdit(delete_properties=["absent"]),
            admin_v1.DeadLetterEdit(body=b"x" * 9000),
        ):
            [result] = await harness.client.admin.resend_dead_letters(GROUP, [0], edit=wrong, again=True)
            assert result.status.code not in (Code.OK, Code.INTERNAL_SERVER_ERROR), wrong
        [result] = await harness.client.admin.resend_dead_letters(
            GROUP, [0], edit=admin_v1.DeadLetterEdit(tag=""), again=True
        )
        found = (await harness.raw.receive(TOPIC, GROUP, wait=10)).one
        assert (found.body, found.system_properties.HasField("tag")) == (b"wrong", False)
        assert dict(found.user_properties) == {"one": "1", "two": "2"}

    @pytest.mark.parametrize(
        "fields", [{}, {"all": True, "offsets": [1]}, {"offsets": [0] * 1001}], ids=["nothing", "two", "many"]
    )
    async def test_bad_deletions(self, harness: Harness, fields: dict[str, Any]) -> None:
        """A deletion names exactly one kind of choice, of a bounded size."""
        request = admin_v1.DeleteDeadLettersRequest(group=GROUP, **fields)
        assert (await harness.refused("DeleteDeadLetters", request))[0] == Code.BAD_REQUEST

    async def test_a_purged_topic_is_empty_and_goes_on(self, harness: Harness) -> None:
        """No group gets what was there, in flight or not; every message sent afterwards arrives, for old and new
        groups."""
        await harness.raw.create_group("other")
        await harness.send(TOPIC, "0", "1", "2")
        held = (await harness.raw.receive(TOPIC, GROUP, count=1, wait=5)).one
        dry = await harness.client.admin.purge_topic(TOPIC, dry_run=True)
        assert (dry.message_count, list(dry.groups)) == (3, [GROUP])
        assert (await harness.client.admin.purge_topic(TOPIC)).message_count == 3
        assert [each async for each in harness.client.admin.browse(TOPIC)] == []
        [group] = [each async for each in harness.client.admin.group_status(search=GROUP)]
        assert group.lag == 0
        await harness.raw.acknowledge(TOPIC, GROUP, held)
        await harness.send(TOPIC, "3")
        assert (await harness.raw.receive(TOPIC, GROUP, wait=10)).bodies == ["3"]
        await harness.raw.receive(TOPIC, "other")
        await harness.send(TOPIC, "4")
        assert (await harness.raw.receive(TOPIC, "other", wait=10)).bodies[-1] == "4"
        assert [each.queue_offset async for each in harness.client.admin.browse(TOPIC)] == [4, 3]
        await harness.clock.advance(100)
        assert (await harness.raw.receive(TOPIC, GROUP, wait=10)).bodies == ["4"]  # "3" has used up its one attempt

    async def test_what_cannot_be_purged(self, harness: Harness) -> None:
        """Topics of the broker itself and of groups, and a topic that does not exist."""
        await self.dead(harness, "0")
        for name, code in ((f"%DLQ%{GROUP}", Code.FORBIDDEN), ("absent", Code.TOPIC_NOT_FOUND)):
            assert (await harness.refused("PurgeTopic", admin_v1.PurgeTopicRequest(name=name)))[0] == code

    async def test_a_disconnected_client_is_forgotten(self, harness: Harness) -> None:
        """Its waiting receive ends and it leaves the list; with its next call it is back."""
        waiting = asyncio.ensure_future(harness.raw.receive(TOPIC, GROUP, wait=60, timeout=90))
        async with asyncio.timeout(60):
            while not (connected := [each async for each in harness.client.admin.connections()]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            await harness.client.admin.disconnect_client(connected[0].client_id)
            assert (await waiting).messages == []
        assert [each async for each in harness.client.admin.connections()] == []
        with pytest.raises(NotFoundError):
            await harness.client.admin.disconnect_client(connected[0].client_id)
        await harness.send(TOPIC, "0")
        [again] = [each async for each in harness.client.admin.connections()]
        assert again.client_id == connected[0].client_id
        async with asyncio.timeout(60):  # the server of grpcio ends the connection a second later
            while again.remote_address == connected[0].remote_address:
                await asyncio.sleep(0.1)
                await harness.send(TOPIC, "0")
                [again] = [each async for each in harness.client.admin.connections()]


class TestInventory:
    async def test_who_changed_what(self, harness: Harness) -> None:
        """Newest first, without dry runs and refused calls; searched and paged."""
        admin = harness.client.admin
        await admin.purge_topic(TOPIC, dry_run=True)
        with pytest.raises(NotFoundError):
            await admin.delete_topic("absent")
        await admin.update_topic(TOPIC, queue_count=2)
        found = [each async for each in admin.operations()]
        assert [each.method for each in found] == ["UpdateTopic", "CreateGroup", "CreateTopic"]
        assert (found[0].account, 'name: "orders"' in found[0].request) == ("", True)
        assert found[0].address.startswith("127.0.0.1:")
        assert found[0].timestamp.ToMilliseconds() <= harness.clock.now_ms()
        assert [each.method async for each in admin.operations(search="BILLING")] == ["CreateGroup"]
        assert [each async for each in admin.operations(account="nobody")] == []
        page = await harness.ok("ListOperations", admin_v1.ListOperationsRequest(page_size=2))
        request = admin_v1.ListOperationsRequest(page_size=2, page_token=page.next_page_token)
        rest = await harness.ok("ListOperations", request)
        assert [each.method for each in rest.operations] == ["CreateTopic"]
        assert rest.next_page_token == ""

    async def test_segments_and_their_growth(self, harness: Harness) -> None:
        """Segments in order, with what they hold; a growth that retention does not stop fills the disk some day."""
        await harness.send(TOPIC, *("x" * 8000 for _ in range(40)))
        await harness.clock.advance(3600)
        await harness.send(TOPIC, "last")
        found = await harness.client.admin.segments()
        store = await harness.client.admin.store_status()
        segments = list(found.segments)
        assert len(segments) == store.segment_count > 1
        assert segments[0].physical_offset == store.min_physical_offset
        assert [each.physical_offset for each in segments[1:]] == [
            each.physical_offset + each.size for each in segments[:-1]
        ]
        assert segments[-1].physical_offset + segments[-1].used == store.max_physical_offset
        assert all(each.HasField("expire_timestamp") for each in segments[:-1])
        assert not segments[-1].HasField("expire_timestamp")
        assert found.growth_bytes_per_day == pytest.approx(24 * store.max_physical_offset, rel=0.1)
        assert not found.HasField("full_in")
        page = await harness.ok("ListSegments", admin_v1.ListSegmentsRequest(page_size=1))
        assert page.next_page_token == str(segments[1].physical_offset)

    async def test_bad_pages(self, harness: Harness) -> None:
        """A token that no page gave is refused."""
        for method, request in (
            ("ListOperations", admin_v1.ListOperationsRequest(page_token="x")),
            ("ListSegments", admin_v1.ListSegmentsRequest(page_token="x")),
        ):
            assert (await harness.refused(method, request))[0] == Code.BAD_REQUEST


async def test_removals_outlive_a_restart(tmp_path: Path) -> None:
    """Purged messages and deleted dead letters are gone after a start, too."""
    clock = TravellingClock()
    for number in range(2):
        async with (
            in_process_broker(tmp_path / "store", clock=clock, dev=False) as broker,
            connect(broker.endpoint) as client,
        ):
            raw = RawClient(broker.channel)
            if number == 0:
                await raw.create_topic(TOPIC, v2.MessageType.NORMAL)
                await raw.create_group(GROUP, max_attempts=1)
                for body in ("0", "1"):
                    await raw.sent(message(TOPIC, body))
                    received = await raw.receive(TOPIC, GROUP, count=1, wait=10)
                    await raw.forward(TOPIC, GROUP, received.one.system_properties.receipt_handle)
                assert await client.admin.delete_dead_letters(GROUP, [0]) == 1
                await raw.sent(message(TOPIC, "2"))
                assert (await client.admin.purge_topic(TOPIC)).message_count == 3
            methods = [each.method async for each in client.admin.operations()]
            assert methods == ["PurgeTopic", "DeleteDeadLetters", "CreateGroup", "CreateTopic"]
            assert [each.message.body async for each in client.admin.dead_letters(GROUP, bodies=True)] == [b"1"]
            assert [each async for each in client.admin.browse(TOPIC)] == []
            assert (await raw.receive(TOPIC, GROUP)).messages == []
