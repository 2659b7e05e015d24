"""Transactions on a real store, with a manual clock."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import BrokerConfig
from aerobee_broker.config.transactions import TransactionsConfig
from aerobee_broker.transactions.half_messages import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    TRANSACTION_GROUP,
    committed_message,
    half_message,
    op_message,
    read_half,
)
from aerobee_broker.transactions.half_messages import Outcome as Settled
from aerobee_proto import v2
from aerobee_store import ConfigError
from aerobee_store.records import properties as p
from aerobee_store.records.message_fields import TIMER_TOPIC
from aerobee_store.records.record import Message, TransactionType
from aerobee_store.testing import Operation
from tests.support.in_process_broker import message
from tests.support.saved_tables import saved
from tests.support.transaction_harness import ROLLBACK, TOPIC, UNDECIDED, TransactionHarness, half

Code = v2.Code


@pytest.fixture(params=["sync", "async"])
async def harness(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[TransactionHarness]:
    """A broker without gRPC, with RocketMQ's times, in either flush mode."""
    harness = await TransactionHarness(tmp_path, flush=request.param).start()
    yield harness
    await harness.stop()


# --- what is stored -----------------------------------------------------------------------------------------


async def test_half_message_is_stored_like_by_rocketmq(harness: TransactionHarness) -> None:
    """A half message has its real place in properties and no transaction bits. Its own topic is empty."""
    assert await harness.send("T1", tag="card", keys=["k1"]) == [0]
    [record] = harness.stored(HALF_TOPIC)
    assert (record.queue_id, record.sys_flag & TransactionType.ROLLBACK, record.body) == (0, 0, b"pay")
    wanted = {
        p.REAL_TOPIC: TOPIC,
        p.REAL_QUEUE_ID: "0",
        p.TRANSACTION_ID: "T1",
        p.UNIQ_KEY: "T1",
        p.TRANSACTION_MESSAGE: "true",
        p.PRODUCER_GROUP: TOPIC,
        p.TAGS: "card",
        p.KEYS: "k1",
        "currency": "EUR",
    }
    assert wanted.items() <= record.properties.items()
    assert harness.ids() == []
    assert harness.safe_position == harness.store.positions[0]  # durable already


async def test_commit_stores_the_message_and_the_op_together(harness: TransactionHarness) -> None:
    """The final message has RocketMQ's form, the op follows it, and both are durable before the answer."""
    await harness.send("T1", tag="card", keys=["k1"])
    [first] = harness.stored(HALF_TOPIC)
    assert await harness.end("T1") == Code.OK
    [final] = harness.stored()
    assert (final.transaction_type, final.prepared_transaction_offset) == (
        TransactionType.COMMIT,
        first.physical_offset,
    )
    assert (final.body, final.tag, final.keys, final.unique_key) == (b"pay", "card", ["k1"], "T1")
    assert (final.born_timestamp, final.born_host) == (first.born_timestamp, first.born_host)
    assert final.properties[p.TRANSACTION_ID] == "T1"
    assert not final.properties.keys() & {p.REAL_TOPIC, p.REAL_QUEUE_ID}
    assert final.properties[p.TRANSACTION_MESSAGE] == "true"  # as in RocketMQ
    [op] = harness.stored(OP_TOPIC)
    assert (op.tag, op.body, op.queue_id) == ("d", b"0", 0)
    assert op.physical_offset == final.physical_offset + final.size
    assert harness.safe_position == harness.store.positions[0]
    assert harness.transactions.pending_count == 0


async def test_rollback_stores_the_op_alone(harness: TransactionHarness) -> None:
    """Consumers get nothing."""
    await harness.send("T1", "T2")
    assert await harness.end("T2", ROLLBACK) == Code.OK
    assert harness.stored() == []
    assert [op.body for op in harness.stored(OP_TOPIC)] == [b"1"]


async def test_queues_take_turns_and_message_groups_keep_theirs(harness: TransactionHarness) -> None:
    """A committed message is in the queue that a plain send would have chosen."""
    await harness.send("T0")  # the first send creates the transaction topics, which resets the queue rotation
    for transaction_id in ("T1", "T2", "T3", "T4"):  # messages of one request share a queue
        await harness.send(transaction_id)
    await harness.send("G1", "G2", "G3", message_group="order-1")
    for transaction_id in ("T1", "T2", "T3", "T4", "G1", "G2", "G3"):
        assert await harness.end(transaction_id) == Code.OK
    assert [record.queue_id for record in harness.stored()] == [0, 1, 0, 1, *[p.jump_hash("order-1", 2)] * 3]


async def test_commit_into_fewer_queues_than_there_were(harness: TransactionHarness) -> None:
    """A message is committed only to a queue that consumers read."""
    await harness.send("T1", "T2")
    topic = harness.tables.topics.require(TOPIC)
    saved(harness.tables.topics).update(dataclasses.replace(topic, read_queue_count=1, write_queue_count=1))
    assert [await harness.end(name) for name in ("T1", "T2")] == [Code.OK, Code.OK]
    assert [record.queue_id for record in harness.stored()] == [0, 0]


# --- decisions ----------------------------------------------------------------------------------------------


async def test_the_same_decision_is_accepted_again_and_another_is_refused(harness: TransactionHarness) -> None:
    """A repeated decision is accepted and stores one message; the opposite decision is refused."""
    await harness.send("T1", "T2")
    assert [await harness.end("T1") for _ in range(3)] == [Code.OK] * 3
    assert await harness.end("T1", ROLLBACK) == Code.INVALID_TRANSACTION_ID
    assert await harness.end("T1", UNDECIDED) == Code.OK
    assert [await harness.end("T2", ROLLBACK) for _ in range(2)] == [Code.OK] * 2
    assert await harness.end("T2") == Code.INVALID_TRANSACTION_ID
    assert harness.ids() == ["T1"]


async def test_the_same_decision_at_the_same_time(harness: TransactionHarness) -> None:
    """A client may send a decision several times at once. All get OK, and one message is stored."""
    await harness.send("T1")
    assert await asyncio.gather(*(harness.end("T1") for _ in range(4))) == [Code.OK] * 4
    assert harness.ids() == ["T1"]


async def test_unknown_ids(harness: TransactionHarness) -> None:
    """Blank, unknown, and other topics' ids give INVALID_TRANSACTION_ID, and nothing is stored."""
    await harness.send("T1")
    before = harness.store.positions[0]
    for transaction_id in ("", "  ", "T2"):
        assert await harness.end(transaction_id) == Code.INVALID_TRANSACTION_ID
    assert await harness.end("T1", topic="mixed") == Code.INVALID_TRANSACTION_ID
    assert await harness.end("T1", v2.TransactionResolution.ValueType(9)) == Code.BAD_REQUEST
    assert await harness.end("T1", topic="bad topic!") == Code.ILLEGAL_TOPIC
    assert harness.store.positions[0] == before
    assert harness.transactions.pending_count == 1


async def test_commit_into_a_topic_that_was_deleted(harness: TransactionHarness) -> None:
    """The commit is refused, and the next check gives the message up."""
    await harness.send("T1")
    saved(harness.tables.topics).delete(TOPIC)
    assert await harness.end("T1") == Code.TOPIC_NOT_FOUND
    await harness.advance(7)
    assert harness.transactions.pending_count == 0
    assert harness.ids(GIVEN_UP_TOPIC) == ["T1"]


async def test_a_full_disk_refuses_transactions_and_takes_decisions(harness: TransactionHarness) -> None:
    """A decision is stored while any space is left, because it finishes a transaction. A refused one can be
    repeated."""
    await harness.send("T1", "T2")
    harness.disk.fail_at("reserve", for_ever=True, error_number=28)
    codes = [await harness.send_code(half(f"X{number}", body=bytes(8000))) for number in range(5)]
    assert codes[-1] == Code.INTERNAL_SERVER_ERROR
    pending = harness.transactions.pending_count
    code = await harness.end("T1")
    harness.disk.heal()
    assert code in (Code.OK, Code.INTERNAL_SERVER_ERROR)
    assert harness.transactions.pending_count == pending - (code == Code.OK)
    assert await harness.end("T1") == Code.OK
    assert harness.ids() == ["T1"]


# --- sends --------------------------------------------------------------------------------------------------


async def test_a_repeated_send_is_stored_once(harness: TransactionHarness) -> None:
    """A repeated send returns the offset of its half message, also within one request and concurrently."""
    assert await harness.send("T1") == [0]
    assert await harness.send("T1") == [0]
    assert await harness.send("T2", "T2", "T1") == [1, 1, 0]
    assert list(await asyncio.gather(harness.send("T3"), harness.send("T3"))) == [[2], [2]]
    assert harness.ids(HALF_TOPIC) == ["T1", "T2", "T3"]
    assert await harness.end("T1") == Code.OK
    assert await harness.send("T1") == [0]  # a late repetition
    assert await harness.send("T1", topic="mixed") == [3]  # another topic
    assert harness.transactions.pending_count == 3


async def test_messages_that_cannot_be_half_messages(harness: TransactionHarness) -> None:
    """A half message may not share a request with plain messages nor have a delivery time."""
    for messages in ([half("T1", "mixed"), message("mixed")], [message("mixed"), half("T1", "mixed")]):
        assert await harness.send_code(*messages) == Code.BAD_REQUEST
    due = half("T1", "mixed")
    due.system_properties.delivery_timestamp.seconds = harness.clock.now_ms() // 1000 + 60
    assert await harness.send_code(due) == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert harness.store.positions[0] == 0


async def test_waiting_transactions_have_a_bound(tmp_path: Path) -> None:
    """Above the limit, new half messages get TOO_MANY_REQUESTS, for all of a request or none. Repeated sends are
    accepted, and a decision frees a place."""
    harness = await TransactionHarness(tmp_path, pending_max=3).start()
    await harness.send("T1", "T2")
    assert await harness.send_code(half("T3"), half("T4")) == Code.TOO_MANY_REQUESTS
    await harness.send("T3")
    assert await harness.send_code(half("T4")) == Code.TOO_MANY_REQUESTS
    assert await harness.send_code(half("T3")) == Code.OK
    await harness.end("T1")
    assert await harness.send_code(half("T4")) == Code.OK
    await harness.stop()


# --- checks -------------------------------------------------------------------------------------------------


async def test_the_sender_is_asked_after_six_seconds_and_then_every_thirty(harness: TransactionHarness) -> None:
    """The check has the whole message and the transaction id, and is not sent early."""
    sender = harness.producer("sender", TOPIC)
    await harness.send("T1", tag="card", keys=["k1", "k2"])
    await harness.advance(5.9)
    assert harness.asked(sender) == []
    await harness.advance(0.2)
    [command] = harness.asked(sender)
    assert command.transaction_id == "T1"
    system = command.message.system_properties
    assert (command.message.topic.name, command.message.body) == (TOPIC, b"pay")
    assert (system.message_id, system.tag, list(system.keys)) == ("T1", "card", ["k1", "k2"])
    assert dict(command.message.user_properties) == {"currency": "EUR"}
    assert (system.message_type, system.body_encoding) == (v2.MessageType.TRANSACTION, v2.Encoding.IDENTITY)
    assert system.body_digest.checksum == md5(b"pay", usedforsecurity=False).hexdigest().upper()
    assert system.HasField("born_timestamp")
    assert (system.queue_id, system.HasField("queue_offset")) == (0, True)
    await harness.advance(29)
    assert harness.asked(sender) == []
    await harness.advance(1.1)
    assert [asked.transaction_id for asked in harness.asked(sender)] == ["T1"]
    assert await harness.end("T1") == Code.OK
    await harness.advance(300)
    assert harness.asked(sender) == []
    assert harness.ids() == ["T1"]


async def test_a_message_may_have_its_own_time(harness: TransactionHarness) -> None:
    """orphaned_transaction_recovery_duration is rounded up to whole seconds; 0 means the default."""
    sender = harness.producer("sender")
    for transaction_id, milliseconds in (("T1", 60_000), ("T2", 500), ("T3", 0)):
        made = half(transaction_id)
        made.system_properties.orphaned_transaction_recovery_duration.FromMilliseconds(milliseconds)
        assert await harness.send_code(made) == Code.OK
    await harness.advance(1.1)
    assert [asked.transaction_id for asked in harness.asked(sender)] == ["T2"]
    await harness.advance(5)
    assert [asked.transaction_id for asked in harness.asked(sender)] == ["T3"]
    await harness.advance(53)
    assert "T1" not in [asked.transaction_id for asked in harness.asked(sender)]
    await harness.advance(1.5)
    [command] = [asked for asked in harness.asked(sender) if asked.transaction_id == "T1"]
    assert command.message.system_properties.orphaned_transaction_recovery_duration.seconds == 60


async def test_another_producer_is_asked_after_the_sender_has_left(harness: TransactionHarness) -> None:
    """One producer at a time is asked: one that listed the topic, or else one that has sent to it."""
    await harness.send("T0", client_id="veteran")
    await harness.end("T0")
    harness.producer("sender", TOPIC)
    await harness.send("T1")
    harness.clients.terminate("sender")
    stranger, veteran = harness.producer("stranger", "elsewhere"), harness.producer("veteran")
    await harness.advance(6.1)
    assert [len(harness.asked(client)) for client in (stranger, veteran)] == [0, 1]
    listed = harness.producer("listed", TOPIC)
    for _ in range(2):
        await harness.advance(30.1)
    assert [len(harness.asked(client)) for client in (stranger, veteran, listed)] == [0, 1, 1]


async def test_a_sender_that_does_not_answer_is_not_the_only_one_asked(harness: TransactionHarness) -> None:
    """The sender's connection may hang, so the next check goes to another producer."""
    sender, other = harness.producer("sender", TOPIC), harness.producer("other", TOPIC)
    await harness.send("T1")
    await harness.advance(6.1)
    assert (len(harness.asked(sender)), len(harness.asked(other))) == (1, 0)
    await harness.advance(30.1)
    assert (len(harness.asked(sender)), len(harness.asked(other))) == (0, 1)


async def test_a_producer_is_asked_as_soon_as_it_connects(harness: TransactionHarness) -> None:
    """A check that was due without a producer is sent when one connects. It was not counted before."""
    await harness.send("T1")
    for _ in range(20):
        await harness.advance(30.1)
    assert harness.transactions.pending_count == 1
    newcomer = harness.producer("newcomer", TOPIC)
    await harness.settle()
    [command] = harness.asked(newcomer)
    assert command.transaction_id == "T1"
    assert harness.stored(HALF_TOPIC)[-1].properties[p.TRANSACTION_CHECK_TIMES] == "1"
    await harness.advance(29)
    assert harness.asked(newcomer) == []
    await harness.advance(1.1)
    assert len(harness.asked(newcomer)) == 1


async def test_after_the_last_check_the_message_is_given_up(harness: TransactionHarness) -> None:
    """After 15 checks the message goes to TRANS_CHECK_MAX_TIME_TOPIC, and a decision is refused."""
    sender = harness.producer("sender", TOPIC)
    await harness.send("T1")
    await harness.advance(6.1)
    for _ in range(14):
        assert len(harness.asked(sender)) == 1
        await harness.advance(30.1)
    assert len(harness.asked(sender)) == 1
    assert harness.transactions.pending_count == 1
    await harness.advance(30.1)
    assert harness.asked(sender) == []
    assert harness.transactions.pending_count == 0
    [kept] = harness.stored(GIVEN_UP_TOPIC)
    assert (kept.unique_key, kept.body, kept.properties[p.REAL_TOPIC]) == ("T1", b"pay", TOPIC)
    assert kept.properties[p.TRANSACTION_CHECK_TIMES] == "15"
    assert await harness.end("T1") == Code.INVALID_TRANSACTION_ID
    assert harness.stored() == []
    harness = await harness.crash()
    assert harness.transactions.pending_count == 0
    await harness.stop()


async def test_a_transaction_without_any_producer_is_given_up(tmp_path: Path) -> None:
    """Without any producer the transaction is given up by its age."""
    harness = await TransactionHarness(tmp_path, age_hours_max=1.0).start()
    await harness.send("T1")
    await harness.advance(6.1)
    for _ in range(3):
        await harness.advance(1000)
    assert harness.transactions.pending_count == 1
    await harness.advance(1000)
    assert harness.ids(GIVEN_UP_TOPIC) == ["T1"]
    await harness.stop()


@pytest.mark.parametrize("restart", [False, True])
async def test_a_clock_that_jumps_ahead_gives_nothing_up(tmp_path: Path, restart: bool) -> None:
    """After a jump of ten days, noticed at run time or at a start, the returning producer is asked and decides."""
    harness = await TransactionHarness(tmp_path).start()
    await harness.send("T1")
    await harness.advance(1)
    harness.clock.jump(10 * 24 * 3600)
    if restart:
        harness = await harness.crash()
    await harness.advance(6.1)
    await harness.advance(60)
    assert (harness.transactions.pending_count, harness.ids(GIVEN_UP_TOPIC)) == (1, [])
    sender = harness.producer("sender", TOPIC)
    await harness.advance(60)
    assert [asked.transaction_id for asked in harness.asked(sender)]
    assert await harness.end("T1") == Code.OK
    await harness.stop()


async def test_a_slow_producer_has_bounded_commands(harness: TransactionHarness) -> None:
    """The producer's stream keeps 64 commands and drops the oldest. No check is lost or counted without being sent."""
    sender = harness.producer("sender", TOPIC)
    names = [f"T{number}" for number in range(100)]
    await harness.send(*names)
    await harness.advance(6.1)
    seen = [asked.transaction_id for asked in harness.asked(sender)]
    assert len(seen) == 32
    for _ in range(6):
        await harness.advance(1.1)
        seen += [asked.transaction_id for asked in harness.asked(sender)]
    assert sorted(seen) == sorted(names)


async def test_finished_transactions_free_their_memory(tmp_path: Path) -> None:
    """Finished transactions leave the timer long before they are due, so memory depends on pending ones."""
    harness = await TransactionHarness(tmp_path).start()
    for number in range(0, 3000, 100):
        names = [f"T{index}" for index in range(number, number + 100)]
        made = [half(name) for name in names]
        for each in made:
            each.system_properties.orphaned_transaction_recovery_duration.seconds = 3600
        assert await harness.send_code(*made) == Code.OK
        await asyncio.gather(*(harness.end(name, ROLLBACK) for name in names))
    assert len(harness.transactions._timer) < 1300  # there is no public access
    await harness.stop()


# --- restarts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [True, False])
async def test_waiting_transactions_survive_a_restart(tmp_path: Path, orderly: bool) -> None:
    """Pending transactions are checked afterwards, the sender first, and decisions are remembered."""
    harness = await TransactionHarness(tmp_path).start()
    await harness.send("T1", "T2", "T3", "T4")
    await harness.end("T2")
    await harness.end("T3", ROLLBACK)
    harness = await harness.restart() if orderly else await harness.crash()
    assert harness.transactions.pending_count == 2
    assert await harness.send("T1") == [0]  # repeated by a client that missed the answer
    assert [await harness.end("T2"), await harness.end("T3", ROLLBACK)] == [Code.OK] * 2
    assert await harness.end("T2", ROLLBACK) == Code.INVALID_TRANSACTION_ID
    other, sender = harness.producer("other", TOPIC), harness.producer("sender")
    await harness.advance(6.1)
    assert sorted(asked.transaction_id for asked in harness.asked(sender)) == ["T1", "T4"]
    assert harness.asked(other) == []
    assert [await harness.end("T1"), await harness.end("T4", ROLLBACK)] == [Code.OK] * 2
    assert harness.ids() == ["T2", "T1"]
    await harness.stop()


async def test_checks_are_counted_over_restarts(tmp_path: Path) -> None:
    """The count is in the half message that is stored again, as in RocketMQ, and the previous one is settled."""
    harness = await TransactionHarness(tmp_path, check_max=4).start()
    sender = harness.producer("sender", TOPIC)
    await harness.send("T1")
    await harness.advance(6.1)
    await harness.advance(30.1)
    assert len(harness.asked(sender)) == 2
    records = harness.stored(HALF_TOPIC)
    assert [record.properties.get(p.TRANSACTION_CHECK_TIMES) for record in records] == [None, "1", "2"]
    assert [op.body for op in harness.stored(OP_TOPIC)] == [b"0", b"1"]
    for _ in range(2):
        harness = await harness.crash()
        assert harness.transactions.pending_count == 1
        sender = harness.producer("sender", TOPIC)
        await harness.advance(20)
        assert harness.asked(sender) == []  # not before 30 s have passed since the last check
        await harness.advance(10.5)
        assert len(harness.asked(sender)) == 1
    await harness.advance(30.1)
    assert harness.asked(sender) == []
    assert harness.ids(GIVEN_UP_TOPIC) == ["T1"]
    await harness.stop()


async def test_offsets_are_where_rocketmq_keeps_them(harness: TransactionHarness) -> None:
    """The offsets in CID_RMQ_SYS_TRANS are those of the first pending half message and the first needed op."""
    await harness.send("T1", "T2", "T3", "T4")
    for transaction_id in ("T1", "T4", "T2"):
        await harness.end(transaction_id)
    await harness.stop()
    offsets = harness.tables.offsets
    assert offsets.get(HALF_TOPIC, TRANSACTION_GROUP, 0) == 2
    assert offsets.get(OP_TOPIC, TRANSACTION_GROUP, 0) == 1  # the op of T4, which is behind T3
    assert {HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC} <= {topic.name for topic in harness.tables.topics}


async def test_a_start_reads_a_bounded_stretch(tmp_path: Path) -> None:
    """An old pending transaction is stored again, so that a start need not read all later ones."""
    harness = await TransactionHarness(tmp_path, pending_max=10).start()
    await harness.send("OLD")
    for number in range(60):
        await harness.send(f"T{number}")
        await harness.end(f"T{number}", ROLLBACK)
    first = [record.queue_offset for record in harness.stored(HALF_TOPIC) if record.unique_key == "OLD"]
    assert len(first) > 1
    harness = await harness.restart()
    kept = harness.tables.offsets.get(HALF_TOPIC, TRANSACTION_GROUP, 0)
    assert kept == first[-1] > 60 - 2 * 10
    assert harness.transactions.pending_count == 1
    assert await harness.end("OLD") == Code.OK
    assert harness.ids() == ["OLD"]
    await harness.stop()


async def test_retention_keeps_undecided_transactions(harness: TransactionHarness) -> None:
    """A pending half message is stored again before its segment expires, with its count and age."""
    sender = harness.producer("sender", TOPIC)
    await harness.send("T1", "T2")
    await harness.end("T2")
    await harness.advance(6.1)
    assert len(harness.asked(sender)) == 1
    end = harness.store.positions[0]
    async with asyncio.timeout(60):
        assert await harness.transactions.keep_from(end) == end
    assert min(record.physical_offset for record in harness.stored(HALF_TOPIC)[-1:]) >= end
    found = read_half(harness.stored(HALF_TOPIC)[-1])
    assert found is not None
    assert (found.transaction_id, found.checks, found.since_ms) == ("T1", 1, 1_700_000_000_000)
    assert harness.tables.offsets.get(HALF_TOPIC, TRANSACTION_GROUP, 0) == harness.stored(HALF_TOPIC)[-1].queue_offset
    harness = await harness.crash()
    assert await harness.end("T1") == Code.OK
    assert harness.ids() == ["T2", "T1"]
    await harness.stop()


# --- stores of RocketMQ, and damage -------------------------------------------------------------------------


def rocketmq_half(transaction_id: str, **more: str) -> Message:
    """A half message as RocketMQ stores it, with only RocketMQ's properties."""
    made = half_message(
        Message(TOPIC, 1, b"pay", {p.UNIQ_KEY: transaction_id, p.TRANSACTION_MESSAGE: "true", p.PRODUCER_GROUP: "g"}),
        "x" * 300,
    )
    assert not any(name.startswith("__AEROBEE") for name in made.properties)
    return dataclasses.replace(made, properties={**made.properties, **more})


async def test_a_store_that_rocketmq_wrote(harness: TransactionHarness) -> None:
    """The store has ops with several offsets and a trailing comma, a commit whose op was not yet stored, half messages
    that were stored again, and invalid ones."""
    store = harness.store
    places = store.append([rocketmq_half(f"R{number}") for number in range(6)])
    renewed = rocketmq_half("R0", **{p.TRANSACTION_CHECK_TIMES: "3"})
    resolved_by_first = rocketmq_half("R1", **{p.TRANSACTION_PREPARED_QUEUE_OFFSET: "1"})
    no_half = Message(HALF_TOPIC, 0, b"?", {p.UNIQ_KEY: "R9"})
    store.append([renewed, resolved_by_first, no_half])
    store.append(
        [
            Message(OP_TOPIC, 0, b"1,4,", {p.TAGS: "d"}),
            Message(OP_TOPIC, 0, b"nonsense,,-3", {p.TAGS: "d"}),
            Message(OP_TOPIC, 0, b"5", {p.TAGS: "other"}),
        ]
    )
    await store.wait_stored(store.positions[0])
    store.append([committed_message(store.record_at(places[3].physical_offset), TOPIC, 1)])
    await store.wait_stored(store.positions[0])
    harness = await harness.crash()
    assert harness.transactions.pending_count == 3  # R0, R2, R5
    assert [await harness.end(f"R{number}") for number in (0, 2, 3, 5)] == [Code.OK] * 4
    assert harness.ids() == ["R3", "R0", "R2", "R5"]
    assert harness.stored()[1].prepared_transaction_offset > places[5].physical_offset
    harness = await harness.crash()
    assert harness.transactions.pending_count == 0
    await harness.stop()


@pytest.mark.parametrize(
    ("properties", "seconds"),
    [
        ({p.TIMER_DELAY_SEC: "90"}, 90),
        ({p.TIMER_DELAY_MS: "1500"}, 1.5),
        ({p.TIMER_DELIVER_MS: "{now}+7000"}, 7),
        ({p.DELAY: "3"}, 10),
        ({p.DELAY: "99"}, 7200),
        ({p.TIMER_DELAY_SEC: "9" * 17}, 40 * 86_400),
        ({p.TIMER_DELIVER_MS: "1000"}, None),
        ({p.DELAY: "0"}, None),
        ({p.DELAY: "soon"}, None),
    ],
)
async def test_a_delay_stored_by_rocketmq_begins_with_the_commit(
    harness: TransactionHarness, properties: dict[str, str], seconds: float | None
) -> None:
    """The committed message waits in the timer topic, with its commit bits."""
    now = harness.clock.now_ms() + 5000
    properties = {name: str(now + 7000) if "+" in text else text for name, text in properties.items()}
    harness.store.append([rocketmq_half("R1", **properties)])
    await harness.store.wait_stored(harness.store.positions[0])
    harness = await harness.crash()
    await harness.advance(5)
    assert await harness.end("R1") == Code.OK
    if seconds is None:
        assert harness.ids() == ["R1"]
        return
    assert harness.ids() == []
    [waiting] = harness.stored(TIMER_TOPIC)
    assert int(waiting.properties[p.TIMER_DELIVER_MS]) - now == round(seconds * 1000)
    assert (waiting.properties[p.REAL_TOPIC], waiting.properties[p.REAL_QUEUE_ID]) == (TOPIC, "1")
    assert waiting.transaction_type is TransactionType.COMMIT


async def test_a_delayed_commit_that_lost_its_op(harness: TransactionHarness) -> None:
    """At the start the message is found in the timer topic, and the op is written."""
    [place] = harness.store.append([rocketmq_half("R1", **{p.TIMER_DELAY_SEC: "90"})])
    await harness.store.wait_stored(harness.store.positions[0])
    final = committed_message(harness.store.record_at(place.physical_offset), TOPIC, 1)
    properties = {**final.properties, p.REAL_TOPIC: TOPIC, p.REAL_QUEUE_ID: "1"}
    harness.store.append([dataclasses.replace(final, topic=TIMER_TOPIC, queue_id=0, properties=properties)])
    await harness.store.wait_stored(harness.store.positions[0])
    harness = await harness.crash()
    assert harness.transactions.pending_count == 0
    assert await harness.end("R1") == Code.OK
    assert (len(harness.stored(TIMER_TOPIC)), harness.store.queue_range(OP_TOPIC, 0)[1]) == (1, 1)
    await harness.stop()


async def test_a_damaged_half_message(harness: TransactionHarness) -> None:
    """The commit is refused, the check drops the transaction, and others are unaffected."""
    await harness.send("T1", "T2")
    [first, _] = harness.stored(HALF_TOPIC)
    log = harness.directory / "commitlog" / f"{0:020}"
    harness.disk.damage(log, first.physical_offset + 90, b"\xff\xff")
    assert await harness.end("T1") == Code.INVALID_TRANSACTION_ID
    harness.producer("sender")
    await harness.advance(6.1)
    assert harness.transactions.pending_count == 1
    assert await harness.end("T2") == Code.OK
    assert harness.ids() == ["T2"]


async def test_offsets_after_the_end_of_the_queues(harness: TransactionHarness) -> None:
    """A power cut with async flush may leave such offsets. The next start still finds later messages."""
    await harness.send("T1")
    await harness.end("T1")
    for topic in (HALF_TOPIC, OP_TOPIC):
        harness.tables.offsets.commit(topic, TRANSACTION_GROUP, 0, 500, force=True)
    await harness.tables.save()
    harness = await harness.crash()
    await harness.send("T2")
    harness = await harness.crash()
    assert await harness.end("T2") == Code.OK
    assert harness.ids() == ["T1", "T2"]
    await harness.stop()


async def test_counts_for_the_metrics(harness: TransactionHarness) -> None:
    """Counts by topic: pending, committed and rolled back, and the commit time. Commits count as sent."""
    await harness.send("T1", "T2", "T3")
    await harness.advance(2)
    await harness.end("T1")
    await harness.end("T2", ROLLBACK)
    await harness.end("T2", ROLLBACK)
    count = harness.transactions.topics[TOPIC]
    assert (count.half, count.committed, count.rolled_back, count.given_up) == (1, 1, 1, 0)
    assert (count.finish_seconds.count, count.finish_seconds.sum) == (1, 2.0)
    assert harness.counters.sent[TOPIC, "transaction"].messages == 1


def test_settings_of_rocketmq(tmp_path: Path) -> None:
    """RocketMQ's three settings are read; their times are in milliseconds."""
    conf = tmp_path / "broker.conf"
    conf.write_text("transactionTimeOut=7000\ntransactionCheckInterval=2500\ntransactionCheckMax=4\n")
    config = BrokerConfig.load(rocketmq_conf=conf)
    assert config.transactions == TransactionsConfig(timeout_seconds=7.0, check_interval_seconds=2.5, check_max=4)
    assert config.ignored_rocketmq_keys == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout_seconds", 0.0),
        ("check_interval_seconds", -1.0),
        ("age_hours_max", float("nan")),
        ("check_max", 0),
        ("pending_max", 0),
    ],
)
def test_settings_that_cannot_work(name: str, value: Any) -> None:
    """The error has the setting's full name."""
    with pytest.raises(ConfigError, match=rf"transactions\.{name}"):
        TransactionsConfig(**{name: value})


def test_an_op_can_be_read_by_every_rocketmq() -> None:
    """Release 4 parses the whole body as one number, release 5 splits it at commas."""
    op = op_message(12, Settled.COMMIT, TOPIC, "T1", 5)
    assert (op.topic, op.queue_id, op.body, op.properties[p.TAGS]) == (OP_TOPIC, 0, b"12", "d")


async def test_a_repeated_decision_waits_for_the_disk(tmp_path: Path) -> None:
    """A repeated EndTransaction is not answered before the decision is durable."""
    harness = await TransactionHarness(tmp_path).start()
    reached, go_on = threading.Event(), threading.Event()

    def hold(operation: Operation) -> None:
        if operation.name == "sync" and "commitlog" in operation.path.parts:
            reached.set()
            assert go_on.wait(60)

    try:
        await harness.send("T1")
        harness.disk.before_operation = hold
        first = asyncio.create_task(harness.end("T1"))
        assert await asyncio.to_thread(reached.wait, 60)
        second = asyncio.create_task(harness.end("T1"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not first.done()
        assert not second.done()
        go_on.set()
        assert [await first, await second] == [Code.OK, Code.OK]
    finally:
        go_on.set()
        harness.disk.before_operation = None
        await harness.stop()
