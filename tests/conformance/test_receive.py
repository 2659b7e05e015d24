"""Items 121 to 151: receiving."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from aerobee_broker.config.delivery import DeliveryConfig
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2
from tests.conformance.conftest import Traveller
from tests.conformance.raw_client import BUSY_MACHINE_FACTOR, RawClient, Received, connected, message, timestamp
from tests.support.in_process_broker import in_process_broker

Code = v2.Code
Type = v2.MessageType


async def test_121_order_of_the_stream(client: RawClient, topic: str, group: str) -> None:
    """Status OK, the messages one by one, the delivery time, the end."""
    await client.create_topic(topic)
    await client.sent(message(topic, "a"), message(topic, "b"))
    received = await client.receive(topic, group)
    assert received.kinds == ["status", "message", "message", "delivery_timestamp"]
    assert received.code == Code.OK
    assert abs(received.responses[-1].delivery_timestamp.ToSeconds() - time.time()) < 60


async def test_122_no_message(client: RawClient, topic: str, group: str) -> None:
    """MESSAGE_NOT_FOUND when the polling time ends, not earlier, and before the deadline."""
    await client.create_topic(topic)
    started = time.monotonic()
    received = await client.receive(topic, group, wait=0.5)
    assert time.monotonic() - started > 0.45
    assert received.code == Code.MESSAGE_NOT_FOUND
    assert received.kinds == ["status", "delivery_timestamp"]
    assert (await client.receive(topic, group, wait=0)).code == Code.MESSAGE_NOT_FOUND


async def test_123_polling_time_is_the_deadline(tmp_path: Path, topic: str, group: str) -> None:
    """Rust's client makes both equal: the answer still arrives before the call ends."""
    async with in_process_broker(tmp_path, delivery=DeliveryConfig(poll_reserve_seconds=20.0)) as broker:
        client = RawClient(broker.channel)
        await client.create_topic(topic)
        assert (await client.receive(topic, group, wait=21.0, timeout=21.0)).code == Code.MESSAGE_NOT_FOUND


async def test_124_arrival_ends_the_wait(client: RawClient, topic: str, group: str) -> None:
    """A message sent meanwhile is delivered at once, however long the polling time is."""
    await client.create_topic(topic)
    waiting = asyncio.create_task(client.receive(topic, group, wait=19))
    await asyncio.sleep(0.1)
    await client.sent(message(topic))
    async with asyncio.timeout(60):
        assert (await waiting).bodies == ["hello"]


async def test_125_batch_sizes(client: RawClient, topic: str, group: str) -> None:
    """At most the requested size and at most 32; no value is refused."""
    await client.create_topic(topic)
    await client.send(*(message(topic, f"{number}") for number in range(80)))
    for asked, given in ((1, 1), (5, 5), (0, 1), (-3, 1), (1000, 32)):
        assert len((await client.receive(topic, group, count=asked)).messages) == given, asked


async def test_126_delivered_fields(client: RawClient, topic: str, group: str) -> None:
    """All fields that the clients require."""
    sent = message(topic, "body")
    [entry] = await client.sent(sent)
    received = (await client.receive(topic, group, wait=5)).one
    system = received.system_properties
    assert received.topic.name == topic
    assert system.message_id == sent.system_properties.message_id
    assert system.receipt_handle
    assert system.delivery_attempt == 1
    assert system.body_digest.type == v2.DigestType.MD5
    assert system.body_digest.checksum == "841A2D689AD86BD1611447453C22C6FC"
    assert system.body_encoding == v2.Encoding.IDENTITY
    assert system.message_type == Type.NORMAL
    assert 0 <= system.queue_id < 4
    assert system.HasField("queue_offset")
    assert system.queue_offset == entry.offset
    for each in (system.store_timestamp, system.born_timestamp):
        assert abs(each.ToSeconds() - time.time()) < 60
    assert system.store_host


async def test_127_digest_of_hello(client: RawClient, topic: str, group: str) -> None:
    """MD5, upper case."""
    await client.sent(message(topic, "hello"))
    digest = (await client.receive(topic, group, wait=5)).one.system_properties.body_digest
    assert (digest.type, digest.checksum) == (v2.DigestType.MD5, "5D41402ABC4B2A76B9719D911017C592")


async def test_128_unacknowledged(traveller: Traveller, topic: str, group: str) -> None:
    """It comes again after its invisible time, as attempt 2 with another handle."""
    client = traveller.client
    await client.sent(message(topic))
    first = (await client.receive(topic, group, invisible=30)).one
    await traveller.clock.advance(29)
    assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND
    await traveller.clock.advance(1.1)
    again = (await client.receive(topic, group, wait=5)).one
    assert again.system_properties.delivery_attempt == 2
    assert again.system_properties.message_id == first.system_properties.message_id
    assert again.system_properties.receipt_handle != first.system_properties.receipt_handle


async def test_129_invisible_to_the_group(client: RawClient, topic: str, group: str) -> None:
    """No other consumer of the group gets a message in flight."""
    await client.sent(message(topic))
    assert (await client.receive(topic, group, wait=5)).bodies == ["hello"]
    for other in (client, client.other()):
        assert (await other.receive(topic, group, wait=0.1)).code == Code.MESSAGE_NOT_FOUND


async def test_130_other_group(client: RawClient, topic: str, group: str) -> None:
    """It gets every message, too, whatever the first group does."""
    await client.sent(message(topic))
    received = (await client.receive(topic, group, wait=5)).one
    await client.acknowledge(topic, group, received)
    assert (await client.receive(topic, f"{group}-2", wait=5)).attempts == {"hello": 1}


@pytest.mark.parametrize("invisible", [None, 0.0, 0.999, -1.0, 12 * 3600 + 1.0])
async def test_131_invisible_duration(client: RawClient, topic: str, group: str, invisible: float | None) -> None:
    """Missing, below the minimum or above 12 hours: ILLEGAL_INVISIBLE_TIME. The limits themselves are accepted."""
    await client.sent(message(topic), message(topic))
    assert (await client.receive(topic, group, invisible=invisible)).code == Code.ILLEGAL_INVISIBLE_TIME
    for limit in (12 * 3600.0, 1.0):
        assert (await client.receive(topic, group, count=1, invisible=limit, wait=5)).code == Code.OK


async def test_132_auto_renew(client: RawClient, topic: str, group: str) -> None:
    """Push consumers send no duration."""
    await client.sent(message(topic))
    assert (await client.receive(topic, group, auto_renew=True, wait=5)).attempts == {"hello": 1}


async def test_133_auto_renew_for_long(traveller: Traveller, topic: str, group: str) -> None:
    """While the client sends heartbeats nobody else gets the message; the first handle stays valid."""
    client, other = traveller.client, traveller.client.other()
    await client.sent(message(topic))
    received = (await client.receive(topic, group, auto_renew=True)).one
    for _ in range(10):
        await traveller.clock.advance(60)
        await client.heartbeat(group)
        assert (await other.receive(topic, group, auto_renew=True)).code == Code.MESSAGE_NOT_FOUND
    assert (await client.acknowledge(topic, group, received)).status.code == Code.OK


async def test_134_auto_renew_ends(traveller: Traveller, topic: str, group: str) -> None:
    """A client dies without terminating: once it is considered gone, a waiting receive gets its message."""
    client, other = traveller.client, traveller.client.other()
    await client.sent(message(topic))
    dead = RawClient(client.channel)
    assert (await dead.receive(topic, group, auto_renew=True)).bodies == ["hello"]
    for _ in range(6):
        await traveller.clock.advance(24)
        await other.heartbeat(group)
    assert (await other.receive(topic, group, auto_renew=True, wait=5)).attempts == {"hello": 2}


async def test_135_queue_does_not_restrict(client: RawClient, topic: str, group: str) -> None:
    """A client that always names queue 0, like Node.js's simple consumers, gets messages of all queues."""
    await client.create_topic(topic, queues=4)
    await client.sent(*(message(topic, f"{number}") for number in range(12)))
    received = await client.receive_all(topic, group, 12, queue_id=0)
    assert sorted(int(each.body) for each in received) == list(range(12))
    assert {each.system_properties.queue_id for each in received} == {0, 1, 2, 3}


async def _tagged(client: RawClient, topic: str, *tags: str) -> None:
    """Send one message per tag, with the tag as body; `none` has no tag."""
    await client.create_topic(topic)
    await client.sent(*(message(topic, tag, tag=None if tag == "none" else tag) for tag in tags))


@pytest.mark.parametrize("expression", ["*", "", " * "], ids=repr)
async def test_136_match_all(client: RawClient, topic: str, group: str, expression: str) -> None:
    """A star or an empty expression matches all messages, also without a tag; an untyped filter is a tag filter."""
    await _tagged(client, topic, "a", "none")
    received = await client.receive(
        topic, group, expression=expression, filter_type=v2.FilterType.FILTER_TYPE_UNSPECIFIED
    )
    assert received.bodies == ["a", "none"]


async def test_137_filtered_messages_are_finished(client: RawClient, topic: str, group: str) -> None:
    """Two tags of four match; the others are finished for this group, but not for another."""
    await _tagged(client, topic, "a", "c", "b", "none")
    received = await client.receive(topic, group, expression="a||b")
    assert received.bodies == ["a", "b"]
    assert (await client.acknowledge(topic, group, *received.messages)).status.code == Code.OK
    assert (await client.receive(topic, group, expression="*")).code == Code.MESSAGE_NOT_FOUND
    assert len((await client.receive(topic, f"{group}-2", expression="*")).messages) == 4


async def test_138_case_and_blanks(client: RawClient, topic: str, group: str) -> None:
    """`a` is not `A`; blanks around tags and empty parts are ignored."""
    await _tagged(client, topic, "a", "A", "aa", "b", "none")
    assert (await client.receive(topic, group, expression="  a ||  b||")).bodies == ["a", "b"]


async def _with_properties(client: RawClient, topic: str) -> None:
    """Messages with different properties; the body describes them."""
    await client.create_topic(topic)
    made: dict[str, dict[str, str]] = {
        "6x": {"a": "6", "b": "x"},
        "10.5x": {"a": "10.5", "b": "x"},
        "5x": {"a": "5", "b": "x"},
        "9y": {"a": "9", "b": "y"},
        "nine": {"a": "nine", "b": "x"},
        "a alone": {"a": "7"},
        "b alone": {"b": "x"},
        "nothing": {},
    }
    await client.sent(*(message(topic, body, properties=properties) for body, properties in made.items()))
    await client.sent(message(topic, "tagged", tag="x", keys=["k1", "k2"]), message(topic, "other tag", tag="y"))


async def _chosen(client: RawClient, topic: str, group: str, expression: str) -> list[str]:
    return (await client.receive(topic, group, expression=expression, filter_type=v2.FilterType.SQL)).bodies


async def test_139_sql(client: RawClient, topic: str, group: str) -> None:
    """Numbers are compared as numbers, a missing property does not match, and the others are finished for the group."""
    await _with_properties(client, topic)
    assert await _chosen(client, topic, group, "a > 5 AND b = 'x'") == ["6x", "10.5x"]
    assert (await client.receive(topic, group, expression="*")).code == Code.MESSAGE_NOT_FOUND
    assert await _chosen(client, topic, f"{group}-2", "NOT (a > 5 AND b = 'x')") == ["5x", "9y"]
    # A few of many match: they come one by one, and a wait continues past the others.
    await client.sent(*(message(topic, f"{n}", properties={"n": f"{n}"}) for n in range(100)))
    sql: dict[str, Any] = {"expression": "n IN ('9', '99', '101')", "filter_type": v2.FilterType.SQL, "count": 1}
    assert (await client.receive(topic, group, **sql)).bodies == ["9"]
    assert (await client.receive(topic, group, **sql)).bodies == ["99"]
    waiting = asyncio.create_task(client.receive(topic, group, wait=15, **sql))
    await client.sent(*(message(topic, f"{n}", properties={"n": f"{n}"}) for n in (100, 101)))
    assert (await waiting).bodies == ["101"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a IS NULL", ["b alone", "nothing", "tagged", "other tag"]),
        ("a IS NOT NULL AND b IS NULL", ["a alone"]),
        ("a IN ('6', 'nine')", ["6x", "nine"]),
        ("a NOT IN ('6', 'nine')", ["10.5x", "5x", "9y", "a alone"]),
        ("a BETWEEN 6 AND 9", ["6x", "9y", "a alone"]),
        ("a NOT BETWEEN 6 AND 9", ["10.5x", "5x"]),
        ("NOT b = 'x'", ["9y"]),
        ("(a < 6 OR a > 9) AND (b = 'x')", ["10.5x", "5x"]),
        ("TAGS = 'x'", ["tagged"]),
        ("KEYS CONTAINS 'k2' OR TAGS = 'y'", ["tagged", "other tag"]),
        ("a STARTSWITH 'n' OR a ENDSWITH '.5'", ["10.5x", "nine"]),
    ],
)
async def test_140_operators(client: RawClient, topic: str, group: str, expression: str, expected: list[str]) -> None:
    """Each operator, also in an ordered group."""
    await _with_properties(client, topic)
    assert await _chosen(client, topic, group, expression) == expected
    await client.create_group(f"{group}-orderly", fifo=True)
    assert await _chosen(client, topic, f"{group}-orderly", expression) == expected


@pytest.mark.parametrize(
    "expression", ["", " ", "a >", "a = 'x", "a > 'x'", "a = NULL", "a BETWEEN 2 AND 1", "(" * 4000]
)
async def test_141_sql_errors(client: RawClient, topic: str, group: str, expression: str) -> None:
    """ILLEGAL_FILTER_EXPRESSION at once, and no message is skipped."""
    await client.sent(message(topic))
    received = await client.receive(topic, group, expression=expression, filter_type=v2.FilterType.SQL, wait=10)
    assert received.code == Code.ILLEGAL_FILTER_EXPRESSION
    assert received.responses[0].status.message.startswith("SQL filter")
    assert (await client.receive(topic, group, wait=5)).bodies == ["hello"]


async def test_142_illegal_names(client: RawClient, topic: str, group: str) -> None:
    """ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP; a group name may have 120 characters."""
    for name in ("", "a b", "TBW102", "rmq_sys_AEROBEE_DELIVERY"):
        assert (await client.receive(name, group)).code == Code.ILLEGAL_TOPIC
    await client.create_topic(topic)
    for name in ("", "a b", "g" * 121):
        assert (await client.receive(topic, name)).code == Code.ILLEGAL_CONSUMER_GROUP
    assert (await client.receive(topic, "g" * 120)).code == Code.MESSAGE_NOT_FOUND


async def test_143_unknown_topic(strict_client: RawClient, topic: str, group: str) -> None:
    """TOPIC_NOT_FOUND."""
    assert (await strict_client.receive(topic, group)).code == Code.TOPIC_NOT_FOUND


async def test_144_unknown_group(client: RawClient, strict_client: RawClient, topic: str, group: str) -> None:
    """Depending on the configuration it is created, or CONSUMER_GROUP_NOT_FOUND."""
    await client.sent(message(topic))
    assert (await client.receive(topic, group, wait=5)).bodies == ["hello"]
    await strict_client.create_topic(topic)
    await strict_client.sent(message(topic))
    assert (await strict_client.receive(topic, group)).code == Code.CONSUMER_GROUP_NOT_FOUND


async def test_145_cancelled(broker: BrokerProcess, client: RawClient, topic: str, group: str) -> None:
    """A client takes one message of thirty and disconnects: those not written are soon available to others."""
    await client.create_topic(topic)
    for _ in range(30):
        await client.sent(message(topic, b"x" * 130_000))
    narrow = (
        ("grpc.http2.lookahead_bytes", 65_535),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.use_local_subchannel_pool", 1),
    )
    async with grpc.aio.insecure_channel(broker.endpoint, options=narrow) as channel:
        call = RawClient(channel).receiving(topic, group, invisible=3600, wait=5)
        assert (await call.read()).status.code == Code.OK
        assert (await call.read()).HasField("message")
        assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND, "all are on their way"
        call.cancel()
        again = await client.receive(topic, group, wait=10)
    assert {each.system_properties.delivery_attempt for each in again.messages} == {2}
    waiting = asyncio.create_task(client.other().receive(topic, group, wait=19))
    await asyncio.sleep(0.1)
    waiting.cancel()  # it took nothing: the next message goes to another client
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await client.sent(message(topic, "next"))
    assert "next" in (await client.receive(topic, group, wait=5)).bodies


async def test_146_too_many_waiting_receives(tmp_path: Path, topic: str, group: str) -> None:
    """TOO_MANY_REQUESTS for the one above the limit; earlier ones keep waiting."""
    async with in_process_broker(tmp_path, delivery=DeliveryConfig(waiting_per_group_max=3)) as broker:
        client = RawClient(broker.channel)
        await client.create_topic(topic)
        receives = [asyncio.create_task(client.receive(topic, group, wait=19)) for _ in range(4)]
        done, waiting = await asyncio.wait(receives, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result().code for each in done] == [Code.TOO_MANY_REQUESTS]
        await client.send(*(message(topic, f"{number}") for number in range(3)))
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await client.goodbye()
        found: list[Received] = await asyncio.gather(*waiting)
    assert any(each.messages for each in found)


async def test_147_unknown_client(own_broker: BrokerProcess, topic: str, group: str) -> None:
    """The Python client neither waits for its settings nor resends them after a restart: it still gets its messages."""
    async with connected(own_broker.endpoint) as client:
        await client.sent(message(topic))
        assert (await client.receive(topic, group, count=1, wait=5)).bodies == ["hello"]
        await client.sent(message(topic, "kept"))
    await asyncio.to_thread(own_broker.restart)
    async with connected(own_broker.endpoint, language="PYTHON") as unknown:
        assert (await unknown.receive(topic, group, wait=5)).bodies == ["kept"]


async def test_148_delayed(traveller: Traveller, topic: str, group: str) -> None:
    """It arrives when due, at most a second late, also in a waiting receive."""
    client, clock = traveller.client, traveller.clock
    await client.create_topic(topic, Type.DELAY)
    due = clock.now_ms() + 600_000
    await client.sent(message(topic, message_type=Type.DELAY, delivery_timestamp=timestamp(due)))
    for _ in range(2):
        assert (await client.receive(topic, group, wait=0.3)).code == Code.MESSAGE_NOT_FOUND
        await clock.advance(295)
    await clock.advance((due - clock.now_ms()) / 1000 - 1)
    assert (await client.receive(topic, group, wait=0)).code == Code.MESSAGE_NOT_FOUND
    received = (await client.receive(topic, group, wait=10)).one
    assert due <= clock.now_ms() <= due + 1000 * BUSY_MACHINE_FACTOR
    system = received.system_properties
    assert (system.message_type, system.delivery_timestamp.ToMilliseconds()) == (Type.DELAY, due)


async def test_149_half_message(client: RawClient, topic: str, group: str) -> None:
    """It is not delivered before its commit; a later message is delivered meanwhile."""
    await client.create_topic(topic, Type.TRANSACTION, Type.NORMAL)
    await client.sent(message(topic, "half", message_type=Type.TRANSACTION), message(topic, "whole"))
    assert (await client.receive(topic, group, wait=5)).bodies == ["whole"]
    assert (await client.receive(topic, group, wait=0.5)).code == Code.MESSAGE_NOT_FOUND


async def test_150_write_only(client: RawClient, topic: str, group: str) -> None:
    """FORBIDDEN."""
    await client.create_topic(topic, permission=v2.Permission.WRITE)
    assert (await client.receive(topic, group)).code == Code.FORBIDDEN


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_151_restart(own_broker: BrokerProcess, topic: str, group: str, end: str) -> None:
    """Acknowledged messages do not come again, others do, also after a kill."""
    async with connected(own_broker.endpoint) as client:
        await client.create_topic(topic)
        await client.sent(*(message(topic, f"{number}") for number in range(6)))
        received = await client.receive(topic, group, count=4, invisible=1)
        done = [each for each in received.messages if int(each.body) % 2]
        assert (await client.acknowledge(topic, group, *done)).status.code == Code.OK
    await asyncio.to_thread(getattr(own_broker, end))
    await asyncio.to_thread(own_broker.start)
    async with connected(own_broker.endpoint) as client:
        again = await client.receive_all(topic, group, 4)
    attempts = {each.body.decode(): each.system_properties.delivery_attempt for each in again}
    assert attempts == {"0": 2, "2": 2, "4": 1, "5": 1}
