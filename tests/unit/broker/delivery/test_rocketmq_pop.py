"""Checkpoints and acknowledgements of RocketMQ's POP consumers: which messages are still in flight."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from aerobee_broker.delivery.journal.history import History
from aerobee_broker.delivery.rocketmq_pop import RocketMQFlights
from aerobee_broker.delivery.state.queue_key import QueueKey
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.topics import TopicConfig, pop_retry_topics, split_pop_retry_topic
from aerobee_store.records.properties import REAL_TOPIC, TAGS
from aerobee_store.records.record import Message
from aerobee_store.tables import java_json
from tests.support.delivery_harness import GROUP, START_MS, TOPIC, Harness, Start
from tests.support.saved_tables import saved

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
TIMER = "rmq_sys_wheel_timer"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
CHECKPOINT = {"t": TOPIC, "c": GROUP, "q": 0, "so": 10, "n": 3, "d": [0, 2, 5], "bm": 0, "pt": START_MS, "it": 60_000}
ACK = {"t": TOPIC, "c": GROUP, "q": 0, "so": 10, "pt": START_MS, "ao": 12}

Entry = tuple[str, Any]  # tag and body


@pytest.fixture
async def harness(harness: Harness) -> Harness:
    saved(harness.tables.topics).create_internal(TopicConfig(name=REVIVE, read_queue_count=8, write_queue_count=8))
    return harness


async def write(harness: Harness, topic: str, *entries: Entry) -> None:
    messages = [
        Message(
            topic=topic,
            queue_id=0,
            body=body if isinstance(body, bytes) else json.dumps(body).encode(),
            properties={TAGS: tag} | ({REAL_TOPIC: REVIVE} if topic == TIMER else {}),
        )
        for tag, body in entries
    ]
    await harness.store.wait_stored(harness.store.append(messages, internal=True)[-1].end)


def unfinished(harness: Harness) -> list[int]:
    flights = RocketMQFlights(harness.store, harness.tables).unfinished()
    assert flights.keys() <= {QueueKey(GROUP, TOPIC, 0)}
    return sorted(offset for times in flights.values() for offset in times)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((), []),
        ((("ck", CHECKPOINT),), [10, 12, 15]),
        ((("ck", CHECKPOINT), ("ack", ACK)), [10, 15]),
        ((("ack", ACK), ("ck", CHECKPOINT)), [10, 15]),
        ((("ck", CHECKPOINT), ("bAck", {**ACK, "aol": [10, 15]})), [12]),
        ((("ck", {**CHECKPOINT, "bm": 0b101}),), [12]),
        ((("ck", {**CHECKPOINT, "d": None}),), [10, 11, 12]),
        ((("ck", {**CHECKPOINT, "d": [], "n": 1}),), [10]),
        ((("ck", CHECKPOINT), ("ack", {**ACK, "pt": START_MS + 1})), [10, 12, 15]),
        ((("ck", CHECKPOINT), ("ack", {**ACK, "c": "other"})), [10, 12, 15]),
        ((("ck", {**CHECKPOINT, "t": "deleted"}),), []),
        ((("other", CHECKPOINT),), []),
    ],
)
@pytest.mark.parametrize("topic", [TIMER, REVIVE])
async def test_what_is_unfinished(
    harness: Harness, topic: str, entries: tuple[Entry, ...], expected: list[int]
) -> None:
    """Wherever they are: delayed until the invisible time ends, or already in the revive log."""
    if entries:
        await write(harness, topic, *entries)
    assert unfinished(harness) == expected


@pytest.mark.parametrize("topic", [TIMER, REVIVE])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        {},
        {**CHECKPOINT, "q": "x"},
        {**CHECKPOINT, "d": 7},
        {**CHECKPOINT, "n": 1e9, "d": 0},
    ],
)
async def test_a_body_that_cannot_be_read(
    harness: Harness, topic: str, body: bytes | Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and those beside it count."""
    await write(harness, topic, ("ck", body), ("ck", CHECKPOINT))
    assert unfinished(harness) == [10, 12, 15]
    assert "message of the revive log ignored" in caplog.text


async def test_what_rocketmq_has_revived(harness: Harness) -> None:
    """A checkpoint below the committed offset of the revive log is done, although the timer's topic has it, too."""
    later = {**CHECKPOINT, "so": 20, "d": [0]}
    await write(harness, TIMER, ("ck", CHECKPOINT), ("ck", later))
    await write(harness, REVIVE, ("ck", CHECKPOINT))
    assert unfinished(harness) == [10, 12, 15, 20]
    harness.tables.offsets.commit(REVIVE, REVIVE_GROUP, 0, 1)
    assert unfinished(harness) == [20]


async def test_what_was_read_is_not_read_again(harness: Harness) -> None:
    """Our own timer delivers a checkpoint to the revive log later; only what RocketMQ writes afterwards is new."""
    flights = RocketMQFlights(harness.store, harness.tables)
    assert flights.note_read()
    await write(harness, TIMER, ("ck", CHECKPOINT))
    assert flights.note_read()
    await harness.store.wait_stored(
        harness.store.append(
            [
                Message(
                    topic=REVIVE,
                    queue_id=0,
                    body=json.dumps(CHECKPOINT).encode(),
                    properties={TAGS: "ck", "TIMER_OUT_MS": "1", REAL_TOPIC: REVIVE},
                )
            ],
            internal=True,
        )[-1].end
    )
    assert unfinished(harness) == []
    await write(harness, TIMER, ("ck", {**CHECKPOINT, "so": 20, "d": [0]}))
    assert unfinished(harness) == [20]


async def test_a_store_without_rocketmq(start: Start) -> None:
    """Nothing is read and nothing is written."""
    harness = await start()
    assert not RocketMQFlights(harness.store, harness.tables).note_read()
    assert harness.tables.offsets.topics_of(REVIVE_GROUP) == ()


def test_names_of_retry_topics() -> None:
    """Both naming versions; names of other groups and of RocketMQ 4 are not taken for them."""
    for version, name in enumerate(pop_retry_topics("ns%orders", "ns%billing"), 1):
        assert split_pop_retry_topic(name, "ns%billing") == ("ns%orders", version)
    for name in ("%RETRY%billing", "%RETRY%billing_", "%RETRY%billing2_orders", "orders", "%DLQ%billing_orders", ""):
        assert split_pop_retry_topic(name, "billing") is None


async def test_the_retry_topic_of_another_group(start: Start) -> None:
    """`%RETRY%billing_orders` may belong to the group `billing_orders` of RocketMQ 4: `billing` must not receive it."""
    harness = await start()
    name = pop_retry_topics(TOPIC, GROUP)[0]
    saved(harness.tables.topics).create_internal(TopicConfig(name=name, read_queue_count=1, write_queue_count=1))
    await harness.send("retried", topic=name)
    saved(harness.tables.groups).create(GroupConfig(name=f"{GROUP}_{TOPIC}"))
    assert await harness.receive() == []


@pytest.mark.parametrize("killed", ["before the snapshot", "after it"])
async def test_adopted_messages_survive_a_kill(start: Start, monkeypatch: pytest.MonkeyPatch, killed: str) -> None:
    """They are in flight until their time, then delivered; what is acknowledged stays so over every further start."""
    harness = await start()
    harness.tables.topics.create_internal(TopicConfig(name=REVIVE, read_queue_count=8, write_queue_count=8))
    await harness.tables.save()
    await harness.send("0", "1", "2", "3")
    harness.tables.offsets.commit(TOPIC, GROUP, 0, 3)
    await write(harness, TIMER, ("ck", {**CHECKPOINT, "so": 0, "d": [0, 2]}))
    await harness.tables.save()
    harness = await harness.restart()
    if killed == "before the snapshot":
        monkeypatch.setattr(History, "try_snapshot", _no_snapshot)
    await harness.deliveries.adopt()
    monkeypatch.undo()
    if killed == "after it":  # RocketMQ would find them, too
        table = java_json.loads((harness.directory / "config" / "consumerOffset.json").read_bytes())
        assert isinstance(table, dict)
        assert table["offsetTable"][f"{TOPIC}@{GROUP}"]["0"] == 0
    assert [each.record.body for each in await harness.receive()] == [b"3"]
    harness = await harness.crash()
    await harness.deliveries.adopt()
    harness.clock.advance(61)
    again = await harness.receive()
    assert sorted((each.record.body, each.attempt) for each in again) == [(b"0", 2), (b"2", 2), (b"3", 2)]
    assert await harness.acknowledge(*again) == [True, True, True]
    for turn in ("crash", "restart"):
        harness = await getattr(harness, turn)()
        await harness.deliveries.adopt()
        harness.clock.advance(3600)
        assert await harness.receive() == []


async def _no_snapshot(_: History) -> None:
    """The broker is killed before it has written one."""


async def test_messages_of_both_retry_topics(start: Start) -> None:
    """A group without a position there begins at their first message. An acknowledgement finishes its own message, not
    those at the same place of other topics."""
    harness = await start(initial_position="latest")
    for name in pop_retry_topics(TOPIC, GROUP):
        saved(harness.tables.topics).create_internal(TopicConfig(name=name, read_queue_count=1, write_queue_count=1))
        await harness.send(name, topic=name)
    assert len(await harness.receive()) == 2
    await harness.send("new")
    assert [each.record.body for each in await harness.receive()] == [b"new"]
    harness.clock.advance(61)
    again = {each.record.topic: each for each in await harness.receive()}
    assert again.keys() == {TOPIC, *pop_retry_topics(TOPIC, GROUP)}
    assert await harness.acknowledge(again[pop_retry_topics(TOPIC, GROUP)[1]]) == [True]
    harness.clock.advance(61)
    assert {each.record.topic for each in await harness.receive()} == {TOPIC, pop_retry_topics(TOPIC, GROUP)[0]}


async def test_deliveries_in_rocksdb_were_lost_in_silence(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the directory."""
    assert unfinished(harness) == []
    assert not caplog.messages
    (directory := harness.store.config.directory / "kvStore").mkdir()
    assert unfinished(harness) == []
    assert "invisible time" in caplog.text
    assert str(directory) in caplog.text
