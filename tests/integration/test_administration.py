"""aerobee.v1.AdminService beyond topics and groups: offsets, messages, dead letters, connections, settings, status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.processors.administration import clients
from aerobee_proto import admin_v1, v2
from aerobee_store.records.properties import offset_message_id
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.conformance.raw_client import RawClient, consumer_settings, message, producer_settings, resource, timestamp
from tests.support.in_process_broker import in_process_broker

Code, Kind, State = v2.Code, admin_v1.TimelineEvent.Kind, admin_v1.GroupMessageState.State
TOPIC, GROUP = "orders", "billing"


@dataclass(frozen=True, slots=True)
class Harness:
    """A broker with a clock that the test moves, and a client."""

    client: RawClient
    clock: TravellingClock

    async def ok(self, method: str, request: Any) -> Any:
        """The answer to a call that must succeed."""
        answer = await getattr(self.client.admin, method)(request, timeout=20)
        assert answer.status.code == Code.OK, answer.status
        return answer

    async def refused(self, method: str, request: Any) -> tuple[int, str]:
        """Code and text of a call that must fail."""
        status = (await getattr(self.client.admin, method)(request, timeout=20)).status
        assert status.code != Code.OK
        return status.code, status.message

    async def timelines(self, **wanted: Any) -> list[admin_v1.MessageTimeline]:
        """DescribeMessage's answer for a message of the topic."""
        request = admin_v1.DescribeMessageRequest(topic=TOPIC, **wanted)
        return list((await self.ok("DescribeMessage", request)).timelines)

    async def one(self, **wanted: Any) -> admin_v1.MessageTimeline:
        """The timeline of a message that is stored once."""
        (timeline,) = await self.timelines(**wanted)
        return timeline


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    """A harness with the topic `orders` (one queue) and the group `billing`, which allows one delivery attempt."""
    clock = TravellingClock()
    async with in_process_broker(tmp_path / "store", clock=clock, dev=False) as broker:
        client = RawClient(broker.channel)
        await client.create_topic(TOPIC, v2.MessageType.NORMAL, v2.MessageType.DELAY, v2.MessageType.TRANSACTION)
        await client.create_group(GROUP, max_attempts=1)
        yield Harness(client, clock)


def kinds(timeline: admin_v1.MessageTimeline) -> list[str]:
    return [Kind.Name(event.kind) for event in timeline.events]


def states(timeline: admin_v1.MessageTimeline) -> dict[str, str]:
    return {state.group: State.Name(state.state) for state in timeline.groups}


class TestAttributes:
    @pytest.mark.parametrize(
        ("attributes", "text"),
        [
            ({"message.type": "FIFOO"}, "use one of"),
            ({"nosuch": "1"}, "unknown"),
            ({"reserve.time": "72"}, "store.retention_hours"),
        ],
    )
    async def test_a_wrong_one_was_taken(self, harness: Harness, attributes: dict[str, str], text: str) -> None:
        """Neither a new topic nor a change takes it."""
        new = admin_v1.CreateTopicRequest(topic=admin_v1.Topic(name="new", attributes=attributes))
        change = admin_v1.UpdateTopicRequest(name=TOPIC, set_attributes=attributes)
        for method, request in (("CreateTopic", new), ("UpdateTopic", change)):
            code, said = await harness.refused(method, request)
            assert (code, text in said) == (Code.BAD_REQUEST, True), said

    async def test_the_attribute_of_the_type_made_a_normal_topic(self, harness: Harness) -> None:
        """The type may come as accepted types, as the attribute, or as both if they agree."""
        fifo = {"message.type": "FIFO"}
        for name, types in (("by-attribute", []), ("by-both", [v2.MessageType.FIFO])):
            wanted = admin_v1.Topic(name=name, attributes=fifo, accept_message_types=types)
            made = await harness.ok("CreateTopic", admin_v1.CreateTopicRequest(topic=wanted))
            assert list(made.topic.accept_message_types) == [v2.MessageType.FIFO]
        wanted = admin_v1.Topic(name="torn", attributes=fifo, accept_message_types=[v2.MessageType.DELAY])
        code, said = await harness.refused("CreateTopic", admin_v1.CreateTopicRequest(topic=wanted))
        assert (code, "give one of them" in said) == (Code.BAD_REQUEST, True)


class TestOffsets:
    @pytest.mark.parametrize(
        ("position", "offset"),
        [({"offset": 3}, 3), ({"offset": 99}, 5), ({"earliest": True}, 0), ({"latest": True}, 5), ({"skip": 1}, 2)],
        ids=["offset", "after-the-end", "earliest", "latest", "skip"],
    )
    async def test_reset_to_each_kind_of_position(
        self, harness: Harness, position: dict[str, Any], offset: int
    ) -> None:
        """Each way to name a position; a dry run reports the position and changes nothing."""
        await harness.client.sent(*(message(TOPIC, str(number)) for number in range(5)))
        first = (await harness.client.receive(TOPIC, GROUP, count=1, wait=5)).one
        await harness.client.acknowledge(TOPIC, GROUP, first)
        request = admin_v1.ResetOffsetsRequest(group=GROUP, topic=TOPIC, dry_run=True, **position)
        (queue,) = (await harness.ok("ResetOffsets", request)).queues
        assert (queue.queue_id, queue.before, queue.after) == (0, 1, offset)
        described = await harness.ok("DescribeGroup", admin_v1.DescribeGroupRequest(name=GROUP))
        assert described.queues[0].committed_offset == 1
        request.dry_run = False
        await harness.ok("ResetOffsets", request)
        received = await harness.client.receive(TOPIC, GROUP)
        assert received.bodies == [str(number) for number in range(offset, 5)]

    async def test_reset_of_a_group_that_never_received(self, harness: Harness) -> None:
        """The group starts at the given position; it has no previous one."""
        await harness.client.sent(*(message(TOPIC, str(number)) for number in range(3)))
        request = admin_v1.ResetOffsetsRequest(group=GROUP, topic=TOPIC, queue_ids=[0], offset=2)
        (queue,) = (await harness.ok("ResetOffsets", request)).queues
        assert (queue.HasField("before"), queue.after) == (False, 2)
        assert (await harness.client.receive(TOPIC, GROUP, wait=5)).bodies == ["2"]

    async def test_a_group_begins_where_another_one_is(self, harness: Harness) -> None:
        """In the queues in which that one has a position; a dry run says so first, and the other does not move."""
        await harness.client.create_group("other")
        await harness.ok(
            "UpdateTopic", admin_v1.UpdateTopicRequest(name=TOPIC, read_queue_count=2, write_queue_count=2)
        )
        await harness.client.sent(*(message(TOPIC, str(number)) for number in range(5)))
        ends = [
            queue.max_offset
            for queue in (await harness.ok("DescribeTopic", admin_v1.DescribeTopicRequest(name=TOPIC))).queues
        ]
        moved = admin_v1.ResetOffsetsRequest(group=GROUP, topic=TOPIC, queue_ids=[1], latest=True)
        await harness.ok("ResetOffsets", moved)
        request = admin_v1.ResetOffsetsRequest(group="other", topic=TOPIC, like_group=GROUP, dry_run=True)
        for request.dry_run in (True, False):
            (queue,) = (await harness.ok("ResetOffsets", request)).queues
            assert (queue.queue_id, queue.HasField("before"), queue.after) == (1, False, ends[1])
        described = await harness.ok("DescribeGroup", admin_v1.DescribeGroupRequest(name=GROUP))
        assert [(each.queue_id, each.committed_offset) for each in described.queues] == [(1, ends[1])]
        request.queue_ids.append(0)
        code, said = await harness.refused("ResetOffsets", request)
        assert (code, "has no position in these queues" in said) == (Code.NOT_FOUND, True)

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({}, Code.BAD_REQUEST),
            ({"like_group": "absent"}, Code.CONSUMER_GROUP_NOT_FOUND),
            ({"like_group": GROUP}, Code.NOT_FOUND),
            ({"offset": -1}, Code.ILLEGAL_OFFSET),
            ({"skip": 0}, Code.BAD_REQUEST),
            ({"queue_ids": [7], "earliest": True}, Code.BAD_REQUEST),
            ({"topic": "absent", "earliest": True}, Code.TOPIC_NOT_FOUND),
            ({"group": "absent", "earliest": True}, Code.CONSUMER_GROUP_NOT_FOUND),
        ],
        ids=["no-position", "absent-like", "unread-like", "negative", "skip-nothing", "queue", "topic", "group"],
    )
    async def test_invalid_requests_are_refused(self, harness: Harness, fields: dict[str, Any], code: int) -> None:
        """The code names the mistake."""
        request = admin_v1.ResetOffsetsRequest(**{"group": GROUP, "topic": TOPIC, **fields})
        assert (await harness.refused("ResetOffsets", request))[0] == code


class TestGroups:
    async def test_lag_by_topic_and_queue(self, harness: Harness) -> None:
        """In flight, ready, retried and delayed messages, and the age of the oldest, by queue and by topic."""
        await harness.client.create_group("patient")
        due = harness.clock.now_ms() + 3_600_000
        await harness.client.sent(
            *(message(TOPIC, str(number)) for number in range(4)),
            message(TOPIC, "later", message_type=v2.MessageType.DELAY, delivery_timestamp=timestamp(due)),
        )
        await harness.client.receive(TOPIC, "patient", count=2, invisible=10, wait=5)
        await harness.clock.advance(20)
        await harness.client.receive(TOPIC, "patient", count=1, invisible=60)
        answer = await harness.ok("DescribeGroup", admin_v1.DescribeGroupRequest(name="patient"))
        (queue,), (topic,) = answer.queues, answer.topics
        assert (queue.lag, queue.inflight, queue.ready, queue.retrying) == (4, 1, 3, 2)
        assert (topic.lag, topic.inflight, topic.ready, topic.retrying, topic.delayed) == (4, 1, 3, 2, 1)
        assert topic.oldest_timestamp == queue.oldest_timestamp
        assert harness.clock.now_ms() - topic.oldest_timestamp.ToMilliseconds() >= 20_000

    async def test_lists_are_paged(self, harness: Harness) -> None:
        """Each topic and group is listed once, ordered by name."""
        for name in ("a", "c", "b"):
            await harness.client.create_topic(name)
            await harness.client.create_group(name)
        for method, field in (("ListTopics", "topics"), ("ListGroups", "groups")):
            request = getattr(admin_v1, f"{method}Request")(page_size=2)
            names: list[list[str]] = []
            while not names or request.page_token:
                answer = await harness.ok(method, request)
                names.append([each.name for each in getattr(answer, field)])
                request.page_token = answer.next_page_token
            assert names == ([["a", "b"], ["c", TOPIC]] if field == "topics" else [["a", "b"], [GROUP, "c"]])


class TestTimelines:
    async def test_timeline_from_send_to_acknowledgement(self, harness: Harness) -> None:
        """The timeline has the message's current state, and with history each step before it."""
        (sent,) = await harness.client.sent(message(TOPIC, "x"))
        timeline = await harness.one(message_id=sent.message_id)
        assert kinds(timeline) == ["BORN", "STORED"]
        assert (timeline.message.body, timeline.size > 0, states(timeline)) == (b"x", True, {})
        received = (await harness.client.receive(TOPIC, GROUP, invisible=60, wait=5)).one
        timeline = await harness.one(message_id=sent.message_id)
        (state,) = timeline.groups
        assert (State.Name(state.state), state.attempts, state.group) == ("IN_FLIGHT", 1, GROUP)
        assert state.invisible_until.ToMilliseconds() > harness.clock.now_ms()
        handle = received.system_properties.receipt_handle
        changed = await harness.client.change(TOPIC, GROUP, handle, 30)
        await harness.client.acknowledge(TOPIC, GROUP, changed.receipt_handle)
        timeline = await harness.one(message_id=sent.message_id)
        assert (kinds(timeline), states(timeline)) == (["BORN", "STORED", "FINISHED"], {GROUP: "FINISHED"})
        assert not timeline.events[-1].HasField("timestamp"), "when is only in the journal"
        timeline = await harness.one(queue_id=0, queue_offset=0, history=True)
        assert kinds(timeline) == ["BORN", "STORED", "DELIVERED", "CHANGED", "FINISHED"]
        assert timeline.history_complete
        times = [event.timestamp.ToMilliseconds() for event in timeline.events]
        assert times == sorted(times)
        assert (timeline.events[2].attempt, timeline.events[2].group) == (1, GROUP)

    async def test_timeline_of_a_resent_dead_letter(self, harness: Harness) -> None:
        """The timeline includes the dead letter and its redrive."""
        (sent,) = await harness.client.sent(message(TOPIC, "x"))
        received = (await harness.client.receive(TOPIC, GROUP, wait=5)).one
        await harness.client.forward(TOPIC, GROUP, received.system_properties.receipt_handle)
        await harness.ok("ResendDeadLetters", admin_v1.ResendDeadLettersRequest(group=GROUP, offsets=[0]))
        first, second = await harness.timelines(message_id=sent.message_id)
        assert kinds(first) == ["BORN", "STORED", "DEAD_LETTER", "RESENT"]
        assert states(first) == {GROUP: "DEAD_LETTER"}
        assert second.message.system_properties.queue_offset == 1
        assert states(second) == {GROUP: "WAITING"}

    async def test_timeline_of_a_filtered_message(self, harness: Harness) -> None:
        """The message is finished for the group; the history gives the filter as the reason."""
        (sent, *_) = await harness.client.sent(message(TOPIC, "a", tag="red"), message(TOPIC, "b", tag="blue"))
        await harness.client.receive(TOPIC, GROUP, expression="blue", wait=5)
        timeline = await harness.one(message_id=sent.message_id, history=True)
        assert states(timeline) == {GROUP: "FINISHED"}
        assert (kinds(timeline)[-1], timeline.events[-1].detail) == ("FINISHED", "left out by the filter of the group")

    async def test_timeline_shows_a_reset(self, harness: Harness) -> None:
        """The history says that the group's position was moved past the message."""
        (sent,) = await harness.client.sent(message(TOPIC, "x"))
        await harness.client.receive(TOPIC, GROUP, wait=5)
        await harness.ok("ResetOffsets", admin_v1.ResetOffsetsRequest(group=GROUP, topic=TOPIC, latest=True))
        timeline = await harness.one(message_id=sent.message_id, history=True)
        assert kinds(timeline) == ["BORN", "STORED", "DELIVERED", "RESET", "FINISHED"]

    async def test_timeline_of_a_recalled_message(self, harness: Harness) -> None:
        """A delayed message is not in its topic before it is due; a recalled one never is."""
        due = harness.clock.now_ms() + 3_600_000
        (sent, kept) = await harness.client.sent(
            *(
                message(TOPIC, name, message_type=v2.MessageType.DELAY, delivery_timestamp=timestamp(due))
                for name in ("recalled", "kept")
            )
        )
        await harness.client.receive(TOPIC, GROUP)  # makes the group known
        timeline = await harness.one(message_id=sent.message_id)
        assert (kinds(timeline), states(timeline)) == (["BORN", "DELAYED"], {GROUP: "NOT_YET"})
        assert timeline.events[1].until.ToMilliseconds() == due
        assert (await harness.client.recall(TOPIC, sent.recall_handle)).status.code == Code.OK
        timeline = await harness.one(message_id=sent.message_id)
        assert (kinds(timeline), states(timeline)) == (["BORN", "DELAYED", "RECALLED"], {})
        await harness.clock.advance(3_601)
        assert (await harness.client.receive(TOPIC, GROUP, wait=5)).bodies == ["kept"]
        assert kinds(await harness.one(message_id=kept.message_id)) == ["BORN", "DELAYED", "STORED"]

    @pytest.mark.parametrize(
        ("resolution", "expected"),
        [
            (v2.TransactionResolution.COMMIT, ["BORN", "PREPARED", "COMMITTED", "STORED"]),
            (v2.TransactionResolution.ROLLBACK, ["BORN", "PREPARED", "ROLLED_BACK"]),
        ],
        ids=["committed", "rolled-back"],
    )
    async def test_timeline_of_a_transaction(
        self, harness: Harness, resolution: v2.TransactionResolution.ValueType, expected: list[str]
    ) -> None:
        """The timeline has the half message, then the decision."""
        (sent,) = await harness.client.sent(message(TOPIC, "x", message_type=v2.MessageType.TRANSACTION))
        assert kinds(await harness.one(message_id=sent.message_id)) == ["BORN", "PREPARED"]
        assert await harness.client.end_transaction(TOPIC, sent, resolution) == Code.OK
        assert kinds(await harness.one(message_id=sent.message_id)) == expected

    async def test_timeline_by_offset_message_id(self, harness: Harness) -> None:
        """The id that RocketMQ's consoles show encodes the record's position; it finds the message, too."""
        (_, sent) = await harness.client.sent(message(TOPIC, "x"), message(TOPIC, "y"))
        timeline = await harness.one(message_id=sent.message_id)
        host, _, port = timeline.message.system_properties.store_host.rpartition(":")
        server_id = offset_message_id((host, int(port)), timeline.physical_offset)
        assert await harness.one(message_id=server_id) == timeline

    async def test_timeline_of_a_missing_message(self, harness: Harness) -> None:
        """The error names what was searched for."""
        for wanted in (
            {"message_id": "absent"},
            {"queue_id": 0, "queue_offset": 5},
            {"queue_id": 9, "queue_offset": 0},
        ):
            request = admin_v1.DescribeMessageRequest(topic=TOPIC, **wanted)
            assert (await harness.refused("DescribeMessage", request))[0] == Code.MESSAGE_NOT_FOUND
        request = admin_v1.DescribeMessageRequest(topic=TOPIC)
        assert (await harness.refused("DescribeMessage", request))[0] == Code.BAD_REQUEST


class TestDeadLetters:
    async def _dead(self, harness: Harness, *bodies: str) -> list[str]:
        """Ids of messages that became dead letters of the group, in order."""
        sent = await harness.client.sent(*(message(TOPIC, body) for body in bodies))
        for received in await harness.client.receive_all(TOPIC, GROUP, len(bodies)):
            await harness.client.forward(TOPIC, GROUP, received.system_properties.receipt_handle)
        return [entry.message_id for entry in sent]

    async def test_dead_letters_are_listed_by_page_id_and_time(self, harness: Harness) -> None:
        """Each dead letter is listed with its origin, and with its body only on request."""
        assert not (await harness.ok("ListDeadLetterQueues", admin_v1.ListDeadLetterQueuesRequest())).queues
        ids = await self._dead(harness, "a", "b")
        await harness.clock.advance(60)
        between = harness.clock.now_ms() - 30_000
        ids += await self._dead(harness, "c")
        (queue,) = (await harness.ok("ListDeadLetterQueues", admin_v1.ListDeadLetterQueuesRequest())).queues
        assert (queue.group, queue.count) == (GROUP, 3)
        assert queue.newest_timestamp.ToMilliseconds() - queue.oldest_timestamp.ToMilliseconds() >= 60_000
        request = admin_v1.ListDeadLettersRequest(group=GROUP, page_size=2)
        answer = await harness.ok("ListDeadLetters", request)
        assert [(letter.offset, letter.origin_topic, letter.body_size) for letter in answer.dead_letters] == [
            *((0, TOPIC, 1), (1, TOPIC, 1))
        ]
        assert {letter.message.body for letter in answer.dead_letters} == {b""}
        request.page_token, request.include_bodies = answer.next_page_token, True
        answer = await harness.ok("ListDeadLetters", request)
        assert ([letter.message.body for letter in answer.dead_letters], answer.next_page_token) == ([b"c"], "")
        request = admin_v1.ListDeadLettersRequest(group=GROUP, message_id=ids[1])
        assert [letter.offset for letter in (await harness.ok("ListDeadLetters", request)).dead_letters] == [1]
        request = admin_v1.ListDeadLettersRequest(group=GROUP, begin_timestamp=timestamp(between))
        assert [letter.offset for letter in (await harness.ok("ListDeadLetters", request)).dead_letters] == [2]
        request = admin_v1.ListDeadLettersRequest(group=GROUP, end_timestamp=timestamp(between))
        assert [letter.offset for letter in (await harness.ok("ListDeadLetters", request)).dead_letters] == [0, 1]

    async def test_a_dead_letter_is_resent_once(self, harness: Harness) -> None:
        """The message returns to its topic unchanged, as attempt 1; a second redrive needs an explicit request."""
        await self._dead(harness, "a", "b")
        request = admin_v1.ResendDeadLettersRequest(group=GROUP, offsets=[1, 0])
        answer = await harness.ok("ResendDeadLetters", request)
        assert [(result.offset, result.topic) for result in answer.results] == [(1, TOPIC), (0, TOPIC)]
        await harness.client.sent(message(TOPIC, "new"))
        await harness.client.create_group("others")
        received = await harness.client.receive_all(TOPIC, "others", 3)  # the original "a" and "b", without repeats
        assert sorted(each.body for each in received) == [b"a", b"b", b"new"]
        assert (await harness.client.receive(TOPIC, "others", wait=0.2)).code == Code.MESSAGE_NOT_FOUND
        assert (await harness.client.receive(TOPIC, GROUP, wait=5)).attempts == {"b": 1, "a": 1, "new": 1}
        listed = await harness.ok("ListDeadLetters", admin_v1.ListDeadLettersRequest(group=GROUP))
        assert all(letter.HasField("resent_timestamp") for letter in listed.dead_letters)
        assert (await harness.refused("ResendDeadLetters", request))[0] == Code.PRECONDITION_FAILED
        request.again = True
        await harness.ok("ResendDeadLetters", request)
        assert len((await harness.client.receive(TOPIC, GROUP, wait=5)).messages) == 2

    async def test_one_failed_resend_does_not_stop_the_others(self, harness: Harness) -> None:
        """A dead letter that cannot be sent again does not stop the others."""
        await self._dead(harness, "a")
        request = admin_v1.ResendDeadLettersRequest(group=GROUP, offsets=[7, 0, -1])
        code, text = await harness.refused("ResendDeadLetters", request)
        assert (code, text[:6]) == (Code.MULTIPLE_RESULTS, "2 of 3")
        assert (await harness.client.receive(TOPIC, GROUP, wait=5)).bodies == ["a"]
        await harness.client.create_topic("elsewhere")
        request = admin_v1.ResendDeadLettersRequest(group=GROUP, offsets=[0], topic="elsewhere")
        await harness.ok("ResendDeadLetters", request)
        assert (await harness.client.receive("elsewhere", GROUP, wait=5)).bodies == ["a"]
        for topic, code in (("absent", Code.TOPIC_NOT_FOUND), (f"%DLQ%{GROUP}", Code.FORBIDDEN)):
            request = admin_v1.ResendDeadLettersRequest(group=GROUP, offsets=[0], topic=topic)
            assert (await harness.refused("ResendDeadLetters", request))[0] == code

    async def test_a_group_without_dead_letters(self, harness: Harness) -> None:
        """A group without dead letters has an empty list; an unknown group is an error."""
        request = admin_v1.ListDeadLettersRequest(group=GROUP)
        assert not (await harness.ok("ListDeadLetters", request)).dead_letters
        request.group = "absent"
        assert (await harness.refused("ListDeadLetters", request))[0] == Code.CONSUMER_GROUP_NOT_FOUND


class TestConnections:
    async def test_connected_clients_are_listed(self, harness: Harness) -> None:
        """Producers and consumers with their settings, by group, topic and id; silent clients with their idle time."""
        producer = harness.client.other("GO")
        async with harness.client.telemetry() as consuming, producer.telemetry() as producing:
            await consuming.told(**consumer_settings(GROUP, TOPIC))
            await harness.clock.advance(30)
            await producing.told(**producer_settings(TOPIC))

            async def ids(**wanted: str) -> set[str]:
                answer = await harness.ok("ListConnections", admin_v1.ListConnectionsRequest(**wanted))  # type: ignore[arg-type]  # all are texts
                return {found.client_id for found in answer.connections}

            assert await ids() == await ids(topic=TOPIC) == {harness.client.client_id, producer.client_id}
            assert await ids(group=GROUP) == await ids(client_id=harness.client.client_id) == {harness.client.client_id}
            assert await ids(topic="absent") == set()
            answer = await harness.ok("ListConnections", admin_v1.ListConnectionsRequest())
            found = {each.client_id: each for each in answer.connections}
            one, two = found[harness.client.client_id], found[producer.client_id]
            assert (one.client_type, one.group, one.telemetry) == (v2.ClientType.PUSH_CONSUMER, GROUP, True)
            assert [entry.topic.name for entry in one.subscriptions] == [TOPIC]
            assert (two.client_type, list(two.topics)) == (v2.ClientType.PRODUCER, [TOPIC])
            assert (two.language, two.version) == (v2.Language.GOLANG, "5.2.1")
            assert two.remote_address.startswith("127.0.0.1:")
            ago = two.last_heartbeat_timestamp.ToMilliseconds() - one.last_heartbeat_timestamp.ToMilliseconds()
            assert ago >= 30_000
            request = admin_v1.ListConnectionsRequest(page_size=1)
            first = await harness.ok("ListConnections", request)
            request.page_token = first.next_page_token
            second = await harness.ok("ListConnections", request)
            assert [len(first.connections), len(second.connections), second.next_page_token] == [1, 1, ""]

    async def test_a_page_of_connections_ends_at_its_size(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Their settings may be large; a page has one connection at least, and none is left out."""
        monkeypatch.setattr(clients, "LISTING_SIZE_MAX", 1)
        others = [harness.client.other("GO") for _ in range(3)]
        async with AsyncExitStack() as streams:
            for each in others:
                await (await streams.enter_async_context(each.telemetry())).told(**consumer_settings(GROUP, TOPIC))
            found, request = [], admin_v1.ListConnectionsRequest(group=GROUP)
            while True:
                answer = await harness.ok("ListConnections", request)
                found += [each.client_id for each in answer.connections]
                assert len(answer.connections) == 1
                if not answer.next_page_token:
                    break
                request.page_token = answer.next_page_token
            assert found == sorted(each.client_id for each in others)


class TestStatus:
    async def test_the_broker_status_has_counts_and_rates(self, harness: Harness) -> None:
        """Messages stored, delivered and acknowledged, and recent rates, all without the broker's own messages."""
        await harness.client.sent(*(message(TOPIC, str(number)) for number in range(3)))
        received = await harness.client.receive(TOPIC, GROUP, wait=5)
        await harness.client.acknowledge(TOPIC, GROUP, *received.messages[:2])
        waiting = asyncio.ensure_future(harness.client.receive(TOPIC, GROUP, wait=10))
        await harness.clock.advance(1)
        found = (await harness.ok("GetBrokerStatus", admin_v1.GetBrokerStatusRequest())).statistics
        assert (found.messages_in, found.messages_out, found.acknowledged) == (3, 3, 2)
        assert 0 < found.messages_in_rate <= 3
        assert found.waiting_receives == 1
        await harness.clock.advance(10)
        await waiting
        for _ in range(14):
            await harness.clock.advance(5)
        found = (await harness.ok("GetBrokerStatus", admin_v1.GetBrokerStatusRequest())).statistics
        assert (found.messages_in, found.messages_in_rate) == (3, 0), "a minute without messages"

    async def test_the_busiest_topics_and_groups_are_listed(self, harness: Harness) -> None:
        """Topics and groups are ordered by traffic in each window; past traffic counts in the longer windows."""
        await harness.client.create_topic("quiet")
        await harness.client.sent(message("quiet", "x"), *(message(TOPIC, str(number)) for number in range(3)))
        received = await harness.client.receive(TOPIC, GROUP, wait=5)
        await harness.client.acknowledge(TOPIC, GROUP, received.messages[0])
        answer = await harness.ok("ListTraffic", admin_v1.ListTrafficRequest())
        assert [(each.topic, each.messages) for each in answer.topics] == [(TOPIC, 3), ("quiet", 1)]
        assert answer.topics[0].messages_rate > 0
        assert [(each.topic, each.group, each.messages, each.acknowledged) for each in answer.groups] == [
            (TOPIC, GROUP, 3, 1)
        ]
        answer = await harness.ok("ListTraffic", admin_v1.ListTrafficRequest(count=1))
        assert [each.topic for each in answer.topics] == [TOPIC]
        answer = await harness.ok("ListTraffic", admin_v1.ListTrafficRequest(topic="quiet"))
        assert ([each.topic for each in answer.topics], list(answer.groups)) == (["quiet"], [])
        for _ in range(8):
            await harness.clock.advance(10)
        for window, count in ((1, 0), (2, 2), (3, 2)):
            request = admin_v1.ListTrafficRequest(window=window)  # type: ignore[arg-type]  # numbers of the enum
            assert len((await harness.ok("ListTraffic", request)).topics) == count
        request = admin_v1.ListTrafficRequest(window=9)  # type: ignore[arg-type]  # no number of the enum
        assert (await harness.refused("ListTraffic", request))[0] == Code.BAD_REQUEST

    async def test_the_store_status_has_ordered_offsets(self, harness: Harness) -> None:
        """Offsets are in order, and the answer says whether the store accepts messages."""
        await harness.client.sent(message(TOPIC, "x"))
        found = await harness.ok("GetStoreStatus", admin_v1.GetStoreStatusRequest())
        assert 0 < found.dispatched_physical_offset <= found.flushed_physical_offset <= found.max_physical_offset
        assert (found.state.running, found.state.writable, found.damaged_range_count) == (True, True, 0)
        assert found.queue_count >= 1
        assert found.oldest_timestamp.ToMilliseconds() <= harness.clock.now_ms()


class TestAudit:
    async def test_calls_that_change_state_are_logged(self, harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
        """Each call that changes state is logged with method, address and request, without message content."""
        caplog.set_level("ERROR", "aerobee_broker")  # these lines are logged even where an operator sets this level
        caplog.handler.setLevel("INFO")
        await harness.ok("ListTopics", admin_v1.ListTopicsRequest())
        request = admin_v1.ResetOffsetsRequest(group=GROUP, topic=TOPIC, latest=True, dry_run=True)
        await harness.ok("ResetOffsets", request)
        await harness.refused("DeleteTopic", admin_v1.DeleteTopicRequest(name="absent"))
        assert caplog.messages == []
        request.dry_run = False
        await harness.ok("ResetOffsets", request)
        send = v2.AdminSendMessageRequest(topic=resource(TOPIC), body=b"secret", user_properties={"card": "4711"})
        await v2.AdminStub(harness.client.channel).AdminSendMessage(send, timeout=20)
        await harness.ok("CreateTopic", admin_v1.CreateTopicRequest(topic=admin_v1.Topic(name="new")))
        (reset, sent, created) = caplog.messages
        assert reset.startswith("operator method=ResetOffsets account=- address=127.0.0.1:")
        assert 'group: "billing"' in reset
        assert 'name: "orders"' in sent
        assert "secret" not in sent
        assert "4711" not in sent
        assert "new" in created


class TestConfiguration:
    async def _settings(self, harness: Harness, prefix: str = "") -> dict[str, admin_v1.Setting]:
        answer = await harness.ok("GetConfiguration", admin_v1.GetConfigurationRequest(prefix=prefix))
        return {setting.name: setting for setting in answer.settings}

    async def _set(self, harness: Harness, **values: str) -> None:
        names = {name.replace("__", "."): value for name, value in values.items()}
        await harness.ok("UpdateConfiguration", admin_v1.UpdateConfigurationRequest(set=names))

    async def test_all_settings_are_shown(self, harness: Harness) -> None:
        """Every setting is listed once, in order, with its default."""
        found = await self._settings(harness)
        assert list(found) == sorted(found)
        retention = found["store.retention_hours"]
        assert (retention.value, retention.default_value, retention.changeable) == ("72", "72", True)
        assert not found["store.directory"].changeable
        assert set(await self._settings(harness, "limits.")) == {name for name in found if name.startswith("limits.")}
        request = admin_v1.GetConfigurationRequest(prefix="nonsense")
        assert (await harness.refused("GetConfiguration", request))[0] == Code.NOT_FOUND

    async def test_a_changed_setting_takes_effect_at_once(self, harness: Harness) -> None:
        """One setting of each kind is changed and reset."""
        send = message(TOPIC, "x", properties={"a": "1", "b": "2"})
        await self._set(harness, limits__user_property_count_max="1")
        assert (await harness.client.send(send)).status.code == Code.MESSAGE_PROPERTIES_TOO_LARGE
        assert (await self._settings(harness))["limits.user_property_count_max"].source == (
            admin_v1.SettingSource.SETTING_SOURCE_SAVED
        )
        request = admin_v1.UpdateConfigurationRequest(unset=["limits.user_property_count_max"])
        await harness.ok("UpdateConfiguration", request)
        assert (await harness.client.send(send)).status.code == Code.OK
        assert (await harness.client.receive(TOPIC, "new")).code == Code.CONSUMER_GROUP_NOT_FOUND
        await self._set(harness, groups__auto_create="true", topics__auto_create="true", topics__queue_count="3")
        assert (await harness.client.receive(TOPIC, "new")).code == Code.OK, "a group since now"
        assert len((await harness.client.route("first-use")).message_queues) == 3
        await self._set(harness, listen__advertise="broker.example:9000")
        (queue, *_) = (await harness.client.route(TOPIC)).message_queues
        assert (queue.broker.endpoints.addresses[0].host, queue.broker.endpoints.addresses[0].port) == (
            *("broker.example", 9000),
        )
        await harness.client.sent(*(message(TOPIC, str(number)) for number in range(4)))
        await self._set(harness, delivery__receive_count_max="2", delivery__in_flight_per_group_max="3")
        counts = [len((await harness.client.receive(TOPIC, GROUP, wait=5)).messages) for _ in range(2)]
        assert counts == [2, 1]
        assert (await harness.client.receive(TOPIC, GROUP)).code == Code.TOO_MANY_REQUESTS
        await self._set(harness, delivery__invisible_seconds_max="30")
        assert (await harness.client.receive(TOPIC, GROUP, invisible=31)).code == Code.ILLEGAL_INVISIBLE_TIME

    @pytest.mark.parametrize(
        ("values", "named"),
        [
            ({"store.nonsense": "1"}, "unknown setting"),
            ({"store.directory": "/tmp"}, "cannot change while the broker runs"),
            ({"store.retention_hours": "soon"}, "soon"),
            ({"store.retention_hours": "0"}, "expected a number > 0"),
            ({"topics.queue_count": "5000"}, "topics.queue_count"),
            ({"delivery.invisible_seconds_min": "7200", "delivery.invisible_seconds_max": "60"}, "is above"),
        ],
        ids=["unknown", "fixed", "no-number", "zero", "too-many", "contradiction"],
    )
    async def test_invalid_requests_are_refused(self, harness: Harness, values: dict[str, str], named: str) -> None:
        """The reason names the setting, and no part of the request takes effect."""
        values = {**values, "limits.properties_size_max": "99"}
        code, text = await harness.refused("UpdateConfiguration", admin_v1.UpdateConfigurationRequest(set=values))
        assert code == Code.BAD_REQUEST
        assert named in text
        assert (await self._settings(harness))["limits.properties_size_max"].value == "16384"

    async def test_a_setting_is_either_set_or_unset(self, harness: Harness) -> None:
        """An empty request is refused, and so is one that sets and unsets the same key."""
        name = "store.retention_hours"
        for request in (
            admin_v1.UpdateConfigurationRequest(),
            admin_v1.UpdateConfigurationRequest(set={name: "1"}, unset=[name]),
        ):
            assert (await harness.refused("UpdateConfiguration", request))[0] == Code.BAD_REQUEST

    async def test_a_changed_setting_survives_a_restart(self, tmp_path: Path) -> None:
        """A changed setting is stored before the answer, and removed when it is unset."""
        for expected, change in (
            ("72", admin_v1.UpdateConfigurationRequest(set={"store.retention_hours": "24"})),
            ("24", admin_v1.UpdateConfigurationRequest(unset=["store.retention_hours"])),
            ("72", None),
        ):
            async with in_process_broker(tmp_path / "store") as broker:
                request = admin_v1.GetConfigurationRequest(prefix="store.retention_hours")
                (setting,) = (await broker.administration.GetConfiguration(request)).settings
                assert setting.value == expected
                if change is not None:
                    answer = await broker.administration.UpdateConfiguration(change)
                    assert answer.status.code == Code.OK
