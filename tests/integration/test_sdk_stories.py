"""The released SDKs, unmodified, against a real broker: one book of stories, each told with the SDKs that can tell it.

Every SDK client is a separate program. `make test` runs those of Python and Node.js, `make test-sdks` also those of
Java and Go, which are built from tests/sdk.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aerobee_client.testing import BrokerProcess, run_broker
from tests.integration.conftest import StartProgram
from tests.support.official_sdks import GO, JAVA, NODE, PYTHON, OfficialSdk
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
from tests.support.shell import Shell

Start = Callable[..., SdkProgram]

# Short polls and checks of transactions: a client's shutdown waits for its poll.
SETTINGS: dict[str, object] = {
    "delivery.poll_seconds_max": 3,
    "transactions.timeout_seconds": 1.0,
    "transactions.check_interval_seconds": 1.0,
}
_BUILT = [
    pytest.mark.toolchain,
    pytest.mark.skipif("AEROBEE_TOOLCHAINS" not in os.environ, reason="runs with `make test-sdks`"),
]


def told_by(*sdks: OfficialSdk) -> pytest.MarkDecorator:
    """The SDKs of a story."""
    values = [
        pytest.param(each, marks=[each.mark, *(_BUILT if each in (JAVA, GO) else ())], id=each.name.lower())
        for each in sdks
    ]
    return pytest.mark.parametrize("sdk", values)


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, object]:
    """One broker for the stories that do not stop it; each has topics and groups of its own."""
    return SETTINGS


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that a story may kill."""
    with run_broker(tmp_path_factory.mktemp("aerobee"), settings=SETTINGS) as running:
        yield running


@pytest.fixture
def start(sdk: OfficialSdk, start_program: StartProgram) -> Start:
    """Starts a program by its name."""

    def begin(name: str, broker: BrokerProcess, **options: Any) -> SdkProgram:
        return start_program(sdk, name, **({"endpoint": broker.endpoint} | options))

    return begin


@pytest.fixture
def topic(sdk: OfficialSdk, request: pytest.FixtureRequest) -> str:
    """The test's own topic."""
    return f"{sdk.name.partition('.')[0].lower()}-{request.node.originalname.removeprefix('test_').replace('_', '-')}"


def drained(consumer: SdkProgram, count: int, *, invisible: float = 60) -> list[dict[str, Any]]:
    """Receive `count` messages with a simple consumer, without acknowledging. AssertionError if fewer arrive."""
    received: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60
    while len(received) < count:
        received += consumer.ask("receive", count=16, invisible=invisible)["messages"]
        assert time.monotonic() < deadline, f"{len(received)} of {count} came\n{consumer.logs()}"
    return received


@told_by(PYTHON, NODE, JAVA, GO)
def test_every_field_arrives_and_only_unacknowledged_messages_are_redelivered(
    broker: BrokerProcess, start: Start, topic: str, sdk: OfficialSdk
) -> None:
    """A message keeps every field; unacknowledged ones come again after their invisible time, as attempt 2."""
    producer = start("producer", broker, topic=topic)
    consumer = start("simple_consumer", broker, topic=topic, group=topic)
    sent = {
        "body": "grüße, 世界 🚀",
        "tag": "greeting",
        "keys": ["kunde-ü", "order-1"],
        "properties": {"currency": "€", "empty-handed": "no", "Ключ": "значение"},
    }
    seconds = 10 if sdk in (JAVA, GO) else 3  # the shortest that the SDK takes
    [message_id] = producer.ready().ask("send", messages=[sent])["message_ids"]
    producer.ask("send", messages=[{"body": "plain"}])
    by_body = {message["body"]: message for message in drained(consumer.ready(), 2, invisible=seconds)}
    full, plain = by_body[sent["body"]], by_body["plain"]
    expected = {**sent, "topic": topic, "message_id": message_id, "attempt": 1}
    assert {name: full[name] for name in expected} == expected
    assert not full.get("corrupted")
    assert full["born_host"]
    assert abs(full["born_timestamp"] / 1000 - time.time()) < 60
    assert (plain["tag"], plain["keys"], plain["properties"]) == (None, [], {})

    consumer.ask("acknowledge", bodies=[sent["body"]])
    [again] = drained(consumer, 1)
    assert (again["body"], again["attempt"]) == ("plain", 2)
    assert again["time"] - plain["time"] > 0.8 * seconds  # which began a little before we noted the time
    consumer.ask("acknowledge", bodies=["plain"])
    assert consumer.ask("receive", count=10, invisible=60)["messages"] == []
    wait_group(broker, topic, lag=0)
    for program in (producer, consumer):
        assert program.end() == 0, program.logs()


@told_by(PYTHON, NODE, JAVA, GO)
def test_a_changed_invisible_duration_holds(broker: BrokerProcess, start: Start, topic: str) -> None:
    """After shortening, the message comes again soon; the client's new handle acknowledges it."""
    producer = start("producer", broker, topic=topic)
    consumer = start("simple_consumer", broker, topic=topic, group=topic)
    producer.ready().ask("send", messages=[{"body": "slow"}, {"body": "slower"}])
    drained(consumer.ready(), 2)
    changed = consumer.ask("change", body="slow", invisible=1)
    consumer.ask("change", body="slower", invisible=120)
    consumer.ask("acknowledge", bodies=["slower"])
    [again] = drained(consumer, 1)
    assert (again["body"], again["attempt"]) == ("slow", 2)
    assert again["time"] - changed["time"] > 0.5
    consumer.ask("acknowledge", bodies=["slow"])
    wait_group(broker, topic, lag=0)


@told_by(PYTHON, JAVA, GO)
def test_delayed_messages_arrive_in_time_and_can_be_recalled(
    broker: BrokerProcess, start: Start, topic: str, sdk: OfficialSdk
) -> None:
    """A message waits for its millisecond; a recalled one never comes, and cannot be recalled twice."""
    create_topic(broker, topic, "delay")
    producer = start("producer", broker, topic=topic)
    consumer = start("push_consumer", broker, topic=topic, group=topic)
    producer.ready()
    consumer.ready()
    due = math.ceil(time.time()) + 4 if sdk is PYTHON else time.time() + 4  # Python's takes only whole seconds
    later = [{"body": "taken back", "due": due}, {"body": "delayed", "due": due}, {"body": "too late", "due": due - 60}]
    [message_id, *_] = producer.ask("send", messages=later)["message_ids"]
    assert producer.ask("recall", body="taken back")["message_id"] == message_id
    producer.tell("recall", body="taken back")
    with pytest.raises(AssertionError, match="is already recalled"):
        producer.answer()
    [at_once, in_time] = consumer.wait_messages(2)
    assert (at_once["body"], in_time["body"]) == ("too late", "delayed")
    assert in_time["time"] >= due - 0.01
    producer.ask("send", messages=[{"body": "end", "due": due + 1}])
    consumer.wait_messages(3)
    assert bodies(consumer.messages()) == ["delayed", "end", "too late"]


@told_by(PYTHON, NODE, JAVA, GO)
def test_filters_by_tag_and_by_sql(broker: BrokerProcess, start: Start, topic: str) -> None:
    """Both kinds of consumers get only matching messages; the others are finished for their groups."""
    filters: dict[str, dict[str, Any]] = {
        "by-tag": {"expression": "even || prime"},
        "by-sql": {"expression": "price BETWEEN 10 AND 19 AND region = 'eu'", "sql": True},
    }
    producer = start("producer", broker, topic=topic)
    simple, push = {}, {}
    for name, filtered in filters.items():
        simple[name] = start("simple_consumer", broker, topic=topic, group=f"{topic}-{name}", **filtered)
        push[name] = start("push_consumer", broker, topic=topic, group=f"{topic}-push-{name}", **filtered)
    for program in (producer, *simple.values(), *push.values()):
        program.ready()
    sent = [
        {
            "body": f"m{number}",
            "tag": ("even", "odd")[number % 2],
            "properties": {"price": str(number), "region": ("eu", "us", "asia")[number % 3]},
        }
        for number in range(30)
    ]
    producer.ask("send", messages=sent)
    expected = {
        "by-tag": [f"m{number}" for number in range(0, 30, 2)],
        "by-sql": [f"m{number}" for number in range(10, 20) if number % 3 == 0],
    }
    for name, wanted in expected.items():
        received = drained(simple[name], len(wanted))
        assert bodies(received) == sorted(wanted)
        simple[name].ask("acknowledge", bodies=wanted)
        wait_group(broker, f"{topic}-{name}", lag=0)
        wait_all_messages([push[name]], set(wanted))
        wait_group(broker, f"{topic}-push-{name}", lag=0)
        assert bodies(push[name].messages()) == sorted(wanted)


@told_by(PYTHON, JAVA, GO)
def test_push_consumers_share_a_group_and_each_group_gets_all(broker: BrokerProcess, start: Start, topic: str) -> None:
    """Two consumers of one group never get the same message; another group gets all."""
    producer = start("producer", broker, topic=topic)
    sharing = [start("push_consumer", broker, topic=topic, group=f"{topic}-sharing") for _ in range(2)]
    alone = start("push_consumer", broker, topic=topic, group=f"{topic}-alone")
    for program in (producer, *sharing, alone):
        program.ready()
    sent: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60
    # One by one until both got some: a consumer that polls first takes all available messages.
    while len(sent) < 40 or any(len(consumer.messages()) < 3 for consumer in sharing):
        assert time.monotonic() < deadline, "one of two consumers gets everything"
        sent.append({"body": f"m{len(sent)}"})
        producer.ask("send", messages=sent[-1:])
    everything = {message["body"] for message in sent}
    assert Counter(bodies(wait_all_messages(sharing, everything))) == Counter(everything)
    assert Counter(bodies(wait_all_messages([alone], everything))) == Counter(everything)
    for group in ("sharing", "alone"):
        wait_group(broker, f"{topic}-{group}", lag=0)
    for program in (*sharing, alone):
        assert program.end() == 0, program.logs()


@told_by(PYTHON, NODE, JAVA, GO)
def test_a_lite_consumer_gets_its_lite_topics(broker: BrokerProcess, start: Start, topic: str) -> None:
    """It gets messages from its subscription on, also of two topics at once, and none after unsubscribing."""
    create_topic(broker, topic, "LITE")
    producer = start("producer", broker, topic=topic)
    consumer = start("lite_push_consumer", broker, topic=topic, group=topic)
    producer.ready()
    # One letter each: Python's splits a longer name into its letters until its next full synchronization.
    consumer.ready().ask("subscribe", lite_topic="a")
    producer.ask("send", messages=[{"body": f"{room}1", "lite_topic": room} for room in "abc"])
    assert [(each["body"], each["lite_topic"]) for each in consumer.wait_messages(1)] == [("a1", "a")]
    consumer.ask("subscribe", lite_topic="b")
    assert bodies(consumer.wait_messages(2)) == ["a1", "b1"]
    consumer.ask("unsubscribe", lite_topic="a")
    producer.ask("send", messages=[{"body": f"{room}2", "lite_topic": room} for room in "abc"])
    assert bodies(consumer.wait_messages(3)) == ["a1", "b1", "b2"]


@told_by(PYTHON, NODE, JAVA, GO)
def test_the_highest_priority_comes_first(broker: BrokerProcess, start: Start, topic: str) -> None:
    """Waiting messages come by priority, and equal priorities oldest first."""
    create_topic(broker, topic, "PRIORITY")
    producer = start("producer", broker, topic=topic).ready()
    consumer = start("simple_consumer", broker, topic=topic, group=topic).ready()
    priorities = [2, 4, 3, 4, 1]  # Node.js treats 0 as unset
    sent = [{"body": f"m{number}", "priority": priority} for number, priority in enumerate(priorities)]
    producer.ask("send", messages=sent)
    received: list[str] = []
    while len(received) < len(sent):
        received += [message["body"] for message in consumer.ask("receive", count=1, invisible=60)["messages"]]
    assert received == ["m1", "m3", "m2", "m0", "m4"]


@told_by(PYTHON, JAVA, GO)
def test_a_failing_listener_gets_the_message_again_after_the_backoff(
    broker: BrokerProcess, start: Start, topic: str
) -> None:
    """Attempts rise, with the delays of the settings: 1 s, then 5 s. Handled messages do not come again."""
    producer = start("producer", broker, topic=topic)
    consumer = start("push_consumer", broker, topic=topic, group=topic, failures=2)
    producer.ready()
    consumer.ready()
    producer.ask("send", messages=[{"body": "hard"}])
    attempts = consumer.wait_messages(3)
    assert [message["attempt"] for message in attempts] == [1, 2, 3]
    first, second, third = (message["time"] for message in attempts)
    assert 0.9 < second - first < 20  # the upper bounds allow for a busy machine
    assert 4.9 < third - second < 20
    wait_group(broker, topic, lag=0)
    assert len(consumer.messages()) == 3


@told_by(NODE, JAVA, GO)
def test_push_keeps_the_order_of_each_message_group_while_one_fails(
    broker: BrokerProcess, start: Start, topic: str
) -> None:
    """A failing listener gets the same message again before the next of its message group."""
    create_topic(broker, topic, "fifo")
    producer = start("producer", broker, topic=topic)
    consumer = start("push_consumer", broker, topic=topic, group=topic, failures=1)
    producer.ready()
    consumer.ready()
    sent = [{"body": f"{group}{number}", "message_group": group} for number in range(5) for group in ("a", "b", "c")]
    producer.ask("send", messages=sent)
    called = consumer.wait_messages(2 * len(sent))
    order: dict[str, list[str]] = defaultdict(list)
    for message in called:
        order[message["body"][0]].append(message["body"])
    assert order == {group: [f"{group}{number}" for number in range(5) for _ in range(2)] for group in "abc"}
    wait_group(broker, topic, lag=0)
    assert len(consumer.messages()) == 2 * len(sent)


@told_by(NODE, JAVA, GO)
def test_a_message_group_continues_after_a_dead_letter(broker: BrokerProcess, start: Start, topic: str) -> None:
    """After its last attempt a message becomes a dead letter, and the next of its message group is delivered."""
    create_topic(broker, topic, "fifo")
    Shell(broker.endpoint).text("group", "create", topic, "--fifo", "--max-attempts", "2")
    producer = start("producer", broker, topic=topic)
    consumer = start("push_consumer", broker, topic=topic, group=topic, failing_calls={"a1": 99})
    producer.ready()
    consumer.ready()
    producer.ask("send", messages=[{"body": f"a{number}", "message_group": "a"} for number in range(4)])
    assert bodies(consumer.wait_messages(5)) == ["a0", "a1", "a1", "a2", "a3"]
    assert [message["body"] for message in consumer.messages()] == ["a0", "a1", "a1", "a2", "a3"]
    wait_group(broker, topic, lag=0)
    reader = start("simple_consumer", broker, topic=f"%DLQ%{topic}", group=f"{topic}-reader").ready()
    assert bodies(drained(reader, 1)) == ["a1"]


@told_by(PYTHON, JAVA, GO)
def test_a_client_behind_a_mapped_port_stays_there(broker: BrokerProcess, start: Start, topic: str) -> None:
    """The broker's route has the address that the client used: all calls go through the forwarded port."""
    with forwarded_port(broker.endpoint) as port:
        producer = start("producer", broker, topic=topic, endpoint=port.endpoint)
        consumer = start("push_consumer", broker, topic=topic, group=topic, endpoint=port.endpoint)
        producer.ready()
        consumer.ready()
        producer.ask("send", messages=[{"body": "through the tunnel"}])
        consumer.wait_messages(1)
        wait_group(broker, topic, lag=0)
    producer.tell("send", messages=[{"body": "the tunnel is gone"}])
    with pytest.raises(AssertionError):
        producer.answer()  # the producer got no other address


@told_by(JAVA, GO)
def test_commit_and_rollback(broker: BrokerProcess, start: Start, topic: str) -> None:
    """A committed message arrives once, with its id; a rolled-back one does not."""
    create_topic(broker, topic, "transaction")
    producer = start("producer", broker, topic=topic, answer="rollback")
    consumer = start("simple_consumer", broker, topic=topic, group=topic)
    producer.ready()
    consumer.ready()
    committed = producer.ask("transact", body="committed", decision="commit")
    producer.ask("transact", body="rolled back", decision="rollback")
    producer.ask("transact", body="later")
    producer.ask("decide", body="later", decision="commit")
    received = drained(consumer, 2)
    assert bodies(received) == ["committed", "later"]
    assert [m["message_id"] for m in received if m["body"] == "committed"] == [committed["message_id"]]
    consumer.ask("acknowledge", bodies=["committed", "later"])
    assert consumer.ask("receive", count=10, invisible=60)["messages"] == []


@told_by(NODE, JAVA, GO)
def test_another_producer_answers_for_one_that_died(broker: BrokerProcess, start: Start, topic: str) -> None:
    """The producer is killed before its decision: another one is checked until it knows the decision."""
    create_topic(broker, topic, "transaction")
    dying = start("producer", broker, topic=topic).ready()
    consumer = start("simple_consumer", broker, topic=topic, group=topic).ready()
    sent = dying.ask("transact", body="orphan")
    dying.signal(signal.SIGKILL)
    unsure = start("producer", broker, topic=topic).ready()
    unsure.wait_messages(2, "checked")
    unsure.signal(signal.SIGKILL)
    heir = start("producer", broker, topic=topic, answer="commit").ready()
    [checked] = heir.wait_messages(1, "checked")[:1]
    assert (checked["body"], checked["message_id"]) == ("orphan", sent["message_id"])
    [message] = drained(consumer, 1)
    assert message["message_id"] == sent["message_id"]


@told_by(PYTHON, NODE, JAVA, GO)
def test_a_broker_that_is_killed_and_restarted(
    own_broker: BrokerProcess, start: Start, topic: str, sdk: OfficialSdk
) -> None:
    """No client is restarted; all messages arrive, and those acknowledged before do not come again."""
    producer = start("producer", own_broker, topic=topic)
    push = start("push_consumer", own_broker, topic=topic, group=f"{topic}-push", seconds=0.2)
    simple = start("simple_consumer", own_broker, topic=topic, group=f"{topic}-simple")
    for program in (producer, push, simple):
        program.ready()
    producer.ask("send", messages=numbered(20, "first"))
    first = {message["body"] for message in numbered(20, "first")}
    wait_all_messages([push], first)
    wait_group(own_broker, f"{topic}-push", lag=0)
    held = [message["body"] for message in drained(simple, 20)]
    producer.ask("send", messages=numbered(60, "second"))
    # All are in flight: Go's client never retries a poll whose answer was lost, see docs/sdks.md.
    wait_group(own_broker, f"{topic}-push", ready=0)
    settings = len(push.messages("settings"))
    own_broker.kill()  # the listener is processing its messages
    time.sleep(0.3)
    own_broker.start()
    send_until_taken(producer, numbered(20, "third"))
    if sdk is NODE:  # its program shows what the broker sends over Telemetry
        push.wait_messages(settings + 1, "settings")
    rest = {message["body"] for message in (*numbered(60, "second"), *numbered(20, "third"))}
    wait_all_messages([push], rest)
    wait_group(own_broker, f"{topic}-push", lag=0)
    deliveries = Counter(message["body"] for message in push.messages())
    assert {body: deliveries[body] for body in first} == dict.fromkeys(first, 1)

    deadline = time.monotonic() + 60
    while True:  # old handles are still valid; reconnecting needs a moment
        simple.tell("acknowledge", bodies=held)
        try:
            simple.answer()
            break
        except AssertionError:
            assert time.monotonic() < deadline, simple.logs()
    received = drained(simple, len(rest))
    assert {message["body"] for message in received} == rest
    assert {message["attempt"] for message in received} == {1}


@told_by(PYTHON, NODE, JAVA, GO)
def test_a_namespace_keeps_topics_apart(broker: BrokerProcess, start: Start, topic: str) -> None:
    """Equal names of topics and groups are separate inside and outside a namespace."""
    for namespace in ("", "shop"):
        producer = start("producer", broker, topic=topic, namespace=namespace).ready()
        producer.ask("send", messages=[{"body": f"in {namespace!r}"}])
    for namespace in ("", "shop"):
        consumer = start("simple_consumer", broker, topic=topic, group=topic, namespace=namespace).ready()
        assert bodies(drained(consumer, 1)) == [f"in {namespace!r}"]
        assert consumer.ask("receive", count=10, invisible=60)["messages"] == []


@told_by(JAVA, GO)
def test_an_unknown_topic_is_refused(tmp_path_factory: pytest.TempPathFactory, start: Start, topic: str) -> None:
    """A broker without automatic creation names the unknown topic, and how to create it."""
    with run_broker(tmp_path_factory.mktemp("aerobee"), ()) as strict:
        producer = start("producer", strict, topic=topic)
        with pytest.raises(AssertionError, match=rf"aerobee topic create {topic}"):
            producer.ready()
        assert topic not in Shell(strict.endpoint).text("topic", "list")


@told_by(PYTHON)
def test_shutdown_does_not_wait_for_a_waiting_poll(aerobee_broker: BrokerProcess, start: Start, topic: str) -> None:
    """Both kinds of consumers stop at once although a receive waits at the broker for 20 s."""
    push = start("push_consumer", aerobee_broker, topic=topic, group=f"{topic}-push")
    simple = start("simple_consumer", aerobee_broker, topic=topic, group=f"{topic}-simple", **{"await": 20})
    producer = start("producer", aerobee_broker, topic=topic)
    push.ready()
    simple.ready().ask("receive_later", count=1, invisible=10)
    producer.ready().ask("send", messages=[{"body": "wakes the push consumer"}])
    push.wait_messages(1, "acknowledged")  # it polls again now
    simple.ask("receive_later", count=1, invisible=10)
    for consumer in (push, simple):
        assert consumer.ask("shutdown")["seconds"] < 15
        assert consumer.end() == 0


@told_by(PYTHON, NODE)
def test_a_lost_delivery_is_repeated(broker: BrokerProcess, start: Start, topic: str) -> None:
    """The answer to a poll is lost while the client runs on: it polls again and gets the message."""
    with forwarded_port(broker.endpoint) as port:
        consumer = start("push_consumer", broker, endpoint=port.endpoint, topic=topic, group=topic)
        producer = start("producer", broker, topic=topic)
        consumer.ready()
        producer.ready().ask("send", messages=[{"body": "first"}])
        consumer.wait_messages(1, "acknowledged")  # it polls again now
        port.lose_answers()
        producer.ask("send", messages=[{"body": "lost"}])
        wait_group(broker, topic, inflight=1)
        port.reset()
        consumer.wait_messages(2, "acknowledged")
        assert [(message["body"], message["attempt"]) for message in consumer.messages()] == [("first", 1), ("lost", 2)]


@told_by(PYTHON)
@pytest.mark.parametrize("first", ["broker", "sdk"])
def test_broker_and_sdk_work_in_one_process(
    start_program: StartProgram, sdk: OfficialSdk, tmp_path: Path, first: str
) -> None:
    """Both contain the same .proto files; whichever is imported first, a message is sent and received."""
    program = start_program(sdk, "broker_and_client", "", first=first, store=str(tmp_path / "store"))
    program.ready()
    [ready] = program.messages("ready")
    assert (ready["message"]["body"], ready["message"]["tag"], ready["message"]["attempt"]) == (
        "from next door",
        "t",
        1,
    )
    assert program.end() == 0


@told_by(NODE)
def test_every_kind_of_message(broker: BrokerProcess, start: Start, topic: str) -> None:
    """Normal, ordered, delayed and transactional messages arrive; recalled and rolled-back ones do not."""
    create_topic(broker, topic, "normal", "fifo", "delay", "transaction")
    producer = start("producer", broker, topic=topic)
    consumer = start("push_consumer", broker, topic=topic, group=topic)
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


@told_by(NODE)
def test_a_simple_consumer_drains_all_queues_of_a_topic(broker: BrokerProcess, start: Start, topic: str) -> None:
    """It names queue 0 in every receive and still gets messages of all queues; a tag filter works."""
    producer = start("producer", broker, topic=topic)
    consumer = start("simple_consumer", broker, topic=topic, group=topic, expression="even || none")
    sent = [{"body": f"m{number}", "tag": ("even", "odd", "odder")[number % 3]} for number in range(48)]
    producer.ready().ask("send", messages=sent)
    consumer.ready()
    received: list[dict[str, Any]] = []
    while answer := consumer.ask("receive", count=5, invisible=60)["messages"]:
        received += answer
        consumer.ask("acknowledge", bodies=[message["body"] for message in answer])
    assert Counter(bodies(received)) == Counter(message["body"] for message in sent if message["tag"] == "even")
    assert sum(queue["maxOffset"] > 0 for queue in group_queues(broker, topic)) > 1


@told_by(NODE)
def test_push_consumption_succeeds_and_fails_without_a_crash(broker: BrokerProcess, start: Start, topic: str) -> None:
    """A listener that throws and then fails gets the message with rising attempts until it succeeds.

    The other group's listener gets every message once. Both shut down cleanly.
    """
    producer = start("producer", broker, topic=topic)
    failing = start("push_consumer", broker, topic=topic, group=f"{topic}-failing", failures=2)
    fine = start("push_consumer", broker, topic=topic, group=f"{topic}-fine")
    for program in (producer, failing, fine):
        program.ready()
    producer.ask("send", messages=numbered(10))
    everything = {message["body"] for message in numbered(10)}
    for program in (failing, fine):
        wait_all_messages([program], everything, "acknowledged")
    wait_group(broker, f"{topic}-failing", lag=0)
    wait_group(broker, f"{topic}-fine", lag=0)
    attempts = Counter((message["body"], message["attempt"]) for message in failing.messages())
    assert attempts == Counter((body, attempt) for body in everything for attempt in (1, 2, 3))
    assert Counter(bodies(fine.messages())) == Counter(everything)
    for program in (failing, fine):
        program.tell("shutdown")
    for program in (failing, fine):
        program.answer()
        assert program.end() == 0


@told_by(NODE)
def test_a_client_reconnects_its_stream_on_command(broker: BrokerProcess, start: Start, topic: str) -> None:
    """It sends its settings again, gets the broker's, and continues consuming."""
    producer = start("producer", broker, topic=topic)
    consumer = start("push_consumer", broker, topic=topic, group=topic)
    producer.ready().ask("send", messages=numbered(3, "before"))
    consumer.ready().wait_messages(3, "acknowledged")
    settings = len(consumer.messages("settings"))
    reconnect(broker, topic)
    consumer.wait_messages(settings + 1, "settings")
    producer.ask("send", messages=numbered(3, "after"))
    consumer.wait_messages(6, "acknowledged")
