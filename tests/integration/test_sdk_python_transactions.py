"""Transactions of the released Python SDK, unmodified, against a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aerobee_client.testing import BrokerProcess, run_broker
from tests.integration.conftest import StartProgram
from tests.support.official_sdks import PYTHON
from tests.support.sdk_program import Event, SdkProgram

pytestmark = PYTHON.mark

Start = Callable[..., SdkProgram]
TOPIC = "payments"
SETTINGS = {"transactions.timeout_seconds": 1.0, "transactions.check_interval_seconds": 1.0}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with short check intervals and a topic for transactions."""
    with run_broker(tmp_path, settings=SETTINGS) as running:
        running.create_topic(TOPIC, "transaction")
        yield running


@pytest.fixture
def start(start_program: StartProgram, broker: BrokerProcess) -> Start:
    """Starts a program by its name."""
    return partial(start_program, PYTHON, endpoint=broker.endpoint, topic=TOPIC)


def ask_until_taken(program: SdkProgram, do: str, **arguments: Any) -> Event:
    """Send a command until it succeeds, and return its answer: connections need a moment after a restart."""
    deadline = time.monotonic() + 60
    while True:
        program.tell(do, **arguments)
        try:
            return program.answer()
        except AssertionError:
            assert program.running, program.logs()
            assert time.monotonic() < deadline, program.logs()
            time.sleep(0.2)


def received(consumer: SdkProgram, *expected: str) -> list[Event]:
    """Receive and acknowledge until all of these bodies arrived, then nothing more for 2 s."""
    found: list[Event] = []
    deadline = time.monotonic() + 60
    while True:
        messages = ask_until_taken(consumer, "receive", count=10, invisible=60)["messages"]
        if messages:
            ask_until_taken(consumer, "acknowledge", bodies=[message["body"] for message in messages])
            found += messages
        elif len(found) >= len(expected) or time.monotonic() > deadline:
            assert sorted(message["body"] for message in found) == sorted(expected), consumer.logs()
            return found


def test_commit_and_rollback(start: Start) -> None:
    """A committed message arrives once, with its id; a rolled-back or undecided one does not."""
    producer, consumer = start("transaction_producer"), start("simple_consumer", group="bank")
    producer.ready()
    consumer.ready()
    committed = producer.ask("send", body="committed", decision="commit")
    assert committed["transaction_id"] == committed["message_id"]
    producer.ask("send", body="rolled back", decision="rollback")
    producer.ask("send", body="waits")
    [message] = received(consumer, "committed")
    assert (message["message_id"], message["tag"], message["attempt"]) == (committed["message_id"], "t", 1)
    assert message["corrupted"] is False
    producer.ask("decide", body="waits", decision="commit")
    producer.ask("decide", body="waits", decision="commit")  # a commit may be repeated
    received(consumer, "waits")


def test_another_producer_answers_for_one_that_died(start: Start) -> None:
    """The producer is killed before its decision: another producer's checker is asked, and commits."""
    dying = start("transaction_producer").ready()
    consumer = start("simple_consumer", group="bank").ready()
    sent = dying.ask("send", body="orphan")
    dying.tell("die")
    heir = start("transaction_producer", answer="commit").ready()
    [checked] = heir.wait_messages(1, "checked")[:1]
    assert (checked["body"], checked["message_id"], checked["corrupted"]) == ("orphan", sent["message_id"], False)
    [message] = received(consumer, "orphan")
    assert message["message_id"] == sent["message_id"]


def test_a_producer_that_does_not_know_is_asked_again(start: Start) -> None:
    """After it has stopped another producer is asked, which rolls back; then the checks end."""
    unsure = start("transaction_producer").ready()
    unsure.ask("send", body="unclear")
    unsure.wait_messages(2, "checked")
    unsure.tell("die")
    sure = start("transaction_producer", answer="rollback").ready()
    sure.wait_messages(1, "checked")
    received(start("simple_consumer", group="bank").ready())
    time.sleep(2.5)
    assert len(sure.messages("checked")) == 1, "it was asked about a transaction that it had rolled back"


def test_kill_of_the_broker_between_half_message_and_commit(broker: BrokerProcess, start: Start) -> None:
    """The producer commits after the restart; messages committed before are stored once."""
    producer, consumer = start("transaction_producer"), start("simple_consumer", group="bank")
    producer.ready()
    consumer.ready()
    for body in ("first", "second"):
        producer.ask("send", body=body)
    producer.ask("decide", body="first", decision="commit")
    broker.kill()
    broker.restart()
    ask_until_taken(producer, "decide", body="second", decision="commit")
    ask_until_taken(producer, "decide", body="first", decision="commit")  # repeated after the restart
    received(consumer, "first", "second")
