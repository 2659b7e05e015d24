"""kombu's connections, exchanges and queues on a real broker."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("kombu", reason="needs Celery: make setup")

from kombu import Connection, Consumer, Exchange, Producer, Queue

import aerobee_client.blocking
import aerobee_client.integrations.kombu as transport
from aerobee_client.integrations.declaring import stored_name
from aerobee_client.messages.message import Message
from aerobee_client.testing import BrokerProcess

_SECONDS = 60.0


@pytest.fixture
def connection(aerobee_broker: BrokerProcess) -> Iterator[Connection]:
    """A connection to a broker of its own."""
    with connected(aerobee_broker) as made:
        yield made


def connected(broker: BrokerProcess, **options: Any) -> Connection:
    """A connection as its users make it."""
    return Connection(f"{transport.SCHEME}://{broker.endpoint}", transport_options={"retry_seconds": 20, **options})


def received(
    connection: Connection, queue: Queue, count: int, *, seconds: float = _SECONDS, **options: Any
) -> list[Any]:
    """Up to `count` messages, not acknowledged."""
    found: list[Any] = []
    with Consumer(connection, [queue], on_message=found.append, **options):
        until = time.monotonic() + seconds
        while len(found) < count and (left := until - time.monotonic()) > 0:
            try:
                connection.drain_events(timeout=left)
            except TimeoutError:
                break
    return found


def send(connection: Connection, body: Any, **options: Any) -> None:
    """Send one message."""
    Producer(connection).publish(body, **options)


def wait_until(condition: Callable[[], bool]) -> None:
    """Until something that happens in the background did."""
    until = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


_REPLY = """
import sys
from kombu import Connection, Producer
import aerobee_client.integrations.kombu
with Connection(sys.argv[1]) as connection:
    for queue in sys.argv[2:]:
        Producer(connection).publish(f"reply to {queue}", routing_key=queue, delivery_mode=1)
"""


def program(broker: BrokerProcess, code: str, *arguments: str) -> None:
    """Run another process to its end."""
    command = [sys.executable, "-c", code, f"{transport.SCHEME}://{broker.endpoint}", *arguments]
    subprocess.run(command, check=True, timeout=_SECONDS)


def test_names_stay_different() -> None:
    """Names that a topic cannot have are escaped; no two names become the same."""
    names = ["celery", "a.b", "a_b", "a b", "a_x2e_b", "grüße", "a%b", "a__b"]
    stored = [stored_name(name) for name in names]
    assert stored[:3] == ["celery", "a_x2e_b", "a_b"]
    assert len(set(stored)) == len(names)


def test_a_message_survives_a_restart(aerobee_broker: BrokerProcess) -> None:
    """A durable queue keeps its messages; content, headers and type arrive as they were sent."""
    queue = Queue("my.orders", Exchange("my.orders"), routing_key="my.orders")
    with connected(aerobee_broker) as connection:
        send(
            connection,
            {"order": 7},
            exchange=queue.exchange,
            routing_key="my.orders",
            declare=[queue],
            headers={"a": "b"},
        )
    aerobee_broker.kill()
    aerobee_broker.start()
    with connected(aerobee_broker) as connection:
        (message,) = received(connection, queue, 1)
        assert (message.payload, message.headers["a"], message.content_type) == ({"order": 7}, "b", "application/json")
        assert message.delivery_info["routing_key"] == "my.orders"
        message.ack()
    with connected(aerobee_broker) as connection:
        assert queue(connection).queue_declare(passive=True).message_count == 0


def test_what_is_not_acknowledged_is_delivered_again(aerobee_broker: BrokerProcess) -> None:
    """A rejected message comes back at once, and the message of a closed connection too; a discarded one does not."""
    queue = Queue("orders")
    with connected(aerobee_broker, invisible_seconds=600) as connection:
        send(connection, "one", routing_key="orders", declare=[queue])
        (first,) = received(connection, queue, 1)
        first.requeue()
        (again,) = received(connection, queue, 1)
        assert again.delivery_info["redelivered"]
    with connected(aerobee_broker) as connection:
        (last,) = received(connection, queue, 1)
        last.reject()
        assert received(connection, queue, 1, seconds=1) == []


def test_a_prefetch_count_limits_what_a_channel_holds(connection: Connection, aerobee_broker: BrokerProcess) -> None:
    """Two of five are delivered until one is acknowledged; the others stay with the broker for other consumers."""
    queue = Queue("orders")
    for number in range(5):
        send(connection, number, routing_key="orders", declare=[queue])
    found: list[Any] = []
    with Consumer(connection, [queue], on_message=found.append, prefetch_count=2):
        for _ in range(2):
            connection.drain_events(timeout=_SECONDS)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=1)
        with connected(aerobee_broker) as other:
            others = {message.payload for message in received(other, queue, 3)}
        assert others == set(range(5)) - {message.payload for message in found}
        found[0].ack()
        connection.drain_events(timeout=_SECONDS)
    assert len(found) == 3


def test_recovered_messages_are_delivered_again(connection: Connection) -> None:
    """AMQP's `recover` returns what a channel holds."""
    queue = Queue("orders")
    send(connection, "one", routing_key="orders", declare=[queue])
    channel = connection.channel()
    first = queue(channel).get()
    assert first is not None
    channel.basic_recover(requeue=True)
    (again,) = received(connection, queue, 1)
    assert again.delivery_info["redelivered"]
    again.ack()


def test_an_eta_is_kept_by_the_broker(connection: Connection, aerobee_broker: BrokerProcess) -> None:
    """A message with Celery's header `eta` is delivered when the broker's time has come."""
    queue, eta = Queue("orders"), datetime.now(UTC) + timedelta(hours=1)
    send(connection, "later", routing_key="orders", declare=[queue], headers={"eta": eta.isoformat()})
    assert received(connection, queue, 1, seconds=1) == []
    aerobee_broker.advance(3700)
    (message,) = received(connection, queue, 1)
    assert message.payload == "later"
    message.ack()


def test_an_eta_beyond_the_brokers_limit_takes_several_steps(
    connection: Connection, aerobee_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is due after the longest delay is delivered, and sent again, until it is due."""
    monkeypatch.setattr(transport, "_DELAY_SECONDS_MAX", 1000.0)
    queue, eta = Queue("orders"), datetime.now(UTC) + timedelta(seconds=1800)
    send(connection, "later", routing_key="orders", declare=[queue], headers={"eta": eta.isoformat()})
    aerobee_broker.advance(1100)
    assert received(connection, queue, 1, seconds=2) == []  # sent again, since our own clock has not moved


def test_priorities_of_a_queue_that_has_them(connection: Connection) -> None:
    """The highest priority is delivered first in a queue that was declared with `x-max-priority`."""
    queue = Queue("orders", max_priority=9)
    for priority in (1, 9, 5):
        send(connection, priority, routing_key="orders", declare=[queue], priority=priority)
    order = []
    for _ in range(3):
        (message,) = received(connection, queue, 1, prefetch_count=1)
        order.append(message.payload)
        message.ack()
    assert order == [9, 5, 1]


@pytest.mark.parametrize(
    ("kind", "binding", "sent", "arrive"),
    [
        ("fanout", "", ["a", "b"], ["a", "b"]),
        ("topic", "task.*", ["task.sent", "worker.online", "task.failed"], ["task.sent", "task.failed"]),
        ("direct", "me", ["you", "me"], ["me"]),
    ],
)
def test_an_exchange_reaches_the_transient_queues_of_other_connections(
    connection: Connection, aerobee_broker: BrokerProcess, kind: str, binding: str, sent: list[str], arrive: list[str]
) -> None:
    """Each bound queue gets what is sent after it was bound, by its routing key, whichever connection sends."""
    exchange = Exchange("news", type=kind, durable=False)
    queues = [Queue(f"{name}.news", exchange, routing_key=binding, exclusive=True) for name in ("one", "two")]
    with connected(aerobee_broker) as other, connected(aerobee_broker) as sender:
        send(sender, "too early", exchange=exchange, routing_key=sent[-1], declare=[exchange])
        queues[0](connection).declare()
        queues[1](other).declare()
        for key in sent:
            send(sender, key, exchange=exchange, routing_key=key, declare=[exchange])
        for where, queue in ((connection, queues[0]), (other, queues[1])):
            found = received(where, queue, len(arrive), no_ack=True)
            assert [message.payload for message in found] == arrive


def test_a_reply_goes_to_whichever_connection_of_the_process_takes_it(
    connection: Connection, aerobee_broker: BrokerProcess
) -> None:
    """Celery declares the queue of its results with the connection that sends, and takes them with another one, perhaps
    after the reply; each reply is taken once, and nothing of it stays with the first connection."""
    replies = Queue("replies", auto_delete=True, durable=False, expires=60)
    replies(connection).declare()
    with connected(aerobee_broker) as worker, connected(aerobee_broker) as other:
        for number in range(3):
            send(worker, number, routing_key="replies", delivery_mode=1)
        wait_until(lambda: replies(connection).queue_declare(passive=True).message_count == 3)
        assert [each.payload for each in received(other, replies, 3, no_ack=True)] == [0, 1, 2]
        assert replies(connection).queue_declare(passive=True).message_count == 0
        send(worker, 3, routing_key="replies", delivery_mode=1)
        assert [each.payload for each in received(connection, replies, 1, no_ack=True)] == [3]


def test_a_reply_queue_waits_for_its_consumer_without_a_connection(aerobee_broker: BrokerProcess) -> None:
    """A connection that declares it and sends may end before another one takes the reply, as without Celery's pool of
    connections; one that had a consumer, or is exclusive, ends with its connection."""
    kept, taken = (Queue(name, auto_delete=True, durable=False) for name in ("kept", "taken"))
    own = Queue("own", exclusive=True)
    with connected(aerobee_broker) as first:
        for queue in (kept, taken, own):
            queue(first).declare()
        assert received(first, taken, 1, seconds=0.1, no_ack=True) == []
    later = 2 * 8  # in every queue of the topic: after them all before was read
    program(aerobee_broker, _REPLY, "taken", "own", *["kept"] * later)
    with connected(aerobee_broker) as second:
        assert [each.payload for each in received(second, kept, later, no_ack=True)] == ["reply to kept"] * later
        for queue in (taken, own):
            assert received(second, queue, 1, seconds=0.1, no_ack=True) == []


def test_messages_of_other_senders_stop_nothing(connection: Connection, aerobee_broker: BrokerProcess) -> None:
    """What is not a message of kombu goes to no transient queue, and from a durable one to the dead letters."""
    orders, replies = Queue("orders"), Queue("replies", exclusive=True)
    orders(connection).declare()
    replies(connection).declare()
    with aerobee_client.blocking.connect(aerobee_broker.endpoint) as client, client.producer() as producer:
        for body in (b"plain", b"[1]", b"{}", b'{"properties": {"delivery_info": {"routing_key": 1}}}'):
            for topic in ("orders", stored_name("exchange:")):
                producer.send(Message(topic=topic, body=body))
        send(connection, "order", routing_key="orders")
        send(connection, "reply", routing_key="replies", delivery_mode=1)
        for queue, expected in ((orders, "order"), (replies, "reply")):
            (found,) = received(connection, queue, 1)
            assert found.payload == expected
            found.ack()


def test_purge_and_size(connection: Connection) -> None:
    """A purged queue is empty, and says how many messages it had."""
    queue = Queue("orders")
    for number in range(3):
        send(connection, number, routing_key="orders", declare=[queue])
    bound = queue(connection)
    assert bound.queue_declare(passive=True).message_count == 3
    assert bound.purge() == 3
    assert bound.get() is None


def test_without_a_broker_the_error_is_one_that_kombu_repeats() -> None:
    """A refused connection is a connection error, so that `ensure_connection` tries again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"{transport.SCHEME}://127.0.0.1:{free.getsockname()[1]}"
        connection = Connection(url, transport_options={"retry_seconds": 0})
        with pytest.raises(connection.connection_errors):
            connection.connect()
        connection.release()


_KILLED = """
import os, signal, sys
from kombu import Connection, Consumer, Queue
import aerobee_client.integrations.kombu

def die(message):
    print(message.payload, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

connection = Connection(sys.argv[1], transport_options={"invisible_seconds": 5})
with Consumer(connection, [Queue("orders")], on_message=die):
    connection.drain_events(timeout=60)
"""


def test_the_message_of_a_killed_process_goes_to_another(aerobee_broker: BrokerProcess) -> None:
    """A process is killed while it handles a message; another one receives it after the invisible time."""
    queue = Queue("orders")
    with connected(aerobee_broker) as connection:
        send(connection, "one", routing_key="orders", declare=[queue])
        url = f"{transport.SCHEME}://{aerobee_broker.endpoint}"
        done = subprocess.run([sys.executable, "-c", _KILLED, url], capture_output=True, text=True, timeout=_SECONDS)
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, "one\n")
        (again,) = received(connection, queue, 1)
        assert (again.payload, again.delivery_info["redelivered"]) == ("one", True)
        again.ack()
