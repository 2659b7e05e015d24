"""The released Python SDK, unmodified, against a real broker. Every SDK client is a separate program."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aerobee_client.testing import BrokerProcess, run_broker
from tests.support.official_sdks import PYTHON
from tests.support.port_forwarder import forwarded_port
from tests.support.sdk_program import (
    SdkProgram,
    bodies,
    create_topic,
    numbered,
    send_until_taken,
    wait_all_messages,
    wait_group,
)

pytestmark = PYTHON.mark

Start = Callable[..., SdkProgram]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for the tests that do not stop it; each test has its own topics and groups."""
    with run_broker(tmp_path_factory.mktemp("aerobee")) as running:
        yield running


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts a program from the folder sdk_python by its name; all end with the test."""
    with ExitStack() as programs:

        def begin(name: str, endpoint: str, **options: Any) -> SdkProgram:
            home = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
            return programs.enter_context(PYTHON.program(name, home, endpoint=endpoint, **options))

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
        "keys": ["order-1", "kunde-ü"],
        "properties": {"currency": "€", "empty-handed": "no", "Ключ": "значение"},
    }
    [message_id] = producer.ready().ask("send", messages=[sent])["message_ids"]
    producer.ask("send", messages=[{"body": "plain"}])

    consumer.ready()
    received: list[dict[str, Any]] = []
    while len(received) < 2:
        received += (answer := consumer.ask("receive", count=10, invisible=3))["messages"]
        assert answer["messages"], "a receive ended empty while messages were there"
    by_body = {message["body"]: message for message in received}
    assert set(by_body) == {sent["body"], "plain"}
    full, plain = by_body[sent["body"]], by_body["plain"]
    assert {name: full[name] for name in ("topic", "tag", "properties", "message_id", "attempt", "corrupted")} == {
        "topic": "fields",
        "tag": "greeting",
        "properties": sent["properties"],
        "message_id": message_id,
        "attempt": 1,
        "corrupted": False,
    }
    assert full["keys"] == sorted(sent["keys"])
    assert full["born_host"]
    assert abs(full["born_timestamp"] / 1000 - time.time()) < 60
    assert (plain["tag"], plain["keys"], plain["properties"]) == (None, [], {})

    consumer.ask("acknowledge", bodies=[sent["body"]])
    again = consumer.ask("receive", count=10, invisible=60)
    while not again["messages"]:
        again = consumer.ask("receive", count=10, invisible=60)
    assert [(message["body"], message["attempt"]) for message in again["messages"]] == [("plain", 2)]
    assert again["time"] - plain["time"] > 2.5  # its 3 s began a little before we noted the time
    consumer.ask("acknowledge", bodies=["plain"])
    assert consumer.ask("receive", count=10, invisible=60)["messages"] == []
    wait_group(broker, "readers", lag=0)


def test_a_changed_invisible_duration_holds(broker: BrokerProcess, start: Start) -> None:
    """After shortening, the message comes again soon; the client's new handle acknowledges it."""
    producer = start("producer", broker.endpoint, topic="changed")
    consumer = start("simple_consumer", broker.endpoint, topic="changed", group="changers")
    producer.ready().ask("send", messages=[{"body": "slow"}, {"body": "slower"}])
    consumer.ready()
    held: list[dict[str, Any]] = []
    while len(held) < 2:
        held += consumer.ask("receive", count=10, invisible=60)["messages"]
    changed = consumer.ask("change", body="slow", invisible=1)
    consumer.ask("change", body="slower", invisible=120)
    consumer.ask("acknowledge", bodies=["slower"])
    again = consumer.ask("receive", count=10, invisible=60)
    assert [(message["body"], message["attempt"]) for message in again["messages"]] == [("slow", 2)]
    assert again["time"] - changed["time"] > 0.5
    consumer.ask("acknowledge", bodies=["slow"])


def test_delayed_messages_arrive_in_time_and_can_be_recalled(broker: BrokerProcess, start: Start) -> None:
    """A message waits for its second; a recalled one never comes, and cannot be recalled twice."""
    create_topic(broker, "delayed", "delay")
    producer = start("producer", broker.endpoint, topic="delayed")
    consumer = start("push_consumer", broker.endpoint, topic="delayed", group="patient")
    consumer.ready()
    due = int(time.time()) + 4  # the SDK supports only whole seconds
    later = [{"body": "taken back", "due": due}, {"body": "delayed", "due": due}, {"body": "too late", "due": due - 60}]
    [message_id, *_] = producer.ready().ask("send", messages=later)["message_ids"]
    assert producer.ask("recall", body="taken back")["message_id"] == message_id
    producer.tell("recall", body="taken back")
    with pytest.raises(AssertionError, match="is already recalled"):
        producer.answer()
    consumer.wait_messages(2, "acknowledged")
    [at_once, in_time] = consumer.messages()
    assert (at_once["body"], in_time["body"]) == ("too late", "delayed")
    assert in_time["time"] >= due
    producer.ask("send", messages=[{"body": "end", "due": due + 1}])
    consumer.wait_messages(3, "acknowledged")
    assert bodies(consumer.messages()) == ["delayed", "end", "too late"]


def test_push_consumers_share_a_group_and_each_group_gets_all(broker: BrokerProcess, start: Start) -> None:
    """Two consumers of one group never get the same message; another group gets all, a third only one tag."""
    producer = start("producer", broker.endpoint, topic="shared")
    sharing = [start("push_consumer", broker.endpoint, topic="shared", group="sharing") for _ in range(2)]
    alone = start("push_consumer", broker.endpoint, topic="shared", group="alone")
    choosy = start("push_consumer", broker.endpoint, topic="shared", group="choosy", expression="even || prime")
    for consumer in (*sharing, alone, choosy):
        consumer.ready()
    sent: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60
    # One by one until both have some: a consumer that polls first takes all available messages.
    while len(sent) < 40 or any(len(consumer.messages()) < 3 for consumer in sharing):
        assert time.monotonic() < deadline, "one of two consumers gets everything"
        sent.append({"body": f"m{len(sent)}", "tag": "odd" if len(sent) % 2 else "even"})
        producer.ask("send", messages=sent[-1:])
    everything = {message["body"] for message in sent}

    got = wait_all_messages(sharing, everything, "acknowledged")
    assert Counter(bodies(got)) == Counter(everything)
    assert Counter(bodies(wait_all_messages([alone], everything, "acknowledged"))) == Counter(everything)
    even = {message["body"] for message in sent if message["tag"] == "even"}
    assert Counter(bodies(wait_all_messages([choosy], even, "acknowledged"))) == Counter(even)
    assert {message["tag"] for message in choosy.messages()} == {"even"}


def test_a_lite_consumer_gets_its_lite_topics(broker: BrokerProcess, start: Start) -> None:
    """It gets messages from its subscription on, also of two topics at once, and none after unsubscribing."""
    create_topic(broker, "rooms", "LITE")
    producer = start("producer", broker.endpoint, topic="rooms")
    consumer = start("lite_push_consumer", broker.endpoint, topic="rooms", group="guests")
    # One letter each: this release splits a longer name into its letters until its next full synchronization.
    consumer.ready().ask("subscribe", lite_topic="a")
    producer.ready().ask("send", messages=[{"body": f"{room}1", "lite_topic": room} for room in "abc"])
    assert [(each["body"], each["lite_topic"]) for each in consumer.wait_messages(1)] == [("a1", "a")]
    consumer.ask("subscribe", lite_topic="b")
    consumer.wait_messages(2, "acknowledged")
    consumer.ask("unsubscribe", lite_topic="a")
    producer.ask("send", messages=[{"body": f"{room}2", "lite_topic": room} for room in "abc"])
    assert bodies(consumer.wait_messages(3, "acknowledged")) == ["a1", "b1", "b2"]


def test_a_failing_listener_gets_the_message_again_after_the_backoff(broker: BrokerProcess, start: Start) -> None:
    """Attempts rise, with the delays of the settings: 1 s, then 5 s. Handled messages do not come again."""
    producer = start("producer", broker.endpoint, topic="failing")
    consumer = start("push_consumer", broker.endpoint, topic="failing", group="failing", failures=2)
    consumer.ready()
    producer.ready().ask("send", messages=[{"body": "hard"}])
    attempts = consumer.wait_messages(3)
    assert [message["attempt"] for message in attempts] == [1, 2, 3]
    first, second, third = (message["time"] for message in attempts)
    assert 0.9 < second - first < 20  # the upper bounds allow for a busy machine
    assert 4.9 < third - second < 20
    [acknowledged] = consumer.wait_messages(1, "acknowledged")
    assert acknowledged["attempt"] == 3


def test_push_consumption_continues_after_a_kill_of_the_broker(aerobee_broker: BrokerProcess, start: Start) -> None:
    """The client is not restarted, all messages arrive, and acknowledged ones do not come again.

    Messages being processed at the kill are acknowledged afterwards.
    """
    producer = start("producer", aerobee_broker.endpoint, topic="killed")
    consumer = start("push_consumer", aerobee_broker.endpoint, topic="killed", group="killed", seconds=0.02)
    consumer.ready()
    producer.ready().ask("send", messages=numbered(100, "before"))
    consumer.wait_messages(30, "acknowledged")
    aerobee_broker.kill()
    known = {message["body"] for message in consumer.messages("acknowledged")}
    time.sleep(0.3)  # the listener is processing its messages
    aerobee_broker.start()
    send_until_taken(producer, numbered(20, "after"))  # the producer was not restarted either
    everything = {message["body"] for message in (*numbered(100, "before"), *numbered(20, "after"))}
    wait_all_messages([consumer], everything)
    wait_group(aerobee_broker, "killed", lag=0)  # no message is stuck; answers to acknowledgements may be lost
    deliveries = Counter(message["body"] for message in consumer.messages())
    assert {body: deliveries[body] for body in known} == dict.fromkeys(known, 1)


def test_shutdown_does_not_wait_for_a_waiting_poll(broker: BrokerProcess, start: Start) -> None:
    """Both kinds of consumers stop at once although a receive waits at the broker for 20 s."""
    push = start("push_consumer", broker.endpoint, topic="quiet", group="quiet-push")
    simple = start("simple_consumer", broker.endpoint, topic="quiet", group="quiet-simple", **{"await": 20})
    producer = start("producer", broker.endpoint, topic="quiet")
    push.ready()
    simple.ready().ask("receive_later", count=1, invisible=10)
    producer.ready().ask("send", messages=[{"body": "wakes the push consumer"}])
    push.wait_messages(1, "acknowledged")  # it polls again now
    simple.ask("receive_later", count=1, invisible=10)
    for consumer in (push, simple):
        assert consumer.ask("shutdown")["seconds"] < 15
        assert consumer.end() == 0


def test_a_client_behind_a_mapped_port_stays_there(broker: BrokerProcess, start: Start) -> None:
    """The broker's route has the address that the client used: all calls go through the forwarded port."""
    with forwarded_port(broker.endpoint) as port:
        producer = start("producer", port.endpoint, topic="mapped")
        consumer = start("push_consumer", port.endpoint, topic="mapped", group="mapped")
        consumer.ready()
        producer.ready().ask("send", messages=[{"body": "through the tunnel"}])
        consumer.wait_messages(1, "acknowledged")
        assert consumer.ask("shutdown")
    producer.tell("send", messages=[{"body": "the tunnel is gone"}])
    with pytest.raises(AssertionError, match="UNAVAILABLE"):
        producer.answer()  # the producer got no other address


def test_a_lost_delivery_is_repeated(broker: BrokerProcess, start: Start) -> None:
    """The answer to a poll is lost while the client runs on: it polls again and gets the message."""
    with forwarded_port(broker.endpoint) as port:
        consumer = start("push_consumer", port.endpoint, topic="lossy", group="lossy")
        producer = start("producer", broker.endpoint, topic="lossy")
        consumer.ready()
        producer.ready().ask("send", messages=[{"body": "first"}])
        consumer.wait_messages(1, "acknowledged")  # it polls again now
        port.lose_answers()
        producer.ask("send", messages=[{"body": "lost"}])
        wait_group(broker, "lossy", inflight=1)
        port.reset()
        consumer.wait_messages(2, "acknowledged")
        assert [(message["body"], message["attempt"]) for message in consumer.messages()] == [("first", 1), ("lost", 2)]


@pytest.mark.parametrize("first", ["broker", "sdk"])
def test_broker_and_sdk_work_in_one_process(start: Start, tmp_path: Path, first: str) -> None:
    """Both contain the same .proto files; whichever is imported first, a message is sent and received."""
    program = start("broker_and_client", "", first=first, store=str(tmp_path / "store"))
    program.ready()
    [ready] = program.messages("ready")
    assert (ready["message"]["body"], ready["message"]["tag"], ready["message"]["attempt"]) == (
        "from next door",
        "t",
        1,
    )
    assert program.end() == 0
