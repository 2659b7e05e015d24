"""The released Node.js SDK, unmodified, against a real broker. Every SDK client is a separate program."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aerobee_client.testing import BrokerProcess, run_broker
from tests.support.official_sdks import NODE
from tests.support.port_forwarder import forwarded_port
from tests.support.sdk_program import (
    SdkProgram,
    bodies,
    create_topic,
    group_queues,
    numbered,
    reconnect,
    send_until_taken,
    wait_all_messages,
    wait_group,
)

pytestmark = NODE.mark

Start = Callable[..., SdkProgram]


@pytest.fixture(scope="module")
def short_polls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments for a broker that answers polls after 2 s: this SDK's shutdown waits for them."""
    config = tmp_path_factory.mktemp("config") / "aerobee.toml"
    config.write_text("[delivery]\npoll_seconds_max = 2\n")
    return ["--dev", "--config", str(config)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, short_polls: list[str]) -> Iterator[BrokerProcess]:
    """One broker for the tests that do not stop it; each test has its own topics and groups."""
    with run_broker(tmp_path_factory.mktemp("aerobee"), short_polls) as running:
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program from the folder sdk_node by its name; all end with the test."""
    with ExitStack() as programs:

        def begin(name: str, endpoint: str, **options: Any) -> SdkProgram:
            home = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
            return programs.enter_context(NODE.program(name, home, endpoint=endpoint, **options))

        yield begin


def test_every_field_arrives_and_only_unacknowledged_messages_are_redelivered(
    broker: BrokerProcess, start: Start
) -> None:
    """A message keeps every field; unacknowledged ones come again after their invisible time, as attempt 2."""
    producer = start("producer", broker.endpoint, topic="fields")
    consumer = start("simple_consumer", broker.endpoint, topic="fields", group="readers")
    sent = {
        "body": "grüße, 世界 🚀",
        "tag": "greeting",
        "keys": ["kunde-ü", "order-1"],
        "properties": {"currency": "€", "Ключ": "значение"},
    }
    [message_id] = producer.ready().ask("send", messages=[sent])["message_ids"]
    producer.ask("send", messages=[{"body": "plain"}])

    consumer.ready()
    received: list[dict[str, Any]] = []
    while len(received) < 2:
        received += (answer := consumer.ask("receive", count=10, invisible=3))["messages"]
        assert answer["messages"], "a receive ended empty while messages were there"
    by_body = {message["body"]: message for message in received}
    full, plain = by_body[sent["body"]], by_body["plain"]
    expected = {**sent, "topic": "fields", "message_id": message_id, "attempt": 1, "corrupted": False}
    assert {name: full[name] for name in expected} == expected
    assert full["born_host"]
    assert abs(full["born_timestamp"] / 1000 - time.time()) < 60
    assert (plain["tag"], plain["keys"], plain["properties"]) == (None, [], {})

    consumer.ask("acknowledge", bodies=[sent["body"]])
    again = consumer.ask("receive", count=10, invisible=60)
    while not again["messages"]:
        again = consumer.ask("receive", count=10, invisible=60)
    assert [(message["body"], message["attempt"]) for message in again["messages"]] == [("plain", 2)]
    consumer.ask("acknowledge", bodies=["plain"])
    assert consumer.ask("receive", count=10, invisible=60)["messages"] == []
    wait_group(broker, "readers", lag=0)
    for program in (producer, consumer):
        assert program.end() == 0


def test_every_kind_of_message(broker: BrokerProcess, start: Start) -> None:
    """Normal, ordered, delayed and transactional messages arrive; recalled and rolled-back ones do not."""
    create_topic(broker, "kinds", "normal", "fifo", "delay", "transaction")
    producer = start("producer", broker.endpoint, topic="kinds")
    consumer = start("push_consumer", broker.endpoint, topic="kinds", group="kinds")
    producer.ready()
    consumer.ready()
    due = time.time() + 3
    later = [{"body": "taken back", "due": due}, {"body": "delayed", "due": due}]
    [message_id, _] = producer.ask("send", messages=later)["message_ids"]
    assert producer.ask("recall", body="taken back")["message_id"] == message_id
    producer.ask("send", messages=[{"body": "normal"}, {"body": "ordered", "message_group": "g"}])
    producer.ask("transact", body="rolled back", decision="rollback")
    producer.ask("transact", body="committed", decision="commit")
    wait_all_messages([consumer], {"normal", "ordered", "delayed", "committed"}, "acknowledged")
    producer.ask("send", messages=[{"body": "end", "due": due + 1}])
    wait_all_messages([consumer], {"end"}, "acknowledged")
    assert bodies(consumer.messages()) == ["committed", "delayed", "end", "normal", "ordered"]
    assert [message["time"] >= due - 0.01 for message in consumer.messages() if message["body"] == "delayed"] == [True]


def test_a_simple_consumer_drains_all_queues_of_a_topic(broker: BrokerProcess, start: Start) -> None:
    """It names queue 0 in every receive and still gets messages of all queues; a tag filter works."""
    producer = start("producer", broker.endpoint, topic="many-queues")
    consumer = start("simple_consumer", broker.endpoint, topic="many-queues", group="drain", expression="even || none")
    sent = [{"body": f"m{number}", "tag": ("even", "odd", "odder")[number % 3]} for number in range(48)]
    producer.ready().ask("send", messages=sent)
    consumer.ready()
    received: list[dict[str, Any]] = []
    while answer := consumer.ask("receive", count=5, invisible=60)["messages"]:
        received += answer
        consumer.ask("acknowledge", bodies=[message["body"] for message in answer])
    assert Counter(bodies(received)) == Counter(message["body"] for message in sent if message["tag"] == "even")
    assert sum(queue["maxOffset"] > 0 for queue in group_queues(broker, "drain")) > 1


def test_push_consumption_succeeds_and_fails_without_a_crash(broker: BrokerProcess, start: Start) -> None:
    """A listener that throws and then fails gets the message with rising attempts until it succeeds.

    The other group's listener gets every message once. Both shut down cleanly.
    """
    producer = start("producer", broker.endpoint, topic="pushed")
    failing = start("push_consumer", broker.endpoint, topic="pushed", group="failing", failures=2)
    fine = start("push_consumer", broker.endpoint, topic="pushed", group="fine")
    for program in (producer, failing, fine):
        program.ready()
    producer.ask("send", messages=numbered(10))
    everything = {message["body"] for message in numbered(10)}
    wait_all_messages([failing, fine], everything, "acknowledged")
    wait_group(broker, "failing", lag=0)
    wait_group(broker, "fine", lag=0)
    attempts = Counter((message["body"], message["attempt"]) for message in failing.messages())
    assert attempts == Counter((body, attempt) for body in everything for attempt in (1, 2, 3))
    assert Counter(bodies(fine.messages())) == Counter(everything)
    for program in (failing, fine):
        program.tell("shutdown")
    for program in (failing, fine):
        program.answer()
        assert program.end() == 0


def test_push_keeps_the_order_of_each_message_group_while_one_fails(broker: BrokerProcess, start: Start) -> None:
    """A failing listener gets the same message again before the next of its message group."""
    create_topic(broker, "ordered", "fifo")
    producer = start("producer", broker.endpoint, topic="ordered")
    consumer = start("push_consumer", broker.endpoint, topic="ordered", group="ordered", failures=1)
    producer.ready()
    consumer.ready()
    sent = [{"body": f"{group}{number}", "message_group": group} for number in range(8) for group in ("a", "b", "c")]
    producer.ask("send", messages=sent)
    wait_all_messages([consumer], {message["body"] for message in sent}, "acknowledged")
    order: dict[str, list[str]] = defaultdict(list)
    for message in consumer.messages():
        order[message["body"][0]].append(message["body"])
    assert order == {group: [f"{group}{number}" for number in range(8) for _ in range(2)] for group in "abc"}
    wait_group(broker, "ordered", lag=0)


def test_push_consumption_continues_after_a_kill_of_the_broker(
    tmp_path_factory: pytest.TempPathFactory, short_polls: list[str], start: Start
) -> None:
    """Telemetry reconnects and gets settings, all messages arrive, and acknowledged ones do not come again."""
    with run_broker(tmp_path_factory.mktemp("aerobee"), short_polls) as broker:
        producer = start("producer", broker.endpoint, topic="killed")
        consumer = start("push_consumer", broker.endpoint, topic="killed", group="killed", milliseconds=20)
        consumer.ready()
        producer.ready().ask("send", messages=numbered(100, "before"))
        consumer.wait_messages(20, "acknowledged")
        broker.kill()
        known = {event["body"] for event in consumer.messages("acknowledged")}
        settings = len(consumer.messages("settings"))
        time.sleep(0.3)  # the listener is processing its messages
        broker.start()
        send_until_taken(producer, numbered(20, "after"))
        consumer.wait_messages(settings + 1, "settings")
        everything = {message["body"] for message in (*numbered(100, "before"), *numbered(20, "after"))}
        wait_all_messages([consumer], everything)
        wait_group(broker, "killed", lag=0)
        deliveries = Counter(bodies(consumer.messages()))
        assert {body: deliveries[body] for body in known} == dict.fromkeys(known, 1)


def test_a_client_reconnects_its_stream_on_command(broker: BrokerProcess, start: Start) -> None:
    """It sends its settings again, gets the broker's, and continues consuming."""
    producer = start("producer", broker.endpoint, topic="reconnected")
    consumer = start("push_consumer", broker.endpoint, topic="reconnected", group="reconnected")
    producer.ready().ask("send", messages=numbered(3, "before"))
    consumer.ready().wait_messages(3, "acknowledged")
    settings = len(consumer.messages("settings"))
    reconnect(broker, "reconnected")
    consumer.wait_messages(settings + 1, "settings")
    producer.ask("send", messages=numbered(3, "after"))
    consumer.wait_messages(6, "acknowledged")


def test_a_client_behind_a_mapped_port_gets_lost_deliveries_again(broker: BrokerProcess, start: Start) -> None:
    """The broker's route has the address that the client used. A delivery lost in the network comes again."""
    with forwarded_port(broker.endpoint) as port:
        consumer = start("push_consumer", port.endpoint, topic="lossy", group="lossy")
        producer = start("producer", broker.endpoint, topic="lossy")
        consumer.ready()
        producer.ready().ask("send", messages=[{"body": "first"}])
        consumer.wait_messages(1, "acknowledged")
        port.lose_answers()
        producer.ask("send", messages=[{"body": "lost"}])
        wait_group(broker, "lossy", inflight=1)
        port.reset()
        consumer.wait_messages(2, "acknowledged")
        assert [(message["body"], message["attempt"]) for message in consumer.messages()] == [("first", 1), ("lost", 2)]
