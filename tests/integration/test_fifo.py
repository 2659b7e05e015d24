"""Message groups with the released Python SDK; `tests/conformance/test_fifo.py` has the protocol."""

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
from tests.support.sdk_program import SdkProgram, send_until_taken, wait_all_messages, wait_group
from tests.support.shell import Shell

TOPIC, GROUP = "ledger-entries", "ledger"
Start = Callable[..., SdkProgram]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """The test's own broker with development settings, which create groups on first use."""
    with run_broker(tmp_path) as running:
        yield running


@pytest.fixture
def start(start_program: StartProgram, process: BrokerProcess) -> Start:
    """Starts a program of the Python SDK by its name."""
    return partial(start_program, PYTHON, endpoint=process.endpoint)


def administer(process: BrokerProcess, *arguments: str) -> None:
    Shell(process.endpoint).text(*arguments)


def rounds(count: int, *groups: str, first: int = 0) -> list[dict[str, Any]]:
    """Messages of several message groups in turn; a body is the group and a number."""
    return [
        {"body": f"{group}.{number}", "message_group": group}
        for number in range(first, first + count)
        for group in groups
    ]


def numbers(events: list[dict[str, Any]], group: str) -> list[int]:
    """The numbers of one message group's messages, in the order in which a listener got them."""
    parts = [event["body"].partition(".") for event in events]
    return [int(number) for name, _, number in parts if name == group]


@PYTHON.mark
def test_sdk_keeps_the_order_while_one_message_fails(process: BrokerProcess, start: Start) -> None:
    """A push consumer creates its group on first use.

    The failing message is retried before its group continues, and other message groups do not wait.
    """
    administer(process, "topic", "create", TOPIC, "--type", "fifo")
    consumer = start("push_consumer", topic=TOPIC, group=GROUP, failing_calls={"a.3": 2}, threads=8)
    producer = start("producer", topic=TOPIC)
    consumer.ready()
    sent = rounds(12, "a", "b", "c")
    producer.ready().ask("send", messages=sent)
    wait_all_messages([consumer], {message["body"] for message in sent}, "acknowledged")
    called, finished = consumer.messages(), consumer.messages("acknowledged")
    assert numbers(called, "a") == [0, 1, 2, 3, 3, *range(3, 12)]
    for group in "abc":  # the SDK acknowledges in threads, so the answers may come in another order
        assert sorted(numbers(finished, group)) == list(range(12))
    for group in "bc":
        assert numbers(called, group) == list(range(12))
    tries = [index for index, event in enumerate(called) if event["body"] == "a.3"]
    before = called[: tries[-1]]
    assert max(numbers(before, "b")) > 3
    assert max(numbers(before, "c")) > 3
    wait_group(process, GROUP, lag=0)


@PYTHON.mark
def test_sdk_continues_after_a_dead_letter(process: BrokerProcess, start: Start) -> None:
    """After its last attempt the message becomes a dead letter, and the next of its group is delivered."""
    administer(process, "topic", "create", TOPIC, "--type", "fifo")
    administer(process, "group", "create", GROUP, "--fifo", "--max-attempts", "2")
    consumer = start("push_consumer", topic=TOPIC, group=GROUP, failing_calls={"a.1": 99})
    producer = start("producer", topic=TOPIC)
    consumer.ready()
    producer.ready().ask("send", messages=rounds(4, "a"))
    wait_all_messages([consumer], {"a.0", "a.2", "a.3"}, "acknowledged")
    assert numbers(consumer.messages(), "a") == [0, 1, 1, 2, 3]
    wait_group(process, GROUP, lag=0)
    reader = start("simple_consumer", topic=f"%DLQ%{GROUP}", group="reader")
    reader.ready()
    assert [message["body"] for message in reader.ask("receive", count=10, invisible=30)["messages"]] == ["a.1"]


@PYTHON.mark
def test_sdk_keeps_the_order_after_a_kill_of_the_broker(process: BrokerProcess, start: Start) -> None:
    """The broker is killed and restarted: no message group skips a message or repeats acknowledged ones."""
    administer(process, "topic", "create", TOPIC, "--type", "fifo")
    groups = [f"group-{number}" for number in range(6)]
    consumers = [start("push_consumer", topic=TOPIC, group=GROUP, seconds=0.02) for _ in range(2)]
    producer = start("producer", topic=TOPIC)
    for consumer in consumers:
        consumer.ready()
    producer.ready().ask("send", messages=rounds(20, *groups))
    deadline = time.monotonic() + 60
    while sum(len(consumer.messages("acknowledged")) for consumer in consumers) < 10:
        assert time.monotonic() < deadline, consumers[0].logs()
        time.sleep(0.02)
    process.kill()
    process.start()
    send_until_taken(producer, rounds(5, *groups, first=20))
    everything = {message["body"] for message in rounds(25, *groups)}
    wait_all_messages(consumers, everything)
    wait_group(process, GROUP, lag=0)  # not by acknowledgements: the answer to one may be lost
    called = sorted((event for consumer in consumers for event in consumer.messages()), key=lambda each: each["time"])
    for group in groups:
        order = numbers(called, group)
        # At least once: the batch in progress at the kill may be delivered again from its first message.
        first_calls = list(dict.fromkeys(order))
        assert first_calls == list(range(25))
        assert len(order) <= 25 + 32
